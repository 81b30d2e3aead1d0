//! Tests of `LagrangianSearch` against plain enumeration, and of properties that any good planner
//! has.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::enumeration::enumerated;
use common::{drawn, family, flow, mbps, usd, world};
use proptest::prelude::*;
use tradewind_model::StartUp;
use tradewind_model::cost::Prices;
use tradewind_model::leg::DEFAULT_WINDOW;
use tradewind_plan::solver::{self, Exhaustive, Greedy, LagrangianSearch};
use tradewind_plan::{
    Inputs, Limits, Objective, Plan, Problem, ProblemError, RelayType, SolveError, Solver, verify,
};
use tradewind_units::{Bytes, Duration, PricePerGb, RegionId, RelayTypeId};

/// `LagrangianSearch` without exact solvers.
const ALONE: LagrangianSearch<'static> = LagrangianSearch { starters: &[], end_games: &[] };

const STEPS: u64 = 10_000;

fn solve(solver: &dyn Solver, inputs: &Inputs, steps: u64) -> Option<(Problem, Plan)> {
    let problem = Problem::new(inputs.clone()).ok()?;
    let plan = match solver.solve(&problem, &Limits::work(steps)) {
        Ok(plan) => plan,
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => *plan,
        Err(_) => return None,
    };
    assert_eq!(verify(&problem, &plan), vec![]);
    Some((problem, plan))
}

/// Returns small problems with weights, two relay types, running relays, deadlines and binding
/// capacities.
fn small() -> impl Strategy<Value = Inputs> {
    let rtts = prop::collection::vec(5_u64..300, 12..40);
    let sizes = (1_usize..4, 1_usize..4, rtts, 200.0..2_000.0_f64, 0.0..4.0_f64);
    let more = (prop::collection::vec(1_u32..4, 3), any::<bool>(), 0_usize..2, any::<bool>());
    (sizes, more).prop_map(
        |((flows, regions, rtts, capacity, budget), (weights, types, running, cold))| {
            let mut inputs = drawn(flows, regions, &rtts, capacity, budget);
            if !cold {
                inputs.start_up = StartUp::Ignored;
            }
            for (flow, weight) in inputs.flows.iter_mut().zip(weights) {
                flow.weight = weight;
            }
            if types {
                let id = RelayTypeId::new("small").unwrap();
                let cheap = RelayType {
                    id,
                    capacity: mbps(capacity / 2.0),
                    set_up: usd(0.2),
                    per_connection: None,
                };
                inputs.regions.truncate(2);
                inputs.relay_types.push(cheap);
            }
            let key = (inputs.regions[0].clone(), inputs.relay_types[0].id.clone());
            inputs.running.relays.insert(key, running);
            inputs
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn small_problems_are_solved_exactly(inputs in small()) {
        let (problem, plan) = solve(&LagrangianSearch::default(), &inputs, 2_000_000).unwrap();
        let (_, score, _) = enumerated(&problem).unwrap();
        prop_assert_eq!((plan.score(&problem).0, plan.bound), (score, score));
    }

    #[test]
    fn bound_and_search_enclose_optimum(inputs in small()) {
        let (problem, plan) = solve(&ALONE, &inputs, STEPS).unwrap();
        let (_, score, _) = enumerated(&problem).unwrap();
        prop_assert!(plan.bound <= score, "{:?} above {score:?}", plan.bound);
        let found = plan.score(&problem).0;
        // 2.06 % was observed with the search alone, without the exact solver that `auto` ends
        // with.
        prop_assert!(found <= score.mul_f64(1.05), "{found:?} against {score:?}");
    }

    #[test]
    fn cheapest_plan_that_meets_deadlines_is_found(mut inputs in small(),
        late in 0.1..0.9_f64) {
        let fastest = Problem::new(inputs.clone()).unwrap();
        inputs.objective = Objective::Cost;
        for (index, flow) in inputs.flows.iter_mut().enumerate() {
            let times = || fastest.candidates(index).iter().map(|candidate| candidate.fct);
            let (least, most) = (times().min().unwrap(), times().max().unwrap());
            flow.deadline = Some(least + (most - least).mul_f64(late));
        }
        let problem = Problem::new(inputs.clone()).unwrap();
        let best = enumerated(&problem);
        match (solve(&ALONE, &inputs, STEPS), best) {
            (Some((problem, plan)), Some((_, _, cost))) => {
                prop_assert!(plan.bound_cost <= cost, "{} above {cost}", plan.bound_cost);
                prop_assert_eq!(plan.score(&problem), (Duration::ZERO, cost));
            }
            (found, best) => prop_assert_eq!(found.is_some(), best.is_some()),
        }
    }

    #[test]
    fn least_makespan_is_found(mut inputs in small()) {
        inputs.objective = Objective::Makespan;
        let (problem, plan) = solve(&LagrangianSearch::default(), &inputs, 1_000_000).unwrap();
        let (last, score, cost) = enumerated(&problem).unwrap();
        prop_assert_eq!(plan.rank(&problem), (last, cost, score));
        prop_assert_eq!(plan.bound, last);
        let plan = solver::solve(&Exhaustive, &problem, &Limits::work(20_000_000)).unwrap();
        prop_assert_eq!((plan.rank(&problem), plan.bound), ((last, cost, score), last));
        prop_assert_eq!(verify(&problem, &plan), vec![]);
    }

    #[test]
    fn cheapest_of_equally_fast_plans_is_found(
        inputs in small(),
        prices in prop::collection::vec(0_u8..4, 3),
        is_exhaustive in any::<bool>(),
    ) {
        // Egress prices depend on the region, and times are multiples of a coarse step, so that
        // many plans take equally long.
        let mut inputs = inputs;
        let price = |at: u8| PricePerGb::from_usd_per_gb(f64::from(at) * 0.05).unwrap();
        let regions = inputs.regions.iter().zip(prices);
        let pairs = regions.map(|(region, at)| ((region.clone(), None), price(at))).collect();
        inputs.prices = Prices::Stated { pairs, otherwise: Box::new(inputs.prices.clone()) };
        inputs.start_up = StartUp::Ignored;
        for leg in inputs.legs.values_mut() {
            let coarse = (leg.rtt.as_millis() as u64 / 100 + 1) * 100;
            leg.rtt = Duration::from_millis(coarse);
            leg.window = DEFAULT_WINDOW;
        }
        let auto = solver::by_name("auto").unwrap();
        let asked: &dyn Solver = if is_exhaustive { &Exhaustive } else { auto.as_ref() };
        let (problem, plan) = solve(asked, &inputs, 20_000_000).unwrap();
        let (_, score, cost) = enumerated(&problem).unwrap();
        prop_assert_eq!(plan.score(&problem), (score, cost));
    }

    #[test]
    fn exhaustive_search_serves_the_cost(mut inputs in small()) {
        inputs.objective = Objective::Cost;
        for (index, flow) in inputs.flows.iter_mut().enumerate() {
            flow.deadline = Some(Duration::from_secs(20 + 30 * index as u64));
        }
        let Ok(problem) = Problem::new(inputs) else { return Ok(()) };
        let found = Exhaustive.solve(&problem, &Limits::work(20_000_000));
        match enumerated(&problem) {
            Some((_, _, cost)) => {
                let plan = found.unwrap();
                prop_assert_eq!(verify(&problem, &plan), vec![]);
                prop_assert_eq!((plan.cost, plan.bound_cost), (cost, cost));
            }
            None => prop_assert!(matches!(found, Err(SolveError::Infeasible(_)))),
        }
    }

    #[test]
    fn bound_of_a_makespan_is_below_the_least(mut inputs in small(), steps in 0_u64..3_000) {
        inputs.objective = Objective::Makespan;
        let (problem, plan) = solve(&ALONE, &inputs, steps).unwrap();
        let (last, _, _) = enumerated(&problem).unwrap();
        prop_assert!(plan.bound <= last, "{:?} above {last:?}", plan.bound);
        let fastest = |flow| problem.candidates(flow).iter().map(|candidate| candidate.fct).min();
        prop_assert!(Some(plan.bound) >= (0..inputs.flows.len()).filter_map(fastest).max());
    }

    #[test]
    fn larger_budget_never_worsens_exact_plan(inputs in small(), more in 1.0..3.0_f64) {
        let score = |budget: f64| {
            let inputs = Inputs { budget: usd(budget), ..inputs.clone() };
            let (problem, plan) = solve(&LagrangianSearch::default(), &inputs, 2_000_000).unwrap();
            plan.score(&problem).0
        };
        let budget = inputs.budget.as_usd();
        prop_assert!(score(budget * more) <= score(budget));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]

    #[test]
    fn plans_are_invariant_to_scale_and_names(seed in 1_u64..1_000, power in 1_u32..4) {
        let factor = f64::from(1 << power);
        let mut inputs = world(20, 6, 6.0, seed);
        inputs.start_up = StartUp::Ignored;
        // Rates are rounded to bits a second, and times to nanoseconds: no sum of rates may equal
        // this relay's capacity, or a bit would decide whether a flow fits.
        inputs.relay_types[0].capacity = mbps(2_000.001);
        let (problem, plan) = solve(&ALONE, &inputs, STEPS).unwrap();
        let (score, cost) = plan.score(&problem);

        let price = |inputs: &Inputs, factor: f64| {
            let tradewind_model::cost::Prices::Flat(price) = inputs.prices else { unreachable!() };
            let usd = price.as_usd_per_gb() * factor;
            let price = tradewind_units::PricePerGb::from_usd_per_gb(usd);
            tradewind_model::cost::Prices::Flat(price.unwrap())
        };
        let mut dearer = inputs.clone();
        dearer.prices = price(&inputs, factor);
        dearer.relay_types[0].set_up = usd(0.5 * factor);
        dearer.budget = usd(6.0 * factor);
        let (problem, plan) = solve(&ALONE, &dearer, STEPS).unwrap();
        prop_assert_eq!(plan.score(&problem), (score, usd(cost.as_usd() * factor)));

        // Twice the volume at half the price takes twice the time at the same cost.
        let mut longer = inputs.clone();
        longer.prices = price(&inputs, 1.0 / factor);
        for flow in &mut longer.flows {
            flow.volume = Bytes::new(flow.volume.as_u64() << power);
        }
        let (problem, plan) = solve(&ALONE, &longer, STEPS).unwrap();
        let (slower, _) = plan.score(&problem);
        let expected = score.mul_f64(factor);
        prop_assert!(slower.abs_diff(expected) < expected.mul_f64(1e-9), "{slower:?}, \
            {expected:?}");

        let renamed = |id: &RegionId| RegionId::new(format!("other:{}", id.as_str()
            .replace("cloud:r", "z"))).unwrap();
        let place = |place: &tradewind_plan::LegEnd| match place {
            tradewind_plan::LegEnd::Relay(id) => tradewind_plan::LegEnd::Relay(renamed(id)),
            site => site.clone(),
        };
        let mut other = inputs.clone();
        other.regions = inputs.regions.iter().map(renamed).collect();
        other.legs = inputs.legs.iter().map(|((a, b), leg)| ((place(a), place(b)), *leg)).collect();
        let (problem, plan) = solve(&ALONE, &other, STEPS).unwrap();
        prop_assert_eq!(plan.score(&problem), (score, cost));
    }
}

/// Returns the same inputs with the regions in another order.
fn turned(inputs: &Inputs, by: usize) -> Inputs {
    let mut other = inputs.clone();
    let count = other.regions.len();
    other.regions.rotate_left(by % count);
    if by % 2 == 1 {
        other.regions.reverse();
    }
    other
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn another_order_of_the_regions_changes_no_objective(inputs in small(), by in 1_usize..8) {
        let solve = |inputs: &Inputs| {
            let (problem, plan) = solve(&LagrangianSearch::default(), inputs, 2_000_000).unwrap();
            (plan.score(&problem).0, plan.bound)
        };
        prop_assert_eq!(solve(&inputs), solve(&turned(&inputs, by)));
    }
}

#[test]
fn more_money_than_can_be_added_up_is_refused() {
    let mut inputs = world(20, 6, 1e9, 1);
    inputs.relay_types[0].set_up = usd(1e9);
    assert_eq!(Problem::new(inputs.clone()).unwrap_err(), ProblemError::TooMuchMoney);
    // The largest accepted costs do not overflow.
    inputs.relay_types[0].set_up = usd(8e7);
    for objective in [Objective::TotalFct, Objective::Makespan] {
        inputs.objective = objective;
        assert!(solve(&LagrangianSearch::default(), &inputs, STEPS).is_some());
    }
}

#[test]
fn larger_budget_never_worsens_the_plan() {
    for seed in 1..6 {
        let mut last = Duration::MAX;
        for tenths in 0..8 {
            let inputs = world(12, 5, 1.0 + 0.5 * f64::from(tenths), seed);
            let (problem, plan) = solve(&LagrangianSearch::default(), &inputs, STEPS).unwrap();
            let score = plan.score(&problem).0;
            assert!(score <= last, "seed {seed}: {score:?} after {last:?}");
            last = score;
        }
    }
}

#[test]
fn auto_is_never_worse_than_its_starters() {
    let mut inputs = world(12, 8, 5.0, 7);
    inputs.start_up = StartUp::Ignored;
    let (problem, greedy) = solve(&Greedy, &inputs, 2_000_000).unwrap();
    let starters: [&dyn Solver; 2] = [&Greedy, &Exhaustive];
    let auto = LagrangianSearch { starters: &starters, end_games: &[] };
    let plan = auto.solve(&problem, &Limits::work(20_000)).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    assert!(plan.score(&problem) <= greedy.score(&problem));
}

#[test]
fn sixty_flows_are_planned_near_bound() {
    let mut inputs = world(60, 18, 30.0, 1);
    inputs.start_up = StartUp::Ignored;
    let (problem, plan) = solve(&LagrangianSearch::default(), &inputs, 60_000).unwrap();
    let (score, bound) = (plan.score(&problem).0, plan.bound);
    assert!(score <= bound.mul_f64(1.06), "{score:?} against {bound:?}");
    assert!(plan.acceleration().unwrap() > 2.0);
}

#[test]
fn unaffordable_deadline_is_reported() {
    let mut inputs = drawn(1, 1, &[280, 20, 20, 280, 20, 20], 2_000.0, 0.1);
    inputs.flows[0] = flow("only", "site0", "site1", 500);
    inputs.objective = Objective::Cost;
    let direct = Problem::new(inputs.clone()).unwrap().fct(0, &[]).unwrap();
    inputs.flows[0].deadline = Some(direct.mul_f64(0.9));
    let problem = Problem::new(inputs).unwrap();
    let error = LagrangianSearch::default().solve(&problem, &Limits::work(10_000)).unwrap_err();
    assert!(matches!(error, SolveError::Infeasible { .. }), "{error:?}");
}

#[test]
fn bound_and_search_price_budget_with_free_transfer() {
    // By the plain sum of all flows' best times the bound was 565 s for plans of 2,498, and plans
    // were up to a tenth worse than they are.
    for number in [0, 1, 5] {
        let problem = family::problem(number);
        let plan = match ALONE.solve(&problem, &Limits::work(60_000)) {
            Ok(plan) => plan,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(verify(&problem, &plan), vec![]);
        let best = family::best_known_s(number).unwrap();
        let (found, bound) = (plan.score(&problem).0.as_secs_f64(), plan.bound.as_secs_f64());
        assert!(bound > 0.9 * best && bound <= 1.000_001 * best, "{number}: {bound} for {best}");
        assert!(found <= 1.07 * best, "{number}: {found} for {best}");
    }
}

#[test]
fn without_work_everything_goes_direct() {
    let inputs = world(20, 6, 0.0, 3);
    let (_, plan) = solve(&LagrangianSearch::default(), &inputs, 0).unwrap();
    assert!(plan.flows.iter().all(|flow| flow.path.is_empty()));
}
