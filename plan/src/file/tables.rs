//! Tables beside the problem file: CSV with a header, a row for each ordered pair.
//!
//! Columns may stand in any order; a line that is empty or begins with `#` says nothing. Names and
//! numbers hold no commas, so there is no quoting. Spreadsheets' byte order mark is skipped.

use tradewind_units::{Bandwidth, Duration, PricePerGb};
use tradewind_units::{UnitError, time::duration_from_millis};

use super::error::FileError;

/// Most rows of a table. Chosen: a full mesh of a thousand places.
const MOST_ROWS: usize = 1_000_000;

/// A table's name and rows, read column by column.
pub(super) struct Table<'a> {
    name: &'a str,
    columns: Vec<&'a str>,
    rows: Vec<Row<'a>>,
}

/// A row and the line it stands on.
pub(super) struct Row<'a> {
    pub(super) line: usize,
    cells: Vec<&'a str>,
}

impl<'a> Table<'a> {
    /// Splits a text into cells; its header names `required` and perhaps `optional` columns.
    pub(super) fn new(
        name: &'a str,
        text: &'a str,
        required: &[&str],
        optional: &[&str],
    ) -> Result<Self, FileError> {
        let refuse = |line, field: Option<&str>, problem: String| FileError {
            table: Some(shown(name)),
            line,
            field: field.map(shown),
            problem,
        };
        let says = |line: &&str| !line.is_empty() && !line.starts_with('#');
        let text = text.trim_start_matches('\u{feff}');
        let mut lines = (1..).zip(text.lines().map(str::trim)).filter(|(_, line)| says(line));
        let expected = required.join(",");
        let Some((first, header)) = lines.next() else {
            return Err(refuse(1, None, format!("a header `{expected}` is missing")));
        };
        let columns: Vec<&str> = header.split(',').map(str::trim).collect();
        for (index, column) in columns.iter().enumerate() {
            let known = required.contains(column) || optional.contains(column);
            if !known || columns[..index].contains(column) {
                let problem = format!("a header of `{expected}` would be right");
                return Err(refuse(first, Some(column), problem));
            }
        }
        if let Some(missing) = required.iter().find(|column| !columns.contains(column)) {
            return Err(refuse(first, Some(missing), "the header has no such column".to_owned()));
        }
        let mut rows = Vec::new();
        for (line, text) in lines {
            let cells: Vec<&str> = text.split(',').map(str::trim).collect();
            if cells.len() != columns.len() {
                let problem = format!("{} cells, the header has {}", cells.len(), columns.len());
                return Err(refuse(line, None, problem));
            }
            if rows.len() == MOST_ROWS {
                return Err(refuse(line, None, format!("more than {MOST_ROWS} rows")));
            }
            rows.push(Row { line, cells });
        }
        Ok(Self { name, columns, rows })
    }

    pub(super) fn rows(&self) -> &[Row<'a>] {
        &self.rows
    }

    /// The text in this column of the row; `None` where the table has no such column or the cell is empty.
    pub(super) fn text(&self, row: &Row<'a>, column: &str) -> Option<&'a str> {
        let place = self.columns.iter().position(|name| *name == column)?;
        Some(row.cells[place]).filter(|cell| !cell.is_empty())
    }

    /// The number in this column of the row; `None` as for [`Table::text`].
    pub(super) fn number(&self, row: &Row<'a>, column: &str) -> Result<Option<f64>, FileError> {
        let Some(text) = self.text(row, column) else { return Ok(None) };
        text.parse()
            .map(Some)
            .map_err(|_| self.refuse(row, column, format!("a number, not `{}`", shown(text))))
    }

    /// The number that must be in this column, made a value of its unit.
    pub(super) fn value<T>(
        &self,
        row: &Row<'a>,
        column: &str,
        make: impl FnOnce(f64) -> Result<T, UnitError>,
    ) -> Result<T, FileError> {
        let Some(number) = self.number(row, column)? else {
            return Err(self.refuse(row, column, "a number is missing"));
        };
        make(number).map_err(|error| self.refuse(row, column, error.to_string()))
    }

    /// The error of a cell.
    pub(super) fn refuse(
        &self,
        row: &Row<'_>,
        column: &str,
        problem: impl Into<String>,
    ) -> FileError {
        FileError {
            table: Some(shown(self.name)),
            line: row.line,
            field: Some(column.to_owned()),
            problem: problem.into(),
        }
    }
}

/// A round-trip time; none but a positive one makes sense of two places.
pub(super) fn rtt(millis: f64) -> Result<Duration, UnitError> {
    match duration_from_millis(millis)? {
        Duration::ZERO => Err(UnitError::new("round-trip time", "milliseconds above zero", millis)),
        span => Ok(span),
    }
}

pub(super) fn rate(mbps: f64) -> Result<Bandwidth, UnitError> {
    Bandwidth::from_mbps(mbps)
}

pub(super) fn price(usd_per_gb: f64) -> Result<PricePerGb, UnitError> {
    PricePerGb::from_usd_per_gb(usd_per_gb)
}

/// Foreign text fit for one line.
pub(super) fn shown(text: &str) -> String {
    const MOST: usize = 60;
    let mut short: String = text.chars().take(MOST).flat_map(char::escape_debug).collect();
    if text.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}

/// A parser's message fit for one line; it may quote what it read.
pub(super) fn shown_message(message: &str) -> String {
    const MOST: usize = 400;
    let mut short: String = message.chars().take(MOST).collect();
    if message.chars().nth(MOST).is_some() {
        short.push('…');
    }
    short
}
