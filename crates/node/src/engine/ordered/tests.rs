//! Packets that a relay brings back, in order or not, between engines over real sockets.

use std::net::UdpSocket;

use tradewind_packet::message::{Carriage, Service};
use tradewind_units::Duration;

use super::super::TICK;
use super::super::by_hand::{Hosts, anybody, application, forwarded, gateway, loopback};
use super::super::conversations::Written;
use super::super::local::Local;
use crate::config::Course;

/// The numbers of packets in the order in which an application gets them, where the Internet loses
/// one
/// of twelve and a relay keeps them; and how many have waited.
fn received(in_order: bool) -> (Vec<u64>, u64) {
    let all = [(1, gateway(1)), (2, anybody(2)), (3, anybody(3)), (4, anybody(4))];
    let mut hosts = Hosts::new(all);
    let server = UdpSocket::bind(application()).unwrap();
    server.set_nonblocking(true).unwrap();
    let (relays, far) = (vec![hosts.hop(2), hosts.hop(3)], hosts.hop(4));
    let carriage =
        Carriage { service: Service::Caching, budget_ms: 1000, in_order, ..Carriage::DIRECT };
    let course = Course { carriage, ..forwarded(far, relays) };
    let (now, local) = (hosts.now, Local::bind(loopback(), false).unwrap());
    let to = server.local_addr().unwrap();
    let route = hosts.at(1).add_route(now, local, to, &course).unwrap();
    hosts.pass(Duration::from_secs(3));
    let (mut numbers, mut room) = (Vec::new(), [0; 2048]);
    for burst in 0..80_u64 {
        if burst == 8 {
            hosts.lose_each(1, 4, 12);
        }
        for number in burst * 5..burst * 5 + 5 {
            let (now, by) = (hosts.now, Written::by(([10, 0, 0, 1], 1).into()));
            hosts.at(1).take_application(now, route, by, &number.to_be_bytes().repeat(100));
        }
        hosts.exchange();
        hosts.pass(TICK);
        while let Ok(length) = server.recv(&mut room) {
            assert_eq!(length, 800);
            numbers.push(u64::from_be_bytes(room[..8].try_into().unwrap()));
        }
    }
    let far = hosts.at(4);
    assert_eq!(far.order.bytes(), 0);
    (numbers, far.counts.snapshot().reordered)
}

#[test]
fn packets_that_come_back_are_delivered_in_their_turn_where_that_is_asked_for() {
    let (as_they_come, waited) = received(false);
    assert!(!as_they_come.is_sorted(), "none came out of order: nothing is shown");
    assert_eq!(waited, 0);
    let (ordered, waited) = received(true);
    assert!(ordered.is_sorted() && waited > 0, "{waited} waited of {ordered:?}");
    assert!(ordered.len() > 390, "{} of 400", ordered.len());
}
