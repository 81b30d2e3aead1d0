//! Measurements as CSV: the columns that `tradewind measure export` prints.

use std::str::FromStr;

use tradewind_control::imported::{Imported, ImportedRate, ImportedRtt};
use tradewind_units::shown;

use super::COLUMNS;
use super::given::Given;

/// Reads a table: a heading of these columns in any order, then a row for each measurement. The
/// places and the time may be given instead, and `method` is not read: it becomes `imported`.
pub(super) fn read(text: &str, given: &Given) -> Result<Vec<Imported>, String> {
    let mut reader = csv::ReaderBuilder::new()
        .comment(Some(b'#'))
        .trim(csv::Trim::All)
        .from_reader(text.trim_start_matches('\u{feff}').as_bytes());
    let heading = reader.headers().map_err(|error| error.to_string())?.clone();
    if let Some(unknown) = heading.iter().find(|name| !COLUMNS.contains(name)) {
        let unknown = shown(unknown);
        return Err(format!("line 1: `{unknown}`: expected columns of {}", COLUMNS.join(",")));
    }
    let mut all = Vec::new();
    for row in reader.records() {
        let cells = row.map_err(|error| error.to_string())?;
        let line = cells.position().map_or(0, csv::Position::line);
        let row = Row { heading: &heading, cells: &cells };
        all.push(row.measurement(given).map_err(|problem| format!("line {line}: {problem}"))?);
    }
    Ok(all)
}

struct Row<'a> {
    heading: &'a csv::StringRecord,
    cells: &'a csv::StringRecord,
}

impl Row<'_> {
    fn measurement(&self, given: &Given) -> Result<Imported, String> {
        let (from, to) = match (self.cell("src", "a name")?, self.cell("dst", "a name")?) {
            (Some(from), Some(to)) => (from, to),
            (None, None) => given.ends()?,
            _ => return Err("src and dst: expected both".to_owned()),
        };
        let unix_ms = self.cell("unix_ms", "milliseconds since the Unix epoch")?;
        let unix_ms = given.time(unix_ms, "add a column `unix_ms`")?;
        let ms = "milliseconds such as 31.5";
        let least: Option<f64> = self.cell("rtt_ms", ms)?;
        let median_ms: Option<f64> = self.cell("median_ms", ms)?;
        let spread_ms: Option<f64> = self.cell("spread_ms", ms)?;
        let samples: Option<u32> = self.cell("samples", "a number")?;
        let has_more = median_ms.is_some() || spread_ms.is_some() || samples.is_some();
        if least.is_none() && has_more {
            return Err("median_ms, spread_ms, samples: expected `rtt_ms` beside them".to_owned());
        }
        let rtt = least.map(|min_ms| ImportedRtt {
            min_ms,
            median_ms: median_ms.unwrap_or(min_ms),
            spread_ms: spread_ms.unwrap_or(0.0),
            samples: samples.unwrap_or(1),
        });
        let mbps: Option<f64> = self.cell("mbps", "Mbit/s such as 250")?;
        let connections: Option<u32> = self.cell("connections", "a number")?;
        if mbps.is_none() && connections.is_some() {
            return Err("connections: expected `mbps` beside it".to_owned());
        }
        let rate = mbps.map(|rate_mbps| ImportedRate {
            rate_mbps,
            connections: connections.unwrap_or(1),
            retransmitted: None,
        });
        if rtt.is_none() && rate.is_none() {
            return Err("expected `rtt_ms`, `mbps` or both".to_owned());
        }
        Ok(Imported { from, to, unix_ms, rtt, rate })
    }

    /// Returns a cell; `None` if it is empty, or there is no such column.
    fn cell<T: FromStr>(&self, column: &str, expected: &str) -> Result<Option<T>, String> {
        let place = self.heading.iter().position(|name| name == column);
        let text = place.and_then(|place| self.cells.get(place)).filter(|text| !text.is_empty());
        let refused = |text: &str| format!("{column}: `{}`: expected {expected}", shown(text));
        text.map(|text| text.parse().map_err(|_| refused(text))).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::super::given::tests::given;
    use super::*;

    #[test]
    fn rows_hold_what_their_cells_hold() {
        let text = "# ours\ndst,src,unix_ms,rtt_ms,spread_ms,mbps,method\n\
                    plant,office,5,31.5,2,,tcp\nplant,office,6,,,250,passive\n";
        let all = read(text, &Given { ends: None, at: None }).unwrap();
        let rtt = all[0].rtt.unwrap();
        assert_eq!((all[0].from.as_str(), all[0].unix_ms), ("office", 5));
        assert_eq!((rtt.min_ms, rtt.median_ms, rtt.spread_ms, rtt.samples), (31.5, 31.5, 2.0, 1));
        assert_eq!((all[1].rtt, all[1].rate.unwrap().rate_mbps), (None, 250.0));
        let short = read("rtt_ms\n9\n", &Given { at: Some(7), ..given() }).unwrap();
        assert_eq!((short[0].to.as_str(), short[0].unix_ms), ("plant", 7));
    }

    #[test]
    fn refusals_name_line_and_column() {
        for (text, expected) in [
            ("src,dst,colour\n", "line 1: `colour`: expected columns of src,dst,unix_ms"),
            ("unix_ms,rtt_ms\n5,fast\n", "line 2: rtt_ms: `fast`: expected milliseconds"),
            ("unix_ms,rtt_ms\n5,1\nx,1\n", "line 3: unix_ms: `x`: expected milliseconds"),
            ("src,unix_ms,rtt_ms\na,5,1\n", "line 2: src and dst: expected both"),
            ("unix_ms\n5\n", "line 2: expected `rtt_ms`, `mbps` or both"),
            ("rtt_ms\n5\n", "line 2: holds no time: add a column `unix_ms`"),
            ("unix_ms,median_ms,mbps\n5,2,9\n", "line 2: median_ms, spread_ms, samples: expected"),
            ("unix_ms,rtt_ms,connections\n5,2,9\n", "line 2: connections: expected `mbps`"),
            ("unix_ms,mbps,connections\n5,1,-1\n", "line 2: connections: `-1`: expected a number"),
        ] {
            let refused = read(text, &given()).unwrap_err();
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}
