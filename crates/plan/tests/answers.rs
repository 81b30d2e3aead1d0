//! Tests of answers, which survive serialization, and of explanations, which name the binding
//! constraint.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::{drawn, flow, four_cities, mbps, usd};
use proptest::prelude::*;
use tradewind_plan::explain::Verdict;
use tradewind_plan::solver::{self, Exhaustive, Greedy, Limits, SolveError, Solver};
use tradewind_plan::{Answer, Explanation, Objective, Plan, Problem, Status, explain, verify};
use tradewind_units::{Duration, FlowId};

const SOME: u64 = 20_000;

fn answer(problem: &Problem, solver: &dyn Solver, work: u64) -> Answer {
    let outcome = solver::solve(solver, problem, &Limits::work(work));
    Answer::new(problem, solver.name(), outcome, Duration::from_millis(5)).unwrap()
}

fn explained(problem: &Problem, plan: &Plan, flow: &str) -> Explanation {
    explain(problem, plan, &FlowId::new(flow).unwrap()).unwrap()
}

#[test]
fn answer_has_gap() {
    let problem = Problem::new(drawn(2, 2, &[200, 40, 60, 30, 90], 2_000.0, 1.2)).unwrap();
    let exact = answer(&problem, &Exhaustive, SOME);
    assert_eq!((exact.status, exact.gap), (Status::Optimal, Some(0.0)));
    assert_eq!(exact.weighted_fct, exact.total_fct);
    let cut = answer(&problem, &Greedy, 0);
    assert_eq!(cut.status, Status::Feasible);
    assert!(cut.gap.is_some_and(|gap| gap > 0.0 && gap < 1.0), "{:?}", cut.gap);

    let nothing = SolveError::WorkLimit { best: None, bound: Duration::ZERO };
    let limited = Answer::new(&problem, "x", Err(nothing), Duration::ZERO).unwrap();
    assert_eq!((limited.status, limited.plan()), (Status::Limited, None));
    let failed = SolveError::Backend("broken".to_owned());
    assert!(Answer::new(&problem, "x", Err(failed), Duration::ZERO).is_err());
}

#[test]
fn answer_without_plan_has_objective_bound() {
    for (objective, weight, known) in [
        (Objective::TotalFct, 1, "; any takes 7.500 s in all or more"),
        (Objective::TotalFct, 3, "; any takes 7.500 s in all or more, with weights"),
        (Objective::Makespan, 1, "; in any the last flow takes 7.500 s or more"),
        (Objective::Cost, 1, ""),
    ] {
        let mut inputs = drawn(2, 2, &[200, 40, 60, 30, 90], 2_000.0, 1.2);
        (inputs.objective, inputs.flows[0].weight) = (objective, weight);
        let (problem, bound) = (Problem::new(inputs).unwrap(), Duration::from_millis(7_500));
        let nothing = Err(SolveError::WorkLimit { best: None, bound });
        let reason = Answer::new(&problem, "x", nothing, Duration::ZERO).unwrap().reason.unwrap();
        let expected = format!("no plan was found, and no proof that there is none{known}");
        assert_eq!(reason, expected, "{objective:?}");
    }
}

#[test]
fn makespan_gap_is_reported() {
    let mut inputs = four_cities(&["gcp:europe-west2", "gcp:us-east4"], 100.0);
    inputs.objective = Objective::Makespan;
    let problem = Problem::new(inputs).unwrap();
    let all_fast = answer(&problem, &Greedy, SOME);
    assert_eq!((all_fast.status, all_fast.gap), (Status::Optimal, Some(0.0)));
    let poor = answer(&problem.with_budget(usd(1.0)), &Greedy, SOME);
    assert_eq!(poor.status, Status::Feasible);
    assert!(poor.gap.is_some_and(|gap| gap > 0.1), "{:?}", poor.gap);
}

/// Returns two flows of one pair of sites over one region, whose relay is too small for both at
/// full rate.
fn crowded(budget_usd: f64, capacity_mbps: f64) -> Problem {
    let mut inputs = drawn(1, 1, &[200, 40, 60], capacity_mbps, budget_usd);
    inputs.flows = vec![flow("one", "site0", "site1", 2_000), flow("two", "site0", "site1", 2_000)];
    Problem::new(inputs).unwrap()
}

#[test]
fn binding_limit_is_named() {
    let rich = crowded(100.0, 2_000.0);
    let plan = Greedy.solve(&rich, &Limits::work(SOME)).unwrap();
    let one = explained(&rich, &plan, "one");
    assert_eq!(one.alternatives[0].verdict, Verdict::Selected);
    assert!(one.binding.starts_with("window of "), "{}", one.binding);
    assert_eq!(one.legs.iter().filter(|leg| leg.slowest).count(), 1);
    let parts = one.set_up + one.start_up + one.steady;
    assert!(parts.abs_diff(one.fct) < Duration::from_micros(1));

    let poor = rich.clone().with_budget(usd(0.2));
    let plan = Greedy.solve(&poor, &Limits::work(SOME)).unwrap();
    let one = explained(&poor, &plan, "one");
    assert_eq!((one.path.len(), one.binding.as_str()), (0, "budget"));
    assert_eq!(one.alternatives[0].extra_relays, 1);

    // Under a larger budget, the plan for the small one can be improved.
    let one = explained(&rich, &plan, "one");
    assert_eq!(one.binding, "missed");
}

#[test]
fn full_relay_needs_another_within_budget() {
    // One flow takes some 340 Mbit/s over the relay.
    let problem = crowded(100.0, 400.0);
    let plan = Greedy.solve(&problem, &Limits::work(SOME)).unwrap();
    assert_eq!(plan.relays.len(), 2, "each needs its own");
    let poor = crowded(0.9, 400.0);
    let plan = Greedy.solve(&poor, &Limits::work(SOME)).unwrap();
    assert_eq!(plan.relays.len(), 1);
    let left_out = plan.flows.iter().find(|flow| flow.path.is_empty()).unwrap();
    let why = explained(&poor, &plan, left_out.id.as_str());
    assert_eq!((why.binding.as_str(), why.alternatives[0].extra_relays), ("budget", 1));
}

#[test]
fn flows_that_gain_only_together_are_a_group() {
    // The budget is enough for one relay, which is in the region with the longer detour.
    let rtts = [200, 80, 40, 200, 80, 40, 80, 100, 60, 40, 60, 60];
    let mut inputs = drawn(1, 2, &rtts, 2_000.0, 100.0);
    inputs.flows = vec![flow("one", "site0", "site1", 2_000), flow("two", "site0", "site1", 2_000)];
    inputs.max_relays = 1;
    let whole = Problem::new(inputs.clone()).unwrap();
    let near = (inputs.regions[1].clone(), inputs.relay_types[0].id.clone());
    inputs.not_offered.insert(near);
    let plan = Greedy.solve(&Problem::new(inputs).unwrap(), &Limits::work(SOME)).unwrap();
    let poor = whole.with_budget(plan.cost);
    let why = explained(&poor, &plan, "two");
    let verdicts = why.alternatives.iter().map(|other| other.verdict);
    assert!(verdicts.clone().all(|verdict| verdict != Verdict::Missed), "{why:?}");
    assert_eq!(verdicts.filter(|verdict| *verdict == Verdict::Budget).count(), 1);
    let group = &why.groups[0];
    assert_eq!(group.relay.region.as_str(), "cloud:r1");
    assert_eq!(group.instead_of.as_ref().map(|stop| stop.region.as_str()), Some("cloud:r0"));
    assert_eq!(group.flows.iter().map(FlowId::as_str).collect::<Vec<_>>(), ["two", "one"]);
    assert_eq!((group.verdict, group.plan_cost), (Verdict::Missed, plan.cost));
    assert!(group.gain_s > 0.0);
    let best = Greedy.solve(&poor, &Limits::work(SOME)).unwrap();
    assert!(explained(&poor, &best, "two").groups.iter().all(|g| g.verdict != Verdict::Missed));
}

#[test]
fn paths_that_miss_the_deadline_are_shown_as_such() {
    let mut inputs = drawn(1, 1, &[200, 40, 60], 2_000.0, 100.0);
    inputs.objective = Objective::Cost;
    inputs.flows[0].deadline = Some(Duration::from_secs(10));
    let problem = Problem::new(inputs.clone()).unwrap();
    let plan = Greedy.solve(&problem, &Limits::work(SOME)).unwrap();
    let why = explained(&problem, &plan, "flow0");
    let direct = why.alternatives.iter().find(|other| other.path.is_empty()).unwrap();
    assert_eq!(direct.verdict, Verdict::Deadline);

    inputs.flows[0].deadline = None;
    let problem = Problem::new(inputs).unwrap();
    let plan = Greedy.solve(&problem, &Limits::work(SOME)).unwrap();
    assert_eq!(explained(&problem, &plan, "flow0").binding, "dearer");
}

#[test]
fn cap_of_source_is_named() {
    let mut inputs = drawn(1, 1, &[200, 40, 60], 2_000.0, 100.0);
    let source = inputs.flows[0].source.clone();
    inputs.site_caps.insert(source, mbps(50.0));
    let problem = Problem::new(inputs).unwrap();
    let plan = Greedy.solve(&problem, &Limits::work(SOME)).unwrap();
    assert_eq!(explained(&problem, &plan, "flow0").legs[0].bound_by, "source's cap");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn answer_round_trips_through_json(
        flows in 1_usize..5,
        regions in 1_usize..4,
        rtts in proptest::collection::vec(1_u64..300, 40),
        capacity in 100.0..3_000.0_f64,
        budget in 0.0..6.0_f64,
    ) {
        let problem = Problem::new(drawn(flows, regions, &rtts, capacity, budget)).unwrap();
        let answer = answer(&problem, &Greedy, SOME);
        let text = serde_json::to_string(&answer).unwrap();
        let back: Answer = serde_json::from_str(&text).unwrap();
        let plan = back.plan().unwrap();
        prop_assert_eq!(verify(&problem, &plan), vec![]);
        for planned in &plan.flows {
            let why = explain(&problem, &plan, &planned.id).unwrap();
            let selected: Vec<_> =
                why.alternatives.iter().filter(|it| it.verdict == Verdict::Selected).collect();
            prop_assert_eq!(selected.len(), 1);
            prop_assert_eq!(selected[0].plan_cost, Some(plan.cost));
            prop_assert_eq!(selected[0].extra_relays, 0);
        }
    }
}
