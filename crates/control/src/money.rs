//! Money in the loop: machines metered by the time for which relays were to run, the alarm, and the
//! stop once the budget of the day is spent.

use tradewind_config::Kind;
use tradewind_units::{Duration, Money, Timestamp};

use crate::draft::{CONTROLLER, DAY_MS, Draft};
use crate::gain;
use crate::prices;
use crate::record::{Host, PlanRecord, Record, Spent};
use crate::state::State;

/// Most that the traffic of a day counts for, and its rate tests, in dollars. Chosen: below what
/// [`Money`] can be.
const MAX_USD: f64 = 1e8;

/// Returns the most that a sum of a day counts for.
pub(crate) fn most() -> Money {
    Money::from_usd(MAX_USD).unwrap_or_default()
}

/// Counts the time of machines since it was counted last. Those that run relays now are taken to
/// have run them all that time; the caller counts each minute.
pub(crate) fn meter(draft: &mut Draft) {
    let (now, day) = (draft.now(), draft.now() / DAY_MS);
    let is_running = |host: &&Host| {
        let document = draft.state.documents.get(&host.id);
        let is_relay = |kind: Kind| kind == Kind::Relay;
        document.is_some_and(|it| it.processes.iter().any(|process| is_relay(process.kind)))
    };
    let running: Vec<Host> = draft.state.hosts.values().filter(is_running).cloned().collect();
    let open = draft.state.spent.values().rev().find(|spent| spent.is_metering).cloned();
    let mut since = now;
    if let Some(open) = open {
        since = if open.day == day { open.until_unix_ms } else { now };
        if open.day != day {
            let end = (open.day + 1) * DAY_MS;
            if open.day < day {
                since = day * DAY_MS;
            }
            let counted = counted(&draft.state, open, &running, end.min(now));
            let closed = Spent { is_metering: false, ..counted };
            draft.push(Record::Spent(closed));
        }
    } else if running.is_empty() {
        return;
    }
    let today = draft.state.spent.get(&day).cloned().unwrap_or_default();
    let today = Spent { day, until_unix_ms: since, is_metering: !running.is_empty(), ..today };
    let counted = counted(&draft.state, today, &running, now);
    draft.push(Record::Spent(counted));
}

/// Adds the cost of hosts, and what the plan estimated, from the time up to which machines are
/// counted until `end`.
fn counted(state: &State, mut spent: Spent, running: &[Host], end: u64) -> Spent {
    let millis = end.saturating_sub(spent.until_unix_ms);
    for host in running {
        let cost = spent.machines.entry(host.id.clone()).or_default();
        *cost = *cost + prices::machine(&state.settings.terms, host, millis);
    }
    let a_day = state.plan_in_effect().map_or(Money::ZERO, |plan| plan.usd_per_day);
    spent.estimated = (spent.estimated + a_day.prorated(millis, DAY_MS)).min(most());
    spent.until_unix_ms = end;
    spent
}

/// The traffic that a report tells of.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Traffic {
    /// The cost of sessions' traffic.
    pub(crate) sessions: Money,
    /// The cost of rate tests.
    pub(crate) tests: Money,
    /// The bytes of rate tests.
    pub(crate) test_bytes: u64,
}

/// Adds the traffic of sessions and of rate tests to what today has cost.
pub(crate) fn charge(state: &State, now: u64, carried: Traffic, records: &mut Vec<Record>) {
    let Traffic { sessions, tests, test_bytes } = carried;
    if sessions == Money::ZERO && tests == Money::ZERO && test_bytes == 0 {
        return;
    }
    let day = now / DAY_MS;
    let before = state.spent.get(&day).cloned();
    let before = before.unwrap_or(Spent { day, until_unix_ms: now, ..Spent::default() });
    let most = most();
    let (traffic, tests) = (before.traffic + sessions, before.tests + tests);
    // A day that began under an older program has no whole sum.
    let is_known = before.test_bytes.is_some() || before.tests == Money::ZERO;
    let bytes = before.test_bytes.unwrap_or(0).saturating_add(test_bytes);
    records.push(Record::Spent(Spent {
        traffic: traffic.min(most),
        tests: tests.min(most),
        test_bytes: is_known.then_some(bytes),
        ..before
    }));
}

/// Says once a day that the alarm's share of the budget is spent, and that all of it is; returns
/// whether the latter is new.
pub(crate) fn watch(draft: &mut Draft) -> bool {
    let spending = gain::spending(&draft.state, draft.time);
    let Some(spent) = draft.state.spent.get(&spending.day).cloned() else { return false };
    if spending.budget == Money::ZERO {
        return false;
    }
    let so_far = format!(
        "{} of today's budget {} spent: {} for machines, {} for traffic, {} for rate tests",
        spent.total(),
        spending.budget,
        spending.machines,
        spending.traffic,
        spending.tests
    );
    let alarms = spending.is_alarmed && !spent.has_alarmed;
    let stops = spending.is_exhausted && !spent.has_stopped;
    if alarms || stops {
        let has_alarmed = spent.has_alarmed || alarms;
        let has_stopped = spent.has_stopped || stops;
        draft.push(Record::Spent(Spent { has_alarmed, has_stopped, ..spent }));
    }
    if alarms {
        draft.audit(CONTROLLER, format!("alarm: {so_far}"));
    }
    if stops {
        let until = "all flows go direct until the next day (UTC)";
        draft.audit(CONTROLLER, format!("{until}: {so_far}"));
    }
    stops
}

/// Returns what a plan of now may cost: nothing once today's budget is spent.
pub(crate) fn available(state: &State, now: u64) -> Money {
    let is_spent = gain::spending(state, time(now)).is_exhausted;
    if is_spent { Money::ZERO } else { state.settings.budget_usd_per_day }
}

/// Returns whether a plan costs something, and nothing may be spent now.
pub(crate) fn is_unpaid(state: &State, now: u64, plan: &PlanRecord) -> bool {
    plan.usd_per_day > Money::ZERO && available(state, now) == Money::ZERO
}

fn time(unix_ms: u64) -> Timestamp {
    Timestamp::from_nanos(0) + Duration::from_millis(unix_ms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, Refusal, SettingsRequest};
    use crate::message::{Arm, SessionTally};
    use crate::record::{AuditEntry, Step};
    use crate::testing::{Bench, PATH, tally};

    /// Returns sessions that carried so many gigabytes.
    fn gigabytes(count: u64) -> SessionTally {
        let bytes_up = count * 1_000_000_000;
        SessionTally { size_class: 40, bytes_up, ..tally(Arm::Overlay, &PATH, &[1.0]) }
    }

    fn said(bench: &Bench, text: &str) -> usize {
        let says = |entry: &&AuditEntry| entry.action.contains(text);
        bench.state().audit.values().filter(says).count()
    }

    #[test]
    fn spent_budget_sends_all_flows_direct_until_the_next_day() {
        let mut bench = Bench::in_service();
        let usd = |usd| Money::from_usd(usd).unwrap();
        let budget = |alarm_share| {
            let budget = SettingsRequest::budget(usd(20.0));
            Event::ChangeSettings(SettingsRequest { alarm_share, ..budget })
        };
        bench.event(budget(Some(0.5)));
        let has_paths = |bench: &Bench| bench.config("office-1").unwrap().contains("twgrant_");
        bench.sessions(1, 1, vec![gigabytes(70)]);
        bench.pass(5);
        assert_eq!((said(&bench, "alarm: "), has_paths(&bench)), (1, true));
        bench.pass(100);
        assert_eq!(said(&bench, "alarm: "), 1, "once a day");
        bench.sessions(1, 2, vec![gigabytes(70)]);
        bench.event(Event::Tick);
        assert!(!has_paths(&bench), "at once");
        assert_eq!(said(&bench, "all flows go direct until the next day (UTC): $"), 1);
        bench.pass(20);
        assert_eq!((bench.state().rollout.to, bench.state().rollout.step), (None, Step::Done));
        assert_eq!(bench.config(PATH[0]), None);
        // Neither the planner nor the operator goes back before.
        let old = bench.state().newest_plan().unwrap().number;
        assert!(matches!(bench.refusal(Event::Apply { plan: old }), Refusal::Conflict(_)));
        assert!(!bench.controller.staleness(bench.time()).is_empty());
        bench.plan();
        bench.pass(20);
        assert!(!has_paths(&bench));
        assert_eq!(bench.controller.staleness(bench.time()), Vec::<String>::new());
        assert!(bench.restarted().problem(bench.time()).unwrap().budget() == Money::ZERO);
        bench.now = (bench.now / DAY_MS + 1) * DAY_MS - 2000;
        bench.pass(5);
        let stale = bench.controller.staleness(bench.time());
        assert!(stale.iter().any(|why| why.contains("$20.00 a day, and could $0.00")), "{stale:?}");
        bench.plan();
        bench.pass(20);
        assert!(has_paths(&bench));
    }

    #[test]
    fn machines_cost_by_new_terms_from_when_they_are_set() {
        let mut bench = Bench::in_service();
        let spent = |bench: &Bench| {
            bench.state().spent.values().map(|spent| spent.of_machines().as_usd()).sum::<f64>()
        };
        bench.event(Event::Tick);
        let before = spent(&bench);
        // Two relays, for a tenth of a dollar a second each.
        let text = "[relay_types.standard]\nusd_per_day = 8640\ncapacity = \"1 Gbit/s\"\n";
        let terms = Some(toml::from_str(text).unwrap());
        bench.now += 50_000;
        bench.event(Event::ChangeSettings(SettingsRequest { terms, ..SettingsRequest::default() }));
        assert!(spent(&bench) - before < 0.01, "the time before costs what it did");
        let before = spent(&bench);
        bench.pass(120);
        let cost = spent(&bench) - before;
        assert!((12.0..=24.1).contains(&cost), "{cost}");
    }

    #[test]
    fn machines_are_counted_while_relays_are_to_run() {
        let mut bench = Bench::in_service();
        let day = bench.now / DAY_MS;
        let of = |bench: &Bench, day: u64| {
            bench.state().spent.get(&day).map_or(0.0, |spent| spent.of_machines().as_usd())
        };
        bench.now = (day + 1) * DAY_MS - 3_600_000;
        bench.event(Event::Tick);
        let before = of(&bench, day);
        bench.pass(3600 + 1800);
        assert!((of(&bench, day) - before - 1.0 / 24.0).abs() < 0.001);
        assert!((of(&bench, day + 1) - 0.5 / 24.0).abs() < 0.001);
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
        bench.pass(60);
        let stopped = of(&bench, day + 1);
        bench.pass(1000);
        assert!((of(&bench, day + 1) - stopped).abs() < 0.001);
        // A clock that is put back costs nothing.
        bench.now -= 2 * DAY_MS;
        bench.pass(120);
        assert!(bench.state().spent.get(&(day - 1)).is_none_or(|it| it.total() == Money::ZERO));
    }
}
