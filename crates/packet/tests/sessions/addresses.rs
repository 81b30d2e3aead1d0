//! Neighbours that write from other addresses.

use super::*;

#[test]
fn neighbour_moves_once_it_answers() {
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
fn send_from(pair: &mut Pair, peer: PeerId, elsewhere: Link) {
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
fn moved_relay_is_found_at_configured_address() {
    let mut pair = Pair::established();
    let (peer, elsewhere) = (pair.peer_at_relay(), link(RELAY + 1));
    send_from(&mut pair, peer, elsewhere);
    assert_eq!(pair.endpoint.link_of(pair.peer), Some(elsewhere));
    // The relay that moved is gone, and another process is at its old address.
    pair.relay = machine(relay(), &[], Limits::default(), 99);
    events(&mut pair.endpoint);
    for step in 31..60 {
        let now = at(100 * step);
        let asked = pair.endpoint.link_of(pair.peer).unwrap();
        pair.endpoint.ping(now, pair.peer, asked);
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
fn relayed_datagrams_move_no_neighbour() {
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
fn reply_leaves_from_addressed_ip() {
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
