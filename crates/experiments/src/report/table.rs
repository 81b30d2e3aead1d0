//! The report as rows of text, for a terminal.

use super::DemoReport;
use crate::experiment::{Record, Row};

/// A table: a heading and its rows, all of the same width.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    /// Names of the columns.
    pub heading: Vec<String>,
    /// Cells.
    pub rows: Vec<Vec<String>>,
}

/// Returns one row per flow and a last one with the totals; FCT is in seconds.
#[must_use]
pub fn flows(report: &DemoReport) -> Table {
    let mut rows: Vec<Vec<String>> = report
        .flows
        .iter()
        .map(|flow| {
            vec![
                format!("{} > {}", flow.source, flow.destination),
                path_text(&flow.path),
                seconds(flow.predicted_direct_s),
                seconds(flow.fct_direct_s),
                seconds(flow.predicted_planned_s),
                seconds(flow.fct_planned_s),
                format!("{:.2}x", flow.acceleration()),
                format!("{:.2}", flow.egress_usd),
                match (flow.sha256_ok, flow.valid) {
                    (false, _) => "HASH DIFFERS".into(),
                    (true, false) => "ok, lab late".into(),
                    (true, true) => "ok".into(),
                },
            ]
        })
        .collect();
    rows.push(total_row(report));
    Table {
        heading: [
            "flow",
            "path",
            "direct predicted s",
            "direct measured s",
            "path predicted s",
            "path measured s",
            "acceleration",
            "egress $",
            "content",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows,
    }
}

fn total_row(report: &DemoReport) -> Vec<String> {
    let [direct, planned, predicted_direct, predicted_planned] = report.totals();
    let relays: u32 = report.relays.iter().map(|relay| relay.count).sum();
    let all_ok = report.flows.iter().all(|flow| flow.sha256_ok);
    vec![
        format!("total of {}", report.flows.len()),
        format!("{relays} relays"),
        seconds(predicted_direct),
        seconds(direct),
        seconds(predicted_planned),
        seconds(planned),
        format!("{:.2}x", report.acceleration),
        format!("{:.2}", report.flows.iter().map(|flow| flow.egress_usd).sum::<f64>()),
        if all_ok { "ok".into() } else { "HASH DIFFERS".into() },
    ]
}

/// Returns the lines below the table: gain, cost, conditions.
#[must_use]
pub fn summary(report: &DemoReport) -> Vec<String> {
    let mut lines = vec![
        format!(
            "acceleration {:.2}x measured, {:.2}x predicted; prediction off by {:.1} % at the \
             median, {:.0} % at most",
            report.acceleration,
            report.acceleration_predicted,
            report.prediction_error_median * 100.0,
            report.prediction_error_most * 100.0
        ),
        format!(
            "cost ${:.2} of a budget of ${:.2}, at nominal volumes, set-up of relays included",
            report.cost_usd, report.budget_usd
        ),
    ];
    lines.extend(report.assumptions.iter().map(|line| format!("assumed: {line}")));
    lines.push(if report.valid {
        "the lab kept time: the run is valid".into()
    } else {
        format!("THE RUN IS INVALID: {}", report.reasons())
    });
    lines
}

/// Returns an experiment's record as tables with titles: one per figure, with a column for each
/// line; the other rows; the findings.
#[must_use]
pub fn record(record: &Record) -> Vec<(String, Table)> {
    let figures = record.figures.iter().enumerate();
    let mut tables: Vec<(String, Table)> =
        figures.map(|(index, figure)| (figure.title.clone(), drawn(record, index))).collect();
    let rows: Vec<Vec<String>> = record.other_rows().map(row_cells).collect();
    if !rows.is_empty() {
        let heading = ["case", "paper", "ours", "95 % interval", "unit", "note"];
        let heading = heading.map(str::to_owned).to_vec();
        tables.push(("figures".to_owned(), Table { heading, rows }));
    }
    if !record.findings.is_empty() {
        let heading = ["the paper says", "holds", "here"].map(str::to_owned).to_vec();
        let holds = |holds| if holds { "yes" } else { "NO" }.to_owned();
        let findings = record.findings.iter();
        let rows = findings.map(|f| vec![f.paper.clone(), holds(f.holds), f.ours.clone()]);
        tables.push(("findings".to_owned(), Table { heading, rows: rows.collect() }));
    }
    tables
}

/// Returns a figure's table: categories are rows, lines are columns; `±` precedes half an
/// interval's width.
fn drawn(record: &Record, figure: usize) -> Table {
    let (mut lines, mut places): (Vec<&str>, Vec<&str>) = (Vec::new(), Vec::new());
    let here = || {
        let spots = record.rows.iter().filter_map(|row| Some((row, row.at.as_ref()?)));
        spots.filter(|(_, spot)| spot.figure == figure)
    };
    for (_, spot) in here() {
        for (known, name) in [(&mut lines, &spot.line), (&mut places, &spot.x_name)] {
            if !known.contains(&name.as_str()) {
                known.push(name);
            }
        }
    }
    let cell = |place: &str, line: &str| {
        let row = here().find(|(_, spot)| spot.x_name == place && spot.line == line);
        row.map_or_else(String::new, |(row, _)| drawn_cell(row))
    };
    let row = |place: &&str| {
        let cells = lines.iter().map(|line| cell(place, line));
        std::iter::once((*place).to_owned()).chain(cells).collect()
    };
    let names = lines.iter().map(|line| (*line).to_owned());
    Table {
        heading: std::iter::once(record.figures[figure].x_label.clone()).chain(names).collect(),
        rows: places.iter().map(row).collect(),
    }
}

fn drawn_cell(row: &Row) -> String {
    let mut cell = figure(row.ours);
    if let Some((low, high)) = row.ours_low.zip(row.ours_high) {
        cell.push_str(&format!(" ±{}", figure((high - low) / 2.0)));
    }
    if let Some(paper) = row.paper {
        cell.push_str(&format!(" (paper {})", figure(paper)));
    }
    cell
}

/// Formats a value with two decimals, or none from a hundred on.
fn figure(value: f64) -> String {
    if value.abs() < 100.0 { format!("{value:.2}") } else { format!("{value:.0}") }
}

fn row_cells(row: &Row) -> Vec<String> {
    let number = |value: f64| format!("{value:.3}");
    let interval = match (row.ours_low, row.ours_high) {
        (Some(low), Some(high)) => format!("{low:.3} to {high:.3}"),
        _ => String::new(),
    };
    let paper = row.paper.map(number).unwrap_or_default();
    vec![row.case.clone(), paper, number(row.ours), interval, row.unit.clone(), row.note.clone()]
}

/// Returns a path as text: `direct`, or its regions in order.
#[must_use]
pub fn path_text(path: &[String]) -> String {
    if path.is_empty() { "direct".into() } else { path.join(" > ") }
}

fn seconds(value: f64) -> String {
    format!("{value:.2}")
}

#[cfg(test)]
mod tests {
    use super::super::tests::sample;
    use super::*;

    #[test]
    fn rows_match_the_heading_and_last_row_has_totals() {
        let table = flows(&sample());
        assert!(table.rows.iter().all(|row| row.len() == table.heading.len()));
        assert_eq!(table.rows.last().unwrap()[6], "3.00x");
        assert_eq!(table.rows[1][1], "direct");
    }

    #[test]
    fn wrong_hash_and_invalid_run_are_shown() {
        let mut report = sample();
        report.flows[0].sha256_ok = false;
        report.invalid_because.push("lateness".into());
        report.summarise();
        assert!(flows(&report).rows.iter().any(|row| row.contains(&"HASH DIFFERS".to_owned())));
        assert!(summary(&report).last().unwrap().contains("INVALID"));
    }
}
