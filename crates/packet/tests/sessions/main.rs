//! Sessions between an endpoint and a relay: handshakes, keepalive, and that a forged, replayed,
//! reordered, truncated or reflected datagram changes nothing and gets no answer.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod addresses;
#[path = "../cast/mod.rs"]
mod cast;
mod handshake;

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
fn datagrams_pass_once_in_any_order() {
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
fn rekey_loses_nothing() {
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
fn restarted_relay_is_found_in_two_seconds() {
    let mut pair = Pair::established();
    pair.relay = machine(relay(), &[], Limits::default(), 99);
    let mut restored = None;
    for step in 1..60u64 {
        let now = at(100 * step);
        if step.is_multiple_of(2) {
            pair.endpoint.ping(now, pair.peer, link(RELAY));
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
fn restarted_relay_with_known_round_trip_is_found() {
    let mut pair = Pair::established();
    pair.endpoint.ping(at(100), pair.peer, link(RELAY));
    pair.exchange(at(100));
    events(&mut pair.endpoint);
    // It is gone for three seconds.
    let ask = |pair: &mut Pair, step: u64| {
        let now = at(100 * step);
        if step.is_multiple_of(2) {
            pair.endpoint.ping(now, pair.peer, link(RELAY));
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
fn size_probe_has_requested_length() {
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
fn expired_grant_ends_session_clock_jump_does_not() {
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
fn session_ends_at_maximum_age() {
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
fn session_ends_with_trust_in_operator() {
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
fn changed_grant_is_sent() {
    let mut pair = Pair::established();
    let mut longer = grant_for(endpoint().public(), Relays::Any);
    longer.expires = at(9_000_000).unix;
    pair.endpoint.set_shown(at(100), &signed(longer.clone()));
    pair.exchange(at(100));
    let peer = pair.peer_at_relay();
    assert_eq!(pair.relay.grant_of(peer), Some(&longer));
}

#[test]
fn restarted_neighbour_is_noticed_on_two_links() {
    let mut pair = Pair::established();
    for tick in 1..=10 {
        let now = at(1000 + 200 * tick);
        pair.endpoint.ping(now, pair.peer, link(RELAY));
        pair.endpoint.ping(now, pair.peer, Link::Overlay(7));
        pair.endpoint.handle_timeout(now);
    }
    let initiations = transmits(&mut pair.endpoint);
    assert!(initiations.iter().any(|sent| sent.bytes[0] == 0x11), "nobody begins again");
}

#[test]
fn close_ends_session() {
    let mut pair = Pair::established();
    pair.endpoint.close(pair.peer);
    pair.exchange(at(50));
    assert!(pair.relay.is_empty() && pair.endpoint.is_empty());
    assert!(matches!(events(&mut pair.relay)[..], [Event::Closed { .. }]));
}

#[test]
fn neighbours_per_identity_are_bounded() {
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
fn silent_peer_is_evicted_for_same_identity() {
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
fn workers_share_an_identity() {
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
fn endpoints_seal_end_to_end() {
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

/// Returns all that an outsider could observe, reset before each try.
fn watched(machine: &mut Sessions) -> (usize, Vec<Event>, usize) {
    (machine.len(), events(machine), transmits(machine).len())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn altered_datagrams_are_dropped(
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
    fn reflected_datagrams_are_dropped(payload in prop::collection::vec(any::<u8>(), 0..100)) {
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
    fn noise_gets_no_answer(
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
