//! The first packets of a flow are protected, too: real sockets on loopback, and an Internet that
//! loses every second of them.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::time::{Duration, Instant};

use nodes::PATIENCE;
use nodes::world::world_of;
use tradewind_node::RelayServices;
use tradewind_packet::message::{Carriage, Service};
use tradewind_packet::sender::Paths;

#[test]
fn a_first_burst_comes_back() {
    // Relays tell each second whom they serve: what waits for that comes too late.
    let carriage = Carriage {
        service: Service::Caching,
        paths: Paths::Both,
        budget_ms: 300,
        in_order: false,
        fragment: false,
    };
    let world = world_of(carriage, None, Duration::ZERO, (2, 1), RelayServices::default());
    let (begun, side) = (Instant::now(), &world.sides[0]);
    while world.near.snapshot().paths_up == 0 {
        assert!(begun.elapsed() < PATIENCE, "no path over the relays:\n{}", world.told());
        std::thread::sleep(Duration::from_millis(20));
    }
    // Relays are told each second which flows they serve.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(world.near.snapshot().taken, 0, "nothing was sent yet");
    side.wire.lose_each(world.near.address(), 2);
    (0..40).for_each(|number| world.send(number));
    // On a busy machine a relay may have its turn later than a receiver asks for the last time.
    while side.has_of(0..40) < 34 {
        assert!(begun.elapsed() < PATIENCE, "{} of 40 came:\n{}", side.has_of(0..40), world.told());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(side.wire.lost() >= 15, "{} were lost", side.wire.lost());
}
