//! Problem files: TOML in, [`Inputs`] out. `text` documents every key.
//!
//! | module | reads |
//! |---|---|
//! | `text` | the structure of the file |
//! | `places` | candidate regions and sites |
//! | `flows`, `draw` | flows, stated or generated from a seed |
//! | `logged` | the pairs of sites of a log of past flows |
//! | `tables`, `pairs` | CSV tables and `[[pair]]` sections |
//! | `probes` | reports of `tradewind probe` |
//! | `legs` | a leg for each hop that some path may have |
//! | `packets` | packet flows, and the prices of relays for them |
//! | `terms` | relay types, prices, the running deployment |
//!
//! Tables are files of their own, which the caller reads: nothing here accesses files.

use std::collections::BTreeMap;

use schemars::Schema;
use toml::Spanned;
use tradewind_model::Catalogue;
use tradewind_units::schema::of_file;
use tradewind_units::{FlowId, Money, RegionId, in_plain_words};

use crate::answer::NO_BUDGET_USD;
use crate::assumptions::{Origins, RttOrigin};
use crate::forecast::PastFlow;
use crate::packets::Packets;
use crate::problem::Inputs;

mod draw;
mod error;
mod flows;
mod legs;
mod logged;
mod packets;
mod pairs;
mod places;
mod probes;
mod tables;
mod terms;
mod text;

pub use error::FileError;
pub use logged::Log;

use error::Source;
use legs::Ends;
use places::Places;

/// Largest multiple of the spread that is added to a round-trip time. Chosen: even ten would be
/// unreasonable.
const MAX_SPREADS: f64 = 100.0;

/// A problem file that was read.
#[derive(Debug, Clone)]
pub struct ProblemFile {
    /// The name given in the file.
    pub name: Option<String>,
    /// The problem.
    pub inputs: Inputs,
    /// Its packet flows, with their prices.
    pub packets: Packets,
    /// The origins of each leg's figures.
    pub origins: Origins,
    /// Flows whose running path passes a region that is not a candidate: they move with any plan.
    pub must_move: Vec<FlowId>,
    /// The text of each table that the file names.
    pub tables: BTreeMap<String, String>,
    /// Warnings about possible mistakes, a line each.
    pub notes: Vec<String>,
    /// The whole hours for which machines with an hourly price are paid; `None` if there is no such
    /// machine, or they are paid for as long as the plan takes.
    pub paid_hours: Option<u64>,
}

impl ProblemFile {
    /// Returns the number of legs whose round-trip time is estimated by the distance model.
    #[must_use]
    pub fn legs_by_distance(&self) -> usize {
        self.origins.values().filter(|origin| origin.rtt == RttOrigin::Distance).count()
    }
}

/// Returns the JSON schema (draft 2020-12) of problem files. It accepts all that [`parse`] does.
#[must_use]
pub fn schema() -> Schema {
    of_file::<text::File>()
}

/// Reads a problem file; `load` returns the text of a table by its name in the file, or the reason
/// why it cannot.
///
/// # Errors
/// One line: the place, the error, and what would be correct.
pub fn parse(
    text: &str,
    catalogue: &Catalogue,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<ProblemFile, FileError> {
    read(text, catalogue, load, None).map(|(file, _)| file)
}

/// Reads a problem file and a log of past flows between its sites. The problem has the legs for the
/// log's pairs; its flows are the file's own, and there may be none:
/// [`crate::forecast::with_flows`] replaces them.
///
/// # Errors
/// Those of [`parse`]; also when the log is invalid or names a site that is not in the file.
pub fn parse_with_log(
    text: &str,
    catalogue: &Catalogue,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
    log: Log<'_>,
) -> Result<(ProblemFile, Vec<PastFlow>), FileError> {
    read(text, catalogue, load, Some(log))
}

fn read(
    text: &str,
    catalogue: &Catalogue,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
    log: Option<Log<'_>>,
) -> Result<(ProblemFile, Vec<PastFlow>), FileError> {
    let source = Source(text);
    let file: text::File = toml::from_str(text).map_err(|error| {
        let message = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
        let message = in_plain_words(&message);
        source.refuse(&error.span().unwrap_or_default(), tables::shown_message(&message))
    })?;
    let tables = load_tables(&file, source, load)?;
    let own = own_catalogue(&file, source, catalogue, &tables)?;
    let places = Places::read(&file, source, own.as_ref().unwrap_or(catalogue))?;
    let robust = robust(&file, source)?;
    let past = log.map(|log| log.read(&places)).transpose()?.unwrap_or_default();
    let flows = flows::flows(&file, &places, log.is_some() || !file.packet_flow.is_empty())?;
    let packet_ends = packets::ends(&file, &places)?;
    let carried = logged::pairs(&past, &places);
    let carried = if log.is_some() { &carried } else { &flows };
    let carried: Vec<Ends> = carried.iter().map(Ends::of).chain(packet_ends).collect();
    let max_relays = legs::max_relays(&file, &places)?;
    let mut stated = pairs::stated(&file, &places, &tables, robust)?;
    let mut notes = std::mem::take(&mut stated.notes);
    let built = legs::legs(&file, &places, &carried, &stated, max_relays);
    // What is missing may be in a row that was left out.
    let built = built.map_err(|error| error.with_notes(&notes))?;
    let packets = packets::packets(&file, &places, &flows, &built.legs)?;
    let relay_types = terms::relay_types(&file, &places)?;
    let running = terms::running(&file, &places, &relay_types, &flows, max_relays)?;
    let prices = terms::prices(&file, &places, &tables, &mut notes)?;
    notes.extend(built.impossible);
    let of_site = |site: &places::Site| Some((site.id.clone(), site.region.clone()?));
    let cap_of_site = |site: &places::Site| Some((site.id.clone(), site.egress_cap?));
    let outside = |site: &places::Site| Some((site.id.clone(), site.egress_cap_outside?));
    let no_budget = || Money::from_usd(NO_BUDGET_USD).expect("the most that money can be");
    let not_offered = terms::not_offered(&file, &places)?;
    let most = terms::most(&file, &places)?;
    let inputs = Inputs {
        not_offered,
        most,
        hourly: terms::hourly(&file),
        flows: flows.into_iter().map(|placed| placed.flow).collect(),
        relay_types,
        legs: built.legs,
        site_regions: places.sites.values().filter_map(of_site).collect(),
        site_caps: places.sites.values().filter_map(cap_of_site).collect(),
        site_caps_outside: places.sites.values().filter_map(outside).collect(),
        regions: places.regions,
        prices,
        budget: file.budget_usd.unwrap_or_else(no_budget),
        max_relays,
        start_up: file.start_up,
        objective: file.objective,
        running,
    };
    let gone = |path: &Vec<RegionId>| path.iter().any(|id| !inputs.regions.contains(id));
    let running = inputs.running.paths.iter();
    let must_move = running.filter(|(_, path)| gone(path)).map(|(flow, _)| flow.clone()).collect();
    let paid_hours = terms::paid_hours(&file);
    let (name, origins) = (file.name, built.origins);
    Ok((ProblemFile { name, inputs, packets, origins, must_move, tables, notes, paid_hours }, past))
}

/// Returns the texts of all tables, each read once.
fn load_tables(
    file: &text::File,
    source: Source<'_>,
    load: &mut dyn FnMut(&str) -> Result<String, String>,
) -> Result<BTreeMap<String, String>, FileError> {
    let mut texts = BTreeMap::new();
    let named = file.rtt_tables.iter().chain(&file.rate_tables).chain(&file.egress.tables);
    let reports = file.probes.iter().flat_map(|section| &section.reports);
    for name in named.chain(reports).chain(&file.catalogue) {
        if !texts.contains_key(name.get_ref()) {
            let text = load(name.get_ref()).map_err(|problem| source.refuse_at(name, problem))?;
            texts.insert(name.get_ref().clone(), text);
        }
    }
    Ok(texts)
}

/// Returns the catalogue overridden by the file's own one; `None` if the file has none.
fn own_catalogue(
    file: &text::File,
    source: Source<'_>,
    catalogue: &Catalogue,
    tables: &BTreeMap<String, String>,
) -> Result<Option<Catalogue>, FileError> {
    let Some(name) = &file.catalogue else { return Ok(None) };
    let own = catalogue.clone().overridden_by(&tables[name.get_ref()]);
    let refused = |error: tradewind_model::ModelError| {
        source.refuse_at(name, format!("{}: {error}", tables::shown(name.get_ref())))
    };
    own.map(Some).map_err(refused)
}

fn robust(file: &text::File, source: Source<'_>) -> Result<f64, FileError> {
    let Some(stated) = &file.robust else { return Ok(0.0) };
    let spreads: f64 = *Spanned::get_ref(stated);
    if !(0.0..=MAX_SPREADS).contains(&spreads) {
        let problem = format!("a number from 0 to {MAX_SPREADS}, not `{spreads}`");
        return Err(source.refuse_at(stated, problem));
    }
    Ok(spreads)
}
