//! Records of conversations, and when they are made.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};

use tradewind_config::packet::DeliveryPolicy;
use tradewind_grant::{Hop, OpenHeader};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::Duration;

use super::super::conversations::{DatagramMeta, MAX};
use super::super::local::Local;
use super::super::test_harness::{
    Hosts, anybody, application, forwarded, gateway, identity, loopback,
};
use crate::record::{ConversationRecord, EndedBy, Journal, Outcome};

/// A journal that keeps its records.
#[derive(Debug, Default)]
struct Kept {
    records: Mutex<Vec<ConversationRecord>>,
    paths: Mutex<Vec<String>>,
}

impl Kept {
    fn take(&self) -> Vec<ConversationRecord> {
        std::mem::take(&mut *self.records.lock().unwrap())
    }
}

impl Journal for Kept {
    fn conversation_ended(&self, record: &ConversationRecord) -> bool {
        self.records.lock().unwrap().push(record.clone());
        true
    }

    fn path_opened(&self, header: &OpenHeader) {
        self.paths.lock().unwrap().push(format!("{} {}", header.grant_id, header.destination));
    }

    fn flush(&self) {}
}

/// A gateway, a relay and a remote gateway, each with its journal, and the route of one
/// application.
struct World {
    hosts: Hosts,
    route: u32,
    journals: [Arc<Kept>; 3],
    application: UdpSocket,
}

impl World {
    fn new(carriage: Carriage) -> Self {
        let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
        let journals = [1, 2, 4].map(|number| {
            let journal = Arc::new(Kept::default());
            hosts.at(number).set_journal(Arc::clone(&journal) as Arc<dyn Journal>);
            journal
        });
        let application = UdpSocket::bind(application()).unwrap();
        application.set_nonblocking(true).unwrap();
        let to = application.local_addr().unwrap();
        let (relay, remote) = (hosts.hop(2), hosts.hop(4));
        let delivery = DeliveryPolicy { carriage, ..forwarded(remote, vec![relay]) };
        let (now, local) = (hosts.now, Local::bind(loopback(), false, None).unwrap());
        let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
        hosts.pass(Duration::from_secs(2));
        Self { hosts, route, journals, application }
    }

    fn end(&mut self, number: u8) {
        let now = self.hosts.now;
        self.hosts.at(number).end(now);
        self.hosts.exchange();
    }

    /// Has an application write, and the other one reply with as many bytes.
    fn talk(&mut self, bytes: &[u8]) {
        let (now, by) = (self.hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
        self.hosts.at(1).take_application(now, self.route, by, bytes);
        self.hosts.exchange();
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = self.application.recv_from(&mut buffer) {
            let now = self.hosts.now;
            let remote = self.hosts.at(4);
            let id = remote.conversations.inbound.ids().next().unwrap();
            assert_eq!(
                remote.conversations.inbound.get(id).unwrap().local.address().unwrap().port(),
                from.port()
            );
            let meta = DatagramMeta::by(self.application.local_addr().unwrap());
            remote.take_reply(now, id, meta, &buffer[..length]);
            remote.take_reply(now, id, meta, &buffer[..length]);
        }
        self.hosts.exchange();
    }
}

const CACHING: Carriage = Carriage {
    service: Service::Caching,
    paths: Paths::Both,
    budget_ms: 300,
    in_order: false,
    fragment: false,
};

#[test]
fn idle_conversation_is_recorded_each_time() {
    let mut world = World::new(CACHING);
    for (round, count) in [(0, 3), (1, 2)] {
        for _ in 0..count {
            world.talk(&[7; 100]);
            world.hosts.pass(Duration::from_millis(500));
        }
        assert!(world.journals.iter().all(|journal| journal.take().is_empty()));
        world.hosts.pass(Duration::from_secs(121));
        let [near, relay, remote] = world.journals.each_ref().map(|journal| journal.take());
        assert!(relay.is_empty());
        for record in [&near[..], &remote[..]].map(|records| <&[_; 1]>::try_from(records).unwrap())
        {
            let [record] = record;
            let outcome = (record.outcome, record.ended_by, record.timeout);
            assert_eq!(outcome, (Outcome::Idle, EndedBy::Here, Some("idle")), "{round}");
            assert_eq!((record.packets_up, record.packets_down), (count, 2 * count));
            assert_eq!((record.bytes_up, record.bytes_down), (count * 100, count * 200));
            assert_eq!(record.service, "caching");
            assert!(
                record.duration_ms >= 500.0 * (count - 1) as f64 && record.duration_ms < 3000.0
            );
            let [up, down] = [record.flow_up, record.flow_down].map(Option::unwrap);
            assert_eq!((up.expected, up.lost), (count, 0), "{record:?}");
            assert_eq!((down.expected, down.lost), (2 * count, 0), "{record:?}");
        }
        assert_eq!(near[0].grant, remote[0].grant);
        assert_eq!(near[0].gateway, remote[0].gateway);
        assert_eq!((&near[0].remote, near[0].gateway == near[0].remote), (&near[0].remote, false));
        assert_eq!(near[0].source, Some(([10, 0, 0, 1], 1).into()));
    }
}

/// Reports are a second apart; the last one comes before its time.
#[test]
fn packets_just_before_the_end_of_a_gateway_are_counted() {
    let mut world = World::new(CACHING);
    for _ in 0..2 {
        world.talk(&[7; 100]);
        world.hosts.pass(Duration::from_secs(2));
    }
    (0..2).for_each(|_| world.talk(&[7; 100]));
    world.end(4);
    world.end(1);
    let [near, _, remote] = world.journals.each_ref().map(|journal| journal.take());
    for records in [near, remote] {
        let [record] = <&[_; 1]>::try_from(&records[..]).unwrap();
        assert_eq!(record.outcome, Outcome::Cut);
        assert_eq!(record.flow_up.unwrap().expected, 4, "{record:?}");
    }
}

#[test]
fn relay_journals_opened_paths() {
    let mut world = World::new(CACHING);
    let [near, relay, remote] =
        world.journals.each_ref().map(|journal| journal.paths.lock().unwrap().clone());
    let to = world.application.local_addr().unwrap();
    let grant = world.hosts.at(1).context.config.grant.as_ref().unwrap().id();
    assert_eq!(relay, [format!("{grant} {to}")]);
    // The remote gateway opens it, too; the near one opens it for itself alone.
    assert_eq!((near, remote), (vec![], relay));
}

#[test]
fn refused_path_is_not_journaled() {
    let mut world = World::new(Carriage::DIRECT);
    let (first, relay) = (world.hosts.connect(1, 2), world.hosts.hop(2));
    let elsewhere = Hop { address: ([127, 8, 8, 8], 7).into(), identity: identity(9).public() };
    let path_count = |world: &World| world.journals[1].paths.lock().unwrap().len();
    let (dropped, before) =
        (world.hosts.at(2).context.counts.snapshot().dropped, path_count(&world));
    world.hosts.open(1, first, vec![relay, elsewhere]);
    world.hosts.exchange();
    assert_eq!(world.hosts.at(2).context.counts.snapshot().dropped, dropped + 1, "it is refused");
    assert_eq!(path_count(&world), before);
}

#[test]
fn refused_conversation_is_recorded_with_reason() {
    let mut world = World::new(Carriage::DIRECT);
    world.hosts.at(4).context.access.set_policy(tradewind_grant::Policy::default());
    world.talk(b"any");
    world.end(1);
    let records = world.journals[0].take();
    let [record] = <&[_; 1]>::try_from(&records[..]).unwrap();
    assert_eq!((record.outcome, record.ended_by), (Outcome::Refused, EndedBy::Downstream));
    assert!(record.cause.is_some() && record.first_byte_ms.is_none(), "{record:?}");
    assert_eq!((record.packets_up, record.packets_down, &*record.path), (1, 0, "direct"));
}

#[test]
fn conversation_ends_with_gateway_session() {
    let mut world = World::new(Carriage::DIRECT);
    world.talk(b"any");
    let peer = world.hosts.at(4).conversations.inbound.values().next().unwrap().remote;
    let now = world.hosts.now;
    world.hosts.at(4).context.sessions.close(peer);
    world.hosts.at(4).dispatch(now);
    let records = world.journals[2].take();
    let [record] = <&[_; 1]>::try_from(&records[..]).unwrap();
    assert_eq!((record.outcome, record.ended_by), (Outcome::Gone, EndedBy::Upstream));
    let near = world.hosts.at(1).context.sessions.public().to_string();
    assert_eq!((record.gateway.as_ref(), record.remote.as_ref()), (Some(&near), Some(&near)));
    assert!(record.grant.is_some() && record.flow_up.is_none());
}

#[test]
fn records_per_gateway_are_rate_limited() {
    const SHARE: u64 = 1000;
    let mut world = World::new(Carriage::DIRECT);
    let begun = std::time::Instant::now();
    let (now, conversations) = (world.hosts.now, MAX as u64 + 3 * SHARE);
    for number in 0..u32::try_from(conversations).unwrap() {
        // Each replaces an older one, by one datagram.
        let by = DatagramMeta::by((std::net::Ipv4Addr::from(0x0a00_0000 + number), 1).into());
        world.hosts.at(1).take_application(now, world.route, by, b"any");
    }
    let recorded = world.journals[0].take().len() as u64;
    let windows = 1 + begun.elapsed().as_secs() / 10;
    assert!((SHARE..=SHARE * windows).contains(&recorded), "{recorded} in {windows}");
    // Those that end with the node are recorded in any case, with the number of those left out.
    world.end(1);
    let last = world.journals[0].take();
    assert_eq!(last.len(), MAX);
    assert_eq!(last[0].left_out, 3 * SHARE - recorded);
    assert_eq!(last[1].left_out, 0);
}
