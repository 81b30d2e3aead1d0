//! The responder: checks an initiation in the order of cost, and opens a session.
//!
//! The checks are: the first tag; a cookie when many come; Noise's message (two Diffie-Hellman
//! steps), which proves the initiator; the grant's signature, gateway, relays and time; the time of
//! issue and replay. No state is kept before the last of them, and a failure is not answered.

use tradewind_grant::{Nonce, PublicIdentity, SignedGrant, VerifiedGrant};
use tradewind_units::Timestamp;

use super::super::cookie::tags_match;
use super::super::handshake::Responder;
use super::super::peer::{HandshakeRole, Peer, PeerId, Phase, Session, Shown};
use super::super::wire::{self, FIXED_PAYLOAD_BYTES, Initiation};
use super::{DropReason, Link, MAKES_ROOM_AFTER, Now, Own, Sessions, Transmit};

/// The payload of an initiation.
struct Payload<'a> {
    issued_at: Timestamp,
    instance: u64,
    grant: &'a [u8],
}

impl<'a> Payload<'a> {
    fn cut(bytes: &'a [u8]) -> Option<Self> {
        let (fixed, grant) = bytes.split_at_checked(FIXED_PAYLOAD_BYTES)?;
        let ms = u64::from_be_bytes(fixed[..8].try_into().ok()?);
        let instance = u64::from_be_bytes(fixed[8..16].try_into().ok()?);
        let length = u16::from_be_bytes(fixed[16..].try_into().ok()?);
        let issued_at = Timestamp::from_nanos(ms.checked_mul(1_000_000)?);
        (usize::from(length) == grant.len()).then_some(Self { issued_at, instance, grant })
    }
}

impl Sessions {
    pub(super) fn accept(
        &mut self,
        now: Now,
        link: Link,
        initiation: &Initiation<'_>,
    ) -> Result<(), DropReason> {
        let is_meant = |own: &Own| {
            let first_tag = own.first_mac_keys.first_tag(initiation.first_covers);
            tags_match(&first_tag, &initiation.first_tag)
        };
        let at = self.own.iter().position(is_meant).ok_or(DropReason::FirstTag)?;
        self.pass_gate(now, link, at, initiation)?;
        let ephemeral = self.randomness.draw();
        let Own { identity, public, .. } = &self.own[at];
        let public = *public;
        let opened = Responder::open(identity, ephemeral, initiation.prefix, initiation.noise)
            .ok_or(DropReason::Handshake)?;
        let payload = Payload::cut(&opened.payload).ok_or(DropReason::Malformed)?;
        let grant = self.judge(now, &public, &opened.initiator, payload.grant)?;
        let nonce = initiation.noise[..16].try_into().expect("an ephemeral key is longer");
        self.replays
            .admit(now.unix, &opened.initiator, payload.issued_at, &Nonce::from_entropy(nonce))
            .map_err(|_| DropReason::Stale)?;
        let ends = (public, opened.initiator);
        let peer = self.peer_of(now, link, ends, payload.instance, grant)?;
        self.respond(now, link, peer, initiation.initiator, opened)
    }

    fn pass_gate(
        &mut self,
        now: Now,
        link: Link,
        at: usize,
        initiation: &Initiation<'_>,
    ) -> Result<(), DropReason> {
        self.cookies.turn(now.steady, &mut self.randomness);
        let address = link.proven_bytes();
        if self.cookies.knows(&address, initiation.second_covers, &initiation.second_tag) {
            let is_in = self.gate.admits_proven(now.steady, link);
            return if is_in { Ok(()) } else { Err(DropReason::Busy) };
        }
        if self.gate.admits_unauthenticated(now.steady) {
            return Ok(());
        }
        let cookie = self.cookies.bake(&address);
        let tag = self.own[at].first_mac_keys.answer_tag(&initiation.first_tag, &cookie);
        let prefix = wire::prefix(wire::COOKIE, initiation.initiator);
        let bytes = [&prefix[..], &cookie, &tag].concat();
        self.transmits.push_back(Transmit { link, bytes, is_ours: false });
        Err(DropReason::CookieNeeded)
    }

    /// Returns the grant under which this identity may open a session; `None` for known relays.
    fn judge(
        &self,
        now: Now,
        own: &PublicIdentity,
        initiator: &PublicIdentity,
        grant: &[u8],
    ) -> Result<Option<VerifiedGrant>, DropReason> {
        if grant.is_empty() {
            let is_known = self.config.neighbours.contains(initiator);
            return if is_known { Ok(None) } else { Err(DropReason::NotGranted) };
        }
        let signed = SignedGrant::from_bytes(grant).map_err(|_| DropReason::NotGranted)?;
        // The claimed identity is cheap to compare; the signature is expensive.
        if signed.unverified().gateway != *initiator {
            return Err(DropReason::NotGranted);
        }
        let operators = self.trust.operators();
        let verified = signed.into_verified(operators).map_err(|_| DropReason::NotGranted)?;
        let grant = &verified.grant;
        if grant.check_time(now.unix).is_err() || !grant.relays.contain(own) {
            return Err(DropReason::NotGranted);
        }
        self.trust.check(&verified).map_err(|_| DropReason::NotGranted)?;
        Ok(Some(verified))
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
            let shown = verified.map(|verified| Shown::new(now, verified));
            peer.side = HandshakeRole::Responder { shown };
            return Ok(known);
        }
        if let Some(verified) = &verified {
            let most = verified.grant.sessions.map_or(usize::MAX, |most| most.get() as usize);
            self.make_room(now, identity, most.min(self.config.limits.peers_each))?;
        }
        let shown = verified.map(|verified| Shown::new(now, verified));
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
