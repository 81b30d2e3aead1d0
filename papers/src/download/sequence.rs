//! Bytes over time between two relays [CDD III-D, "Using Quick-Start TCP Pays Off"]: slow start's
//! bursts and the idle round trips between them, beside the constant slope of Quick-Start.

use tradewind_model::statistics::median;
use tradewind_output::chart::Scale;

use super::outcome::{Cell, Outcome, Times};
use super::repeat::Sample;
use super::scenario::Trace;
use crate::harness::watch::Arrivals;
use crate::harness::{Figure, Finding, Row, Spot};

/// The time step of the figure, in seconds. Chosen: a tenth of the round trip between the relays.
const GRID_S: f64 = 0.025;
/// Largest number of steps that are drawn.
const MAX_DRAWN: usize = 200;

/// The results of the observation.
pub(super) struct Sequence {
    pub(super) rows: Vec<Row>,
    pub(super) figure: Figure,
    pub(super) finding: Option<Finding>,
}

/// Medians of a strategy at one loss.
struct Slope {
    name: String,
    fct_s: f64,
    idle_percent: f64,
    busy_mbps: f64,
}

impl Outcome<'_> {
    /// Returns the arrival of bytes at the first relay from the next one at each loss; the figure
    /// shows the first repeat at the first loss.
    pub(super) fn sequence(&self, times: &Times<'_>, trace: &Trace, figure: usize) -> Sequence {
        let mut rows = Vec::new();
        let mut slopes: Vec<Slope> = Vec::new();
        for (loss, percent) in self.scenario.losses_percent.iter().enumerate() {
            for (strategy, known) in self.scenario.strategies.iter().enumerate() {
                let cell = Cell { pair: 0, loss, strategy };
                let watched: Vec<&Sample> = times
                    .samples(cell, 0)
                    .filter(|sample| sample.arrivals.span_s() > 0.0)
                    .collect();
                let Some(first) = watched.first() else { continue };
                let values = |of: &dyn Fn(&Arrivals) -> f64| -> Vec<f64> {
                    watched.iter().map(|sample| of(&sample.arrivals)).collect()
                };
                let gap_s = trace.gap_ms / 1e3;
                let share = |arrivals: &Arrivals| arrivals.idle_s(gap_s) / arrivals.span_s();
                let idle = values(&|arrivals| 100.0 * share(arrivals));
                let busy = values(&|arrivals| arrivals.busy_mbps(gap_s));
                let fct: Vec<f64> = watched.iter().map(|sample| sample.fct_s).collect();
                slopes.push(Slope {
                    name: known.name.clone(),
                    fct_s: median(&fct),
                    idle_percent: median(&idle),
                    busy_mbps: median(&busy),
                });
                let case = |what: &str| format!("{}, loss {percent} %: {what}", known.name);
                let paper = trace.paper_mbps.get(&known.name).copied();
                let of = |what: &str, paper: Option<f64>, values: &[f64], unit: &str| {
                    Row::of_median(&case(what), paper, values, unit, "between the relays")
                };
                rows.push(of("rate outside gaps", paper, &busy, "Mbit/s"));
                rows.push(of("gaps, of first to last byte", None, &idle, "%"));
                let span = values(&Arrivals::span_s);
                rows.push(of("from first to last byte", None, &span, "s"));
                if loss == 0 {
                    rows.extend(drawn(&known.name, &first.arrivals, figure));
                }
            }
        }
        let figure = Figure {
            title: format!(
                "bytes from relay to relay, one fetch, loss {} %",
                self.scenario.losses_percent[0]
            ),
            x_label: "seconds from connect".to_owned(),
            y_label: "MB".to_owned(),
            scale: Scale::Linear,
        };
        Sequence { rows, figure, finding: finding(trace, &slopes) }
    }
}

/// Samples one fetch on a time grid, so that strategies can be compared.
fn drawn(line: &str, arrivals: &Arrivals, figure: usize) -> Vec<Row> {
    let last_s = arrivals.counts.last().map_or(0.0, |(at_s, _)| *at_s);
    let steps = ((last_s / GRID_S).ceil() as usize).min(MAX_DRAWN);
    let point = |step: usize| {
        let at_s = step as f64 * GRID_S;
        let x_name = format!("{at_s:.3} s");
        let case = format!("{line}: until {x_name}");
        let spot = Spot { figure, line: line.to_owned(), x: at_s, x_name };
        let mb = arrivals.until(at_s) as f64 / 1e6;
        Row::of_median(&case, None, &[mb], "MB", "").drawn_at(spot)
    };
    (0..=steps).map(point).collect()
}

/// Returns the finding that, at every loss, one strategy idles more, is faster otherwise, and ends
/// later.
fn finding(trace: &Trace, slopes: &[Slope]) -> Option<Finding> {
    let [bursty, even] = [&trace.bursty, &trace.even]
        .map(|name| slopes.iter().filter(|slope| slope.name == *name).collect::<Vec<&Slope>>());
    let holds = bursty.iter().zip(&even).all(|(bursty, even)| {
        bursty.idle_percent > even.idle_percent
            && bursty.busy_mbps > even.busy_mbps
            && bursty.fct_s > even.fct_s
    });
    let describe = |slope: &Slope| {
        format!(
            "{}: gaps {:.0} %, {:.0} Mbit/s outside them, {:.2} s in all",
            slope.name, slope.idle_percent, slope.busy_mbps, slope.fct_s
        )
    };
    let ours: Vec<String> = bursty.iter().chain(&even).map(|slope| describe(slope)).collect();
    let paper =
        "bursts of high rate with idle round trips against one even slope and a shorter whole";
    (!bursty.is_empty() && !even.is_empty()).then(|| Finding::new(paper, holds, ours.join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slope(name: &str, idle_percent: f64, busy_mbps: f64, fct_s: f64) -> Slope {
        Slope { name: name.to_owned(), fct_s, idle_percent, busy_mbps }
    }

    #[test]
    fn bursts_are_faster_but_end_later() {
        let scenario = include_str!("../../scenarios/cdd-sequence.toml");
        let trace = super::super::Scenario::parse(scenario).unwrap().trace.unwrap();
        let even = || slope("Quick-Start", 5.0, 90.0, 0.9);
        let holds = |bursty: Slope| finding(&trace, &[bursty, even()]).unwrap().holds;
        assert!(holds(slope("Cubic", 60.0, 260.0, 1.5)));
        assert!(!holds(slope("Cubic", 60.0, 60.0, 1.5)));
        assert!(!holds(slope("Cubic", 60.0, 260.0, 0.8)));
        assert!(finding(&trace, &[even()]).is_none());
    }
}
