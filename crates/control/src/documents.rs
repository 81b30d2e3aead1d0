//! The documents of hosts, compiled from the plans of the rollout into configurations.
//!
//! Relays get what the plans need for all flows that those were made for; gateways get the flows
//! that are declared now. So removing a flow, or declaring it anew, takes no permission away from a
//! path that a gateway still uses.

mod packets;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use toml::{Table, Value};
use tradewind_config::{Kind, compiled};
use tradewind_desired::{
    Desired, DesiredGateway, DesiredPackets, DesiredRelay, Fallbacks, GrantTerms, Hop, Inventory,
    LegProfile, Route, RouteTable, compile,
};
use tradewind_grant::token::{Extensions, RELAY_LIMIT};
use tradewind_grant::{
    Destination, Grant, OperatorKey, PublicIdentity, Relays, RevocationList, SignedGrant,
};
use tradewind_plan::Flow;
use tradewind_units::{Duration, FlowId, RegionId, RelayId, SiteId, Timestamp};

use crate::draft::{CONTROLLER, Draft, unix_ms};
use crate::event::{Keys, Refusal};
use crate::jumpstart;
use crate::legs;
use crate::message::{
    Document, DocumentVersion, OFFERS_PROXIES, Process, SCHEMA_VERSION, SESSIONS_SOCKET,
    TELLS_SESSIONS,
};
use crate::money;
use crate::proxies::Proxies;
use crate::record::{FlowRecord, Host, PlanRecord, Record, Role, Step};
use crate::relayed::TELLS_RELAYED;
use crate::rollout;
use crate::schedule::RESPONDER_PORT;
use crate::state::State;
use crate::take_back;
use crate::tenants;
use crate::watched::watched;

/// The port of relays.
pub(crate) const RELAY_PORT: u16 = 7000;
/// The UDP port of relays and gateways for packets.
pub(crate) const PACKET_PORT: u16 = RELAY_PORT;
/// The addresses of metrics and health, on each host.
const RELAY_METRICS: &str = "127.0.0.1:9101";
const GATEWAY_METRICS: &str = "127.0.0.1:9102";
/// Their ports, which nothing else on a host has.
pub(crate) const OWN_PORTS: [u16; 2] = [9101, 9102];
/// The file of a host's own identity, and of the operator's revocations.
const IDENTITY_FILE: &str = "data.key";
const REVOCATIONS_FILE: &str = "revocations";
/// Time between two reports, in milliseconds. Chosen: a plan is in effect within seconds.
const REPORT_EVERY_MS: u64 = 5000;
/// Lifetime of a grant, and the rest of it at which it is renewed: a third. Chosen: traffic goes on
/// for days without a controller.
const GRANT_LASTS: Duration = Duration::from_secs(7 * 86_400);
const GRANT_RENEWED_AT: Duration = Duration::from_secs(7 * 86_400 / 3);

/// Time before its issue at which a grant begins. Chosen: relays take it at once although the
/// controller's clock is a day ahead of theirs.
const GRANT_BACKDATED: Duration = Duration::from_secs(25 * 3600);

/// Makes the documents that differ from the newest ones.
pub(crate) fn renew(draft: &mut Draft, keys: &Keys) {
    let hosts: Vec<Host> =
        draft.state.hosts.values().filter(|host| host.is_trusted).cloned().collect();
    let (made, problems) = {
        let compiler = Compiler::new(&draft.state, draft.time, keys);
        let made: Vec<_> =
            hosts.into_iter().map(|host| (compiler.processes(&host), host)).collect();
        (made, compiler.problems)
    };
    problems.into_iter().for_each(|problem| complain(draft, problem));
    let mut watched = watched(&draft.state);
    for (processes, host) in made {
        let processes = match processes {
            Ok(processes) => processes,
            Err(problem) => {
                complain(draft, format!("host {} keeps its document: {problem}", host.id));
                continue;
            }
        };
        let counters = draft.state.counters;
        let watched = watched.remove(&host.id).unwrap_or_default().into_iter().collect();
        let document = Document {
            schema_version: SCHEMA_VERSION,
            version: DocumentVersion { epoch: counters.epoch, version: counters.next_version },
            host: host.id,
            issued_unix_ms: draft.now(),
            processes,
            responder_port: RESPONDER_PORT,
            report_every_ms: REPORT_EVERY_MS,
            watched,
        };
        let newest = draft.state.documents.get(&document.host);
        if newest.is_none_or(|newest| !says_the_same(newest, &document)) {
            draft.next_version();
            draft.push(Record::Document(document));
        }
    }
}

/// Returns whether two documents of one epoch differ in nothing but version and time.
fn says_the_same(one: &Document, other: &Document) -> bool {
    let Document { version, issued_unix_ms, .. } = *one;
    version.epoch == other.version.epoch
        && *one == Document { version, issued_unix_ms, ..other.clone() }
}

/// Writes a problem to the audit log, unless one of its last lines says so.
pub(crate) fn complain(draft: &mut Draft, problem: String) {
    const LAST: usize = 100;
    let mut last = draft.state.audit.values().rev().take(LAST);
    if !last.any(|entry| entry.action == problem) {
        draft.audit(CONTROLLER, problem);
    }
}

/// Refuses flows of a site that no grant could cover.
pub(crate) fn check_grant(draft: &Draft, site: &SiteId, keys: &Keys) -> Result<(), Refusal> {
    let mut terms = GrantTerms::default();
    let flows = draft.state.flows.values().filter(|flow| flow.from == *site);
    flows.for_each(|flow| terms.add_destination(&flow.to));
    let packets = draft.state.packet_flows.values().filter(|flow| flow.from == *site);
    packets.for_each(|flow| terms.add_destination(&Destination::Address(flow.to)));
    let grant = grant(draft.time, keys.identity.public(), Relays::Any, &terms);
    let refused = |error: &dyn std::fmt::Display| {
        Refusal::Invalid(format!("the grant of {site} would hold too much: {error}"))
    };
    grant.sign(&keys.operator).map(drop).map_err(|error| refused(&error))
}

/// The desired state of one plan.
struct Compiled<'a> {
    record: &'a PlanRecord,
    desired: Desired,
    packets: DesiredPackets,
}

/// Everything that documents follow from.
struct Compiler<'a> {
    state: &'a State,
    time: Timestamp,
    keys: &'a Keys,
    /// The plans that relays run for; the one to put into effect is the last.
    plans: Vec<Compiled<'a>>,
    revocations: String,
    problems: Vec<String>,
}

impl<'a> Compiler<'a> {
    fn new(state: &'a State, time: Timestamp, keys: &'a Keys) -> Self {
        let rollout = &state.rollout;
        let now = unix_ms(time);
        let retiring = rollout.retiring.iter().filter(|it| rollout::retires(state, now, **it));
        let retiring = retiring.map(|retiring| Some(retiring.plan));
        let of_rollout = match rollout.step {
            Step::Done => [None, rollout.to],
            Step::Relays | Step::Gateways => [rollout.from, rollout.to],
        };
        let (mut plans, mut problems) = (Vec::new(), Vec::new());
        let numbers = retiring.filter(|plan| !of_rollout.contains(plan)).chain(of_rollout);
        for record in numbers.flatten().filter_map(|number| state.plans.get(&number)) {
            let packets = packets::desired(state, record);
            match desired(state, record).and_then(|desired| Ok((desired, packets?))) {
                Ok((desired, packets)) => plans.push(Compiled { record, desired, packets }),
                Err(problem) => problems.push(format!("plan {}: {problem}", record.number)),
            }
        }
        let revocations = revocations(state, &keys.operator);
        Self { state, time, keys, plans, revocations, problems }
    }

    /// Returns what a host should run.
    fn processes(&self, host: &Host) -> Result<Vec<Process>, String> {
        match &host.role {
            Role::Relay { .. } => self.relay(host),
            Role::Gateway { site } => self.gateway(host, site),
            Role::Probe { .. } => Ok(Vec::new()),
        }
    }

    fn relay(&self, host: &Host) -> Result<Vec<Process>, String> {
        let in_plan = |plan: &Compiled<'_>| {
            let (relay, _) = plan.record.hosts.iter().find(|(_, id)| **id == host.id)?;
            plan.desired.relays.get(relay).cloned()
        };
        let Some(relay) = self.plans.iter().filter_map(in_plan).reduce(united) else {
            return Ok(Vec::new());
        };
        let relay = self.without_revoked(relay);
        let mut table = Table::new();
        table.insert("identity_file".to_owned(), IDENTITY_FILE.into());
        let operator = self.keys.operator.public().to_string();
        table.insert("operators".to_owned(), Value::Array(vec![operator.into()]));
        table.insert("revocations".to_owned(), REVOCATIONS_FILE.into());
        table.insert("metrics".to_owned(), RELAY_METRICS.into());
        if host.config_version >= TELLS_RELAYED {
            table.insert("access_log".to_owned(), access_log());
        }
        self.add_learner(&mut table, host, "relay");
        compiled::set_relay(&mut table, &relay).map_err(|error| error.to_string())?;
        if let Some(packets) = self.relay_packets(host) {
            compiled::set_relay_packets(&mut table, &packets).map_err(|it| it.to_string())?;
        }
        let files = [(REVOCATIONS_FILE.to_owned(), self.revocations.clone())].into();
        Ok(vec![process("relay", Kind::Relay, &table, files)?])
    }

    /// Lets a process learn initial windows where the settings say so.
    fn add_learner(&self, table: &mut Table, host: &Host, process: &str) {
        if let Some(section) = jumpstart::section(&self.state.settings, host, process) {
            table.insert("jumpstart".to_owned(), Value::Table(section));
        }
    }

    /// Returns the addresses of relays that are revoked.
    fn gone(&self) -> Vec<SocketAddr> {
        let revoked = self.state.hosts.values().filter(|host| !host.is_trusted);
        let addresses: BTreeSet<SocketAddr> = revoked.map(address).collect();
        let trusted = self.state.hosts.values().filter(|host| host.is_trusted);
        let shared: BTreeSet<SocketAddr> = trusted.map(address).collect();
        addresses.difference(&shared).copied().collect()
    }

    /// Returns the relay without revoked neighbours.
    fn without_revoked(&self, mut relay: DesiredRelay) -> DesiredRelay {
        let gone = self.gone();
        relay.policy.next_hops.retain(|rule| !gone.iter().any(|at| rule.covers_address(*at)));
        relay.legs.to.retain(|leg| !gone.contains(&leg.address));
        relay
    }

    fn gateway(&self, host: &Host, site: &SiteId) -> Result<Vec<Process>, String> {
        let flows: Vec<&FlowRecord> =
            self.state.flows.values().filter(|flow| flow.from == *site).collect();
        let packets = self.gateway_packets(host, site);
        let proxies =
            self.state.proxies.get(site).filter(|_| host.config_version >= OFFERS_PROXIES);
        if flows.is_empty() && packets.is_none() && proxies.is_none() {
            return Ok(Vec::new());
        }
        let mut gateway = self.desired_gateway(site, &flows, proxies)?;
        packets.iter().for_each(|packets| gateway.grant.extend(&packets.grant));
        let mut table = Table::new();
        table.insert("identity_file".to_owned(), IDENTITY_FILE.into());
        table.insert("direct".to_owned(), Value::Boolean(true));
        table.insert("metrics".to_owned(), GATEWAY_METRICS.into());
        if host.config_version >= TELLS_SESSIONS {
            table.insert("access_log".to_owned(), access_log());
            let share = self.state.settings.control_share.as_f64();
            table.insert("control_share".to_owned(), Value::Float(share));
        }
        let kinds = proxies.map(|it| [("socks5", it.socks5), ("connect", it.connect)]);
        for (key, at) in kinds.into_iter().flatten() {
            let at = at.map(|at| Value::Array(vec![at.to_string().into()]));
            table.extend(at.map(|at| (key.to_owned(), at)));
        }
        self.add_learner(&mut table, host, "gateway");
        if let Some(grant) = self.grant(host, &gateway.grant)? {
            table.insert("grant".to_owned(), grant.to_string().into());
        }
        let text = |error: tradewind_config::ConfigError| error.to_string();
        compiled::set_gateway(&mut table, &gateway).map_err(text)?;
        for flow in flows {
            compiled::set_forward(&mut table, flow.listen, &flow.to, &flow.id).map_err(text)?;
        }
        let mut files = BTreeMap::new();
        if let Some(packets) = packets {
            packets.set(&mut table, &self.keys.operator.public()).map_err(text)?;
            table.insert("revocations".to_owned(), REVOCATIONS_FILE.into());
            files.insert(REVOCATIONS_FILE.to_owned(), self.revocations.clone());
        }
        Ok(vec![process("gateway", Kind::Gateway, &table, files)?])
    }

    /// Returns the gateway of a site: planned flows on their paths, others direct, as is what comes
    /// through proxies and is of no flow.
    fn desired_gateway(
        &self,
        site: &SiteId,
        flows: &[&FlowRecord],
        proxies: Option<&Proxies>,
    ) -> Result<DesiredGateway, String> {
        let plan = self.plan_of_gateways();
        let planned = plan.and_then(|plan| plan.desired.gateways.get(site));
        let mut rules = BTreeMap::new();
        for flow in flows {
            let is_planned = plan.is_some_and(|plan| {
                plan.record.flows.iter().any(|known| {
                    (&known.id, &known.from, &known.to) == (&flow.id, &flow.from, &flow.to)
                })
            });
            let is_planned =
                is_planned && !self.is_taken_back(&flow.id) && !self.is_stopped(&flow.id);
            let planned = planned.filter(|_| is_planned);
            let routes = planned.map_or(&[Route::Direct][..], |it| it.routes.routes_to(&flow.to).1);
            let routes = routes.iter().filter(|route| self.is_trusted(route)).cloned().collect();
            // Of flows to the same destination, one has the path of all.
            let rule: &mut (_, Vec<Route>) =
                rules.entry(flow.to.to_string()).or_insert_with(|| (flow.to.clone(), Vec::new()));
            if rule.1.is_empty() || is_planned {
                rule.1 = routes;
            }
        }
        let mut grant = GrantTerms::default();
        for (to, routes) in rules.values() {
            for hops in routes.iter().filter_map(relayed) {
                grant.add_destination(to);
                hops.iter().for_each(|hop| grant.add_relay(hop.identity));
            }
        }
        let ranges = proxies.into_iter().flat_map(|proxies| &proxies.destinations);
        let ranges = ranges.map(|rule| (rule.clone(), vec![Route::Direct]));
        let rules = rules.into_values().map(|(to, routes)| (to.as_rule(), routes)).chain(ranges);
        let reaches_all = proxies.is_some_and(Proxies::reach_all);
        let otherwise = if reaches_all { Route::Direct } else { Route::Refuse };
        let routes = RouteTable::with_fallbacks(rules.collect(), vec![otherwise]);
        Ok(DesiredGateway {
            routes: routes.map_err(|error| error.to_string())?,
            legs: planned.map(|planned| planned.legs.clone()).unwrap_or_default(),
            grant,
            flows: flows.iter().map(|flow| (flow.id.clone(), flow.to.clone())).collect(),
            learned: planned.and_then(|planned| planned.learned),
        })
    }

    /// Returns the plan whose paths gateways take; none once the budget is zero or spent.
    fn plan_of_gateways(&self) -> Option<&Compiled<'a>> {
        let in_effect = self.state.plan_in_effect()?;
        let plan = self.plans.iter().find(|plan| plan.record.number == in_effect.number)?;
        let now = unix_ms(self.time);
        (!money::is_unpaid(self.state, now, plan.record)).then_some(plan)
    }

    /// Returns whether the path that the plan gives a flow was taken back.
    fn is_taken_back(&self, flow: &FlowId) -> bool {
        let plan = self.plan_of_gateways().map(|plan| plan.record);
        let now = unix_ms(self.time);
        plan.is_some_and(|plan| take_back::of_plan(self.state, now, plan, flow).is_some())
    }

    /// Returns whether a flow goes direct, as its tenant's budget is zero or spent.
    fn is_stopped(&self, flow: &FlowId) -> bool {
        tenants::is_stopped(self.state, unix_ms(self.time), flow)
    }

    /// Returns whether a route passes no revoked relay.
    fn is_trusted(&self, route: &Route) -> bool {
        relayed(route).is_none_or(|hops| !hops.iter().any(|hop| self.is_revoked(&hop.identity)))
    }

    /// Returns whether an identity is that of a revoked host.
    fn is_revoked(&self, identity: &PublicIdentity) -> bool {
        let mut hosts = self.state.hosts.values();
        hosts.any(|host| !host.is_trusted && host.data_identity == *identity)
    }

    /// Returns the grant of a gateway, if its paths need one: the one that its document has, while
    /// that covers the same and is not to be renewed.
    fn grant(&self, host: &Host, terms: &GrantTerms) -> Result<Option<SignedGrant>, String> {
        if terms.is_empty() {
            return Ok(None);
        }
        let relays = match terms.relays.len() {
            0..=RELAY_LIMIT => Relays::listed(&terms.relays),
            _ => Relays::Any,
        };
        let wanted = grant(self.time, host.data_identity, relays, terms);
        let old = self.state.documents.get(&host.id).and_then(grant_of);
        if let Some(old) = old.filter(|old| self.still_serves(old, &wanted)) {
            return Ok(Some(old));
        }
        let of_any = Grant { relays: Relays::Any, ..wanted.clone() };
        let signed = wanted.sign(&self.keys.operator);
        // Many relays and destinations do not fit together.
        let signed = signed.or_else(|_| of_any.sign(&self.keys.operator));
        signed.map(Some).map_err(|error| error.to_string())
    }

    fn still_serves(&self, old: &SignedGrant, wanted: &Grant) -> bool {
        let known = old.unverified();
        let covers_the_same = known.gateway == wanted.gateway
            && known.destinations == wanted.destinations
            && (known.relays == wanted.relays || known.relays == Relays::Any);
        covers_the_same
            && old.key_id() == self.keys.operator.public().key_id()
            && known.check_expiry(self.time).is_ok()
            && known.expires.since(self.time) > GRANT_RENEWED_AT
            && known.expires.since(self.time) <= GRANT_LASTS
    }
}

/// Returns the relays of a route; `None` if it has none.
fn relayed(route: &Route) -> Option<&[Hop]> {
    match route {
        Route::Relays(hops) => Some(hops),
        Route::Direct | Route::Refuse => None,
    }
}

/// Returns the desired state of a plan, of which all hosts are running.
fn desired(state: &State, record: &PlanRecord) -> Result<Desired, String> {
    let hop = |(relay, id): (&RelayId, _)| {
        let host = state.hosts.get(id)?;
        let name = relay.clone();
        let hop = Hop { name, address: address(host), identity: host.data_identity };
        Some((relay.clone(), hop))
    };
    let inventory = Inventory {
        relays: record.hosts.iter().filter_map(hop).collect(),
        destinations: record.flows.iter().map(|flow| (flow.id.clone(), flow.to.clone())).collect(),
        fallbacks: Fallbacks { relays: true, direct: true },
        leg: LegProfile::default(),
    };
    let flow = |flow: &FlowRecord| {
        let per_day = record.per_day(flow);
        Flow::new(flow.id.clone(), flow.from.clone(), flow.to_site.clone(), per_day)
    };
    let flows: Vec<Flow> = record.flows.iter().map(flow).collect();
    let regions: BTreeSet<RegionId> =
        record.plan.relays.iter().map(|relay| relay.region.clone()).collect();
    let legs = legs::of_measurements(&record.measurements, &regions);
    compile(&record.plan, &flows, &legs, &inventory).map_err(|error| error.to_string())
}

/// Returns the section that has a process tell its sessions to the agent.
fn access_log() -> Value {
    Value::Table(
        [("to".to_owned(), format!("unix:{SESSIONS_SOCKET}").into())].into_iter().collect(),
    )
}

/// Returns the address of a host's relay.
fn address(host: &Host) -> SocketAddr {
    SocketAddr::new(host.address, RELAY_PORT)
}

/// Returns a relay that serves two plans: what either needs, with the profiles of the newer one.
fn united(older: DesiredRelay, newer: DesiredRelay) -> DesiredRelay {
    let DesiredRelay { address, mut policy, mut legs, learned } = newer;
    let add = |known: &mut Vec<_>, more: Vec<_>| {
        for rule in more {
            if !known.contains(&rule) {
                known.push(rule);
            }
        }
    };
    add(&mut policy.destinations, older.policy.destinations);
    add(&mut policy.next_hops, older.policy.next_hops);
    let is_new =
        |leg: &tradewind_desired::LegTo| !legs.to.iter().any(|known| known.address == leg.address);
    let more: Vec<_> = older.legs.to.into_iter().filter(is_new).collect();
    legs.to.extend(more);
    DesiredRelay { address, policy, legs, learned: learned.max(older.learned) }
}

fn process(
    name: &str,
    kind: Kind,
    table: &Table,
    files: BTreeMap<String, String>,
) -> Result<Process, String> {
    let config = toml::to_string(table).map_err(|error| error.to_string())?;
    Ok(Process { name: name.to_owned(), kind, config, files })
}

/// Returns a grant from now on.
fn grant(now: Timestamp, gateway: PublicIdentity, relays: Relays, terms: &GrantTerms) -> Grant {
    let backdated = now.as_nanos().saturating_sub(GRANT_BACKDATED.as_nanos() as u64);
    Grant {
        gateway,
        not_before: Timestamp::from_nanos(backdated),
        expires: now + GRANT_LASTS,
        sessions: None,
        relays,
        destinations: terms.destinations.clone(),
        extensions: Extensions { issued_at: Some(now), ..Extensions::default() },
    }
}

/// Returns the grant in the document of a gateway.
fn grant_of(document: &Document) -> Option<SignedGrant> {
    let gateway = document.processes.iter().find(|process| process.kind == Kind::Gateway)?;
    let table: Table = gateway.config.parse().ok()?;
    table.get("grant")?.as_str()?.parse().ok()
}

/// Returns the signed list of revoked gateways. Its version grows with it, as hosts are revoked for
/// good.
fn revocations(state: &State, operator: &OperatorKey) -> String {
    let revoked = state.hosts.values().filter(|host| !host.is_trusted);
    let gateways: BTreeSet<PublicIdentity> = revoked.map(|host| host.data_identity).collect();
    let list = RevocationList {
        version: gateways.len() as u64 + 1,
        gateways,
        ..RevocationList::default()
    };
    list.sign(operator).map(|signed| signed.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tradewind_config::{GatewayConfig, RelayConfig};

    use super::*;
    use crate::event::Event;
    use crate::testing::{Bench, PATH, flow, host, identity};

    fn gateway(bench: &Bench) -> GatewayConfig {
        GatewayConfig::parse(&bench.config("office-1").unwrap()).unwrap()
    }

    fn relay(bench: &Bench, id: &str) -> RelayConfig {
        RelayConfig::parse(&bench.config(id).unwrap()).unwrap()
    }

    /// Returns the lengths of the paths to the destination of this number.
    fn paths(bench: &Bench, number: u8) -> Vec<usize> {
        let config = gateway(bench);
        let routes = config.routes.routes_to(&flow("x", number).to).1;
        routes.iter().map(|route| relayed(route).map_or(0, <[Hop]>::len)).collect()
    }

    #[test]
    fn configurations_hold_what_the_plan_needs() {
        let mut bench = Bench::in_service();
        bench.event(Event::AddFlow(flow("b", 8)));
        assert_eq!(paths(&bench, 7), [2, 1, 1, 0]);
        assert_eq!(paths(&bench, 8), [0], "a flow without a plan goes direct");
        let config = gateway(&bench);
        assert_eq!(config.access_log.unwrap().to.to_string(), "unix:sessions.sock");
        assert_eq!(config.control_share, bench.state().settings.control_share);
        assert_eq!(config.forward.len(), 2);
        assert_eq!(config.forward[0].listen, flow("a", 7).listen);
        let first = relay(&bench, "gcp:europe-north1-1");
        assert_eq!(first.listen, ["0.0.0.0:7000".parse().unwrap()]);
        assert!(
            first
                .policy
                .next_hops
                .iter()
                .any(|rule| { rule.covers_address(([192, 0, 2, 3], RELAY_PORT).into()) })
        );
        let operators = [bench_operator()];
        assert_eq!(first.operators, operators);
        let grant = config.grant.unwrap();
        let grant = grant.verify(&operators).unwrap();
        assert_eq!(grant.gateway, identity(101));
        assert_eq!(grant.relays, Relays::listed(&[identity(102), identity(103)]));
        grant.check_expiry(bench.time()).unwrap();
    }

    #[test]
    fn grant_serves_at_relays_although_the_controllers_clock_is_a_day_off() {
        for is_ahead in [true, false] {
            let mut bench = Bench::in_service();
            let day = 86_400_000;
            let true_time = bench.time();
            bench.now = if is_ahead { bench.now + day } else { bench.now - day };
            // Other paths take a new grant.
            bench.event(Event::Drain { host: host(PATH[1]), is_drained: true });
            bench.pass(10);
            bench.plan();
            bench.pass(20);
            let grant = gateway(&bench).grant.unwrap();
            let grant = grant.verify(&[bench_operator()]).unwrap();
            assert_eq!(grant.issued_at() > true_time, is_ahead);
            grant.check_expiry(true_time).unwrap();
        }
    }

    fn bench_operator() -> tradewind_grant::OperatorPublicKey {
        crate::testing::keys().operator.public()
    }

    #[test]
    fn documents_change_only_with_what_they_say() {
        let mut bench = Bench::in_service();
        let versions = |bench: &Bench| -> Vec<u64> {
            bench.state().documents.values().map(|document| document.version.version).collect()
        };
        let before = versions(&bench);
        bench.pass(130);
        assert_eq!(versions(&bench), before);
        bench.event(Event::AddFlow(flow("b", 8)));
        let after = versions(&bench);
        assert_eq!(before.iter().zip(&after).filter(|(before, after)| before != after).count(), 1);
        let id = identity(1);
        let have = bench.state().documents[&host("office-1")].version;
        assert!(bench.controller.document(&id, Some(have)).is_none());
        let older = DocumentVersion { version: have.version - 1, ..have };
        let elsewhere = DocumentVersion { epoch: 9, version: 999 };
        for have in [None, Some(older), Some(elsewhere)] {
            let signed = bench.controller.document(&id, have).unwrap();
            let by = crate::testing::keys().identity.public();
            assert_eq!(signed.verify(&by).unwrap().host, host("office-1"));
        }
    }

    #[test]
    fn grants_are_renewed_when_a_third_is_left() {
        let mut bench = Bench::in_service();
        let expires = |bench: &Bench| gateway(bench).grant.unwrap().unverified().expires;
        let first = expires(&bench);
        let third = GRANT_RENEWED_AT.as_millis() as u64;
        bench.now += 2 * third - 120_000;
        bench.pass(1);
        assert_eq!(expires(&bench), first);
        bench.now += 180_000;
        bench.pass(1);
        assert_eq!(expires(&bench), bench.time() + GRANT_LASTS);
    }

    #[test]
    fn removed_flow_keeps_its_relays_permissions_until_the_next_plan() {
        let mut bench = Bench::in_service();
        let before = bench.config("gcp:asia-east1-1");
        bench.event(Event::AddFlow(flow("b", 8)));
        bench.event(Event::RemoveFlow(flow("a", 7).id));
        assert_eq!(bench.config("gcp:asia-east1-1"), before);
        assert!(gateway(&bench).grant.is_none());
        // Declared for another destination, it goes there directly.
        bench.event(Event::AddFlow(FlowRecord { to: flow("x", 9).to, ..flow("a", 7) }));
        assert_eq!(paths(&bench, 9), [0]);
    }

    #[test]
    fn revoked_relay_leaves_routes_grants_and_policies() {
        let mut bench = Bench::in_service();
        bench.event(Event::Revoke(host("gcp:asia-east1-1")));
        assert_eq!(paths(&bench, 7), [1, 0]);
        let grant = gateway(&bench).grant.unwrap();
        assert!(!grant.unverified().relays.contain(&identity(103)));
        let left = relay(&bench, "gcp:europe-north1-1");
        assert!(left.policy.next_hops.is_empty());
        let document = &bench.state().documents[&host("gcp:europe-north1-1")];
        let list = document.processes[0].files[REVOCATIONS_FILE].clone();
        let list: tradewind_grant::SignedRevocations = list.parse().unwrap();
        let list = list.verify(&[bench_operator()]).unwrap();
        assert_eq!((list.version, list.gateways.contains(&identity(103))), (2, true));
    }

    #[test]
    fn restored_store_makes_all_documents_anew() {
        let mut bench = Bench::in_service();
        let before = bench.state().documents.clone();
        let counters = bench.state().counters;
        let restored = crate::record::Counters { epoch: counters.epoch + 1, ..counters };
        bench.controller.apply(Record::Counters(restored));
        bench.now += 60_000;
        bench.event(Event::Tick);
        for (host, document) in bench.state().documents.iter() {
            assert_eq!(document.version.epoch, before[host].version.epoch + 1);
            assert_eq!(document.processes, before[host].processes);
        }
    }
}
