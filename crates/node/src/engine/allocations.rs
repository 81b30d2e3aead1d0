//! The allocations of a packet that arrives, from the application's socket over gateway, relay and
//! remote gateway to the other application: none, once the engines' buffers have reached their
//! steady size.

use std::net::UdpSocket;

use allocation_counter::{AllocationInfo, measure};
use tradewind_config::packet::DeliveryPolicy;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;
use tradewind_units::Duration;

use super::conversations::DatagramMeta;
use super::local::Local;
use super::test_harness::{Hosts, anybody, application, forwarded, gateway, loopback};
use crate::counts::Snapshot;
use crate::ticks::TICK;

/// Packets in each tick: a hundred a second.
const IN_A_TICK: usize = 5;
/// Time until all sessions are open, and caches of a second are full, twice.
const FIRST: Duration = Duration::from_secs(8);
const MEASURED: Duration = Duration::from_secs(4);

/// Returns the allocations between ticks for packets of one flow, how many arrived, and the relay's
/// counters.
fn allocations(service: Service, paths: Paths) -> (AllocationInfo, u64, Snapshot) {
    let mut hosts = Hosts::new([(1, gateway(1)), (2, anybody(2)), (4, anybody(4))]);
    let application = UdpSocket::bind(application()).unwrap();
    let (to, now) = (application.local_addr().unwrap(), hosts.now);
    let (relay, remote) = (hosts.hop(2), hosts.hop(4));
    let carriage = Carriage { service, paths, budget_ms: 150, in_order: false, fragment: false };
    let delivery = DeliveryPolicy { carriage, ..forwarded(remote, vec![relay]) };
    let local = Local::bind(loopback(), false, None).unwrap();
    let route = hosts.at(1).add_route(now, local, to, &delivery).unwrap();
    let mut run = |span: Duration| {
        let (mut all, end) = (AllocationInfo::default(), hosts.now.steady + span);
        while hosts.now.steady < end {
            all += measure(|| {
                let now = hosts.now;
                for _ in 0..IN_A_TICK {
                    let by = DatagramMeta::by(([10, 0, 0, 1], 1).into());
                    hosts.at(1).take_application(now, route, by, &[7; 1000]);
                }
                hosts.exchange();
            });
            hosts.pass(TICK);
        }
        (all, hosts.at(4).context.counts.snapshot().delivered)
    };
    let (_, before) = run(FIRST);
    let (allocations, after) = run(MEASURED);
    (allocations, after - before, hosts.at(2).context.counts.snapshot())
}

#[test]
fn engines_do_not_allocate_per_packet() {
    let all = [
        (Service::Direct, Paths::Overlay),
        (Service::Forwarding, Paths::Overlay),
        (Service::Forwarding, Paths::Both),
        (Service::Caching, Paths::Both),
        (Service::Coding, Paths::Both),
    ];
    let packets = (MEASURED.as_nanos() / TICK.as_nanos()) as u64 * IN_A_TICK as u64;
    for (service, paths) in all {
        let (allocations, arrived, relay) = allocations(service, paths);
        assert_eq!(arrived, packets, "{service:?}");
        let has_done = [relay.forwarded > packets, relay.cached > packets, relay.repairs > 0];
        let is = |wanted| service == wanted;
        let to_do = [is(Service::Forwarding), is(Service::Caching), is(Service::Coding)];
        assert_eq!(has_done, to_do, "{service:?}: {relay:?}");
        assert_eq!(allocations.count_total, 0, "{service:?}, {paths:?}: {allocations:?}");
    }
}
