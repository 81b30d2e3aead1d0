//! Packets that a relay recovers, in order or not, between engines over real sockets.

use std::net::UdpSocket;
use std::ops::Range;

use tradewind_config::packet::DeliveryPolicy;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::{Duration, Ratio};

use super::super::conversations::DatagramMeta;
use super::super::local::Local;
use super::super::test_harness::{Hosts, anybody, application, forwarded, gateway, loopback};
use crate::ticks::TICK;

/// Gateway 1 and remote endpoint 4 with a relay near each, and an application at the remote side.
struct World {
    hosts: Hosts,
    route: u32,
    server: UdpSocket,
}

impl World {
    /// Takes the carriage of packets, and the share of them that may be lost before a stronger
    /// service is chosen, if one may be.
    fn new(carriage: Carriage, max_loss: Option<Ratio>) -> Self {
        let all = [(1, gateway(1)), (2, anybody(2)), (3, anybody(3)), (4, anybody(4))];
        let mut hosts = Hosts::new(all);
        let server = UdpSocket::bind(application()).unwrap();
        server.set_nonblocking(true).unwrap();
        let (relays, remote) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
        let delivery = DeliveryPolicy { carriage, max_loss, ..forwarded(remote, relays) };
        let (now, local) = (hosts.now, Local::bind(loopback(), false, None).unwrap());
        let to = server.local_addr().unwrap();
        let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
        hosts.pass(Duration::from_secs(3));
        Self { hosts, route, server }
    }

    /// Has the application write these numbers.
    fn write(&mut self, numbers: Range<u64>) {
        for number in numbers {
            let (now, by) = (self.hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
            let packet = number.to_be_bytes().repeat(100);
            self.hosts.at(1).take_application(now, self.route, by, &packet);
        }
        self.hosts.exchange();
    }

    /// Returns the numbers that have arrived since the last call.
    fn received(&mut self) -> Vec<u64> {
        let (mut numbers, mut buffer) = (Vec::new(), [0; 2048]);
        while let Ok(length) = self.server.recv(&mut buffer) {
            assert_eq!(length, 800);
            numbers.push(u64::from_be_bytes(buffer[..8].try_into().unwrap()));
        }
        numbers
    }
}

/// Carried with caching, within a budget.
const CACHED: Carriage =
    Carriage { service: Service::Caching, budget_ms: 1000, in_order: true, ..Carriage::DIRECT };

/// Returns the numbers of packets in the order in which an application gets them, where the
/// Internet loses one of twelve and a relay caches them, and how many were reordered.
fn received(in_order: bool) -> (Vec<u64>, u64) {
    let mut world = World::new(Carriage { in_order, ..CACHED }, None);
    let mut numbers = Vec::new();
    for burst in 0..80_u64 {
        if burst == 8 {
            world.hosts.lose_each(1, 4, 12);
        }
        world.write(burst * 5..burst * 5 + 5);
        world.hosts.pass(TICK);
        numbers.extend(world.received());
    }
    let remote = world.hosts.at(4);
    assert_eq!(remote.services.order.bytes(), 0);
    (numbers, remote.context.counts.snapshot().reordered)
}

#[test]
fn recovered_packets_are_delivered_in_order() {
    let (as_they_come, waited) = received(false);
    assert!(!as_they_come.is_sorted(), "none came out of order: nothing is shown");
    assert_eq!(waited, 0);
    let (ordered, waited) = received(true);
    assert!(ordered.is_sorted() && waited > 0, "{waited} waited of {ordered:?}");
    assert!(ordered.len() > 390, "{} of 400", ordered.len());
}

/// Lost packets are not recovered in a flow that is left to the Internet, nor over relays alone.
#[test]
fn unrecoverable_packets_are_not_waited_for() {
    let auto = Carriage { in_order: true, budget_ms: 1000, ..Carriage::DIRECT };
    let over = Carriage { service: Service::Forwarding, paths: Paths::Overlay, ..auto };
    let any_loss = Ratio::new(1.0).unwrap();
    for (carriage, max_loss, lossy) in [(auto, Some(any_loss), 1), (over, None, 3)] {
        let mut world = World::new(carriage, max_loss);
        for burst in 0..20_u64 {
            if burst == 4 {
                world.hosts.lose_each(lossy, 4, 6);
            }
            world.write(burst * 5..burst * 5 + 5);
            let received = world.received().len();
            assert!(received >= 4, "{received} of 5, and others wait, with {:?}", carriage.service);
            world.hosts.pass(TICK);
        }
        assert_eq!(world.hosts.at(4).context.counts.snapshot().reordered, 0);
    }
}

#[test]
fn held_packets_are_delivered_when_gateway_leaves() {
    let mut world = World::new(CACHED, None);
    world.write(0..10);
    world.hosts.pass(Duration::from_secs(2));
    assert_eq!(world.received().len(), 10);
    world.hosts.lose_each(1, 4, 4);
    world.write(10..15);
    assert_eq!(world.received(), [10, 11, 12], "the fourth is lost, and the fifth waits");
    let near = world.hosts.at(1);
    let remote = near.routes.get(world.route).unwrap().remote;
    near.context.sessions.close(remote);
    world.hosts.exchange();
    assert_eq!(world.hosts.at(4).conversations.inbound.len(), 0);
    assert_eq!(world.received(), [14]);
}
