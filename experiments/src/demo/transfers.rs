//! Carries the planned transfers through the lab, several at once where they cannot disturb each other, and keeps the lab's
//! word on each.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tradewind_plan::Flow;
use tradewind_units::{Bandwidth, Bytes};

use super::deploy::Deployment;
use super::{DemoError, host_of, lanes};
use crate::lab_run::Ground;
use crate::lab_run::carry::{self, CarryError, Watch};

/// Longest silence within a transfer. Chosen: far beyond any round trip and any slow start.
const QUIET: Duration = Duration::from_secs(20);
/// How often progress is told.
const TELL: Duration = Duration::from_millis(100);
/// Tries of a transfer whose run was invalid, each with half as many others beside it: neither a busy moment of the machine nor
/// a machine that bears less than this one was built for should spoil the whole.
const TRIES: usize = 3;

/// Direct, or over the planned path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// From host to host.
    Direct,
    /// Through gateway and relays.
    Planned,
}

impl Way {
    /// In words.
    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Planned => "over its path",
        }
    }
}

/// A transfer to carry.
#[derive(Debug, Clone)]
pub(super) struct Transfer {
    /// Its flow's place among the flows.
    pub(super) flow: usize,
    /// Its way.
    pub(super) way: Way,
    /// Legs of the way.
    pub(super) legs: usize,
    /// The rate it will reach: its slowest leg's.
    pub(super) rate: Bandwidth,
    /// What it carries.
    pub(super) volume: Bytes,
    /// Predicted completion time.
    pub(super) predicted: Duration,
}

/// What a transfer came to.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Measured completion time.
    pub(super) fct: Duration,
    /// Whether the content arrived as it was sent.
    pub(super) sha256_ok: bool,
    /// Whether the lab kept time meanwhile.
    pub(super) valid: bool,
}

/// All outcomes so far.
#[derive(Debug, Default)]
pub(super) struct Carriage {
    outcomes: BTreeMap<(usize, Way), Outcome>,
    reasons: Vec<String>,
}

impl Carriage {
    /// Takes another one's outcomes in.
    pub(super) fn add(&mut self, other: Self) {
        self.outcomes.extend(other.outcomes);
        self.reasons.extend(other.reasons);
    }

    /// The outcome of a flow's transfer.
    pub(super) fn outcome(&self, flow: usize, way: Way) -> Option<&Outcome> {
        self.outcomes.get(&(flow, way))
    }

    /// Every bound that the lab broke.
    pub(super) fn invalid_because(&self) -> Vec<String> {
        self.reasons.clone()
    }
}

/// Carries these transfers, again until then those of which the lab was late; `done` is told how many bytes have arrived.
pub(super) fn carry(
    ground: &Ground,
    deployment: &Deployment,
    flows: &[Flow],
    transfers: &[&Transfer],
    repeats_until: Instant,
    mut done: impl FnMut(u64),
) -> Result<Carriage, DemoError> {
    let work: Vec<lanes::Work> = transfers.iter().map(|transfer| work(flows, transfer)).collect();
    let mut carriage = Carriage::default();
    let mut arrived = 0;
    let mut waiting: VecDeque<(usize, Vec<usize>)> =
        lanes::groups(&work).into_iter().map(|group| (1, group)).collect();
    while let Some((attempt, group)) = waiting.pop_front() {
        let members: Vec<&Transfer> = group.iter().map(|index| transfers[*index]).collect();
        ground.lab.reset_validity()?;
        let outcomes =
            carry_group(ground, deployment, flows, &members, |bytes| done(arrived + bytes))?;
        let record = ground.lab.validity()?;
        if !record.valid && attempt < TRIES && Instant::now() < repeats_until {
            for half in group.chunks(group.len().div_ceil(2)).rev() {
                waiting.push_front((attempt + 1, half.to_vec()));
            }
            continue;
        }
        for (transfer, mut outcome) in members.iter().zip(outcomes) {
            outcome.valid = record.valid;
            carriage.outcomes.insert((transfer.flow, transfer.way), outcome);
        }
        carriage.reasons.extend(record.reasons);
        arrived += members.iter().map(|transfer| transfer.volume.as_u64()).sum::<u64>();
    }
    Ok(carriage)
}

/// What a transfer puts on the emulator: its mean rate, once a leg.
fn work(flows: &[Flow], transfer: &Transfer) -> lanes::Work {
    let flow = &flows[transfer.flow];
    let rate = Bandwidth::from_transfer(transfer.volume, transfer.predicted);
    let load = rate.map_or(Bandwidth::MAX, |rate| rate.scaled(transfer.legs as f64));
    lanes::Work {
        source: flow.source.clone(),
        destination: flow.destination.clone(),
        peak: transfer.rate,
        load,
    }
}

fn carry_group(
    ground: &Ground,
    deployment: &Deployment,
    flows: &[Flow],
    members: &[&Transfer],
    mut done: impl FnMut(u64),
) -> Result<Vec<Outcome>, DemoError> {
    let watches: Vec<Watch> = members.iter().map(|_| Watch::default()).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = members
            .iter()
            .zip(&watches)
            .map(|(transfer, watch)| {
                scope.spawn(move || carry_one(ground, deployment, flows, transfer, watch))
            })
            .collect();
        while running.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(TELL);
            done(watches.iter().map(|watch| watch.received.load(Ordering::Relaxed)).sum());
            if ground.stop.is_set() {
                watches.iter().for_each(|watch| watch.stop.store(true, Ordering::Relaxed));
            }
        }
        running
            .into_iter()
            .map(|thread| thread.join().expect("a transfer does not panic"))
            .collect()
    })
}

fn carry_one(
    ground: &Ground,
    deployment: &Deployment,
    flows: &[Flow],
    transfer: &Transfer,
    watch: &Watch,
) -> Result<Outcome, DemoError> {
    let flow = &flows[transfer.flow];
    let name = format!("{} ({})", flow.id, transfer.way.name());
    let failed = |source| DemoError::Carry { flow: name.clone(), source };
    let receiver = deployment.receiver(&flow.id);
    let dial = match transfer.way {
        Way::Direct => receiver,
        Way::Planned => deployment.entrance(&flow.id).unwrap_or(receiver),
    };
    let listener = listen(ground, flow, receiver)?.map_err(failed)?;
    let outgoing = socket(ground, flow, dial)?.map_err(failed)?;
    let seed = transfer.flow as u64 + 1;
    let carried =
        carry::carry(outgoing, dial, &listener, transfer.volume.as_u64(), seed, QUIET, watch);
    match carried {
        Err(CarryError::Stopped) if ground.stop.is_set() => Err(DemoError::Stopped),
        Err(source) => Err(failed(source)),
        Ok(carried) => Ok(Outcome { fct: carried.fct, sha256_ok: carried.sha256_ok, valid: false }),
    }
}

/// A listener on the flow's destination.
fn listen(
    ground: &Ground,
    flow: &Flow,
    address: SocketAddr,
) -> Result<Result<TcpListener, CarryError>, DemoError> {
    let host = host_of(&flow.destination);
    let bound = ground.lab.enter(&host, || TcpListener::bind(address))?;
    Ok(bound.map_err(|source| CarryError::Io { what: "listen at", address, source }))
}

/// A socket on the flow's source.
fn socket(
    ground: &Ground,
    flow: &Flow,
    address: SocketAddr,
) -> Result<Result<socket2::Socket, CarryError>, DemoError> {
    let host = host_of(&flow.source);
    let domain = socket2::Domain::for_address(address);
    let made =
        ground.lab.enter(&host, || socket2::Socket::new(domain, socket2::Type::STREAM, None))?;
    Ok(made.map_err(|source| CarryError::Io { what: "make a socket for", address, source }))
}
