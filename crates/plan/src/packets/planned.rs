//! The choice for each packet flow: the cheapest option that meets its demand, and the reasons
//! against the others `[JQ 3.3]`.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_model::packet::{PacketCost, PacketService};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, Ratio, RegionId, RelayId, RelayTypeId, SiteId, time,
};

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

/// The reason why a packet flow is no part of a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unplanned {
    /// No service meets its demand.
    #[error(transparent)]
    NoService(PacketError),
    /// The flows before it leave less of the budget than its service costs.
    #[error("the budget does not suffice for it")]
    Unpaid,
}

/// Services and relays of the packet flows that can be served within a budget.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ServedPackets {
    /// Their plan, which [`Packets::verify`] takes without the others.
    pub plan: PacketPlan,
    /// The other flows, and why they are no part of it.
    pub left_out: BTreeMap<FlowId, Unplanned>,
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
        let served = self.served(inputs, streams, None)?;
        let mut flows = self.flows.iter();
        match flows.find_map(|flow| served.left_out.get(&flow.id)) {
            Some(Unplanned::NoService(error)) => Err(error.clone()),
            Some(Unplanned::Unpaid) | None => Ok(served.plan),
        }
    }

    /// Returns the same plan of the flows that have a service, in their order, while the budget
    /// lasts; the others are left out. Each flow is looked at once, and what flows between the same
    /// sites with the same demands have in common is computed once.
    ///
    /// # Errors
    /// When a price is missing, or a cost cannot be represented.
    pub fn plan_within(
        &self,
        inputs: &Inputs,
        streams: Option<&Plan>,
        budget: Money,
    ) -> Result<ServedPackets, PacketError> {
        self.served(inputs, streams, Some(budget))
    }

    fn served(
        &self,
        inputs: &Inputs,
        streams: Option<&Plan>,
        budget: Option<Money>,
    ) -> Result<ServedPackets, PacketError> {
        let delay_table = DelayTable::new(self, inputs);
        let groups = Groups::new(&delay_table);
        let mut best: Option<ServedPackets> = None;
        for choice in Choice::ALL {
            let mut capacities = FreeCapacities::new(self, inputs, streams, choice);
            let served = groups.served(&mut capacities, budget)?;
            let rank = |served: &ServedPackets| (served.left_out.len(), served.plan.cost);
            if best.as_ref().is_none_or(|best| rank(&served) < rank(best)) {
                best = Some(served);
            }
        }
        Ok(best.unwrap_or_default())
    }
}

/// An option with the cost of its traffic, if it meets the flow's demand.
type PricedOption = (ServiceOption, Option<Result<PacketCost, PacketError>>);

/// The options of flows between the same sites with the same figures and demands.
type Priced = Vec<PricedOption>;

/// The key of such flows: shares by their bits, as these have no order.
type GroupKey<'a> = (
    (&'a SiteId, &'a SiteId),
    (Bandwidth, Bytes, Duration, Option<Duration>),
    (Duration, [u64; 2]),
);

/// All flows with their options; traffic of those that meet a flow's demand is priced once.
struct Groups<'a> {
    delay_table: &'a DelayTable<'a>,
    groups: Vec<Priced>,
    /// The group of each flow.
    of_flows: Vec<usize>,
}

impl<'a> Groups<'a> {
    fn new(delay_table: &'a DelayTable<'a>) -> Self {
        let mut known: BTreeMap<GroupKey<'_>, usize> = BTreeMap::new();
        let (mut groups, mut of_flows) = (Vec::new(), Vec::new());
        for flow in &delay_table.packets.flows {
            let shares = [flow.loss, flow.demand.bearable].map(|share| share.as_f64().to_bits());
            let key = (
                (&flow.source, &flow.destination),
                (flow.rate, flow.packet, flow.span, flow.helper_rtt),
                (flow.demand.budget, shares),
            );
            let at = *known.entry(key).or_insert_with(|| {
                groups.push(priced(delay_table, flow));
                groups.len() - 1
            });
            of_flows.push(at);
        }
        Self { delay_table, groups, of_flows }
    }

    /// Returns the plan by a choice of relays.
    fn served(
        &self,
        capacities: &mut FreeCapacities<'_>,
        budget: Option<Money>,
    ) -> Result<ServedPackets, PacketError> {
        let (mut flows, mut left_out) = (Vec::new(), BTreeMap::new());
        let mut cost = Money::ZERO;
        for (flow, group) in self.delay_table.packets.flows.iter().zip(&self.of_flows) {
            let left = budget.map(|budget| budget.checked_sub(cost).unwrap_or_default());
            match planned(self.delay_table, capacities, flow, &self.groups[*group], left)? {
                Ok(planned) => {
                    cost = cost.saturating_add(planned.cost);
                    flows.push(planned);
                }
                Err(why) => drop(left_out.insert(flow.id.clone(), why)),
            }
        }
        let plan = PacketPlan { relays: capacities.added(), flows, cost };
        Ok(ServedPackets { plan, left_out })
    }
}

/// Returns a flow's options, with the cost of those that meet its demand, machines aside.
fn priced(delay_table: &DelayTable<'_>, flow: &PacketFlow) -> Priced {
    let options = delay_table.options(flow, &delay_table.ends(flow));
    let price = |option: ServiceOption| {
        let ServiceOption { service, over, delivery } = option;
        let meets = flow.demand.is_met(service, delivery, flow.loss);
        (option, meets.then(|| delay_table.traffic_cost(flow, service, over)))
    };
    options.into_iter().map(price).collect()
}

fn planned(
    delay_table: &DelayTable<'_>,
    capacities: &mut FreeCapacities<'_>,
    flow: &PacketFlow,
    options: &Priced,
    left: Option<Money>,
) -> Result<Result<PlannedPacketFlow, Unplanned>, PacketError> {
    let regions = &delay_table.inputs.regions;
    let has_room: Vec<bool> =
        regions.iter().map(|region| capacities.has_room(region, flow.rate)).collect();
    let judged: Vec<Money> = regions.iter().map(|region| capacities.judged(region, flow)).collect();
    let in_room = |over: Over| over.places().all(|at| has_room[at]);
    let options: Vec<_> = options.iter().filter(|(option, _)| in_room(option.over)).collect();
    let considered = considered(delay_table, flow, &options, &judged)?;
    let meeting = considered.values().filter(|one| one.meets);
    let Some(chosen) = meeting.min_by_key(|one| one.rank()).copied() else {
        let fastest = fastest(delay_table, &options);
        let (flow, budget) = (flow.id.clone(), flow.demand.budget);
        let error = PacketError::NoService { flow, budget, fastest };
        return Ok(Err(Unplanned::NoService(error)));
    };
    let ServiceOption { service, over, delivery } = chosen.option;
    let of_relays = over.regions(delay_table.inputs);
    let compute = of_relays.iter().map(|region| capacities.machine(region, flow)).sum();
    let costs = PacketCost { compute, ..chosen.cost };
    if left.is_some_and(|left| costs.total() > left) {
        return Ok(Err(Unplanned::Unpaid));
    }
    let services = considered
        .values()
        .map(|one| considered_service(delay_table.inputs, flow, one, service))
        .collect();
    let usd_per_gb = usd_per_gb(delay_table, flow, over)?;
    let path = of_relays.iter().map(|region| capacities.take(region, flow)).collect::<Option<_>>();
    Ok(Ok(PlannedPacketFlow {
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
    }))
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
/// options that do not meet it are not priced. `machines` are the costs of a machine by region.
fn considered(
    delay_table: &DelayTable<'_>,
    flow: &PacketFlow,
    options: &[&PricedOption],
    machines: &[Money],
) -> Result<BTreeMap<PacketService, Considered>, PacketError> {
    let with_machines = |option: &ServiceOption, traffic: PacketCost| {
        let compute = option.over.places().map(|at| machines[at]).sum();
        PacketCost { compute, ..traffic }
    };
    let mut best: BTreeMap<PacketService, Considered> = BTreeMap::new();
    let mut late: BTreeMap<PacketService, &ServiceOption> = BTreeMap::new();
    for (option, traffic) in options {
        if let Some(traffic) = traffic {
            let cost = with_machines(option, traffic.clone()?);
            let one = Considered { option: *option, cost, meets: true };
            let known = best.entry(option.service).or_insert(one);
            if one.rank() < known.rank() {
                *known = one;
            }
        } else {
            let known = late.entry(option.service).or_insert(option);
            if (option.delivery, option.over) < (known.delivery, known.over) {
                *known = option;
            }
        }
    }
    for (service, option) in late {
        if let Entry::Vacant(vacant) = best.entry(service) {
            let traffic = delay_table.traffic_cost(flow, service, option.over)?;
            let cost = with_machines(option, traffic);
            vacant.insert(Considered { option: *option, cost, meets: false });
        }
    }
    Ok(best)
}

/// Returns the fastest option, over relays if there is one: on the Internet path alone lost packets
/// never arrive, however fast it is.
fn fastest(delay_table: &DelayTable<'_>, options: &[&PricedOption]) -> Option<Fastest> {
    let is_last = |option: &ServiceOption| option.service == PacketService::Direct;
    let options = options.iter().map(|(option, _)| option);
    let option = options
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
