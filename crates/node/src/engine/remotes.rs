//! The remote endpoints, and what is known of the paths to each: whether they answer, how long that
//! takes, and how long a datagram may be.

use std::collections::BTreeMap;

use tradewind_grant::Hop;
use tradewind_packet::fragment::FRAGMENT_HEADER_BYTES;
use tradewind_packet::id::FlowNumber;
use tradewind_packet::label::Labels;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::session::{Link, Now, OVERHEAD, PeerId};
use tradewind_units::{Duration, Timestamp};

use super::context::Context;
use super::mtu::{DATAGRAM_BYTES, Mtus, NUMBER_BYTES};
use super::smooth;

/// Silence after which a path counts as down. Chosen: three pings.
const DEAD_AFTER: Duration = Duration::from_millis(600);
/// Silence after which a remote endpoint counts as gone. Chosen: four pings over each path, so that
/// datagrams take the original path again within a second.
const GONE_AFTER: Duration = Duration::from_millis(800);

/// A remote endpoint, and the state of the paths to it.
#[derive(Debug, Default)]
pub(super) struct RemoteEndpoint {
    /// The overlay path to it on which a message came last.
    pub(super) label: Option<u32>,
    overlay_last_received: Option<Timestamp>,
    internet_last_received: Option<Timestamp>,
    /// The MTUs of both paths.
    pub(super) mtus: Mtus,
    /// The smoothed round trip of the Internet path, and that over the relays.
    pub(super) round_trip: Option<Duration>,
    pub(super) overlay_round_trip: Option<Duration>,
    /// The round trip between it and the relay near it, if it is known.
    pub(super) access: Option<Duration>,
    /// The relays that were tried last, and until when no others are tried.
    tried: Option<(Vec<Hop>, Timestamp)>,
}

impl RemoteEndpoint {
    /// Records a pong, with its round trip and the bytes of what was sent.
    pub(super) fn note_answer(
        &mut self,
        now: Now,
        link: Link,
        (round_trip, bytes): (Duration, usize),
    ) {
        let (last_received, smoothed) = match link {
            Link::Internet(_) => (&mut self.internet_last_received, &mut self.round_trip),
            Link::Overlay(_) => (&mut self.overlay_last_received, &mut self.overlay_round_trip),
        };
        *last_received = Some(now.steady);
        *smoothed = Some(smooth(*smoothed, round_trip));
        self.mtus.arrived(link, bytes);
    }

    /// Takes another overlay path, which is tried over some relays until a time. Returns the label
    /// of the one before, which the caller has to drop.
    pub(super) fn try_path(&mut self, label: u32, tried: (Vec<Hop>, Timestamp)) -> Option<u32> {
        self.tried = Some(tried);
        self.label.replace(label)
    }

    /// Returns whether it answers over any path.
    pub(super) fn is_there(&self, now: Now) -> bool {
        let last_received = self.internet_last_received.max(self.overlay_last_received);
        last_received.is_some_and(|at| now.steady.since(at) < GONE_AFTER)
    }

    /// Moves it to another of its addresses, which was measured.
    pub(super) fn is_elsewhere(&mut self, now: Now, round_trip: Option<Duration>) {
        (self.internet_last_received, self.round_trip) = (Some(now.steady), round_trip);
        self.mtus.internet.begin_again(now.steady);
    }

    /// Records a path along which relays serve a flow, and which has not answered here yet: it
    /// counts as alive until its answer is due.
    pub(super) fn presume_path(&mut self, now: Now, label: u32) {
        if self.overlay_last_received.is_none() {
            (self.label, self.overlay_last_received) = (Some(label), Some(now.steady));
        }
    }

    /// Leaves the path, since other relays are to be used. Returns its label, which the caller has
    /// to drop.
    pub(super) fn leave_path(&mut self) -> Option<u32> {
        (self.overlay_last_received, self.overlay_round_trip, self.tried) = (None, None, None);
        self.label.take()
    }

    /// Returns whether a path was requested just now: it has its time to answer, and serves all
    /// that goes there.
    pub(super) fn is_trying(&self, now: Now) -> bool {
        self.tried.as_ref().is_some_and(|(_, until)| now.steady < *until)
    }

    /// Returns whether the path requested last goes over these relays.
    pub(super) fn has_tried(&self, hops: &[Hop]) -> bool {
        self.tried.as_ref().is_some_and(|(tried, _)| tried == hops)
    }

    /// Stops waiting for the answer to an opening over these relays.
    pub(super) fn may_try_again(&mut self, now: Now, hops: &[Hop]) {
        if let Some((_, until)) = self.tried.as_mut().filter(|(tried, _)| tried == hops) {
            *until = now.steady;
        }
    }

    pub(super) fn is_alive(&self, now: Now) -> bool {
        self.is_internet_alive(now) || self.is_overlay_alive(now)
    }

    pub(super) fn is_internet_alive(&self, now: Now) -> bool {
        self.internet_last_received.is_some_and(|at| now.steady.since(at) < DEAD_AFTER)
    }

    pub(super) fn is_overlay_alive(&self, now: Now) -> bool {
        self.overlay_last_received.is_some_and(|at| now.steady.since(at) < DEAD_AFTER)
    }
}

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

/// All remote endpoints.
#[derive(Debug, Default)]
pub(super) struct Remotes {
    pub(super) by_peer: BTreeMap<PeerId, RemoteEndpoint>,
}

impl Remotes {
    pub(super) fn get(&self, peer: &PeerId) -> Option<&RemoteEndpoint> {
        self.by_peer.get(peer)
    }

    pub(super) fn get_mut(&mut self, peer: &PeerId) -> Option<&mut RemoteEndpoint> {
        self.by_peer.get_mut(peer)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = (&PeerId, &RemoteEndpoint)> {
        self.by_peer.iter()
    }

    /// Adds a remote endpoint, unless it is known.
    pub(super) fn add(&mut self, peer: PeerId) {
        self.by_peer.entry(peer).or_default();
    }

    pub(super) fn remove(&mut self, peer: &PeerId) {
        self.by_peer.remove(peer);
    }

    /// Returns the remote endpoint that the path of a label leads to.
    pub(super) fn over(&self, label: u32) -> Option<PeerId> {
        let mut all = self.all();
        all.find(|(_, remote)| remote.label == Some(label)).map(|(peer, _)| *peer)
    }

    /// Returns whether the overlay path to a remote endpoint answers.
    pub(super) fn is_overlay_alive(&self, now: Now, peer: PeerId) -> bool {
        self.get(&peer).is_some_and(|remote| remote.is_overlay_alive(now))
    }

    /// Returns the first relay of the path to a remote endpoint, and the path's label there, while
    /// it answers.
    pub(super) fn path_to<B>(
        &self,
        labels: &Labels<B>,
        now: Now,
        peer: PeerId,
    ) -> Option<(PeerId, u32)> {
        let remote = self.get(&peer).filter(|remote| remote.is_overlay_alive(now))?;
        labels.reverse_hop(remote.label?)
    }

    /// Returns whether a datagram is too long for the Internet path, but not for the overlay path.
    pub(super) fn needs_relays(&self, now: Now, peer: PeerId, bytes: usize) -> bool {
        self.get(&peer).is_some_and(|remote| {
            remote.mtus.internet.is_too_long(bytes)
                && remote.label.is_some()
                && remote.is_overlay_alive(now)
                && !remote.mtus.overlay.is_too_long(bytes)
        })
    }

    /// Returns whether a message of so many bytes may fit some path: it is not known to be too long
    /// for all.
    pub(super) fn fits(&self, now: Now, paths: DatagramPaths, bytes: usize) -> bool {
        let sealed = OVERHEAD + bytes;
        let Some(remote) = self.get(&paths.remote) else { return true };
        let takes = |mtu: &PathMtu| !mtu.is_too_long(sealed);
        takes(&remote.mtus.internet) || paths.overlay(now, remote).is_some_and(takes)
    }

    /// Returns whether a message of so many bytes is proven to arrive over some path.
    fn is_proven(&self, now: Now, paths: DatagramPaths, bytes: usize) -> bool {
        let Some(remote) = self.get(&paths.remote) else { return false };
        let takes = |mtu: &PathMtu| OVERHEAD + bytes <= mtu.proven();
        takes(&remote.mtus.internet) || paths.overlay(now, remote).is_some_and(takes)
    }

    /// Returns the longest datagram of a known conversation that some path takes, once that is
    /// known.
    pub(super) fn longest_to(&self, now: Now, paths: DatagramPaths) -> Option<usize> {
        let remote = self.get(&paths.remote)?;
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

    /// Returns the most bytes of a fragment, such that all paths take it, and the relays' messages
    /// with it.
    pub(super) fn most_of_piece(&self, now: Now, paths: DatagramPaths, served: usize) -> usize {
        let Some(remote) = self.get(&paths.remote) else { return 0 };
        let internet = remote.mtus.internet.proven() - served;
        let overlay = paths.overlay(now, remote).map(PathMtu::proven);
        let takes = overlay.map_or(internet, |overlay| internet.min(overlay));
        takes.saturating_sub(OVERHEAD + NUMBER_BYTES + FRAGMENT_HEADER_BYTES)
    }

    /// Sends the probes of lengths that are due, over paths that answer.
    pub(super) fn maintain_mtus(&mut self, context: &mut Context, now: Now) {
        for (peer, remote) in &mut self.by_peer {
            let link = context.sessions.link_of(*peer).filter(|_| remote.is_internet_alive(now));
            if let (Some(link), Some(round_trip)) = (link, remote.round_trip)
                && let Some(bytes) = remote.mtus.internet.poll(now.steady, round_trip)
            {
                context.sessions.probe(now, *peer, link, bytes);
            }
            let label = remote.label.filter(|_| remote.is_overlay_alive(now));
            if let (Some(label), Some(round_trip)) = (label, remote.overlay_round_trip)
                && let Some(bytes) = remote.mtus.overlay.poll(now.steady, round_trip)
            {
                context.sessions.probe(now, *peer, Link::Overlay(label), bytes);
            }
        }
    }
}
