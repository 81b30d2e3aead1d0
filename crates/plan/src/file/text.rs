//! The structure of a problem file: its sections and keys. Those that may be left out are optional.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Continent, Coordinates, StartUp};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, PricePerGb, Ratio, RegionId, RelayTypeId, Segments,
    SiteId, time::as_text,
};

use crate::packets::BlockCoding;
use crate::problem::Objective;

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: Option<String>,
    pub(super) budget_usd: Option<Money>,
    #[serde(default)]
    pub(super) objective: Objective,
    #[serde(default)]
    pub(super) start_up: StartUp,
    pub(super) max_relays: Option<Spanned<usize>>,
    pub(super) robust: Option<Spanned<f64>>,
    #[serde(default, with = "as_text::option")]
    pub(super) period: Option<Duration>,
    pub(super) catalogue: Option<Spanned<String>>,
    pub(super) regions: Option<Spanned<Regions>>,
    #[serde(default)]
    pub(super) assume_rtt_from_distance: bool,
    #[serde(default, with = "as_text::option")]
    pub(super) same_region_rtt: Option<Duration>,
    #[serde(default)]
    pub(super) rtt_tables: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) rate_tables: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) probes: Vec<ProbesSection>,
    #[serde(default)]
    pub(super) leg: LegSections,
    #[serde(default)]
    pub(super) site: Vec<Spanned<SiteSection>>,
    #[serde(default)]
    pub(super) flow: Vec<Spanned<FlowSection>>,
    pub(super) generate: Option<Spanned<GenerateSection>>,
    #[serde(default)]
    pub(super) pair: Vec<Spanned<PairSection>>,
    #[serde(default)]
    pub(super) relay_type: Vec<Spanned<RelayTypeSection>>,
    #[serde(default)]
    pub(super) egress: EgressSection,
    #[serde(default)]
    pub(super) running: RunningSection,
    #[serde(default)]
    pub(super) packet_flow: Vec<Spanned<PacketFlowSection>>,
    #[serde(default)]
    pub(super) packets: PacketsSection,
}

/// Reports of probes that ran at one place.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbesSection {
    pub(super) from: Spanned<String>,
    pub(super) reports: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) targets: BTreeMap<String, Spanned<String>>,
}

/// Candidate regions: a list of ids, the word `catalogue`, or a filter of the catalogue.
#[derive(Debug)]
pub(super) enum Regions {
    Listed(Vec<Spanned<RegionId>>),
    Filtered(RegionFilter),
}

/// A filter of the catalogue's regions; keys that are left out do not restrict.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionFilter {
    pub(super) clouds: Option<Vec<String>>,
    pub(super) continents: Option<Vec<Continent>>,
    #[serde(default)]
    pub(super) except: Vec<RegionId>,
}

impl<'de> Deserialize<'de> for Regions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RegionsVisitor)
    }
}

struct RegionsVisitor;

impl<'de> Visitor<'de> for RegionsVisitor {
    type Value = Regions;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of regions, `\"catalogue\"`, or `{ clouds = [..], continents = [..] }`")
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Regions, E> {
        if word == "catalogue" {
            return Ok(Regions::Filtered(RegionFilter::default()));
        }
        Err(E::invalid_value(de::Unexpected::Str(word), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Regions, A::Error> {
        let mut regions = Vec::new();
        while let Some(region) = seq.next_element()? {
            regions.push(region);
        }
        Ok(Regions::Listed(regions))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Regions, A::Error> {
        RegionFilter::deserialize(MapAccessDeserializer::new(map)).map(Regions::Filtered)
    }
}

/// Properties of legs, by the kinds of their ends.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LegSections {
    #[serde(default)]
    pub(super) all: LegSection,
    #[serde(default)]
    pub(super) direct: LegSection,
    #[serde(default)]
    pub(super) access: LegSection,
    #[serde(default)]
    pub(super) inner: LegSection,
}

/// The rate that a path grants connections from the start [RFC 4782]; `"off"` overrides a rate in a
/// more general section.
#[derive(Debug, Clone, Copy)]
pub(super) enum QuickStart {
    Off,
    Rate(Bandwidth),
}

impl<'de> Deserialize<'de> for QuickStart {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text == "off" {
            return Ok(Self::Off);
        }
        let rate = text.parse().map(Self::Rate);
        rate.map_err(|error| de::Error::custom(format!("`off`, or a {error}")))
    }
}

/// Properties of a leg's connections.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LegSection {
    pub(super) window: Option<Spanned<Bytes>>,
    pub(super) connections: Option<Spanned<u32>>,
    pub(super) per_connection: Option<Bandwidth>,
    pub(super) initial_window: Option<Segments>,
    pub(super) quick_start: Option<QuickStart>,
    pub(super) loss: Option<Spanned<Ratio>>,
    pub(super) congestion_control: Option<LossResponse>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SiteSection {
    pub(super) id: Spanned<SiteId>,
    pub(super) region: Option<Spanned<RegionId>>,
    pub(super) location: Option<Coordinates>,
    #[serde(default, with = "as_text::option")]
    pub(super) access_rtt: Option<Duration>,
    pub(super) rate: Option<Bandwidth>,
    pub(super) egress_cap: Option<Bandwidth>,
    pub(super) egress_cap_outside: Option<Spanned<Bandwidth>>,
    pub(super) window: Option<Spanned<Bytes>>,
    pub(super) uplink: Option<Spanned<TariffSection>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowSection {
    pub(super) id: Option<Spanned<FlowId>>,
    pub(super) from: Spanned<SiteId>,
    pub(super) to: Spanned<SiteId>,
    pub(super) volume: Spanned<Bytes>,
    pub(super) weight: Option<Spanned<u32>>,
    #[serde(default, with = "as_text::option")]
    pub(super) deadline: Option<Duration>,
}

/// The pattern of sources and destinations of generated flows [CP III].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    OneToMany,
    ManyToMany,
    ManyOneToOne,
    LocalizedOneToMany,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerateSection {
    pub(super) pattern: Pattern,
    #[serde(default)]
    pub(super) seed: u64,
    pub(super) flows: Option<Spanned<usize>>,
    pub(super) volume: Spanned<Bytes>,
    pub(super) volume_max: Option<Spanned<Bytes>>,
    pub(super) weight: Option<Spanned<u32>>,
    #[serde(default, with = "as_text::option")]
    pub(super) deadline: Option<Duration>,
    pub(super) sources: Option<Vec<Spanned<SiteId>>>,
    pub(super) shares: Option<Spanned<Vec<Ratio>>>,
    pub(super) sites: Option<Spanned<GeneratedSites>>,
}

/// Settings of the sites generated for each region of the catalogue that the filter selects.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GeneratedSites {
    pub(super) clouds: Option<Vec<String>>,
    pub(super) continents: Option<Vec<Continent>>,
    #[serde(default)]
    pub(super) except: Vec<RegionId>,
    #[serde(default)]
    pub(super) outside: bool,
    #[serde(default, with = "as_text::option")]
    pub(super) access_rtt: Option<Duration>,
    pub(super) rate: Option<Bandwidth>,
    pub(super) egress_cap: Option<Bandwidth>,
    pub(super) egress_cap_outside: Option<Spanned<Bandwidth>>,
    pub(super) window: Option<Spanned<Bytes>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PairSection {
    pub(super) between: Option<Spanned<[String; 2]>>,
    pub(super) from: Option<Spanned<String>>,
    pub(super) to: Option<Spanned<String>>,
    #[serde(default, with = "as_text::option")]
    pub(super) rtt: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) spread: Option<Duration>,
    pub(super) rate: Option<Bandwidth>,
    pub(super) window: Option<Spanned<Bytes>>,
    pub(super) connections: Option<Spanned<u32>>,
    pub(super) per_connection: Option<Bandwidth>,
    pub(super) initial_window: Option<Segments>,
    pub(super) quick_start: Option<QuickStart>,
    pub(super) loss: Option<Spanned<Ratio>>,
    pub(super) congestion_control: Option<LossResponse>,
    pub(super) blocked: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RelayTypeSection {
    pub(super) id: Spanned<RelayTypeId>,
    pub(super) capacity: Spanned<Bandwidth>,
    pub(super) per_connection: Option<Spanned<Bandwidth>>,
    #[serde(default)]
    pub(super) set_up_usd: Money,
    pub(super) usd_per_hour: Option<Money>,
    pub(super) most: Option<Spanned<usize>>,
    pub(super) clouds: Option<Vec<Spanned<String>>>,
    pub(super) regions: Option<Vec<Spanned<RegionId>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EgressSection {
    pub(super) usd_per_gb: Option<PricePerGb>,
    #[serde(default)]
    pub(super) tables: Vec<Spanned<String>>,
    #[serde(default)]
    pub(super) pair: Vec<PriceSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceSection {
    pub(super) from: Spanned<RegionId>,
    pub(super) to: Spanned<String>,
    pub(super) usd_per_gb: PricePerGb,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningSection {
    #[serde(default)]
    pub(super) move_usd: Money,
    #[serde(default)]
    pub(super) relay: Vec<RunningRelay>,
    #[serde(default)]
    pub(super) path: Vec<RunningPath>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningRelay {
    pub(super) region: Spanned<RegionId>,
    pub(super) relay_type: Option<Spanned<RelayTypeId>>,
    pub(super) count: Option<Spanned<usize>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningPath {
    pub(super) flow: Spanned<FlowId>,
    pub(super) regions: Vec<Spanned<RegionId>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PacketFlowSection {
    pub(super) id: Option<Spanned<FlowId>>,
    pub(super) from: Spanned<SiteId>,
    pub(super) to: Spanned<SiteId>,
    pub(super) rate: Option<Spanned<Bandwidth>>,
    pub(super) packet: Option<Spanned<Bytes>>,
    pub(super) packets_per_second: Option<Spanned<f64>>,
    #[serde(default, with = "as_text::option")]
    pub(super) span: Option<Duration>,
    #[serde(with = "as_text")]
    pub(super) budget: Duration,
    pub(super) max_loss: Option<Ratio>,
    pub(super) internet_loss: Option<Ratio>,
    #[serde(default, with = "as_text::option")]
    pub(super) helper_rtt: Option<Duration>,
}

/// Settings for all packet flows.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PacketsSection {
    #[serde(default, with = "as_text::option")]
    pub(super) detection: Option<Duration>,
    #[serde(default, with = "as_text::option")]
    pub(super) retention: Option<Duration>,
    pub(super) coding: Option<Spanned<BlockCoding>>,
    pub(super) usd_per_hour: Option<Money>,
    pub(super) flows_per_machine: Option<Spanned<u32>>,
    pub(super) ingress: Option<Spanned<TariffSection>>,
    pub(super) egress: Option<Spanned<TariffSection>>,
    pub(super) storage_usd_per_gb_hour: Option<Money>,
    #[serde(default)]
    pub(super) at: Vec<Spanned<PacketsAtSection>>,
}

/// Prices of relays in one region or cloud, which override those for all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PacketsAtSection {
    pub(super) region: Option<Spanned<RegionId>>,
    pub(super) cloud: Option<Spanned<String>>,
    pub(super) usd_per_hour: Option<Money>,
    pub(super) flows_per_machine: Option<Spanned<u32>>,
    pub(super) ingress: Option<Spanned<TariffSection>>,
    pub(super) egress: Option<Spanned<TariffSection>>,
    pub(super) storage_usd_per_gb_hour: Option<Money>,
}

/// The tariff of traffic: by volume, or by the 95th percentile of a month.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TariffSection {
    pub(super) usd_per_gb: Option<PricePerGb>,
    pub(super) usd_per_mbps: Option<Money>,
}
