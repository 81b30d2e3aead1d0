//! The numeric parts of CDD's experiments on routes: `cdd-hops`, `cdd-four`, `cdd-small`. Prints
//! the tables of `papers/planner.md` (relay chains by the model).
//!
//! `cargo run --release -p tradewind-plan --example routing [-- FILE]`, where FILE is a CSV of
//! measured RTTs, `src,dst,rtt_ms`; without it RTTs come from the distance model.

#![allow(
    clippy::disallowed_methods,
    reason = "a command that reads a file, not part of the pure library"
)]

mod cdd;

use std::process::ExitCode;

use tradewind_model::cost::Prices;
use tradewind_model::leg::{DEFAULT_WINDOW, Loss};
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Catalogue, RttModel, StartUp};
use tradewind_plan::RelayType;
use tradewind_plan::routing::advice::{Settings, completion};
use tradewind_plan::routing::table::RttTable;
use tradewind_plan::routing::{MinMaxPath, Router};
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, RegionId};

fn main() -> ExitCode {
    let world = match std::env::args().nth(1) {
        None => Ok(World { catalogue: Catalogue::builtin(), measured: None }),
        Some(path) => World::read(&path),
    };
    match world {
        Ok(world) => {
            cdd::report(&world);
            ExitCode::SUCCESS
        }
        Err(message) => {
            eprintln!("routing: {message}");
            ExitCode::FAILURE
        }
    }
}

/// Regions and the RTTs between them.
struct World {
    catalogue: Catalogue,
    measured: Option<RttTable>,
}

impl World {
    fn read(path: &str) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
        let table = RttTable::parse(&text).map_err(|error| format!("{path}: {error}"))?;
        Ok(Self { catalogue: Catalogue::builtin(), measured: Some(table) })
    }

    fn rtt(&self, from: &RegionId, to: &RegionId) -> Option<Duration> {
        match &self.measured {
            Some(table) => table.rtt(&from.clone().into(), &to.clone().into()),
            None => {
                let at = |id| self.catalogue.region(id).map(|region| region.location);
                Some(RttModel::fitted().rtt_between(at(from)?, at(to)?))
            }
        }
    }

    /// Returns the regions of a cloud whose RTTs are known, by name.
    fn cloud(&self, cloud: &str) -> Vec<RegionId> {
        let known = |id: &RegionId| match &self.measured {
            Some(table) => table.places().iter().any(|place| place.as_str() == id.as_str()),
            None => true,
        };
        let ids = self.catalogue.regions().map(|region| region.id.clone());
        ids.filter(|id| id.cloud() == cloud && known(id)).collect()
    }

    /// Returns a router from one region to another over relays in these, except the two themselves.
    fn router(&self, from: &str, to: &str, relays: &[RegionId]) -> Router {
        let [from, to] = [from, to].map(region);
        let relays: Vec<RegionId> =
            relays.iter().filter(|id| **id != from && **id != to).cloned().collect();
        Router::new(&from, &to, &relays, |a, b| self.rtt(a, b))
    }
}

fn region(id: &str) -> RegionId {
    RegionId::new(id).expect("written here")
}

fn mbps(rate: f64) -> Bandwidth {
    Bandwidth::from_mbps(rate).expect("written here")
}

/// Returns CDD's conditions: default windows everywhere; losses, which it does not state, on legs
/// to its end points.
fn plain(volume: u64, loss_percent: f64) -> Settings {
    let ratio = Ratio::new(loss_percent / 100.0).expect("written here");
    let loss = Loss { ratio, response: LossResponse::Cubic };
    Settings {
        volume: Bytes::new(volume),
        most_relays: 4,
        window: DEFAULT_WINDOW,
        relay_window: DEFAULT_WINDOW,
        last_mile: Some(mbps(1000.0)),
        loss: (loss_percent > 0.0).then_some(loss),
        connections: 1,
        relay_type: RelayType::cloudpilot(),
        prices: Prices::cloudpilot(),
        source: None,
        destination: None,
        start_up: StartUp::Cold,
    }
}

fn seconds(path: &MinMaxPath, settings: &Settings) -> f64 {
    completion(path, settings).total().as_secs_f64()
}

/// Returns the quantile of the values for this share; NaN if there are none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let index = (sorted.len().saturating_sub(1) as f64 * share).round() as usize;
    sorted.get(index).copied().unwrap_or(f64::NAN)
}
