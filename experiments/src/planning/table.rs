//! The experiments' figures as Markdown tables.

use super::{Average, Experiment, Point};

/// Which figures a table shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// How many times faster.
    Acceleration,
    /// The same, with the middle half of the runs.
    Spread,
    /// Relays, and the share of the cost that they are.
    Relays,
    /// Paths with no, one and two relays, in per cent.
    Paths,
    /// Time to solve.
    SolveTime,
}

impl Experiment {
    /// The tables that show what the paper shows.
    #[must_use]
    pub const fn tables(self) -> &'static [Kind] {
        match self {
            Self::Flows => &[Kind::Acceleration, Kind::Relays, Kind::Paths],
            Self::Cost => &[Kind::Spread, Kind::Paths],
            Self::Budget | Self::LastMile | Self::UseCases => &[Kind::Acceleration],
            Self::RunTime => &[Kind::SolveTime],
        }
    }
}

/// One row a setting, one column a solver.
#[must_use]
pub fn render(points: &[Point], kind: Kind) -> String {
    let Some(first) = points.first() else { return String::new() };
    let names = first.solvers.iter().map(|(name, _)| (*name).to_owned());
    let bounded = matches!(kind, Kind::Acceleration | Kind::Spread);
    let unlimited = bounded.then(|| "unlimited".to_owned());
    let heading: Vec<String> =
        std::iter::once(title(kind).to_owned()).chain(names).chain(unlimited).collect();
    let mut text = row(&heading);
    text.push_str(&row(&vec!["---".to_owned(); heading.len()]));
    for point in points {
        let cells = point.solvers.iter().map(|(_, average)| cell(average, kind));
        let unlimited = bounded.then(|| format!("{:.2}", point.unlimited));
        let all: Vec<String> =
            std::iter::once(point.name.clone()).chain(cells).chain(unlimited).collect();
        text.push_str(&row(&all));
    }
    text
}

const fn title(kind: Kind) -> &'static str {
    match kind {
        Kind::Acceleration => "acceleration",
        Kind::Spread => "acceleration (quartiles)",
        Kind::Relays => "relays (% of the cost)",
        Kind::Paths => "% direct / one / two relays",
        Kind::SolveTime => "ms to solve, median (processor, mean)",
    }
}

fn cell(average: &Average, kind: Kind) -> String {
    match kind {
        Kind::Acceleration => format!("{:.2}", average.acceleration),
        Kind::Spread => {
            let (low, high) = average.quartiles;
            format!("{:.2} ({low:.2} to {high:.2})", average.acceleration)
        }
        Kind::Relays => {
            let share = 100.0 * average.set_up_usd / average.cost_usd.max(1e-9);
            format!("{:.1} ({share:.0})", average.relays)
        }
        Kind::Paths => {
            let [direct, one, two] = average.path_kinds.map(|share| 100.0 * share);
            format!("{direct:.0} / {one:.0} / {two:.0}")
        }
        Kind::SolveTime => {
            let cpu = average.cpu_ms.map_or_else(|| "?".to_owned(), |ms| format!("{ms:.1}"));
            format!("{:.1} ({cpu})", average.solve_ms)
        }
    }
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}
