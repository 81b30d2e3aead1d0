//! The choice for each packet flow: the cheapest option that meets its demand, and the reasons
//! against the others `[JQ 3.3]`.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_model::packet::{PacketCost, PacketService};
use tradewind_units::{Duration, FlowId, Money, Ratio, RegionId, RelayId, RelayTypeId, time};

use super::capacities::{Choice, FreeCapacities};
use super::options::{BOUGHT, DelayTable, Over, ServiceOption};
use super::{Fastest, PacketError, PacketFlow, Packets};
use crate::plan::Plan;
use crate::problem::Inputs;

/// A relay that packet flows use and streams do not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PacketRelay {
    /// Its name: the region's and a number.
    pub id: RelayId,
    /// The region it runs in.
    pub region: RegionId,
    /// Its relay type.
    pub relay_type: RelayTypeId,
    /// True if it runs already: its machine is paid.
    pub runs: bool,
}

/// The reason why a service was selected or not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PacketVerdict {
    /// It was selected.
    Selected,
    /// It meets the demand, but costs more, or is slower at the same cost.
    Dearer,
    /// Its slowest packets exceed the latency budget.
    Late,
    /// More packets are lost than the flow tolerates.
    Lossy,
}

/// The evaluation of one service: its cheapest option that meets the demand, or its fastest if none
/// does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ConsideredService {
    /// The service.
    pub service: PacketService,
    /// The regions of its relays.
    pub regions: Vec<RegionId>,
    /// The delivery time of its slowest packets, which are lost ones with caching and coding.
    #[serde(rename = "delivery_s", with = "time::as_seconds")]
    #[schemars(with = "f64")]
    pub delivery: Duration,
    /// Its cost over the flow's duration.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
    /// The reason why it was selected or not.
    pub verdict: PacketVerdict,
}

/// The costs of the services over a flow's relays, in dollars for each GB of the flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ServiceCosts {
    /// The cost of coding.
    pub coding: Money,
    /// The cost of caching.
    pub caching: Money,
    /// The cost of forwarding.
    pub forwarding: Money,
}

/// The service and relays of a packet flow.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedPacketFlow {
    /// The flow.
    pub id: FlowId,
    /// Its service.
    pub service: PacketService,
    /// Its relays, in order: from the streams' plan, or added by packet flows; empty: direct.
    pub path: Vec<RelayId>,
    /// The delivery time of its slowest packets, which are lost ones with caching and coding.
    #[serde(rename = "delivery_s", with = "time::as_seconds")]
    #[schemars(with = "f64")]
    pub delivery: Duration,
    /// Its latency budget.
    #[serde(rename = "budget_s", with = "time::as_seconds")]
    #[schemars(with = "f64")]
    pub budget: Duration,
    /// Share of its packets that the Internet is expected to lose.
    pub internet_loss: Ratio,
    /// Its cost over its duration.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
    /// The parts of that cost.
    pub costs: PacketCost,
    /// The costs of the services over these relays, without machines; `None` without relays.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usd_per_gb: Option<ServiceCosts>,
    /// The evaluation of each service.
    pub services: Vec<ConsideredService>,
}

/// Services and relays of all packet flows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PacketPlan {
    /// Relays to run besides those of the streams, by region and number.
    pub relays: Vec<PacketRelay>,
    /// Flows, in the problem's order.
    pub flows: Vec<PlannedPacketFlow>,
    /// The total cost of the flows, each over its duration.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
}

impl Packets {
    /// Chooses the cheapest service for each flow, over relays of the streams' plan where that is
    /// cheaper; without such a plan, over machines of which none is paid.
    ///
    /// Equal inputs give equal plans: among options of equal cost the fastest is selected, then the
    /// simplest service, then one relay before two, then the regions that are listed first.
    ///
    /// # Errors
    /// When no service meets a flow's demand, a price is missing, or a cost cannot be represented.
    pub fn plan(&self, inputs: &Inputs, streams: Option<&Plan>) -> Result<PacketPlan, PacketError> {
        let delay_table = DelayTable::new(self, inputs);
        let mut best: Option<PacketPlan> = None;
        for choice in Choice::ALL {
            let mut capacities = FreeCapacities::new(self, inputs, streams, choice);
            let planned = |flow| planned(&delay_table, &mut capacities, flow);
            let flows: Vec<_> = self.flows.iter().map(planned).collect::<Result<_, _>>()?;
            let cost = flows.iter().map(|flow: &PlannedPacketFlow| flow.cost).sum();
            if best.as_ref().is_none_or(|best| cost < best.cost) {
                best = Some(PacketPlan { relays: capacities.added(), flows, cost });
            }
        }
        Ok(best.unwrap_or_default())
    }
}

fn planned(
    delay_table: &DelayTable<'_>,
    capacities: &mut FreeCapacities<'_>,
    flow: &PacketFlow,
) -> Result<PlannedPacketFlow, PacketError> {
    let ends = delay_table.ends(flow);
    let has_room = |region: &RegionId| capacities.has_room(region, flow.rate);
    let has_room: Vec<bool> = delay_table.inputs.regions.iter().map(has_room).collect();
    let options = delay_table.options(flow, &ends, &has_room);
    let judged = |region: &RegionId| capacities.judged(region, flow);
    let considered = considered(delay_table, flow, &options, &judged)?;
    let meeting = considered.values().filter(|one| one.meets);
    let Some(chosen) = meeting.min_by_key(|one| one.rank()).copied() else {
        let (flow, budget) = (flow.id.clone(), flow.demand.budget);
        return Err(PacketError::NoService {
            flow,
            budget,
            fastest: fastest(delay_table, &options),
        });
    };
    let ServiceOption { service, over, delivery } = chosen.option;
    let services = considered
        .values()
        .map(|one| considered_service(delay_table.inputs, flow, one, service))
        .collect();
    let usd_per_gb = usd_per_gb(delay_table, flow, over)?;
    let costs = delay_table.cost(flow, service, over, |region| capacities.machine(region, flow))?;
    let regions = over.regions(delay_table.inputs);
    let path = regions.iter().map(|region| capacities.take(region, flow)).collect::<Option<_>>();
    Ok(PlannedPacketFlow {
        id: flow.id.clone(),
        service,
        // Options over relays exist only if some relay can carry the flow.
        path: path.unwrap_or_default(),
        delivery,
        budget: flow.demand.budget,
        internet_loss: flow.loss,
        cost: costs.total(),
        costs,
        usd_per_gb,
        services,
    })
}

/// The best option of a service so far.
#[derive(Clone, Copy)]
struct Considered {
    option: ServiceOption,
    cost: PacketCost,
    meets: bool,
}

impl Considered {
    /// Returns the key by which options are compared, where less is better.
    fn rank(&self) -> (Money, Duration, PacketService, Over) {
        (self.cost.total(), self.option.delivery, self.option.service, self.option.over)
    }
}

/// Returns each service's cheapest option that meets the demand, or its fastest if none does; other
/// options that do not meet it are not priced.
fn considered(
    delay_table: &DelayTable<'_>,
    flow: &PacketFlow,
    options: &[ServiceOption],
    machine: &impl Fn(&RegionId) -> Money,
) -> Result<BTreeMap<PacketService, Considered>, PacketError> {
    let cost =
        |option: &ServiceOption| delay_table.cost(flow, option.service, option.over, machine);
    let mut best: BTreeMap<PacketService, Considered> = BTreeMap::new();
    for option in options
        .iter()
        .filter(|option| flow.demand.is_met(option.service, option.delivery, flow.loss))
    {
        let one = Considered { option: *option, cost: cost(option)?, meets: true };
        let known = best.entry(option.service).or_insert(one);
        if one.rank() < known.rank() {
            *known = one;
        }
    }
    let mut late: BTreeMap<PacketService, &ServiceOption> = BTreeMap::new();
    for option in options.iter().filter(|option| !best.contains_key(&option.service)) {
        let known = late.entry(option.service).or_insert(option);
        if (option.delivery, option.over) < (known.delivery, known.over) {
            *known = option;
        }
    }
    for (service, option) in late {
        best.insert(service, Considered { option: *option, cost: cost(option)?, meets: false });
    }
    Ok(best)
}

/// Returns the fastest option, over relays if there is one: on the Internet path alone lost packets
/// never arrive, however fast it is.
fn fastest(delay_table: &DelayTable<'_>, options: &[ServiceOption]) -> Option<Fastest> {
    let is_last = |option: &ServiceOption| option.service == PacketService::Direct;
    let option = options
        .iter()
        .min_by_key(|option| (is_last(option), option.delivery, option.service, option.over))?;
    let regions = option.over.regions(delay_table.inputs);
    Some(Fastest { service: option.service, regions, delivery: option.delivery })
}

fn considered_service(
    inputs: &Inputs,
    flow: &PacketFlow,
    one: &Considered,
    selected: PacketService,
) -> ConsideredService {
    let ServiceOption { service, over, delivery } = one.option;
    let verdict = match one.meets {
        true if service == selected => PacketVerdict::Selected,
        true => PacketVerdict::Dearer,
        false if delivery > flow.demand.budget => PacketVerdict::Late,
        false => PacketVerdict::Lossy,
    };
    let (regions, cost) = (over.regions(inputs), one.cost.total());
    ConsideredService { service, regions, delivery, cost, verdict }
}

/// Returns the cost of each service over these relays, for each GB of the flow; machines cost the
/// same with all, and are left out.
fn usd_per_gb(
    delay_table: &DelayTable<'_>,
    flow: &PacketFlow,
    over: Over,
) -> Result<Option<ServiceCosts>, PacketError> {
    let gigabytes = flow.rate.volume_in(flow.span).as_gb();
    if over == Over::Nothing || gigabytes <= 0.0 {
        return Ok(None);
    }
    let each = |service| -> Result<Money, PacketError> {
        let cost = delay_table.cost(flow, service, over, |_| Money::ZERO)?.total();
        Ok(Money::from_usd(cost.as_usd() / gigabytes)?)
    };
    let [coding, caching, forwarding] = BOUGHT.map(each);
    Ok(Some(ServiceCosts { coding: coding?, caching: caching?, forwarding: forwarding? }))
}
