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
    variants: &[Variant],
    options: &RunOptions,
    repeats: &[Outcome],
) -> Record {
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    let times = Times { problem, variants, repeats };
    let figure = |title: &str| Figure {
        title: title.to_owned(),
        x_label: "plan".to_owned(),
        y_label: "seconds".to_owned(),
        scale: Scale::Names,
    };
    let rows = (0..variants.len()).flat_map(|variant| times.rows(variant)).collect();
    let figures =
        vec![figure("completion times of all flows, summed"), figure("completion times, medians")];
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, times.findings()));
    Record { figures, ..tables }
}

struct Times<'a> {
    problem: &'a Contention,
    variants: &'a [Variant],
    repeats: &'a [Outcome],
}

impl Times<'_> {
    /// Returns the sums over all flows, by repeat.
    fn sums(&self, variant: usize) -> Vec<f64> {
        self.repeats.iter().map(|repeat| repeat.fct_s[variant].iter().sum()).collect()
    }

    fn predicted(&self, variant: usize) -> f64 {
        self.variants[variant].predicted_s.iter().sum()
    }

    fn rows(&self, index: usize) -> Vec<Row> {
        let variant = &self.variants[index];
        let spot = |figure: usize, line: &str| Spot {
            figure,
            line: line.to_owned(),
            x: index as f64,
            x_name: variant.name.to_owned(),
        };
        let case = |what: &str| format!("{}: {what}", variant.name);
        let predicted = self.predicted(index);
        let relayed = variant.paths.iter().filter(|path| !path.is_empty()).count();
        let note = format!("{relayed} of {} flows over a relay", variant.paths.len());
        let mut rows = vec![
            Row::of_median(&case("sum of completion times"), None, &self.sums(index), "s", &note)
                .drawn_at(spot(0, "measured")),
            Row::of_median(&case("the same as predicted"), None, &[predicted], "s", "")
                .drawn_at(spot(0, "predicted by that plan")),
        ];
        for (place, flow) in self.problem.flows().iter().enumerate() {
            let took: Vec<f64> =
                self.repeats.iter().map(|repeat| repeat.fct_s[index][place]).collect();
            let via: Vec<&str> = variant.paths[place].iter().map(HostId::as_str).collect();
            let via = if via.is_empty() { "no relay".to_owned() } else { via.join(" > ") };
            let note = format!("{via}; predicted {:.2} s", variant.predicted_s[place]);
            let row = Row::of_median(&case(flow.id.as_str()), None, &took, "s", &note);
            rows.push(row.drawn_at(spot(1, flow.id.as_str())));
        }
        rows
    }

    fn findings(&self) -> Vec<Finding> {
        let place = |name: &str| self.variants.iter().position(|variant| variant.name == name);
        let (Some(direct), Some(link), Some(machine)) =
            (place(DIRECT), place(PER_LINK), place(PER_MACHINE))
        else {
            return Vec::new();
        };
        let sum = |variant: usize| median(&self.sums(variant));
        let off = |variant: usize| 100.0 * (self.predicted(variant) / sum(variant) - 1.0);
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
