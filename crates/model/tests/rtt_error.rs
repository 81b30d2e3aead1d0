//! Holds the distance-to-RTT model to its stated error, against a table of measurements that is not
//! part of this repository. Set `TRADEWIND_RTT_CSV` to its path (`src,dst,min_rtt_ms`).

#![allow(
    clippy::disallowed_methods,
    reason = "a test that reads a file, not part of the pure library"
)]

#[allow(dead_code, reason = "the clouds of a pair matter to the fit only")]
#[path = "../examples/rtt_error/table.rs"]
mod table;

use tradewind_model::{Catalogue, RttModel};

#[test]
#[ignore = "SKIPPED: needs measured RTTs, see docs/explanation/rtt-model.md"]
fn rtt_model_meets_its_stated_error() {
    let path =
        std::env::var("TRADEWIND_RTT_CSV").expect("TRADEWIND_RTT_CSV: a CSV of measured RTTs");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let pairs = table::read(&text, &Catalogue::builtin()).unwrap();
    let model = RttModel::fitted();
    let error = table::error_of(&pairs, |a, b| model.rtt_between(a, b).as_secs_f64() * 1e3);
    let stated = RttModel::STATED_ERROR;
    eprintln!("{} pairs: median {:.4}, p90 {:.4}", pairs.len(), error.median, error.p90);
    assert!(error.median <= 0.15);
    assert!(
        error.median <= stated.median && error.median > 0.9 * stated.median,
        "{}",
        error.median
    );
    assert!(error.p90 <= stated.p90 && error.p90 > 0.9 * stated.p90, "{}", error.p90);
}
