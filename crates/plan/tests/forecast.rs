//! Tests of forecasts of series whose next period is known, of invalid logs, and of regret.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::{drawn, flow, four_cities};
use proptest::prelude::*;
use tradewind_plan::forecast::{
    Forecast, ForecastError, History, LogError, PastFlow, Predictor, RegretError, first_testable,
    forecast, parse_log, past_period, regret,
};
use tradewind_plan::solver::{Exhaustive, FlowGreedyFct, Greedy};
use tradewind_plan::{Flow, Inputs, Limits, Problem, verify};
use tradewind_units::{Bytes, Duration, Money, SiteId, Timestamp};

const HOUR: Duration = Duration::from_secs(3600);

/// Returns a flow in the middle of each hour, in megabytes; none if the volume is zero.
fn hourly(source: &str, megabytes: &[u64]) -> Vec<PastFlow> {
    let flow = |(hour, megabytes): (usize, &u64)| PastFlow {
        at: Timestamp::from_nanos((hour as u64 * 3600 + 1800) * 1_000_000_000),
        source: SiteId::new(source).unwrap(),
        destination: SiteId::new("store").unwrap(),
        volume: Bytes::new(megabytes * 1_000_000),
    };
    megabytes.iter().enumerate().filter(|(_, volume)| **volume > 0).map(flow).collect()
}

fn predicted(flows: &[PastFlow]) -> Forecast {
    forecast(&History::new(flows, HOUR).unwrap(), None).unwrap()
}

fn volumes(forecast: &Forecast) -> Vec<u64> {
    forecast.flows.iter().map(|flow| flow.volume.as_u64() / 1_000_000).collect()
}

#[test]
fn daily_rhythm_is_found_and_continued() {
    let day: Vec<u64> = (0..24).map(|hour| if hour < 8 { 1 } else { 50 + 7 * hour }).collect();
    let forecast = predicted(&hourly("shop", &day.repeat(3)));
    assert_eq!(forecast.predictor(), Predictor::Seasonal { periods: 24 });
    assert_eq!(forecast.trials[0].error_ratio, Some(0.0));
    assert!(forecast.trials[1].error_ratio > Some(0.0) || forecast.trials[1].error_bytes == 0.0);
    assert_eq!((volumes(&forecast), forecast.tested), (vec![day[0]], 36));
    assert_eq!(forecast.begins.as_secs_f64(), 72.0 * 3600.0);
    let asked = History::new(&hourly("shop", &day.repeat(3)), HOUR).unwrap();
    assert_eq!(
        forecast.predictor(),
        tradewind_plan::forecast::forecast(&asked, Some(24)).unwrap().predictor()
    );
}

#[test]
fn level_with_outliers_is_smoothed() {
    let outliers: Vec<u64> =
        (0..60_u64).map(|hour| 100 + (hour * hour * 7919 + hour * 104_729) % 40).collect();
    let forecast = predicted(&hourly("shop", &outliers));
    let kind = |wanted: fn(&Predictor) -> bool| {
        forecast.trials.iter().find(|trial| wanted(&trial.predictor)).unwrap().error_bytes
    };
    let weighted = kind(|predictor| matches!(predictor, Predictor::Weighted { .. }));
    assert!(weighted < kind(|predictor| *predictor == Predictor::Last));
    assert!((100..140).contains(&volumes(&forecast)[0]));
}

#[test]
fn one_period_can_only_repeat_itself() {
    let flows = [hourly("shop", &[3]), hourly("bank", &[4])].concat();
    let forecast = predicted(&flows);
    assert_eq!((forecast.predictor(), forecast.tested), (Predictor::Last, 0));
    assert_eq!(forecast.trials[0].error_ratio, None);
    assert_eq!(volumes(&forecast), [4, 3], "by source and destination");
    let planned = forecast.planned_flows();
    assert_eq!(planned[0].id.as_str(), "bank..store");
    assert_eq!((planned[1].source.as_str(), planned[1].weight), ("shop", 1));
}

#[test]
fn pairs_of_one_name_get_two() {
    let past = |source: &str, destination: &str| PastFlow {
        at: Timestamp::ZERO,
        source: SiteId::new(source).unwrap(),
        destination: SiteId::new(destination).unwrap(),
        volume: Bytes::new(5),
    };
    let long = "x".repeat(62);
    let flows = [past("a..b", "c"), past("a", "b..c"), past(&long, "c")];
    let named: Vec<String> =
        predicted(&flows).planned_flows().iter().map(|flow| flow.id.to_string()).collect();
    assert_eq!(named, ["a..b..c", "forecast-2", "forecast-3"]);
}

#[test]
fn past_period_is_seen_from_both_its_ends() {
    let history = History::new(&hourly("shop", &[4, 0, 4, 2]), HOUR).unwrap();
    let mut inputs = four_cities(&["gcp:us-east4"], 1.0);
    inputs.flows = vec![Flow { weight: 7, ..flow("named", "shop", "store", 1) }];
    let past = past_period(&history, &inputs, 3, None).unwrap();
    assert_eq!((past.begins.as_secs_f64(), first_testable(&history, None)), (3.0 * 3600.0, 2));
    let come = &past.truth.flows[0];
    assert_eq!((come.id.as_str(), come.weight, come.volume), ("named", 7, Bytes::new(2_000_000)));
    let guessed = past.expected.iter().map(|flow| flow.volume.as_u64()).sum::<u64>();
    assert_eq!(past.error_ratio, Some(guessed.abs_diff(2_000_000) as f64 / 2e6));
    // The forecast must not depend on the period itself.
    let other = History::new(&hourly("shop", &[4, 0, 4, 9]), HOUR).unwrap();
    assert_eq!(past_period(&other, &inputs, 3, None).unwrap().expected, past.expected);
    for period in [0, 4] {
        let refused = past_period(&history, &inputs, period, None).unwrap_err();
        assert_eq!(refused, ForecastError::NoPast { periods: 4 });
    }
}

#[test]
fn seasons_that_cannot_be_tested_are_refused() {
    let history = History::new(&hourly("shop", &[1, 2, 1, 2, 1, 2]), HOUR).unwrap();
    assert_eq!(
        forecast(&history, Some(2)).unwrap().predictor(),
        Predictor::Seasonal { periods: 2 }
    );
    for asked in [0, 1, 4] {
        let refused = ForecastError::Season { asked, longest: 3, periods: 6 };
        assert_eq!(forecast(&history, Some(asked)), Err(refused));
    }
}

#[test]
fn logs_are_read_in_any_order_and_summed_by_period() {
    let text = "time_s,source,destination,volume\n\
        7200,shop,store,3 MB\n\
        10.5,shop,store,1 MB\n\
        \n\
        20,shop,store,500 kB\n\
        30, bank ,store,2 GB\n";
    let history = History::new(&parse_log(text).unwrap(), HOUR).unwrap();
    assert_eq!((history.periods(), history.ends().as_secs_f64()), (3, 3.0 * 3600.0));
    assert_eq!(history.series()[0].volumes, [2e9, 0.0, 0.0]);
    assert_eq!(history.series()[1].volumes, [1.5e6, 0.0, 3e6]);
    let bytes = "time_s,source,destination,volume_bytes\r\n5,a,b,77\r\n";
    assert_eq!(parse_log(bytes).unwrap()[0].volume, Bytes::new(77));
}

#[test]
fn bad_logs_are_refused_with_line_and_field() {
    const HEADER: &str = "time_s,source,destination,volume";
    let cases = [
        (String::new(), "line 1: the header `time_s,source,destination,volume` is expected"),
        ("1,a,b,1 GB".to_owned(), "line 1: the header"),
        (HEADER.to_owned(), "line 2: at least one flow is expected"),
        (format!("{HEADER}\n\n1,a,b"), "line 3: four fields are expected, not 3"),
        (format!("{HEADER}\n1,a,b,1 GB\n1,a,b,1 GB,x"), "line 3: four fields are expected, not 5"),
        (format!("{HEADER}\nnoon,a,b,1 GB"), "line 2: time_s: seconds from 0"),
        (format!("{HEADER}\n-1,a,b,1 GB"), "line 2: time_s: seconds from 0"),
        (format!("{HEADER}\nNaN,a,b,1 GB"), "line 2: time_s: seconds from 0"),
        (format!("{HEADER}\n1,a b,c,1 GB"), "line 2: source: site: a name of 1 to 64"),
        (format!("{HEADER}\n1,a,,1 GB"), "line 2: destination: site: "),
        (format!("{HEADER}\n1,a,a,1 GB"), "line 2: destination: another site than the source `a`"),
        (format!("{HEADER}\n1,a,b,1"), "line 2: volume: size: a size such as `2 GB`"),
        (format!("{HEADER}\n1,a,b,0 B"), "line 2: volume: above zero is expected"),
        (format!("{HEADER}_bytes\n1,a,b,1 GB"), "line 2: volume_bytes: a whole number"),
    ];
    for (text, expected) in cases {
        let error = parse_log(&text).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn invalid_periods_are_refused() {
    assert_eq!(History::new(&[], HOUR), Err(LogError::Empty));
    let mut flows = hourly("shop", &[1]);
    assert_eq!(History::new(&flows, Duration::ZERO), Err(LogError::NoPeriod));
    flows.push(PastFlow { at: Timestamp::ZERO, ..flows[0].clone() });
    let refused = History::new(&flows, Duration::from_nanos(1)).unwrap_err();
    assert!(refused.to_string().ends_with("a longer period is needed"), "{refused}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn season_is_found_whatever_its_shape(
        season in prop::collection::vec(1_u64..1000, 2..12),
        repeats in 2_usize..5,
        begun in 0_usize..12,
    ) {
        let begun = begun % season.len();
        let series = [season.repeat(repeats), season[..begun].to_vec()].concat();
        let forecast = predicted(&hourly("shop", &series));
        prop_assert_eq!(forecast.trials[0].error_bytes, 0.0);
        prop_assert_eq!(volumes(&forecast), vec![season[begun]]);
        if let Predictor::Seasonal { periods } = forecast.predictor() {
            prop_assert!(periods <= season.len(), "a shorter season with the same effect");
        }
    }

    #[test]
    fn constant_is_predicted_by_every_predictor(volume in 1_u64..10_000, hours in 2_usize..60) {
        let forecast = predicted(&hourly("shop", &vec![volume; hours]));
        prop_assert_eq!(forecast.predictor(), Predictor::Last);
        prop_assert_eq!(volumes(&forecast), vec![volume]);
        for trial in &forecast.trials {
            prop_assert!(trial.error_bytes < 1.0, "{:?}", trial);
        }
    }

    #[test]
    fn random_logs_are_accepted(
        rows in prop::collection::vec((0_u64..2_000_000, 0_usize..4, 1_u64..u64::MAX), 1..60),
        period_s in 1_u64..500_000,
    ) {
        let flows: Vec<PastFlow> = rows.iter().map(|(at, site, volume)| PastFlow {
            at: Timestamp::from_nanos(at * 1_000_000_000),
            source: SiteId::new(format!("site{site}")).unwrap(),
            destination: SiteId::new("store").unwrap(),
            volume: Bytes::new(*volume),
        }).collect();
        let Ok(history) = History::new(&flows, Duration::from_secs(period_s)) else {
            return Ok(());
        };
        prop_assume!(history.periods() < 3000);
        let forecast = forecast(&history, None).unwrap();
        prop_assert!(forecast.trials.is_sorted_by(|a, b| a.error_bytes <= b.error_bytes));
        prop_assert!(forecast.trials.iter().all(|trial| trial.error_bytes.is_finite()));
        let carried: f64 = history.series().iter().flat_map(|series| &series.volumes).sum();
        let all: f64 = rows.iter().map(|(_, _, volume)| *volume as f64).sum();
        prop_assert!((carried / all - 1.0).abs() < 1e-9);
    }

    #[test]
    fn parsing_refuses_or_reads_and_never_panics(text in "(time_s,source,destination,volume\n)?[ \
        -~\n]{0,80}") {
        if let Err(error) = parse_log(&text) {
            prop_assert!(!error.to_string().contains('\n'));
        }
    }

    #[test]
    fn regret_is_zero_with_true_forecast(
        rtts in prop::collection::vec(5_u64..250, 36),
        budget_cents in 0_u32..400,
        scales in prop::collection::vec(0_u64..4, 3),
    ) {
        let truth = drawn(3, 2, &rtts, 800.0, f64::from(budget_cents) / 100.0);
        let limits = Limits::work(5_000_000);
        let same = regret(&truth, truth.flows.clone(), &Exhaustive, &limits).unwrap();
        prop_assert_eq!(same.regret(), Duration::ZERO);
        let by = same.as_planned.as_ref().expect("every flow has a direct path");
        prop_assert_eq!((by.total_fct(), by.cost),
            (same.clairvoyant.total_fct, same.clairvoyant.cost));
        prop_assert_eq!((by.displaced, by.unplanned), (0, 0));
        let mut guessed = truth.flows.clone();
        for (flow, scale) in guessed.iter_mut().zip(&scales) {
            flow.volume = Bytes::new(flow.volume.as_u64() * scale / 2);
        }
        guessed.retain(|flow| flow.volume > Bytes::ZERO);
        for solver in [&Exhaustive as &dyn tradewind_plan::Solver, &Greedy] {
            let wrong = regret(&truth, guessed.clone(), solver, &limits).unwrap();
            check(&truth, &wrong)?;
        }
    }
}

/// Checks that the true flows pass only relays that were set up, and that all costs are within one
/// budget.
fn check(truth: &Inputs, wrong: &tradewind_plan::forecast::Regret) -> Result<(), TestCaseError> {
    prop_assert!(wrong.applied_cost() <= truth.budget);
    prop_assert!(wrong.best_score <= wrong.applied_score);
    let by = wrong.as_planned.as_ref().expect("every flow has a direct path");
    prop_assert!(by.cost <= truth.budget && by.cost >= wrong.set_up);
    prop_assert!(wrong.values.as_planned >= Some(wrong.values.best));
    let problem = Problem::new(truth.clone()).unwrap();
    prop_assert_eq!(verify(&problem, &wrong.clairvoyant), vec![]);
    let set_up = wrong.predicted.as_ref().map(|plan| plan.relays.clone()).unwrap_or_default();
    for relay in &wrong.applied.relays {
        let same = |other: &&tradewind_plan::PlannedRelay| {
            (&other.region, &other.relay_type) == (&relay.region, &relay.relay_type)
        };
        let used = wrong.applied.relays.iter().filter(same).count();
        prop_assert!(used <= set_up.iter().filter(same).count());
    }
    Ok(())
}

#[test]
fn guess_at_the_wrong_pair_costs_time_and_money() {
    let regions =
        ["gcp:europe-north1", "gcp:asia-northeast1", "gcp:southamerica-east1", "gcp:us-east4"];
    let mut truth = four_cities(&regions, 2.0);
    truth.flows = vec![flow("t", "hamina", "tokyo", 2_000)];
    let wrong = vec![flow("p", "sao-paulo", "london", 2_000)];
    let limits = Limits::work(5_000_000);
    let regretted = regret(&truth, wrong, &Exhaustive, &limits).unwrap();
    assert!(regretted.regret() > Duration::from_secs(1), "{:?}", regretted.regret());
    assert!(regretted.ratio() > Some(0.05));
    assert!(regretted.set_up >= Money::from_usd(0.5).unwrap());

    let nothing = regret(&truth, Vec::new(), &Exhaustive, &limits).unwrap();
    assert_eq!((nothing.predicted.is_none(), nothing.set_up), (true, Money::ZERO));
    assert_eq!(Some(nothing.applied.total_fct), nothing.applied.total_fct_direct());

    let unknown = vec![flow("p", "atlantis", "london", 2_000)];
    let refused = regret(&truth, unknown, &Exhaustive, &limits).unwrap_err();
    assert!(matches!(refused, RegretError::Problem { .. }));
    assert!(refused.to_string().starts_with("predicted flows: flow `p`: no path"), "{refused}");
}

#[test]
fn regret_of_many_flows_without_budget() {
    let regions = ["gcp:europe-north1", "gcp:asia-northeast1", "gcp:us-east4"];
    let mut truth = four_cities(&regions, 1e9);
    let cities = ["hamina", "london", "sao-paulo", "tokyo"];
    let pair = |at: usize| (cities[at % 4], cities[(at + 1 + at / 4 % 3) % 4]);
    let flows = (0..1_500).map(|at| flow(&format!("f{at}"), pair(at).0, pair(at).1, 100));
    truth.flows = flows.collect();
    let mut guessed = truth.flows.clone();
    guessed.truncate(700);
    let outcome = regret(&truth, guessed, &FlowGreedyFct, &Limits::work(u64::MAX)).unwrap();
    let set_up = outcome.predicted.as_ref().unwrap().relays.len();
    assert!(
        set_up > 0 && outcome.applied.relays.len() <= set_up,
        "none but those that were set up"
    );
    assert!(outcome.applied.flows.iter().any(|flow| !flow.path.is_empty()));
    let egress: Money = outcome.applied.flows.iter().map(|flow| flow.egress).sum();
    assert_eq!(outcome.applied.cost, egress);
    assert_eq!(outcome.applied_cost(), egress + outcome.set_up);
}
