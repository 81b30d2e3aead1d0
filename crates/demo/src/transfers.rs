//! Carries the planned transfers through the lab, several at once where they cannot disturb each
//! other, and keeps the lab's validity of each.

use std::collections::{BTreeMap, VecDeque};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tradewind_units::{Bandwidth, Bytes, FlowId, HostId};

use crate::lanes;
use crate::processes::carry::{self, CarryError, Watch};
use crate::processes::{LabContext, ProcessError};

/// Longest silence within a transfer. Chosen: far beyond any round trip and any slow start.
const QUIET: Duration = Duration::from_secs(20);
/// The interval of progress reports.
const TELL: Duration = Duration::from_millis(100);
/// Attempts of a transfer whose run was invalid, each with half as many others beside it: neither a
/// short load peak nor a slower machine than the intended one should spoil the whole run.
const TRIES: usize = 3;

/// The path kind of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PathKind {
    /// Direct, from host to host.
    Direct,
    /// Through gateway and relays.
    Planned,
}

impl PathKind {
    /// Returns the name of the path kind.
    const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Planned => "over its path",
        }
    }
}

/// A transfer to carry.
#[derive(Debug, Clone)]
pub struct Transfer {
    /// The index of its flow.
    pub flow: usize,
    /// The flow's name.
    pub name: FlowId,
    /// The path kind.
    pub kind: PathKind,
    /// The hosts of its path, from the source to the destination.
    pub hosts: Vec<HostId>,
    /// The address that its source dials.
    pub dial: SocketAddr,
    /// The address at which its destination receives.
    pub receiver: SocketAddr,
    /// The expected rate: its slowest leg's.
    pub rate: Bandwidth,
    /// The volume.
    pub volume: Bytes,
    /// Predicted completion time.
    pub predicted: Duration,
}

impl Transfer {
    fn source(&self) -> &HostId {
        &self.hosts[0]
    }

    fn destination(&self) -> &HostId {
        &self.hosts[self.hosts.len() - 1]
    }
}

/// The result of a transfer.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The flow's name.
    pub name: FlowId,
    /// Measured completion time.
    pub fct: Duration,
    /// `true` when the content arrived unchanged.
    pub sha256_ok: bool,
    /// The number of times that it was carried, this one included.
    pub attempts: usize,
    /// The reasons against it: of the lab's validity record, or that it took another path.
    pub reasons: Vec<String>,
}

/// All outcomes so far.
#[derive(Debug, Default)]
pub struct Carriage {
    outcomes: BTreeMap<(usize, PathKind), Outcome>,
}

impl Carriage {
    /// Adds the outcomes of `other`.
    pub fn add(&mut self, other: Self) {
        self.outcomes.extend(other.outcomes);
    }

    /// Returns the outcome of a flow's transfer.
    #[must_use]
    pub fn outcome(&self, flow: usize, kind: PathKind) -> Option<&Outcome> {
        self.outcomes.get(&(flow, kind))
    }

    /// Returns the outcome of a flow's transfer, to be changed.
    pub(crate) fn outcome_mut(&mut self, flow: usize, kind: PathKind) -> Option<&mut Outcome> {
        self.outcomes.get_mut(&(flow, kind))
    }

    /// Returns every reason against a transfer, with the flow.
    #[must_use]
    pub fn invalid_because(&self) -> Vec<String> {
        let of = |((_, kind), outcome): (&(usize, PathKind), &Outcome)| {
            let name = format!("{} ({})", outcome.name, kind.name());
            outcome.reasons.iter().map(|why| format!("{name}: {why}")).collect::<Vec<_>>()
        };
        self.outcomes.iter().flat_map(of).collect()
    }
}

/// Carries these transfers, and repeats those with an invalid record until `repeats_until`; `done`
/// is called with the number of bytes received.
///
/// # Errors
/// When a transfer is aborted, or the run is stopped.
pub fn carry(
    context: &LabContext,
    transfers: &[&Transfer],
    repeats_until: Instant,
    mut done: impl FnMut(u64),
) -> Result<Carriage, ProcessError> {
    let work: Vec<lanes::Work> = transfers.iter().map(|transfer| work(transfer)).collect();
    let mut carriage = Carriage::default();
    let mut arrived = 0;
    let mut waiting: VecDeque<(usize, Vec<usize>)> =
        lanes::groups(&work).into_iter().map(|group| (1, group)).collect();
    while let Some((attempt, group)) = waiting.pop_front() {
        let members: Vec<&Transfer> = group.iter().map(|index| transfers[*index]).collect();
        context.lab.reset_validity()?;
        let outcomes = carry_group(context, &members, |bytes| done(arrived + bytes))?;
        let record = context.lab.validity()?;
        let may_repeat = attempt < TRIES && Instant::now() < repeats_until;
        let mut again = Vec::new();
        for ((index, transfer), mut outcome) in group.iter().zip(&members).zip(outcomes) {
            outcome.attempts = attempt;
            outcome.reasons = record.reasons_over(&transfer.hosts, outcome.fct);
            if may_repeat && !outcome.reasons.is_empty() {
                again.push(*index);
                continue;
            }
            carriage.outcomes.insert((transfer.flow, transfer.kind), outcome);
            arrived += transfer.volume.as_u64();
        }
        for half in again.chunks(group.len().div_ceil(2)).rev() {
            waiting.push_front((attempt + 1, half.to_vec()));
        }
    }
    Ok(carriage)
}

/// Returns the load of a transfer on the emulator: its mean rate, once per leg.
fn work(transfer: &Transfer) -> lanes::Work {
    let rate = Bandwidth::from_transfer(transfer.volume, transfer.predicted);
    let load = rate.map_or(Bandwidth::MAX, |rate| rate.scaled((transfer.hosts.len() - 1) as f64));
    lanes::Work {
        source: transfer.source().clone(),
        destination: transfer.destination().clone(),
        peak: transfer.rate,
        load,
    }
}

fn carry_group(
    context: &LabContext,
    members: &[&Transfer],
    mut done: impl FnMut(u64),
) -> Result<Vec<Outcome>, ProcessError> {
    let watches: Vec<Watch> = members.iter().map(|_| Watch::default()).collect();
    std::thread::scope(|scope| {
        let running: Vec<_> = members
            .iter()
            .zip(&watches)
            .map(|(transfer, watch)| scope.spawn(move || carry_one(context, transfer, watch)))
            .collect();
        while running.iter().any(|thread| !thread.is_finished()) {
            std::thread::sleep(TELL);
            done(watches.iter().map(|watch| watch.received.load(Ordering::Relaxed)).sum());
            if context.stop.is_set() {
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
    context: &LabContext,
    transfer: &Transfer,
    watch: &Watch,
) -> Result<Outcome, ProcessError> {
    let name = format!("{} ({})", transfer.name, transfer.kind.name());
    let failed = |source| ProcessError::Carry { flow: name.clone(), source };
    let dial = transfer.dial;
    let listener = listen(context, transfer.destination(), transfer.receiver)?.map_err(failed)?;
    let outgoing = socket(context, transfer.source(), dial)?.map_err(failed)?;
    let seed = transfer.flow as u64 + 1;
    let carried =
        carry::carry(outgoing, dial, &listener, transfer.volume.as_u64(), seed, QUIET, watch);
    match carried {
        Err(CarryError::Stopped) if context.stop.is_set() => Err(ProcessError::Stopped),
        Err(source) => Err(failed(source)),
        Ok(carried) => Ok(Outcome {
            name: transfer.name.clone(),
            fct: carried.fct,
            sha256_ok: carried.sha256_ok,
            attempts: 1,
            reasons: Vec::new(),
        }),
    }
}

/// Opens a listener on a host.
fn listen(
    context: &LabContext,
    host: &HostId,
    address: SocketAddr,
) -> Result<Result<TcpListener, CarryError>, ProcessError> {
    let bound = context.lab.enter(host, || TcpListener::bind(address))?;
    Ok(bound.map_err(|source| CarryError::Io { what: "listen at", address, source }))
}

/// Creates a socket on a host.
fn socket(
    context: &LabContext,
    host: &HostId,
    address: SocketAddr,
) -> Result<Result<socket2::Socket, CarryError>, ProcessError> {
    let domain = socket2::Domain::for_address(address);
    let made =
        context.lab.enter(host, || socket2::Socket::new(domain, socket2::Type::STREAM, None))?;
    Ok(made.map_err(|source| CarryError::Io { what: "make a socket for", address, source }))
}
