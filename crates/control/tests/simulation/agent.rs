//! A small model of an agent: it keeps its document, runs what that says, measures and reports.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tradewind_config::{GatewayConfig, Kind, RelayConfig};
use tradewind_control::message::{
    Arm, CONFIG_VERSION, Document, DocumentVersion, FlowHour, JoinRequest, PassiveLeg, Probe,
    ProbeKind, ProbeOutcome, ProbeResult, ProcessState, ProcessStatus, RelayTally, Report,
    SCHEMA_VERSION, SessionBatch, SessionTally, SignedDocument, Watched,
};
use tradewind_control::record::{FlowRecord, Role};
use tradewind_control::{Event, InviteSecret};
use tradewind_desired::{Hop, Route};
use tradewind_grant::{Destination, IdentityKey, PublicIdentity, SignedGrant};
use tradewind_units::{FlowId, HostId, RelayId, SiteId};

use super::world::{self, Conditions, Place, Random};

/// Time that processes take to start, where their machine is there.
pub(super) const STARTS_IN: u64 = 2000;

pub(super) struct Agent {
    number: u8,
    pub(super) role: Role,
    pub(super) host: Option<HostId>,
    pub(super) secret: Option<InviteSecret>,
    /// Kept on its disk.
    applied: Option<Document>,
    relay: Option<RelayConfig>,
    gateway: Option<GatewayConfig>,
    /// A document that was fetched and is applied at this time.
    fetched: Option<(u64, Document)>,
    /// Time that its processes take to start.
    pub(super) starts_in: u64,
    ready_at: u64,
    up_at: u64,
    connected_at: u64,
    report_at: u64,
    results: Vec<ProbeResult>,
    /// The run of the agent, and the number of its next batch.
    run: (u64, u64),
    /// The batch that waits to be acknowledged.
    pub(super) pending: Option<Pending>,
    /// The sessions that its relay carried, and that it has not sent yet.
    pub(super) relayed: Vec<RelayTally>,
    /// Sessions of which the controller must know, and can know at most.
    pub(super) counted: (u64, u64),
}

/// A batch of sessions that waits to be acknowledged.
pub(super) struct Pending {
    batch: SessionBatch,
    /// The least and the most sessions that the controller could take of it when it was sent.
    taken: (u64, u64),
}

impl Pending {
    /// Returns the most sessions that the controller can know of it.
    pub(super) const fn most(&self) -> u64 {
        self.taken.1
    }
}

impl Agent {
    pub(super) fn new(number: u8, place: &Place) -> Self {
        Self {
            number,
            role: place.role(),
            host: None,
            secret: None,
            applied: None,
            relay: None,
            gateway: None,
            fetched: None,
            starts_in: STARTS_IN,
            ready_at: 0,
            up_at: 0,
            connected_at: 0,
            report_at: 0,
            results: Vec::new(),
            run: (u64::from(number), 1),
            pending: None,
            relayed: Vec::new(),
            counted: (0, 0),
        }
    }

    fn address(&self) -> IpAddr {
        [192, 0, 2, 10 + self.number].into()
    }

    pub(super) fn identity(&self) -> PublicIdentity {
        IdentityKey::from_entropy([self.number + 1; 32]).public()
    }

    pub(super) fn data_identity(&self) -> PublicIdentity {
        IdentityKey::from_entropy([self.number + 101; 32]).public()
    }

    /// Kills it; what it has fetched and measured is lost, its processes go on.
    pub(super) fn kill(&mut self, until: u64) {
        self.up_at = until;
        self.fetched = None;
        self.results.clear();
        self.run = (self.run.0 + 100, 1);
        self.counted.1 += self.pending.take().map_or(0, |pending| pending.taken.1);
    }

    pub(super) const fn cut_off(&mut self, until: u64) {
        self.connected_at = until;
    }

    pub(super) const fn heal(&mut self) {
        self.up_at = 0;
        self.connected_at = 0;
    }

    pub(super) const fn is_reachable(&self, at: u64) -> bool {
        at >= self.up_at && at >= self.connected_at
    }

    pub(super) fn join(&self, secret: InviteSecret) -> Event {
        Event::Join {
            identity: self.identity(),
            from: self.address(),
            request: JoinRequest {
                schema_version: SCHEMA_VERSION,
                secret,
                data_identity: self.data_identity(),
                address: None,
                agent_version: "0.1.0".to_owned(),
                config_version: CONFIG_VERSION,
            },
        }
    }

    pub(super) fn have(&self) -> Option<DocumentVersion> {
        self.applied.as_ref().map(|document| document.version)
    }

    pub(super) fn fetched(&mut self, signed: SignedDocument, by: PublicIdentity, applied_at: u64) {
        let document = signed.verify(&by).unwrap();
        assert_eq!(Some(&document.host), self.host.as_ref());
        if self.fetched.as_ref().is_none_or(|(_, other)| *other != document) {
            self.fetched = Some((applied_at, document));
        }
    }

    /// Applies the document that it has fetched, once it is time.
    pub(super) fn run(&mut self, at: u64) {
        let Some((_, document)) = self.fetched.take_if(|(due, _)| at >= *due) else { return };
        let of = |kind: Kind| document.processes.iter().find(|process| process.kind == kind);
        let relay = of(Kind::Relay).map(|process| RelayConfig::parse(&process.config).unwrap());
        let gateway =
            of(Kind::Gateway).map(|process| GatewayConfig::parse(&process.config).unwrap());
        if relay.is_some() != self.relay.is_some() || gateway.is_some() != self.gateway.is_some() {
            self.ready_at = at + self.starts_in;
        }
        (self.relay, self.gateway) = (relay, gateway);
        self.applied = Some(document);
        self.report_at = at;
    }

    pub(super) const fn should_report(&self, at: u64) -> bool {
        at >= self.report_at
    }

    pub(super) fn report(&self, at: u64, conditions: &Conditions) -> Event {
        let state = if at >= self.ready_at { ProcessState::Ready } else { ProcessState::Starting };
        let status = |process: &tradewind_control::message::Process| ProcessStatus {
            name: process.name.clone(),
            state,
            listen: Vec::new(),
            sessions: None,
            flows: None,
            failure: None,
        };
        let report = Report {
            schema_version: SCHEMA_VERSION,
            agent_version: "0.1.0".to_owned(),
            config_version: CONFIG_VERSION,
            applied: self.have(),
            refused: None,
            processes: self.applied.iter().flat_map(|it| &it.processes).map(status).collect(),
            results: self.results.clone(),
            sessions: self.pending.as_ref().map(|pending| pending.batch.clone()),
            passive: self.passive(conditions),
            learners: Vec::new(),
            bounds: None,
        };
        Event::Report { identity: self.identity(), report }
    }

    /// Takes the answer to a report, and measures.
    pub(super) fn acknowledged(
        &mut self,
        at: u64,
        probes: &[Probe],
        conditions: &Conditions,
        random: &mut Random,
    ) {
        let taken = self.pending.take().map_or((0, 0), |pending| pending.taken);
        self.counted = (self.counted.0 + taken.0, self.counted.1 + taken.1);
        self.report_at = if at >= self.ready_at { at + 5000 } else { at + 1000 };
        let measure = |probe: &Probe| self.measure(at, probe, conditions, random);
        self.results = probes.iter().map(measure).collect();
        let rates = probes.iter().filter(|probe| matches!(probe.kind, ProbeKind::Rate { .. }));
        assert!(rates.count() <= 1, "one rate test at a time");
    }

    /// Lets sessions of each flow of its gateway end: one over relays, if it has a path, and one
    /// directly.
    pub(super) fn carry(&mut self, at: u64, conditions: &Conditions, random: &mut Random) {
        if self.pending.is_some() {
            return;
        }
        let relayed = std::mem::take(&mut self.relayed);
        let Some(config) = &self.gateway else {
            if !relayed.is_empty() {
                let batch = SessionBatch { relayed, ..SessionBatch::empty(self.run.0, self.run.1) };
                self.run.1 += 1;
                self.pending = Some(Pending { batch, taken: (u64::MAX, 0) });
            }
            return;
        };
        let mut tallies = Vec::new();
        for forward in &config.forward {
            let routes = config.routes.routes_to(&forward.to).1;
            let hops = routes.first().and_then(|route| match route {
                Route::Relays(hops) => Some(hops.as_slice()),
                Route::Direct | Route::Refuse => None,
            });
            let flow = forward.flow.clone();
            let site = |hop: &Hop| {
                let (region, _) = hop.name.as_str().rsplit_once('-').unwrap();
                SiteId::new(region).unwrap()
            };
            let relays = hops.unwrap_or_default();
            let arm = if relays.is_empty() { Arm::Other } else { Arm::Control };
            let paths = [(Arm::Overlay, relays), (arm, &[])];
            for (arm, hops) in
                paths.into_iter().filter(|(arm, hops)| *arm != Arm::Overlay || !hops.is_empty())
            {
                let from = [self.role.site()].into_iter();
                let to = [world::destination(&flow, &forward.to)];
                let places: Vec<SiteId> = from.chain(hops.iter().map(site)).chain(to).collect();
                let seconds = conditions.seconds(&places) * (0.95 + 0.1 * random.unit());
                let path = hops.iter().map(|hop| hop.name.clone()).collect();
                tallies.push(tally(&flow, path, arm, conditions.session_bytes(), seconds));
            }
        }
        let (run, number) = self.run;
        self.run.1 += 1;
        let hours = hours(&tallies, (world::START + at) / 3_600_000);
        let batch = SessionBatch { tallies, hours, ..SessionBatch::empty(run, number) };
        self.pending = Some(Pending { batch, taken: (u64::MAX, 0) });
    }

    /// Returns the sessions over relays of the batch that waits.
    pub(super) fn over_relays(&self) -> Vec<SessionTally> {
        let tallies = self.pending.iter().flat_map(|pending| &pending.batch.tallies);
        tallies.filter(|tally| !tally.path.is_empty()).cloned().collect()
    }

    /// Has its relay carry one hop of these sessions, which came from a gateway.
    pub(super) fn relays(&mut self, tally: &SessionTally, from: PublicIdentity) {
        if self.host.as_ref().is_none_or(|host| tally.path[0].as_str() != host.as_str()) {
            return;
        }
        self.relayed.push(RelayTally {
            flow: tally.flow.clone(),
            from,
            next: None,
            sessions: tally.sessions,
            failed: 0,
            bytes_up: tally.bytes_up,
            bytes_down: tally.bytes_down,
        });
    }

    /// Notes that the batch is sent to a controller that knows these flows.
    pub(super) fn sends(&mut self, flows: &BTreeMap<FlowId, FlowRecord>) {
        if let Some(pending) = &mut self.pending {
            let tallies = pending.batch.tallies.iter();
            let known = tallies.filter(|tally| flows.contains_key(&tally.flow));
            let count = known.map(|tally| tally.sessions).sum::<u64>();
            pending.taken = (pending.taken.0.min(count), pending.taken.1.max(count));
        }
    }

    /// Returns what its connections show: the true rates.
    fn passive(&self, conditions: &Conditions) -> Vec<PassiveLeg> {
        let from = self.role.site();
        let leg = |watched: &Watched| PassiveLeg {
            to: watched.site.clone(),
            rate_mbps: Some(conditions.claimed_mbps(&from, &watched.site)),
            connections: 1,
            retransmitted: None,
            rtt_ms: None,
            bytes: 1_000_000,
        };
        self.applied.iter().flat_map(|document| &document.watched).map(leg).collect()
    }

    fn measure(
        &self,
        at: u64,
        probe: &Probe,
        conditions: &Conditions,
        random: &mut Random,
    ) -> ProbeResult {
        let from = self.role.site();
        let rtt = conditions.rtt_ms(&from, &probe.to);
        let mut sample = || rtt * (1.0 + conditions.jitter * (2.0 * random.unit() - 1.0));
        let outcome = match probe.kind {
            ProbeKind::Rtt { samples, .. } => {
                let mut times: Vec<f64> = (0..samples).map(|_| sample()).collect();
                times.sort_by(f64::total_cmp);
                let (min_ms, median_ms) = (times[0], times[times.len() / 2]);
                let spread_ms = times[times.len() * 9 / 10] - times[times.len() / 10] + 0.5;
                ProbeOutcome::Rtt { min_ms, median_ms, spread_ms, samples }
            }
            ProbeKind::Rate { connections, max_rate_mbps, .. } => ProbeOutcome::Rate {
                rate_mbps: conditions.claimed_mbps(&from, &probe.to).min(max_rate_mbps.unwrap()),
                connections,
                window_bytes: None,
                retransmitted: None,
                still_grew: false,
                bytes: 10_000_000,
            },
            ProbeKind::Transfers { .. } => {
                ProbeOutcome::Failed { reason: "no transfers here".to_owned() }
            }
        };
        ProbeResult { id: probe.id, to: probe.to.clone(), measured_unix_ms: at, outcome }
    }

    /// Returns the grant of its gateway.
    pub(super) fn grant(&self) -> Option<&SignedGrant> {
        self.gateway.as_ref()?.grant.as_ref()
    }

    /// Returns the relayed paths of its gateway, by destination.
    pub(super) fn paths(&self) -> Vec<(Destination, Vec<Hop>)> {
        let Some(config) = &self.gateway else { return Vec::new() };
        let mut paths = Vec::new();
        for forward in &config.forward {
            for route in config.routes.routes_to(&forward.to).1 {
                if let Route::Relays(hops) = route {
                    paths.push((forward.to.clone(), hops.clone()));
                }
            }
        }
        paths
    }

    /// Returns whether its relay may dial the next hop, or the destination where there is none.
    pub(super) fn allows(&self, to: &Destination, next: Option<SocketAddr>) -> bool {
        let Some(config) = &self.relay else { return false };
        let covers = |rules: &[tradewind_grant::DestinationRule], to: &Destination| {
            rules.iter().any(|rule| match to {
                Destination::Address(address) => rule.covers_address(*address),
                Destination::Name { name, port } => rule.covers_name(name, *port),
            })
        };
        match next {
            Some(next) => covers(&config.policy.next_hops, &Destination::Address(next)),
            None => covers(&config.policy.destinations, to),
        }
    }
}

/// Returns the sessions of tallies by flow, all of one hour.
fn hours(tallies: &[SessionTally], hour: u64) -> Vec<FlowHour> {
    let mut hours: BTreeMap<&FlowId, FlowHour> = BTreeMap::new();
    for tally in tallies {
        let flow = tally.flow.clone();
        let empty = FlowHour { flow, hour, sessions: 0, bytes: 0, concurrent: 1 };
        let of_flow = hours.entry(&tally.flow).or_insert(empty);
        of_flow.sessions += tally.sessions;
        of_flow.bytes += tally.bytes();
    }
    hours.into_values().collect()
}

/// Returns the tally of one session, which goes up.
fn tally(flow: &FlowId, path: Vec<RelayId>, arm: Arm, bytes: u64, seconds: f64) -> SessionTally {
    let log = seconds.ln();
    SessionTally {
        flow: flow.clone(),
        path,
        arm,
        size_class: bytes.ilog2() as u8,
        sessions: 1,
        failed: 0,
        bytes_up: bytes,
        bytes_down: 0,
        seconds,
        log_seconds: log,
        log_seconds_squared: log * log,
    }
}
