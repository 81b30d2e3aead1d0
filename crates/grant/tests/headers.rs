//! The hop header from end to end: valid headers pass, all others are refused.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use common::{
    GRANT_LIFE, NOW, flow, gateway, grant, nonce, opened, operator, relay, route, seal_with,
    sealed, signed_grant, verifier,
};
use proptest::prelude::*;
use tradewind_grant::header::{HEADER_LIMIT, HEADER_PREFIX_BYTES, header_length};
use tradewind_grant::{
    Destination, DialLimit, Grant, GrantError, Hop, IdentityKey, Opening, OperatorKey,
    PublicIdentity, ReceivedHeader, Relays, Reply, Request, Route, Sealer, Terms, Verifier,
};
use tradewind_units::{Duration, FlowId, Timestamp};

const TO: &str = "10.1.2.3:443";

#[test]
fn header_passes_three_relays() {
    let mut header = sealed(&[1, 2, 3], TO);
    for hop in 0..3_usize {
        let mut relay = verifier(hop as u8 + 1);
        let open = relay.open(NOW, &header.bytes).unwrap();
        assert_eq!(open.hop, hop);
        assert_eq!(open.flow, flow());
        assert_eq!(open.destination, TO.parse().unwrap());
        assert_eq!(open.route, route(&[1, 2, 3]));
        assert_eq!(open.grant_id, signed_grant().id());
        let neighbour = if hop == 0 { gateway() } else { common::relay(hop as u8) };
        assert_eq!(open.neighbour(), neighbour.public());
        match relay.forward(&open).unwrap() {
            Some(next) => {
                assert_eq!(open.next_hop(), route(&[1, 2, 3]).hops().get(hop + 1));
                assert_eq!(next.bytes.len(), header.bytes.len());
                header = next;
            }
            None => assert_eq!((hop, open.next_hop()), (2, None)),
        }
    }
}

#[test]
fn dial_terms_reach_every_relay_of_the_path() {
    let (flow, destination, route) = (flow(), TO.parse().unwrap(), route(&[1, 2, 3]));
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let limit = DialLimit::covering(Duration::from_millis(1200));
    let terms = Terms { dial_limit: Some(limit), may_stripe: true };
    let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
    let mut header = sealer.seal_on_terms(NOW, nonce(1), &request, terms).unwrap();
    for hop in 0..3 {
        let mut relay = verifier(hop + 1);
        let open = relay.open(NOW, &header.bytes).unwrap();
        assert_eq!(open.terms.dial_limit, Some(limit), "hop {hop}");
        assert_eq!(open.terms.may_stripe, hop == 0, "each leg's own neighbour says that");
        if let Some(next) = relay.forward(&open).unwrap() {
            header = next;
        }
    }
    assert_eq!(opened(1, &sealed(&[1], TO)).unwrap().terms, Terms::default());
}

#[test]
fn bit_flips_are_refused_at_every_hop() {
    let first = sealed(&[1, 2], TO);
    let second = {
        let mut relay = verifier(1);
        let open = relay.open(NOW, &first.bytes).unwrap();
        relay.forward(&open).unwrap().unwrap()
    };
    for (number, header) in [(1, &first), (2, &second)] {
        let mut relay = verifier(number);
        for bit in 0..header.bytes.len() * 8 {
            let mut bytes = header.bytes.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let refused = relay.open(NOW, &bytes);
            assert!(refused.is_err(), "hop {number}: bit {bit} was flipped and nobody saw");
        }
        assert!(relay.open(NOW, &header.bytes).is_ok(), "no false header spends the nonce");
    }
}

#[test]
fn truncation_and_trailing_bytes_are_refused() {
    let header = sealed(&[1], TO);
    for length in 0..header.bytes.len() {
        assert!(verifier(1).open(NOW, &header.bytes[..length]).is_err(), "{length}");
    }
    let longer = [header.bytes.as_slice(), &[0]].concat();
    assert!(verifier(1).open(NOW, &longer).is_err());
}

#[test]
fn prefix_gives_the_length() {
    let header = sealed(&[1, 2, 3], TO);
    let prefix = &header.bytes[..HEADER_PREFIX_BYTES];
    assert_eq!(header_length(prefix), Ok(header.bytes.len()));
    let refused = header_length(b"GET / HTTP/1.1").unwrap_err();
    assert_eq!(refused.to_string(), "malformed header magic and version at byte 0");
    assert!(header_length(b"TWH\x01\xff\xff").is_err());
    assert!(header_length(b"TWH\x02\x01\x00").is_err());
}

#[test]
fn reordered_route_is_refused() {
    // The same gateway seals both routes under one nonce; parts of one are put into the other.
    let [one, other] = [[1, 2], [2, 1]].map(|relays| sealed(&relays, TO).bytes);
    let tags_at = one.len() - 17 - 32;
    for (fixed, rest, number) in [(&one, &other, 1), (&other, &one, 2), (&one, &other, 2)] {
        let mixed = [&fixed[..tags_at], &rest[tags_at..]].concat();
        assert!(verifier(number).open(NOW, &mixed).is_err());
    }
}

#[test]
fn header_for_another_hop_is_refused() {
    let header = sealed(&[1, 2], TO);
    for number in [2, 3] {
        let refused = opened(number, &header).unwrap_err();
        let expected = relay(1).public();
        assert_eq!(refused.cause, GrantError::NotOnRoute { hop: 0, expected });
        assert!(refused.upstream.is_none(), "nobody is proven to a relay that is not on the route");
    }
}

#[test]
fn rotating_relay_opens_and_forwards_under_either_identity() {
    let mut rotating = verifier(9);
    rotating.set_identities(&[relay(9), relay(1)]);
    assert_eq!(rotating.public(), relay(9).public());
    let mut headers = [[1, 2], [9, 2]].map(|relays| {
        let grant = Grant { relays: Relays::Any, ..grant() }.sign(&operator()).unwrap();
        seal_with(grant, &relays, TO).unwrap()
    });
    for (header, named) in headers.iter().zip([1, 9]) {
        // Each with its own replay table, since both have the same nonce.
        let mut rotating = verifier(9);
        rotating.set_identities(&[relay(9), relay(1)]);
        let open = rotating.open(NOW, &header.bytes).unwrap();
        assert_eq!(open.own(), relay(named).public());
        let next = rotating.forward(&open).unwrap().unwrap();
        assert_eq!(next.from, relay(named).public());
        let at_next = verifier(2).open(NOW, &next.bytes).unwrap();
        assert_eq!(at_next.neighbour(), relay(named).public());
    }
    let open = rotating.open(NOW, &headers[0].bytes).unwrap();
    rotating.set_identities(&[relay(9)]);
    assert!(rotating.forward(&open).is_err(), "it is not that relay any more");
    headers.reverse();
    let expected = relay(1).public();
    let refused = rotating.open(NOW, &headers[1].bytes).unwrap_err();
    assert_eq!(refused.cause, GrantError::NotOnRoute { hop: 0, expected });
}

#[test]
fn hello_is_for_either_identity_of_a_relay() {
    let mut rotating = verifier(1);
    rotating.open(NOW, &sealed(&[1], TO).bytes).unwrap();
    rotating.set_identities(&[relay(9), relay(1)]);
    let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
    let (from, to) = (gateway().public(), relay(1).public());
    let (hello, key) = sealer.hello(NOW, nonce(2), &from, &to).unwrap();
    let reply = rotating.open_hello(NOW, &hello).unwrap().seal(&Reply::ok(0));
    assert_eq!(key.open(&reply).unwrap(), Reply::ok(0));
}

#[test]
fn header_that_skips_a_hop_is_refused() {
    // Relay 1 forwards to relay 2; relay 3 gets hold of that copy and sends it as if at hop 2.
    let header = sealed(&[1, 2, 3], TO);
    let mut first = verifier(1);
    let open = first.open(NOW, &header.bytes).unwrap();
    let mut copy = first.forward(&open).unwrap().unwrap();
    let hop_at = copy.bytes.len() - 17;
    copy.bytes[hop_at] = 2;
    let refused = opened(3, &copy).unwrap_err();
    assert_eq!(refused.cause, GrantError::WrongNeighbour { hop: 2, neighbour: relay(2).public() });
    assert!(refused.upstream.is_none());
}

#[test]
fn replay_is_refused_with_a_reply() {
    let header = sealed(&[1], TO);
    let mut relay = verifier(1);
    relay.open(NOW, &header.bytes).unwrap();
    let refused = relay.open(NOW + Duration::from_secs(10), &header.bytes).unwrap_err();
    assert_eq!(refused.cause, GrantError::Replayed(nonce(1)));
    assert!(refused.upstream.is_some() && refused.hop == Some(0));
}

#[test]
fn header_outside_the_skew_is_refused() {
    let header = sealed(&[1], TO);
    let at = |nanos: u64| Timestamp::from_nanos(nanos);
    let skew = 30_000_000_000;
    let milli = 1_000_000;
    assert!(verifier(1).open(at(NOW.as_nanos() + skew), &header.bytes).is_ok());
    let refused = verifier(1).open(at(NOW.as_nanos() + skew + milli), &header.bytes).unwrap_err();
    assert!(matches!(refused.cause, GrantError::Skew { .. }), "{refused}");

    let mut early = grant();
    early.not_before = at(NOW.as_nanos() - 3 * skew);
    let header = seal_with(early.sign(&operator()).unwrap(), &[1], TO).unwrap();
    assert!(verifier(1).open(at(NOW.as_nanos() - skew), &header.bytes).is_ok());
    let refused = verifier(1).open(at(NOW.as_nanos() - skew - milli), &header.bytes).unwrap_err();
    assert!(matches!(refused.cause, GrantError::Skew { .. }), "{refused}");
}

#[test]
fn expired_grant_is_refused_even_if_cached() {
    let flow = flow();
    let (destination, route) = (TO.parse().unwrap(), route(&[1]));
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
    let mut relay = verifier(1);
    let last = Timestamp::from_nanos((NOW + GRANT_LIFE).as_nanos() - 1_000_000);
    let header = sealer.seal(last, nonce(1), &request).unwrap();
    relay.open(last, &header.bytes).unwrap();

    let late = sealer.seal(last, nonce(2), &request).unwrap();
    let refused = relay.open(NOW + GRANT_LIFE, &late.bytes).unwrap_err();
    assert!(matches!(refused.cause, GrantError::Expired { .. }));
    assert!(refused.upstream.is_some());
    let refused = sealer.seal(NOW + GRANT_LIFE, nonce(3), &request).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "grant expired at 2026-11-20T13:00:00Z, 0 s ago by the clock here"
    );
}

#[test]
fn future_grant_is_refused() {
    let mut later = grant();
    later.not_before = NOW + Duration::from_secs(60);
    let refused = seal_with(later.sign(&operator()).unwrap(), &[1], TO).unwrap_err();
    assert!(matches!(refused, GrantError::NotYetValid { .. }));
}

#[test]
fn grant_of_unknown_operator_gets_no_reply() {
    let unknown_operator = OperatorKey::from_entropy([99; 32]);
    let header = seal_with(grant().sign(&unknown_operator).unwrap(), &[1], TO).unwrap();
    let refused = opened(1, &header).unwrap_err();
    assert_eq!(refused.cause, GrantError::UnknownKey(unknown_operator.public().key_id()));
    assert!(refused.upstream.is_none());
}

#[test]
fn stolen_grant_is_refused() {
    let thief = IdentityKey::from_entropy([66; 32]);
    let refused = Sealer::new(thief.clone(), signed_grant()).unwrap_err();
    assert!(matches!(refused, GrantError::WrongGateway { .. }));

    // A thief that seals under its own grant and then puts the stolen one in its place: both have
    // the same length.
    let mut own = grant();
    own.gateway = thief.public();
    let own = own.sign(&operator()).unwrap();
    let (flow, destination, route) = (flow(), TO.parse().unwrap(), route(&[1]));
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let sealed = Sealer::new(thief, own.clone()).unwrap().seal(NOW, nonce(1), &request).unwrap();
    let stolen = signed_grant();
    let at = sealed.bytes.windows(own.as_bytes().len()).position(|w| w == own.as_bytes()).unwrap();
    let mut bytes = sealed.bytes;
    bytes[at..at + stolen.as_bytes().len()].copy_from_slice(stolen.as_bytes());
    let refused = verifier(1).open(NOW, &bytes).unwrap_err();
    assert_eq!(refused.cause, GrantError::GatewayTag { gateway: gateway().public(), hop: 0 });
}

#[test]
fn gateway_refuses_relays_and_destinations_without_a_grant() {
    let refused = seal_with(signed_grant(), &[1, 4], TO).unwrap_err();
    assert_eq!(refused, GrantError::RelayNotGranted(relay(4).public()));
    for outside in ["10.1.2.3:444", "11.0.0.1:443", "example.com:80", "[::1]:443"] {
        let refused = seal_with(signed_grant(), &[1], outside).unwrap_err();
        assert_eq!(refused, GrantError::DestinationNotGranted(outside.to_owned()));
    }
}

#[test]
fn weak_identity_on_the_route_is_refused() {
    let mut open = grant();
    open.relays = Relays::Any;
    let identity = PublicIdentity::from_bytes([0; 32]);
    let route = Route::new(vec![Hop { address: "192.0.2.1:7000".parse().unwrap(), identity }]);
    let (flow, destination, route) = (flow(), TO.parse().unwrap(), route.unwrap());
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let mut sealer = Sealer::new(gateway(), open.sign(&operator()).unwrap()).unwrap();
    let refused = sealer.seal(NOW, nonce(1), &request).unwrap_err();
    assert_eq!(refused, GrantError::WeakIdentity(identity));
}

#[test]
fn routes_without_sense_are_refused() {
    let hops = |numbers: &[u8]| -> Vec<Hop> {
        numbers.iter().flat_map(|&number| route(&[number]).hops().to_vec()).collect()
    };
    let loops = Route::new(hops(&[1, 2, 1])).unwrap_err();
    assert!(loops.to_string().contains("no relay twice"), "{loops}");
    assert!(Route::new(vec![]).is_err());
    assert!(Route::new(hops(&[1, 2, 3, 4, 5, 6, 7, 8, 9])).is_err());
    let mut no_port = hops(&[1]);
    no_port[0].address.set_port(0);
    assert!(Route::new(no_port).is_err());
}

#[test]
fn eight_relays_fit_and_longer_headers_are_not_sealed() {
    let mut open = grant();
    open.relays = Relays::Any;
    let grant = open.sign(&operator()).unwrap();
    let header = seal_with(grant.clone(), &[1, 2, 3, 4, 5, 6, 7, 8], TO).unwrap();
    assert!(header.bytes.len() <= HEADER_LIMIT);
    assert!(opened(1, &header).is_ok());

    let rules = ["[2001:db8::]/32:443"; 17].map(|rule| rule.parse().unwrap());
    let wordy = Grant { relays: Relays::Any, destinations: rules.into(), ..common::grant() };
    let grant = wordy.sign(&operator()).unwrap();
    let to = "[2001:db8::7]:443";
    assert!(seal_with(grant.clone(), &[1, 2, 3], to).is_ok());
    let (flow, route) = (FlowId::new("x".repeat(64)).unwrap(), route(&[1, 2, 3, 4, 5, 6, 7, 8]));
    let destination = to.parse().unwrap();
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let refused = Sealer::new(gateway(), grant).unwrap().seal(NOW, nonce(1), &request).unwrap_err();
    assert_eq!(refused.to_string(), "hop header takes 1078 bytes, at most 1024 fit");
}

#[test]
fn only_the_holder_of_the_relay_key_can_open() {
    let header = sealed(&[1], TO);
    let mut imposter =
        Verifier::new(IdentityKey::from_entropy([77; 32]), vec![operator().public()]);
    assert!(imposter.open(NOW, &header.bytes).is_err());
}

fn any_destination() -> impl Strategy<Value = Destination> {
    let octets = (any::<[u8; 3]>(), Just(443))
        .prop_map(|([b, c, d], port)| Destination::new(&format!("10.{b}.{c}.{d}"), port).unwrap());
    let name = ("[a-z][a-z0-9]{0,20}", Just(443))
        .prop_map(|(label, port)| Destination::new(&format!("{label}.example.com"), port).unwrap());
    octets.boxed().prop_union(name.boxed())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn relay_opens_what_a_gateway_seals(
        flow in "[a-zA-Z0-9][a-zA-Z0-9_.:-]{0,63}",
        destination in any_destination(),
        relays in proptest::sample::subsequence(vec![1u8, 2, 3], 1..=3).prop_shuffle(),
        entropy in any::<[u8; 16]>(),
    ) {
        let (flow, route) = (FlowId::new(flow).unwrap(), route(&relays));
        let request = Request { flow: &flow, destination: &destination, route: &route };
        let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
        let nonce = tradewind_grant::Nonce::from_entropy(entropy);
        let sealed = sealer.seal(NOW, nonce, &request).unwrap();
        let open = opened(relays[0], &sealed).unwrap();
        prop_assert_eq!(open.flow, flow);
        prop_assert_eq!(open.destination, destination);
        prop_assert_eq!(open.route, route);
    }

    #[test]
    fn header_parser_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..1100)) {
        let _ = verifier(1).open(NOW, &bytes);
        let framed = [b"TWH\x01".as_slice(), &(bytes.len() as u16 + 6).to_be_bytes(), &bytes];
        prop_assert!(verifier(1).open(NOW, &framed.concat()).is_err());
    }

    #[test]
    fn damaged_headers_are_refused(
        at in 0usize..300, bytes in proptest::collection::vec(any::<u8>(), 1..40),
    ) {
        let header = sealed(&[1, 2], TO);
        let mut damaged = header.bytes.clone();
        for (offset, byte) in bytes.iter().enumerate() {
            if let Some(target) = damaged.get_mut(at + offset) {
                *target = *byte;
            }
        }
        prop_assume!(damaged != header.bytes);
        prop_assert!(verifier(1).open(NOW, &damaged).is_err());
    }
}

#[test]
fn header_stays_unjudged_once_the_table_is_handed_over() {
    let (flow, destination, route) = (flow(), TO.parse().unwrap(), route(&[1]));
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let mut sealer = Sealer::new(gateway(), signed_grant()).unwrap();
    let mut sealed_as = |number| sealer.seal(NOW, nonce(number), &request).unwrap();
    let (before, after, last) = (sealed_as(1), sealed_as(2), sealed_as(3));
    let (mut old, mut new) = (verifier(1), verifier(1));
    old.open(NOW, &before.bytes).unwrap();
    let table = old.hand_over().unwrap();
    assert!(old.hand_over().is_none(), "there is one table");
    new.take_over(table);
    let begin = |old: &mut Verifier, bytes| {
        let header = ReceivedHeader::parse(bytes).unwrap();
        match old.begin_open(NOW, header).unwrap() {
            Opening::Unjudged(unjudged) => *unjudged,
            Opening::Open(_) => panic!("it was not judged"),
        }
    };
    let seen = begin(&mut old, &before.bytes);
    let verdict = new.judge(NOW, &seen.sighting).unwrap();
    let refusal = old.finish(seen, verdict).unwrap_err();
    assert!(matches!(refusal.cause, GrantError::Replayed(_)), "{refusal}");
    assert!(refusal.upstream.is_some(), "its neighbour is proven, and told");
    let fresh = begin(&mut old, &after.bytes);
    let verdict = new.judge(NOW, &fresh.sighting).unwrap();
    assert!(old.finish(fresh, verdict).is_ok());
    let refusal = new.open(NOW, &after.bytes).unwrap_err();
    assert!(matches!(refusal.cause, GrantError::Replayed(_)), "the old one let it in: {refusal}");
    // Who does not ask lets nothing in.
    let refusal = old.open(NOW, &last.bytes).unwrap_err();
    assert!(matches!(refusal.cause, GrantError::ReplayTableFull(0)), "{refusal}");
}
