//! The completion-time model against closed forms, hand counts and a segment-by-segment walk.

use proptest::prelude::*;
use tradewind_units::Segments;

use super::*;
use crate::leg::{DEFAULT_MSS, RELAY_FLOW_MBPS, RELAY_TO_RELAY_WINDOW};
use crate::tcp;

const TWO_GB: Bytes = Bytes::new(2_000_000_000);
const IW10: u64 = 14_480;

fn leg(rtt_ms: u64) -> Leg {
    Leg::new(Duration::from_millis(rtt_ms))
}

fn mbps(rate: f64) -> Bandwidth {
    Bandwidth::from_mbps(rate).unwrap()
}

fn seconds(legs: &[Leg], volume: Bytes, start_up: StartUp) -> f64 {
    path_fct(legs, volume, start_up).as_secs_f64()
}

fn close(a: f64, b: f64, tolerance: f64) -> bool {
    (a - b).abs() <= tolerance
}

#[test]
fn cloudpilots_special_cases_follow_from_the_model() {
    let relay = mbps(RELAY_FLOW_MBPS);
    let home = |rtt_ms| leg(rtt_ms).capped_at(mbps(1000.0));
    let gbit = 16.0;
    let direct = seconds(&[home(230)], TWO_GB, StartUp::Ignored);
    assert!(close(direct, gbit / 0.1, 1e-3), "23 Mbit / 230 ms = 100 Mbit/s: {direct}");
    let one = seconds(&[home(100), home(150)], TWO_GB, StartUp::Ignored);
    assert!(close(one, gbit / (0.023 / 0.150), 1e-3), "{one}");
    let inner = leg(200).with_window(RELAY_TO_RELAY_WINDOW).capped_per_connection_at(relay);
    let two = seconds(&[home(10), inner, home(20)], TWO_GB, StartUp::Ignored);
    assert!(close(two, gbit / 1.0, 1e-3), "the last miles bind: {two}");
    let slow_middle = inner.with_window(Bytes::new(2_875_000));
    let two = seconds(&[home(10), slow_middle, home(20)], TWO_GB, StartUp::Ignored);
    assert!(close(two, gbit / 0.115, 1e-3), "without large windows the middle leg binds: {two}");
    let near = [leg(1), inner, leg(1)].map(|leg| leg.capped_at(mbps(5000.0)));
    let relay_bound = seconds(&near, TWO_GB, StartUp::Ignored);
    assert!(close(relay_bound, gbit / 1.75, 1e-3), "1750 Mbit/s a flow: {relay_bound}");
}

#[test]
fn one_round_takes_a_handshake_and_half_an_rtt() {
    let fct = seconds(&[leg(100)], Bytes::new(10_000), StartUp::Cold);
    assert!(close(fct, 0.150, 1e-6), "{fct}");
}

#[test]
fn unlimited_slow_start_matches_closed_form() {
    let unlimited = leg(100).with_window(Bytes::new(1_000_000_000));
    for volume in [14_480, 14_481, 43_440, 43_441, 100_000, 1_000_000, 33_000_000] {
        let volume = Bytes::new(volume);
        let rounds = tcp::slow_start_rounds(Segments::new(10).unwrap(), DEFAULT_MSS, volume);
        let expected = 0.1 + 0.1 * f64::from(rounds - 1) + 0.05;
        let fct = seconds(&[unlimited], volume, StartUp::Cold);
        assert!(close(fct, expected, 1e-4), "{volume}: {fct} for {expected}");
    }
}

/// Counts the rounds of one leg alone, one by one.
fn rounds_counted(window: u64, volume: u64) -> f64 {
    let (mut sent, mut next, mut rounds) = (0, IW10, 0.0);
    while sent < volume {
        sent += next;
        next = (2 * next).min(window);
        rounds += 1.0;
    }
    rounds
}

#[test]
fn window_bound_flow_takes_counted_rounds() {
    let window = 185_344; // 128 segments
    for volume in [1_000_000, 10_000_000, 123_456_789, 2_000_000_000] {
        let leg = leg(80).with_window(Bytes::new(window));
        let expected = 0.08 * rounds_counted(window, volume) + 0.04;
        let fct = seconds(&[leg], Bytes::new(volume), StartUp::Cold);
        assert!(close(fct, expected, 1e-3), "{volume}: {fct} for {expected}");
    }
}

#[test]
fn bandwidth_bound_flow_takes_volume_over_rate() {
    let fct = seconds(&[leg(20).capped_at(mbps(100.0))], Bytes::new(100_000_000), StartUp::Cold);
    // Until the window fills the path, each round idles for what the window lacks of 250 kB.
    let idle: f64 = (0..5).map(|round| 1.0 - 14_480.0 * f64::from(1 << round) / 250_000.0).sum();
    assert!(close(fct, 8.0 + 0.03 + 0.02 * idle, 0.003), "{fct}");
}

#[test]
fn chain_set_up_time() {
    let legs = [leg(20), leg(100), leg(40)];
    let cold = path_completion(&legs, Bytes::new(1_000), StartUp::Cold);
    assert!(close(cold.total().as_secs_f64(), 0.030 + 0.150 + 0.060, 1e-6), "{cold:?}");
    let warm = seconds(&legs, Bytes::new(1_000), StartUp::Warm);
    assert!(close(warm, 0.010 + 0.050 + 0.060, 1e-6), "{warm}");
}

#[test]
fn direct_path_is_the_same_warm_or_cold() {
    let volume = Bytes::new(5_000_000);
    let warm = path_fct(&[leg(70)], volume, StartUp::Warm);
    assert_eq!(warm, path_fct(&[leg(70)], volume, StartUp::Cold));
}

#[test]
fn small_near_file_is_faster_direct() {
    // [CDD]: 17 to 18 KB between near places: the relays cost more than they bring.
    let file = Bytes::new(17_500);
    let direct = seconds(&[leg(70)], file, StartUp::Cold);
    let relayed = seconds(&[leg(5), leg(70), leg(5)], file, StartUp::Cold);
    assert!(relayed > direct, "{relayed} {direct}");
}

#[test]
fn relay_shortens_slow_start_over_long_rtt() {
    let file = Bytes::new(3_900_000);
    let direct = seconds(&[leg(250)], file, StartUp::Cold);
    let relayed = seconds(&[leg(125), leg(125)], file, StartUp::Cold);
    assert!(direct / relayed > 1.5, "{direct} {relayed}");
}

#[test]
fn parts_add_up_to_the_whole() {
    let legs = [leg(20), leg(100), leg(40)];
    let parts = path_completion(&legs, Bytes::new(50_000_000), StartUp::Cold);
    assert_eq!(parts.total(), path_fct(&legs, Bytes::new(50_000_000), StartUp::Cold));
    assert!(parts.start_up > Duration::from_millis(100), "{parts:?}");
    assert!(close(parts.steady.as_secs_f64(), 50_000_000.0 / 28_750_000.0, 1e-3), "{parts:?}");
}

#[test]
fn degenerate_legs_give_finite_times() {
    assert_eq!(path_fct(&[], TWO_GB, StartUp::Cold).as_secs(), 0);
    assert!(seconds(&[leg(0)], TWO_GB, StartUp::Cold) < 1.0);
    assert!(close(seconds(&[leg(50)], Bytes::ZERO, StartUp::Cold), 0.075, 1e-6));
    let tiny = leg(50).with_window(Bytes::ZERO);
    assert!(seconds(&[tiny], Bytes::new(10_000), StartUp::Cold) > 0.3);
    let crawling = leg(50).capped_at(Bandwidth::from_bps(1).unwrap());
    assert!(seconds(&[crawling, tiny], Bytes::new(u64::MAX), StartUp::Cold) > 1e9);
    let mixed = [leg(300).with_window(RELAY_TO_RELAY_WINDOW), tiny];
    assert!(seconds(&mixed, TWO_GB, StartUp::Cold).is_finite());
}

/// Follows the same recurrence segment by segment, with nothing skipped: slow and simple.
fn segment_by_segment(legs: &[Leg], volume: u64) -> f64 {
    let ready = ready_times(legs, StartUp::Cold);
    let paces: Vec<Pace> = legs.iter().map(Pace::of).collect();
    let count = usize::try_from(volume.div_ceil(1448)).unwrap();
    let mut sent: Vec<Vec<f64>> = vec![Vec::with_capacity(count); legs.len()];
    for segment in 0..count {
        let last_byte = ((segment + 1) * 1448) as f64;
        for (leg, pace) in paces.iter().enumerate() {
            let mut at = ready[leg];
            if let Some(before) = leg.checked_sub(1) {
                at = at.max(sent[before][segment] + paces[before].rtt / 2.0);
            }
            if let Some(before) = segment.checked_sub(1) {
                at = at.max(sent[leg][before] + 1448.0 * pace.seconds_per_byte);
            }
            let needed = pace.needs_acknowledged(last_byte);
            if needed > 0.0 {
                at = at.max(sent[leg][(needed / 1448.0).ceil() as usize - 1] + pace.rtt);
            }
            let must_be_gone = ((last_byte - pace.remote_buffer) / 1448.0).ceil();
            if let (Some(next), true) = (sent.get(leg + 1), must_be_gone > 0.0) {
                at = at.max(next[must_be_gone as usize - 1] + pace.rtt / 2.0);
            }
            sent[leg].push(at);
        }
    }
    let arrived = |(sent, pace): (&Vec<f64>, &Pace)| Some(sent.last()? + pace.rtt / 2.0);
    sent.last().zip(paces.last()).and_then(arrived).unwrap_or(0.0)
}

fn any_leg() -> impl Strategy<Value = Leg> {
    let caps = prop_oneof![Just(None), (5.0..500.0f64).prop_map(Some)];
    (1u64..300, 20u64..2_000, 1u32..5, caps).prop_map(|(rtt, segments, initial, cap)| {
        let leg = Leg {
            initial_window: Segments::new(initial * 10).unwrap(),
            ..leg(rtt).with_window(Bytes::new(segments * 1448))
        };
        cap.map_or(leg, |cap| leg.capped_at(mbps(cap)))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn grid_agrees_with_every_single_segment(
        legs in proptest::collection::vec(any_leg(), 1..5),
        volume in 1_000u64..60_000_000,
    ) {
        let fast = seconds(&legs, Bytes::new(volume), StartUp::Cold);
        let slow = segment_by_segment(&legs, volume);
        let longest = legs.iter().map(|leg| leg.rtt.as_secs_f64()).fold(0.0, f64::max);
        prop_assert!(close(fast, slow, 0.01 * slow + longest), "{fast} for {slow}");
    }

    #[test]
    fn full_relays_slow_the_legs_before_them(
        near in 5u64..60,
        remote in 100u64..350,
        volume in 20_000_000u64..120_000_000,
    ) {
        let fast = |rtt_ms| leg(rtt_ms).capped_at(mbps(900.0));
        let inner = fast(remote).with_window(RELAY_TO_RELAY_WINDOW);
        for legs in [[fast(near), inner, fast(10)], [fast(10), inner, fast(near)]] {
            let quick = seconds(&legs, Bytes::new(volume), StartUp::Cold);
            let slow = segment_by_segment(&legs, volume);
            prop_assert!(close(quick, slow, 0.02 * slow), "{quick} for {slow}");
        }
    }

    #[test]
    fn fct_respects_the_slowest_leg_and_grows_with_volume(
        legs in proptest::collection::vec(any_leg(), 1..5),
        volume in 1_000u64..3_000_000_000,
    ) {
        let steady = seconds(&legs, Bytes::new(volume), StartUp::Ignored);
        let cold = seconds(&legs, Bytes::new(volume), StartUp::Cold);
        let more = seconds(&legs, Bytes::new(volume * 2), StartUp::Cold);
        let longest = legs.iter().map(|leg| leg.rtt.as_secs_f64()).fold(0.0, f64::max);
        prop_assert!(cold >= steady - longest - 0.001 * steady, "{cold} {steady}");
        prop_assert!(more >= cold - 0.01 * cold, "{more} {cold}");
        prop_assert!(seconds(&legs, Bytes::new(volume), StartUp::Warm) <= cold + 1e-9);
    }
}

/// Measurements of `make demo` over nine two-relay paths on real kernel TCP
/// (docs/explanation/demo.md): RTTs of the legs in ms, and the completion time of 200 MB in
/// seconds. Legs carry 965 Mbit/s.
const MEASURED: [([f64; 3], f64); 9] = [
    ([48.5, 168.9, 11.6], 5.09),
    ([48.5, 234.0, 11.6], 5.81),
    ([48.5, 207.3, 11.6], 5.52),
    ([48.5, 268.9, 11.6], 6.08),
    ([11.6, 168.9, 48.5], 5.12),
    ([11.6, 328.9, 80.5], 9.02),
    ([11.6, 234.0, 48.5], 5.87),
    ([11.6, 268.9, 48.5], 6.29),
    ([80.5, 328.9, 11.6], 8.93),
];

#[test]
fn predictions_match_the_demos_measurements() {
    for (rtts_ms, measured) in MEASURED {
        let [first, inner, last] =
            rtts_ms.map(|ms| Leg::new(Duration::from_secs_f64(ms / 1e3)).capped_at(mbps(965.0)));
        let path = [first, inner.with_window(RELAY_TO_RELAY_WINDOW), last];
        let predicted = seconds(&path, Bytes::new(200_000_000), StartUp::Cold);
        let error = predicted / measured - 1.0;
        assert!(error.abs() < 0.03, "{rtts_ms:?}: {predicted} s, measured {measured} s");
    }
}
