//! Status of a node's flows, for people and programs, as in `tradewind packet status`.
//!
//! A gateway shows its receivers' reports of the flows that it sends, and its own figures of those
//! that it receives. Workers update the status once a second and never wait for readers.

use std::iter::Sum;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tradewind_packet::message::Feedback;
use tradewind_units::Ratio;

/// Statistics of a flow's packets, since the flow began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FlowStatistics {
    /// Packets that should have come.
    pub expected: u64,
    /// Those that came within the latency budget.
    pub in_time: u64,
    /// Those that came after it.
    pub late: u64,
    /// Those that did not come within their budget.
    pub lost: u64,
    /// Those that the Internet lost, recovered or not.
    pub lost_by_internet: u64,
    /// Those recovered from an egress relay's cache.
    pub recovered_cache: u64,
    /// Those decoded with repair packets of their own flow.
    pub recovered_in_stream: u64,
    /// Those decoded with helpers' packets.
    pub recovered_cross_stream: u64,
}

impl FlowStatistics {
    /// Returns the statistics since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            expected: self.expected.saturating_sub(before.expected),
            in_time: self.in_time.saturating_sub(before.in_time),
            late: self.late.saturating_sub(before.late),
            lost: self.lost.saturating_sub(before.lost),
            lost_by_internet: self.lost_by_internet.saturating_sub(before.lost_by_internet),
            recovered_cache: self.recovered_cache.saturating_sub(before.recovered_cache),
            recovered_in_stream: self
                .recovered_in_stream
                .saturating_sub(before.recovered_in_stream),
            recovered_cross_stream: self
                .recovered_cross_stream
                .saturating_sub(before.recovered_cross_stream),
        }
    }

    /// Adds a receiver's report of an interval.
    pub(crate) fn add(&mut self, report: &Feedback) {
        let [cache, in_stream, cross_stream] = report.recovered;
        let lost = report.expected.saturating_sub(report.in_time).saturating_sub(report.late);
        for (sum, count) in [
            (&mut self.expected, report.expected),
            (&mut self.in_time, report.in_time),
            (&mut self.late, report.late),
            (&mut self.lost, lost),
            (&mut self.lost_by_internet, report.lost_by_internet),
            (&mut self.recovered_cache, cache),
            (&mut self.recovered_in_stream, in_stream),
            (&mut self.recovered_cross_stream, cross_stream),
        ] {
            // A receiver's report may hold any numbers.
            *sum = sum.saturating_add(count);
        }
    }
}

/// The direction of a flow, seen from the node that shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// It is sent here.
    Sent,
    /// It is received here.
    Received,
}

/// The status of one flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FlowStatus {
    /// The direction: sent or received here.
    pub direction: Direction,
    /// The remote gateway's identity.
    pub remote: String,
    /// The address that applications write to, at the gateway where conversations begin; a flow of
    /// a program that links the crate has none.
    pub listen: Option<SocketAddr>,
    /// The address to which the remote gateway delivers.
    pub to: Option<SocketAddr>,
    /// The service that carries it now.
    pub service: String,
    /// The reason for that service.
    pub why: String,
    /// Packets sent.
    pub packets: u64,
    /// Bytes of these packets, as sealed.
    pub bytes: u64,
    /// Copies sent to the ingress relay, retransmissions included.
    pub copies: u64,
    /// Retransmitted copies.
    pub resent: u64,
    /// Statistics of its packets; `None` where they are not numbered.
    pub statistics: Option<FlowStatistics>,
    /// The share of the last interval's packets that the Internet lost, recovered or not, as the
    /// receiver reports, by which a sender should adapt its rate; of flows that are sent here.
    #[serde(default)]
    pub internet_loss: Option<Ratio>,
    /// The longest datagram of an application that the Internet path takes, even if it is the first
    /// of its conversation, in bytes, once that is known.
    #[serde(default)]
    pub longest: Option<u64>,
    /// The relays' traffic for it, as they report; of flows that are sent here.
    pub billed: Option<Billed>,
}

/// The traffic that the relays of a flow have sent for it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Billed {
    /// Bytes with all headers, out of both relays.
    pub bytes: u64,
    /// Their clouds' charge for that, in dollars.
    pub usd: f64,
    /// The charge of an hour at the rate of the last interval; `None` before the first has passed.
    pub usd_per_hour: Option<f64>,
}

impl Billed {
    /// Returns a share of it, 0 to 1.
    pub(crate) fn part(self, share: f64) -> Self {
        Self {
            bytes: (self.bytes as f64 * share).round() as u64,
            usd: self.usd * share,
            usd_per_hour: self.usd_per_hour.map(|usd| usd * share),
        }
    }
}

impl Sum for Billed {
    /// Adds all up, the hourly rates where they are known.
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            bytes: sum.bytes + one.bytes,
            usd: sum.usd + one.usd,
            usd_per_hour: match (sum.usd_per_hour, one.usd_per_hour) {
                (Some(sum), Some(one)) => Some(sum + one),
                (sum, one) => sum.or(one),
            },
        })
    }
}

/// A relay that a node may use.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RelayStatus {
    /// Its identity.
    pub identity: String,
    /// The address at which it listens.
    pub address: SocketAddr,
    /// The shortest round trip of the last measurement; `None` before the first, and while it does
    /// not answer.
    pub round_trip_ms: Option<f64>,
    /// Set if it is the one nearest to this node.
    pub is_nearest: bool,
}

/// An endpoint that a node may send to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EndpointStatus {
    /// Its name.
    pub id: String,
    /// Its identity.
    pub identity: String,
    /// The address at which it listens.
    pub address: SocketAddr,
    /// The relay near it.
    pub nearest: Option<String>,
    /// The round trip between them, if it is known.
    pub round_trip_ms: Option<f64>,
}

/// A refusal by another node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalStatus {
    /// The remote gateway.
    pub remote: String,
    /// The subject: an overlay `path` there, or each `conversation` with it.
    pub what: String,
    /// The node that refuses it: the remote gateway or a relay.
    pub by: String,
    /// The reason.
    pub reason: String,
}

/// All flows of a node.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct PacketReport {
    /// The version of this report's format.
    pub schema_version: u32,
    /// The flows in the order of the configuration, then those of others.
    pub flows: Vec<FlowStatus>,
    /// Relays whose round trips it measures.
    #[serde(default)]
    pub relays: Vec<RelayStatus>,
    /// Endpoints that it knows as members.
    #[serde(default)]
    pub endpoints: Vec<EndpointStatus>,
    /// Packets dropped because their sender's grant does not cover their source.
    #[serde(default)]
    pub foreign_sources: u64,
    /// Refusals by others.
    #[serde(default)]
    pub refusals: Vec<RefusalStatus>,
    /// The process whose counters these are, by its number: a successor begins anew.
    #[serde(default)]
    pub process: u32,
}

/// One worker's report, for other threads to read.
#[derive(Debug, Clone, Default)]
pub(crate) struct Board(Arc<Mutex<PacketReport>>);

impl Board {
    pub(crate) fn write(&self, report: PacketReport) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = report;
    }

    fn read(&self) -> PacketReport {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Returns the reports of all workers as one.
pub(crate) fn report<'a>(boards: impl IntoIterator<Item = &'a Board>) -> PacketReport {
    let process = std::process::id();
    let mut all = PacketReport { schema_version: 1, process, ..PacketReport::default() };
    for one in boards.into_iter().map(Board::read) {
        all.flows.extend(one.flows);
        all.relays.extend(one.relays);
        all.endpoints.extend(one.endpoints);
        all.foreign_sources += one.foreign_sources;
        all.refusals.extend(one.refusals);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bills_are_summed_and_divided() {
        let bill = |bytes, usd_per_hour| Billed { bytes, usd: bytes as f64 * 1e-9, usd_per_hour };
        let sum: Billed =
            [bill(1000, None), bill(3000, Some(0.5)), bill(0, Some(0.25))].into_iter().sum();
        assert_eq!(sum, Billed { bytes: 4000, usd: sum.usd, usd_per_hour: Some(0.75) });
        assert!((sum.usd - 4e-6).abs() < 1e-12);
        assert_eq!(sum.part(0.25).bytes, 1000);
        assert_eq!(sum.part(1.0), sum);
        assert_eq!(Billed::default().part(1.0).usd_per_hour, None);
    }
}
