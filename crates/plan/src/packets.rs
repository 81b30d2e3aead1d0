//! Plans for packet flows: for each, the cheapest packet service and relays that meet its latency
//! budget `[JQ 3.3, 3.4]`, given the plan of the streams.
//!
//! | module | holds |
//! |---|---|
//! | `options` | all services over all relays for a flow, with their delays and costs |
//! | `capacities` | relays that streams have bought, that run, or that packet flows add, with their free capacity |
//! | `planned` | the choice for each flow, with the reasons against the others |
//! | `verify` | checks of a plan, computed independently |
//!
//! Prices of egress, regions and round trips are the problem's own. The machine of a relay that
//! streams buy, or that runs already, is paid. Any other machine is paid in full, for the whole
//! hours of its longest flow: by the first flow that takes it, and by later ones that last longer
//! for the hours that they add. Flows choose in the order of the file, either by the cost that
//! their choice adds or by their share of a full machine `[JQ Table 2]`, each with and without the
//! relays that are paid; the cheapest of the four plans is used.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tradewind_model::packet::{CodingRates, PacketService, RelayTariff, Stream, Tariff};
use tradewind_model::{Egress, ModelError};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, Ratio, RegionId, RelayId, SiteId, UnitError, time,
};

use crate::problem::Inputs;
use crate::service::{DETECTION, Demand};

mod capacities;
mod options;
mod planned;
mod verify;

pub use planned::{
    ConsideredService, PacketPlan, PacketRelay, PacketVerdict, PlannedPacketFlow, ServedPackets,
    ServiceCosts, Unplanned,
};
pub use verify::PacketViolation;

/// Most relays of a packet flow: caching and coding use an ingress and an egress relay
/// `[JQ 3]`.
pub const MAX_RELAYS: usize = 2;
/// Most packet flows. Chosen: for each, all pairs of regions are evaluated.
pub const MAX_PACKET_FLOWS: usize = 1_000;
/// Longest latency budget: the maximum that gateways can signal.
pub const MAX_BUDGET: Duration = Duration::from_secs(65);
/// Default ratio of packets that may be lost or late, that of a gateway's `[[packet]]`: above it
/// paths count as lossy `[JQ 5.2]`.
pub const BEARABLE_LOSS: f64 = 0.001;
/// Loss ratio of an Internet path whose loss is not known: the upper end of the typical range
/// `[JQ 1]`.
pub const INTERNET_LOSS: f64 = 0.01;
/// Default number of packet flows that share a machine. Chosen: with machines of some ten cents an
/// hour a flow pays the paper's 0.19 cents an hour at both relays `[JQ 5.1.1]`.
pub const FLOWS_PER_MACHINE: u32 = 100;
/// Most packets a second. Chosen: the rate of the shortest packets on a 10 Gbit/s link.
pub const MAX_PER_SECOND: f64 = 15e6;
/// Longest packet: the largest UDP payload over IPv4.
pub const MAX_BYTES: u64 = 65_507;
/// Time for which relays keep packets. Chosen: as `tradewind relay` does.
const RETENTION: Duration = Duration::from_secs(1);
const SECONDS_AN_HOUR: u64 = 3600;

/// A flow of packets from one site to another.
#[derive(Debug, Clone, PartialEq)]
pub struct PacketFlow {
    /// Its name.
    pub id: FlowId,
    /// The site it starts at.
    pub source: SiteId,
    /// The site it ends at.
    pub destination: SiteId,
    /// The rate at which it sends.
    pub rate: Bandwidth,
    /// The size of its packets.
    pub packet: Bytes,
    /// Its duration, which its costs are for.
    pub span: Duration,
    /// Its latency budget, and the loss that it tolerates.
    pub demand: Demand,
    /// Share of its packets that the Internet is expected to lose.
    pub loss: Ratio,
    /// Round-trip time between the egress relay and the farthest helper; `None`: that of the flow's
    /// own destination.
    pub helper_rtt: Option<Duration>,
}

/// The prices of a relay for packet flows, besides its egress by volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelayPrices {
    /// The price of a machine for an hour.
    pub vm_hour: Money,
    /// Most packet flows that share a machine.
    pub flows: u32,
    /// The tariff of incoming traffic.
    pub ingress: Tariff,
    /// The tariff of outgoing traffic to any destination; `None`: the problem's prices.
    pub egress: Option<Tariff>,
    /// The price of storing a GB for an hour; zero if the machine's own memory is used.
    pub storage_gb_hour: Money,
}

impl RelayPrices {
    /// Returns the price of a machine for so many hours.
    pub(crate) const fn machine(&self, hours: u64) -> Money {
        self.vm_hour.times(hours)
    }
}

impl PacketFlow {
    /// Returns the whole hours that it lasts, for which machines are charged.
    pub(crate) fn hours(&self) -> u64 {
        self.span.as_secs().div_ceil(SECONDS_AN_HOUR).max(1)
    }
}

/// The coding parameters of relays, as in a relay's `[packet] coding`: the number of repair
/// packets, and the number of packets that they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BlockCoding {
    /// For cross-stream blocks, of several flows.
    pub cross_stream: [u8; 2],
    /// For in-stream blocks, of one flow; `[0, 1]` turns these off.
    pub in_stream: [u8; 2],
    /// Longest time for which a cross-stream block is open.
    #[serde(with = "time::as_text")]
    #[schemars(with = "time::Written")]
    pub within: Duration,
}

impl Default for BlockCoding {
    /// Returns the relays' defaults: 2 for 10, 1 for 5, 30 ms.
    fn default() -> Self {
        Self { cross_stream: [2, 10], in_stream: [1, 5], within: Duration::from_millis(30) }
    }
}

impl BlockCoding {
    /// Converts the parameters to those of the cost model, which does not assume that in-stream
    /// repair packets make helpers unnecessary.
    #[must_use]
    pub fn rates(&self) -> CodingRates {
        let rate = |[repairs, packets]: [u8; 2]| f64::from(repairs) / f64::from(packets.max(1));
        CodingRates {
            cross_stream: rate(self.cross_stream),
            in_stream: rate(self.in_stream),
            helpers: u32::from(self.cross_stream[1]).saturating_sub(1),
            ..CodingRates::paper()
        }
    }
}

/// All packet flows of a problem, and the prices that apply to them.
#[derive(Debug, Clone, PartialEq)]
pub struct Packets {
    /// The flows.
    pub flows: Vec<PacketFlow>,
    /// The prices of relays, for each candidate region.
    pub prices: BTreeMap<RegionId, RelayPrices>,
    /// The tariff of a site's uplink for copies; free if the site is missing.
    pub uplinks: BTreeMap<SiteId, Tariff>,
    /// Relays of the streams' plan that carry no packets.
    pub barred: BTreeSet<RelayId>,
    /// The coding parameters of relays.
    pub coding: BlockCoding,
    /// Time from a packet's expected arrival to the request for its recovery.
    pub detection: Duration,
    /// Time for which relays keep packets.
    pub retention: Duration,
}

impl Default for Packets {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            prices: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            barred: BTreeSet::new(),
            coding: BlockCoding::default(),
            detection: DETECTION,
            retention: RETENTION,
        }
    }
}

impl Packets {
    /// Returns the tariff of egress from a relay in `region` to `to`.
    ///
    /// # Errors
    /// When a price is missing.
    pub fn egress(
        &self,
        inputs: &Inputs,
        region: &RegionId,
        to: Egress<'_>,
    ) -> Result<Tariff, ModelError> {
        match self.prices.get(region).and_then(|prices| prices.egress) {
            Some(tariff) => Ok(tariff),
            None => inputs.prices.egress(region, to).map(Tariff::PerGb),
        }
    }

    /// Returns the tariff of a relay in `region` that sends to `to`, without its machine, which is
    /// paid in full.
    fn relay_tariff(
        &self,
        inputs: &Inputs,
        region: &RegionId,
        to: Egress<'_>,
    ) -> Result<RelayTariff, ModelError> {
        let egress = self.egress(inputs, region, to)?;
        let unknown = || ModelError::UnknownRegion(region.clone());
        let prices = self.prices.get(region).ok_or_else(unknown)?;
        Ok(RelayTariff {
            ingress: prices.ingress,
            egress,
            vm_hour: Money::ZERO,
            flows_per_vm: 1,
            storage_gb_hour: prices.storage_gb_hour,
        })
    }

    /// Converts a flow to a stream of the cost model.
    fn stream(&self, flow: &PacketFlow) -> Stream {
        Stream {
            rate: flow.rate,
            span: flow.span,
            packet: flow.packet,
            loss: flow.loss,
            uplink: self.uplinks.get(&flow.source).copied().unwrap_or(Tariff::FREE),
            retention: self.retention,
        }
    }

    /// Returns the greatest cost of all flows, whatever relays the streams buy: that on machines of
    /// which none is paid.
    ///
    /// # Errors
    /// When no service meets a flow's budget, or a price is missing.
    pub fn reserve(&self, inputs: &Inputs) -> Result<Reserve, PacketError> {
        Ok(Reserve(self.plan(inputs, None)?.cost))
    }
}

/// The greatest cost of the packet flows. A plan of streams that leaves this much of the budget
/// leaves enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve(Money);

impl Reserve {
    /// Returns the amount.
    #[must_use]
    pub const fn cost(self) -> Money {
        self.0
    }

    /// Returns the part of a budget that is left for the streams.
    ///
    /// # Errors
    /// When it is more than the budget.
    pub fn left_of(self, budget: Money) -> Result<Money, PacketError> {
        budget.checked_sub(self.0).ok_or(PacketError::OverBudget { cost: self.0, budget })
    }
}

/// The reason why packet flows have no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// No service is fast enough and can handle the Internet path's loss.
    #[error(
        "packet flow `{flow}`: {}", 
        no_service(*budget, fastest.as_ref())
    )]
    NoService {
        /// The flow.
        flow: FlowId,
        /// Its latency budget.
        budget: Duration,
        /// The fastest service; those over relays come before direct.
        fastest: Option<Fastest>,
    },
    /// A cost above the budget of the plan.
    #[error(
        "packet flows: they may cost ${}, on machines that nobody has paid: more than the budget \
         of ${}",
        cost.as_usd(), budget.as_usd()
    )]
    OverBudget {
        /// Their cost on machines that are not paid.
        cost: Money,
        /// The budget.
        budget: Money,
    },
    /// A price or a region is missing.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Costs that cannot be represented.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl PacketError {
    /// Returns whether the problem is valid but has no plan.
    #[must_use]
    pub const fn is_without_plan(&self) -> bool {
        matches!(self, Self::NoService { .. } | Self::OverBudget { .. })
    }
}

/// The fastest service for a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fastest {
    /// The service.
    pub service: PacketService,
    /// The regions of its relays.
    pub regions: Vec<RegionId>,
    /// The delivery time of its slowest packets.
    pub delivery: Duration,
}

fn no_service(budget: Duration, fastest: Option<&Fastest>) -> String {
    let millis = |span: Duration| time::as_millis_f64(span);
    let Some(Fastest { service, regions, delivery }) = fastest else {
        return "no path from its source to its destination has all its legs known".to_owned();
    };
    let delivery = millis(*delivery);
    if *service == PacketService::Direct {
        return format!("no relay can be had, and direct takes {delivery:.1} ms or loses too much");
    }
    let relays: Vec<&str> = regions.iter().map(RegionId::as_str).collect();
    format!(
        "no service meets its budget of {:.1} ms: the fastest, {service} over {}, takes \
         {delivery:.1} ms",
        millis(budget),
        relays.join(" > ")
    )
}
