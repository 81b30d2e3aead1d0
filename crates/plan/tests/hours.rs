//! Tests of machines that are paid for as long as the plan takes, against enumeration of all plans.

#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::enumeration::enumerated;
use common::random::{Kind, Numbers, random};
use common::usd;
use tradewind_model::cost::Prices;
use tradewind_plan::explain::Verdict;
use tradewind_plan::solver::{SolveError, by_name, names, solve};
use tradewind_plan::{
    Inputs, Limits, Objective, Plan, Problem, RelayType, Violation, explain, verify,
};
use tradewind_units::{Bytes, PricePerGb};

const SMALL: Kind = Kind { flows: 4, regions: 3, beyond_paper: false };

/// The algorithms that prove their plans optimal on small problems.
const EXACT: [&str; 3] = ["exhaustive", "exact", "auto"];

/// Relative error of HiGHS's scores.
const TOLERANCE: f64 = 1e-9;

/// Returns problems generated from seeds whose flows take hours, with hourly prices.
fn problems(count: u64) -> impl Iterator<Item = (u64, Problem)> {
    (0..count).filter_map(|seed| {
        let drawn = random(seed, SMALL)?;
        let mut numbers = Numbers::new(seed + 2_000_000);
        let mut inputs = drawn.inputs().clone();
        for flow in &mut inputs.flows {
            flow.volume = Bytes::new(flow.volume.as_u64() * 300);
        }
        for RelayType { id, set_up, .. } in &mut inputs.relay_types {
            *set_up = usd(numbers.below(3) as f64 * 0.2);
            inputs.hourly.insert(id.clone(), usd(0.1 + numbers.below(5) as f64 * 0.1));
        }
        inputs.prices = Prices::Flat(PricePerGb::from_usd_per_gb(0.001).unwrap());
        inputs.budget = usd(numbers.below(12) as f64);
        inputs.objective =
            [Objective::TotalFct, Objective::Cost, Objective::Makespan][numbers.below(3) as usize];
        Some((seed, Problem::new(inputs).ok()?))
    })
}

/// Returns the plan of the algorithm, whether or not it finished.
fn plan(name: &str, problem: &Problem) -> Option<Plan> {
    match solve(by_name(name)?.as_ref(), problem, &Limits::work(20_000_000)) {
        Ok(plan) => Some(plan),
        Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
        Err(_) => None,
    }
}

/// Returns the whole hours until the last flow is done.
fn hours(plan: &Plan) -> u64 {
    (plan.makespan().as_secs_f64() / 3600.0).ceil() as u64
}

#[test]
fn exact_algorithms_optimize_hours() {
    let (mut tried, mut longer) = (0, 0);
    for (seed, problem) in problems(60) {
        let best = enumerated(&problem).map(|(last, score, cost)| match problem.objective() {
            Objective::Makespan => (last, cost, score),
            Objective::TotalFct | Objective::Cost => (score, cost, score),
        });
        for name in names() {
            let plan = plan(name, &problem);
            if let Some(plan) = &plan {
                assert_eq!(verify(&problem, plan), vec![], "seed {seed}, {name}");
            }
            if !EXACT.contains(&name) {
                continue;
            }
            let found = plan.as_ref().map(|plan| plan.rank(&problem));
            assert_eq!(found.is_some(), best.is_some(), "seed {seed}, {name}");
            let (Some(found), Some(best)) = (found, best) else { continue };
            let off = found.0.abs_diff(best.0).as_secs_f64();
            assert!(
                off <= TOLERANCE * best.0.as_secs_f64() && found.1 == best.1,
                "seed {seed}, {name}: {found:?} against {best:?}"
            );
        }
        let exhaustive = plan("exhaustive", &problem);
        longer += usize::from(exhaustive.is_some_and(|plan| {
            let one_hour = Inputs { hourly: Default::default(), ..problem.inputs().clone() };
            let free = Problem::new(one_hour).unwrap();
            !plan.relays.is_empty() && hours(&plan) > 1 && !verify(&free, &plan).is_empty()
        }));
        tried += 1;
    }
    assert!(tried > 40 && longer > 3, "{longer} of {tried} plans pay for some hours");
}

#[test]
fn bounds_hold_of_every_plan() {
    for (seed, problem) in problems(40) {
        let Some((last, score, cost)) = enumerated(&problem) else { continue };
        let least = if problem.objective() == Objective::Makespan { last } else { score };
        for name in EXACT {
            let Some(plan) = plan(name, &problem) else { continue };
            let bound = plan.bound.as_secs_f64();
            let most = least.as_secs_f64() * (1.0 + TOLERANCE);
            assert!(bound <= most, "seed {seed}, {name}: {bound} against {least:?}");
            if problem.objective() == Objective::Cost {
                assert!(plan.bound_cost <= cost, "seed {seed}, {name}");
            }
        }
    }
}

#[test]
fn unpaid_hours_are_found() {
    let (mut unpaid, mut explained) = (0, 0);
    for (seed, problem) in problems(60) {
        let inputs = Inputs { hourly: Default::default(), ..problem.inputs().clone() };
        let free = Problem::new(inputs).unwrap();
        if let Some(plan) = plan("exhaustive", &free) {
            let is_wrong = verify(&problem, &plan)
                .iter()
                .any(|violation| matches!(violation, Violation::WrongCost { .. }));
            let keeps = problem.offers().iter().any(|offer| offer.running > 0);
            assert!(is_wrong || keeps || plan.relays.is_empty(), "seed {seed}");
            unpaid += usize::from(is_wrong);
        }
        let Some(plan) = plan("exhaustive", &problem) else { continue };
        for flow in problem.flows() {
            let explanation = explain(&problem, &plan, &flow.id).unwrap();
            let selected =
                explanation.alternatives.iter().find(|other| other.verdict == Verdict::Selected);
            assert_eq!(selected.unwrap().plan_cost, Some(plan.cost), "seed {seed}, {}", flow.id);
            explained += usize::from(!plan.relays.is_empty());
        }
    }
    assert!(unpaid > 4 && explained > 10, "{unpaid} unpaid, {explained} explained");
}
