//! Explanations of a flow's path: the constraint that binds it, and the cost and gain of each other
//! path.
//!
//! Each alternative is evaluated alone: the flow is moved there, all others keep their paths,
//! relays are packed anew, and the result is compared with budget, capacity, deadline and
//! objective. That names the one constraint that rules out that path; it does not prove that no
//! other change helps. In addition, for each relay that could be set up, the flows that would gain
//! from it are evaluated together ([`Group`]): a relay that pays off for none of them alone may do
//! so for all.

use serde::Serialize;
use tradewind_units::{Duration, FlowId, Money, RegionId, RelayTypeId, time};

use crate::packing::{pack, relays_used};
use crate::plan::{Plan, PlannedFlow, optional_seconds};
use crate::problem::{Inputs, Objective, Problem, ProblemError};

mod groups;

pub use groups::Group;

/// The reason why there is no explanation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExplainError {
    /// The problem has no such flow, or the plan leaves it out.
    #[error("no flow `{flow}`; there are {known}")]
    NoFlow {
        /// The requested name.
        flow: FlowId,
        /// Some of the plan's flows.
        known: String,
    },
    /// The plan does not fit the problem.
    #[error("flow `{0}`: its path is none that the problem has")]
    NotOfProblem(FlowId),
    /// The problem without the flow's deadline is invalid, e.g. a price is missing.
    #[error(transparent)]
    Problem(#[from] ProblemError),
}

/// A relay on a path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Stop {
    /// Its region.
    pub region: RegionId,
    /// Its relay type.
    pub relay_type: RelayTypeId,
}

/// One hop of the selected path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExplainedLeg {
    /// Its start: a site or a region.
    pub from: String,
    /// Its end: a site or a region.
    pub to: String,
    /// Round-trip time.
    pub rtt_ms: f64,
    /// Its steady-state rate.
    pub rate_mbps: f64,
    /// The limit on that rate: `window`, `cap`, `per-connection cap`, `loss`, or `source's cap`.
    pub bound_by: &'static str,
    /// True if it is the slowest leg, which sets the path's rate.
    pub slowest: bool,
}

/// The result of evaluating an alternative.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It is the path that the plan uses.
    Selected,
    /// It is slower, or not faster and more expensive.
    NoBetter,
    /// The plan would cost more than the budget.
    Budget,
    /// One of its relays cannot carry the flow at that rate.
    Capacity,
    /// It misses the flow's deadline.
    Deadline,
    /// It would be faster, but the objective is cost and it costs more.
    Dearer,
    /// It would improve the plan: the algorithm missed it.
    Missed,
}

impl Verdict {
    /// Returns the verdict as it is written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Selected => "selected",
            Self::NoBetter => "no-better",
            Self::Budget => "budget",
            Self::Capacity => "capacity",
            Self::Deadline => "deadline",
            Self::Dearer => "dearer",
            Self::Missed => "missed",
        }
    }
}

/// Another path of the flow, all else as planned.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Alternative {
    /// Its relays; empty: direct.
    pub path: Vec<Stop>,
    /// The flow's completion time.
    #[serde(rename = "fct_s", with = "time::as_seconds")]
    pub fct: Duration,
    /// Time saved compared with the plan; negative: lost.
    pub gain_s: f64,
    /// The cost of the whole plan with it.
    #[serde(rename = "plan_cost_usd")]
    pub plan_cost: Option<Money>,
    /// Cost above that of the plan; negative: below.
    pub extra_cost_usd: Option<f64>,
    /// Additional relays to set up.
    pub extra_relays: usize,
    /// The reason why it is not the selected path.
    pub verdict: Verdict,
}

/// The explanation of a flow's path.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The flow.
    pub flow: FlowId,
    /// Its path; empty: direct.
    pub path: Vec<Stop>,
    /// Predicted completion time.
    #[serde(rename = "fct_s", with = "time::as_seconds")]
    pub fct: Duration,
    /// The part of it until the first byte arrives.
    #[serde(rename = "set_up_s", with = "time::as_seconds")]
    pub set_up: Duration,
    /// The part of it that slow start costs.
    #[serde(rename = "start_up_s", with = "time::as_seconds")]
    pub start_up: Duration,
    /// The part of it at full rate.
    #[serde(rename = "steady_s", with = "time::as_seconds")]
    pub steady: Duration,
    /// Its deadline.
    #[serde(rename = "deadline_s", with = "optional_seconds")]
    pub deadline: Option<Duration>,
    /// Its own cost with nothing shared: egress and its move.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
    /// The plan's cost.
    #[serde(rename = "plan_cost_usd")]
    pub plan_cost: Money,
    /// The budget; null in JSON where there is none.
    #[serde(rename = "budget_usd", serialize_with = "crate::answer::limit::serialize")]
    pub budget: Money,
    /// The hops.
    pub legs: Vec<ExplainedLeg>,
    /// The constraint that keeps the flow from completing sooner: the one that rules out the best
    /// faster path, or, if there is none, the limit that binds the slowest leg.
    pub binding: String,
    /// The other paths, the fastest first.
    pub alternatives: Vec<Alternative>,
    /// Groups of flows with which it could move to another relay, the best first.
    pub groups: Vec<Group>,
    /// The reason why not all groups were searched, if so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub groups_left_out: Option<&'static str>,
}

/// Number of flow names listed in the error for an unknown flow. Chosen: they fit on a line.
const FLOWS_SHOWN: usize = 5;

/// Returns the names of a plan's first flows, and the number of the others.
fn some_flows(plan: &Plan) -> String {
    let names: Vec<String> =
        plan.flows.iter().take(FLOWS_SHOWN).map(|flow| format!("`{}`", flow.id)).collect();
    match plan.flows.len() - names.len() {
        0 => names.join(", "),
        more => format!("{} and {more} more", names.join(", ")),
    }
}

/// Explains the path of one flow of a plan that [`crate::verify()`] accepts.
///
/// # Errors
/// When the problem or the plan has no such flow.
pub fn explain(problem: &Problem, plan: &Plan, flow: &FlowId) -> Result<Explanation, ExplainError> {
    let no_flow = || ExplainError::NoFlow { flow: flow.clone(), known: some_flows(plan) };
    let index = problem.flows().iter().position(|known| known.id == *flow).ok_or_else(no_flow)?;
    let planned = plan.flows.iter().find(|planned| planned.id == *flow).ok_or_else(no_flow)?;
    let foreign = || ExplainError::NotOfProblem(flow.clone());
    let offers = plan.offers_of(problem, planned).ok_or_else(foreign)?;
    let completion = problem.completion(index, &offers).ok_or_else(foreign)?;
    let loads = Loads::new(problem, plan, index).ok_or_else(foreign)?;
    let judge = Judge { problem, plan, planned, index, loads };
    let alternatives = judge.alternatives(&offers)?;
    let legs = legs_of(problem, index, &offers).ok_or_else(foreign)?;
    let groups = groups::groups(problem, plan, index, groups::MAX_LOOKED_AT);
    Ok(Explanation {
        flow: flow.clone(),
        path: stops(problem, &offers),
        fct: planned.fct,
        set_up: completion.set_up,
        start_up: completion.start_up,
        steady: completion.steady,
        deadline: problem.flows()[index].deadline,
        cost: planned.egress + planned.move_cost,
        plan_cost: plan.cost,
        budget: problem.budget(),
        binding: binding(&legs, &alternatives),
        legs,
        alternatives,
        groups: groups.found,
        groups_left_out: groups.left_out,
    })
}

fn stops(problem: &Problem, offers: &[usize]) -> Vec<Stop> {
    let stop = |offer: &usize| {
        let offer = &problem.offers()[*offer];
        Stop { region: offer.region.clone(), relay_type: offer.relay_type.id.clone() }
    };
    offers.iter().map(stop).collect()
}

/// Returns the legs of the flow at this index over these offers; `None` if one is not known.
pub(crate) fn legs_of(
    problem: &Problem,
    index: usize,
    offers: &[usize],
) -> Option<Vec<ExplainedLeg>> {
    let flow = &problem.flows()[index];
    let regions = offers.iter().map(|offer| problem.offers()[*offer].region.to_string());
    let mut names: Vec<String> = std::iter::once(flow.source.to_string()).chain(regions).collect();
    names.push(flow.destination.to_string());
    let legs = problem.legs(index, offers)?;
    let slowest = legs.iter().map(tradewind_model::Leg::rate).min()?;
    let explained = legs.iter().zip(names.windows(2)).enumerate().map(|(place, (leg, ends))| {
        let share = problem.share(index, offers).filter(|_| place == 0);
        let shared = share.is_some_and(|share| share == leg.rate());
        ExplainedLeg {
            from: ends[0].clone(),
            to: ends[1].clone(),
            rtt_ms: time::as_millis_f64(leg.rtt),
            rate_mbps: leg.rate().as_mbps(),
            bound_by: if shared { "source's cap" } else { leg.bound_by() },
            slowest: leg.rate() == slowest,
        }
    });
    Some(explained.collect())
}

/// Returns the constraint that keeps the flow from completing sooner.
fn binding(legs: &[ExplainedLeg], alternatives: &[Alternative]) -> String {
    let faster = alternatives.iter().filter(|other| other.gain_s > 0.0);
    let ruled_out = faster.map(|other| other.verdict).find(|verdict| *verdict != Verdict::Selected);
    if let Some(verdict) = ruled_out {
        return verdict.as_str().to_owned();
    }
    let slowest = legs.iter().find(|leg| leg.slowest);
    slowest
        .map_or_else(String::new, |leg| format!("{} of {} -> {}", leg.bound_by, leg.from, leg.to))
}

/// The rates of the other flows through each offer.
struct Loads(Vec<Vec<u64>>);

impl Loads {
    fn new(problem: &Problem, plan: &Plan, without: usize) -> Option<Self> {
        let mut loads = vec![Vec::new(); problem.offers().len()];
        for planned in &plan.flows {
            let index = problem.flows().iter().position(|flow| flow.id == planned.id)?;
            if index == without {
                continue;
            }
            let rate = problem.rate_used(index, planned.fct).as_bps();
            for offer in plan.offers_of(problem, planned)? {
                loads[offer].push(rate);
            }
        }
        Some(Self(loads))
    }
}

struct Judge<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    planned: &'a PlannedFlow,
    index: usize,
    loads: Loads,
}

impl Judge<'_> {
    /// Returns every path of the flow, including those that miss its deadline; the fastest first.
    fn alternatives(&self, selected: &[usize]) -> Result<Vec<Alternative>, ExplainError> {
        let flow = &self.problem.flows()[self.index];
        let relaxed;
        let candidates = if flow.deadline.is_some() {
            // The problem has no late paths, but these may be cheaper.
            relaxed = Problem::new(without_deadline(self.problem.inputs(), self.index))?;
            relaxed.candidates(self.index)
        } else {
            self.problem.candidates(self.index)
        };
        let mut all: Vec<Alternative> = Vec::new();
        for candidate in candidates {
            all.push(self.alternative(&candidate.relays, candidate.fct, candidate.cost, selected));
        }
        all.sort_by_key(|other| (other.fct, other.plan_cost));
        Ok(all)
    }

    fn alternative(
        &self,
        relays: &[usize],
        fct: Duration,
        cost: Money,
        selected: &[usize],
    ) -> Alternative {
        let (before, now) = (self.set_up(selected, self.planned.fct), self.set_up(relays, fct));
        let extra_relays = match (now, before) {
            (Some((_, count)), Some((_, own))) => count.saturating_sub(own),
            _ => 0,
        };
        let carrying = self.others() + cost;
        let plan_cost = now.filter(|_| before.is_some()).map(|(set_up, _)| carrying + set_up);
        let extra = |cost: Money| cost.as_usd() - self.plan.cost.as_usd();
        Alternative {
            path: stops(self.problem, relays),
            fct,
            gain_s: self.planned.fct.as_secs_f64() - fct.as_secs_f64(),
            plan_cost,
            extra_cost_usd: plan_cost.map(extra),
            extra_relays,
            verdict: if relays == selected {
                Verdict::Selected
            } else {
                self.verdict(fct, plan_cost)
            },
        }
    }

    /// Returns the cost of the other flows.
    fn others(&self) -> Money {
        let others = self.plan.flows.iter().filter(|flow| flow.id != self.planned.id);
        others.map(|flow| flow.egress + flow.move_cost).sum()
    }

    /// Returns the set-up cost and the number of relays, if nothing is shared.
    fn set_up(&self, relays: &[usize], fct: Duration) -> Option<(Money, usize)> {
        let rate = self.problem.rate_used(self.index, fct).as_bps();
        let mut counts = Vec::with_capacity(self.loads.0.len());
        for (place, (offer, others)) in self.problem.offers().iter().zip(&self.loads.0).enumerate()
        {
            let mut rates = others.clone();
            if relays.contains(&place) {
                rates.push(rate);
            }
            let used = relays_used(&pack(&rates, offer.capacity_bps())?);
            if offer.excess(used) > 0 {
                return None;
            }
            counts.push(used);
        }
        let others = self.plan.flows.iter().filter(|flow| flow.id != self.planned.id);
        let last = || others.map(|flow| flow.fct).chain([fct]).max().unwrap_or_default();
        Some((self.problem.set_up(&counts, last), counts.iter().sum()))
    }

    fn verdict(&self, fct: Duration, plan_cost: Option<Money>) -> Verdict {
        let flow = &self.problem.flows()[self.index];
        if flow.deadline.is_some_and(|deadline| fct > deadline) {
            return Verdict::Deadline;
        }
        let Some(cost) = plan_cost else { return Verdict::Capacity };
        let by_cost = self.problem.objective() == Objective::Cost;
        let (own, before) = ((fct, cost), (self.planned.fct, self.plan.cost));
        let better = if by_cost { (own.1, own.0) < (before.1, before.0) } else { own < before };
        if cost > self.problem.budget() && fct < self.planned.fct {
            Verdict::Budget
        } else if better && cost <= self.problem.budget() {
            Verdict::Missed
        } else if by_cost && fct < self.planned.fct {
            Verdict::Dearer
        } else {
            Verdict::NoBetter
        }
    }
}

fn without_deadline(inputs: &Inputs, flow: usize) -> Inputs {
    let mut inputs = inputs.clone();
    inputs.flows[flow].deadline = None;
    inputs
}
