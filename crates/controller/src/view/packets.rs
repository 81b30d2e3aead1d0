//! Packet flows, as they are declared and shown.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_control::packet_flow::{DayPackets, PacketCounts, PacketFlowRecord};
use tradewind_desired::packets::Chooser;
use tradewind_plan::packets::PlannedPacketFlow;
use tradewind_units::{Bytes, Duration, HostId, Ratio, SiteId, time};

/// A packet flow to declare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PacketFlowRequest {
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
    /// Latency budget, from 1 ms to 65 s.
    #[serde(with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub budget: Duration,
    /// Share of packets that may be late or lost; 0.1 % when absent.
    pub max_loss: Option<Ratio>,
    /// The address at the sending gateway that applications write to; a free port on loopback when
    /// absent.
    pub listen: Option<SocketAddr>,
    /// The service selection while it runs; `auto` when absent.
    pub service: Option<Chooser>,
}

/// All packet flows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketFlows {
    /// [`SCHEMA_VERSION`](super::SCHEMA_VERSION).
    pub schema_version: u32,
    /// The number of days that are told of, today included.
    pub days: u64,
    /// The flows, by name.
    pub flows: Vec<PacketFlowView>,
}

/// A packet flow, and what became of its packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PacketFlowView {
    /// The flow as it was declared.
    #[serde(flatten)]
    pub flow: PacketFlowRecord,
    /// The service and relays that the plan in effect gives it; absent: none, and packets go over
    /// the Internet alone.
    pub planned: Option<PlannedPacketFlow>,
    /// The hosts of its relays now; empty: the Internet alone.
    pub path: Vec<HostId>,
    /// The reason of that, in one line.
    pub why: String,
    /// The service that carried it last, as its gateway told; absent before any packet.
    pub service_now: Option<String>,
    /// The counts of its packets in all these days.
    pub counts: PacketCounts,
    /// The packets that relays recovered in all these days.
    pub recovered: u64,
    /// The same of each day, oldest first.
    pub by_day: Vec<DayPackets>,
}
