//! The controller and its hosts in virtual time.

use std::collections::BTreeSet;

use tradewind_control::message::{Arm, RelayTally};
use tradewind_control::record::{FlowRecord, Mode, Role};
use tradewind_control::terms::{RelayTerms, Terms};
use tradewind_control::{Answer, Controller, Event, Keys, SettingsRequest, State, gain};
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_plan::solver::{TwoProxy, solve};
use tradewind_plan::{Limits, Plan, Problem};
use tradewind_units::{
    Bandwidth, Duration, FlowId, HostId, Money, PricePerGb, Ratio, RelayId, RelayTypeId, SiteId,
    Timestamp,
};

use super::host::{Ended, Host};
use super::scenario::Scenario;
use super::world::{CAPACITY_MBPS, Ends, Route, World};
use crate::harness::{NumericError, Random};

/// Time between two reports of a host, and two looks of the planner, in milliseconds.
pub(super) const STEP: u64 = 10_000;
/// Share of the sessions that go direct as control.
const CONTROL_SHARE: f64 = 0.02;
/// Bound of a solver's work: far more than such a problem takes.
const WORK: u64 = 20_000;

/// A controller with its hosts.
pub(super) struct Overlay<'a> {
    scenario: &'a Scenario,
    pub(super) world: World,
    controller: Controller,
    hosts: Vec<Host>,
    random: Random,
    events: u64,
    /// Sessions of each flow that are due, over relays and as control; what is left is below one.
    due: Vec<[f64; 2]>,
}

fn keys() -> Keys {
    Keys {
        identity: IdentityKey::from_entropy([200; 32]),
        operator: OperatorKey::from_entropy([201; 32]),
    }
}

fn controllers_identity() -> PublicIdentity {
    keys().identity.public()
}

pub(super) fn timestamp(unix_ms: u64) -> Timestamp {
    Timestamp::from_nanos(unix_ms * 1_000_000)
}

fn failed(what: &str, error: &impl ToString) -> NumericError {
    NumericError::Nothing { what: format!("{what}: {}", error.to_string()) }
}

/// Makes a plan as the controller does.
///
/// # Errors
/// When the solver finds none.
pub(super) fn plan_of(problem: &Problem) -> Result<Plan, NumericError> {
    if problem.flows().is_empty() {
        return Ok(Plan::nothing());
    }
    solve(&TwoProxy, problem, &Limits::work(WORK))
        .map_err(|error| NumericError::Solve { solver: "2-p".to_owned(), error })
}

impl<'a> Overlay<'a> {
    /// Lets all hosts join, and declares the flows.
    ///
    /// # Errors
    /// When the controller refuses any of it.
    pub(super) fn new(
        scenario: &'a Scenario,
        world: World,
        (at, seed): (u64, u64),
    ) -> Result<Self, NumericError> {
        let standard = RelayTypeId::new("standard").expect("a name");
        let relays = scenario.regions.iter().flat_map(|region| {
            let role = Role::Relay { region: region.clone(), relay_type: standard.clone() };
            std::iter::repeat_n(role, scenario.hosts_a_region.into())
        });
        let from: BTreeSet<&SiteId> = scenario.flows.iter().map(|flow| &flow.from).collect();
        let gateways = from.into_iter().map(|site| Role::Gateway { site: site.clone() });
        let hosts = relays.chain(gateways).zip(0..).map(|(role, n)| Host::new(n, role)).collect();
        let mut overlay = Self {
            scenario,
            world,
            controller: Controller::new(keys(), []),
            hosts,
            random: Random::new(seed),
            events: 0,
            due: vec![[0.0; 2]; scenario.flows.len()],
        };
        overlay.join(at)?;
        overlay.declare(at)?;
        Ok(overlay)
    }

    fn join(&mut self, at: u64) -> Result<(), NumericError> {
        for index in 0..self.hosts.len() {
            let invite = Event::Invite {
                role: self.hosts[index].role.clone(),
                ttl: Duration::from_secs(3600),
                controller: ([192, 0, 2, 254], 7443).into(),
            };
            let Answer::Invite(invite) = self.event(at, &invite)? else { continue };
            let join = self.hosts[index].join(invite.secret);
            if let Answer::Joined(joined) = self.event(at, &join)? {
                self.hosts[index].id = Some(joined.host);
            }
        }
        Ok(())
    }

    fn declare(&mut self, at: u64) -> Result<(), NumericError> {
        let usd = |usd| Money::from_usd(usd).expect("checked when read");
        let price = PricePerGb::from_usd_per_gb(self.scenario.egress_usd_per_gb);
        let relay = RelayTerms {
            usd_per_day: usd(self.scenario.relay_usd_per_day),
            capacity: Bandwidth::from_mbps(CAPACITY_MBPS).expect("a capacity"),
            per_connection: None,
        };
        let standard = RelayTypeId::new("standard").expect("a name");
        let settings = SettingsRequest {
            budget_usd_per_day: Some(usd(self.scenario.budget_usd)),
            mode: Some(Mode::Auto),
            control_share: Ratio::new(CONTROL_SHARE).ok(),
            terms: Some(Terms {
                egress_usd_per_gb: Some(price.expect("checked when read")),
                relay_types: [(standard, relay)].into(),
            }),
            ..SettingsRequest::default()
        };
        self.event(at, &Event::ChangeSettings(settings))?;
        for (flow, number) in self.scenario.flows.iter().zip(1..) {
            let to = format!("198.51.100.{number}:443");
            let record = FlowRecord {
                id: flow.name.clone(),
                from: flow.from.clone(),
                to: to.parse().expect("an address"),
                to_site: flow.to.clone(),
                per_day: flow.per_day,
                weight: 1,
                listen: ([127, 0, 0, 1], 9000 + number).into(),
            };
            self.event(at, &Event::AddFlow(record))?;
        }
        Ok(())
    }

    fn event(&mut self, at: u64, event: &Event) -> Result<Answer, NumericError> {
        self.events += 1;
        let mut entropy = [0; 32];
        entropy[..8].copy_from_slice(&self.events.to_le_bytes());
        let decision = self.controller.decide(timestamp(at), event, entropy);
        let decision = decision.map_err(|refusal| failed("refused", &refusal))?;
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        Ok(decision.answer)
    }

    pub(super) const fn state(&self) -> &State {
        self.controller.state()
    }

    /// Returns what the meter says of the day.
    pub(super) fn spent(&self, at: u64) -> Money {
        let money = gain::spending(self.state(), timestamp(at));
        money.machines + money.traffic + money.tests
    }

    /// Returns the path of a flow, as its gateway has it.
    pub(super) fn route(&self, flow: &FlowId) -> Route {
        let flow = self.scenario.flows.iter().find(|it| it.name == *flow).expect("one of the day");
        let gateway = self.hosts.iter().find(|host| {
            matches!(host.role, Role::Gateway { .. }) && host.role.site() == flow.from
        });
        let mut route = Route::direct(&flow.from, &flow.to);
        for relay in gateway.map(|gateway| gateway.path(&flow.name)).unwrap_or_default() {
            let host = HostId::new(relay.as_str()).expect("a relay has its host's name");
            let place = self.state().hosts.get(&host).map(|host| host.role.site());
            let last = route.places.len() - 1;
            route.places.insert(last, place.expect("the host has joined"));
            route.hosts.push(host);
        }
        route
    }

    /// Lets one step of time pass; returns the sessions of each flow that ended in it.
    ///
    /// # Errors
    /// When the controller refuses a report, or a host its document.
    pub(super) fn step(&mut self, at: u64) -> Result<Vec<f64>, NumericError> {
        self.event(at, &Event::Tick)?;
        let routes: Vec<Route> =
            self.scenario.flows.iter().map(|flow| self.route(&flow.name)).collect();
        let used: BTreeSet<Ends> = routes.iter().flat_map(Route::legs).collect();
        let ended: Vec<f64> = self
            .scenario
            .flows
            .iter()
            .enumerate()
            .map(|(index, flow)| self.world.sessions(index, flow.per_day, at, STEP))
            .collect();
        for (due, sessions) in self.due.iter_mut().zip(&ended) {
            due[0] += sessions * (1.0 - CONTROL_SHARE);
            due[1] += sessions * CONTROL_SHARE;
        }
        for index in 0..self.hosts.len() {
            self.talk(at, index, &routes, &used)?;
        }
        self.plan(at)?;
        Ok(ended)
    }

    /// Lets one host fetch its document and report, unless it is dead.
    fn talk(
        &mut self,
        at: u64,
        index: usize,
        routes: &[Route],
        used: &BTreeSet<Ends>,
    ) -> Result<(), NumericError> {
        let ended = self.ended(at, index, routes);
        ended.iter().for_each(|sessions| self.relay(index, sessions));
        let host = &mut self.hosts[index];
        if host.id.as_ref().is_some_and(|id| self.world.is_dead(id, at)) {
            return Ok(());
        }
        if let Some(document) = self.controller.document(&host.identity(), host.have()) {
            host.apply(&document, &controllers_identity(), at)?;
        }
        let event = host.report(at, &ended, used, (&self.world, &mut self.random));
        if let Answer::Reported(answer) = self.event(at, &event)? {
            self.hosts[index].measure(at, &answer.probes, &self.world, &mut self.random);
        }
        Ok(())
    }

    /// Has each relay of their path count sessions of a gateway.
    fn relay(&mut self, gateway: usize, ended: &Ended) {
        let is_it = |host: &Host, relay: &RelayId| {
            host.id.as_ref().is_some_and(|id| id.as_str() == relay.as_str())
        };
        let of = |relay| self.hosts.iter().position(|host| is_it(host, relay));
        let relays: Vec<usize> = ended.path.iter().filter_map(of).collect();
        let mut from = self.hosts[gateway].data_identity();
        let sessions = ended.seconds.len() as u64;
        for (at, relay) in relays.iter().enumerate() {
            let next = relays.get(at + 1).map(|next| self.hosts[*next].data_identity());
            self.hosts[*relay].relayed.push(RelayTally {
                flow: ended.flow.clone(),
                from,
                next,
                sessions,
                failed: 0,
                bytes_up: ended.bytes * sessions,
                bytes_down: 0,
            });
            from = self.hosts[*relay].data_identity();
        }
    }

    /// Returns the sessions of a gateway's flows that ended.
    fn ended(&mut self, at: u64, index: usize, routes: &[Route]) -> Vec<Ended> {
        let mut all = Vec::new();
        let Role::Gateway { site } = &self.hosts[index].role else { return all };
        for (number, flow) in self.scenario.flows.iter().enumerate() {
            if flow.from != *site {
                continue;
            }
            let direct = Route::direct(&flow.from, &flow.to);
            let route = &routes[number];
            let is_direct = *route == direct;
            let is_dead = route.hosts.iter().any(|host| self.world.is_dead(host, at));
            let arms = if is_direct { [Arm::Other; 2] } else { [Arm::Overlay, Arm::Control] };
            for (arm, (kind, route)) in arms.into_iter().zip([route, &direct].iter().enumerate()) {
                let count = self.due[number][kind].floor();
                self.due[number][kind] -= count;
                let mean = self.world.seconds_over(route, at);
                let noise = self.world.conditions().noise;
                let seconds: Vec<f64> = (0..count as usize)
                    .map(|_| mean * (noise * self.random.normal()).exp())
                    .collect();
                let over = route.hosts.iter().filter(|_| !is_dead);
                let path = over.filter_map(|host| RelayId::new(host.as_str()).ok()).collect();
                let (flow, bytes) = (flow.name.clone(), self.scenario.session.as_u64());
                if !seconds.is_empty() {
                    all.push(Ended { flow, path, arm, bytes, seconds });
                }
            }
        }
        all
    }

    /// Makes a plan where the newest is stale.
    fn plan(&mut self, at: u64) -> Result<(), NumericError> {
        let now = timestamp(at);
        if self.controller.staleness(now).is_empty() {
            return Ok(());
        }
        // Too little is known, or nothing can be planned now.
        let Ok(problem) = self.controller.problem(now) else { return Ok(()) };
        let plan = plan_of(&problem)?;
        // The hosts may have gone meanwhile.
        if let Ok(joint) = Controller::joint_of(self.state(), now, plan) {
            let planned = self.controller.decide(now, &Event::Planned(Box::new(joint)), [0; 32]);
            let records = planned.map(|decision| decision.records).unwrap_or_default();
            records.into_iter().for_each(|record| self.controller.apply(record));
        }
        Ok(())
    }
}
