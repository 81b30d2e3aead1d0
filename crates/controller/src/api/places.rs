//! The places of sites and regions: regions by the catalogue; sites, which are places of the
//! operator's own choice, by the city that they are named after.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use tradewind_control::Controller;
use tradewind_model::catalogue::{Catalogue, Region};
use tradewind_units::SiteId;

use crate::view::{Place, Places, SCHEMA_VERSION};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

pub(super) fn places(controller: &Controller) -> Places {
    let state = controller.state();
    let of_hosts = state.hosts.values().map(|host| host.role.site());
    let of_flows = state.flows.values().flat_map(|flow| [flow.from.clone(), flow.to_site.clone()]);
    let sites: BTreeSet<SiteId> = of_hosts.chain(of_flows).collect();
    Places { schema_version: SCHEMA_VERSION, places: sites.iter().filter_map(place).collect() }
}

/// Returns the place of a site, if the catalogue has it.
fn place(site: &SiteId) -> Option<Place> {
    let is_it = |region: &&Region| region.id.as_str() == site.as_str();
    let is_named_after = |region: &&Region| slug(&region.label) == site.as_str();
    let region = CATALOGUE.regions().find(is_it);
    let is_guess = region.is_none();
    let region = region.or_else(|| CATALOGUE.regions().find(is_named_after))?;
    Some(Place {
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
