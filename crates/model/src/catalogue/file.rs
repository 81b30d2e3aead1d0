//! The form of a catalogue file, as serde reads it.

use std::collections::BTreeMap;

use serde::Deserialize;
use tradewind_units::{PricePerGb, RegionId};

use super::{Continent, PriceKey, PriceRule, Region, VmType};
use crate::ModelError;
use crate::geo::Coordinates;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CatalogueFile {
    pub(super) dated: Option<String>,
    #[serde(default)]
    pub(super) regions: BTreeMap<String, RegionEntry>,
    #[serde(default)]
    pub(super) prices: Vec<PriceList>,
    #[serde(default, rename = "vm")]
    pub(super) vms: Vec<VmType>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RegionEntry {
    label: String,
    continent: Continent,
    latitude: f64,
    longitude: f64,
    zone: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PriceList {
    cloud: String,
    source: String,
    dated: String,
    rules: Vec<RuleEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    from: String,
    to: String,
    usd_per_gb: PricePerGb,
}

/// Reads the text; an error names its line.
pub(super) fn read(text: &str) -> Result<CatalogueFile, ModelError> {
    toml::from_str(text).map_err(|error: toml::de::Error| {
        let offset = error.span().map_or(0, |span| span.start);
        let line = text.as_bytes().iter().take(offset).filter(|byte| **byte == b'\n').count() + 1;
        let message = error.message().lines().collect::<Vec<_>>().join(", ");
        ModelError::CatalogueText { line, message }
    })
}

impl RegionEntry {
    pub(super) fn into_region(self, id: String) -> Result<Region, ModelError> {
        let refused = |message: String| ModelError::CatalogueEntry {
            entry: format!("region {}", id.lines().next().unwrap_or_default()),
            message,
        };
        let location = Coordinates::new(self.latitude, self.longitude)
            .map_err(|error| refused(error.to_string()))?;
        let region_id = RegionId::new(id.clone()).map_err(|error| refused(error.to_string()))?;
        if region_id.cloud() == region_id.as_str() {
            return Err(refused("an id of the form `cloud:region`".to_owned()));
        }
        let zone = self.zone.unwrap_or_else(|| self.continent.as_str().to_owned());
        Ok(Region { id: region_id, label: self.label, location, continent: self.continent, zone })
    }
}

impl PriceList {
    pub(super) fn into_rules(self) -> Result<BTreeMap<PriceKey, PriceRule>, ModelError> {
        let mut rules = BTreeMap::new();
        for RuleEntry { from, to, usd_per_gb } in self.rules {
            let key = PriceKey { cloud: self.cloud.clone(), from, to };
            let rule = PriceRule {
                price: usd_per_gb,
                source: self.source.clone(),
                dated: self.dated.clone(),
            };
            if rules.contains_key(&key) {
                return Err(ModelError::CatalogueEntry {
                    entry: format!("prices of {}", self.cloud),
                    message: format!("two rules from `{}` to `{}`", key.from, key.to),
                });
            }
            rules.insert(key, rule);
        }
        Ok(rules)
    }
}
