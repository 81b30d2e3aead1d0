//! The exchange with the registry: endpoints report their addresses to the relay that keeps it and
//! look up others, in the sessions that there are `[JQ 3.3]`.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_config::packet::DeliveryPolicy;
use tradewind_grant::PublicIdentity;
use tradewind_packet::message::{Message, NearList, NearRelay};
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Duration, Timestamp};

use super::members::MemberTable;
use crate::counts::add;
use crate::engine::context::Context;
use crate::membership::{Member, Near};
use crate::registry::RETENTION;

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

impl MemberTable {
    /// Registers this node with the relay of this session, or with none.
    pub(super) fn register_with(&mut self, registry: Option<PeerId>) {
        if registry != self.registration.registry {
            self.registration = Registration { registry, ..Registration::default() };
        }
    }

    /// Reports this node's address, and looks up the endpoints that routes lead to. Each route is
    /// its policy, and whether its remote endpoint answers.
    pub(in crate::engine) fn maintain_registration<'a>(
        &mut self,
        context: &mut Context,
        now: Now,
        routes: impl Iterator<Item = (&'a DeliveryPolicy, bool)>,
    ) {
        let Some(registry) = self.registration.registry else { return };
        if !context.sessions.is_open(registry) {
            return;
        }
        if now.steady >= self.registration.next_report
            && let Some(relays) = self.near()
        {
            self.registration.next_report = now.steady + REPORT_INTERVAL;
            let mut entries = Vec::new();
            NearList::write(relays, &mut entries);
            if let Some(near) = NearList::of(&entries) {
                context.send_message(registry, &Message::Register { near });
            }
            // A registry that has restarted does not know the session, which shows when it does not
            // answer pings.
            context.ping(now, registry);
        }
        if now.steady >= self.registration.next_look_up {
            let (mut asked, mut are_there) = (BTreeSet::new(), true);
            for (delivery, is_there) in routes {
                asked.extend(self.is_asked_for(delivery));
                are_there &= is_there;
            }
            self.registration.found.retain(|identity, _| asked.contains(identity));
            let wait = if are_there { LOOK_UP_INTERVAL } else { REPORT_INTERVAL };
            self.registration.next_look_up = now.steady + wait;
            for identity in asked {
                context.send_message(registry, &Message::LookUp { identity });
            }
        }
    }

    /// Handles a message between endpoints and the registry; returns whether an endpoint has
    /// changed that one of the routes with these policies leads to.
    pub(in crate::engine) fn handle_message<'a>(
        &mut self,
        context: &mut Context,
        now: Now,
        (from, message): (PeerId, Message<'_>),
        routes: impl Iterator<Item = &'a DeliveryPolicy>,
    ) -> bool {
        let is_registry = self.registration.is_with(from);
        match message {
            Message::Register { near } => store_registration(context, now, from, near),
            Message::LookUp { identity } => answer_look_up(context, now, from, identity),
            Message::Registered { seconds } if is_registry => {
                let retention = Duration::from_secs(seconds.into()).min(RETENTION);
                self.registration.next_report = now.steady + retention / 4;
            }
            Message::Member { identity, address, near } if is_registry => {
                let to_near = |relay: NearRelay| Near {
                    address: relay.address,
                    identity: relay.identity,
                    round_trip: Some(relay.round_trip).filter(|span| !span.is_zero()),
                };
                let relays = near.relays().map(to_near).collect();
                let member = Member { id: identity.to_string(), address, identity, relays };
                return self.update_member(member, routes);
            }
            _ => add(&context.counts.dropped, 1),
        }
        false
    }

    fn update_member<'a>(
        &mut self,
        member: Member,
        mut routes: impl Iterator<Item = &'a DeliveryPolicy>,
    ) -> bool {
        let is_asked =
            |delivery: &DeliveryPolicy| self.is_asked_for(delivery) == Some(member.identity);
        let is_known = self.registration.found.get(&member.identity) == Some(&member);
        if is_known || !routes.any(is_asked) {
            return false;
        }
        self.registration.found.insert(member.identity, member);
        true
    }
}

/// Records an endpoint's report, at the relay that keeps the registry.
fn store_registration(context: &mut Context, now: Now, from: PeerId, near: NearList<'_>) {
    let identity = context.sessions.identity_of(from);
    let (Some(registry), Some(identity), Some(address)) =
        (&context.shared.registry, identity, context.address_of(from))
    else {
        return add(&context.counts.dropped, 1);
    };
    if registry.register(now.steady, identity, (address, near.as_bytes())) {
        let seconds = u16::try_from(RETENTION.as_secs()).unwrap_or(u16::MAX);
        context.send_message(from, &Message::Registered { seconds });
    }
}

/// Replies to a look-up, at the same relay.
fn answer_look_up(context: &mut Context, now: Now, from: PeerId, identity: PublicIdentity) {
    let registry = context.shared.registry.as_ref();
    let entry = registry.and_then(|registry| registry.look_up(now.steady, identity));
    if let Some(entry) = entry
        && let Some(near) = NearList::of(&entry.near)
    {
        context.send_message(from, &Message::Member { identity, address: entry.address, near });
    }
}
