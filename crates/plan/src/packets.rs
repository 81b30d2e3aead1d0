//! Packet flows of a problem: which packet service carries each of them over which relays, the
//! cheapest that meets its latency budget `[JQ 3.3, 3.4]`, in one view with the plan of the
//! streams.
//!
//! | module | holds |
//! |---|---|
//! | `ways` | all services over all relays for a flow: when packets arrive, what they cost |
//! | `rooms` | relays that streams have bought, that run, or that packet flows add, and what they still carry |
//! | `planned` | the choice for each flow, with what speaks against the others |
//! | `verify` | what is wrong with a choice, worked out anew |
//!
//! Prices of egress, regions and round trips are the problem's own. A relay that streams buy, or
//! that runs already, has its machine paid. Any other machine is paid whole, for the whole hours of
//! the flow that lasts longest there: by the first flow that takes it, and by later ones that last
//! longer for the hours that they add. Flows choose in the order of the file, once by what their
//! choice adds and once by their share of a full machine `[JQ Table 2]`; the cheaper of both plans
//! counts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tradewind_model::packet::{CodingRates, PacketService, RelayTariff, Stream, Tariff};
use tradewind_model::{Egress, ModelError};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, Ratio, RegionId, SiteId, UnitError, time,
};

use crate::problem::Inputs;
use crate::service::{DETECTION, Demand};

mod planned;
mod rooms;
mod verify;
mod ways;

pub use planned::{
    ConsideredService, PacketPlan, PacketRelay, PacketVerdict, PlannedPacketFlow, ServiceCosts,
};
pub use verify::PacketViolation;

/// Most relays of a packet flow: caching and coding know an ingress relay and an egress relay `[JQ
/// 3]`.
pub const MOST_RELAYS: usize = 2;
/// How long relays keep packets. Chosen: as `tradewind relay` does.
const KEPT: Duration = Duration::from_secs(1);
const SECONDS_AN_HOUR: u64 = 3600;

/// Packets that are to be carried from one site to another.
#[derive(Debug, Clone, PartialEq)]
pub struct PacketFlow {
    /// Its name.
    pub id: FlowId,
    /// Where it starts.
    pub source: SiteId,
    /// Where it ends.
    pub destination: SiteId,
    /// What it sends.
    pub rate: Bandwidth,
    /// A packet of it.
    pub packet: Bytes,
    /// How long it lasts, which is what its costs are for.
    pub span: Duration,
    /// When its packets must arrive, and how many need not.
    pub demand: Demand,
    /// Share of its packets that the Internet is expected to lose.
    pub loss: Ratio,
    /// Round trip between the egress relay and the farthest helper; `None`: as far as the flow's
    /// own destination.
    pub helper_rtt: Option<Duration>,
}

/// What a relay costs packet flows, beside its egress by volume.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelayPrices {
    /// A machine, for an hour.
    pub vm_hour: Money,
    /// Packet flows that share one, at most.
    pub flows: u32,
    /// What enters.
    pub ingress: Tariff,
    /// What leaves, wherever it goes; `None`: by the problem's prices.
    pub egress: Option<Tariff>,
    /// Keeping a GB for an hour; the machine's own memory costs nothing more.
    pub storage_gb_hour: Money,
}

impl RelayPrices {
    /// Returns what a machine costs for so many hours.
    pub(crate) const fn machine(&self, hours: u64) -> Money {
        self.vm_hour.times(hours)
    }
}

impl PacketFlow {
    /// Returns the whole hours that it lasts, as machines are charged.
    pub(crate) fn hours(&self) -> u64 {
        self.span.as_secs().div_ceil(SECONDS_AN_HOUR).max(1)
    }
}

/// How relays code packets, as in a relay's `[packet] coding`: repair packets for so many packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct BlockCoding {
    /// Of several flows.
    pub cross_stream: [u8; 2],
    /// Of one flow; none with `[0, 1]`.
    pub in_stream: [u8; 2],
    /// Longest that a block of several flows is open.
    #[serde(with = "time::as_text")]
    pub within: Duration,
}

impl Default for BlockCoding {
    /// As relays do that are told nothing: 2 for 10, 1 for 5, 30 ms.
    fn default() -> Self {
        Self { cross_stream: [2, 10], in_stream: [1, 5], within: Duration::from_millis(30) }
    }
}

impl BlockCoding {
    /// As the cost model takes it; that in-stream repair packets spare helpers is not counted on.
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

/// All packet flows of a problem, and what they cost beside what its streams do.
#[derive(Debug, Clone, PartialEq)]
pub struct Packets {
    /// The flows.
    pub flows: Vec<PacketFlow>,
    /// What relays cost, for each candidate region.
    pub prices: BTreeMap<RegionId, RelayPrices>,
    /// What a site's uplink charges for copies; nothing where it is not named.
    pub uplinks: BTreeMap<SiteId, Tariff>,
    /// How relays code.
    pub coding: BlockCoding,
    /// From when a packet should have come to when it is asked for.
    pub detection: Duration,
    /// How long relays keep packets.
    pub kept: Duration,
}

impl Default for Packets {
    fn default() -> Self {
        Self {
            flows: Vec::new(),
            prices: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            coding: BlockCoding::default(),
            detection: DETECTION,
            kept: KEPT,
        }
    }
}

impl Packets {
    /// What leaves a relay in `region` for `to` costs.
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

    /// Returns what a relay in `region` charges that sends to `to`, its machine left out: that is
    /// paid whole.
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

    /// A flow as the cost model takes it.
    fn stream(&self, flow: &PacketFlow) -> Stream {
        Stream {
            rate: flow.rate,
            span: flow.span,
            packet: flow.packet,
            loss: flow.loss,
            uplink: self.uplinks.get(&flow.source).copied().unwrap_or(Tariff::FREE),
            kept: self.kept,
        }
    }

    /// What all flows cost at most, whatever relays the streams buy: on machines of which nothing
    /// is paid.
    ///
    /// # Errors
    /// When no service meets a flow's budget, or a price is missing.
    pub fn reserve(&self, inputs: &Inputs) -> Result<Reserve, PacketError> {
        Ok(Reserve(self.plan(inputs, None)?.cost))
    }
}

/// What packet flows cost at most. A plan of streams that leaves so much of the budget leaves
/// enough.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reserve(Money);

impl Reserve {
    /// The amount.
    #[must_use]
    pub const fn cost(self) -> Money {
        self.0
    }

    /// What it leaves the streams of a budget.
    ///
    /// # Errors
    /// When it is more than the budget.
    pub fn left_of(self, budget: Money) -> Result<Money, PacketError> {
        budget.checked_sub(self.0).ok_or(PacketError::OverBudget { cost: self.0, budget })
    }
}

/// Why packet flows have no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    /// No service is fast enough, or bears what the Internet loses.
    #[error(
        "packet flow `{flow}`: {}", 
        no_service(*budget, fastest.as_ref())
    )]
    NoService {
        /// The flow.
        flow: FlowId,
        /// Its latency budget.
        budget: Duration,
        /// The fastest that there is, relays before those without.
        fastest: Option<Fastest>,
    },
    /// More than the budget of the plan.
    #[error(
        "packet flows: they may cost ${}, on machines that nobody has paid: more than the budget \
         of ${}",
        cost.as_usd(), budget.as_usd()
    )]
    OverBudget {
        /// What they cost on machines that nobody has paid.
        cost: Money,
        /// What all may cost.
        budget: Money,
    },
    /// A price or a region is missing.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// More money than can be expressed.
    #[error(transparent)]
    Unit(#[from] UnitError),
}

impl PacketError {
    /// Whether nothing is wrong with the problem but that it has no plan.
    #[must_use]
    pub const fn is_without_plan(&self) -> bool {
        matches!(self, Self::NoService { .. } | Self::OverBudget { .. })
    }
}

/// The fastest service for a flow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fastest {
    /// Which.
    pub service: PacketService,
    /// Over which relays.
    pub regions: Vec<RegionId>,
    /// When its slowest packets arrive.
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
