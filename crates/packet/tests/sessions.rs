//! Sessions between an endpoint and a relay: handshakes, keepalive, and that a forged, replayed,
//! reordered, truncated or reflected datagram changes nothing and gets no answer.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod cast;

use std::collections::BTreeSet;
use std::sync::Arc;

use cast::*;
use proptest::prelude::*;
use tradewind_grant::{IdentityKey, OperatorKey, Relays, RevocationList, Revocations, Trust};
use tradewind_packet::session::{
    AddressPair, DropReason, Event, Limits, Link, Now, OVERHEAD, PeerId, SealError, Sessions,
    Transmit,
};
use tradewind_units::{Duration, Timestamp};

fn drops(machine: &Sessions, reason: DropReason) -> u64 {
    machine.drops()[reason as usize]
}

#[test]
fn a_handshake_takes_one_round_trip_and_both_send() {
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
fn who_may_not_gets_silence() {
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
fn a_neighbour_between_two_identities_answers_to_either_until_one_is_gone() {
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
fn who_does_not_know_the_relay_gets_silence_even_under_load() {
    let limits = Limits { handshakes: 0, ..Limits::default() };
    let mut relay = machine(relay(), &[], limits, 12);
    let mut stranger = machine(endpoint(), &[], Limits::default(), 11);
    let wrong = IdentityKey::from_entropy([7; 32]).public();
    stranger.connect(at(0), wrong, link(RELAY), None).unwrap();
    let mut bytes = transmits(&mut stranger)[0].bytes.clone();
    relay.handle_datagram(at(1), link(ENDPOINT), &mut bytes);
    assert!(transmits(&mut relay).is_empty());
    assert_eq!(drops(&relay, DropReason::FirstTag), 1);
}

#[test]
fn under_load_an_address_is_proven_before_anything_is_computed() {
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
fn an_initiation_that_is_replayed_opens_nothing() {
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
fn a_forged_response_does_not_disturb_the_true_one() {
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

#[test]
fn each_datagram_passes_once_in_any_order() {
    let mut pair = Pair::established();
    let datagrams: Vec<_> =
        (0..3000u32).map(|n| sealed(&mut pair.endpoint, pair.peer, &n.to_be_bytes())).collect();
    for datagram in datagrams.iter().rev() {
        assert!(opened(&mut pair.relay, at(30), link(ENDPOINT), datagram).is_some());
    }
    for datagram in &datagrams {
        assert!(opened(&mut pair.relay, at(31), link(ENDPOINT), datagram).is_none());
    }
    assert_eq!(drops(&pair.relay, DropReason::Replayed), 3000);
    assert!(transmits(&mut pair.relay).is_empty());
}

#[test]
fn a_neighbour_moves_only_when_it_answers_there() {
    let mut pair = Pair::established();
    let peer = pair.peer_at_relay();
    let moved = link(ENDPOINT + 1);
    // Too short to be answered with a ping.
    let short = sealed(&mut pair.endpoint, pair.peer, b"");
    pair.relay.handle_datagram(at(100), moved, &mut short.clone());
    assert!(transmits(&mut pair.relay).is_empty());
    for _ in 0..5 {
        let long = sealed(&mut pair.endpoint, pair.peer, &[7; 100]);
        assert!(opened(&mut pair.relay, at(110), moved, &long).is_some());
    }
    let (questions, others): (Vec<_>, Vec<_>) =
        transmits(&mut pair.relay).into_iter().partition(|question| question.link == moved);
    assert_eq!((questions.len(), others.len()), (1, 1), "one a second, there and where it was");
    assert!(questions[0].bytes.len() <= OVERHEAD + 100);
    assert_eq!(pair.relay.link_of(peer), Some(link(ENDPOINT)));
    pair.endpoint.handle_datagram(at(120), link(RELAY), &mut questions[0].bytes.clone());
    let answer = transmits(&mut pair.endpoint).remove(0).bytes;
    // A pong from elsewhere proves nothing.
    pair.relay.handle_datagram(at(125), link(6666), &mut answer.clone());
    assert_eq!(pair.relay.link_of(peer), Some(link(ENDPOINT)));
    // The ping was spent there; the next one, a second later, is answered from the right address.
    transmits(&mut pair.relay);
    let long = sealed(&mut pair.endpoint, pair.peer, &[7; 100]);
    pair.relay.handle_datagram(at(2000), moved, &mut long.clone());
    let is_asked_there = |question: &Transmit| question.link == moved;
    for mut question in transmits(&mut pair.relay).into_iter().filter(is_asked_there) {
        pair.endpoint.handle_datagram(at(2010), link(RELAY), &mut question.bytes);
    }
    for mut answer in transmits(&mut pair.endpoint) {
        pair.relay.handle_datagram(at(2020), moved, &mut answer.bytes);
    }
    // The current address has as long as a pong may take.
    assert_eq!(pair.relay.link_of(peer), Some(link(ENDPOINT)));
    pair.relay.handle_timeout(at(2060));
    assert_eq!(pair.relay.link_of(peer), Some(moved));
    assert!(events(&mut pair.relay).contains(&Event::Moved { peer, link: moved }));
}

/// Lets the relay of a pair write to its endpoint from another address for a while, where it
/// answers, and nowhere else.
fn speak_from(pair: &mut Pair, peer: PeerId, elsewhere: Link) {
    for step in 1..30 {
        let now = at(100 * step);
        let datagram = sealed(&mut pair.relay, peer, &[7; 100]);
        assert!(opened(&mut pair.endpoint, now, elsewhere, &datagram).is_some());
        pair.endpoint.handle_timeout(now);
        for mut transmit in transmits(&mut pair.endpoint) {
            if transmit.link == elsewhere {
                pair.relay.handle_datagram(now, link(ENDPOINT), &mut transmit.bytes);
            }
        }
        for mut transmit in transmits(&mut pair.relay) {
            pair.endpoint.handle_datagram(now, elsewhere, &mut transmit.bytes);
        }
    }
}

#[test]
fn a_relay_that_spoke_from_elsewhere_is_found_again_where_it_is_configured() {
    let mut pair = Pair::established();
    let (peer, elsewhere) = (pair.peer_at_relay(), link(RELAY + 1));
    speak_from(&mut pair, peer, elsewhere);
    assert_eq!(pair.endpoint.link_of(pair.peer), Some(elsewhere));
    // The relay that moved is gone, and another process is at its old address.
    pair.relay = machine(relay(), &[], Limits::default(), 99);
    events(&mut pair.endpoint);
    for step in 31..60 {
        let now = at(100 * step);
        let asked = pair.endpoint.link_of(pair.peer).unwrap();
        pair.endpoint.ask(now, pair.peer, asked);
        pair.endpoint.handle_timeout(now);
        for mut transmit in transmits(&mut pair.endpoint) {
            if transmit.link == link(RELAY) {
                pair.relay.handle_datagram(now, link(ENDPOINT), &mut transmit.bytes);
            }
        }
        for mut transmit in transmits(&mut pair.relay) {
            pair.endpoint.handle_datagram(now, link(RELAY), &mut transmit.bytes);
        }
    }
    assert_eq!(pair.endpoint.link_of(pair.peer), Some(link(RELAY)));
    let is_new = |event: &Event| matches!(event, Event::Established { .. });
    assert!(events(&mut pair.endpoint).iter().any(is_new), "no session with the new process");
}

#[test]
fn datagrams_that_somebody_sends_on_from_elsewhere_move_no_neighbour() {
    let mut pair = Pair::established();
    let (peer, elsewhere) = (pair.peer_at_relay(), link(6666));
    for step in 1..50 {
        let now = at(100 * step);
        // Every datagram comes twice: from an attacker with a faster path, and as it was sent.
        let datagram = sealed(&mut pair.relay, peer, &[7; 100]);
        opened(&mut pair.endpoint, now, elsewhere, &datagram);
        opened(&mut pair.endpoint, now, link(RELAY), &datagram);
        pair.endpoint.handle_timeout(now);
        for mut transmit in transmits(&mut pair.endpoint) {
            pair.relay.handle_datagram(now, link(ENDPOINT), &mut transmit.bytes);
        }
        for transmit in transmits(&mut pair.relay) {
            for from in [elsewhere, link(RELAY)] {
                pair.endpoint.handle_datagram(now, from, &mut transmit.bytes.clone());
            }
        }
        assert_eq!(pair.endpoint.link_of(pair.peer), Some(link(RELAY)), "{step}");
    }
}

#[test]
fn a_neighbour_is_answered_from_the_address_that_it_writes_to() {
    let mut pair = Pair::fresh(Limits::default());
    let there: std::net::SocketAddr = "192.0.2.1:1000".parse().unwrap();
    let at_address = |last| {
        let local = Some(std::net::IpAddr::from([198, 51, 100, last]));
        Link::Internet(AddressPair { remote: there, local })
    };
    let mut links = Vec::new();
    for mut transmit in transmits(&mut pair.endpoint) {
        pair.relay.handle_datagram(at(10), at_address(2), &mut transmit.bytes);
    }
    for mut transmit in transmits(&mut pair.relay) {
        links.push(transmit.link);
        pair.endpoint.handle_datagram(at(20), link(RELAY), &mut transmit.bytes);
    }
    for mut transmit in transmits(&mut pair.endpoint) {
        pair.relay.handle_datagram(at(30), at_address(2), &mut transmit.bytes);
    }
    let mut question = sealed(&mut pair.endpoint, pair.peer, b"who am I?");
    let opened = pair.relay.handle_datagram(at(40), at_address(2), &mut question).unwrap();
    links.push(pair.relay.link_of(opened.peer).unwrap());
    assert_eq!(links, [at_address(2); 2]);
}

#[test]
fn keys_change_every_two_minutes_and_none_is_lost_meanwhile() {
    let mut pair = Pair::established();
    let before = sealed(&mut pair.endpoint, pair.peer, b"on its way");
    for second in 1..=121 {
        pair.endpoint.handle_timeout(at(second * 1000));
        pair.relay.handle_timeout(at(second * 1000));
        pair.exchange(at(second * 1000));
    }
    let renewed = |event: &Event| matches!(event, Event::Established { .. });
    assert_eq!(events(&mut pair.endpoint).iter().filter(|event| renewed(event)).count(), 1);
    assert_eq!(pair.relay.len(), 1, "the same neighbour with new keys");
    assert!(opened(&mut pair.relay, at(122_000), link(ENDPOINT), &before).is_some());
    let after = sealed(&mut pair.endpoint, pair.peer, b"with new keys");
    assert!(opened(&mut pair.relay, at(122_000), link(ENDPOINT), &after).is_some());
    for second in 123..=185 {
        pair.relay.handle_timeout(at(second * 1000));
    }
    let late = sealed(&mut pair.endpoint, pair.peer, b"later");
    assert!(opened(&mut pair.relay, at(186_000), link(ENDPOINT), &late).is_some());
}

#[test]
fn a_relay_that_comes_back_is_found_within_two_seconds() {
    let mut pair = Pair::established();
    pair.relay = machine(relay(), &[], Limits::default(), 99);
    let mut restored = None;
    for step in 1..60u64 {
        let now = at(100 * step);
        if step.is_multiple_of(2) {
            pair.endpoint.ask(now, pair.peer, link(RELAY));
        }
        pair.endpoint.handle_timeout(now);
        pair.exchange(now);
        if events(&mut pair.endpoint).iter().any(|e| matches!(e, Event::Established { .. })) {
            restored = Some(100 * step);
            break;
        }
    }
    assert!(restored.is_some_and(|millis| millis <= 2000), "{restored:?}");
}

#[test]
fn a_relay_whose_distance_is_known_is_found_soon_after_it_has_come_back() {
    let mut pair = Pair::established();
    pair.endpoint.ask(at(100), pair.peer, link(RELAY));
    pair.exchange(at(100));
    events(&mut pair.endpoint);
    // It is gone for three seconds.
    let ask = |pair: &mut Pair, step: u64| {
        let now = at(100 * step);
        if step.is_multiple_of(2) {
            pair.endpoint.ask(now, pair.peer, link(RELAY));
        }
        pair.endpoint.handle_timeout(now);
        now
    };
    for step in 2..32 {
        ask(&mut pair, step);
        transmits(&mut pair.endpoint);
    }
    pair.relay = machine(relay(), &[], Limits::default(), 99);
    let restored = (32..).find(|step| {
        let now = ask(&mut pair, *step);
        pair.exchange(now);
        events(&mut pair.endpoint).iter().any(|e| matches!(e, Event::Established { .. }))
    });
    assert!(restored <= Some(34), "{restored:?}");
}

#[test]
fn a_size_probe_is_as_long_as_was_asked_for_and_its_answer_is_short() {
    let mut pair = Pair::established();
    events(&mut pair.endpoint);
    pair.endpoint.probe(at(100), pair.peer, link(RELAY), 1472);
    let mut there = transmits(&mut pair.endpoint);
    assert_eq!((there.len(), there[0].bytes.len()), (1, 1472));
    pair.relay.handle_datagram(at(105), link(ENDPOINT), &mut there[0].bytes);
    let mut back = transmits(&mut pair.relay);
    assert_eq!((back.len(), back[0].bytes.len()), (1, OVERHEAD + 9));
    pair.endpoint.handle_datagram(at(110), link(RELAY), &mut back[0].bytes);
    let (peer, link) = (pair.peer, link(RELAY));
    let round_trip = at(110).steady.since(at(100).steady);
    let answered = Event::Answered { peer, link, round_trip, bytes: 1472 };
    assert_eq!(events(&mut pair.endpoint), [answered]);
}

#[test]
fn a_grant_that_expires_ends_its_session_and_a_clock_that_jumps_does_not() {
    let mut grant = grant_for(endpoint().public(), Relays::Any);
    grant.expires = at(100_000).unix;
    let mut pair = Pair::with_grant(Limits::default(), grant);
    pair.exchange(at(10));
    let peer = pair.peer_at_relay();
    events(&mut pair.relay);
    // A day ahead, and back to the epoch: at one side, then at both.
    for jumped in [START_UNIX + Duration::from_secs(86_400), Timestamp::ZERO] {
        let odd = Now { unix: jumped, ..at(50_000) };
        for at_endpoint in [at(50_000), odd] {
            pair.endpoint.handle_timeout(at_endpoint);
            pair.relay.handle_timeout(odd);
            pair.exchange(odd);
            let there = sealed(&mut pair.endpoint, pair.peer, b"there");
            assert_eq!(opened(&mut pair.relay, odd, link(ENDPOINT), &there).unwrap(), b"there");
            let back = sealed(&mut pair.relay, peer, b"back");
            assert_eq!(
                opened(&mut pair.endpoint, at_endpoint, link(RELAY), &back).unwrap(),
                b"back"
            );
        }
    }
    pair.relay.handle_timeout(at(99_999));
    assert_eq!(events(&mut pair.relay), []);
    pair.relay.handle_timeout(at(100_001));
    let identity = endpoint().public();
    assert_eq!(events(&mut pair.relay), [Event::Closed { peer, identity }]);
    let mut buffer = [0; 64];
    assert_eq!(pair.relay.seal(peer, &mut buffer), Err(SealError::NoSession));
    assert!(pair.relay.is_empty());
}

#[test]
fn a_session_ends_at_its_greatest_age() {
    let mut grant = grant_for(endpoint().public(), Relays::Any);
    grant.extensions.session_max_age = Some(Duration::from_secs(60));
    let mut pair = Pair::with_grant(Limits::default(), grant);
    pair.exchange(at(0));
    let (peer, identity) = (pair.peer_at_relay(), endpoint().public());
    events(&mut pair.relay);
    pair.relay.handle_timeout(at(59_000));
    assert_eq!(events(&mut pair.relay), []);
    pair.relay.handle_timeout(at(60_001));
    assert_eq!(events(&mut pair.relay), [Event::Closed { peer, identity }]);
}

#[test]
fn a_session_ends_with_the_trust_in_who_granted_it_and_its_neighbour_hears_of_it() {
    let mut pair = Pair::established();
    let (peer, identity) = (pair.peer_at_relay(), endpoint().public());
    events(&mut pair.relay);
    let ours = Arc::new(Trust::from(vec![operator().public()]));
    pair.relay.set_trust(Arc::clone(&ours), BTreeSet::new());
    assert_eq!(events(&mut pair.relay), []);
    let gateways = [identity].into();
    let list = RevocationList { version: 1, gateways, ..RevocationList::default() };
    let lists = [list.sign(&operator()).unwrap()];
    let revoked = Revocations::default().updated(&lists, ours.operators()).unwrap();
    let trust = Trust::new(ours.operators().to_vec(), revoked);
    pair.relay.set_trust(Arc::new(trust), BTreeSet::new());
    assert_eq!(events(&mut pair.relay), [Event::Closed { peer, identity }]);
    pair.exchange(at(100));
    assert!(!pair.endpoint.is_open(pair.peer), "it was told");
    for tick in 1..=50 {
        pair.endpoint.handle_timeout(at(100 + 100 * tick));
        pair.exchange(at(100 + 100 * tick));
    }
    assert!(pair.relay.is_empty(), "it comes again in vain");
    pair.relay.set_trust(ours, BTreeSet::new());
    for tick in 1..=50 {
        pair.endpoint.handle_timeout(at(6000 + 100 * tick));
        pair.exchange(at(6000 + 100 * tick));
    }
    assert!(pair.endpoint.is_open(pair.peer));
}

#[test]
fn another_grant_is_shown_at_once() {
    let mut pair = Pair::established();
    let mut longer = grant_for(endpoint().public(), Relays::Any);
    longer.expires = at(9_000_000).unix;
    pair.endpoint.set_shown(at(100), &signed(longer.clone()));
    pair.exchange(at(100));
    let peer = pair.peer_at_relay();
    assert_eq!(pair.relay.grant_of(peer), Some(&longer));
}

#[test]
fn a_neighbour_that_started_again_is_noticed_while_it_is_asked_over_two_ways() {
    let mut pair = Pair::established();
    for tick in 1..=10 {
        let now = at(1000 + 200 * tick);
        pair.endpoint.ask(now, pair.peer, link(RELAY));
        pair.endpoint.ask(now, pair.peer, Link::Overlay(7));
        pair.endpoint.handle_timeout(now);
    }
    let initiations = transmits(&mut pair.endpoint);
    assert!(initiations.iter().any(|sent| sent.bytes[0] == 0x11), "nobody begins again");
}

#[test]
fn a_farewell_ends_a_session_at_once() {
    let mut pair = Pair::established();
    pair.endpoint.close(pair.peer);
    pair.exchange(at(50));
    assert!(pair.relay.is_empty() && pair.endpoint.is_empty());
    assert!(matches!(events(&mut pair.relay)[..], [Event::Closed { .. }]));
}

#[test]
fn one_identity_takes_its_share_of_neighbours() {
    let limits = Limits { peers: 100, peers_each: 3, ..Limits::default() };
    let mut relay = machine(relay(), &[], limits, 12);
    let mut answers = 0;
    for seed in 20..30 {
        let mut endpoint = machine(endpoint(), &[], Limits::default(), seed);
        let grant = signed(grant_for(self::endpoint().public(), Relays::Any));
        endpoint.connect(at(1), self::relay().public(), link(RELAY), Some(grant)).unwrap();
        let mut bytes = transmits(&mut endpoint).remove(0).bytes;
        relay.handle_datagram(at(2), link(ENDPOINT), &mut bytes);
        answers += transmits(&mut relay).len();
    }
    assert_eq!((answers, relay.len(), drops(&relay, DropReason::Full)), (3, 3, 7));
}

/// A gateway that restarts again and again, or with more workers than are allowed.
#[test]
fn who_is_silent_makes_room_for_another_of_the_same_identity() {
    let limits = Limits { peers_each: 3, ..Limits::default() };
    let mut relay = machine(relay(), &[], limits, 12);
    let mut ask = |seed: u8, millis: u64| {
        let mut endpoint = machine(endpoint(), &[], Limits::default(), seed);
        let grant = signed(grant_for(self::endpoint().public(), Relays::Any));
        endpoint.connect(at(millis), self::relay().public(), link(RELAY), Some(grant)).unwrap();
        let mut bytes = transmits(&mut endpoint).remove(0).bytes;
        relay.handle_datagram(at(millis), link(ENDPOINT), &mut bytes);
        (transmits(&mut relay).len(), relay.len())
    };
    assert_eq!([20, 21, 22].map(|seed| ask(seed, 1000)), [(1, 1), (1, 2), (1, 3)]);
    assert_eq!(ask(23, 5999), (0, 3));
    assert_eq!(ask(24, 6000), (1, 3));
}

#[test]
fn relays_have_as_many_workers_as_they_want() {
    let limits = Limits { peers_each: 3, ..Limits::default() };
    let mut relay = machine(relay(), &[endpoint().public()], limits, 12);
    for seed in 20..30 {
        let mut other = machine(endpoint(), &[], Limits::default(), seed);
        other.connect(at(1), self::relay().public(), link(RELAY), None).unwrap();
        let mut bytes = transmits(&mut other).remove(0).bytes;
        relay.handle_datagram(at(2), link(ENDPOINT), &mut bytes);
    }
    assert_eq!(relay.len(), 10);
}

#[test]
fn endpoints_seal_for_each_other_across_relays_that_read_nothing() {
    // The same machine between endpoints, one link over the Internet and one over relays: the first
    // copy is accepted.
    let mut pair = Pair::established();
    let overlay = tradewind_packet::session::Link::Overlay(7);
    let datagram = sealed(&mut pair.endpoint, pair.peer, b"secret of the application");
    assert!(!datagram.windows(6).any(|window| window == b"secret"));
    let mut poisoned = datagram.clone();
    *poisoned.last_mut().unwrap() ^= 1;
    assert!(opened(&mut pair.relay, at(50), overlay, &poisoned).is_none());
    assert!(opened(&mut pair.relay, at(50), overlay, &datagram).is_some());
    assert!(opened(&mut pair.relay, at(51), link(ENDPOINT), &datagram).is_none());
    assert_eq!(drops(&pair.relay, DropReason::Replayed), 1);
    assert_eq!(drops(&pair.relay, DropReason::AuthenticationFailed), 1);
}

/// Returns all that a stranger could observe, reset before each try.
fn watched(machine: &mut Sessions) -> (usize, Vec<Event>, usize) {
    (machine.len(), events(machine), transmits(machine).len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn what_is_altered_or_cut_changes_nothing(
        which in 0usize..4, flip in any::<prop::sample::Index>(), bit in 0u8..8,
        cut in prop::option::of(any::<prop::sample::Index>()), to_relay: bool,
    ) {
        let mut pair = Pair::fresh(Limits::default());
        let initiation = transmits(&mut pair.endpoint).remove(0).bytes;
        pair.relay.handle_datagram(at(1), link(ENDPOINT), &mut initiation.clone());
        let response = transmits(&mut pair.relay).remove(0).bytes;
        pair.endpoint.handle_datagram(at(2), link(RELAY), &mut response.clone());
        let confirmation = transmits(&mut pair.endpoint).remove(0).bytes;
        pair.relay.handle_datagram(at(3), link(ENDPOINT), &mut confirmation.clone());
        let data = sealed(&mut pair.endpoint, pair.peer, b"some payload that matters");
        let mut bytes = [initiation, response, confirmation, data.clone()][which].clone();
        match cut {
            Some(cut) => bytes.truncate(cut.index(bytes.len())),
            None => { let at = flip.index(bytes.len()); bytes[at] ^= 1 << bit; }
        }
        let target = if to_relay { &mut pair.relay } else { &mut pair.endpoint };
        let before = watched(target).0;
        let from = if to_relay { link(ENDPOINT) } else { link(RELAY) };
        prop_assert!(opened(target, at(4), from, &bytes).is_none());
        prop_assert_eq!(watched(target), (before, vec![], 0));
        // The session still works.
        prop_assert!(opened(&mut pair.relay, at(5), link(ENDPOINT), &data).is_some());
    }

    #[test]
    fn what_is_reflected_changes_nothing(payload in prop::collection::vec(any::<u8>(), 0..100)) {
        let mut pair = Pair::fresh(Limits::default());
        let mut seen = transmits(&mut pair.endpoint);
        pair.relay.handle_datagram(at(1), link(ENDPOINT), &mut seen[0].bytes.clone());
        let response = transmits(&mut pair.relay).remove(0);
        prop_assert!(opened(&mut pair.relay, at(1), link(ENDPOINT), &response.bytes).is_none());
        pair.endpoint.handle_datagram(at(2), link(RELAY), &mut response.bytes.clone());
        seen.extend(transmits(&mut pair.endpoint));
        events(&mut pair.endpoint);
        seen.push(tradewind_packet::session::Transmit {
            link: link(RELAY), bytes: sealed(&mut pair.endpoint, pair.peer, &payload),
            is_ours: true,
        });
        for transmit in seen {
            prop_assert!(opened(&mut pair.endpoint, at(3), link(RELAY), &transmit.bytes).is_none());
            prop_assert_eq!(watched(&mut pair.endpoint), (1, vec![], 0));
        }
    }

    #[test]
    fn noise_from_strangers_gets_no_byte_back(
        mut bytes in prop::collection::vec(any::<u8>(), 0..400), kind in 0x10u8..0x17, limits: bool,
    ) {
        let limits = Limits { handshakes: if limits { 0 } else { 100 }, ..Limits::default() };
        let mut relay = machine(relay(), &[], limits, 12);
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        prop_assert!(opened(&mut relay, at(1), link(6666), &bytes).is_none());
        prop_assert_eq!(watched(&mut relay), (0, vec![], 0));
        prop_assert_eq!(relay.drops().iter().sum::<u64>(), 1);
    }
}
