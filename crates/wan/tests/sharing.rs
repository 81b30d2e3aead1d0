//! Links and caps that several senders share.

mod common;

use common::*;
use tradewind_units::Duration;
use tradewind_wan::{Bundle, DropCause, LinkName, Tally, Wan};

const THREE_SITES: &str = "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[site]]\nid = 'c'\n\
                           [default.pair]\nrtt = '2 ms'\n";

fn tally<P: Clone>(wan: &Wan<P>, name: &str) -> Tally {
    let counters = wan.counters();
    let found = counters.links.iter().find(|link| link.name.to_string() == name);
    found.unwrap_or_else(|| panic!("no {name}")).tally
}

#[test]
fn a_shared_link_serves_in_order_of_arrival_whoever_sends() {
    let topology = parse(&format!(
        "{THREE_SITES}[[link]]\nname = 'cable'\nrate = '12 Mbit/s'\nqueue = '1 MB'\n\
         [[pair]]\nbetween = ['a', 'c']\nrtt = '0 ms'\nvia = ['cable']\n\
         [[pair]]\nbetween = ['b', 'c']\nrtt = '0 ms'\nvia = ['cable']\n\
         [[pair]]\nbetween = ['a', 'b']\nrtt = '0 ms'\nvia = ['cable']"
    ))
    .unwrap();
    let c = host(&topology, "c");
    let mut wan = Wan::new(&topology, 1);
    // 1500 B take a millisecond. Segments of a and b arrive at the cable in turn.
    for (n, source) in [(0, A), (1, B), (2, A), (3, B)] {
        push(&mut wan, at(n * 10), packet(source, c, 1500, n));
    }
    // The way back is another direction of the cable.
    push(&mut wan, at(50), packet(c, A, 1500, 9));
    let seen: Vec<_> = arrivals(&drain(&mut wan)).iter().map(|(n, _, due)| (*n, *due)).collect();
    assert_eq!(seen, [(0, 1000.0), (9, 1050.0), (1, 2000.0), (2, 3000.0), (3, 4000.0)]);
    assert_eq!(tally(&wan, "link cable forward").delivered, 4);
    assert_eq!(tally(&wan, "link cable backward").delivered, 1);
}

#[test]
fn segments_of_two_bundles_share_a_link_one_by_one() {
    // Each pair feeds the cable at 12 Mbit/s; the cable carries both at 24 Mbit/s.
    let topology = parse(&format!(
        "{THREE_SITES}[default.host]\negress = '12 Mbit/s'\ncap = 'tail-drop'\nburst = '1500 B'\n\
         [[link]]\nname = 'cable'\nrate = '24 Mbit/s'\nqueue = '1 MB'\n\
         [[pair]]\nbetween = ['a', 'c']\nvia = ['cable']\n\
         [[pair]]\nbetween = ['b', 'c']\nvia = ['cable']"
    ))
    .unwrap();
    let c = host(&topology, "c");
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    push(&mut wan, at(0), bundle(A, c, 1460, 3, 'a'));
    push(&mut wan, at(100), Bundle { connection: 2, ..bundle(B, c, 1460, 3, 'b') });
    let order: String = arrivals(&drain(&mut wan)).iter().map(|(name, ..)| *name).collect();
    assert_eq!(order, "ababab");
}

#[test]
fn an_ingress_cap_holds_for_all_senders_together() {
    let topology = parse(&format!(
        "{THREE_SITES}[[host]]\nid = 'sink'\nsite = 'c'\ningress = '12 Mbit/s'\nburst = '1500 B'\n\
         queue = '6000 B'"
    ))
    .unwrap();
    let sink = host(&topology, "sink");
    let [a, b] = ["a", "b"].map(|name| host(&topology, name));
    let mut wan = Wan::new(&topology, 1);
    for n in 0..4 {
        push(&mut wan, at(0), packet(a, sink, 1500, n));
        push(&mut wan, at(0), packet(b, sink, 1500, n + 10));
    }
    // The burst lets one pass, four wait, and the queue is full for three.
    let due: Vec<f64> = arrivals(&drain(&mut wan)).iter().map(|(_, _, due)| *due).collect();
    assert_eq!(due, [1000.0, 2000.0, 3000.0, 4000.0, 5000.0]);
    assert_eq!(tally(&wan, "ingress of sink").dropped(DropCause::QueueFull), 3);
}

#[test]
fn each_connection_has_its_own_cap_below_the_hosts() {
    let topology = parse(&format!(
        "{THREE_SITES}[[host]]\nid = 'x'\nsite = 'a'\nper_connection = '12 Mbit/s'\n\
         burst = '1500 B'\negress = '24 Mbit/s'\ncap = 'tail-drop'"
    ))
    .unwrap();
    let [x, b] = ["x", "b"].map(|name| host(&topology, name));
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    for connection in [1, 2] {
        push(&mut wan, at(0), Bundle { connection, ..bundle(x, b, 1460, 3, connection) });
    }
    let of = |connection| {
        let seen = arrivals(&drain(&mut wan.clone()));
        let own = seen.into_iter().filter(|(content, ..)| *content == connection);
        own.map(|(_, _, due)| due).collect::<Vec<_>>()
    };
    // Each sends one segment a millisecond; the host's cap puts the second's half one behind.
    assert_eq!(of(1), [1000.0, 2000.0, 3000.0]);
    assert_eq!(of(2), [1500.0, 2500.0, 3500.0]);
    assert_eq!(wan.counters().links[0].name.to_string(), "connections of x");
}

#[test]
fn caps_of_connections_at_rest_are_forgotten() {
    let topology =
        parse(&format!("{THREE_SITES}[default.host]\nper_connection = '12 Mbit/s'")).unwrap();
    let mut wan = Wan::new(&topology, 1);
    for n in 0..10_000_u64 {
        push(&mut wan, at(n * 2000), Bundle { connection: n, ..packet(A, B, 1500, n) });
        while wan.pop_due(at(n * 2000)).is_some() {}
    }
    assert_eq!(drain(&mut wan).len(), 1);
    let counters = wan.counters();
    assert_eq!(counters.total.delivered, 10_000);
    assert_eq!(tally(&wan, "connections of a").delivered, 10_000);
    assert!(counters.links.iter().all(|link| link.tally.is_conserved()));
}

#[test]
fn a_back_pressure_cap_is_not_policed_in_the_network() {
    let topology = parse(&format!("{THREE_SITES}[default.host]\negress = '1 Mbit/s'")).unwrap();
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), bundle(A, B, 1460, 5, ()));
    assert_eq!(drain(&mut wan)[0].due, at(1000));
    let is_egress = |name: &LinkName| matches!(name, LinkName::Egress(_));
    assert!(!wan.counters().links.iter().any(|link| is_egress(&link.name)));
}

#[test]
fn via_links_are_passed_in_order_and_reversed_on_return() {
    let topology = parse(&format!(
        "{THREE_SITES}[[link]]\nname = 'slow'\nrate = '12 Mbit/s'\n\
         [[link]]\nname = 'lossy'\nloss = 1\n\
         [[pair]]\nfrom = 'a'\nto = 'b'\nvia = ['slow', 'lossy']\n\
         [[pair]]\nbetween = ['b', 'c']\nvia = ['lossy', '-slow']"
    ))
    .unwrap();
    let c = host(&topology, "c");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), packet(A, B, 1500, ()));
    push(&mut wan, at(0), packet(c, B, 1500, ()));
    assert!(drain(&mut wan).is_empty());
    // From a: slow forward, then lost on lossy forward. From c: the reverse of b's way, so slow
    // forward first, then lost on lossy backward.
    assert_eq!(tally(&wan, "link slow forward").delivered, 2);
    assert_eq!(tally(&wan, "link lossy forward").dropped(DropCause::Random), 1);
    assert_eq!(tally(&wan, "link lossy backward").dropped(DropCause::Random), 1);
}
