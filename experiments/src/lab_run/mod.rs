//! What experiments on the lab share: a lab with room for files, programs on its hosts, and transfers between them.
//!
//! An experiment starts a [`Ground`], puts relays, gateways and forwarders on its hosts ([`service`], [`chain`]), moves
//! data by plain sockets ([`carry`] pushes a volume, [`fetch`] downloads a file), and asks the lab of each whether
//! it kept time ([`checked`]). That is a repeat; [`repeats`] runs them, and keeps what is whole.
//!
//! | module | holds |
//! |---|---|
//! | [`service`] | relays, gateways and forwarders as processes of the same binary, with keys and grants |
//! | [`chain`] | a way from one host to another: direct, over forwarding relays, over splitting relays |
//! | [`fetch`] | files served and fetched over a way, timed and verified |
//! | [`exchange`] | many files at once, both ends of each connection in hand |
//! | [`carry`] | one volume pushed over one connection, timed and verified |
//! | [`packets`] | relays and gateways that carry datagrams |
//! | [`watch`] | bytes over time on one link, while something else goes on |
//! | [`checked`] | whether the lab kept time, tries again where it did not |
//! | [`repeats`] | repeats over successive seeds; an early end |
//! | [`listeners`] | whether a program of others listens yet |
//! | [`process`] | programs that serve or answer, their files and logs |

pub(crate) mod carry;
pub(crate) mod chain;
pub(crate) mod checked;
pub(crate) mod exchange;
pub(crate) mod fetch;
pub(crate) mod listeners;
pub(crate) mod packets;
pub(crate) mod process;
pub(crate) mod repeats;
pub(crate) mod service;
pub(crate) mod watch;

use std::path::{Path, PathBuf};
use std::time::Instant;

use tradewind_lab::{Lab, LabOptions};
use tradewind_net::counters::TcpCounters;
use tradewind_units::{Duration, HostId};
use tradewind_wan::Topology;

use crate::demo::{DemoError, Stop};
use carry::STOP_CHECK;
use process::Scratch;

/// A lab that runs, and what every program on it needs. Programs that were started on it are dropped before it.
pub(crate) struct Ground {
    /// The hosts and the network between them.
    pub(crate) lab: Lab,
    /// For keys, configurations and logs.
    pub(crate) scratch: Scratch,
    /// The binary `tradewind`.
    pub(crate) program: PathBuf,
    /// Whether to give up.
    pub(crate) stop: Stop,
}

impl Ground {
    /// Brings `topology` to life.
    ///
    /// # Errors
    /// When the lab cannot start.
    pub(crate) fn start(
        topology: &Topology,
        options: &LabOptions,
        program: &Path,
        stop: &Stop,
    ) -> Result<Self, DemoError> {
        let scratch = Scratch::new()?;
        let lab = Lab::start(topology, options)?;
        Ok(Self { lab, scratch, program: program.to_owned(), stop: stop.clone() })
    }

    /// Lets time pass.
    ///
    /// # Errors
    /// When the run is told to stop.
    pub(crate) fn wait(&self, span: Duration) -> Result<(), DemoError> {
        let end = Instant::now() + span;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.stop.check()?;
            std::thread::sleep(left.min(STOP_CHECK));
        }
        Ok(())
    }

    /// What TCP has counted on `host` since the lab began, all its connections together.
    ///
    /// # Errors
    /// When there is no such host, or its counters cannot be read.
    pub(crate) fn tcp_counters(&self, host: &HostId) -> Result<TcpCounters, DemoError> {
        let read = self.lab.enter(host, tradewind_net::counters::tcp_counters)?;
        Ok(read.map_err(tradewind_lab::LabError::from)?)
    }
}

/// The round trip between two hosts of a topology, without queueing.
///
/// # Panics
/// When there is no such host: scenarios are checked when they are read.
pub(crate) fn round_trip(topology: &Topology, a: &HostId, b: &HostId) -> Duration {
    let site = |host| {
        let index = topology.host(host).expect("the scenario was checked");
        topology.hosts[usize::from(index.0)].site
    };
    let (a, b) = (site(a), site(b));
    topology.pair(a, b).delay + topology.pair(b, a).delay
}
