//! The cloud-proxy placement problem [CP V], for paths of any number of relays.
//!
//! Given flows with volumes, regions that may hold relays, the legs between them, prices and a
//! budget: choose relays and paths so that the sum of all completion times is least, the cost is
//! within the budget, and no relay carries more than its capacity. Set-up is paid once for each
//! relay, egress by each flow at each hop.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tradewind_model::catalogue::Egress;
use tradewind_model::cost::{Prices, path_cost};
use tradewind_model::fct::{Completion, path_completion};
use tradewind_model::{Leg, ModelError, StartUp};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, Money, RegionId, RelayId, SiteId};

use crate::candidates::{Candidate, candidates_of};

/// Most relays that a path may have. Chosen: CDD tried four; more never paid.
pub const MAX_RELAYS: usize = 4;

/// What an application wants carried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flow {
    /// Its name.
    pub id: FlowId,
    /// Where it starts.
    pub source: SiteId,
    /// Where it ends.
    pub destination: SiteId,
    /// How much is to be carried.
    pub volume: Bytes,
}

/// One end of a leg. A host in a region and a relay in the same region are two places: their
/// windows and caps differ.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A flow's end.
    Site(SiteId),
    /// A relay.
    Relay(RegionId),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Site(site) => write!(f, "site {site}"),
            Self::Relay(region) => write!(f, "relay {region}"),
        }
    }
}

/// Legs by their ends, in order; a pair without an entry cannot be used.
pub type Legs = BTreeMap<(Place, Place), Leg>;

/// Everything a problem is made of, unchecked.
#[derive(Debug, Clone)]
pub struct Inputs {
    /// What is to be carried.
    pub flows: Vec<Flow>,
    /// Regions that may hold relays.
    pub regions: Vec<RegionId>,
    /// What is known of each leg: measured, imported or guessed.
    pub legs: Legs,
    /// Sites that lie inside a region: the last relay's egress to them has that region's price, else the Internet's.
    pub site_regions: BTreeMap<SiteId, RegionId>,
    /// What relays and their egress cost.
    pub prices: Prices,
    /// Most that the plan may cost.
    pub budget: Money,
    /// What one relay can carry, all its flows together, each counted once [CP V-B].
    pub relay_capacity: Bandwidth,
    /// Most relays on a path: 2 in CP, at most [`MAX_RELAYS`].
    pub max_relays: usize,
    /// How sessions start.
    pub start_up: StartUp,
}

/// Why inputs make no problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// Two flows of one name.
    #[error("flow `{0}`: named twice")]
    FlowTwice(FlowId),
    /// A flow that goes nowhere.
    #[error("flow `{flow}`: from `{site}` to itself")]
    FlowToItself {
        /// The flow.
        flow: FlowId,
        /// Both its ends.
        site: SiteId,
    },
    /// A flow without volume.
    #[error("flow `{0}`: a volume above zero is needed")]
    NoVolume(FlowId),
    /// Two candidate regions of one name.
    #[error("region `{0}`: named twice")]
    RegionTwice(RegionId),
    /// A candidate region whose relays could not be named.
    #[error("region `{0}`: its name leaves no room for a relay's number")]
    RegionName(RegionId),
    /// Paths longer than allowed.
    #[error("relays on a path: at most {MAX_RELAYS}, not {0}")]
    TooManyRelays(usize),
    /// No legs lead from the flow's source to its destination, directly or over relays.
    #[error(
        "flow `{flow}`: no path from `{source_site}` to `{destination}` has all its legs known"
    )]
    NoPath {
        /// The flow.
        flow: FlowId,
        /// Where it starts.
        source_site: SiteId,
        /// Where it ends.
        destination: SiteId,
    },
    /// A region without price.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// A problem that makes sense.
#[derive(Debug, Clone)]
pub struct Problem {
    inputs: Inputs,
    candidates: Vec<Vec<Candidate>>,
}

impl Problem {
    /// Checks the inputs and works out the paths worth considering.
    ///
    /// Costs one completion-time model for each path that the rates do not rule out.
    ///
    /// # Errors
    /// When a name is taken twice, a flow makes no sense or has no path, or a price is missing.
    pub fn new(inputs: Inputs) -> Result<Self, ProblemError> {
        check_flows(&inputs.flows)?;
        check_regions(&inputs)?;
        let mut problem = Self { inputs, candidates: Vec::new() };
        let flows = problem.inputs.flows.iter();
        let candidates = flows.map(|flow| candidates_of(&problem, flow));
        problem.candidates = candidates.collect::<Result<_, _>>()?;
        Ok(problem)
    }

    /// The flows, in the order given.
    #[must_use]
    pub fn flows(&self) -> &[Flow] {
        &self.inputs.flows
    }

    /// The regions that may hold relays, in the order given.
    #[must_use]
    pub fn regions(&self) -> &[RegionId] {
        &self.inputs.regions
    }

    /// Most that a plan may cost.
    #[must_use]
    pub const fn budget(&self) -> Money {
        self.inputs.budget
    }

    /// What one relay can carry.
    #[must_use]
    pub const fn relay_capacity(&self) -> Bandwidth {
        self.inputs.relay_capacity
    }

    /// Most relays on a path.
    #[must_use]
    pub const fn max_relays(&self) -> usize {
        self.inputs.max_relays
    }

    /// What setting up one relay costs.
    #[must_use]
    pub const fn set_up(&self) -> Money {
        self.inputs.prices.set_up()
    }

    /// The paths worth considering for the flow at this place of [`Problem::flows`]; the direct one first, if there is one.
    #[must_use]
    pub fn candidates(&self, flow: usize) -> &[Candidate] {
        &self.candidates[flow]
    }

    /// The legs of a flow over these relays' regions; `None` when one of them is not known.
    ///
    /// A leg that ends at a relay carries no more than the relay can.
    #[must_use]
    pub fn legs(&self, flow: &Flow, relays: &[RegionId]) -> Option<Vec<Leg>> {
        let ends = |site: &SiteId| std::iter::once(Place::Site(site.clone()));
        let between = relays.iter().map(|region| Place::Relay(region.clone()));
        let places = ends(&flow.source).chain(between).chain(ends(&flow.destination));
        let places: Vec<Place> = places.collect();
        let pairs = places.windows(2);
        pairs
            .map(|pair| {
                let leg = *self.inputs.legs.get(&(pair[0].clone(), pair[1].clone()))?;
                let direct = relays.is_empty();
                Some(if direct { leg } else { leg.capped_at(self.inputs.relay_capacity) })
            })
            .collect()
    }

    /// Predicted completion of a flow over these relays' regions; `None` when a leg is not known.
    #[must_use]
    pub fn completion(&self, flow: &Flow, relays: &[RegionId]) -> Option<Completion> {
        let legs = self.legs(flow, relays)?;
        Some(path_completion(&legs, flow.volume, self.inputs.start_up))
    }

    /// Predicted completion time of a flow over these relays' regions; `None` when a leg is not known.
    #[must_use]
    pub fn fct(&self, flow: &Flow, relays: &[RegionId]) -> Option<Duration> {
        self.completion(flow, relays).map(|completion| completion.total())
    }

    /// What a flow pays for egress over these relays' regions.
    ///
    /// # Errors
    /// When a price is missing.
    pub fn egress_cost(&self, flow: &Flow, relays: &[RegionId]) -> Result<Money, ModelError> {
        let inside = self.inputs.site_regions.get(&flow.destination);
        let destination = inside.map_or(Egress::Internet, Egress::Region);
        let cost = path_cost(&self.inputs.prices, relays, destination, flow.volume)?;
        Ok(cost.egress)
    }

    /// The capacity that a flow of this completion time takes at each of its relays: its mean rate [CP V-B].
    #[must_use]
    pub fn rate_taken(&self, flow: &Flow, fct: Duration) -> Bandwidth {
        Bandwidth::from_transfer(flow.volume, fct).unwrap_or(Bandwidth::MAX)
    }
}

fn check_flows(flows: &[Flow]) -> Result<(), ProblemError> {
    let mut seen = BTreeSet::new();
    for flow in flows {
        if !seen.insert(&flow.id) {
            return Err(ProblemError::FlowTwice(flow.id.clone()));
        }
        if flow.source == flow.destination {
            let (flow, site) = (flow.id.clone(), flow.source.clone());
            return Err(ProblemError::FlowToItself { flow, site });
        }
        if flow.volume == Bytes::ZERO {
            return Err(ProblemError::NoVolume(flow.id.clone()));
        }
    }
    Ok(())
}

fn check_regions(inputs: &Inputs) -> Result<(), ProblemError> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = inputs.regions.iter().find(|region| !seen.insert(*region)) {
        return Err(ProblemError::RegionTwice(twice.clone()));
    }
    let nameless = |region: &&RegionId| RelayId::new(format!("{region}.{}", u16::MAX)).is_err();
    if let Some(region) = inputs.regions.iter().find(nameless) {
        return Err(ProblemError::RegionName(region.clone()));
    }
    if inputs.max_relays > MAX_RELAYS {
        return Err(ProblemError::TooManyRelays(inputs.max_relays));
    }
    Ok(())
}
