//! Tests of solvers against plain enumeration, and of properties that any optimum has.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use std::sync::Mutex;

use common::enumeration::enumerated;
use common::{drawn, four_cities, mbps, usd};
use proptest::prelude::*;
use tradewind_model::StartUp;
use tradewind_plan::solver::{self, Exhaustive, Greedy, best_of};
use tradewind_plan::{
    Answer, Inputs, LegEnd, Legs, Limits, Objective, Plan, Problem, RelayType, SolveError, Solver,
    Status, verify,
};
use tradewind_units::{Duration, Money, PricePerGb, RegionId};

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
fn four_cities_are_solved_within_six_dollars() {
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
fn auto_is_never_worse_than_other_algorithms() {
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
fn free_prices_give_each_flow_its_best_path() {
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
fn full_relay_needs_another() {
    let mut inputs =
        drawn(2, 1, &[200, 10, 10, 200, 10, 10, 200, 200, 10, 10, 10, 10], 600.0, 10.0);
    inputs.start_up = StartUp::Ignored;
    let mut large = inputs.clone();
    large.relay_types[0].capacity = mbps(5000.0);
    let (tight, large) = (solve(&Exhaustive, &inputs), solve(&Exhaustive, &large));
    assert!(tight.relays.len() >= large.relays.len());
    assert!(tight.total_fct >= large.total_fct);
}

#[test]
fn flow_without_direct_path_is_served_first() {
    let mut inputs = drawn(2, 2, &[100, 40, 30, 60], 2000.0, 10.0);
    let direct = |flow: usize| {
        let flow = &inputs.flows[flow];
        let place = |site: &tradewind_units::SiteId| tradewind_plan::LegEnd::Site(site.clone());
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
    assert!(error.to_string().starts_with("flow `flow1`: no path costs less than $"), "{error}");
}

#[test]
fn solver_out_of_steps_returns_best_and_bound() {
    let problem = Problem::new(four_cities(&TEN_REGIONS, 6.0)).unwrap();
    let optimum = best_of(&[&Greedy], &problem, &Limits::work(1_000_000)).unwrap();
    let stopped = Exhaustive.solve(&problem, &Limits::work(100)).unwrap_err();
    let SolveError::WorkLimit { best: Some(best), bound } = stopped else {
        panic!("{stopped:?}");
    };
    assert_eq!(verify(&problem, &best), vec![]);
    assert!(bound <= optimum.total_fct);
    let stopped = Limits { should_stop: &|| true, ..Limits::work(u64::MAX) };
    assert!(matches!(Greedy.solve(&problem, &stopped), Err(SolveError::WorkLimit { .. })));
}

#[test]
fn same_problem_gives_the_same_plan() {
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
    fn larger_budget_never_hurts_optimum(
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

/// Returns the problem and the answers of all algorithms that support its objective; each plan is
/// verified.
fn answers(inputs: &Inputs) -> (Problem, Vec<Answer>) {
    let problem = Problem::new(inputs.clone()).unwrap();
    let answer = |name: &'static str| {
        let solver = solver::by_name(name).unwrap();
        let outcome = solver::solve(solver.as_ref(), &problem, &Limits::work(1_000_000));
        let answer = Answer::new(&problem, name, outcome, Duration::ZERO).ok()?;
        let violations = answer.plan().map(|plan| verify(&problem, &plan)).unwrap_or_default();
        assert_eq!(violations, vec![], "{name}");
        Some(answer)
    };
    let answers = solver::names().filter_map(answer).collect();
    (problem, answers)
}

/// Returns a problem of one flow without direct path: over one relay for 8 cents, or for nothing
/// over four, which are listed after so many others that paths of four relays are not evaluated.
fn beyond_what_is_looked_at(objective: Objective, budget_usd: f64) -> Inputs {
    const REGIONS: usize = 150;
    let whole = drawn(1, 5, &[200], 20_000.0, budget_usd);
    let site = |name: &str| LegEnd::Site(tradewind_units::SiteId::new(name).unwrap());
    let region = |index: usize| RegionId::new(format!("cloud:r{index}")).unwrap();
    let relay = |index: usize| LegEnd::Relay(region(index));
    let mut hops = vec![(site("site0"), relay(4)), (relay(4), site("site1"))];
    hops.extend([(site("site0"), relay(0)), (relay(3), site("site1"))]);
    hops.extend((0..3).map(|index| (relay(index), relay(index + 1))));
    let legs: Legs = hops.into_iter().map(|hop| (hop.clone(), whole.legs[&hop])).collect();
    let price = |usd| PricePerGb::from_usd_per_gb(usd).unwrap();
    let pairs = std::iter::once(((region(4), None), price(0.4))).collect();
    let otherwise = Box::new(tradewind_model::cost::Prices::Flat(PricePerGb::FREE));
    Inputs {
        legs,
        objective,
        regions: (0..REGIONS).map(region).collect(),
        prices: tradewind_model::cost::Prices::Stated { pairs, otherwise },
        relay_types: vec![RelayType { set_up: Money::ZERO, ..whole.relay_types[0].clone() }],
        start_up: StartUp::Ignored,
        max_relays: 4,
        ..whole
    }
}

#[test]
fn unexamined_paths_prove_nothing() {
    let (problem, all) = answers(&beyond_what_is_looked_at(Objective::Cost, 1.0));
    assert!(problem.leaves_out());
    assert_eq!(enumerated(&problem).map(|(_, _, cost)| cost), Some(Money::ZERO));
    for answer in &all {
        let name = &answer.algorithm;
        assert_eq!((answer.cost, answer.status), (Some(usd(0.08)), Status::Feasible), "{name}");
        assert_eq!(answer.bound_cost, Some(Money::ZERO), "{name}");
    }
    for objective in [Objective::TotalFct, Objective::Makespan, Objective::Cost] {
        let (problem, all) = answers(&beyond_what_is_looked_at(objective, 0.05));
        assert!(enumerated(&problem).is_some());
        for answer in &all {
            assert_eq!(answer.status, Status::Limited, "{objective:?} {}", answer.algorithm);
        }
    }
}

/// Returns a problem of one flow that runs over a relay, for 1.6 cents, slower than directly; a
/// move costs five dollars.
fn running_slowly(objective: Objective, budget_usd: f64) -> Inputs {
    let mut inputs = drawn(1, 1, &[50, 60, 50, 60, 60, 60], 2_000.0, budget_usd);
    (inputs.start_up, inputs.objective) = (StartUp::Ignored, objective);
    let (region, relay_type) = (inputs.regions[0].clone(), inputs.relay_types[0].id.clone());
    inputs.running.relays.insert((region.clone(), relay_type), 1);
    inputs.running.paths.insert(inputs.flows[0].id.clone(), vec![region]);
    inputs.running.move_cost = usd(5.0);
    inputs
}

#[test]
fn running_path_may_be_retained_even_if_slow() {
    for (objective, budget) in [(Objective::Cost, 10.0), (Objective::TotalFct, 1.0)] {
        let inputs = running_slowly(objective, budget);
        let (problem, all) = answers(&inputs);
        assert!(problem.fct(0, &[0]) > problem.fct(0, &[]));
        for answer in all {
            let name = &answer.algorithm;
            let is_exact = ["exhaustive", "exact", "exact-cp", "auto"].contains(&name.as_str());
            if is_exact || objective == Objective::Cost {
                assert_eq!(answer.cost, Some(usd(0.016)), "{name}");
            }
            assert!(!is_exact || answer.status == Status::Optimal, "{name}");
        }
    }
    // With a budget for the move the flow moves, if time counts.
    let rich = solve(&Exhaustive, &running_slowly(Objective::TotalFct, 10.0));
    assert_eq!((rich.cost, rich.flows[0].path.len()), (usd(5.0), 0));
}

/// A greedy solver that records the time limit that it got.
#[derive(Default)]
struct Timed(Mutex<Vec<Duration>>);

impl Solver for Timed {
    fn name(&self) -> &'static str {
        "timed"
    }

    fn solve(&self, problem: &Problem, limits: &Limits<'_>) -> Result<Plan, SolveError> {
        let left = limits.time_left.expect("time is limited")();
        self.0.lock().unwrap().push(left);
        Greedy.solve(problem, limits)
    }
}

#[test]
fn makespan_steps_are_time_limited() {
    let mut inputs = four_cities(&TEN_REGIONS, 6.0);
    inputs.objective = Objective::Makespan;
    let problem = Problem::new(inputs).unwrap();
    let all = Duration::from_secs(10);
    let limits = Limits { time_left: Some(&|| all), ..Limits::work(20_000_000) };
    let timed = Timed::default();
    let plan = solver::makespan::solve(&timed, &problem, &limits).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    let times = timed.0.into_inner().unwrap();
    assert!(times.len() > 3 && times.iter().sum::<Duration>() <= all, "{times:?}");
}

#[test]
fn obstacles_are_reported() {
    let error_of = |inputs: &Inputs| {
        let problem = Problem::new(inputs.clone()).unwrap();
        let error_of = |solver: &dyn Solver| {
            solver.solve(&problem, &Limits::work(1_000_000)).unwrap_err().to_string()
        };
        let first = error_of(&Exhaustive);
        #[cfg(feature = "highs")]
        for other in [&solver::Exact::default() as &dyn Solver, &solver::ExactCp::default()] {
            assert_eq!(error_of(other), first);
        }
        first
    };
    assert_eq!(
        error_of(&running_slowly(Objective::TotalFct, 0.01)),
        "flow `flow0`: no path costs less than $0.016, relays and moves included; the budget is \
         $0.01"
    );
    let mut late = drawn(1, 1, &[100, 20], 2_000.0, 0.2);
    let direct = Problem::new(late.clone()).unwrap().fct(0, &[]).unwrap();
    late.flows[0].deadline = Some(direct.mul_f64(0.9));
    assert_eq!(
        error_of(&late),
        "flow `flow0`: no path that meets its deadline costs less than $0.516, relays and moves \
         included; the budget is $0.2"
    );
    // Each flow could have the relay, but not both.
    let mut two = drawn(2, 1, &[100, 20], 20_000.0, 0.55);
    two.legs.retain(|(from, to), _| {
        matches!((from, to), (LegEnd::Relay(_), _) | (_, LegEnd::Relay(_)))
    });
    let error = error_of(&two);
    assert_eq!(error, "flows: the budget of $0.55 affords each of them, but not all together");
}
