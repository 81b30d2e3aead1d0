//! Datagrams that an application writes to a group, sent to its members.

use std::net::SocketAddr;

use tradewind_packet::group::SEAL_BYTES;
use tradewind_packet::id::PacketId;
use tradewind_packet::message::{
    Carriage, Class, MOST_PAYLOAD_BYTES, Message, Service, write_numbered,
};
use tradewind_packet::sender::Paths;
use tradewind_packet::session::{Now, OVERHEAD, PeerId};

use super::super::mtu::{DATAGRAM_BYTES, FIRST_BYTES, NUMBER_BYTES};
use super::super::paths::EITHER_PATH;
use super::super::remotes::DatagramPaths;
use super::super::{Engine, nobody};
use super::Group;
use crate::counts::add;

impl Engine {
    /// Sends a datagram of an application to all members.
    pub(in super::super) fn send_group(
        &mut self,
        now: Now,
        head: u32,
        (conversation, class): (u32, Class),
        payload: &[u8],
    ) {
        let Some(mut group) = self.take_group(head) else { return };
        let is_short = payload.len() + NUMBER_BYTES + FIRST_BYTES + OVERHEAD + SEAL_BYTES
            <= MOST_PAYLOAD_BYTES;
        let datagram = Message::Datagram { conversation, payload };
        let packet = self.services.sender.next_packet(group.flow).filter(|_| is_short);
        let around = if packet.is_some() { NUMBER_BYTES } else { 0 };
        self.note_if_too_long_for_any(now, &group, (around, payload.len()));
        if let Some(packet) = packet {
            if self.send_to_members(now, &group, (packet, conversation), payload) {
                let mut sealed = std::mem::take(&mut self.context.sealed);
                sealed.clear();
                group.key.seal(packet.sequence, &datagram, &mut sealed);
                // This cannot fail: the flow exists, and the length was checked.
                let _ = self.services.sender.send(now.steady, group.flow, class, &sealed);
                self.context.sealed = sealed;
                self.services.send_packets(&mut self.context, now);
            } else {
                self.services.sender.skip(group.flow);
            }
            add(&self.context.counts.accepted, 1);
            group.sent.packets += 1;
            group.sent.bytes += (payload.len() + NUMBER_BYTES + OVERHEAD) as u64;
        } else {
            // Relays do not cache packets of this length.
            for member in &group.members {
                if let Some((remote, to)) = self.end_of_member(*member) {
                    let message =
                        self.for_member(now, &group, (remote, to), (conversation, 0), payload);
                    self.send_remote(now, remote, Carriage::DIRECT, &message);
                }
            }
        }
        self.put_group(head, group);
    }

    fn end_of_member(&self, member: u32) -> Option<(PeerId, SocketAddr)> {
        let route = self.routes.get(member).filter(|route| route.remote != nobody())?;
        Some((route.remote, route.to?))
    }

    /// Counts and logs a datagram that is too long for the paths to some member.
    fn note_if_too_long_for_any(
        &mut self,
        now: Now,
        group: &Group,
        (around, bytes): (usize, usize),
    ) {
        for member in &group.members {
            let Some((remote, to)) = self.end_of_member(*member) else { continue };
            let paths = group.paths_to(remote);
            if self.fragments.note_if_too_long(
                (&self.context, &self.remotes),
                now,
                (paths, to),
                (around, bytes),
            ) {
                return;
            }
        }
    }

    /// Sends each member the packet that it does not get from relays; returns whether the relays
    /// are to get a copy.
    fn send_to_members(
        &mut self,
        now: Now,
        group: &Group,
        (packet, conversation): (PacketId, u32),
        payload: &[u8],
    ) -> bool {
        let mut is_any_in_reach = false;
        for member in &group.members {
            let Some((remote, to)) = self.end_of_member(*member) else { continue };
            let state = self.remotes.get(&remote);
            let is_up = state.is_some_and(|state| state.is_overlay_alive(now));
            let is_dead = state.is_some_and(|state| !state.is_internet_alive(now));
            let is_in_reach = self.is_in_reach(now, group, remote);
            is_any_in_reach |= is_in_reach;
            let is_known = group.known.contains(&(conversation, remote));
            if is_in_reach && is_known && group.carriage.paths == Paths::Overlay {
                continue;
            }
            let carriage =
                if is_dead && is_up && !is_in_reach { EITHER_PATH } else { Carriage::DIRECT };
            let message =
                self.for_member(now, group, (remote, to), (conversation, NUMBER_BYTES), payload);
            let mut sealed = std::mem::take(&mut self.context.sealed);
            let is_sealed = self
                .context
                .seal_remote(remote, &mut sealed, |out| write_numbered(packet, &message, out));
            if is_sealed {
                let carriage = if self.remotes.needs_relays(now, remote, sealed.len()) {
                    Carriage::FORWARDED
                } else {
                    carriage
                };
                self.send_over_paths(now, remote, carriage, &sealed);
            } else {
                add(&self.context.counts.refused, 1);
            }
            self.context.sealed = sealed;
        }
        is_any_in_reach
    }

    /// Returns a datagram for a member, with `around` bytes around it. A member that does not know
    /// the conversation is first sent its beginning, where the datagram has no room for that.
    fn for_member<'a>(
        &mut self,
        now: Now,
        group: &Group,
        (remote, to): (PeerId, SocketAddr),
        (conversation, around): (u32, usize),
        payload: &'a [u8],
    ) -> Message<'a> {
        let (carriage, from) = (group.carriage, None);
        if !group.known.contains(&(conversation, remote)) {
            let paths = group.paths_to(remote);
            let fits = |bytes: usize| self.remotes.fits(now, paths, around + bytes + payload.len());
            if fits(FIRST_BYTES) || !fits(DATAGRAM_BYTES) {
                return Message::First { conversation, carriage, to, from, payload };
            }
            self.send_to_remote(now, remote, &Message::Begin { conversation, carriage, to, from });
        }
        Message::Datagram { conversation, payload }
    }
}

impl Group {
    /// Returns the paths of datagrams to a member.
    fn paths_to(&self, remote: PeerId) -> DatagramPaths {
        let carriage = Carriage { service: Service::Direct, ..self.carriage };
        DatagramPaths::of(remote, carriage, Some(self.flow))
    }
}
