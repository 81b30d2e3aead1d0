//! Tests of the exact solver's rows, bounds and proofs on small problems.

use tradewind_model::StartUp;
use tradewind_units::{Bandwidth, Bytes, FlowId};

use super::*;
use crate::candidates::example;
use crate::problem::{Flow, Inputs, LegEnd};
use crate::solver::Exhaustive;

/// Returns a problem of seven flows of one pair over three regions whose relays carry three flows
/// each, though their rates do not fill one: for `TotalFct` with money for one or two relays, for
/// `Cost` with too little time for direct paths.
fn problem(seed: u64, objective: Objective) -> Problem {
    let mut inputs = example::problem(seed, StartUp::Ignored).inputs().clone();
    let flow = |at: u64| Flow {
        id: FlowId::new(format!("f{at}")).unwrap(),
        weight: 1 + ((at + seed) % 3) as u32,
        volume: Bytes::new(100_000_000),
        ..inputs.flows[0].clone()
    };
    let flows = (0..7).map(flow).collect();
    inputs.regions.truncate(3);
    inputs.relay_types[0].capacity = mbps(380.0 + 9.0 * (seed % 3) as f64);
    for (at, ((from, to), leg)) in inputs.legs.iter_mut().enumerate() {
        let is_direct = matches!((from, to), (LegEnd::Site(_), LegEnd::Site(_)));
        leg.rtt = Duration::from_millis(50);
        leg.cap = Some(if is_direct { mbps(20.0) } else { mbps(100.0 + (at % 4) as f64 * 8.0) });
    }
    let budget = if objective == Objective::Cost { 5.0 } else { 0.6 + 0.5 * (seed % 4 / 2) as f64 };
    let budget = Money::from_usd(budget).unwrap();
    let problem = Problem::new(Inputs { flows, budget, objective, ..inputs }).unwrap();
    if objective == Objective::Cost { problem.within(TIME, objective).unwrap() } else { problem }
}

/// More than relayed paths take, and less than direct ones.
const TIME: Duration = Duration::from_secs(20);

fn mbps(number: f64) -> Bandwidth {
    Bandwidth::from_mbps(number).unwrap()
}

/// Returns the problems, each with a plan without proven bounds.
fn problems() -> impl Iterator<Item = (u64, Problem, Plan)> {
    (0..12).map(|seed| {
        let objective = [Objective::TotalFct, Objective::Cost][seed as usize % 2];
        let problem = problem(seed, objective);
        let plan = Greedy.solve(&problem, &Limits::work(100_000)).unwrap();
        (seed, problem, Plan { bound: Duration::ZERO, bound_cost: Money::ZERO, ..plan })
    })
}

fn goal(problem: &Problem) -> Goal {
    if problem.objective() == Objective::Cost { Goal::Cost } else { Goal::Score }
}

/// Returns the program's optimum, in the goal's unit, with these columns integer and without
/// pattern cuts.
fn least(problem: &Problem, whole: Whole) -> f64 {
    let formulation = aggregated::aggregated(problem).unwrap();
    let run = RunLimits { nodes: 100_000, time: None, whole };
    let answer = milp::run(&formulation, goal(problem), problem.budget(), None, run).unwrap();
    assert_eq!(answer.status, Status::Optimal);
    let weight = |column: &formulation::Column| match goal(problem) {
        Goal::Score => column.score.as_nanos() as f64,
        _ => column.cost.as_nano_usd() as f64,
    };
    let columns = formulation.columns.iter().zip(answer.values.unwrap());
    columns.map(|(column, value)| weight(column) * value).sum()
}

/// Returns the plan's bound in the unit of [`least`].
fn proved(problem: &Problem, plan: &Plan) -> f64 {
    if problem.objective() == Objective::Cost {
        return plan.bound_cost.as_nano_usd() as f64;
    }
    let least_score = aggregated::aggregated(problem).unwrap().least_score;
    plan.bound.saturating_sub(least_score).as_nanos() as f64
}

#[test]
fn whole_counts_of_relays_bound_every_plan() {
    let (mut by_counts, mut by_patterns) = (0, 0);
    for (seed, problem, start) in problems() {
        let plan = Exact::by_counts(&problem, start, &|_, _| true, &Limits::work(10_000_000));
        let best = Exhaustive.solve(&problem, &Limits::work(50_000_000)).unwrap();
        assert!(plan.bound <= best.score(&problem).0, "seed {seed}");
        assert!(problem.objective() != Objective::Cost || plan.bound_cost <= best.cost);
        let (in_part, counts) = (least(&problem, Whole::Nothing), least(&problem, Whole::Counts));
        let proved = proved(&problem, &plan);
        assert!(proved >= counts * (1.0 - 1e-6) - 10.0, "seed {seed}: {proved} {counts}");
        by_counts += usize::from(counts > in_part * 1.001);
        by_patterns += usize::from(proved > counts * 1.001);
    }
    assert!(by_counts > 3, "whole counts prove more of {by_counts} problems");
    assert!(by_patterns > 3, "patterns prove more of {by_patterns} problems");
}

#[test]
fn plans_keep_the_rows_against_patterns() {
    let mut rows = 0;
    for (seed, problem, _) in problems() {
        let best = Exhaustive.solve(&problem, &Limits::work(50_000_000)).unwrap();
        let formulation = aggregated::aggregated(&problem).unwrap();
        let limits = Limits::work(10_000_000);
        let mut search = Search::new(&problem, formulation, &limits, "exact", None);
        let before = search.formulation.rows.len();
        search.rule_out_patterns(goal(&problem));
        let values = search.formulation.values_of_any(&problem, &best).unwrap();
        for row in &search.formulation.rows[before..] {
            let sum: f64 = row.terms.iter().map(|(column, by)| values[*column] * by).sum();
            assert!(sum <= row.most + 1e-9, "seed {seed}: {sum} against {}", row.most);
            rows += 1;
        }
    }
    assert!(rows > 20, "{rows} rows");
}
