//! Packets put in order: never out of order but for those given up, never later than they may wait,
//! none lost, none twice, and within bounds.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeMap;

use proptest::prelude::*;
use tradewind_packet::order::Order;
use tradewind_units::{Duration, Timestamp};

const HOLD: Duration = Duration::from_millis(100);

fn at_ms(ms: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_millis(ms)
}

/// Adds a packet that holds its sequence; returns those that are released then.
fn add(order: &mut Order<u8, u8>, ms: u64, sequence: u64) -> Vec<u64> {
    order.add(at_ms(ms), (1, 1), (sequence, &sequence.to_be_bytes()), HOLD);
    ready(order)
}

fn ready(order: &mut Order<u8, u8>) -> Vec<u64> {
    let number = |bytes: Vec<u8>| u64::from_be_bytes(bytes[..8].try_into().unwrap());
    order.take_ready().into_iter().map(|released| number(released.packet)).collect()
}

#[test]
fn ordered_packets_never_wait() {
    let mut order = Order::default();
    for sequence in 0..1000 {
        assert_eq!(add(&mut order, sequence, sequence), [sequence]);
    }
    assert_eq!((order.bytes(), order.due()), (0, None));
}

#[test]
fn early_packet_waits_for_missing() {
    let mut order = Order::default();
    assert_eq!(add(&mut order, 0, 0), [0]);
    assert_eq!(add(&mut order, 10, 2), [0; 0]);
    assert_eq!(add(&mut order, 20, 3), [0; 0]);
    assert_eq!(add(&mut order, 30, 1), [1, 2, 3]);
    assert_eq!(order.bytes(), 0);
}

#[test]
fn duplicate_packet_is_ignored() {
    let mut order = Order::default();
    assert_eq!(add(&mut order, 0, 0), [0]);
    assert_eq!(add(&mut order, 10, 2), [0; 0]);
    let bytes = order.bytes();
    let longer = [2_u64.to_be_bytes().as_slice(), &[0; 1400]].concat();
    order.add(at_ms(20), (1, 1), (2, &longer), HOLD);
    assert_eq!(order.bytes(), bytes);
    assert_eq!(add(&mut order, 30, 1), [1, 2]);
    assert_eq!(order.bytes(), 0, "what was counted is given back, and no more");
}

#[test]
fn missing_packet_is_held_for_until_deadline() {
    let mut order = Order::default();
    assert_eq!(add(&mut order, 0, 0), [0]);
    assert_eq!(add(&mut order, 10, 2), [0; 0]);
    assert_eq!(add(&mut order, 60, 4), [0; 0]);
    assert_eq!(order.due(), Some(at_ms(110)));
    order.handle_timeout(at_ms(109));
    assert_eq!(ready(&mut order), [0; 0]);
    order.handle_timeout(at_ms(110));
    assert_eq!(ready(&mut order), [2]);
    assert_eq!(order.due(), Some(at_ms(160)));
    // A packet that was given up is released at once, and no packet waits for it.
    assert_eq!(add(&mut order, 120, 1), [1]);
    assert_eq!(add(&mut order, 130, 3), [3, 4]);
}

#[test]
fn order_begins_with_first_arrival() {
    let mut order = Order::default();
    assert_eq!(add(&mut order, 0, 1_000_000), [1_000_000]);
    assert_eq!(add(&mut order, 1, 999_999), [999_999]);
    assert_eq!(add(&mut order, 101, 1_000_001), [1_000_001]);
    assert!(order.pass((1, 1), 1_000_002) && !order.pass((1, 1), 1_000_004));
    assert_eq!(add(&mut order, 102, 1_000_004), [0; 0]);
    assert!(!order.pass((1, 1), 1_000_003), "something waits for it");
    assert_eq!(add(&mut order, 103, 1_000_003), [1_000_003, 1_000_004]);
    assert_eq!(order.waited(), 1);
}

#[test]
fn largest_owner_is_released_first() {
    let mut order: Order<u8, u32> = Order::new(100_000);
    let packet = [7; 1000];
    assert!(order.pass((1, 1), 0));
    order.add(at_ms(0), (1, 1), (5, &packet), HOLD);
    for flow in 0..500 {
        assert!(order.pass((2, flow), 0));
        order.add(at_ms(1), (2, flow), (5, &packet), HOLD);
        assert!(order.bytes() <= 100_000);
    }
    assert!(order.take_ready().iter().all(|released| released.owner == 2));
    order.end_flow(1, 1);
    assert_eq!(order.take_ready().len(), 1);
}

#[test]
fn overfull_flow_goes_on_unordered() {
    let mut order = Order::default();
    assert!(order.pass((1, 1), 0));
    // One is missing: so many wait for it, and one more is too many.
    assert!((2..1026).all(|sequence| add(&mut order, 0, sequence).is_empty()));
    assert_eq!(add(&mut order, 0, 1026), (2..=1026).collect::<Vec<_>>());
    assert_eq!(add(&mut order, 0, 1027), [1027]);
}

proptest! {
    #[test]
    fn packets_are_released_once_in_order(
        delays in prop::collection::vec(prop::option::weighted(0.8, 0_u64..160), 1..300),
        gap in 1_u64..20,
    ) {
        // By arrival: packet n is sent at n * gap, and lost or delayed.
        let mut arrivals: Vec<(u64, u64)> = (delays.iter().zip(0_u64..))
            .filter_map(|(delay, number)| Some((number * gap + (*delay)?, number)))
            .collect();
        arrivals.sort_unstable();
        let mut order: Order<u8, u8> = Order::default();
        let mut released: Vec<(u64, u64)> = Vec::new();
        let mut came = BTreeMap::new();
        let mut note = |order: &mut Order<u8, u8>, ms: u64| {
            released.extend(ready(order).into_iter().map(|number| (ms, number)));
        };
        for (ms, number) in arrivals {
            while let Some(due) = order.due().filter(|due| *due <= at_ms(ms)) {
                order.handle_timeout(due);
                note(&mut order, due.since(Timestamp::ZERO).as_nanos() as u64 / 1_000_000);
            }
            came.insert(number, ms);
            order.add(at_ms(ms), (1, 1), (number, &number.to_be_bytes()), HOLD);
            note(&mut order, ms);
        }
        while let Some(due) = order.due() {
            order.handle_timeout(due);
            note(&mut order, due.since(Timestamp::ZERO).as_nanos() as u64 / 1_000_000);
        }
        assert_eq!(order.bytes(), 0);
        let mut numbers: Vec<u64> = released.iter().map(|(_, number)| *number).collect();
        let mut highest = None;
        for (ms, number) in &released {
            assert!(*ms <= came[number] + 100, "{number} waited for too long");
            if highest.is_some_and(|highest| *number < highest) {
                // Given up before it came, and then not held.
                assert_eq!(*ms, came[number]);
            }
            highest = highest.max(Some(*number));
        }
        numbers.sort_unstable();
        assert_eq!(numbers, came.keys().copied().collect::<Vec<_>>());
    }
}
