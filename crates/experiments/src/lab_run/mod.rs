//! Code shared by experiments on the lab: a lab with a scratch directory, programs on its hosts,
//! and transfers between them.
//!
//! An experiment starts a [`LabContext`], puts relays, gateways and forwarders on its hosts
//! ([`service`], [`chain`]), moves data over plain sockets ([`carry`] pushes a volume, [`fetch`]
//! downloads a file), and checks for each transfer that the lab kept time ([`checked`]). That is a
//! repeat; [`repeats`] runs them, and keeps complete ones.
//!
//! | module | holds |
//! |---|---|
//! | [`service`] | relays, gateways and forwarders as processes, with keys and grants |
//! | [`chain`] | a chain between two hosts: direct, over forwarding or over splitting relays |
//! | [`fetch`] | files served and fetched over a chain, timed and verified |
//! | [`exchange`] | many concurrent files, with both ends of each connection in one process |
//! | [`carry`] | one volume pushed over one connection, timed and verified |
//! | [`packets`] | relays and gateways that carry datagrams |
//! | [`watch`] | bytes over time on one link, during other work |
//! | [`checked`] | validity of measurements, and their repetition |
//! | [`repeats`] | repeats over successive seeds, and early ends |
//! | [`listeners`] | readiness of foreign programs |
//! | [`process`] | services and commands, their files and logs |

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

/// A running lab and the common context of all programs on it. Programs that were started on it
/// must be dropped before it.
pub(crate) struct LabContext {
    /// The hosts and the network between them.
    pub(crate) lab: Lab,
    /// The directory of keys, configurations and logs.
    pub(crate) scratch: Scratch,
    /// The binary `tradewind`.
    pub(crate) program: PathBuf,
    /// The stop request.
    pub(crate) stop: Stop,
}

impl LabContext {
    /// Starts a lab of `topology`.
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

    /// Waits for `span`.
    ///
    /// # Errors
    /// When the run is stopped.
    pub(crate) fn wait(&self, span: Duration) -> Result<(), DemoError> {
        let end = Instant::now() + span;
        while let Some(left) = end.checked_duration_since(Instant::now()) {
            self.stop.check()?;
            std::thread::sleep(left.min(STOP_CHECK));
        }
        Ok(())
    }

    /// Returns TCP's counters of `host` since the lab's start, over all its connections.
    ///
    /// # Errors
    /// When the host does not exist, or its counters cannot be read.
    pub(crate) fn tcp_counters(&self, host: &HostId) -> Result<TcpCounters, DemoError> {
        let read = self.lab.enter(host, tradewind_net::counters::tcp_counters)?;
        Ok(read.map_err(tradewind_lab::LabError::from)?)
    }
}

/// Returns the round trip between two hosts of a topology, without queueing.
///
/// # Panics
/// When a host does not exist: scenarios are checked when they are read.
pub(crate) fn round_trip(topology: &Topology, a: &HostId, b: &HostId) -> Duration {
    let site = |host| {
        let index = topology.host(host).expect("the scenario was checked");
        topology.hosts[usize::from(index.0)].site
    };
    let (a, b) = (site(a), site(b));
    topology.pair(a, b).delay + topology.pair(b, a).delay
}
