//! A small model of an agent: it keeps its document, runs what that says, measures and reports.

use std::net::{IpAddr, SocketAddr};

use tradewind_config::{GatewayConfig, Kind, RelayConfig};
use tradewind_control::message::{
    Document, DocumentVersion, JoinRequest, Probe, ProbeKind, ProbeOutcome, ProbeResult,
    ProcessState, ProcessStatus, Report, SCHEMA_VERSION, SignedDocument,
};
use tradewind_control::record::Role;
use tradewind_control::{Event, InviteSecret};
use tradewind_desired::{Hop, Route};
use tradewind_grant::{Destination, IdentityKey, PublicIdentity};
use tradewind_units::HostId;

use super::world::{self, Place};

/// Time that processes take to start.
const STARTS_IN: u64 = 2000;

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
    ready_at: u64,
    up_at: u64,
    connected_at: u64,
    report_at: u64,
    results: Vec<ProbeResult>,
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
            ready_at: 0,
            up_at: 0,
            connected_at: 0,
            report_at: 0,
            results: Vec::new(),
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
            self.ready_at = at + STARTS_IN;
        }
        (self.relay, self.gateway) = (relay, gateway);
        self.applied = Some(document);
        self.report_at = at;
    }

    pub(super) const fn should_report(&self, at: u64) -> bool {
        at >= self.report_at
    }

    pub(super) fn report(&self, at: u64) -> Event {
        let state = if at >= self.ready_at { ProcessState::Ready } else { ProcessState::Starting };
        let status = |process: &tradewind_control::message::Process| ProcessStatus {
            name: process.name.clone(),
            state,
            listen: Vec::new(),
            sessions: None,
            failure: None,
        };
        let report = Report {
            schema_version: SCHEMA_VERSION,
            agent_version: "0.1.0".to_owned(),
            applied: self.have(),
            refused: None,
            processes: self.applied.iter().flat_map(|it| &it.processes).map(status).collect(),
            results: self.results.clone(),
            sessions: None,
            passive: Vec::new(),
        };
        Event::Report { identity: self.identity(), report }
    }

    /// Takes the answer to a report, and measures.
    pub(super) fn acknowledged(&mut self, at: u64, probes: Vec<Probe>) {
        self.report_at = if at >= self.ready_at { at + 5000 } else { at + 1000 };
        self.results = probes.iter().map(|probe| self.measure(at, probe)).collect();
        let rates = probes.iter().filter(|probe| matches!(probe.kind, ProbeKind::Rate { .. }));
        assert!(rates.count() <= 1, "one rate test at a time");
    }

    fn measure(&self, at: u64, probe: &Probe) -> ProbeResult {
        let from = self.role.site();
        let rtt = world::rtt_ms(&from, &probe.to);
        let outcome = match probe.kind {
            ProbeKind::Rtt { samples, .. } => {
                ProbeOutcome::Rtt { min_ms: rtt, median_ms: rtt, spread_ms: 0.5, samples }
            }
            ProbeKind::Rate { connections, max_rate_mbps, .. } => ProbeOutcome::Rate {
                rate_mbps: world::rate_mbps(&from, &probe.to).min(max_rate_mbps.unwrap()),
                connections,
                window_bytes: None,
                retransmitted: None,
                still_grew: false,
                bytes: 10_000_000,
            },
        };
        ProbeResult { id: probe.id, to: probe.to.clone(), measured_unix_ms: at, outcome }
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
