//! Probes: headers without a destination, checked as strictly as those of sessions.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{
    NOW, flow, gateway, grant, nonce, opened, operator, relay, route, signed_grant, verifier,
};
use tradewind_grant::{
    Destination, Echo, GrantError, Relays, Reply, SealedHeader, Sealer, SignedGrant, Status,
};
use tradewind_units::Duration;

fn probe(grant: SignedGrant, relays: &[u8], number: u64) -> Result<SealedHeader, GrantError> {
    let mut sealer = Sealer::new(gateway(), grant).unwrap();
    sealer.seal_probe(NOW, nonce(number), &flow(), &route(relays))
}

#[test]
fn probe_passes_every_relay_and_its_echo_returns() {
    let header = probe(signed_grant(), &[1, 2], 1).unwrap();
    let mut first = verifier(1);
    let open = first.open(NOW, &header.bytes).unwrap();
    assert!(open.is_probe);
    let next = first.forward(&open).unwrap().unwrap();
    let last = opened(2, &next).unwrap();
    assert!(last.is_probe && last.next_hop().is_none());
    let itself = Destination::Address(route(&[1, 2]).hops()[1].address);
    assert_eq!(last.destination, itself, "whoever forgot that it is a probe would dial the relay");

    let echo = Echo::last(Duration::from_micros(7));
    let forwarded = next.downstream.open(&last.upstream.seal(&Reply::alive(1, &echo))).unwrap();
    assert_eq!((forwarded.status, forwarded.dialled), (Status::Ok, false));
    assert_eq!(Echo::parse(&forwarded.message).unwrap(), echo);
    let forwarded = header.downstream.open(&open.upstream.seal(&forwarded)).unwrap();
    assert_eq!(forwarded.hop, 1);
}

#[test]
fn probe_is_accepted_once_and_unaltered() {
    let header = probe(signed_grant(), &[1], 1).unwrap();
    let mut relay = verifier(1);
    for bit in 0..header.bytes.len() * 8 {
        let mut bytes = header.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(relay.open(NOW, &bytes).is_err(), "bit {bit} was flipped and nobody saw");
    }
    relay.open(NOW, &header.bytes).unwrap();
    let refused = relay.open(NOW, &header.bytes).unwrap_err();
    assert_eq!(refused.cause, GrantError::Replayed(nonce(1)));
    let late = verifier(1).open(NOW + Duration::from_secs(31), &header.bytes).unwrap_err();
    assert!(matches!(late.cause, GrantError::Skew { .. }), "{late}");
    let next = probe(signed_grant(), &[1], 2).unwrap();
    assert!(relay.open(NOW, &next.bytes).is_ok());
}

#[test]
fn probe_needs_a_grant_for_every_relay() {
    let mut narrow = grant();
    narrow.relays = Relays::listed(&[relay(1).public()]);
    let narrow = narrow.sign(&operator()).unwrap();
    assert!(probe(narrow.clone(), &[1], 1).is_ok());
    let refused = probe(narrow, &[1, 2], 1).unwrap_err();
    assert_eq!(refused, GrantError::RelayNotGranted(relay(2).public()));
}

#[test]
fn dialled_flag_passes_back_over_each_hop() {
    let header = probe(signed_grant(), &[1, 2], 1).unwrap();
    let mut first = verifier(1);
    let open = first.open(NOW, &header.bytes).unwrap();
    let next = first.forward(&open).unwrap().unwrap();
    let last = opened(2, &next).unwrap();
    let failed = Reply::failed(Status::TimedOut, 1, "resolve db.example.com: no answer in time");
    assert!(failed.dialled, "the safe side unless somebody knows better");
    for reply in [failed.clone(), failed.before_dial()] {
        let forwarded = next.downstream.open(&last.upstream.seal(&reply)).unwrap();
        assert_eq!(header.downstream.open(&open.upstream.seal(&forwarded)).unwrap(), reply);
    }
    let mut talkative = Reply::ok(1);
    talkative.message = "ok".to_owned();
    assert!(next.downstream.open(&last.upstream.seal(&talkative)).is_err());
}
