//! The structure of a problem file: its sections and keys. Those that may be left out are optional.

use std::borrow::Cow;
use std::collections::BTreeMap;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor};
use toml::Spanned;
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Continent, Coordinates, StartUp};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, PricePerGb, Ratio, RegionId, RelayTypeId, Segments,
    SiteId,
    time::{Written, as_text},
};

use crate::problem::Objective;

mod packets;

pub(super) use packets::{PacketFlowSection, PacketsAtSection, PacketsSection, TariffSection};

/// The whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Its name in plots; the file's when absent.
    pub(super) name: Option<String>,
    /// The most that the plan may cost: set-up of relays, egress, moves; no limit when absent.
    pub(super) budget_usd: Option<Money>,
    /// The quantity that is minimised; among plans of equal value the cheapest is taken.
    #[serde(default)]
    pub(super) objective: Objective,
    /// The start-up of a session, as completion times count it.
    #[serde(default)]
    pub(super) start_up: StartUp,
    /// Most relays on a path, 0 to 4; 2 when absent.
    #[schemars(with = "Option<usize>")]
    pub(super) max_relays: Option<Spanned<usize>>,
    /// Multiple of the spread that is added to round-trip times and taken from rates; 0 when
    /// absent.
    #[schemars(with = "Option<f64>")]
    pub(super) robust: Option<Spanned<f64>>,
    /// Time that machines with an hourly price are paid for, in whole hours; until the last flow
    /// ends when absent. A note says when flows take longer.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) period: Option<Duration>,
    /// A file that overrides entries of the built-in catalogue (docs/reference/problem-tables.md).
    #[schemars(with = "Option<String>")]
    pub(super) catalogue: Option<Spanned<String>>,
    /// The regions where relays may run: a list, all of the catalogue, or those of it that
    /// `{ clouds = [..], continents = [..], except = [..] }` selects; none when absent.
    #[schemars(with = "Option<Regions>")]
    pub(super) regions: Option<Spanned<Regions>>,
    /// True if missing round-trip times follow from the distance (docs/explanation/rtt-model.md);
    /// otherwise they are errors.
    #[serde(default)]
    pub(super) assume_rtt_from_distance: bool,
    /// Round-trip time within one region where none is stated.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) same_region_rtt: Option<Duration>,
    /// CSV files of round-trip times (docs/reference/problem-tables.md).
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(super) rtt_tables: Vec<Spanned<String>>,
    /// CSV files of rates (docs/reference/problem-tables.md).
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(super) rate_tables: Vec<Spanned<String>>,
    /// Reports of `tradewind probe`.
    #[serde(default)]
    pub(super) probes: Vec<ProbesSection>,
    /// Properties of legs, by the kinds of their ends.
    #[serde(default)]
    pub(super) leg: LegSections,
    /// The places where flows start and end.
    #[serde(default)]
    #[schemars(with = "Vec<SiteSection>")]
    pub(super) site: Vec<Spanned<SiteSection>>,
    /// The flows.
    #[serde(default)]
    #[schemars(with = "Vec<FlowSection>")]
    pub(super) flow: Vec<Spanned<FlowSection>>,
    /// Flows drawn from a seed `[CP III, VII-B]`.
    #[schemars(with = "Option<GenerateSection>")]
    pub(super) generate: Option<Spanned<GenerateSection>>,
    /// Figures between two places.
    #[serde(default)]
    #[schemars(with = "Vec<PairSection>")]
    pub(super) pair: Vec<Spanned<PairSection>>,
    /// Types of relays; when absent one, `standard`: 2 Gbit/s, 1.75 Gbit/s a connection, $0.50
    /// `[CP IV-C, VII-A]`.
    #[serde(default)]
    #[schemars(with = "Vec<RelayTypeSection>")]
    pub(super) relay_type: Vec<Spanned<RelayTypeSection>>,
    /// Prices of what relays send; the catalogue's when absent.
    #[serde(default)]
    pub(super) egress: EgressSection,
    /// The running deployment, which the plan replaces.
    #[serde(default)]
    pub(super) running: RunningSection,
    /// Flows of packets with a latency budget.
    #[serde(default)]
    #[schemars(with = "Vec<PacketFlowSection>")]
    pub(super) packet_flow: Vec<Spanned<PacketFlowSection>>,
    /// Costs and settings of relays for packet flows.
    #[serde(default)]
    pub(super) packets: PacketsSection,
}

/// Reports of probes that ran at one place.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ProbesSection {
    /// The place where the probe ran: a site or region.
    #[schemars(with = "String")]
    pub(super) from: Spanned<String>,
    /// The files that hold the reports (`-o json`).
    #[schemars(with = "Vec<String>")]
    pub(super) reports: Vec<Spanned<String>>,
    /// The place of each target, by its HOST:PORT or HOST. A target whose host is named like a site
    /// needs no entry.
    #[serde(default)]
    #[schemars(with = "BTreeMap<String, String>")]
    pub(super) targets: BTreeMap<String, Spanned<String>>,
}

/// Candidate regions: a list of ids, the word `catalogue`, or a filter of the catalogue.
#[derive(Debug)]
pub(super) enum Regions {
    Listed(Vec<Spanned<RegionId>>),
    Filtered(RegionFilter),
}

/// A filter of the catalogue's regions; keys that are left out do not restrict.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionFilter {
    /// The clouds, such as `gcp`; all when absent.
    pub(super) clouds: Option<Vec<String>>,
    /// The continents; all when absent.
    pub(super) continents: Option<Vec<Continent>>,
    /// Regions that are left out.
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

impl JsonSchema for Regions {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Regions".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({ "anyOf": [
            generator.subschema_for::<Vec<RegionId>>(),
            { "const": "catalogue" },
            generator.subschema_for::<RegionFilter>(),
        ] })
    }
}

/// Properties of legs, by the kinds of their ends.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LegSections {
    /// All legs.
    #[serde(default)]
    pub(super) all: LegSection,
    /// Legs from site to site.
    #[serde(default)]
    pub(super) direct: LegSection,
    /// Legs between site and relay.
    #[serde(default)]
    pub(super) access: LegSection,
    /// Legs between relays.
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

tradewind_units::text_schema!(
    QuickStart,
    "rate or `off`",
    r"^\s*(off|[0-9.]+\s*[kMGT]?bit/s)\s*$",
    "500 Mbit/s"
);

/// Properties of a leg's connections.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LegSection {
    /// Most bytes in flight of a connection; 2.875 MB when absent: measured `[CP IV-C]`, and what
    /// Linux's defaults allow.
    #[schemars(with = "Option<Bytes>")]
    pub(super) window: Option<Spanned<Bytes>>,
    /// Parallel connections; 1 when absent.
    #[schemars(with = "Option<u32>")]
    pub(super) connections: Option<Spanned<u32>>,
    /// Most that one of them carries; no cap when absent.
    pub(super) per_connection: Option<Bandwidth>,
    /// First congestion window; 10 segments when absent.
    pub(super) initial_window: Option<Segments>,
    /// The rate that the path grants from the start: it raises the initial window to rate times
    /// round-trip time `[RFC 4782, CDD]`. `off` lifts a wider section's.
    pub(super) quick_start: Option<QuickStart>,
    /// Share of segments lost, below 1; 0 when absent.
    #[schemars(with = "Option<Ratio>")]
    pub(super) loss: Option<Spanned<Ratio>>,
    /// The response to loss; `cubic` when absent.
    pub(super) congestion_control: Option<LossResponse>,
}

/// A place where flows start or end.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SiteSection {
    /// Its name; not that of a region.
    #[schemars(with = "SiteId")]
    pub(super) id: Spanned<SiteId>,
    /// Its cloud region: the price of egress to it, its cloud's charge for what it sends, and round
    /// trips, rates and blocked pairs where the site states none.
    #[schemars(with = "Option<RegionId>")]
    pub(super) region: Option<Spanned<RegionId>>,
    /// Its place, outside every cloud.
    pub(super) location: Option<Coordinates>,
    /// Round-trip time of its access network, added to those of regions or distance, not to stated
    /// ones; 0 when absent.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) access_rtt: Option<Duration>,
    /// Cap on each leg that ends here, for each flow separately.
    pub(super) rate: Option<Bandwidth>,
    /// Cap on all that it sends, which flows share max-min fair `[TRN]`.
    pub(super) egress_cap: Option<Bandwidth>,
    /// Cap on what leaves its region, at most `egress_cap`; shared likewise.
    #[schemars(with = "Option<Bandwidth>")]
    pub(super) egress_cap_outside: Option<Spanned<Bandwidth>>,
    /// Most bytes in flight on each connection with an end here; of two sites' the smaller counts.
    /// That of the leg when absent.
    #[schemars(with = "Option<Bytes>")]
    pub(super) window: Option<Spanned<Bytes>>,
    /// Price of its uplink for copies of packets; free when absent.
    #[schemars(with = "Option<TariffSection>")]
    pub(super) uplink: Option<Spanned<TariffSection>>,
}

/// A flow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowSection {
    /// Its name; `FROM-TO` when absent.
    #[schemars(with = "Option<FlowId>")]
    pub(super) id: Option<Spanned<FlowId>>,
    /// The site that it comes from.
    #[schemars(with = "SiteId")]
    pub(super) from: Spanned<SiteId>,
    /// The site that it goes to.
    #[schemars(with = "SiteId")]
    pub(super) to: Spanned<SiteId>,
    /// Its bytes.
    #[schemars(with = "Bytes")]
    pub(super) volume: Spanned<Bytes>,
    /// Weight of its completion time in `total-fct`; 1 when absent.
    #[schemars(with = "Option<u32>")]
    pub(super) weight: Option<Spanned<u32>>,
    /// Longest completion time; no plan exceeds it.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) deadline: Option<Duration>,
}

/// The pattern of sources and destinations of generated flows [CP III].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Pattern {
    /// One source (at most one in `sources`), different destinations.
    OneToMany,
    /// A full mesh, or part of it.
    ManyToMany,
    /// Pairs that share no site, if there are enough.
    ManyOneToOne,
    /// Sources by distance, with `shares`.
    LocalizedOneToMany,
}

/// Flows drawn from a seed.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GenerateSection {
    /// The pattern of sources and destinations.
    pub(super) pattern: Pattern,
    /// The seed.
    #[serde(default)]
    pub(super) seed: u64,
    /// Number of flows, which are named `flow-01`, `flow-02`, ...; all of the pattern when absent.
    #[schemars(with = "Option<usize>")]
    pub(super) flows: Option<Spanned<usize>>,
    /// Least volume of a flow.
    #[schemars(with = "Bytes")]
    pub(super) volume: Spanned<Bytes>,
    /// Greatest volume: volumes are uniform between the two; as `volume` when absent.
    #[schemars(with = "Option<Bytes>")]
    pub(super) volume_max: Option<Spanned<Bytes>>,
    /// Weight of each flow; 1 when absent.
    #[schemars(with = "Option<u32>")]
    pub(super) weight: Option<Spanned<u32>>,
    /// Deadline of each flow.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) deadline: Option<Duration>,
    /// Sites that send; drawn when absent. `localized-one-to-many` takes one each in Asia, Europe
    /// and North America.
    #[schemars(with = "Option<Vec<SiteId>>")]
    pub(super) sources: Option<Vec<Spanned<SiteId>>>,
    /// For `localized-one-to-many`: the chance of each source, the closest first, together 1;
    /// `[0.9, 0.07, 0.03]` when absent.
    #[schemars(with = "Option<Vec<Ratio>>")]
    pub(super) shares: Option<Spanned<Vec<Ratio>>>,
    /// Sites to generate, `host.REGION` for each selected region of the catalogue.
    #[schemars(with = "Option<GeneratedSites>")]
    pub(super) sites: Option<Spanned<GeneratedSites>>,
}

/// Settings of the sites generated for each region of the catalogue that the filter selects.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GeneratedSites {
    /// The clouds; all when absent.
    pub(super) clouds: Option<Vec<String>>,
    /// The continents; all when absent.
    pub(super) continents: Option<Vec<Continent>>,
    /// Regions that are left out.
    #[serde(default)]
    pub(super) except: Vec<RegionId>,
    /// True if they are in the region's city, but outside its cloud.
    #[serde(default)]
    pub(super) outside: bool,
    /// As for a site.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) access_rtt: Option<Duration>,
    /// As for a site.
    pub(super) rate: Option<Bandwidth>,
    /// As for a site.
    pub(super) egress_cap: Option<Bandwidth>,
    /// As for a site; only for sites inside their clouds.
    #[schemars(with = "Option<Bandwidth>")]
    pub(super) egress_cap_outside: Option<Spanned<Bandwidth>>,
    /// As for a site.
    #[schemars(with = "Option<Bytes>")]
    pub(super) window: Option<Spanned<Bytes>>,
}

/// Figures between two sites or regions; a region stands for relays there, and for sites in it that
/// state none.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PairSection {
    /// Two sites or regions; the figures hold both ways.
    #[schemars(with = "Option<[String; 2]>")]
    pub(super) between: Option<Spanned<[String; 2]>>,
    /// The sender, for figures that hold one way.
    #[schemars(with = "Option<String>")]
    pub(super) from: Option<Spanned<String>>,
    /// The receiver.
    #[schemars(with = "Option<String>")]
    pub(super) to: Option<Spanned<String>>,
    /// Round-trip time; stated one way, it holds both ways.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) rtt: Option<Duration>,
    /// Spread of the round-trip time.
    #[serde(default, with = "as_text::option")]
    #[schemars(with = "Option<Written>")]
    pub(super) spread: Option<Duration>,
    /// Rate of all connections together.
    pub(super) rate: Option<Bandwidth>,
    /// As for legs.
    #[schemars(with = "Option<Bytes>")]
    pub(super) window: Option<Spanned<Bytes>>,
    /// As for legs.
    #[schemars(with = "Option<u32>")]
    pub(super) connections: Option<Spanned<u32>>,
    /// As for legs.
    pub(super) per_connection: Option<Bandwidth>,
    /// As for legs.
    pub(super) initial_window: Option<Segments>,
    /// As for legs.
    pub(super) quick_start: Option<QuickStart>,
    /// As for legs.
    #[schemars(with = "Option<Ratio>")]
    pub(super) loss: Option<Spanned<Ratio>>,
    /// As for legs.
    pub(super) congestion_control: Option<LossResponse>,
    /// True if no traffic passes; false unblocks sites of a blocked region.
    pub(super) blocked: Option<bool>,
}

/// A type of relay.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RelayTypeSection {
    /// Its name.
    #[schemars(with = "RelayTypeId")]
    pub(super) id: Spanned<RelayTypeId>,
    /// The most that a relay carries.
    #[schemars(with = "Bandwidth")]
    pub(super) capacity: Spanned<Bandwidth>,
    /// The most that one of its connections carries; no cap when absent.
    #[schemars(with = "Option<Bandwidth>")]
    pub(super) per_connection: Option<Spanned<Bandwidth>>,
    /// Price of a relay, once; a running one is not charged.
    #[serde(default)]
    pub(super) set_up_usd: Money,
    /// Price of each whole hour of `period` (without it: of the plan's makespan); a running one is
    /// not charged.
    pub(super) usd_per_hour: Option<Money>,
    /// Most relays of the type in each region, 0 to 10,000, running ones included, machines of
    /// packet flows alone not; no limit when absent.
    #[schemars(with = "Option<usize>")]
    pub(super) most: Option<Spanned<usize>>,
    /// The clouds that have it; all when absent.
    #[schemars(with = "Option<Vec<String>>")]
    pub(super) clouds: Option<Vec<Spanned<String>>>,
    /// The regions that have it; all when absent.
    #[schemars(with = "Option<Vec<RegionId>>")]
    pub(super) regions: Option<Vec<Spanned<RegionId>>>,
}

/// Prices of what relays send.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct EgressSection {
    /// One price for all egress of relays; the paper's is 0.08 `[CP]`. The catalogue's when absent.
    pub(super) usd_per_gb: Option<PricePerGb>,
    /// CSV files of prices (docs/reference/problem-tables.md).
    #[serde(default)]
    #[schemars(with = "Vec<String>")]
    pub(super) tables: Vec<Spanned<String>>,
    /// Prices between two places, which override the others.
    #[serde(default)]
    pub(super) pair: Vec<PriceSection>,
}

/// The price between two places.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceSection {
    /// The sender's region.
    #[schemars(with = "RegionId")]
    pub(super) from: Spanned<RegionId>,
    /// The receiver: a region, or `internet`.
    #[schemars(with = "String")]
    pub(super) to: Spanned<String>,
    /// The price.
    pub(super) usd_per_gb: PricePerGb,
}

/// The running deployment.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningSection {
    /// Cost of moving a flow from its running path.
    #[serde(default)]
    pub(super) move_usd: Money,
    /// Running relays.
    #[serde(default)]
    pub(super) relay: Vec<RunningRelay>,
    /// Running paths.
    #[serde(default)]
    pub(super) path: Vec<RunningPath>,
}

/// Running relays of one region and type.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningRelay {
    /// The region.
    #[schemars(with = "RegionId")]
    pub(super) region: Spanned<RegionId>,
    /// The type; the first one when absent.
    #[schemars(with = "Option<RelayTypeId>")]
    pub(super) relay_type: Option<Spanned<RelayTypeId>>,
    /// Number of them; 1 when absent.
    #[schemars(with = "Option<usize>")]
    pub(super) count: Option<Spanned<usize>>,
}

/// The running path of a flow.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct RunningPath {
    /// The flow.
    #[schemars(with = "FlowId")]
    pub(super) flow: Spanned<FlowId>,
    /// The regions of its relays in order, at most `max_relays`. If one is no candidate, every plan
    /// leaves the path, for `move_usd`, with a note.
    #[schemars(with = "Vec<RegionId>")]
    pub(super) regions: Vec<Spanned<RegionId>>,
}
