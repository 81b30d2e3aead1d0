//! Datagrams that are longer than every path, between engines over real sockets.

use std::net::{SocketAddr, UdpSocket};

use tradewind_config::packet::DeliveryPolicy;
use tradewind_packet::message::Carriage;
use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::session::PeerId;
use tradewind_units::Duration;

use super::super::conversations::DatagramMeta;
use super::super::local::Local;
use super::super::remotes::DatagramPaths;
use super::super::test_harness::{Hosts, anybody, application, forwarded, gateway, loopback};

/// Gateway 1 and remote endpoint 4, an application behind each, and a path that takes 1,200 bytes.
struct World {
    hosts: Hosts,
    route: u32,
    client: UdpSocket,
    server: UdpSocket,
}

impl World {
    fn new(fragment: bool) -> Self {
        let mut hosts = Hosts::new([(1, gateway(1)), (4, anybody(4))]);
        let [client, server] = [loopback(), application()].map(socket_at);
        let (remote, now) = (hosts.hop(4), hosts.now);
        let carriage = Carriage { fragment, budget_ms: 300, ..Carriage::DIRECT };
        let delivery = DeliveryPolicy { carriage, ..forwarded(remote, Vec::new()) };
        let (local, to) =
            (Local::bind(loopback(), false, None).unwrap(), server.local_addr().unwrap());
        let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
        hosts.pass(Duration::from_secs(1));
        let remote = hosts.at(1).routes.get(route).unwrap().remote;
        let mut world = Self { hosts, route, client, server };
        world.limit(1, remote);
        world
    }

    /// Limits an engine's path to another, as it finds it: nothing longer than every path takes
    /// arrives.
    fn limit(&mut self, number: u8, remote: PeerId) {
        let mut internet = PathMtu::new(self.hosts.now.steady);
        let mut at = self.hosts.now.steady;
        while internet.longest().is_none() {
            at = at + Duration::from_secs(1);
            internet.poll(at, Duration::ZERO);
        }
        self.hosts.at(number).remotes.get_mut(&remote).unwrap().mtus.internet = internet;
    }

    /// Has the client write so many bytes; returns what the server gets.
    fn ask(&mut self, length: usize) -> Option<Vec<u8>> {
        let (now, by) = (self.hosts.now, DatagramMeta::by(self.client.local_addr().unwrap()));
        let datagram: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        self.hosts.at(1).take_application(now, self.route, by, &datagram);
        self.hosts.exchange();
        self.hosts.pass(Duration::from_millis(50));
        got(&self.server).inspect(|got| assert!(*got == datagram, "{} bytes", got.len()))
    }

    /// Has the server reply with so many bytes; returns how many the client gets.
    fn answer(&mut self, length: usize) -> Option<usize> {
        let (now, by) = (self.hosts.now, DatagramMeta::by(self.server.local_addr().unwrap()));
        let engine = self.hosts.at(4);
        let id = engine.conversations.inbound.ids().next().unwrap();
        engine.take_reply(now, id, by, &vec![9; length]);
        self.hosts.exchange();
        self.hosts.pass(Duration::from_millis(50));
        got(&self.client).map(|got| got.len())
    }
}

fn socket_at(address: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

fn got(socket: &UdpSocket) -> Option<Vec<u8>> {
    let mut buffer = vec![0; 65_507];
    let length = socket.recv(&mut buffer).ok()?;
    Some(buffer[..length].to_vec())
}

#[test]
fn oversized_datagrams_are_counted() {
    let mut world = World::new(false);
    assert!(world.ask(100).is_some());
    // It is sent all the same: the path's limit may have changed.
    assert!(world.ask(1500).is_some());
    assert_eq!(world.hosts.at(1).context.counts.snapshot().too_long, 1);
    let remote = world.hosts.at(4).conversations.inbound.values().next().unwrap().remote;
    world.limit(4, remote);
    assert!(world.answer(1500).is_some());
    assert_eq!(world.hosts.at(4).context.counts.snapshot().too_long, 1);
}

#[test]
fn long_datagrams_are_fragmented_both_ways() {
    let mut world = World::new(true);
    for length in [5000, 100, 1500, 20_000, 60_000] {
        assert_eq!(world.ask(length).map(|got| got.len()), Some(length));
    }
    let remote = world.hosts.at(4).conversations.inbound.values().next().unwrap().remote;
    world.limit(4, remote);
    for length in [100, 1500, 40_000] {
        assert_eq!(world.answer(length), Some(length));
    }
    let [near, remote] = [1, 4].map(|number| world.hosts.at(number).context.counts.snapshot());
    assert_eq!((near.cut, remote.joined, remote.cut, near.joined), (4, 4, 2, 2));
    assert_eq!((near.too_long, remote.too_long, near.unjoined, remote.unjoined), (0, 0, 0, 0));
}

#[test]
fn lost_fragment_drops_datagram() {
    let mut world = World::new(true);
    assert!(world.ask(100).is_some());
    // Every fifth fragment: one of the six of a datagram.
    world.hosts.lose_each(1, 4, 5);
    for _ in 0..10 {
        world.ask(6000);
    }
    world.hosts.pass(Duration::from_secs(1));
    let remote = world.hosts.at(4);
    let counts = remote.context.counts.snapshot();
    assert!(counts.unjoined > 5 && counts.unjoined + counts.joined == 10, "{counts:?}");
    assert_eq!((remote.fragments.joiner.len(), remote.fragments.joiner.bytes()), (0, 0));
}

/// A direct route beside one to the same remote endpoint whose overlay path takes more.
#[test]
fn direct_flow_ignores_relay_mtu() {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
    let (relay, remote, now) = (hosts.hop(2), hosts.hop(4), hosts.now);
    let (client, server) = (socket_at(loopback()), socket_at(application()));
    let to = server.local_addr().unwrap();
    let direct = DeliveryPolicy { carriage: Carriage::DIRECT, ..forwarded(remote, Vec::new()) };
    let [direct, over] = [direct, forwarded(remote, vec![relay])].map(|delivery| {
        let local = Local::bind(loopback(), false, None).unwrap();
        hosts.at(1).add_route(now, local, to, &delivery).unwrap()
    });
    hosts.pass(Duration::from_secs(2));
    let peer = hosts.at(1).routes.get(direct).unwrap().remote;
    let mut world = World { hosts, route: direct, client, server };
    world.limit(1, peer);
    for (route, too_long) in [(over, 0), (direct, 1)] {
        let (now, by) = (world.hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
        let engine = world.hosts.at(1);
        assert!(engine.remotes.get(&peer).unwrap().is_overlay_alive(now));
        engine.take_application(now, route, by, &[7; 1300]);
        assert_eq!(engine.context.counts.snapshot().too_long, too_long);
    }
    let now = world.hosts.now;
    let engine = world.hosts.at(1);
    let longest = [over, direct].map(|route| {
        let route = engine.routes.get(route).unwrap();
        let paths = DatagramPaths::of(route.remote, route.carriage(), route.end);
        engine.remotes.longest_to(now, paths)
    });
    assert!(longest[0] > longest[1], "{longest:?}");
}
