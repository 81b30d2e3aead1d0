//! Regret of planning for predicted flows: four cities that replicate to each other in their
//! nights.
//!
//! `cargo run --release -p tradewind-plan --example speculative` prints the table of
//! `papers/planner.md`; with `--quick` its first rows, of one period each. Everything is
//! generated from a fixed seed.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a command over the tests' problems, not part of the pure library"
)]

mod command;
#[path = "../tests/common/mod.rs"]
mod common;

use command::Words;
use tradewind_plan::forecast::{Forecast, History, PastFlow, forecast, regret};
use tradewind_plan::solver::Exhaustive;
use tradewind_plan::{Flow, Inputs, Limits};
use tradewind_units::{Bytes, Duration, Timestamp};

const REGIONS: [&str; 6] = [
    "gcp:us-east4",
    "gcp:southamerica-east1",
    "gcp:europe-west2",
    "gcp:europe-north1",
    "gcp:asia-northeast1",
    "gcp:asia-southeast1",
];
const PERIOD: Duration = Duration::from_secs(8 * 3600);
/// Three weeks of three periods a day, of which the last fifteen are predicted, each from all
/// before it.
const PERIODS: usize = 63;
const PREDICTED: usize = 15;
const BUDGET_USD: f64 = 3.0;

/// Factor on every predicted volume, so that the plan reserves budget for egress.
const RESERVE: f64 = 1.2;

/// The flows that are planned for.
#[derive(Clone, Copy, PartialEq)]
enum Guess {
    /// The forecast.
    BackTest,
    /// The forecast, every volume times [`RESERVE`].
    WithReserve,
    /// The flows of the last period.
    LastPeriod,
}

fn main() {
    let is_quick = Words::of("speculative").take("--quick");
    let (noises, predicted) = if is_quick { (1, 1) } else { (3, PREDICTED) };
    println!("| noise | planned for | predictor | wrong by | regret, mean | regret, most |");
    println!("|---|---|---|---|---|---|");
    for noise_percent in [0, 20, 50].into_iter().take(noises) {
        let log = log(noise_percent);
        for guess in [Guess::BackTest, Guess::WithReserve, Guess::LastPeriod] {
            row(noise_percent, &log, guess, predicted);
        }
    }
}

fn problem() -> Inputs {
    common::four_cities(&REGIONS, BUDGET_USD)
}

fn row(noise_percent: u64, log: &[Vec<Flow>], guess: Guess, periods: usize) {
    let (mut regrets, mut wrong, mut carried) = (Vec::new(), 0, 0);
    let mut chosen = "last period".to_owned();
    for now in PERIODS - periods..PERIODS {
        let mut guessed = log[now - 1].clone();
        if guess != Guess::LastPeriod {
            let forecast = predicted(&log[..now]);
            chosen = forecast.predictor().to_string();
            guessed = forecast.planned_flows();
        }
        let truth = Inputs { flows: log[now].clone(), ..problem() };
        wrong += difference(&guessed, &truth.flows);
        if guess == Guess::WithReserve {
            for flow in &mut guessed {
                flow.volume = flow.volume.scaled(RESERVE);
            }
        }
        carried += truth.flows.iter().map(|flow| flow.volume.as_u64()).sum::<u64>();
        let outcome = regret(&truth, guessed, &Exhaustive, &Limits::work(1_000_000)).unwrap();
        regrets.push(outcome.ratio().unwrap_or_default() * 100.0);
    }
    let mean = regrets.iter().sum::<f64>() / regrets.len() as f64;
    let most = regrets.iter().copied().fold(0.0, f64::max);
    let name = match guess {
        Guess::BackTest => "by back-test",
        Guess::WithReserve => "by back-test, 20 % more",
        Guess::LastPeriod => "last period",
    };
    let off = wrong as f64 / carried as f64 * 100.0;
    println!("| {noise_percent} % | {name} | {chosen} | {off:.0} % | {mean:.1} % | {most:.1} % |");
}

fn predicted(past: &[Vec<Flow>]) -> Forecast {
    let flow = |(period, flow): (usize, &Flow)| PastFlow {
        at: Timestamp::ZERO + PERIOD * u32::try_from(period).unwrap(),
        source: flow.source.clone(),
        destination: flow.destination.clone(),
        volume: flow.volume,
    };
    let numbered = past.iter().enumerate();
    let flows: Vec<PastFlow> = numbered
        .flat_map(|(period, flows)| flows.iter().map(move |flow| (period, flow)))
        .map(flow)
        .collect();
    forecast(&History::new(&flows, PERIOD).unwrap(), None).unwrap()
}

/// Returns the sum of the absolute errors of predicted volumes, in bytes.
fn difference(guessed: &[Flow], truth: &[Flow]) -> u64 {
    let volume = |flows: &[Flow], of: &Flow| {
        let same =
            |flow: &&Flow| (&flow.source, &flow.destination) == (&of.source, &of.destination);
        flows.iter().find(same).map_or(0, |flow| flow.volume.as_u64())
    };
    let missed = truth.iter().map(|flow| flow.volume.as_u64().abs_diff(volume(guessed, flow)));
    let unasked = guessed.iter().filter(|flow| volume(truth, flow) == 0);
    missed.sum::<u64>() + unasked.map(|flow| flow.volume.as_u64()).sum::<u64>()
}

/// Returns the flows of each period: 2 GB to each other city from those where it is night, 100 MB
/// from the rest, each times a factor drawn from 1 - noise to 1 + noise.
fn log(noise_percent: u64) -> Vec<Vec<Flow>> {
    let mut state = 1_u64;
    let mut draw = move || {
        // Knuth's MMIX generator; its upper bits.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / (1_u64 << 31) as f64
    };
    let night = |source: &str| match source {
        "tokyo" => 0,
        "hamina" | "london" => 1,
        _ => 2,
    };
    let mut flows = |period: usize| -> Vec<Flow> {
        let volume = |flow: Flow, factor: f64| {
            let asleep = night(flow.source.as_str()) == period % 3;
            let nominal = if asleep { 2_000_000_000 } else { 100_000_000 };
            Flow { volume: Bytes::new(nominal).scaled(factor), ..flow }
        };
        let noise = noise_percent as f64 / 100.0;
        let all = problem().flows.into_iter();
        let all = all.map(|flow| volume(flow, 1.0 + noise * (2.0 * draw() - 1.0)));
        all.filter(|flow| flow.volume > Bytes::ZERO).collect()
    };
    (0..PERIODS).map(&mut flows).collect()
}
