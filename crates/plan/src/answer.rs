//! The planner's output for users: a plan with its figures, or the reason why there is none. It is
//! written as JSON and can be converted back to its [`Plan`].

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tradewind_units::{Duration, FlowId, Money, RegionId, RelayId, RelayTypeId, time};

use crate::assumptions::{AssumedLeg, Origins, assumed};
use crate::forecast;
use crate::packets::PacketPlan;
use crate::plan::{self, Plan, PlannedFlow, PlannedRelay, optional_seconds};
use crate::problem::{Inputs, Objective, Problem};
use crate::solver::SolveError;

/// Version of the answer's text form; grows when a field changes its meaning.
pub const SCHEMA_VERSION: u32 = 1;

/// Tolerance within which times are equal: a computed bound has the rounding error of its sums.
const SAME_TIME: Duration = Duration::from_micros(1);

/// The budget of a problem without one, in dollars: no plan costs more.
pub const NO_BUDGET_USD: f64 = 1e9;

/// Serialization of budgets: null where there is none.
pub mod limit {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tradewind_units::Money;

    use super::NO_BUDGET_USD;

    /// Writes a budget.
    ///
    /// # Errors
    /// Those of the serializer.
    pub fn serialize<S: Serializer>(budget: &Money, serializer: S) -> Result<S::Ok, S::Error> {
        Some(*budget).filter(|budget| budget.as_usd() < NO_BUDGET_USD).serialize(serializer)
    }

    /// Reads a budget.
    ///
    /// # Errors
    /// When it is neither money nor null.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
        let stated = Option::<Money>::deserialize(deserializer)?;
        Ok(stated.unwrap_or_else(|| Money::from_usd(NO_BUDGET_USD).expect("the most money")))
    }
}

/// The quality of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// The plan is optimal, as the bound proves.
    Optimal,
    /// A valid plan; it is not known whether there is a better one.
    Feasible,
    /// There is provably no plan.
    Infeasible,
    /// Within the limits no plan was found, and its absence was not proven.
    Limited,
}

impl Status {
    /// Returns the status as it is written in JSON.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Feasible => "feasible",
            Self::Infeasible => "infeasible",
            Self::Limited => "limited",
        }
    }
}

/// Relays of one type in one region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerRelays {
    /// Their region.
    pub region: RegionId,
    /// Their relay type.
    pub relay_type: RelayTypeId,
    /// Their number.
    pub count: usize,
    /// Their names, which paths use.
    pub ids: Vec<RelayId>,
}

/// The path of a flow, with its predicted completion time and cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerFlow {
    /// The flow.
    pub id: FlowId,
    /// Its relays, in order; empty: direct.
    pub path: Vec<RelayId>,
    /// Predicted completion time.
    #[serde(rename = "fct_s", with = "time::as_seconds")]
    pub fct: Duration,
    /// Predicted completion time on the direct path, if there is one.
    #[serde(rename = "direct_fct_s", with = "optional_seconds")]
    pub direct_fct: Option<Duration>,
    /// Its own cost without the set-up of relays: egress, and its move.
    #[serde(rename = "cost_usd")]
    pub cost: Money,
    /// The part of that cost for its move from the path that it runs on.
    #[serde(rename = "move_usd")]
    pub move_cost: Money,
    /// The legs of its path, with the figures that its completion time rests on; left out if these
    /// are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub legs: Vec<AssumedLeg>,
}

/// A copy of the problem file, with which an answer can be explained later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    /// The file's name.
    pub file: String,
    /// Its text.
    pub text: String,
    /// The text of each table that it names.
    pub tables: BTreeMap<String, String>,
    /// The flows that were planned for instead of its own, as a log of one period
    /// ([`crate::forecast`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Its quality.
    pub status: Status,
    /// The reason why there is no plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The requested algorithm.
    pub algorithm: String,
    /// The solver that made the plan, as an algorithm may run several.
    pub solver: Option<String>,
    /// The objective that was minimized.
    pub objective: Objective,
    /// Sum of all completion times.
    #[serde(rename = "total_fct_s", with = "sum_of_seconds")]
    pub total_fct: Option<Duration>,
    /// Sum of all direct completion times; `None` if a flow has no direct path.
    #[serde(rename = "direct_fct_s", with = "sum_of_seconds")]
    pub direct_fct: Option<Duration>,
    /// `direct_fct_s` over `total_fct_s`.
    pub acceleration: Option<f64>,
    /// The last flow's completion time.
    #[serde(rename = "makespan_s", with = "optional_seconds")]
    pub makespan: Option<Duration>,
    /// Sum of all completion times, each times its flow's weight; bounded by `bound_s`.
    #[serde(rename = "weighted_fct_s", with = "sum_of_seconds")]
    pub weighted_fct: Option<Duration>,
    /// The cost of the plan.
    #[serde(rename = "cost_usd")]
    pub cost: Option<Money>,
    /// The budget; null in JSON where there is none.
    #[serde(rename = "budget_usd", with = "limit")]
    pub budget: Money,
    /// Lower bound on the weighted sum of completion times of all plans; on the makespan if that is
    /// the objective.
    #[serde(rename = "bound_s", with = "sum_of_seconds")]
    pub bound: Option<Duration>,
    /// Lower bound on the cost of all plans.
    #[serde(rename = "bound_cost_usd")]
    pub bound_cost: Option<Money>,
    /// Largest relative distance of the objective from its optimum: `(value - bound) / value`.
    pub gap: Option<f64>,
    /// Wall-clock time that the algorithm took.
    #[serde(rename = "solve_s", with = "time::as_seconds")]
    pub solve: Duration,
    /// Relays to run.
    pub relays: Vec<AnswerRelays>,
    /// Flows, in the problem's order.
    pub flows: Vec<AnswerFlow>,
    /// The date of the oldest of the catalogue's egress prices that the plan used; left out if all
    /// prices are the problem's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prices_dated: Option<String>,
    /// The dates of the catalogue's egress prices that the plan used, by cloud.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub price_dates: BTreeMap<String, BTreeSet<String>>,
    /// The forecast that the flows are from, if they are predicted and not the problem's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forecast: Option<forecast::Summary>,
    /// Services and relays of the packet flows; left out if the problem has none. The plan's own
    /// costs and budget are those of the streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<PacketPlan>,
    /// The problem, in answers that are saved for explanation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<Asked>,
}

impl Answer {
    /// Converts a solver's outcome to an answer.
    ///
    /// # Errors
    /// When the solver failed, or does not support the objective: then nothing is known of the
    /// problem.
    pub fn new(
        problem: &Problem,
        algorithm: &str,
        outcome: Result<Plan, SolveError>,
        solve: Duration,
    ) -> Result<Self, SolveError> {
        let without = |status: Status, reason: String| {
            Self::without_plan(problem.objective(), problem.budget(), status, algorithm, reason)
        };
        let answer = match outcome {
            Ok(plan) => Self::with_plan(problem, algorithm, &plan),
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => {
                Self::with_plan(problem, algorithm, &plan)
            }
            Err(error @ SolveError::WorkLimit { best: None, bound }) => {
                without(Status::Limited, format!("{error}{}", least(problem, bound)))
            }
            Err(error @ SolveError::Infeasible { .. }) => {
                without(Status::Infeasible, error.to_string())
            }
            Err(error) => return Err(error),
        };
        Ok(Self { solve, ..answer })
    }

    /// Returns the answer that there is no plan.
    #[must_use]
    pub fn without_plan(
        objective: Objective,
        budget: Money,
        status: Status,
        algorithm: &str,
        reason: String,
    ) -> Self {
        Self {
            schema_version: SCHEMA_VERSION,
            status,
            reason: Some(reason),
            algorithm: algorithm.to_owned(),
            solver: None,
            objective,
            total_fct: None,
            direct_fct: None,
            acceleration: None,
            makespan: None,
            weighted_fct: None,
            cost: None,
            budget,
            bound: None,
            bound_cost: None,
            gap: None,
            solve: Duration::ZERO,
            relays: Vec::new(),
            flows: Vec::new(),
            prices_dated: None,
            price_dates: BTreeMap::new(),
            forecast: None,
            packets: None,
            problem: None,
        }
    }

    fn with_plan(problem: &Problem, algorithm: &str, plan: &Plan) -> Self {
        let weighted = weighted_fct(problem, plan);
        let makespan = plan.makespan();
        let (optimal, gap) = match problem.objective() {
            Objective::Cost => {
                (plan.cost <= plan.bound_cost, gap(plan.cost.as_usd(), plan.bound_cost.as_usd()))
            }
            Objective::TotalFct => {
                let gap = gap(weighted.as_secs_f64(), plan.bound.as_secs_f64());
                (weighted <= plan.bound + SAME_TIME, gap)
            }
            Objective::Makespan => {
                let gap = gap(makespan.as_secs_f64(), plan.bound.as_secs_f64());
                (makespan <= plan.bound + SAME_TIME, gap)
            }
        };
        Self {
            reason: None,
            solver: Some(plan.solver.clone()),
            total_fct: Some(plan.total_fct),
            direct_fct: plan.total_fct_direct(),
            acceleration: plan.acceleration(),
            makespan: Some(makespan),
            weighted_fct: Some(weighted),
            cost: Some(plan.cost),
            bound: Some(plan.bound),
            bound_cost: Some(plan.bound_cost),
            gap: if optimal { Some(0.0) } else { gap },
            relays: relays(plan),
            flows: plan.flows.iter().map(answer_flow).collect(),
            ..Self::without_plan(
                problem.objective(),
                problem.budget(),
                if optimal { Status::Optimal } else { Status::Feasible },
                algorithm,
                String::new(),
            )
        }
    }

    /// Sets, for each flow, the legs and figures that its completion time rests on.
    pub fn set_origins(&mut self, problem: &Problem, origins: &Origins) {
        let assumed = self.plan().and_then(|plan| assumed(problem, &plan, origins));
        for (flow, legs) in self.flows.iter_mut().zip(assumed.into_iter().flatten()) {
            flow.legs = legs;
        }
    }

    /// Sets the dates of the prices that the plan used.
    pub fn set_prices(&mut self, inputs: &Inputs) {
        self.price_dates = inputs.prices.dates(&inputs.regions);
        self.prices_dated = self.price_dates.values().flatten().min().cloned();
    }

    /// Returns the value of the objective for its plan: seconds, or dollars if the objective is the
    /// cost.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        match self.objective {
            Objective::TotalFct => Some(self.weighted_fct?.as_secs_f64()),
            Objective::Makespan => Some(self.makespan?.as_secs_f64()),
            Objective::Cost => Some(self.cost?.as_usd()),
        }
    }

    /// Returns the proven lower bound on [`Answer::value`] over all plans.
    #[must_use]
    pub fn least_value(&self) -> Option<f64> {
        match self.objective {
            Objective::TotalFct | Objective::Makespan => Some(self.bound?.as_secs_f64()),
            Objective::Cost => Some(self.bound_cost?.as_usd()),
        }
    }

    /// Returns the total cost of streams and packet flows; `None` without a plan.
    #[must_use]
    pub fn joint_cost(&self) -> Option<Money> {
        let of_packets = self.packets.as_ref().map_or(Money::ZERO, |packets| packets.cost);
        Some(self.cost? + of_packets)
    }

    /// Returns its plan, if it has one, for [`crate::verify()`] and [`crate::explain()`].
    #[must_use]
    pub fn plan(&self) -> Option<Plan> {
        let relay = |group: &AnswerRelays, id: &RelayId| PlannedRelay {
            id: id.clone(),
            region: group.region.clone(),
            relay_type: group.relay_type.clone(),
        };
        let relays =
            self.relays.iter().flat_map(|group| group.ids.iter().map(|id| relay(group, id)));
        let flow = |flow: &AnswerFlow| PlannedFlow {
            id: flow.id.clone(),
            path: flow.path.clone(),
            fct: flow.fct,
            fct_direct: flow.direct_fct,
            egress: flow.cost.checked_sub(flow.move_cost).unwrap_or_default(),
            move_cost: flow.move_cost,
        };
        Some(Plan {
            schema_version: plan::SCHEMA_VERSION,
            solver: self.solver.clone()?,
            relays: relays.collect(),
            flows: self.flows.iter().map(flow).collect(),
            cost: self.cost?,
            total_fct: self.total_fct?,
            bound: self.bound?,
            bound_cost: self.bound_cost?,
        })
    }
}

/// Returns the largest relative distance of a value from the optimum, given a lower bound.
#[must_use]
pub fn gap(value: f64, bound: f64) -> Option<f64> {
    let gap = (value - bound) / value;
    gap.is_finite().then_some(gap.max(0.0))
}

/// Returns what is known of the objective of every plan where none was found.
fn least(problem: &Problem, bound: Duration) -> String {
    let seconds = bound.as_secs_f64();
    let is_weighted = problem.flows().iter().any(|flow| flow.weight != 1);
    match problem.objective() {
        _ if bound.is_zero() => String::new(),
        Objective::TotalFct if is_weighted => {
            format!("; any takes {seconds:.3} s in all or more, with weights")
        }
        Objective::TotalFct => format!("; any takes {seconds:.3} s in all or more"),
        Objective::Makespan => format!("; in any the last flow takes {seconds:.3} s or more"),
        Objective::Cost => String::new(),
    }
}

fn weighted_fct(problem: &Problem, plan: &Plan) -> Duration {
    let flows = problem.flows().iter().zip(&plan.flows);
    flows.map(|(flow, planned)| planned.fct.saturating_mul(flow.weight)).sum()
}

fn relays(plan: &Plan) -> Vec<AnswerRelays> {
    let mut groups: Vec<AnswerRelays> = Vec::new();
    for relay in &plan.relays {
        let same = |group: &AnswerRelays| {
            group.region == relay.region && group.relay_type == relay.relay_type
        };
        let place = groups.iter().position(same).unwrap_or_else(|| {
            groups.push(AnswerRelays {
                region: relay.region.clone(),
                relay_type: relay.relay_type.clone(),
                count: 0,
                ids: Vec::new(),
            });
            groups.len() - 1
        });
        groups[place].count += 1;
        groups[place].ids.push(relay.id.clone());
    }
    groups
}

fn answer_flow(flow: &PlannedFlow) -> AnswerFlow {
    AnswerFlow {
        id: flow.id.clone(),
        path: flow.path.clone(),
        fct: flow.fct,
        direct_fct: flow.fct_direct,
        cost: flow.egress + flow.move_cost,
        move_cost: flow.move_cost,
        legs: Vec::new(),
    }
}

/// Serialization of sums over many flows, which may exceed the year that a single span is limited
/// to.
mod sum_of_seconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
    use tradewind_units::{Duration, UnitError};

    /// Longest sum that is accepted: thirty thousand years, far below overflow.
    const MAX_S: f64 = 1e12;

    pub(super) fn serialize<S: Serializer>(
        sum: &Option<Duration>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        sum.map(|sum| sum.as_secs_f64()).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Duration>, D::Error> {
        let Some(seconds) = Option::<f64>::deserialize(deserializer)? else { return Ok(None) };
        if !(0.0..=MAX_S).contains(&seconds) {
            let refused = UnitError::new("duration", "seconds from 0 to 10^12", seconds);
            return Err(de::Error::custom(refused));
        }
        Ok(Some(Duration::from_secs_f64(seconds)))
    }
}
