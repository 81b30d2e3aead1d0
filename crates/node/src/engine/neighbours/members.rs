//! The relay nearest to this node, by round trips that it measures itself while it runs, and the
//! targets of routes that name members `[JQ 3.3]`.
//!
//! Every known relay is pinged until five pongs have come, and again each minute; the shortest
//! round trip counts. A route to a member goes over the relay near here, then the one near there.
//! The relays near others are taken from the file or the registry (`super::registration`) without
//! measuring.

use std::net::SocketAddr;

use tradewind_config::packet::{DeliveryPolicy, Remote, Via};
use tradewind_grant::{Hop, PublicIdentity};
use tradewind_packet::message::NearRelay;
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Duration, Timestamp};

use super::registration::Registration;
use crate::membership::{Member, Members};
use crate::status::{EndpointStatus, RelayStatus};

/// Pongs of one measurement. Chosen: the shortest of five has seldom waited in a queue.
const ANSWERS: u32 = 5;
/// Time between two measurements of a relay that carries nothing. Chosen.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
/// Silence after which a relay that is pinged counts as gone. Chosen: fifteen pings.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// The difference by which another relay must be nearer to replace the current one: this, and a
/// fifth. Chosen: noise must not move routes.
const NEARER_BY: Duration = Duration::from_millis(1);

/// The members, and the measured round trips of relays.
#[derive(Debug, Default)]
pub(in crate::engine) struct MemberTable {
    members: Members,
    candidates: Vec<Candidate>,
    nearest: Option<Hop>,
    /// The exchange with the registry.
    pub(super) registration: Registration,
}

/// A relay that may be the nearest.
#[derive(Debug)]
struct Candidate {
    hop: Hop,
    peer: PeerId,
    /// Pongs of this measurement, and their shortest round trip.
    answers: u32,
    shortest: Option<Duration>,
    begun: Timestamp,
    last_pong: Timestamp,
    /// The result of the last measurement; `None`: no answer.
    measured: Option<Duration>,
    /// Set once a measurement has ended.
    is_known: bool,
}

impl Candidate {
    fn new(hop: Hop, peer: PeerId, now: Timestamp) -> Self {
        let (answers, shortest, measured, is_known) = (0, None, None, false);
        Self { hop, peer, answers, shortest, begun: now, last_pong: now, measured, is_known }
    }

    fn take_answer(&mut self, now: Timestamp, round_trip: Duration) {
        self.last_pong = now;
        self.answers += 1;
        self.shortest = Some(self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip)));
        if self.answers >= ANSWERS {
            (self.measured, self.is_known) = (self.shortest, true);
        }
    }

    /// Begins the next measurement when it is due; gives up one that gets no pongs.
    fn maintain(&mut self, now: Timestamp) {
        let is_asked = self.answers < ANSWERS;
        if is_asked && now.since(self.last_pong.max(self.begun)) >= GONE_AFTER {
            (self.measured, self.is_known) = (None, true);
        }
        if !is_asked && now.since(self.begun) >= MEASURE_EVERY {
            (self.answers, self.shortest, self.begun) = (0, None, now);
        }
    }

    /// Restarts the measurement of a relay whose path carries something and has gone silent.
    fn restart_if_silent(&mut self, now: Timestamp) {
        if self.answers >= ANSWERS && now.since(self.last_pong) >= GONE_AFTER {
            (self.answers, self.shortest, self.begun, self.measured) = (0, None, now, None);
        }
    }
}

impl MemberTable {
    /// Records a pong over the Internet.
    pub(super) fn note_answer(&mut self, now: Timestamp, peer: PeerId, round_trip: Duration) {
        if let Some(candidate) = self.candidates.iter_mut().find(|known| known.peer == peer) {
            candidate.take_answer(now, round_trip);
        }
    }

    /// Returns whether a neighbour need not be pinged now: a relay that is measured, or the
    /// registry.
    pub(super) fn is_measured(&self, peer: PeerId) -> bool {
        match self.candidates.iter().find(|known| known.peer == peer) {
            Some(known) => known.answers >= ANSWERS,
            // The registry is pinged with each message to it.
            None => self.registration.is_with(peer),
        }
    }

    /// Returns the nearest relay: the current one, unless another is nearer by more than noise.
    /// There is none before all are measured or have been silent.
    fn choose(&self) -> Option<Hop> {
        if !self.candidates.iter().all(|known| known.is_known) {
            return self.nearest;
        }
        let measured = |known: &Candidate| Some((known.measured?, known.hop));
        let best = self.candidates.iter().filter_map(measured).min_by_key(|(span, _)| *span)?;
        let before = self.candidates.iter().find(|known| Some(known.hop) == self.nearest);
        match before.and_then(measured) {
            Some((span, hop)) if span <= best.0 + best.0 / 5 + NEARER_BY => Some(hop),
            _ => Some(best.1),
        }
    }

    /// Returns the identity of the member of this name.
    pub(in crate::engine) fn identity_of(&self, name: &str) -> Option<PublicIdentity> {
        self.members.endpoint(name).map(|member| member.identity)
    }

    fn member(&self, remote: &Remote) -> Option<&Member> {
        match remote {
            Remote::At(hop) => self.endpoint_of(hop.identity),
            Remote::Member(name) => {
                let of_identity = || self.endpoint_of(name.parse().ok()?);
                self.members.endpoint(name).or_else(of_identity)
            }
        }
    }

    /// Returns an endpoint from the file, or else from the registry.
    fn endpoint_of(&self, identity: PublicIdentity) -> Option<&Member> {
        self.members.endpoint_of(identity).or_else(|| self.registration.found(identity))
    }

    /// Returns the addresses of a relay or endpoint after the first.
    pub(super) fn further(&self, identity: PublicIdentity) -> Option<&Vec<SocketAddr>> {
        self.members.further.get(&identity)
    }

    /// Returns the relay that keeps the registry.
    pub(super) fn registry(&self) -> Option<Hop> {
        self.members.registry
    }

    /// Returns the endpoint that a policy leads to, if it has to be looked up in the registry.
    pub(in crate::engine) fn is_asked_for(
        &self,
        delivery: &DeliveryPolicy,
    ) -> Option<PublicIdentity> {
        let identity = match &delivery.remote {
            Remote::At(hop) if delivery.relays == Via::Nearest => hop.identity,
            Remote::At(_) => return None,
            Remote::Member(name) => name.parse().ok()?,
        };
        Some(identity).filter(|identity| self.members.endpoint_of(*identity).is_none())
    }

    /// Returns the relays that answer, the nearest first; `None` before this is known of all.
    pub(super) fn near(&self) -> Option<Vec<NearRelay>> {
        if !self.candidates.iter().all(|known| known.is_known) {
            return None;
        }
        let near = |known: &Candidate| {
            let Hop { identity, address } = known.hop;
            Some(NearRelay { identity, address, round_trip: known.measured? })
        };
        let mut relays: Vec<NearRelay> = self.candidates.iter().filter_map(near).collect();
        relays.sort_by_key(|near| {
            (Some(near.identity) != self.nearest.map(|hop| hop.identity), near.round_trip)
        });
        Some(relays)
    }

    /// Returns whether it may be the nearest, or keeps the registry.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        let is_candidate = self.candidates.iter().any(|known| known.peer == peer);
        is_candidate || self.registration.is_with(peer)
    }

    /// Returns the target of a policy, by the current state.
    pub(in crate::engine) fn resolve(&self, delivery: &DeliveryPolicy) -> RouteTarget {
        let member = self.member(&delivery.remote);
        let remote = match &delivery.remote {
            Remote::At(hop) => Some(*hop),
            Remote::Member(_) => member.map(|m| Hop { address: m.address, identity: m.identity }),
        };
        let there = member.and_then(|member| member.relays.first());
        let relays =
            match (&delivery.relays, remote) {
                (_, None) => Vec::new(),
                (Via::Relays(relays), _) => relays.clone(),
                (Via::Nearest, Some(remote)) => {
                    let mut relays: Vec<Hop> = self.nearest.into_iter().collect();
                    let there = there.map(|near| near.hop());
                    // Without a relay here, the one there is the only one.
                    relays.extend(there.filter(|there| {
                        relays.iter().all(|relay| relay.identity != there.identity)
                    }));
                    relays.retain(|relay| relay.identity != remote.identity);
                    relays
                }
            };
        let access = there.and_then(|near| near.round_trip);
        let remote_access = access.filter(|_| matches!(delivery.relays, Via::Nearest));
        RouteTarget { remote, relays, remote_access }
    }
}

/// The current target of a route.
pub(in crate::engine) struct RouteTarget {
    pub(in crate::engine) remote: Option<Hop>,
    pub(in crate::engine) relays: Vec<Hop>,
    /// The round trip between the remote endpoint and the last relay, if it is known.
    pub(in crate::engine) remote_access: Option<Duration>,
}

impl MemberTable {
    /// Returns the addresses of all members.
    pub(in crate::engine) fn addresses(&self) -> impl Iterator<Item = SocketAddr> {
        let Members { relays, registry, endpoints, further } = &self.members;
        let hops = relays.iter().chain(registry).map(|hop| hop.address);
        let near = endpoints.iter().flat_map(|member| &member.relays).map(|near| near.address);
        let ends = endpoints.iter().map(|member| member.address);
        hops.chain(near).chain(ends).chain(further.values().flatten().copied())
    }

    /// Replaces the members; returns the ones before.
    pub(super) fn replace(&mut self, members: Members) -> Members {
        std::mem::replace(&mut self.members, members)
    }

    /// Takes those as candidates to which there are legs; returns the legs to former ones.
    pub(super) fn set_candidates(&mut self, now: Now, legs: Vec<(Hop, PeerId)>) -> Vec<PeerId> {
        let mut before = std::mem::take(&mut self.candidates);
        for (hop, peer) in legs {
            let known = before.iter().position(|candidate| candidate.hop == hop);
            let candidate = match known {
                Some(known) => before.swap_remove(known),
                None => Candidate::new(hop, peer, now.steady),
            };
            self.candidates.push(candidate);
        }
        before.into_iter().map(|gone| gone.peer).collect()
    }

    /// Takes the relay that is nearest by now; returns whether it is another.
    pub(super) fn choose_again(&mut self) -> bool {
        let nearest = self.choose();
        std::mem::replace(&mut self.nearest, nearest) != nearest
    }

    /// Measures relays, of which `used` says whether one carries something; returns whether another
    /// is the nearest now.
    pub(in crate::engine) fn maintain(&mut self, now: Now, used: impl Fn(PeerId) -> bool) -> bool {
        if self.candidates.is_empty() {
            return false;
        }
        for candidate in &mut self.candidates {
            candidate.maintain(now.steady);
            if used(candidate.peer) {
                candidate.restart_if_silent(now.steady);
            }
        }
        let is_another = self.choose_again();
        if is_another {
            self.registration.report_at_once();
        }
        is_another
    }

    /// Returns the status of the relays and endpoints that this node knows.
    pub(crate) fn report(&self) -> (Vec<RelayStatus>, Vec<EndpointStatus>) {
        let relay = |known: &Candidate| RelayStatus {
            identity: known.hop.identity.to_string(),
            address: known.hop.address,
            round_trip_ms: known.measured.map(as_millis_f64),
            is_nearest: self.nearest == Some(known.hop),
        };
        let endpoint = |member: &Member| EndpointStatus {
            id: member.id.clone(),
            identity: member.identity.to_string(),
            address: member.address,
            nearest: member.relays.first().map(|near| near.identity.to_string()),
            round_trip_ms: member
                .relays
                .first()
                .and_then(|near| near.round_trip)
                .map(as_millis_f64),
        };
        let known = self.members.endpoints.iter().chain(self.registration.all());
        let endpoints = known.map(endpoint).collect();
        (self.candidates.iter().map(relay).collect(), endpoints)
    }
}
