//! Eviction of conversations to make room for others.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;

use tradewind_config::packet::DeliveryPolicy;
use tradewind_net::descriptors;
use tradewind_packet::message::Carriage;
use tradewind_units::Duration;

use super::super::test_harness::{
    Hosts, anybody, application, forwarded, gateway, identity, loopback,
};
use super::{DatagramMeta, Local, MAX};
use crate::listener::{Queue, QueueGuard};
use crate::mailbox::Command;
use crate::ticks::TICK;

/// Gateways 1 and 5 before remote endpoint 4, and a route from each to one application behind that.
struct World {
    hosts: Hosts,
    routes: [(u8, u32); 2],
    _application: UdpSocket,
}

impl World {
    fn new() -> Self {
        descriptors::raise_limit().unwrap();
        let application = UdpSocket::bind(application()).unwrap();
        let to = application.local_addr().unwrap();
        let mut hosts = Hosts::new([(1, gateway(1)), (5, gateway(5)), (4, anybody(4))]);
        let remote = hosts.hop(4);
        let delivery =
            DeliveryPolicy { carriage: Carriage::DIRECT, ..forwarded(remote, Vec::new()) };
        let routes = [1, 5].map(|number| {
            let (now, local) = (hosts.now, Local::bind(loopback(), false, None).unwrap());
            (number, hosts.at(number).add_route(now, local, to, &delivery).unwrap())
        });
        hosts.exchange();
        Self { hosts, routes, _application: application }
    }

    fn route(&self, number: u8) -> u32 {
        self.routes.iter().find(|(known, _)| *known == number).unwrap().1
    }

    /// Has one of a gateway's applications write something, a little later than the one before.
    fn write(&mut self, number: u8, source: usize) {
        let (route, by) = (self.route(number), DatagramMeta::by(address(source)));
        self.hosts.now.steady = self.hosts.now.steady + Duration::from_millis(1);
        let now = self.hosts.now;
        self.hosts.at(number).take_application(now, route, by, b"any");
    }

    /// Does the same and lets it arrive.
    fn send_message(&mut self, number: u8, source: usize) {
        self.write(number, source);
        self.hosts.exchange();
    }

    /// Returns the conversation of an application, where it begins, and whether the remote endpoint
    /// knows it.
    fn conversation(&mut self, number: u8, source: usize) -> Option<(u32, bool)> {
        let route = self.route(number);
        let engine = self.hosts.at(number);
        let sources = &engine.routes.get(route).unwrap().sources;
        let (_, id) = sources.iter().find(|((known, _), _)| known.to == address(source))?;
        Some((*id, engine.conversations.outbound.get(*id).unwrap().is_known))
    }

    /// Returns how many conversations of a gateway end at the remote endpoint.
    fn at_the_remote_end(&mut self, number: u8) -> usize {
        let engine = self.hosts.at(4);
        let of =
            |remote| engine.context.sessions.identity_of(remote) == Some(identity(number).public());
        engine.conversations.inbound.values().filter(|inbound| of(inbound.remote)).count()
    }

    fn delivered(&mut self) -> u64 {
        self.hosts.at(4).context.counts.snapshot().delivered
    }
}

fn address(source: usize) -> SocketAddr {
    ([10, 0, 0, 1], u16::try_from(source + 1).unwrap()).into()
}

#[test]
fn outbound_limit_evicts_longest_silent() {
    let mut world = World::new();
    let mut talked_in = None;
    for source in 0..MAX * 3 {
        world.write(1, source + 1);
        if source % 100 == 0 {
            world.write(1, 0);
            let id = world.conversation(1, 0).unwrap().0;
            assert_eq!(*talked_in.get_or_insert(id), id, "it was let go, and began anew");
        }
    }
    let route = world.route(1);
    let engine = world.hosts.at(1);
    assert_eq!(engine.context.counts.snapshot().refused, 0);
    assert_eq!(engine.context.counts.snapshot().conversations_evicted, 2 * MAX as u64 + 1);
    assert_eq!(engine.conversations.outbound.len(), MAX);
    assert_eq!(engine.routes.get(route).unwrap().sources.len(), MAX);
    assert!(world.conversation(1, MAX * 3).is_some() && world.conversation(1, 1).is_none());
}

#[test]
fn inbound_limit_evicts_from_largest_gateway() {
    let mut world = World::new();
    (0..3).for_each(|source| world.send_message(5, source));
    (0..MAX).for_each(|source| world.send_message(1, source));
    assert_eq!((world.at_the_remote_end(1), world.at_the_remote_end(5)), (MAX - 3, 3));
    assert_eq!(world.delivered(), MAX as u64 + 3, "each was taken");
    // The first three were evicted, one for each of the last.
    let known = [0, 1, 2, 3].map(|source| world.conversation(1, source).unwrap().1);
    assert_eq!(known, [false, false, false, true]);
    world.send_message(1, 0);
    assert_eq!(world.delivered(), MAX as u64 + 4, "it was introduced again");
    // The notification of another one was lost.
    let (id, _) = world.conversation(1, 1).unwrap();
    world.hosts.at(1).conversations.outbound.get_mut(id).unwrap().is_known = true;
    world.send_message(1, 1);
    world.send_message(1, 1);
    assert_eq!(world.delivered(), MAX as u64 + 5);
    assert_eq!((world.at_the_remote_end(1), world.at_the_remote_end(5)), (MAX - 3, 3));
}

/// A server's datagram after a long silence arrives.
#[test]
fn reply_after_long_silence_is_delivered() {
    let mut world = World::new();
    let client = UdpSocket::bind(loopback()).unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_secs(5))).unwrap();
    let (route, by) = (world.route(1), DatagramMeta::by(client.local_addr().unwrap()));
    let now = world.hosts.now;
    world.hosts.at(1).take_application(now, route, by, b"hello");
    world.hosts.exchange();
    assert_eq!(world.delivered(), 1);
    world.hosts.pass(super::IDLE * 2);
    let now = world.hosts.now;
    let engine = world.hosts.at(4);
    let id = engine.conversations.inbound.ids().next().expect("the conversation ends here still");
    let server = engine.conversations.inbound.get(id).unwrap().to;
    engine.take_reply(now, id, DatagramMeta::by(server), b"at last");
    engine.flush();
    world.hosts.exchange();
    let mut buffer = [0; 16];
    let length = client.recv(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"at last");
    assert_eq!(world.hosts.at(1).context.counts.snapshot().conversations_evicted, 0);
}

/// A flow that a program has accepted lasts as long as the other side's.
#[test]
fn accepted_flow_survives_long_silence() {
    let mut hosts = Hosts::new([(1, gateway(1)), (4, anybody(4))]);
    let to: SocketAddr = ([127, 0, 0, 2], 9).into();
    let queue = QueueGuard(Arc::new(Queue::new().unwrap()));
    hosts.send_command(4, Command::Listen { number: 0, to, queue });
    let remote = hosts.hop(4);
    // The second one keeps the gateways' session alive.
    let [flow, _other] = [0; 2].map(|_| {
        hosts.register(
            1,
            DeliveryPolicy { carriage: Carriage::DIRECT, ..forwarded(remote, Vec::new()) },
        )
    });
    hosts.pass(Duration::from_secs(1));
    let (now, by) = (hosts.now, DatagramMeta::by(([0, 0, 0, 0], 0).into()));
    let route = *hosts.at(1).flows.get(&flow).unwrap();
    hosts.at(1).take_application(now, route, by, b"hello");
    hosts.exchange();
    hosts.pass(super::IDLE * 2);
    let id = *hosts.at(4).accepted.values().next().expect("silent, and there");
    let now = hosts.now;
    hosts.at(4).take_reply(now, id, DatagramMeta::by(to), b"at last");
    hosts.at(4).flush();
    hosts.exchange();
    assert_eq!(hosts.at(1).context.counts.snapshot().delivered, 1);
    hosts.send_command(1, Command::Close { flow });
    hosts.pass(super::IDLE - TICK * 2);
    assert_eq!(hosts.at(4).accepted.len(), 1, "what was said last may still come");
    hosts.pass(TICK * 4);
    assert_eq!(hosts.at(4).accepted.len(), 0);
}

/// Packets with a budget of 300 ms that this process fetches late, since it has stood still, are
/// dropped.
#[test]
fn late_packets_are_dropped_and_counted() {
    let mut world = World::new();
    let carriage = Carriage { budget_ms: 300, ..Carriage::DIRECT };
    let route = world.route(1);
    world.hosts.at(1).routes.get_mut(route).unwrap().delivery.carriage = carriage;
    let (now, by) = (world.hosts.now, DatagramMeta::by(address(0)));
    for (age_ms, delivered) in [(0, 1), (299, 2), (301, 2), (20_000, 2)] {
        let engine = world.hosts.at(1);
        engine.note_age(Some(Duration::from_millis(age_ms)));
        engine.take_application(now, route, by, b"any");
        engine.note_age(None);
        world.hosts.exchange();
        assert_eq!(world.delivered(), delivered, "after {age_ms} ms");
    }
    assert_eq!(world.hosts.at(1).context.counts.snapshot().stale, 2);
    // The same where they end.
    let engine = world.hosts.at(4);
    let (remote, conversation) = *engine.conversations.inbound_ids.keys().next().unwrap();
    engine.note_age(Some(Duration::from_secs(20)));
    engine.deliver(now, remote, conversation, b"late");
    engine.note_age(None);
    engine.flush();
    assert_eq!((world.delivered(), world.hosts.at(4).context.counts.snapshot().stale), (2, 1));
}
