//! Packet flows: as the operator declares them, as plans have them, and what became of their
//! packets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_desired::packets::Chooser;
use tradewind_plan::packets::{MAX_BUDGET, MAX_BYTES, MAX_PER_SECOND, PlannedPacketFlow};
use tradewind_plan::{PacketPlan, Plan};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, HostId, Money, Ratio, RegionId, RelayId, SiteId, time,
};

use crate::by_path::ByPath;

/// Words of the basis of a loss that a flow's own packets have told.
pub(crate) const OWN_PACKETS: &str = "packets of its own";
/// Least packets a second. Chosen: as in problem files.
const MIN_PER_SECOND: f64 = 1e-3;

/// A packet flow that the operator declared: datagrams from one gateway to another.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketFlowRecord {
    /// Its name; no flow of streams has it.
    pub id: FlowId,
    /// The site whose gateway sends it.
    pub from: SiteId,
    /// The address that the receiving gateway delivers to.
    pub to: SocketAddr,
    /// The site whose gateway receives it.
    pub to_site: SiteId,
    /// Packets a second.
    pub packets_per_second: f64,
    /// Size of a packet.
    pub packet: Bytes,
    /// Latency budget.
    #[serde(with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub budget: Duration,
    /// Share of packets that may be late or lost.
    pub max_loss: Ratio,
    /// The address at the sending gateway that applications write to.
    pub listen: SocketAddr,
    /// The service selection while it runs.
    pub service: Chooser,
}

impl PacketFlowRecord {
    /// Returns whether another declaration is of a flow between the same addresses, which goes on
    /// with its path while a plan is made for what has changed.
    #[must_use]
    pub fn has_ends_of(&self, other: &Self) -> bool {
        let Self { id, from, to_site, to, listen, .. } = other;
        self.is_between(from, to_site) && (&self.id, &self.to, &self.listen) == (id, to, listen)
    }

    /// Returns whether it goes from one of these sites to the other.
    pub(crate) fn is_between(&self, from: &SiteId, to: &SiteId) -> bool {
        self.from == *from && self.to_site == *to
    }

    /// Returns the rate at which it sends.
    #[must_use]
    pub fn rate(&self) -> Bandwidth {
        let bits = self.packet.as_u64() as f64 * 8.0 * self.packets_per_second;
        Bandwidth::from_bps((bits.round() as u64).max(1)).expect("above zero")
    }

    /// Checks what is of no other flow.
    ///
    /// # Errors
    /// The first figure that cannot be carried, in a line.
    pub fn check(&self) -> Result<(), String> {
        if self.from == self.to_site {
            return Err("it goes to the site that it comes from".to_owned());
        }
        if !(1..=MAX_BYTES).contains(&self.packet.as_u64()) {
            return Err(format!("packet: expected 1 to {MAX_BYTES} bytes"));
        }
        if !(MIN_PER_SECOND..=MAX_PER_SECOND).contains(&self.packets_per_second) {
            let range = format!("{MIN_PER_SECOND} to {MAX_PER_SECOND:e}");
            return Err(format!("packets_per_second: expected {range}"));
        }
        if self.budget < Duration::from_millis(1) || self.budget > MAX_BUDGET {
            return Err("budget: expected 1 ms to 65 s".to_owned());
        }
        if self.listen.port() == 0 || self.to.port() == 0 {
            return Err("listen and to: expected a port from 1 to 65535".to_owned());
        }
        Ok(())
    }
}

/// The packet flows of a plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PlannedPackets {
    /// The flows that were declared when it was made, in the order of their names.
    pub flows: Vec<PacketFlowRecord>,
    /// The services and relays, in the same order; its relays have the names of hosts.
    pub plan: PacketPlan,
    /// The reason why a flow has no part in it, and goes over the Internet alone.
    pub left_out: BTreeMap<FlowId, String>,
    /// The basis of the loss that each flow is expected to suffer, in words.
    pub losses: BTreeMap<FlowId, String>,
    /// The flows whose loss was measured on the Internet path, when it was made or before.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub measured: BTreeSet<FlowId>,
    /// The share of packets that the Internet is expected to lose, of each flow, left out or not;
    /// absent in plans of older programs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub expected: BTreeMap<FlowId, Ratio>,
    /// Hosts of relays that it could not use: their agents carry no packets.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub older: BTreeSet<HostId>,
}

impl PlannedPackets {
    /// Returns a flow as it was declared when the plan was made.
    #[must_use]
    pub fn record(&self, id: &FlowId) -> Option<&PacketFlowRecord> {
        let at = self.flows.binary_search_by(|flow| flow.id.cmp(id)).ok()?;
        self.flows.get(at)
    }

    /// Returns the service and relays of a flow.
    #[must_use]
    pub fn planned(&self, id: &FlowId) -> Option<&PlannedPacketFlow> {
        let flows = &self.plan.flows;
        flows.get(flows.binary_search_by(|flow| flow.id.cmp(id)).ok()?)
    }

    /// Returns the loss on the Internet that it expects of a flow.
    pub(crate) fn loss_of(&self, id: &FlowId) -> Option<Ratio> {
        let known = self.expected.get(id).copied();
        known.or_else(|| self.planned(id).map(|planned| planned.internet_loss))
    }

    /// Returns whether the loss that it expects of a flow was measured.
    pub(crate) fn is_measured(&self, id: &FlowId) -> bool {
        // Plans of older programs say so in words alone.
        let in_words = || self.losses.get(id).is_some_and(|basis| basis.contains(OWN_PACKETS));
        self.measured.contains(id) || self.measured.is_empty() && in_words()
    }

    /// Returns the places of each flow's path, both ends included, beside the plan of the streams.
    pub(crate) fn places<'a>(
        &'a self,
        streams: &'a Plan,
    ) -> impl Iterator<Item = Vec<SiteId>> + use<'a> {
        let of_streams = streams.relays.iter().map(|relay| (&relay.id, &relay.region));
        let added = self.plan.relays.iter().map(|relay| (&relay.id, &relay.region));
        let regions: BTreeMap<&RelayId, &RegionId> = of_streams.chain(added).collect();
        self.plan.flows.iter().filter_map(move |planned| {
            let flow = self.record(&planned.id)?;
            let relays = planned.path.iter().filter_map(|relay| regions.get(relay));
            let relays = relays.map(|region| SiteId::from(RegionId::clone(region)));
            let (from, to) = ([flow.from.clone()], [flow.to_site.clone()]);
            Some(from.into_iter().chain(relays).chain(to).collect())
        })
    }

    /// Returns whether it was made for a flow between the same addresses.
    #[must_use]
    pub fn has_ends_of(&self, flow: &PacketFlowRecord) -> bool {
        self.record(&flow.id).is_some_and(|known| known.has_ends_of(flow))
    }
}

/// Counts of packets, and of the copies of them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PacketCounts {
    /// Packets sent.
    pub packets: u64,
    /// Bytes of these packets, as sealed.
    pub bytes: u64,
    /// Copies sent to the first relay.
    pub copies: u64,
    /// Packets that should have come, as the receiver reports; none where it does not.
    pub expected: u64,
    /// Those that came within the latency budget.
    pub in_time: u64,
    /// Those that came after it.
    pub late: u64,
    /// Those that did not come within their budget.
    pub lost: u64,
    /// Those that the Internet lost, recovered or not.
    pub lost_by_internet: u64,
    /// Those recovered from the last relay's cache.
    pub recovered_cache: u64,
    /// Those decoded with repair packets of their own flow.
    pub recovered_in_stream: u64,
    /// Those decoded with packets of other receivers.
    pub recovered_cross_stream: u64,
    /// Bytes that relays sent for the flow.
    pub relay_bytes: u64,
    /// The price of these.
    pub usd: Money,
}

impl PacketCounts {
    /// Returns the counts, money aside.
    const fn all(&mut self) -> [&mut u64; 12] {
        [
            &mut self.packets,
            &mut self.bytes,
            &mut self.copies,
            &mut self.expected,
            &mut self.in_time,
            &mut self.late,
            &mut self.lost,
            &mut self.lost_by_internet,
            &mut self.recovered_cache,
            &mut self.recovered_in_stream,
            &mut self.recovered_cross_stream,
            &mut self.relay_bytes,
        ]
    }

    /// Adds others up.
    #[must_use]
    pub fn plus(mut self, mut other: Self) -> Self {
        for (sum, more) in self.all().into_iter().zip(other.all()) {
            *sum = sum.saturating_add(*more);
        }
        Self { usd: self.usd.saturating_add(other.usd), ..self }
    }

    /// Returns what was counted since `before`, by counters that only grow.
    #[must_use]
    pub fn since(mut self, mut before: Self) -> Self {
        for (count, before) in self.all().into_iter().zip(before.all()) {
            *count = count.saturating_sub(*before);
        }
        Self { usd: self.usd.checked_sub(before.usd).unwrap_or_default(), ..self }
    }

    /// Returns the largest count, money aside.
    #[must_use]
    pub fn largest(mut self) -> u64 {
        self.all().into_iter().map(|count| *count).max().unwrap_or(0)
    }

    /// Returns those recovered, by any means.
    #[must_use]
    pub const fn recovered(&self) -> u64 {
        self.recovered_cache
            .saturating_add(self.recovered_in_stream)
            .saturating_add(self.recovered_cross_stream)
    }
}

/// The packets of one packet flow since the batch before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketTally {
    /// The address that applications write to, which no other packet flow of the gateway has.
    pub listen: SocketAddr,
    /// The service that carries it now.
    pub service: String,
    /// The reason for that service.
    pub why: String,
    /// The counts.
    #[serde(flatten)]
    pub counts: PacketCounts,
}

/// The packets of one day and packet flow. Some 500 bytes in the store, so a hundred flows take
/// 20 MB in 13 months.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DayPackets {
    /// The flow.
    pub flow: FlowId,
    /// The day, in days since the Unix epoch (UTC), on which their batches came in.
    pub day: u64,
    /// The service that carried it last.
    pub service: String,
    /// The reason for that service.
    pub why: String,
    /// The counts.
    #[serde(flatten)]
    pub counts: PacketCounts,
    /// Those of each path; absent in days that older programs have added up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_path: Option<ByPath>,
}
