//! Fixtures of the tests: an operator, a gateway, three relays and their clocks.

#![allow(dead_code, reason = "each test file takes what it needs")]
#![allow(clippy::unwrap_used, reason = "the cast is made of values that are right")]

pub(crate) mod forbidden;

use tradewind_grant::{
    Destination, Grant, GrantError, Hop, IdentityKey, Nonce, OpenHeader, OperatorKey,
    PublicIdentity, Refusal, Relays, Request, Route, SealedHeader, Sealer, SignedGrant, Verifier,
};
use tradewind_units::{Duration, FlowId, Timestamp};

/// The current time in the tests: 2026-11-20T12:00:00Z.
pub(crate) const NOW: Timestamp = Timestamp::from_nanos(1_795_176_000_000_000_000);
/// Lifetime of the fixtures' grant.
pub(crate) const GRANT_LIFE: Duration = Duration::from_secs(3600);

pub(crate) fn operator() -> OperatorKey {
    OperatorKey::from_entropy([1; 32])
}

pub(crate) fn gateway() -> IdentityKey {
    IdentityKey::from_entropy([2; 32])
}

/// Returns the relay with this number.
pub(crate) fn relay(number: u8) -> IdentityKey {
    IdentityKey::from_entropy([10 + number; 32])
}

pub(crate) fn route(relays: &[u8]) -> Route {
    let hop = |&number: &u8| Hop {
        address: format!("192.0.2.{number}:7000").parse().unwrap(),
        identity: relay(number).public(),
    };
    Route::new(relays.iter().map(hop).collect()).unwrap()
}

pub(crate) fn flow() -> FlowId {
    FlowId::new("backup-1").unwrap()
}

pub(crate) fn grant() -> Grant {
    let relays: Vec<PublicIdentity> = (1..=3).map(|number| relay(number).public()).collect();
    Grant {
        gateway: gateway().public(),
        not_before: NOW,
        expires: NOW + GRANT_LIFE,
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::listed(&relays),
        destinations: ["10.0.0.0/8:443", "*.example.com:443"].map(|r| r.parse().unwrap()).into(),
    }
}

pub(crate) fn signed_grant() -> SignedGrant {
    grant().sign(&operator()).unwrap()
}

pub(crate) fn nonce(number: u64) -> Nonce {
    let mut entropy = [0xa5; 16];
    entropy[..8].copy_from_slice(&number.to_be_bytes());
    Nonce::from_entropy(entropy)
}

/// Seals a header over `relays` to `destination`, at [`NOW`].
pub(crate) fn sealed(relays: &[u8], destination: &str) -> SealedHeader {
    seal_with(signed_grant(), relays, destination).unwrap()
}

pub(crate) fn seal_with(
    grant: SignedGrant,
    relays: &[u8],
    destination: &str,
) -> Result<SealedHeader, GrantError> {
    let destination: Destination = destination.parse().unwrap();
    let (flow, route) = (flow(), route(relays));
    let request = Request { flow: &flow, destination: &destination, route: &route };
    Sealer::new(gateway(), grant).unwrap().seal(NOW, nonce(1), &request)
}

/// Opens `header` at relay `number` with an empty replay table.
pub(crate) fn opened(number: u8, header: &SealedHeader) -> Result<OpenHeader, Box<Refusal>> {
    verifier(number).open(NOW, &header.bytes)
}

pub(crate) fn verifier(number: u8) -> Verifier {
    Verifier::new(relay(number), vec![operator().public()])
}
