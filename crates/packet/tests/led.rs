//! Neighbours with several addresses: a session goes on at another one.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod cast;

use cast::*;
use tradewind_packet::session::{Event, Transmit};

fn is_elsewhere(transmit: &Transmit) -> bool {
    transmit.link == link(RELAY + 1)
}

#[test]
fn redirected_neighbour_follows() {
    let mut pair = Pair::established();
    let peer = pair.peer_at_relay();
    let (before, other) = (link(ENDPOINT), link(ENDPOINT + 1));
    pair.endpoint.lead_to(at(100), pair.peer, link(RELAY + 1));
    assert_eq!(pair.endpoint.link_of(pair.peer), Some(link(RELAY + 1)));
    // The first message about it is lost; datagrams sealed before then open as before.
    assert!(transmits(&mut pair.endpoint).iter().all(is_elsewhere));
    let datagram = sealed(&mut pair.endpoint, pair.peer, b"by old keys");
    assert!(opened(&mut pair.relay, at(120), other, &datagram).is_some());
    transmits(&mut pair.relay);
    assert_eq!(pair.relay.link_of(peer), Some(before), "an arrival proves nothing");
    pair.endpoint.handle_timeout(at(1200));
    let again = transmits(&mut pair.endpoint);
    assert!(!again.is_empty() && again.iter().all(is_elsewhere), "it is said once");
    for mut transmit in again {
        pair.relay.handle_datagram(at(1210), other, &mut transmit.bytes);
    }
    for mut transmit in transmits(&mut pair.relay) {
        assert_eq!(transmit.link, other);
        pair.endpoint.handle_datagram(at(1220), link(RELAY + 1), &mut transmit.bytes);
    }
    for mut transmit in transmits(&mut pair.endpoint) {
        pair.relay.handle_datagram(at(1230), other, &mut transmit.bytes);
    }
    assert_eq!(pair.relay.link_of(peer), Some(other), "it answers there from now on");
    assert_eq!((pair.relay.len(), pair.endpoint.len()), (1, 1));
    let is_closed = |event: &Event| matches!(event, Event::Closed { .. });
    assert!(!events(&mut pair.relay).iter().any(is_closed));
    transmits(&mut pair.relay);
    pair.endpoint.handle_timeout(at(5000));
    assert!(transmits(&mut pair.endpoint).is_empty(), "it has followed: no more is asked");
}

#[test]
fn accepted_neighbour_is_not_redirected() {
    let mut pair = Pair::established();
    let peer = pair.peer_at_relay();
    pair.relay.lead_to(at(100), peer, link(6666));
    assert_eq!(pair.relay.link_of(peer), Some(link(ENDPOINT)));
    assert!(transmits(&mut pair.relay).is_empty());
}
