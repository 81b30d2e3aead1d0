//! Packet services in numbers: their delays [JQ 5.1], their costs [JQ 5.1.1], and recovery by
//! coding [JQ 5.2].

pub mod cost;
pub mod delay;
pub mod recovery;

use tradewind_model::Continent;

/// The paper's parts of the world: its United States are our North America.
const PARTS: [(&str, Continent); 4] = [
    ("US", Continent::NorthAmerica),
    ("EU", Continent::Europe),
    ("AS", Continent::Asia),
    ("OC", Continent::Oceania),
];
