//! Prints the error of the distance-to-RTT model, and fits its coefficients anew.
//!
//! `cargo run --release -p tradewind-model --example rtt_error -- FILE`, where FILE is a CSV of
//! measured RTTs between regions of the catalogue: `src,dst,min_rtt_ms`.

#![allow(
    clippy::disallowed_methods,
    reason = "a command that reads a file, not part of the pure library"
)]

mod fit;
mod table;

use std::process::ExitCode;

use table::Pair;
use tradewind_model::geo::{Coefficients, distance_km};
use tradewind_model::{Catalogue, Coordinates, RttModel};

/// Light in a vacuum, in km/ms: an RTT below twice the distance over this is an error of the table.
const LIGHT_KM_PER_MS: f64 = 299.792_458;

fn main() -> ExitCode {
    match std::env::args().nth(1).map(|path| report(&path)) {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(message)) => {
            eprintln!("rtt_error: {message}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("usage: rtt_error FILE (CSV: src,dst,min_rtt_ms)");
            ExitCode::from(2)
        }
    }
}

fn report(path: &str) -> Result<(), String> {
    let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let pairs =
        table::read(&text, &Catalogue::builtin()).map_err(|error| format!("{path}: {error}"))?;
    let too_fast = |pair: &&Pair| {
        pair.measured_ms < 2.0 * distance_km(pair.ends.0, pair.ends.1) / LIGHT_KM_PER_MS
    };
    println!(
        "{} ordered pairs, {} of them faster than light (kept)\n",
        pairs.len(),
        pairs.iter().filter(too_fast).count()
    );
    println!("| fitted on | tested on | pairs | map median | map p90 | line median | line p90 |");
    println!("|---|---|---|---|---|---|---|");
    let all: Vec<&Pair> = pairs.iter().collect();
    let (everywhere, line) = (fit::model(&all), fit::line(&all));
    row("all", "all", &all, everywhere, line);
    let mut clouds: Vec<&str> = pairs.iter().map(|pair| pair.source_cloud.as_str()).collect();
    clouds.sort_unstable();
    clouds.dedup();
    for cloud in clouds {
        hold_out(cloud, &pairs);
    }
    println!("\nfitted on all: {everywhere:.3?}, line {line:.3?}");
    let built_in = table::error_of(&pairs, |a, b| millis(RttModel::fitted().rtt_between(a, b)));
    println!(
        "built in:      {:.3?}, median {:.1} %, p90 {:.1} %",
        Coefficients::FITTED,
        built_in.median * 100.0,
        built_in.p90 * 100.0
    );
    Ok(())
}

/// Fits on the pairs that do not touch `cloud`; tests on those inside it, and on all that touch it.
fn hold_out(cloud: &str, pairs: &[Pair]) {
    let ends = |pair: &Pair| {
        [&pair.source_cloud, &pair.destination_cloud].map(|end| usize::from(end == cloud))
    };
    let held =
        |count: usize| pairs.iter().filter(move |pair| ends(pair).iter().sum::<usize>() == count);
    let others: Vec<&Pair> = held(0).collect();
    let (coefficients, line) = (fit::model(&others), fit::line(&others));
    let inside: Vec<&Pair> = held(2).collect();
    let touching: Vec<&Pair> = held(1).chain(held(2)).collect();
    let fitted_on = format!("without {cloud}");
    row(&fitted_on, &format!("inside {cloud}"), &inside, coefficients, line);
    row(&fitted_on, &format!("from, to or inside {cloud}"), &touching, coefficients, line);
}

fn row(fitted: &str, tested: &str, pairs: &[&Pair], coefficients: Coefficients, line: fit::Line) {
    let model = RttModel::new(coefficients);
    let by_map = |a: Coordinates, b: Coordinates| millis(model.rtt_between(a, b));
    let map = table::error_of(pairs.iter().copied(), by_map);
    let line = table::error_of(pairs.iter().copied(), |a, b| line.rtt_ms(a, b));
    let percent = [map.median, map.p90, line.median, line.p90].map(|share| share * 100.0);
    let [map_median, map_p90, line_median, line_p90] = percent;
    println!(
        "| {fitted} | {tested} | {} | {map_median:.1} % | {map_p90:.1} % | \
         {line_median:.1} % | {line_p90:.1} % |",
        pairs.len()
    );
}

fn millis(span: std::time::Duration) -> f64 {
    span.as_secs_f64() * 1e3
}
