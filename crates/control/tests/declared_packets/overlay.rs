//! An overlay in virtual time: a gateway at both sites, and a relay in both regions.

use tradewind_config::GatewayConfig;
use tradewind_control::by_path::{Handshakes, PathPackets};
use tradewind_control::message::{
    CONFIG_VERSION, JoinRequest, Probe, ProbeKind, ProbeOutcome, ProbeResult, ProcessState,
    ProcessStatus, Report, SCHEMA_VERSION, SessionBatch,
};
use tradewind_control::packet_flow::{PacketCounts, PacketFlowRecord, PacketTally};
use tradewind_control::record::{Mode, PlanRecord, Record, Role, Step};
use tradewind_control::{Answer, Ceiling, Controller, Event, Keys, Refusal, SettingsRequest};
use tradewind_desired::packets::Chooser;
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_plan::Plan;
use tradewind_units::{Duration, HostId, Money, Ratio, Timestamp};

pub(crate) const HOSTS: [(&str, [u8; 4]); 4] = [
    ("office", [198, 41, 0, 1]),
    ("plant", [198, 41, 0, 2]),
    ("gcp:europe-north1", [198, 41, 0, 3]),
    ("gcp:europe-west3", [198, 41, 0, 4]),
];

pub(crate) fn identity(number: u8) -> PublicIdentity {
    IdentityKey::from_entropy([number; 32]).public()
}

pub(crate) fn role(place: &str) -> Role {
    if !place.contains(':') {
        return Role::Gateway { site: place.parse().unwrap() };
    }
    Role::Relay { region: place.parse().unwrap(), relay_type: "standard".parse().unwrap() }
}

pub(crate) fn call() -> PacketFlowRecord {
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
pub(crate) struct Overlay {
    pub(crate) controller: Controller,
    pub(crate) now: u64,
    pub(crate) batch: u64,
    /// The share of handshakes between the sites that are lost, and those that are to be lost yet.
    pub(crate) loss: f64,
    pub(crate) owed: f64,
    /// A host whose agent reports nothing.
    pub(crate) silent: Option<usize>,
}

impl Overlay {
    pub(crate) fn new(usd_per_day: f64) -> Self {
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

    pub(crate) fn time(&self) -> Timestamp {
        Timestamp::from_nanos(self.now * 1_000_000)
    }

    pub(crate) fn try_event(&mut self, event: &Event) -> Result<Answer, Refusal> {
        let decision = self.controller.decide(self.time(), event, [self.now as u8; 32])?;
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        Ok(decision.answer)
    }

    pub(crate) fn event(&mut self, event: &Event) -> Answer {
        self.try_event(event).unwrap()
    }

    pub(crate) fn join(&mut self, number: usize, config_version: u32) {
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

    pub(crate) fn report(&mut self, number: usize, change: impl FnOnce(&mut Report)) -> Vec<Probe> {
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
            flows: None,
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
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.pass_by(seconds, 1);
    }

    /// The same, with reports each so many seconds.
    pub(crate) fn pass_by(&mut self, seconds: u64, step: u64) {
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
    pub(crate) fn measured(&mut self, number: usize, probe: &Probe) -> ProbeResult {
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
    pub(crate) fn probed(&mut self, lost: u64) {
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
    pub(crate) fn handshakes(&self) -> PathPackets {
        let ends = (call().from, call().to_site);
        self.controller.state().handshakes[&ends].today
    }

    pub(crate) fn stale(&self) -> String {
        self.controller.staleness(self.time()).join("; ")
    }

    pub(crate) fn newest(&self) -> PlanRecord {
        self.controller.state().newest_plan().unwrap().clone()
    }

    pub(crate) fn plan(&mut self) {
        let problem = self.controller.problem(self.time()).unwrap();
        assert!(problem.flows().is_empty());
        let state = self.controller.state();
        let joint = Controller::joint_of(state, self.time(), Plan::nothing()).unwrap();
        self.event(&Event::Planned(Box::new(joint)));
    }

    /// An overlay whose only flow has a plan in effect.
    pub(crate) fn in_service(usd_per_day: f64) -> Self {
        let mut overlay = Self::new(usd_per_day);
        overlay.event(&Event::AddPacketFlow(call()));
        overlay.pass(10);
        overlay.plan();
        overlay.pass(10);
        assert_eq!(overlay.controller.state().rollout.step, Step::Done);
        overlay
    }

    pub(crate) fn config(&self, place: &str) -> Option<String> {
        let id: HostId = format!("{place}-1").parse().unwrap();
        let document = &self.controller.state().documents[&id];
        // What is told is what a host of this role may run.
        let ceiling = Ceiling::of_role(&role(place));
        ceiling.allows(document).unwrap();
        document.processes.first().map(|process| process.config.clone())
    }

    pub(crate) fn gateway(&self, place: &str) -> GatewayConfig {
        GatewayConfig::parse(&self.config(place).unwrap()).unwrap()
    }

    /// Returns the identities of the relays that the sender's section names.
    pub(crate) fn relays(&self) -> Vec<PublicIdentity> {
        let packets = self.gateway("office").packets().unwrap().unwrap();
        let named: Vec<_> = packets.paths[0].delivery.named().map(|hop| hop.identity).collect();
        assert_eq!(named.last(), Some(&identity(101)), "the remote gateway comes last");
        named[..named.len() - 1].to_vec()
    }

    /// Has the sender report these packets, of which so many were lost by the Internet, and the
    /// caches recovered all.
    pub(crate) fn carry(&mut self, packets: u64, lost_by_internet: u64) {
        self.carry_by("caching", packets, lost_by_internet);
    }

    /// The same, carried by a service.
    pub(crate) fn carry_by(&mut self, service: &str, packets: u64, lost_by_internet: u64) {
        self.carry_by_each(&[(service, packets, lost_by_internet)]);
    }

    /// The same, carried by one service after the other. Without relays packets are not numbered,
    /// so the receiver reports nothing.
    pub(crate) fn carry_by_each(&mut self, services: &[(&str, u64, u64)]) {
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

/// Has a host report with an agent of the release before, or of now.
pub(crate) fn set_version(overlay: &mut Overlay, place: &str, config_version: u32) {
    let number = HOSTS.iter().position(|(known, _)| *known == place).unwrap();
    overlay.report(number, |report| report.config_version = config_version);
}
