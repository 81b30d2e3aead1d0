//! The paper's 34 PoPs `[RT Table II]` in regions of the catalogue.

use std::collections::BTreeSet;
use std::sync::OnceLock;

use serde::Deserialize;
use tradewind_model::RttModel;
use tradewind_units::{Duration, RegionId};

use crate::harness::catalogue;

/// Regions of the PoPs, by continent, as in `papers/scenarios/rt-pops.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Pops {
    /// Europe.
    pub europe: Vec<RegionId>,
    /// North America.
    pub north_america: Vec<RegionId>,
    /// South America.
    pub south_america: Vec<RegionId>,
    /// Asia.
    pub asia: Vec<RegionId>,
    /// Oceania.
    pub oceania: Vec<RegionId>,
}

impl Pops {
    /// Returns all of them, in the table's order.
    pub fn all(&self) -> impl Iterator<Item = &RegionId> {
        let Self { europe, north_america, south_america, asia, oceania } = self;
        [europe, north_america, south_america, asia, oceania].into_iter().flatten()
    }

    /// Returns all of them as a set.
    #[must_use]
    pub fn set(&self) -> BTreeSet<RegionId> {
        self.all().cloned().collect()
    }
}

/// Returns the file, read once.
#[must_use]
pub fn pops() -> &'static Pops {
    static BUILTIN: OnceLock<Pops> = OnceLock::new();
    BUILTIN.get_or_init(|| {
        toml::from_str(include_str!("../../scenarios/rt-pops.toml"))
            .expect("the built-in file is read by a test")
    })
}

/// Returns the round-trip time between two PoPs by the distance model; none where the catalogue
/// does not know one of them.
#[must_use]
pub fn rtt_between(from: &RegionId, to: &RegionId) -> Option<Duration> {
    let (from, to) = (catalogue().region(from)?, catalogue().region(to)?);
    Some(RttModel::fitted().rtt_between(from.location, to.location))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_model::catalogue::Continent;

    #[test]
    fn pops_match_table_two() {
        let pops = pops();
        assert_eq!(pops.set().len(), 34);
        let continents = [
            (&pops.europe, 10, Continent::Europe),
            (&pops.north_america, 11, Continent::NorthAmerica),
            (&pops.south_america, 1, Continent::SouthAmerica),
            (&pops.asia, 9, Continent::Asia),
            (&pops.oceania, 3, Continent::Oceania),
        ];
        for (regions, count, continent) in continents {
            assert_eq!(regions.len(), count);
            for region in regions {
                assert_eq!(catalogue().require(region).unwrap().continent, continent, "{region}");
            }
        }
    }
}
