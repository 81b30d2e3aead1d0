//! A controller and its agents in virtual time under a seed: crashes between storing and applying,
//! agents that are killed, partitions, jumps of the controller's clock, and an operator.

mod agent;
pub(crate) mod scenarios;
mod store;
mod world;

use std::collections::{BTreeMap, BTreeSet};

use tradewind_control::history::History;
use tradewind_control::record::{FlowRecord, Mode, Role, Step};
use tradewind_control::{Answer, Controller, Event, SettingsRequest};
use tradewind_plan::solver::{TwoProxy, solve};
use tradewind_plan::{Limits, Plan};
use tradewind_units::{Bytes, Duration, FlowId, HostId, Money};

use agent::{Agent, Pending};
use store::Server;
use world::{Conditions, GATEWAYS, RELAYS, Random};

/// A day, in milliseconds.
const DAY: u64 = 86_400_000;
/// Seconds with faults, without any after that, and at the end without operator and planner; the
/// last are more where machines take time to set up, as one plan may follow another.
const FAULTY: u64 = 400;
const CALM: u64 = 800;
const QUIET: u64 = 100;
/// Times that machines of relays take to set up, in milliseconds, by seed.
const SETUPS: [u64; 4] = [0, 120_000, 0, 180_000];

/// The result of a run.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// A hash of all that was stored, in order.
    pub(crate) digest: String,
    /// Rollouts that were completed.
    pub(crate) rollouts: usize,
    /// Plans that were made.
    pub(crate) plans: u64,
    /// Crashes of the controller.
    pub(crate) crashes: usize,
    /// Relayed paths that were checked, once each second.
    pub(crate) paths: usize,
}

/// Runs one seed; panics where an invariant breaks.
pub(crate) fn run(seed: u64) -> Outcome {
    let mut simulation = Simulation::new(seed);
    let setup = SETUPS[seed as usize % SETUPS.len()];
    simulation.set_up_machines(setup);
    for second in 0..FAULTY + CALM + QUIET + 2 * setup / 1000 {
        simulation.is_calm = second >= FAULTY;
        simulation.is_quiet = second >= FAULTY + CALM;
        simulation.step(second * 1000);
        simulation.check_paths(second * 1000);
    }
    simulation.check_end();
    let server = &simulation.server;
    Outcome {
        digest: server.digest(),
        rollouts: server.rollouts,
        plans: server.state().counters.next_plan - 1,
        crashes: server.crashes,
        paths: simulation.paths,
    }
}

/// The actions that the operator was told to be done.
#[derive(Default)]
struct Acknowledged {
    flows: BTreeMap<FlowId, FlowRecord>,
    has_packets: bool,
    budget: Option<Money>,
    mode: Option<Mode>,
    drained: BTreeSet<HostId>,
    revoked: BTreeSet<HostId>,
}

struct Simulation {
    seed: u64,
    random: Random,
    is_calm: bool,
    is_quiet: bool,
    /// False if the operator does nothing by chance.
    operates: bool,
    conditions: Conditions,
    server: Server,
    agents: Vec<Agent>,
    acknowledged: Acknowledged,
    /// The lead of the controller's clock on the true time, in milliseconds.
    ahead: u64,
    /// Sessions over relays.
    carried: u64,
    /// Relayed paths that were checked.
    paths: usize,
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let random = Random::new(seed);
        let server = Server::new(seed);
        let agents = RELAYS.iter().chain(&GATEWAYS).enumerate();
        let agents = agents.map(|(index, place)| Agent::new(index as u8, place)).collect();
        let acknowledged = Acknowledged::default();
        Self {
            seed,
            random,
            is_calm: false,
            is_quiet: false,
            operates: true,
            conditions: Conditions::default(),
            server,
            agents,
            acknowledged,
            ahead: world::START,
            carried: 0,
            paths: 0,
        }
    }

    /// Has machines of relays take so long to set up, and the controller know it.
    fn set_up_machines(&mut self, millis: u64) {
        let is_relay = |agent: &&mut Agent| matches!(agent.role, Role::Relay { .. });
        for agent in self.agents.iter_mut().filter(is_relay) {
            agent.starts_in = agent::STARTS_IN + millis;
        }
        let relay_setup = Some(Duration::from_millis(millis));
        let request = SettingsRequest { relay_setup, ..SettingsRequest::default() };
        self.event(0, &Event::ChangeSettings(request));
    }

    fn step(&mut self, at: u64) {
        self.faults(at);
        self.invite_and_join(at);
        let acts = self.random.one_in(if self.is_calm { 60 } else { 10 });
        if acts && self.operates && !self.is_quiet {
            self.operate(at);
        }
        self.event(at, &Event::Tick);
        for index in 0..self.agents.len() {
            self.talk(at, index);
        }
        if at.is_multiple_of(5000) && !self.is_quiet {
            self.plan(at);
        }
    }

    /// Has the controller decide; `None` if it crashed before the answer, or refuses.
    fn event(&mut self, at: u64, event: &Event) -> Option<Answer> {
        let may_crash = !self.is_calm && self.random.one_in(150);
        let crash = may_crash.then(|| self.random.below(3));
        self.server.event(at + self.ahead, event, crash)
    }

    fn faults(&mut self, at: u64) {
        if self.is_calm {
            self.ahead = world::START;
            self.agents.iter_mut().for_each(Agent::heal);
            return;
        }
        if self.random.one_in(90) {
            // A day behind, right, or a day ahead.
            self.ahead = world::START - DAY + DAY * self.random.below(3);
        }
        for agent in &mut self.agents {
            if self.random.one_in(80) {
                agent.kill(at + 1000 * self.random.below(60));
            }
            if self.random.one_in(80) {
                agent.cut_off(at + 1000 * self.random.below(120));
            }
        }
    }

    fn invite_and_join(&mut self, at: u64) {
        for index in 0..self.agents.len() {
            let agent = &self.agents[index];
            if agent.host.is_some() || !agent.is_reachable(at) {
                continue;
            }
            let Some(secret) = agent.secret else {
                let invite = Event::Invite {
                    role: agent.role.clone(),
                    ttl: Duration::from_secs(86_400),
                    controller: ([192, 0, 2, 1], 7443).into(),
                };
                if let Some(Answer::Invite(invite)) = self.event(at, &invite) {
                    self.agents[index].secret = Some(invite.secret);
                }
                continue;
            };
            let join = agent.join(secret);
            if let Some(Answer::Joined(joined)) = self.event(at, &join) {
                assert_eq!(joined.role, self.agents[index].role);
                self.agents[index].host = Some(joined.host);
            }
        }
    }

    fn operate(&mut self, at: u64) {
        let number = self.random.below(4);
        let hosts: Vec<HostId> = self.agents.iter().filter_map(|one| one.host.clone()).collect();
        let host = hosts.get(self.random.below(hosts.len().max(1) as u64) as usize).cloned();
        match self.random.below(if self.is_calm { 5 } else { 12 }) {
            0..=2 => self.add_flow(at, number),
            3 => self.apply_newest(at),
            4 => self.set_budget(at, 20.0),
            5 => {
                let id = world::flow(number, 0).id;
                if self.event(at, &Event::RemoveFlow(id.clone())).is_some() {
                    self.acknowledged.flows.remove(&id);
                }
                let packets = world::packet_flow();
                let is_declared = self.acknowledged.has_packets && number == 3;
                if is_declared && self.event(at, &Event::RemoveFlow(packets.id)).is_some() {
                    self.acknowledged.has_packets = false;
                }
            }
            6 => self.set_budget(at, [0.0, 20.0, 5.0, 40.0][number as usize]),
            7 | 8 => {
                let mode = if number < 3 { Mode::Auto } else { Mode::Suggest };
                if self.event(at, &Event::ChangeSettings(SettingsRequest::mode(mode))).is_some() {
                    self.acknowledged.mode = Some(mode);
                }
            }
            9 | 10 => {
                let Some(host) = host else { return };
                let is_drained = number < 2;
                if self.event(at, &Event::Drain { host: host.clone(), is_drained }).is_some() {
                    if is_drained {
                        self.acknowledged.drained.insert(host);
                    } else {
                        self.acknowledged.drained.remove(&host);
                    }
                }
            }
            _ => {
                let Some(host) = host.filter(|_| number == 0) else { return };
                let is_few = self.acknowledged.revoked.len() < 2;
                if is_few && self.event(at, &Event::Revoke(host.clone())).is_some() {
                    self.acknowledged.revoked.insert(host);
                }
            }
        }
    }

    fn add_flow(&mut self, at: u64, number: u64) {
        let flow = world::flow(number, self.random.below(2));
        if self.event(at, &Event::AddFlow(flow.clone())).is_some() {
            self.acknowledged.flows.insert(flow.id.clone(), flow);
        }
        let packets = Event::AddPacketFlow(world::packet_flow());
        if number == 3 && self.event(at, &packets).is_some() {
            self.acknowledged.has_packets = true;
        }
    }

    fn set_budget(&mut self, at: u64, usd: f64) {
        let usd_per_day = Money::from_usd(usd).unwrap();
        let event = Event::ChangeSettings(SettingsRequest::budget(usd_per_day));
        if self.event(at, &event).is_some() {
            self.acknowledged.budget = Some(usd_per_day);
        }
    }

    fn apply_newest(&mut self, at: u64) {
        if let Some(plan) = self.server.state().newest_plan().map(|plan| plan.number) {
            self.event(at, &Event::Apply { plan });
        }
    }

    /// Lets one agent fetch its document and report.
    fn talk(&mut self, at: u64, index: usize) {
        if !self.agents[index].is_reachable(at) || self.agents[index].host.is_none() {
            return;
        }
        let agent = &mut self.agents[index];
        if let Some(document) = self.server.document(&agent.identity(), agent.have()) {
            let delay = 1000 * self.random.below(4);
            agent.fetched(document, self.server.identity(), at + delay);
        }
        agent.run(at);
        if !agent.should_report(at) {
            return;
        }
        let was_waiting = agent.pending.is_some();
        agent.carry(at, &self.conditions, &mut self.random);
        if !was_waiting {
            let (from, carried) = (agent.data_identity(), agent.over_relays());
            self.carried += carried.len() as u64;
            for tally in carried {
                self.agents.iter_mut().for_each(|agent| agent.relays(&tally, from));
            }
        }
        let agent = &mut self.agents[index];
        agent.sends(&self.server.state().flows);
        let event = agent.report(at, &self.conditions);
        if let Some(Answer::Reported(answer)) = self.event(at, &event) {
            let agent = &mut self.agents[index];
            agent.acknowledged(at, &answer.probes, &self.conditions, &mut self.random);
        }
    }

    /// Makes a plan when the newest one is stale.
    fn plan(&mut self, at: u64) {
        let now = store::timestamp(at + self.ahead);
        let controller = &self.server.controller;
        if controller.staleness(now).is_empty() {
            return;
        }
        let Ok(problem) = controller.problem(now) else { return };
        let plan = if problem.flows().is_empty() {
            Ok(Plan::nothing())
        } else {
            solve(&TwoProxy, &problem, &Limits::work(20_000))
        };
        let Ok(plan) = plan else { return };
        let state = self.server.controller.state();
        if let Ok(joint) = Controller::joint_of(state, now, plan) {
            self.event(at, &Event::Planned(Box::new(joint)));
        }
    }

    /// Checks that no gateway has a path over a relay that does not allow it, or that a relay whose
    /// clock is right refuses for its grant.
    fn check_paths(&mut self, at: u64) {
        let relays: BTreeMap<_, &Agent> =
            self.agents.iter().map(|agent| (agent.data_identity(), agent)).collect();
        for gateway in &self.agents {
            for (to, hops) in gateway.paths() {
                let of = |index: usize| relays[&hops[index].identity];
                let is_revoked = |agent: &Agent| self.is_revoked(agent.host.as_ref());
                if is_revoked(gateway) || (0..hops.len()).any(|index| is_revoked(of(index))) {
                    continue;
                }
                self.paths += 1;
                let grant = gateway.grant().expect("a path over relays takes a grant");
                let now = store::timestamp(at + world::START);
                grant.unverified().check_expiry(now).unwrap();
                for index in 0..hops.len() {
                    let next = hops.get(index + 1).map(|hop| hop.address);
                    let allows = of(index).allows(&to, next);
                    let names = (&gateway.host, &of(index).host);
                    assert!(allows, "seed {}: {names:?}, to {to}, next {next:?}", self.seed);
                }
            }
        }
    }

    /// Returns whether a host is revoked, whether or not the operator was told so.
    fn is_revoked(&self, host: Option<&HostId>) -> bool {
        let known = host.and_then(|host| self.server.state().hosts.get(host));
        known.is_some_and(|host| !host.is_trusted)
    }

    fn check_end(&self) {
        let (seed, state) = (self.seed, self.server.state());
        assert_eq!(state.rollout.step, Step::Done, "seed {seed}: {:?}", state.rollout);
        for agent in &self.agents {
            let host = agent.host.as_ref().expect("all have joined");
            if self.is_revoked(Some(host)) {
                continue;
            }
            let newest = state.documents.get(host).map(|document| document.version);
            assert_eq!(agent.have(), newest, "seed {seed}: {host}");
            assert_eq!(state.seen[host].applied, newest, "seed {seed}: {host}");
        }
        self.check_acknowledged();
        self.check_sessions();
    }

    /// Checks that the sessions of each acknowledged batch count once, and those of others once at
    /// most.
    fn check_sessions(&self) {
        let waiting = |agent: &Agent| agent.pending.as_ref().map_or(0, Pending::most);
        let least: u64 = self.agents.iter().map(|agent| agent.counted.0).sum();
        let most: u64 = self.agents.iter().map(|agent| agent.counted.1 + waiting(agent)).sum();
        let tallies = self.server.state().sessions.values().flatten();
        let counted: u64 = tallies.map(|tally| tally.sessions).sum();
        let seed = self.seed;
        assert!((least..=most).contains(&counted), "seed {seed}: {least} {counted} {most}");
        let is_trusted_gateway = |agent: &&Agent| {
            matches!(agent.role, Role::Gateway { .. }) && !self.is_revoked(agent.host.as_ref())
        };
        let has_gateway = self.agents.iter().any(|agent| is_trusted_gateway(&agent));
        assert!(least > 0 || !has_gateway, "seed {seed}");
        // Relays count those over them once at most.
        let relayed = self.server.state().relayed.since(0);
        let by_relays: u64 = relayed.map(|row| row.counted.sessions).sum();
        assert!(by_relays <= self.carried, "seed {seed}: {by_relays} of {}", self.carried);
        // Hours have no more than days; a flow that was removed has its days alone.
        let usage = self.server.state().usage.values().flat_map(History::hours);
        let by_hour: u64 = usage.map(|hour| hour.sessions).sum();
        assert!(by_hour <= counted, "seed {seed}: {by_hour} of {counted}");
        assert!(by_hour > 0 || !has_gateway, "seed {seed}");
    }

    /// Checks that all that the operator was told to be done is so.
    fn check_acknowledged(&self) {
        let (seed, state) = (self.seed, self.server.state());
        let Acknowledged { flows, has_packets, budget, mode, drained, revoked } =
            &self.acknowledged;
        for (id, flow) in flows {
            assert!(state.flows.contains_key(id), "seed {seed}: {id} is lost");
            assert_eq!(state.flows[id].from, flow.from);
        }
        if *has_packets {
            assert!(!state.packet_flows.is_empty(), "seed {seed}: the packet flow is lost");
        }
        if let Some(budget) = budget.filter(|_| !self.server.lost_an_answer) {
            assert_eq!(state.settings.budget_usd_per_day, budget, "seed {seed}");
        }
        if let Some(mode) = mode.filter(|_| !self.server.lost_an_answer) {
            assert_eq!(state.settings.mode, mode, "seed {seed}");
        }
        if !self.server.lost_an_answer {
            assert!(drained.iter().all(|host| state.hosts[host].is_drained), "seed {seed}");
        }
        assert!(revoked.iter().all(|host| !state.hosts[host].is_trusted), "seed {seed}");
    }
}

/// Returns so many gigabytes.
fn gigabytes(count: u64) -> Bytes {
    Bytes::new(count * 1_000_000_000)
}
