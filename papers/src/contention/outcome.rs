//! Results of all repeats, compared with the plans' predictions.

use tradewind_model::statistics::median;
use tradewind_output::chart::Scale;
use tradewind_units::HostId;

use super::repeat::Outcome;
use super::scenario::{Contention, Scenario};
use super::{DIRECT, PER_LINK, PER_MACHINE, Variant};
use crate::harness::{Figure, Finding, Record, Row, RunOptions, Spot};

/// Creates the record.
pub(super) fn record(
    scenario: &Scenario,
    problem: &Contention,
    ways: &[Variant],
    options: &RunOptions,
    repeats: &[Outcome],
) -> Record {
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    let times = Times { problem, ways, repeats };
    let figure = |title: &str| Figure {
        title: title.to_owned(),
        x_label: "plan".to_owned(),
        y_label: "seconds".to_owned(),
        scale: Scale::Names,
    };
    let rows = (0..ways.len()).flat_map(|way| times.rows(way)).collect();
    let figures =
        vec![figure("completion times of all flows, summed"), figure("completion times, medians")];
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, times.findings()));
    Record { figures, ..tables }
}

struct Times<'a> {
    problem: &'a Contention,
    ways: &'a [Variant],
    repeats: &'a [Outcome],
}

impl Times<'_> {
    /// Returns the sums over all flows, by repeat.
    fn sums(&self, way: usize) -> Vec<f64> {
        self.repeats.iter().map(|repeat| repeat.fct_s[way].iter().sum()).collect()
    }

    fn predicted(&self, way: usize) -> f64 {
        self.ways[way].predicted_s.iter().sum()
    }

    fn rows(&self, index: usize) -> Vec<Row> {
        let way = &self.ways[index];
        let spot = |figure: usize, line: &str| Spot {
            figure,
            line: line.to_owned(),
            x: index as f64,
            x_name: way.name.to_owned(),
        };
        let case = |what: &str| format!("{}: {what}", way.name);
        let predicted = self.predicted(index);
        let relayed = way.paths.iter().filter(|path| !path.is_empty()).count();
        let note = format!("{relayed} of {} flows over a relay", way.paths.len());
        let mut rows = vec![
            Row::of_median(&case("sum of completion times"), None, &self.sums(index), "s", &note)
                .drawn_at(spot(0, "measured")),
            Row::of_median(&case("the same as predicted"), None, &[predicted], "s", "")
                .drawn_at(spot(0, "predicted by that plan")),
        ];
        for (place, flow) in self.problem.flows().iter().enumerate() {
            let took: Vec<f64> =
                self.repeats.iter().map(|repeat| repeat.fct_s[index][place]).collect();
            let via: Vec<&str> = way.paths[place].iter().map(HostId::as_str).collect();
            let via = if via.is_empty() { "no relay".to_owned() } else { via.join(" > ") };
            let note = format!("{via}; predicted {:.2} s", way.predicted_s[place]);
            let row = Row::of_median(&case(flow.id.as_str()), None, &took, "s", &note);
            rows.push(row.drawn_at(spot(1, flow.id.as_str())));
        }
        rows
    }

    fn findings(&self) -> Vec<Finding> {
        let place = |name: &str| self.ways.iter().position(|way| way.name == name);
        let (Some(direct), Some(link), Some(machine)) =
            (place(DIRECT), place(PER_LINK), place(PER_MACHINE))
        else {
            return Vec::new();
        };
        let sum = |way: usize| median(&self.sums(way));
        let off = |way: usize| 100.0 * (self.predicted(way) / sum(way) - 1.0);
        vec![
            Finding::new(
                "plans that know the caps of machines beat plans that know links alone",
                sum(machine) < sum(link),
                format!(
                    "sums of completion times: \
                     {:.1} s per machine, {:.1} s per link, {:.1} s direct",
                    sum(machine),
                    sum(link),
                    sum(direct)
                ),
            ),
            Finding::new(
                "ours: a plan per link promises what a machine's flows cannot have at once",
                off(machine).abs() < off(link).abs(),
                format!(
                    "predicted sums are off by {:+.0} % per machine, {:+.0} % per link",
                    off(machine),
                    off(link)
                ),
            ),
        ]
    }
}
