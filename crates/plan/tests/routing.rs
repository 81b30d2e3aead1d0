//! Tests of min-max routing against plain enumeration, and of CDD's cases over the catalogue's
//! regions.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use proptest::prelude::*;
use tradewind_model::cost::Prices;
use tradewind_model::leg::{DEFAULT_WINDOW, Loss, RELAY_TO_RELAY_WINDOW};
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Catalogue, Coordinates, RttModel, StartUp};
use tradewind_plan::RelayType;
use tradewind_plan::routing::advice::{
    Advice, Reason, Rule, Settings, Verdict, advise, completion,
};
use tradewind_plan::routing::{MinMaxPath, Router};
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, RegionId};

/// Returns a router with a source (place 0), a destination (place 1) and relays over a generated
/// table; zero: not known.
fn router(places: usize, rtts_ms: &[u64]) -> Router {
    let rtt = |from: &usize, to: &usize| {
        let drawn = rtts_ms[(from * places + to) % rtts_ms.len()];
        (drawn > 0).then(|| Duration::from_millis(drawn))
    };
    let relays: Vec<usize> = (2..places).collect();
    Router::new(&0, &1, &relays, rtt)
}

/// Returns every sequence of this many distinct relays whose legs are known, in the ranking's
/// order.
fn enumerated(router: &Router, relays: usize) -> Vec<MinMaxPath> {
    let mut sequences: Vec<Vec<usize>> = vec![Vec::new()];
    for _ in 0..relays {
        let longer = |sequence: &Vec<usize>| {
            let next = (0..router.relays()).filter(|relay| !sequence.contains(relay));
            next.map(|relay| [sequence.as_slice(), &[relay]].concat()).collect::<Vec<_>>()
        };
        sequences = sequences.iter().flat_map(longer).collect();
    }
    let mut paths: Vec<MinMaxPath> =
        sequences.iter().filter_map(|sequence| router.path(sequence)).collect();
    paths.sort_by_key(|path| (path.largest_leg(), path.total_rtt(), path.relays.clone()));
    paths
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn ranking_is_that_of_enumeration(
        relays in 0_usize..6,
        // Few values, so that ties are common; zeros are pairs not known.
        rtts in prop::collection::vec(prop_oneof![1 => Just(0_u64), 6 => 1_u64..12], 64),
        count in 0_usize..40,
    ) {
        let router = router(relays + 2, &rtts);
        for number in 0..=4 {
            let all = enumerated(&router, number);
            prop_assert_eq!(&router.best(number, usize::MAX), &all);
            prop_assert_eq!(&router.best(number, count)[..], &all[..count.min(all.len())]);
        }
        let mut all: Vec<MinMaxPath> = (0..=4).flat_map(|n| enumerated(&router, n)).collect();
        all.sort_by_key(|path| {
            (path.largest_leg(), path.total_rtt(), path.relays.len(), path.relays.clone())
        });
        all.truncate(count);
        prop_assert_eq!(router.ranking(4, count), all);
    }

    #[test]
    fn cdd_rule_uses_nearest_ends(
        relays in 2_usize..7,
        rtts in prop::collection::vec(1_u64..50, 100),
    ) {
        let router = router(relays + 2, &rtts);
        let two = router.cloudified(2, 1).remove(0);
        let [first, last] = two.relays[..] else { panic!("two relays") };
        for number in 2..=relays.min(4) {
            let inner = |path: &MinMaxPath| {
                path.rtts[1..path.rtts.len() - 1].iter().copied().max().unwrap()
            };
            let least = enumerated(&router, number)
                .iter()
                .filter(|path| path.relays[0] == first && path.relays[number - 1] == last)
                .map(inner)
                .min();
            let best = router.cloudified(number, 1).remove(0);
            prop_assert_eq!(Some(inner(&best)), least);
            let estimate = router.gain_over_two(&best);
            prop_assert_eq!(estimate.is_some(), number > 2);
            if let Some(gain) = estimate {
                let expected = two.rtts[1].as_secs_f64() / inner(&best).as_secs_f64();
                prop_assert!((gain - expected).abs() < 1e-9);
            }
        }
        // No other pair of distinct relays is nearer to both ends at once.
        for pair in enumerated(&router, 2) {
            prop_assert!(pair.rtts[0] + pair.rtts[2] >= two.rtts[0] + two.rtts[2]);
        }
    }

    #[test]
    fn one_more_relay_never_makes_the_largest_leg_larger(
        relays in 1_usize..6,
        rtts in prop::collection::vec(1_u64..50, 64),
    ) {
        let router = router(relays + 2, &rtts);
        let least = |most| router.ranking(most, 1)[0].largest_leg();
        prop_assert!((0..4).all(|most| least(most + 1) <= least(most)));
    }
}

const SAN_FRANCISCO: (f64, f64) = (37.77, -122.42);
const NEW_YORK: (f64, f64) = (40.71, -74.01);
const MUMBAI: (f64, f64) = (19.08, 72.88);
const WASHINGTON: (f64, f64) = (38.90, -77.04);

/// Returns a router with one cloud's regions as relays between two cities.
fn between(a: (f64, f64), b: (f64, f64), cloud: &str) -> (Router, Vec<RegionId>) {
    let catalogue = Catalogue::builtin();
    let regions: Vec<_> = catalogue.regions().filter(|region| region.id.cloud() == cloud).collect();
    let ids = regions.iter().map(|region| region.id.clone()).collect();
    let places: Vec<Coordinates> = regions.iter().map(|region| region.location).collect();
    let [a, b] = [a, b].map(|(latitude, longitude)| Coordinates::new(latitude, longitude).unwrap());
    let rtt = |a: &Coordinates, b: &Coordinates| Some(RttModel::fitted().rtt_between(*a, *b));
    (Router::new(&a, &b, &places, rtt), ids)
}

/// Returns CDD's conditions: default windows at both ends and at the relays.
fn settings(volume: u64) -> Settings {
    Settings {
        volume: Bytes::new(volume),
        most_relays: 4,
        window: DEFAULT_WINDOW,
        relay_window: DEFAULT_WINDOW,
        last_mile: Some(Bandwidth::from_mbps(1000.0).unwrap()),
        loss: None,
        connections: 1,
        relay_type: RelayType::cloudpilot(),
        prices: Prices::cloudpilot(),
        source: None,
        destination: None,
        start_up: StartUp::Cold,
    }
}

fn advised(a: (f64, f64), b: (f64, f64), cloud: &str, settings: &Settings) -> Advice {
    let (router, regions) = between(a, b, cloud);
    advise(&router, &regions, settings, 10).unwrap()
}

/// Returns the gain of CDD's rule over this many relays.
fn gain(advice: &Advice, relays: usize) -> f64 {
    let chosen = |route: &&tradewind_plan::routing::advice::Route| {
        route.path.relays.len() == relays && route.rules.contains(&Rule::Cloudified)
    };
    advice.routes.iter().find(chosen).unwrap().gain.unwrap()
}

#[test]
fn mumbai_san_francisco_gains_by_relay_count() {
    let ratio = Ratio::new(0.001).unwrap();
    let lossy = Some(Loss { ratio, response: LossResponse::Cubic });
    for cloud in ["aws", "azure", "gcp"] {
        let settings = Settings { loss: lossy, ..settings(3_900_000) };
        let advice = advised(MUMBAI, SAN_FRANCISCO, cloud, &settings);
        let [two, three] = [2, 3].map(|relays| gain(&advice, relays));
        assert!(two > 2.0 && three > 1.2 * two, "{cloud}: {two:.2}, {three:.2}");
        assert!(matches!(advice.verdict, Verdict::Relay(_)), "{cloud}");
    }
}

#[test]
fn third_relay_shortens_longest_leg_without_loss() {
    for cloud in ["aws", "azure", "gcp"] {
        let advice = advised(MUMBAI, SAN_FRANCISCO, cloud, &settings(3_900_000));
        let [two, three] = [2, 3].map(|relays| gain(&advice, relays));
        assert!((0.95..1.05).contains(&two) && three > 1.5, "{cloud}: {two:.2}, {three:.2}");
    }
}

#[test]
fn small_file_between_far_cities_is_relayed() {
    for volume in [17_000, 18_000] {
        let advice = advised(MUMBAI, SAN_FRANCISCO, "aws", &settings(volume));
        assert!(matches!(advice.verdict, Verdict::Relay(_)), "{:?}", advice.verdict);
    }
}

#[test]
fn fourth_relay_shortens_longest_inner_leg() {
    let (router, _) = between(MUMBAI, SAN_FRANCISCO, "azure");
    let [two, three, four] = [2, 3, 4].map(|relays| router.cloudified(relays, 1).remove(0));
    assert!(router.gain_over_two(&four) > router.gain_over_two(&three));
    assert!(router.gain_over_two(&three) > Some(1.0));
    let fct = |path| completion(path, &settings(1_000_000_000)).total();
    assert!(fct(&four) < fct(&three) && fct(&three) < fct(&two));
}

#[test]
fn small_file_between_near_cities_goes_direct() {
    for volume in [17_000, 18_000] {
        for cloud in ["aws", "azure", "gcp"] {
            for near in [(NEW_YORK, SAN_FRANCISCO), (NEW_YORK, WASHINGTON)] {
                let advice = advised(near.0, near.1, cloud, &settings(volume));
                let Verdict::Direct(reasons) = advice.verdict else {
                    panic!("{cloud}: {:?}", advice.verdict)
                };
                assert!(matches!(reasons[0], Reason::Small { .. }), "{reasons:?}");
                assert!(reasons[0].to_string().contains("is small"));
            }
        }
    }
}

#[test]
fn near_pair_goes_direct_whatever_its_volume() {
    let advice = advised(NEW_YORK, WASHINGTON, "aws", &settings(1_000_000_000));
    let Verdict::Direct(reasons) = advice.verdict else { panic!("{:?}", advice.verdict) };
    assert!(matches!(reasons[0], Reason::Tuned { .. }), "{reasons:?}");
}

#[test]
fn raised_windows_or_many_connections_go_direct() {
    let large_windows = Settings {
        window: Bytes::new(64_000_000),
        relay_window: RELAY_TO_RELAY_WINDOW,
        ..settings(10_000_000_000)
    };
    let many = Settings { connections: 64, ..settings(10_000_000_000) };
    for tuned in [large_windows, many] {
        let advice = advised(MUMBAI, SAN_FRANCISCO, "aws", &tuned);
        let Verdict::Direct(reasons) = advice.verdict else { panic!("{:?}", advice.verdict) };
        assert!(matches!(reasons[0], Reason::Tuned { .. }), "{reasons:?}");
        assert!(reasons[0].to_string().contains("1 Gbit/s"), "{}", reasons[0]);
    }
}

#[test]
fn routes_are_sorted_by_largest_leg() {
    let advice = advised(MUMBAI, SAN_FRANCISCO, "aws", &settings(1_000_000_000));
    let largest: Vec<Duration> =
        advice.routes.iter().map(|route| route.path.largest_leg()).collect();
    assert!(largest.is_sorted());
    for route in &advice.routes {
        let relays = route.path.relays.len() as f64;
        assert!((route.egress.as_usd() - 0.08 * relays).abs() < 1e-9);
        assert!((route.cost().as_usd() - 0.58 * relays).abs() < 1e-9);
        assert_eq!(route.gain_over_two.is_some(), relays >= 3.0);
        assert_eq!((route.slowest_leg.is_some(), route.bound_by), (true, "window"));
    }
    assert_eq!(advice.routes.iter().filter(|route| route.path.relays.is_empty()).count(), 1);
}

#[test]
fn verdict_without_relays_or_paths() {
    let none = Router::new(&0, &1, &[], |_, _| Some(Duration::from_millis(9)));
    let advice = advise(&none, &[], &settings(1_000), 5).unwrap();
    assert_eq!(advice.verdict, Verdict::Direct(vec![Reason::NoRelay]));
    let asked = Settings { most_relays: 0, ..settings(1_000) };
    assert_eq!(
        advise(&none, &[], &asked, 5).unwrap().verdict,
        Verdict::Direct(vec![Reason::NoneAsked])
    );
    let nothing = Router::new(&0, &1, &[], |_, _| None);
    let advice = advise(&nothing, &[], &settings(1_000), 5).unwrap();
    assert_eq!((advice.routes, advice.verdict), (vec![], Verdict::NoPath));
}
