//! Solvers against plain enumeration, and properties that any optimum has.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::enumeration::enumerated;
use common::{drawn, four_cities, mbps, usd};
use proptest::prelude::*;
use tradewind_model::StartUp;
use tradewind_plan::solver::{self, Exhaustive, Greedy, best_of};
use tradewind_plan::{Inputs, Limits, Plan, Problem, SolveError, Solver, verify};
use tradewind_units::{Duration, Money};

const TEN_REGIONS: [&str; 10] = [
    "gcp:us-east4",
    "gcp:us-west1",
    "gcp:us-central1",
    "gcp:southamerica-east1",
    "gcp:europe-west2",
    "gcp:europe-west3",
    "gcp:europe-north1",
    "gcp:asia-northeast1",
    "gcp:asia-southeast1",
    "gcp:asia-south1",
];

fn solve(solver: &dyn Solver, inputs: &Inputs) -> Plan {
    let problem = Problem::new(inputs.clone()).unwrap();
    let plan = solver.solve(&problem, &Limits::work(20_000_000)).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    plan
}

#[test]
fn cloudpilots_four_cities_are_solved_within_six_dollars() {
    let inputs = four_cities(&TEN_REGIONS, 6.0);
    let problem = Problem::new(inputs).unwrap();
    let limits = Limits::work(100_000);
    let greedy = Greedy.solve(&problem, &limits).unwrap();
    let best = best_of(&[&Greedy, &Exhaustive], &problem, &limits).unwrap();
    for plan in [&greedy, &best] {
        assert_eq!(verify(&problem, plan), vec![]);
        assert!(plan.cost <= usd(6.0));
        assert!(plan.acceleration().unwrap() > 2.0, "{:?}", plan.acceleration());
        assert!(plan.bound <= plan.total_fct);
    }
    assert!(best.total_fct <= greedy.total_fct);
}

#[test]
fn what_users_get_as_auto_is_never_worse_than_any_other_algorithm() {
    for budget_usd in [0.0, 2.0, 6.0] {
        let problem = Problem::new(four_cities(&TEN_REGIONS[..5], budget_usd)).unwrap();
        let limits = Limits::work(100_000);
        let planned = |name: &str| match solver::by_name(name).unwrap().solve(&problem, &limits) {
            Ok(plan) => Some(plan),
            Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
            Err(error) => panic!("{name}: {error}"),
        };
        let auto = planned("auto").unwrap();
        assert_eq!(verify(&problem, &auto), vec![]);
        for name in solver::names() {
            let other = planned(name).map(|plan| plan.score(&problem));
            assert!(other.is_none_or(|other| auto.score(&problem) <= other), "{name}");
        }
    }
}

#[test]
fn without_a_budget_everything_goes_direct() {
    for solver in [&Greedy as &dyn Solver, &Exhaustive] {
        let plan = solve(solver, &four_cities(&TEN_REGIONS, 0.0));
        assert!(plan.flows.iter().all(|flow| flow.path.is_empty()));
        assert_eq!((plan.relays.len(), plan.cost), (0, Money::ZERO));
        assert_eq!(plan.acceleration(), Some(1.0));
    }
}

#[test]
fn free_set_up_and_egress_give_each_flow_its_best_path() {
    let mut inputs = four_cities(&TEN_REGIONS[..4], 0.0);
    inputs.prices = tradewind_model::cost::Prices::Flat(tradewind_units::PricePerGb::FREE);
    inputs.relay_types[0].set_up = Money::ZERO;
    let problem = Problem::new(inputs.clone()).unwrap();
    let fastest: Duration =
        (0..12).map(|flow| problem.candidates(flow).iter().map(|c| c.fct).min().unwrap()).sum();
    assert_eq!(solve(&Exhaustive, &inputs).total_fct, fastest);
    assert_eq!(solve(&Greedy, &inputs).total_fct, fastest);
}

#[test]
fn a_full_relay_makes_the_next_flow_pay_for_another() {
    let mut inputs =
        drawn(2, 1, &[200, 10, 10, 200, 10, 10, 200, 200, 10, 10, 10, 10], 600.0, 10.0);
    inputs.start_up = StartUp::Ignored;
    let mut roomy = inputs.clone();
    roomy.relay_types[0].capacity = mbps(5000.0);
    let (tight, roomy) = (solve(&Exhaustive, &inputs), solve(&Exhaustive, &roomy));
    assert!(tight.relays.len() >= roomy.relays.len());
    assert!(tight.total_fct >= roomy.total_fct);
}

#[test]
fn a_flow_without_direct_path_is_served_first_or_named() {
    let mut inputs = drawn(2, 2, &[100, 40, 30, 60], 2000.0, 10.0);
    let direct = |flow: usize| {
        let flow = &inputs.flows[flow];
        let place = |site: &tradewind_units::SiteId| tradewind_plan::Place::Site(site.clone());
        (place(&flow.source), place(&flow.destination))
    };
    let cut = direct(1);
    inputs.legs.remove(&cut);
    for solver in [&Greedy as &dyn Solver, &Exhaustive] {
        let plan = solve(solver, &inputs);
        assert!(!plan.flows[1].path.is_empty());
        assert_eq!((plan.flows[1].fct_direct, plan.acceleration()), (None, None));
    }
    inputs.budget = usd(0.1);
    let problem = Problem::new(inputs).unwrap();
    let error = Exhaustive.solve(&problem, &Limits::work(1_000_000)).unwrap_err();
    assert!(matches!(error, SolveError::Infeasible { ref flow } if flow.as_str() == "flow1"));
}

#[test]
fn a_solver_out_of_steps_hands_over_what_it_has_and_a_bound() {
    let problem = Problem::new(four_cities(&TEN_REGIONS, 6.0)).unwrap();
    let optimum = best_of(&[&Greedy], &problem, &Limits::work(1_000_000)).unwrap();
    let stopped = Exhaustive.solve(&problem, &Limits::work(100)).unwrap_err();
    let SolveError::WorkLimit { best: Some(best), bound } = stopped else {
        panic!("{stopped:?}");
    };
    assert_eq!(verify(&problem, &best), vec![]);
    assert!(bound <= optimum.total_fct);
    let told = Limits { should_stop: &|| true, ..Limits::work(u64::MAX) };
    assert!(matches!(Greedy.solve(&problem, &told), Err(SolveError::WorkLimit { .. })));
}

#[test]
fn the_same_problem_gives_the_same_plan() {
    let inputs = four_cities(&TEN_REGIONS[..5], 4.0);
    assert_eq!(solve(&Greedy, &inputs), solve(&Greedy, &inputs));
    assert_eq!(solve(&Exhaustive, &inputs), solve(&Exhaustive, &inputs));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn exhaustive_search_agrees_with_plain_enumeration(
        flows in 1usize..4,
        regions in 1usize..4,
        rtts in proptest::collection::vec(5u64..250, 30),
        capacity in 200.0f64..2500.0,
        budget in 0.0f64..4.0,
    ) {
        let inputs = drawn(flows, regions, &rtts, capacity, budget);
        let problem = Problem::new(inputs.clone()).unwrap();
        let (_, expected, _) = enumerated(&problem).unwrap();
        let plan = solve(&Exhaustive, &inputs);
        prop_assert_eq!(plan.total_fct, expected);
        prop_assert_eq!(plan.bound, expected);
        prop_assert!(solve(&Greedy, &inputs).total_fct >= expected);
    }

    #[test]
    fn a_larger_budget_or_another_region_never_hurts_the_optimum(
        rtts in proptest::collection::vec(5u64..250, 42),
        budget in 0.0f64..4.0,
        more in 0.0f64..3.0,
    ) {
        let small = drawn(3, 3, &rtts, 2000.0, budget);
        let rich = Inputs { budget: usd(budget + more), ..small.clone() };
        let mut fewer = small.clone();
        fewer.regions.pop();
        let optimum = solve(&Exhaustive, &small).total_fct;
        prop_assert!(solve(&Exhaustive, &rich).total_fct <= optimum);
        prop_assert!(optimum <= solve(&Exhaustive, &fewer).total_fct);
    }
}
