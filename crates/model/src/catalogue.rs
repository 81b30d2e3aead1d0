//! The catalogue: regions of the clouds, their egress prices and their machine types.
//!
//! The built-in one is the file `catalogue.toml` beside this one; each of its groups names source
//! and date. A user's file of the same form overrides it entry by entry: a region or machine of the
//! same id, a price rule of the same cloud, sender and receiver.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tradewind_units::{Bandwidth, PricePerGb, RegionId};

use crate::ModelError;
use crate::geo::Coordinates;

mod file;

const BUILTIN: &str = include_str!("catalogue.toml");

/// A continent, as clouds group their prices.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Continent {
    /// Africa.
    Africa,
    /// Asia without the Middle East.
    Asia,
    /// Europe.
    Europe,
    /// From Israel to the Gulf.
    MiddleEast,
    /// North and Central America.
    NorthAmerica,
    /// Australia, New Zealand and the islands.
    Oceania,
    /// South America.
    SouthAmerica,
}

impl Continent {
    /// All of them, by name.
    pub const ALL: [Self; 7] = [
        Self::Africa,
        Self::Asia,
        Self::Europe,
        Self::MiddleEast,
        Self::NorthAmerica,
        Self::Oceania,
        Self::SouthAmerica,
    ];

    /// Returns the name as the catalogue writes it, e.g. `north-america`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Africa => "africa",
            Self::Asia => "asia",
            Self::Europe => "europe",
            Self::MiddleEast => "middle-east",
            Self::NorthAmerica => "north-america",
            Self::Oceania => "oceania",
            Self::SouthAmerica => "south-america",
        }
    }
}

/// A cloud's location.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Region {
    /// Its id, e.g. `gcp:europe-north1`.
    pub id: RegionId,
    /// The city, for people.
    pub label: String,
    /// Its place, to about ten kilometres.
    pub location: Coordinates,
    /// The continent by which traffic is priced.
    pub continent: Continent,
    /// Its price zone: regions of one zone share a price list. The continent's name unless the
    /// catalogue states another.
    pub zone: String,
}

/// A machine type that can run a relay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmType {
    /// Its name with its cloud, e.g. `gcp:e2-medium`.
    pub id: String,
    /// Highest rate to other regions and the Internet.
    pub egress_cap: Bandwidth,
    /// Highest rate from there.
    pub ingress_cap: Bandwidth,
    /// Highest rate of one TCP connection, where the cloud limits that.
    #[serde(default)]
    pub per_connection_cap: Option<Bandwidth>,
    /// On-demand price of an hour, in dollars.
    pub usd_per_hour: tradewind_units::Money,
    /// Source of the figures.
    pub source: String,
    /// Date of the figures.
    pub dated: String,
}

/// Receiver of traffic that leaves a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Egress<'a> {
    /// To another region, of the same cloud or (over the Internet) of another.
    Region(&'a RegionId),
    /// To an end point outside every cloud.
    Internet,
}

impl std::fmt::Display for Egress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Region(region) => write!(f, "`{region}`"),
            Self::Internet => write!(f, "the Internet"),
        }
    }
}

/// Traffic that a price rule is for: cloud, sender's zone, receiver's zone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PriceKey {
    cloud: String,
    from: String,
    to: String,
}

/// A price with its source and date.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PriceRule {
    price: PricePerGb,
    source: String,
    dated: String,
}

/// A price with its source and date, as [`Catalogue::egress_price_with_source`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourcedPrice<'a> {
    /// Dollars for each GB.
    pub price: PricePerGb,
    /// Source of the figure.
    pub source: &'a str,
    /// Date of the figure.
    pub dated: &'a str,
}

/// Regions, prices and machines of one date.
#[derive(Debug, Clone, PartialEq)]
pub struct Catalogue {
    dated: String,
    regions: BTreeMap<RegionId, Region>,
    prices: BTreeMap<PriceKey, PriceRule>,
    vms: BTreeMap<String, VmType>,
}

/// Letters that may be wrong in a name that was meant to be another. Chosen: beyond, other regions
/// of a cloud are as close.
const MAX_MISTAKES: usize = 3;

impl Catalogue {
    /// Returns the catalogue that Tradewind ships.
    #[must_use]
    pub fn builtin() -> Self {
        Self::parse(BUILTIN).expect("the built-in catalogue is valid: a test reads it")
    }

    /// Reads a whole catalogue.
    ///
    /// # Errors
    /// When the text is no TOML of this form, lacks its date, has no region, or an entry makes no
    /// sense.
    pub fn parse(text: &str) -> Result<Self, ModelError> {
        let empty = Self {
            dated: String::new(),
            regions: BTreeMap::new(),
            prices: BTreeMap::new(),
            vms: BTreeMap::new(),
        };
        let catalogue = empty.overridden_by(text)?;
        let missing = |what: &str| ModelError::CatalogueEntry {
            entry: what.to_owned(),
            message: "a catalogue needs it, and this one has none".to_owned(),
        };
        if catalogue.dated.is_empty() {
            return Err(missing("dated"));
        }
        if catalogue.regions.is_empty() {
            return Err(missing("regions"));
        }
        Ok(catalogue)
    }

    /// Returns this catalogue with the entries of `text` in place of its own; `text` may hold as
    /// little as one price.
    ///
    /// # Errors
    /// When the text is no TOML of this form, or an entry makes no sense.
    pub fn overridden_by(mut self, text: &str) -> Result<Self, ModelError> {
        let file = file::read(text)?;
        if let Some(dated) = file.dated {
            self.dated = dated;
        }
        for (id, entry) in file.regions {
            let region = entry.into_region(id)?;
            self.regions.insert(region.id.clone(), region);
        }
        for list in file.prices {
            self.prices.extend(list.into_rules()?);
        }
        for vm in file.vms {
            self.vms.insert(vm.id.clone(), vm);
        }
        self.check_zones()?;
        Ok(self)
    }

    /// Refuses a price rule for a zone that no region of its cloud is in: a typing error that would
    /// otherwise go unnoticed.
    fn check_zones(&self) -> Result<(), ModelError> {
        let names = |region: &Region| [region.zone.clone(), region.continent.as_str().to_owned()];
        let known = |cloud: &str, zone: &str| {
            let mut same_cloud = self.regions.values().filter(|r| r.id.cloud() == cloud);
            same_cloud.any(|region| names(region).iter().any(|name| name == zone))
        };
        let continents: BTreeSet<_> = Continent::ALL.iter().map(|c| c.as_str()).collect();
        for PriceKey { cloud, from, to } in self.prices.keys() {
            let internet =
                to.strip_prefix("internet-").map_or(to == "internet", |c| continents.contains(c));
            let sender_known = from == "*" || known(cloud, from);
            let receiver_known = to == "cloud" || internet || known(cloud, to);
            if !sender_known || !receiver_known {
                let name = if sender_known { to } else { from };
                return Err(ModelError::CatalogueEntry {
                    entry: format!("prices of {cloud}"),
                    message: format!("no region of this cloud is in a zone or continent `{name}`"),
                });
            }
        }
        Ok(())
    }

    /// Returns the date on which this catalogue was put together, e.g. `2026-11-20`.
    #[must_use]
    pub fn dated(&self) -> &str {
        &self.dated
    }

    /// Returns all regions, by id.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.values()
    }

    /// Returns the region of this id.
    #[must_use]
    pub fn region(&self, id: &RegionId) -> Option<&Region> {
        self.regions.get(id)
    }

    /// Returns the region of this id, or an error that names it.
    ///
    /// # Errors
    /// When the catalogue does not hold it.
    pub fn require(&self, id: &RegionId) -> Result<&Region, ModelError> {
        self.region(id).ok_or_else(|| ModelError::UnknownRegion(id.clone()))
    }

    /// Returns `; did you mean ...?` with the region that is called nearly so, or is called so in
    /// some cloud; nothing where none is.
    #[must_use]
    pub fn did_you_mean(&self, name: &str) -> String {
        meant(self.regions.keys().map(RegionId::as_str), name)
    }

    /// Returns the same of machine types.
    #[must_use]
    pub fn did_you_mean_machine(&self, name: &str) -> String {
        meant(self.vms.keys().map(String::as_str), name)
    }

    /// Returns all machine types, by id.
    pub fn vm_types(&self) -> impl Iterator<Item = &VmType> {
        self.vms.values()
    }

    /// Returns the machine type of this id, e.g. `gcp:e2-medium`.
    #[must_use]
    pub fn vm_type(&self, id: &str) -> Option<&VmType> {
        self.vms.get(id)
    }

    /// Returns the price of a gigabyte that leaves `from` for `to`.
    ///
    /// # Errors
    /// When a region is not in the catalogue, or its cloud has no rule for such traffic.
    pub fn egress_price(&self, from: &RegionId, to: Egress<'_>) -> Result<PricePerGb, ModelError> {
        self.egress_price_with_source(from, to).map(|sourced| sourced.price)
    }

    /// Returns the same as [`Catalogue::egress_price`], with source and date.
    ///
    /// # Errors
    /// As [`Catalogue::egress_price`].
    pub fn egress_price_with_source(
        &self,
        from: &RegionId,
        to: Egress<'_>,
    ) -> Result<SourcedPrice<'_>, ModelError> {
        let sender = self.require(from)?;
        if to == Egress::Region(from) {
            let source = "traffic inside a region is free over private addresses";
            return Ok(SourcedPrice { price: PricePerGb::FREE, source, dated: &self.dated });
        }
        let receivers = self.receivers(from, to)?;
        let senders = [sender.zone.as_str(), sender.continent.as_str(), "*"];
        let pairs = senders.iter().flat_map(|s| receivers.iter().map(move |r| (*s, r.as_str())));
        for (from_zone, to_zone) in pairs {
            let key = PriceKey {
                cloud: from.cloud().to_owned(),
                from: from_zone.to_owned(),
                to: to_zone.to_owned(),
            };
            if let Some(rule) = self.prices.get(&key) {
                let PriceRule { price, source, dated } = rule;
                return Ok(SourcedPrice { price: *price, source, dated });
            }
        }
        Err(ModelError::NoPrice { from: from.clone(), to: to.to_string() })
    }

    /// Returns the receivers' names that a rule may have for this traffic, the most specific first.
    fn receivers(&self, from: &RegionId, to: Egress<'_>) -> Result<Vec<String>, ModelError> {
        let Egress::Region(id) = to else { return Ok(vec!["internet".to_owned()]) };
        let receiver = self.require(id)?;
        let continent = receiver.continent.as_str().to_owned();
        Ok(if id.cloud() == from.cloud() {
            vec![receiver.zone.clone(), continent, "cloud".to_owned()]
        } else {
            vec![format!("internet-{continent}"), "internet".to_owned()]
        })
    }
}

/// Returns `; did you mean ...?` with the id that is nearly `name`, or is so in some cloud.
fn meant<'a>(ids: impl Iterator<Item = &'a str> + Clone, name: &str) -> String {
    let is_so = |id: &&str| id.split_once(':').is_some_and(|(_, own)| own == name);
    let mistakes = |id: &&str| strsim::damerau_levenshtein(id, name);
    // Names are short; what is long is none.
    let close = || ids.clone().filter(|_| name.len() < 64).min_by_key(mistakes);
    let in_a_cloud = ids.clone().find(is_so);
    let close = in_a_cloud.or_else(|| close().filter(|id| mistakes(id) <= MAX_MISTAKES));
    close.map_or_else(String::new, |id| format!("; did you mean `{id}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(from: &str, to: &str) -> f64 {
        let catalogue = Catalogue::builtin();
        let from = RegionId::new(from).unwrap();
        let target = (to != "internet").then(|| RegionId::new(to).unwrap());
        let to = target.as_ref().map_or(Egress::Internet, Egress::Region);
        catalogue.egress_price(&from, to).unwrap().as_usd_per_gb()
    }

    #[test]
    fn built_in_catalogue_covers_four_clouds() {
        let catalogue = Catalogue::builtin();
        assert_eq!(catalogue.dated(), "2026-11-20");
        for (cloud, least) in [("aws", 25), ("azure", 25), ("gcp", 25), ("ibm", 9)] {
            let count = catalogue.regions().filter(|r| r.id.cloud() == cloud).count();
            assert!(count >= least, "{cloud}: {count}");
            assert!(catalogue.vm_types().any(|vm| vm.id.starts_with(cloud)), "{cloud}");
        }
    }

    #[test]
    fn every_machine_has_source_date_and_possible_figures() {
        let catalogue = Catalogue::builtin();
        let clouds: BTreeSet<&str> = catalogue.regions().map(|region| region.id.cloud()).collect();
        for vm in catalogue.vm_types() {
            let VmType { id, source, dated, .. } = vm;
            let (cloud, name) = id.split_once(':').unwrap();
            assert!(clouds.contains(cloud) && !name.is_empty(), "{id}");
            assert!(source.len() > 20, "{id}: {source}");
            let (year, month) = dated.split_once('-').unwrap();
            assert!((2015..=2026).contains(&year.parse().unwrap()), "{id}: {dated}");
            assert!((1..=12).contains(&month.parse().unwrap()), "{id}: {dated}");
            let caps = [Some(vm.egress_cap), Some(vm.ingress_cap), vm.per_connection_cap];
            let is_cap = |cap: &Bandwidth| (500.0..=100_000.0).contains(&cap.as_mbps());
            assert!(caps.iter().flatten().all(is_cap), "{id}");
            assert!(vm.per_connection_cap.is_none_or(|cap| cap <= vm.egress_cap), "{id}");
            assert!((0.01..10.0).contains(&vm.usd_per_hour.as_usd()), "{id}");
        }
    }

    /// Returns the series of Azure that a machine is of, and its number of processors.
    fn azure_size(vm: &VmType) -> Option<(&str, u32)> {
        let name = vm.id.strip_prefix("azure:Standard_D")?;
        let (number, series) = name.split_at(name.find(|letter: char| !letter.is_ascii_digit())?);
        Some((series, number.parse().ok()?))
    }

    #[test]
    fn larger_machines_of_a_series_cost_and_carry_no_less() {
        let catalogue = Catalogue::builtin();
        let mut series: BTreeMap<&str, BTreeMap<u32, &VmType>> = BTreeMap::new();
        for vm in catalogue.vm_types() {
            let Some((name, size)) = azure_size(vm) else { continue };
            series.entry(name).or_default().insert(size, vm);
        }
        assert!(series.values().filter(|sizes| sizes.len() > 1).count() > 10);
        for sizes in series.values() {
            let sizes: Vec<_> = sizes.iter().collect();
            for pair in sizes.windows(2) {
                let [(few, small), (many, large)] = pair else { unreachable!("pairs") };
                assert!(small.egress_cap <= large.egress_cap, "{} {}", small.id, large.id);
                assert!(small.ingress_cap <= large.ingress_cap, "{} {}", small.id, large.id);
                // Each processor of a series costs the same, as rounded.
                let each = |vm: &VmType, size: u32| vm.usd_per_hour.as_usd() / f64::from(size);
                let ratio = each(small, **few) / each(large, **many);
                assert!((0.99..1.01).contains(&ratio), "{} {}", small.id, large.id);
            }
        }
    }

    #[test]
    fn machine_of_nearly_this_name_is_named() {
        let catalogue = Catalogue::builtin();
        let meant = |name| catalogue.did_you_mean_machine(name);
        assert_eq!(meant("gcp:e2-medum"), "; did you mean `gcp:e2-medium`?");
        assert_eq!(meant("c5n.large"), "; did you mean `aws:c5n.large`?");
        assert_eq!(meant("azure:Standard_D32ps_v"), "; did you mean `azure:Standard_D32ps_v5`?");
        assert_eq!(meant("rack"), "");
        assert_eq!(meant(&"x".repeat(1000)), "");
    }

    #[test]
    fn every_region_pair_has_a_price() {
        let catalogue = Catalogue::builtin();
        for from in catalogue.regions() {
            assert!(catalogue.egress_price(&from.id, Egress::Internet).is_ok(), "{}", from.id);
            for to in catalogue.regions() {
                let sourced =
                    catalogue.egress_price_with_source(&from.id, Egress::Region(&to.id)).unwrap();
                assert!(!sourced.source.is_empty() && !sourced.dated.is_empty());
                assert!(sourced.price.as_usd_per_gb() <= 0.2);
            }
        }
    }

    #[test]
    fn most_specific_rule_wins() {
        assert_eq!(price("aws:us-east-1", "aws:us-east-2"), 0.01);
        assert_eq!(price("aws:us-east-1", "aws:us-west-2"), 0.02);
        assert_eq!(price("aws:sa-east-1", "aws:us-east-1"), 0.138);
        assert_eq!(price("aws:us-east-1", "gcp:us-east4"), 0.09);
        assert_eq!(price("gcp:asia-northeast1", "gcp:asia-southeast1"), 0.05);
        assert_eq!(price("gcp:asia-southeast2", "gcp:us-west1"), 0.15);
        assert_eq!(price("gcp:europe-north1", "gcp:asia-southeast2"), 0.15);
        assert_eq!(price("gcp:europe-north1", "gcp:asia-northeast1"), 0.08);
        assert_eq!(price("gcp:us-east4", "aws:ap-southeast-2"), 0.19);
        assert_eq!(price("gcp:europe-west2", "internet"), 0.12);
        assert_eq!(price("azure:brazilsouth", "internet"), 0.181);
        assert_eq!(price("gcp:us-east4", "gcp:us-east4"), 0.0);
    }

    #[test]
    fn user_file_overrides_entry_by_entry() {
        let mine = r#"
            dated = "2027-01-01"
            [regions]
            "on:prem" = { label = "Den", continent = "europe", latitude = 52.5, longitude = 13.4 }
            [[prices]]
            cloud = "aws"
            source = "our contract"
            dated = "2027-01"
            rules = [{ from = "north-america", to = "internet", usd_per_gb = 0.03 }]
        "#;
        let catalogue = Catalogue::builtin().overridden_by(mine).unwrap();
        let ashburn = RegionId::new("aws:us-east-1").unwrap();
        let sourced = catalogue.egress_price_with_source(&ashburn, Egress::Internet).unwrap();
        assert_eq!((sourced.price.as_usd_per_gb(), sourced.source), (0.03, "our contract"));
        assert_eq!(catalogue.dated(), "2027-01-01");
        let cellar = RegionId::new("on:prem").unwrap();
        assert!(catalogue.region(&cellar).is_some());
        let no_price = catalogue.egress_price(&cellar, Egress::Internet).unwrap_err();
        assert_eq!(
            no_price.to_string(),
            "the catalogue has no price from `on:prem` to the Internet"
        );
    }

    #[test]
    fn bad_catalogue_errors_name_the_place_in_one_line() {
        let cases = [
            ("dated = ", "catalogue, line 1: "),
            ("dated = \"x\"\n[regions]\n\"a:b\" = 3", "catalogue, line 3: "),
            (
                "[regions]\n\"a:b\" = { label = \"x\", continent = \"europa\", \
                 latitude = 1.0, longitude = 1.0 }",
                "catalogue, line 2: ",
            ),
            (
                "[regions]\n\"a:b\" = { label = \"x\", continent = \"asia\", \
                 latitude = 91.0, longitude = 1.0 }",
                "catalogue, region a:b: ",
            ),
            (
                "[regions]\n\"a b\" = { label = \"x\", continent = \"asia\", \
                 latitude = 9.0, longitude = 1.0 }",
                "catalogue, region a b: ",
            ),
            ("colour = 3", "catalogue, line 1: "),
            ("[regions]", "catalogue, dated: "),
            ("dated = \"2026-01-01\"", "catalogue, regions: "),
            (
                "[[prices]]\ncloud = \"aws\"\nsource = \"x\"\ndated = \"x\"\n\
                 rules = [{ from = \"*\", to = \"cloud\", usd_per_gb = -1.0 }]",
                "catalogue, line 5: ",
            ),
            (
                "[[prices]]\ncloud = \"aws\"\nsource = \"x\"\ndated = \"x\"\n\
                 rules = [{ from = \"mars\", to = \"cloud\", usd_per_gb = 1.0 }]",
                "catalogue, prices of aws: ",
            ),
        ];
        for (text, start) in cases {
            let message = Catalogue::parse(text).unwrap_err().to_string();
            assert!(message.starts_with(start), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
