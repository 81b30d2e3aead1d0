//! Periodic work for ends: they follow the paths and the relays' reports on their flows, and ends
//! without a conversation are dropped.

use tradewind_grant::PublicIdentity;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::label::PathPosition;
use tradewind_packet::message::{Message, Service};
use tradewind_packet::session::{Link, Now, PeerId};
use tradewind_units::Timestamp;

use super::super::neighbours::Legs;
use super::super::paths::Paths;
use super::super::services::Services;
use super::expected::Expected;
use super::{Carrier, Choice, LEAVING_WORDS, SERVE_EVERY, SERVED_FOR};

impl Services {
    /// Handles a relay's report that it serves an incoming flow along the path of `label`, which
    /// ends here.
    pub(in super::super) fn served_to_here(
        &mut self,
        (paths, legs): (&mut Paths<'_>, &Legs),
        now: Now,
        (label, flow, service): (u32, FlowNumber, Service),
        place: Option<PathPosition>,
    ) {
        let ends = &mut self.ends;
        let outgoing = ends.outgoing.get(&flow).copied();
        let end = outgoing
            .and_then(|outgoing| ends.by_outgoing.get_mut(&outgoing).map(|end| (outgoing, end)));
        let Some((outgoing, end)) = end else {
            let gateway = place.map(|place| place.gateway);
            if service != Service::Direct {
                ends.expected.note(now, flow, (label, service), gateway);
            }
            return;
        };
        let Some(remote) = paths.remotes.get_mut(&end.remote) else { return };
        let is_genuine = match place {
            Some(place) => paths.context.sessions.identity_of(end.remote) == Some(place.gateway),
            // This node has opened the path.
            None => remote.label == Some(label),
        };
        if !is_genuine {
            return;
        }
        end.is_left = service == Service::Direct;
        if end.is_left {
            // Earlier copies may still be requested.
            return;
        }
        // Replies use the same path in the other direction.
        remote.label = Some(label);
        let before = end.confirmed.replace((now.steady, service));
        let is_other = before
            .is_none_or(|(at, before)| before != service || now.steady.since(at) >= SERVED_FOR);
        if matches!(end.choice, Choice::Followed) && end.carriage.service != service {
            (end.carriage.service, end.carrier) = (service, Carrier::Machines);
        }
        if is_other {
            // Missing packets are requested at once.
            end.next_serve = Timestamp::ZERO;
            self.maintain_end((paths, legs), now, outgoing);
        }
    }

    /// Applies the relays' reports on an incoming flow from `peer`, which belongs to the end that
    /// sends `outgoing`.
    pub(in super::super) fn take_expected(
        &mut self,
        (paths, legs): (&mut Paths<'_>, &Legs),
        now: Now,
        peer: PeerId,
        (incoming, outgoing): (FlowNumber, FlowNumber),
    ) {
        let expected = self.ends.expected.take(incoming);
        let recent = expected.filter(|it| now.steady.since(it.received) < SERVED_FOR);
        let Some(Expected { label, service, gateway, .. }) = recent else { return };
        if !is_served_along(paths, label, (peer, gateway)) {
            return;
        }
        if let Some(remote) = paths.remotes.get_mut(&peer) {
            remote.presume_path(now, label);
        }
        paths.context.sessions.ping(now, peer, Link::Overlay(label));
        let place = paths.forwarding.labels.place(label);
        self.served_to_here((paths, legs), now, (label, incoming, service), place);
        self.maintain_end((paths, legs), now, outgoing);
    }

    /// Updates ends to the state of the paths, and has the relays serve the outgoing flows.
    pub(in super::super) fn maintain_ends(&mut self, paths: &mut Paths<'_>, legs: &Legs, now: Now) {
        let flows: Vec<FlowNumber> = self.ends.by_outgoing.keys().copied().collect();
        for flow in flows {
            self.maintain_end((paths, legs), now, flow);
        }
    }

    pub(super) fn maintain_end(
        &mut self,
        (paths, legs): (&mut Paths<'_>, &Legs),
        now: Now,
        outgoing: FlowNumber,
    ) {
        let Some(end) = self.ends.by_outgoing.get_mut(&outgoing) else { return };
        let Some(remote) = paths.remotes.get(&end.remote) else { return };
        end.select(now.steady, remote, legs);
        let is_served = end.confirmed.is_some_and(|(at, _)| now.steady.since(at) < SERVED_FOR);
        let is_wanted = is_served || !matches!(end.choice, Choice::Followed);
        let label = remote.label.filter(|_| is_wanted && remote.is_overlay_alive(now));
        let path = label.and_then(|label| paths.forwarding.labels.reverse_hop(label));
        let was = (end.relay, end.is_up, end.is_served, end.is_internet_down);
        (end.is_up, end.is_served) = (path.is_some(), is_served);
        end.is_internet_down = path.is_some() && !remote.is_internet_alive(now);
        end.relay = path.map(|(relay, _)| relay).or(end.relay);
        let is_changed = was != (end.relay, end.is_up, end.is_served, end.is_internet_down);
        if !is_changed && now.steady < end.next_serve {
            return;
        }
        end.next_serve = now.steady + SERVE_EVERY;
        let service = end.service();
        // Without room the flow stays as it is: over the Internet.
        let _ = self.sender.set_flow(outgoing, end.at_sender());
        if let Some(incoming) = end.incoming {
            self.receiver.set_path(incoming, end.at_receiver(remote.round_trip));
        }
        let is_said = match service {
            Service::Direct => end.leaving_messages > 0,
            Service::Forwarding | Service::Caching | Service::Coding => path.is_some(),
        };
        if let Some((relay, label)) = path.filter(|_| is_said) {
            end.leaving_messages = match service {
                Service::Direct => end.leaving_messages - 1,
                _ => LEAVING_WORDS,
            };
            paths.context.send_message(relay, &Message::Serve { label, flow: outgoing, service });
        }
    }

    /// Forgets ends for which `is_used` is false; packets may wait no longer for others then.
    pub(in super::super) fn forget_ends(&mut self, is_used: impl Fn(FlowNumber) -> bool) {
        let ends = &mut self.ends;
        let unused: Vec<FlowNumber> =
            ends.by_outgoing.keys().copied().filter(|flow| !is_used(*flow)).collect();
        for flow in unused {
            self.sender.remove_flow(flow);
            let end = ends.by_outgoing.remove(&flow);
            if let Some((remote, incoming)) = end.and_then(|end| Some((end.remote, end.incoming?)))
            {
                self.order.end_flow(remote, incoming);
                ends.outgoing.remove(&incoming);
                self.receiver.remove_flow(incoming);
                self.joined.remove(&incoming);
            }
        }
    }
}

/// Returns whether a path that ends here is one between this node and `peer`, opened by
/// `gateway` or, if that is `None`, by this node.
fn is_served_along(
    paths: &Paths<'_>,
    label: u32,
    (peer, gateway): (PeerId, Option<PublicIdentity>),
) -> bool {
    match gateway {
        Some(gateway) => paths.context.sessions.identity_of(peer) == Some(gateway),
        None => paths.remotes.get(&peer).is_some_and(|remote| remote.label == Some(label)),
    }
}
