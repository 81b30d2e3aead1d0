//! Counters of a worker: bytes by direction, connections by outcome.
//!
//! Each worker counts in memory of its own and a scrape adds the workers up, so that counting
//! costs no traffic between cores. Every connection that was accepted has exactly one outcome.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

use tradewind_grant::Status;

/// The outcome of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Both directions ended in order.
    Ended,
    /// One side failed after the path was open.
    Broken,
    /// Nothing moved for too long.
    Idle,
    /// No whole header or request came in time, or the connection ended before.
    NoHeader,
    /// The bytes received are no header or request.
    Malformed,
    /// A header that its gateway or neighbour did not seal, or a grant no operator signed.
    Forged,
    /// The path could not be opened, for the reason reported upstream.
    Failed(Status),
    /// There was no free capacity for it.
    Full,
    /// It did not show the name and password of a user.
    NotLetIn,
    /// Its source had its share of sessions.
    SourceFull,
    /// Its grant had its share of sessions.
    GrantFull,
    /// Its gateway had its share of sessions.
    GatewayFull,
    /// It was evicted before its peer was authenticated.
    Evicted,
    /// The process ended before it did.
    Cut,
    /// It brought probes, and they were answered.
    Probe,
    /// It spoke no TLS where that is wanted.
    NoTls,
    /// It spoke TLS where none is spoken.
    TlsUnwanted,
    /// Its TLS handshake failed.
    TlsFailed,
    /// It joined the session of another connection.
    Joined,
    /// It came to join a session that is not open here: most often one that has just ended.
    NoSession,
    /// Its path was open, and a reload or a revocation allows it no more.
    Revoked,
    /// Its path was open, and its grant has ended, or it has its greatest age.
    Expired,
}

/// All outcomes but those of a path that could not be opened, which are named by their status.
const PLAIN_OUTCOMES: [&str; 21] = [
    "ended",
    "broken",
    "idle",
    "no_header",
    "malformed",
    "forged",
    "full",
    "source_full",
    "grant_full",
    "cut",
    "probe",
    "no_tls",
    "tls_unwanted",
    "tls_failed",
    "joined",
    "no_session",
    "revoked",
    "not_let_in",
    "expired",
    "gateway_full",
    "evicted",
];

/// The statuses with which opening a path can fail.
const FAILURES: [Status; 14] = [
    Status::GrantRefused,
    Status::ClockSkew,
    Status::Replayed,
    Status::DestinationRefused,
    Status::NextHopRefused,
    Status::NameNotFound,
    Status::ConnectionRefused,
    Status::Unreachable,
    Status::TimedOut,
    Status::NextHopFailed,
    Status::Overloaded,
    Status::Draining,
    Status::Internal,
    Status::GrantRevoked,
];

impl Outcome {
    /// Returns the message for a peer that is rejected for want of capacity.
    pub const fn rejection(self) -> &'static str {
        match self {
            Self::GrantFull => "the grant's sessions are all in use",
            Self::GatewayFull => "this gateway has its share of the sessions",
            Self::SourceFull => "the sessions of this source are all in use",
            _ => "the sessions are all in use",
        }
    }

    /// Returns its name in metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Failed(status) => status.as_str(),
            plain => PLAIN_OUTCOMES[plain.index()],
        }
    }

    const fn index(self) -> usize {
        match self {
            Self::Ended => 0,
            Self::Broken => 1,
            Self::Idle => 2,
            Self::NoHeader => 3,
            Self::Malformed => 4,
            Self::Forged => 5,
            Self::Full => 6,
            Self::SourceFull => 7,
            Self::GrantFull => 8,
            Self::Cut => 9,
            Self::Probe => 10,
            Self::NoTls => 11,
            Self::TlsUnwanted => 12,
            Self::TlsFailed => 13,
            Self::Joined => 14,
            Self::NoSession => 15,
            Self::Revoked => 16,
            Self::NotLetIn => 17,
            Self::Expired => 18,
            Self::GatewayFull => 19,
            Self::Evicted => 20,
            Self::Failed(status) => PLAIN_OUTCOMES.len() + status as usize,
        }
    }
}

/// Returns every outcome's index and name.
pub(crate) fn outcome_names() -> impl Iterator<Item = (usize, &'static str)> {
    let index = |status| Outcome::Failed(status).index();
    let failed = FAILURES.into_iter().map(move |status| (index(status), status.as_str()));
    PLAIN_OUTCOMES.into_iter().enumerate().chain(failed)
}

/// Bytes of one direction.
#[derive(Debug, Default)]
pub struct DirectionCounts {
    moved: AtomicU64,
    spliced: AtomicU64,
    throttled: AtomicU64,
}

impl DirectionCounts {
    /// Counts `count` bytes written to the receiving side.
    pub fn moved(&self, count: usize) {
        self.moved.fetch_add(count as u64, Relaxed);
    }

    /// Counts `count` of them as moved by splice.
    pub(crate) fn spliced(&self, count: usize) {
        self.spliced.fetch_add(count as u64, Relaxed);
    }

    /// Counts a read that had to wait for a rate limit.
    pub fn throttled(&self) {
        self.throttled.fetch_add(1, Relaxed);
    }
}

/// Striped legs: gauges, and a count of retransmitted bytes.
#[derive(Debug, Default)]
pub(crate) struct StripeCounts {
    pub(crate) legs: AtomicUsize,
    pub(crate) connections: AtomicUsize,
    pub(crate) reordering: AtomicU64,
    pub(crate) resent: AtomicU64,
}

/// The counts of one worker. Aligned so that two workers share no cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counts {
    /// The direction towards the destination.
    pub up: DirectionCounts,
    pub(crate) down: DirectionCounts,
    pub(crate) stripes: StripeCounts,
    /// Connections being served.
    pub(crate) open: AtomicUsize,
    accepted: AtomicU64,
    shed: AtomicU64,
    udp_flows_evicted: AtomicU64,
    outcomes: OutcomeCounts,
}

/// Connections that are over, by outcome.
#[derive(Debug)]
struct OutcomeCounts([AtomicU64; PLAIN_OUTCOMES.len() + FAILURES.len() + 1]);

impl Default for OutcomeCounts {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::default()))
    }
}

impl Counts {
    /// Counts a connection that was accepted.
    pub(crate) fn accepted(&self) {
        self.accepted.fetch_add(1, Relaxed);
    }

    /// Counts a connection that was accepted and closed at once because no descriptor was left.
    pub(crate) fn shed(&self) {
        self.shed.fetch_add(1, Relaxed);
    }

    /// Counts a flow of a UDP association that was evicted for another.
    pub fn udp_flow_evicted(&self) {
        self.udp_flows_evicted.fetch_add(1, Relaxed);
    }

    /// Counts a connection that has ended.
    pub(crate) fn outcome(&self, outcome: Outcome) {
        self.outcomes.0[outcome.index()].fetch_add(1, Relaxed);
    }
}

/// The sums of all workers' counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Connections accepted.
    pub accepted: u64,
    /// Connections being served now.
    pub open: u64,
    /// Connections closed at once because no descriptor was left.
    pub shed: u64,
    /// Flows of UDP associations that were evicted for others.
    pub udp_flows_evicted: u64,
    /// Bytes from the dialling side to the dialled side.
    pub bytes_up: u64,
    /// Bytes the other way.
    pub bytes_down: u64,
    /// Bytes of both directions that moved by splice.
    pub bytes_spliced: u64,
    /// Reads that waited for a limit of the rate.
    pub throttled: u64,
    /// Legs that run over several connections now.
    pub striped_legs: u64,
    /// Their connections.
    pub striped_connections: u64,
    /// Bytes that wait at striped legs for earlier bytes.
    pub reordering_bytes: u64,
    /// Bytes that striped legs have sent more than once.
    pub resent_bytes: u64,
    /// Connections by outcome; outcomes that never occurred are left out.
    pub outcomes: std::collections::BTreeMap<&'static str, u64>,
}

impl Snapshot {
    pub(crate) fn of<'a>(workers: impl Iterator<Item = &'a Counts>) -> Self {
        let mut sum = Self::default();
        for counts in workers {
            sum.accepted += counts.accepted.load(Relaxed);
            sum.open += counts.open.load(Relaxed) as u64;
            sum.shed += counts.shed.load(Relaxed);
            sum.udp_flows_evicted += counts.udp_flows_evicted.load(Relaxed);
            sum.bytes_up += counts.up.moved.load(Relaxed);
            sum.bytes_down += counts.down.moved.load(Relaxed);
            sum.bytes_spliced +=
                counts.up.spliced.load(Relaxed) + counts.down.spliced.load(Relaxed);
            sum.throttled +=
                counts.up.throttled.load(Relaxed) + counts.down.throttled.load(Relaxed);
            sum.striped_legs += counts.stripes.legs.load(Relaxed) as u64;
            sum.striped_connections += counts.stripes.connections.load(Relaxed) as u64;
            sum.reordering_bytes += counts.stripes.reordering.load(Relaxed);
            sum.resent_bytes += counts.stripes.resent.load(Relaxed);
            for (index, name) in outcome_names() {
                let count = counts.outcomes.0[index].load(Relaxed);
                if count > 0 {
                    *sum.outcomes.entry(name).or_default() += count;
                }
            }
        }
        sum
    }

    /// Returns the number of connections with this outcome.
    #[must_use]
    pub fn outcome(&self, name: &str) -> u64 {
        self.outcomes.get(name).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_names_are_distinct() {
        let counts = Counts::default();
        let plain = [
            Outcome::Ended,
            Outcome::Broken,
            Outcome::Idle,
            Outcome::NoHeader,
            Outcome::Malformed,
            Outcome::Forged,
            Outcome::Full,
            Outcome::SourceFull,
            Outcome::GrantFull,
            Outcome::Cut,
            Outcome::Probe,
            Outcome::NoTls,
            Outcome::TlsUnwanted,
            Outcome::TlsFailed,
            Outcome::Joined,
            Outcome::NoSession,
            Outcome::GatewayFull,
            Outcome::Evicted,
        ];
        for outcome in plain.into_iter().chain(FAILURES.map(Outcome::Failed)) {
            counts.outcome(outcome);
        }
        let sum = Snapshot::of([&counts].into_iter());
        assert_eq!(sum.outcomes.len(), plain.len() + FAILURES.len());
        assert!(sum.outcomes.values().all(|count| *count == 1), "{sum:?}");
    }
}
