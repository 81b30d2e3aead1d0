//! Caching and coding between unmodified UDP applications over loopback: chosen datagrams of the
//! Internet path are lost, and recovered.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::time::{Duration, Instant};

use nodes::world::{World, world, world_of};
use nodes::*;
use tradewind_node::status::{Direction, FlowStatus};
use tradewind_node::{Node, RelayServices};
use tradewind_packet::ingress::{Coding, InStream};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::{PricePerGb, Ratio};

#[test]
fn cached_packet_is_recovered() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    let next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    world.lose_and_recover(next, 5, 4);
    let remote = world.sides[0].remote.snapshot();
    assert!(remote.recovered_cache >= 30, "{}", world.describe());
}

#[test]
fn one_relay_serves_both_roles() {
    let world = world(Service::Caching, 1, 1, RelayServices::default());
    let next = world.warm(0, |world| world.relays[0].snapshot().cached > 20);
    world.lose_and_recover(next, 5, 4);
    assert!(world.sides[0].remote.snapshot().recovered_cache >= 30, "{}", world.describe());
}

#[test]
fn coded_packet_is_recovered_with_helpers() {
    let coding = Coding { packets: 3, repairs: 2, ..Coding::default() };
    let services = RelayServices { coding, in_stream: None, ..RelayServices::default() };
    let world = world(Service::Coding, 2, 3, services);
    let next = world.warm(0, |world| world.relays[0].snapshot().repairs > 20);
    // On a busy machine helpers may request the very packets that they should lend: then that block
    // is not decoded.
    world.lose_and_recover(next, 5, 15);
    let [first, second, third] = [0, 1, 2].map(|side| world.sides[side].remote.snapshot());
    assert!(first.recovered_cross_stream >= 20, "{}", world.describe());
    assert!(second.lent + third.lent >= 20, "{}", world.describe());
    assert_eq!(first.recovered_in_stream, 0, "{}", world.describe());
}

#[test]
fn single_flow_is_recovered_in_stream() {
    // One repair packet more than losses: on a busy machine one more packet may be requested before
    // it arrives.
    let in_stream = Some(InStream { packets: 5, repairs: 2 });
    let world =
        world(Service::Coding, 2, 1, RelayServices { in_stream, ..RelayServices::default() });
    let next = world.warm(0, |world| world.relays[0].snapshot().repairs > 20);
    world.lose_and_recover(next, 10, 8);
    assert!(world.sides[0].remote.snapshot().recovered_in_stream >= 10, "{}", world.describe());
}

#[test]
fn replies_use_same_services() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    // The remote gateway's packets are cached at the first relay, which is near the receiver of
    // replies.
    world.warm(0, |world| world.relays[0].snapshot().cached > 20);
    assert!(world.sides[0].remote.snapshot().copied > 20);
}

#[test]
fn recovery_resumes_after_relay_restart() {
    let mut world = world(Service::Caching, 2, 1, RelayServices::default());
    let mut next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    for place in [0, 1] {
        let relay = world.relays.remove(place);
        let (address, first) = (relay.address(), next);
        drop(relay);
        while next < first + 300 {
            world.send(next);
            next += 1;
        }
        world.until("packets over the Internet", &mut next, |world| {
            world.sides[0].has_of(first..first + 300) == 300
        });
        let number = 2 + u8::try_from(place).unwrap();
        world.relays.insert(place, Node::start(plain(number, address, &[2])).unwrap());
        let back = Instant::now();
        let cached = world.relays[1].snapshot().cached;
        world.until("the services", &mut next, |world| {
            world.relays[1].snapshot().cached > cached + 20
        });
        let before = world.sides[0].remote.snapshot().recovered_cache;
        world.sides[0].wire.lose_each(world.near.address(), 5);
        world.until("recovery", &mut next, |world| {
            world.sides[0].remote.snapshot().recovered_cache > before + 10
        });
        world.sides[0].wire.lose_each(world.near.address(), 0);
        println!("packets came back {} ms after the relay", back.elapsed().as_millis());
    }
}

#[test]
fn forged_and_replayed_requests_are_dropped() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    let mut next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    let wire = &world.sides[0].wire;
    wire.lose_each(world.near.address(), 5);
    world.until("requests", &mut next, |world| world.relays[1].snapshot().answered > 20);
    wire.lose_each(world.near.address(), 0);
    // Until the requests have been answered, and for a hundred packets there were no more of them.
    let asked = || world.sides[0].remote.snapshot().asked;
    let mut asked_before = u64::MAX;
    while asked() != asked_before {
        asked_before = asked();
        let first = next;
        world.until("quiet", &mut next, |world| world.sides[0].has_of(first..first + 100) == 100);
    }
    let messages = wire.weather.lock().unwrap().back.clone();
    let relay = world.relays[1].address();
    let is_sealed = |datagram: &[u8]| [0x14, 0x15].contains(&datagram[0]);
    let messages: Vec<_> =
        messages.iter().filter(|(to, datagram)| *to == relay && is_sealed(datagram)).collect();
    assert!(messages.len() > 20, "{} datagrams", messages.len());
    let before = world.relays[1].snapshot();
    for (to, datagram) in &messages {
        wire.inject(*to, datagram);
        let mut forged = datagram.clone();
        *forged.last_mut().unwrap() ^= 1;
        wire.inject(*to, &forged);
    }
    let count = messages.len() as u64;
    world.until("the relay's refusal", &mut next, |world| {
        let after = world.relays[1].snapshot();
        after.duplicates >= before.duplicates + count && after.dropped >= before.dropped + count
    });
    // Nothing was answered, except for the receiver's own requests since, as may happen on a busy
    // machine.
    let answered = world.relays[1].snapshot().answered - before.answered;
    let asked = asked() - asked_before;
    assert!(answered <= asked, "{answered} answers, {asked} asked for: {}", world.describe());
}

#[test]
fn status_has_recovery_and_cost() {
    let usd = |usd| PricePerGb::from_usd_per_gb(usd).unwrap();
    let services =
        RelayServices { to_relays: usd(0.02), to_endpoints: usd(0.09), ..RelayServices::default() };
    let world = world(Service::Caching, 2, 1, services);
    let next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    world.lose_and_recover(next, 5, 4);
    let mut next = next + 10_000;
    world.until("the report", &mut next, |world| {
        let sent = &world.near.report().flows[0];
        sent.service == "caching"
            && sent.statistics.unwrap().recovered_cache >= 30
            && sent.billed.is_some_and(|billed| billed.bytes > 200_000 && billed.usd > 0.0)
    });
    let report = world.near.report();
    let [sent, received] = &report.flows[..] else { panic!("{report:?}") };
    assert_eq!((sent.direction, received.direction), (Direction::Sent, Direction::Received));
    assert_eq!(sent.listen, Some(world.near.local_addresses()[0]));
    assert!(sent.copies > 200 && sent.packets >= sent.copies - sent.resent, "{sent:?}");
    // The mean price lies between those of traffic to relays and to endpoints: 0.02 and 0.09
    // dollars a GB.
    let billed = sent.billed.unwrap();
    let per_gb = billed.usd / billed.bytes as f64 * 1e9;
    assert!((0.02..0.09).contains(&per_gb), "{per_gb}");
    // Each node writes its report once a second, so this one may be older than the other.
    world.until("the remote side's report", &mut next, |world| {
        let remote = world.sides[0].remote.report();
        let mut came = remote.flows.iter().filter(|flow| flow.direction == Direction::Received);
        came.any(|flow| flow.statistics.is_some_and(|statistics| statistics.recovered_cache >= 30))
    });
}

#[test]
fn forwarded_flow_reports_statistics_and_cost() {
    let usd = |usd| PricePerGb::from_usd_per_gb(usd).unwrap();
    let services =
        RelayServices { to_relays: usd(0.02), to_endpoints: usd(0.09), ..RelayServices::default() };
    let carriage = Carriage {
        service: Service::Forwarding,
        paths: Paths::Overlay,
        budget_ms: 3000,
        in_order: false,
        fragment: false,
    };
    let world = world_of(carriage, None, Duration::ZERO, (2, 1), services);
    let sent = |world: &World| world.near.report().flows[0].clone();
    let statistics = |world: &World| sent(world).statistics.unwrap();
    let mut next = world.warm(0, |world| {
        world.relays[1].snapshot().forwarded > 20 && sent(world).service == "forwarding"
    });
    assert_eq!(sent(&world).why, "as configured");
    // Relays forward packets without knowing their flow: each fifth is lost behind the last relay,
    // and is not recovered.
    world.sides[0].wire.lose_each(world.relays[1].address(), 5);
    world.until("losses", &mut next, |world| statistics(world).lost >= 20);
    let before = statistics(&world);
    world.until("more of them", &mut next, |world| statistics(world).lost >= before.lost + 60);
    let after = statistics(&world);
    let (lost, expected) = (after.lost - before.lost, after.expected - before.expected);
    assert!((4 * lost..7 * lost).contains(&expected), "{lost} of {expected}");
    assert_eq!(
        [after.recovered_cache, after.recovered_in_stream, after.recovered_cross_stream],
        [0; 3]
    );
    assert_eq!(world.relays.iter().map(|relay| relay.snapshot().cached).sum::<u64>(), 0);
    world.until("the bill", &mut next, |world| {
        let Some(billed) = sent(world).billed else { return false };
        // Half of the bytes went on between the relays, half to the endpoint: all are charged.
        let per_gb = billed.usd / billed.bytes as f64 * 1e9;
        billed.bytes > 500_000 && (0.053..0.057).contains(&per_gb)
    });
    // Replies, too.
    world.until("the remote side's report", &mut next, |world| {
        let remote = world.sides[0].remote.report();
        let [sent, received] = &remote.flows[..] else { return false };
        let statistics =
            |flow: &FlowStatus| flow.statistics.is_some_and(|statistics| statistics.in_time > 100);
        sent.service == "forwarding" && statistics(sent) && statistics(received)
    });
}

#[test]
fn service_is_bought_on_loss() {
    let carriage = Carriage { budget_ms: 3000, ..Carriage::DIRECT };
    let bearable = Ratio::new(0.05).unwrap();
    let world =
        world_of(carriage, Some(bearable), Duration::ZERO, (2, 1), RelayServices::default());
    let service = |world: &World| world.near.report().flows[0].service.clone();
    let why = |world: &World| world.near.report().flows[0].why.clone();
    let mut next = 0;
    world.until("the measurement of the paths", &mut next, |world| {
        !world.near.report().flows.is_empty() && why(world) == "the cheapest within its budget"
    });
    assert_eq!(service(&world), "direct");
    assert_eq!(world.near.snapshot().copied, 0, "{}", world.describe());
    world.sides[0].wire.lose_each(world.near.address(), 4);
    world.until("coding", &mut next, |world| service(world) == "coding");
    assert_eq!(why(&world), "another lost too much or came late");
    world.until("recovery", &mut next, |world| {
        world.sides[0].remote.snapshot().recovered_in_stream > 20
    });
}

#[test]
fn flow_uses_relays_while_internet_is_down() {
    let carriage = Carriage { budget_ms: 3000, ..Carriage::DIRECT };
    let bearable = Ratio::new(0.05).unwrap();
    let world =
        world_of(carriage, Some(bearable), Duration::ZERO, (2, 1), RelayServices::default());
    let is_now = |world: &World, service: &str, why: &str| {
        let report = world.near.report();
        report.flows.first().is_some_and(|flow| flow.service == service && flow.why == why)
    };
    let mut next = 0;
    let cheapest = "the cheapest within its budget";
    world.until("the measurement of the paths", &mut next, |world| {
        is_now(world, "direct", cheapest)
    });
    world.sides[0].wire.cut(world.near.address(), true);
    world.until("the relays", &mut next, |world| {
        is_now(world, "forwarding", "the Internet path does not answer")
    });
    let first = next;
    world.until("packets over the relays", &mut next, |world| {
        world.sides[0].has_of(first..first + 200) == 200
    });
    world.sides[0].wire.cut(world.near.address(), false);
    world.until("the Internet again", &mut next, |world| {
        !is_now(world, "forwarding", "the Internet path does not answer")
    });
}

#[test]
fn slow_internet_flow_is_forwarded() {
    let carriage = Carriage { budget_ms: 40, ..Carriage::DIRECT };
    let (bearable, delay) = (Ratio::new(0.05).unwrap(), Duration::from_millis(200));
    let world = world_of(carriage, Some(bearable), delay, (2, 1), RelayServices::default());
    let mut next = 0;
    world.until("forwarding", &mut next, |world| {
        let report = world.near.report();
        report.flows.first().is_some_and(|flow| flow.service == "forwarding")
    });
    // Packets that the Internet loses have already come over the relays.
    world.sides[0].wire.lose_each(world.near.address(), 2);
    let first = next;
    world.until("the packets over the relays", &mut next, |world| {
        world.sides[0].has_of(first..first + 200) == 200
    });
    assert!(world.sides[0].wire.lost() >= 90, "{}", world.describe());
}
