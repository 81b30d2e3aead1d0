//! Errors of the lab.

use std::path::PathBuf;

use tradewind_net::NetError;
use tradewind_units::{Duration, HostId};
use tradewind_wan::{ChangeError, TopologyError};

/// An error of the lab; each prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The kernel or one of its tools returned an error.
    #[error("lab: {0}")]
    Net(#[from] NetError),
    /// The kernel or one of its tools returned an error for one host.
    #[error("lab: host {host}: {source}")]
    Host {
        /// The host.
        host: HostId,
        /// The error.
        #[source]
        source: NetError,
    },
    /// A host is configured with a congestion control that this kernel lacks.
    #[error("lab: host {host}: this kernel has no congestion control `{wanted}`, only {available}")]
    CongestionControl {
        /// The host.
        host: HostId,
        /// The requested congestion control.
        wanted: String,
        /// The congestion controls of this kernel.
        available: String,
    },
    /// No host of that name.
    #[error("lab: no host `{host}` in this topology; it has {known}")]
    UnknownHost {
        /// The requested name.
        host: HostId,
        /// The names that exist.
        known: String,
    },
    /// There are more hosts than addresses.
    #[error("lab: {hosts} hosts, at most {most} have an address")]
    TooManyHosts {
        /// The requested number of hosts.
        hosts: usize,
        /// The largest possible number.
        most: usize,
    },
    /// A packet socket cannot pass packets one by one.
    #[error("lab: single packets need a TUN device: {0}")]
    SinglePackets(#[source] NetError),
    /// The emulator's thread has ended.
    #[error("lab: the emulator has stopped: {0}")]
    Stopped(String),
    /// A change was refused.
    #[error("lab: {0}")]
    Change(#[from] ChangeError),
    /// A topology was refused.
    #[error("{}: {source}", path.display())]
    Topology {
        /// The file.
        path: PathBuf,
        /// The error in it.
        #[source]
        source: TopologyError,
    },
    /// A file or socket could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        #[source]
        source: std::io::Error,
    },
    /// No lab is up.
    #[error(
        "no lab is up ({} does not answer): start one by `tradewind lab up FILE`",
        path.display()
    )]
    NotUp {
        /// The socket that was tried.
        path: PathBuf,
    },
    /// Another lab is up.
    #[error("a lab is up already (process {process}): end it by `tradewind lab down`")]
    AlreadyUp {
        /// The process that holds it.
        process: u32,
    },
    /// The peer sent nothing within the time-out.
    #[error("no word came in time")]
    Silent,
    /// The lab's process is running and does not answer.
    #[error(
        "the lab's process ({process}) has not answered for {} s: it is stopped or this machine is \
         overloaded; `kill -9` ends it and its lab", waited.as_secs()
    )]
    NoAnswer {
        /// Its process id, as far as it is known.
        process: String,
        /// The time waited.
        waited: Duration,
    },
    /// The lab's process refused, or speaks another version of the protocol.
    #[error("{0}")]
    Remote(String),
    /// The lab's process refused what the user wrote: its topology, a change or a host's name.
    #[error("{0}")]
    BadInput(String),
}

impl LabError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        matches!(
            self,
            Self::CongestionControl { .. }
                | Self::UnknownHost { .. }
                | Self::TooManyHosts { .. }
                | Self::Change(_)
                | Self::Topology { .. }
                | Self::BadInput(_)
        )
    }
}
