//! MTUs of the paths to a remote endpoint: found by probing, since no router need report a path's
//! MTU (RFC 8899).

use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::session::{Link, Now, OVERHEAD};
use tradewind_units::Timestamp;

use super::Engine;
use super::routes::Route;

/// Bytes of a first message's header before the application's bytes, and the additional bytes of
/// its source and of its number.
pub(super) const FIRST_BYTES: usize = 27;
pub(super) const SOURCE_BYTES: usize = 18;
pub(super) const NUMBER_BYTES: usize = 17;

/// The searches on both paths.
#[derive(Debug)]
pub(super) struct Mtus {
    pub(super) internet: PathMtu,
    pub(super) overlay: PathMtu,
}

impl Default for Mtus {
    fn default() -> Self {
        let new = || PathMtu::new(Timestamp::ZERO);
        Self { internet: new(), overlay: new() }
    }
}

impl Mtus {
    pub(super) fn arrived(&mut self, link: Link, bytes: usize) {
        match link {
            Link::Internet(_) => self.internet.arrived(bytes),
            Link::Overlay(_) => self.overlay.arrived(bytes),
        }
    }
}

impl Engine {
    /// Sends the probes that are due, over paths that answer.
    pub(super) fn maintain_mtus(&mut self, now: Now) {
        for (peer, remote) in &mut self.remotes {
            let link = self.sessions.link_of(*peer).filter(|_| remote.is_internet_alive(now));
            if let (Some(link), Some(round_trip)) = (link, remote.round_trip)
                && let Some(bytes) = remote.mtus.internet.poll(now.steady, round_trip)
            {
                self.sessions.probe(now, *peer, link, bytes);
            }
            let label = remote.label.filter(|_| remote.is_overlay_alive(now));
            if let (Some(label), Some(round_trip)) = (label, remote.overlay_round_trip)
                && let Some(bytes) = remote.mtus.overlay.poll(now.steady, round_trip)
            {
                self.sessions.probe(now, *peer, Link::Overlay(label), bytes);
            }
        }
    }

    /// Returns the longest datagram of an application that the Internet path of a route takes, even
    /// if it is the first of its conversation.
    pub(super) fn longest(&self, route: &Route) -> Option<u64> {
        let takes = self.remotes.get(&route.remote)?.mtus.internet.longest()?;
        let numbered = if route.end.is_some() { NUMBER_BYTES } else { 0 };
        let source = if route.to.is_none() { SOURCE_BYTES } else { 0 };
        Some((takes - OVERHEAD - FIRST_BYTES - source - numbered) as u64)
    }
}
