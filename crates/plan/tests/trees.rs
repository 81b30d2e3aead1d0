//! Distribution trees: what sharing legs costs and saves, by hand, by enumeration, and as
//! properties of every solver.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::{drawn, mbps, usd};
use proptest::prelude::*;
use tradewind_model::StartUp;
use tradewind_plan::solver::{self, SolveError};
use tradewind_plan::{
    Answer, Inputs, Limits, Objective, Plan, Problem, RelayType, Violation, explain, verify,
};
use tradewind_units::{Bytes, ContentId, Duration, Money, RelayTypeId, SiteId};

/// Solvers that are quick on small problems.
const SOLVERS: [&str; 8] =
    ["greedy", "exhaustive", "f-fct", "f-cost", "1-p", "2-p", "2-p-rb", "auto"];

/// Drawn problems whose flows all start at one site and carry the same.
fn one_to_many(
    flows: usize,
    regions: usize,
    rtts: &[u64],
    capacity: f64,
    budget: f64,
    direct: bool,
) -> Inputs {
    let mut inputs = drawn(flows, regions, rtts, capacity, budget);
    inputs.start_up = StartUp::Ignored;
    for flow in &mut inputs.flows {
        flow.source = SiteId::new("site0").unwrap();
        flow.volume = Bytes::new(1_000_000_000);
        flow.content = Some(ContentId::new("video-7").unwrap());
    }
    if !direct {
        let is_site =
            |place: &tradewind_plan::Place| matches!(place, tradewind_plan::Place::Site(_));
        inputs.legs.retain(|(from, to), _| !is_site(from) || !is_site(to));
    }
    inputs
}

fn without_content(inputs: &Inputs) -> Inputs {
    let mut inputs = inputs.clone();
    inputs.flows.iter_mut().for_each(|flow| flow.content = None);
    inputs
}

fn solve(problem: &Problem, name: &str, work: u64) -> Result<Plan, SolveError> {
    let solver = solver::by_name(name).unwrap();
    match solver::solve(solver.as_ref(), problem, &Limits::work(work)) {
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => Ok(*plan),
        other => other,
    }
}

/// The least score and cost of all plans: every path of each flow over every split of relays.
fn enumerated(problem: &Problem) -> Option<(Duration, Money)> {
    let mut choice = vec![0; problem.flows().len()];
    let mut best: Option<(Duration, Money)> = None;
    loop {
        let chosen: Vec<_> =
            (choice.iter().enumerate()).map(|(flow, at)| &problem.candidates(flow)[*at]).collect();
        let hops: Vec<(usize, usize)> = (chosen.iter().enumerate())
            .flat_map(|(flow, c)| (0..c.relays.len()).map(move |at| (flow, at)))
            .collect();
        let mut numbers: Vec<Vec<usize>> = chosen.iter().map(|c| vec![0; c.relays.len()]).collect();
        let mut used = vec![0; problem.offers().len()];
        let score: Duration = chosen.iter().map(|c| c.score).sum();
        let mut least = None;
        splits(&hops, &mut used, &mut numbers, &chosen, &mut |used, numbers| {
            let cost = cost_of(problem, &chosen, used, numbers);
            least = least.into_iter().chain(cost).min();
        });
        if let Some(cost) = least.filter(|cost| *cost <= problem.budget()) {
            best = best.into_iter().chain([(score, cost)]).min();
        }
        let next = (0..choice.len()).any(|at| {
            choice[at] = (choice[at] + 1) % problem.candidates(at).len();
            choice[at] > 0
        });
        if !next {
            return best;
        }
    }
}

/// A leg by its relays, whose it is (if it is a last leg or nothing is shared), the fastest rate,
/// the price.
type Sent = (Vec<(usize, usize)>, Option<usize>, u64, Money);

type Chosen<'a> = [&'a tradewind_plan::Candidate];

fn splits(
    hops: &[(usize, usize)],
    used: &mut Vec<usize>,
    numbers: &mut Vec<Vec<usize>>,
    chosen: &Chosen<'_>,
    visit: &mut impl FnMut(&[usize], &[Vec<usize>]),
) {
    let Some(((flow, at), rest)) = hops.split_first() else { return visit(used, numbers) };
    let offer = chosen[*flow].relays[*at];
    for number in 0..=used[offer] {
        let before = used[offer];
        used[offer] = before.max(number + 1);
        numbers[*flow][*at] = number;
        splits(rest, used, numbers, chosen, visit);
        used[offer] = before;
    }
}

/// What a plan costs by the rules of docs/planner.md, worked out leg by leg; `None` when a relay is
/// overloaded.
fn cost_of(
    problem: &Problem,
    chosen: &Chosen<'_>,
    used: &[usize],
    numbers: &[Vec<usize>],
) -> Option<Money> {
    let set_up = problem.offers().iter().zip(used).map(|(offer, count)| offer.set_up(*count));
    let mut cost: Money = set_up.sum();
    let mut legs: Vec<Sent> = Vec::new();
    for (flow, candidate) in chosen.iter().enumerate() {
        let path: Vec<(usize, usize)> =
            candidate.relays.iter().copied().zip(numbers[flow].iter().copied()).collect();
        let rate = candidate.rate.as_bps();
        let mut own = candidate.cost;
        for end in 2..=path.len() {
            let price = problem.egress_between(flow, path[end - 2].0, path[end - 1].0).unwrap();
            own = own.checked_sub(price).unwrap();
            let owner = problem.tree(flow).is_none().then_some(flow);
            match legs.iter_mut().find(|leg| leg.0 == path[..end] && leg.1 == owner) {
                Some(leg) => leg.2 = leg.2.max(rate),
                None => legs.push((path[..end].to_vec(), owner, rate, price)),
            }
        }
        if !path.is_empty() {
            // The last leg: sent by the last relay, told from all others by its end.
            let mut to_destination = path.clone();
            to_destination.push((usize::MAX, flow));
            legs.push((to_destination, Some(flow), rate, own));
        }
    }
    cost = cost + legs.iter().map(|leg| leg.3).sum();
    for (offer, count) in used.iter().enumerate() {
        for number in 0..*count {
            let sent = legs.iter().filter(|leg| leg.0[leg.0.len() - 2] == (offer, number));
            if sent.map(|leg| leg.2).sum::<u64>() > problem.offers()[offer].capacity_bps() {
                return None;
            }
        }
    }
    Some(cost)
}

/// One source, two regions far from each other; the destinations lie at the second.
fn far_away(flows: usize, capacity: f64, budget: f64) -> Inputs {
    // Round trips in ms for each ordered pair, in `drawn`'s order: sites first, then relays.
    let places = flows + 3;
    let near = |at: usize| at == 0 || at == flows + 1;
    let rtts: Vec<u64> = (0..places)
        .flat_map(|from| (0..places).filter(move |to| *to != from).map(move |to| (from, to)))
        .map(|(from, to)| if near(from) == near(to) { 20 } else { 200 })
        .collect();
    one_to_many(flows, 2, &rtts, capacity, budget, true)
}

#[test]
fn a_trunk_is_paid_once_and_carried_once() {
    // 1 GB to each of three places: $0.08 over the trunk once, not three times; $0.08 each for the
    // last leg.
    let inputs = far_away(3, 4_000.0, 100.0);
    let problem = Problem::new(inputs.clone()).unwrap();
    let plan = solve(&problem, "auto", 1_000_000).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    assert!(plan.flows.iter().all(|flow| flow.path.len() == 2), "{plan:?}");
    assert_eq!(plan.cost, usd(2.0 * 0.5 + 0.08 + 3.0 * 0.08));
    assert_eq!(plan.saved(), usd(2.0 * 0.08));
    let lengths: Vec<usize> = plan.shared_legs.iter().map(|leg| leg.path.len()).collect();
    assert_eq!(lengths, [1, 2]);
    assert!(plan.shared_legs.iter().all(|leg| leg.flows.len() == 3));
    let apart = Problem::new(without_content(&inputs)).unwrap();
    assert_eq!(solve(&apart, "auto", 1_000_000).unwrap().cost, usd(2.0 * 0.5 + 6.0 * 0.08));
    // The budget of one flow's relays and egress, and of two more last legs: without sharing it
    // serves only one.
    let tight = usd(2.0 * 0.5 + 0.08 + 3.0 * 0.08);
    let serves = |problem: Problem| {
        let plan = solve(&problem.with_budget(tight), "auto", 1_000_000).unwrap();
        plan.flows.iter().filter(|flow| flow.path.len() == 2).count()
    };
    assert_eq!((serves(problem), serves(apart)), (3, 2));
}

#[test]
fn a_relay_that_fans_out_carries_each_copy_and_one_that_passes_on_carries_one() {
    // Each flow takes up to 1,150 Mbit/s (23 Mbit a round trip of 20 ms): a relay of 2,400 sends
    // two of them.
    let problem = Problem::new(far_away(4, 2_400.0, 100.0)).unwrap();
    let plan = solve(&problem, "auto", 1_000_000).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    assert!(plan.flows.iter().all(|flow| flow.path.len() == 2));
    let count = |region: &str| plan.relays.iter().filter(|r| r.region.as_str() == region).count();
    assert_eq!((count("cloud:r0"), count("cloud:r1")), (1, 2));
    // Two copies to the two relays that fan out: two legs are paid, two spared.
    assert_eq!(plan.saved(), usd(2.0 * 0.08));
    assert_eq!(plan.cost, usd(3.0 * 0.5 + 2.0 * 0.08 + 4.0 * 0.08));
}

#[test]
fn the_verifier_works_out_what_is_shared_by_itself() {
    let problem = Problem::new(far_away(3, 4_000.0, 100.0)).unwrap();
    let plan = solve(&problem, "auto", 1_000_000).unwrap();
    let objects = |change: &dyn Fn(&mut Plan)| {
        let mut changed = plan.clone();
        change(&mut changed);
        let found = verify(&problem, &changed);
        let is_it = |violation: &Violation| matches!(violation, Violation::WrongSharedLegs { .. });
        found.iter().any(is_it)
    };
    assert!(objects(&|plan| plan.shared_legs[1].saved = usd(0.24)));
    assert!(objects(&|plan| drop(plan.shared_legs.pop())));
    assert!(objects(&|plan| plan.shared_legs.push(plan.shared_legs[0].clone())));
    assert!(objects(&|plan| drop(plan.shared_legs[0].flows.pop())));
    assert!(objects(&|plan| drop(plan.flows[0].path.remove(0))));
    let mut cheap = plan.clone();
    cheap.cost = cheap.cost.checked_sub(usd(0.08)).unwrap();
    assert!(!verify(&problem, &cheap).is_empty());
    // Where no content is common, nothing can be shared.
    let apart = Problem::new(without_content(problem.inputs())).unwrap();
    assert!(!verify(&apart, &plan).is_empty());
    // A relay that fans out more than it can send.
    let small = Problem::new(far_away(3, 2_400.0, 100.0)).unwrap();
    let over = |violation: &Violation| matches!(violation, Violation::OverCapacity { .. });
    assert!(verify(&small, &plan).iter().any(over));
}

#[test]
fn an_answer_and_an_explanation_tell_what_is_shared() {
    let problem = Problem::new(far_away(3, 4_000.0, 100.0)).unwrap();
    let plan = solve(&problem, "auto", 1_000_000).unwrap();
    let answer = Answer::new(&problem, "auto", Ok(plan.clone()), Duration::ZERO).unwrap();
    assert_eq!(answer.saved, Some(usd(0.16)));
    let text = serde_json::to_string(&answer).unwrap();
    let read: Answer = serde_json::from_str(&text).unwrap();
    assert_eq!(verify(&problem, &read.plan().unwrap()), vec![]);
    let explained = explain(&problem, &plan, &problem.flows()[0].id).unwrap();
    let sharers: Vec<usize> = explained.legs.iter().map(|leg| leg.shared_with.len()).collect();
    assert_eq!(sharers, [2, 2, 0]);
    assert_eq!(explained.legs[1].saved, usd(0.16));
    // Going direct spares the flow's last leg alone: the trunk is still paid for the others.
    let direct = explained.alternatives.iter().find(|other| other.path.is_empty()).unwrap();
    assert_eq!(direct.plan_cost, plan.cost.checked_sub(usd(0.08)));
}

#[test]
fn a_content_has_one_volume() {
    let mut inputs = far_away(2, 4_000.0, 100.0);
    inputs.flows[1].volume = Bytes::new(7);
    let error = Problem::new(inputs).unwrap_err().to_string();
    assert!(error.contains("content `video-7` has another volume"), "{error}");
}

fn small() -> impl Strategy<Value = Inputs> {
    let rtts = prop::collection::vec(5_u64..300, 20..60);
    let sizes = (2_usize..4, 2_usize..4, rtts, 300.0..4_000.0_f64, 0.0..4.0_f64);
    (sizes, any::<bool>(), any::<bool>(), 0_u8..3).prop_map(
        |((flows, regions, rtts, capacity, budget), types, direct, odd)| {
            let regions = if types || flows > 2 { 2 } else { regions };
            let mut inputs = one_to_many(flows, regions, &rtts, capacity, budget, direct);
            if types && flows == 2 {
                let id = RelayTypeId::new("small").unwrap();
                let (capacity, set_up) = (mbps(capacity / 2.0), usd(0.2));
                inputs.relay_types.push(RelayType { id, capacity, set_up, per_connection: None });
            }
            if odd == 0 {
                // One flow with nothing in common.
                inputs.flows[0].content = None;
            }
            if odd == 1 {
                inputs.objective = Objective::Cost;
                inputs.flows[1].deadline = Some(Duration::from_secs(60));
            }
            inputs
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_plan_holds_and_no_bound_is_above_the_best_plan(inputs in small()) {
        let Ok(problem) = Problem::new(inputs.clone()) else { return Ok(()) };
        let Ok(apart) = Problem::new(without_content(&inputs)) else { return Ok(()) };
        let best = enumerated(&problem);
        for name in SOLVERS {
            match solve(&problem, name, 200_000) {
                Ok(plan) => {
                    prop_assert_eq!(verify(&problem, &plan), vec![], "{}", name);
                    let best = best.expect("a plan was found");
                    prop_assert!(plan.score(&problem) >= best, "{}", name);
                    prop_assert!(plan.bound <= best.0, "{}: {:?} {:?}", name, plan.bound, best);
                    if problem.objective() == Objective::Cost {
                        prop_assert!(plan.bound_cost <= best.1, "{}", name);
                    }
                }
                Err(SolveError::Infeasible { .. }) => prop_assert_eq!(best, None, "{}", name),
                Err(SolveError::WorkLimit { .. } | SolveError::Objective { .. }) => {}
                Err(other) => prop_assert!(false, "{}: {}", name, other),
            }
            // Sharing never costs more: what holds without it holds with it.
            if let Ok(plan) = solve(&apart, name, 100_000) {
                let with = solve(&problem, name, 1_000_000).unwrap();
                prop_assert!(with.score(&problem) <= plan.score(&problem), "{}", name);
            }
        }
    }

    #[test]
    fn without_common_content_nothing_changes(inputs in small()) {
        let mut alone = inputs.clone();
        for (index, flow) in alone.flows.iter_mut().enumerate() {
            flow.content = Some(ContentId::new(format!("own-{index}")).unwrap());
        }
        let (Ok(alone), Ok(plain)) = (Problem::new(alone), Problem::new(without_content(&inputs)))
        else { return Ok(()) };
        for name in SOLVERS {
            let plans = (solve(&alone, name, 20_000), solve(&plain, name, 20_000));
            prop_assert_eq!(&plans.0, &plans.1, "{}", name);
            if let Ok(plan) = plans.0 {
                prop_assert_eq!(plan.shared_legs.len(), 0);
                prop_assert!(!serde_json::to_string(&plan).unwrap().contains("shared"));
                prop_assert_eq!(verify(&alone, &plan), vec![]);
            }
        }
    }
}

/// A dozen destinations over six regions: too many to enumerate.
#[test]
fn auto_is_never_worse_than_the_others_and_gains_by_sharing() {
    let (mut all, mut gained) = (0, 0);
    for seed in 0_u64..6 {
        let rtts: Vec<u64> = (0..331).map(|at| 10 + (seed * 7_919 + at * 104_729) % 283).collect();
        let mut inputs = one_to_many(12, 6, &rtts, 2_000.0, 2.5, true);
        inputs.max_relays = 2;
        let problem = Problem::new(inputs).unwrap();
        let auto = solve(&problem, "auto", 150_000).unwrap();
        assert_eq!(verify(&problem, &auto), vec![]);
        for name in ["f-fct", "f-cost", "1-p", "2-p", "2-p-rb"] {
            let other = solve(&problem, name, u64::MAX).unwrap();
            assert!(auto.score(&problem) <= other.score(&problem), "{seed} {name}");
        }
        let apart = solve(&problem.apart(), "auto", 150_000).unwrap();
        assert!(auto.score(&problem) <= apart.score(&problem), "{seed}");
        let (with, without) = (auto.total_fct.as_secs_f64(), apart.total_fct.as_secs_f64());
        println!("{seed}: {with:.1} s for {}, without sharing {without:.1} s", auto.cost);
        all += 1;
        gained += usize::from(with < without * 0.99);
    }
    assert!(gained * 2 > all, "{gained} of {all}");
}

/// How often `auto` finds the very best of small plans.
#[test]
fn auto_finds_the_best_of_small_plans() {
    let (mut all, mut best_found) = (0, 0);
    for seed in 0_u64..60 {
        let rtts: Vec<u64> = (0..47).map(|at| 5 + (seed * 7_919 + at * 104_729) % 293).collect();
        let budget = 0.3 + (seed % 10) as f64 * 0.25;
        let capacity = 1_000.0 + (seed % 4) as f64 * 1_000.0;
        let inputs = one_to_many(3, 2, &rtts, capacity, budget, true);
        let problem = Problem::new(inputs).unwrap();
        let best = enumerated(&problem).unwrap();
        let plan = solve(&problem, "auto", 1_000_000).unwrap();
        assert_eq!(verify(&problem, &plan), vec![]);
        assert!(plan.score(&problem) >= best && plan.bound <= best.0, "{seed}");
        all += 1;
        best_found += usize::from(plan.score(&problem) == best);
    }
    println!("auto found {best_found} of {all}");
    assert!(best_found * 100 >= all * 95, "{best_found} of {all}");
}
