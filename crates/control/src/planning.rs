//! The planning problem of the state, and plans as records: on which hosts, at what cost, and what
//! they rest on.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::StartUp;
use tradewind_model::measurement::{LegMeasurement, Method};
use tradewind_plan::{Flow, Inputs, LegEnd, Legs, Objective, Plan, Problem, RelayType, Running};
use tradewind_units::{
    Duration, FlowId, HostId, Money, RegionId, RelayId, RelayTypeId, SiteId, Timestamp, time,
};

use crate::demand::Demand;
use crate::draft::{Draft, unix_ms};
use crate::event::{Answer, Refusal};
use crate::forecast;
use crate::joint::JointPlan;
use crate::knowledge::{self, MAX_RELAYS};
use crate::legs;
use crate::money;
use crate::packet_flow::PlannedPackets;
use crate::packets::{self, PacketRelays};
use crate::prices;
use crate::record::{FlowRecord, Host, PlanRecord, Record, Seen};
use crate::rollout;
use crate::state::State;
use crate::take_back;
use crate::tenants;

/// The share of the total completion time by which a plan must beat the one in effect before the
/// controller applies it by itself. Chosen: above the noise of measured rates, and moving flows has
/// a cost of its own.
pub(crate) const HYSTERESIS: f64 = 0.05;

/// Returns the planning problem of the streams of the state now, without paths that were taken
/// back, and without the part of the budget that is reserved for packet flows.
pub(crate) fn problem(state: &State, time: Timestamp) -> Result<Problem, Refusal> {
    supposed(state, time, |_| true, |_| Ok(()))
}

/// Returns the same of some relay hosts alone, and with inputs that `change` makes others.
pub(crate) fn supposed(
    state: &State,
    time: Timestamp,
    is_used: impl Fn(&Host) -> bool,
    change: impl FnOnce(&mut Inputs) -> Result<(), Refusal>,
) -> Result<Problem, Refusal> {
    let now = unix_ms(time);
    let mut inputs = inputs_now(state, time, &is_used);
    change(&mut inputs)?;
    if state.packet_flows.is_empty() {
        check_flows(state.flows.len(), &inputs)?;
    }
    let able = PacketRelays::alone(state, state.relay_hosts(now).filter(|host| is_used(host)));
    let reserved = reserved_of(state, now, &inputs, &able);
    inputs.budget = inputs.budget.checked_sub(reserved).unwrap_or_default();
    without_taken_back(state, now, inputs)
}

/// Returns the problem without paths that were taken back.
fn without_taken_back(state: &State, now: u64, mut inputs: Inputs) -> Result<Problem, Refusal> {
    take_back::exclude(state, now, &mut inputs.flows, &mut inputs.legs);
    let is_of_packets = inputs.flows.is_empty();
    let made = if is_of_packets { Problem::without_streams(inputs) } else { Problem::new(inputs) };
    made.map_err(|error| Refusal::Conflict(error.to_string()))
}

/// Returns the part of a day's budget that is reserved for packet flows now.
pub(crate) fn reserved(state: &State, time: Timestamp) -> Money {
    let now = unix_ms(time);
    let able = PacketRelays::alone(state, state.relay_hosts(now));
    reserved_of(state, now, &inputs_now(state, time, |_| true), &able)
}

fn reserved_of(state: &State, now: u64, inputs: &Inputs, able: &PacketRelays<'_>) -> Money {
    if state.packet_flows.is_empty() {
        return Money::ZERO;
    }
    packets::plan(state, now, inputs, able).plan.cost
}

/// Returns the inputs of the planner now, with those of the relay hosts that are to be used.
pub(crate) fn inputs_now(
    state: &State,
    time: Timestamp,
    is_used: impl Fn(&Host) -> bool,
) -> Inputs {
    let flows: Vec<&FlowRecord> = state.flows.values().collect();
    let hosts = state.relay_hosts(unix_ms(time)).filter(|host| is_used(host));
    inputs(state, time, hosts, &flows)
}

/// Refuses a problem without flows of streams.
fn check_flows(declared: usize, inputs: &Inputs) -> Result<(), Refusal> {
    let problem = match (declared, inputs.flows.len()) {
        (0, _) => "no flow is declared",
        (_, 0) => "no flow's direct path has been measured yet: its gateway does that",
        _ => return Ok(()),
    };
    Err(Refusal::Conflict(problem.to_owned()))
}

/// Returns the planning problem of these relay hosts and flows.
pub(crate) fn problem_of<'a>(
    state: &State,
    time: Timestamp,
    relay_hosts: impl Iterator<Item = &'a Host>,
    declared: &[&FlowRecord],
) -> Result<Problem, Refusal> {
    let inputs = inputs(state, time, relay_hosts, declared);
    check_flows(declared.len(), &inputs)?;
    Problem::new(inputs).map_err(|error| Refusal::Conflict(error.to_string()))
}

/// Returns the inputs of the planner, without relay hosts of a type that is not known any more.
fn inputs<'a>(
    state: &State,
    time: Timestamp,
    relay_hosts: impl Iterator<Item = &'a Host>,
    declared: &[&FlowRecord],
) -> Inputs {
    let (now, terms) = (unix_ms(time), &state.settings.terms);
    let mut types: BTreeMap<RelayTypeId, RelayType> = BTreeMap::new();
    let mut most: BTreeMap<(RegionId, RelayTypeId), usize> = BTreeMap::new();
    for host in relay_hosts {
        if let Some(offered) = prices::offered(state, host)
            && let Ok(known) = prices::offered_type(terms, &offered.1)
        {
            types.insert(offered.1.clone(), known);
            *most.entry(offered).or_default() += 1;
        }
    }
    let regions: BTreeSet<RegionId> = most.keys().map(|(region, _)| region.clone()).collect();
    for pair in regions.iter().flat_map(|region| types.keys().map(move |id| (region, id))) {
        most.entry((pair.0.clone(), pair.1.clone())).or_insert(0);
    }
    let legs = legs::of_measurements(&knowledge::current(state, now), &regions);
    let flows = flows(state, now, declared, &legs);
    let mut relay_types: Vec<RelayType> = types.into_values().collect();
    if relay_types.is_empty() {
        relay_types.push(RelayType::cloudpilot());
    }
    Inputs {
        flows,
        regions: regions.into_iter().collect(),
        relay_types,
        not_offered: BTreeSet::new(),
        most,
        hourly: BTreeMap::new(),
        legs,
        site_regions: BTreeMap::new(),
        site_caps: BTreeMap::new(),
        site_caps_outside: BTreeMap::new(),
        prices: prices::of_traffic(terms),
        budget: money::available(state, now),
        max_relays: MAX_RELAYS,
        start_up: StartUp::default(),
        objective: Objective::TotalFct,
        running: Running::default(),
    }
}

/// Returns the packet flows of the plan in effect; `None` without one, and while nothing may be
/// spent.
pub(crate) fn packets_in_effect(state: &State, now: u64) -> Option<&PlannedPackets> {
    let plan = state.plan_in_effect()?;
    (!money::is_unpaid(state, now, plan)).then_some(&*plan.packets)
}

/// Returns the hosts that each flow passes now; none for a flow that goes direct, be it by plan,
/// since its path was taken back, or since nothing may be spent.
pub(crate) fn paths_in_effect(state: &State, now: u64) -> BTreeMap<&FlowId, Vec<&HostId>> {
    let is_paid = |plan: &&PlanRecord| !money::is_unpaid(state, now, plan);
    let Some(plan) = state.plan_in_effect().filter(is_paid) else { return BTreeMap::new() };
    let taken_back: BTreeSet<&FlowId> =
        take_back::of_plans_flows(state, now, plan).map(|(flow, _)| flow).collect();
    let kept = plan.paths().filter(|(flow, _)| {
        !taken_back.contains(&flow.id) && !tenants::is_stopped(state, now, &flow.id)
    });
    let hosts = |path: &[RelayId]| path.iter().filter_map(|relay| plan.hosts.get(relay)).collect();
    kept.map(|(flow, path)| (&flow.id, hosts(path))).collect()
}

/// Returns the flows whose direct leg is known; all others go direct without a plan.
fn flows(state: &State, now: u64, declared: &[&FlowRecord], legs: &Legs) -> Vec<Flow> {
    let is_known = |flow: &&&FlowRecord| {
        let ends = (LegEnd::Site(flow.from.clone()), LegEnd::Site(flow.to_site.clone()));
        legs.contains_key(&ends)
    };
    let flow = |flow: &&FlowRecord| {
        let per_day = forecast::demand(state, now, flow).per_day;
        let planned = Flow::new(flow.id.clone(), flow.from.clone(), flow.to_site.clone(), per_day);
        Flow { weight: flow.weight, ..planned }
    };
    declared.iter().filter(is_known).map(flow).collect()
}

/// Returns a plan within the budgets of tenants.
pub(crate) fn within_tenants(
    state: &State,
    time: Timestamp,
    inputs: &Inputs,
    plan: Plan,
) -> Result<Plan, Refusal> {
    let now = unix_ms(time);
    if tenants::budgets(state, now).is_empty() || plan.relays.is_empty() {
        return Ok(plan);
    }
    let able = PacketRelays::alone(state, state.relay_hosts(now));
    let reserved = packets::plan(state, now, inputs, &able).plan;
    tenants::within(state, now, &problem(state, time)?, &plan, &reserved)
}

/// Stores a plan, and applies it where that is the controller's part and no rollout is under way.
/// Its basis is that of the state that it was made of: what has changed since makes it stale.
pub(crate) fn planned(draft: &mut Draft, joint: &JointPlan) -> Result<Answer, Refusal> {
    let now = draft.now();
    let (cost, budget) = (joint.cost(), money::available(&draft.state, now));
    if cost > budget {
        let problem = format!("the plan costs {cost} a day, above the budget {budget}");
        return Err(Refusal::Conflict(problem));
    }
    if joint.record.tenants != tenants::budgets(&draft.state, now) {
        let problem = "budgets of tenants were changed since the plan was made";
        return Err(Refusal::Conflict(problem.to_owned()));
    }
    joint.check_hosts(&draft.state, now)?;
    let number = draft.next_plan();
    draft.push(Record::Plan(PlanRecord { number, ..joint.record.clone() }));
    rollout::apply_newest(draft);
    Ok(Answer::Planned(number))
}

/// Returns a plan with what it rests on in this state.
pub(crate) fn with_basis(state: &State, now: u64, mut record: PlanRecord) -> PlanRecord {
    let demand = |flow: &FlowRecord| (flow.id.clone(), forecast::demand(state, now, flow));
    record.demands = record.flows.iter().map(demand).collect();
    record.measurements = knowledge::current(state, now);
    record.known_legs = record.measurements.len();
    let places = places(&record);
    record
        .measurements
        .retain(|leg| places.contains(&leg.source) && places.contains(&leg.destination));
    record.measurements_in_effect = in_effect(state, now);
    record.budget = Some(money::available(state, now));
    record.rests_on = rests_on(now, &record);
    record
}

/// Returns the places of a plan: the ends of its flows, and its relays.
fn places(plan: &PlanRecord) -> BTreeSet<SiteId> {
    let ends = plan.flows.iter().flat_map(|flow| [&flow.from, &flow.to_site]);
    let of_packets = plan.packets.flows.iter().flat_map(|flow| [&flow.from, &flow.to_site]);
    let relays = plan.plan.relays.iter().map(|relay| &relay.region);
    let added = plan.packets.plan.relays.iter().map(|relay| &relay.region);
    let relays = relays.chain(added).map(|region| SiteId::from(region.clone()));
    ends.chain(of_packets).cloned().chain(relays).collect()
}

/// Returns the measurements of the legs of the plan in effect, and of the one that is put into it.
fn in_effect(state: &State, now: u64) -> Vec<LegMeasurement> {
    let next = state.rollout.to.and_then(|number| state.plans.get(&number));
    let legs = |plan: &PlanRecord| {
        let used = legs_of_paths(plan);
        let is_used =
            |leg: &&LegMeasurement| used.contains(&(leg.source.clone(), leg.destination.clone()));
        knowledge::renewed(state, now, plan.measurements.iter().filter(is_used))
    };
    state.plan_in_effect().into_iter().chain(next).flat_map(legs).collect()
}

/// Returns the legs of the plan's paths, those of packet flows included, as places.
pub(crate) fn legs_of_paths(plan: &PlanRecord) -> BTreeSet<(SiteId, SiteId)> {
    let mut legs = legs_of_streams(plan);
    plan.packets.places(&plan.plan).for_each(|places| add_legs(&mut legs, &places));
    legs
}

fn legs_of_streams(plan: &PlanRecord) -> BTreeSet<(SiteId, SiteId)> {
    let mut legs = BTreeSet::new();
    let paths = plan.paths();
    paths.for_each(|(flow, path)| add_legs(&mut legs, &plan.places(flow, path)));
    legs
}

fn add_legs(legs: &mut BTreeSet<(SiteId, SiteId)>, places: &[SiteId]) {
    legs.extend(places.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())));
}

/// Returns what the plan's seconds rest on, in a line for each flow with a forecast and each leg of
/// its paths.
fn rests_on(now: u64, plan: &PlanRecord) -> Vec<String> {
    let known: BTreeMap<(&SiteId, &SiteId), &LegMeasurement> =
        plan.measurements.iter().map(|leg| ((&leg.source, &leg.destination), leg)).collect();
    let line = |(from, to): &(SiteId, SiteId)| {
        let Some(leg) = known.get(&(from, to)) else {
            return format!("{from} -> {to}: not measured");
        };
        let age = leg.measured_at_unix_ms.map_or(0, |at| now.saturating_sub(at) / 1000);
        let rtt = time::as_millis_f64(leg.rtt.min);
        let rate = match leg.rate {
            Some(measured) if leg.method == Method::Passive => {
                format!("{} shown by connections", measured.rate)
            }
            Some(measured) => format!("{} measured", measured.rate),
            None => "rate not measured: estimated by window over RTT".to_owned(),
        };
        format!("{from} -> {to}: RTT {rtt:.1} ms, measured {age} s ago; {rate}")
    };
    let is_forecast = |(_, demand): &(&FlowId, &Demand)| demand.forecast.is_some();
    let volume = |(flow, demand): (&FlowId, &Demand)| format!("flow {flow}: {}", demand.in_words());
    let volumes = plan.demands.iter().filter(is_forecast).map(volume);
    let packets = packets::rests_on(&plan.packets);
    volumes.chain(legs_of_streams(plan).iter().map(line)).chain(packets).collect()
}

/// Returns why the controller should apply a plan by itself, if it should.
pub(crate) fn reason_to_apply(state: &State, time: Timestamp, number: u64) -> Option<String> {
    let new = state.plans.get(&number)?;
    let now = unix_ms(time);
    let has_given_up = new.hosts.values().any(|host| state.is_given_up(host, now));
    if has_given_up || obstacle(state, now, new).is_some() {
        return None;
    }
    let Some(old) = state.plan_in_effect() else {
        return (!new.hosts.is_empty()).then(|| "there was none".to_owned());
    };
    if let Some(obstacle) = obstacle(state, unix_ms(time), old) {
        return Some(obstacle);
    }
    let of_packets = packets::reason_to_apply(state, old, &new.packets);
    let of_tenants = || tenants::reason_to_apply(state, unix_ms(time), (old, new));
    if let Some(reason) = of_packets.or_else(of_tenants) {
        return Some(reason);
    }
    let inputs = inputs_now(state, time, |_| true);
    let problem = without_taken_back(state, unix_ms(time), inputs).ok()?;
    let seconds = |plan: &Plan| -> Option<f64> {
        let flow = |(index, flow): (usize, &Flow)| {
            let planned = plan.flows.iter().find(|planned| planned.id == flow.id);
            let path = planned.map_or(Some(Vec::new()), |flow| plan.offers_of(&problem, flow))?;
            let fct = problem.fct(index, &path).or_else(|| problem.fct(index, &[]))?;
            Some(fct.saturating_mul(flow.weight))
        };
        let all = problem.flows().iter().enumerate().map(flow).sum::<Option<Duration>>();
        all.map(|all| all.as_secs_f64())
    };
    let (old, new) = (seconds(&old.plan)?, seconds(&new.plan)?);
    let gain = 1.0 - new / old;
    (gain > HYSTERESIS).then(|| format!("its flows take {:.0} % less time", gain * 100.0))
}

fn is_used_up(state: &State, host: &HostId) -> bool {
    state.seen.get(host).is_some_and(Seen::is_used_up)
}

/// Returns why a plan cannot be kept in effect, if it cannot.
pub(crate) fn obstacle(state: &State, now: u64, plan: &PlanRecord) -> Option<String> {
    obstacle_among(state, now, plan, state.able_hosts(now))
}

/// Returns why the relays of a plan need not be waited for, if so. One that has failed is: its
/// agent starts it again.
pub(crate) fn obstacle_to_wait(state: &State, now: u64, plan: &PlanRecord) -> Option<String> {
    obstacle_among(state, now, plan, state.willing_hosts(now))
}

fn obstacle_among<'a>(
    state: &State,
    now: u64,
    plan: &PlanRecord,
    usable: impl Iterator<Item = &'a Host>,
) -> Option<String> {
    let budget = state.settings.budget_usd_per_day;
    if plan.usd_per_day <= budget && money::is_unpaid(state, now, plan) {
        return Some(format!("today's budget {budget} is spent, and plan {} costs", plan.number));
    }
    if plan.usd_per_day > budget && plan.usd_per_day > Money::ZERO {
        let cost = plan.usd_per_day;
        return Some(format!("plan {} costs {cost} a day, above the budget {budget}", plan.number));
    }
    if let Some((flow, taken)) = take_back::of_plans_flows(state, now, plan).next() {
        let finding = &taken.finding;
        return Some(format!(
            "flow {flow} of plan {} has a path taken back: {finding}",
            plan.number
        ));
    }
    let usable: BTreeSet<&HostId> = usable.map(|host| &host.id).collect();
    let gone = plan.hosts.values().find(|host| !usable.contains(host))?;
    let why = match state.hosts.get(gone) {
        Some(host) if !host.is_trusted => "revoked",
        Some(host) if host.is_drained => "drained",
        Some(_) if is_used_up(state, gone) => "at the end of its owner's spend of today",
        _ => "unreachable or failing",
    };
    Some(format!("host {gone} of plan {} is {why}", plan.number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ceiling::{Bounds, SpendBound};
    use crate::event::{Event, SettingsRequest};
    use crate::record::{Role, Settings};
    use crate::terms::Terms;
    use crate::testing::{Bench, flow, gateway, host, relay};

    #[test]
    fn plan_is_on_hosts_within_the_budget_and_says_what_it_rests_on() {
        let bench = Bench::in_service();
        let plan = bench.state().plan_in_effect().unwrap();
        let hosts: Vec<&str> = plan.hosts.values().map(HostId::as_str).collect();
        assert_eq!(hosts, ["gcp:asia-east1-1", "gcp:europe-north1-1"]);
        assert_eq!(plan.plan.flows[0].path.len(), 2);
        assert_eq!(plan.plan.relays.len(), 2);
        assert!(plan.usd_per_day > Money::from_usd(1.0).unwrap());
        assert!(plan.usd_per_day <= bench.state().settings.budget_usd_per_day);
        assert_eq!(plan.rests_on.len(), 3);
        assert!(plan.rests_on.iter().any(|line| line.contains("estimated by window over RTT")));
        assert!(plan.rests_on.iter().all(|line| line.contains("RTT ")), "{:?}", plan.rests_on);
    }

    #[test]
    fn problem_offers_what_can_be_used_now() {
        let mut bench = Bench::in_service();
        let regions = |bench: &Bench| -> Vec<String> {
            let problem = bench.controller.problem(bench.time()).unwrap();
            problem.inputs().regions.iter().map(ToString::to_string).collect()
        };
        assert_eq!(regions(&bench), ["gcp:asia-east1", "gcp:europe-north1"]);
        let drain = |is_drained| Event::Drain { host: host("gcp:asia-east1-1"), is_drained };
        bench.event(drain(true));
        assert_eq!(regions(&bench), ["gcp:europe-north1"]);
        bench.event(drain(false));
        bench.pass_without(31, &[2]);
        assert_eq!(regions(&bench), ["gcp:asia-east1"]);
        // After a restart, or a jump of its clock, it knows nothing of anyone's silence.
        let restarted = bench.restarted();
        assert_eq!(restarted.problem(bench.time()).unwrap().inputs().regions.len(), 2);
        bench.now += 3_600_000;
        assert_eq!(regions(&bench).len(), 2);
    }

    #[test]
    fn owners_rate_is_a_hosts_capacity_and_used_up_spend_takes_the_host_away() {
        let mut bench = Bench::in_service();
        let bounds = |is_used_up| Bounds {
            rate: Some("1.9 Gbit/s".parse().unwrap()),
            spend: Some(SpendBound {
                usd_per_day: Money::from_usd(5.0).unwrap(),
                used_usd: None,
                is_used_up,
            }),
        };
        bench.report_with(3, |report| report.bounds = Some(bounds(false)));
        let problem = bench.controller.problem(bench.time()).unwrap();
        let inputs = problem.inputs();
        let hosts = |region: &str, mbps: f64| -> usize {
            let is_such = |it: &&RelayType| (it.capacity.as_mbps() - mbps).abs() < 1e-6;
            let types = inputs.relay_types.iter().filter(is_such);
            types.map(|it| inputs.most[&(region.parse().unwrap(), it.id.clone())]).sum()
        };
        let whole = RelayType::cloudpilot().capacity.as_mbps();
        assert_eq!((hosts("gcp:asia-east1", 1900.0), hosts("gcp:asia-east1", whole)), (1, 0));
        assert_eq!((hosts("gcp:europe-north1", 1900.0), hosts("gcp:europe-north1", whole)), (0, 1));
        bench.plan();
        let newest = bench.state().newest_plan().unwrap();
        assert!(newest.hosts.values().any(|used| used.as_str() == "gcp:asia-east1-1"));
        bench.report_with(3, |report| report.bounds = Some(bounds(true)));
        let stale = bench.controller.staleness(bench.time());
        assert!(stale.iter().any(|why| why.contains("its owner's spend of today")), "{stale:?}");
        bench.plan();
        let newest = bench.state().newest_plan().unwrap();
        assert!(newest.hosts.values().all(|used| used.as_str() != "gcp:asia-east1-1"));
    }

    #[test]
    fn hosts_of_a_type_that_is_not_known_any_more_are_left_out() {
        let mut bench = Bench::in_service();
        let terms: Terms =
            toml::from_str("[relay_types.rack]\nusd_per_day = 0\ncapacity = \"9 Gbit/s\"\n")
                .unwrap();
        let settings = bench.state().settings.clone();
        bench.controller.apply(Record::Settings(Settings { terms, ..settings.clone() }));
        let region = RegionId::new("gcp:us-east1").unwrap();
        bench.join(4, Role::Relay { region, relay_type: RelayTypeId::new("rack").unwrap() });
        bench.pass(1);
        let offered = |bench: &Bench| {
            let problem = bench.controller.problem(bench.time()).unwrap();
            (problem.inputs().regions.len(), problem.inputs().relay_types.len())
        };
        assert_eq!(offered(&bench), (3, 2));
        // As a catalogue without it would.
        bench.controller.apply(Record::Settings(settings));
        assert_eq!(offered(&bench), (2, 1));
        bench.plan();
    }

    #[test]
    fn nothing_to_plan_is_said_in_a_line() {
        let mut bench = Bench::new();
        let problem = |bench: &Bench| bench.controller.problem(bench.time()).unwrap_err();
        assert!(problem(&bench).to_string().contains("no flow is declared"));
        bench.join(1, gateway("office"));
        bench.event(Event::AddFlow(flow("a", 7)));
        assert!(problem(&bench).to_string().contains("has been measured yet"));
    }

    #[test]
    fn slightly_better_plan_is_only_proposed_and_a_better_one_applied() {
        let mut bench = Bench::in_service();
        let first = bench.state().rollout.to;
        let second = bench.plan();
        assert_eq!((bench.state().rollout.to, second), (first, first.unwrap() + 1));
        assert_eq!(bench.state().newest_plan().unwrap().number, second);
        // Half the direct time is far more than the threshold.
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
        bench.pass(10);
        assert_eq!(bench.state().rollout.to, None);
        let third = bench.plan();
        assert_eq!(bench.state().rollout.to, None, "it has no relay");
        let usd_per_day = Money::from_usd(20.0).unwrap();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(usd_per_day)));
        let fourth = bench.plan();
        assert_eq!((bench.state().rollout.to, fourth), (Some(fourth), third + 1));
    }

    #[test]
    fn hosts_of_the_plan_in_effect_are_kept() {
        let mut bench = Bench::in_service();
        // Its name comes first.
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: true });
        bench.join(4, relay("gcp:asia-east1"));
        bench.pass(10);
        bench.plan();
        bench.pass(10);
        let used = |bench: &Bench| {
            let plan = bench.state().newest_plan().unwrap();
            plan.hosts.values().any(|used| used.as_str() == "gcp:asia-east1-2")
        };
        assert!(used(&bench));
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: false });
        bench.plan();
        assert!(used(&bench));
    }
}
