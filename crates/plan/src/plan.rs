//! A plan: relays to run, a path for each flow, its cost and its predicted effect.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{Duration, FlowId, Money, RegionId, RelayId, RelayTypeId, time};

use crate::packing::pack;
use crate::problem::{Objective, Offer, Problem};

/// Version of the plan's text form; grows when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 2;

/// A relay to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedRelay {
    /// Its name: the region's and a number.
    pub id: RelayId,
    /// The region it runs in.
    pub region: RegionId,
    /// Its relay type.
    pub relay_type: RelayTypeId,
}

/// The path of a flow, with its predicted completion time and cost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlannedFlow {
    /// The flow.
    pub id: FlowId,
    /// Its relays, in order; empty: direct.
    pub path: Vec<RelayId>,
    /// Predicted completion time over this path.
    #[serde(rename = "fct_s", with = "time::as_seconds")]
    #[schemars(with = "f64")]
    pub fct: Duration,
    /// Predicted completion time on the direct path, if there is one.
    #[serde(rename = "fct_direct_s", with = "optional_seconds")]
    #[schemars(with = "Option<f64>")]
    pub fct_direct: Option<Duration>,
    /// Its egress cost.
    #[serde(rename = "egress_usd")]
    pub egress: Money,
    /// The cost of moving it to this path, if it ran on another.
    #[serde(rename = "move_usd", default)]
    pub move_cost: Money,
}

/// Relays to run and the paths over them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Plan {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The solver that made it, e.g. `exhaustive`.
    pub solver: String,
    /// Relays to run, by region and number.
    pub relays: Vec<PlannedRelay>,
    /// Flows, in the problem's order.
    pub flows: Vec<PlannedFlow>,
    /// Set-up of all relays, egress of all flows and moves.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
    /// Sum of all completion times.
    #[serde(rename = "total_fct_s", with = "time::as_seconds")]
    #[schemars(with = "f64")]
    pub total_fct: Duration,
    /// Proven lower bound on the weighted sum of completion times of all plans within the budget;
    /// equal to this plan's if it is optimal. If the objective is the makespan: the bound on that.
    #[serde(rename = "bound_fct_s", with = "time::as_seconds")]
    #[schemars(with = "f64")]
    pub bound: Duration,
    /// Proven lower bound on the cost of all plans that meet the deadlines.
    #[serde(rename = "bound_cost_usd", default)]
    pub bound_cost: Money,
}

impl Plan {
    /// Returns the plan in which flow `f` takes candidate `choice[f]`, with as few relays as carry
    /// all flows; `None` if a relay cannot carry one of them, or a quota is exceeded.
    pub(crate) fn from_choice(
        problem: &Problem,
        choice: &[usize],
        solver: &str,
        bound: Duration,
    ) -> Option<Self> {
        let packing = |offer: usize, _: &[usize], rates: &[u64]| {
            pack(rates, problem.offers()[offer].capacity_bps())
        };
        Self::from_packing(problem, choice, packing, solver, bound)
    }

    /// Returns the same, where `packing` assigns each flow of an offer to one of its relays, by the
    /// flows' rates; relays are numbered without gaps.
    pub(crate) fn from_packing(
        problem: &Problem,
        choice: &[usize],
        packing: impl Fn(usize, &[usize], &[u64]) -> Option<Vec<usize>>,
        solver: &str,
        bound: Duration,
    ) -> Option<Self> {
        let chosen = |flow: usize| &problem.candidates(flow)[choice[flow]];
        let mut numbers: Vec<Vec<usize>> =
            (0..choice.len()).map(|flow| vec![0; chosen(flow).relays.len()]).collect();
        let mut users: Vec<Vec<(usize, usize)>> = vec![Vec::new(); problem.offers().len()];
        for flow in 0..choice.len() {
            for (at, relay) in chosen(flow).relays.iter().enumerate() {
                users[*relay].push((flow, at));
            }
        }
        for (index, users) in users.iter().enumerate() {
            let rates: Vec<u64> =
                users.iter().map(|(flow, _)| chosen(*flow).rate.as_bps()).collect();
            let flows: Vec<usize> = users.iter().map(|(flow, _)| *flow).collect();
            for ((flow, at), number) in users.iter().zip(packing(index, &flows, &rates)?) {
                numbers[*flow][*at] = number;
            }
        }
        Self::with_relays(problem, choice, numbers, solver, bound)
    }

    /// Returns the same, where `numbers` gives the relay of its offer that each flow takes at each
    /// hop.
    pub(crate) fn with_relays(
        problem: &Problem,
        choice: &[usize],
        numbers: Vec<Vec<usize>>,
        solver: &str,
        bound: Duration,
    ) -> Option<Self> {
        let chosen = |flow: usize| &problem.candidates(flow)[choice[flow]];
        let mut counts = vec![0; problem.offers().len()];
        for (flow, numbers) in numbers.iter().enumerate() {
            for (relay, number) in chosen(flow).relays.iter().zip(numbers) {
                counts[*relay] = counts[*relay].max(number + 1);
            }
        }
        if problem.offers().iter().zip(&counts).any(|(offer, count)| offer.excess(*count) > 0) {
            return None;
        }
        let relays = named_relays(problem, &counts);
        let path = |flow: usize| -> Vec<RelayId> {
            let hops = chosen(flow).relays.iter().zip(&numbers[flow]);
            hops.map(|(relay, number)| relays[*relay][*number].id.clone()).collect()
        };
        let flows: Vec<PlannedFlow> = (problem.flows().iter().enumerate())
            .map(|(index, flow)| {
                let move_cost = problem.move_cost(index, &chosen(index).relays);
                PlannedFlow {
                    id: flow.id.clone(),
                    path: path(index),
                    fct: chosen(index).fct,
                    fct_direct: problem.direct_fct(index),
                    egress: chosen(index).cost.checked_sub(move_cost).unwrap_or_default(),
                    move_cost,
                }
            })
            .collect();
        let last = || flows.iter().map(|flow| flow.fct).max().unwrap_or_default();
        let set_up = problem.set_up(&counts, last);
        let cost = flows.iter().map(|flow| flow.egress + flow.move_cost).sum::<Money>() + set_up;
        Some(Self {
            schema_version: SCHEMA_VERSION,
            solver: solver.to_owned(),
            relays: relays.into_iter().flatten().collect(),
            cost,
            total_fct: flows.iter().map(|flow| flow.fct).sum(),
            flows,
            bound,
            bound_cost: Money::ZERO,
        })
    }

    /// Returns the plan of a problem without streams ([`Problem::without_streams`]).
    #[must_use]
    pub fn nothing() -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            solver: "none".to_owned(),
            relays: Vec::new(),
            flows: Vec::new(),
            cost: Money::ZERO,
            total_fct: Duration::ZERO,
            bound: Duration::ZERO,
            bound_cost: Money::ZERO,
        }
    }

    /// Returns the same plan with its cost at the prices of `problem`, which has the same offers
    /// and flows.
    pub(crate) fn priced_in(self, problem: &Problem) -> Self {
        let count = |offer: &Offer| {
            let is_one = |relay: &&PlannedRelay| {
                relay.region == offer.region && relay.relay_type == offer.relay_type.id
            };
            self.relays.iter().filter(is_one).count()
        };
        let counts: Vec<usize> = problem.offers().iter().map(count).collect();
        let carrying: Money = self.flows.iter().map(|flow| flow.egress + flow.move_cost).sum();
        let cost = carrying + problem.set_up(&counts, || self.makespan());
        Self { cost, ..self }
    }

    /// Returns the value of the problem's objective, and the cost, which breaks ties. For a
    /// makespan the value is the weighted sum of completion times: [`Plan::rank`] has the makespan
    /// first, and the cost second.
    ///
    /// Flows that are not in the problem are ignored.
    #[must_use]
    pub fn score(&self, problem: &Problem) -> (Duration, Money) {
        let score = |(index, planned): (usize, &PlannedFlow)| problem.score(index, planned.fct);
        let count = problem.flows().len();
        (self.flows.iter().take(count).enumerate().map(score).sum(), self.cost)
    }

    /// Returns the completion time of its last flow.
    #[must_use]
    pub fn makespan(&self) -> Duration {
        self.flows.iter().map(|flow| flow.fct).max().unwrap_or_default()
    }

    /// Returns the quantity that [`Plan::bound`] bounds: the makespan if that is the objective,
    /// else the sum of scores.
    pub(crate) fn bounded(&self, problem: &Problem) -> Duration {
        match problem.objective() {
            Objective::Makespan => self.makespan(),
            Objective::TotalFct | Objective::Cost => self.score(problem).0,
        }
    }

    /// Returns whether [`Plan::bound`] or [`Plan::bound_cost`] proves that no plan is better.
    #[cfg(feature = "highs")]
    pub(crate) fn is_proved_best(&self, problem: &Problem) -> bool {
        match problem.objective() {
            Objective::Cost => self.bound_cost >= self.cost,
            Objective::TotalFct | Objective::Makespan => self.bound >= self.bounded(problem),
        }
    }

    /// Returns the key by which plans are compared, where less is better: the quantity that
    /// [`Plan::bound`] bounds, the cost, the weighted sum of completion times.
    #[must_use]
    pub fn rank(&self, problem: &Problem) -> (Duration, Money, Duration) {
        let (score, cost) = self.score(problem);
        (self.bounded(problem), cost, score)
    }

    /// Returns the sum of all direct completion times; `None` if a flow has no direct path.
    #[must_use]
    pub fn total_fct_direct(&self) -> Option<Duration> {
        self.flows.iter().map(|flow| flow.fct_direct).sum()
    }

    /// Returns the sum of direct completion times over the sum of planned ones; `None` if a flow
    /// has no direct path.
    #[must_use]
    pub fn acceleration(&self) -> Option<f64> {
        let direct = self.total_fct_direct()?.as_secs_f64();
        let ratio = direct / self.total_fct.as_secs_f64();
        ratio.is_finite().then_some(ratio)
    }

    /// Returns the indices in [`Problem::offers`] of a flow's relays, in order; `None` for a relay
    /// that the plan does not run or the problem does not offer.
    #[must_use]
    pub fn offers_of(&self, problem: &Problem, flow: &PlannedFlow) -> Option<Vec<usize>> {
        let offer = |id: &RelayId| {
            let relay = self.relays.iter().find(|relay| relay.id == *id)?;
            let offered = |offer: &Offer| {
                offer.region == relay.region && offer.relay_type.id == relay.relay_type
            };
            problem.offers().iter().position(offered)
        };
        flow.path.iter().map(offer).collect()
    }

    /// Returns the index of each flow's path among its candidates; `None` if a flow is missing or
    /// its path is not a candidate.
    pub(crate) fn choice_in(&self, problem: &Problem) -> Option<Vec<usize>> {
        let offers: BTreeMap<_, usize> = (problem.offers().iter().enumerate())
            .map(|(at, offer)| ((&offer.region, &offer.relay_type.id), at))
            .collect();
        let relays: BTreeMap<_, usize> = (self.relays.iter())
            .map(|relay| Some((&relay.id, *offers.get(&(&relay.region, &relay.relay_type))?)))
            .collect::<Option<_>>()?;
        let flows: BTreeMap<&FlowId, _> = self.flows.iter().map(|flow| (&flow.id, flow)).collect();
        let choice = |flow: usize| {
            let path = &flows.get(&problem.flows()[flow].id)?.path;
            let path: Vec<usize> =
                path.iter().map(|id| relays.get(id).copied()).collect::<Option<_>>()?;
            problem.candidates(flow).iter().position(|candidate| candidate.relays == path)
        };
        (0..problem.flows().len()).map(choice).collect()
    }

    /// Returns the regions of a flow's path, in order; `None` for a relay that the plan does not
    /// run.
    #[must_use]
    pub fn regions_of(&self, flow: &PlannedFlow) -> Option<Vec<RegionId>> {
        let region = |id: &RelayId| self.relays.iter().find(|relay| relay.id == *id);
        flow.path.iter().map(|id| region(id).map(|relay| relay.region.clone())).collect()
    }
}

/// Returns `counts` relays of each offer, named by region and number.
fn named_relays(problem: &Problem, counts: &[usize]) -> Vec<Vec<PlannedRelay>> {
    let mut relays: Vec<Vec<PlannedRelay>> = Vec::with_capacity(counts.len());
    for (offer, count) in problem.offers().iter().zip(counts) {
        let here = relays.iter().rev().flatten();
        let before = here.take_while(|relay| relay.region == offer.region).count();
        let relay = |number: usize| PlannedRelay {
            id: relay_id(&offer.region, before + number),
            region: offer.region.clone(),
            relay_type: offer.relay_type.id.clone(),
        };
        relays.push((0..*count).map(relay).collect());
    }
    relays
}

/// Returns the name of the relay with this number in a region: `gcp:europe-north1.1` is the first.
pub(crate) fn relay_id(region: &RegionId, number: usize) -> RelayId {
    RelayId::new(format!("{region}.{}", number + 1)).expect("a problem's regions leave room")
}

pub(crate) mod optional_seconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tradewind_units::{Duration, time};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Seconds(#[serde(with = "time::as_seconds")] Duration);

    pub(crate) fn serialize<S: Serializer>(
        span: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        span.map(Seconds).serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<Seconds>::deserialize(deserializer)?.map(|seconds| seconds.0))
    }
}
