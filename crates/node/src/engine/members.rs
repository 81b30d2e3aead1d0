//! Which relay is near this node, by round trips that it measures itself once it runs, and where
//! the routes lead that name members `[JQ 3.3]`.
//!
//! Every relay that is known is asked some times, all of them again each minute, and the shortest
//! round trip counts. A route to a member goes over the relay near here, then the one near there.
//! What the file or the registry (`super::registration`) says of relays near others is taken as it
//! is.

use std::net::SocketAddr;

use tradewind_grant::{Hop, PublicIdentity};
use tradewind_packet::message::NearRelay;
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Duration, Timestamp};

use super::Engine;
use super::registration::Registration;
use super::routes::nobody;
use crate::config::{DeliveryPolicy, Far, Via};
use crate::membership::{Member, Members};
use crate::status::{EndpointStatus, RelayStatus};

/// Answers that a measurement takes. Chosen: the shortest of five is seldom one that waited.
const ANSWERS: u32 = 5;
/// Time between two measurements of a relay that carries nothing. Chosen.
const MEASURE_EVERY: Duration = Duration::from_secs(60);
/// Silence after which a relay that is asked counts as gone. Chosen: fifteen questions.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// By how much another relay must be nearer to be taken instead: this, and a fifth. Chosen: noise
/// must not move routes.
const NEARER_BY: Duration = Duration::from_millis(1);

/// Who is known, and how far the relays are.
#[derive(Debug, Default)]
pub(super) struct MemberTable {
    members: Members,
    candidates: Vec<Candidate>,
    nearest: Option<Hop>,
    /// What is said to the registry, and what it has told.
    pub(super) registration: Registration,
}

/// A relay that may be the nearest.
#[derive(Debug)]
struct Candidate {
    hop: Hop,
    peer: PeerId,
    /// Answers of this measurement, and the shortest round trip of them.
    answers: u32,
    shortest: Option<Duration>,
    begun: Timestamp,
    heard: Timestamp,
    /// What the last measurement has shown; `None`: it does not answer.
    measured: Option<Duration>,
    /// Whether one has ended.
    is_known: bool,
}

impl Candidate {
    fn new(hop: Hop, peer: PeerId, now: Timestamp) -> Self {
        let (answers, shortest, measured, is_known) = (0, None, None, false);
        Self { hop, peer, answers, shortest, begun: now, heard: now, measured, is_known }
    }

    fn take_answer(&mut self, now: Timestamp, round_trip: Duration) {
        self.heard = now;
        self.answers += 1;
        self.shortest = Some(self.shortest.map_or(round_trip, |shortest| shortest.min(round_trip)));
        if self.answers >= ANSWERS {
            (self.measured, self.is_known) = (self.shortest, true);
        }
    }

    /// Begins the next measurement when it is due; gives up one that has no answers.
    fn tend(&mut self, now: Timestamp) {
        let is_asked = self.answers < ANSWERS;
        if is_asked && now.since(self.heard.max(self.begun)) >= GONE_AFTER {
            (self.measured, self.is_known) = (None, true);
        }
        if !is_asked && now.since(self.begun) >= MEASURE_EVERY {
            (self.answers, self.shortest, self.begun) = (0, None, now);
        }
    }

    /// Its path carries something and has gone silent: it is measured from the beginning.
    fn suspect(&mut self, now: Timestamp) {
        if self.answers >= ANSWERS && now.since(self.heard) >= GONE_AFTER {
            (self.answers, self.shortest, self.begun, self.measured) = (0, None, now, None);
        }
    }
}

impl MemberTable {
    /// An endpoint answered over the Internet.
    pub(super) fn note_answer(&mut self, now: Timestamp, peer: PeerId, round_trip: Duration) {
        if let Some(candidate) = self.candidates.iter_mut().find(|known| known.peer == peer) {
            candidate.take_answer(now, round_trip);
        }
    }

    /// Whether a relay need not be asked now, as it is measured.
    pub(super) fn is_measured(&self, peer: PeerId) -> bool {
        match self.candidates.iter().find(|known| known.peer == peer) {
            Some(known) => known.answers >= ANSWERS,
            // The registry is asked with each word to it.
            None => self.registration.is_with(peer),
        }
    }

    /// The nearest relay: the one before, unless another is nearer by more than noise. None before
    /// all are measured or have been silent.
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

    /// Who the members call so.
    pub(super) fn identity_of(&self, name: &str) -> Option<PublicIdentity> {
        self.members.endpoint(name).map(|member| member.identity)
    }

    fn member(&self, far: &Far) -> Option<&Member> {
        match far {
            Far::At(hop) => self.endpoint_of(hop.identity),
            Far::Member(name) => {
                let of_identity = || self.endpoint_of(name.parse().ok()?);
                self.members.endpoint(name).or_else(of_identity)
            }
        }
    }

    /// An endpoint that the file names, or else the registry.
    fn endpoint_of(&self, identity: PublicIdentity) -> Option<&Member> {
        self.members.endpoint_of(identity).or_else(|| self.registration.found(identity))
    }

    /// The addresses of a relay or endpoint beside the first.
    pub(super) fn further(&self, identity: PublicIdentity) -> Option<&Vec<SocketAddr>> {
        self.members.further.get(&identity)
    }

    /// The relay that keeps the registry.
    pub(super) fn registry(&self) -> Option<Hop> {
        self.members.registry
    }

    /// The endpoint that a course leads to, if the registry is to be asked for it.
    pub(super) fn is_asked_for(&self, delivery: &DeliveryPolicy) -> Option<PublicIdentity> {
        let identity = match &delivery.far {
            Far::At(hop) if delivery.relays == Via::Nearest => hop.identity,
            Far::At(_) => return None,
            Far::Member(name) => name.parse().ok()?,
        };
        Some(identity).filter(|identity| self.members.endpoint_of(*identity).is_none())
    }

    /// The relays that answer, the nearest first; `None` before it is known which do.
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

    /// Whether it may be the nearest, or keeps the registry.
    pub(super) fn has(&self, peer: PeerId) -> bool {
        let is_candidate = self.candidates.iter().any(|known| known.peer == peer);
        is_candidate || self.registration.is_with(peer)
    }

    /// Where a course leads by what is known now.
    fn resolve(&self, delivery: &DeliveryPolicy) -> Aim {
        let member = self.member(&delivery.far);
        let far = match &delivery.far {
            Far::At(hop) => Some(*hop),
            Far::Member(_) => member.map(|m| Hop { address: m.address, identity: m.identity }),
        };
        let there = member.and_then(|member| member.relays.first());
        let relays =
            match (&delivery.relays, far) {
                (_, None) => Vec::new(),
                (Via::Relays(relays), _) => relays.clone(),
                (Via::Nearest, Some(far)) => {
                    let mut relays: Vec<Hop> = self.nearest.into_iter().collect();
                    let there = there.map(|near| near.hop());
                    // Without a relay here, the one there is the only one.
                    relays.extend(there.filter(|there| {
                        relays.iter().all(|relay| relay.identity != there.identity)
                    }));
                    relays.retain(|relay| relay.identity != far.identity);
                    relays
                }
            };
        let access = there.and_then(|near| near.round_trip);
        let far_access = access.filter(|_| matches!(delivery.relays, Via::Nearest));
        Aim { far, relays, far_access }
    }
}

/// Where a route leads now.
struct Aim {
    far: Option<Hop>,
    relays: Vec<Hop>,
    /// The round trip between the far endpoint and the last relay, as it is told.
    far_access: Option<Duration>,
}

impl Engine {
    /// Takes who is there from now on.
    pub(super) fn set_members(&mut self, now: Now, members: Members) {
        let registry = self.members.registry().filter(|hop| members.registry != Some(*hop));
        let old = std::mem::replace(&mut self.members.members, members.clone());
        self.leave_several(now, &old, &members);
        let mut before = std::mem::take(&mut self.members.candidates);
        for hop in &members.relays {
            let Some(peer) = self.leg_to(now, *hop) else { continue };
            let known = before.iter().position(|candidate| candidate.hop == *hop);
            let candidate = match known {
                Some(known) => before.swap_remove(known),
                None => Candidate::new(*hop, peer, now.steady),
            };
            self.members.candidates.push(candidate);
        }
        self.know_members();
        self.register_with(now);
        if let Some(old) = registry.and_then(|hop| self.legs.to(self.sessions.public(), hop)) {
            self.leave_leg(now, old);
        }
        self.members.nearest = self.members.choose();
        self.aim_all(now);
        before.into_iter().for_each(|gone| self.leave_leg(now, gone.peer));
    }

    /// Has nobody's packets end at members.
    pub(super) fn know_members(&mut self) {
        let Members { relays, registry, endpoints, further } = &self.members.members;
        let hops = relays.iter().chain(registry).map(|hop| hop.address);
        let near = endpoints.iter().flat_map(|member| &member.relays).map(|near| near.address);
        let ends = endpoints.iter().map(|member| member.address);
        let further = further.values().flatten().copied();
        self.access.add_relays(hops.chain(near).chain(ends).chain(further));
    }

    /// Measures relays, and has routes follow what that shows.
    pub(super) fn maintain_members(&mut self, now: Now) {
        self.maintain_registration(now);
        if self.members.candidates.is_empty() {
            return;
        }
        let used = |peer| self.routes.values().any(|route| route.first() == Some(peer));
        for candidate in &mut self.members.candidates {
            candidate.tend(now.steady);
            if used(candidate.peer) {
                candidate.suspect(now.steady);
            }
        }
        let nearest = self.members.choose();
        if nearest != self.members.nearest {
            self.members.nearest = nearest;
            self.members.registration.say_again();
            self.aim_all(now);
        }
    }

    /// Whether a neighbour is a relay that carries nothing for this node and is measured.
    pub(super) fn is_idle_candidate(&self, peer: PeerId) -> bool {
        let in_use = self.several.in_use(peer);
        // The addresses of a rendezvous are compared by what they answer.
        let is_meeting = self.rendezvous_client.is_with(peer) && !self.several.has(peer);
        (self.members.is_measured(in_use) || is_meeting)
            && !self.routes.values().any(|route| route.first() == Some(in_use))
    }

    pub(super) fn aim_all(&mut self, now: Now) {
        let routes: Vec<u32> = self.routes.ids().collect();
        for id in routes {
            if self.aim(now, id).is_none() {
                tracing::warn!("a route stays as it was: there are too many neighbours");
            }
        }
    }

    /// Has a route lead where its course says that it should by now; `None` when there is no room
    /// for another neighbour.
    pub(super) fn aim(&mut self, now: Now, id: u32) -> Option<()> {
        let leads =
            |route: &&super::routes::Route| !matches!(route.part, super::routes::Part::Head(_));
        let Some(route) = self.routes.get(id).filter(leads) else { return Some(()) };
        let Aim { far, relays, far_access } = self.members.resolve(&route.delivery);
        let hops: Vec<Hop> = relays.iter().chain(&far).copied().collect();
        let (far, relays, hops) = match self.would_loop(id, &hops) {
            false => (far, relays, hops),
            true => (None, Vec::new(), Vec::new()),
        };
        let (far_before, first_before) = (route.far, route.first());
        let is_as_before = hops == route.hops();
        let first = match relays.first() {
            Some(hop) => Some(self.leg_to(now, *hop)?),
            None => None,
        };
        let peer = match far {
            Some(hop) => self.leg_to(now, hop)?,
            None => nobody(),
        };
        if is_as_before && (peer, first) == (far_before, first_before) {
            self.set_access(far_before, far_access);
            return Some(());
        }
        self.point(now, id, (peer, first, hops));
        self.set_access(peer, far_access);
        [Some(far_before), first_before]
            .into_iter()
            .flatten()
            .for_each(|gone| self.leave_leg(now, gone));
        Some(())
    }

    fn set_access(&mut self, far: PeerId, round_trip: Option<Duration>) {
        if let Some(far) = self.fars.get_mut(&far) {
            far.access = round_trip;
        }
    }

    /// The relays and endpoints that this node knows.
    pub(crate) fn report_members(&self) -> (Vec<RelayStatus>, Vec<EndpointStatus>) {
        let table = &self.members;
        let relay = |known: &Candidate| RelayStatus {
            identity: known.hop.identity.to_string(),
            address: known.hop.address,
            round_trip_ms: known.measured.map(as_millis_f64),
            is_nearest: table.nearest == Some(known.hop),
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
        let known = table.members.endpoints.iter().chain(table.registration.all());
        let endpoints = known.map(endpoint).collect();
        (table.candidates.iter().map(relay).collect(), endpoints)
    }
}
