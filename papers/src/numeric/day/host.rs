//! A host of the overlay: a small model of an agent, which runs what its document says, measures
//! and reports.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tradewind_config::{GatewayConfig, Kind};
use tradewind_control::message::{
    Arm, CONFIG_VERSION, Document, DocumentVersion, FlowHour, JoinRequest, PassiveLeg, Probe,
    ProbeKind, ProbeOutcome, ProbeResult, ProcessState, ProcessStatus, RelayTally, Report,
    SCHEMA_VERSION, SessionBatch, SessionTally, SignedDocument,
};
use tradewind_control::record::Role;
use tradewind_control::{Event, InviteSecret};
use tradewind_desired::Route as Desired;
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_units::{FlowId, HostId, RelayId, SiteId};

use super::world::{Ends, World};
use crate::harness::{NumericError, Random};

/// Time that processes take to start, in milliseconds.
const STARTS_IN: u64 = 2000;
/// Version of the agents.
const VERSION: &str = "0.1.0";

pub(super) struct Host {
    number: u8,
    pub(super) role: Role,
    pub(super) id: Option<HostId>,
    applied: Option<Document>,
    kinds: BTreeSet<String>,
    /// The relays of each flow of its gateway.
    paths: BTreeMap<FlowId, Vec<RelayId>>,
    ready_at: u64,
    results: Vec<ProbeResult>,
    /// The sessions that its relay carried, and that it has not told yet.
    pub(super) relayed: Vec<RelayTally>,
    /// The number of its next batch of sessions.
    batch: u64,
}

/// Sessions of one flow that ended since the last report, over one path.
pub(super) struct Ended {
    pub(super) flow: FlowId,
    /// The path's relays; none where they went direct.
    pub(super) path: Vec<RelayId>,
    pub(super) arm: Arm,
    /// The bytes of a session.
    pub(super) bytes: u64,
    /// Their times.
    pub(super) seconds: Vec<f64>,
}

impl Host {
    pub(super) const fn new(number: u8, role: Role) -> Self {
        Self {
            number,
            role,
            id: None,
            applied: None,
            kinds: BTreeSet::new(),
            paths: BTreeMap::new(),
            ready_at: 0,
            results: Vec::new(),
            relayed: Vec::new(),
            batch: 1,
        }
    }

    pub(super) fn identity(&self) -> PublicIdentity {
        IdentityKey::from_entropy([self.number + 1; 32]).public()
    }

    /// Returns the identity of its relay or gateway.
    pub(super) fn data_identity(&self) -> PublicIdentity {
        IdentityKey::from_entropy([self.number + 128; 32]).public()
    }

    /// Returns its request to join by an invite.
    pub(super) fn join(&self, secret: InviteSecret) -> Event {
        Event::Join {
            identity: self.identity(),
            from: IpAddr::from([192, 0, 2, self.number + 1]),
            request: JoinRequest {
                schema_version: SCHEMA_VERSION,
                secret,
                data_identity: self.data_identity(),
                address: None,
                agent_version: VERSION.to_owned(),
                config_version: CONFIG_VERSION,
            },
        }
    }

    pub(super) fn have(&self) -> Option<DocumentVersion> {
        self.applied.as_ref().map(|document| document.version)
    }

    /// Returns the relays of a flow of its gateway; none if it goes direct.
    pub(super) fn path(&self, flow: &FlowId) -> &[RelayId] {
        self.paths.get(flow).map_or(&[], Vec::as_slice)
    }

    /// Applies a document.
    ///
    /// # Errors
    /// When it is not one of the controller's, or cannot be read.
    pub(super) fn apply(
        &mut self,
        signed: &SignedDocument,
        by: &PublicIdentity,
        at: u64,
    ) -> Result<(), NumericError> {
        let unread = |what: String| NumericError::Nothing { what };
        let document = signed.verify(by).map_err(|error| unread(error.to_string()))?;
        let kinds: BTreeSet<String> =
            document.processes.iter().map(|process| process.name.clone()).collect();
        if kinds != self.kinds {
            self.ready_at = at + STARTS_IN;
        }
        self.paths.clear();
        for process in document.processes.iter().filter(|it| it.kind == Kind::Gateway) {
            let config =
                GatewayConfig::parse(&process.config).map_err(|error| unread(error.to_string()))?;
            for forward in &config.forward {
                let first = config.routes.routes_to(&forward.to).1.first().cloned();
                if let Some(Desired::Relays(hops)) = first {
                    let relays = hops.iter().map(|hop| hop.name.clone()).collect();
                    self.paths.insert(forward.flow.clone(), relays);
                }
            }
        }
        self.kinds = kinds;
        self.applied = Some(document);
        Ok(())
    }

    /// Returns a report of sessions that ended, and of what connections show of the legs in use.
    pub(super) fn report(
        &mut self,
        at: u64,
        ended: &[Ended],
        used: &BTreeSet<Ends>,
        (world, random): (&World, &mut Random),
    ) -> Event {
        let state = if at >= self.ready_at { ProcessState::Ready } else { ProcessState::Starting };
        let status = |name: &String| ProcessStatus {
            name: name.clone(),
            state,
            listen: Vec::new(),
            sessions: None,
            flows: None,
            failure: None,
        };
        let report = Report {
            schema_version: SCHEMA_VERSION,
            agent_version: VERSION.to_owned(),
            config_version: CONFIG_VERSION,
            applied: self.have(),
            processes: self.kinds.iter().map(status).collect(),
            results: std::mem::take(&mut self.results),
            sessions: self.sessions(at, ended),
            passive: self.passive(at, used, world, random),
            ..Report::default()
        };
        Event::Report { identity: self.identity(), report }
    }

    fn sessions(&mut self, at: u64, ended: &[Ended]) -> Option<SessionBatch> {
        if ended.is_empty() && self.relayed.is_empty() {
            return None;
        }
        let relayed = std::mem::take(&mut self.relayed);
        let batch = SessionBatch {
            tallies: ended.iter().map(tally).collect(),
            hours: hours(at, ended),
            relayed,
            ..SessionBatch::empty(u64::from(self.number), self.batch)
        };
        self.batch += 1;
        Some(batch)
    }

    /// Returns the rates that connections show of the legs that they use.
    fn passive(
        &self,
        at: u64,
        used: &BTreeSet<Ends>,
        world: &World,
        random: &mut Random,
    ) -> Vec<PassiveLeg> {
        let from = self.role.site();
        let watched = self.applied.iter().flat_map(|document| &document.watched);
        let of_use = watched.map(|watched| (from.clone(), watched.site.clone()));
        of_use
            .filter(|ends| used.contains(ends))
            .map(|ends| PassiveLeg {
                rate_mbps: Some(shown_mbps(&ends, at, world, random)),
                to: ends.1,
                connections: 1,
                retransmitted: None,
                rtt_ms: None,
                bytes: 1_000_000,
            })
            .collect()
    }

    /// Measures what the answer to a report asks for.
    pub(super) fn measure(
        &mut self,
        at: u64,
        probes: &[Probe],
        world: &World,
        random: &mut Random,
    ) {
        for probe in probes {
            let leg = (self.role.site(), probe.to.clone());
            let outcome = outcome(&probe.kind, &leg, at, (world, random));
            let to: SiteId = probe.to.clone();
            self.results.push(ProbeResult { id: probe.id, to, measured_unix_ms: at, outcome });
        }
    }
}

/// Returns the rate that connections or a test show of a leg, in Mbit/s.
fn shown_mbps(leg: &Ends, at: u64, world: &World, random: &mut Random) -> f64 {
    world.mbps(leg, at) * (world.conditions().noise * random.normal()).exp()
}

fn outcome(
    kind: &ProbeKind,
    leg: &Ends,
    at: u64,
    (world, random): (&World, &mut Random),
) -> ProbeOutcome {
    match *kind {
        ProbeKind::Rtt { samples, .. } => {
            let jitter = world.conditions().jitter;
            let mut sample = || world.rtt_ms(leg, at) * (1.0 + jitter * random.fraction());
            let mut times: Vec<f64> = (0..samples.max(1)).map(|_| sample()).collect();
            times.sort_by(f64::total_cmp);
            let at_share = |tenths: usize| times[times.len() * tenths / 10];
            let spread_ms = at_share(9) - at_share(1);
            ProbeOutcome::Rtt { min_ms: times[0], median_ms: at_share(5), spread_ms, samples }
        }
        ProbeKind::Rate { connections, duration_ms, max_rate_mbps } => {
            let shown = shown_mbps(leg, at, world, random);
            let rate_mbps = shown.min(max_rate_mbps.unwrap_or(f64::INFINITY));
            ProbeOutcome::Rate {
                rate_mbps,
                connections,
                window_bytes: None,
                retransmitted: None,
                still_grew: false,
                bytes: (rate_mbps * 125.0 * duration_ms as f64) as u64,
            }
        }
        ProbeKind::Transfers { .. } => ProbeOutcome::Failed { reason: "none here".to_owned() },
    }
}

fn tally(ended: &Ended) -> SessionTally {
    let class = ended.bytes.max(1).ilog2() as u8;
    let logs = || ended.seconds.iter().map(|seconds| seconds.ln());
    let sessions = ended.seconds.len() as u64;
    SessionTally {
        sessions,
        bytes_up: ended.bytes * sessions,
        seconds: ended.seconds.iter().sum(),
        log_seconds: logs().sum(),
        log_seconds_squared: logs().map(|log| log * log).sum(),
        ..SessionTally::new(ended.flow.clone(), ended.path.clone(), ended.arm, class)
    }
}

/// Returns the same sessions by flow.
fn hours(at: u64, ended: &[Ended]) -> Vec<FlowHour> {
    let mut hours: BTreeMap<&FlowId, FlowHour> = BTreeMap::new();
    for all in ended {
        let (flow, hour) = (all.flow.clone(), at / 3_600_000);
        let empty = FlowHour { flow, hour, sessions: 0, bytes: 0, concurrent: 1 };
        let of_flow = hours.entry(&all.flow).or_insert(empty);
        of_flow.sessions += all.seconds.len() as u64;
        of_flow.bytes += all.bytes * all.seconds.len() as u64;
    }
    hours.into_values().collect()
}
