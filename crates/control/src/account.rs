//! Accounts of tenants: what their flows have cost by day, also after a flow was removed, and only
//! from when a flow was theirs; and what the rest of each day's money was.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::{FlowId, Money, Timestamp};

use crate::draft::{DAY_MS, Draft};
use crate::flow_costs::{self, Charged, FlowCost};
use crate::packets;
use crate::record::{DAYS_IN_MEMORY, PlanRecord, Record, Spent};
use crate::state::State;
use crate::tenant::{Removed, RemovedPackets, Tenant, TenantId};

/// Days for which the last sessions of a flow that was removed may be told. Chosen: as long as
/// costs are kept in memory, and longer than an agent goes on without a controller.
const TOLD_FOR: u64 = DAYS_IN_MEMORY as u64;

/// Returns the cost of each tenant's flows in each of the last `days`, today included.
#[must_use]
pub fn costs(state: &State, now: Timestamp, days: u64) -> BTreeMap<TenantId, BTreeMap<u64, Money>> {
    let charged = |tenant: &Tenant| -> Vec<(FlowId, Option<_>)> {
        let flows = &tenant.flows | &tenant.former;
        flows.into_iter().map(|flow| (flow.clone(), tenant.before.get(&flow).cloned())).collect()
    };
    let all: Vec<_> = state.tenants.values().map(|tenant| (tenant, charged(tenant))).collect();
    let groups = all.iter().map(|(tenant, flows)| {
        let charged = flows.iter().map(|(flow, before)| Charged { flow, before: before.as_ref() });
        (tenant.id.clone(), charged.collect())
    });
    let mut costs = flow_costs::costs_of(state, now, days, groups);
    for (tenant, _) in &all {
        let Some(days) = costs.get_mut(&tenant.id) else { continue };
        for settled in &tenant.settled {
            if let Some(sum) = days.get_mut(&settled.day) {
                *sum = sum.saturating_add(settled.usd);
            }
        }
    }
    costs
}

/// The parts of what a day has cost beyond its tenants' costs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UnassignedCosts {
    /// Flows of no tenant.
    pub flows: Money,
    /// The part of machines that nobody's bytes used.
    pub machines: Money,
    /// Rate tests.
    pub tests: Money,
    /// Metered, but told of no flow that is known: traffic of flows that were removed from no
    /// tenant, or at other prices than now.
    pub unknown: Money,
    /// Not metered, but in the costs of flows, which are so much too high: traffic at other prices
    /// than now, and parts that were rounded.
    pub excess: Money,
}

impl UnassignedCosts {
    /// Returns the sum beyond the tenants' costs; none where these are too high.
    #[must_use]
    pub fn total(&self) -> Money {
        let Self { flows, machines, tests, unknown, excess } = *self;
        (flows + machines + tests + unknown).checked_sub(excess).unwrap_or_default()
    }
}

/// Returns what each of the last `days`, today included, has cost beyond [`costs`]. With these its
/// parts add up to what was metered, the excess taken off.
#[must_use]
pub fn rest(
    state: &State,
    now: Timestamp,
    days: u64,
    costs: &BTreeMap<TenantId, BTreeMap<u64, Money>>,
) -> BTreeMap<u64, UnassignedCosts> {
    let settled = |day: u64| -> Money {
        let all = state.tenants.values().flat_map(|tenant| &tenant.settled);
        all.filter(|settled| settled.day == day).map(|settled| settled.usd).sum()
    };
    let of_day = |(day, all): (u64, FlowCost)| {
        let spent = state.spent.get(&day);
        let tenants: Money = costs.values().filter_map(|days| days.get(&day)).copied().sum();
        let less = |from: Money, other: Money| from.checked_sub(other).unwrap_or_default();
        let flows = less(all.total() + settled(day), tenants);
        let of_machines = spent.map_or(Money::ZERO, Spent::of_machines);
        let machines = less(of_machines, all.machines);
        let tests = spent.map_or(Money::ZERO, |spent| spent.tests);
        let metered = spent.map_or(Money::ZERO, Spent::total);
        let known = tenants + flows + machines + tests;
        let (unknown, excess) = (less(metered, known), less(known, metered));
        (day, UnassignedCosts { flows, machines, tests, unknown, excess })
    };
    flow_costs::costs_of_all(state, now, days).into_iter().map(of_day).collect()
}

/// Returns whether something is known of what a flow carried.
pub(crate) fn has_history(state: &State, flow: &FlowId) -> bool {
    state.usage.contains_key(flow)
        || state.sessions.keys().any(|(_, known)| known == flow)
        || state.packets.keys().any(|(_, known)| known == flow)
        || state.relayed.since(0).any(|row| row.flow == *flow)
}

/// Notes what a flow carried before it became a tenant's, unless it was the tenant's before.
pub(crate) fn open(state: &State, now: u64, tenant: &mut Tenant, flow: &FlowId) {
    if !tenant.former.contains(flow) && has_history(state, flow) {
        tenant.before.insert(flow.clone(), flow_costs::carried(state, now, flow));
    }
}

/// Takes a flow that is about to be removed from its tenant. What it has cost, and what is told of
/// it later, remains the tenant's.
pub(crate) fn forget(draft: &mut Draft, flow: &FlowId) {
    let state = &draft.state;
    let tenant = state.tenants.values().find(|tenant| tenant.flows.contains(flow));
    let Some(mut tenant) = tenant.cloned() else { return };
    note_removed(state, draft.now(), &mut tenant, flow);
    // The records of its packets go with it.
    for ((day, _), packets) in state.packets.iter().filter(|((_, known), _)| known == flow) {
        let all = packets.counts.usd;
        let usd = tenant.before.get(flow).map_or(all, |before| before.packets_beyond(*day, all));
        tenant.settle(*day, usd);
    }
    if let Some(before) = tenant.before.get_mut(flow) {
        before.packets = Money::ZERO;
    }
    tenant.flows.remove(flow);
    if tenant.removed.contains_key(flow) || has_history(state, flow) {
        tenant.former.insert(flow.clone());
    }
    draft.push(Record::Tenant(tenant));
}

/// Notes the site from which a tenant's flow is about to go away, for what is told of it later.
pub(crate) fn leave(draft: &mut Draft, flow: &FlowId) {
    let state = &draft.state;
    let tenant = state.tenants.values().find(|tenant| tenant.flows.contains(flow));
    let Some(mut tenant) = tenant.cloned() else { return };
    note_removed(state, draft.now(), &mut tenant, flow);
    draft.push(Record::Tenant(tenant));
}

fn note_removed(state: &State, now: u64, tenant: &mut Tenant, flow: &FlowId) {
    let packets = state.packet_flows.get(flow);
    let site = state.flows.get(flow).map(|flow| &flow.from);
    let Some(site) = site.or(packets.map(|flow| &flow.from)).cloned() else { return };
    // One that no plan ever gave relays, and that carried nothing, cannot cost anything.
    let has_relays = |plan: &PlanRecord| {
        let planned = plan.packets.planned(flow);
        plan.path_of(flow).is_some_and(|(_, path)| !path.is_empty())
            || planned.is_some_and(|planned| !planned.path.is_empty())
    };
    if !has_history(state, flow) && !state.plans.values().any(has_relays) {
        return;
    }
    let removed_packets = |flow| RemovedPackets {
        listen: state.packet_flows[flow].listen,
        most: packets::left_of_day(state, now, &state.packet_flows[flow]),
    };
    let packets = packets.map(|flow| removed_packets(&flow.id));
    let new = || Removed { from: BTreeSet::new(), unix_ms: now, packets: None };
    let removed = tenant.removed.entry(flow.clone()).or_insert_with(new);
    removed.from.insert(site);
    *removed = Removed { unix_ms: now, packets, from: std::mem::take(&mut removed.from) };
}

/// Returns why nobody but its tenant can have a flow of a name, if so: what is told of it yet would
/// be charged to that.
pub(crate) fn kept_by(state: &State, flow: &FlowId) -> Option<String> {
    let is_its = |tenant: &&Tenant| tenant.former.contains(flow) && !tenant.flows.contains(flow);
    let tenant = state.tenants.values().find(is_its)?;
    Some(format!("what flow `{flow}` carried is tenant {}'s; take another name", tenant.id))
}

/// Forgets what tells nothing any more of flows that were removed, and of days long ago.
pub(crate) fn prune(draft: &mut Draft) {
    let state = &draft.state;
    let first = (draft.now() / DAY_MS).saturating_sub(TOLD_FOR);
    let pruned = |tenant: &Tenant| {
        let mut new = tenant.clone();
        new.removed.retain(|_, removed| removed.unix_ms / DAY_MS >= first);
        new.before.retain(|_, before| before.day >= first);
        new.settled.retain(|settled| settled.day >= first);
        let removed = &new.removed;
        new.former.retain(|flow| removed.contains_key(flow) || has_history(state, flow));
        (new != *tenant).then_some(new)
    };
    let pruned: Vec<Tenant> = state.tenants.values().filter_map(pruned).collect();
    pruned.into_iter().for_each(|tenant| draft.push(Record::Tenant(tenant)));
}
