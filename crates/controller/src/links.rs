//! The connections of agents, and the agents that are not heard over any of them.
//!
//! An agent always has a connection open, on which it waits for its next document. The kernel of
//! its host closes that when the agent's process ends, and answers the probes that this side sends
//! each second for as long as the host runs and can be reached. So an agent that is heard over no
//! connection for [`SILENT_AFTER`] is away, and so is one that has had none for [`GONE_AFTER`].
//! That says nothing of its relay, which may well carry traffic.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tradewind_grant::PublicIdentity;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::Duration;

/// Time between two probes of a connection over which nothing comes.
pub(crate) const PROBE_EVERY: Duration = Duration::from_secs(1);
/// Silence after which an agent is away. Chosen: two probes or their answers are lost on each of
/// its connections; with [`LOOK_EVERY`] below three seconds.
const SILENT_AFTER: Duration = Duration::from_millis(2300);
/// Time without a connection after which an agent is away. Chosen: three times the first pause
/// after which one that lost its connection dials again.
const GONE_AFTER: Duration = Duration::from_millis(1500);
/// Time between two looks. Chosen: a look at 1,000 connections takes about a millisecond.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time after which a peer without a connection is forgotten: what it reported last is too old
/// then anyway.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

/// The connections of all agents; clones are the same ones.
#[derive(Debug, Clone)]
pub(crate) struct Links(Arc<Mutex<Peers>>);

#[derive(Debug)]
struct Peers {
    peers: BTreeMap<PublicIdentity, Peer>,
    silent: BTreeSet<PublicIdentity>,
    /// True if nobody but the last look has changed `silent`.
    is_told: bool,
    next: u64,
}

#[derive(Debug)]
struct Peer {
    open: BTreeMap<u64, OwnedFd>,
    /// Time when something came over any of them.
    heard: Instant,
}

impl Peer {
    /// Takes in when something came over its connections.
    fn look(&mut self, now: Instant) {
        let silences = self.open.values().filter_map(|socket| TcpInfo::of(socket).ok()?.since_ack);
        let heard = silences.min().and_then(|silence| now.checked_sub(silence));
        self.heard = self.heard.max(heard.unwrap_or(self.heard));
    }

    fn is_silent(&self, now: Instant) -> bool {
        let most = if self.open.is_empty() { GONE_AFTER } else { SILENT_AFTER };
        now.saturating_duration_since(self.heard) > most
    }
}

impl Default for Links {
    fn default() -> Self {
        let (peers, silent) = (BTreeMap::new(), BTreeSet::new());
        Self(Arc::new(Mutex::new(Peers { peers, silent, is_told: true, next: 0 })))
    }
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, Peers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection of an agent, whose socket is shared, until the guard is dropped.
    pub(crate) fn open(&self, identity: PublicIdentity, socket: OwnedFd) -> Open {
        let mut peers = self.lock();
        let number = peers.next;
        peers.next += 1;
        let now = Instant::now();
        let new = || Peer { open: BTreeMap::new(), heard: now };
        let peer = peers.peers.entry(identity).or_insert_with(new);
        peer.open.insert(number, socket);
        peer.heard = now;
        peers.is_told &= !peers.silent.remove(&identity);
        Open { links: self.clone(), identity, number }
    }

    /// Looks at all connections; returns whether other agents are silent than before.
    pub(crate) fn look(&self, now: Instant) -> bool {
        let mut peers = self.lock();
        peers.peers.values_mut().for_each(|peer| peer.look(now));
        let is_known = |peer: &Peer| {
            let silence = now.saturating_duration_since(peer.heard);
            !peer.open.is_empty() || silence < FORGOTTEN_AFTER
        };
        peers.peers.retain(|_, peer| is_known(peer));
        let silent = peers.peers.iter().filter(|(_, peer)| peer.is_silent(now));
        let silent: BTreeSet<PublicIdentity> = silent.map(|(identity, _)| *identity).collect();
        let has_changed = silent != peers.silent || !peers.is_told;
        (peers.silent, peers.is_told) = (silent, true);
        has_changed
    }

    /// Returns whether an agent that had a connection is heard over none.
    pub(crate) fn is_silent(&self, identity: &PublicIdentity) -> bool {
        self.lock().silent.contains(identity)
    }
}

/// A connection that is open until this is dropped.
#[derive(Debug)]
pub(crate) struct Open {
    links: Links,
    identity: PublicIdentity,
    number: u64,
}

impl Drop for Open {
    fn drop(&mut self) {
        let mut peers = self.links.lock();
        if let Some(peer) = peers.peers.get_mut(&self.identity) {
            peer.look(Instant::now());
            peer.open.remove(&self.number);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use tradewind_grant::IdentityKey;

    use super::*;

    #[test]
    fn peer_without_an_answer_on_any_connection_is_silent_until_it_is_heard() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peers = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        let links = Links::default();
        let identity = IdentityKey::from_entropy([1; 32]).public();
        let accept = || OwnedFd::from(listener.accept().unwrap().0);
        let open = peers.each_ref().map(|_| links.open(identity, accept()));
        let wait = |span| std::thread::sleep(span + Duration::from_millis(100));
        assert!(!links.look(Instant::now()) && !links.is_silent(&identity));
        // Nobody probes these connections.
        wait(GONE_AFTER);
        assert!(!links.look(Instant::now()), "probes may be under way");
        wait(SILENT_AFTER - GONE_AFTER);
        assert!(links.look(Instant::now()) && links.is_silent(&identity));
        assert!(!links.look(Instant::now()), "it is no news");
        peers[1].set_nodelay(true).unwrap();
        (&peers[1]).write_all(b"heard").unwrap();
        assert!(links.look(Instant::now()) && !links.is_silent(&identity));
        drop(open);
        assert!(!links.look(Instant::now()), "it has ended right now");
        wait(GONE_AFTER);
        assert!(links.look(Instant::now()) && links.is_silent(&identity));
        let back = links.open(identity, OwnedFd::from(peers[0].try_clone().unwrap()));
        assert!(!links.is_silent(&identity), "at once");
        assert!(links.look(Instant::now()), "and that is news");
        drop(back);
        let later = Instant::now() + FORGOTTEN_AFTER - Duration::from_secs(1);
        assert!(links.look(later) && links.is_silent(&identity));
        assert!(links.look(later + Duration::from_secs(2)), "it is forgotten");
        assert!(links.lock().peers.is_empty() && !links.is_silent(&identity));
    }
}
