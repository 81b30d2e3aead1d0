//! Paths that measure worse than predicted, which are taken back from their flows.
//!
//! The sessions of a flow over its path in effect are judged window by window: their times by what
//! is predicted for their sizes of what is measured now, and by those of the control arm. A leg
//! that is measured to be slower makes the plan stale, and is no reason to take its path back. What
//! slows direct sessions of a size as well, such as an application that waits, is no fault of the
//! path; nor is what sessions at the same time take from each other.
//!
//! After two bad windows the flow goes direct, the rates of the path's legs count no more until
//! they are measured again, and no plan has the path for an hour, unless a leg is found to be
//! slower before: then the planner knows better. If the sessions that then go direct are no faster,
//! it was no fault of the path, such as where an application waits: the flow has it again, and it
//! is not taken back for the rest of the hour.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::measurement::LegMeasurement;
use tradewind_model::statistics::t_975;
use tradewind_plan::{Flow, LegEnd, Legs};
use tradewind_units::{Duration, FlowId, RegionId, RelayId, SiteId};

use crate::draft::{CONTROLLER, DAY_MS, Draft};
use crate::gain::{self, Compared, MIN_SESSIONS, Sample};
use crate::knowledge::{self, CHANGED_BY};
use crate::message::{Arm, SessionTally};
use crate::predict::{self, Predictor};
use crate::prices;
use crate::record::{FlowRecord, MisledLeg, PlanRecord, Record, TakenBack, TakenPath, Window};
use crate::state::State;

/// Shortest time of a window. Chosen: several reports; two windows pass within the time in which a
/// plan becomes stale.
const WINDOW: Duration = Duration::from_secs(30);
/// Successive bad windows after which a path is taken back.
const BAD_WINDOWS: u32 = 2;
/// Largest multiple of the predicted time that sessions may take. Chosen: the error of a good
/// prediction.
const WORSE_BY: f64 = 1.25;
/// The same of the control arm's time. Chosen: less is not worth a change.
const SLOWER_BY: f64 = 1.1;
/// Round trips that a session is predicted to take at least, to be judged. Chosen: shorter ones are
/// mostly set-up, and tell nothing of rates.
const MIN_ROUND_TRIPS: u32 = 5;
/// Time for which a path is not proposed again. Chosen: as long as rates last in a plan.
const TAKEN_FOR: Duration = Duration::from_secs(3600);
/// Longest flow's name in that of its source, which has the same bound.
const MAX_NAME: usize = 40;

/// Returns the windows that the tallies of a batch are added to.
pub(crate) fn windows(state: &State, now: u64, tallies: &[&SessionTally]) -> Vec<Record> {
    let Some(plan) = state.plan_in_effect() else { return Vec::new() };
    let mut of_flows: BTreeMap<&FlowId, Vec<&SessionTally>> = BTreeMap::new();
    for tally in tallies.iter().filter(|tally| tally.arm == Arm::Overlay && tally.sessions > 0) {
        of_flows.entry(&tally.flow).or_default().push(tally);
    }
    if of_flows.is_empty() {
        return Vec::new();
    }
    let judge = Judge { state, now, plan };
    let window = |(flow, tallies): (&FlowId, Vec<&SessionTally>)| {
        judge.window(flow, &tallies).map(Record::Window)
    };
    of_flows.into_iter().filter_map(window).collect()
}

struct Judge<'a> {
    state: &'a State,
    now: u64,
    plan: &'a PlanRecord,
}

impl Judge<'_> {
    /// Returns the window of a flow with these sessions, or the next one where it is complete.
    fn window(&self, flow: &FlowId, tallies: &[&SessionTally]) -> Option<Window> {
        let (record, path) = self.plan.path_of(flow)?;
        let empty = Window {
            flow: flow.clone(),
            path: path.to_vec(),
            since_unix_ms: self.now,
            sessions: Vec::new(),
            worse: 0,
            finding: String::new(),
            judged: Vec::new(),
        };
        let known = self.state.windows.get(flow).filter(|window| window.path == path);
        let known = known.filter(|window| window.since_unix_ms <= self.now);
        let mut window = known.cloned().unwrap_or(empty);
        for tally in tallies.iter().filter(|tally| tally.path == path) {
            let mut known = window.sessions.iter_mut();
            match known.find(|known| known.size_class == tally.size_class) {
                Some(known) => known.add(tally),
                None => window.sessions.push((*tally).clone()),
            }
        }
        let span = Duration::from_millis(self.now - window.since_unix_ms);
        if span < WINDOW {
            return Some(window);
        }
        let Some(finding) = self.judge(record, &window, span) else { return Some(window) };
        let judged = std::mem::take(&mut window.sessions);
        let next = Window { since_unix_ms: self.now, ..window };
        Some(match finding {
            Some(finding) => Window { worse: next.worse + 1, finding, judged, ..next },
            None => Window { worse: 0, finding: String::new(), judged: Vec::new(), ..next },
        })
    }

    /// Returns what is worse than it should be in a window, if anything is; `None` if it has too
    /// few sessions.
    fn judge(&self, flow: &FlowRecord, window: &Window, span: Duration) -> Option<Option<String>> {
        let known = knowledge::renewed(self.state, self.now, self.plan.measurements.iter());
        let predictor = Predictor::new(&self.state.settings.terms, self.plan, &known);
        let planned = predictor.path(flow, &window.path)?;
        let direct = predictor.path(flow, &[])?;
        let least = (predict::rtt(&planned) * MIN_ROUND_TRIPS).as_secs_f64();
        let (direct_sessions, control) = direct_sessions(self.state, self.now, &flow.id);
        let (mut n, mut sum, mut squares) = (0.0, 0.0, 0.0);
        let mut compared = Vec::new();
        for tally in &window.sessions {
            let class = tally.size_class;
            let mut sample = Sample::default();
            sample.add(tally);
            let (up, down) = sample.mean_size(class);
            let predicted = predict::seconds(&planned, up, down);
            if predicted < least {
                continue;
            }
            let has_enough = |sample: &&Sample| sample.sessions >= MIN_SESSIONS;
            // What slows direct sessions as well.
            let excess = direct_sessions.get(&class).filter(has_enough).map_or(0.0, |sample| {
                let (up, down) = sample.mean_size(class);
                (sample.mean() - predict::seconds(&direct, up, down).ln()).max(0.0)
            });
            let expected = predicted.ln() + excess;
            let count = sample.sessions as f64;
            n += count;
            sum += sample.log_seconds - count * expected;
            squares += sample.log_seconds_squared - 2.0 * expected * sample.log_seconds
                + count * expected * expected;
            if let Some(control) = control.get(&class).filter(has_enough)
                && has_enough(&&sample)
            {
                compared.push(Compared::new(class, &sample, control));
            }
        }
        if n < MIN_SESSIONS as f64 {
            return None;
        }
        let mean = sum / n;
        let variance = (squares - sum * sum / n).max(0.0) / (n - 1.0) / n;
        let lower = mean - t_975(n - 1.0) * variance.sqrt() - crowding(window, span).ln();
        if lower > WORSE_BY.ln() {
            let times = mean.exp();
            return Some(Some(format!("{n} sessions took {times:.1} times as long as predicted")));
        }
        let slower = gain::speedup(&compared).filter(|speedup| speedup.high * SLOWER_BY < 1.0);
        Some(slower.map(|speedup| {
            let times = 1.0 / speedup.value;
            format!("{n} sessions took {times:.1} times as long as those of the control arm")
        }))
    }
}

/// Returns the direct sessions of a flow since yesterday by size class: all, and those of the
/// control arm.
fn direct_sessions(
    state: &State,
    now: u64,
    flow: &FlowId,
) -> (BTreeMap<u8, Sample>, BTreeMap<u8, Sample>) {
    let (mut all, mut control) = (BTreeMap::new(), BTreeMap::new());
    let today = now / DAY_MS;
    for tally in direct_tallies(state, flow, today.saturating_sub(1)..=today) {
        let class = tally.size_class;
        all.entry(class).or_insert_with(Sample::default).add(tally);
        if tally.arm == Arm::Control {
            control.entry(class).or_insert_with(Sample::default).add(tally);
        }
    }
    (all, control)
}

/// Returns the direct sessions of a flow on these days. The time of one that fell back is not that
/// of the direct path.
fn direct_tallies<'a>(
    state: &'a State,
    flow: &'a FlowId,
    days: impl Iterator<Item = u64> + 'a,
) -> impl Iterator<Item = &'a SessionTally> {
    let tallies = days.filter_map(|day| state.sessions.get(&(day, flow.clone()))).flatten();
    tallies.filter(|tally| tally.path.is_empty() && tally.arm != Arm::Overlay)
}

/// Returns the direct sessions of a flow on these days as one tally for each size class.
fn direct_by_class(
    state: &State,
    flow: &FlowId,
    days: impl Iterator<Item = u64>,
) -> Vec<SessionTally> {
    let mut classes: BTreeMap<u8, SessionTally> = BTreeMap::new();
    for tally in direct_tallies(state, flow, days) {
        let empty = || SessionTally::new(flow.clone(), Vec::new(), Arm::Other, tally.size_class);
        classes.entry(tally.size_class).or_insert_with(empty).add(tally);
    }
    classes.into_values().collect()
}

/// Returns the mean number of sessions at the same time, at least 1. The first may have begun
/// before the window.
fn crowding(window: &Window, span: Duration) -> f64 {
    let seconds: f64 = window.sessions.iter().map(|tally| tally.seconds).sum();
    let sessions: u64 = window.sessions.iter().map(|tally| tally.sessions).sum();
    let mean = seconds / sessions.max(1) as f64;
    (seconds / (span.as_secs_f64() + mean)).max(1.0)
}

/// Takes paths back that were bad for two windows, and gives back those that are excused; returns
/// whether there are any.
pub(crate) fn tick(draft: &mut Draft) -> bool {
    let has_excused = excuse(draft);
    let bad: Vec<Window> = {
        let windows = draft.state.windows.values();
        windows.filter(|window| window.worse >= BAD_WINDOWS).cloned().collect()
    };
    let mut has_taken = false;
    for window in bad {
        has_taken |= take(draft, &window);
        let sessions = Vec::new();
        draft.push(Record::Window(Window { worse: 0, sessions, ..window }));
    }
    has_taken || has_excused
}

/// Excuses taken paths whose sessions were as fast as direct ones; returns whether there are any.
fn excuse(draft: &mut Draft) -> bool {
    let (now, mut excused) = (draft.now(), Vec::new());
    for known in draft.state.taken_back.values() {
        let is_open = |taken: &&TakenPath| is_in_time(now, taken);
        for taken in known.paths.iter().filter(is_open) {
            if let Some(speedup) = speedup_over_direct(&draft.state, now, &known.flow, taken)
                && speedup >= 1.0
            {
                excused.push((known.flow.clone(), taken.path.clone(), speedup));
            }
        }
    }
    let has_excused = !excused.is_empty();
    for (flow, path, speedup) in excused {
        let Some(mut known) = draft.state.taken_back.get(&flow).cloned() else { continue };
        for taken in known.paths.iter_mut().filter(|taken| taken.path == path) {
            taken.excused_unix_ms = Some(now);
        }
        draft.push(Record::TakenBack(known));
        let (path, times) = (shown(&path), format!("{speedup:.1} times as long"));
        let said = format!("gives flow {flow} its path {path} back: direct sessions take {times}");
        draft.audit(CONTROLLER, said);
    }
    has_excused
}

/// Returns how many times as long direct sessions took since then as those over a path that was
/// taken back; `None` if too few are known.
fn speedup_over_direct(state: &State, now: u64, flow: &FlowId, taken: &TakenPath) -> Option<f64> {
    let days = taken.since_unix_ms / DAY_MS..=now / DAY_MS;
    let direct = direct_by_class(state, flow, days);
    let compare = |tally: &SessionTally| {
        let of_class = |tallies: &[SessionTally]| {
            let mut sample = Sample::default();
            let same = tallies.iter().filter(|known| known.size_class == tally.size_class);
            same.for_each(|known| sample.add(known));
            sample
        };
        let mut over_relays = Sample::default();
        over_relays.add(tally);
        let since = of_class(&direct).without(&of_class(&taken.direct_before))?;
        let has_enough = over_relays.sessions.min(since.sessions) >= MIN_SESSIONS;
        has_enough.then(|| Compared::new(tally.size_class, &over_relays, &since))
    };
    let compared: Vec<Compared> = taken.sessions.iter().filter_map(compare).collect();
    gain::speedup(&compared).map(|speedup| speedup.value)
}

/// Takes a path back; returns whether the flow still had it.
fn take(draft: &mut Draft, window: &Window) -> bool {
    let (state, now) = (&draft.state, draft.now());
    let Some(plan) = state.plan_in_effect() else { return false };
    let Some((flow, path)) = plan.path_of(&window.flow) else { return false };
    let known = state.taken_back.get(&window.flow);
    let is_excused = known.is_some_and(|known| {
        let is_it = |taken: &TakenPath| taken.path == path && taken.excused_unix_ms.is_some();
        known.paths.iter().any(|taken| is_it(taken) && is_recent(now, taken))
    });
    let is_taken = of_plan(state, now, plan, &window.flow).is_some();
    if path != window.path || path.is_empty() || is_taken || is_excused {
        return false;
    }
    let places = plan.places(flow, path);
    let known = knowledge::renewed(state, now, plan.measurements.iter());
    let rate = |ends: &(SiteId, SiteId)| {
        let is_it = |leg: &&LegMeasurement| (&leg.source, &leg.destination) == (&ends.0, &ends.1);
        Some(known.iter().find(is_it)?.rate?.rate.as_mbps())
    };
    let leg = |pair: &[SiteId]| {
        let (source, destination) = (pair[0].clone(), pair[1].clone());
        let rate_mbps = rate(&(source.clone(), destination.clone()));
        MisledLeg { source, destination, rate_mbps }
    };
    let taken = TakenPath {
        path: path.to_vec(),
        legs: places.windows(2).map(leg).collect(),
        since_unix_ms: now,
        until_unix_ms: now + TAKEN_FOR.as_millis() as u64,
        finding: window.finding.clone(),
        sessions: window.judged.clone(),
        direct_before: direct_by_class(state, &window.flow, std::iter::once(now / DAY_MS)),
        excused_unix_ms: None,
    };
    let said = format!(
        "takes flow {} back from {}: {}; measures again {}",
        window.flow,
        shown(path),
        window.finding,
        taken.legs.iter().map(described).collect::<Vec<_>>().join(", ")
    );
    let before = state.taken_back.get(&window.flow).map(|taken| taken.paths.clone());
    let mut paths = before.unwrap_or_default();
    let is_kept = |old: &TakenPath| {
        holds(state, now, old) || (old.excused_unix_ms.is_some() && is_recent(now, old))
    };
    paths.retain(|old| old.path != taken.path && is_kept(old));
    paths.push(taken);
    draft.push(Record::TakenBack(TakenBack { flow: window.flow.clone(), paths }));
    draft.audit(CONTROLLER, said);
    true
}

fn shown(path: &[RelayId]) -> String {
    path.iter().map(RelayId::as_str).collect::<Vec<_>>().join(" > ")
}

fn described(leg: &MisledLeg) -> String {
    let rate = leg.rate_mbps.map_or("no rate".to_owned(), |mbps| format!("{mbps:.0} Mbit/s"));
    format!("{} -> {} ({rate})", leg.source, leg.destination)
}

/// Returns whether a path was taken back within the last hour, excused or not.
fn is_recent(now: u64, taken: &TakenPath) -> bool {
    let left = taken.until_unix_ms.saturating_sub(now);
    left > 0 && u128::from(left) <= TAKEN_FOR.as_millis()
}

/// Returns whether the time for which a path was taken back is not over.
fn is_in_time(now: u64, taken: &TakenPath) -> bool {
    is_recent(now, taken) && taken.excused_unix_ms.is_none()
}

/// Returns whether a path is still not to be proposed.
fn holds(state: &State, now: u64, taken: &TakenPath) -> bool {
    is_in_time(now, taken)
        && !taken.legs.iter().any(|leg| is_slower(state, leg, taken.since_unix_ms))
}

/// Returns whether a leg was found to be slower than it was said to be.
fn is_slower(state: &State, leg: &MisledLeg, since: u64) -> bool {
    let ends = (leg.source.clone(), leg.destination.clone());
    let is_new = state.rate_tests.get(&ends).is_some_and(|test| test.unix_ms > since);
    let measured = state.measurements.get(&ends).and_then(|measured| measured.rate);
    measured.filter(|_| is_new).is_some_and(|measured| {
        leg.rate_mbps.is_none_or(|before| measured.rate.as_mbps() < before * (1.0 - CHANGED_BY))
    })
}

/// Returns the paths of a flow that are not to be proposed.
pub(crate) fn of_flow<'a>(
    state: &'a State,
    now: u64,
    flow: &FlowId,
) -> impl Iterator<Item = &'a TakenPath> {
    let taken = state.taken_back.get(flow).into_iter().flat_map(|taken| &taken.paths);
    taken.filter(move |taken| holds(state, now, taken))
}

/// Returns how the path that a plan gives a flow was taken back, if it was since the plan was made.
/// A plan that was made later knows what was measured since.
pub(crate) fn of_plan<'a>(
    state: &'a State,
    now: u64,
    plan: &PlanRecord,
    flow: &FlowId,
) -> Option<&'a TakenPath> {
    let is_open =
        |taken: &&TakenPath| is_in_time(now, taken) && plan.made_unix_ms <= taken.since_unix_ms;
    // Few are, and to look for a path takes long.
    let open: Vec<&TakenPath> = state.taken_back.get(flow)?.paths.iter().filter(is_open).collect();
    let (_, path) = if open.is_empty() { return None } else { plan.path_of(flow)? };
    open.into_iter().find(|taken| taken.path == path)
}

/// Returns the flows whose path by a plan was taken back.
pub(crate) fn of_plans_flows<'a>(
    state: &'a State,
    now: u64,
    plan: &'a PlanRecord,
) -> impl Iterator<Item = (&'a FlowId, &'a TakenPath)> {
    let of = move |flow| of_plan(state, now, plan, flow).map(|taken| (flow, taken));
    state.taken_back.keys().filter_map(of)
}

/// Returns the flows whose paths may be proposed again, but could not when a plan was made.
pub(crate) fn to_try_again(state: &State, now: u64, made: u64) -> Vec<String> {
    let is_over = |taken: &&TakenPath| {
        let end = taken.end_unix_ms();
        (taken.since_unix_ms..end).contains(&made) && end <= now
    };
    let mut reasons = Vec::new();
    for flow in state.taken_back.values().filter(|taken| state.flows.contains_key(&taken.flow)) {
        for path in flow.paths.iter().filter(is_over) {
            reasons.push(format!("flow {} may try {} again", flow.flow, shown(&path.path)));
        }
    }
    reasons
}

/// Lets no flow of a problem take a path that was taken back from it: such a flow has a source of
/// its own, with the legs of its site but those to the first relays of these paths.
pub(crate) fn exclude(state: &State, now: u64, flows: &mut [Flow], legs: &mut Legs) {
    for flow in flows.iter_mut().filter(|flow| state.taken_back.contains_key(&flow.id)) {
        let first = |taken: &TakenPath| prices::region(state, taken.path.first()?).cloned();
        let excluded: BTreeSet<RegionId> =
            of_flow(state, now, &flow.id).filter_map(first).collect();
        if excluded.is_empty() {
            continue;
        }
        let Some(alias) = alias(&flow.id) else { continue };
        let site = LegEnd::Site(flow.source.clone());
        let is_allowed = |to: &LegEnd| match to {
            LegEnd::Relay(region) => !excluded.contains(region),
            LegEnd::Site(_) => true,
        };
        let copied: Vec<_> = legs
            .iter()
            .filter(|((from, to), _)| *from == site && is_allowed(to))
            .map(|((_, to), leg)| ((LegEnd::Site(alias.clone()), to.clone()), *leg))
            .collect();
        legs.extend(copied);
        flow.source = alias;
    }
}

/// Returns the name of a flow's own source: unlike any site's, and unlike any other flow's.
fn alias(flow: &FlowId) -> Option<SiteId> {
    let hash = blake3::hash(flow.as_str().as_bytes()).to_hex();
    let name: String = flow.as_str().chars().take(MAX_NAME).collect();
    SiteId::new(format!("site-of.{name}.{}", &hash[..8])).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, SettingsRequest};
    use crate::message::{Probe, ProbeKind};
    use crate::record::AuditEntry;
    use crate::testing::{Bench, PATH, flow, tally};

    fn is_over_relays(bench: &Bench) -> bool {
        bench.config("office-1").unwrap().contains("twgrant_")
    }

    fn said(bench: &Bench) -> Option<String> {
        let is_it = |entry: &&AuditEntry| entry.action.starts_with("takes flow a back from ");
        bench.state().audit.values().find(is_it).map(|entry| entry.action.clone())
    }

    /// Lets sessions of these seconds end each five seconds, for so long.
    fn carry(bench: &mut Bench, seconds: u64, tallies: &[SessionTally]) {
        for _ in 0..seconds / 5 {
            bench.pass(5);
            let number = bench.state().batches.values().map(|it| it.number).max().unwrap_or(0);
            bench.sessions(1, number + 1, tallies.to_vec());
        }
    }

    fn overlay(seconds: f64) -> SessionTally {
        tally(Arm::Overlay, &PATH, &[seconds * 0.95, seconds * 1.05])
    }

    #[test]
    fn path_that_is_worse_than_predicted_in_two_windows_is_taken_back() {
        let mut bench = Bench::in_service();
        carry(&mut bench, 35, &[overlay(2.4)]);
        assert_eq!((said(&bench), is_over_relays(&bench)), (None, true), "one is not enough");
        carry(&mut bench, 40, &[overlay(2.4)]);
        let said = said(&bench).unwrap();
        assert!(said.contains("times as long as predicted; measures again office -> "), "{said}");
        assert!(said.contains("(400 Mbit/s)"), "{said}");
        assert!(!is_over_relays(&bench));
        let stale = bench.controller.staleness(bench.time()).join("; ");
        assert!(stale.contains("flow a of plan 1 has a path taken back: "), "{stale}");
        // The plan that follows has another path or none, and is applied.
        let problem = bench.controller.problem(bench.time()).unwrap();
        assert_ne!(problem.flows()[0].source.as_str(), "office");
        let plan = bench.plan();
        let planned = bench.state().plans[&plan].plan.flows[0].clone();
        assert!(planned.path.first().is_none_or(|first| first.as_str() != PATH[0]), "{planned:?}");
        assert_eq!(bench.state().rollout.to, Some(plan));
        assert!(bench.restarted().problem(bench.time()).is_ok());
        // An hour later it may be tried again.
        bench.pass(20);
        bench.plan();
        bench.now += TAKEN_FOR.as_millis() as u64;
        bench.event(Event::Tick);
        let stale = bench.controller.staleness(bench.time()).join("; ");
        assert!(stale.contains("flow a may try gcp:europe-north1-1 > gcp:asia-east1-1 again"));
        let problem = bench.controller.problem(bench.time()).unwrap();
        assert_eq!(problem.flows()[0].source.as_str(), "office");
    }

    #[test]
    fn rates_that_misled_are_measured_at_once_and_a_slower_one_explains() {
        let mut bench = Bench::in_service();
        while said(&bench).is_none() {
            carry(&mut bench, 5, &[overlay(2.4)]);
            bench.now += 1000;
            bench.event(Event::Tick);
        }
        let is_rate = |probe: &Probe| matches!(probe.kind, ProbeKind::Rate { .. });
        let known = |bench: &Bench| {
            let legs = crate::knowledge::current(bench.state(), bench.now);
            legs.iter().filter(|leg| leg.rate.is_some()).count()
        };
        assert_eq!(known(&bench), 0);
        bench.plan();
        let probes = bench.report(1, Vec::new());
        let probe = probes.iter().find(|probe| is_rate(probe)).unwrap();
        let taken = |bench: &Bench| of_flow(bench.state(), bench.now, &flow("a", 7).id).count();
        assert_eq!(taken(&bench), 1);
        bench.now += 5000;
        let result = |rate_mbps| crate::message::ProbeResult {
            id: probe.id,
            to: probe.to.clone(),
            measured_unix_ms: 0,
            outcome: crate::message::ProbeOutcome::Rate {
                rate_mbps,
                connections: 1,
                window_bytes: None,
                retransmitted: None,
                still_grew: false,
                bytes: 1000,
            },
        };
        bench.report(1, vec![result(40.0)]);
        assert_eq!((known(&bench), taken(&bench)), (1, 0));
    }

    #[test]
    fn plan_does_not_give_a_path_again_that_was_taken_back() {
        let mut bench = Bench::in_service();
        bench.event(Event::ChangeSettings(SettingsRequest::mode(crate::record::Mode::Suggest)));
        while said(&bench).is_none() {
            carry(&mut bench, 5, &[overlay(2.4)]);
            bench.now += 1000;
            bench.event(Event::Tick);
        }
        // A test explains it; the operator has not applied another plan yet.
        let (ends, test) = bench.state().rate_tests.first_key_value().unwrap();
        let mut leg = bench.state().measurements[ends].clone();
        let test = crate::record::RateTest { unix_ms: bench.now + 1, ..test.clone() };
        let rate = leg.rate.as_mut().unwrap();
        rate.rate = rate.rate.scaled(0.1);
        bench.controller.apply(Record::Measurement(leg));
        bench.controller.apply(Record::RateTest(test));
        assert_eq!(of_flow(bench.state(), bench.now, &flow("a", 7).id).count(), 0);
        bench.pass(61);
        assert!(!is_over_relays(&bench));
    }

    #[test]
    fn good_small_crowded_and_application_bound_sessions_are_no_fault_of_the_path() {
        let one_minute_of = |tallies: &[SessionTally]| {
            let mut bench = Bench::in_service();
            carry(&mut bench, 120, tallies);
            assert!(bench.state().windows.contains_key(&flow("a", 7).id));
            said(&bench).is_none()
        };
        assert!(one_minute_of(&[overlay(1.0)]));
        let small = SessionTally { size_class: 12, bytes_down: 8000, ..overlay(2.4) };
        assert!(one_minute_of(&[SessionTally { bytes_up: 0, ..small }]));
        let many: Vec<SessionTally> = (0..10).map(|_| overlay(2.4)).collect();
        assert!(one_minute_of(&many));
        let direct = tally(Arm::Control, &[], &[20.0, 21.0, 22.0, 20.0, 21.0]);
        assert!(one_minute_of(&[overlay(2.4), direct]));
    }

    #[test]
    fn path_is_given_back_where_direct_sessions_are_no_faster() {
        let given_back = |seconds: f64| {
            let mut bench = Bench::in_service();
            while said(&bench).is_none() {
                carry(&mut bench, 5, &[overlay(2.4)]);
                bench.now += 1000;
                bench.event(Event::Tick);
            }
            assert!(!is_over_relays(&bench));
            let direct = tally(Arm::Other, &[], &[seconds * 0.9, seconds * 1.1]);
            carry(&mut bench, 10, std::slice::from_ref(&direct));
            assert!(!is_over_relays(&bench), "four direct sessions are too few");
            carry(&mut bench, 5, &[direct]);
            bench.pass(2);
            is_over_relays(&bench).then_some(bench)
        };
        assert!(given_back(1.0).is_none());
        let mut bench = given_back(2.5).unwrap();
        let says = |entry: &AuditEntry| entry.action.contains("gives flow a its path ");
        assert!(bench.state().audit.values().any(says));
        let taken = |bench: &Bench| {
            let is_it = |entry: &&AuditEntry| entry.action.starts_with("takes flow a back");
            bench.state().audit.values().filter(is_it).count()
        };
        carry(&mut bench, 300, &[overlay(6.0)]);
        assert_eq!(
            (taken(&bench), is_over_relays(&bench)),
            (1, true),
            "not for the rest of the hour"
        );
        bench.now += TAKEN_FOR.as_millis() as u64;
        carry(&mut bench, 90, &[overlay(6.0)]);
        assert_eq!(taken(&bench), 2);
    }

    #[test]
    fn path_that_is_slower_than_the_control_arm_is_taken_back() {
        let mut bench = Bench::in_service();
        let direct = tally(Arm::Control, &[], &[0.7, 0.72, 0.68, 0.7, 0.71]);
        carry(&mut bench, 70, &[overlay(1.1), direct]);
        let said = said(&bench).unwrap();
        assert!(said.contains("times as long as those of the control arm"), "{said}");
    }
}
