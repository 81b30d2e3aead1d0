//! What is wrong with a plan, worked out from the problem alone.
//!
//! Shares no code with the solvers: paths, times, rates, loads and costs are computed anew here, so
//! that an error of theirs shows.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::{Bandwidth, Duration, FlowId, Money, RegionId, RelayId};

use crate::plan::{Plan, PlannedFlow};
use crate::problem::{Flow, Problem};

/// Times that differ by no more are the same: plans are written as seconds with a fraction.
const SAME_TIME: Duration = Duration::from_micros(1);

/// One thing that is wrong with a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A flow of the problem that the plan does not have exactly once.
    #[error("flow `{flow}`: planned {count} times")]
    FlowCount {
        /// The flow.
        flow: FlowId,
        /// How often the plan has it.
        count: usize,
    },
    /// A flow that the problem does not have.
    #[error("flow `{0}`: the problem has no such flow")]
    UnknownFlow(FlowId),
    /// Two relays of one name.
    #[error("relay `{0}`: planned twice")]
    RelayTwice(RelayId),
    /// A relay where none may be.
    #[error("relay `{relay}`: region `{region}` is no candidate")]
    RegionNotAllowed {
        /// The relay.
        relay: RelayId,
        /// Its region.
        region: RegionId,
    },
    /// A relay that no flow passes, and that costs money.
    #[error("relay `{0}`: no flow uses it")]
    RelayUnused(RelayId),
    /// A path over a relay that the plan does not run.
    #[error("flow `{flow}`: relay `{relay}` is not planned")]
    UnknownRelay {
        /// The flow.
        flow: FlowId,
        /// The relay.
        relay: RelayId,
    },
    /// A path through one region twice.
    #[error("flow `{flow}`: passes region `{region}` twice")]
    Loop {
        /// The flow.
        flow: FlowId,
        /// The region.
        region: RegionId,
    },
    /// A path with more relays than the problem allows.
    #[error("flow `{flow}`: {relays} relays, at most {most} are allowed")]
    PathTooLong {
        /// The flow.
        flow: FlowId,
        /// Its relays.
        relays: usize,
        /// The problem's limit.
        most: usize,
    },
    /// A path over a leg that the problem does not know.
    #[error("flow `{0}`: a leg of its path is not known")]
    UnknownLeg(FlowId),
    /// A completion time other than the model's.
    #[error("flow `{flow}`: {what} is {planned:?}, the model says {expected:?}")]
    WrongTime {
        /// The flow.
        flow: FlowId,
        /// Which time.
        what: &'static str,
        /// The plan's figure.
        planned: Option<Duration>,
        /// The model's.
        expected: Option<Duration>,
    },
    /// A cost other than the prices make it.
    #[error("{what}: ${} planned, ${} by the prices", planned.as_usd(), expected.as_usd())]
    WrongCost {
        /// Whose cost.
        what: String,
        /// The plan's figure.
        planned: Money,
        /// What the prices say.
        expected: Money,
    },
    /// The sum of completion times is not that of its flows, or the bound is above it.
    #[error("total of completion times: {planned:?} planned, its flows take {expected:?}")]
    WrongTotal {
        /// The plan's figure.
        planned: Duration,
        /// The sum over its flows.
        expected: Duration,
    },
    /// More than the budget.
    #[error("cost ${} is above the budget of ${}", cost.as_usd(), budget.as_usd())]
    OverBudget {
        /// What the plan truly costs.
        cost: Money,
        /// The problem's budget.
        budget: Money,
    },
    /// More through a relay than it can carry.
    #[error("relay `{relay}`: its flows need {load} bit/s, it carries {capacity}")]
    OverCapacity {
        /// The relay.
        relay: RelayId,
        /// Sum of its flows' rates in bit/s.
        load: u64,
        /// What it can carry.
        capacity: Bandwidth,
    },
}

/// Everything that is wrong with `plan` as an answer to `problem`; nothing, if it is sound.
#[must_use]
pub fn verify(problem: &Problem, plan: &Plan) -> Vec<Violation> {
    let mut check = Check { problem, plan, found: Vec::new(), loads: BTreeMap::new() };
    check.relays();
    check.flows();
    check.loads();
    check.totals();
    check.found
}

struct Check<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    found: Vec<Violation>,
    /// Rate through each relay in bit/s.
    loads: BTreeMap<RelayId, u64>,
}

impl Check<'_> {
    fn relays(&mut self) {
        let allowed: BTreeSet<&RegionId> = self.problem.regions().iter().collect();
        let mut seen = BTreeSet::new();
        let used: BTreeSet<&RelayId> = self.plan.flows.iter().flat_map(|flow| &flow.path).collect();
        for relay in &self.plan.relays {
            let id = relay.id.clone();
            if !seen.insert(&relay.id) {
                self.found.push(Violation::RelayTwice(id.clone()));
            }
            if !used.contains(&relay.id) {
                self.found.push(Violation::RelayUnused(id.clone()));
            }
            if !allowed.contains(&relay.region) {
                let region = relay.region.clone();
                self.found.push(Violation::RegionNotAllowed { relay: id, region });
            }
        }
    }

    fn flows(&mut self) {
        for flow in self.problem.flows() {
            let count = self.plan.flows.iter().filter(|planned| planned.id == flow.id).count();
            if count != 1 {
                self.found.push(Violation::FlowCount { flow: flow.id.clone(), count });
            }
        }
        for planned in &self.plan.flows {
            match self.problem.flows().iter().find(|flow| flow.id == planned.id) {
                Some(flow) => self.flow(flow, planned),
                None => self.found.push(Violation::UnknownFlow(planned.id.clone())),
            }
        }
    }

    fn flow(&mut self, flow: &Flow, planned: &PlannedFlow) {
        let mut regions = Vec::new();
        for relay in &planned.path {
            let Some(known) = self.plan.relays.iter().find(|known| known.id == *relay) else {
                let (flow, relay) = (flow.id.clone(), relay.clone());
                self.found.push(Violation::UnknownRelay { flow, relay });
                return;
            };
            if regions.contains(&known.region) {
                let (flow, region) = (flow.id.clone(), known.region.clone());
                self.found.push(Violation::Loop { flow, region });
            }
            regions.push(known.region.clone());
        }
        if regions.len() > self.problem.max_relays() {
            let (relays, most) = (regions.len(), self.problem.max_relays());
            self.found.push(Violation::PathTooLong { flow: flow.id.clone(), relays, most });
        }
        let Some(fct) = self.problem.fct(flow, &regions) else {
            self.found.push(Violation::UnknownLeg(flow.id.clone()));
            return;
        };
        self.time(flow, "completion time", Some(planned.fct), Some(fct));
        let direct = self.problem.fct(flow, &[]);
        self.time(flow, "direct completion time", planned.fct_direct, direct);
        let bits = u128::from(flow.volume.as_u64()) * 8;
        let rate = bits * 1_000_000_000 / fct.as_nanos().max(1);
        for relay in &planned.path {
            let load = self.loads.entry(relay.clone()).or_default();
            *load = load.saturating_add(u64::try_from(rate).unwrap_or(u64::MAX));
        }
        match self.problem.egress_cost(flow, &regions) {
            Ok(expected) if expected == planned.egress => {}
            expected => self.found.push(Violation::WrongCost {
                what: format!("egress of flow `{}`", flow.id),
                planned: planned.egress,
                expected: expected.unwrap_or_default(),
            }),
        }
    }

    fn time(
        &mut self,
        flow: &Flow,
        what: &'static str,
        planned: Option<Duration>,
        expected: Option<Duration>,
    ) {
        let same = match (planned, expected) {
            (Some(a), Some(b)) => a.abs_diff(b) <= SAME_TIME,
            (a, b) => a == b,
        };
        if !same {
            let flow = flow.id.clone();
            self.found.push(Violation::WrongTime { flow, what, planned, expected });
        }
    }

    fn loads(&mut self) {
        let capacity = self.problem.relay_capacity();
        for (relay, &load) in &self.loads {
            // Each flow's rate is rounded to a whole bit per second.
            let rounding = self.plan.flows.len() as u64;
            if load > capacity.as_bps().saturating_add(rounding) {
                let relay = relay.clone();
                self.found.push(Violation::OverCapacity { relay, load, capacity });
            }
        }
    }

    fn totals(&mut self) {
        let egress: Money = self.plan.flows.iter().map(|flow| flow.egress).sum();
        let cost = egress + self.problem.set_up().times(self.plan.relays.len() as u64);
        if cost != self.plan.cost {
            let (what, planned) = ("the plan".to_owned(), self.plan.cost);
            self.found.push(Violation::WrongCost { what, planned, expected: cost });
        }
        let budget = self.problem.budget();
        if cost > budget {
            self.found.push(Violation::OverBudget { cost, budget });
        }
        let expected: Duration = self.plan.flows.iter().map(|flow| flow.fct).sum();
        let planned = self.plan.total_fct;
        if planned.abs_diff(expected) > SAME_TIME || self.plan.bound > expected + SAME_TIME {
            self.found.push(Violation::WrongTotal { planned, expected });
        }
    }
}
