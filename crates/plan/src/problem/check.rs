//! Validation of inputs, and the shares of a source's caps among its flows.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_model::fct::MAX;
use tradewind_model::sharing::max_min;
use tradewind_model::{Leg, ModelError};
use tradewind_units::{
    Bandwidth, Bytes, Duration, FlowId, Money, RegionId, RelayId, RelayTypeId, SiteId,
};

use super::{Inputs, MAX_RELAYS, Offer, Problem};

/// The reason why inputs were refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProblemError {
    /// No flows.
    #[error("flows: at least one is needed")]
    NoFlows,
    /// Two flows with the same name.
    #[error("flow `{0}`: named twice")]
    FlowTwice(FlowId),
    /// A flow whose source is its destination.
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
    /// A flow of weight zero.
    #[error("flow `{0}`: a weight of 1 or more is needed")]
    NoWeight(FlowId),
    /// Two candidate regions with the same name.
    #[error("region `{0}`: named twice")]
    RegionTwice(RegionId),
    /// A candidate region whose relays could not be named.
    #[error("region `{0}`: its name leaves no room for a relay's number")]
    RegionName(RegionId),
    /// No relay types.
    #[error("relay types: at least one is needed")]
    NoRelayTypes,
    /// Two relay types with the same name.
    #[error("relay type `{0}`: named twice")]
    RelayTypeTwice(RelayTypeId),
    /// Paths longer than allowed.
    #[error("relays on a path: at most {MAX_RELAYS}, not {0}")]
    TooManyRelays(usize),
    /// No path from the flow's source to its destination has all its legs known, directly or over
    /// relays.
    #[error(
        "flow `{flow}`: no path from `{source_site}` to `{destination}` has all its legs known"
    )]
    NoPath {
        /// The flow.
        flow: FlowId,
        /// Its source.
        source_site: SiteId,
        /// Its destination.
        destination: SiteId,
    },
    /// A deadline that no path meets at any cost.
    #[error(
        "flow `{flow}`: its deadline is {:.3} s, its fastest path takes {:.3} s",
        deadline.as_secs_f64(),
        fastest.as_secs_f64()
    )]
    Deadline {
        /// The flow.
        flow: FlowId,
        /// Its deadline.
        deadline: Duration,
        /// The completion time of its fastest path.
        fastest: Duration,
    },
    /// Costs that could overflow.
    #[error(
        "flows: their dearest paths, relays and moves included, come to more than {MAX_USD:e} \
         dollars together"
    )]
    TooMuchMoney,
    /// A region without price.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Greatest total cost in dollars of a problem's flows on their most expensive paths, each over
/// relays of its own. Chosen: half of what 64 bits hold in nano-dollars, so that no solver's sum
/// overflows.
const MAX_USD: f64 = 4e9;

/// Refuses a problem in which the cost of some plan could overflow.
pub(super) fn money(problem: &Problem) -> Result<(), ProblemError> {
    if dearest_usd(problem) > MAX_USD { Err(ProblemError::TooMuchMoney) } else { Ok(()) }
}

/// Returns the extra cost of a relay beyond a quota, more than twice the cost of any plan; refuses
/// a problem where the sum of as many as flows have hops could overflow.
pub(super) fn beyond(problem: &Problem) -> Result<Money, ProblemError> {
    let usd = 2.0 * dearest_usd(problem) + 0.01;
    let hops = (problem.flows().len() * problem.max_relays()) as f64;
    if usd * hops > MAX_USD {
        return Err(ProblemError::TooMuchMoney);
    }
    Money::from_usd(usd).map_err(|_| ProblemError::TooMuchMoney)
}

impl Problem {
    /// Returns the flows of which the direct path or a candidate reaches the longest time that the
    /// model can express ([`MAX`]).
    pub fn beyond_longest(&self) -> impl Iterator<Item = &FlowId> {
        let flows = self.inputs.flows.iter().enumerate();
        let is_beyond = move |flow: usize| {
            let candidates = self.candidates[flow].iter().map(|candidate| candidate.fct);
            candidates.chain(self.direct_fct(flow)).any(|fct| fct >= MAX)
        };
        flows.filter(move |(at, _)| is_beyond(*at)).map(|(_, flow)| &flow.id)
    }
}

/// Returns the total cost of all flows on their most expensive paths, each over relays of its own.
fn dearest_usd(problem: &Problem) -> f64 {
    let hours = problem.hours().last().copied().unwrap_or(1) as f64;
    let hourly = |offer: &Offer| problem.inputs.hourly.get(&offer.relay_type.id);
    let machine = |offer: &Offer| hourly(offer).map_or(0.0, |price| price.as_usd() * hours);
    let dearest = |flow: usize| -> f64 {
        let cost = |candidate: &crate::Candidate| {
            let set_up = |relay: &usize| {
                let offer = &problem.offers()[*relay];
                offer.relay_type.set_up.as_usd() + machine(offer)
            };
            candidate.cost.as_usd() + candidate.relays.iter().map(set_up).sum::<f64>()
        };
        problem.candidates(flow).iter().map(cost).fold(0.0, f64::max)
    };
    (0..problem.flows().len()).map(dearest).sum()
}

/// Refuses invalid flows, regions and relay types.
pub(super) fn inputs(inputs: &Inputs) -> Result<(), ProblemError> {
    flows(inputs)?;
    places(inputs)
}

/// Refuses invalid regions and relay types.
pub(super) fn places(inputs: &Inputs) -> Result<(), ProblemError> {
    regions(inputs)?;
    if inputs.relay_types.is_empty() {
        return Err(ProblemError::NoRelayTypes);
    }
    let mut seen = BTreeSet::new();
    if let Some(twice) = inputs.relay_types.iter().find(|relay| !seen.insert(&relay.id)) {
        return Err(ProblemError::RelayTypeTwice(twice.id.clone()));
    }
    if inputs.max_relays > MAX_RELAYS {
        return Err(ProblemError::TooManyRelays(inputs.max_relays));
    }
    Ok(())
}

fn flows(inputs: &Inputs) -> Result<(), ProblemError> {
    if inputs.flows.is_empty() {
        return Err(ProblemError::NoFlows);
    }
    let mut seen = BTreeSet::new();
    for flow in &inputs.flows {
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
        if flow.weight == 0 {
            return Err(ProblemError::NoWeight(flow.id.clone()));
        }
    }
    Ok(())
}

fn regions(inputs: &Inputs) -> Result<(), ProblemError> {
    let mut seen = BTreeSet::new();
    if let Some(twice) = inputs.regions.iter().find(|region| !seen.insert(*region)) {
        return Err(ProblemError::RegionTwice(twice.clone()));
    }
    let nameless = |region: &&RegionId| RelayId::new(format!("{region}.{}", u16::MAX)).is_err();
    if let Some(region) = inputs.regions.iter().find(nameless) {
        return Err(ProblemError::RegionName(region.clone()));
    }
    Ok(())
}

/// A flow's share of its source's caps; `None` where there is no cap, or it suffices for all flows.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Share {
    /// The share on any path.
    pub(super) all: Option<Bandwidth>,
    /// The share on paths whose first hop leaves the source's region.
    pub(super) outside: Option<Bandwidth>,
}

/// Returns each flow's share of its source's caps when all send at once \[TRN\]: max-min fair, with
/// the rate on its fastest path as each flow's demand.
///
/// All flows count against the cap on traffic that leaves the region: where some take a relay
/// inside it, the others get more than this.
pub(super) fn shares(problem: &Problem) -> Vec<Share> {
    let inputs = problem.inputs();
    let all = fair_shares(problem, &inputs.site_caps, |flow| demand(problem, flow, |_| true));
    let leaving = |flow: usize| demand(problem, flow, |path| problem.leaves_region(flow, path));
    let outside = fair_shares(problem, &inputs.site_caps_outside, leaving);
    all.into_iter().zip(outside).map(|(all, outside)| Share { all, outside }).collect()
}

fn fair_shares(
    problem: &Problem,
    caps: &BTreeMap<SiteId, Bandwidth>,
    demand: impl Fn(usize) -> Bandwidth,
) -> Vec<Option<Bandwidth>> {
    let mut by_source: BTreeMap<&SiteId, Vec<usize>> = BTreeMap::new();
    for (index, flow) in problem.flows().iter().enumerate() {
        by_source.entry(&flow.source).or_default().push(index);
    }
    let mut shares = vec![None; problem.flows().len()];
    for (site, cap) in caps {
        let flows = by_source.get(site).map(Vec::as_slice).unwrap_or_default();
        let demands: Vec<Bandwidth> = flows.iter().map(|flow| demand(*flow)).collect();
        for ((flow, demand), share) in flows.iter().zip(&demands).zip(max_min(*cap, &demands)) {
            if share < *demand {
                shares[*flow] = Some(share);
            }
        }
    }
    shares
}

/// Returns the rate that a flow would reach if it were alone at its source, on the fastest of the
/// paths that `counts` selects.
fn demand(problem: &Problem, flow: usize, counts: impl Fn(&[usize]) -> bool) -> Bandwidth {
    let candidates = problem.candidates(flow).iter();
    let rates = candidates.filter(|candidate| counts(&candidate.relays)).filter_map(|candidate| {
        let legs = problem.legs(flow, &candidate.relays)?;
        legs.iter().map(Leg::rate).min()
    });
    rates.max().unwrap_or(Bandwidth::MAX)
}
