//! Results of all repeats: what each algorithm gained, what was predicted, and what the paper says.

use tradewind_demo::scenario::Scenario;

use super::repeat::{OfAlgorithm, Outcome, Time};
use super::{FLOW_GREEDY, OURS, PROXY_GREEDY, algorithms};
use crate::harness::{Finding, Record, Row, RunOptions, mean, quantile};
use crate::numeric::formula::CLOSE_PERCENT;

/// The share by which ours may be slower than the best of the paper's and still count as equal.
/// Chosen: what repeats of one plan differ by.
const EQUAL: f64 = 0.02;

/// Creates the record.
pub(super) fn record(scenario: &Scenario, options: &RunOptions, repeats: &[Outcome]) -> Record {
    let mut assumptions = scenario.assumptions.clone();
    let carried =
        if options.quick { scenario.volume_carried_quick } else { scenario.volume_carried };
    let unmeasured = repeats.iter().map(|repeat| repeat.unmeasured).max().unwrap_or(0);
    assumptions.extend([
        format!(
            "each flow carries {carried} instead of {}; plans and predictions are for what is \
             carried, and a byte costs so much that the flow costs the same",
            scenario.volume_nominal
        ),
        format!(
            "repeats: {}, the paper has 20; the plans of a repeat rest on the same measurements, \
             up to {unmeasured} of their legs on the model alone",
            repeats.len()
        ),
        "algorithms with the same plan share its transfers".to_owned(),
    ]);
    let mut rows = vec![direct(repeats)];
    rows.extend(algorithms().into_iter().map(|name| row(name, repeats)));
    rows.push(errors(repeats));
    Record::of_tables(&scenario.name, assumptions, (rows, findings(repeats)))
}

fn total(times: &[Time], of: fn(&Time) -> f64) -> f64 {
    times.iter().map(of).sum()
}

fn measured(time: &Time) -> f64 {
    time.measured_s
}

fn predicted(time: &Time) -> f64 {
    time.predicted_s
}

fn direct(repeats: &[Outcome]) -> Row {
    let of = |of: fn(&Time) -> f64| -> Vec<f64> {
        repeats.iter().map(|repeat| total(&repeat.direct, of)).collect()
    };
    let is_intact = repeats.iter().all(|repeat| repeat.content_ok);
    let content = if is_intact { "all hashes right" } else { "WRONG CONTENT" };
    let note = format!("predicted {:.2} s; {content}", mean(&of(predicted)));
    Row::of("direct: total completion time", None, &of(measured), "s", &note)
}

/// Returns what an algorithm has in each repeat.
fn of_algorithm<'a>(
    name: &'a str,
    repeats: &'a [Outcome],
) -> impl Iterator<Item = (&'a Outcome, &'a OfAlgorithm)> + Clone {
    repeats.iter().flat_map(move |repeat| {
        let mine = repeat.planned.iter().filter(move |planned| planned.name == name);
        mine.map(move |planned| (repeat, planned))
    })
}

/// Returns the accelerations of an algorithm in all repeats.
fn accelerations(name: &str, repeats: &[Outcome], of: fn(&Time) -> f64) -> Vec<f64> {
    of_algorithm(name, repeats)
        .map(|(repeat, planned)| total(&repeat.direct, of) / total(&planned.flows, of))
        .collect()
}

fn row(name: &str, repeats: &[Outcome]) -> Row {
    let all = of_algorithm(name, repeats).map(|(_, planned)| planned);
    let value = |of: &dyn Fn(&OfAlgorithm) -> f64| mean(&all.clone().map(of).collect::<Vec<_>>());
    let note = format!(
        "predicted {:.2}x; {:.2} s measured, {:.2} s predicted; ${:.2}, {:.0} relays",
        mean(&accelerations(name, repeats, predicted)),
        value(&|planned| total(&planned.flows, measured)),
        value(&|planned| total(&planned.flows, predicted)),
        value(&|planned| planned.cost_usd),
        value(&|planned| planned.relays as f64),
    );
    let case = format!("{name}: acceleration");
    Row::of(&case, None, &accelerations(name, repeats, measured), "x", &note)
}

/// Returns by how many per cent the predictions of all transfers were off.
fn errors(repeats: &[Outcome]) -> Row {
    let of = |repeat: &Outcome| -> f64 {
        let planned = repeat.planned.iter().flat_map(|planned| &planned.flows);
        let times = repeat.direct.iter().chain(planned);
        let off: Vec<f64> = times.map(off).collect();
        quantile(&off, 0.5)
    };
    let values: Vec<f64> = repeats.iter().map(of).collect();
    Row::of("prediction error, median over transfers", None, &values, "%", "the paper: very close")
}

/// Returns by how many per cent a prediction was off.
fn off(time: &Time) -> f64 {
    (time.measured_s - time.predicted_s).abs() / time.predicted_s * 100.0
}

fn findings(repeats: &[Outcome]) -> Vec<Finding> {
    let gain = |name: &&str| mean(&accelerations(name, repeats, measured));
    let least = |names: &[&str]| names.iter().map(gain).fold(f64::INFINITY, f64::min);
    let best = |names: &[&str]| names.iter().map(gain).fold(f64::NEG_INFINITY, f64::max);
    let (proxy, flow) = (least(&PROXY_GREEDY), best(&FLOW_GREEDY));
    let off = |name: &&'static str| {
        let totals = of_algorithm(name, repeats).map(|(_, planned)| Time {
            predicted_s: total(&planned.flows, predicted),
            measured_s: total(&planned.flows, measured),
        });
        (*name, mean(&totals.map(|time| self::off(&time)).collect::<Vec<_>>()))
    };
    let errors: Vec<(&str, f64)> = algorithms().iter().map(off).collect();
    let shown: Vec<String> =
        errors.iter().map(|(name, percent)| format!("{name} {percent:.1} %")).collect();
    let (ours, paper) = (gain(&OURS), best(&PROXY_GREEDY).max(flow));
    vec![
        Finding::new(
            "proxy-greedy algorithms achieve better real-world results than flow-greedy ones",
            proxy > flow,
            format!(
                "the least of 1-p, 2-p, 2-p-rb {proxy:.2}x, the best of f-fct, f-cost {flow:.2}x"
            ),
        ),
        Finding::new(
            "predictions of the total completion time are close to the measured ones",
            errors.iter().all(|(_, percent)| *percent <= CLOSE_PERCENT),
            format!("off by {}", shown.join(", ")),
        ),
        Finding::new(
            "ours: our planner is as fast as the paper's best algorithm, or faster",
            ours > paper * (1.0 - EQUAL),
            format!("auto {ours:.2}x, the paper's best {paper:.2}x"),
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repeat in which flow-greedy plans take `flow_s`, proxy-greedy ones `proxy_s` and ours
    /// `ours_s`, each `late` times as long as predicted.
    fn repeat((flow_s, proxy_s, ours_s): (f64, f64, f64), late: f64) -> Outcome {
        let time = |seconds: f64| Time { predicted_s: seconds, measured_s: seconds * late };
        let planned = |name: &'static str| {
            let seconds = match name {
                OURS => ours_s,
                name if FLOW_GREEDY.contains(&name) => flow_s,
                _ => proxy_s,
            };
            OfAlgorithm { name, flows: vec![time(seconds)], relays: 3, cost_usd: 5.5 }
        };
        Outcome {
            direct: vec![time(12.0)],
            planned: algorithms().into_iter().map(planned).collect(),
            unmeasured: 0,
            content_ok: true,
        }
    }

    fn holds(repeat: Outcome) -> Vec<bool> {
        findings(&[repeat]).iter().map(|finding| finding.holds).collect()
    }

    #[test]
    fn findings_follow_from_the_times() {
        assert_eq!(holds(repeat((6.0, 4.0, 4.0), 1.02)), [true, true, true]);
        assert_eq!(holds(repeat((4.0, 6.0, 6.0), 1.02)), [false, true, false]);
        assert_eq!(holds(repeat((6.0, 4.0, 3.9), 1.5)), [true, false, true]);
    }

    #[test]
    fn each_algorithm_has_a_row() {
        let scenario = Scenario::cp_real().unwrap();
        let repeats = [repeat((6.0, 4.0, 3.0), 1.0), repeat((6.0, 4.0, 3.0), 1.0)];
        let record = record(&scenario, &RunOptions::of_tests(), &repeats);
        let of = |case: &str| record.rows.iter().find(|row| row.case == case).unwrap().clone();
        assert!((of("1-p: acceleration").ours - 3.0).abs() < 1e-9);
        assert!((of("auto: acceleration").ours - 4.0).abs() < 1e-9);
        assert!(of("f-fct: acceleration").note.starts_with("predicted 2.00x; 6.00 s measured"));
        assert_eq!(record.rows.len(), algorithms().len() + 2);
    }
}
