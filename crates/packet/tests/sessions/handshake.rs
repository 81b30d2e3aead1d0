//! Handshakes: who may begin a session, and who gets silence.

use super::*;

#[test]
fn handshake_takes_one_round_trip() {
    let mut pair = Pair::fresh(Limits::default());
    let there = transmits(&mut pair.endpoint);
    assert_eq!((there.len(), there[0].link), (1, link(RELAY)));
    let mut bytes = there[0].bytes.clone();
    let asked = bytes.len();
    pair.relay.handle_datagram(at(5), link(ENDPOINT), &mut bytes);
    assert!(events(&mut pair.relay).is_empty(), "nothing is open before the endpoint has used it");
    let mut back = transmits(&mut pair.relay);
    assert!(back.len() == 1 && back[0].bytes.len() < asked);
    pair.endpoint.handle_datagram(at(10), link(RELAY), &mut back[0].bytes);
    let established = |event: &Event| matches!(event, Event::Established { .. });
    assert!(events(&mut pair.endpoint).iter().all(established));
    let datagram = sealed(&mut pair.endpoint, pair.peer, b"there");
    assert_eq!(datagram.len(), OVERHEAD + 5);
    assert_eq!(opened(&mut pair.relay, at(15), link(ENDPOINT), &datagram).unwrap(), b"there");
    let Event::Established { peer, identity, .. } = events(&mut pair.relay)[0] else { panic!() };
    assert_eq!(identity, endpoint().public());
    assert_eq!(pair.relay.grant_of(peer).unwrap().gateway, identity);
    let datagram = sealed(&mut pair.relay, peer, b"and back");
    assert_eq!(opened(&mut pair.endpoint, at(20), link(RELAY), &datagram).unwrap(), b"and back");
}

/// Returns the outcome of an initiation of `identity` that shows `grant`.
fn refusal(
    identity: IdentityKey,
    grant: Option<tradewind_grant::SignedGrant>,
    sent_at: u64,
    neighbours: &[tradewind_grant::PublicIdentity],
) -> (usize, [u64; 12]) {
    let mut endpoint = machine(identity, &[], Limits::default(), 11);
    let mut relay = machine(relay(), neighbours, Limits::default(), 12);
    endpoint.connect(at(sent_at), self::relay().public(), link(RELAY), grant).unwrap();
    let mut bytes = transmits(&mut endpoint)[0].bytes.clone();
    relay.handle_datagram(at(1000), link(ENDPOINT), &mut bytes);
    (transmits(&mut relay).len(), relay.drops())
}

#[test]
fn unauthorized_peer_gets_silence() {
    let grant = |relays| grant_for(endpoint().public(), relays);
    let other = IdentityKey::from_entropy([9; 32]);
    let not_granted = DropReason::NotGranted as usize;
    let refused = |identity: &IdentityKey, grant, sent_at, reason: usize| {
        let (answers, drops) = refusal(identity.clone(), grant, sent_at, &[]);
        assert_eq!((answers, drops[reason], drops.iter().sum()), (0, 1, 1u64), "{drops:?}");
    };
    refused(&endpoint(), None, 1000, not_granted);
    let of_another = Some(signed(grant(Relays::Any)));
    refused(&other, of_another, 1000, not_granted);
    let by_another = grant(Relays::Any).sign(&OperatorKey::from_entropy([8; 32])).unwrap();
    refused(&endpoint(), Some(by_another), 1000, not_granted);
    let elsewhere = signed(grant(Relays::listed(&[other.public()])));
    refused(&endpoint(), Some(elsewhere), 1000, not_granted);
    let mut expired = grant(Relays::Any);
    expired.expires = at(500).unix;
    refused(&endpoint(), Some(signed(expired)), 1000, not_granted);
    let good = || Some(signed(grant(Relays::Any)));
    refused(&endpoint(), good(), 40_000, DropReason::Stale as usize);
    assert_eq!(refusal(endpoint(), good(), 1000, &[]).0, 1);
    // A known relay needs no grant.
    assert_eq!(refusal(other.clone(), None, 1000, &[other.public()]).0, 1);
}

#[test]
fn both_identities_are_accepted_during_change() {
    let mut pair = Pair::fresh(Limits::default());
    let new = IdentityKey::from_entropy([33; 32]);
    pair.relay.set_identities([new.clone(), relay()]);
    pair.exchange(at(10));
    assert!(pair.endpoint.is_open(pair.peer), "by its old name");
    let grant = Some(signed(grant_for(endpoint().public(), Relays::listed(&[new.public()]))));
    let peer = pair.endpoint.connect(at(20), new.public(), link(RELAY), grant).unwrap();
    pair.exchange(at(30));
    assert!(pair.endpoint.is_open(peer), "by its new one");
    // The endpoint's own identity changes as well: no initiation is sent under one that is gone.
    let old = endpoint().public();
    pair.endpoint.set_identities([IdentityKey::from_entropy([22; 32])]);
    let to = (new.public(), link(RELAY));
    let gone = pair.endpoint.connect_as(at(40), old, to.0, to.1, None).unwrap();
    pair.exchange(at(50));
    assert!(!pair.endpoint.is_open(gone));
    pair.relay.set_identities([new]);
    let mut late = Pair::fresh(Limits::default());
    std::mem::swap(&mut late.relay, &mut pair.relay);
    late.exchange(at(60));
    assert!(!late.endpoint.is_open(late.peer), "nobody has the old name any more");
}

#[test]
fn unknown_relay_key_gets_silence_under_load() {
    let limits = Limits { handshakes: 0, ..Limits::default() };
    let mut relay = machine(relay(), &[], limits, 12);
    let mut outsider = machine(endpoint(), &[], Limits::default(), 11);
    let wrong = IdentityKey::from_entropy([7; 32]).public();
    outsider.connect(at(0), wrong, link(RELAY), None).unwrap();
    let mut bytes = transmits(&mut outsider)[0].bytes.clone();
    relay.handle_datagram(at(1), link(ENDPOINT), &mut bytes);
    assert!(transmits(&mut relay).is_empty());
    assert_eq!(drops(&relay, DropReason::FirstTag), 1);
}

#[test]
fn cookie_is_required_under_load() {
    let mut pair = Pair::fresh(Limits { handshakes: 0, ..Limits::default() });
    let mut first = transmits(&mut pair.endpoint).remove(0).bytes;
    let asked = first.len();
    pair.relay.handle_datagram(at(1), link(ENDPOINT), &mut first);
    assert_eq!((pair.relay.len(), drops(&pair.relay, DropReason::CookieNeeded)), (0, 1));
    let cookie = transmits(&mut pair.relay).remove(0).bytes;
    assert!(cookie.len() < asked, "{} bytes for {asked}", cookie.len());
    // A peer that did not see the initiation cannot forge one.
    let mut forged = cookie.clone();
    forged[5] ^= 1;
    pair.endpoint.handle_datagram(at(2), link(RELAY), &mut forged);
    assert!(transmits(&mut pair.endpoint).is_empty());
    pair.endpoint.handle_datagram(at(2), link(RELAY), &mut cookie.clone());
    let again = transmits(&mut pair.endpoint).remove(0).bytes;
    // A cookie is for one address.
    pair.relay.handle_datagram(at(3), link(ENDPOINT + 1), &mut again.clone());
    assert_eq!((pair.relay.len(), transmits(&mut pair.relay).len()), (0, 1));
    pair.relay.handle_datagram(at(3), link(ENDPOINT), &mut again.clone());
    assert_eq!(pair.relay.len(), 1);
    pair.exchange(at(4));
    assert!(pair.endpoint.is_open(pair.peer));
    // The same cookie twice causes no second initiation.
    pair.endpoint.handle_datagram(at(5), link(RELAY), &mut cookie.clone());
    assert!(transmits(&mut pair.endpoint).is_empty());
}

#[test]
fn replayed_initiation_is_refused() {
    let mut pair = Pair::fresh(Limits::default());
    let first = transmits(&mut pair.endpoint).remove(0).bytes;
    pair.relay.handle_datagram(at(1), link(ENDPOINT), &mut first.clone());
    assert_eq!(transmits(&mut pair.relay).len(), 1);
    for port in [ENDPOINT, 6666] {
        pair.relay.handle_datagram(at(2), link(port), &mut first.clone());
    }
    assert!(transmits(&mut pair.relay).is_empty());
    assert_eq!(drops(&pair.relay, DropReason::Stale), 2);
    // A restarted relay has forgotten it, and refuses initiations older than itself.
    let mut restarted = machine(relay(), &[], Limits::default(), 13);
    restarted.handle_datagram(at(60_000), link(6666), &mut first.clone());
    assert!(transmits(&mut restarted).is_empty());
}

#[test]
fn forged_response_is_ignored() {
    let mut pair = Pair::fresh(Limits::default());
    let mut first = transmits(&mut pair.endpoint).remove(0).bytes;
    pair.relay.handle_datagram(at(1), link(ENDPOINT), &mut first);
    let response = transmits(&mut pair.relay).remove(0).bytes;
    for at_byte in 5..response.len() {
        let mut forged = response.clone();
        forged[at_byte] ^= 0x10;
        pair.endpoint.handle_datagram(at(2), link(RELAY), &mut forged);
    }
    assert!(!pair.endpoint.is_open(pair.peer));
    pair.endpoint.handle_datagram(at(2), link(6666), &mut response.clone());
    assert!(!pair.endpoint.is_open(pair.peer), "it comes from where the initiation went");
    pair.endpoint.handle_datagram(at(3), link(RELAY), &mut response.clone());
    assert!(pair.endpoint.is_open(pair.peer));
}
