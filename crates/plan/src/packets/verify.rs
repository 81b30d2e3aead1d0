//! Violations in a plan of packet flows, computed from the problem and the streams' plan.
//!
//! Delays and costs are from the same model as the planner's; paths, paid machines, loads and sums
//! are computed independently.

use std::collections::BTreeMap;

use tradewind_units::{FlowId, Money, RegionId, RelayId};

use super::capacities::loads;
use super::options::{DelayTable, Over};
use super::planned::{PacketPlan, PacketRelay, PlannedPacketFlow};
use super::{PacketFlow, Packets};
use crate::plan::Plan;
use crate::problem::Inputs;

/// A violation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PacketViolation {
    /// Flows other than the problem's, each once and in order.
    #[error("packet flows: not those of the problem, each once and in its order")]
    Flows,
    /// A path over a relay that does not run, or over which the service is not possible.
    #[error("packet flow `{0}`: no such service over such relays")]
    Path(FlowId),
    /// A delivery time other than computed, or one that does not meet the demand.
    #[error("packet flow `{0}`: its packets do not come as planned, or not within its demand")]
    Delivery(FlowId),
    /// A cost other than computed from the prices.
    #[error("packet flow `{0}`: it costs something else than planned")]
    Cost(FlowId),
    /// A relay that carries more than it can, streams included.
    #[error("relay `{0}`: packet flows ask more of it than it can carry")]
    Overloaded(RelayId),
    /// A relay that carries no packets, is listed twice, has more packet flows than may share it,
    /// is stated to run and does not, is not on offer in its region or beyond its quota there, or
    /// that no packet flow uses.
    #[error("relay `{0}`: packet flows cannot have it, or do not take it")]
    Relay(RelayId),
    /// A total cost other than the sum over the flows.
    #[error("packet flows: their costs do not come to the plan's sum")]
    Sum,
}

impl Packets {
    /// Returns all violations in `plan`, given the streams' plan.
    #[must_use]
    pub fn verify(
        &self,
        inputs: &Inputs,
        streams: &Plan,
        plan: &PacketPlan,
    ) -> Vec<PacketViolation> {
        let same = self.flows.iter().map(|flow| &flow.id);
        if !same.eq(plan.flows.iter().map(|flow| &flow.id)) {
            return vec![PacketViolation::Flows];
        }
        let mut wrong = wrong_relays(self, inputs, streams, plan);
        let delay_table = DelayTable::new(self, inputs);
        let mut hours = BTreeMap::new();
        for (flow, planned) in self.flows.iter().zip(&plan.flows) {
            wrong.extend(wrong_flow(&delay_table, streams, plan, &hours, flow, planned));
            for relay in &planned.path {
                let paid = hours.entry(relay.clone()).or_default();
                *paid = flow.hours().max(*paid);
            }
        }
        if plan.cost != plan.flows.iter().map(|flow| flow.cost).sum() {
            wrong.push(PacketViolation::Sum);
        }
        wrong
    }
}

/// Returns the region of a relay, and whether its machine is paid.
fn known<'a>(
    streams: &'a Plan,
    plan: &'a PacketPlan,
    id: &RelayId,
) -> Option<(&'a RegionId, bool)> {
    let of_streams = streams.relays.iter().find(|relay| relay.id == *id);
    let added = || plan.relays.iter().find(|relay| relay.id == *id);
    let of_streams = of_streams.map(|relay| (&relay.region, true));
    of_streams.or_else(|| added().map(|relay| (&relay.region, relay.runs)))
}

fn wrong_flow(
    delay_table: &DelayTable<'_>,
    streams: &Plan,
    plan: &PacketPlan,
    hours: &BTreeMap<RelayId, u64>,
    flow: &PacketFlow,
    planned: &PlannedPacketFlow,
) -> Option<PacketViolation> {
    let id = || flow.id.clone();
    let relays: Option<Vec<(&RegionId, bool)>> =
        planned.path.iter().map(|relay| known(streams, plan, relay)).collect();
    let place =
        |region: &RegionId| delay_table.inputs.regions.iter().position(|known| known == region);
    let Some(relays) = relays else { return Some(PacketViolation::Path(id())) };
    let places: Option<Vec<usize>> = relays.iter().map(|(region, _)| place(region)).collect();
    let over = match places.as_deref() {
        Some([]) => Over::Nothing,
        Some([one]) => Over::One(*one),
        Some([first, last]) => Over::Two(*first, *last),
        _ => return Some(PacketViolation::Path(id())),
    };
    let delivery = delay_table.delivery(flow, &delay_table.ends(flow), planned.service, over);
    let Some(delivery) = delivery else { return Some(PacketViolation::Path(id())) };
    let is_same = delivery.abs_diff(planned.delivery).as_micros() <= 1;
    if !is_same || !flow.demand.is_met(planned.service, delivery, flow.loss) {
        return Some(PacketViolation::Delivery(id()));
    }
    let machine = |region: &RegionId| {
        let at = relays.iter().position(|(known, is_paid)| *known == region && !is_paid);
        let paid = at.map(|at| hours.get(&planned.path[at]).copied().unwrap_or_default());
        let adds = paid.map_or(0, |paid| flow.hours().saturating_sub(paid));
        let prices = delay_table.packets.prices.get(region);
        prices.map_or(Money::ZERO, |prices| prices.machine(adds))
    };
    let cost = delay_table.cost(flow, planned.service, over, machine);
    let is_right = cost.is_ok_and(|cost| cost == planned.costs && cost.total() == planned.cost);
    (!is_right).then(|| PacketViolation::Cost(id()))
}

fn wrong_relays(
    packets: &Packets,
    inputs: &Inputs,
    streams: &Plan,
    plan: &PacketPlan,
) -> Vec<PacketViolation> {
    let mut wrong = Vec::new();
    let mut loads = loads(inputs, streams);
    let mut flows: BTreeMap<&RelayId, u32> = BTreeMap::new();
    for (flow, planned) in packets.flows.iter().zip(&plan.flows) {
        for relay in &planned.path {
            let load = loads.entry(relay.clone()).or_default();
            *load = load.saturating_add(flow.rate.as_bps());
            *flows.entry(relay).or_default() += 1;
        }
    }
    let of_streams = streams.relays.iter().map(|relay| (&relay.id, &relay.relay_type));
    let added = plan.relays.iter().map(|relay| (&relay.id, &relay.relay_type));
    for (id, relay_type) in of_streams.chain(added) {
        let of_type = inputs.relay_types.iter().find(|known| known.id == *relay_type);
        let capacity = of_type.map_or(0, |known| known.capacity.as_bps());
        let is_asked = flows.contains_key(id);
        if is_asked && packets.barred.contains(id) {
            wrong.push(PacketViolation::Relay(id.clone()));
        }
        if is_asked && loads.get(id).is_some_and(|load| *load > capacity) {
            wrong.push(PacketViolation::Overloaded(id.clone()));
        }
    }
    for (at, relay) in plan.relays.iter().enumerate() {
        let is_twice = plan.relays[..at].iter().any(|other| other.id == relay.id)
            || streams.relays.iter().any(|other| other.id == relay.id);
        let used = flows.get(&relay.id).copied().unwrap_or_default();
        let most = packets.prices.get(&relay.region).map_or(0, |prices| prices.flows);
        let has_capacity = used > 0 && (relay.runs || used <= most);
        let is_there = if relay.runs {
            !runs_too_many(inputs, streams, plan, at)
        } else {
            let key = (relay.region.clone(), relay.relay_type.clone());
            let most = inputs.most.get(&key).copied();
            inputs.regions.contains(&relay.region)
                && !inputs.not_offered.contains(&key)
                && most.is_none_or(|most| count_up_to(streams, plan, at) <= most)
        };
        if is_twice || !has_capacity || !is_there {
            wrong.push(PacketViolation::Relay(relay.id.clone()));
        }
    }
    wrong
}

/// Returns the number of relays of the region and type of the one at this index: those of the
/// streams, and those of packet flows up to this one.
fn count_up_to(streams: &Plan, plan: &PacketPlan, at: usize) -> usize {
    let PacketRelay { region, relay_type, .. } = &plan.relays[at];
    let of_streams = streams.relays.iter().map(|one| (&one.region, &one.relay_type));
    let added = plan.relays[..=at].iter().map(|one| (&one.region, &one.relay_type));
    of_streams.chain(added).filter(|one| *one == (region, relay_type)).count()
}

/// Returns whether the relays up to this index that are stated to run are more than do run.
fn runs_too_many(inputs: &Inputs, streams: &Plan, plan: &PacketPlan, at: usize) -> bool {
    let relay = &plan.relays[at];
    let key = (relay.region.clone(), relay.relay_type.clone());
    let running = inputs.running.relays.get(&key).copied().unwrap_or_default();
    let is_one = |region: &RegionId, relay_type| (region, relay_type) == (&key.0, &key.1);
    let of_streams = streams.relays.iter().filter(|one| is_one(&one.region, &one.relay_type));
    let added = plan.relays[..=at].iter();
    let added = added.filter(|one| one.runs && is_one(&one.region, &one.relay_type));
    of_streams.count() + added.count() > running
}
