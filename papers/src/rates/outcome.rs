//! Rates of all repeats, compared with the paper's.

use tradewind_model::statistics::median;
use tradewind_output::chart::Scale;

use super::repeat::{Interval, Outcome};
use super::scenario::{Case, Claim, Scenario, Steady};
use crate::harness::{Figure, Finding, Record, Row, RunOptions, Spot};

/// Creates the record.
pub(super) fn record(scenario: &Scenario, options: &RunOptions, repeats: &[Outcome]) -> Record {
    let rates = Rates { scenario, repeats };
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    let mut figures = vec![figure("rate, medians", &scenario.x_label, Scale::Names)];
    let mut rows: Vec<Row> = (0..scenario.cases.len()).map(|case| rates.row(case)).collect();
    for (index, case) in scenario.cases.iter().enumerate() {
        if case.every_s.is_some() {
            rows.extend(rates.series(index, case, figures.len()));
            figures.push(figure(&case.name, "seconds", Scale::Linear));
        }
    }
    let claims = scenario.claims.iter().filter_map(|claim| rates.claimed(claim));
    let steady = scenario.steady.iter().filter_map(|steady| rates.steady(steady));
    let findings = claims.chain(steady).collect();
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings));
    Record { figures, ..tables }
}

fn figure(title: &str, x_label: &str, scale: Scale) -> Figure {
    let (title, x_label) = (title.to_owned(), x_label.to_owned());
    Figure { title, x_label, y_label: "Mbit/s".to_owned(), scale }
}

struct Rates<'a> {
    scenario: &'a Scenario,
    repeats: &'a [Outcome],
}

impl Rates<'_> {
    /// Returns the intervals of a case after slow start, in each repeat.
    fn settled(&self, case: usize) -> Vec<Vec<&Interval>> {
        // The first sample comes a little after its time, never before.
        let settled = |interval: &&Interval| interval.from_s >= self.scenario.settle_s;
        let all = self.repeats.iter();
        all.map(|repeat| repeat.cases[case].iter().filter(settled).collect()).collect()
    }

    /// Returns the rate of a case's flows together, by repeat.
    fn sums(&self, case: usize) -> Vec<f64> {
        let mean = |intervals: Vec<&Interval>| {
            intervals.iter().map(|it| it.sum()).sum::<f64>() / intervals.len().max(1) as f64
        };
        self.settled(case).into_iter().map(mean).collect()
    }

    fn place(&self, name: &str) -> Option<usize> {
        self.scenario.cases.iter().position(|case| case.name == name)
    }

    fn row(&self, index: usize) -> Row {
        let case = &self.scenario.cases[index];
        let note = if case.every_s.is_none() && case.flows.len() > 1 {
            let flow = |place: usize| {
                let of = |intervals: Vec<&Interval>| intervals.first().map(|it| it.mbps[place]);
                let rates: Vec<f64> = self.settled(index).into_iter().filter_map(of).collect();
                if rates.is_empty() { "none".to_owned() } else { format!("{:.1}", median(&rates)) }
            };
            let flows: Vec<String> = (0..case.flows.len()).map(flow).collect();
            format!("each flow: {}", flows.join(", "))
        } else {
            String::new()
        };
        let row = Row::of_median(&case.name, case.paper_mbps, &self.sums(index), "Mbit/s", &note);
        match &case.at {
            None => row,
            Some(at) => {
                let names = self.scenario.x_names();
                let x = names.iter().position(|name| *name == at.x).unwrap_or_default() as f64;
                let (line, x_name) = (at.line.clone(), at.x.clone());
                row.drawn_at(Spot { figure: 0, line, x, x_name })
            }
        }
    }

    /// Returns rows of the rates of a case's flows over time.
    fn series(&self, index: usize, case: &Case, figure: usize) -> Vec<Row> {
        let intervals = self.repeats.iter().map(|repeat| repeat.cases[index].len()).min();
        let mut rows = Vec::new();
        for place in 0..intervals.unwrap_or_default() {
            let here: Vec<&Interval> =
                self.repeats.iter().map(|repeat| &repeat.cases[index][place]).collect();
            let from_s = median(&here.iter().map(|it| it.from_s).collect::<Vec<f64>>());
            let mut push = |line: &str, of: &dyn Fn(&Interval) -> f64| {
                let values: Vec<f64> = here.iter().map(|it| of(it)).collect();
                let name = format!("{}, {line}, from {from_s:.1} s", case.name);
                let x_name = format!("{from_s:.1} s");
                let spot = Spot { figure, line: line.to_owned(), x: from_s, x_name };
                rows.push(Row::of_median(&name, None, &values, "Mbit/s", "").drawn_at(spot));
            };
            push("all", &Interval::sum);
            for (place, flow) in case.flows.iter().enumerate() {
                push(&flow.describe(), &|it| it.mbps[place]);
            }
        }
        rows
    }

    fn claimed(&self, claim: &Claim) -> Option<Finding> {
        let [of, over] = [&claim.of, &claim.over].map(|name| self.place(name));
        let (of, over) = (median(&self.sums(of?)), median(&self.sums(over?)));
        let ratio = of / over;
        let holds = claim.least.is_none_or(|least| ratio >= least)
            && claim.most.is_none_or(|most| ratio <= most);
        let ours = format!("{}: {of:.1} Mbit/s, {}: {over:.1} ({ratio:.2}x)", claim.of, claim.over);
        Some(Finding::new(&claim.paper, holds, ours))
    }

    /// Checks that the sum over all flows stays the same while flows start and end.
    fn steady(&self, steady: &Steady) -> Option<Finding> {
        let settled = self.settled(self.place(&steady.case)?);
        let sums: Vec<f64> = settled.iter().flatten().map(|it| it.sum()).collect();
        if sums.is_empty() {
            return None;
        }
        let middle = median(&sums);
        let least = sums.iter().copied().fold(f64::INFINITY, f64::min);
        let most = sums.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let off = 100.0 * ((most - middle).max(middle - least)) / middle;
        let ours = format!(
            "all flows together {least:.0} to {most:.0} Mbit/s, \
             at most {off:.0} % off the median {middle:.0}"
        );
        Some(Finding::new(&steady.paper, off <= steady.within_percent, ours))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VMCAP: &str = include_str!("../../scenarios/trn-vmcap.toml");

    /// Returns a repeat in which all flows of a case together have `sum` of the interval's begin.
    fn repeat(scenario: &Scenario, sum: impl Fn(f64) -> f64) -> Outcome {
        let of = |case: &Case| {
            let marks = scenario.marks(case);
            let share =
                |from_s: &f64| vec![sum(*from_s) / case.flows.len() as f64; case.flows.len()];
            let begins = marks[..marks.len() - 1].iter();
            begins.map(|from_s| Interval { from_s: *from_s, mbps: share(from_s) }).collect()
        };
        Outcome { cases: scenario.cases.iter().map(of).collect() }
    }

    #[test]
    fn moving_sum_is_not_steady() {
        let scenario = Scenario::parse(VMCAP).unwrap();
        let steady = |sum: fn(f64) -> f64| {
            let repeats = [repeat(&scenario, sum)];
            Rates { scenario: &scenario, repeats: &repeats }.steady(&scenario.steady[0]).unwrap()
        };
        assert!(steady(|_| 380.0).holds);
        assert!(steady(|from_s| if from_s < 1.0 { 20.0 } else { 380.0 }).holds, "slow start");
        assert!(!steady(|from_s| if from_s > 12.0 { 190.0 } else { 380.0 }).holds);
    }

    #[test]
    fn claims_compare_two_cases() {
        let scenario = Scenario::parse(VMCAP).unwrap();
        let repeats = [repeat(&scenario, |_| 380.0)];
        let rates = Rates { scenario: &scenario, repeats: &repeats };
        let holds: Vec<bool> =
            scenario.claims.iter().map(|claim| rates.claimed(claim).unwrap().holds).collect();
        assert_eq!(holds, [false, true, true], "equal rates of one and two connections");
        let record = record(&scenario, &RunOptions::of_tests(), &repeats);
        assert!(record.charts().iter().all(|chart| !chart.lines.is_empty()));
    }
}
