//! CP's four use cases [CP III, VII-B], as problems drawn from a seed.

use std::fmt;

use tradewind_model::cost::Prices;
use tradewind_model::{Continent, StartUp};
use tradewind_plan::{Inputs, Problem, ProblemError, RelayType};
use tradewind_units::{Bandwidth, Money, PricePerGb};

use super::world::{EndPoint, World};

/// Who sends to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UseCase {
    /// One source in Tokyo to destinations near any region.
    TokyoToMany,
    /// One source near any region to many destinations.
    OneToMany,
    /// A full mesh of servers, or part of one, which are not limited by their last mile.
    ManyToMany,
    /// Pairs that share nothing.
    ManyOneToOne,
    /// Sources in Asia, Europe and North America; destinations take the nearest, second nearest, farthest with
    /// 90, 7 and 3 %.
    LocalizedOneToMany,
}

impl UseCase {
    /// The four of \[CP III\], in its order.
    pub const ALL: [Self; 4] =
        [Self::OneToMany, Self::ManyToMany, Self::ManyOneToOne, Self::LocalizedOneToMany];
}

impl fmt::Display for UseCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TokyoToMany => "Tokyo to many",
            Self::OneToMany => "one-to-many",
            Self::ManyToMany => "many-to-many",
            Self::ManyOneToOne => "many one-to-one",
            Self::LocalizedOneToMany => "localized one-to-many",
        })
    }
}

/// What an experiment varies; [`Setting::paper`] is CP's standard.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Who sends to whom.
    pub use_case: UseCase,
    /// How many flows.
    pub flows: usize,
    /// Budget in dollars a flow.
    pub usd_per_flow: f64,
    /// Set-up of a relay in dollars.
    pub set_up_usd: f64,
    /// Egress of a relay in dollars a GB.
    pub usd_per_gb: f64,
    /// Capacity of a relay in Mbit/s; CP's limit of one connection holds at CP's capacity only.
    pub relay_mbps: f64,
    /// Last mile of end points with one flow, in Mbit/s.
    pub last_mile_mbps: f64,
}

impl Setting {
    /// 50 cents a flow and a relay, 8 cents a GB, relays of 2 Gbit/s, last miles of 1 Gbit/s [CP VII-A].
    #[must_use]
    pub const fn paper(use_case: UseCase, flows: usize) -> Self {
        Self {
            use_case,
            flows,
            usd_per_flow: 0.50,
            set_up_usd: 0.50,
            usd_per_gb: 0.08,
            relay_mbps: 2000.0,
            last_mile_mbps: 1000.0,
        }
    }

    /// The problem that this seed draws. Flows are drawn one after the other: with fewer of them, the first
    /// ones are the same.
    ///
    /// # Errors
    /// When the setting makes no sense, e.g. without flows.
    ///
    /// # Panics
    /// When an amount or rate of the setting is none.
    pub fn problem(&self, seed: u64) -> Result<Problem, ProblemError> {
        let mut world = World::new(seed);
        let pairs = pairs(&mut world, self);
        let (flows, legs) = world.flows(&pairs);
        let usd = |amount| Money::from_usd(amount).expect("a setting's amount");
        let mut relay = RelayType::cloudpilot();
        relay.set_up = usd(self.set_up_usd);
        let capacity = mbps(self.relay_mbps);
        if capacity != relay.capacity {
            relay.per_connection = None;
        }
        relay.capacity = capacity;
        let budget = usd(self.usd_per_flow * self.flows as f64);
        let mut inputs = Inputs::cloudpilot(flows, world.regions(), legs, budget);
        inputs.relay_types = vec![relay];
        let price = PricePerGb::from_usd_per_gb(self.usd_per_gb).expect("a setting's price");
        inputs.prices = Prices::Flat(price);
        inputs.start_up = StartUp::Ignored;
        Problem::new(inputs)
    }
}

fn mbps(rate: f64) -> Bandwidth {
    Bandwidth::from_mbps(rate).expect("a setting's rate")
}

fn pairs(world: &mut World, setting: &Setting) -> Vec<(EndPoint, EndPoint)> {
    let last_mile = Some(mbps(setting.last_mile_mbps));
    let single = |world: &mut World| world.anywhere().with_last_mile(last_mile);
    let star = |world: &mut World, source: EndPoint| {
        let source = source.with_last_mile(None);
        (0..setting.flows).map(|_| (source.clone(), single(world))).collect()
    };
    match setting.use_case {
        UseCase::TokyoToMany => {
            let source = world.tokyo();
            star(world, source)
        }
        UseCase::OneToMany => {
            let source = world.anywhere();
            star(world, source)
        }
        UseCase::ManyToMany => mesh(world, setting.flows),
        UseCase::ManyOneToOne => {
            (0..setting.flows).map(|_| (single(world), single(world))).collect()
        }
        UseCase::LocalizedOneToMany => {
            let continents = [Continent::Asia, Continent::Europe, Continent::NorthAmerica];
            let server = |continent| world.on_continent(continent).with_last_mile(None);
            let sources = continents.map(server);
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

/// As many ordered pairs as asked for, drawn from those of the smallest full mesh that has them.
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
