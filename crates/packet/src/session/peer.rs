//! A neighbour and its sessions: the one that seals, the one before it that still opens, and the
//! one in handshake.

use std::collections::VecDeque;

use tradewind_grant::{PublicIdentity, SignedGrant, VerifiedGrant};
use tradewind_units::{Duration, Timestamp};

use super::cipher::Keys;
use super::handshake::Initiator;
use super::replay::ReplayWindow;
use super::{Link, Now};

/// The id of a neighbour while it is known; not reused soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PeerId(pub(super) u32);

impl From<PeerId> for crate::id::Peer {
    fn from(peer: PeerId) -> Self {
        Self(peer.0)
    }
}

impl From<crate::id::Peer> for PeerId {
    fn from(peer: crate::id::Peer) -> Self {
        Self(peer.0)
    }
}

/// The most pings that wait for pongs. Chosen: ten a second, over two links, and probes beside
/// them, for two seconds; a neighbour counts as dead after one.
const MAX_PINGS: usize = 32;

/// A neighbour.
#[derive(Debug)]
pub(super) struct Peer {
    /// The identity of this side that it knows.
    pub(super) own: PublicIdentity,
    pub(super) identity: PublicIdentity,
    /// Distinguishes an initiator's sockets, which share an identity.
    pub(super) instance: u64,
    pub(super) side: HandshakeRole,
    /// The link to it: configured, or proven.
    pub(super) link: Link,
    /// When a datagram came over that link, or a ping over it was answered.
    pub(super) link_last_received: Timestamp,
    /// The configured link, if this side connects to it.
    pub(super) home: Option<Link>,
    /// Set when it was led to another address, and no handshake has completed there yet.
    pub(super) is_led: bool,
    /// Another address where it has answered.
    pub(super) candidate: Option<Candidate>,
    /// The link on which the response to its last initiation was sent.
    pub(super) responded: Option<Link>,
    /// The session whose keys seal.
    pub(super) sending: Option<u32>,
    /// The session before it, whose datagrams may still be on their way.
    pub(super) previous: Option<u32>,
    /// The session that the other side has not used yet, or not answered.
    pub(super) coming: Option<u32>,
    pub(super) pings: VecDeque<Ping>,
    /// When a datagram of it was opened last.
    pub(super) last_received: Timestamp,
    /// The round trip of the last ping on its link that was answered.
    pub(super) round_trip: Option<Duration>,
}

/// The role of this side in the handshake.
#[derive(Debug)]
pub(super) enum HandshakeRole {
    /// This side is the initiator; it keeps the session alive and shows this grant.
    Initiator {
        shown: Option<SignedGrant>,
        /// The time of the next initiation at the earliest.
        next_try: Timestamp,
        cookie: Option<([u8; 16], Timestamp)>,
    },
    /// The other side is the initiator, which showed a grant; a relay shows none.
    Responder { shown: Option<Shown> },
}

/// A grant that was valid when it was shown.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) verified: VerifiedGrant,
    /// When the grant ends, or the session reaches its greatest age, on the monotonic clock: later
    /// changes of the wall clock end no session. New keys need a grant that is valid then.
    pub(super) ends: Timestamp,
}

impl Shown {
    pub(super) fn new(now: Now, verified: VerifiedGrant) -> Self {
        let ends = now.steady + verified.grant.session_limit(now.unix);
        Self { verified, ends }
    }
}

/// A proven address that is not the neighbour's yet. An attacker that forwards the neighbour's
/// datagrams from there, faster than their own path, gets this far: so it is used only when the
/// current address has fallen silent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    pub(super) link: Link,
    /// When it was pinged there, and at the current address.
    pub(super) asked: Timestamp,
    /// When it is used, if nothing comes from the current address.
    pub(super) due: Timestamp,
}

/// A ping whose pong is awaited.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ping {
    pub(super) number: u64,
    pub(super) link: Link,
    pub(super) asked: Timestamp,
    /// The length of the ping's datagram.
    pub(super) bytes: usize,
}

impl Peer {
    pub(super) fn new(
        own: PublicIdentity,
        identity: PublicIdentity,
        instance: u64,
        side: HandshakeRole,
        link: Link,
        now: Now,
    ) -> Self {
        Self {
            own,
            identity,
            instance,
            home: matches!(side, HandshakeRole::Initiator { .. }).then_some(link),
            side,
            link,
            link_last_received: now.steady,
            is_led: false,
            candidate: None,
            responded: None,
            sending: None,
            previous: None,
            coming: None,
            pings: VecDeque::new(),
            last_received: now.steady,
            round_trip: None,
        }
    }

    pub(super) fn sessions(&self) -> impl Iterator<Item = u32> + use<> {
        [self.sending, self.previous, self.coming].into_iter().flatten()
    }

    /// Remembers a ping, and forgets the oldest of too many.
    pub(super) fn remember(&mut self, ping: Ping) {
        if self.pings.len() == MAX_PINGS {
            self.pings.pop_front();
        }
        self.pings.push_back(ping);
    }

    /// Returns the ping that `number` answers when it comes over `link`; it and those before it are
    /// settled.
    pub(super) fn settle(&mut self, number: u64, link: Link) -> Option<Ping> {
        let found = |ping: &Ping| ping.number == number && ping.link.covers(link);
        let at = self.pings.iter().position(found)?;
        let ping = self.pings[at];
        // Pings to other addresses are still open.
        let mut index = 0;
        self.pings.retain(|other| {
            index += 1;
            index > at + 1 || other.link != ping.link
        });
        Some(ping)
    }

    /// Returns the links for initiations: the current one, and the configured one.
    pub(super) fn doors(&self) -> impl Iterator<Item = Link> + use<> {
        let home = self.home.filter(|home| *home != self.link);
        [Some(self.link), home].into_iter().flatten()
    }

    /// Returns whether a ping on the neighbour's current link has that number: whichever link the
    /// pong comes over, the ping has arrived.
    pub(super) fn was_asked_there(&self, number: u64) -> bool {
        let mut pings = self.pings.iter();
        self.link.is_internet() && pings.any(|ping| ping.number == number && ping.link == self.link)
    }

    /// Takes the candidate's address if nothing came from the current address for as long as its
    /// pong may take.
    pub(super) fn move_if_due(&mut self, now: Now) -> Option<Link> {
        let due = self.candidate.take_if(|candidate| now.steady >= candidate.due)?;
        if self.link_last_received >= due.asked {
            return None;
        }
        (self.link, self.link_last_received) = (due.link, now.steady);
        Some(due.link)
    }
}

/// A session's keys and counters.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) peer: PeerId,
    pub(super) born: Timestamp,
    pub(super) phase: Phase,
    /// The datagrams sealed so far, which is the next counter.
    pub(super) sealed: u64,
    pub(super) window: ReplayWindow,
}

#[derive(Debug)]
pub(super) enum Phase {
    /// The initiation was sent.
    Awaited(Box<Awaited>),
    /// The keys are negotiated.
    Open { theirs: u32, keys: Box<Keys> },
}

#[derive(Debug)]
pub(super) struct Awaited {
    pub(super) handshake: Initiator,
    /// The initiation, to be sent again with a cookie.
    pub(super) message: Vec<u8>,
}

impl Session {
    pub(super) fn new(peer: PeerId, born: Timestamp, phase: Phase) -> Self {
        Self { peer, born, phase, sealed: 0, window: ReplayWindow::default() }
    }
}
