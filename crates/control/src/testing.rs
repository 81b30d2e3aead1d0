//! A controller for the tests of this crate, with hosts that do as they are told.

use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_plan::Limits;
use tradewind_plan::solver::{TwoProxy, solve};
use tradewind_units::Timestamp;
use tradewind_units::{
    Bytes, Duration, FlowId, HostId, Money, RegionId, RelayId, RelayTypeId, SiteId,
};

use crate::controller::{Answer, Controller, Event, Keys, Refusal};
use crate::event::SettingsRequest;
use crate::imported::Billed;
use crate::invite::InviteSecret;
use crate::joint::JointPlan;
use crate::learner::{DayJumps, JumpArm};
use crate::message::{
    Arm, CONFIG_VERSION, JoinRequest, Probe, ProbeKind, ProbeOutcome, ProbeResult, ProcessState,
    ProcessStatus, RelayTally, Report, SCHEMA_VERSION, SessionBatch, SessionTally,
};
use crate::record::{DaySessions, DayUsage, FlowRecord, HourUsage, Mode, Record, Role};
use crate::state::State;
use crate::transfers::{DayTransfers, TransferTime};

/// The time at which tests begin.
pub(crate) const START: u64 = 1_795_000_000_000;

/// A controller in virtual time.
pub(crate) struct Bench {
    pub(crate) controller: Controller,
    pub(crate) now: u64,
    entropy: u8,
}

pub(crate) fn keys() -> Keys {
    Keys {
        identity: IdentityKey::from_entropy([200; 32]),
        operator: OperatorKey::from_entropy([201; 32]),
    }
}

pub(crate) fn identity(number: u8) -> PublicIdentity {
    IdentityKey::from_entropy([number; 32]).public()
}

pub(crate) fn relay(region: &str) -> Role {
    Role::Relay {
        region: RegionId::new(region).unwrap(),
        relay_type: RelayTypeId::new("standard").unwrap(),
    }
}

pub(crate) fn gateway(site: &str) -> Role {
    Role::Gateway { site: SiteId::new(site).unwrap() }
}

pub(crate) fn host(id: &str) -> HostId {
    HostId::new(id).unwrap()
}

/// Returns a flow from `office` to a destination of this number.
pub(crate) fn flow(id: &str, number: u8) -> FlowRecord {
    FlowRecord {
        id: FlowId::new(id).unwrap(),
        from: SiteId::new("office").unwrap(),
        to: format!("198.51.100.{number}:443").parse().unwrap(),
        to_site: SiteId::new(format!("far{number}")).unwrap(),
        per_day: Bytes::new(20_000_000_000),
        weight: 1,
        listen: ([127, 0, 0, 1], 9000 + u16::from(number)).into(),
    }
}

/// Returns the tally of sessions of flow `a` that took these seconds, and 3 MB down each.
pub(crate) fn tally(arm: Arm, path: &[&str], seconds: &[f64]) -> SessionTally {
    let logs = || seconds.iter().map(|seconds| seconds.ln());
    SessionTally {
        flow: FlowId::new("a").unwrap(),
        path: path.iter().map(|relay| RelayId::new(*relay).unwrap()).collect(),
        arm,
        size_class: 21,
        sessions: seconds.len() as u64,
        failed: 0,
        bytes_up: 1000 * seconds.len() as u64,
        bytes_down: 3_000_000 * seconds.len() as u64,
        seconds: seconds.iter().sum(),
        log_seconds: logs().sum(),
        log_seconds_squared: logs().map(|log| log * log).sum(),
    }
}

/// The path of [`Bench::in_service`].
pub(crate) const PATH: [&str; 2] = ["gcp:europe-north1-1", "gcp:asia-east1-1"];

impl Bench {
    pub(crate) fn new() -> Self {
        Self { controller: Controller::new(keys(), []), now: START, entropy: 0 }
    }

    /// A gateway, a relay near it and one near the destination of a flow, all measured, and a plan
    /// over both relays in effect. Direct paths take three times as long.
    pub(crate) fn in_service() -> Self {
        let mut bench = Self::new();
        bench.event(Event::ChangeSettings(SettingsRequest::budget(Money::from_usd(20.0).unwrap())));
        bench.event(Event::ChangeSettings(SettingsRequest::mode(Mode::Auto)));
        bench.join(1, gateway("office"));
        bench.join(2, relay("gcp:europe-north1"));
        bench.join(3, relay("gcp:asia-east1"));
        bench.event(Event::AddFlow(flow("a", 7)));
        bench.pass(10);
        bench.plan();
        bench.pass(10);
        bench
    }

    pub(crate) fn state(&self) -> &State {
        self.controller.state()
    }

    pub(crate) const fn time(&self) -> Timestamp {
        Timestamp::from_nanos(self.now * 1_000_000)
    }

    pub(crate) fn try_event(&mut self, event: &Event) -> Result<Answer, Refusal> {
        self.entropy = self.entropy.wrapping_add(1);
        let decision = self.controller.decide(self.time(), event, [self.entropy; 32])?;
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        Ok(decision.answer)
    }

    pub(crate) fn event(&mut self, event: Event) -> Answer {
        self.try_event(&event).unwrap()
    }

    pub(crate) fn refusal(&mut self, event: Event) -> Refusal {
        self.try_event(&event).unwrap_err()
    }

    pub(crate) fn invite(&mut self, role: Role) -> InviteSecret {
        let controller = ([192, 0, 2, 1], 7443).into();
        match self.event(Event::Invite { role, ttl: Duration::from_secs(60), controller }) {
            Answer::Invite(invite) => invite.secret,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the request of the host with this number.
    pub(crate) fn request(number: u8, secret: InviteSecret) -> Event {
        Event::Join {
            identity: identity(number),
            from: [192, 0, 2, number].into(),
            request: JoinRequest {
                schema_version: SCHEMA_VERSION,
                secret,
                data_identity: identity(100 + number),
                address: None,
                agent_version: String::new(),
                config_version: CONFIG_VERSION,
            },
        }
    }

    pub(crate) fn join(&mut self, number: u8, role: Role) -> HostId {
        let secret = self.invite(role);
        match self.event(Self::request(number, secret)) {
            Answer::Joined(joined) => joined.host,
            other => panic!("{other:?}"),
        }
    }

    /// Has a host report, and returns its probes.
    pub(crate) fn report(&mut self, number: u8, results: Vec<ProbeResult>) -> Vec<Probe> {
        self.report_with(number, |report| report.results = results)
    }

    /// Has relays report that they carried these sessions.
    fn relayed(&mut self, number: u64, tallies: &[SessionTally]) {
        for relay in 1..10 {
            let Some(host) = self.state().host_of(&identity(relay)) else { continue };
            let of_host = |at: &RelayId| {
                let host = self.state().hosts.get(&HostId::new(at.as_str()).ok()?)?;
                Some(host.data_identity)
            };
            let carried = |tally: &SessionTally| {
                let at = tally.path.iter().position(|it| it.as_str() == host.id.as_str())?;
                let before = at.checked_sub(1).and_then(|before| of_host(&tally.path[before]));
                Some(RelayTally {
                    flow: tally.flow.clone(),
                    from: before.unwrap_or(identity(101)),
                    next: tally.path.get(at + 1).and_then(of_host),
                    sessions: tally.sessions,
                    failed: tally.failed,
                    bytes_up: tally.bytes_up,
                    bytes_down: tally.bytes_down,
                })
            };
            let relayed: Vec<_> = tallies.iter().filter_map(carried).collect();
            if !relayed.is_empty() {
                let batch = SessionBatch { relayed, ..SessionBatch::empty(1, number) };
                self.report_with(relay, |report| report.sessions = Some(batch));
            }
        }
    }

    /// Has a host report a batch of sessions, and relays what they carried of them if it counts.
    pub(crate) fn sessions(&mut self, host: u8, number: u64, tallies: Vec<SessionTally>) {
        let (relayed, before) = (tallies.clone(), std::sync::Arc::clone(&self.state().sessions));
        let batch = SessionBatch { tallies, ..SessionBatch::empty(1, number) };
        self.report_with(host, |report| report.sessions = Some(batch));
        if self.state().sessions != before {
            self.relayed(number, &relayed);
        }
    }

    /// Has a host report, with what `change` adds, and returns its probes.
    pub(crate) fn report_with(
        &mut self,
        number: u8,
        change: impl FnOnce(&mut Report),
    ) -> Vec<Probe> {
        let host = self.state().host_of(&identity(number)).unwrap();
        let document = self.state().documents.get(&host.id);
        let ready = |name: &String| ProcessStatus {
            name: name.clone(),
            state: ProcessState::Ready,
            listen: Vec::new(),
            sessions: None,
            flows: None,
            failure: None,
        };
        let processes = document.map(|it| it.processes.iter().map(|it| ready(&it.name)).collect());
        let mut report = Report {
            config_version: CONFIG_VERSION,
            applied: document.map(|document| document.version),
            processes: processes.unwrap_or_default(),
            ..Report::default()
        };
        change(&mut report);
        match self.event(Event::Report { identity: identity(number), report }) {
            Answer::Reported(answer) => answer.probes,
            other => panic!("{other:?}"),
        }
    }

    /// Lets so many seconds pass, in which all trusted hosts report and measure.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.pass_without(seconds, &[]);
    }

    /// Lets so many seconds pass, in which these hosts are silent.
    pub(crate) fn pass_without(&mut self, seconds: u64, silent: &[u8]) {
        for _ in 0..seconds {
            self.now += 1000;
            self.event(Event::Tick);
            for number in (1..10).filter(|number| !silent.contains(number)) {
                let host = self.state().host_of(&identity(number));
                let Some(host) = host.filter(|host| host.is_trusted) else { continue };
                let from = host.role.site();
                let probes = self.report(number, Vec::new());
                let measure = |probe: &Probe| measured(&from, probe);
                let results: Vec<_> = probes.iter().map(measure).collect();
                if !results.is_empty() {
                    self.report(number, results);
                }
            }
        }
    }

    /// Makes a plan, and returns its number.
    pub(crate) fn plan(&mut self) -> u64 {
        let joint = self.joint();
        match self.event(Event::Planned(Box::new(joint))) {
            Answer::Planned(number) => number,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a plan of what is known now.
    pub(crate) fn joint(&self) -> JointPlan {
        let problem = self.controller.problem(self.time()).unwrap();
        let plan = solve(&TwoProxy, &problem, &Limits::work(100_000)).unwrap();
        Controller::joint_of(self.state(), self.time(), plan).unwrap()
    }

    /// Returns the configuration of a host's only process; none if it runs none.
    pub(crate) fn config(&self, id: &str) -> Option<String> {
        let document = &self.state().documents[&host(id)];
        document.processes.first().map(|process| process.config.clone())
    }

    /// Returns the state after a restart: without what is not kept.
    pub(crate) fn restarted(&self) -> Controller {
        let state = self.state().clone();
        let mut records = vec![Record::Counters(state.counters), Record::Settings(state.settings)];
        records.extend(state.hosts.values().cloned().map(Record::Host));
        records.extend(state.flows.values().cloned().map(Record::Flow));
        records.extend(state.packet_flows.values().cloned().map(Record::PacketFlow));
        records.extend(state.tenants.values().cloned().map(Record::Tenant));
        records.extend(state.packets.values().cloned().map(Record::Packets));
        records.extend(state.handshakes.values().cloned().map(Record::Handshakes));
        records.extend(state.plans.values().cloned().map(Record::Plan));
        records.extend(state.documents.values().cloned().map(Record::Document));
        records.extend(state.measurements.values().cloned().map(Record::Measurement));
        records.extend(state.batches.values().cloned().map(Record::Batch));
        for ((day, _), tallies) in state.sessions.iter() {
            let kept = |tally: &SessionTally| DaySessions { day: *day, tally: tally.clone() };
            records.extend(tallies.iter().map(kept).map(Record::Sessions));
        }
        records.extend(state.predicted.rows().cloned().map(Record::Predicted));
        records.extend(state.relayed.since(0).cloned().map(Record::Relayed));
        for (flow, days) in state.usage.iter() {
            let usage = |(day, hours): (u64, &[HourUsage])| {
                let (flow, hours) = (flow.clone(), hours.to_vec());
                Record::Usage(DayUsage { flow, day, hours })
            };
            records.extend(days.days().map(usage));
        }
        let jumps = state.jumps.values().flat_map(|days| days.values());
        records.extend(jumps.map(|day| Record::Jumps(DayJumps::clone(day))));
        let transfers = state.transfers.values().flat_map(|days| days.values());
        records.extend(transfers.map(|day| Record::Transfers(DayTransfers::clone(day))));
        records.extend(state.spent.values().cloned().map(Record::Spent));
        records.extend(state.path_histories.values().cloned().map(Record::PathHistory));
        for (day, hosts) in state.billed.iter() {
            let billed = |(host, usd): (&HostId, &Money)| {
                Record::Billed(Billed { day: *day, host: host.clone(), usd: *usd })
            };
            records.extend(hosts.iter().map(billed));
        }
        records.push(Record::Rollout(state.rollout));
        assert!(records.iter().all(Record::is_kept));
        Controller::new(keys(), records)
    }
}

/// Returns the result of a probe: round-trip times by places on a line, 100 Mbit/s at most.
fn measured(from: &SiteId, probe: &Probe) -> ProbeResult {
    let at = |place: &SiteId| -> f64 {
        match place.as_str() {
            "office" => 0.0,
            "gcp:europe-north1" => 10.0,
            "gcp:asia-east1" => 110.0,
            _ => 120.0,
        }
    };
    let is_direct = !from.as_str().contains(':') && !probe.to.as_str().contains(':');
    let rtt = 2.0 + (at(from) - at(&probe.to)).abs() * if is_direct { 3.0 } else { 1.0 };
    let outcome = match probe.kind {
        ProbeKind::Rtt { samples, .. } => {
            ProbeOutcome::Rtt { min_ms: rtt, median_ms: rtt, spread_ms: 1.0, samples }
        }
        ProbeKind::Rate { connections, .. } => ProbeOutcome::Rate {
            rate_mbps: 400.0,
            connections,
            window_bytes: None,
            retransmitted: None,
            still_grew: false,
            bytes: 250_000_000,
        },
        ProbeKind::Transfers { sizes } => {
            let time = |size_bytes: u32, arm: JumpArm| {
                let flights = if arm == JumpArm::Jumped { 1.0 } else { 3.0 };
                TransferTime { arm, size_bytes, seconds: rtt * flights / 1000.0 }
            };
            let of_size = |size| [JumpArm::Jumped, JumpArm::Control].map(|arm| time(size, arm));
            ProbeOutcome::Transfers { times: sizes.into_iter().flat_map(of_size).collect() }
        }
    };
    ProbeResult { id: probe.id, to: probe.to.clone(), measured_unix_ms: 0, outcome }
}
