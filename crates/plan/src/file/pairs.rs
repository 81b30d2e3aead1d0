//! Statements about pairs of places: round-trip times and rates of tables, and `[[pair]]` sections.

use std::collections::BTreeMap;
use std::ops::Range;

use tradewind_units::{Bandwidth, Bytes, Duration, Ratio};

use super::error::{FileError, Source};
use super::places::{Places, window};
use super::probes;
use super::tables::{self, Table};
use super::text::{File, LegSection, PairSection};
use crate::problem::LegEnd;

/// An ordered pair of places; a region stands for relays there and, if nothing is stated about
/// them, for its sites.
pub(super) type Pair = (LegEnd, LegEnd);

/// All statements about pairs.
#[derive(Default)]
pub(super) struct Stated {
    /// Round-trip times, the robust margin included.
    pub(super) rtts: BTreeMap<Pair, Duration>,
    /// Rates, the robust margin subtracted.
    pub(super) rates: BTreeMap<Pair, Bandwidth>,
    /// The properties in a `[[pair]]` other than its round-trip time and rate.
    pub(super) legs: BTreeMap<Pair, PairLeg>,
    /// Notes on rows and columns of tables that were ignored, a line each.
    pub(super) notes: Vec<String>,
}

/// Stated properties of one pair's leg.
#[derive(Default)]
pub(super) struct PairLeg {
    pub(super) leg: LegSection,
    pub(super) blocked: Option<bool>,
}

/// The texts of the file's tables, by name.
pub(super) type Texts = BTreeMap<String, String>;

/// Reads all tables and sections; refuses duplicate statements.
pub(super) fn stated(
    file: &File,
    places: &Places<'_>,
    texts: &Texts,
    robust: f64,
) -> Result<Stated, FileError> {
    let mut stated = Stated::default();
    for name in &file.rtt_tables {
        let name = name.get_ref();
        let table = Table::new(name, &texts[name], &tables::RTTS)?;
        let mut unknown = UnknownPlaces::new(name);
        for row in table.rows() {
            let Some(pair) = pair_of(&table, row, places, &mut unknown)? else { continue };
            if pair.0 == pair.1 && table.number(row, "rtt_ms")? == Some(0.0) {
                continue;
            }
            let rtt = table.value(row, "rtt_ms", tables::rtt)?;
            let spread = match table.number(row, "spread_ms")? {
                Some(_) => {
                    table.value(row, "spread_ms", tradewind_units::time::duration_from_millis)?
                }
                None => Duration::ZERO,
            };
            if stated.rtts.insert(pair.clone(), robust_rtt(rtt, spread, robust)).is_some() {
                let problem = format!("a second one from {} to {}", pair.0, pair.1);
                return Err(table.refuse(row, "rtt_ms", problem));
            }
        }
        stated.notes.extend(table.note());
        stated.notes.extend(unknown.note(table.rows().len())?);
    }
    for name in &file.rate_tables {
        let name = name.get_ref();
        let table = Table::new(name, &texts[name], &tables::RATES)?;
        let mut unknown = UnknownPlaces::new(name);
        for row in table.rows() {
            let Some(pair) = pair_of(&table, row, places, &mut unknown)? else { continue };
            if pair.0 == pair.1 && table.number(row, "mbps")? == Some(0.0) {
                continue;
            }
            let rate = table.value(row, "mbps", tables::rate)?;
            let rate = match table.number(row, "spread_mbps")? {
                Some(spread) if !(spread >= 0.0 && spread.is_finite()) => {
                    let problem = format!("a spread of 0 or more, not `{spread}`");
                    return Err(table.refuse(row, "spread_mbps", problem));
                }
                Some(spread) => tables::rate(rate.as_mbps() - robust * spread).map_err(|_| {
                    let problem = format!("{robust} times the spread leaves nothing of {rate}");
                    table.refuse(row, "spread_mbps", problem)
                })?,
                None => rate,
            };
            if stated.rates.insert(pair.clone(), rate).is_some() {
                let problem = format!("a second one from {} to {}", pair.0, pair.1);
                return Err(table.refuse(row, "mbps", problem));
            }
        }
        stated.notes.extend(table.note());
        stated.notes.extend(unknown.note(table.rows().len())?);
    }
    probes::stated(file, places, texts, robust, &mut stated)?;
    for section in &file.pair {
        pair_section(section.get_ref(), &section.span(), places, robust, &mut stated)?;
    }
    Ok(stated)
}

/// Rows of a table about places that are not in the problem: a table may be a full grid.
pub(super) struct UnknownPlaces<'a> {
    table: &'a str,
    count: usize,
    first: Option<FileError>,
}

impl<'a> UnknownPlaces<'a> {
    pub(super) const fn new(table: &'a str) -> Self {
        Self { table, count: 0, first: None }
    }

    /// Counts a row; `error` names the unknown place.
    pub(super) fn add(&mut self, error: FileError) {
        self.count += 1;
        self.first.get_or_insert(error);
    }

    /// Returns a note about them, if there are any.
    ///
    /// # Errors
    /// The error of the first, when all rows of the table are about unknown places.
    pub(super) fn note(self, rows: usize) -> Result<Option<String>, FileError> {
        match self.first {
            None => Ok(None),
            Some(first) if self.count == rows => Err(first),
            Some(first) => {
                let (table, count) = (tables::shown(self.table), self.count);
                let example = format!("line {}: {}", first.line, first.problem);
                Ok(Some(format!(
                    "{table}: {count} of {rows} rows are about places that the problem does not \
                     have, and left out ({example})"
                )))
            }
        }
    }
}

/// Returns the pair of a table's row; `None` if it pairs a site with itself, or one of the places
/// is not in the problem.
fn pair_of(
    table: &Table<'_>,
    row: &tables::Row,
    places: &Places<'_>,
    unknown: &mut UnknownPlaces<'_>,
) -> Result<Option<Pair>, FileError> {
    let mut ends = Vec::new();
    for column in ["src", "dst"] {
        let name = table
            .text(row, column)
            .ok_or_else(|| table.refuse(row, column, "the name of a site or region is missing"))?;
        match places.place(name) {
            Ok(place) => ends.push(place),
            Err(problem) => {
                unknown.add(table.refuse(row, column, problem));
                return Ok(None);
            }
        }
    }
    let [from, to] = <[LegEnd; 2]>::try_from(ends).expect("two columns");
    Ok((from != to || matches!(from, LegEnd::Relay(_))).then_some((from, to)))
}

/// Returns a round-trip time plus `robust` times its spread.
pub(super) fn robust_rtt(rtt: Duration, spread: Duration, robust: f64) -> Duration {
    rtt.saturating_add(Duration::from_secs_f64(spread.as_secs_f64() * robust))
}

fn pair_section(
    section: &PairSection,
    span: &Range<usize>,
    places: &Places<'_>,
    robust: f64,
    stated: &mut Stated,
) -> Result<(), FileError> {
    let source = places.source;
    for (from, to) in directions(section, span, places)? {
        let pair = (from, to);
        if let Some(rtt) = section.rtt {
            if rtt.is_zero() {
                return Err(source.refuse(span, "rtt: a span above zero, not `0 s`"));
            }
            let rtt = robust_rtt(rtt, section.spread.unwrap_or_default(), robust);
            if stated.rtts.insert(pair.clone(), rtt).is_some() {
                let problem = format!("rtt: a second one from {} to {}", pair.0, pair.1);
                return Err(source.refuse(span, problem));
            }
        } else if section.spread.is_some() {
            return Err(source.refuse(span, "spread: it needs an `rtt` that it is of"));
        }
        if let Some(rate) = section.rate
            && stated.rates.insert(pair.clone(), rate).is_some()
        {
            let problem = format!("rate: a second one from {} to {}", pair.0, pair.1);
            return Err(source.refuse(span, problem));
        }
        window(section.window.as_ref(), source)?;
        connections(section.connections.as_ref(), source)?;
        loss(section.loss.as_ref(), source)?;
        let leg = LegSection {
            window: section.window.clone(),
            connections: section.connections.clone(),
            per_connection: section.per_connection,
            initial_window: section.initial_window,
            quick_start: section.quick_start,
            loss: section.loss.clone(),
            congestion_control: section.congestion_control,
        };
        let leg = PairLeg { leg, blocked: section.blocked };
        if stated.legs.insert(pair.clone(), leg).is_some() {
            let problem = format!("a second section from {} to {}", pair.0, pair.1);
            return Err(source.refuse(span, problem));
        }
    }
    Ok(())
}

/// Returns the ordered pairs that a section is about.
fn directions(
    section: &PairSection,
    span: &Range<usize>,
    places: &Places<'_>,
) -> Result<Vec<Pair>, FileError> {
    let source = places.source;
    let place = |name: &str, span: &Range<usize>| {
        places.place(name).map_err(|problem| source.refuse(span, problem))
    };
    let pairs = match (&section.between, &section.from, &section.to) {
        (Some(between), None, None) => {
            let [a, b] = between.get_ref();
            let (a, b) = (place(a, &between.span())?, place(b, &between.span())?);
            if a == b { vec![(a, b)] } else { vec![(a.clone(), b.clone()), (b, a)] }
        }
        (None, Some(from), Some(to)) => {
            vec![(place(from.get_ref(), &from.span())?, place(to.get_ref(), &to.span())?)]
        }
        _ => return Err(source.refuse(span, "either `between = [a, b]` or `from` and `to`")),
    };
    if pairs.iter().any(|(from, to)| from == to && matches!(from, LegEnd::Site(_))) {
        return Err(source.refuse(span, "two different places"));
    }
    Ok(pairs)
}

/// Refuses legs without connections.
pub(super) fn connections(
    stated: Option<&toml::Spanned<u32>>,
    source: Source<'_>,
) -> Result<(), FileError> {
    match stated {
        Some(count) if *count.get_ref() == 0 => {
            Err(source.refuse_at(count, "a number of connections from 1, not 0"))
        }
        _ => Ok(()),
    }
}

/// Refuses a leg that loses all packets.
pub(super) fn loss(
    stated: Option<&toml::Spanned<Ratio>>,
    source: Source<'_>,
) -> Result<(), FileError> {
    match stated {
        Some(loss) if loss.get_ref().as_f64() >= 1.0 => {
            let problem =
                "a share below 1: nothing arrives otherwise; `blocked = true` closes a pair";
            Err(source.refuse_at(loss, problem))
        }
        _ => Ok(()),
    }
}

/// Returns the smaller of two windows, or the one that is stated.
pub(super) fn smaller(a: Option<Bytes>, b: Option<Bytes>) -> Option<Bytes> {
    a.into_iter().chain(b).min()
}
