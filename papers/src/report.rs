//! Records of experiments as tables and as a page. Both only render the record, so they can never
//! disagree with its data.

use std::fmt::Write as _;

use tradewind_output::html::{self, escape};
use tradewind_output::table::Table;

use crate::harness::{Record, Row};

/// Returns an experiment's record as tables with titles: one per figure, with a column for each
/// line; the other rows; the findings.
#[must_use]
pub fn tables(record: &Record) -> Vec<(String, Table)> {
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

/// Renders records of experiments as one document: plots, figures, findings, conditions.
#[must_use]
pub fn page(records: &[Record]) -> String {
    let names: Vec<&str> = records.iter().map(|record| record.name.as_str()).collect();
    let body: String = records.iter().map(record_section).collect();
    html::document(&names.join(", "), &body)
}

fn record_section(record: &Record) -> String {
    let mut out = format!("<h2>{}</h2>\n", escape(&record.name));
    for reason in &record.invalid_because {
        let _ = writeln!(out, "<p class=\"invalid\">The run is invalid: {}</p>", escape(reason));
    }
    for chart in record.charts() {
        out.push_str(&chart.svg());
    }
    for table in tables(record) {
        let _ = writeln!(out, "<h3>{}</h3>\n{}", escape(&table.0), html::table(&table.1));
    }
    out.push_str(&html::conditions(&record.assumptions));
    out
}
