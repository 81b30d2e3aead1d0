//! Times at which segments leave queues and arrive, to the nanosecond.

mod common;

use common::*;
use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{DropCause, Ecn, LinkName, PairChange, Wan};

#[test]
fn idle_path_delays_by_transmission_plus_half_the_rtt() {
    let topology = two_sites("rtt = '100 ms'\nrate = '100 Mbit/s'");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(5), packet(A, B, 1500, ()));
    // 1500 B at 100 Mbit/s are 120 us.
    let deliveries = drain(&mut wan);
    assert_eq!(deliveries.len(), 1);
    assert_eq!(deliveries[0].due, at(5 + 120 + 50_000));
}

#[test]
fn segments_of_a_bundle_leave_one_transmission_apart() {
    let topology = two_sites("rtt = '10 ms'\nrate = '1 Gbit/s'");
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    push(&mut wan, at(0), bundle(A, B, 1460, 5, ()));
    let due: Vec<u64> = drain(&mut wan).iter().map(|d| d.due.as_nanos()).collect();
    assert_eq!(due, [1, 2, 3, 4, 5].map(|n| n * 12_000 + 5_000_000));
}

#[test]
fn a_busy_queue_loses_no_fraction_of_a_nanosecond() {
    // 1500 B at 7 Gbit/s are 1714.2857 ns.
    let topology = two_sites("rtt = '0 ms'\nrate = '7 Gbit/s'\nqueue = '100 MB'");
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    for _ in 0..7_000 {
        push(&mut wan, at(0), packet(A, B, 1500, ()));
    }
    assert_eq!(drain(&mut wan).last().unwrap().due, at(12_000));
}

#[test]
fn both_halves_of_an_odd_round_trip_make_it_whole() {
    let topology = two_sites("rtt = '7 ns'");
    let delay = |from: usize, to: usize| {
        topology.pair(topology.hosts[from].site, topology.hosts[to].site).delay
    };
    assert_eq!(delay(0, 1) + delay(1, 0), Duration::from_nanos(7));
}

#[test]
fn queue_overflows_at_the_exact_byte() {
    for (room, dropped) in [(6000, 0), (5999, 1), (4500, 1), (4499, 2)] {
        let keys = format!("rtt = '1 ms'\nrate = '10 Mbit/s'\nqueue = '{room} B'");
        let mut wan = Wan::new(&two_sites(&keys), 1);
        for _ in 0..4 {
            push(&mut wan, at(0), packet(A, B, 1500, ()));
        }
        assert_eq!(wan.counters().total.dropped(DropCause::QueueFull), dropped, "{room} B");
    }
}

#[test]
fn room_comes_back_when_a_segment_has_left() {
    let topology = two_sites("rtt = '1 ms'\nrate = '12 Mbit/s'\nqueue = '1500 B'");
    // 1500 B take 1000 us: a second one fits at 1000 us, not before.
    for (second_us, dropped) in [(999, 1), (1000, 0)] {
        let mut wan = Wan::new(&topology, 1);
        push(&mut wan, at(0), packet(A, B, 1500, ()));
        push(&mut wan, at(second_us), packet(A, B, 1500, ()));
        assert_eq!(wan.counters().total.dropped_total(), dropped, "{second_us} us");
    }
}

#[test]
fn a_burst_passes_a_cap_at_once_and_the_rest_at_its_rate() {
    let topology = parse(
        "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[pair]]\nbetween = ['a', 'b']\nrtt = '0 ms'\n\
         [[host]]\nid = 'x'\nsite = 'a'\negress = '12 Mbit/s'\ncap = 'tail-drop'\nburst = '3000 B'",
    )
    .unwrap();
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    push(&mut wan, at(0), bundle(A, B, 1460, 4, ()));
    let due: Vec<f64> = arrivals(&drain(&mut wan)).iter().map(|(_, _, due)| *due).collect();
    assert_eq!(due, [0.0, 0.0, 1000.0, 2000.0]);
    // After 1.5 ms of silence the bucket has three quarters of its burst back.
    push(&mut wan, at(3500), bundle(A, B, 1460, 3, ()));
    let due: Vec<u64> = drain(&mut wan).iter().map(|d| d.due.as_nanos() / 1000).collect();
    assert_eq!(due, [3500, 4000, 5000]);
}

#[test]
fn a_rate_that_changes_midway_holds_for_what_is_in_service() {
    let topology = two_sites("rtt = '0 ms'\nrate = '12 Mbit/s'");
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    push(&mut wan, at(0), bundle(A, B, 1460, 3, ()));
    // Half of the first is sent when the rate halves: the other half takes another 1000 us.
    let change = PairChange::parse("a,b", ["rate=6 Mbit/s"]).unwrap();
    wan.apply(at(500), &change).unwrap();
    let due: Vec<u64> = drain(&mut wan).iter().map(|d| d.due.as_nanos() / 1000).collect();
    assert_eq!(due, [1500, 3500, 5500]);
}

#[test]
fn removed_limit_frees_the_queue_and_a_new_one_applies() {
    let topology = two_sites("rtt = '0 ms'\nrate = '12 Mbit/s'");
    let mut wan = Wan::new(&topology, 1);
    wan.set_coalesce(Duration::ZERO);
    push(&mut wan, at(0), bundle(A, B, 1460, 3, ()));
    wan.apply(at(500), &PairChange::parse("a,b", ["rate=none"]).unwrap()).unwrap();
    let due: Vec<f64> = arrivals(&drain(&mut wan)).iter().map(|(_, _, due)| *due).collect();
    assert_eq!(due, [500.0, 500.0, 500.0]);
    wan.apply(at(600), &PairChange::parse("a->b", ["rate=12 Mbit/s"]).unwrap()).unwrap();
    push(&mut wan, at(700), packet(A, B, 1500, ()));
    assert_eq!(drain(&mut wan)[0].due, at(1700));
}

#[test]
fn a_shorter_delay_never_lets_a_later_segment_overtake() {
    let topology = two_sites("rtt = '200 ms'");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), packet(A, B, 1500, 0));
    wan.apply(at(10), &PairChange::parse("a,b", ["rtt=2 ms"]).unwrap()).unwrap();
    push(&mut wan, at(20), packet(A, B, 1500, 1));
    push(&mut wan, at(200_000), packet(A, B, 1500, 2));
    let order: Vec<_> = drain(&mut wan).iter().map(|d| (d.content, d.due)).collect();
    assert_eq!(order, [(0, at(100_000)), (1, at(100_000)), (2, at(201_000))]);
}

#[test]
fn jitter_keeps_order_and_delay_bounds() {
    let topology = two_sites("rtt = '20 ms'\njitter = '8 ms'");
    let mut wan = Wan::new(&topology, 3);
    for n in 0..50_000_u64 {
        push(&mut wan, at(n * 37), packet(A, B, 100, n));
    }
    let deliveries = drain(&mut wan);
    let mut extra = Vec::new();
    for (n, delivery) in deliveries.iter().enumerate() {
        assert_eq!(delivery.content, n as u64);
        let sent = at(n as u64 * 37) + Duration::from_millis(10);
        assert!(delivery.due >= sent && delivery.due <= sent + Duration::from_millis(8));
        extra.push(delivery.due.since(sent).as_micros());
    }
    extra.sort_unstable();
    assert!(extra[0] < 500 && extra[extra.len() - 1] > 7_500, "the whole range is used");
}

#[test]
fn deadline_is_late_by_at_most_the_coalescing_span() {
    let topology = two_sites("rtt = '30 ms'\nrate = '200 Mbit/s'");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), bundle(A, B, 1460, 40, 0));
    push(&mut wan, at(100), packet(A, B, 60, 1));
    push(&mut wan, at(10_000), packet(A, B, 60, 2));
    let mut wakes = 0;
    while let Some(deadline) = wan.next_deadline() {
        wakes += 1;
        while let Some(delivery) = wan.pop_due(deadline) {
            let late = deadline.since(delivery.due);
            assert!(late <= Duration::from_micros(60), "{late:?}");
        }
    }
    assert!(wakes <= 16, "{wakes} wakes for 10 deliveries");
}

#[test]
fn a_lone_packet_is_due_exactly_at_the_deadline() {
    let topology = two_sites("rtt = '30 ms'");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(7), packet(A, B, 60, ()));
    assert_eq!(wan.next_deadline(), Some(at(15_007)));
    assert_eq!(wan.pop_due(Timestamp::from_nanos(15_006_999)), None);
    assert_eq!(wan.pop_due(at(15_007)).unwrap().due, at(15_007));
    assert_eq!(wan.next_deadline(), None);
}

#[test]
fn only_capable_segments_are_marked_above_the_threshold() {
    let keys = "rtt = '1 ms'\nrate = '10 Mbit/s'\nqueue = '100 kB'\necn_threshold = '4500 B'";
    let topology = two_sites(keys);
    for (ecn, marked) in [(Ecn::Capable, 3), (Ecn::NotCapable, 0)] {
        let mut wan = Wan::new(&topology, 1);
        push(&mut wan, at(0), tradewind_wan::Bundle { ecn, ..bundle(A, B, 1460, 6, ()) });
        let deliveries = drain(&mut wan);
        let ce: u32 =
            deliveries.iter().filter(|d| d.ce_marked).map(|d| d.segments.len() as u32).sum();
        assert_eq!(ce, marked);
        for delivery in deliveries {
            assert_eq!(delivery.ce_marked, ecn == Ecn::Capable && delivery.segments.start >= 3);
        }
        let counters = wan.counters();
        let pair = counters.links.iter().find(|l| {
            matches!(&l.name, LinkName::Pair(from, to)
            if from.as_str() == "a" && to.as_str() == "b")
        });
        assert_eq!(pair.unwrap().tally.marked, u64::from(marked));
    }
}
