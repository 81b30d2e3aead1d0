//! The relay's side of the hop header: opening received headers and forwarding them.
//!
//! Checks are ordered from cheap to expensive, each on what the former have proved: format; the
//! grant's signature (verified once, then remembered by hash); that this relay is the hop that the
//! header has reached; the gateway's tag; the neighbour's tag. From here the neighbour is proven,
//! and a refusal is answered with an authenticated reply; before, with silence. Then: the grant's
//! time, relays and destinations; the header's time; that it was not seen before. A Diffie-Hellman
//! step is made only for identities that an operator signed or a proven gateway named.

use std::collections::BTreeMap;
use std::sync::Arc;

use tradewind_units::{FlowId, Timestamp};

use crate::header::{Hop, ReceivedHeader, Route, replace_tail};
use crate::pair::{PAIR_LIMIT, PairKeys, tags_match};
use crate::replay::REPLAY_LIMIT;
use crate::terms::Terms;
use crate::warm::{self, Hello};
use crate::{
    Destination, Grant, GrantError, GrantId, IdentityKey, KeyId, Nonce, OperatorPublicKey,
    PublicIdentity, ReplayTable, ReplyKey, SealedHeader, Trust, VerifiedGrant,
};

/// Verified grants that a relay remembers before it drops the least recently used. Chosen: at most
/// a kilobyte each.
pub const GRANT_CACHE_LIMIT: usize = 1024;

/// A header that passed all checks.
#[derive(Debug, Clone)]
pub struct OpenHeader {
    /// The flow that the session belongs to.
    pub flow: FlowId,
    /// The destination; of a probe, the last relay itself.
    pub destination: Destination,
    /// True for a probe: the last relay answers it, and no destination is dialled.
    pub is_probe: bool,
    /// The whole route.
    pub route: Route,
    /// This relay's place on the route, from 0.
    pub hop: usize,
    /// The neighbour's terms for the leg, and the gateway's for later ones.
    pub terms: Terms,
    /// Its nonce.
    pub nonce: Nonce,
    /// The gateway's grant.
    pub grant: Arc<Grant>,
    /// The grant's id, e.g. to count its sessions.
    pub grant_id: GrantId,
    /// The operator key that signed it.
    pub operator: KeyId,
    /// The key that seals the reply to the neighbour that dialled.
    pub upstream: ReplyKey,
    bytes: Vec<u8>,
    transcript: [u8; 32],
    tags: std::ops::Range<usize>,
}

impl OpenHeader {
    /// Returns the next relay; `None` when this is the last, which dials the destination.
    #[must_use]
    pub fn next_hop(&self) -> Option<&Hop> {
        self.route.hops().get(self.hop + 1)
    }

    /// Returns the grant with its id and its operator's.
    #[must_use]
    pub fn verified_grant(&self) -> VerifiedGrant {
        let (id, operator) = (self.grant_id, self.operator);
        VerifiedGrant { id, operator, grant: Arc::clone(&self.grant) }
    }

    /// Returns the identity of this relay that the header names.
    #[must_use]
    pub fn own(&self) -> PublicIdentity {
        self.route.hops()[self.hop].identity
    }

    /// Returns the neighbour that dialled: the gateway, or the previous relay.
    #[must_use]
    pub fn neighbour(&self) -> PublicIdentity {
        neighbour(&self.route, self.hop, &self.grant)
    }
}

fn neighbour(route: &Route, hop: usize, grant: &Grant) -> PublicIdentity {
    match hop.checked_sub(1) {
        None => grant.gateway,
        Some(before) => route.hops()[before].identity,
    }
}

/// The refusal of a header, with the means to answer the neighbour if it is proven.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{cause}")]
pub struct Refusal {
    /// The reason.
    #[source]
    pub cause: GrantError,
    /// The key that seals the reply; `None` when no neighbour is proven, and no reply is sent.
    pub upstream: Option<ReplyKey>,
    /// This relay's place on the route, when the neighbour is proven.
    pub hop: Option<usize>,
}

impl From<GrantError> for Box<Refusal> {
    /// Creates a refusal before the neighbour is proven.
    fn from(cause: GrantError) -> Self {
        Self::new(Refusal { cause, upstream: None, hop: None })
    }
}

/// The traits of a header by which its replays are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// The gateway that sealed it.
    pub gateway: PublicIdentity,
    /// Its time of issue.
    pub issued_at: Timestamp,
    /// Its nonce.
    pub nonce: Nonce,
}

/// A header that passed all checks but the last, and may not be used before that: the process that
/// holds the replay table is to be asked.
#[derive(Debug, Clone)]
pub struct UnjudgedHeader {
    header: OpenHeader,
    /// The question for the process that holds the table.
    pub sighting: Sighting,
}

/// A header from a neighbour, as far as it could be checked here.
#[derive(Debug, Clone)]
pub enum Opening {
    /// It passed all checks.
    Open(Box<OpenHeader>),
    /// The table is held elsewhere: see [`Verifier::finish`].
    Unjudged(Box<UnjudgedHeader>),
}

/// A verifier of headers for one relay.
#[derive(Debug)]
pub struct Verifier {
    /// The shared keys of each of its identities, its main one first.
    keys: Vec<PairKeys>,
    trust: Arc<Trust>,
    young_grants: BTreeMap<GrantId, VerifiedGrant>,
    old_grants: BTreeMap<GrantId, VerifiedGrant>,
    /// `None` after a handover: another process holds the table.
    replays: Option<ReplayTable>,
}

impl Verifier {
    /// Creates a verifier for `identity` that accepts grants of `operators`.
    ///
    /// A restarted relay has lost its replay table: see [`Verifier::refuse_issued_before`].
    #[must_use]
    pub fn new(identity: IdentityKey, operators: Vec<OperatorPublicKey>) -> Self {
        Self {
            keys: vec![PairKeys::new(identity, PAIR_LIMIT)],
            trust: Arc::new(Trust::from(operators)),
            young_grants: BTreeMap::new(),
            old_grants: BTreeMap::new(),
            replays: Some(ReplayTable::new(REPLAY_LIMIT)),
        }
    }

    /// Returns the trusted operators.
    #[must_use]
    pub const fn trust(&self) -> &Arc<Trust> {
        &self.trust
    }

    /// Replaces the trusted operators, and drops grants of others.
    pub fn set_trust(&mut self, trust: Arc<Trust>) {
        // Revoked grants are retained, so that their holders are notified of the revocation each
        // time.
        let is_trusted =
            |_: &GrantId, known: &mut VerifiedGrant| trust.check_operator(known).is_ok();
        self.young_grants.retain(is_trusted);
        self.old_grants.retain(is_trusted);
        self.trust = trust;
    }

    /// Hands the replay table over, for another process; `None` when that has been done. From now
    /// on headers stay unjudged here ([`Opening::Unjudged`]), so that both processes share one
    /// table.
    pub fn hand_over(&mut self) -> Option<ReplayTable> {
        self.replays.take()
    }

    /// Takes over a replay table from another process, or takes the own one back.
    pub fn take_over(&mut self, replays: ReplayTable) {
        self.replays = Some(replays);
    }

    /// Checks a header for the process that handed its table over; `None` when this one has done
    /// so, too.
    pub fn judge(&mut self, now: Timestamp, sighting: &Sighting) -> Option<Result<(), GrantError>> {
        let Sighting { gateway, issued_at, nonce } = sighting;
        self.replays.as_mut().map(|replays| replays.admit(now, gateway, *issued_at, nonce))
    }

    /// Refuses headers issued before `begin`, the relay's start: another process may have seen
    /// them. A header of a gateway whose clock is ahead may still be replayed, for as long as it is
    /// ahead.
    pub fn refuse_issued_before(&mut self, begin: Timestamp) {
        self.replays.iter_mut().for_each(|replays| replays.refuse_issued_before(begin));
    }

    /// Sets the relay's identities, the main one first: during a rotation there are two. The shared
    /// keys of identities that stay are retained.
    ///
    /// # Panics
    /// Without an identity.
    pub fn set_identities(&mut self, identities: &[IdentityKey]) {
        assert!(!identities.is_empty(), "a relay has an identity");
        let keys_of = |identity: &IdentityKey| {
            let public = identity.public();
            let at = self.keys.iter().position(|keys| keys.public() == public);
            at.map_or_else(
                || PairKeys::new(identity.clone(), PAIR_LIMIT),
                |at| self.keys.swap_remove(at),
            )
        };
        self.keys = identities.iter().map(keys_of).collect();
    }

    /// Returns this relay's main identity.
    #[must_use]
    pub fn public(&self) -> PublicIdentity {
        self.keys[0].public()
    }

    /// Returns the shared keys of one of this relay's identities.
    fn keys_of(&mut self, own: &PublicIdentity) -> Option<&mut PairKeys> {
        self.keys.iter_mut().find(|keys| keys.public() == *own)
    }

    /// Returns whether the grant that `header` carries is known. If not, callers that share a
    /// verifier verify the grant's signature outside it and then add the grant, so that signatures
    /// of unauthenticated peers block nobody:
    ///
    /// ```text
    /// if !verifier.knows_grant_of(&header) { verifier.learn(header.verify_grant(&operators)?); }
    /// verifier.open_received(now, header)
    /// ```
    pub fn knows_grant_of(&mut self, header: &ReceivedHeader<'_>) -> bool {
        self.known_grant(header.grant_id).is_some()
    }

    /// Remembers a grant, unless its operator is no longer trusted.
    pub fn learn(&mut self, verified: VerifiedGrant) {
        if self.trust.check_operator(&verified).is_ok() {
            self.remember(verified);
        }
    }

    /// Opens a header from a neighbour. `bytes` is the header alone, of the length that
    /// [`header_length`](crate::header::header_length) returns.
    ///
    /// # Errors
    /// A [`Refusal`] with the first check that failed.
    pub fn open(&mut self, now: Timestamp, bytes: &[u8]) -> Result<OpenHeader, Box<Refusal>> {
        self.open_received(now, ReceivedHeader::parse(bytes)?)
    }

    /// Opens a header that was parsed before; its grant's signature is verified here unless it is
    /// known.
    ///
    /// # Errors
    /// As [`Verifier::open`]; also when the replay table is held elsewhere.
    pub fn open_received(
        &mut self,
        now: Timestamp,
        parts: ReceivedHeader<'_>,
    ) -> Result<OpenHeader, Box<Refusal>> {
        match self.begin_open(now, parts)? {
            Opening::Open(header) => Ok(*header),
            Opening::Unjudged(unjudged) => {
                self.finish(*unjudged, Err(GrantError::ReplayTableFull(0)))
            }
        }
    }

    /// Opens a header like [`Verifier::open_received`], as far as that can be done here.
    ///
    /// # Errors
    /// As [`Verifier::open`].
    pub fn begin_open(
        &mut self,
        now: Timestamp,
        parts: ReceivedHeader<'_>,
    ) -> Result<Opening, Box<Refusal>> {
        let verified = match self.known_grant(parts.grant_id) {
            Some(known) => known,
            None => {
                let verified = parts.verify_grant(self.trust.operators())?;
                self.remember(verified.clone());
                verified
            }
        };
        let grant = Arc::clone(&verified.grant);
        let upstream = self.prove(&parts, &grant)?;
        let hop = usize::from(parts.hop);
        let (gateway, issued_at) = (grant.gateway, parts.fixed.issued_at);
        let sighting = Sighting { gateway, issued_at, nonce: parts.fixed.nonce };
        let checked = self.check(now, &parts, &verified);
        let judged = checked.and_then(|()| self.judge(now, &sighting).transpose());
        let is_judged = match judged {
            Ok(judged) => judged.is_some(),
            Err(cause) => {
                let refusal = Refusal { cause, upstream: Some(upstream), hop: Some(hop) };
                return Err(Box::new(refusal));
            }
        };
        let last = parts.fixed.route.hops().last().expect("a route has a hop").address;
        let tags_at = parts.bytes.len() - crate::header::TAIL_BYTES - parts.tags.len();
        let header = OpenHeader {
            hop,
            terms: parts.terms,
            nonce: parts.fixed.nonce,
            grant,
            grant_id: parts.grant_id,
            operator: verified.operator,
            upstream,
            bytes: parts.bytes.to_vec(),
            transcript: parts.transcript,
            tags: tags_at..tags_at + parts.tags.len(),
            flow: parts.fixed.flow,
            is_probe: parts.fixed.destination.is_none(),
            destination: parts.fixed.destination.unwrap_or(Destination::Address(last)),
            route: parts.fixed.route,
        };
        if !is_judged {
            return Ok(Opening::Unjudged(Box::new(UnjudgedHeader { header, sighting })));
        }
        self.note_proven(&header);
        Ok(Opening::Open(Box::new(header)))
    }

    /// Opens a header of which the process that holds the replay table has reported whether it was
    /// seen before.
    ///
    /// # Errors
    /// The refusal of that process.
    pub fn finish(
        &mut self,
        unjudged: UnjudgedHeader,
        verdict: Result<(), GrantError>,
    ) -> Result<OpenHeader, Box<Refusal>> {
        let header = unjudged.header;
        match verdict {
            Ok(()) => {
                self.note_proven(&header);
                Ok(header)
            }
            Err(cause) => {
                let (upstream, hop) = (Some(header.upstream), Some(header.hop));
                Err(Box::new(Refusal { cause, upstream, hop }))
            }
        }
    }

    /// Notes that the neighbour of a header is known from now on.
    fn note_proven(&mut self, header: &OpenHeader) {
        if let Some(keys) = self.keys_of(&header.own()) {
            keys.prove(&header.neighbour());
        }
    }

    /// Returns the header for the next hop, with the key that opens its reply; `None` at the last
    /// hop.
    ///
    /// # Errors
    /// When the next relay's identity is weak.
    pub fn forward(&mut self, header: &OpenHeader) -> Result<Option<SealedHeader>, GrantError> {
        self.forward_striped(header, false)
    }

    /// Forwards like [`Verifier::forward`], and tells the next relay whether its leg may be
    /// striped; the gateway's terms for dials stay.
    ///
    /// # Errors
    /// As [`Verifier::forward`].
    pub fn forward_striped(
        &mut self,
        header: &OpenHeader,
        may_stripe: bool,
    ) -> Result<Option<SealedHeader>, GrantError> {
        let Some(next) = header.next_hop() else { return Ok(None) };
        let (from, hop) = (header.own(), header.hop as u8 + 1);
        let gone = GrantError::NotOnRoute { hop: header.hop, expected: from };
        let key = self.keys_of(&from).ok_or(gone)?.get(&next.identity)?;
        let mut bytes = header.bytes.clone();
        let byte = Terms { may_stripe, ..header.terms }.byte(hop);
        let tag = key.neighbour_tag(&header.transcript, &bytes[header.tags.clone()], byte);
        replace_tail(&mut bytes, byte, &tag);
        let downstream = ReplyKey::new(key, header.transcript, hop);
        Ok(Some(SealedHeader { from, bytes, downstream }))
    }

    /// Creates a hello for a warm connection to the relay `to`, with the key that opens its reply,
    /// in the name of this relay's identity `from`.
    ///
    /// # Errors
    /// When `to` is weak, or `from` is no longer this relay's.
    pub fn hello(
        &mut self,
        now: Timestamp,
        nonce: Nonce,
        from: &PublicIdentity,
        to: &PublicIdentity,
    ) -> Result<(Vec<u8>, ReplyKey), GrantError> {
        let keys = self.keys_of(from).ok_or(GrantError::NotOwnIdentity(*from))?;
        warm::hello(keys, now, &nonce, to)
    }

    /// Opens a hello and returns the key that seals its reply. It is accepted only from neighbours
    /// whose headers were admitted here recently, as anybody can make an identity.
    ///
    /// # Errors
    /// [`GrantError::Malformed`], [`GrantError::UnknownNeighbour`], [`GrantError::HelloTag`], or as
    /// [`ReplayTable::admit`].
    pub fn open_hello(&mut self, now: Timestamp, bytes: &[u8]) -> Result<ReplyKey, GrantError> {
        let hello = Hello::parse(bytes)?;
        let mut refusal = GrantError::UnknownNeighbour(hello.from);
        let mut opened = None;
        // A hello does not name its recipient: its tag is valid for one of this relay's identities.
        for keys in self.keys.iter_mut().filter(|keys| keys.is_proven(&hello.from)) {
            let key = keys.get(&hello.from)?;
            if hello.is_proven_by(key) {
                opened = Some(ReplyKey::new(key, hello.transcript, 0));
                break;
            }
            refusal = GrantError::HelloTag(hello.from);
        }
        let reply = opened.ok_or(refusal)?;
        let sighting =
            Sighting { gateway: hello.from, issued_at: hello.issued_at, nonce: hello.nonce };
        self.judge(now, &sighting).unwrap_or(Err(GrantError::ReplayTableFull(0)))?;
        Ok(reply)
    }

    /// Proves the gateway that sealed the header and the neighbour that sent it; returns the key of
    /// replies.
    fn prove(&mut self, parts: &ReceivedHeader<'_>, grant: &Grant) -> Result<ReplyKey, GrantError> {
        let (hop, gateway) = (usize::from(parts.hop), grant.gateway);
        let expected = parts.fixed.route.hops()[hop].identity;
        let Some(keys) = self.keys_of(&expected) else {
            return Err(GrantError::NotOnRoute { hop, expected });
        };
        let ours = keys.get(&gateway)?.gateway_tag(&parts.transcript);
        if !tags_match(&ours, &parts.gateway_tag()) {
            return Err(GrantError::GatewayTag { gateway, hop });
        }
        let neighbour = neighbour(&parts.fixed.route, hop, grant);
        let key = keys.get(&neighbour)?;
        let byte = parts.terms.byte(parts.hop);
        let ours = key.neighbour_tag(&parts.transcript, parts.tags, byte);
        if !tags_match(&ours, &parts.neighbour_tag) {
            return Err(GrantError::WrongNeighbour { hop, neighbour });
        }
        Ok(ReplyKey::new(key, parts.transcript, parts.hop))
    }

    /// Checks that a proven header may be used here and now; that it was not used before is another
    /// matter.
    fn check(
        &self,
        now: Timestamp,
        parts: &ReceivedHeader<'_>,
        verified: &VerifiedGrant,
    ) -> Result<(), GrantError> {
        let grant = &verified.grant;
        self.trust.check(verified)?;
        grant.check_expiry(now)?;
        match &parts.fixed.destination {
            Some(destination) => grant.check_use(destination, &parts.fixed.route)?,
            None => grant.check_relays(&parts.fixed.route)?,
        }
        Ok(())
    }

    /// Returns the grant with this id, if its signature was verified before.
    fn known_grant(&mut self, id: GrantId) -> Option<VerifiedGrant> {
        if let Some(known) = self.young_grants.get(&id) {
            return Some(known.clone());
        }
        let known = self.old_grants.remove(&id)?;
        self.remember(known.clone());
        Some(known)
    }

    fn remember(&mut self, verified: VerifiedGrant) {
        if self.young_grants.len() >= GRANT_CACHE_LIMIT / 2 {
            self.old_grants = std::mem::take(&mut self.young_grants);
        }
        self.young_grants.insert(verified.id, verified);
    }
}
