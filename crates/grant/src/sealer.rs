//! The gateway's side of the hop header: sealing one for every session.

use tradewind_units::{FlowId, Timestamp};

use crate::header::{Fixed, Nonce, Route, put_tail};
use crate::pair::{PAIR_LIMIT, PairKeys};
use crate::terms::Terms;
use crate::{Destination, GrantError, IdentityKey, PublicIdentity, ReplyKey, SignedGrant, warm};

/// The contents of a header that a gateway requests.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// The flow that the session belongs to.
    pub flow: &'a FlowId,
    /// The destination.
    pub destination: &'a Destination,
    /// The relays on its route.
    pub route: &'a Route,
}

/// A header ready to be sent, with the key that opens its reply.
#[derive(Debug, Clone)]
pub struct SealedHeader {
    /// The sender: the identity that the connection must be opened under.
    pub from: PublicIdentity,
    /// The bytes to send first on the connection.
    pub bytes: Vec<u8>,
    /// The key that opens the reply.
    pub downstream: ReplyKey,
}

/// A sealer of headers for one gateway under one grant.
#[derive(Debug)]
pub struct Sealer {
    keys: PairKeys,
    grant: SignedGrant,
}

impl Sealer {
    /// Creates a sealer for `identity`, whose grant is `grant`.
    ///
    /// # Errors
    /// When the grant was issued to another gateway.
    pub fn new(identity: IdentityKey, grant: SignedGrant) -> Result<Self, GrantError> {
        check_issued_to(&grant, identity.public())?;
        Ok(Self { keys: PairKeys::new(identity, PAIR_LIMIT), grant })
    }

    /// Returns the grant that headers carry.
    #[must_use]
    pub fn grant(&self) -> &SignedGrant {
        &self.grant
    }

    /// Takes over the identity and grant of `new`. The shared keys are retained if the identity
    /// stays.
    pub fn replace(&mut self, new: Self) {
        if new.keys.public() == self.keys.public() {
            self.grant = new.grant;
        } else {
            *self = new;
        }
    }

    /// Replaces the grant, e.g. before the first expires.
    ///
    /// # Errors
    /// When the grant was issued to another gateway.
    pub fn set_grant(&mut self, grant: SignedGrant) -> Result<(), GrantError> {
        self.check_grant(&grant)?;
        self.grant = grant;
        Ok(())
    }

    /// Checks that [`Sealer::set_grant`] would accept a grant.
    ///
    /// # Errors
    /// As [`Sealer::set_grant`].
    pub fn check_grant(&self, grant: &SignedGrant) -> Result<(), GrantError> {
        check_issued_to(grant, self.keys.public())
    }

    /// Seals a header for the first relay of the route. Relays refuse a nonce that is used twice.
    ///
    /// # Errors
    /// When the grant is not in force, cannot cover the destination or does not allow a relay of
    /// the route (all of which a relay would refuse as well), when a relay's identity is weak, or
    /// when the header would be too long.
    pub fn seal(
        &mut self,
        now: Timestamp,
        nonce: Nonce,
        request: &Request<'_>,
    ) -> Result<SealedHeader, GrantError> {
        self.seal_on_terms(now, nonce, request, Terms::default())
    }

    /// Seals a header like [`Sealer::seal`], with `terms` for the first relay.
    ///
    /// # Errors
    /// As [`Sealer::seal`].
    pub fn seal_on_terms(
        &mut self,
        now: Timestamp,
        nonce: Nonce,
        request: &Request<'_>,
        terms: Terms,
    ) -> Result<SealedHeader, GrantError> {
        let grant = self.grant.unverified();
        grant.check_expiry(now)?;
        grant.check_use(request.destination, request.route)?;
        let destination = Some(request.destination.clone());
        let end = (destination, terms);
        self.seal_fixed(now, nonce, request.flow, end, request.route)
    }

    /// Seals a probe of `route`: the last relay answers it as it would a session, and dials
    /// nothing.
    ///
    /// # Errors
    /// As [`Sealer::seal`], but for the destination.
    pub fn seal_probe(
        &mut self,
        now: Timestamp,
        nonce: Nonce,
        flow: &FlowId,
        route: &Route,
    ) -> Result<SealedHeader, GrantError> {
        let grant = self.grant.unverified();
        grant.check_expiry(now)?;
        grant.check_relays(route)?;
        self.seal_fixed(now, nonce, flow, (None, Terms::default()), route)
    }

    /// Creates a hello of this gateway, like [`Verifier::hello`](crate::Verifier::hello).
    ///
    /// # Errors
    /// When `to` is weak, or `from` is another gateway.
    pub fn hello(
        &mut self,
        now: Timestamp,
        nonce: Nonce,
        from: &PublicIdentity,
        to: &PublicIdentity,
    ) -> Result<(Vec<u8>, ReplyKey), GrantError> {
        if *from != self.keys.public() {
            return Err(GrantError::NotOwnIdentity(*from));
        }
        warm::hello(&mut self.keys, now, &nonce, to)
    }

    fn seal_fixed(
        &mut self,
        now: Timestamp,
        nonce: Nonce,
        flow: &FlowId,
        (destination, terms): (Option<Destination>, Terms),
        route: &Route,
    ) -> Result<SealedHeader, GrantError> {
        let fixed = Fixed {
            issued_at: now,
            nonce,
            flow: flow.clone(),
            destination,
            grant: self.grant.as_bytes(),
            route: route.clone(),
        };
        let mut bytes = fixed.encode()?;
        let transcript = *blake3::hash(&bytes).as_bytes();
        let tags_at = bytes.len();
        for hop in route.hops() {
            let tag = self.keys.get(&hop.identity)?.gateway_tag(&transcript);
            bytes.extend_from_slice(&tag);
        }
        let from = self.keys.public();
        let first = self.keys.get(&route.hops()[0].identity)?;
        let byte = terms.byte(0);
        let neighbour_tag = first.neighbour_tag(&transcript, &bytes[tags_at..], byte);
        put_tail(&mut bytes, byte, &neighbour_tag);
        Ok(SealedHeader { from, bytes, downstream: ReplyKey::new(first, transcript, 0) })
    }
}

fn check_issued_to(grant: &SignedGrant, found: PublicIdentity) -> Result<(), GrantError> {
    match grant.unverified().gateway {
        granted if granted == found => Ok(()),
        granted => Err(GrantError::WrongGateway { granted, found }),
    }
}
