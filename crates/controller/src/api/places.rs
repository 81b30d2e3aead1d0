//! The places of sites and regions: regions by the catalogue; sites, which are places of the
//! operator's own choice, by the city that they are named after.

use std::collections::{BTreeSet, HashMap};
use std::sync::LazyLock;

use tradewind_control::Controller;
use tradewind_model::catalogue::{Catalogue, Region};
use tradewind_units::SiteId;

use crate::view::{Places, SCHEMA_VERSION, SiteLocation};

static REGIONS: LazyLock<Regions> = LazyLock::new(Regions::new);

/// The regions of the catalogue.
struct Regions {
    by_id: HashMap<String, Region>,
    /// The first region of each city, by the city's name as sites are written.
    by_city: HashMap<String, Region>,
}

impl Regions {
    fn new() -> Self {
        let mut regions = Self { by_id: HashMap::new(), by_city: HashMap::new() };
        for region in Catalogue::builtin().regions() {
            regions.by_id.insert(region.id.to_string(), region.clone());
            regions.by_city.entry(slug(&region.label)).or_insert_with(|| region.clone());
        }
        regions
    }
}

pub(super) fn places(controller: &Controller) -> Places {
    let state = controller.state();
    let of_hosts = state.hosts.values().map(|host| host.role.site());
    let of_flows = state.flows.values().flat_map(|flow| [flow.from.clone(), flow.to_site.clone()]);
    let sites: BTreeSet<SiteId> = of_hosts.chain(of_flows).collect();
    Places { schema_version: SCHEMA_VERSION, places: sites.iter().filter_map(place).collect() }
}

/// Returns the place of a site, if the catalogue has it.
fn place(site: &SiteId) -> Option<SiteLocation> {
    let region = REGIONS.by_id.get(site.as_str());
    let is_guess = region.is_none();
    let region = region.or_else(|| REGIONS.by_city.get(site.as_str()))?;
    Some(SiteLocation {
        site: site.clone(),
        label: region.label.clone(),
        latitude: region.location.latitude(),
        longitude: region.location.longitude(),
        is_guess,
    })
}

/// Returns a city's name as sites are written: `sao-paulo`.
fn slug(label: &str) -> String {
    label.to_ascii_lowercase().replace(' ', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_are_known_and_sites_guessed_by_their_city() {
        let place = |site: &str| place(&site.parse().unwrap());
        let region = place("gcp:southamerica-east1").unwrap();
        let site = place("sao-paulo").unwrap();
        assert!(!region.is_guess && site.is_guess, "{region:?} {site:?}");
        assert_eq!(region.label, "Sao Paulo");
        assert!((region.latitude + 23.55).abs() < 0.5, "{region:?}");
        assert!((site.longitude - region.longitude).abs() < 0.5, "{site:?}");
        assert_eq!((place("office"), place("gcp:nowhere1")), (None, None));
    }
}
