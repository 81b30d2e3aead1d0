//! CP's four use cases [CP III, VII-B], as problems drawn from a seed.

use serde::Deserialize;
use tradewind_model::cost::Prices;
use tradewind_model::{Continent, StartUp};
use tradewind_plan::{Inputs, Problem, ProblemError, RelayType};
use tradewind_units::{Bandwidth, Bytes, Duration, Money, PricePerGb, RegionId};

use super::world::{EndPoint, World};
use crate::harness::catalogue;

/// Pattern of the flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UseCase {
    /// One source, near any region or in the setting's, to many destinations.
    OneToMany,
    /// A full mesh of servers, or part of one, which are not limited by their last mile.
    ManyToMany,
    /// Pairs that share nothing.
    ManyOneToOne,
    /// Sources in Asia, Europe and North America; 90, 7 and 3 % of the destinations take the
    /// nearest, second nearest and farthest.
    LocalizedOneToMany,
}

/// Continents of the localized use case's sources [CP VII-B].
const CONTINENTS: [Continent; 3] = [Continent::Asia, Continent::Europe, Continent::NorthAmerica];

/// Everything that determines a problem but the seed.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Pattern of the flows.
    pub use_case: UseCase,
    /// The region that the source of [`UseCase::OneToMany`] lies in; near any region when absent.
    pub source: Option<RegionId>,
    /// Number of flows.
    pub flows: usize,
    /// Volume of each.
    pub volume: Bytes,
    /// Budget for each.
    pub budget_per_flow: Money,
    /// Set-up of a relay.
    pub set_up: Money,
    /// Egress of a relay.
    pub egress: PricePerGb,
    /// Capacity of a relay.
    pub capacity: Bandwidth,
    /// Rate of one flow through a relay.
    pub per_connection: Bandwidth,
    /// Last mile of end points with one flow; those of servers with many flows are not limited [CP
    /// VII-A].
    pub last_mile: Bandwidth,
    /// Bound of the RTT between an end point and its region.
    pub near: Duration,
}

impl Setting {
    /// Returns the problem that this seed draws with relays in these regions. Flows are drawn one
    /// after the other: with fewer of them, the first ones are the same.
    ///
    /// # Errors
    /// When the setting makes no sense, e.g. without flows.
    pub fn problem(&self, regions: &[RegionId], seed: u64) -> Result<Problem, ProblemError> {
        let mut world = World::new(regions, self.near, seed);
        let pairs = pairs(&mut world, self);
        let (flows, legs) = world.flows(&pairs, self.volume);
        let relay = RelayType {
            capacity: self.capacity,
            per_connection: Some(self.per_connection),
            set_up: self.set_up,
            ..RelayType::cloudpilot()
        };
        let budget = self.budget_per_flow.times(self.flows as u64);
        let mut inputs = Inputs::cloudpilot(flows, world.regions(), legs, budget);
        inputs.relay_types = vec![relay];
        inputs.prices = Prices::Flat(self.egress);
        inputs.start_up = StartUp::Ignored;
        Problem::new(inputs)
    }

    /// Checks that the setting can be drawn with these regions.
    pub(super) fn check(&self, regions: &[RegionId]) -> Result<(), String> {
        let there = |continent: Continent| {
            regions.iter().filter_map(|id| catalogue().region(id)).any(|r| r.continent == continent)
        };
        let lacking = CONTINENTS.into_iter().find(|continent| !there(*continent));
        match lacking.filter(|_| self.use_case == UseCase::LocalizedOneToMany) {
            Some(continent) => Err(format!(
                "localized-one-to-many: `regions` has none in {}, where a source lies",
                continent.as_str()
            )),
            None => Ok(()),
        }
    }
}

fn pairs(world: &mut World, setting: &Setting) -> Vec<(EndPoint, EndPoint)> {
    let last_mile = Some(setting.last_mile);
    let single = |world: &mut World| world.anywhere().with_last_mile(last_mile);
    let star = |world: &mut World, source: EndPoint| {
        let source = source.with_last_mile(None);
        (0..setting.flows).map(|_| (source.clone(), single(world))).collect()
    };
    match setting.use_case {
        UseCase::OneToMany => {
            let source = match &setting.source {
                Some(region) => world.inside(region),
                None => world.anywhere(),
            };
            star(world, source)
        }
        UseCase::ManyToMany => mesh(world, setting.flows),
        UseCase::ManyOneToOne => {
            (0..setting.flows).map(|_| (single(world), single(world))).collect()
        }
        UseCase::LocalizedOneToMany => {
            let server = |continent| world.on_continent(continent).with_last_mile(None);
            let sources = CONTINENTS.map(server);
            let flow = |_| {
                let destination = world.anywhere().with_last_mile(last_mile);
                let mut by_distance = sources.clone();
                by_distance.sort_by_key(|source| source.rtt_to(&destination));
                let nearest = match world.draw(100) {
                    0..90 => 0,
                    90..97 => 1,
                    _ => 2,
                };
                (by_distance[nearest].clone(), destination)
            };
            (0..setting.flows).map(flow).collect()
        }
    }
}

/// Returns as many ordered pairs as wanted, drawn from those of the smallest full mesh that has
/// them.
fn mesh(world: &mut World, flows: usize) -> Vec<(EndPoint, EndPoint)> {
    let mut servers: Vec<EndPoint> = Vec::new();
    while servers.len() * servers.len().saturating_sub(1) < flows {
        servers.push(world.anywhere().with_last_mile(None));
    }
    let mut pairs = Vec::new();
    for (from, source) in servers.iter().enumerate() {
        let others = servers.iter().enumerate().filter(|(to, _)| *to != from);
        pairs.extend(others.map(|(_, destination)| (source.clone(), destination.clone())));
    }
    while pairs.len() > flows {
        let surplus = world.draw(pairs.len());
        pairs.swap_remove(surplus);
    }
    pairs
}
