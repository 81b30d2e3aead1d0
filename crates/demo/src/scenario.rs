//! The demo's scenario file: flows, candidate relay regions, prices and the topology.
//!
//! The topology is a separate file, named by the key `topology` and read by `wan`
//! (docs/reference/topology.md). A scenario contains no round-trip time and no rate: the planner
//! learns those from the probe alone.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use toml::Spanned;
use tradewind_units::{Bandwidth, Bytes, Money, PricePerGb, RegionId, SiteId};

/// Largest number of sites: each of their flows takes a port.
const MAX_SITES: usize = 200;

/// The syntax of a scenario file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    sites: Vec<Spanned<SiteId>>,
    regions: Vec<Spanned<RegionId>>,
    volume: VolumeFile,
    budget_usd: Money,
    relay: RelayFile,
    topology: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VolumeFile {
    nominal: Bytes,
    carried: Bytes,
    carried_quick: Bytes,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RelayFile {
    setup_usd: Money,
    egress_usd_per_gb: PricePerGb,
    capacity: Bandwidth,
    per_connection: Bandwidth,
}

/// A consistent scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name in docs and reports.
    pub name: String,
    /// Its assumptions, a sentence each.
    pub assumptions: Vec<String>,
    /// End points; every one sends to every other one (full mesh).
    pub sites: Vec<SiteId>,
    /// The regions in which relays may run.
    pub regions: Vec<RegionId>,
    /// The nominal volume of each flow: plans and prices are made for it.
    pub volume_nominal: Bytes,
    /// The volume of each flow in a run.
    pub volume_carried: Bytes,
    /// The volume of each flow in a quick run.
    pub volume_carried_quick: Bytes,
    /// The largest cost of the plan.
    pub budget: Money,
    /// The price and the limits of a relay.
    pub relay: RelayTerms,
    /// The emulated network, in the format of `wan`.
    pub topology: String,
    /// The name of the topology's file.
    pub topology_file: String,
    /// The line of the scenario file that names each site and region.
    lines: BTreeMap<String, usize>,
}

/// Price and limits of one relay.
#[derive(Debug, Clone, Copy)]
pub struct RelayTerms {
    /// The price per running relay, paid once.
    pub setup: Money,
    /// The price of everything that a relay sends.
    pub egress: PricePerGb,
    /// The capacity of a relay, all its flows together.
    pub capacity: Bandwidth,
    /// The largest rate of each of its flows.
    pub per_connection: Bandwidth,
}

/// The reason why a scenario was refused.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The TOML is malformed.
    #[error("scenario: line {line}: {problem}")]
    Toml {
        /// The line.
        line: usize,
        /// The error in it.
        problem: String,
    },
    /// Its topology could not be read.
    #[error("scenario: topology: {0}")]
    Topology(#[from] std::io::Error),
    /// The parts do not fit together.
    #[error("scenario: {what}")]
    Inconsistent {
        /// The inconsistency, and the expected value.
        what: String,
    },
}

impl Scenario {
    /// The demo's scenario, `examples/cp-real.toml` `[CP VII-C]`.
    pub const CP_REAL: &'static str = include_str!("../../../examples/cp-real.toml");
    /// Its topology, `examples/cp-real-wan.toml`.
    pub const CP_REAL_WAN: &'static str = include_str!("../../../examples/cp-real-wan.toml");

    /// Returns the demo's built-in scenario.
    ///
    /// # Errors
    /// None, as the tests show; the type is that of [`Scenario::parse`].
    pub fn cp_real() -> Result<Self, ScenarioError> {
        Self::parse(Self::CP_REAL, |_| Ok(Self::CP_REAL_WAN.to_owned()))
    }

    /// Parses a scenario file; `load` returns the text of the topology file that it names.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, the topology cannot be read, or the
    /// parts are inconsistent.
    pub fn parse(
        text: &str,
        load: impl FnOnce(&str) -> std::io::Result<String>,
    ) -> Result<Self, ScenarioError> {
        let file: ScenarioFile = from_toml(text)?;
        check(&file)?;
        let lines = lines(&file, text);
        Ok(Self {
            name: file.name,
            assumptions: file.assumptions,
            sites: file.sites.into_iter().map(Spanned::into_inner).collect(),
            regions: file.regions.into_iter().map(Spanned::into_inner).collect(),
            lines,
            volume_nominal: file.volume.nominal,
            volume_carried: file.volume.carried,
            volume_carried_quick: file.volume.carried_quick,
            budget: file.budget_usd,
            relay: RelayTerms {
                setup: file.relay.setup_usd,
                egress: file.relay.egress_usd_per_gb,
                capacity: file.relay.capacity,
                per_connection: file.relay.per_connection,
            },
            topology: load(&file.topology)?,
            topology_file: file.topology,
        })
    }

    /// Returns the line of the scenario file that names a site or region, counted from 1.
    #[must_use]
    pub fn line_of(&self, place: &str) -> Option<usize> {
        self.lines.get(place).copied()
    }

    /// Returns all ordered pairs of sites: the flows of a full mesh.
    pub fn flows(&self) -> impl Iterator<Item = (&SiteId, &SiteId)> {
        self.sites.iter().flat_map(|source| {
            self.sites.iter().filter(move |site| *site != source).map(move |site| (source, site))
        })
    }
}

/// Parses TOML.
///
/// # Errors
/// When it is malformed; the error names the line.
pub fn from_toml<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, ScenarioError> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().map_or("", |span| &text[..span.start]);
        ScenarioError::Toml {
            line: 1 + before.matches('\n').count(),
            problem: error.message().to_owned(),
        }
    })
}

fn lines(file: &ScenarioFile, text: &str) -> BTreeMap<String, usize> {
    let sites = file.sites.iter().map(|site| (site.get_ref().as_str(), site.span()));
    let regions = file.regions.iter().map(|region| (region.get_ref().as_str(), region.span()));
    sites
        .chain(regions)
        .map(|(place, span)| (place.to_owned(), 1 + text[..span.start].matches('\n').count()))
        .collect()
}

fn check(file: &ScenarioFile) -> Result<(), ScenarioError> {
    let inconsistent = |what: String| Err(ScenarioError::Inconsistent { what });
    if file.sites.len() < 2 {
        return inconsistent(format!("sites: {} given, a mesh needs at least 2", file.sites.len()));
    }
    if file.sites.len() > MAX_SITES {
        let count = file.sites.len();
        return inconsistent(format!("sites: {count} given, at most {MAX_SITES} have ports"));
    }
    let mut names = BTreeSet::new();
    let regions = file.regions.iter().map(|region| region.get_ref().as_str());
    for name in file.sites.iter().map(|site| site.get_ref().as_str()).chain(regions) {
        if !names.insert(name) {
            return inconsistent(format!("`{name}` is named twice among sites and regions"));
        }
    }
    for (key, volume) in [
        ("nominal", file.volume.nominal),
        ("carried", file.volume.carried),
        ("carried_quick", file.volume.carried_quick),
    ] {
        if volume == Bytes::ZERO {
            return inconsistent(format!("volume.{key} is 0 B: a flow carries at least a byte"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demo_scenario_matches_the_papers_mesh_and_budget() {
        let scenario = Scenario::cp_real().unwrap();
        assert_eq!(scenario.flows().count(), 12);
        assert!(scenario.regions.len() >= 10);
        assert_eq!(scenario.budget, Money::from_usd(6.0).unwrap());
        assert_eq!(scenario.volume_nominal, Bytes::new(2_000_000_000));
    }

    #[test]
    fn inconsistent_scenario_is_refused_by_name() {
        let parse = |text: &str| Scenario::parse(text, |_| Ok(String::new()));
        let twice = Scenario::CP_REAL.replace("\"tokyo\"]", "\"hamina\"]");
        let error = parse(&twice).unwrap_err().to_string();
        assert!(error.contains("`hamina` is named twice"), "{error}");
        let empty = Scenario::CP_REAL.replace("nominal = \"2 GB\"", "nominal = \"0 B\"");
        let error = parse(&empty).unwrap_err().to_string();
        assert!(error.contains("volume.nominal"), "{error}");
        let unknown = format!("colour = 1\n{}", Scenario::CP_REAL);
        let error = parse(&unknown).unwrap_err().to_string();
        assert!(error.starts_with("scenario: line 1: ") && error.contains("colour"), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}
