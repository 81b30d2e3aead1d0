//! Services that are chosen while flows run, between engines whose clock the test advances.

use std::net::UdpSocket;

use tradewind_config::packet::{DeliveryPolicy, RelayServices};
use tradewind_packet::ingress::InStream;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::sender::Paths;
use tradewind_units::{Duration, PricePerGb, Ratio};

use super::super::conversations::DatagramMeta;
use super::super::local::Local;
use super::super::test_harness::{Hosts, anybody, application, forwarded, gateway, loopback};
use crate::config::NodeConfig;
use crate::status::{Direction, FlowStatus};
use crate::ticks::TICK;

/// Packets of a flow in each tick: a hundred a second.
const IN_A_TICK: u64 = 5;

/// Gateway 1 before relays 2 and 3 and remote endpoint 4, and a route whose service is chosen.
struct World {
    hosts: Hosts,
    route: u32,
    /// The round trip over the Internet, in place of the measured one.
    internet: Option<Duration>,
    _application: UdpSocket,
}

impl World {
    fn new(usd_per_gb: f64) -> Self {
        let price = PricePerGb::from_usd_per_gb(usd_per_gb).unwrap();
        let in_stream = Some(InStream { packets: 5, repairs: 2 });
        let (to_relays, to_endpoints) = (price, price);
        let services =
            RelayServices { in_stream, to_relays, to_endpoints, ..RelayServices::default() };
        let relay = |number| (number, NodeConfig { services, ..anybody(number) });
        let mut hosts = Hosts::new([(1, gateway(1)), relay(2), relay(3), (4, anybody(4))]);
        let application = UdpSocket::bind(application()).unwrap();
        let (to, now) = (application.local_addr().unwrap(), hosts.now);
        let (relays, remote) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
        let delivery = DeliveryPolicy {
            carriage: Carriage { budget_ms: 150, ..Carriage::DIRECT },
            max_loss: Some(Ratio::new(0.01).unwrap()),
            assumed: services.assumed(),
            ..forwarded(remote, relays)
        };
        let local = Local::bind(loopback(), false, None).unwrap();
        let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
        Self { hosts, route, internet: None, _application: application }
    }

    fn status(&mut self) -> FlowStatus {
        let now = self.hosts.now;
        let flows = self.hosts.at(1).report(now);
        flows.into_iter().find(|flow| flow.direction == Direction::Sent).unwrap()
    }

    /// Sends for so many seconds; returns the services in turn, with the reason of each.
    fn run(&mut self, seconds: u64) -> Vec<(String, String)> {
        let end = self.hosts.now.steady + Duration::from_secs(seconds);
        let mut seen = Vec::new();
        while self.hosts.now.steady < end {
            let (now, route) = (self.hosts.now, self.route);
            for _ in 0..IN_A_TICK {
                let by = DatagramMeta::by(([10, 0, 0, 1], 1).into());
                self.hosts.at(1).take_application(now, route, by, &[7; 1000]);
            }
            self.hosts.exchange();
            if let Some(round_trip) = self.internet {
                let remotes = self.hosts.at(1).remotes.by_peer.values_mut();
                remotes.for_each(|remote| remote.round_trip = Some(round_trip));
            }
            self.hosts.pass(TICK);
            let FlowStatus { service, why, .. } = self.status();
            if seen.last().is_none_or(|(last, _)| *last != service) {
                seen.push((service, why));
            }
        }
        seen
    }
}

fn services(seen: &[(String, String)]) -> Vec<&str> {
    seen.iter().map(|(service, _)| service.as_str()).collect()
}

#[test]
fn dearer_coding_yields_to_caching() {
    let mut world = World::new(0.1);
    assert_eq!(services(&world.run(5)), ["direct"]);
    world.hosts.lose_each(1, 4, 20);
    let bought = world.run(10);
    assert_eq!(services(&bought), ["direct", "coding"]);
    // No flow shares its blocks, so its packets go on as copies: more leaves the relays than with
    // caching.
    let saved = world.run(120);
    assert_eq!(services(&saved), ["coding", "caching"]);
    assert_eq!(saved[1].1, "a dearer one was not needed for a while");
    let billed = world.status().billed.unwrap();
    assert!((0.099..0.101).contains(&(billed.usd / billed.bytes as f64 * 1e9)), "{billed:?}");
}

#[test]
fn unbilled_services_are_compared_by_bytes() {
    let mut world = World::new(0.0);
    world.hosts.lose_each(1, 4, 20);
    world.run(20);
    assert_eq!(services(&world.run(120)), ["coding", "caching"]);
    assert_eq!(services(&world.run(120)), ["caching"], "what coding took is remembered");
}

#[test]
fn slow_service_is_left_and_retried() {
    let mut world = World::new(0.0);
    assert_eq!(services(&world.run(5)), ["direct"]);
    world.internet = Some(Duration::from_millis(400));
    let left = world.run(20);
    assert_eq!(services(&left), ["direct", "forwarding"]);
    assert_eq!(left[1].1, "another became too slow for its budget");
    world.internet = None;
    assert_eq!(services(&world.run(200)), ["forwarding", "caching", "coding", "direct"]);
}

/// Returns caching with a budget of three seconds.
fn cached() -> Carriage {
    Carriage {
        service: Service::Caching,
        paths: Paths::Both,
        budget_ms: 3000,
        in_order: false,
        fragment: false,
    }
}

/// Packets are copied from the first one where the path is open, whenever their flow begins.
#[test]
fn first_packets_of_later_flow_are_copied() {
    let all = [(1, gateway(1)), (2, anybody(2)), (3, anybody(3)), (4, anybody(4))];
    let mut hosts = Hosts::new(all);
    let application = UdpSocket::bind(application()).unwrap();
    let to = application.local_addr().unwrap();
    let (relays, remote) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
    let delivery = DeliveryPolicy { carriage: cached(), ..forwarded(remote, relays) };
    let begin = |hosts: &mut Hosts| {
        let (now, local) = (hosts.now, Local::bind(loopback(), false, None).unwrap());
        hosts.at(1).add_route(now, local, to, &delivery).unwrap()
    };
    let send = |hosts: &mut Hosts, route| {
        let (now, by) = (hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
        (0..5).for_each(|_| hosts.at(1).take_application(now, route, by, &[7; 1000]));
        hosts.exchange();
    };
    begin(&mut hosts);
    hosts.pass(Duration::from_secs(3));
    assert_eq!(hosts.at(3).context.counts.snapshot().cached, 0);
    let route = begin(&mut hosts);
    send(&mut hosts, route);
    assert_eq!(hosts.at(3).context.counts.snapshot().cached, 5);
    hosts.pass(Duration::from_secs(150));
    send(&mut hosts, route);
    assert_eq!(hosts.at(3).context.counts.snapshot().cached, 10, "after a long silence");
}

/// Once a flow is left to the Internet, its receiver waits for no recovery.
#[test]
fn direct_flow_receiver_does_not_wait() {
    let all = [(1, gateway(1)), (2, anybody(2)), (3, anybody(3)), (4, anybody(4))];
    let mut hosts = Hosts::new(all);
    let application = UdpSocket::bind(application()).unwrap();
    let (to, now) = (application.local_addr().unwrap(), hosts.now);
    let (relays, remote) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
    let delivery = DeliveryPolicy { carriage: cached(), ..forwarded(remote, relays) };
    let local = Local::bind(loopback(), false, None).unwrap();
    let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
    hosts.pass(Duration::from_secs(3));
    let (now, by) = (hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
    hosts.at(1).take_application(now, route, by, &[7; 1000]);
    hosts.exchange();
    hosts.pass(Duration::from_secs(2));
    let waits = |hosts: &mut Hosts| {
        let now = hosts.now;
        let ends = &hosts.at(4).services.ends.by_outgoing;
        ends.values().next().unwrap().brings_back(now.steady)
    };
    assert!(waits(&mut hosts));
    let choose = |hosts: &mut Hosts, service| {
        let end = hosts.at(1).services.ends.by_outgoing.values_mut().next().unwrap();
        end.take_choice(Some(service));
        hosts.pass(TICK * 2);
    };
    choose(&mut hosts, Service::Direct);
    assert!(!waits(&mut hosts));
    choose(&mut hosts, Service::Caching);
    assert!(waits(&mut hosts), "it is copied again");
}

/// With caching, packets that are too long for the Internet path go over the relays, as with
/// forwarding.
#[test]
fn oversized_for_internet_uses_relays() {
    let all = [(1, gateway(1)), (2, anybody(2)), (3, anybody(3)), (4, anybody(4))];
    let mut hosts = Hosts::new(all);
    let application = UdpSocket::bind(application()).unwrap();
    let (to, now) = (application.local_addr().unwrap(), hosts.now);
    let (relays, remote) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
    let delivery = DeliveryPolicy { carriage: cached(), ..forwarded(remote, relays) };
    let local = Local::bind(loopback(), false, None).unwrap();
    let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
    hosts.pass(Duration::from_secs(3));
    // The Internet is known to take what every path takes, and no more.
    let (mut internet, mut at) = (PathMtu::new(now.steady), now.steady);
    while internet.longest().is_none() {
        at = at + Duration::from_secs(1);
        internet.poll(at, Duration::ZERO);
    }
    let engine = hosts.at(1);
    let remote = engine.routes.get(route).unwrap().remote;
    engine.remotes.get_mut(&remote).unwrap().mtus.internet = internet;
    hosts.lose_each(1, 4, 1);
    for _ in 0..12 {
        let (now, by) = (hosts.now, DatagramMeta::by(([10, 0, 0, 1], 1).into()));
        hosts.at(1).take_application(now, route, by, &[7; 1300]);
        hosts.exchange();
        hosts.pass(TICK);
    }
    assert_eq!(hosts.at(4).context.counts.snapshot().delivered, 12);
    assert_eq!(hosts.at(1).context.counts.snapshot().too_long, 0);
}
