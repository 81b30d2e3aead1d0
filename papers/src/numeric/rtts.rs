//! Round-trip times between regions: a table's, or estimated by distance.
//!
//! An estimate is wrong by a share that the model states (docs/explanation/rtt-model.md). Each run
//! draws its own values around the estimates, so that intervals show the uncertainty of estimating.
//! A table is used as it is.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::geo::distance_km;
use tradewind_model::{ModelError, RttModel};
use tradewind_plan::routing::Router;
use tradewind_plan::routing::table::RttTable;
use tradewind_units::{Duration, RegionId};

use super::FIBRE_KM_PER_MS;
use crate::harness::{Random, catalogue};

/// RTTs of one run.
pub(super) enum Rtts<'a> {
    Table(&'a RttTable),
    Guessed(BTreeMap<(RegionId, RegionId), Duration>),
}

impl<'a> Rtts<'a> {
    /// Takes those of `table`, or draws estimates between all of `regions` around the model's.
    pub(super) fn new(
        table: Option<&'a RttTable>,
        regions: &BTreeSet<RegionId>,
        random: &mut Random,
    ) -> Result<Self, ModelError> {
        if let Some(table) = table {
            return Ok(Self::Table(table));
        }
        let mut guessed = BTreeMap::new();
        for from in regions {
            for to in regions.iter().filter(|to| from < to) {
                let (a, b) =
                    (catalogue().require(from)?.location, catalogue().require(to)?.location);
                let factor = random.laplace(RttModel::STATED_ERROR.median).exp();
                let rtt = RttModel::fitted().rtt_between(a, b).mul_f64(factor);
                let light_s = 2.0 * distance_km(a, b) / FIBRE_KM_PER_MS / 1e3;
                let rtt = rtt.max(Duration::from_secs_f64(light_s));
                guessed.insert((from.clone(), to.clone()), rtt);
            }
        }
        Ok(Self::Guessed(guessed))
    }

    pub(super) fn between(&self, from: &RegionId, to: &RegionId) -> Option<Duration> {
        match self {
            Self::Table(table) => table.rtt(&from.clone().into(), &to.clone().into()),
            Self::Guessed(guessed) => {
                let pair = if from < to { (from, to) } else { (to, from) };
                guessed.get(&(pair.0.clone(), pair.1.clone())).copied()
            }
        }
    }

    /// Returns a router from one region to another over relays in these, the two themselves left
    /// out.
    pub(super) fn router(&self, from: &RegionId, to: &RegionId, relays: &[RegionId]) -> Router {
        Router::new(from, to, relays, |a, b| self.between(a, b))
    }
}

/// Returns the relays that are neither end.
pub(super) fn others(relays: &[RegionId], from: &RegionId, to: &RegionId) -> Vec<RegionId> {
    relays.iter().filter(|id| *id != from && *id != to).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_vary_with_the_seed_by_the_models_error() {
        let regions: BTreeSet<RegionId> =
            catalogue().regions().map(|region| region.id.clone()).take(40).collect();
        let rtts = |seed| Rtts::new(None, &regions, &mut Random::new(seed)).unwrap();
        let (one, again, two) = (rtts(1), rtts(1), rtts(2));
        let mut off: Vec<f64> = Vec::new();
        for from in &regions {
            for to in regions.iter().filter(|to| *to != from) {
                assert_eq!(one.between(from, to), again.between(to, from));
                let (a, b) = (one.between(from, to).unwrap(), two.between(from, to).unwrap());
                off.push((a.as_secs_f64() / b.as_secs_f64()).ln().abs());
            }
        }
        let median = crate::harness::quantile(&off, 0.5);
        assert!((0.07..0.17).contains(&median), "two errors of 7 %: {median}");
    }
}
