//! Never worse than the direct path: whatever relays, gateways and clocks do, the packets of the
//! Internet path arrive untouched. Failure and return of relays are tested in `services`, those of
//! gateways with whole packets in `tun`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod nodes;

use std::net::UdpSocket;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nodes::world::{Side, World, world, world_with_a_slow_relay};
use nodes::*;
use tradewind_node::{Node, RelayServices};
use tradewind_packet::message::Service;

/// Packets that must all come over the Internet.
const PACKETS: u64 = 300;

/// Sends packets, of which all must arrive; returns the next number.
fn all_come(world: &World, first: u64) -> u64 {
    let mut next = first;
    while next < first + PACKETS {
        world.send(next);
        next += 1;
    }
    world.until("packets over the Internet", &mut next, |world| {
        world.sides.iter().all(|side| side.has_of(first..first + PACKETS) == PACKETS)
    });
    next
}

#[test]
fn late_relay_holds_up_nobody() {
    let world = world_with_a_slow_relay(Service::Caching, Duration::from_millis(400));
    let next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    let before = world.near.snapshot().copied;
    all_come(&world, next);
    assert!(world.near.snapshot().copied > before, "the relay was not used: {}", world.describe());
}

#[test]
fn relay_flood_spares_internet_path() {
    let world = world(Service::Caching, 2, 1, RelayServices::default());
    let next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    let is_over = AtomicBool::new(false);
    let next = std::thread::scope(|scope| {
        for relay in &world.relays {
            let (to, is_over) = (relay.address(), &is_over);
            scope.spawn(move || {
                let socket = UdpSocket::bind(loopback()).unwrap();
                // As long as a packet, and of its type.
                let junk = [0x14; 1200];
                while !is_over.load(Ordering::Relaxed) {
                    let _refused = socket.send_to(&junk, to);
                }
            });
        }
        let next = all_come(&world, next);
        is_over.store(true, Ordering::Relaxed);
        next
    });
    let dropped: u64 = world.relays.iter().map(|relay| relay.snapshot().dropped).sum();
    assert!(dropped > PACKETS, "{dropped} datagrams of the flood were seen");
    // The relays resume the services that they could not provide in time.
    let cached = world.relays[1].snapshot().cached;
    let mut next = next;
    world.until("the services", &mut next, |world| world.relays[1].snapshot().cached > cached + 20);
    world.lose_and_recover(next, 5, 4);
}

#[test]
fn restarted_remote_gateway_is_found() {
    let mut world = world(Service::Caching, 2, 1, RelayServices::default());
    let mut next = world.warm(0, |world| world.relays[1].snapshot().cached > 20);
    let Side { remote, wire, sink, application } = world.sides.remove(0);
    let address = remote.address();
    drop(remote);
    let remote = Node::start(plain(10, address, &[2, 3])).unwrap();
    world.sides.push(Side { remote, wire, sink, application });
    let first = next;
    world.until("a packet", &mut next, |world| world.sides[0].has_of(first..u64::MAX) > 0);
    next = all_come(&world, next);
    let cached = world.relays[1].snapshot().cached;
    world.until("the services", &mut next, |world| world.relays[1].snapshot().cached > cached + 20);
    world.lose_and_recover(next, 5, 4);
}

/// Jumps of the wall clock are tested with sessions, which get the time as an argument
/// (`crates/packet/tests/sessions/main.rs`). No other code may read it.
#[test]
fn wall_clock_is_read_in_one_place() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = Vec::new();
    for folder in [root.join("src"), root.join("../packet/src"), root.join("../fec/src")] {
        look_for_wall_clocks(&folder, &mut found);
    }
    assert_eq!(
        found,
        ["engine/mod.rs: let unix = std::time::SystemTime::now()\
             .duration_since(std::time::UNIX_EPOCH);"]
    );
}

fn look_for_wall_clocks(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            look_for_wall_clocks(&path, found);
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let place = path.iter().rev().take(2).collect::<Vec<_>>();
        let place = format!("{}/{}", place[1].to_string_lossy(), place[0].to_string_lossy());
        let lines = text.lines().filter(|line| line.contains("SystemTime::now"));
        found.extend(lines.map(|line| format!("{place}: {}", line.trim())));
    }
}
