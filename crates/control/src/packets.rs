//! The part of packet flows in plans, and what gateways report of them.
//!
//! A plan reserves their highest possible cost before the streams are planned, then gives each the
//! cheapest service over the relays that the streams pay for, and others. A flow that no service
//! can carry within the budget goes over the Internet alone, and says why.

use std::collections::BTreeMap;

use tradewind_model::packet::Tariff;
use tradewind_plan::packets::{
    FLOWS_PER_MACHINE, INTERNET_LOSS, PacketError, PacketFlow, Packets, RelayPrices,
};
use tradewind_plan::service::Demand;
use tradewind_plan::{Inputs, PacketPlan, Plan};
use tradewind_units::{Duration, FlowId, Money, Ratio, RegionId, one_line};

use crate::draft::DAY_MS;
use crate::message::{CARRIES_PACKETS, SessionBatch};
use crate::money;
use crate::packet_flow::{DayPackets, PacketCounts, PacketFlowRecord, PacketTally, PlannedPackets};
use crate::record::{Host, PlanRecord, Record, Role};
use crate::sessions::MOST_COUNT;
use crate::state::State;

/// The time that costs are for: flows send all day.
const DAY: Duration = Duration::from_secs(86_400);
const HOURS: u32 = 24;
/// Days, today included, whose packets tell what the Internet loses, and the least packets that do.
/// Chosen: one loss in a thousand is seen ten times.
const LOSS_DAYS: u64 = 2;
const LOSS_PACKETS: u64 = 10_000;
/// Longest service and reason that are kept. Chosen: far longer than a gateway's.
const LONGEST_TEXT: usize = 200;
/// Highest price of a GB that relays can have been told, in dollars. Chosen: several times the
/// dearest of the catalogue.
const MOST_USD_PER_GB: f64 = 1.0;
/// The most bytes that relays send for one of a flow, headers and repair packets included. Chosen:
/// small packets over several relays.
const MOST_COPIES: f64 = 16.0;

/// Returns the host whose gateway delivers a packet flow: the first one of its site that can.
pub(crate) fn receiver<'a>(state: &'a State, flow: &PacketFlowRecord) -> Option<&'a Host> {
    let mut hosts = state.index.hosts_of(&flow.to_site).filter_map(|id| state.hosts.get(id));
    hosts.find(|host| matches!(host.role, Role::Gateway { .. }) && carries_packets(host))
}

/// Returns whether a host takes part in packet flows.
pub(crate) fn carries_packets(host: &Host) -> bool {
    host.is_trusted && host.config_version >= CARRIES_PACKETS
}

/// Returns a packet flow as the planner takes it.
pub(crate) fn flow_of(flow: &PacketFlowRecord, loss: Ratio) -> PacketFlow {
    PacketFlow {
        id: flow.id.clone(),
        source: flow.from.clone(),
        destination: flow.to_site.clone(),
        rate: flow.rate(),
        packet: flow.packet,
        span: DAY,
        demand: Demand { budget: flow.budget, bearable: flow.max_loss },
        loss,
        helper_rtt: None,
    }
}

/// Returns the loss that a flow is expected to suffer on the Internet, and its basis in words: its
/// own packets, else a rate test's, else an assumption.
fn expected_loss(state: &State, now: u64, flow: &PacketFlowRecord) -> (Ratio, String) {
    let days = (now / DAY_MS).saturating_sub(LOSS_DAYS - 1)..=now / DAY_MS;
    let of_days = days.filter_map(|day| state.packets.get(&(day, flow.id.clone())));
    let own = of_days.fold(PacketCounts::default(), |sum, day| sum.plus(day.counts));
    let share = own.lost_by_internet as f64 / own.expected.max(1) as f64;
    if let Ok(loss) = Ratio::new(share)
        && own.expected >= LOSS_PACKETS
    {
        return (loss, format!("loss {loss} of {} packets of its own", own.expected));
    }
    let ends = (flow.from.clone(), flow.to_site.clone());
    let tested = state.measurements.get(&ends).and_then(|leg| leg.rate?.retransmitted);
    match tested {
        Some(loss) => (loss, format!("loss {loss}: resent in a rate test of the Internet path")),
        None => {
            let loss = Ratio::new(INTERNET_LOSS).unwrap_or_default();
            (loss, format!("loss {loss} assumed: none is measured yet"))
        }
    }
}

/// Returns the prices of relays for packet flows, in each region with one: those of the dearest of
/// its machines, for an hour.
fn prices(inputs: &Inputs) -> BTreeMap<RegionId, RelayPrices> {
    let vm_hour = |region: &RegionId| {
        let is_there = |id| inputs.most.get(&(region.clone(), id)).is_some_and(|most| *most > 0);
        let there = inputs.relay_types.iter().filter(|it| is_there(it.id.clone()));
        there.map(|it| it.set_up.shared_by(HOURS)).max().unwrap_or_default()
    };
    let prices = |region: &RegionId| RelayPrices {
        vm_hour: vm_hour(region),
        flows: FLOWS_PER_MACHINE,
        ingress: Tariff::FREE,
        egress: None,
        storage_gb_hour: Money::ZERO,
    };
    inputs.regions.iter().map(|region| (region.clone(), prices(region))).collect()
}

/// Plans the packet flows over the relays of the streams' plan and others, for what that plan
/// leaves of the budget; without one, over machines of which none is paid.
pub(crate) fn plan(
    state: &State,
    now: u64,
    inputs: &Inputs,
    streams: Option<&Plan>,
) -> PlannedPackets {
    let mut planned = PlannedPackets::default();
    let mut packets = Packets { prices: prices(inputs), ..Packets::default() };
    for flow in state.packet_flows.values() {
        let (loss, basis) = expected_loss(state, now, flow);
        packets.flows.push(flow_of(flow, loss));
        planned.losses.insert(flow.id.clone(), basis);
        planned.flows.push(flow.clone());
    }
    let spent = streams.map_or(Money::ZERO, |plan| plan.cost);
    let budget = inputs.budget.checked_sub(spent).unwrap_or_default();
    loop {
        let (gone, why) = match packets.plan(inputs, streams) {
            Ok(plan) => match (beyond(&plan, budget), wrong(&packets, inputs, streams, &plan)) {
                (gone, _) if !gone.is_empty() => {
                    (gone, "the budget does not suffice for it".to_owned())
                }
                (_, Some(bug)) => (all(&packets), bug),
                (_, None) => return PlannedPackets { plan, ..planned },
            },
            Err(error) => match &error {
                PacketError::NoService { flow, .. } => (vec![flow.clone()], error.to_string()),
                _ => (all(&packets), error.to_string()),
            },
        };
        packets.flows.retain(|flow| !gone.contains(&flow.id));
        planned.left_out.extend(gone.into_iter().map(|flow| (flow, why.clone())));
    }
}

fn all(packets: &Packets) -> Vec<FlowId> {
    packets.flows.iter().map(|flow| flow.id.clone()).collect()
}

/// Returns what the verifier finds in a plan, if something.
fn wrong(
    packets: &Packets,
    inputs: &Inputs,
    streams: Option<&Plan>,
    plan: &PacketPlan,
) -> Option<String> {
    let found = packets.verify(inputs, streams?, plan).into_iter().next()?;
    Some(format!("the plan of packet flows is wrong, which is a bug of ours: {found}"))
}

/// Returns the flows that cost something and come after those that the budget pays.
fn beyond(plan: &PacketPlan, budget: Money) -> Vec<FlowId> {
    let mut sum = Money::ZERO;
    let beyond = plan.flows.iter().filter(|flow| {
        sum = sum.saturating_add(flow.cost);
        sum > budget && flow.cost > Money::ZERO
    });
    beyond.map(|flow| flow.id.clone()).collect()
}

/// Returns what a plan's packet flows rest on, a line each.
pub(crate) fn rests_on(planned: &PlannedPackets) -> impl Iterator<Item = String> {
    planned.losses.iter().map(|(flow, basis)| format!("packet flow {flow}: {basis}"))
}

/// Returns which packet flows are declared otherwise than when the plan was made.
pub(crate) fn declared(state: &State, plan: &PlanRecord) -> Vec<String> {
    let planned: BTreeMap<_, _> = plan.packets.flows.iter().map(|flow| (&flow.id, flow)).collect();
    let changed = |flow: &PacketFlowRecord| match planned.get(&flow.id) {
        None => Some(format!("packet flow {} is not planned", flow.id)),
        Some(known) if *known != flow => Some(format!("packet flow {} was declared anew", flow.id)),
        Some(_) => None,
    };
    let gone = planned.keys().filter(|id| !state.packet_flows.contains_key(**id));
    let gone = gone.map(|id| format!("packet flow {id} was removed"));
    state.packet_flows.values().filter_map(changed).chain(gone).collect()
}

/// Returns why the controller should put the packet flows of a new plan into effect, if it should:
/// one gets relays that the old plan does not give it.
pub(crate) fn reason_to_apply(old: &PlannedPackets, new: &PlannedPackets) -> Option<String> {
    let record =
        |planned: &PlannedPackets, id| planned.flows.iter().find(|flow| flow.id == id).cloned();
    let has_relays = |planned: &PlannedPackets, id| {
        planned.plan.flows.iter().any(|flow| flow.id == id && !flow.path.is_empty())
    };
    let mut flows = new.plan.flows.iter().filter(|flow| !flow.path.is_empty());
    let gains = flows.find(|flow| {
        let is_same = record(old, flow.id.clone()) == record(new, flow.id.clone());
        !is_same || !has_relays(old, flow.id.clone())
    });
    gains.map(|flow| format!("packet flow {} gets {} over relays", flow.id, flow.service))
}

/// Adds the records of the packets of a batch: the new sums of its day. Returns the cost of their
/// traffic.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    batch: &SessionBatch,
    records: &mut Vec<Record>,
) -> Money {
    let Role::Gateway { site } = &host.role else { return Money::ZERO };
    let day = now / DAY_MS;
    let mut sums: BTreeMap<_, DayPackets> = BTreeMap::new();
    let mut cost = Money::ZERO;
    for tally in batch.packets.iter().filter(|tally| is_possible(&tally.counts)) {
        let is_its_own =
            |flow: &&PacketFlowRecord| flow.from == *site && flow.listen == tally.listen;
        let Some(flow) = state.packet_flows.values().find(is_its_own) else { continue };
        let before = sums.get(&flow.id).or_else(|| state.packets.get(&(day, flow.id.clone())));
        let before = before.map(|before| before.counts).unwrap_or_default();
        // A gateway's word costs no more than the flow as it was declared can.
        let left = most_of_day(flow).checked_sub(before.usd).unwrap_or_default();
        let usd = tally.counts.usd.min(left);
        let counts = before.plus(PacketCounts { usd, ..tally.counts });
        if counts.largest() > MOST_COUNT {
            continue;
        }
        cost = cost.saturating_add(usd);
        let PacketTally { service, why, .. } = tally;
        let [service, why] = [service, why].map(|text| one_line(text, LONGEST_TEXT));
        let packets = DayPackets { flow: flow.id.clone(), day, service, why, counts };
        sums.insert(flow.id.clone(), packets);
    }
    records.extend(sums.into_values().map(Record::Packets));
    cost
}

/// Returns the most that a flow's packets may cost in a day.
fn most_of_day(flow: &PacketFlowRecord) -> Money {
    let bytes = flow.packets_per_second * flow.packet.as_u64() as f64 * DAY.as_secs_f64();
    Money::from_usd(bytes / 1e9 * MOST_COPIES * MOST_USD_PER_GB).unwrap_or(money::most())
}

/// Returns whether relays may have sent so much at that price.
fn is_possible(counts: &PacketCounts) -> bool {
    let most = counts.relay_bytes as f64 / 1e9 * MOST_USD_PER_GB;
    counts.largest() <= MOST_COUNT && counts.usd.as_usd() <= most * (1.0 + 1e-6) + 1e-9
}
