//! The admission of initiations: checks them in the order of cost.
//!
//! The checks are: the first tag; a cookie when many come; Noise's message (two Diffie-Hellman
//! steps), which proves the initiator; the grant's signature, gateway, relays and time; the time of
//! issue and replay. No state is kept before the last of them, and a failure is not answered.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use tradewind_grant::{Nonce, PublicIdentity, ReplayTable, SignedGrant, Trust, VerifiedGrant};
use tradewind_units::Timestamp;

use super::super::cookie::{CookieJar, tags_match};
use super::super::handshake::Responder;
use super::super::random::Randomness;
use super::super::wire::{self, FIXED_PAYLOAD_BYTES, Initiation};
use super::gate::Gate;
use super::{DropReason, Link, Now, Own, SessionsConfig, Transmit};

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

/// An initiation that may open a session.
pub(super) struct Admitted {
    /// The identity of this side that it is for.
    pub(super) own: PublicIdentity,
    pub(super) opened: Responder,
    /// The instance of the initiator.
    pub(super) instance: u64,
    /// The grant that it shows; absent for known relays.
    pub(super) grant: Option<VerifiedGrant>,
}

/// The initiators that are accepted, and the defence against too many initiations.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) trust: Arc<Trust>,
    /// The relays that need no grant.
    pub(super) neighbours: BTreeSet<PublicIdentity>,
    pub(super) cookies: CookieJar,
    gate: Gate,
    pub(super) replays: ReplayTable,
}

impl Admission {
    pub(super) fn new(config: &SessionsConfig, now: Now, randomness: &mut Randomness) -> Self {
        let mut replays = ReplayTable::new(config.limits.replays);
        // Another process may have seen older initiations.
        replays.refuse_issued_before(now.unix);
        Self {
            trust: Arc::new(Trust::from(config.operators.clone())),
            neighbours: config.neighbours.clone(),
            cookies: CookieJar::new(now.steady, randomness),
            gate: Gate::new(now.steady, &config.limits),
            replays,
        }
    }

    /// Checks an initiation to one of the identities `own`; a cookie for it goes to `answers`.
    pub(super) fn check(
        &mut self,
        now: Now,
        link: Link,
        initiation: &Initiation<'_>,
        own: &[Own],
        (randomness, answers): (&mut Randomness, &mut VecDeque<Transmit>),
    ) -> Result<Admitted, DropReason> {
        let is_meant = |own: &&Own| {
            let first_tag = own.first_mac_keys.first_tag(initiation.first_covers);
            tags_match(&first_tag, &initiation.first_tag)
        };
        let own = own.iter().find(is_meant).ok_or(DropReason::FirstTag)?;
        self.pass_gate(now, link, (own, initiation), (randomness, answers))?;
        let ephemeral = randomness.draw();
        let Own { identity, public, .. } = own;
        let opened = Responder::open(identity, ephemeral, initiation.prefix, initiation.noise)
            .ok_or(DropReason::Handshake)?;
        let payload = Payload::cut(&opened.payload).ok_or(DropReason::Malformed)?;
        let grant = self.judge(now, public, &opened.initiator, payload.grant)?;
        let nonce = initiation.noise[..16].try_into().expect("an ephemeral key is longer");
        self.replays
            .admit(now.unix, &opened.initiator, payload.issued_at, &Nonce::from_entropy(nonce))
            .map_err(|_| DropReason::Stale)?;
        Ok(Admitted { own: *public, instance: payload.instance, grant, opened })
    }

    fn pass_gate(
        &mut self,
        now: Now,
        link: Link,
        (own, initiation): (&Own, &Initiation<'_>),
        (randomness, answers): (&mut Randomness, &mut VecDeque<Transmit>),
    ) -> Result<(), DropReason> {
        self.cookies.turn(now.steady, randomness);
        let address = link.proven_bytes();
        if self.cookies.knows(&address, initiation.second_covers, &initiation.second_tag) {
            let is_in = self.gate.admits_proven(now.steady, link);
            return if is_in { Ok(()) } else { Err(DropReason::Busy) };
        }
        if self.gate.admits_unauthenticated(now.steady) {
            return Ok(());
        }
        let cookie = self.cookies.bake(&address);
        let tag = own.first_mac_keys.answer_tag(&initiation.first_tag, &cookie);
        let prefix = wire::prefix(wire::COOKIE, initiation.initiator);
        let bytes = [&prefix[..], &cookie, &tag].concat();
        answers.push_back(Transmit { link, bytes, is_ours: false });
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
            let is_known = self.neighbours.contains(initiator);
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
        if grant.check_expiry(now.unix).is_err() || !grant.relays.contain(own) {
            return Err(DropReason::NotGranted);
        }
        self.trust.check(&verified).map_err(|_| DropReason::NotGranted)?;
        Ok(Some(verified))
    }
}
