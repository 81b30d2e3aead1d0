//! Capacities and prices of relays, prices of egress, and the running deployment.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::cost::Prices;
use tradewind_units::{FlowId, Money, PricePerGb, RegionId, RelayTypeId};

use super::error::FileError;
use super::flows::PlacedFlow;
use super::pairs::{Texts, UnknownPlaces};
use super::places::Places;
use super::tables::{self, Table};
use super::text::{File, RelayTypeSection};
use crate::problem::{RelayType, Running};

/// The name of egress destinations outside the clouds.
const INTERNET: &str = "internet";
/// Most relay types. Chosen: the number of paths grows with powers of it.
const MAX_RELAY_TYPES: usize = 16;
/// Most running relays of a type in a region. Chosen: far above any plan.
const MAX_RUNNING: usize = 10_000;

/// Returns the relay types of the file; CP's if it has none.
pub(super) fn relay_types(file: &File, places: &Places<'_>) -> Result<Vec<RelayType>, FileError> {
    let source = places.source;
    if file.relay_type.is_empty() {
        return Ok(vec![RelayType::cloudpilot()]);
    }
    let mut types: Vec<RelayType> = Vec::new();
    for spanned in &file.relay_type {
        let section = spanned.get_ref();
        let (id, capacity) = (section.id.get_ref(), *section.capacity.get_ref());
        if types.iter().any(|known| known.id == *id) {
            let problem = format!("a second relay type `{id}`: ids must differ");
            return Err(source.refuse_at(&section.id, problem));
        }
        if let Some(each) = &section.per_connection
            && *each.get_ref() > capacity
        {
            let problem =
                format!("{} for one connection, but all together carry {capacity}", each.get_ref());
            return Err(source.refuse_at(each, problem));
        }
        if types.len() == MAX_RELAY_TYPES {
            return Err(source.refuse_at(spanned, format!("at most {MAX_RELAY_TYPES} types")));
        }
        types.push(RelayType {
            id: id.clone(),
            capacity,
            per_connection: section.per_connection.as_ref().map(|each| *each.get_ref()),
            set_up: set_up(file, section),
        });
    }
    Ok(types)
}

const SECONDS_AN_HOUR: u64 = 3600;

/// Returns the whole hours of the plan's period, at least one; `None` if the file has no period.
fn hours(file: &File) -> Option<u64> {
    file.period.map(|period| period.as_secs().div_ceil(SECONDS_AN_HOUR).max(1))
}

/// Returns the number of hours for which machines with an hourly price are paid, if there are any
/// and the file has a period.
pub(super) fn paid_hours(file: &File) -> Option<u64> {
    let mut types = file.relay_type.iter().map(toml::Spanned::get_ref);
    hours(file).filter(|_| types.any(|section| section.usd_per_hour.is_some()))
}

/// Returns the hourly prices of machines that are paid for as long as the plan takes; none if the
/// file has a period.
pub(super) fn hourly(file: &File) -> BTreeMap<RelayTypeId, Money> {
    let types = file.relay_type.iter().map(toml::Spanned::get_ref);
    let priced = types.filter_map(|known| Some((known.id.get_ref().clone(), known.usd_per_hour?)));
    if file.period.is_some() { BTreeMap::new() } else { priced.collect() }
}

/// Returns the fixed cost of a relay: its set-up, and its machine for the whole hours of the file's
/// period.
fn set_up(file: &File, section: &RelayTypeSection) -> Money {
    let hours = hours(file).unwrap_or(0);
    let machine = section.usd_per_hour.unwrap_or_default().times(hours);
    section.set_up_usd.saturating_add(machine)
}

/// Returns the regions where relay types are not available: a type may list the clouds and regions
/// where it is.
pub(super) fn not_offered(
    file: &File,
    places: &Places<'_>,
) -> Result<BTreeSet<(RegionId, RelayTypeId)>, FileError> {
    let mut not_offered = BTreeSet::new();
    for spanned in &file.relay_type {
        let section = spanned.get_ref();
        for region in section.regions.iter().flatten() {
            let known = places.catalogue.require(region.get_ref());
            let unknown = |_| places.no_region(region.get_ref().as_str());
            known.map_err(|error| places.source.refuse_at(region, unknown(error)))?;
        }
        for cloud in section.clouds.iter().flatten() {
            let mut regions = places.catalogue.regions();
            if !regions.any(|region| region.id.cloud() == cloud.get_ref()) {
                let problem =
                    format!("no region of a cloud `{}` is in the catalogue", cloud.get_ref());
                return Err(places.source.refuse_at(cloud, problem));
            }
        }
        let is_there = |region: &RegionId| {
            let clouds = section
                .clouds
                .as_ref()
                .is_none_or(|clouds| clouds.iter().any(|cloud| cloud.get_ref() == region.cloud()));
            let regions = section
                .regions
                .as_ref()
                .is_none_or(|regions| regions.iter().any(|known| known.get_ref() == region));
            clouds && regions
        };
        let elsewhere = places.regions.iter().filter(|region| !is_there(region));
        not_offered.extend(elsewhere.map(|region| (region.clone(), section.id.get_ref().clone())));
    }
    Ok(not_offered)
}

/// Returns the quotas of relays by region and type, for the types that have one.
pub(super) fn most(
    file: &File,
    places: &Places<'_>,
) -> Result<BTreeMap<(RegionId, RelayTypeId), usize>, FileError> {
    let mut all = BTreeMap::new();
    for section in file.relay_type.iter().map(toml::Spanned::get_ref) {
        let Some(stated) = &section.most else { continue };
        let most = *stated.get_ref();
        if most > MAX_RUNNING {
            let problem = format!("0 to {MAX_RUNNING}, not {most}");
            return Err(places.source.refuse_at(stated, problem));
        }
        let key = |region: &RegionId| (region.clone(), section.id.get_ref().clone());
        all.extend(places.regions.iter().map(|region| (key(region), most)));
    }
    Ok(all)
}

type Pairs = BTreeMap<(RegionId, Option<RegionId>), PricePerGb>;

/// Returns egress prices: flat or the catalogue's, which those of stated pairs override.
pub(super) fn prices(
    file: &File,
    places: &Places<'_>,
    texts: &Texts,
    notes: &mut Vec<String>,
) -> Result<Prices, FileError> {
    let base = match file.egress.usd_per_gb {
        Some(price) => Prices::Flat(price),
        None => Prices::Catalogue(Box::new(places.catalogue.clone())),
    };
    let mut pairs = Pairs::new();
    for name in &file.egress.tables {
        let name = name.get_ref();
        let table = Table::new(name, &texts[name], &tables::PRICES)?;
        let mut unknown = UnknownPlaces::new(name);
        for row in table.rows() {
            let named = |column: &str| table.text(row, column).unwrap_or_default();
            let Some(from) = places.region(named("from")) else {
                unknown.add(table.refuse(row, "from", places.no_region(named("from"))));
                continue;
            };
            let to = match receiver(named("to"), places) {
                Ok(to) => to,
                Err(problem) => {
                    unknown.add(table.refuse(row, "to", problem));
                    continue;
                }
            };
            let price = table.value(row, "usd_per_gb", tables::price)?;
            if pairs.insert((from, to), price).is_some() {
                return Err(table.refuse(row, "usd_per_gb", "a second price for this pair"));
            }
        }
        notes.extend(table.note());
        notes.extend(unknown.note(table.rows().len())?);
    }
    for section in &file.egress.pair {
        let from = section.from.get_ref();
        places
            .catalogue
            .require(from)
            .map_err(|_| places.source.refuse_at(&section.from, places.no_region(from.as_str())))?;
        let to = receiver(section.to.get_ref(), places)
            .map_err(|problem| places.source.refuse_at(&section.to, problem))?;
        if pairs.insert((from.clone(), to), section.usd_per_gb).is_some() {
            return Err(places.source.refuse_at(&section.from, "a second price for this pair"));
        }
    }
    if pairs.is_empty() {
        return Ok(base);
    }
    Ok(Prices::Stated { pairs, otherwise: Box::new(base) })
}

/// Returns a region, or `None` for the Internet.
fn receiver(name: &str, places: &Places<'_>) -> Result<Option<RegionId>, String> {
    if name == INTERNET {
        return Ok(None);
    }
    let unknown = || format!("{}, nor is it `internet`", places.no_region(name));
    places.region(name).map(Some).ok_or_else(unknown)
}

/// Returns the running deployment.
pub(super) fn running(
    file: &File,
    places: &Places<'_>,
    types: &[RelayType],
    flows: &[PlacedFlow],
    max_relays: usize,
) -> Result<Running, FileError> {
    let source = places.source;
    let mut running = Running { move_cost: file.running.move_usd, ..Running::default() };
    for relay in &file.running.relay {
        let region = relay.region.get_ref();
        if !places.regions.contains(region) {
            let problem = format!("region `{region}` is none of `regions`");
            return Err(source.refuse_at(&relay.region, problem));
        }
        let relay_type = match &relay.relay_type {
            None => types[0].id.clone(),
            Some(id) if types.iter().any(|known| known.id == *id.get_ref()) => id.get_ref().clone(),
            Some(id) => {
                let problem = format!("no relay type `{}`", id.get_ref());
                return Err(source.refuse_at(id, problem));
            }
        };
        let count = relay.count.as_ref().map_or(1, |count| *count.get_ref());
        if let Some(stated) = relay.count.as_ref().filter(|_| !(1..=MAX_RUNNING).contains(&count)) {
            return Err(source.refuse_at(stated, format!("1 to {MAX_RUNNING}, not {count}")));
        }
        if running.relays.insert((region.clone(), relay_type), count).is_some() {
            return Err(source.refuse_at(&relay.region, "named twice: state one `count`"));
        }
    }
    running.paths = running_paths(file, places, flows, max_relays)?;
    Ok(running)
}

/// Returns the running paths of flows. A path may pass regions that are not candidates any more:
/// its flow must then move at any cost.
fn running_paths(
    file: &File,
    places: &Places<'_>,
    flows: &[PlacedFlow],
    max_relays: usize,
) -> Result<BTreeMap<FlowId, Vec<RegionId>>, FileError> {
    let source = places.source;
    let names: BTreeSet<_> = flows.iter().map(|placed| &placed.flow.id).collect();
    let mut paths = BTreeMap::new();
    for path in &file.running.path {
        if !names.contains(path.flow.get_ref()) {
            let problem = format!("no flow `{}`", path.flow.get_ref());
            return Err(source.refuse_at(&path.flow, problem));
        }
        if let Some(beyond) = path.regions.get(max_relays) {
            let problem =
                format!("{} relays, but `max_relays` is {max_relays}", path.regions.len());
            return Err(source.refuse_at(beyond, problem));
        }
        let mut regions = Vec::new();
        for region in &path.regions {
            let id = region.get_ref();
            places
                .catalogue
                .require(id)
                .map_err(|_| source.refuse_at(region, places.no_region(id.as_str())))?;
            if regions.contains(id) {
                let problem = format!("region `{id}` twice: a path passes each one once");
                return Err(source.refuse_at(region, problem));
            }
            regions.push(id.clone());
        }
        if paths.insert(path.flow.get_ref().clone(), regions).is_some() {
            return Err(source.refuse_at(&path.flow, "a second path of this flow"));
        }
    }
    Ok(paths)
}
