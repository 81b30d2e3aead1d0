//! Packet flows from their declaration to the counts of their packets, in virtual time: a gateway
//! at each end, relays between, and an Internet that loses packets.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;

use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_control::message::{
    CONFIG_VERSION, JoinRequest, Probe, ProbeKind, ProbeOutcome, ProbeResult, ProcessState,
    ProcessStatus, Report, SCHEMA_VERSION, SessionBatch,
};
use tradewind_control::packet_flow::{PacketCounts, PacketFlowRecord, PacketTally};
use tradewind_control::record::{Mode, Role, Step};
use tradewind_control::{Answer, Ceiling, Controller, Event, Keys, Refusal, SettingsRequest};
use tradewind_desired::packets::Chooser;
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_model::packet::PacketService;
use tradewind_plan::Plan;
use tradewind_units::{Duration, HostId, Money, Ratio, SiteId, Timestamp};

const HOSTS: [(&str, [u8; 4]); 4] = [
    ("office", [198, 41, 0, 1]),
    ("plant", [198, 41, 0, 2]),
    ("gcp:europe-north1", [198, 41, 0, 3]),
    ("gcp:europe-west3", [198, 41, 0, 4]),
];

fn identity(number: u8) -> PublicIdentity {
    IdentityKey::from_entropy([number; 32]).public()
}

fn role(place: &str) -> Role {
    if !place.contains(':') {
        return Role::Gateway { site: place.parse().unwrap() };
    }
    Role::Relay { region: place.parse().unwrap(), relay_type: "standard".parse().unwrap() }
}

fn call() -> PacketFlowRecord {
    PacketFlowRecord {
        id: "call".parse().unwrap(),
        from: "office".parse().unwrap(),
        to: "198.41.0.77:5004".parse().unwrap(),
        to_site: "plant".parse().unwrap(),
        packets_per_second: 50.0,
        packet: "200 B".parse().unwrap(),
        budget: Duration::from_millis(150),
        max_loss: Ratio::new(0.001).unwrap(),
        listen: "127.0.0.1:16000".parse().unwrap(),
        service: Chooser::Auto,
    }
}

/// A controller with a gateway at both sites and a relay in both regions.
struct Overlay {
    controller: Controller,
    now: u64,
    batch: u64,
}

impl Overlay {
    fn new(usd_per_day: f64) -> Self {
        let identity = IdentityKey::from_entropy([200; 32]);
        let operator = OperatorKey::from_entropy([201; 32]);
        let controller = Controller::new(Keys { identity, operator }, []);
        let mut overlay = Self { controller, now: 1_795_000_000_000, batch: 0 };
        let budget = Money::from_usd(usd_per_day).unwrap();
        overlay.event(&Event::ChangeSettings(SettingsRequest::budget(budget)));
        overlay.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
        for number in 0..HOSTS.len() {
            overlay.join(number, CONFIG_VERSION);
        }
        overlay
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_nanos(self.now * 1_000_000)
    }

    fn try_event(&mut self, event: &Event) -> Result<Answer, Refusal> {
        let decision = self.controller.decide(self.time(), event, [self.now as u8; 32])?;
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        Ok(decision.answer)
    }

    fn event(&mut self, event: &Event) -> Answer {
        self.try_event(event).unwrap()
    }

    fn join(&mut self, number: usize, config_version: u32) {
        self.now += 1;
        let (place, address) = HOSTS[number];
        let (ttl, controller) = (Duration::from_secs(60), ([192, 0, 2, 1], 7440).into());
        let invite = Event::Invite { role: role(place), ttl, controller };
        let Answer::Invite(invite) = self.event(&invite) else { panic!("no invite") };
        let request = JoinRequest {
            schema_version: SCHEMA_VERSION,
            secret: invite.secret,
            data_identity: identity(100 + number as u8),
            address: None,
            agent_version: String::new(),
            config_version,
        };
        let (identity, from) = (identity(number as u8), address.into());
        self.event(&Event::Join { identity, from, request });
    }

    fn report(&mut self, number: usize, change: impl FnOnce(&mut Report)) -> Vec<Probe> {
        let identity = identity(number as u8);
        let host = self.controller.state().host_of(&identity).unwrap();
        let (id, config_version) = (host.id.clone(), host.config_version);
        let document = self.controller.state().documents.get(&id);
        let names = document.into_iter().flat_map(|document| &document.processes);
        let ready = names.map(|process| ProcessStatus {
            name: process.name.clone(),
            state: ProcessState::Ready,
            listen: Vec::new(),
            sessions: None,
            failure: None,
        });
        let processes = ready.collect();
        let applied = document.map(|document| document.version);
        let mut report = Report { config_version, applied, processes, ..Report::default() };
        change(&mut report);
        match self.event(&Event::Report { identity, report }) {
            Answer::Reported(answer) => answer.probes,
            other => panic!("{other:?}"),
        }
    }

    /// Lets seconds pass, in which all hosts report, measure, and apply their documents.
    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now += 1000;
            self.event(&Event::Tick);
            for number in 0..HOSTS.len() {
                let probes = self.report(number, |_| {});
                let results: Vec<_> = probes.iter().map(|probe| measured(number, probe)).collect();
                self.report(number, |report| report.results = results);
            }
        }
    }

    fn plan(&mut self) {
        let problem = self.controller.problem(self.time()).unwrap();
        assert!(problem.flows().is_empty());
        self.event(&Event::Planned(Plan::nothing()));
    }

    /// An overlay whose only flow has a plan in effect.
    fn in_service(usd_per_day: f64) -> Self {
        let mut overlay = Self::new(usd_per_day);
        overlay.event(&Event::AddPacketFlow(call()));
        overlay.pass(10);
        overlay.plan();
        overlay.pass(10);
        assert_eq!(overlay.controller.state().rollout.step, Step::Done);
        overlay
    }

    fn config(&self, place: &str) -> Option<String> {
        let id: HostId = format!("{place}-1").parse().unwrap();
        let document = &self.controller.state().documents[&id];
        // What is told is what a host of this role may run.
        let ceiling = Ceiling::of_role(&role(place));
        ceiling.allows(document).unwrap();
        document.processes.first().map(|process| process.config.clone())
    }

    fn gateway(&self, place: &str) -> GatewayConfig {
        GatewayConfig::parse(&self.config(place).unwrap()).unwrap()
    }

    /// Returns the identities of the relays that the sender's section names.
    fn relays(&self) -> Vec<PublicIdentity> {
        let packets = self.gateway("office").packets().unwrap().unwrap();
        let named: Vec<_> = packets.paths[0].delivery.named().map(|hop| hop.identity).collect();
        assert_eq!(named.last(), Some(&identity(101)), "the remote gateway comes last");
        named[..named.len() - 1].to_vec()
    }

    /// Has the sender report these packets, of which so many were lost by the Internet, and the
    /// caches recovered all.
    fn carry(&mut self, packets: u64, lost_by_internet: u64) {
        self.batch += 1;
        let counts = PacketCounts {
            packets,
            expected: packets,
            in_time: packets,
            lost_by_internet,
            recovered_cache: lost_by_internet,
            relay_bytes: 1_000_000_000,
            usd: Money::from_usd(0.1).unwrap(),
            ..PacketCounts::default()
        };
        let listen = call().listen;
        let (service, why) = ("caching".to_owned(), "cheapest".to_owned());
        let tally = PacketTally { listen, service, why, counts };
        let (tallies, hours, packets) = (Vec::new(), Vec::new(), vec![tally]);
        let batch = SessionBatch { tallies, hours, packets, ..SessionBatch::empty(1, self.batch) };
        // Sent twice, it counts once.
        for _ in 0..2 {
            let batch = batch.clone();
            self.report(0, |report| report.sessions = Some(batch));
        }
    }
}

/// Returns the result of a probe: 20 ms from the sites to the relays, 10 ms between these, 80 ms
/// from site to site.
fn measured(number: usize, probe: &Probe) -> ProbeResult {
    let is_relay = |place: &str| place.contains(':');
    let (from, to) = (HOSTS[number].0, probe.to.as_str());
    let rtt = match (is_relay(from), is_relay(to)) {
        (true, true) => 10.0,
        (false, false) => 80.0,
        _ => 20.0,
    };
    let outcome = match probe.kind {
        ProbeKind::Rtt { samples, .. } => {
            ProbeOutcome::Rtt { min_ms: rtt, median_ms: rtt, spread_ms: 1.0, samples }
        }
        ProbeKind::Rate { .. } => ProbeOutcome::Failed { reason: "no responder".to_owned() },
    };
    ProbeResult { id: probe.id, to: probe.to.clone(), measured_unix_ms: 0, outcome }
}

#[test]
fn lossy_flow_gets_relays_within_the_budget_and_all_hosts_their_configurations() {
    let overlay = Overlay::in_service(20.0);
    let plan = overlay.controller.state().plan_in_effect().unwrap();
    let planned = &plan.packets.plan.flows[0];
    assert_ne!(planned.service, PacketService::Direct);
    assert!(planned.path.len() == 1 && planned.delivery <= planned.budget);
    assert!(planned.services.iter().any(|one| one.service == PacketService::Forwarding));
    assert!(plan.usd_per_day > Money::ZERO && plan.usd_per_day == plan.packets.plan.cost);
    assert!(plan.rests_on.iter().any(|line| line.contains("loss 0.01 assumed")));
    let region = plan.packets.plan.relays[0].region.to_string();

    // The sender: its port, the relay, the remote gateway, a grant for both.
    let office = overlay.gateway("office");
    let packets = office.packets().unwrap().unwrap();
    assert_eq!(packets.paths[0].delivery.max_loss, Some(call().max_loss));
    let relay = overlay.relays()[0];
    let operators = [OperatorKey::from_entropy([201; 32]).public()];
    let grant = office.grant.unwrap();
    let grant = grant.verify(&operators).unwrap();
    assert!(grant.relays.contain(&relay) && grant.relays.contain(&identity(101)));
    assert!(grant.destinations.iter().any(|rule| rule.covers_address(call().to)));

    // The receiver: the same relay, and this destination alone.
    let plant = overlay.gateway("plant").packets().unwrap().unwrap();
    assert_eq!(
        (plant.relays.as_slice(), plant.operators.as_slice()),
        (&[relay][..], &operators[..])
    );
    assert_eq!(plant.listen, "0.0.0.0:7000".parse::<SocketAddr>().unwrap());
    assert_eq!(plant.destinations.len(), 1);
    assert!(plant.destinations[0].covers_address(call().to));

    // The relay: the receiver as its only next hop, and the cloud's price.
    let relay = RelayConfig::parse(&overlay.config(&region).unwrap()).unwrap();
    let packets = relay.packets().unwrap().unwrap();
    assert_eq!(packets.next_hops.len(), 1);
    assert!(packets.next_hops[0].covers_address(([198, 41, 0, 2], 7000).into()));
    assert!(packets.services.to_endpoints.as_usd_per_gb() > 0.0);
    let others = ["gcp:europe-north1", "gcp:europe-west3"].into_iter().filter(|it| *it != region);
    assert!(others.map(|other| overlay.config(other)).all(|config| config.is_none()));
}

#[test]
fn flow_without_money_or_an_agent_that_can_goes_over_the_internet_alone() {
    let mut overlay = Overlay::in_service(20.0);
    assert_eq!(overlay.relays().len(), 1);
    overlay.event(&Event::ChangeSettings(SettingsRequest::budget(Money::ZERO)));
    assert_eq!(overlay.relays(), []);
    overlay.pass(10);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    let reason = &newest.packets.left_out[&call().id];
    assert!(reason.contains("the budget does not suffice"), "{reason}");
    assert!(newest.hosts.is_empty());

    // A relay with an older agent is passed by, and a receiver with one leaves the flow out.
    let mut overlay = Overlay::in_service(20.0);
    let plan = overlay.controller.state().plan_in_effect().unwrap();
    let host = plan.hosts.values().next().unwrap().clone();
    let number = HOSTS.iter().position(|(place, _)| format!("{place}-1") == host.as_str());
    overlay.report(number.unwrap(), |report| report.config_version = 1);
    overlay.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
    assert_eq!(overlay.relays(), []);
    assert!(!overlay.config(HOSTS[number.unwrap()].0).unwrap().contains("[packet]"));
    overlay.report(1, |report| report.config_version = 1);
    overlay.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
    assert_eq!((overlay.config("office"), overlay.config("plant")), (None, None));
}

#[test]
fn packets_count_once_cost_money_and_tell_the_loss_of_the_next_plan() {
    let mut overlay = Overlay::in_service(20.0);
    let spent =
        |overlay: &Overlay| overlay.controller.state().spent.values().last().unwrap().traffic;
    let before = spent(&overlay);
    overlay.carry(30_000, 600);
    overlay.carry(10_000, 200);
    let state = overlay.controller.state();
    let day = state.packets.values().next().unwrap();
    assert_eq!((day.flow.as_str(), day.service.as_str()), ("call", "caching"));
    assert_eq!((day.counts.packets, day.counts.recovered(), day.counts.lost), (40_000, 800, 0));
    assert_eq!(spent(&overlay).as_usd() - before.as_usd(), 0.2);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    assert_eq!(newest.packets.plan.flows[0].internet_loss, Ratio::new(0.02).unwrap());
    assert!(newest.packets.losses[&call().id].contains("40000 packets of its own"));
    // Without loss the Internet alone is enough, which is for the operator to say.
    overlay.now += 3 * 86_400_000;
    overlay.pass(5);
    overlay.carry(100_000, 0);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    assert_eq!(newest.packets.plan.flows[0].service, PacketService::Direct);
    assert_eq!(newest.usd_per_day, Money::ZERO);

    // What cannot be is not counted: another site's port, a price beyond any.
    let known = overlay.controller.state().packets.clone();
    let usd = Money::from_usd(200.0).unwrap();
    let bad = PacketCounts { packets: 1, relay_bytes: 1_000_000_000, usd, ..Default::default() };
    for (number, counts) in [(0, bad), (1, PacketCounts { packets: 1, ..Default::default() })] {
        let tally = PacketTally {
            listen: call().listen,
            service: String::new(),
            why: String::new(),
            counts,
        };
        let (tallies, hours, packets) = (Vec::new(), Vec::new(), vec![tally]);
        let batch = SessionBatch { tallies, hours, packets, ..SessionBatch::empty(2, 1) };
        overlay.report(number, |report| report.sessions = Some(batch));
    }
    assert_eq!(overlay.controller.state().packets, known);
    // A gateway's word costs no more than the flow as it was declared can.
    let usd = Money::from_usd(1000.0).unwrap();
    let greedy = PacketCounts { packets: 1, relay_bytes: 1 << 40, usd, ..Default::default() };
    let (service, why) = (String::new(), String::new());
    let tally = PacketTally { listen: call().listen, service, why, counts: greedy };
    for number in 2..4 {
        let packets = vec![tally.clone()];
        let batch = SessionBatch { packets, ..SessionBatch::empty(2, number) };
        overlay.report(0, |report| report.sessions = Some(batch));
    }
    let spent = overlay.controller.state().spent.values().next_back().unwrap().traffic;
    assert!(spent < Money::from_usd(20.0).unwrap(), "{spent}");
}

#[test]
fn changes_make_the_plan_stale_and_revoked_relays_leave_all_configurations() {
    let mut overlay = Overlay::in_service(20.0);
    let stale = |overlay: &Overlay| overlay.controller.staleness(overlay.time()).join("; ");
    assert_eq!(stale(&overlay), "");
    let sooner = PacketFlowRecord { budget: Duration::from_millis(100), ..call() };
    overlay.event(&Event::AddPacketFlow(sooner.clone()));
    assert!(stale(&overlay).contains("packet flow call was declared anew"));
    // Until there is one it goes on with its path.
    assert_eq!(overlay.relays().len(), 1);
    let elsewhere = PacketFlowRecord { listen: "127.0.0.1:16009".parse().unwrap(), ..sooner };
    overlay.event(&Event::AddPacketFlow(elsewhere));
    assert_eq!(overlay.relays(), [], "the plan is of other ends");
    overlay.plan();
    overlay.pass(10);
    assert_eq!(overlay.relays().len(), 1);
    let host = overlay.controller.state().plan_in_effect().unwrap().hosts.values().next().cloned();
    overlay.event(&Event::Revoke(host.unwrap()));
    assert_eq!(overlay.relays(), []);
    let plant = overlay.gateway("plant").packets().unwrap().unwrap();
    assert_eq!(plant.relays, []);
    overlay.event(&Event::RemoveFlow(call().id));
    let state = overlay.controller.state();
    assert!(state.packet_flows.is_empty() && state.packets.is_empty());
    assert_eq!((overlay.config("office"), overlay.config("plant")), (None, None));
}

#[test]
fn packet_flows_that_cannot_be_carried_are_refused() {
    let mut overlay = Overlay::new(20.0);
    overlay.event(&Event::AddPacketFlow(call()));
    let port = |port: u16| ([127, 0, 0, 1], port).into();
    let other = PacketFlowRecord { id: "other".parse().unwrap(), ..call() };
    for (wrong, expected) in [
        (other.clone(), "has port 16000 already"),
        (PacketFlowRecord { listen: port(7000), ..other.clone() }, "that of gateways themselves"),
        (PacketFlowRecord { to_site: call().from, ..call() }, "the site that it comes from"),
        (PacketFlowRecord { to_site: "far".parse().unwrap(), ..call() }, "remove it first"),
        (PacketFlowRecord { packet: "0 B".parse().unwrap(), ..call() }, "packet: expected 1 to"),
        (PacketFlowRecord { packets_per_second: f64::NAN, ..call() }, "packets_per_second"),
        (PacketFlowRecord { budget: Duration::from_secs(66), ..call() }, "budget: expected"),
        (PacketFlowRecord { to: ([198, 41, 0, 77], 0).into(), ..call() }, "a port from 1"),
    ] {
        let refusal = overlay.try_event(&Event::AddPacketFlow(wrong)).unwrap_err();
        assert!(matches!(refusal, Refusal::Invalid(_)));
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }
    let site: SiteId = "office".parse().unwrap();
    let stream = tradewind_control::record::FlowRecord {
        id: call().id,
        from: site,
        to: "198.41.0.7:443".parse().unwrap(),
        to_site: "far".parse().unwrap(),
        per_day: "1 GB".parse().unwrap(),
        weight: 1,
        listen: port(15_000),
    };
    let refusal = overlay.try_event(&Event::AddFlow(stream.clone())).unwrap_err();
    assert!(refusal.to_string().contains("a packet flow has this name"), "{refusal}");
    overlay.event(&Event::RemoveFlow(call().id));
    overlay.event(&Event::AddFlow(stream));
    let refusal = overlay.try_event(&Event::AddPacketFlow(call())).unwrap_err();
    assert!(refusal.to_string().contains("a flow of streams has this name"), "{refusal}");
}
