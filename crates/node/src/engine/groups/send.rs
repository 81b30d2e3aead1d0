//! Datagrams that an application writes to a group, sent to its members.

use std::net::SocketAddr;

use tradewind_packet::group::SEAL_BYTES;
use tradewind_packet::id::PacketId;
use tradewind_packet::message::{
    Carriage, Class, MAX_PAYLOAD_BYTES, Message, Service, write_numbered,
};
use tradewind_packet::sender::Paths as Over;
use tradewind_packet::session::{Now, OVERHEAD, PeerId};

use super::super::long::Fragments;
use super::super::mtu::{DATAGRAM_BYTES, FIRST_BYTES, NUMBER_BYTES};
use super::super::nobody;
use super::super::paths::{EITHER_PATH, Paths};
use super::super::remotes::DatagramPaths;
use super::super::routes::Routes;
use super::super::services::Services;
use super::Group;
use crate::counts::add;

impl Group {
    /// Sends a datagram of an application to all members.
    pub(in super::super) fn send(
        &mut self,
        (paths, services, fragments): (&mut Paths<'_>, &mut Services, &mut Fragments),
        routes: &Routes,
        now: Now,
        (conversation, class): (u32, Class),
        payload: &[u8],
    ) {
        let is_short =
            payload.len() + NUMBER_BYTES + FIRST_BYTES + OVERHEAD + SEAL_BYTES <= MAX_PAYLOAD_BYTES;
        let datagram = Message::Datagram { conversation, payload };
        let packet = services.sender.next_packet(self.flow).filter(|_| is_short);
        let around = if packet.is_some() { NUMBER_BYTES } else { 0 };
        self.note_if_too_long_for_any((paths, fragments), routes, now, (around, payload.len()));
        if let Some(packet) = packet {
            if self.send_to_members((paths, services), routes, now, (packet, conversation), payload)
            {
                let mut sealed = std::mem::take(&mut paths.context.sealed);
                sealed.clear();
                self.key.seal(packet.sequence, &datagram, &mut sealed);
                // This cannot fail: the flow exists, and the length was checked.
                let _ = services.sender.send(now.steady, self.flow, class, &sealed);
                paths.context.sealed = sealed;
                services.send_packets(paths.context, now);
            } else {
                services.sender.skip(self.flow);
            }
            add(&paths.context.counts.accepted, 1);
            self.sent.packets += 1;
            self.sent.bytes += (payload.len() + NUMBER_BYTES + OVERHEAD) as u64;
        } else {
            // Relays do not cache packets of this length.
            for member in &self.members {
                if let Some((remote, to)) = end_of_member(routes, *member) {
                    let message = self.for_member(
                        (paths, services),
                        now,
                        (remote, to),
                        (conversation, 0),
                        payload,
                    );
                    paths.send_remote(
                        (now, &mut services.sender),
                        remote,
                        Carriage::DIRECT,
                        &message,
                    );
                }
            }
        }
    }

    /// Counts and logs a datagram that is too long for the paths to some member.
    fn note_if_too_long_for_any(
        &self,
        (paths, fragments): (&Paths<'_>, &mut Fragments),
        routes: &Routes,
        now: Now,
        (around, bytes): (usize, usize),
    ) {
        for member in &self.members {
            let Some((remote, to)) = end_of_member(routes, *member) else { continue };
            let datagram_paths = self.paths_to(remote);
            let known = (&*paths.context, &*paths.remotes);
            if fragments.note_if_too_long(known, now, (datagram_paths, to), (around, bytes)) {
                return;
            }
        }
    }

    /// Sends each member the packet that it does not get from relays; returns whether the relays
    /// are to get a copy.
    fn send_to_members(
        &self,
        (paths, services): (&mut Paths<'_>, &mut Services),
        routes: &Routes,
        now: Now,
        (packet, conversation): (PacketId, u32),
        payload: &[u8],
    ) -> bool {
        let mut is_any_in_reach = false;
        for member in &self.members {
            let Some((remote, to)) = end_of_member(routes, *member) else { continue };
            let state = paths.remotes.get(&remote);
            let is_up = state.is_some_and(|state| state.is_overlay_alive(now));
            let is_dead = state.is_some_and(|state| !state.is_internet_alive(now));
            let is_in_reach = self.is_in_reach(paths.path_to(now, remote), now, remote);
            is_any_in_reach |= is_in_reach;
            let is_known = self.known.contains(&(conversation, remote));
            if is_in_reach && is_known && self.carriage.paths == Over::Overlay {
                continue;
            }
            let carriage =
                if is_dead && is_up && !is_in_reach { EITHER_PATH } else { Carriage::DIRECT };
            let message = self.for_member(
                (paths, services),
                now,
                (remote, to),
                (conversation, NUMBER_BYTES),
                payload,
            );
            let mut sealed = std::mem::take(&mut paths.context.sealed);
            let is_sealed = paths
                .context
                .seal_remote(remote, &mut sealed, |out| write_numbered(packet, &message, out));
            if is_sealed {
                let carriage = if paths.remotes.needs_relays(now, remote, sealed.len()) {
                    Carriage::FORWARDED
                } else {
                    carriage
                };
                paths.send_over_paths((now, &mut services.sender), remote, carriage, &sealed);
            } else {
                add(&paths.context.counts.refused, 1);
            }
            paths.context.sealed = sealed;
        }
        is_any_in_reach
    }

    /// Returns a datagram for a member, with `around` bytes around it. A member that does not know
    /// the conversation is first sent its beginning, where the datagram has no room for that.
    fn for_member<'a>(
        &self,
        (paths, services): (&mut Paths<'_>, &mut Services),
        now: Now,
        (remote, to): (PeerId, SocketAddr),
        (conversation, around): (u32, usize),
        payload: &'a [u8],
    ) -> Message<'a> {
        let (carriage, from) = (self.carriage, None);
        if !self.known.contains(&(conversation, remote)) {
            let datagram_paths = self.paths_to(remote);
            let fits = |bytes: usize| {
                paths.remotes.fits(now, datagram_paths, around + bytes + payload.len())
            };
            if fits(FIRST_BYTES) || !fits(DATAGRAM_BYTES) {
                return Message::First { conversation, carriage, to, from, payload };
            }
            let message = Message::Begin { conversation, carriage, to, from };
            paths.send_to_both((now, &mut services.sender), remote, &message);
        }
        Message::Datagram { conversation, payload }
    }

    /// Returns the paths of datagrams to a member.
    fn paths_to(&self, remote: PeerId) -> DatagramPaths {
        let carriage = Carriage { service: Service::Direct, ..self.carriage };
        DatagramPaths::of(remote, carriage, Some(self.flow))
    }
}

fn end_of_member(routes: &Routes, member: u32) -> Option<(PeerId, SocketAddr)> {
    let route = routes.get(member).filter(|route| route.remote != nobody())?;
    Some((route.remote, route.to?))
}
