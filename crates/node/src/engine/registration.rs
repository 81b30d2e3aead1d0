//! The exchange with the registry: endpoints report their addresses to the relay that keeps it and
//! look up others, in the sessions that there are `[JQ 3.3]`.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_grant::PublicIdentity;
use tradewind_packet::message::{Message, NearList, NearRelay};
use tradewind_packet::session::{AddressPair, Link, Now, PeerId};
use tradewind_units::{Duration, Timestamp};

use super::Engine;
use super::routes::{Part, Route};
use crate::counts::add;
use crate::membership::{Member, Near};
use crate::registry::KEPT_FOR;

/// Interval of repeated reports to the registry while it does not answer.
const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Interval of the look-ups of a known endpoint, which may move.
const LOOK_UP_INTERVAL: Duration = Duration::from_secs(20);

/// An endpoint's state of the exchange with the registry.
#[derive(Debug, Default)]
pub(super) struct Registration {
    registry: Option<PeerId>,
    next_report: Timestamp,
    next_look_up: Timestamp,
    found: BTreeMap<PublicIdentity, Member>,
}

impl Registration {
    pub(super) fn is_with(&self, peer: PeerId) -> bool {
        self.registry == Some(peer)
    }

    pub(super) fn found(&self, identity: PublicIdentity) -> Option<&Member> {
        self.found.get(&identity)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Member> {
        self.found.values()
    }

    /// Has the report repeated at once, since something in it has changed.
    pub(super) fn report_at_once(&mut self) {
        self.next_report = Timestamp::ZERO;
    }
}

impl Engine {
    /// Registers this node at the relay that the members name.
    pub(super) fn register_with(&mut self, now: Now) {
        let hop = self.members.registry();
        let registry = hop.and_then(|hop| self.leg(now, hop.identity, hop.address));
        if registry != self.members.registration.registry {
            self.members.registration = Registration { registry, ..Registration::default() };
        }
    }

    /// Reports this node's address, and looks up the endpoints that routes lead to.
    pub(super) fn maintain_registration(&mut self, now: Now) {
        let Some(registry) = self.members.registration.registry else { return };
        if !self.sessions.is_open(registry) {
            return;
        }
        if now.steady >= self.members.registration.next_report
            && let Some(relays) = self.members.near()
        {
            self.members.registration.next_report = now.steady + REPORT_INTERVAL;
            let mut entries = Vec::new();
            NearList::write(relays, &mut entries);
            if let Some(near) = NearList::of(&entries) {
                self.send_message(registry, &Message::Register { near });
            }
            // A registry that has restarted does not know the session, which shows when it does not
            // answer pings.
            if let Some(link) = self.sessions.link_of(registry) {
                self.sessions.ping(now, registry, link);
            }
        }
        if now.steady >= self.members.registration.next_look_up {
            self.query_registry(now, registry);
        }
    }

    fn query_registry(&mut self, now: Now, registry: PeerId) {
        let routes = self.routes.values();
        let asked: BTreeSet<PublicIdentity> =
            routes.filter_map(|route| self.members.is_asked_for(&route.delivery)).collect();
        let is_there =
            |remote: &PeerId| self.remotes.get(remote).is_some_and(|remote| remote.is_there(now));
        let leads = |route: &&Route| !matches!(route.part, Part::Head(_));
        let are_there = self.routes.values().filter(leads).all(|route| is_there(&route.remote));
        let registration = &mut self.members.registration;
        registration.found.retain(|identity, _| asked.contains(identity));
        let wait = if are_there { LOOK_UP_INTERVAL } else { REPORT_INTERVAL };
        registration.next_look_up = now.steady + wait;
        for identity in asked {
            self.send_message(registry, &Message::LookUp { identity });
        }
    }

    /// Handles a message between endpoints and the registry.
    pub(super) fn take_membership(&mut self, now: Now, from: PeerId, message: Message<'_>) {
        let is_registry = self.members.registration.is_with(from);
        match message {
            Message::Register { near } => self.store_registration(now, from, near),
            Message::LookUp { identity } => self.answer_look_up(now, from, identity),
            Message::Registered { seconds } if is_registry => {
                let kept_for = Duration::from_secs(seconds.into()).min(KEPT_FOR);
                self.members.registration.next_report = now.steady + kept_for / 4;
            }
            Message::Member { identity, address, near } if is_registry => {
                let to_near = |relay: NearRelay| Near {
                    address: relay.address,
                    identity: relay.identity,
                    round_trip: Some(relay.round_trip).filter(|span| !span.is_zero()),
                };
                let relays = near.relays().map(to_near).collect();
                let member = Member { id: identity.to_string(), address, identity, relays };
                self.update_member(now, member);
            }
            _ => add(&self.counts.dropped, 1),
        }
    }

    fn update_member(&mut self, now: Now, member: Member) {
        let is_asked =
            |route: &Route| self.members.is_asked_for(&route.delivery) == Some(member.identity);
        let found = &self.members.registration.found;
        if found.get(&member.identity) == Some(&member) || !self.routes.values().any(is_asked) {
            return;
        }
        self.members.registration.found.insert(member.identity, member);
        self.update_all_routes(now);
    }

    /// Records an endpoint's report, at the relay that keeps the registry.
    fn store_registration(&mut self, now: Now, from: PeerId, near: NearList<'_>) {
        let (identity, link) = (self.sessions.identity_of(from), self.sessions.link_of(from));
        let address = link.and_then(|link| match link {
            Link::Internet(AddressPair { remote, .. }) => Some(remote),
            Link::Overlay(_) => None,
        });
        let (Some(registry), Some(identity), Some(address)) =
            (&self.shared.registry, identity, address)
        else {
            return add(&self.counts.dropped, 1);
        };
        if registry.register(now.steady, identity, (address, near.as_bytes())) {
            let seconds = u16::try_from(KEPT_FOR.as_secs()).unwrap_or(u16::MAX);
            self.send_message(from, &Message::Registered { seconds });
        }
    }

    /// Replies to a look-up, at the same relay.
    fn answer_look_up(&mut self, now: Now, from: PeerId, identity: PublicIdentity) {
        let entry = self
            .shared
            .registry
            .as_ref()
            .and_then(|registry| registry.look_up(now.steady, identity));
        if let Some(entry) = entry
            && let Some(near) = NearList::of(&entry.near)
        {
            self.send_message(from, &Message::Member { identity, address: entry.address, near });
        }
    }
}
