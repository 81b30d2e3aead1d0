//! Code shared by the lab's programs: traffic between hosts, and tables of checks.
#![allow(dead_code, unreachable_pub, unused_imports, reason = "each program uses a part")]

pub mod check;
pub mod traffic;

use tradewind_lab::{Lab, LabError, LabOptions};
use tradewind_model::Catalogue;
pub use tradewind_model::statistics::median_or_nan as median;
use tradewind_units::HostId;
use tradewind_wan::Topology;

/// Starts a lab of a topology given as text.
pub fn start(topology: &str, options: &LabOptions) -> Result<Lab, LabError> {
    let topology = Topology::parse(topology, &Catalogue::builtin())
        .unwrap_or_else(|error| panic!("a topology of ours is wrong: {error}\n{topology}"));
    Lab::start(&topology, options)
}

/// Parses a host's name.
pub fn host(name: &str) -> HostId {
    HostId::new(name).expect("names of ours are names")
}

/// Returns a topology of the sites `a` and `b` whose pair has the keys of `path`.
pub fn two_sites(path: &str) -> String {
    format!(
        "[[site]]\nid = \"a\"\n[[site]]\nid = \"b\"\n[[pair]]\nbetween = [\"a\", \"b\"]\n{path}\n"
    )
}
