//! All traffic of an engine, within its uplink's rate.

use std::net::UdpSocket;

use tradewind_config::packet::{Copying, DeliveryPolicy};
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::{Bandwidth, Duration};

use super::super::conversations::DatagramMeta;
use super::super::local::Local;
use super::super::test_harness::{Hosts, anybody, application, forwarded, gateway, loopback};
use crate::config::NodeConfig;
use crate::ticks::TICK;

/// The uplink's bytes a second, and its burst.
const RATE: u64 = 30_000;
const BURST: u64 = 16_000;
const SECONDS: u64 = 60;

/// Returns the bytes that leave a gateway within a minute, for a hundred packets of a hundred bytes
/// a second and all control messages, and how many copies are among them.
fn leaves(service: Service) -> (u64, u64) {
    let uplink = Bandwidth::from_bps(8 * RATE).unwrap();
    let copying = Copying { uplink: Some(uplink), ..Copying::default() };
    let near = NodeConfig { copying, ..gateway(1) };
    let mut hosts = Hosts::new([(1, near), (2, anybody(2)), (3, anybody(3)), (4, anybody(4))]);
    let application = UdpSocket::bind(application()).unwrap();
    let (to, now) = (application.local_addr().unwrap(), hosts.now);
    let (relays, remote) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
    let carriage =
        Carriage { service, paths: Paths::Both, budget_ms: 500, in_order: false, fragment: false };
    let delivery = DeliveryPolicy { carriage, ..forwarded(remote, relays) };
    let local = Local::bind(loopback(), false, None).unwrap();
    let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
    // Paths open, and their MTUs are found.
    hosts.pass(Duration::from_secs(10));
    let before = (hosts.bytes_sent_by(1), hosts.at(1).context.counts.snapshot().copied);
    let end = hosts.now.steady + Duration::from_secs(SECONDS);
    while hosts.now.steady < end {
        let now = hosts.now;
        for _ in 0..5 {
            let by = DatagramMeta::by(([10, 0, 0, 1], 1).into());
            hosts.at(1).take_application(now, route, by, &[7; 100]);
        }
        hosts.exchange();
        hosts.pass(TICK);
    }
    let after = (hosts.bytes_sent_by(1), hosts.at(1).context.counts.snapshot().copied);
    (after.0 - before.0, after.1 - before.1)
}

#[test]
fn uplink_rate_bounds_all_traffic() {
    for service in [Service::Caching, Service::Coding, Service::Forwarding] {
        let (bytes, copies) = leaves(service);
        let most = BURST + SECONDS * RATE;
        assert!(bytes <= most, "{service:?}: {bytes} bytes of at most {most}");
        assert!(bytes >= most - most / 10, "{service:?}: {bytes} bytes use what there is");
        assert!(copies > 500 || service == Service::Forwarding, "{service:?}: {copies} copies");
    }
}
