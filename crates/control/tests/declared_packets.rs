//! Packet flows from their declaration to the counts of their packets, in virtual time: a gateway
//! at each end, relays between, and an Internet that loses packets.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::SocketAddr;

use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_control::by_path::{Handshakes, PathPackets};
use tradewind_control::message::{
    CONFIG_VERSION, JoinRequest, Probe, ProbeKind, ProbeOutcome, ProbeResult, ProcessState,
    ProcessStatus, Report, SCHEMA_VERSION, SessionBatch,
};
use tradewind_control::packet_flow::{PacketCounts, PacketFlowRecord, PacketTally};
use tradewind_control::record::{Mode, PlanRecord, Record, Role, Step};
use tradewind_control::what_if::{self, Present, WhatIf};
use tradewind_control::{Answer, Ceiling, Controller, Event, Keys, Refusal, SettingsRequest};
use tradewind_desired::packets::Chooser;
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_model::packet::PacketService;
use tradewind_plan::Plan;
use tradewind_plan::packets::PlannedPacketFlow;
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
    /// The share of handshakes between the sites that are lost, and those that are to be lost yet.
    loss: f64,
    owed: f64,
    /// A host whose agent reports nothing.
    silent: Option<usize>,
}

impl Overlay {
    fn new(usd_per_day: f64) -> Self {
        let identity = IdentityKey::from_entropy([200; 32]);
        let operator = OperatorKey::from_entropy([201; 32]);
        let controller = Controller::new(Keys { identity, operator }, []);
        let (now, batch, loss, owed) = (1_795_000_000_000, 0, 0.0, 0.0);
        let mut overlay = Self { controller, now, batch, loss, owed, silent: None };
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
        self.pass_by(seconds, 1);
    }

    /// The same, with reports each so many seconds.
    fn pass_by(&mut self, seconds: u64, step: u64) {
        for _ in 0..seconds / step {
            self.now += step * 1000;
            self.event(&Event::Tick);
            let silent = self.silent;
            for number in (0..HOSTS.len()).filter(|number| silent != Some(*number)) {
                let probes = self.report(number, |_| {});
                let of_probe = |probe: &Probe| self.measured(number, probe);
                let results: Vec<_> = probes.iter().map(of_probe).collect();
                if self.loss >= 1.0 {
                    // The answer to the first is lost as well.
                    let results = results.clone();
                    self.report(number, |report| report.results = results);
                }
                self.report(number, |report| report.results = results);
            }
        }
    }

    /// Returns the result of a probe: 20 ms from the sites to the relays, 10 ms between these, and
    /// 80 ms from site to site.
    fn measured(&mut self, number: usize, probe: &Probe) -> ProbeResult {
        let is_relay = |place: &str| place.contains(':');
        let (from, to) = (HOSTS[number].0, probe.to.as_str());
        let rtt = match (is_relay(from), is_relay(to)) {
            (true, true) => 10.0,
            (false, false) => 80.0,
            _ => 20.0,
        };
        let failed = |reason: &str| ProbeOutcome::Failed { reason: reason.to_owned() };
        let outcome = match probe.kind {
            ProbeKind::Rtt { samples, .. } => {
                let is_direct = !is_relay(from) && !is_relay(to);
                self.owed += if is_direct { f64::from(samples) * self.loss } else { 0.0 };
                let lost = (self.owed as u32).min(samples);
                self.owed -= f64::from(lost);
                match samples - lost {
                    0 => failed("timed out"),
                    samples => {
                        ProbeOutcome::Rtt { min_ms: rtt, median_ms: rtt, spread_ms: 1.0, samples }
                    }
                }
            }
            _ => failed("no responder"),
        };
        ProbeResult { id: probe.id, to: probe.to.clone(), measured_unix_ms: 0, outcome }
    }

    /// Has probes between the sites told that so many of 20,000 handshakes were lost today.
    fn probed(&mut self, lost: u64) {
        let sum = Handshakes {
            source: call().from,
            destination: call().to_site,
            day: self.now / 86_400_000,
            today: PathPackets { expected: 20_000, lost },
            yesterday: PathPackets::default(),
        };
        self.controller.apply(Record::Handshakes(sum));
    }

    /// Returns the handshakes of today between the sites.
    fn handshakes(&self) -> PathPackets {
        let ends = (call().from, call().to_site);
        self.controller.state().handshakes[&ends].today
    }

    fn stale(&self) -> String {
        self.controller.staleness(self.time()).join("; ")
    }

    fn newest(&self) -> PlanRecord {
        self.controller.state().newest_plan().unwrap().clone()
    }

    fn plan(&mut self) {
        let problem = self.controller.problem(self.time()).unwrap();
        assert!(problem.flows().is_empty());
        let state = self.controller.state();
        let joint = Controller::joint_of(state, self.time(), Plan::nothing()).unwrap();
        self.event(&Event::Planned(Box::new(joint)));
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
        self.carry_by("caching", packets, lost_by_internet);
    }

    /// The same, carried by a service.
    fn carry_by(&mut self, service: &str, packets: u64, lost_by_internet: u64) {
        self.carry_by_each(&[(service, packets, lost_by_internet)]);
    }

    /// The same, carried by one service after the other. Without relays packets are not numbered,
    /// so the receiver reports nothing.
    fn carry_by_each(&mut self, services: &[(&str, u64, u64)]) {
        self.batch += 1;
        let is_numbered = !self.relays().is_empty();
        let tally = |(service, packets, lost): &(&str, u64, u64)| {
            let [expected, lost_by_internet] =
                [*packets, *lost].map(|count| if is_numbered { count } else { 0 });
            let counts = PacketCounts {
                packets: *packets,
                expected,
                in_time: expected,
                lost_by_internet,
                recovered_cache: lost_by_internet,
                relay_bytes: 1_000_000_000,
                usd: Money::from_usd(0.1).unwrap(),
                ..PacketCounts::default()
            };
            let (service, why) = ((*service).to_owned(), "cheapest".to_owned());
            PacketTally { listen: call().listen, service, why, counts }
        };
        let packets = services.iter().map(tally).collect();
        let (tallies, hours) = (Vec::new(), Vec::new());
        let batch = SessionBatch { tallies, hours, packets, ..SessionBatch::empty(1, self.batch) };
        // Sent twice, it counts once.
        for _ in 0..2 {
            let batch = batch.clone();
            self.report(0, |report| report.sessions = Some(batch));
        }
    }
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
fn plan_is_made_beforehand_and_of_a_thousand_flows_those_with_a_service_are_served() {
    let mut overlay = Overlay::in_service(2_000.0);
    for number in 0..1000_u16 {
        // Most want their packets sooner than light brings them.
        let budget = Duration::from_millis(if number % 10 == 2 { 150 } else { 1 });
        let (id, port) = (format!("call-{number:04}"), 20_000 + number);
        let flow = PacketFlowRecord {
            id: id.parse().unwrap(),
            listen: ([127, 0, 0, 1], port).into(),
            budget,
            ..call()
        };
        overlay.controller.apply(Record::PacketFlow(flow));
    }
    let state = overlay.controller.state().clone();
    let joint = Controller::joint_of(&state, overlay.time(), Plan::nothing()).unwrap();
    let event = Event::Planned(Box::new(joint));
    // What is declared meanwhile is of the next plan.
    overlay.event(&Event::RemoveFlow("call-0002".parse().unwrap()));
    overlay.event(&event);
    let newest = overlay.controller.state().newest_plan().unwrap();
    let packets = &newest.packets;
    assert_eq!((packets.plan.flows.len(), packets.left_out.len()), (101, 900));
    assert!(packets.plan.flows.iter().all(|flow| flow.path.len() == 1));
    assert!(packets.left_out.values().all(|why| why.contains("no service meets its budget")));
    let stale = overlay.controller.staleness(overlay.time()).join("; ");
    assert!(stale.contains("packet flow call-0002 was removed"), "{stale}");

    // A host that was lost meanwhile is no part of a plan.
    let host = newest.hosts.values().next().unwrap().clone();
    overlay.event(&Event::Drain { host, is_drained: true });
    let refusal = overlay.try_event(&event).unwrap_err();
    assert!(refusal.to_string().contains("is left since it was made"), "{refusal}");
}

#[test]
fn what_if_and_the_present_count_the_money_of_packets() {
    let overlay = Overlay::in_service(20.0);
    let (state, now) = (overlay.controller.state(), overlay.time());
    let supposed = |asked: &WhatIf| {
        let problem = what_if::problem(state, now, asked).unwrap();
        let joint = what_if::joint(state, now, asked, Plan::nothing()).unwrap();
        Present::new(state, now, &problem).beside(&joint)
    };
    let same = supposed(&WhatIf::default());
    let in_effect = state.plan_in_effect().unwrap().usd_per_day;
    assert!(in_effect > Money::ZERO);
    assert_eq!((same.present.usd_per_day, same.plan.usd_per_day), (in_effect, in_effect));
    assert_eq!((same.present.relays, same.present.flows_over_relays), (1, 1));
    assert_eq!((same.plan.relays, same.regions.len()), (1, 0));
    let poor = supposed(&WhatIf { budget_usd_per_day: Some(Money::ZERO), ..WhatIf::default() });
    assert_eq!((poor.plan.usd_per_day, poor.plan.relays, poor.regions.len()), (Money::ZERO, 0, 1));
    assert!((poor.usd_more + in_effect.as_usd()).abs() < 1e-9);
    let without = supposed(&WhatIf { without: vec!["gcp:*".to_owned()], ..WhatIf::default() });
    assert_eq!((without.plan.relays, without.plan.usd_per_day), (0, Money::ZERO));
}

/// An overlay whose flow only forwarding serves, since recovery takes too long, and whose Internet
/// path loses a packet in fifty.
fn forwarded() -> Overlay {
    let mut overlay = Overlay::new(20.0);
    let strict = PacketFlowRecord { budget: Duration::from_millis(45), ..call() };
    overlay.event(&Event::AddPacketFlow(strict));
    overlay.pass(10);
    overlay.plan();
    overlay.pass(10);
    // The gateway selects by its measurements; with relays at hand it numbers all packets.
    overlay.carry_by("direct", 50_000, 1000);
    overlay.plan();
    overlay.pass(10);
    assert_eq!(planned(&overlay).service, PacketService::Forwarding);
    assert_eq!(planned(&overlay).internet_loss, Ratio::new(0.02).unwrap());
    overlay
}

fn planned(overlay: &Overlay) -> PlannedPacketFlow {
    let newest = overlay.controller.state().newest_plan().unwrap();
    newest.packets.plan.flows[0].clone()
}

#[test]
fn forwarding_says_nothing_of_the_internet_and_plans_do_not_swing_for_days() {
    let mut overlay = forwarded();
    let mut gains = 0;
    // Relays forward all packets and lose none; a probe a day tells too little.
    for day in 0..9 {
        overlay.now += 86_400_000;
        overlay.pass(1);
        overlay.carry_by("forwarding", 100_000, 0);
        overlay.plan();
        assert_eq!(planned(&overlay).service, PacketService::Forwarding, "day {day}");
        gains += usize::from(planned(&overlay).internet_loss != Ratio::new(0.02).unwrap());
    }
    assert_eq!(gains, 0);
    let newest = overlay.controller.state().newest_plan().unwrap();
    let basis = &newest.packets.losses[&call().id];
    assert!(basis.contains("what runs is kept"), "{basis}");
    let by_path = overlay.controller.state().packets.values().next_back().unwrap().by_path.unwrap();
    assert_eq!((by_path.relays.expected, by_path.internet.expected), (100_000, 0));
}

#[test]
fn probes_go_on_measuring_the_internet_of_a_forwarded_flow() {
    // It tolerates a thousandth.
    for (loss, expected) in [(0.002, PacketService::Forwarding), (0.0004, PacketService::Direct)] {
        let mut overlay = forwarded();
        overlay.now += 3 * 86_400_000;
        overlay.loss = loss;
        overlay.pass_by(13 * 3600, 11);
        overlay.carry_by("forwarding", 100_000, 0);
        overlay.plan();
        assert_eq!(planned(&overlay).service, expected);
        let basis = &overlay.newest().packets.losses[&call().id];
        assert!(basis.contains("handshakes of probes"), "{basis}");
    }
}

#[test]
fn flow_gets_relays_by_itself_once_the_internet_loses_more_than_it_tolerates() {
    let mut overlay = Overlay::new(20.0);
    overlay.event(&Event::AddPacketFlow(call()));
    overlay.pass(10);
    overlay.probed(0);
    overlay.plan();
    assert_eq!((planned(&overlay).service, overlay.stale().as_str()), (PacketService::Direct, ""));
    // Its own packets are not numbered: nobody learns from them that the path loses.
    overlay.carry_by("direct", 100_000, 2_000);
    overlay.probed(18);
    assert_eq!(overlay.stale(), "");
    overlay.probed(22);
    assert!(overlay.stale().contains("packet flow call: loss 0.0011 on the Internet, was 0"));
    overlay.plan();
    assert_eq!(overlay.stale(), "");
    assert_eq!(overlay.controller.state().rollout.to, Some(overlay.newest().number));
    overlay.pass(100);
    assert_eq!(overlay.relays().len(), 1);

    // The legs of its path are measured as often as those of streams, and make the plan stale.
    let region: SiteId = overlay.newest().packets.plan.relays[0].region.clone().into();
    let mut leg = overlay.controller.state().measurements[&(region, call().to_site)].clone();
    assert!(overlay.now - leg.measured_at_unix_ms.unwrap() < 30_000);
    overlay.probed(22);
    assert_eq!(overlay.stale(), "");
    let before = leg.clone();
    leg.rtt.min *= 2;
    overlay.controller.apply(Record::Measurement(leg));
    assert!(overlay.stale().contains("-> plant: RTT 40.0 ms, was 20.0 ms"), "{}", overlay.stale());
    overlay.controller.apply(Record::Measurement(before));

    // It keeps them near the limit, and leaves them below half of it.
    overlay.probed(12);
    assert_eq!(overlay.stale(), "");
    overlay.plan();
    assert_ne!(planned(&overlay).service, PacketService::Direct);
    overlay.probed(8);
    assert!(overlay.stale().contains("loss 0.0004 on the Internet"), "{}", overlay.stale());
    overlay.plan();
    assert_eq!((planned(&overlay).service, overlay.stale().as_str()), (PacketService::Direct, ""));
}

#[test]
fn flow_that_tolerates_no_loss_leaves_its_relays_when_there_is_none() {
    let mut overlay = Overlay::new(20.0);
    let max_loss = Ratio::default();
    overlay.event(&Event::AddPacketFlow(PacketFlowRecord { max_loss, ..call() }));
    overlay.pass(10);
    overlay.probed(1);
    overlay.plan();
    overlay.pass(10);
    assert_eq!(overlay.relays().len(), 1);
    overlay.probed(0);
    overlay.plan();
    assert_eq!(planned(&overlay).service, PacketService::Direct);
}

#[test]
fn outage_counts_once_for_each_probe_while_the_other_site_is_reached_otherwise() {
    let mut overlay = Overlay::in_service(20.0);
    let before = overlay.handshakes();
    assert!(before.expected > 0 && before.lost == 0);
    overlay.loss = 1.0;
    overlay.pass_by(120, 5);
    let after = overlay.handshakes();
    // Five handshakes each 30 seconds.
    assert!((15..=25).contains(&after.lost), "{after:?}");
    assert_eq!(after.expected, before.expected + after.lost);
    // A site that is down is no loss of the path.
    overlay.silent = Some(1);
    overlay.pass_by(40, 5);
    let down = overlay.handshakes();
    overlay.pass_by(120, 5);
    assert_eq!(overlay.handshakes(), down);
}

#[test]
fn changes_while_a_plan_is_made_make_it_stale() {
    let mut overlay = Overlay::in_service(20.0);
    let (state, made) = (overlay.controller.state().clone(), overlay.now);
    let joint = Controller::joint_of(&state, overlay.time(), Plan::nothing()).unwrap();
    overlay.now += 4_000;
    let region = overlay.newest().packets.plan.relays[0].region.clone();
    let mut leg = state.measurements[&(call().from, region.into())].clone();
    leg.rtt.min *= 2;
    overlay.controller.apply(Record::Measurement(leg));
    let budget = Money::from_usd(30.0).unwrap();
    overlay.event(&Event::ChangeSettings(SettingsRequest::budget(budget)));
    overlay.event(&Event::Planned(Box::new(joint)));
    assert_eq!(overlay.newest().made_unix_ms, made);
    let stale = overlay.stale();
    assert!(stale.contains("RTT 40.0 ms") && stale.contains("a plan may cost"), "{stale}");
    overlay.plan();
    assert_eq!(overlay.stale(), "");
}

#[test]
fn measured_loss_outlives_plans_without_the_flow_and_those_of_older_programs() {
    let mut overlay = forwarded();
    let mut older = overlay.newest();
    overlay.now += 3 * 86_400_000;
    overlay.pass(1);
    // The receiver's agent is put back for a while.
    set_version(&mut overlay, "plant", 1);
    overlay.plan();
    assert!(overlay.newest().packets.plan.flows.is_empty());
    set_version(&mut overlay, "plant", CONFIG_VERSION);
    overlay.plan();
    assert_eq!(planned(&overlay).internet_loss, Ratio::new(0.02).unwrap());
    // Older programs tell in words alone that it was measured.
    older.packets.measured.clear();
    older.packets.expected.clear();
    older.number = overlay.newest().number + 1;
    overlay.controller.apply(Record::Plan(older));
    overlay.plan();
    assert_eq!(planned(&overlay).internet_loss, Ratio::new(0.02).unwrap());
    assert!(overlay.newest().packets.losses[&call().id].contains("what runs is kept"));
}

#[test]
fn packets_of_several_services_count_only_for_the_path_that_surely_carried_them() {
    let mut overlay = forwarded();
    overlay.carry_by_each(&[("forwarding", 70_000, 0), ("direct", 90_000, 0)]);
    overlay.carry_by("forwarding", 100_000, 0);
    overlay.carry_by("forwarding", 110_000, 0);
    let day = overlay.controller.state().packets.values().next_back().unwrap().clone();
    assert_eq!(day.counts.packets, 420_000);
    let by_path = day.by_path.unwrap();
    assert_eq!((by_path.internet.expected, by_path.relays.expected), (50_000, 110_000));
}

/// Has a host report with an agent of the release before, or of now.
fn set_version(overlay: &mut Overlay, place: &str, config_version: u32) {
    let number = HOSTS.iter().position(|(known, _)| *known == place).unwrap();
    overlay.report(number, |report| report.config_version = config_version);
}

#[test]
fn plans_lead_over_hosts_that_carry_packets_and_say_which_do_not() {
    let mut overlay = Overlay::new(20.0);
    overlay.event(&Event::AddPacketFlow(call()));
    overlay.pass(10);
    overlay.plan();
    let newest = |overlay: &Overlay| overlay.controller.state().newest_plan().unwrap().clone();
    let region = newest(&overlay).packets.plan.relays[0].region.to_string();
    let other = ["gcp:europe-north1", "gcp:europe-west3"].into_iter().find(|it| *it != region);
    let other = other.unwrap();
    let stale = |overlay: &Overlay| overlay.controller.staleness(overlay.time()).join("; ");
    let why = |overlay: &Overlay| {
        let explained = overlay.controller.explain(overlay.time(), &call().id);
        explained.unwrap_err().to_string()
    };

    // The relay's agent is put back to an older release: the other region's takes the flow.
    overlay.pass(10);
    set_version(&mut overlay, &region, 1);
    assert!(stale(&overlay).contains("carries packets no longer"), "{}", stale(&overlay));
    assert!(why(&overlay).contains("carries packets no longer"), "{}", why(&overlay));
    overlay.plan();
    assert_eq!(newest(&overlay).packets.plan.relays[0].region.as_str(), other);
    assert_eq!(stale(&overlay), "");
    // The controller applies that by itself.
    assert_eq!(overlay.controller.state().rollout.to, Some(newest(&overlay).number));
    overlay.pass(10);
    let at = HOSTS.iter().position(|(place, _)| *place == other).unwrap();
    assert_eq!(overlay.relays(), [identity(100 + at as u8)]);
    // Both are: nothing is reserved, and the reason names one of them.
    set_version(&mut overlay, other, 1);
    overlay.plan();
    let reason = newest(&overlay).packets.left_out[&call().id].clone();
    assert!(reason.contains("runs an agent too old for packets"), "{reason}");
    assert_eq!((newest(&overlay).hosts.len(), newest(&overlay).usd_per_day), (0, Money::ZERO));
    let reserved = Controller::reserved_of(overlay.controller.state(), overlay.time());
    assert_eq!(reserved, Money::ZERO);
    set_version(&mut overlay, other, CONFIG_VERSION);
    assert!(stale(&overlay).contains("can carry packets by now"), "{}", stale(&overlay));
    overlay.plan();
    assert_eq!(newest(&overlay).packets.plan.relays[0].region.as_str(), other);

    // So with gateways at both ends.
    for site in ["plant", "office"] {
        set_version(&mut overlay, site, 1);
        assert!(
            stale(&overlay).contains("runs an agent too old for packets"),
            "{}",
            stale(&overlay)
        );
        assert!(why(&overlay).contains("not carried"), "{}", why(&overlay));
        overlay.plan();
        let reason = newest(&overlay).packets.left_out[&call().id].clone();
        let why = format!("{site}-1 runs an agent too old for packets");
        assert!(reason.contains(&why), "{reason}");
        assert_eq!((newest(&overlay).hosts.len(), stale(&overlay).as_str()), (0, ""));
        set_version(&mut overlay, site, CONFIG_VERSION);
        assert!(stale(&overlay).contains("can be carried by now"), "{}", stale(&overlay));
        overlay.plan();
        assert_eq!(newest(&overlay).packets.plan.flows[0].path.len(), 1);
    }
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
    overlay.carry(100_000, 60);
    overlay.plan();
    let newest = overlay.controller.state().newest_plan().unwrap();
    assert_ne!(newest.packets.plan.flows[0].service, PacketService::Direct);
    let basis = &newest.packets.losses[&call().id];
    assert!(basis.contains("loss 0.0006 of 100000 packets of its own: too near"), "{basis}");
    overlay.carry(100_000, 20);
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
    assert!(!overlay.controller.state().handshakes.is_empty());
    overlay.event(&Event::RemoveFlow(call().id));
    let state = overlay.controller.state();
    assert!(state.packet_flows.is_empty() && state.packets.is_empty());
    assert!(state.handshakes.is_empty());
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
