//! Datagrams that are too long for the paths: reported, fragmented, and reassembled.

use std::net::SocketAddr;

use tradewind_packet::fragment::{FRAGMENT_HEADER_BYTES, Joined, Piece, cut};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Class, Message, Service};
use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::session::{Now, OVERHEAD, PeerId};
use tradewind_units::Duration;

use super::Engine;
use super::conversations::DATAGRAM_BYTES;
use super::mtu::NUMBER_BYTES;
use super::routes::RemoteEndpoint;
use crate::counts::add;

/// Time that fragments are waited for where no latency budget is set. Chosen: a round trip around
/// the world, and one more for recovery.
const UNTOLD_WAIT: Duration = Duration::from_secs(1);
/// Interval of log lines about datagrams that are too long. Chosen: an application sends many of
/// them.
const LENGTH_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The paths that a conversation's datagrams may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct DatagramPaths {
    pub(super) remote: PeerId,
    /// Set if the overlay path counts as well, where there is one: other routes to the same remote
    /// endpoint may have opened it.
    takes_relays: bool,
}

impl DatagramPaths {
    /// Returns the paths of a conversation with this carriage, and with a flow if its packets are
    /// numbered.
    pub(super) fn of(remote: PeerId, carriage: Carriage, end: Option<FlowNumber>) -> Self {
        Self { remote, takes_relays: end.is_some() || carriage.service == Service::Forwarding }
    }

    /// Returns the overlay path's MTU, where that path is one of these and answers.
    fn overlay(self, now: Now, remote: &RemoteEndpoint) -> Option<&PathMtu> {
        let is_over = self.takes_relays && remote.label.is_some() && remote.is_overlay_alive(now);
        is_over.then_some(&remote.mtus.overlay)
    }
}

impl Engine {
    /// Returns whether a message of so many bytes may fit some path: it is not known to be too long
    /// for all.
    pub(super) fn fits(&self, now: Now, paths: DatagramPaths, bytes: usize) -> bool {
        let sealed = OVERHEAD + bytes;
        let Some(remote) = self.remotes.get(&paths.remote) else { return true };
        let takes = |way: &PathMtu| !way.is_too_long(sealed);
        takes(&remote.mtus.internet) || paths.overlay(now, remote).is_some_and(takes)
    }

    /// Returns whether a message of so many bytes is proven to arrive over some path.
    fn is_proven(&self, now: Now, paths: DatagramPaths, bytes: usize) -> bool {
        let Some(remote) = self.remotes.get(&paths.remote) else { return false };
        let takes = |way: &PathMtu| OVERHEAD + bytes <= way.proven();
        takes(&remote.mtus.internet) || paths.overlay(now, remote).is_some_and(takes)
    }

    /// Counts a datagram that is longer than every path takes, and logs it at intervals; returns
    /// whether it is.
    pub(super) fn note_if_too_long(
        &mut self,
        now: Now,
        (paths, other): (DatagramPaths, SocketAddr),
        (around, bytes): (usize, usize),
    ) -> bool {
        if self.fits(now, paths, around + DATAGRAM_BYTES + bytes) {
            return false;
        }
        add(&self.counts.too_long, 1);
        if now.steady >= self.next_too_long {
            self.next_too_long = now.steady + LENGTH_LOG_INTERVAL;
            let longest = self.longest_to(now, paths);
            let longest = longest.and_then(|takes| takes.checked_sub(around));
            let remote = self.name_of(paths.remote);
            tracing::warn!(remote, %other, bytes, longest, "a datagram is too long for the path");
        }
        true
    }

    /// Returns the longest datagram of a known conversation that some path takes, once that is
    /// known.
    pub(super) fn longest_to(&self, now: Now, paths: DatagramPaths) -> Option<usize> {
        let remote = self.remotes.get(&paths.remote)?;
        let overlay = paths.overlay(now, remote).and_then(PathMtu::longest);
        let longest = remote.mtus.internet.longest()?.max(overlay.unwrap_or(0));
        longest.checked_sub(OVERHEAD + DATAGRAM_BYTES)
    }

    /// Returns whether a datagram, with so many bytes in all beside the conversation's, has to be
    /// fragmented.
    pub(super) fn has_to_be_cut(
        &self,
        now: Now,
        (paths, carriage): (DatagramPaths, Carriage),
        bytes: usize,
    ) -> bool {
        carriage.fragment && !self.is_proven(now, paths, DATAGRAM_BYTES + bytes)
    }

    /// Sends a datagram in fragments, if it has to be fragmented and may be; `false` when it is to
    /// go whole.
    pub(super) fn send_cut(
        &mut self,
        now: Now,
        (remote, conversation, carriage): (PeerId, u32, Carriage),
        (end, class): (Option<FlowNumber>, Class),
        payload: &[u8],
    ) -> bool {
        let around = if end.is_some() { NUMBER_BYTES } else { 0 };
        let paths = DatagramPaths::of(remote, carriage, end);
        if !self.has_to_be_cut(now, (paths, carriage), around + payload.len()) {
            return false;
        }
        let most = self.most_of_piece(now, paths, self.served_bytes(carriage.service, end));
        let number = self.next_cut;
        let Some(pieces) = cut(number, payload, most) else { return false };
        self.next_cut = number.wrapping_add(1);
        add(&self.counts.cut, 1);
        for piece in pieces {
            let message = Message::Fragment { conversation, piece };
            match end {
                Some(flow) => self.send_numbered(now, (flow, class), &message),
                None => {
                    self.send_remote(now, remote, carriage, &message);
                }
            }
        }
        true
    }

    /// Returns the most bytes of a fragment, such that all paths take it, and the relays' messages
    /// with it.
    fn most_of_piece(&self, now: Now, paths: DatagramPaths, served: usize) -> usize {
        let Some(remote) = self.remotes.get(&paths.remote) else { return 0 };
        let internet = remote.mtus.internet.proven() - served;
        let overlay = paths.overlay(now, remote).map(PathMtu::proven);
        let takes = overlay.map_or(internet, |overlay| internet.min(overlay));
        takes.saturating_sub(OVERHEAD + NUMBER_BYTES + FRAGMENT_HEADER_BYTES)
    }

    /// Handles a fragment, and delivers its datagram once it is complete.
    pub(super) fn take_piece(
        &mut self,
        now: Now,
        peer: PeerId,
        conversation: u32,
        piece: Piece<'_>,
    ) {
        let Some(carriage) = self.carriage_of_any(peer, conversation) else {
            self.notify_if_released(peer, conversation);
            return add(&self.counts.dropped, 1);
        };
        let wait = carriage.worth().unwrap_or(UNTOLD_WAIT);
        match self.joiner.add(now.steady, (peer, conversation), piece, wait) {
            Joined::Whole(datagram) => {
                add(&self.counts.joined, 1);
                self.deliver(now, peer, conversation, &datagram);
            }
            Joined::Waits => {}
            Joined::Useless => add(&self.counts.dropped, 1),
        }
    }

    /// Returns the carriage of a conversation with `peer`, whichever side began it.
    pub(super) fn carriage_of_any(&self, peer: PeerId, conversation: u32) -> Option<Carriage> {
        let here = self.carriage_of(peer, conversation);
        let began = || {
            let outbound = self.outbound.get(conversation)?;
            Some(self.leading_to(outbound.route(), peer)?.carriage())
        };
        here.or_else(began)
    }

    /// Gives up datagrams whose fragments do not come, and counts them.
    pub(super) fn maintain_pieces(&mut self, now: Now) {
        self.joiner.expire(now.steady);
        let given_up = self.joiner.given_up();
        self.counts.unjoined.store(given_up, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
