//! `[[packet_flow]]` and `[packets]`: packet flows to carry, and the prices of relays for them
//! besides egress by volume.

use std::collections::BTreeSet;

use toml::Spanned;
use tradewind_model::packet::Tariff;
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, Money, Ratio, RegionId};

use super::error::{FileError, Source};
use super::flows::PlacedFlow;
use super::legs::Ends;
use super::places::Places;
use super::tables::shown;
use super::text::{File, PacketFlowSection, PacketsAtSection, PacketsSection, TariffSection};
use crate::packets::{
    BEARABLE_LOSS, BlockCoding, FLOWS_PER_MACHINE, INTERNET_LOSS, MAX_BUDGET, MAX_BYTES,
    MAX_PACKET_FLOWS, MAX_PER_SECOND, PacketFlow, Packets, RelayPrices,
};
use crate::problem::{LegEnd, Legs};
use crate::service::Demand;

/// Default duration of a flow. Source: the paper's example `[JQ 5.1.1]`.
const SPAN: Duration = Duration::from_secs(3600);
/// Most packets and repair packets of a block that relays accept.
const MAX_PACKETS: u8 = 32;
const MAX_REPAIRS: u8 = 8;
/// Highest price of one Mbit/s for a month, in dollars. Chosen: far above any carrier's.
const MAX_USD_PER_MBPS: f64 = 1e5;

/// Returns the sources and destinations of packet flows.
pub(super) fn ends(file: &File, places: &Places<'_>) -> Result<Vec<Ends>, FileError> {
    let source = places.source;
    if let Some(beyond) = file.packet_flow.get(MAX_PACKET_FLOWS) {
        return Err(source.refuse_at(beyond, format!("at most {MAX_PACKET_FLOWS} packet flows")));
    }
    let ends = |section: &Spanned<PacketFlowSection>| {
        let PacketFlowSection { from, to, .. } = section.get_ref();
        places.site(from.get_ref(), &from.span())?;
        places.site(to.get_ref(), &to.span())?;
        if from.get_ref() == to.get_ref() {
            let problem = format!("a packet flow from `{}` to itself", from.get_ref());
            return Err(source.refuse_at(to, problem));
        }
        let span = from.span();
        Ok(Ends { from: from.get_ref().clone(), to: to.get_ref().clone(), span })
    };
    file.packet_flow.iter().map(ends).collect()
}

/// Returns all packet flows with their prices; `flows` are the streams, whose names they must not
/// have.
pub(super) fn packets(
    file: &File,
    places: &Places<'_>,
    flows: &[PlacedFlow],
    legs: &Legs,
) -> Result<Packets, FileError> {
    let source = places.source;
    let section = &file.packets;
    let mut names: BTreeSet<FlowId> = flows.iter().map(|placed| placed.flow.id.clone()).collect();
    let mut packets = Packets {
        coding: coding(section.coding.as_ref(), source)?,
        detection: section.detection.unwrap_or(Packets::default().detection),
        retention: section.retention.unwrap_or(Packets::default().retention),
        ..Packets::default()
    };
    for spanned in &file.packet_flow {
        let flow = stated(spanned.get_ref(), places, legs)?;
        if !names.insert(flow.id.clone()) {
            let id = spanned.get_ref().id.as_ref();
            let span = id.map_or(spanned.span(), Spanned::span);
            let problem = format!("a second flow `{}`: give each its own `id`", flow.id);
            return Err(source.refuse(&span, problem));
        }
        packets.flows.push(flow);
    }
    let exact = checked_places(section, places)?;
    for site in &file.site {
        let site = site.get_ref();
        if let Some(uplink) = &site.uplink {
            packets.uplinks.insert(site.id.get_ref().clone(), tariff(uplink, source)?);
        }
    }
    // Without packet flows, machines need no price.
    let regions = if packets.flows.is_empty() { &[][..] } else { &places.regions };
    for region in regions {
        let prices = relay_prices(section, &exact, region, places, &file.packet_flow[0])?;
        packets.prices.insert(region.clone(), prices);
    }
    Ok(packets)
}

fn stated(
    section: &PacketFlowSection,
    places: &Places<'_>,
    legs: &Legs,
) -> Result<PacketFlow, FileError> {
    let source = places.source;
    let (from, to) = (section.from.get_ref().clone(), section.to.get_ref().clone());
    let id = match &section.id {
        Some(id) => id.get_ref().clone(),
        None => FlowId::new(format!("{from}-{to}")).map_err(|error| {
            source.refuse_at(&section.from, format!("give it an `id`: {error}"))
        })?,
    };
    let (rate, packet) = rate_and_packet(section, source)?;
    if section.budget > MAX_BUDGET {
        let problem = "a `budget` of at most 65 s: gateways take no longer one";
        return Err(source.refuse_at(&section.from, problem));
    }
    if section.budget.is_zero() || section.span.is_some_and(|span| span.is_zero()) {
        let problem = "a `budget` and a `span` above zero";
        return Err(source.refuse_at(&section.from, problem));
    }
    let share = |share| Ratio::new(share).unwrap_or_default();
    let internet = legs.get(&(LegEnd::Site(from.clone()), LegEnd::Site(to.clone())));
    let measured = internet.and_then(|leg| leg.loss).map(|loss| loss.ratio);
    let measured = measured.filter(|loss| loss.as_f64() > 0.0);
    Ok(PacketFlow {
        id,
        source: from,
        destination: to,
        rate,
        packet,
        span: section.span.unwrap_or(SPAN),
        demand: Demand {
            budget: section.budget,
            bearable: section.max_loss.unwrap_or_else(|| share(BEARABLE_LOSS)),
        },
        loss: section.internet_loss.or(measured).unwrap_or_else(|| share(INTERNET_LOSS)),
        helper_rtt: section.helper_rtt,
    })
}

/// Computes rate and packet size from two of rate, packet size and packets a second.
fn rate_and_packet(
    section: &PacketFlowSection,
    source: Source<'_>,
) -> Result<(Bandwidth, Bytes), FileError> {
    let PacketFlowSection { rate, packet, packets_per_second, .. } = section;
    if let Some(packet) = packet
        && !(1..=MAX_BYTES).contains(&packet.get_ref().as_u64())
    {
        return Err(source.refuse_at(packet, format!("a packet of 1 to {MAX_BYTES} bytes")));
    }
    if let Some(often) = packets_per_second
        && !(1e-3..=MAX_PER_SECOND).contains(often.get_ref())
    {
        let problem = format!("0.001 to {MAX_PER_SECOND:e} packets a second");
        return Err(source.refuse_at(often, problem));
    }
    let refused = |error| move |_| source.refuse_at(&section.from, error);
    match (rate, packet, packets_per_second) {
        (Some(rate), Some(packet), None) => Ok((*rate.get_ref(), *packet.get_ref())),
        (Some(rate), None, Some(often)) => {
            let bytes = (rate.get_ref().as_bytes_per_s() / often.get_ref()).round();
            if !(1.0..=MAX_BYTES as f64).contains(&bytes) {
                let problem = format!("packets of {bytes} bytes: 1 to {MAX_BYTES} can be carried");
                return Err(source.refuse_at(often, problem));
            }
            Ok((*rate.get_ref(), Bytes::new(bytes as u64)))
        }
        (None, Some(packet), Some(often)) => {
            let bits = packet.get_ref().as_u64() as f64 * 8.0 * often.get_ref();
            let rate = Bandwidth::from_bps((bits.round() as u64).max(1));
            Ok((rate.map_err(refused("its rate is none"))?, *packet.get_ref()))
        }
        _ => Err(source
            .refuse_at(&section.from, "exactly two of `rate`, `packet` and `packets_per_second`")),
    }
}

fn coding(
    stated: Option<&Spanned<BlockCoding>>,
    source: Source<'_>,
) -> Result<BlockCoding, FileError> {
    let Some(stated) = stated else { return Ok(BlockCoding::default()) };
    let coding = *stated.get_ref();
    let is_right = |[repairs, packets]: [u8; 2]| {
        (1..=MAX_REPAIRS).contains(&repairs) && (1..=MAX_PACKETS).contains(&packets)
    };
    let [in_stream, _] = coding.in_stream;
    if !is_right(coding.cross_stream) || (in_stream > 0 && !is_right(coding.in_stream)) {
        let problem = format!("1 to {MAX_REPAIRS} repair packets for 1 to {MAX_PACKETS} packets");
        return Err(source.refuse_at(stated, problem));
    }
    Ok(coding)
}

fn tariff(stated: &Spanned<TariffSection>, source: Source<'_>) -> Result<Tariff, FileError> {
    match *stated.get_ref() {
        TariffSection { usd_per_gb: Some(price), usd_per_mbps: None } => Ok(Tariff::PerGb(price)),
        TariffSection { usd_per_gb: None, usd_per_mbps: Some(price) }
            if price.as_usd() <= MAX_USD_PER_MBPS =>
        {
            Ok(Tariff::Percentile { usd_per_mbps: price.as_usd() })
        }
        TariffSection { usd_per_gb: None, usd_per_mbps: Some(_) } => {
            let problem = format!("at most {MAX_USD_PER_MBPS} dollars a month for each Mbit/s");
            Err(source.refuse_at(stated, problem))
        }
        _ => Err(source.refuse_at(stated, "either `usd_per_gb` or `usd_per_mbps`")),
    }
}

/// The `[[packets.at]]` sections, looked up by region: its own before its cloud's.
struct Exact<'a>(Vec<&'a Spanned<PacketsAtSection>>);

impl<'a> Exact<'a> {
    fn of(&self, region: &RegionId) -> impl Iterator<Item = &'a PacketsAtSection> {
        let of_region = |at: &&'a Spanned<PacketsAtSection>| {
            at.get_ref().region.as_ref().is_some_and(|named| named.get_ref() == region)
        };
        let of_cloud = |at: &&'a Spanned<PacketsAtSection>| {
            at.get_ref().cloud.as_ref().is_some_and(|named| named.get_ref() == region.cloud())
        };
        let own = self.0.iter().copied().find(of_region);
        let clouds = self.0.iter().copied().find(of_cloud);
        own.into_iter().chain(clouds).map(Spanned::get_ref)
    }
}

/// Refuses a `[[packets.at]]` that applies nowhere, or a second one for a place.
fn checked_places<'a>(
    section: &'a PacketsSection,
    places: &Places<'_>,
) -> Result<Exact<'a>, FileError> {
    let source = places.source;
    let mut seen = BTreeSet::new();
    for spanned in &section.at {
        let at = spanned.get_ref();
        let name = match (&at.region, &at.cloud) {
            (Some(region), None) => {
                let known = places.catalogue.require(region.get_ref());
                known.map_err(|error| source.refuse_at(region, error.to_string()))?;
                region.get_ref().as_str()
            }
            (None, Some(cloud)) => {
                let is_of = |id: &RegionId| id.cloud() == cloud.get_ref();
                if !places.catalogue.regions().any(|region| is_of(&region.id)) {
                    let problem = format!("no cloud `{}` in the catalogue", shown(cloud.get_ref()));
                    return Err(source.refuse_at(cloud, problem));
                }
                cloud.get_ref().as_str()
            }
            _ => return Err(source.refuse_at(spanned, "either `region` or `cloud`")),
        };
        if !seen.insert(name) {
            return Err(source.refuse_at(spanned, format!("`{name}` is named twice")));
        }
    }
    Ok(Exact(section.at.iter().collect()))
}

/// Returns the prices of relays in a region: those stated for the region, for its cloud, for all,
/// or that of the catalogue's cheapest machine of the cloud.
fn relay_prices(
    all: &PacketsSection,
    exact: &Exact<'_>,
    region: &RegionId,
    places: &Places<'_>,
    first: &Spanned<PacketFlowSection>,
) -> Result<RelayPrices, FileError> {
    let source = places.source;
    let parse_tariff = |tariffs: Option<&Spanned<TariffSection>>| {
        tariffs.map(|stated| tariff(stated, source)).transpose()
    };
    let at = || exact.of(region);
    let ingress = at().find_map(|at| at.ingress.as_ref()).or(all.ingress.as_ref());
    let egress = at().find_map(|at| at.egress.as_ref()).or(all.egress.as_ref());
    let storage = at().find_map(|at| at.storage_usd_per_gb_hour).or(all.storage_usd_per_gb_hour);
    let shared_by = at().find_map(|at| at.flows_per_machine.as_ref());
    let flows = shared_by.or(all.flows_per_machine.as_ref());
    if let Some(none) = flows.filter(|flows| *flows.get_ref() == 0) {
        return Err(source.refuse_at(none, "1 or more packet flows on a machine, not 0"));
    }
    let machine = at().find_map(|at| at.usd_per_hour).or(all.usd_per_hour);
    let Some(vm_hour) = machine.or_else(|| cheapest_machine(places, region)) else {
        let problem = format!(
            "no machine of `{}` in the catalogue: state `usd_per_hour` in `[packets]`",
            region.cloud()
        );
        return Err(source.refuse_at(&first.get_ref().from, problem));
    };
    Ok(RelayPrices {
        vm_hour,
        flows: flows.map_or(FLOWS_PER_MACHINE, |flows| *flows.get_ref()),
        ingress: parse_tariff(ingress)?.unwrap_or(Tariff::FREE),
        egress: parse_tariff(egress)?,
        storage_gb_hour: storage.unwrap_or(Money::ZERO),
    })
}

fn cheapest_machine(places: &Places<'_>, region: &RegionId) -> Option<Money> {
    let machines = places.catalogue.vm_types();
    let is_there = |id: &str| id.split_once(':').is_some_and(|(cloud, _)| cloud == region.cloud());
    machines.filter(|machine| is_there(&machine.id)).map(|machine| machine.usd_per_hour).min()
}
