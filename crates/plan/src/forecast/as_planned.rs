//! A plan for predicted flows, applied to the true flows without planning again [CP VIII].
//!
//! A true flow takes the path that was planned between its sites, if there is one, the path's
//! relays have capacity left for it, and the budget covers its egress; else it goes direct. Flows
//! are placed in the problem's order.

use std::collections::BTreeMap;

use tradewind_units::{Duration, Money, RelayId, SiteId};

use crate::plan::{Plan, PlannedFlow};
use crate::problem::{Flow, Problem};

/// The result for the true flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsPlanned {
    /// The completion time of each true flow, in the problem's order.
    pub fcts: Vec<Duration>,
    /// Set-up of all planned relays, used or not; egress and moves of the true flows.
    pub cost: Money,
    /// Flows that took their planned path over relays.
    pub relayed: usize,
    /// Flows that went direct for lack of capacity on the planned relays, or of budget.
    pub displaced: usize,
    /// Flows between sites for which no flow was predicted.
    pub unplanned: usize,
    /// Flows that missed their deadline.
    pub late: usize,
}

impl AsPlanned {
    /// Returns the sum of all completion times.
    #[must_use]
    pub fn total_fct(&self) -> Duration {
        self.fcts.iter().sum()
    }
}

/// A flow's path: its relays, the completion time, the rate that it uses at each relay, and its
/// cost.
struct CarriedFlow<'a> {
    relays: &'a [RelayId],
    fct: Duration,
    rate_bps: u64,
    cost: Money,
}

/// Carries the flows of `truth` by the plan that was made for `guessed`; `set_up` is spent already.
/// Returns `None` if a flow that cannot take its planned path has no direct one.
pub(super) fn as_planned(
    truth: &Problem,
    guessed: &[Flow],
    plan: Option<&Plan>,
    set_up: Money,
) -> Option<AsPlanned> {
    let planned: BTreeMap<(&SiteId, &SiteId), (&Plan, &PlannedFlow)> = plan
        .into_iter()
        .flat_map(|plan| guessed.iter().zip(&plan.flows).map(move |(flow, own)| (flow, plan, own)))
        .map(|(flow, plan, own)| ((&flow.source, &flow.destination), (plan, own)))
        .collect();
    let mut free = free_capacity_of(truth, plan);
    let mut result = AsPlanned {
        fcts: Vec::new(),
        cost: set_up,
        relayed: 0,
        displaced: 0,
        unplanned: 0,
        late: 0,
    };
    for (index, flow) in truth.flows().iter().enumerate() {
        let guess = planned.get(&(&flow.source, &flow.destination));
        result.unplanned += usize::from(guess.is_none());
        let carried = guess.and_then(|(plan, own)| carried_flow(truth, index, plan, own));
        let has_relays = guess.is_some_and(|(_, own)| !own.path.is_empty());
        let fits = |one: &CarriedFlow<'_>| {
            one.relays.iter().all(|relay| free.get(relay).is_some_and(|left| one.rate_bps <= *left))
                && result.cost + one.cost <= truth.budget()
        };
        let fct = if let Some(carried) = carried.filter(fits) {
            for relay in carried.relays {
                *free.entry(relay).or_default() -= carried.rate_bps;
            }
            result.cost = result.cost + carried.cost;
            result.relayed += usize::from(has_relays);
            carried.fct
        } else {
            result.displaced += usize::from(has_relays);
            result.cost = result.cost + truth.move_cost(index, &[]);
            truth.fct(index, &[])?
        };
        result.late += usize::from(flow.deadline.is_some_and(|deadline| fct > deadline));
        result.fcts.push(fct);
    }
    Some(result)
}

/// Returns the capacity of each planned relay, in bit/s.
fn free_capacity_of<'a>(truth: &Problem, plan: Option<&'a Plan>) -> BTreeMap<&'a RelayId, u64> {
    let relays = plan.map(|plan| plan.relays.as_slice()).unwrap_or_default().iter();
    let capacity = |region, relay_type| {
        let mut offers = truth.offers().iter();
        let same = offers.find(|o| (&o.region, &o.relay_type.id) == (region, relay_type));
        same.map_or(0, |offer| offer.capacity_bps())
    };
    relays.map(|relay| (&relay.id, capacity(&relay.region, &relay.relay_type))).collect()
}

/// Returns the planned path for a true flow; `None` if it does not exist or a price is missing.
fn carried_flow<'a>(
    truth: &Problem,
    flow: usize,
    plan: &Plan,
    planned: &'a PlannedFlow,
) -> Option<CarriedFlow<'a>> {
    let offers = plan.offers_of(truth, planned)?;
    let fct = truth.fct(flow, &offers)?;
    let cost = truth.egress_cost(flow, &offers).ok()? + truth.move_cost(flow, &offers);
    Some(CarriedFlow {
        relays: &planned.path,
        fct,
        rate_bps: truth.rate_used(flow, fct).as_bps(),
        cost,
    })
}
