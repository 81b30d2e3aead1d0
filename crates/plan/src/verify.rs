//! Verification of a plan from the problem alone.
//!
//! Shares no code with the solvers: it takes the time, egress and set-up of each path from the
//! problem, as they do, and computes loads, costs and totals anew, so that it finds their errors.
//! It does not find errors of the model itself, which is compared with the papers and the lab.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::{Bandwidth, Duration, FlowId, Money, RegionId, RelayId, RelayTypeId};

use crate::plan::{Plan, PlannedFlow, PlannedRelay};
use crate::problem::{Flow, Objective, Problem};

/// The tolerance for times: plans are written as seconds with a fraction.
const SAME_TIME: Duration = Duration::from_micros(1);

/// The nanoseconds of an hour: machines are charged by the whole hour.
const NANOS_AN_HOUR: u128 = 3_600_000_000_000;

/// An error in a plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A flow of the problem that the plan does not have exactly once.
    #[error("flow `{flow}`: planned {count} times")]
    FlowCount {
        /// The flow.
        flow: FlowId,
        /// The number of times that the plan has it.
        count: usize,
    },
    /// A flow that the problem does not have.
    #[error("flow `{0}`: the problem has no such flow")]
    UnknownFlow(FlowId),
    /// Two relays of one name.
    #[error("relay `{0}`: planned twice")]
    RelayTwice(RelayId),
    /// A relay that is not on offer.
    #[error("relay `{relay}`: no `{relay_type}` is on offer in region `{region}`")]
    NotOffered {
        /// The relay.
        relay: RelayId,
        /// Its region.
        region: RegionId,
        /// Its type.
        relay_type: RelayTypeId,
    },
    /// More relays than are allowed.
    #[error("relays: {count} of `{relay_type}` in region `{region}`, at most {most} may be")]
    TooManyRelays {
        /// Their region.
        region: RegionId,
        /// Their type.
        relay_type: RelayTypeId,
        /// Number in the plan.
        count: usize,
        /// Greatest number allowed.
        most: usize,
    },
    /// A relay that no flow passes, whether it costs money or is running already: a plan lists only
    /// relays that it uses.
    #[error("relay `{0}`: no flow uses it")]
    RelayUnused(RelayId),
    /// A path over a relay that is not in the plan.
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
        /// The number of its relays.
        relays: usize,
        /// The problem's limit.
        most: usize,
    },
    /// A path over an unknown leg.
    #[error("flow `{0}`: a leg of its path is not known")]
    UnknownLeg(FlowId),
    /// A path over a hop without price.
    #[error("flow `{0}`: a hop of its path has no price")]
    NoPrice(FlowId),
    /// A completion time after the deadline.
    #[error("flow `{flow}`: takes {:.3} s, its deadline is {:.3} \
        s", fct.as_secs_f64(), deadline.as_secs_f64())]
    Late {
        /// The flow.
        flow: FlowId,
        /// Its completion time by the model.
        fct: Duration,
        /// Its deadline.
        deadline: Duration,
    },
    /// A completion time other than the model's.
    #[error("flow `{flow}`: {what} is {planned:?}, the model says {expected:?}")]
    WrongTime {
        /// The flow.
        flow: FlowId,
        /// The kind of time.
        what: &'static str,
        /// The plan's value.
        planned: Option<Duration>,
        /// The model's value.
        expected: Option<Duration>,
    },
    /// A cost other than the prices give.
    #[error("{what}: ${} planned, ${} by the prices", planned.as_usd(), expected.as_usd())]
    WrongCost {
        /// The item whose cost it is.
        what: String,
        /// The plan's value.
        planned: Money,
        /// The cost by the prices.
        expected: Money,
    },
    /// The plan is better than its own bound.
    #[error("the plan is better than the bound that it states")]
    WrongBound,
    /// The sum of completion times is not that of its flows.
    #[error("total of completion times: {planned:?} planned, its flows take {expected:?}")]
    WrongTotal {
        /// The plan's value.
        planned: Duration,
        /// The sum over its flows.
        expected: Duration,
    },
    /// A cost above the budget.
    #[error("cost ${} is above the budget of ${}", cost.as_usd(), budget.as_usd())]
    OverBudget {
        /// The plan's actual cost.
        cost: Money,
        /// The problem's budget.
        budget: Money,
    },
    /// A load above a relay's capacity.
    #[error("relay `{relay}`: its flows need {load} bit/s, it carries {capacity}")]
    OverCapacity {
        /// The relay.
        relay: RelayId,
        /// The load of its flows in bit/s.
        load: u64,
        /// Its capacity.
        capacity: Bandwidth,
    },
}

/// Returns all errors of `plan` as a solution of `problem`; none if it is valid.
#[must_use]
pub fn verify(problem: &Problem, plan: &Plan) -> Vec<Violation> {
    let offers = problem.offers().iter().enumerate();
    let mut check = Check {
        problem,
        plan,
        offers: offers.map(|(at, o)| ((&o.region, &o.relay_type.id), at)).collect(),
        // Of two relays of one name the first counts.
        known: plan.relays.iter().rev().map(|relay| (&relay.id, relay)).collect(),
        found: Vec::new(),
        loads: BTreeMap::new(),
        weighted: Duration::ZERO,
        last: Duration::ZERO,
    };
    check.relays();
    check.flows();
    check.loads();
    check.totals();
    check.found
}

struct Check<'a> {
    problem: &'a Problem,
    plan: &'a Plan,
    /// The indexes of the problem's offers.
    offers: BTreeMap<(&'a RegionId, &'a RelayTypeId), usize>,
    /// The plan's relays by their names.
    known: BTreeMap<&'a RelayId, &'a PlannedRelay>,
    found: Vec<Violation>,
    /// The load of each relay in bit/s.
    loads: BTreeMap<RelayId, u64>,
    /// The sum of completion times, weighted.
    weighted: Duration,
    /// The last completion time.
    last: Duration,
}

impl<'a> Check<'a> {
    fn relays(&mut self) {
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
            let offer = self.offer_of(relay);
            if offer.is_none_or(|offer| !self.problem.offers()[offer].is_offered) {
                let (region, relay_type) = (relay.region.clone(), relay.relay_type.clone());
                self.found.push(Violation::NotOffered { relay: id, region, relay_type });
            }
        }
    }

    /// Returns the index of a relay's offer among the problem's offers.
    fn offer_of(&self, relay: &PlannedRelay) -> Option<usize> {
        self.offers.get(&(&relay.region, &relay.relay_type)).copied()
    }

    fn flows(&mut self) {
        let (problem, plan) = (self.problem, self.plan);
        let mut planned: BTreeMap<&FlowId, Vec<&'a PlannedFlow>> = BTreeMap::new();
        for flow in &plan.flows {
            planned.entry(&flow.id).or_default().push(flow);
        }
        for (index, flow) in problem.flows().iter().enumerate() {
            let found = planned.remove(&flow.id).unwrap_or_default();
            if found.len() != 1 {
                let (flow, count) = (flow.id.clone(), found.len());
                self.found.push(Violation::FlowCount { flow, count });
            }
            for planned in found {
                self.flow(index, flow, planned);
            }
        }
        let unknown = planned.into_keys().cloned().map(Violation::UnknownFlow);
        self.found.extend(unknown);
    }

    fn flow(&mut self, index: usize, flow: &'a Flow, planned: &'a PlannedFlow) {
        let Some(offers) = self.path(flow, planned) else { return };
        if offers.len() > self.problem.max_relays() {
            let (relays, most) = (offers.len(), self.problem.max_relays());
            self.found.push(Violation::PathTooLong { flow: flow.id.clone(), relays, most });
        }
        let Some(fct) = self.problem.fct(index, &offers) else {
            self.found.push(Violation::UnknownLeg(flow.id.clone()));
            return;
        };
        self.weighted = self.weighted.saturating_add(fct.saturating_mul(flow.weight));
        self.last = self.last.max(fct);
        self.time(flow, "completion time", Some(planned.fct), Some(fct));
        let direct = self.problem.fct(index, &[]);
        self.time(flow, "direct completion time", planned.fct_direct, direct);
        if let Some(deadline) = flow.deadline.filter(|deadline| fct > *deadline) {
            self.found.push(Violation::Late { flow: flow.id.clone(), fct, deadline });
        }
        let bits = u128::from(flow.volume.as_u64()) * 8;
        let rate = bits * 1_000_000_000 / fct.as_nanos().max(1);
        let rate = u64::try_from(rate).unwrap_or(u64::MAX);
        planned.path.iter().for_each(|relay| self.load(relay, rate));
        let Ok(egress) = self.problem.egress_cost(index, &offers) else {
            self.found.push(Violation::NoPrice(flow.id.clone()));
            return;
        };
        self.cost(format!("egress of flow `{}`", flow.id), planned.egress, egress);
        let move_cost = self.problem.move_cost(index, &offers);
        self.cost(format!("move of flow `{}`", flow.id), planned.move_cost, move_cost);
    }

    fn load(&mut self, relay: &RelayId, rate: u64) {
        let load = self.loads.entry(relay.clone()).or_default();
        *load = load.saturating_add(rate);
    }

    /// Returns the offers of a flow's relays; `None` when one of them is unknown.
    fn path(&mut self, flow: &Flow, planned: &PlannedFlow) -> Option<Vec<usize>> {
        let mut regions = BTreeSet::new();
        let mut offers = Vec::new();
        for relay in &planned.path {
            let Some(known) = self.known.get(relay).copied() else {
                let (flow, relay) = (flow.id.clone(), relay.clone());
                self.found.push(Violation::UnknownRelay { flow, relay });
                return None;
            };
            if !regions.insert(&known.region) {
                let (flow, region) = (flow.id.clone(), known.region.clone());
                self.found.push(Violation::Loop { flow, region });
            }
            offers.push(self.offer_of(known)?);
        }
        Some(offers)
    }

    fn cost(&mut self, what: String, planned: Money, expected: Money) {
        if planned != expected {
            self.found.push(Violation::WrongCost { what, planned, expected });
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
        // Each flow's rate is rounded to a whole bit per second.
        let rounding = self.plan.flows.len() as u64;
        for relay in &self.plan.relays {
            let Some(offer) = self.offer_of(relay) else { continue };
            let capacity = self.problem.offers()[offer].relay_type.capacity;
            let load = self.loads.get(&relay.id).copied().unwrap_or_default();
            if load > capacity.as_bps().saturating_add(rounding) {
                let relay = relay.id.clone();
                self.found.push(Violation::OverCapacity { relay, load, capacity });
            }
        }
    }

    fn totals(&mut self) {
        let mut counts = vec![0; self.problem.offers().len()];
        for offer in self.plan.relays.iter().filter_map(|relay| self.offer_of(relay)) {
            counts[offer] += 1;
        }
        for ((region, relay_type), most) in &self.problem.inputs().most {
            let is_one =
                |relay: &&PlannedRelay| relay.region == *region && relay.relay_type == *relay_type;
            let count = self.plan.relays.iter().filter(is_one).count();
            if count > *most {
                let (region, relay_type) = (region.clone(), relay_type.clone());
                let (count, most) = (count, *most);
                self.found.push(Violation::TooManyRelays { region, relay_type, count, most });
            }
        }
        let offers = || self.problem.offers().iter().zip(&counts);
        let set_up: Money = offers().map(|(offer, count)| offer.set_up(*count)).sum();
        let hours = self.last.as_nanos().div_ceil(NANOS_AN_HOUR).max(1);
        let hours = u64::try_from(hours).unwrap_or(u64::MAX);
        let machines: Money = offers()
            .filter_map(|(offer, count)| {
                let price = self.problem.inputs().hourly.get(&offer.relay_type.id)?;
                Some(price.times(hours).times(count.saturating_sub(offer.running) as u64))
            })
            .sum();
        let carrying = self.plan.flows.iter().map(|flow| flow.egress + flow.move_cost);
        let cost = carrying.sum::<Money>() + set_up + machines;
        self.cost("the plan".to_owned(), self.plan.cost, cost);
        let budget = self.problem.budget();
        if cost > budget {
            self.found.push(Violation::OverBudget { cost, budget });
        }
        let expected: Duration = self.plan.flows.iter().map(|flow| flow.fct).sum();
        let planned = self.plan.total_fct;
        if planned.abs_diff(expected) > SAME_TIME {
            self.found.push(Violation::WrongTotal { planned, expected });
        }
        let bounded = match self.problem.objective() {
            Objective::Makespan => self.last,
            Objective::TotalFct | Objective::Cost => self.weighted,
        };
        if self.plan.bound > bounded + SAME_TIME || self.plan.bound_cost > cost {
            self.found.push(Violation::WrongBound);
        }
    }
}
