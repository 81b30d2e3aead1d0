//! Datagrams of a group near the maximum length of the paths to its member, between engines over
//! real sockets.

use std::net::UdpSocket;

use tradewind_config::packet::{Group, GroupMember};
use tradewind_grant::Hop;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::session::OVERHEAD;
use tradewind_units::Duration;

use super::super::conversations::DatagramMeta;
use super::super::mtu::{DATAGRAM_BYTES, NUMBER_BYTES};
use super::super::paths::EITHER_PATH;
use super::super::test_harness::{Hosts, anybody, application, gateway, identity, loopback};
use crate::handover::Handover;

/// Gateway 1 with a group of one member: remote endpoint 4, over relay 2 or one that is silent.
struct World {
    hosts: Hosts,
    head: u32,
    server: UdpSocket,
    _silent: UdpSocket,
}

impl World {
    fn new(has_relay: bool) -> Self {
        let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
        let server = UdpSocket::bind(application()).unwrap();
        server.set_nonblocking(true).unwrap();
        let silent = UdpSocket::bind(loopback()).unwrap();
        let relay = if has_relay {
            hosts.hop(2)
        } else {
            let address = silent.local_addr().unwrap();
            Hop { address, identity: identity(2).public() }
        };
        let to = server.local_addr().unwrap();
        let member = GroupMember { remote: hosts.hop(4).into(), to, relays: vec![relay].into() };
        let carriage = Carriage { service: Service::Caching, ..EITHER_PATH };
        let group = Group { listen: loopback(), carriage, members: vec![member] };
        let now = hosts.now;
        hosts.at(1).add_group(now, &mut Handover::default(), &group).unwrap();
        let head = *hosts.at(1).routes.heads.values().next().unwrap();
        hosts.pass(Duration::from_secs(3));
        Self { hosts, head, server, _silent: silent }
    }

    /// Limits the Internet path to what every path takes, which is then known. Returns the longest
    /// datagram of the application that it takes in a known conversation.
    fn limit(&mut self) -> usize {
        let (mut internet, mut at) = (PathMtu::new(self.hosts.now.steady), self.hosts.now.steady);
        while internet.longest().is_none() {
            at = at + Duration::from_secs(1);
            internet.poll(at, Duration::ZERO);
        }
        let longest = internet.longest().unwrap();
        self.hosts.take_no_longer(1, 4, longest);
        self.hosts.at(1).remotes.by_peer.values_mut().next().unwrap().mtus.internet = internet;
        longest - OVERHEAD - NUMBER_BYTES - DATAGRAM_BYTES
    }

    /// Has the application write so many bytes; returns the length of what arrives.
    fn write(&mut self, bytes: usize) -> Option<usize> {
        let (now, by) = (self.hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
        self.hosts.at(1).take_application(now, self.head, by, &vec![7; bytes]);
        self.hosts.exchange();
        self.server.recv(&mut [0; 2048]).ok()
    }

    fn too_long(&mut self) -> u64 {
        self.hosts.at(1).context.counts.snapshot().too_long
    }
}

#[test]
fn group_counts_oversized_datagrams() {
    let mut world = World::new(false);
    let longest = world.limit();
    assert_eq!(world.write(longest), Some(longest), "the first one");
    assert_eq!((world.write(longest), world.too_long()), (Some(longest), 0));
    assert_eq!((world.write(longest + 100), world.too_long()), (None, 1));
}

#[test]
fn relays_carry_oversized_group_datagrams() {
    let mut world = World::new(true);
    let longest = world.limit();
    assert_eq!((world.write(longest + 100), world.too_long()), (Some(longest + 100), 0));
}
