//! Runs without faults, in which one thing is otherwise than measured or planned.

use tradewind_control::demand::VolumeSource;
use tradewind_control::history::History;
use tradewind_control::record::{AuditEntry, Mode};
use tradewind_control::{Event, SettingsRequest, gain};
use tradewind_units::{Bytes, Money};

use super::world::{Changed, Conditions, RELAYS};
use super::{DAY, Simulation, store, world};

/// Seconds until a plan with measured rates is in effect; with the first one a multiple of the
/// planner's period, so that longer steps meet it.
const SETTLED: u64 = 239;

/// The leg between the relays of the best path.
fn middle(rtt: f64, rate: f64, claimed: f64) -> Option<Changed> {
    let [from, to] = ["gcp:europe-north1", "gcp:us-east1"];
    Some(Changed { from, to, rtt, rate, claimed })
}

/// A controller that applies plans by itself, for one flow with sessions of its gateway.
struct Scenario {
    simulation: Simulation,
    at: u64,
}

impl Scenario {
    fn new(conditions: Conditions) -> Self {
        let mut simulation = Simulation::new(1);
        (simulation.is_calm, simulation.is_quiet) = (true, false);
        simulation.conditions = conditions;
        let mut scenario = Self { simulation, at: 0 };
        scenario.simulation.operates = false;
        scenario.pass(1, 1);
        scenario.simulation.set_budget(0, 40.0);
        scenario.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
        scenario.event(&Event::AddFlow(world::flow(0, 0)));
        scenario
    }

    fn event(&mut self, event: &Event) {
        self.simulation.event(self.at, event).unwrap();
    }

    /// Lets so many seconds pass, so many at a time.
    fn pass(&mut self, seconds: u64, step: u64) {
        for _ in 0..seconds / step {
            self.at += step * 1000;
            self.simulation.step(self.at);
            self.simulation.check_paths(self.at);
        }
    }

    /// Returns the names of the relays on the flow's first path; none: it goes directly.
    fn path(&self) -> Vec<String> {
        let gateway = &self.simulation.agents[RELAYS.len()];
        let paths = gateway.paths();
        let first = paths.first().map(|(_, hops)| hops.iter().map(|hop| hop.name.to_string()));
        first.into_iter().flatten().collect()
    }

    fn said(&self, text: &str) -> Option<AuditEntry> {
        let audit = self.simulation.server.state().audit.values();
        audit.rev().find(|entry| entry.action.contains(text)).cloned()
    }

    /// Returns the seconds until `is_so`.
    fn until(&mut self, most: u64, is_so: impl Fn(&Self) -> bool) -> u64 {
        for seconds in 0..most {
            if is_so(self) {
                return seconds;
            }
            self.pass(1, 1);
        }
        let audit = self.simulation.server.state().audit.values().rev().take(5);
        let last: Vec<&str> = audit.map(|entry| entry.action.as_str()).collect();
        let now = store::timestamp(self.at + world::START);
        let stale = self.simulation.server.controller.staleness(now);
        panic!("not within {most} s: {:?}; {stale:?}; {last:?}", self.path());
    }
}

/// A relay claims ten times the rate of a leg: the path is taken back within two windows, and not
/// taken again for an hour.
pub(crate) fn planted_measurement_is_taken_back() {
    let conditions =
        Conditions { leg: middle(1.0, 0.1, 10.0), bytes: Some(60_000_000), jitter: 0.0 };
    let mut scenario = Scenario::new(conditions);
    let is_over_it = |scenario: &Scenario| {
        let path = scenario.path();
        path.len() == 2 && path[0].contains("europe") && path[1].contains("us-east")
    };
    scenario.until(SETTLED, is_over_it);
    let seconds = scenario.until(90, |scenario| !is_over_it(scenario));
    assert!((30..=80).contains(&seconds), "{seconds} s");
    let said = scenario.said("takes flow flow0 back from gcp:europe-north1-").unwrap();
    assert!(said.action.contains("times as long as predicted; measures again office -> "));
    for _ in 0..3000 {
        scenario.pass(1, 1);
        assert!(!is_over_it(&scenario));
    }
}

/// A leg slows down: the plan is stale and the flow moved within a minute.
pub(crate) fn slowed_leg_moves_flows_within_a_minute() {
    let mut scenario = Scenario::new(Conditions::default());
    scenario.pass(SETTLED, 1);
    let before = scenario.path();
    assert_eq!(before, ["gcp:europe-north1-1", "gcp:us-east1-1"]);
    scenario.simulation.conditions.leg = middle(2.0, 0.5, 1.0);
    let newest = |scenario: &Scenario| scenario.simulation.server.state().counters.next_plan;
    let plans = newest(&scenario);
    let stale = scenario.until(60, |scenario| newest(scenario) > plans);
    scenario.until(60 - stale, |scenario| scenario.path() != before);
    assert!(!scenario.path().is_empty());
    assert!(scenario.said("applies plan").is_some() && scenario.said("takes flow").is_none());
}

/// Round-trip times that vary by a tenth for a day: a flow changes its path twice at most.
pub(crate) fn noise_moves_no_flows() {
    let mut scenario = Scenario::new(Conditions { jitter: 0.1, ..Conditions::default() });
    scenario.pass(SETTLED, 1);
    let (mut changes, mut path) = (0, scenario.path());
    for _ in 0..DAY / 10_000 {
        scenario.pass(10, 10);
        let now = scenario.path();
        changes += u32::from(now != path);
        path = now;
    }
    assert!(changes <= 2 && !path.is_empty(), "{changes} changes, {path:?}");
    assert!(scenario.said("takes flow").is_none());
}

/// Sessions use up the budget: all flows go direct at once, and until the next day.
pub(crate) fn spent_budget_stops_all_until_the_next_day() {
    let mut scenario = Scenario::new(Conditions::default());
    scenario.pass(SETTLED, 1);
    assert!(!scenario.path().is_empty());
    scenario.simulation.conditions.bytes = Some(20_000_000_000);
    let spending = |scenario: &Scenario| {
        let now = store::timestamp(scenario.at + world::START);
        gain::spending(scenario.simulation.server.state(), now)
    };
    scenario.until(600, |scenario| spending(scenario).is_exhausted);
    scenario.until(10, |scenario| scenario.path().is_empty());
    assert!(scenario.said("all flows go direct until the next day (UTC)").is_some());
    scenario.simulation.conditions.bytes = None;
    let day = spending(&scenario).day;
    while spending(&scenario).day == day {
        scenario.pass(10, 10);
        assert!(scenario.path().is_empty() || spending(&scenario).day != day);
    }
    assert!(spending(&scenario).budget > Money::ZERO);
    scenario.until(60, |scenario| !scenario.path().is_empty());
}

/// Demand that changes by hour, and is another than declared: the plan follows the forecast once
/// there is one, and again when the demand grows, and else stays.
pub(crate) fn demand_that_changes_by_hour_is_forecast() {
    let mut scenario = Scenario::new(Conditions::default());
    scenario.pass(SETTLED, 1);
    let carry_days = |scenario: &mut Scenario, days: u64, times: u64| {
        let until = scenario.at + days * DAY;
        while scenario.at < until {
            let hour = (scenario.at + world::START) / 3_600_000 % 24;
            let bytes = if (8..18).contains(&hour) { 4_000_000 } else { 500_000 };
            scenario.simulation.conditions.bytes = Some(bytes * times);
            scenario.pass(120, 120);
        }
    };
    let planned = |scenario: &Scenario| {
        let state = scenario.simulation.server.state();
        state.newest_plan().unwrap().demands[&world::flow(0, 0).id].clone()
    };
    let plans = |scenario: &Scenario| scenario.simulation.server.state().counters.next_plan;
    carry_days(&mut scenario, 6, 1);
    assert_eq!(planned(&scenario).basis, VolumeSource::Declared);
    carry_days(&mut scenario, 2, 1);
    let (path, before) = (scenario.path(), planned(&scenario));
    assert_eq!(before.basis, VolumeSource::Forecast);
    // A session over relays and one beside it, each other minute.
    let day = 2 * 30 * (10 * 4_000_000 + 14 * 500_000);
    let is_about = |volume: Bytes, day: u64| volume.as_u64().abs_diff(day) < day / 20;
    assert!(path.len() == 2 && is_about(before.per_day, day), "{path:?}, {}", before.in_words());
    let forecast = before.forecast.unwrap();
    assert!(forecast.error_ratio < Some(0.05) && forecast.concurrent == 1, "{forecast:?}");
    // The forecast stays, and so does the plan, through all hours of the day.
    let made = plans(&scenario);
    carry_days(&mut scenario, 2, 1);
    assert_eq!((plans(&scenario), scenario.path()), (made, path));
    carry_days(&mut scenario, 2, 3);
    assert!(is_about(planned(&scenario).per_day, 3 * day), "{}", planned(&scenario).in_words());
    // As the days grow, hour by hour, by more than a fifth each.
    assert!((made + 1..made + 20).contains(&plans(&scenario)), "{}", plans(&scenario) - made);
    // By hours and by days it is the same.
    let state = scenario.simulation.server.state();
    let by_hour = state.usage.values().flat_map(History::hours);
    let by_day = state.sessions.values().flatten();
    assert_eq!(
        by_hour.map(|hour| hour.bytes).sum::<u64>(),
        by_day.map(|tally| tally.bytes()).sum::<u64>()
    );
}
