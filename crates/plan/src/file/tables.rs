//! Tables beside the problem file: CSV (RFC 4180) with a header, a row for each ordered pair, or a
//! matrix: receivers in the header, senders in the first column.
//!
//! Columns may be in any order; lines that are empty or begin with `#` are ignored. Spreadsheets'
//! byte order mark is skipped. Columns of public grids are accepted by their own names ([`RTTS`],
//! [`RATES`], [`PRICES`]); others are ignored, with a note.

use tradewind_units::{Bandwidth, Duration, PricePerGb};
use tradewind_units::{UnitError, time::duration_from_millis};

use super::error::FileError;

/// Most rows of a table. Chosen: a full mesh of a thousand places.
const MAX_ROWS: usize = 1_000_000;

/// A kind of table: its columns with their accepted names, ours first.
pub(super) struct Kind {
    pub(super) from: &'static [&'static str],
    pub(super) to: &'static [&'static str],
    /// The value: each name with the factor from its unit to ours.
    value: &'static [(&'static str, f64)],
    /// Spread of the value, in our unit.
    spread: Option<&'static str>,
}

/// Round-trip times, in milliseconds.
pub(super) const RTTS: Kind = Kind {
    from: &["src", "from", "src_region"],
    to: &["dst", "to", "dst_region", "dest", "dest_region"],
    value: &[("rtt_ms", 1.0), ("min_rtt_ms", 1.0), ("min_rtt", 1.0)],
    spread: Some("spread_ms"),
};

/// Rates, in Mbit/s.
pub(super) const RATES: Kind = Kind {
    from: RTTS.from,
    to: RTTS.to,
    value: &[("mbps", 1.0), ("gbps", 1000.0), ("throughput_sent", 1e-6)],
    spread: Some("spread_mbps"),
};

/// Prices of egress, in dollars a GB.
pub(super) const PRICES: Kind = Kind {
    from: &["from", "src", "src_region"],
    to: &["to", "dst", "dst_region", "dest", "dest_region"],
    value: &[("usd_per_gb", 1.0), ("cost", 1.0)],
    spread: None,
};

/// Columns of the tier of a cloud's network, and the tier whose rows are used: the clouds' default.
const TIERS: [&str; 3] = ["src_tier", "dst_tier", "dest_tier"];
const TIER: &str = "premium";

impl Kind {
    /// Returns our name of a column, and the factor from its unit to ours; `None` if this kind has
    /// no such column.
    fn column(&self, name: &str) -> Option<(&'static str, f64)> {
        let ours = |names: &'static [&'static str]| names.contains(&name).then(|| (names[0], 1.0));
        let value = self.value.iter().find(|(known, _)| *known == name);
        let value = value.map(|(_, scale)| (self.value[0].0, *scale));
        let spread = self.spread.filter(|spread| *spread == name).map(|spread| (spread, 1.0));
        ours(self.from).or_else(|| ours(self.to)).or(value).or(spread)
    }

    /// Returns whether a header is that of a matrix: a corner, which may be named like the column
    /// of senders, then names.
    fn is_matrix(&self, header: &csv::StringRecord) -> bool {
        let corner = header.get(0).unwrap_or_default();
        let is_corner = corner.is_empty() || corner == "region" || self.from.contains(&corner);
        is_corner
            && header.len() > 1
            && header.iter().skip(1).all(|name| self.column(name).is_none())
    }
}

/// A table's name and rows, with access by column.
pub(super) struct Table<'a> {
    name: &'a str,
    /// Our names of the columns, and the factors from their units to ours; `None` for ignored
    /// columns.
    columns: Vec<Option<(&'static str, f64)>>,
    rows: Vec<Row>,
    /// A note on everything that was ignored.
    note: Option<String>,
}

/// A row and its line number.
pub(super) struct Row {
    pub(super) line: usize,
    cells: Vec<String>,
}

impl<'a> Table<'a> {
    /// Parses a text into cells.
    pub(super) fn new(name: &'a str, text: &str, kind: &Kind) -> Result<Self, FileError> {
        let refuse = |line, field: Option<&str>, problem: String| FileError {
            table: Some(shown(name)),
            line,
            field: field.map(shown),
            problem,
        };
        let expected = [kind.from[0], kind.to[0], kind.value[0].0].join(",");
        let mut records = Records::new(text);
        let Some((first, header)) = records.next() else {
            return Err(refuse(1, None, format!("a header `{expected}` is missing")));
        };
        if kind.is_matrix(&header) {
            let columns = [kind.from[0], kind.to[0], kind.value[0].0].map(|name| Some((name, 1.0)));
            let rows =
                matrix(&header, records).map_err(|(line, problem)| refuse(line, None, problem))?;
            return Ok(Self { name, columns: columns.to_vec(), rows, note: None });
        }
        let mut columns: Vec<Option<(&'static str, f64)>> = Vec::new();
        for column in &header {
            let known = kind.column(column);
            let is_second =
                |(ours, _): &(&str, f64)| columns.iter().flatten().any(|(other, _)| other == ours);
            if known.as_ref().is_some_and(is_second) {
                let problem = format!("a second such column: `{expected}` would be right");
                return Err(refuse(first, Some(column), problem));
            }
            columns.push(known);
        }
        let required = [kind.from[0], kind.to[0], kind.value[0].0];
        let is_there = |name: &&str| columns.iter().flatten().any(|(ours, _)| ours == name);
        if let Some(missing) = required.iter().find(|name| !is_there(name)) {
            let problem = format!("the header has no such column: `{expected}` would be right");
            return Err(refuse(first, Some(missing), problem));
        }
        let mut table = Self { name, columns, rows: Vec::new(), note: None };
        let mut left_out = LeftOut::new(&header, &table.columns);
        for (line, record) in records {
            if record.len() != table.columns.len() {
                let problem = format!("{} cells, the header has {}", record.len(), header.len());
                return Err(refuse(line, None, problem));
            }
            if table.rows.len() == MAX_ROWS {
                return Err(refuse(line, None, format!("more than {MAX_ROWS} rows")));
            }
            let row = Row { line, cells: record.iter().map(str::to_owned).collect() };
            let is_silent = table.text(&row, kind.value[0].0).is_none();
            if !left_out.takes(&row, is_silent) {
                table.rows.push(row);
            }
        }
        table.note = left_out.describe(name);
        Ok(table)
    }

    /// Returns a note on what was ignored, if anything was.
    pub(super) fn note(&self) -> Option<String> {
        self.note.clone()
    }

    pub(super) fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Returns the text in this column of the row; `None` where the table has no such column or the
    /// cell is empty.
    pub(super) fn text<'r>(&self, row: &'r Row, column: &str) -> Option<&'r str> {
        let place =
            self.columns.iter().position(|known| known.is_some_and(|(name, _)| name == column))?;
        Some(row.cells[place].as_str()).filter(|cell| !cell.is_empty())
    }

    /// Returns the number in this column of the row, in our unit; `None` as for [`Table::text`].
    pub(super) fn number(&self, row: &Row, column: &str) -> Result<Option<f64>, FileError> {
        let Some(text) = self.text(row, column) else { return Ok(None) };
        let known = self.columns.iter().flatten().find(|(name, _)| *name == column);
        let scale = known.map_or(1.0, |(_, scale)| *scale);
        text.parse()
            .map(|number: f64| Some(number * scale))
            .map_err(|_| self.refuse(row, column, format!("a number, not `{}`", shown(text))))
    }

    /// Returns the number in this column as a value of its unit; it is an error if it is missing.
    pub(super) fn value<T>(
        &self,
        row: &Row,
        column: &str,
        make: impl FnOnce(f64) -> Result<T, UnitError>,
    ) -> Result<T, FileError> {
        let Some(number) = self.number(row, column)? else {
            return Err(self.refuse(row, column, "a number is missing"));
        };
        make(number).map_err(|error| self.refuse(row, column, error.to_string()))
    }

    /// Returns an error of a cell.
    pub(super) fn refuse(&self, row: &Row, column: &str, problem: impl Into<String>) -> FileError {
        FileError {
            table: Some(shown(self.name)),
            line: row.line,
            field: Some(column.to_owned()),
            problem: problem.into(),
        }
    }
}

/// The ignored parts of a grid that has more columns than ours.
struct LeftOut {
    columns: Vec<String>,
    /// The indices of the columns of a network's tier.
    tiers: Vec<usize>,
    of_other_tiers: usize,
    silent: usize,
}

impl LeftOut {
    fn new(header: &csv::StringRecord, columns: &[Option<(&'static str, f64)>]) -> Self {
        let unknown = || header.iter().enumerate().filter(|(at, _)| columns[*at].is_none());
        let tiers = unknown().filter(|(_, name)| TIERS.contains(name)).map(|(at, _)| at).collect();
        let columns = unknown().filter(|(_, name)| !TIERS.contains(name));
        let columns = columns.map(|(_, name)| shown(name)).collect();
        Self { columns, tiers, of_other_tiers: 0, silent: 0 }
    }

    /// Returns whether a row is ignored, and counts it if so: one of another tier, or one of a
    /// grid's pairs that were not measured.
    fn takes(&mut self, row: &Row, is_silent: bool) -> bool {
        let tier = |at: &usize| row.cells[*at].as_str();
        let is_other = self
            .tiers
            .iter()
            .map(tier)
            .any(|tier| !tier.is_empty() && !tier.eq_ignore_ascii_case(TIER));
        let is_grid = !self.tiers.is_empty() || !self.columns.is_empty();
        let is_silent = is_silent && is_grid && !is_other;
        self.of_other_tiers += usize::from(is_other);
        self.silent += usize::from(is_silent);
        is_other || is_silent
    }

    fn describe(self, table: &str) -> Option<String> {
        const SHOWN: usize = 4;
        let mut parts = Vec::new();
        let names: Vec<String> =
            self.columns.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
        let more = self.columns.len() - names.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        if !names.is_empty() {
            parts.push(format!("columns {}{more}", names.join(", ")));
        }
        let rows = |count| format!("{count} {}", if count == 1 { "row" } else { "rows" });
        if self.of_other_tiers > 0 {
            parts.push(format!("{} of another tier than {TIER}", rows(self.of_other_tiers)));
        }
        if self.silent > 0 {
            parts.push(format!("{} without a value", rows(self.silent)));
        }
        let table = shown(table);
        (!parts.is_empty()).then(|| format!("{table}: left out: {}", parts.join("; ")))
    }
}

/// The records of a text that are not empty or comments, with the lines that they begin on.
struct Records<'a> {
    text: &'a str,
    records: csv::StringRecordsIntoIter<&'a [u8]>,
    /// The number of bytes whose lines are counted so far, and of these lines.
    counted: usize,
    lines: usize,
}

impl<'a> Records<'a> {
    fn new(text: &'a str) -> Self {
        let mut reader = csv::ReaderBuilder::new();
        reader.has_headers(false).flexible(true).trim(csv::Trim::All).comment(Some(b'#'));
        let text = text.trim_start_matches('\u{feff}');
        let records = reader.from_reader(text.as_bytes()).into_records();
        Self { text, records, counted: 0, lines: 0 }
    }

    /// Returns the line of a record that begins at this byte, or after empty lines and comments
    /// from there on.
    fn line_at(&mut self, byte: usize) -> usize {
        let newlines = |text: &str| text.bytes().filter(|byte| *byte == b'\n').count();
        self.lines += newlines(self.text.get(self.counted..byte).unwrap_or_default());
        self.counted = byte.max(self.counted);
        let rest = self.text.get(byte..).unwrap_or_default();
        let silent = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        1 + self.lines + rest.lines().take_while(silent).count()
    }
}

impl Iterator for Records<'_> {
    type Item = (usize, csv::StringRecord);

    fn next(&mut self) -> Option<Self::Item> {
        // The text is in memory and valid UTF-8, so that reading cannot fail.
        let is_content = |record: &csv::StringRecord| {
            let first = record.get(0).unwrap_or_default();
            (record.len() > 1 || !first.is_empty()) && !first.starts_with('#')
        };
        let record = self.records.by_ref().filter_map(Result::ok).find(is_content)?;
        let byte = record.position().map_or(0, csv::Position::byte);
        Some((self.line_at(usize::try_from(byte).unwrap_or(usize::MAX)), record))
    }
}

/// Converts a matrix to a row for each cell that is not empty; cells of a place with itself are
/// left out.
fn matrix(header: &csv::StringRecord, records: Records<'_>) -> Result<Vec<Row>, (usize, String)> {
    let mut rows = Vec::new();
    for (line, record) in records {
        if record.len() != header.len() {
            let problem = format!("{} cells, the header has {}", record.len(), header.len());
            return Err((line, problem));
        }
        let from = record.get(0).unwrap_or_default();
        for (to, cell) in header.iter().zip(&record).skip(1) {
            if cell.is_empty() || to == from {
                continue;
            }
            if rows.len() == MAX_ROWS {
                return Err((line, format!("more than {MAX_ROWS} cells")));
            }
            rows.push(Row { line, cells: [from, to, cell].map(str::to_owned).to_vec() });
        }
    }
    Ok(rows)
}

/// Returns a round-trip time, which must be above zero between two places.
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

/// Escapes and shortens foreign text for one line.
pub(super) fn shown(text: &str) -> String {
    const MAX: usize = 60;
    let mut short: String = text.chars().take(MAX).flat_map(char::escape_debug).collect();
    if text.chars().nth(MAX).is_some() {
        short.push('…');
    }
    short
}

/// Shortens a parser's message, which may quote its input.
pub(super) fn shown_message(message: &str) -> String {
    const MAX: usize = 400;
    let mut short: String = message.chars().take(MAX).collect();
    if message.chars().nth(MAX).is_some() {
        short.push('…');
    }
    short
}
