//! Tenants: groups of flows with a budget and an account of their own, and with tokens that see and
//! change nothing else. Flows of none of them are the overlay's own.
//!
//! A tenant pays for what its flows' bytes cost at relays, and of each relay's machine the share
//! that its bytes have of all that the relay carried. What nobody's bytes used of a machine is the
//! overlay's own.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_grant::Destination;
use tradewind_plan::{PacketPlan, Plan, PlannedFlow, Problem, verify};
use tradewind_units::{Bytes, FlowId, Money, Ratio, RelayId};

use crate::account;
pub use crate::account::{UnassignedCosts, costs, rest};
use crate::draft::{CONTROLLER, DAY_MS, Draft, OPERATOR};
use crate::event::{Answer, Event, Refusal};
use crate::prices;
use crate::record::{FlowRecord, Host, PlanRecord, Record, Role};
use crate::state::State;
pub use crate::tenant::{BudgetChange, Tenant, TenantId, TenantToken};

/// Most tenants, and most tokens of one. Chosen: a team's customers.
const MAX_TENANTS: usize = 256;
const MAX_TOKENS: usize = 16;
/// Most flows that a tenant declares by its own token. Chosen: the operator declares more.
const MAX_FLOWS: usize = 64;
/// Parts of a machine's price are rounded up, so that their sum may be above a budget by so much.
const ROUNDING: Money = Money::MICRO;

/// Returns whether a tenant's flows go direct now, as its budget is zero or spent.
#[must_use]
pub fn goes_direct(tenant: &Tenant, now_unix_ms: u64) -> bool {
    let is_zero = tenant.budget_usd_per_day == Some(Money::ZERO);
    is_zero || tenant.stopped_day == Some(now_unix_ms / DAY_MS)
}

/// Returns what a plan of now may cost for a tenant's flows; no bound if there is none.
fn available(tenant: &Tenant, now: u64) -> Option<Money> {
    tenant.budget_usd_per_day.map(|most| if goes_direct(tenant, now) { Money::ZERO } else { most })
}

/// Returns the tenant of a flow or packet flow.
#[must_use]
pub fn of_flow<'a>(state: &'a State, flow: &FlowId) -> Option<&'a Tenant> {
    state.tenants.values().find(|tenant| tenant.flows.contains(flow))
}

/// Returns why a tenant's flows go direct now, if they do as its budget is zero or spent.
#[must_use]
pub fn why_direct(tenant: &Tenant, now_unix_ms: u64) -> Option<String> {
    goes_direct(tenant, now_unix_ms).then(|| match tenant.budget_usd_per_day {
        Some(Money::ZERO) => format!("the budget of tenant {} is zero", tenant.id),
        _ => format!("today's budget of tenant {} is spent", tenant.id),
    })
}

/// Returns why a flow goes direct now, if it does as its tenant's budget is zero or spent.
#[must_use]
pub fn why_stopped(state: &State, now_unix_ms: u64, flow: &FlowId) -> Option<String> {
    why_direct(of_flow(state, flow)?, now_unix_ms)
}

/// Returns whether a flow goes direct now, as its tenant's budget is zero or spent.
pub(crate) fn is_stopped(state: &State, now: u64, flow: &FlowId) -> bool {
    of_flow(state, flow).is_some_and(|tenant| goes_direct(tenant, now))
}

/// Returns what plans of now may cost for each tenant that has a bound.
pub(crate) fn budgets(state: &State, now: u64) -> BTreeMap<TenantId, Money> {
    let tenants = state.tenants.values();
    tenants.filter_map(|tenant| Some((tenant.id.clone(), available(tenant, now)?))).collect()
}

/// Returns what a whole day of a plan costs for a tenant's flows.
#[must_use]
pub fn planned(state: &State, plan: &PlanRecord, tenant: &Tenant) -> Money {
    let volume = |flow: &PlannedFlow| {
        let known = plan.flows.iter().find(|known| known.id == flow.id);
        known.map_or(Bytes::ZERO, |known| plan.per_day(known))
    };
    let machine = |relay: &RelayId| {
        let relay = plan.plan.relays.iter().find(|known| known.id == *relay);
        let terms = &state.settings.terms;
        let of_type = relay.map(|relay| prices::offered_type(terms, &relay.relay_type));
        of_type.and_then(Result::ok).map_or(Money::ZERO, |it| it.set_up)
    };
    let streams: Money = shares(&plan.plan, volume, machine)
        .filter(|(flow, _)| tenant.flows.contains(&flow.id))
        .map(|(_, cost)| cost)
        .sum();
    let packets = plan.packets.plan.flows.iter().filter(|flow| tenant.flows.contains(&flow.id));
    streams + packets.map(|flow| flow.cost).sum()
}

/// Returns each flow of a plan over relays with its cost: its egress, and its share by volume of
/// the machines of its relays.
fn shares(
    plan: &Plan,
    volume: impl Fn(&PlannedFlow) -> Bytes,
    machine: impl Fn(&RelayId) -> Money,
) -> impl Iterator<Item = (&PlannedFlow, Money)> {
    let mut carried: BTreeMap<&RelayId, u64> = BTreeMap::new();
    let flows = || plan.flows.iter().filter(|flow| !flow.path.is_empty());
    for (flow, relay) in flows().flat_map(|flow| flow.path.iter().map(move |relay| (flow, relay))) {
        let of_relay = carried.entry(relay).or_default();
        *of_relay = of_relay.saturating_add(volume(flow).as_u64());
    }
    let cost = |flow: &PlannedFlow| {
        let share = |relay: &RelayId| {
            let all = carried.get(relay).copied().unwrap_or_default().max(1);
            let nanos = u128::from(machine(relay).as_nano_usd());
            // Rounded up, so that no tenant pays less than its part.
            let part = (nanos * u128::from(volume(flow).as_u64())).div_ceil(u128::from(all));
            Money::from_usd(part as f64 / 1e9).unwrap_or_default()
        };
        flow.path.iter().map(share).sum::<Money>() + flow.egress + flow.move_cost
    };
    flows().map(|flow| (flow, cost(flow))).collect::<Vec<_>>().into_iter()
}

/// Returns the plan with as many flows of each tenant direct as its budget does not pay, those that
/// save least by the dollar first, and without relays that then carry nothing. `reserved` is for
/// packet flows.
pub(crate) fn within(
    state: &State,
    now: u64,
    problem: &Problem,
    plan: &Plan,
    reserved: &PacketPlan,
) -> Result<Plan, Refusal> {
    let budgets = budgets(state, now);
    let mut plan = plan.clone();
    let mut has_changed = false;
    while let Some(flow) = unpaid(state, &budgets, problem, &plan, reserved) {
        go_direct(problem, &mut plan, &flow);
        has_changed = true;
    }
    let wrong = if has_changed { verify(problem, &plan) } else { Vec::new() };
    match wrong.first() {
        Some(wrong) => {
            Err(Refusal::Conflict(format!("the plan does not fit what is known now: {wrong}")))
        }
        None => Ok(plan),
    }
}

/// Returns a flow of a tenant whose budget does not pay all that the plan gives it.
fn unpaid(
    state: &State,
    budgets: &BTreeMap<TenantId, Money>,
    problem: &Problem,
    plan: &Plan,
    reserved: &PacketPlan,
) -> Option<FlowId> {
    let volumes: BTreeMap<&FlowId, Bytes> =
        problem.flows().iter().map(|flow| (&flow.id, flow.volume)).collect();
    let volume = |flow: &PlannedFlow| volumes.get(&flow.id).copied().unwrap_or(Bytes::ZERO);
    let machine = |relay: &RelayId| {
        let relay = plan.relays.iter().find(|known| known.id == *relay);
        let offers = problem.offers().iter();
        let such = |relay: &tradewind_plan::PlannedRelay| {
            offers.clone().find(|offer| {
                offer.region == relay.region && offer.relay_type.id == relay.relay_type
            })
        };
        relay.and_then(such).map_or(Money::ZERO, |offer| offer.relay_type.set_up)
    };
    let shares: Vec<_> = shares(plan, volume, machine).collect();
    budgets.iter().find_map(|(id, most)| {
        let tenant = state.tenants.get(id)?;
        let own = || shares.iter().filter(|(flow, _)| tenant.flows.contains(&flow.id));
        let packets = reserved.flows.iter().filter(|flow| tenant.flows.contains(&flow.id));
        let sum = own().map(|(_, cost)| *cost).sum::<Money>() + packets.map(|it| it.cost).sum();
        let worth = |(flow, cost): &(&PlannedFlow, Money)| {
            let direct = flow.fct_direct.unwrap_or(flow.fct);
            direct.saturating_sub(flow.fct).as_secs_f64() / cost.as_usd().max(1e-9)
        };
        // First those that the whole budget would not pay.
        let rank = |share: &(&PlannedFlow, Money)| (share.1 <= *most, worth(share));
        let least = own().min_by(|one, other| {
            let (one, other) = (rank(one), rank(other));
            one.0.cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        least.filter(|_| sum > *most).map(|(flow, _)| flow.id.clone())
    })
}

/// Sends a flow of a plan direct.
fn go_direct(problem: &Problem, plan: &mut Plan, id: &FlowId) {
    for flow in plan.flows.iter_mut().filter(|flow| flow.id == *id) {
        flow.path.clear();
        flow.fct = flow.fct_direct.unwrap_or(flow.fct);
        (flow.egress, flow.move_cost) = (Money::ZERO, Money::ZERO);
    }
    let used: BTreeSet<RelayId> = plan.flows.iter().flat_map(|flow| flow.path.clone()).collect();
    plan.relays.retain(|relay| used.contains(&relay.id));
    let of_offers = problem.offers().iter().map(|offer| {
        let is_such = |relay: &&tradewind_plan::PlannedRelay| {
            relay.region == offer.region && relay.relay_type == offer.relay_type.id
        };
        offer.set_up(plan.relays.iter().filter(is_such).count())
    });
    let carrying: Money = plan.flows.iter().map(|flow| flow.egress + flow.move_cost).sum();
    plan.cost = carrying + of_offers.sum();
    plan.total_fct = plan.flows.iter().map(|flow| flow.fct).sum();
}

/// Returns the packet flows that cost something and that their tenants' budgets do not pay.
pub(crate) fn beyond(state: &State, now: u64, plan: &PacketPlan) -> Vec<FlowId> {
    let mut gone = Vec::new();
    for (id, most) in budgets(state, now) {
        let Some(tenant) = state.tenants.get(&id) else { continue };
        let mut sum = Money::ZERO;
        for flow in plan.flows.iter().filter(|flow| tenant.flows.contains(&flow.id)) {
            let with = sum.saturating_add(flow.cost);
            if with > most && flow.cost > Money::ZERO {
                gone.push(flow.id.clone());
            } else {
                sum = with;
            }
        }
    }
    gone
}

/// Returns why a new plan should take the place of the one in effect for a tenant: that one costs
/// more than its budget, or was made for a smaller one.
pub(crate) fn reason_to_apply(
    state: &State,
    now: u64,
    (old, new): (&PlanRecord, &PlanRecord),
) -> Option<String> {
    let budgets = budgets(state, now);
    let ids: BTreeSet<&TenantId> = budgets.keys().chain(old.tenants.keys()).collect();
    ids.into_iter().find_map(|id| {
        let (tenant, most) = (state.tenants.get(id)?, budgets.get(id));
        let (before, after) = (planned(state, old, tenant), planned(state, new, tenant));
        let above = most.filter(|most| before > most.saturating_add(ROUNDING) && after < before);
        if let Some(most) = above {
            let number = old.number;
            return Some(format!(
                "plan {number} costs {before} a day for tenant {id}, above {most}"
            ));
        }
        let less = old.tenants.get(id).filter(|could| most.is_none_or(|most| *could < most));
        let could = less.filter(|_| after > before)?;
        Some(format!("tenant {id} may spend {} a day, and could {could}", in_words(most)))
    })
}

/// Returns the most that a tenant may spend, in words.
fn in_words(most: Option<&Money>) -> String {
    most.map_or("any sum".to_owned(), ToString::to_string)
}

/// Says that other sums may be spent for tenants than when a plan was made.
pub(crate) fn budgeted(state: &State, now: u64, plan: &PlanRecord) -> Option<String> {
    let budgets = budgets(state, now);
    let ids: BTreeSet<&TenantId> = budgets.keys().chain(plan.tenants.keys()).collect();
    let changed = ids.into_iter().find(|id| budgets.get(*id) != plan.tenants.get(*id))?;
    let (before, after) = (in_words(plan.tenants.get(changed)), in_words(budgets.get(changed)));
    Some(format!("a plan may cost {after} a day for tenant {changed}, and could {before}"))
}

/// Says once a day that the alarm's share of a tenant's budget is spent, and that all of it is.
pub(crate) fn watch(draft: &mut Draft) {
    if draft.state.tenants.is_empty() {
        return;
    }
    account::prune(draft);
    let day = draft.now() / DAY_MS;
    let costs = costs(&draft.state, draft.time, 1);
    let tenants: Vec<Tenant> = draft.state.tenants.values().cloned().collect();
    for tenant in tenants {
        let Some(budget) = tenant.budget_usd_per_day.filter(|most| *most > Money::ZERO) else {
            continue;
        };
        let spent = costs.get(&tenant.id).and_then(|days| days.get(&day).copied());
        let spent = spent.unwrap_or_default();
        let is_beyond = |share: f64| spent.as_usd() >= budget.as_usd() * share;
        let alarms = tenant.alarm_share.is_some_and(|share| is_beyond(share.as_f64()));
        let alarms = alarms && spent > Money::ZERO && tenant.alarmed_day != Some(day);
        let stops = spent >= budget && tenant.stopped_day != Some(day);
        if !alarms && !stops {
            continue;
        }
        let so_far = format!("{spent} of tenant {}'s budget {budget} of today spent", tenant.id);
        if alarms {
            draft.audit(CONTROLLER, format!("alarm: {so_far}"));
        }
        if stops {
            let until = "its flows go direct until the next day (UTC)";
            draft.audit(CONTROLLER, format!("{until}: {so_far}"));
        }
        draft.push(Record::Tenant(Tenant {
            alarmed_day: if alarms { Some(day) } else { tenant.alarmed_day },
            stopped_day: if stops { Some(day) } else { tenant.stopped_day },
            ..tenant
        }));
    }
}

/// Adds a tenant, or changes its budget and alarm; an alarm that is absent stays.
pub(crate) fn set(
    draft: &mut Draft,
    id: &TenantId,
    budget: BudgetChange,
    alarm: Option<Ratio>,
) -> Result<Answer, Refusal> {
    let known = draft.state.tenants.get(id).cloned();
    if known.is_none() && draft.state.tenants.len() >= MAX_TENANTS {
        return Err(Refusal::Invalid(format!("there are {MAX_TENANTS} tenants already")));
    }
    let tenant = known.unwrap_or_else(|| Tenant::new(id.clone()));
    let budget = match budget {
        BudgetChange::Keep => tenant.budget_usd_per_day,
        BudgetChange::Remove => None,
        BudgetChange::Set(most) => Some(most),
    };
    // What was said of the budget before says nothing of this one.
    draft.push(Record::Tenant(Tenant {
        budget_usd_per_day: budget,
        alarm_share: alarm.or(tenant.alarm_share),
        alarmed_day: None,
        stopped_day: None,
        ..tenant
    }));
    let budget = budget.map_or("no budget of its own".to_owned(), |most| format!("{most} a day"));
    draft.audit(OPERATOR, format!("tenant {id}: {budget}"));
    watch(draft);
    Ok(Answer::Done)
}

/// Removes a tenant, whose flows are the overlay's own from then on.
pub(crate) fn remove(draft: &mut Draft, id: &TenantId) -> Result<Answer, Refusal> {
    known(draft, id)?;
    draft.push(Record::TenantRemoved { tenant: id.clone() });
    draft.audit(OPERATOR, format!("removed tenant {id}"));
    Ok(Answer::Done)
}

/// Adds a token to a tenant; without one, removes all that it has.
pub(crate) fn set_tokens(
    draft: &mut Draft,
    id: &TenantId,
    added: Option<&TenantToken>,
) -> Result<Answer, Refusal> {
    let mut tenant = known(draft, id)?;
    match added {
        None => tenant.tokens.clear(),
        Some(_) if tenant.tokens.len() >= MAX_TOKENS => {
            let problem = format!("tenant {id} has {MAX_TOKENS} tokens: remove them first");
            return Err(Refusal::Conflict(problem));
        }
        Some(token) => tenant.tokens.push(token.clone()),
    }
    let action = if added.is_some() { "made a token" } else { "removed all tokens" };
    draft.push(Record::Tenant(tenant));
    draft.audit(OPERATOR, format!("{action} of tenant {id}"));
    Ok(Answer::Done)
}

/// Makes the flow that an event declares or removes one of a tenant, before the event takes effect.
/// An event of the tenant's own (`is_own`) reaches none but its own flows.
pub(crate) fn claim(
    draft: &mut Draft,
    id: &TenantId,
    is_own: bool,
    event: &Event,
) -> Result<(), Refusal> {
    let flow = match event {
        Event::AddFlow(flow) => &flow.id,
        Event::AddPacketFlow(flow) => &flow.id,
        Event::Adopt { flow, .. } if !is_own => flow,
        Event::RemoveFlow(flow) => flow,
        _ => return Err(Refusal::Forbidden("tenants declare and remove flows alone".to_owned())),
    };
    let mut tenant = known(draft, id)?;
    if is_own && !tenant.flows.contains(flow) {
        if matches!(event, Event::RemoveFlow(_)) {
            return Err(Refusal::NotFound(format!("no flow `{flow}`")));
        }
        if tenant.flows.len() >= MAX_FLOWS {
            let problem = format!("tenant {id} has {MAX_FLOWS} flows: remove one first");
            return Err(Refusal::Conflict(problem));
        }
        check_new(draft, id, flow)?;
    }
    if let (true, Event::AddFlow(flow)) = (is_own, event) {
        check_own(draft, &tenant, flow)?;
    }
    if is_own {
        draft.audit(&format!("tenant {id}"), format!("declares or removes flow {flow}"));
    }
    let others: Vec<Tenant> = draft.state.tenants.values().cloned().collect();
    for mut other in others.into_iter().filter(|other| other.id != *id) {
        if other.former.contains(flow)
            || other.flows.contains(flow) && account::has_history(&draft.state, flow)
        {
            let problem = format!("what flow `{flow}` carried is tenant {}'s", other.id);
            return Err(Refusal::Conflict(format!("{problem}; take another name")));
        }
        if other.flows.remove(flow) {
            other.before.remove(flow);
            draft.push(Record::Tenant(other));
        }
    }
    if !matches!(event, Event::RemoveFlow(_)) && tenant.flows.insert(flow.clone()) {
        account::open(&draft.state, draft.now(), &mut tenant, flow);
        draft.push(Record::Tenant(tenant));
    }
    Ok(())
}

/// Refuses what a tenant may not declare by its own token: a flow that outweighs those of others,
/// whose volume its budget cannot pay over any relay, or to a destination or place that it cannot
/// have, without saying why.
fn check_own(draft: &Draft, tenant: &Tenant, flow: &FlowRecord) -> Result<(), Refusal> {
    if flow.weight != 1 {
        return Err(Refusal::Invalid("weight: expected 1, as for each flow of tenants".to_owned()));
    }
    let state = &draft.state;
    if taken_destination(state, Some(&tenant.id), flow).is_some() {
        let problem = "this destination, or its place, cannot be used; take another";
        return Err(Refusal::Invalid(format!("to: {problem}")));
    }
    let cost = |host: &Host| match &host.role {
        Role::Relay { region, .. } => {
            let terms = &state.settings.terms;
            Some(prices::cost(terms, Some(region), None, flow.per_day.as_u64()))
        }
        Role::Gateway { .. } | Role::Probe { .. } => None,
    };
    let least = state.relay_hosts(draft.now()).filter_map(cost).min();
    match tenant.budget_usd_per_day.filter(|most| least.is_some_and(|least| least > *most)) {
        Some(most) => {
            let problem = format!("its traffic costs more than the budget {most} over any relay");
            Err(Refusal::Invalid(format!("per_day: {problem}")))
        }
        None => Ok(()),
    }
}

/// Refuses a name beyond those that are a tenant's to give, so that no refusal tells which others
/// exist, and one that was ever another's, whose history it would see as its own. One that it had
/// may come again.
fn check_new(draft: &Draft, tenant: &TenantId, flow: &FlowId) -> Result<(), Refusal> {
    let state = &draft.state;
    if !flow.as_str().starts_with(&format!("{tenant}.")) {
        let problem = format!("names of flows of tenant {tenant} begin with `{tenant}.`");
        return Err(Refusal::Invalid(format!("flow `{flow}`: {problem}")));
    }
    let had = |tenant: &Tenant| tenant.former.contains(flow);
    let was_used = || account::has_history(state, flow) || state.tenants.values().any(had);
    let is_used = state.flows.contains_key(flow)
        || state.packet_flows.contains_key(flow)
        || !state.tenants.get(tenant).is_some_and(had) && was_used()
        // The names of learned destinations hold one.
        || flow.as_str().contains(':');
    if is_used {
        return Err(Refusal::Conflict(format!("the name `{flow}` cannot be used; take another")));
    }
    Ok(())
}

/// Refuses a flow to where a flow of another tenant goes from the same site: gateways know paths by
/// destination, so one would go where the other's budget leads. So is one that names another
/// address for a place that another tenant's flow goes to: that would be measured in its stead.
pub(crate) fn check_destination(state: &State, flow: &FlowRecord) -> Result<(), Refusal> {
    let own = of_flow(state, &flow.id).map(|tenant| &tenant.id);
    match taken_destination(state, own, flow) {
        Some(problem) => Err(Refusal::Invalid(format!("flow `{}`: {problem}", flow.id))),
        None => Ok(()),
    }
}

/// Returns why a flow cannot go to its destination, if one of another tenant than `own` stands in
/// its way.
fn taken_destination(
    state: &State,
    own: Option<&TenantId>,
    flow: &FlowRecord,
) -> Option<&'static str> {
    if state.tenants.is_empty() {
        return None;
    }
    let tenant = |id: &FlowId| of_flow(state, id).map(|tenant| &tenant.id);
    let is_ours = state.index.hosts_of(&flow.to_site).next().is_some();
    let others = state.flows.values().filter(|other| other.id != flow.id);
    others.filter(|other| tenant(&other.id) != own).find_map(|other| {
        let is_elsewhere = || host_of(&other.to) != host_of(&flow.to);
        if other.from == flow.from && other.to == flow.to {
            Some("a flow of another tenant goes from this site to this destination")
        } else if !is_ours && other.to_site == flow.to_site && is_elsewhere() {
            Some("a flow of another tenant goes to another address of this place")
        } else {
            None
        }
    })
}

fn host_of(to: &Destination) -> String {
    match to {
        Destination::Address(address) => address.ip().to_string(),
        Destination::Name { name, .. } => name.to_string(),
    }
}

fn known(draft: &Draft, id: &TenantId) -> Result<Tenant, Refusal> {
    let none = || Refusal::NotFound(format!("no tenant `{id}`"));
    draft.state.tenants.get(id).cloned().ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::Config;

    use super::*;
    use crate::gain;
    use crate::message::{Arm, SessionBatch, SessionTally};
    use crate::packet_flow::{DayPackets, PacketCounts};
    use crate::record::{AuditEntry, DaySessions, Spent};
    use crate::testing::{Bench, PATH, flow, tally};

    fn id(name: &str) -> TenantId {
        name.parse().unwrap()
    }

    fn usd(usd: f64) -> Money {
        Money::from_usd(usd).unwrap()
    }

    fn set(bench: &mut Bench, name: &str, budget: f64) {
        let (budget, alarm) = (BudgetChange::Set(usd(budget)), Ratio::new(0.5).ok());
        bench.event(Event::SetTenant { tenant: id(name), budget, alarm });
    }

    fn claim(bench: &mut Bench, name: &str, number: (&str, u8)) {
        let event = Box::new(Event::AddFlow(flow(number.0, number.1)));
        bench.event(Event::OfTenant { tenant: id(name), is_own: false, event });
    }

    fn is_over_relays(bench: &Bench, name: &str) -> bool {
        let paths = bench.controller.paths_in_effect(bench.time());
        let own = paths.iter().find(|(flow, _)| flow.as_str() == name);
        own.is_some_and(|(_, path)| !path.is_empty())
    }

    /// Flow `a` of tenant `poor`, and flow `b` of none, both over relays.
    fn two_flows() -> Bench {
        let mut bench = Bench::in_service();
        set(&mut bench, "poor", 50.0);
        claim(&mut bench, "poor", ("a", 7));
        bench.event(Event::AddFlow(flow("b", 8)));
        bench.pass(30);
        bench.plan();
        bench.pass(10);
        assert!(is_over_relays(&bench, "a") && is_over_relays(&bench, "b"));
        bench
    }

    #[test]
    fn budget_of_a_tenant_bounds_its_part_of_the_plan_alone() {
        let mut bench = two_flows();
        let plan = bench.state().plan_in_effect().unwrap();
        let poor = &bench.state().tenants[&id("poor")];
        let part = planned(bench.state(), plan, poor);
        assert!(part > Money::ZERO && part < plan.usd_per_day, "{part} of {}", plan.usd_per_day);
        let other = Tenant { flows: ["b".parse().unwrap()].into(), ..poor.clone() };
        let rounding = usd(0.000_001);
        let sum = part + planned(bench.state(), plan, &other);
        assert!(sum >= plan.usd_per_day && sum <= plan.usd_per_day + rounding, "nothing is lost");
        set(&mut bench, "poor", part.as_usd() * 0.9);
        let stale = bench.controller.staleness(bench.time());
        assert!(stale.iter().any(|why| why.contains("for tenant poor")), "{stale:?}");
        bench.plan();
        let plan = bench.state().newest_plan().unwrap();
        let path = |name: &str| {
            plan.plan.flows.iter().find(|it| it.id.as_str() == name).unwrap().path.len()
        };
        assert_eq!(path("a"), 0);
        assert!(path("b") > 0);
        assert_eq!(planned(bench.state(), plan, &bench.state().tenants[&id("poor")]), Money::ZERO);
        assert!(plan.usd_per_day <= usd(20.0));
        assert_eq!(bench.controller.staleness(bench.time()), Vec::<String>::new());
        bench.pass(30);
        assert!(!is_over_relays(&bench, "a") && is_over_relays(&bench, "b"));
        // It may spend more again.
        set(&mut bench, "poor", 50.0);
        bench.plan();
        bench.pass(30);
        assert!(is_over_relays(&bench, "a"));
        // A zero budget stops its flows at once; without one of its own, they come back.
        set(&mut bench, "poor", 0.0);
        bench.plan();
        bench.pass(30);
        let why = |bench: &Bench| why_stopped(bench.state(), bench.now, &"a".parse().unwrap());
        assert_eq!(why(&bench).unwrap(), "the budget of tenant poor is zero");
        assert!(!is_over_relays(&bench, "a") && is_over_relays(&bench, "b"));
        let budget = BudgetChange::Remove;
        bench.event(Event::SetTenant { tenant: id("poor"), budget, alarm: None });
        assert_eq!(
            (why(&bench), bench.state().tenants[&id("poor")].budget_usd_per_day),
            (None, None)
        );
        bench.plan();
        bench.pass(30);
        assert!(is_over_relays(&bench, "a"));
        // What is not told stays.
        let budget = BudgetChange::Keep;
        bench.event(Event::SetTenant { tenant: id("poor"), budget, alarm: None });
        assert_eq!(bench.state().tenants[&id("poor")].budget_usd_per_day, None);
        // Budgets that change while a plan is made leave it without effect.
        let joint = bench.joint();
        set(&mut bench, "poor", 0.001);
        let refusal = bench.refusal(Event::Planned(Box::new(joint)));
        assert!(refusal.to_string().contains("budgets of tenants were changed"), "{refusal}");
    }

    #[test]
    fn spent_budget_of_a_tenant_sends_its_flows_direct_until_the_next_day_and_no_others() {
        let mut bench = two_flows();
        set(&mut bench, "poor", 8.0);
        bench.plan();
        bench.pass(10);
        assert!(is_over_relays(&bench, "a"), "a day costs less");
        let tally = SessionTally {
            size_class: 40,
            bytes_up: 70_000_000_000,
            ..tally(Arm::Overlay, &PATH, &[1.0])
        };
        bench.sessions(1, 1, vec![tally]);
        bench.pass(61);
        assert!(!is_over_relays(&bench, "a"));
        assert!(is_over_relays(&bench, "b"));
        let said = |bench: &Bench, text: &str| {
            let says = |entry: &&AuditEntry| entry.action.contains(text);
            bench.state().audit.values().filter(says).count()
        };
        assert_eq!(said(&bench, "alarm: $"), 1);
        assert_eq!(said(&bench, "its flows go direct until the next day"), 1);
        let document = bench.config("office-1").unwrap();
        let routes: toml::Table = toml::from_str(&document).unwrap();
        let rules = routes["routes"]["route"].as_array().unwrap();
        let via = |to: &str| {
            let is_its = |rule: &&toml::Value| {
                rule["destination"].as_str().is_some_and(|it| it.starts_with(to))
            };
            rules.iter().find(is_its).unwrap()["via"].to_string()
        };
        assert_eq!(via("198.51.100.7"), "\"direct\"");
        assert_ne!(via("198.51.100.8"), "\"direct\"");
        let day = bench.now / DAY_MS;
        let costs = costs(bench.state(), bench.time(), 1);
        let of_flow = gain::flows(bench.state(), bench.time(), 1, None);
        let of_flow = of_flow.iter().find(|gain| gain.flow.as_str() == "a").unwrap().cost;
        assert_eq!(costs[&id("poor")][&day], of_flow);
        assert!(of_flow > usd(8.0));
        // It is kept, and no new plan goes around it.
        assert!(goes_direct(&bench.restarted().state().tenants[&id("poor")], bench.now));
        bench.plan();
        bench.pass(70);
        assert!(!is_over_relays(&bench, "a") && is_over_relays(&bench, "b"));
        bench.now = (day + 1) * DAY_MS - 2000;
        bench.pass(5);
        bench.plan();
        bench.pass(70);
        assert!(is_over_relays(&bench, "a"));
    }

    #[test]
    fn tenants_own_requests_reach_no_flow_of_others() {
        let mut bench = two_flows();
        set(&mut bench, "hostile", 50.0);
        let own =
            |event| Event::OfTenant { tenant: id("hostile"), is_own: true, event: Box::new(event) };
        let named = |name: &str, number| Event::AddFlow(flow(name, number));
        bench.refusal(own(named("office:198.51.100.9:443", 9)));
        bench.refusal(own(Event::RemoveTenant(id("poor"))));
        // Another's flow, one of no tenant, and one that does not exist are refused alike.
        let alike = |bench: &mut Bench, make: &dyn Fn(&str) -> Event| {
            let refusals = ["a", "b", "none"].map(|name| {
                let refusal = bench.refusal(own(make(name)));
                (
                    std::mem::discriminant(&refusal),
                    refusal.to_string().replace(&format!("`{name}`"), "NAME"),
                )
            });
            assert_eq!(refusals[0], refusals[2]);
            assert_eq!(refusals[1], refusals[2]);
        };
        alike(&mut bench, &|name| Event::RemoveFlow(name.parse().unwrap()));
        alike(&mut bench, &|name| named(name, 9));
        alike(&mut bench, &|name| named(name, 7));
        // Another's destination, another address for its place; the same of no tenant's.
        let (a, b) = (flow("a", 7), flow("b", 8));
        let other = |number| flow("hostile.d", number);
        let taken = [
            other(7),
            FlowRecord { to_site: a.to_site, ..other(10) },
            other(8),
            FlowRecord { to_site: b.to_site, ..other(10) },
        ];
        let refusals = taken.map(|flow| bench.refusal(own(Event::AddFlow(flow))).to_string());
        assert!(refusals.iter().all(|refusal| *refusal == refusals[0]), "{refusals:?}");
        assert!(!refusals[0].contains("tenant"), "{refusals:?}");
        bench.event(own(named("hostile.c", 9)));
        // One that outweighs all others, or that its budget cannot pay.
        bench.refusal(own(Event::AddFlow(FlowRecord { weight: 2, ..other(10) })));
        let per_day = Bytes::new(1_000_000_000_000_000);
        bench.refusal(own(Event::AddFlow(FlowRecord { per_day, ..other(10) })));
        let of_c = of_flow(bench.state(), &"hostile.c".parse().unwrap());
        assert_eq!(of_c.unwrap().id, id("hostile"));
        // A name that was another's has a history.
        bench.sessions(1, 1, vec![tally(Arm::Overlay, &PATH, &[1.0])]);
        let before = costs(bench.state(), bench.time(), 1);
        assert!(before[&id("poor")].values().any(|cost| *cost > Money::ZERO));
        bench.event(Event::RemoveFlow("a".parse().unwrap()));
        assert!(of_flow(bench.state(), &"a".parse().unwrap()).is_none());
        // What it has cost remains its tenant's.
        assert_eq!(costs(bench.state(), bench.time(), 1), before);
        bench.refusal(own(named("a", 10)));
        // Moved by the operator, it is the other's no more.
        claim(&mut bench, "poor", ("hostile.c", 9));
        bench.refusal(own(Event::RemoveFlow("hostile.c".parse().unwrap())));
        bench.refusal(own(named("hostile.c", 9)));
        bench.event(Event::RemoveTenant(id("poor")));
        assert!(bench.state().flows.contains_key(&"hostile.c".parse().unwrap()));
    }

    #[test]
    fn total_of_a_tenant_is_the_sum_of_its_flows() {
        const DAYS: u64 = 3;
        let bench = Bench::in_service();
        let (now, last) = (bench.time(), bench.now / DAY_MS);
        let named = |flow: usize| -> FlowId { ["a", "b", "c", "d"][flow].parse().unwrap() };
        // Sessions: flow, days ago, size class, bytes. Packets: flow, days ago, thousandths of a
        // dollar. Flows: whose, and whether they are removed.
        let sessions =
            prop::collection::vec((0..4_usize, 0..DAYS, 20..24_u8, 0..1_u64 << 36), 0..40);
        let packets = prop::collection::vec((0..4_usize, 0..DAYS, 0..1000_u32), 0..10);
        let flows = prop::collection::vec((0..3_usize, any::<bool>()), 4);
        let machines = prop::collection::vec(0..1000_u32, DAYS as usize);
        let all = (sessions, packets, flows, machines);
        proptest!(Config::with_cases(64), |((sessions, packets, flows, machines) in all)| {
            let mut state = bench.state().clone();
            let mills = |mills: u32| usd(f64::from(mills) / 1e3);
            for (day, cost) in (last + 1 - DAYS..).zip(machines) {
                let machines = PATH.map(|host| (host.parse().unwrap(), mills(cost))).into();
                state.apply(Record::Spent(Spent { day, machines, ..Spent::default() }));
            }
            for (flow, ago, size_class, bytes_up) in sessions {
                let tally = tally(Arm::Overlay, &PATH, &[1.0]);
                let tally = SessionTally { flow: named(flow), size_class, bytes_up, ..tally };
                state.apply(Record::Sessions(DaySessions { day: last - ago, tally }));
            }
            for (flow, ago, cost) in packets {
                let (flow, day, by_path) = (named(flow), last - ago, None);
                let counts = PacketCounts { usd: mills(cost), ..PacketCounts::default() };
                let (service, why) = (String::new(), String::new());
                let day = DayPackets { flow, day, service, why, counts, by_path };
                state.apply(Record::Packets(day));
            }
            for (number, name) in ["one", "two"].into_iter().enumerate() {
                let mut tenant = Tenant::new(id(name));
                for (flow, (whose, is_former)) in flows.iter().enumerate() {
                    let known = if *is_former { &mut tenant.former } else { &mut tenant.flows };
                    if *whose == number {
                        known.insert(named(flow));
                    }
                }
                state.apply(Record::Tenant(tenant));
            }
            let costs = costs(&state, now, DAYS);
            let gains = gain::flows(&state, now, DAYS, None);
            for tenant in state.tenants.values() {
                let is_own =
                    |flow: &FlowId| tenant.flows.contains(flow) || tenant.former.contains(flow);
                for day in last + 1 - DAYS..=last {
                    let own = gains.iter().filter(|gain| gain.day == day && is_own(&gain.flow));
                    let packets = state.packets.iter();
                    let own_packets = packets.filter(|((of, flow), _)| *of == day && is_own(flow));
                    let sum = own.map(|gain| gain.cost).sum::<Money>()
                        + own_packets.map(|(_, packets)| packets.counts.usd).sum();
                    prop_assert_eq!(costs[&tenant.id][&day], sum);
                }
            }
            // Tenants and the parts of the rest add up to what the meter has counted.
            for (day, rest) in rest(&state, now, DAYS, &costs) {
                let tenants: Money = costs.values().map(|days| days[&day]).sum();
                let all = state.spent.get(&day).map_or(Money::ZERO, Spent::total);
                let UnassignedCosts { flows, machines, tests, unknown, excess } = rest;
                prop_assert_eq!(tenants + flows + machines + tests + unknown, all + excess);
                prop_assert_eq!(tenants + rest.total(), all.max(tenants));
            }
        });
    }

    fn cost_of(bench: &Bench, name: &str, days_ago: u64) -> Money {
        let day = bench.now / DAY_MS - days_ago;
        costs(bench.state(), bench.time(), days_ago + 1)[&id(name)][&day]
    }

    /// Returns the parts of today, which tell what tenants' costs do not.
    fn rest_of(bench: &Bench) -> UnassignedCosts {
        let costs = costs(bench.state(), bench.time(), 1);
        rest(bench.state(), bench.time(), 1, &costs)[&(bench.now / DAY_MS)]
    }

    fn gigabytes(count: u64) -> SessionTally {
        let bytes_up = count * 1_000_000_000;
        SessionTally { size_class: 40, bytes_up, ..tally(Arm::Overlay, &PATH, &[1.0]) }
    }

    #[test]
    fn session_that_ends_after_its_flow_was_removed_is_its_tenants() {
        for is_told_before in [true, false] {
            let mut bench = two_flows();
            if is_told_before {
                bench.sessions(1, 1, vec![gigabytes(1)]);
            }
            let before = cost_of(&bench, "poor", 0);
            bench.event(Event::RemoveFlow("a".parse().unwrap()));
            assert!(cost_of(&bench, "poor", 0) >= before);
            bench.pass(70);
            bench.controller = bench.restarted();
            bench.sessions(1, 2, vec![gigabytes(10)]);
            let after = cost_of(&bench, "poor", 0);
            assert!(after.as_usd() - before.as_usd() > 1.0, "{before}, {after}");
            assert!(rest_of(&bench).unknown < usd(0.001), "{:?}", rest_of(&bench));
            // Its name is nobody else's meanwhile, and its hours tell nothing.
            assert!(bench.state().usage.get(&"a".parse().unwrap()).is_none());
            let refusal = bench.refusal(Event::AddFlow(flow("a", 7)));
            assert!(refusal.to_string().contains("is tenant poor's"), "{refusal}");
            claim(&mut bench, "poor", ("a", 7));
            assert_eq!(cost_of(&bench, "poor", 0), after, "once");
            bench.event(Event::RemoveFlow("a".parse().unwrap()));
            // Long after, it is forgotten.
            bench.now += 40 * DAY_MS;
            bench.event(Event::Tick);
            bench.event(Event::AddFlow(flow("b", 8)));
            bench.sessions(
                1,
                3,
                vec![SessionTally {
                    flow: "b".parse().unwrap(),
                    ..tally(Arm::Overlay, &PATH, &[1.0])
                }],
            );
            bench.pass(61);
            let poor = &bench.state().tenants[&id("poor")];
            assert!(poor.removed.is_empty(), "{poor:?}");
        }
    }

    #[test]
    fn session_around_midnight_costs_once() {
        let mut bench = two_flows();
        bench.now = (bench.now / DAY_MS + 1) * DAY_MS - 70_000;
        bench.pass(61);
        let before = cost_of(&bench, "poor", 0);
        let batch =
            |number, tally| SessionBatch { tallies: vec![tally], ..SessionBatch::empty(1, number) };
        let relayed = |bench: &mut Bench, number| {
            for host in [2, 3] {
                let identities = [101, 102, 103].map(crate::testing::identity);
                let [gateway, first, second] = identities;
                let tally = gigabytes(10);
                let relayed = vec![crate::message::RelayTally {
                    flow: tally.flow,
                    from: if host == 2 { gateway } else { first },
                    next: (host == 2).then_some(second),
                    sessions: 1,
                    failed: 0,
                    bytes_up: tally.bytes_up,
                    bytes_down: tally.bytes_down,
                }];
                let batch = SessionBatch { relayed, ..SessionBatch::empty(1, number) };
                bench.report_with(host, |report| report.sessions = Some(batch));
            }
        };
        // Relays tell it before midnight, and the gateway after it.
        relayed(&mut bench, 1);
        let once = cost_of(&bench, "poor", 0).as_usd() - before.as_usd();
        assert!(once > 1.0, "{once}");
        bench.now += 20_000;
        bench.event(Event::Tick);
        bench.report_with(1, |report| report.sessions = Some(batch(1, gigabytes(10))));
        let again = cost_of(&bench, "poor", 0);
        assert!(again < usd(0.01), "{again} once more");
        assert_eq!(rest_of(&bench).excess, Money::ZERO);
        // The other way round.
        bench.now += DAY_MS - 15_000;
        bench.event(Event::Tick);
        bench.now = (bench.now / DAY_MS + 1) * DAY_MS - 5_000;
        bench.report_with(1, |report| report.sessions = Some(batch(2, gigabytes(10))));
        assert!(cost_of(&bench, "poor", 0) < usd(1.1), "its share of machines at most");
        assert!(rest_of(&bench).excess < usd(0.000_001));
        bench.now += 10_000;
        relayed(&mut bench, 2);
        assert!((cost_of(&bench, "poor", 0).as_usd() - once).abs() < 0.001);
    }

    #[test]
    fn flow_that_is_given_to_a_tenant_costs_it_from_then_on() {
        let mut bench = two_flows();
        let of_b = |count| SessionTally { flow: "b".parse().unwrap(), ..gigabytes(count) };
        let parts = |bench: &Bench| rest_of(bench).flows;
        bench.sessions(1, 1, vec![of_b(3)]);
        bench.now += DAY_MS;
        bench.pass(61);
        bench.sessions(1, 2, vec![of_b(4)]);
        let own = parts(&bench);
        assert!(own > usd(0.4), "{own}");
        set(&mut bench, "late", 50.0);
        claim(&mut bench, "late", ("b", 8));
        assert_eq!([0, 1].map(|ago| cost_of(&bench, "late", ago)), [Money::ZERO; 2]);
        // Nor does what its bytes of before use of machines, as they go on.
        bench.pass(600);
        assert_eq!(cost_of(&bench, "late", 0), Money::ZERO);
        assert!(parts(&bench) >= own);
        bench.sessions(1, 3, vec![of_b(4)]);
        let cost = cost_of(&bench, "late", 0).as_usd();
        let all = cost + parts(&bench).as_usd();
        assert!((cost - all / 2.0).abs() < 0.001, "{cost} of {all}");
        // It is kept, and so after the flow is removed.
        bench.controller = bench.restarted();
        bench.event(Event::RemoveFlow("b".parse().unwrap()));
        assert!((cost_of(&bench, "late", 0).as_usd() - cost).abs() < 1e-6);
        assert_eq!(cost_of(&bench, "late", 1), Money::ZERO);
        // A tenant that was removed and comes again begins anew.
        claim(&mut bench, "late", ("b", 8));
        bench.event(Event::RemoveTenant(id("late")));
        set(&mut bench, "late", 50.0);
        claim(&mut bench, "late", ("b", 8));
        assert_eq!([0, 1].map(|ago| cost_of(&bench, "late", ago)), [Money::ZERO; 2]);
    }

    #[test]
    fn parts_of_a_day_add_up_to_what_was_metered() {
        let mut bench = two_flows();
        let of_b = SessionTally { flow: "b".parse().unwrap(), ..gigabytes(2) };
        bench.sessions(1, 1, vec![gigabytes(3), of_b.clone()]);
        bench.pass(120);
        let check = |bench: &Bench| {
            let UnassignedCosts { flows, machines, tests, unknown, excess } = rest_of(bench);
            let spent = &bench.state().spent[&(bench.now / DAY_MS)];
            let sum = cost_of(bench, "poor", 0) + flows + machines + tests + unknown;
            assert_eq!(sum, spent.total() + excess);
            (tests, unknown, excess)
        };
        let (tests, unknown, excess) = check(&bench);
        assert_eq!(tests, bench.state().spent[&(bench.now / DAY_MS)].tests);
        assert!(tests > Money::ZERO);
        assert!(unknown.max(excess) < usd(0.000_001), "{unknown}, {excess}");
        // A flow of no tenant that is no more: relays count it, and nobody knows whose it was.
        bench.event(Event::RemoveFlow("b".parse().unwrap()));
        bench.sessions(1, 2, vec![gigabytes(1)]);
        let relayed = vec![crate::message::RelayTally {
            flow: of_b.flow,
            from: crate::testing::identity(101),
            next: None,
            sessions: 1,
            failed: 0,
            bytes_up: 1_000_000_000,
            bytes_down: 0,
        }];
        let batch = SessionBatch { relayed, ..SessionBatch::empty(1, 9) };
        bench.report_with(2, |report| report.sessions = Some(batch));
        let (_, unknown, _) = check(&bench);
        assert!(unknown > usd(0.05), "{unknown}");
    }
}
