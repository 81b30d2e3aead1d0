//! Rules and grants that change while packets flow, each node with sockets and threads of its own.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nodes::*;
use tradewind_grant::{OperatorKey, RevocationList, SignedRevocations};
use tradewind_node::{
    Assumed, DeliveryPolicy, Node, NodeConfig, NodeReloader, Path, TrafficSource,
};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;

/// A local endpoint, a relay, a remote endpoint and an application with its server.
struct World {
    near: Node,
    relay: Node,
    remote: Node,
    application: UdpSocket,
}

fn relay() -> NodeConfig {
    plain(2, loopback(), &[])
}

fn remote() -> NodeConfig {
    plain(3, loopback(), &[2])
}

fn world() -> World {
    let remote = Node::start(remote()).unwrap();
    let relay = Node::start(relay()).unwrap();
    let carriage = Carriage {
        service: Service::Forwarding,
        paths: Paths::Overlay,
        budget_ms: 0,
        in_order: false,
        fragment: false,
    };
    let delivery = DeliveryPolicy {
        remote: hop(remote.address(), 3).into(),
        relays: vec![hop(relay.address(), 2)].into(),
        carriage,
        max_loss: None,
        copies: None,
        assumed: Assumed::default(),
    };
    let source = TrafficSource::Port { listen: loopback(), to: echo() };
    let near = NodeConfig {
        grant: Some(grant(identity(1).public(), "127.0.0.0/8:*")),
        paths: vec![Path { source, delivery }],
        ..plain(1, loopback(), &[])
    };
    let near = Node::start(near).unwrap();
    let application = UdpSocket::bind(loopback()).unwrap();
    application.connect(near.local_addresses()[0]).unwrap();
    application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let world = World { near, relay, remote, application };
    world.until("packets over the relay", |world| {
        world.is_answered() && world.relay.snapshot().forwarded > 10
    });
    world
}

impl World {
    fn is_answered(&self) -> bool {
        self.application.send(b"ping").unwrap();
        self.application.recv(&mut [0; 64]).is_ok()
    }

    /// Returns whether there are no replies any more: none to ten requests, after those in flight
    /// have arrived.
    fn is_cut_off(&self) -> bool {
        (0..10).all(|_| !self.is_answered())
    }

    /// Returns whether nothing is forwarded during ten requests.
    fn spares_the_relay(&self) -> bool {
        let before = self.relay.snapshot().forwarded;
        for _ in 0..10 {
            let _either_way = self.is_answered();
        }
        self.relay.snapshot().forwarded == before
    }

    fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let begun = Instant::now();
        while !holds(self) {
            let snapshots = [&self.near, &self.relay, &self.remote].map(Node::snapshot);
            assert!(begun.elapsed() < TEST_TIMEOUT, "{what} did not come: {snapshots:?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn reload(node: &Node, config: NodeConfig) {
    let reloader = node.reloader();
    reloader.apply(&reloader.prepare(config).unwrap());
}

#[test]
fn conversation_ends_when_policy_drops_destination() {
    let world = world();
    let mut changed = remote();
    changed.policy.destinations = vec!["192.0.2.0/24:*".parse().unwrap()];
    reload(&world.remote, changed);
    world.until("the end", World::is_cut_off);
    reload(&world.remote, remote());
    world.until("answers again", World::is_answered);
}

#[test]
fn path_ends_when_next_hops_change() {
    let world = world();
    let mut changed = relay();
    changed.policy.next_hops = vec!["192.0.2.0/24:*".parse().unwrap()];
    reload(&world.relay, changed);
    world.until("no more packets over the relay", World::spares_the_relay);
    reload(&world.relay, relay());
    let before = world.relay.snapshot().forwarded;
    world.until("packets over the relay again", |world| {
        world.is_answered() && world.relay.snapshot().forwarded > before + 10
    });
}

#[test]
fn sessions_end_with_removed_operator() {
    let world = world();
    let changed =
        NodeConfig { operators: vec![OperatorKey::from_entropy([98; 32]).public()], ..relay() };
    reload(&world.relay, changed);
    world.until("no more packets over the relay", World::spares_the_relay);
    assert!(
        world
            .near
            .reloader()
            .prepare(NodeConfig { grant: None, ..plain(1, loopback(), &[]) })
            .is_err()
    );
}

#[test]
fn revocation_ends_sessions_and_conversations() {
    let list = |version, gateways: &[u8]| {
        let gateways = gateways.iter().map(|number| identity(*number).public()).collect();
        let list = RevocationList { version, gateways, ..RevocationList::default() };
        list.sign(&operator()).unwrap()
    };
    let world = world();
    let (relay, remote) = (world.relay.reloader(), world.remote.reloader());
    let revoke = |reloader: &NodeReloader, list: SignedRevocations| {
        let ready = reloader.prepare_revocations(None, &[list])?;
        reloader.apply(&ready);
        Ok::<_, tradewind_node::NodeError>(())
    };
    revoke(&relay, list(2, &[1])).unwrap();
    world.until("no more packets over the relay", World::spares_the_relay);
    let older = revoke(&relay, list(1, &[])).unwrap_err().to_string();
    assert!(older.contains("does not come after version 2"), "{older}");
    world.until("still none", World::spares_the_relay);
    revoke(&relay, list(3, &[])).unwrap();
    world.until("answers again", World::is_answered);
    revoke(&remote, list(1, &[1])).unwrap();
    world.until("the end", World::is_cut_off);
    // A reload does not undo a revocation.
    reload(&world.remote, self::remote());
    world.until("still none", World::is_cut_off);
}
