//! Tests of the exact solvers: against plain enumeration, at their limits, and on problems changed
//! in ways that do not change the optimum.

#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::enumeration::enumerated;
use common::random::Numbers;
use common::{drawn, four_cities, mbps, usd};
use tradewind_model::cost::Prices;
use tradewind_plan::solver::{Exact, ExactCp};
use tradewind_plan::{
    Inputs, Limits, Objective, Plan, Problem, RelayType, SolveError, Solver, verify,
};
use tradewind_units::{Bandwidth, Bytes, Duration, Money, PricePerGb, RegionId, RelayTypeId};

/// Number of problems compared with enumeration, which is fast only in release builds.
const PROBLEMS: usize = if cfg!(debug_assertions) { 16 } else { 500 };

/// Scores that differ by less are equal to HiGHS: 10^-10 of some hundred seconds.
const TOLERANCE: Duration = Duration::from_nanos(50);

const SOLVERS: [&dyn Solver; 2] = [&Exact { start: None }, &ExactCp { start: None }];

struct Draw(Numbers);

impl Draw {
    /// Returns a number from `low` to below `high`.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.0.once_in(count)
    }

    /// Returns a small problem with some of everything: types, running relays, weights, deadlines,
    /// missing legs.
    fn inputs(&mut self) -> Inputs {
        let (flows, regions, types) = match self.within(0, 4) {
            0 => (self.within(1, 4), 3, 1),
            1 => (self.within(1, 4), 2, 2),
            _ => (self.within(2, 7), 2, 1),
        };
        let rtts: Vec<u64> = (0..90).map(|_| self.within(5, 250)).collect();
        let capacity = self.within(200, 2500) as f64;
        let most_budget = if self.one_in(3) { 500 } else { 4000 };
        let budget = self.within(0, most_budget) as f64 / 1000.0;
        let mut inputs = drawn(flows as usize, regions, &rtts, capacity, budget);
        if types == 2 {
            let mut large = RelayType::cloudpilot();
            large.id = RelayTypeId::new("large").unwrap();
            large.capacity = mbps(2.5 * capacity);
            large.set_up = usd(self.within(500, 1200) as f64 / 1000.0);
            inputs.relay_types.push(large);
        }
        if self.one_in(4) {
            let key = (inputs.regions[0].clone(), inputs.relay_types[0].id.clone());
            inputs.running.relays.insert(key, self.within(1, 3) as usize);
        }
        for flow in 0..inputs.flows.len() {
            inputs.flows[flow].weight = self.within(1, 4) as u32;
            if self.one_in(6) {
                let deadline = Duration::from_millis(self.within(3_000, 60_000));
                inputs.flows[flow].deadline = Some(deadline);
            }
            if self.one_in(8) {
                cut_direct(&mut inputs, flow);
            }
            if self.one_in(5) {
                inputs.running.move_cost = usd(0.05);
                let path = vec![inputs.regions[0].clone()];
                inputs.running.paths.insert(inputs.flows[flow].id.clone(), path);
            }
        }
        inputs
    }

    /// Returns the next valid problem.
    fn problem(&mut self, objective: Objective) -> Problem {
        loop {
            let inputs = Inputs { objective, ..self.inputs() };
            if let Ok(problem) = Problem::new(inputs) {
                return problem;
            }
        }
    }
}

fn cut_direct(inputs: &mut Inputs, flow: usize) {
    let flow = &inputs.flows[flow];
    let place = |site: &tradewind_units::SiteId| tradewind_plan::LegEnd::Site(site.clone());
    inputs.legs.remove(&(place(&flow.source), place(&flow.destination)));
}

fn solve(solver: &dyn Solver, problem: &Problem) -> Result<Plan, SolveError> {
    let plan = solver.solve(problem, &Limits::work(20_000_000))?;
    assert_eq!(verify(problem, &plan), vec![], "{}", solver.name());
    assert_eq!(plan.solver, solver.name());
    Ok(plan)
}

fn optimum(inputs: &Inputs) -> Plan {
    solve(&Exact::default(), &Problem::new(inputs.clone()).unwrap()).unwrap()
}

#[test]
fn both_formulations_agree_with_enumeration() {
    let mut draw = Draw(Numbers::new(1));
    let mut infeasible = 0;
    for number in 0..PROBLEMS {
        let problem = draw.problem(Objective::TotalFct);
        let expected = enumerated(&problem).map(|(_, score, cost)| (score, cost));
        infeasible += usize::from(expected.is_none());
        for solver in SOLVERS {
            match (solve(solver, &problem), expected) {
                (Ok(plan), Some((score, cost))) => {
                    let found = plan.score(&problem).0;
                    let context = format!("{}, problem {number}", solver.name());
                    assert!(found.abs_diff(score) <= TOLERANCE, "{found:?} {score:?} {context}");
                    assert_eq!((plan.bound, plan.cost), (found, cost), "{context}");
                }
                (Err(SolveError::Infeasible { .. }), None) => {}
                (found, expected) => panic!("problem {number}: {found:?}, {expected:?}"),
            }
        }
    }
    assert!(infeasible > 0 && infeasible < PROBLEMS / 2, "{infeasible} infeasible ones");
}

#[test]
fn both_formulations_find_the_cheapest_plan() {
    let mut draw = Draw(Numbers::new(2));
    for number in 0..PROBLEMS / 2 {
        let problem = draw.problem(Objective::Cost);
        let expected = enumerated(&problem).map(|(_, _, cost)| cost);
        for solver in SOLVERS {
            match (solve(solver, &problem), expected) {
                (Ok(plan), Some(cost)) => {
                    let context = format!("{}, problem {number}", solver.name());
                    assert_eq!((plan.cost, plan.bound_cost), (cost, cost), "{context}");
                }
                (Err(SolveError::Infeasible { .. }), None) => {}
                (found, expected) => panic!("problem {number}: {found:?}, {expected:?}"),
            }
        }
    }
}

/// Returns five flows over one region with less rate than two relays have, of which a relay fits
/// two.
fn badly_packed(budget_usd: f64) -> Problem {
    let rtts = [240, 10, 10];
    let mut inputs = drawn(5, 1, &rtts, 2000.0, budget_usd);
    for from in inputs.legs.values_mut() {
        from.rtt = Duration::from_millis(240);
    }
    for (ends, leg) in &mut inputs.legs {
        if matches!(ends.0, tradewind_plan::LegEnd::Relay(_))
            || matches!(ends.1, tradewind_plan::LegEnd::Relay(_))
        {
            leg.rtt = Duration::from_millis(20);
        }
    }
    inputs.flows.iter_mut().for_each(|flow| flow.volume = Bytes::new(1 << 30));
    let problem = Problem::new(inputs.clone()).unwrap();
    let rate = problem.candidates(0)[1].rate.as_bps();
    inputs.relay_types[0].capacity = Bandwidth::from_bps(rate * 27 / 10).unwrap();
    Problem::new(inputs).unwrap()
}

#[test]
fn unsplittable_flows_need_another_relay() {
    let egress = badly_packed(9.0).candidates(0)[1].cost;
    let budget = (egress.times(5) + usd(1.0)).as_usd();
    for (extra, relayed, relays) in [(0.5, 5, 3), (0.4, 4, 2)] {
        let problem = badly_packed(budget + extra);
        for solver in SOLVERS {
            let plan = solve(solver, &problem).unwrap();
            let over_relays = plan.flows.iter().filter(|flow| !flow.path.is_empty()).count();
            assert_eq!((over_relays, plan.relays.len()), (relayed, relays), "{}", solver.name());
        }
    }
}

#[test]
fn unreachable_flow_is_named() {
    let mut inputs = drawn(2, 2, &[100, 40, 30, 60], 2000.0, 0.1);
    cut_direct(&mut inputs, 1);
    let problem = Problem::new(inputs).unwrap();
    for solver in SOLVERS {
        let error = solve(solver, &problem).unwrap_err();
        assert!(
            error.to_string().starts_with("flow `flow1`: no path costs less than $"),
            "{error}"
        );
    }
}

const FOUR_REGIONS: [&str; 4] =
    ["gcp:us-east4", "gcp:southamerica-east1", "gcp:europe-west2", "gcp:asia-northeast1"];

#[test]
fn exact_solvers_return_best_and_bound_at_limit() {
    let problem = Problem::new(four_cities(&FOUR_REGIONS, 4.0)).unwrap();
    let best = optimum(&four_cities(&FOUR_REGIONS, 4.0)).total_fct;
    let none_left = || Duration::ZERO;
    let late = Limits { time_left: Some(&none_left), ..Limits::work(u64::MAX) };
    let stopped = Limits { should_stop: &|| true, ..Limits::work(u64::MAX) };
    let short = Limits::work(100);
    let cases: [(&dyn Solver, &Limits<'_>); 4] =
        [(SOLVERS[0], &short), (SOLVERS[1], &short), (SOLVERS[0], &late), (SOLVERS[0], &stopped)];
    for (solver, limits) in cases {
        match solver.solve(&problem, limits).unwrap_err() {
            SolveError::WorkLimit { best: Some(plan), bound } => {
                assert_eq!(verify(&problem, &plan), vec![]);
                assert!(bound <= best && best <= plan.total_fct && bound > Duration::ZERO);
            }
            SolveError::WorkLimit { best: None, bound } => assert!(bound <= best),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn limit_before_any_plan_is_not_called_infeasible() {
    let mut inputs = drawn(2, 2, &[100, 40, 30, 60], 2000.0, 10.0);
    cut_direct(&mut inputs, 1);
    let problem = Problem::new(inputs).unwrap();
    let nothing = SOLVERS[0].solve(&problem, &Limits::work(0)).unwrap_err();
    assert!(matches!(nothing, SolveError::WorkLimit { best: None, .. }), "{nothing:?}");
}

#[test]
fn same_problem_gives_the_same_plan() {
    let inputs = four_cities(&FOUR_REGIONS, 4.0);
    assert_eq!(optimum(&inputs), optimum(&inputs));
}

#[test]
fn sound_start_plan_is_retained() {
    let inputs = four_cities(&FOUR_REGIONS, 4.0);
    let problem = Problem::new(inputs.clone()).unwrap();
    let best = optimum(&inputs);
    let from = |plan: &Plan| {
        let solver = Exact { start: Some(plan) };
        match solver.solve(&problem, &Limits::work(0)) {
            Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| plan.total_fct),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(from(&best), Some(best.total_fct));
    let unsound = Plan { cost: Money::ZERO, ..best.clone() };
    assert_ne!(from(&unsound), Some(best.total_fct));
}

#[test]
fn more_money_never_hurts() {
    let mut last = Duration::MAX;
    for budget in [0.0, 0.7, 1.5, 3.0, 5.0, 20.0] {
        let plan = optimum(&four_cities(&FOUR_REGIONS, budget));
        assert!(plan.total_fct <= last.saturating_add(TOLERANCE));
        last = plan.total_fct;
    }
}

#[test]
fn currency_unit_and_region_order_do_not_matter() {
    let inputs = four_cities(&FOUR_REGIONS, 3.0);
    let plan = optimum(&inputs);
    for scale in [0.001, 1000.0] {
        let mut scaled = four_cities(&FOUR_REGIONS, 3.0 * scale);
        scaled.relay_types[0].set_up = usd(0.5 * scale);
        let per_gb = cps_price() * scale;
        scaled.prices = Prices::Flat(PricePerGb::from_usd_per_gb(per_gb).unwrap());
        assert!(optimum(&scaled).total_fct.abs_diff(plan.total_fct) <= TOLERANCE, "{scale}");
    }
    let mut turned = FOUR_REGIONS;
    turned.reverse();
    assert!(optimum(&four_cities(&turned, 3.0)).total_fct.abs_diff(plan.total_fct) <= TOLERANCE);
}

/// Returns CP's price in dollars per gigabyte.
fn cps_price() -> f64 {
    let Prices::Flat(price) = Prices::cloudpilot() else { panic!("CP's prices are flat") };
    price.as_usd_per_gb()
}

#[test]
fn twice_the_time_everywhere_is_twice_the_optimum() {
    // Ten times the RTT over a tenth of the rate: every flow takes ten times as long.
    let draw = |slow: u64| {
        let rtts: Vec<u64> =
            [211, 34, 55, 89, 144, 21, 13, 8, 233].iter().map(|t| t * slow).collect();
        let mut inputs = drawn(4, 2, &rtts, 1500.0 / slow as f64, 1.5);
        for leg in inputs.legs.values_mut() {
            *leg = leg.capped_at(mbps(900.0 / slow as f64));
        }
        inputs
    };
    let (fast, slow) = (optimum(&draw(1)).total_fct, optimum(&draw(10)).total_fct);
    let ratio = slow.as_secs_f64() / fast.as_secs_f64();
    assert!((ratio - 10.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn renamed_region_changes_nothing() {
    let inputs = drawn(4, 2, &[211, 34, 55, 89, 144, 21, 13, 8, 233], 1500.0, 1.5);
    let mut renamed = inputs.clone();
    let name = |region: &RegionId| {
        RegionId::new(format!("other:{}", region.as_str().replace(':', "-"))).unwrap()
    };
    renamed.regions = inputs.regions.iter().map(name).collect();
    let place = |place: &tradewind_plan::LegEnd| match place {
        tradewind_plan::LegEnd::Relay(region) => tradewind_plan::LegEnd::Relay(name(region)),
        site => site.clone(),
    };
    renamed.legs = inputs.legs.iter().map(|((a, b), leg)| ((place(a), place(b)), *leg)).collect();
    assert_eq!(optimum(&renamed).total_fct, optimum(&inputs).total_fct);
}
