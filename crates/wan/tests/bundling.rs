//! The fate and the times of a segment do not depend on its bundle, and every segment is accounted
//! for.

mod common;

use std::collections::BTreeMap;

use common::*;
use proptest::prelude::*;
use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{Admission, Bundle, Delivery, Ecn, HostIndex, PairChange, Topology, Wan};

/// Returns a topology of three sites with shared links, caps of every kind, and all faults at once.
fn rich_topology() -> Topology {
    topology_with("duplicate = 0.02\nreorder = { share = 0.02, late_by = '400 us' }")
}

/// Returns the same topology, with these keys of the pairs instead of disorder.
fn topology_with(keys: &str) -> Topology {
    parse(&format!(
        "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[site]]\nid = 'c'\n\
         [default.pair]\nrtt = '3 ms'\nrate = '60 Mbit/s'\nqueue = '30 kB'\nloss = 0.02\n\
         jitter = '1 ms'\necn_threshold = '9 kB'\nmtu = '1400 B'\n{keys}\n\
         burst_loss = {{ enter = 0.01, leave = 0.3 }}\n\
         [default.host]\negress = '80 Mbit/s'\ncap = 'tail-drop'\nburst = '6 kB'\n\
         per_connection = '70 Mbit/s'\ningress = '50 Mbit/s'\nqueue = '20 kB'\n\
         [[link]]\nname = 'cable'\nrate = '70 Mbit/s'\nqueue = '15 kB'\nloss = 0.01\n\
         [[pair]]\nbetween = ['a', 'c']\nvia = ['cable']\n\
         [[pair]]\nbetween = ['b', 'c']\nvia = ['cable']\nrtt = '0 ms'\njitter = '0 ms'\n\
         [[outage]]\nname = 'cut'\nmean_gap = '8 ms'\nshortest = '100 us'\nlongest = '1 ms'\n\
         sites = ['a']\nlinks = ['cable']"
    ))
    .expect("a right topology")
}

/// A bundle of a trace; `gap` is the time since the one before.
#[derive(Debug, Clone)]
struct Sent {
    gap_us: u64,
    source: u16,
    destination: u16,
    connection: u64,
    segments: u32,
    payload: u32,
    last_payload: u32,
    ecn: Ecn,
}

fn sent() -> impl Strategy<Value = Sent> {
    let ecn = prop_oneof![Just(Ecn::NotCapable), Just(Ecn::Capable), Just(Ecn::Marked)];
    // Payloads around the MTU of 1400 less headers of 40 bytes.
    let sizes = (1..12_u32, prop_oneof![Just(1360_u32), Just(1361), 1..1400_u32]);
    (0..400_u64, 0..3_u16, 1..3_u16, 0..3_u64, sizes, any::<u32>(), ecn).prop_map(
        |(gap_us, source, step, connection, (segments, payload), last, ecn)| Sent {
            gap_us,
            source,
            destination: (source + step) % 3,
            connection,
            segments,
            payload,
            last_payload: 1 + last % payload,
            ecn,
        },
    )
}

fn whole(sent: &Sent, number: usize) -> Bundle<Place> {
    Bundle {
        source: HostIndex(sent.source),
        destination: HostIndex(sent.destination),
        connection: sent.connection,
        header_bytes: 40,
        payload_bytes: sent.payload * (sent.segments - 1) + sent.last_payload,
        segment_bytes: sent.payload,
        ecn: sent.ecn,
        content: (number, 0),
    }
}

/// Returns the same segments, each as a bundle of its own.
fn single(sent: &Sent, number: usize) -> Vec<Bundle<Place>> {
    let part = |index| {
        let is_last = index + 1 == sent.segments;
        let payload = if is_last { sent.last_payload } else { sent.payload };
        Bundle { payload_bytes: payload, content: (number, index), ..whole(sent, number) }
    };
    (0..sent.segments).map(part).collect()
}

/// The result of a trace: every arrival of a segment with its time and mark.
type Outcome = BTreeMap<Place, Vec<(u64, bool)>>;

fn change_midway() -> PairChange {
    PairChange::parse("a,b", ["rate=20 Mbit/s", "rtt=5 ms", "loss=0.1"]).expect("a right change")
}

/// The content of a trace's bundles: their number, and that of their first segment.
type Place = (usize, u32);

/// Runs a trace; with `coalesce` zero every segment has its own due time.
fn run(
    trace: &[Sent],
    pushes: impl Fn(&Sent, usize) -> Vec<Bundle<Place>>,
    coalesce: Duration,
    wakes: bool,
) -> (Outcome, Wan<Place>, Vec<Delivery<Place>>) {
    let mut wan = Wan::new(&rich_topology(), 77);
    wan.set_coalesce(coalesce);
    let mut deliveries = Vec::new();
    let mut now_us = 0;
    for (number, sent) in trace.iter().enumerate() {
        now_us += sent.gap_us;
        if wakes {
            deliveries.extend(std::iter::from_fn(|| wan.pop_due(at(now_us))));
        }
        if number == trace.len() / 2 {
            wan.apply(at(now_us), &change_midway()).expect("a change of a known pair");
        }
        for bundle in pushes(sent, number) {
            assert_ne!(wan.push(at(now_us), bundle), Admission::NoRoute);
            let counters = wan.counters();
            assert!(counters.total.is_conserved(), "{:?}", counters.total);
            assert!(counters.links.iter().all(|link| link.tally.is_conserved()));
        }
    }
    deliveries.extend(drain(&mut wan));
    let mut outcome = Outcome::new();
    for delivery in &deliveries {
        let (number, first) = delivery.content;
        for index in delivery.segments.clone() {
            let arrival = (delivery.due.as_nanos(), delivery.ce_marked);
            outcome.entry((number, first + index)).or_default().push(arrival);
        }
    }
    outcome.values_mut().for_each(|arrivals| arrivals.sort_unstable());
    (outcome, wan, deliveries)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn bundles_and_single_segments_have_equal_outcomes(
        trace in prop::collection::vec(sent(), 1..60),
    ) {
        let whole = |sent: &Sent, number| vec![whole(sent, number)];
        let (bundled, bundled_wan, _) = run(&trace, whole, Duration::ZERO, false);
        let (unbundled, unbundled_wan, _) = run(&trace, single, Duration::ZERO, true);
        prop_assert_eq!(&bundled, &unbundled);
        prop_assert_eq!(bundled_wan.counters(), unbundled_wan.counters());
    }

    #[test]
    fn coalescing_shifts_times_by_at_most_its_span(
        trace in prop::collection::vec(sent(), 1..60),
    ) {
        let whole = |sent: &Sent, number| vec![whole(sent, number)];
        let span = Duration::from_micros(250);
        let (apart, apart_wan, _) = run(&trace, whole, Duration::ZERO, true);
        let (together, wan, deliveries) = run(&trace, whole, span, true);
        prop_assert_eq!(wan.counters(), apart_wan.counters());
        prop_assert_eq!(wan.counters().total.in_flight, 0);
        let delivered = deliveries.iter().map(|d| d.segments.len() as u64).sum::<u64>();
        prop_assert_eq!(delivered, wan.counters().total.delivered);
        prop_assert_eq!(apart.len(), together.len());
        for (segment, times) in &apart {
            let others = &together[segment];
            prop_assert_eq!(times.len(), others.len());
            for (exact, coalesced) in times.iter().zip(others) {
                prop_assert_eq!(exact.1, coalesced.1);
                prop_assert!(coalesced.0 >= exact.0 && coalesced.0 - exact.0 <= 250_000);
            }
        }
    }

    #[test]
    fn deliveries_at_deadlines_are_at_most_a_span_late(
        trace in prop::collection::vec(sent(), 1..60),
    ) {
        let mut wan: Wan<Place> = Wan::new(&topology_with(""), 5);
        let mut pending = trace.iter().enumerate();
        let mut next_push = pending.next().map(|(number, sent)| (sent.gap_us, number, sent));
        loop {
            let push_at = next_push.map(|(us, ..)| at(us));
            let Some(now) = wan.next_deadline().into_iter().chain(push_at).min() else { break };
            while let Some(delivery) = wan.pop_due(now) {
                prop_assert!(delivery.due <= now);
                let late = now.since(delivery.due);
                prop_assert!(late <= Duration::from_micros(250), "{:?}", late);
                let is_whole = delivery.segments.end == trace[delivery.content.0].segments;
                prop_assert!(!is_whole || late.is_zero(), "{:?} at {:?}", delivery, now);
            }
            if let Some((us, number, sent)) = next_push.filter(|(us, ..)| at(*us) <= now) {
                wan.push(now, whole(sent, number));
                next_push = pending.next().map(|(number, sent)| (us + sent.gap_us, number, sent));
            }
        }
    }

    #[test]
    fn deliveries_of_a_connection_keep_time_order(
        trace in prop::collection::vec(sent(), 1..60),
    ) {
        let whole = |sent: &Sent, number| vec![whole(sent, number)];
        let (_, _, deliveries) = run(&trace, whole, Duration::from_micros(250), true);
        let mut last: BTreeMap<(u16, u16, u64), Timestamp> = BTreeMap::new();
        for delivery in deliveries {
            let sent = &trace[delivery.content.0];
            let key = (sent.source, sent.destination, sent.connection);
            let before = last.insert(key, delivery.due).unwrap_or_default();
            prop_assert!(delivery.due >= before);
        }
    }

    #[test]
    fn late_calls_yield_the_same_deliveries(
        trace in prop::collection::vec(sent(), 1..60),
    ) {
        let whole = |sent: &Sent, number| vec![whole(sent, number)];
        let span = Duration::from_micros(250);
        let (awake, ..) = run(&trace, whole, span, true);
        let (asleep, ..) = run(&trace, whole, span, false);
        prop_assert_eq!(awake, asleep);
    }
}

#[test]
fn segments_of_a_bundle_come_out_together_up_to_the_span() {
    let topology = two_sites("rtt = '10 ms'\nrate = '1 Gbit/s'");
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), bundle(A, B, 1460, 44, ()));
    // 12 us a segment: 21 fit 250 us.
    let seen: Vec<_> = drain(&mut wan).iter().map(|d| (d.segments.clone(), d.due)).collect();
    assert_eq!(
        seen,
        [
            (0..21, at(5_000 + 21 * 12)),
            (21..42, at(5_000 + 42 * 12)),
            (42..44, at(5_000 + 44 * 12)),
        ]
    );
}

#[test]
fn interleaved_bundles_leave_a_cap_together() {
    let topology = parse(
        "[[site]]\nid = 'a'\n[[site]]\nid = 'b'\n[[site]]\nid = 'c'\n\
         [default.pair]\nrtt = '10 ms'\nrate = '1 Gbit/s'\n\
         [[host]]\nid = 'sink'\nsite = 'c'\ningress = '2 Gbit/s'\nburst = '1500 B'\n\
         queue = '1 MB'",
    )
    .expect("a right topology");
    let [a, b, sink] = ["a", "b", "sink"].map(|name| host(&topology, name));
    let mut wan = Wan::new(&topology, 1);
    push(&mut wan, at(0), Bundle { connection: 1, ..bundle(a, sink, 1460, 40, 'a') });
    push(&mut wan, at(3), Bundle { connection: 2, ..bundle(b, sink, 1460, 40, 'b') });
    let seen = drain(&mut wan);
    assert_eq!(seen.iter().map(|d| d.segments.len()).sum::<usize>(), 80);
    assert!(seen.len() <= 6, "{} deliveries", seen.len());
}
