//! Results of all tuples: measured values, compared with predicted ones.

use tradewind_output::chart::Scale;

use super::measure::Measured;
use super::scenario::Scenario;
use crate::harness::{Figure, Finding, Record, Row, RunOptions, Spot, correlation, quantile};
use crate::numeric::formula::{CLOSE_PERCENT, KINDS, off};

/// Indices of the plots.
const RATES: usize = 0;
const ACCELERATIONS: usize = 1;

/// Creates the record.
pub(super) fn record(
    scenario: &Scenario,
    tuples: usize,
    options: &RunOptions,
    measured: &[Measured],
) -> Record {
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(format!(
        "windows and rates are {} of the paper's; each figure is of one measurement of {} s",
        scenario.scale, scenario.measure_s
    ));
    let runs = scenario.runs.seeds(options).len();
    assumptions.push(format!(
        "{runs} x {tuples} tuples of each setting, {} in all; the paper has over 75",
        measured.len()
    ));
    let figure = |title: &str, unit: &str| Figure {
        title: title.to_owned(),
        x_label: format!("predicted ({unit})"),
        y_label: format!("measured ({unit})"),
        scale: Scale::Linear,
    };
    let mut rows = points(measured);
    let (summary, errors) = summary(measured);
    rows.extend(summary);
    let figures = vec![
        figure("rate by the formula and on kernel TCP", "Mbit/s"),
        figure("acceleration by the formula and on kernel TCP", "x"),
    ];
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, vec![finding(&errors)]));
    Record { figures, ..tables }
}

/// Returns a row for each tuple and kind of path, in the order of the predictions.
fn points(measured: &[Measured]) -> Vec<Row> {
    let mut rows = Vec::new();
    for (kind, name) in KINDS.into_iter().enumerate() {
        let mut push = |figure: usize, of: &dyn Fn(&Measured) -> (f64, f64), unit: &str| {
            let all = measured.iter().enumerate();
            let mut all: Vec<_> = all.map(|(index, tuple)| (of(tuple), index, tuple)).collect();
            all.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
            for ((x, y), index, tuple) in all {
                let place = format!("{} {}", tuple.setting, index + 1);
                let case = format!("{name}, {place}, direct round trip {:.0} ms", tuple.rtt_ms);
                let note = format!("predicted {x:.2} {unit}");
                let line = name.to_owned();
                let spot = Spot { figure, line, x, x_name: format!("{x:.2}, {place}") };
                rows.push(Row::of_median(&case, None, &[y], unit, &note).drawn_at(spot));
            }
        };
        push(RATES, &|tuple| tuple.mbps[kind], "Mbit/s");
        if kind > 0 {
            push(ACCELERATIONS, &|tuple| acceleration(tuple, kind), "x");
        }
    }
    rows
}

/// Returns the predicted and the measured rate over the direct one.
fn acceleration(tuple: &Measured, kind: usize) -> (f64, f64) {
    let ((predicted, measured), direct) = (tuple.mbps[kind], tuple.mbps[0]);
    (predicted / direct.0, measured / direct.1)
}

/// Returns rows of the formula's error and correlation, by kind of path; and the errors in per
/// cent, by name.
fn summary(measured: &[Measured]) -> (Vec<Row>, Vec<(String, f64)>) {
    let (mut rows, mut errors) = (Vec::new(), Vec::new());
    for (kind, name) in KINDS.into_iter().enumerate() {
        let rates: Vec<(f64, f64)> = measured.iter().map(|tuple| tuple.mbps[kind]).collect();
        let accelerations: Vec<(f64, f64)> =
            measured.iter().map(|tuple| acceleration(tuple, kind)).collect();
        for (what, pairs) in [("rate", rates), ("acceleration", accelerations)] {
            if kind == 0 && what == "acceleration" {
                continue;
            }
            let off = off(&pairs);
            let (half, most) = (quantile(&off, 0.5), quantile(&off, 0.9));
            let case = format!("{name}: {what}");
            let note = format!("nine in ten within {most:.1} %");
            rows.push(Row::of_median(&format!("{case} off by, median"), None, &[half], "%", &note));
            let coefficient = correlation(&pairs);
            rows.push(Row::of_median(
                &format!("{case}, correlation"),
                None,
                &[coefficient],
                "",
                "",
            ));
            errors.push((case, half));
        }
    }
    (rows, errors)
}

fn finding(errors: &[(String, f64)]) -> Finding {
    let errors_shown: Vec<String> =
        errors.iter().map(|(case, percent)| format!("{case} {percent:.1} %")).collect();
    let holds = errors.iter().all(|(_, percent)| *percent <= CLOSE_PERCENT);
    Finding::new(
        "predictions of rate and acceleration are close to the real ones",
        holds,
        format!("off by, medians: {}", errors_shown.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tuple(predicted: [f64; 3], off: f64) -> Measured {
        Measured {
            setting: "single cloud".to_owned(),
            rtt_ms: 100.0,
            mbps: predicted.map(|mbps| (mbps, mbps * off)),
        }
    }

    #[test]
    fn rates_off_by_a_fifth_are_not_close() {
        let all = |off: f64| [tuple([20.0, 30.0, 50.0], off), tuple([10.0, 30.0, 40.0], off)];
        let holds = |measured: &[Measured]| finding(&summary(measured).1).holds;
        assert!(holds(&all(0.97)));
        assert!(!holds(&all(0.8)));
        assert_eq!(points(&all(1.0)).len(), 2 * (KINDS.len() + KINDS.len() - 1));
    }
}
