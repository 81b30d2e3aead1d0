//! What the lab's programs share: traffic between hosts, and tables of checks.
#![allow(dead_code, unreachable_pub, reason = "each program uses a part")]

pub mod check;
pub mod traffic;

use tradewind_lab::{Lab, LabError, LabOptions};
use tradewind_model::Catalogue;
use tradewind_units::HostId;
use tradewind_wan::Topology;

/// Starts a lab of a topology in text.
pub fn start(topology: &str, options: &LabOptions) -> Result<Lab, LabError> {
    let topology = Topology::parse(topology, &Catalogue::builtin())
        .unwrap_or_else(|error| panic!("a topology of ours is wrong: {error}\n{topology}"));
    Lab::start(&topology, options)
}

/// A host's name.
pub fn host(name: &str) -> HostId {
    HostId::new(name).expect("names of ours are names")
}

/// The median; NaN for nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}
