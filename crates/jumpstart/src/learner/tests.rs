//! The paper's algorithm in its own words, then our additions.

use super::tests_support::sample;
use super::*;
use crate::config::{Combine, History};
use crate::hint::Order;
use proptest::prelude::*;
use tradewind_units::{Bytes, Ratio};

fn at(seconds: u64) -> Timestamp {
    Timestamp::ZERO + Duration::from_secs(seconds)
}

fn share(value: f64) -> Ratio {
    Ratio::new(value).unwrap()
}

fn with_window(connection: u64, remote: &str, window: u32) -> Sample {
    Sample { window: Segments::new(window).unwrap(), ..sample(connection, remote) }
}

/// Runs one round of connections to 10.0.0.1 with these windows; returns the resulting window.
fn round(learner: &mut Learner, now: u64, windows: &[u32]) -> Option<u32> {
    for (number, window) in windows.iter().enumerate() {
        learner.observe(&with_window(number as u64, "10.0.0.1", *window));
    }
    learner.decide(at(now));
    learner.explain("10.0.0.1".parse().unwrap(), at(now)).map(|known| known.window_segments)
}

fn riptide(change: impl FnOnce(&mut Config)) -> Learner {
    let control = Control::Destinations(Ratio::ZERO);
    let mut config = Config { control, ..Config::default() };
    change(&mut config);
    Learner::new(config)
}

#[test]
fn new_connections_start_with_the_mean_window() {
    // [RT Fig. 7].
    let mut learner = riptide(|_| {});
    for (connection, window) in [(1, 60), (2, 80), (3, 100)] {
        learner.observe(&with_window(connection, "10.0.0.127", window));
    }
    let changes = learner.decide(at(0));
    let [Change::Set(setting)] = changes.as_slice() else { panic!("{changes:?}") };
    assert_eq!(setting.prefix.to_string(), "10.0.0.127/32");
    assert_eq!((setting.window.as_u32(), setting.pacing), (80, None));
    assert_eq!(setting.expires, at(90));
}

#[test]
fn history_keeps_weight_alpha() {
    let mut learner = riptide(|_| {});
    assert_eq!(round(&mut learner, 0, &[80]), Some(80));
    assert_eq!(round(&mut learner, 1, &[40]), Some(70)); // 0.75 * 80 + 0.25 * 40
    assert_eq!(round(&mut learner, 2, &[40]), Some(63)); // 0.75 * 70 + 0.25 * 40 = 62.5
}

#[test]
fn window_bounds_hold() {
    let mut learner = riptide(|_| {});
    assert_eq!(round(&mut learner, 0, &[5000]), Some(100));
    let known = learner.explain("10.0.0.1".parse().unwrap(), at(0)).unwrap();
    assert_eq!(known.bound, Some("c_max"));
    assert_eq!(round(&mut learner, 1, &[60]), Some(90));
    let mut learner = riptide(|_| {});
    assert_eq!(round(&mut learner, 0, &[2]), Some(10));
    let mut learner = riptide(|config| config.history = History::Rounds(4));
    assert_eq!(round(&mut learner, 0, &[5000]), Some(100));
    assert_eq!(round(&mut learner, 1, &[60]), Some(80)); // (100 + 60) / 2
}

#[test]
fn papers_variants() {
    let value = |change: fn(&mut Config), rounds: &[&[u32]]| {
        let mut learner = riptide(change);
        let numbered = rounds.iter().enumerate();
        numbered.map(|(now, windows)| round(&mut learner, now as u64, windows)).last().unwrap()
    };
    let none = |config: &mut Config| config.history = History::Weight(Ratio::ZERO);
    let long = |config: &mut Config| config.history = History::Rounds(4);
    assert_eq!(value(|config| config.combine = Combine::Maximum, &[&[20, 90]]), Some(90));
    assert_eq!(value(|config| config.combine = Combine::Traffic, &[&[20, 90]]), Some(55));
    assert_eq!(value(none, &[&[80], &[40]]), Some(40));
    assert_eq!(value(long, &[&[80], &[40], &[60], &[60], &[60]]), Some(55));
}

#[test]
fn value_expires_after_its_time_to_live() {
    let mut learner = riptide(|_| {});
    round(&mut learner, 0, &[80]);
    assert_eq!(round(&mut learner, 5, &[80]), Some(80));
    assert!(learner.decide(at(94)).is_empty());
    let changes = learner.decide(at(95));
    let prefix = "10.0.0.1/32".parse().unwrap();
    assert_eq!(changes, [Change::Remove { prefix, reason: Reason::Expired }]);
    assert_eq!(learner.explain("10.0.0.1".parse().unwrap(), at(95)), None);
}

#[test]
fn unchanged_value_is_renewed() {
    let mut learner = riptide(|_| {});
    round(&mut learner, 0, &[80]);
    learner.observe(&with_window(0, "10.0.0.1", 80));
    let prefix = "10.0.0.1/32".parse().unwrap();
    assert_eq!(learner.decide(at(1)), [Change::Renew { prefix, expires: at(91) }]);
}

#[test]
fn destinations_are_hosts_lengths_or_named_prefixes() {
    let learner = riptide(|config| {
        (config.length_v4, config.length_v6) = (24, 48);
        config.prefixes = vec!["10.9.9.4/30".parse().unwrap()];
    });
    for (remote, prefix) in [
        ("10.9.9.6", "10.9.9.4/30"),
        ("10.9.9.9", "10.9.9.0/24"),
        ("::ffff:10.9.9.9", "10.9.9.0/24"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
    ] {
        assert_eq!(learner.prefix_of(remote.parse().unwrap()).to_string(), prefix);
    }
    let hosts = riptide(|_| {});
    assert_eq!(hosts.prefix_of("2001:db8::1".parse().unwrap()).to_string(), "2001:db8::1/128");
}

#[test]
fn sudden_fall_is_followed_on_request() {
    let mut slow = riptide(|_| {});
    let mut fast = riptide(|config| config.fall_below = Some(share(0.5)));
    for learner in [&mut slow, &mut fast] {
        round(learner, 0, &[100]);
    }
    assert_eq!((round(&mut slow, 1, &[20]), round(&mut fast, 1, &[20])), (Some(80), Some(20)));
    let known = fast.explain("10.0.0.1".parse().unwrap(), at(1)).unwrap();
    assert_eq!(known.reason, Reason::FellAtOnce);
    // An ordinary dip is averaged.
    assert_eq!(round(&mut fast, 2, &[12]), Some(18));
}

#[test]
fn hints_lower_and_freeze_and_end() {
    let mut learner = riptide(|config| config.history = History::Weight(Ratio::ZERO));
    round(&mut learner, 0, &[60]);
    let within: IpNet = "10.0.0.0/8".parse().unwrap();
    let hint = |order, until| Hint { within, order, until: at(until) };
    learner.hint(hint(Order::Freeze, 10));
    assert_eq!(round(&mut learner, 1, &[90]), Some(60));
    assert_eq!(round(&mut learner, 2, &[40]), Some(40));
    learner.hint(hint(Order::AtMost(Segments::new(20).unwrap()), 10));
    assert_eq!(round(&mut learner, 3, &[90]), Some(20));
    learner.hint(hint(Order::Scale(share(0.5)), 10));
    assert_eq!(round(&mut learner, 4, &[90]), Some(45));
    let known = learner.explain("10.0.0.1".parse().unwrap(), at(4)).unwrap();
    assert_eq!(known.hints, ["scale to 0.5"]);
    assert_eq!(round(&mut learner, 10, &[90]), Some(90));
}

#[test]
fn standing_hints_hold_until_replaced() {
    let mut learner = riptide(|config| config.history = History::Weight(Ratio::ZERO));
    let within: IpNet = "10.0.0.0/8".parse().unwrap();
    let at_most = |count| Order::AtMost(Segments::new(count).unwrap());
    let hint = |order, until| Hint { within, order, until: at(until) };
    learner.stand([hint(at_most(40), 0)]);
    assert_eq!(round(&mut learner, 5, &[90]), Some(40));
    learner.hint(hint(at_most(20), 10));
    assert_eq!(round(&mut learner, 6, &[90]), Some(20));
    assert_eq!(round(&mut learner, 10, &[90]), Some(40));
    learner.stand([hint(at_most(60), 0)]);
    assert_eq!(round(&mut learner, 11, &[90]), Some(60));
    learner.stand([]);
    assert_eq!(round(&mut learner, 12, &[90]), Some(90));
}

fn paced() -> Learner {
    Learner::new(Config { control: Control::Connections(Ratio::ZERO), ..Config::of(Mode::Paced) })
}

/// Runs a round in which one connection that always sends has carried a megabyte a second.
fn busy_round(learner: &mut Learner, now: u64) {
    learner.observe(&Sample { acked: Bytes::new((now + 1) * 1_000_000), ..sample(1, "10.0.0.1") });
    learner.decide(at(now));
}

#[test]
fn paced_learns_rate_times_round_trip_time() {
    let mut learner = paced();
    busy_round(&mut learner, 0);
    let known = learner.explain("10.0.0.1".parse().unwrap(), at(0)).unwrap();
    assert_eq!(known.window_segments, 50); // 10 Mbit/s over 40 ms: 50 kB
    assert!((known.pacing_mbps.unwrap() - 8.5).abs() < 1e-6);
    let start = learner.start(at(0), "10.0.0.1".parse().unwrap(), None).unwrap();
    assert_eq!(start.window.as_u32(), 50);
    assert!((start.pacing.unwrap().as_mbps() - 8.5).abs() < 1e-6);
    assert_eq!(start.until, at(0) + Duration::from_millis(160));
}

#[test]
fn idle_connection_does_not_confirm_its_path() {
    let mut learner = paced();
    busy_round(&mut learner, 0);
    // Sampled every second with the same figures, never sending: forgotten all the same.
    for now in 1..90 {
        learner.observe(&sample(1, "10.0.0.1"));
        learner.decide(at(now));
    }
    assert!(learner.explain("10.0.0.1".parse().unwrap(), at(89)).is_some());
    learner.observe(&sample(1, "10.0.0.1"));
    learner.decide(at(90));
    assert_eq!(learner.explain("10.0.0.1".parse().unwrap(), at(90)), None);
}

#[test]
fn handshake_over_another_path_starts_by_default() {
    let mut learner = paced();
    busy_round(&mut learner, 0);
    let remote = "10.0.0.1".parse().unwrap();
    for (rtt_ms, jumps) in [(10, false), (41, true), (500, false)] {
        let start = learner.start(at(1), remote, Some(Duration::from_millis(rtt_ms)));
        assert_eq!(start.is_some(), jumps, "{rtt_ms} ms");
    }
}

#[test]
fn freeze_holds_rates_and_new_destinations_get_c_min() {
    let mut learner = paced();
    let remote: IpAddr = "10.0.0.1".parse().unwrap();
    let new: IpAddr = "10.0.0.2".parse().unwrap();
    // Observes a rate of so many Mbit/s over 40 ms, and a megabyte a second acknowledged.
    let shown = |learner: &mut Learner, now: u64, remote: &str, mbps: f64| {
        let acked = Bytes::new((now + 1) * 1_000_000);
        let delivery_rate = Bandwidth::from_mbps(mbps).ok();
        let number = u64::from(remote == "10.0.0.2");
        learner.observe(&Sample { acked, delivery_rate, ..sample(number, remote) });
    };
    // Returns a destination's window, and its rate in tenths of Mbit/s.
    let known = |learner: &Learner, remote, now| {
        let known = learner.explain(remote, at(now)).unwrap();
        (known.window_segments, (known.pacing_mbps.unwrap() * 10.0).round() as u32)
    };
    shown(&mut learner, 0, "10.0.0.1", 40.0);
    learner.decide(at(0));
    assert_eq!(known(&learner, remote, 0), (100, 340), "the window is at its bound");
    let within = "10.0.0.0/8".parse().unwrap();
    learner.hint(Hint { within, order: Order::Freeze, until: at(20) });
    for now in 1..20 {
        shown(&mut learner, now, "10.0.0.1", 80.0);
        shown(&mut learner, now, "10.0.0.2", 80.0);
        learner.decide(at(now));
        assert_eq!(known(&learner, remote, now), (100, 340));
        // A tenth of the window, so a tenth of the rate.
        assert_eq!(known(&learner, new, now), (10, 68));
    }
    shown(&mut learner, 20, "10.0.0.1", 80.0);
    shown(&mut learner, 20, "10.0.0.2", 80.0);
    learner.decide(at(20));
    assert!(known(&learner, remote, 20).1 > 600);
    assert_eq!(known(&learner, new, 20), (100, 680));
}

#[test]
fn first_flight_loss_halves_window_and_rate() {
    let mut learner = paced();
    busy_round(&mut learner, 0);
    learner.observe(&Sample {
        acked: Bytes::new(60_000),
        retransmitted_segments: 9,
        application_limited: true,
        ..sample(2, "10.0.0.1")
    });
    busy_round(&mut learner, 1);
    let known = learner.explain("10.0.0.1".parse().unwrap(), at(1)).unwrap();
    assert_eq!((known.window_segments, known.guard_ratio), (25, 0.5));
    assert!((known.pacing_mbps.unwrap() - 4.25).abs() < 1e-6);
    // The same loss is not counted twice.
    learner.observe(&Sample { retransmitted_segments: 9, ..sample(2, "10.0.0.1") });
    busy_round(&mut learner, 2);
    assert_eq!(learner.explain("10.0.0.1".parse().unwrap(), at(2)).unwrap().guard_ratio, 0.5);
}

#[test]
fn rate_limited_jumps_do_not_lower_the_rate() {
    let mbps = |rate| Bandwidth::from_mbps(rate).ok();
    let remote: IpAddr = "10.0.0.1".parse().unwrap();
    for mode in [Mode::Paced, Mode::Strict] {
        let config = Config { control: Control::Connections(Ratio::ZERO), ..Config::of(mode) };
        let mut learner = Learner::new(config);
        busy_round(&mut learner, 0);
        let before = learner.explain(remote, at(0)).unwrap();
        // A new connection each second, limited to its share, for longer than the time to live.
        let jumper = |number: u64, rate: f64| Sample {
            rate_limit: mbps(8.5),
            delivery_rate: mbps(rate),
            window: Segments::new(25).unwrap(),
            acked: Bytes::new(100_000),
            ..sample(number, "10.0.0.1")
        };
        for second in 1..200 {
            learner.observe(&jumper(100 + second, 6.0));
            learner.decide(at(second));
        }
        let after = learner.explain(remote, at(199)).unwrap();
        assert_eq!(after.learned_segments, before.learned_segments, "{mode:?}");
        assert_eq!((after.rate_mbps, after.expires_in_s), (before.rate_mbps, 90.0), "{mode:?}");
        // A path that carries less than the share lowers the value.
        for second in 200..210 {
            learner.observe(&jumper(100 + second, 1.0));
            learner.decide(at(second));
        }
        let worse = learner.explain(remote, at(209)).unwrap();
        assert!(worse.learned_segments < 0.7 * before.learned_segments, "{mode:?}");
    }
}

#[test]
fn strict_mode_is_cautious() {
    let config = Config { control: Control::Connections(Ratio::ZERO), ..Config::of(Mode::Strict) };
    let mut learner = Learner::new(config);
    busy_round(&mut learner, 0);
    let remote: IpAddr = "10.0.0.1".parse().unwrap();
    assert_eq!(learner.start(at(1), remote, None).unwrap().window.as_u32(), 25);
    assert_eq!(learner.start(at(1), remote, None), None);
    let lossy = Sample { retransmitted_segments: 1, ..with_window(7, "10.0.0.1", 50) };
    learner.observe(&Sample { acked: Bytes::new(20_000), ..lossy });
    let changes = learner.decide(at(1));
    let prefix = "10.0.0.1/32".parse().unwrap();
    assert_eq!(changes, [Change::Remove { prefix, reason: Reason::FirstFlightLost }]);
}

#[test]
fn control_share_keeps_the_default() {
    let mut learner = Learner::new(Config::default());
    let remotes: Vec<String> =
        (0..10_000).map(|n| format!("10.1.{}.{}", n / 256, n % 256)).collect();
    for (number, remote) in remotes.iter().enumerate() {
        learner.observe(&with_window(number as u64, remote, 80));
    }
    let set = learner.decide(at(0)).len();
    assert!((9_300..9_700).contains(&set), "{set} of 10000 set");
    let mut learner = paced();
    learner.config.control = Control::Connections(share(0.1));
    busy_round(&mut learner, 0);
    let starts = (0..50).map(|n| learner.start(at(1 + n), "10.0.0.1".parse().unwrap(), None));
    assert_eq!(starts.filter(Option::is_none).count(), 5);
}

#[test]
fn ended_connections_count_for_their_arm() {
    let mut learner = riptide(|_| {});
    round(&mut learner, 0, &[80]); // connection 0: began earlier
    learner.observe(&with_window(1, "10.0.0.1", 80));
    learner.observe(&with_window(2, "10.0.0.2", 80));
    learner.decide(at(1));
    assert_eq!(learner.arms()[&Arm::Earlier].connections, 1);
    learner.decide(at(2));
    let count = |arm| learner.arms().get(&arm).map_or(0, |totals| totals.connections);
    assert_eq!((count(Arm::Jumped), count(Arm::Unlearned), count(Arm::Control)), (1, 1, 0));
    assert_eq!(learner.arms()[&Arm::Jumped].acked, Bytes::new(1_000_000));
}

#[test]
fn skipped_round_ends_no_connection_and_learns_nothing() {
    let mut learner = riptide(|_| {});
    round(&mut learner, 0, &[80]);
    learner.observe(&with_window(1, "10.0.0.1", 80));
    learner.decide(at(1));
    // Half of the table was read.
    learner.observe(&with_window(1, "10.0.0.1", 20));
    assert!(learner.leave_out(at(2)).is_empty());
    assert_eq!(learner.arms().get(&Arm::Jumped), None);
    learner.observe(&with_window(1, "10.0.0.1", 80));
    learner.decide(at(3));
    assert_eq!(learner.explain("10.0.0.1".parse().unwrap(), at(3)).unwrap().window_segments, 80);
    learner.decide(at(4));
    assert_eq!(learner.arms()[&Arm::Jumped].connections, 1);
    // Values still expire meanwhile.
    let prefix = "10.0.0.1/32".parse().unwrap();
    assert_eq!(learner.leave_out(at(93)), [Change::Remove { prefix, reason: Reason::Expired }]);
}

#[test]
fn loss_reported_in_a_skipped_round_counts() {
    let mut learner = paced();
    learner.expect_reports();
    busy_round(&mut learner, 0);
    learner.began(2, Begun::Jumped(Segments::new(50).unwrap()));
    learner.first_flight_lost(2, "10.0.0.1/32".parse().unwrap());
    learner.leave_out(at(1));
    busy_round(&mut learner, 2);
    let known = learner.explain("10.0.0.1".parse().unwrap(), at(2)).unwrap();
    assert_eq!(known.guard_ratio, 0.5);
}

#[test]
fn reported_starts_decide_the_arm() {
    let mut learner = paced();
    learner.expect_reports();
    busy_round(&mut learner, 0);
    let window = Segments::new(50).unwrap();
    // Reported before it is sampled, and after.
    learner.began(2, Begun::Jumped(window));
    busy_round(&mut learner, 1);
    for connection in [2, 3, 4] {
        learner.observe(&Sample { application_limited: true, ..sample(connection, "10.0.0.1") });
    }
    learner.began(3, Begun::Control);
    busy_round(&mut learner, 2);
    busy_round(&mut learner, 3);
    let count = |arm| learner.arms().get(&arm).map_or(0, |totals| totals.connections);
    assert_eq!((count(Arm::Jumped), count(Arm::Control), count(Arm::Unlearned)), (1, 1, 1));
}

#[test]
fn reported_first_flight_loss_counts_once() {
    let mut learner = paced();
    learner.expect_reports();
    busy_round(&mut learner, 0);
    let prefix = "10.0.0.1/32".parse().unwrap();
    let guard = |learner: &Learner, now| {
        learner.explain("10.0.0.1".parse().unwrap(), at(now)).unwrap().guard_ratio
    };
    learner.began(2, Begun::Jumped(Segments::new(50).unwrap()));
    learner.first_flight_lost(2, prefix);
    busy_round(&mut learner, 1);
    assert_eq!(guard(&learner, 1), 0.5);
    let lossy =
        Sample { retransmitted_segments: 9, application_limited: true, ..sample(2, "10.0.0.1") };
    learner.observe(&Sample { acked: Bytes::new(60_000), ..lossy });
    learner.first_flight_lost(2, prefix);
    busy_round(&mut learner, 2);
    assert_eq!(guard(&learner, 2), 0.5);
}

#[test]
fn setting_not_in_force_is_no_jump() {
    let mut learner = riptide(|_| {});
    round(&mut learner, 0, &[80]);
    learner.record_outcome(&"10.0.0.1/32".parse().unwrap(), "foreign", false);
    learner.observe(&with_window(1, "10.0.0.1", 80));
    learner.decide(at(1));
    let known = learner.explain("10.0.0.1".parse().unwrap(), at(1)).unwrap();
    assert_eq!((known.in_force, known.outcome), (false, Some("foreign")));
    learner.decide(at(2));
    assert!(!learner.arms().contains_key(&Arm::Jumped));
}

#[test]
fn setting_not_in_force_is_retried() {
    let mut learner = riptide(|_| {});
    round(&mut learner, 0, &[80]);
    learner.record_outcome(&"10.0.0.1/32".parse().unwrap(), "foreign", false);
    let sets = (1..=20).filter(|now| {
        learner.observe(&with_window(0, "10.0.0.1", 80));
        let again = matches!(learner.decide(at(*now)).as_slice(), [Change::Set(_)]);
        learner.record_outcome(&"10.0.0.1/32".parse().unwrap(), "foreign", false);
        again
    });
    assert_eq!(sets.collect::<Vec<_>>(), [10, 20]);
}

#[test]
fn flush_forgets_and_returns_removals() {
    let mut learner = riptide(|_| {});
    learner.observe(&with_window(1, "10.0.0.1", 80));
    learner.observe(&with_window(2, "192.0.2.1", 80));
    learner.decide(at(0));
    assert_eq!(learner.flush(Some("10.0.0.0/8".parse().unwrap())).len(), 1);
    assert_eq!(learner.flush(None).len(), 1);
    assert!(learner.explain_all(at(0)).is_empty());
}

#[test]
fn destinations_above_the_limit_are_refused() {
    let mut learner = riptide(|config| config.max_destinations = 1);
    learner.observe(&with_window(1, "10.0.0.1", 80));
    learner.observe(&with_window(2, "10.0.0.2", 80));
    assert_eq!((learner.decide(at(0)).len(), learner.refused()), (1, 1));
}

#[test]
fn bound_on_destinations_counts_each_once() {
    let mut learner = riptide(|config| config.max_destinations = 4);
    let look = |learner: &mut Learner, now, hosts: std::ops::Range<u64>| {
        for host in hosts {
            learner.observe(&with_window(host, &format!("10.0.0.{host}"), 80));
            learner.observe(&with_window(100 + host, &format!("10.0.0.{host}"), 80));
        }
        learner.decide(at(now));
        (learner.len(), learner.refused())
    };
    assert_eq!(look(&mut learner, 0, 0..3), (3, 0));
    // Three known destinations and one new one are four.
    assert_eq!(look(&mut learner, 1, 0..4), (4, 0));
    assert_eq!(look(&mut learner, 2, 0..5), (4, 2));
}

proptest! {
    #[test]
    fn windows_stay_within_bounds_and_observations(
        rounds in prop::collection::vec(prop::collection::vec(1u32..3000, 1..8), 1..40),
    ) {
        let mut learner = riptide(|_| {});
        let (mut least, mut most) = (u32::MAX, 0);
        for (now, windows) in rounds.iter().enumerate() {
            least = least.min(*windows.iter().min().unwrap());
            most = most.max(*windows.iter().max().unwrap());
            let window = round(&mut learner, now as u64, windows).unwrap();
            prop_assert!((10..=100).contains(&window));
            // Riptide never hops ahead of observations [RT IV-B1].
            prop_assert!(window <= most.max(10) && window >= least.min(100));
        }
    }

    #[test]
    fn same_samples_give_the_same_changes(windows in prop::collection::vec(1u32..200, 1..30)) {
        let run = || {
            let mut learner = paced();
            let mut all = Vec::new();
            for (now, window) in windows.iter().enumerate() {
                let acked = Bytes::new((now as u64 + 1) * 100_000);
                learner.observe(&Sample { acked, ..with_window(1, "10.0.0.1", *window) });
                all.extend(learner.decide(at(now as u64)));
            }
            all
        };
        prop_assert_eq!(run(), run());
    }
}
