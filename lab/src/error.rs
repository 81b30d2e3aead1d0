//! Why the lab cannot do what it was asked.

use std::path::PathBuf;

use tradewind_net::NetError;
use tradewind_units::{Duration, HostId};
use tradewind_wan::{ChangeError, TopologyError};

/// Why the lab failed; each prints as one line.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The kernel or one of its tools refused.
    #[error("lab: {0}")]
    Net(#[from] NetError),
    /// The kernel or one of its tools refused something for one host.
    #[error("lab: host {host}: {source}")]
    Host {
        /// Which host.
        host: HostId,
        /// The refusal.
        #[source]
        source: NetError,
    },
    /// A host asks for a congestion control that this kernel lacks.
    #[error("lab: host {host}: this kernel has no congestion control `{wanted}`, only {available}")]
    CongestionControl {
        /// Which host.
        host: HostId,
        /// What it asked for.
        wanted: String,
        /// What there is.
        available: String,
    },
    /// No host of that name.
    #[error("lab: no host `{host}` in this topology; it has {known}")]
    UnknownHost {
        /// The name that was asked for.
        host: HostId,
        /// The names that exist.
        known: String,
    },
    /// More hosts than there are addresses.
    #[error("lab: {hosts} hosts, at most {most} have an address")]
    TooManyHosts {
        /// How many were asked for.
        hosts: usize,
        /// How many there can be.
        most: usize,
    },
    /// Packets cannot pass one by one through a packet socket.
    #[error("lab: single packets need a TUN device: {0}")]
    SinglePackets(#[source] NetError),
    /// The emulator's thread is gone.
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
        /// What is wrong in it.
        #[source]
        source: TopologyError,
    },
    /// A file or socket could not be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// No lab is up.
    #[error("no lab is up ({} does not answer): start one by `tradewind lab up FILE`", path.display())]
    NotUp {
        /// The socket that was tried.
        path: PathBuf,
    },
    /// A lab is up already.
    #[error("a lab is up already (process {process}): end it by `tradewind lab down`")]
    AlreadyUp {
        /// The process that holds it.
        process: u32,
    },
    /// The other side said nothing for as long as one waits.
    #[error("no word came in time")]
    Silent,
    /// The lab's process is there and does not answer.
    #[error(
        "the lab's process ({process}) has not answered for {} s: it is stopped or this machine is \
         overloaded; `kill -9` ends it and its lab", waited.as_secs()
    )]
    NoAnswer {
        /// Its number, as far as it is known.
        process: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The lab's process refused, or speaks otherwise than we do.
    #[error("{0}")]
    Remote(String),
}
