//! The reasons for which a new plan should be made, in plain words.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::measurement::LegMeasurement;
use tradewind_units::{Duration, SiteId, Timestamp, time};

use crate::demand::VolumeSource;
use crate::draft::unix_ms;
use crate::forecast;
use crate::knowledge::{self, CHANGED_BY};
use crate::money;
use crate::packets;
use crate::planning::{legs_of_paths, obstacle};
use crate::record::{FlowRecord, GivenUp, PlanRecord};
use crate::state::State;
use crate::take_back;
use crate::tenants;

/// Age of a measurement from which on a plan does not rest on it any more. Chosen: twelve of the
/// times after which round-trip times are measured again.
pub(crate) const MEASUREMENTS_LAST: Duration = Duration::from_secs(3600);

/// Returns the reasons why a new plan should be made, a line each.
pub(crate) fn reasons(state: &State, time: Timestamp) -> Vec<String> {
    let now = unix_ms(time);
    if state.flows.is_empty() && state.packet_flows.is_empty() {
        return Vec::new();
    }
    let Some(plan) = state.newest_plan() else {
        return vec!["there is no plan yet".to_owned()];
    };
    let mut reasons: Vec<String> = obstacle(state, now, plan).into_iter().collect();
    reasons.extend(given_up(state, now, plan));
    reasons.extend(budgeted(state, now, plan));
    reasons.extend(tenants::budgeted(state, now, plan));
    reasons.extend(take_back::to_try_again(state, now, plan.made_unix_ms));
    reasons.extend(declared(state, now, plan));
    reasons.extend(packets::changed(state, now, plan));
    let new = state.measurements.len();
    if new != plan.known_legs {
        reasons.push(format!("{new} legs are measured; the plan knew {}", plan.known_legs));
    }
    reasons.extend(measured(state, now, plan));
    reasons
}

/// Returns the hosts of the plan that were given up since it was made, and those that were before,
/// and may be tried again.
fn given_up(state: &State, now: u64, plan: &PlanRecord) -> Vec<String> {
    let line = |it: &GivenUp| {
        let (host, number) = (&it.host, plan.number);
        let since = plan.made_unix_ms;
        if plan.hosts.values().any(|used| used == host) {
            let is_given_up = state.is_given_up(host, now);
            is_given_up.then(|| format!("host {host} of plan {number} was given up: not ready"))
        } else {
            let is_over = it.until_unix_ms > since && it.until_unix_ms <= now;
            is_over.then(|| format!("host {host} was given up, and may be tried again"))
        }
    };
    state.rollout.given_up.iter().filter_map(line).collect()
}

/// Returns that another sum may be spent than when the plan was made, if so.
fn budgeted(state: &State, now: u64, plan: &PlanRecord) -> Option<String> {
    let (before, after) = (plan.budget?, money::available(state, now));
    (before != after).then(|| format!("a plan may cost {after} a day, and could {before}"))
}

/// Returns what was declared otherwise, and which volumes are expected to be others, since the plan
/// was made.
fn declared(state: &State, now: u64, plan: &PlanRecord) -> Vec<String> {
    let planned: BTreeMap<_, _> = plan.flows.iter().map(|flow| (&flow.id, flow)).collect();
    let mut reasons = Vec::new();
    for flow in state.flows.values() {
        match planned.get(&flow.id) {
            None => {
                let ends = (flow.from.clone(), flow.to_site.clone());
                // Without its direct leg it cannot be planned.
                if state.measurements.contains_key(&ends) {
                    reasons.push(format!("flow {} is not planned", flow.id));
                }
            }
            Some(known) if *known != flow => {
                reasons.push(format!("flow {} was declared anew", flow.id));
            }
            Some(_) => reasons.extend(another_volume(state, now, plan, flow)),
        }
    }
    let gone = plan.flows.iter().filter(|flow| !state.flows.contains_key(&flow.id));
    reasons.extend(gone.map(|flow| format!("flow {} was removed", flow.id)));
    reasons
}

/// Returns that a flow is expected to carry another volume, if that differs by more than
/// [`CHANGED_BY`].
fn another_volume(state: &State, now: u64, plan: &PlanRecord, flow: &FlowRecord) -> Option<String> {
    let before = plan.per_day(flow);
    let demand = forecast::demand(state, now, flow);
    let (old, new) = (before.as_u64() as f64, demand.per_day.as_u64() as f64);
    let basis = match demand.basis {
        VolumeSource::Declared => "declared",
        VolumeSource::Forecast => "forecast",
    };
    ((new - old).abs() > old * CHANGED_BY)
        .then(|| format!("flow {}: {} a day {basis}, was {before}", flow.id, demand.per_day))
}

/// Returns what was measured otherwise since the plan was made, or not again for too long: between
/// its places, and on the paths of the plan that was in effect.
fn measured(state: &State, now: u64, plan: &PlanRecord) -> Vec<String> {
    let current = knowledge::current(state, now);
    let current: BTreeMap<(&SiteId, &SiteId), &LegMeasurement> =
        current.iter().map(|leg| ((&leg.source, &leg.destination), leg)).collect();
    let paths = legs_of_paths(plan);
    let mut reasons = Vec::new();
    let mut seen = BTreeSet::new();
    for old in plan.measurements.iter().chain(&plan.measurements_in_effect) {
        if !seen.insert((&old.source, &old.destination)) {
            continue;
        }
        let name = format!("{} -> {}", old.source, old.destination);
        let Some(new) = current.get(&(&old.source, &old.destination)) else { continue };
        reasons.extend(changed(old, new).map(|what| format!("{name}: {what}")));
        let is_used = paths.contains(&(old.source.clone(), old.destination.clone()));
        if is_used && is_old(new, now) && !is_old(old, plan.made_unix_ms) {
            let minutes = MEASUREMENTS_LAST.as_secs() / 60;
            reasons.push(format!("{name}: not measured for {minutes} min"));
        }
    }
    reasons
}

fn is_old(leg: &LegMeasurement, now: u64) -> bool {
    let age = leg.measured_at_unix_ms.map_or(0, |at| now.saturating_sub(at));
    u128::from(age) > MEASUREMENTS_LAST.as_millis()
}

/// Returns how a leg has changed, if by more than its spread and [`CHANGED_BY`].
fn changed(old: &LegMeasurement, new: &LegMeasurement) -> Option<String> {
    let (before, after) = (old.rtt.min, new.rtt.min);
    let by = before.abs_diff(after);
    if by > old.rtt.spread.max(new.rtt.spread) && by > before.mul_f64(CHANGED_BY) {
        let ms = time::as_millis_f64;
        return Some(format!("RTT {:.1} ms, was {:.1} ms", ms(after), ms(before)));
    }
    match (old.rate, new.rate) {
        (Some(before), Some(after)) => {
            let (before, after) = (before.rate.as_mbps(), after.rate.as_mbps());
            let has_changed = (after - before).abs() > before * CHANGED_BY;
            has_changed.then(|| format!("{after:.0} Mbit/s, was {before:.0} Mbit/s"))
        }
        (None, Some(after)) => Some(format!("{} measured, was an estimate", after.rate)),
        (Some(_), None) => Some("its rate was measured too long ago, or misled".to_owned()),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use tradewind_units::Money;

    use super::*;
    use crate::event::{Event, SettingsRequest};
    use crate::record::Record;
    use crate::testing::{Bench, flow, host};

    fn stale(bench: &Bench) -> String {
        bench.controller.staleness(bench.time()).join("; ")
    }

    /// Returns a plan made when all rates are known, which is not stale.
    fn fresh() -> Bench {
        let mut bench = Bench::in_service();
        bench.plan();
        assert_eq!(stale(&bench), "");
        bench
    }

    fn change(bench: &mut Bench, by: impl Fn(&mut LegMeasurement)) {
        let mut legs = bench.state().measurements.values();
        let mut leg = legs.rfind(|leg| leg.source.as_str() == "office").unwrap().clone();
        by(&mut leg);
        bench.controller.apply(Record::Measurement(leg));
    }

    #[test]
    fn figures_beyond_spread_and_share_make_a_plan_stale() {
        let mut bench = fresh();
        let spread = Duration::from_millis(1);
        change(&mut bench, |leg| leg.rtt.min += spread);
        assert_eq!(stale(&bench), "");
        change(&mut bench, |leg| leg.rtt.min = leg.rtt.min * 3 / 2);
        assert!(stale(&bench).contains("RTT"), "{}", stale(&bench));
        bench.plan();
        assert_eq!(stale(&bench), "");
    }

    #[test]
    fn rates_make_a_plan_stale() {
        let mut bench = fresh();
        let mut rates = bench.state().measurements.values().filter(|leg| leg.rate.is_some());
        let mut leg = rates.next().unwrap().clone();
        let rate = leg.rate.as_mut().unwrap();
        rate.rate = rate.rate.scaled(0.9);
        bench.controller.apply(Record::Measurement(leg.clone()));
        assert_eq!(stale(&bench), "");
        let rate = leg.rate.as_mut().unwrap();
        rate.rate = rate.rate.scaled(0.5);
        bench.controller.apply(Record::Measurement(leg));
        assert!(stale(&bench).ends_with("Mbit/s, was 400 Mbit/s"), "{}", stale(&bench));
    }

    #[test]
    fn old_measurements_make_a_plan_stale_once() {
        let mut bench = fresh();
        let legs: Vec<_> = bench.state().measurements.values().cloned().collect();
        bench.now += MEASUREMENTS_LAST.as_millis() as u64 + 1000;
        let is_used = |leg: &&LegMeasurement| leg.source.as_str() == "office";
        assert!(legs.iter().any(|leg| is_used(&leg)));
        assert!(stale(&bench).contains("not measured for 60 min"), "{}", stale(&bench));
        bench.plan();
        assert_eq!(stale(&bench), "");
    }

    #[test]
    fn declarations_budget_and_hosts_make_a_plan_stale() {
        let mut bench = fresh();
        bench.event(Event::AddFlow(flow("b", 8)));
        assert_eq!(stale(&bench), "");
        bench.pass(10);
        assert!(stale(&bench).contains("flow b is not planned"), "{}", stale(&bench));
        bench.event(Event::RemoveFlow(flow("a", 7).id));
        assert!(stale(&bench).contains("flow a was removed"));
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: true });
        assert!(stale(&bench).contains("host gcp:asia-east1-1 of plan 2 is drained"));
        let usd_per_day = Money::from_usd(1.0).unwrap();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(usd_per_day)));
        assert!(stale(&bench).contains("above the budget $1.00"), "{}", stale(&bench));
    }
}
