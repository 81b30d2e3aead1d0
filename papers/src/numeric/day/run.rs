//! One run of `lab-day`: the day of a seed, lived by the controller, and what other ways of
//! planning would have made of it.

use std::collections::BTreeSet;

use tradewind_control::{Controller, Record, State};
use tradewind_model::measurement::{LegMeasurement, Method, RateSummary, RttSummary};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, HostId, SiteId};

use super::overlay::{Overlay, STEP, plan_of, timestamp};
use super::scenario::Scenario;
use super::world::{Ends, HOURS, MIDNIGHT, Route, World};
use crate::harness::{NumericError, Random, Stop};

/// Time before the day in which hosts join, and the morning's plan is made, in milliseconds.
const WARM_UP: u64 = 1_800_000;
/// Multiple of hindsight's time from which on a path counts as bad.
pub(super) const BAD: f64 = 1.25;

/// A way of planning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    Static,
    Controller,
    Hindsight,
}

impl Way {
    pub(super) const ALL: [Self; 4] =
        [Self::Direct, Self::Static, Self::Controller, Self::Hindsight];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Static => "the morning's plan",
            Self::Controller => "the controller",
            Self::Hindsight => "hindsight",
        }
    }
}

/// The result of one way of planning.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Account {
    /// Time of all sessions together, in seconds, by hour.
    pub(super) seconds: [f64; HOURS as usize],
    /// Money spent so far, in dollars.
    pub(super) spent_usd: f64,
}

impl Account {
    pub(super) fn total(&self) -> f64 {
        self.seconds.iter().sum()
    }
}

/// The figures of a run.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// By [`Way`].
    pub(super) accounts: [Account; 4],
    /// Changes of each flow's path in the day.
    pub(super) changes: Vec<usize>,
    /// The same in a day on which nothing changes but by noise.
    pub(super) by_noise: Vec<usize>,
    /// Longest time for which a path took [`BAD`] times as long as hindsight's, in minutes.
    pub(super) longest_bad: f64,
}

impl Outcome {
    pub(super) const fn account(&self, way: Way) -> &Account {
        &self.accounts[way as usize]
    }

    /// Returns the times of direct sessions over those of a way.
    pub(super) fn acceleration(&self, way: Way) -> f64 {
        self.account(Way::Direct).total() / self.account(way).total()
    }

    /// Returns the time that a way saves as a share of what hindsight saves.
    pub(super) fn share(&self, way: Way) -> f64 {
        let direct = self.account(Way::Direct).total();
        let saved = |way: Way| direct - self.account(way).total();
        saved(way) / saved(Way::Hindsight)
    }
}

/// Paths of all flows, and the machines that they take.
#[derive(Debug, Clone)]
struct Paths {
    routes: Vec<Route>,
    machines: usize,
}

impl Paths {
    fn direct(scenario: &Scenario) -> Self {
        let route = |flow: &super::scenario::Flow| Route::direct(&flow.from, &flow.to);
        Self { routes: scenario.flows.iter().map(route).collect(), machines: 0 }
    }

    /// Returns the paths that gateways have.
    fn of(overlay: &Overlay<'_>, scenario: &Scenario) -> Self {
        let routes: Vec<Route> =
            scenario.flows.iter().map(|flow| overlay.route(&flow.name)).collect();
        let hosts: BTreeSet<&HostId> = routes.iter().flat_map(|route| &route.hosts).collect();
        Self { machines: hosts.len(), routes }
    }
}

/// Lives the day of a seed.
///
/// # Errors
/// When the controller refuses what it should take, or the run is stopped.
pub(super) fn run(
    scenario: &Scenario,
    hour: Duration,
    seed: u64,
    stop: &Stop,
) -> Result<Outcome, NumericError> {
    let mut day = Day::begin(scenario, hour, seed, stop)?;
    day.plant(seed);
    day.live(stop)?;
    let mut calm = Day::begin(scenario, hour, seed, stop)?;
    calm.overlay.world.calm();
    calm.live_alone(stop)?;
    day.accounts[Way::Controller as usize].spent_usd = day.metered_usd;
    Ok(Outcome {
        accounts: day.accounts,
        changes: day.changes,
        by_noise: calm.changes,
        longest_bad: day.longest_bad as f64 / 60_000.0,
    })
}

struct Day<'a> {
    scenario: &'a Scenario,
    overlay: Overlay<'a>,
    morning: Paths,
    /// The controller's state in the morning, from which hindsight plans.
    morning_state: State,
    accounts: [Account; 4],
    changes: Vec<usize>,
    /// Time since when each flow's path has been bad, and the longest, in milliseconds.
    bad: Vec<u64>,
    longest_bad: u64,
    /// Most that the meter said, in dollars.
    metered_usd: f64,
}

impl<'a> Day<'a> {
    /// Lets hosts join, and the controller plan, until the day begins.
    fn begin(
        scenario: &'a Scenario,
        hour: Duration,
        seed: u64,
        stop: &Stop,
    ) -> Result<Self, NumericError> {
        let world = World::new(scenario, hour, &mut Random::new(seed))?;
        let begin = MIDNIGHT - WARM_UP;
        let mut overlay = Overlay::new(scenario, world, (begin, seed))?;
        for at in (begin + STEP..MIDNIGHT).step_by(STEP as usize) {
            overlay.step(at)?;
            check(stop)?;
        }
        Ok(Self {
            scenario,
            morning: Paths::of(&overlay, scenario),
            morning_state: overlay.state().clone(),
            overlay,
            accounts: Default::default(),
            changes: vec![0; scenario.flows.len()],
            bad: vec![0; scenario.flows.len()],
            longest_bad: 0,
            metered_usd: 0.0,
        })
    }

    /// Lets legs and hosts of the morning's plan change in the course of the day.
    fn plant(&mut self, seed: u64) {
        let over_relays = || self.morning.routes.iter().filter(|route| route.relays() > 0);
        let legs: BTreeSet<Ends> = over_relays().flat_map(Route::legs).collect();
        let hosts: BTreeSet<HostId> = over_relays().flat_map(|it| it.hosts.clone()).collect();
        let (legs, hosts): (Vec<_>, Vec<_>) =
            (legs.into_iter().collect(), hosts.into_iter().collect());
        self.overlay.world.plant(&legs, &hosts, &mut Random::new(seed ^ 0x5eed));
    }

    /// Lives the day, with all ways of planning beside each other.
    fn live(&mut self, stop: &Stop) -> Result<(), NumericError> {
        let mut changes = self.overlay.world.changes();
        let mut hindsight = Paths::direct(self.scenario);
        let direct = hindsight.clone();
        for at in (MIDNIGHT..self.overlay.world.end()).step_by(STEP as usize) {
            check(stop)?;
            let is_due = changes.first().is_some_and(|next| *next <= at);
            changes.retain(|next| *next > at);
            if is_due {
                hindsight = self.hindsight(at)?;
            }
            let controllers = Paths::of(&self.overlay, self.scenario);
            let ended = self.step(at, &controllers)?;
            let morning = self.morning.clone();
            let ways = [&direct, &morning, &controllers, &hindsight];
            for (way, paths) in Way::ALL.into_iter().zip(ways) {
                self.account(at, way, paths, &ended);
            }
            self.judge(at, &controllers, &hindsight);
        }
        Ok(())
    }

    /// Lives the day with the controller alone.
    fn live_alone(&mut self, stop: &Stop) -> Result<(), NumericError> {
        for at in (MIDNIGHT..self.overlay.world.end()).step_by(STEP as usize) {
            check(stop)?;
            let before = Paths::of(&self.overlay, self.scenario);
            self.step(at, &before)?;
        }
        Ok(())
    }

    /// Lets a step pass, and counts the flows whose path it changes; returns the sessions.
    fn step(&mut self, at: u64, before: &Paths) -> Result<Vec<f64>, NumericError> {
        let ended = self.overlay.step(at)?;
        let after = Paths::of(&self.overlay, self.scenario);
        let pairs = before.routes.iter().zip(&after.routes);
        for (changes, (before, after)) in self.changes.iter_mut().zip(pairs) {
            *changes += usize::from(before != after);
        }
        self.metered_usd = self.metered_usd.max(self.overlay.spent(at).as_usd());
        Ok(ended)
    }

    /// Adds the sessions of a step to the account of a way, which goes direct once its money is
    /// spent; the controller's is metered by itself.
    fn account(&mut self, at: u64, way: Way, paths: &Paths, ended: &[f64]) {
        let (scenario, world) = (self.scenario, &self.overlay.world);
        let account = &mut self.accounts[way as usize];
        let is_stopped = way != Way::Controller && account.spent_usd >= scenario.budget_usd;
        let hour = (at - MIDNIGHT) * HOURS / (world.end() - MIDNIGHT);
        for ((route, flow), sessions) in paths.routes.iter().zip(&scenario.flows).zip(ended) {
            let direct = Route::direct(&flow.from, &flow.to);
            let route = if is_stopped { &direct } else { route };
            account.seconds[hour as usize] += sessions * world.seconds_over(route, at);
            let gigabytes = sessions * scenario.session.as_u64() as f64 / 1e9;
            account.spent_usd += gigabytes * route.relays() as f64 * scenario.egress_usd_per_gb;
        }
        if !is_stopped {
            let days = STEP as f64 / 86_400_000.0;
            account.spent_usd += paths.machines as f64 * scenario.relay_usd_per_day * days;
        }
    }

    /// Notes for how long paths are bad.
    fn judge(&mut self, at: u64, controllers: &Paths, hindsight: &Paths) {
        let world = &self.overlay.world;
        for (flow, since) in self.bad.iter_mut().enumerate() {
            let seconds = |paths: &Paths| world.seconds_over(&paths.routes[flow], at);
            let is_bad = seconds(controllers) > BAD * seconds(hindsight);
            *since = if is_bad { *since + STEP } else { 0 };
            self.longest_bad = self.longest_bad.max(*since);
        }
    }

    /// Returns the plan that the same planner makes of the true conditions and volumes.
    fn hindsight(&self, at: u64) -> Result<Paths, NumericError> {
        let (scenario, world) = (self.scenario, &self.overlay.world);
        let mut state = self.morning_state.clone();
        let truths = world.legs().flat_map(|leg| truth(world, leg, at));
        truths.for_each(|record| state.apply(record));
        let dead = self.morning_state.hosts.values().filter(|host| world.is_dead(&host.id, at));
        for host in dead.cloned() {
            state.apply(Record::Host(tradewind_control::record::Host { is_drained: true, ..host }));
        }
        for (index, flow) in scenario.flows.iter().enumerate() {
            if let Some(known) = self.morning_state.flows.get(&flow.name).cloned() {
                let per_day: Bytes = world.volume(index, flow.per_day);
                state.apply(Record::Flow(tradewind_control::record::FlowRecord {
                    per_day,
                    ..known
                }));
            }
        }
        let problem = Controller::problem_of(&state, timestamp(MIDNIGHT))
            .map_err(|refusal| NumericError::Nothing { what: refusal.to_string() })?;
        let plan = plan_of(&problem)?;
        let mut paths = Paths::direct(scenario);
        paths.machines = plan.relays.len();
        let number = |id: &FlowId| scenario.flows.iter().position(|flow| flow.name == *id);
        for (number, flow) in plan.flows.iter().filter_map(|it| Some((number(&it.id)?, it))) {
            let places = &mut paths.routes[number].places;
            for relay in &flow.path {
                let known = plan.relays.iter().find(|known| known.id == *relay);
                let place = known.map(|known| SiteId::from(known.region.clone()));
                places.insert(places.len() - 1, place.expect("a relay of the plan"));
            }
        }
        Ok(paths)
    }
}

/// Returns the true figures of a leg, as just measured.
fn truth(world: &World, leg: &Ends, at: u64) -> [Record; 2] {
    let rate = RateSummary {
        rate: Bandwidth::from_mbps(world.mbps(leg, at)).expect("a rate"),
        connections: 1,
        window: None,
        retransmitted: None,
    };
    let (source, destination) = leg.clone();
    let measured = LegMeasurement {
        source: source.clone(),
        destination: destination.clone(),
        rtt: RttSummary::single(Duration::from_secs_f64(world.rtt_ms(leg, at) / 1e3)),
        rate: Some(rate),
        method: Method::Tcp,
        measured_at_unix_ms: Some(MIDNIGHT),
    };
    let test = tradewind_control::record::RateTest {
        source,
        destination,
        unix_ms: MIDNIGHT,
        bytes_of_day: 0,
        was_doubted: false,
    };
    [Record::Measurement(measured), Record::RateTest(test)]
}

fn check(stop: &Stop) -> Result<(), NumericError> {
    if stop.is_set() { Err(NumericError::Stopped) } else { Ok(()) }
}
