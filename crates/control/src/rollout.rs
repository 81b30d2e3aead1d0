//! The rollout of a plan: make before break.
//!
//! First the relays of both plans run, with what either plan needs; when all relays of the new plan
//! are ready, gateways take its paths; when they have, the plan before retires: its relays go on
//! for the sessions that began over them. So a gateway never has a path over a relay that does not
//! allow it, and no session ends because its flow moves.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::{Duration, HostId, Money, RelayId};

use crate::draft::{CONTROLLER, Draft, OPERATOR};
use crate::event::{Answer, Refusal};
use crate::message::{Document, ProcessState, ProcessStatus};
use crate::money;
use crate::path_now;
use crate::planning::{obstacle, obstacle_to_wait, reason_to_apply};
use crate::record::{
    FlowRecord, GivenUp, Host, Mode, PlanRecord, Record, RetiringPlan, Role, Rollout, Step,
    Watching,
};
use crate::relayed::{self, RETIRES_FOR};
use crate::state::{SEEN_WITHIN, State};
use crate::take_back;
use crate::tenants;

/// Time that relays of a new plan have until they are ready, beside that for which machines may be
/// set up.
/// Chosen: twelve reports, and longer than a relay takes to start.
const RELAYS_READY_WITHIN: Duration = Duration::from_secs(60);
/// Time for which an unreachable gateway is waited for, because it may still use the paths of the
/// plan before. Chosen: longer than most partitions; until then relays of both plans run.
pub(crate) const GATEWAYS_WAITED_FOR: Duration = Duration::from_secs(600);
/// Most plans that retire at once; the oldest ends. Chosen: more than an hour brings.
const MAX_RETIRING: usize = 8;
/// Time after which it is noted how long was waited in a step, and of plans that retire. Chosen:
/// few writes, and little is lost in a crash.
const NOTES_STEP_AFTER: Duration = Duration::from_secs(10);
const NOTES_RETIRING_AFTER: Duration = Duration::from_secs(60);
/// Longest time of which it is taken that it passed while the controller did not run. Chosen: that
/// of a restart, with what was not noted before it.
const RESTARTS_WITHIN: Duration = Duration::from_secs(120);
/// Time between two looks at documents that nothing else has changed, for grants that end.
const RENEW_EVERY: u64 = 60_000;

/// Puts a plan into effect, as the operator wishes.
pub(crate) fn apply(draft: &mut Draft, number: u64) -> Result<Answer, Refusal> {
    let Some(plan) = draft.state.plans.get(&number) else {
        return Err(Refusal::NotFound(format!("no plan {number}")));
    };
    let Rollout { from, to, step, .. } = draft.state.rollout;
    let goes_back = step != Step::Done && from == Some(number);
    if step == Step::Done && to == Some(number) {
        return Err(Refusal::Conflict(format!("plan {number} is in effect")));
    }
    if step != Step::Done && !goes_back {
        let under_way = to.map_or("no plan".to_owned(), |to| format!("plan {to}"));
        return Err(Refusal::Conflict(format!("{under_way} is being put into effect")));
    }
    // Until gateways are told of another one, it is in effect, whatever stands against it.
    let is_in_effect = goes_back && step == Step::Relays;
    if !is_in_effect && let Some(obstacle) = obstacle(&draft.state, draft.now(), plan) {
        return Err(Refusal::Conflict(obstacle));
    }
    draft.audit(OPERATOR, format!("applies plan {number}"));
    if is_in_effect {
        go_back(draft);
    } else {
        // While gateways change over, relays still allow what the plan before needs.
        begin(draft, Some(number));
    }
    if goes_back {
        let rollout = draft.state.rollout.clone();
        draft.push(Record::Rollout(Rollout { set_aside: to, ..rollout }));
    }
    Ok(Answer::Done)
}

/// Puts the newest plan into effect, if that is the controller's part, nothing else is under way,
/// and there is a reason for it; returns whether it does.
pub(crate) fn apply_newest(draft: &mut Draft) -> bool {
    let Rollout { to, step, set_aside, .. } = draft.state.rollout;
    if draft.state.settings.mode != Mode::Auto || step != Step::Done {
        return false;
    }
    let newest = draft.state.newest_plan().map(|plan| plan.number);
    let is_wanted = |newest: &u64| Some(*newest) > to && set_aside != Some(*newest);
    let Some(number) = newest.filter(is_wanted) else { return false };
    let Some(reason) = reason_to_apply(&draft.state, draft.time, number) else { return false };
    draft.audit(CONTROLLER, format!("applies plan {number}: {reason}"));
    begin(draft, Some(number));
    true
}

/// Begins to put a plan into effect; `None`: all flows go direct.
pub(crate) fn begin(draft: &mut Draft, to: Option<u64>) {
    let from = draft.state.rollout.to;
    // Gateways follow it, also where it is from before that was noted.
    mark_used(draft, from);
    enter(draft, from, to, Step::Relays);
}

/// Notes that gateways are told of a plan.
fn mark_used(draft: &mut Draft, plan: Option<u64>) {
    let plan = plan.and_then(|plan| draft.state.plans.get(&plan));
    if let Some(plan) = plan.filter(|plan| !plan.was_used).cloned() {
        draft.push(Record::Plan(PlanRecord { was_used: true, ..plan }));
    }
}

fn enter(draft: &mut Draft, from: Option<u64>, to: Option<u64>, step: Step) {
    let since_unix_ms = draft.now();
    let Rollout { mut retiring, given_up, set_aside, noted_unix_ms, .. } =
        draft.state.rollout.clone();
    if let Some(plan) = from.filter(|_| step == Step::Done && from != to) {
        let until_unix_ms = since_unix_ms + RETIRES_FOR.as_millis() as u64;
        retiring.retain(|other| other.plan != plan);
        retiring.push(RetiringPlan { plan, until_unix_ms, waited_ms: 0 });
    }
    retiring.retain(|retiring| Some(retiring.plan) != to);
    let surplus = retiring.len().saturating_sub(MAX_RETIRING);
    retiring.drain(..surplus);
    let set_aside = set_aside.filter(|plan| Some(*plan) != to);
    draft.push(Record::Rollout(Rollout {
        from,
        to,
        step,
        since_unix_ms,
        noted_unix_ms,
        waited_ms: 0,
        retiring,
        given_up,
        set_aside,
    }));
    if let Some(plan) = to.filter(|_| step == Step::Done).and_then(|to| dated(draft, from, to)) {
        draft.push(Record::Plan(plan));
    }
}

/// Returns a plan that is in effect from now on, with the times since when its flows have their
/// paths: the plan before may have given them the same.
fn dated(draft: &Draft, from: Option<u64>, to: u64) -> Option<PlanRecord> {
    let plan = draft.state.plans.get(&to)?;
    let before = from.and_then(|from| draft.state.plans.get(&from));
    let known: BTreeMap<_, _> = before
        .into_iter()
        .flat_map(PlanRecord::paths)
        .map(|(flow, path)| (&flow.id, (&flow.from, &flow.to, path)))
        .collect();
    let now = draft.now();
    let since = |(flow, path): (&FlowRecord, &[RelayId])| {
        let is_same = known.get(&flow.id) == Some(&(&flow.from, &flow.to, path));
        let before = before.filter(|_| is_same).and_then(|it| it.paths_since.get(&flow.id));
        (flow.id.clone(), before.copied().unwrap_or(now))
    };
    let paths_since = plan.paths().map(since).collect();
    Some(PlanRecord { paths_since, ..plan.clone() })
}

/// Returns whether the relays of a plan may go on for its sessions: for an hour that the controller
/// has watched, so that a clock which is set ahead ends none, and while they are paid.
pub(crate) fn retires(state: &State, now: u64, retiring: RetiringPlan) -> bool {
    let is_paid = |plan| !money::is_unpaid(state, now, plan);
    let since = retiring.until_unix_ms.saturating_sub(RETIRES_FOR.as_millis() as u64);
    let is_over = waited(state, now, since, retiring.waited_ms) >= RETIRES_FOR;
    !is_over && state.plans.get(&retiring.plan).is_some_and(is_paid)
}

/// Ends the plans that retire no longer; returns whether there are any.
fn end_retired(draft: &mut Draft) -> bool {
    let mut rollout = draft.state.rollout.clone();
    let (count, now) = (rollout.retiring.len(), draft.now());
    rollout.retiring.retain(|retiring| retires(&draft.state, now, *retiring));
    let ends = rollout.retiring.len() < count;
    // A time further ahead is from before the clock was put back.
    let latest = now + RETIRES_FOR.as_millis() as u64;
    let is_ahead = |retiring: &RetiringPlan| retiring.until_unix_ms > latest;
    let is_set_back = rollout.retiring.iter().any(is_ahead);
    for retiring in &mut rollout.retiring {
        retiring.until_unix_ms = retiring.until_unix_ms.min(latest);
    }
    if ends || is_set_back {
        draft.push(Record::Rollout(rollout));
    }
    ends
}

/// Takes the time in; returns whether documents should be looked at.
pub(crate) fn tick(draft: &mut Draft) -> bool {
    let now = draft.now();
    let before = draft.state.watching;
    note_waits(draft, before);
    let since = draft.state.watched_since(now).unwrap_or(now);
    draft.push(Record::Watching(Watching { since_unix_ms: since, last_unix_ms: now }));
    forget_lost_probes(draft);
    let is_due =
        before.is_none_or(|watching| watching.last_unix_ms / RENEW_EVERY != now / RENEW_EVERY);
    if is_due {
        money::meter(draft);
        tenants::watch(draft);
        relayed::watch(draft);
    }
    let stops = money::watch(draft);
    let takes = take_back::tick(draft);
    let ends = end_retired(draft);
    if is_due || stops || takes || draft.state.rollout.step != Step::Done {
        path_now::note(draft);
    }
    is_due || stops || takes || ends || draft.state.rollout.step != Step::Done
}

fn forget_lost_probes(draft: &mut Draft) {
    let now = draft.now();
    let is_lost = |until: u64| {
        let longest = crate::schedule::LOST_AFTER.as_millis() as u64;
        until <= now || until > now + longest
    };
    let probings = draft.state.probing.values();
    let lost: Vec<_> = probings
        .filter(|probing| probing.probe.as_ref().is_none_or(|(_, until)| is_lost(*until)))
        .map(|probing| Record::Probing(crate::record::Probing { probe: None, ..probing.clone() }))
        .collect();
    lost.into_iter().for_each(|record| draft.push(record));
}

/// Takes the next step if all is ready for it; returns whether it did.
pub(crate) fn advance(draft: &mut Draft) -> bool {
    let Rollout { from, to, step, .. } = draft.state.rollout;
    let now = draft.now();
    match step {
        Step::Done => stop_what_is_unpaid(draft) || leave_what_cannot_stay(draft),
        Step::Relays => await_relays(draft),
        Step::Gateways => {
            let mut gateways = draft.state.hosts.values().filter(|host| is_gateway(host));
            if gateways.any(|host| is_waited_for(&draft.state, now, host)) {
                return false;
            }
            enter(draft, from, to, Step::Done);
            let what = to.map_or("no plan".to_owned(), |to| format!("plan {to}"));
            draft.audit(CONTROLLER, format!("{what} is in effect"));
            // One that was made meanwhile.
            apply_newest(draft);
            true
        }
    }
}

/// Has gateways take the plan once its relays are ready; gives it up where it cannot be kept, or a
/// relay is not ready in time.
fn await_relays(draft: &mut Draft) -> bool {
    let (state, now) = (&draft.state, draft.now());
    let Rollout { from, to, .. } = state.rollout;
    let plan = to.and_then(|to| state.plans.get(&to));
    let waited = waited_in_step(state, now);
    let is_late = |host: &&HostId| has_watched(state, now) && waited >= most_wait(state, host);
    let late = unready_relays(state, now, to).find(is_late);
    let obstacle = plan.and_then(|plan| obstacle_to_wait(state, now, plan));
    let late = late.map(|host| {
        let seconds = most_wait(state, host).as_secs();
        format!("relay {host} not ready in {seconds} s")
    });
    let Some(why) = obstacle.or(late) else {
        if unready_relays(state, now, to).next().is_some() {
            return false;
        }
        mark_used(draft, to);
        forgive_hosts_of(draft, to);
        enter(draft, from, to, Step::Gateways);
        return true;
    };
    let late = unready_relays(state, now, to).filter(is_late);
    let failed = plan.into_iter().flat_map(|plan| plan.hosts.values());
    let blamed = late.chain(failed.filter(|host| state.has_failed(host))).cloned().collect();
    let back = from.map_or("direct paths".to_owned(), |from| format!("plan {from}"));
    draft.audit(CONTROLLER, format!("goes back to {back}: {why}"));
    give_up(draft, blamed);
    go_back(draft);
    true
}

/// Returns the longest wait for a relay: longer while its machine may be set up, which is until its
/// host has told that it took its newest document, and while it starts.
fn most_wait(state: &State, host: &HostId) -> Duration {
    let starts = state.seen.get(host).zip(state.documents.get(host)).is_none_or(|(seen, it)| {
        let starts = |process: &ProcessStatus| process.state == ProcessState::Starting;
        !has_applied(state, host, it) || seen.processes.iter().any(starts)
    });
    RELAYS_READY_WITHIN + if starts { state.settings.relay_setup } else { Duration::ZERO }
}

/// Goes back to the plan before, while gateways follow that.
fn go_back(draft: &mut Draft) {
    let Rollout { from, to, .. } = draft.state.rollout;
    let plan = to.and_then(|to| draft.state.plans.get(&to));
    // One that no gateway was told of has no sessions, for which its relays would go on. One of
    // before that was noted has times of paths.
    let was_used = plan.is_some_and(|plan| plan.was_used || !plan.paths_since.is_empty());
    // Gateways that have not confirmed the one before are waited for: they may have other paths.
    enter(draft, if was_used { to } else { from }, from, Step::Gateways);
}

/// Gives hosts up for a while: no new plan is made with them, and none applied by the controller.
fn give_up(draft: &mut Draft, hosts: BTreeSet<HostId>) {
    let mut rollout = draft.state.rollout.clone();
    let (now, relay_setup) = (draft.now(), draft.state.settings.relay_setup);
    for host in hosts {
        let known = rollout.given_up.iter().position(|it| it.host == host);
        let before = known.map_or(0, |known| rollout.given_up.remove(known).times);
        let agent_version = draft.state.seen.get(&host).map(|seen| seen.agent_version.clone());
        let given_up = GivenUp::new(host, before, now, relay_setup);
        rollout.given_up.push(GivenUp { agent_version, ..given_up });
    }
    draft.push(Record::Rollout(rollout));
}

/// Forgets that a host was given up, as the operator has done something about it.
pub(crate) fn forgive(draft: &mut Draft, host: &HostId) {
    let mut rollout = draft.state.rollout.clone();
    rollout.given_up.retain(|it| it.host != *host);
    if rollout != draft.state.rollout {
        draft.push(Record::Rollout(rollout));
    }
}

/// Forgets the same of the hosts of a plan, which are ready.
fn forgive_hosts_of(draft: &mut Draft, plan: Option<u64>) {
    let plan = plan.and_then(|plan| draft.state.plans.get(&plan));
    let hosts: Vec<HostId> = plan.into_iter().flat_map(|it| it.hosts.values()).cloned().collect();
    hosts.iter().for_each(|host| forgive(draft, host));
}

/// Puts the newest plan into effect where the one in effect cannot be kept, or there is none: what
/// stood against it, such as a spent budget, may have ended since it was made.
fn leave_what_cannot_stay(draft: &mut Draft) -> bool {
    let plan = draft.state.plan_in_effect();
    let stays = plan.is_some_and(|plan| obstacle(&draft.state, draft.now(), plan).is_none());
    !stays && apply_newest(draft)
}

/// Ends the plan in effect when it costs something, and the budget is zero or spent.
fn stop_what_is_unpaid(draft: &mut Draft) -> bool {
    let now = draft.now();
    let plan = draft.state.plan_in_effect();
    if plan.is_none_or(|plan| !money::is_unpaid(&draft.state, now, plan)) {
        return false;
    }
    let why = match draft.state.settings.budget_usd_per_day {
        Money::ZERO => "the budget is zero",
        _ => "today's budget is spent",
    };
    draft.audit(CONTROLLER, format!("stops all relays: {why}"));
    begin(draft, None);
    true
}

/// Returns the time for which the rollout is at its step, as far as the controller has watched.
fn waited_in_step(state: &State, now: u64) -> Duration {
    let Rollout { since_unix_ms, waited_ms, .. } = state.rollout;
    waited(state, now, since_unix_ms, waited_ms)
}

/// Returns the time since `since`, as far as the controller has watched; `waited_ms` of it are
/// noted.
fn waited(state: &State, now: u64, since: u64, waited_ms: u64) -> Duration {
    let past = |at: u64| if at > now { 0 } else { at };
    let watched = state.watched_since(now).unwrap_or(now);
    let from = watched.max(past(since)).max(past(state.rollout.noted_unix_ms));
    Duration::from_millis(waited_ms.saturating_add(now.saturating_sub(from)))
}

/// Returns whether the controller has watched for so long that each host in reach has reported.
fn has_watched(state: &State, now: u64) -> bool {
    let since = state.watched_since(now);
    since.is_some_and(|since| u128::from(now.saturating_sub(since)) >= SEEN_WITHIN.as_millis())
}

/// Notes how long was waited, now and then while something is waited for, and before the controller
/// watches anew: after a pause, a jump of its clock, or a restart. `before` is for how long it has
/// watched until the last tick.
fn note_waits(draft: &mut Draft, before: Option<Watching>) {
    let (state, now) = (&draft.state, draft.now());
    let rollout = &state.rollout;
    let notes_after = match rollout.step {
        Step::Done => NOTES_RETIRING_AFTER,
        Step::Relays | Step::Gateways => NOTES_STEP_AFTER,
    };
    let is_steady = state.watched_since(now).is_some();
    let is_fresh = |at: u64| at <= now && now - at < notes_after.as_millis() as u64;
    let waits = rollout.step != Step::Done || !rollout.retiring.is_empty();
    if !waits || is_steady && is_fresh(rollout.noted_unix_ms.max(rollout.since_unix_ms)) {
        return;
    }
    let noted = rollout.noted_unix_ms;
    let span = |since: u64| {
        let from = since.max(noted);
        match before {
            Some(Watching { since_unix_ms, last_unix_ms }) => {
                let until = if is_steady { now } else { last_unix_ms };
                let past = |at: u64| if at > until { 0 } else { at };
                until - past(since).max(past(noted)).max(since_unix_ms).min(until)
            }
            // A longer one is an outage, or a clock that was set.
            None if from > 0 => now.saturating_sub(from).min(RESTARTS_WITHIN.as_millis() as u64),
            None => 0,
        }
    };
    let mut new = rollout.clone();
    new.waited_ms = new.waited_ms.saturating_add(span(new.since_unix_ms));
    for retiring in &mut new.retiring {
        let since = retiring.until_unix_ms.saturating_sub(RETIRES_FOR.as_millis() as u64);
        retiring.waited_ms = retiring.waited_ms.saturating_add(span(since));
    }
    new.noted_unix_ms = now;
    draft.push(Record::Rollout(new));
}

/// Returns the relays that the plan which is put into effect waits for now.
pub fn awaited_relays(state: &State, now_unix_ms: u64) -> impl Iterator<Item = &HostId> {
    let plan = state.rollout.to.filter(|_| state.rollout.step == Step::Relays);
    unready_relays(state, now_unix_ms, plan)
}

/// Returns the relays of the plan that are not ready to carry it. Revoked ones carry nothing.
fn unready_relays(state: &State, now: u64, plan: Option<u64>) -> impl Iterator<Item = &HostId> {
    let plan = plan.and_then(|plan| state.plans.get(&plan));
    let hosts = plan.into_iter().flat_map(|plan| plan.hosts.values());
    let is_trusted = |host: &&HostId| state.hosts.get(*host).is_some_and(|it| it.is_trusted);
    hosts.filter(is_trusted).filter(move |host| !is_ready(state, now, host))
}

/// Returns whether a host was seen, has applied its newest document, and all its processes are
/// ready.
fn is_ready(state: &State, now: u64, host: &HostId) -> bool {
    let Some((seen, document)) = state.seen.get(host).zip(state.documents.get(host)) else {
        return false;
    };
    let is_up = |name: &String| {
        let process = seen.processes.iter().find(|process| process.name == *name);
        process.is_some_and(|it| it.state == ProcessState::Ready && !it.fails())
    };
    state.was_seen(host, now, SEEN_WITHIN)
        && has_applied(state, host, document)
        && document.processes.iter().all(|process| is_up(&process.name))
}

fn has_applied(state: &State, host: &HostId, document: &Document) -> bool {
    state.seen.get(host).and_then(|seen| seen.applied) == Some(document.version)
}

fn is_gateway(host: &Host) -> bool {
    matches!(host.role, Role::Gateway { .. }) && host.is_trusted
}

/// Returns whether a gateway may still use other paths than its newest document's: it has not
/// applied that, and was not away for so long that nobody waits for it.
fn is_waited_for(state: &State, now: u64, host: &Host) -> bool {
    let document = state.documents.get(&host.id);
    let has_applied = document.is_none_or(|document| has_applied(state, &host.id, document));
    let is_over = || {
        let is_silent = !state.was_seen(&host.id, now, GATEWAYS_WAITED_FOR);
        let is_long = waited_in_step(state, now) >= GATEWAYS_WAITED_FOR;
        is_silent && is_long && has_watched(state, now)
    };
    !has_applied && state.is_reachable(&host.id, now, GATEWAYS_WAITED_FOR) && !is_over()
}

#[cfg(test)]
mod tests {
    use tradewind_units::Money;

    use super::*;
    use crate::draft::DAY_MS;
    use crate::event::{Event, SettingsRequest};
    use crate::message::{Arm, SessionTally};
    use crate::state::NEWEST_PLANS;
    use crate::testing::{Bench, PATH, flow, host, tally};

    /// Returns a plan that is not in effect, over the same hosts, beside the one that is.
    fn with_proposal() -> (Bench, u64, u64) {
        let mut bench = Bench::in_service();
        let first = bench.state().rollout.to.unwrap();
        let second = bench.plan();
        assert_eq!(bench.state().rollout.step, Step::Done);
        (bench, first, second)
    }

    #[test]
    fn plan_of_before_comes_back_once_nothing_stands_against_it() {
        let mut bench = Bench::in_service();
        let plan = bench.state().rollout.to;
        let usd_per_day = Money::from_usd(20.0).unwrap();
        let (bytes_up, session) = (1_000_000_000_000, tally(Arm::Overlay, &PATH, &[1.0]));
        bench.sessions(1, 1, vec![SessionTally { size_class: 40, bytes_up, ..session }]);
        bench.pass(20);
        assert_eq!((bench.state().rollout.to, bench.state().rollout.step), (None, Step::Done));
        // No plan is made of the next day's budget: nothing has changed for the planner.
        bench.now = (bench.now / DAY_MS + 1) * DAY_MS - 2000;
        bench.pass(100);
        assert_eq!((bench.state().rollout.to, bench.state().rollout.step), (plan, Step::Done));
        // An operator who applies plans does that alone.
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
        bench.pass(20);
        bench.event(Event::ChangeSettings(SettingsRequest::budget(usd_per_day)));
        bench.pass(100);
        assert_eq!(bench.state().rollout.to, None);
    }

    #[test]
    fn path_that_a_newer_plan_keeps_is_as_old_as_before() {
        let (mut bench, first, _) = with_proposal();
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        let since = |bench: &Bench, flow: &str| {
            let plan = bench.state().plan_in_effect().unwrap();
            plan.paths_since.get(&flow.parse().unwrap()).copied()
        };
        let old = since(&bench, "a").unwrap();
        assert_eq!(bench.restarted().state().plans[&first].paths_since.len(), 1);
        bench.event(Event::AddFlow(flow("b", 8)));
        bench.pass(30);
        let third = bench.plan();
        bench.event(Event::Apply { plan: third });
        bench.pass(30);
        assert_eq!(bench.state().plan_in_effect().unwrap().number, third);
        assert_eq!(since(&bench, "a"), Some(old));
        let new = since(&bench, "b").unwrap();
        assert!(new > old && new <= bench.now);
        // Another destination is another path.
        let to = "198.51.100.9:443".parse().unwrap();
        let moved = FlowRecord { to, ..flow("a", 7) };
        bench.event(Event::AddFlow(moved));
        let fourth = bench.plan();
        bench.event(Event::Apply { plan: fourth });
        bench.pass(30);
        assert!(since(&bench, "a").unwrap() > new);
        assert_eq!(since(&bench, "b"), Some(new));
    }

    #[test]
    fn proposal_can_be_applied_until_many_newer_ones_were_made() {
        let mut bench = Bench::in_service();
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        let plans = [(); NEWEST_PLANS + 1].map(|()| bench.plan());
        let refused = bench.refusal(Event::Apply { plan: plans[0] });
        assert_eq!(refused, Refusal::NotFound(format!("no plan {}", plans[0])));
        bench.event(Event::Apply { plan: plans[1] });
        bench.pass(30);
        let Rollout { to, step, .. } = bench.state().rollout;
        assert_eq!((to, step), (Some(plans[1]), Step::Done));
    }

    #[test]
    fn relays_come_first_then_gateways() {
        let mut bench = Bench::in_service();
        let is_done = bench.state().rollout.step == Step::Done;
        assert!(is_done && bench.config("gcp:asia-east1-1").is_some());
        // Again from none, a second at a time.
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
        assert!(!bench.config("office-1").unwrap().contains("twgrant_"), "a hard stop, at once");
        bench.pass(10);
        assert_eq!(bench.config("gcp:asia-east1-1"), None);
        let usd_per_day = Money::from_usd(20.0).unwrap();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(usd_per_day)));
        bench.plan();
        assert_eq!(bench.state().rollout.step, Step::Relays);
        assert!(bench.config("gcp:asia-east1-1").is_some());
        assert!(!bench.config("office-1").unwrap().contains("twgrant_"));
        bench.pass_without(1, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Relays);
        bench.pass_without(1, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Gateways);
        assert!(bench.config("office-1").unwrap().contains("twgrant_"));
        bench.pass_without(300, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Gateways, "it may use the paths before");
        bench.pass(2);
        assert_eq!(bench.state().rollout.step, Step::Done);
    }

    /// Lets time pass in which no host reports.
    fn tick_for(bench: &mut Bench, span: Duration) {
        for _ in 0..span.as_secs() / 10 {
            bench.now += 10_000;
            bench.event(Event::Tick);
        }
    }

    #[test]
    fn relays_of_the_plan_before_go_on_for_its_sessions() {
        let mut bench = Bench::in_service();
        let next_hops = |bench: &Bench| {
            let config = bench.config("gcp:europe-north1-1").unwrap();
            ["192.0.2.3", "192.0.2.4"].map(|address| config.contains(address))
        };
        assert_eq!(next_hops(&bench), [true, false]);
        let before = bench.config("gcp:asia-east1-1");
        bench.join(4, crate::testing::relay("gcp:asia-east1"));
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: true });
        bench.pass(10);
        bench.plan();
        bench.pass(10);
        assert_eq!(bench.state().rollout.step, Step::Done);
        assert!(bench.config("gcp:asia-east1-2").is_some());
        assert!(!bench.config("office-1").unwrap().contains("192.0.2.3"), "no new session");
        assert_eq!(bench.config("gcp:asia-east1-1"), before);
        assert_eq!(next_hops(&bench), [true, true], "the relay of both plans allows both");
        // Set a day ahead, while the controller runs or not.
        bench.now += DAY_MS;
        bench.event(Event::Tick);
        assert_eq!(bench.config("gcp:asia-east1-1"), before);
        bench.controller = bench.restarted();
        bench.now += DAY_MS;
        bench.event(Event::Tick);
        assert_eq!(bench.config("gcp:asia-east1-1"), before);
        assert_eq!(bench.state().rollout.retiring.len(), 1);
        // What was watched before counts, and a restart's time for the clock's.
        tick_for(&mut bench, RETIRES_FOR - RESTARTS_WITHIN - Duration::from_secs(20));
        assert_eq!(bench.config("gcp:asia-east1-1"), before);
        tick_for(&mut bench, Duration::from_secs(20));
        assert_eq!(bench.config("gcp:asia-east1-1"), None);
        assert_eq!(next_hops(&bench), [false, true]);
        assert_eq!(bench.state().rollout.retiring, []);
    }

    #[test]
    fn restarts_prolong_no_wait() {
        // For a machine to be set up: 360 s.
        let (mut bench, first, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        for _ in 0..6 {
            pass_while_it_starts(&mut bench, 50);
            bench.controller = bench.restarted();
        }
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        pass_while_it_starts(&mut bench, 65);
        assert_eq!(at(&bench), (first, Step::Done));
        // After a restart hosts have time to report, however long was waited.
        bench.event(Event::Drain { host: host(NEW), is_drained: false });
        bench.event(Event::Apply { plan });
        pass_while_it_starts(&mut bench, 350);
        bench.controller = bench.restarted();
        bench.now += 60_000;
        bench.event(Event::Tick);
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        bench.pass(5);
        assert_eq!(at(&bench), (Some(plan), Step::Done));

        // For sessions of the plan before: an hour.
        assert_eq!(bench.state().rollout.retiring.len(), 1);
        for _ in 0..6 {
            tick_for(&mut bench, Duration::from_secs(590));
            bench.controller = bench.restarted();
        }
        tick_for(&mut bench, Duration::from_secs(30));
        assert_eq!(bench.state().rollout.retiring.len(), 1);
        tick_for(&mut bench, Duration::from_secs(60));
        assert_eq!(bench.state().rollout.retiring, []);

        // For a gateway that is silent: ten minutes.
        let (mut bench, _, second) = with_proposal();
        bench.event(Event::AddFlow(flow("b", 8)));
        bench.event(Event::Apply { plan: second });
        bench.pass_without(320, &[1]);
        bench.controller = bench.restarted();
        bench.pass_without(270, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Gateways);
        bench.pass_without(40, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Done);
    }

    #[test]
    fn without_a_budget_no_relay_goes_on() {
        let mut bench = Bench::in_service();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
        bench.pass(10);
        assert_eq!(bench.config("gcp:asia-east1-1"), None);
    }

    #[test]
    fn silent_gateway_is_waited_for_ten_minutes() {
        let (mut bench, _, second) = with_proposal();
        bench.event(Event::AddFlow(flow("b", 8)));
        bench.event(Event::Apply { plan: second });
        bench.pass_without(590, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Gateways);
        bench.pass_without(30, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Done);
    }

    #[test]
    fn plan_whose_relay_is_out_of_reach_is_taken_back() {
        let (mut bench, first, _) = with_proposal();
        bench.event(Event::Drain { host: host("gcp:europe-north1-1"), is_drained: true });
        bench.pass(1);
        let third = bench.plan();
        assert_eq!(
            (bench.state().rollout.from, bench.state().rollout.to),
            (Some(first), Some(third))
        );
        bench.pass_without(28, &[3]);
        assert_eq!(bench.state().rollout.step, Step::Relays);
        bench.pass_without(5, &[3]);
        assert_eq!(
            (bench.state().rollout.to, bench.state().rollout.step),
            (Some(first), Step::Done)
        );
        let said =
            |entry: &crate::record::AuditEntry| entry.action.starts_with("goes back to plan");
        assert!(bench.state().audit.values().any(said));
    }

    /// Lets so many seconds pass, in which the relay of host 4 is in a state.
    fn pass_while_it_is(state: ProcessState, bench: &mut Bench, seconds: u64) {
        for _ in 0..seconds {
            bench.pass_without(1, &[4]);
            bench.report_with(4, |report| {
                report.processes.iter_mut().for_each(|it| it.state = state);
            });
        }
    }

    /// Lets so many seconds pass, in which the relay of host 4 starts.
    fn pass_while_it_starts(bench: &mut Bench, seconds: u64) {
        pass_while_it_is(ProcessState::Starting, bench, seconds);
    }

    fn at(bench: &Bench) -> (Option<u64>, Step) {
        (bench.state().rollout.to, bench.state().rollout.step)
    }

    fn has_said(bench: &Bench, text: &str) -> usize {
        bench.state().audit.values().filter(|entry| entry.action.contains(text)).count()
    }

    /// Returns an overlay that takes 300 s to set machines up, the plan that is in effect, and a
    /// newer one over host 4 in place of one that is drained.
    fn with_new_machine() -> (Bench, Option<u64>, u64) {
        let mut bench = Bench::in_service();
        let first = bench.state().rollout.to;
        let relay_setup = Some(Duration::from_secs(300));
        let setup = SettingsRequest { relay_setup, ..SettingsRequest::mode(Mode::Suggest) };
        bench.event(Event::ChangeSettings(setup));
        bench.join(4, crate::testing::relay("gcp:asia-east1"));
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: true });
        bench.pass(10);
        let plan = bench.plan();
        (bench, first, plan)
    }

    /// The relay of host 4.
    const NEW: &str = "gcp:asia-east1-2";

    #[test]
    fn budget_that_pays_no_longer_ends_the_wait_at_once() {
        let usd = |usd| Money::from_usd(usd).unwrap();
        let budget = |most| Event::ChangeSettings(SettingsRequest::budget(usd(most)));
        for most in [0.0, 1.0] {
            let (mut bench, first, plan) = with_new_machine();
            bench.event(Event::Apply { plan });
            pass_while_it_starts(&mut bench, 100);
            assert_eq!(at(&bench), (Some(plan), Step::Relays));
            bench.controller = bench.restarted();
            bench.event(budget(most));
            assert_eq!(bench.config(NEW), None, "in the same decision");
            bench.pass(30);
            let stays = first.filter(|_| most > 0.0);
            assert_eq!(at(&bench), (stays, Step::Done), "one that costs too much is kept for now");
        }
        // Spent.
        let (mut bench, _, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        pass_while_it_starts(&mut bench, 100);
        let (bytes_up, session) = (1_000_000_000_000, tally(Arm::Overlay, &PATH, &[1.0]));
        bench.sessions(1, 1, vec![SessionTally { size_class: 40, bytes_up, ..session }]);
        bench.event(Event::Tick);
        assert_eq!(bench.config(NEW), None);
        bench.pass(30);
        assert_eq!(at(&bench), (None, Step::Done));
        assert!(PATH.iter().all(|relay| bench.config(relay).is_none()));
    }

    #[test]
    fn operator_ends_the_wait_by_the_plan_in_effect() {
        let (mut bench, first, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        pass_while_it_starts(&mut bench, 10);
        assert!(matches!(bench.refusal(Event::Apply { plan }), Refusal::Conflict(_)));
        // Although a host of it is drained.
        bench.event(Event::Apply { plan: first.unwrap() });
        assert_eq!((bench.state().rollout.to, bench.config(NEW)), (first, None));
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
        bench.pass(30);
        assert_eq!(at(&bench), (first, Step::Done), "the controller does not insist on it");
        let again = bench.plan();
        assert_eq!(at(&bench), (Some(again), Step::Relays), "a newer one is another matter");
    }

    #[test]
    fn only_machines_that_are_set_up_are_waited_for_longer() {
        let (mut bench, first, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        pass_while_it_is(ProcessState::Draining, &mut bench, 58);
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        pass_while_it_is(ProcessState::Draining, &mut bench, 5);
        assert_eq!(at(&bench), (first, Step::Done));
        assert_eq!(has_said(&bench, "relay gcp:asia-east1-2 not ready in 60 s"), 1);
    }

    #[test]
    fn host_that_cannot_come_ends_the_wait_at_once() {
        for number in 0..3 {
            let (mut bench, first, plan) = with_new_machine();
            bench.event(Event::Apply { plan });
            pass_while_it_starts(&mut bench, 10);
            let why = match number {
                0 => {
                    bench.event(Event::Drain { host: host(NEW), is_drained: true });
                    "is drained"
                }
                1 => {
                    bench.event(Event::Revoke(host(NEW)));
                    "is revoked"
                }
                _ => {
                    let version = bench.state().documents[&host(NEW)].version;
                    bench.report_with(4, |report| {
                        let reason = "above the ceiling".to_owned();
                        let refused = crate::message::RefusedDocument { version, reason };
                        report.refused = Some(refused);
                    });
                    "is unreachable or failing"
                }
            };
            bench.event(Event::Tick);
            assert_eq!(bench.state().rollout.to, first, "{why}");
            // A revoked host gets no document any more.
            assert!(bench.config(NEW).is_none() || number == 1, "{why}");
            assert_eq!(has_said(&bench, &format!("host gcp:asia-east1-2 of plan {plan} {why}")), 1);
            assert_eq!(bench.state().rollout.given_up.len(), usize::from(number > 1));
        }
    }

    #[test]
    fn relay_that_its_agent_starts_again_is_waited_for() {
        let (mut bench, _, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        pass_while_it_is(ProcessState::Failed, &mut bench, 10);
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        bench.pass(5);
        assert_eq!(at(&bench), (Some(plan), Step::Done));
    }

    #[test]
    fn relay_that_does_not_run_by_its_newest_configuration_is_not_ready() {
        let (mut bench, _, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        for _ in 0..10 {
            bench.pass_without(1, &[4]);
            bench.report_with(4, |report| {
                report.processes.iter_mut().for_each(|it| it.failure = Some("stale".to_owned()));
            });
        }
        assert!(bench.state().has_failed(&host(NEW)));
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        bench.pass(5);
        assert!(!bench.state().has_failed(&host(NEW)));
        assert_eq!(at(&bench), (Some(plan), Step::Done));
    }

    #[test]
    fn controller_gives_a_machine_up_for_a_while_and_longer_each_time() {
        let (mut bench, first, plan) = with_new_machine();
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
        assert_eq!(at(&bench), (Some(plan), Step::Relays), "a host of the other is drained");
        pass_while_it_starts(&mut bench, 365);
        assert_eq!(at(&bench), (first, Step::Done));
        assert_eq!(has_said(&bench, "goes back to plan"), 1);
        let stale = bench.controller.staleness(bench.time());
        assert!(stale.iter().any(|why| why.contains("was given up")), "{stale:?}");
        let other = bench.plan();
        assert!(!bench.state().plans[&other].hosts.values().any(|used| *used == host(NEW)));
        let kept = bench.restarted();
        assert_eq!(kept.state().rollout.given_up, bench.state().rollout.given_up);
        assert_eq!(bench.controller.staleness(bench.time()), Vec::<String>::new());
        // As long as machines take to be set up, and a minute.
        pass_while_it_starts(&mut bench, 330);
        assert_eq!(bench.config(NEW), None);
        assert_eq!(bench.controller.staleness(bench.time()), Vec::<String>::new());
        pass_while_it_starts(&mut bench, 40);
        let stale = bench.controller.staleness(bench.time());
        assert!(stale.iter().any(|why| why.contains("may be tried again")), "{stale:?}");
        let again = bench.plan();
        assert!(bench.state().plans[&again].hosts.values().any(|used| *used == host(NEW)));
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
        if at(&bench).1 == Step::Done {
            bench.event(Event::Apply { plan: again });
        }
        pass_while_it_starts(&mut bench, 365);
        let times = |bench: &Bench| -> Vec<u32> {
            bench.state().rollout.given_up.iter().map(|it| it.times).collect()
        };
        assert_eq!(times(&bench), [2]);
        let left = bench.state().rollout.given_up[0].until_unix_ms - bench.now;
        assert!((700_000..=720_000).contains(&left), "{left}");
        // Another version may do better, and the operator knows more.
        let is_given_up = |bench: &Bench| bench.state().is_given_up(&host(NEW), bench.now);
        assert!(is_given_up(&bench));
        bench.report_with(4, |report| report.agent_version = "9.9.9".to_owned());
        assert!(!is_given_up(&bench));
        bench.report(4, Vec::new());
        assert!(is_given_up(&bench));
        bench.event(Event::Drain { host: host(NEW), is_drained: false });
        assert_eq!(times(&bench), Vec::<u32>::new());
        // One that is ready is given up no more.
        bench.event(Event::Apply { plan: again });
        bench.pass(10);
        assert_eq!(at(&bench), (Some(again), Step::Done));
    }

    #[test]
    fn relays_go_on_of_a_plan_that_gateways_were_told_of() {
        let (mut bench, first, plan) = with_new_machine();
        bench.event(Event::Drain { host: host("gcp:asia-east1-1"), is_drained: false });
        bench.event(Event::Apply { plan });
        // A gateway has its paths, and another one may: it is not in effect yet.
        let pass_without_gateway = |bench: &mut Bench| {
            for _ in 0..3 {
                bench.now += 1000;
                bench.event(Event::Tick);
                (2..=4).for_each(|number| drop(bench.report(number, Vec::new())));
            }
        };
        pass_without_gateway(&mut bench);
        assert_eq!(at(&bench), (Some(plan), Step::Gateways));
        assert!(bench.state().plans[&plan].paths_since.is_empty());
        bench.event(Event::Apply { plan: first.unwrap() });
        pass_without_gateway(&mut bench);
        assert_eq!(at(&bench), (first, Step::Gateways));
        // Again, and its relay is started anew and does not come.
        bench.report_with(4, |report| report.processes[0].state = ProcessState::Starting);
        bench.event(Event::Apply { plan });
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        bench.event(Event::Apply { plan: first.unwrap() });
        assert!(bench.config(NEW).is_some(), "sessions may be open over it");
        bench.pass(30);
        assert_eq!(at(&bench), (first, Step::Done));
        let retiring: Vec<u64> = bench.state().rollout.retiring.iter().map(|it| it.plan).collect();
        assert_eq!(retiring, [plan]);
        assert!(bench.config(NEW).is_some());
    }

    #[test]
    fn plan_waits_as_long_as_machines_take_to_set_up() {
        let (mut bench, first, plan) = with_new_machine();
        let new = host(NEW);
        let machine = |bench: &Bench| {
            let days = bench.state().spent.values();
            days.filter_map(|spent| spent.machines.get(&new)).map(|usd| usd.as_usd()).sum::<f64>()
        };
        bench.event(Event::Apply { plan });
        pass_while_it_starts(&mut bench, 350);
        assert_eq!(at(&bench), (Some(plan), Step::Relays));
        let awaited: Vec<_> = awaited_relays(bench.state(), bench.now).collect();
        assert_eq!(awaited, [&new]);
        assert!(!bench.config("office-1").unwrap().contains("192.0.2.4"), "no path over it yet");
        // It costs from when its machine starts.
        let whole = 0.5 * 350.0 / 86_400.0;
        assert!((0.8 * whole..=1.2 * whole).contains(&machine(&bench)), "{}", machine(&bench));
        bench.pass(5);
        assert_eq!(at(&bench), (Some(plan), Step::Done));
        assert_eq!(awaited_relays(bench.state(), bench.now).count(), 0);
        assert!(bench.config("office-1").unwrap().contains("192.0.2.4"));
        assert_ne!(at(&bench).0, first);
    }

    #[test]
    fn machine_that_is_never_set_up_is_given_up_and_paid_no_more() {
        let (mut bench, first, plan) = with_new_machine();
        bench.event(Event::Apply { plan });
        pass_while_it_starts(&mut bench, 356);
        assert_eq!(bench.state().rollout.step, Step::Relays);
        pass_while_it_starts(&mut bench, 10);
        assert_eq!((bench.state().rollout.to, bench.state().rollout.step), (first, Step::Done));
        assert_eq!(has_said(&bench, "relay gcp:asia-east1-2 not ready in 360 s"), 1);
        assert_eq!(bench.config("gcp:asia-east1-2"), None, "no session began over it");
        assert_eq!(bench.state().rollout.retiring, []);
        assert!(bench.config("gcp:asia-east1-1").is_some());
    }

    #[test]
    fn plan_made_during_a_rollout_is_applied_after_it() {
        let mut bench = Bench::in_service();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::from_usd(20.0).unwrap())));
        assert_ne!(bench.state().rollout.step, Step::Done);
        let next = bench.plan();
        assert_eq!(bench.state().rollout.to, None);
        bench.pass(20);
        assert_eq!(
            (bench.state().rollout.to, bench.state().rollout.step),
            (Some(next), Step::Done)
        );
    }

    #[test]
    fn one_rollout_at_a_time_but_back_to_the_plan_before() {
        let (mut bench, first, second) = with_proposal();
        let in_effect = bench.refusal(Event::Apply { plan: first });
        assert!(matches!(in_effect, Refusal::Conflict(_)));
        assert!(matches!(bench.refusal(Event::Apply { plan: 99 }), Refusal::NotFound(_)));
        bench.event(Event::AddFlow(flow("b", 8)));
        bench.event(Event::Apply { plan: second });
        // Its relays are ready already; its gateway has a new document.
        bench.pass_without(1, &[1]);
        assert_eq!(bench.state().rollout.step, Step::Gateways);
        assert!(matches!(bench.refusal(Event::Apply { plan: second }), Refusal::Conflict(_)));
        bench.event(Event::Apply { plan: first });
        bench.pass(3);
        assert_eq!(
            (bench.state().rollout.to, bench.state().rollout.step),
            (Some(first), Step::Done)
        );
    }
}
