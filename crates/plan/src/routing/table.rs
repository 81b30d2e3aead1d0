//! RTTs from a table of text: CSV with the header `src,dst,rtt_ms`, a row for each pair.
//!
//! A pair listed in one direction only has the same RTT in the other. Both directions may be
//! listed, as two measurements.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::time::{as_millis_f64, duration_from_millis};
use tradewind_units::{Duration, SiteId};

/// The accepted headers; the second is that of measured minimum RTTs.
const HEADERS: [&str; 2] = ["src,dst,rtt_ms", "src,dst,min_rtt_ms"];

/// The reason why a table was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {message}")]
pub struct TableError {
    /// The line, counted from 1.
    pub line: usize,
    /// The error in that line, with the field and its value.
    pub message: String,
}

/// RTTs between named places.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RttTable {
    pairs: BTreeMap<(SiteId, SiteId), Duration>,
}

impl RttTable {
    /// Parses a table; empty lines are ignored.
    ///
    /// # Errors
    /// When the header is unknown, a row does not have three fields, a name or an RTT is invalid,
    /// or a pair is listed twice.
    pub fn parse(text: &str) -> Result<Self, TableError> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let header = lines.next().map_or("", |(_, line)| line.trim_start_matches('\u{feff}'));
        if !HEADERS.contains(&header) {
            let message = format!("the header `{}` is expected, not {header:?}", HEADERS[0]);
            return Err(TableError { line: 1, message });
        }
        let mut pairs = BTreeMap::new();
        for (line, row) in lines.filter(|(_, row)| !row.is_empty()) {
            let (pair, rtt) = read_row(row).map_err(|message| TableError { line, message })?;
            if pairs.insert(pair.clone(), rtt).is_some() {
                let message = format!("`{}` to `{}` stands there twice", pair.0, pair.1);
                return Err(TableError { line, message });
            }
        }
        Ok(Self { pairs })
    }

    /// Returns the RTT between two places, measured in either direction.
    #[must_use]
    pub fn rtt(&self, from: &SiteId, to: &SiteId) -> Option<Duration> {
        let there = self.pairs.get(&(from.clone(), to.clone()));
        there.or_else(|| self.pairs.get(&(to.clone(), from.clone()))).copied()
    }

    /// Returns all places of the table, by name.
    #[must_use]
    pub fn places(&self) -> BTreeSet<&SiteId> {
        self.pairs.keys().flat_map(|(from, to)| [from, to]).collect()
    }
}

fn read_row(row: &str) -> Result<((SiteId, SiteId), Duration), String> {
    let fields: Vec<&str> = row.split(',').map(str::trim).collect();
    let [source, destination, rtt] = fields[..] else {
        return Err(format!("three fields are expected, not {}", fields.len()));
    };
    let place =
        |field: &str, name: &str| SiteId::new(name).map_err(|error| format!("{field}: {error}"));
    let pair = (place("src", source)?, place("dst", destination)?);
    let millis: f64 =
        rtt.parse().map_err(|_| format!("rtt_ms: a number is expected, not {rtt:?}"))?;
    let rtt = duration_from_millis(millis).map_err(|error| format!("rtt_ms: {error}"))?;
    if rtt.is_zero() {
        return Err(format!("rtt_ms: above zero is expected, not {}", as_millis_f64(rtt)));
    }
    Ok((pair, rtt))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn site(name: &str) -> SiteId {
        SiteId::new(name).unwrap()
    }

    #[test]
    fn pair_is_known_in_both_directions() {
        let text = "src,dst,min_rtt_ms\naws:a,aws:b,12.5\n\naws:b,aws:a,13\nhome,aws:a,4\n";
        let table = RttTable::parse(text).unwrap();
        assert_eq!(table.rtt(&site("aws:a"), &site("aws:b")), Some(Duration::from_micros(12_500)));
        assert_eq!(table.rtt(&site("aws:b"), &site("aws:a")), Some(Duration::from_millis(13)));
        assert_eq!(table.rtt(&site("aws:a"), &site("home")), Some(Duration::from_millis(4)));
        assert_eq!(table.rtt(&site("aws:b"), &site("home")), None);
        assert_eq!(table.places().len(), 3);
    }

    #[test]
    fn bad_tables_are_refused_with_line_and_field() {
        let cases = [
            ("", "line 1: the header `src,dst,rtt_ms` is expected, not \"\""),
            ("a,b,3", "line 1: the header `src,dst,rtt_ms` is expected, not \"a,b,3\""),
            ("src,dst,rtt_ms\na,b", "line 2: three fields are expected, not 2"),
            ("src,dst,rtt_ms\n\na b,c,1", "line 3: src: site: a name of 1 to 64"),
            ("src,dst,rtt_ms\na,,1", "line 2: dst: site: "),
            ("src,dst,rtt_ms\na,b,x", "line 2: rtt_ms: a number is expected, not \"x\""),
            ("src,dst,rtt_ms\na,b,NaN", "line 2: rtt_ms: duration: milliseconds from 0"),
            ("src,dst,rtt_ms\na,b,-1", "line 2: rtt_ms: duration: milliseconds from 0"),
            ("src,dst,rtt_ms\na,b,0", "line 2: rtt_ms: above zero is expected, not 0"),
            ("src,dst,rtt_ms\na,b,1\na,b,1", "line 3: `a` to `b` stands there twice"),
        ];
        for (text, expected) in cases {
            let error = RttTable::parse(text).unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
            assert!(!error.contains('\n'));
        }
    }
}
