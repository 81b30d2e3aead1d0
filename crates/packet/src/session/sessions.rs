//! The state machine of all sessions of one socket.
//!
//! The initiator sends initiations until one is answered, again when a ping stays unanswered for a
//! second, and for new keys every two minutes or 2^26 datagrams. The responder uses a session only
//! once the initiator has, which proves that the response arrived. A neighbour that writes from
//! another address keeps its old one until it has answered a ping at the new one, and while it
//! still answers at the old one. The initiator tries the configured address beside the learned one,
//! at each handshake or when the learned one falls silent.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use tradewind_grant::{Grant, GrantId, IdentityKey, PublicIdentity, SignedGrant, Trust};
use tradewind_units::{Duration, Timestamp};

use super::Link;
use super::cookie::FirstMacKeys;
use super::event::{DropReason, Event, Now, Opened, SealError};
use super::passed::Tags;
use super::peer::{Candidate, HandshakeRole, Peer, PeerId, Phase, Ping, Session};
use super::random::Randomness;
use super::table::Table;
use super::wire::{
    self, CONTROL, CONTROL_LIMIT, Control, DATA, Datagram, HEADER_BYTES, OVERHEAD, PAYLOAD_LIMIT,
    PREFIX_BYTES,
};

mod admission;
mod config;
mod gate;
mod handshakes;
mod pass;

use admission::Admission;
pub use config::{Limits, SessionsConfig};
pub use pass::Run;

/// The age at which new keys are negotiated. Source: WireGuard, 6.1.
const REKEY_TIME: Duration = Duration::from_secs(120);
/// The age at which keys are forgotten. Source: WireGuard, 6.1.
const REJECT_TIME: Duration = Duration::from_secs(180);
/// The datagrams after which new keys are negotiated. Chosen: those of 120 s at half a million a
/// second.
const REKEY_COUNT: u64 = 1 << 26;
/// The most datagrams that one key seals. Chosen: with datagrams of 1,500 bytes it stays below the
/// limit of RFC 9001, B.1 for AES-GCM at an advantage of 2^-50.
const REJECT_COUNT: u64 = 1 << 28;
/// The time between two pings to an address that is not proven yet. Chosen.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The longest that a proven address waits for the current one. Chosen: no path is longer; usually
/// it is twice its own round trip.
const LEAVES_AFTER: Duration = Duration::from_secs(1);

/// The silence of a neighbour after which another socket of the same identity may replace it.
/// Chosen: a live one pings five times a second.
const MAKES_ROOM_AFTER: Duration = Duration::from_secs(5);

/// A datagram to send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Transmit {
    /// The link to send it on.
    pub link: Link,
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Set when it belongs to a session that this side began, for callers that use another socket
    /// for these than for sessions that others begin.
    pub is_ours: bool,
}

/// One of this side's identities, with its keys.
#[derive(Debug)]
struct Own {
    identity: IdentityKey,
    public: PublicIdentity,
    first_mac_keys: FirstMacKeys,
}

impl Own {
    fn of(identity: IdentityKey) -> Self {
        let public = identity.public();
        Self { identity, public, first_mac_keys: FirstMacKeys::of(&public) }
    }
}

/// All sessions of one socket.
#[derive(Debug)]
pub struct Sessions {
    /// This side's identities, the preferred one first; never empty.
    own: Vec<Own>,
    randomness: Randomness,
    admission: Admission,
    peers: Table<Peer>,
    /// The most neighbours with one identity that shows a grant.
    peers_each: usize,
    sessions: Table<Session>,
    /// The neighbours that began a session, by identity and instance.
    by_name: BTreeMap<(PublicIdentity, u64), PeerId>,
    transmits: VecDeque<Transmit>,
    events: VecDeque<Event>,
    drops: [u64; DropReason::ALL.len()],
    tags: Tags,
    /// The payload of the last datagram, if it was a duplicate.
    duplicate: Option<Opened>,
}

impl Sessions {
    /// The interval of calls of [`Sessions::handle_timeout`].
    pub const TICK: Duration = Duration::from_millis(100);

    /// Refuses initiations that were issued before `begin`: another process may have seen them.
    pub fn refuse_issued_before(&mut self, begin: Timestamp) {
        self.admission.replays.refuse_issued_before(begin);
    }

    /// Returns a machine without neighbours. `seed` is 32 bytes of the system's entropy that
    /// nothing else uses.
    #[must_use]
    pub fn new(config: SessionsConfig, now: Now, seed: [u8; 32]) -> Self {
        let mut randomness = Randomness::new(seed);
        let admission = Admission::new(&config, now, &mut randomness);
        let peers = config.limits.peers.min(1 << 14);
        Self {
            own: vec![Own::of(config.identity)],
            randomness,
            admission,
            peers: Table::new(peers),
            peers_each: config.limits.peers_each,
            // Three for each, and one that is being answered.
            sessions: Table::new(4 * peers),
            by_name: BTreeMap::new(),
            transmits: VecDeque::new(),
            events: VecDeque::new(),
            drops: [0; DropReason::ALL.len()],
            tags: Tags::default(),
            duplicate: None,
        }
    }

    /// Answers to `identities` from now on, the first of which is preferred: during a rotation
    /// there are two. Sessions under another identity go on until their keys expire.
    ///
    /// # Panics
    /// Panics without an identity.
    pub fn set_identities(&mut self, identities: impl IntoIterator<Item = IdentityKey>) {
        self.own = identities.into_iter().map(Own::of).collect();
        assert!(!self.own.is_empty(), "a node has an identity");
    }

    /// Accepts grants that `trust` verifies, and `neighbours`, from now on. Closes the sessions of
    /// initiators that are accepted no more.
    pub fn set_trust(&mut self, trust: Arc<Trust>, neighbours: BTreeSet<PublicIdentity>) {
        let is_allowed = |peer: &Peer| match &peer.side {
            HandshakeRole::Responder { shown: Some(shown) } => trust.check(&shown.verified).is_ok(),
            HandshakeRole::Responder { shown: None } => neighbours.contains(&peer.identity),
            HandshakeRole::Initiator { .. } => true,
        };
        let known = self.peers.ids().zip(self.peers.values());
        let refused = known.filter(|(_, peer)| !is_allowed(peer));
        let refused: Vec<PeerId> = refused.map(|(id, _)| PeerId(id)).collect();
        refused.into_iter().for_each(|peer| self.close(peer));
        (self.admission.trust, self.admission.neighbours) = (trust, neighbours);
    }

    /// Replaces the grant that this side has shown by `grant`, at once.
    pub fn set_shown(&mut self, now: Now, grant: &SignedGrant) {
        let ids: Vec<PeerId> = self.peers.ids().map(PeerId).collect();
        for id in ids {
            let side = self.peers.get_mut(id.0).map(|peer| &mut peer.side);
            if let Some(HandshakeRole::Initiator { shown: Some(shown), .. }) = side
                && shown != grant
                && shown.unverified().gateway == grant.unverified().gateway
            {
                *shown = grant.clone();
                self.initiate(now, id);
            }
        }
    }

    /// Handles a datagram that came over `link`; opens it in place.
    ///
    /// Returns `None` when it held no payload: part of a handshake, a control datagram, or dropped
    /// (see [`Sessions::drops`]).
    pub fn handle_datagram(&mut self, now: Now, link: Link, datagram: &mut [u8]) -> Option<Opened> {
        self.duplicate = None;
        let outcome = match wire::cut(datagram) {
            Some(Datagram::Sealed { receiver, counter }) => {
                self.open(now, link, receiver, counter, datagram)
            }
            Some(Datagram::Initiation(initiation)) => {
                self.accept(now, link, &initiation).map(|()| None)
            }
            Some(Datagram::Response { initiator, noise }) => {
                self.finish(now, link, initiator, noise).map(|()| None)
            }
            Some(Datagram::Cookie { initiator, cookie, tag }) => {
                self.take_cookie(now, link, initiator, cookie, &tag).map(|()| None)
            }
            None => Err(DropReason::Malformed),
        };
        outcome.unwrap_or_else(|reason| {
            self.drops[reason as usize] += 1;
            None
        })
    }

    /// Takes the payload of the last datagram, opened in place, if it was dropped as a duplicate
    /// ([`DropReason::Replayed`]): a recovered packet may come by itself after all.
    pub fn take_duplicate(&mut self) -> Option<Opened> {
        self.duplicate.take()
    }

    /// Seals `datagram` in place: [`HEADER_BYTES`] to be written, the payload, space for the tag.
    /// Returns the link to the neighbour.
    ///
    /// # Errors
    /// [`SealError::NoSession`] before a handshake and when keys have expired.
    pub fn seal(&mut self, peer: PeerId, datagram: &mut [u8]) -> Result<Link, SealError> {
        let link = self.peers.get(peer.0).ok_or(SealError::NoSession)?.link;
        self.seal_as(DATA, peer, datagram)?;
        Ok(link)
    }

    /// Opens a copy of a data datagram, in `copy`; returns `None` when it is not what a neighbour
    /// sealed.
    ///
    /// The replay window is not changed: [`Sessions::handle_datagram`] accepts the datagram
    /// afterwards.
    #[must_use]
    pub fn peek(&self, datagram: &[u8], copy: &mut Vec<u8>) -> Option<Opened> {
        let Some(Datagram::Sealed { receiver, counter }) = wire::cut(datagram) else { return None };
        let session = self.sessions.get(receiver).filter(|_| datagram[0] == DATA)?;
        let Phase::Open { keys, .. } = &session.phase else { return None };
        copy.clear();
        copy.extend_from_slice(datagram);
        let length = keys.open(counter, copy)?;
        Some(Opened { peer: session.peer, payload: HEADER_BYTES..HEADER_BYTES + length })
    }

    fn seal_as(&mut self, kind: u8, peer: PeerId, datagram: &mut [u8]) -> Result<(), SealError> {
        if !(OVERHEAD..=OVERHEAD + PAYLOAD_LIMIT).contains(&datagram.len()) {
            return Err(SealError::Length(datagram.len()));
        }
        let sending = self.peers.get(peer.0).and_then(|peer| peer.sending);
        let session = sending.and_then(|id| self.sessions.get_mut(id));
        let session = session.filter(|session| session.sealed < REJECT_COUNT);
        let Some(Session { phase: Phase::Open { theirs, keys }, sealed, .. }) = session else {
            return Err(SealError::NoSession);
        };
        datagram[..PREFIX_BYTES].copy_from_slice(&wire::prefix(kind, *theirs));
        datagram[PREFIX_BYTES..HEADER_BYTES].copy_from_slice(&sealed.to_be_bytes());
        keys.seal(*sealed, datagram);
        *sealed += 1;
        Ok(())
    }

    fn open(
        &mut self,
        now: Now,
        link: Link,
        id: u32,
        counter: u64,
        datagram: &mut [u8],
    ) -> Result<Option<Opened>, DropReason> {
        let session = self.sessions.get_mut(id).ok_or(DropReason::UnknownSession)?;
        let Phase::Open { keys, .. } = &session.phase else {
            return Err(DropReason::UnknownSession);
        };
        let length = keys.open(counter, datagram).ok_or(DropReason::AuthenticationFailed)?;
        if !session.window.admit(counter) {
            if datagram[0] == DATA {
                let payload = HEADER_BYTES..HEADER_BYTES + length;
                self.duplicate = Some(Opened { peer: session.peer, payload });
            }
            return Err(DropReason::Replayed);
        }
        let is_newest = counter + 1 == session.window.next();
        let peer_id = self.note_arrival(now, (link, id), is_newest, datagram.len())?;
        let payload = HEADER_BYTES..HEADER_BYTES + length;
        if datagram[0] == DATA {
            return Ok(Some(Opened { peer: peer_id, payload }));
        }
        match Control::take(&datagram[payload]) {
            Some(control) => self.handle_control(now, link, peer_id, control),
            None => return Err(DropReason::Malformed),
        }
        Ok(None)
    }

    /// Notes an authenticated datagram of a session: its keys are in use, and its neighbour may
    /// have moved.
    fn note_arrival(
        &mut self,
        now: Now,
        (link, id): (Link, u32),
        is_newest: bool,
        length: usize,
    ) -> Result<PeerId, DropReason> {
        let peer_id = self.sessions.get(id).ok_or(DropReason::UnknownSession)?.peer;
        let peer = self.peers.get_mut(peer_id.0).ok_or(DropReason::UnknownSession)?;
        peer.last_received = now.steady;
        if peer.link.covers(link) {
            peer.link_last_received = now.steady;
        }
        if peer.coming == Some(id) {
            // Response and confirmation used the same link, which is proven by that.
            let is_proven = peer.responded.take().is_some_and(|responded| responded == link);
            if is_proven && link.is_internet() && peer.home.is_none() {
                (peer.link, peer.link_last_received, peer.candidate) = (link, now.steady, None);
            }
            self.promote(peer_id);
        } else if is_newest && peer.sending == Some(id) && !peer.link.covers(link) {
            self.ping_new_address(now, peer_id, link, length);
        }
        Ok(peer_id)
    }

    fn handle_control(&mut self, now: Now, link: Link, peer_id: PeerId, control: Control) {
        match control {
            Control::Ping(number) | Control::Probe(number) => {
                self.send_control(peer_id, link, Control::Pong(number), 0);
            }
            Control::Pong(number) => {
                let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
                if peer.was_asked_there(number) {
                    peer.link_last_received = now.steady;
                }
                let Some(ping) = peer.settle(number, link) else { return };
                let (bytes, round_trip) = (ping.bytes, now.steady.since(ping.asked));
                let link = ping.link;
                if link.is_internet() && peer.link != link {
                    let due = now.steady + (round_trip * 2).min(LEAVES_AFTER);
                    peer.candidate = Some(Candidate { link, asked: ping.asked, due });
                } else if link.is_internet() {
                    peer.round_trip = Some(round_trip);
                }
                self.events.push_back(Event::Answered { peer: peer_id, link, round_trip, bytes });
            }
            Control::Confirmation => {}
            Control::Close => self.forget_sessions(peer_id),
        }
    }

    /// Pings the neighbour; a pong is reported by [`Event::Answered`].
    pub fn ping(&mut self, now: Now, peer: PeerId, link: Link) {
        self.ping_with(now, peer, link, OVERHEAD + CONTROL_LIMIT, Control::Ping);
    }

    /// Pings it with a datagram of `bytes`, at least 38; [`Event::Answered`] reports that a
    /// datagram of this length arrives.
    pub fn probe(&mut self, now: Now, peer: PeerId, link: Link, bytes: usize) {
        self.ping_with(now, peer, link, bytes, Control::Probe);
    }

    fn ping_with(
        &mut self,
        now: Now,
        peer: PeerId,
        link: Link,
        bytes: usize,
        control: impl Fn(u64) -> Control,
    ) {
        let number = self.randomness.draw_u64();
        let Some(known) = self.peers.get_mut(peer.0) else { return };
        if known.sending.is_some() {
            known.remember(Ping { number, link, asked: now.steady, bytes });
            self.send_control(peer, link, control(number), bytes);
        }
    }

    /// Pings a neighbour at a new address that it wrote from, with no more bytes than it wrote, and
    /// at its current one.
    fn ping_new_address(&mut self, now: Now, peer_id: PeerId, link: Link, length: usize) {
        let Some(peer) = self.peers.get(peer_id.0) else { return };
        let elsewhere = |ping: &&Ping| ping.link.is_internet() && ping.link != peer.link;
        let (present, is_ours) = (peer.link, peer.home.is_some());
        let asked = peer.pings.iter().rev().find(elsewhere).map(|ping| ping.asked);
        let is_early = asked.is_some_and(|asked| now.steady.since(asked) < ASK_AGAIN);
        if link.is_internet() && !is_early && length >= OVERHEAD + CONTROL_LIMIT {
            // The initiator lets the system choose the local address.
            let link = if is_ours { link.without_local() } else { link };
            self.ping(now, peer_id, link);
            self.ping(now, peer_id, present);
        }
    }

    /// Sends a control datagram of at least `least` bytes.
    fn send_control(&mut self, peer: PeerId, link: Link, control: Control, least: usize) {
        let mut bytes = vec![0; least.max(OVERHEAD + CONTROL_LIMIT)];
        let length = OVERHEAD + control.put(&mut bytes[HEADER_BYTES..]);
        bytes.truncate(length.max(least));
        if self.seal_as(CONTROL, peer, &mut bytes).is_ok() {
            let is_ours = self.is_ours(peer);
            self.transmits.push_back(Transmit { link, bytes, is_ours });
        }
    }

    /// Makes the session in handshake the one that seals.
    fn promote(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        let old = peer.previous.take();
        peer.previous = peer.sending.take();
        peer.sending = peer.coming.take();
        peer.pings.clear();
        let (identity, link) = (peer.identity, peer.link);
        if let Some(old) = old {
            self.sessions.remove(old);
        }
        self.events.push_back(Event::Established { peer: peer_id, identity, link });
    }

    fn forget_sessions(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        peer.sessions().for_each(|id| {
            self.sessions.remove(id);
        });
        (peer.sending, peer.previous, peer.coming) = (None, None, None);
        if matches!(peer.side, HandshakeRole::Responder { .. }) {
            self.forget(peer_id);
        }
    }

    fn forget(&mut self, peer_id: PeerId) {
        let Some(peer) = self.peers.remove(peer_id.0) else { return };
        peer.sessions().for_each(|id| {
            self.sessions.remove(id);
        });
        self.by_name.remove(&(peer.identity, peer.instance));
        if matches!(peer.side, HandshakeRole::Responder { .. }) {
            self.events.push_back(Event::Closed { peer: peer_id, identity: peer.identity });
        }
    }

    /// Ends sessions that are too old, and begins handshakes that are due.
    pub fn handle_timeout(&mut self, now: Now) {
        self.admission.cookies.turn(now.steady, &mut self.randomness);
        let ids: Vec<PeerId> = self.peers.ids().map(PeerId).collect();
        for id in ids {
            self.drop_old_sessions(now, id);
            if let Some(link) = self.peers.get_mut(id.0).and_then(|peer| peer.move_if_due(now)) {
                self.events.push_back(Event::Moved { peer: id, link });
            }
            let Some(peer) = self.peers.get(id.0) else { continue };
            match &peer.side {
                HandshakeRole::Initiator { next_try, .. } => {
                    if now.steady >= *next_try && self.needs_handshake(now, peer) {
                        self.initiate(now, id);
                    }
                }
                HandshakeRole::Responder { shown } => {
                    let expired = shown.as_ref().is_some_and(|shown| now.steady >= shown.ends);
                    if expired || peer.sessions().next().is_none() {
                        self.forget(id);
                    }
                }
            }
        }
    }

    fn drop_old_sessions(&mut self, now: Now, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        for held in [&mut peer.sending, &mut peer.previous, &mut peer.coming] {
            let Some(session) = *held else { continue };
            let born = self.sessions.get(session).map(|session| session.born);
            if born.is_none_or(|born| now.steady.since(born) >= REJECT_TIME) {
                self.sessions.remove(session);
                *held = None;
            }
        }
    }

    /// Returns the next datagram to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.transmits.pop_front()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the preferred identity of this side.
    #[must_use]
    pub fn public(&self) -> PublicIdentity {
        self.own[0].public
    }

    /// Returns the datagrams dropped for each reason, in the order of [`DropReason::ALL`].
    #[must_use]
    pub fn drops(&self) -> [u64; DropReason::ALL.len()] {
        self.drops
    }

    /// Returns how many neighbours are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.peers.len()
    }

    /// Returns whether no neighbour is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether payloads for this neighbour can be sealed.
    #[must_use]
    pub fn is_open(&self, peer: PeerId) -> bool {
        self.peers.get(peer.0).is_some_and(|peer| peer.sending.is_some())
    }

    /// Returns the neighbour's identity.
    #[must_use]
    pub fn identity_of(&self, peer: PeerId) -> Option<PublicIdentity> {
        self.peers.get(peer.0).map(|peer| peer.identity)
    }

    /// Returns the grant that the neighbour showed.
    #[must_use]
    pub fn grant_of(&self, peer: PeerId) -> Option<&Grant> {
        match &self.peers.get(peer.0)?.side {
            HandshakeRole::Responder { shown } => {
                shown.as_ref().map(|shown| &*shown.verified.grant)
            }
            HandshakeRole::Initiator { .. } => None,
        }
    }

    /// Returns the id of the grant that the neighbour showed.
    #[must_use]
    pub fn grant_id_of(&self, peer: PeerId) -> Option<GrantId> {
        match &self.peers.get(peer.0)?.side {
            HandshakeRole::Responder { shown } => shown.as_ref().map(|shown| shown.verified.id),
            HandshakeRole::Initiator { .. } => None,
        }
    }

    /// Returns the link to the neighbour.
    #[must_use]
    pub fn link_of(&self, peer: PeerId) -> Option<Link> {
        self.peers.get(peer.0).map(|peer| peer.link)
    }

    /// Returns when a datagram of the neighbour was opened last, on the monotonic clock.
    #[must_use]
    pub fn last_received(&self, peer: PeerId) -> Option<Timestamp> {
        self.peers.get(peer.0).map(|peer| peer.last_received)
    }

    /// Ends the session with a neighbour, and sends it a close message.
    pub fn close(&mut self, peer: PeerId) {
        if let Some(link) = self.link_of(peer) {
            self.send_control(peer, link, Control::Close, 0);
        }
        self.forget(peer);
    }

    fn salt(&mut self) -> u16 {
        self.randomness.draw_u64() as u16
    }
}

/// The grant that [`Sessions::connect`] shows.
pub(super) type Shown = Option<SignedGrant>;
