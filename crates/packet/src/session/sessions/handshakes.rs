//! Handshakes in both roles. The initiator sends initiations until one is answered, and again when
//! keys or pings expire. The responder opens a session for each one that is admitted.

use tradewind_grant::{PublicIdentity, SignedGrant, VerifiedGrant};
use tradewind_units::Duration;

use super::super::cookie::{COOKIE_TIME, FirstMacKeys, second_tag, tags_match};
use super::super::handshake::{Initiator, Responder};
use super::super::peer::{self, Awaited, HandshakeRole, Peer, PeerId, Phase, Session};
use super::super::wire::{self, Control, Initiation, TAG_BYTES};
use super::admission::Admitted;
use super::{
    DropReason, Event, Link, MAKES_ROOM_AFTER, Now, Own, REKEY_COUNT, REKEY_TIME, Sessions, Shown,
    Transmit,
};

/// The time between two initiations to a neighbour whose round trip is not known, and the time
/// after which an unanswered ping means that the neighbour has forgotten its session. Chosen: no
/// path is longer.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(1);
/// The least time between two initiations to a neighbour whose round trip is known, otherwise three
/// round trips: a neighbour that is back is found soon. Chosen: as often as neighbours are pinged.
const MIN_HANDSHAKE_TIMEOUT: Duration = Duration::from_millis(200);

impl Sessions {
    /// Keeps a session with `identity` at `link` from now on, showing `grant` where one is needed.
    /// Returns `None` at the limit of neighbours.
    pub fn connect(
        &mut self,
        now: Now,
        identity: PublicIdentity,
        link: Link,
        grant: Shown,
    ) -> Option<PeerId> {
        self.connect_as(now, self.public(), identity, link, grant)
    }

    /// Does the same in the name of `own`, which is one of this side's identities.
    pub fn connect_as(
        &mut self,
        now: Now,
        own: PublicIdentity,
        identity: PublicIdentity,
        link: Link,
        grant: Shown,
    ) -> Option<PeerId> {
        let side = HandshakeRole::Initiator { shown: grant, next_try: now.steady, cookie: None };
        let (instance, salt) = (self.randomness.draw_u64(), self.salt());
        let id =
            PeerId(self.peers.insert(salt, Peer::new(own, identity, instance, side, link, now))?);
        self.initiate(now, id);
        Some(id)
    }

    pub(super) fn needs_handshake(&self, now: Now, peer: &Peer) -> bool {
        let session = peer.sending.and_then(|id| self.sessions.get(id));
        let Some(session) = session else { return true };
        let is_worn = now.steady.since(session.born) >= REKEY_TIME
            || session.sealed >= REKEY_COUNT
            || session.window.next() >= REKEY_COUNT;
        let is_deaf = peer.pings.iter().any(|ping| {
            ping.link == peer.link
                && ping.asked >= peer.last_received
                && now.steady.since(ping.asked) >= HANDSHAKE_TIMEOUT
        });
        is_worn || is_deaf || peer.is_led
    }

    /// Moves a neighbour that this side connects to to another of its addresses, and begins a
    /// handshake there, from which it learns where to answer. The keys stay valid.
    pub fn lead_to(&mut self, now: Now, peer: PeerId, link: Link) {
        let Some(known) = self.peers.get_mut(peer.0).filter(|known| known.home.is_some()) else {
            return;
        };
        (known.home, known.link, known.link_last_received) = (Some(link), link, now.steady);
        (known.candidate, known.is_led) = (None, true);
        self.initiate(now, peer);
    }

    /// Sends an initiation; an unanswered one is given up.
    pub(super) fn initiate(&mut self, now: Now, peer_id: PeerId) {
        let (ephemeral, salt) = (self.randomness.draw(), self.salt());
        let Some(peer) = self.peers.get_mut(peer_id.0) else { return };
        if let Some(unanswered) = peer.coming.take() {
            self.sessions.remove(unanswered);
        }
        let HandshakeRole::Initiator { shown, next_try, cookie } = &mut peer.side else { return };
        let timeout = peer.round_trip.map_or(HANDSHAKE_TIMEOUT, |round_trip| round_trip * 3);
        *next_try = now.steady + timeout.clamp(MIN_HANDSHAKE_TIMEOUT, HANDSHAKE_TIMEOUT);
        cookie.take_if(|(_, since)| now.steady.since(*since) >= COOKIE_TIME);
        let Some(id) = self.sessions.next_id(salt) else { return };
        let payload = payload(now, peer.instance, shown.as_ref());
        let mut message = wire::prefix(wire::INITIATION, id).to_vec();
        // An identity that is gone begins no more handshakes.
        let own = self.own.iter().find(|known| known.public == peer.own);
        let Some(Own { identity, .. }) = own else { return };
        let started = Initiator::start(identity, &peer.identity, ephemeral, &payload, &mut message);
        let Some(handshake) = started else { return };
        let first_tag = FirstMacKeys::of(&peer.identity).first_tag(&message);
        message.extend_from_slice(&first_tag);
        let second = cookie.as_ref().map_or([0; TAG_BYTES], |(c, _)| second_tag(c, &message));
        message.extend_from_slice(&second);
        for link in peer.doors() {
            self.transmits.push_back(Transmit { link, bytes: message.clone(), is_ours: true });
        }
        let phase = Phase::Awaited(Box::new(Awaited { handshake, message }));
        peer.coming = self.sessions.insert(salt, Session::new(peer_id, now.steady, phase));
    }

    /// Handles the response to an initiation.
    pub(super) fn finish(
        &mut self,
        now: Now,
        link: Link,
        id: u32,
        noise: &[u8],
    ) -> Result<(), DropReason> {
        let session = self.sessions.get_mut(id).ok_or(DropReason::Unawaited)?;
        let peer_id = session.peer;
        let Phase::Awaited(awaited) = &mut session.phase else {
            return Err(DropReason::Unawaited);
        };
        let peer = self.peers.get_mut(peer_id.0).ok_or(DropReason::Unawaited)?;
        let door = peer.doors().find(|door| door.covers(link));
        if door.is_none() && link.is_internet() {
            return Err(DropReason::Unawaited);
        }
        let (theirs, keys) = awaited.handshake.finish(noise).ok_or(DropReason::Handshake)?;
        session.phase = Phase::Open { theirs, keys: Box::new(keys) };
        peer.last_received = now.steady;
        if let Some(door) = door {
            (peer.link_last_received, peer.is_led) = (now.steady, false);
            if door != peer.link {
                (peer.link, peer.candidate) = (door, None);
                self.events.push_back(Event::Moved { peer: peer_id, link: door });
            }
        }
        self.promote(peer_id);
        self.send_control(peer_id, link, Control::Confirmation, 0);
        Ok(())
    }

    /// Sends an initiation again with the requested cookie.
    pub(super) fn take_cookie(
        &mut self,
        now: Now,
        link: Link,
        id: u32,
        baked: [u8; 16],
        tag: &[u8; 16],
    ) -> Result<(), DropReason> {
        let session = self.sessions.get_mut(id).ok_or(DropReason::Unawaited)?;
        let Phase::Awaited(awaited) = &mut session.phase else {
            return Err(DropReason::Unawaited);
        };
        let peer = self.peers.get_mut(session.peer.0).ok_or(DropReason::Unawaited)?;
        let second_at = awaited.message.len() - TAG_BYTES;
        let (covered, second) = awaited.message.split_at_mut(second_at);
        let first: [u8; 16] =
            covered[second_at - TAG_BYTES..].try_into().expect("an initiation ends in two tags");
        let expected = FirstMacKeys::of(&peer.identity).answer_tag(&first, &baked);
        let door =
            peer.doors().find(|door| door.covers(link)).ok_or(DropReason::AuthenticationFailed)?;
        if !tags_match(&expected, tag) {
            return Err(DropReason::AuthenticationFailed);
        }
        let HandshakeRole::Initiator { cookie, .. } = &mut peer.side else {
            return Err(DropReason::Unawaited);
        };
        // One more try for each cookie, so that repeated cookies cause no more traffic.
        if cookie.replace((baked, now.steady)).is_some_and(|(known, _)| known == baked) {
            return Err(DropReason::Unawaited);
        }
        second.copy_from_slice(&second_tag(&baked, covered));
        let bytes = awaited.message.clone();
        self.transmits.push_back(Transmit { link: door, bytes, is_ours: true });
        Ok(())
    }

    /// Returns whether this side connects to the neighbour, not the neighbour to this side.
    #[must_use]
    pub fn is_ours(&self, peer: PeerId) -> bool {
        let side = self.peers.get(peer.0).map(|peer| &peer.side);
        matches!(side, Some(HandshakeRole::Initiator { .. }))
    }

    /// Opens a session for an initiation that is admitted.
    pub(super) fn accept(
        &mut self,
        now: Now,
        link: Link,
        initiation: &Initiation<'_>,
    ) -> Result<(), DropReason> {
        let Self { admission, own, randomness, transmits, .. } = self;
        let out = (randomness, transmits);
        let admitted = admission.check(now, link, initiation, own, out)?;
        let Admitted { own, opened, instance, grant } = admitted;
        let ends = (own, opened.initiator);
        let peer = self.peer_of(now, link, ends, instance, grant)?;
        self.respond(now, link, peer, initiation.initiator, opened)
    }

    fn peer_of(
        &mut self,
        now: Now,
        link: Link,
        (own, identity): (PublicIdentity, PublicIdentity),
        instance: u64,
        verified: Option<VerifiedGrant>,
    ) -> Result<PeerId, DropReason> {
        if let Some(known) = self.by_name.get(&(identity, instance)).copied()
            && let Some(peer) = self.peers.get_mut(known.0)
        {
            let shown = verified.map(|verified| peer::Shown::new(now, verified));
            peer.side = HandshakeRole::Responder { shown };
            return Ok(known);
        }
        if let Some(verified) = &verified {
            let most = verified.grant.sessions.map_or(usize::MAX, |most| most.get() as usize);
            self.make_room(now, identity, most.min(self.peers_each))?;
        }
        let shown = verified.map(|verified| peer::Shown::new(now, verified));
        let side = HandshakeRole::Responder { shown };
        let salt = self.salt();
        let peer = Peer::new(own, identity, instance, side, link, now);
        let id = PeerId(self.peers.insert(salt, peer).ok_or(DropReason::Full)?);
        self.by_name.insert((identity, instance), id);
        Ok(id)
    }

    /// Reduces the neighbours of one identity to fewer than `most`: a silent socket is removed,
    /// since its process may be gone.
    fn make_room(
        &mut self,
        now: Now,
        identity: PublicIdentity,
        most: usize,
    ) -> Result<(), DropReason> {
        let theirs = || self.by_name.range((identity, 0)..=(identity, u64::MAX)).map(|(_, id)| *id);
        if theirs().count() < most {
            return Ok(());
        }
        let last_received = |id: &PeerId| self.peers.get(id.0).map(|peer| peer.last_received);
        let silent = theirs().filter(|id| {
            last_received(id).is_some_and(|at| now.steady.since(at) >= MAKES_ROOM_AFTER)
        });
        let silent = silent.min_by_key(last_received).ok_or(DropReason::Full)?;
        self.forget(silent);
        Ok(())
    }

    fn respond(
        &mut self,
        now: Now,
        link: Link,
        peer_id: PeerId,
        theirs: u32,
        opened: Responder,
    ) -> Result<(), DropReason> {
        // The place is reserved first, so that its id can be sent; the keys follow at once.
        let salt = self.salt();
        let peer = self.peers.get_mut(peer_id.0).ok_or(DropReason::Full)?;
        if let Some(unused) = peer.coming.take() {
            self.sessions.remove(unused);
        }
        if peer.sending.is_none() {
            (peer.link, peer.link_last_received) = (link, now.steady);
        }
        let mut bytes = wire::prefix(wire::RESPONSE, theirs).to_vec();
        let id = self.sessions.next_id(salt).ok_or(DropReason::Full)?;
        let keys = opened.respond(id, &mut bytes).ok_or(DropReason::Handshake)?;
        let phase = Phase::Open { theirs, keys: Box::new(keys) };
        let inserted = self.sessions.insert(salt, Session::new(peer_id, now.steady, phase));
        debug_assert_eq!(inserted, Some(id), "the next id is the one that is given");
        if let Some(peer) = self.peers.get_mut(peer_id.0) {
            (peer.coming, peer.responded) = (inserted, Some(link));
        }
        self.transmits.push_back(Transmit { link, bytes, is_ours: false });
        Ok(())
    }
}

fn payload(now: Now, instance: u64, shown: Option<&SignedGrant>) -> Vec<u8> {
    let grant = shown.map_or(&[][..], SignedGrant::as_bytes);
    let ms = now.unix.as_nanos() / 1_000_000;
    let length = grant.len() as u16;
    [&ms.to_be_bytes()[..], &instance.to_be_bytes(), &length.to_be_bytes(), grant].concat()
}
