//! Connections that join a striped leg, and the header that allows them to.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::{NOW, flow, gateway, nonce, route, sealed, signed_grant, verifier};
use tradewind_grant::join::{JOIN_BYTES, is_join, session_of};
use tradewind_grant::{GrantError, JoinKey, Request, Sealer, Terms};

const TO: &str = "10.1.2.3:443";

/// Returns both ends' keys of the first leg of a session, for the nonce with this number.
fn keys(number: u64) -> (JoinKey, JoinKey) {
    let (flow, destination, route) = (flow(), TO.parse().unwrap(), route(&[1, 2]));
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
    let terms = Terms { may_stripe: true, ..Terms::default() };
    let header = sealer.seal_on_terms(NOW, nonce(number), &request, terms).unwrap();
    let open = verifier(1).open(NOW, &header.bytes).unwrap();
    assert!(open.terms.may_stripe);
    (JoinKey::of(&header.downstream), JoinKey::of(&open.upstream))
}

#[test]
fn only_the_ends_of_a_leg_share_the_session_key() {
    let (near, remote) = keys(1);
    assert_eq!(near.session(), remote.session());
    let join = near.join(3);
    assert!(is_join(&join));
    assert_eq!(session_of(&join), Ok(remote.session()));
    assert_eq!(remote.open(&join), Ok(3));
    assert!(near.is_welcome(3, &remote.welcome(3)));
    assert!(!near.is_welcome(4, &remote.welcome(3)), "a welcome is good for one connection");

    let (_, other) = keys(2);
    assert_ne!(other.session(), remote.session());
    assert_eq!(other.open(&join), Err(GrantError::JoinTag(near.session())));
    assert!(!near.is_welcome(3, &other.welcome(3)));
}

#[test]
fn altered_truncated_and_zero_joins_are_refused() {
    let (near, remote) = keys(1);
    let join = near.join(1);
    for bit in 0..8 * JOIN_BYTES {
        let mut flipped = join;
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(remote.open(&flipped).is_err(), "bit {bit} was flipped and nobody saw");
    }
    for length in 0..JOIN_BYTES {
        assert!(remote.open(&join[..length]).is_err());
    }
    assert!(matches!(remote.open(&near.join(0)), Err(GrantError::Malformed { .. })));
}

#[test]
fn each_leg_is_striped_independently() {
    let plain = sealed(&[1, 2], TO);
    let mut relay = verifier(1);
    let open = relay.open(NOW, &plain.bytes).unwrap();
    assert!(!open.terms.may_stripe);
    let next = relay.forward_striped(&open, true).unwrap().unwrap();
    let last = verifier(2).open(NOW, &next.bytes).unwrap();
    assert!(last.terms.may_stripe && last.hop == 1);
    assert_eq!(JoinKey::of(&next.downstream).session(), JoinKey::of(&last.upstream).session());
    assert_ne!(JoinKey::of(&next.downstream).session(), JoinKey::of(&plain.downstream).session());

    let mut forged = plain.bytes;
    let at = forged.len() - 17;
    forged[at] |= 0x80;
    let refused = verifier(1).open(NOW, &forged).unwrap_err();
    assert!(matches!(refused.cause, GrantError::WrongNeighbour { .. }), "{refused}");
}
