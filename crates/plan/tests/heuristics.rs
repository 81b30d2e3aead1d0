//! Tests of CP's heuristics against a line-by-line implementation of the pseudo-code, without the
//! library's optimizations; cases computed by hand; and `verify` on problems of all kinds.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;
#[path = "../../demo/src/executor.rs"]
#[expect(
    dead_code,
    unreachable_pub,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "public, whole, and with threads, where it belongs"
)]
mod executor;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::near_regions::{Pattern, near_regions};
use common::random::{Kind, random};
use common::{flow, mbps, usd};
use executor::Threads;
use proptest::prelude::*;
use tradewind_model::{Leg, StartUp};
use tradewind_plan::solver::{
    Executor, FlowGreedyCost, FlowGreedyFct, FlowGreedyRatio, OneByOne, OneProxy, Piece, TwoProxy,
    TwoProxyRollback,
};
use tradewind_plan::{Inputs, LegEnd, Legs, Limits, Plan, Problem, SolveError, Solver, verify};
use tradewind_units::{Bytes, Duration, Money, RegionId, RelayId, SiteId};

const FIVE: [&dyn Solver; 5] =
    [&FlowGreedyFct, &FlowGreedyCost, &OneProxy, &TwoProxy, &TwoProxyRollback];

/// The result of Algorithm 1.
#[derive(Debug, Clone)]
struct Allocation {
    /// `a_f`: each flow's relays, by offer and number.
    paths: Vec<Vec<(usize, usize)>>,
    /// Total FCT, weighted.
    score: Duration,
    cost: Money,
}

/// Algorithm 1's state.
struct Algorithm1<'a> {
    problem: &'a Problem,
    /// Number of instances of each offer in `P^0`.
    supply: Vec<usize>,
    per_cost: bool,
    /// `G_f`: candidates, the head first.
    lists: Vec<Vec<usize>>,
    /// `r_p` of the instances in `P`, by offer.
    free: Vec<Vec<u64>>,
    budget: Money,
}

impl<'a> Algorithm1<'a> {
    fn new(problem: &'a Problem, supply: &[usize], per_cost: bool) -> Self {
        let mut state = Self {
            problem,
            supply: supply.to_vec(),
            per_cost,
            lists: Vec::new(),
            free: vec![Vec::new(); problem.offers().len()],
            budget: problem.budget(),
        };
        for flow in 0..problem.flows().len() {
            let mut list: Vec<usize> = (1..problem.candidates(flow).len()).collect();
            list.sort_by(|a, b| {
                let key = |at: usize| {
                    let candidate = &problem.candidates(flow)[at];
                    (candidate.score, candidate.cost, at)
                };
                let by_gain = state.gain(flow, *b).total_cmp(&state.gain(flow, *a));
                by_gain.then_with(|| key(*a).cmp(&key(*b)))
            });
            state.lists.push(list);
        }
        state
    }

    /// Computes GAIN of Algorithm 1 or 2.
    fn gain(&self, flow: usize, at: usize) -> f64 {
        let candidates = self.problem.candidates(flow);
        let saved = candidates[0].score.checked_sub(candidates[at].score).unwrap();
        if !self.per_cost {
            return saved.as_nanos() as f64;
        }
        let set_up = |offer: &usize| {
            let offer = &self.problem.offers()[*offer];
            let rate = candidates[at].rate.as_bps() as f64;
            let next = offer.set_up(offer.running + 1).as_usd();
            next * if offer.running > 0 {
                0.0
            } else {
                rate / offer.relay_type.capacity.as_bps() as f64
            }
        };
        let set_up: f64 = candidates[at].relays.iter().map(set_up).sum();
        let gain = saved.as_secs_f64() / (candidates[at].cost.as_usd() + set_up);
        if gain.is_nan() { 0.0 } else { gain }
    }

    /// Runs FIND-PROXY-INSTANCES: returns the numbers of the instances and their marginal cost.
    fn find(&self, flow: usize, at: usize) -> Option<(Vec<usize>, Money)> {
        let candidate = &self.problem.candidates(flow)[at];
        let mut cost = candidate.cost;
        let mut numbers = Vec::new();
        for relay in &candidate.relays {
            let (offer, free) = (&self.problem.offers()[*relay], &self.free[*relay]);
            let rate = candidate.rate.as_bps();
            if let Some(number) = free.iter().position(|free| *free >= rate) {
                numbers.push(number);
            } else if free.len() < self.supply[*relay] && rate <= offer.relay_type.capacity.as_bps()
            {
                let more = offer.set_up(free.len() + 1).checked_sub(offer.set_up(free.len()));
                cost = cost + more.unwrap();
                numbers.push(free.len());
            } else {
                return None;
            }
        }
        Some((numbers, cost))
    }

    fn run(mut self) -> Allocation {
        let count = self.problem.flows().len();
        let mut open: Vec<usize> = (0..count).collect();
        let mut paths = vec![Vec::new(); count];
        let direct = |flow: usize| self.problem.candidates(flow)[0].score;
        let mut score: Vec<Duration> = (0..count).map(direct).collect();
        loop {
            // Footnote 2: heads that are not feasible are skipped.
            for flow in &open {
                while let Some(head) = self.lists[*flow].first() {
                    if self.find(*flow, *head).is_some_and(|(_, cost)| cost <= self.budget) {
                        break;
                    }
                    self.lists[*flow].remove(0);
                }
            }
            let mut best: Option<(f64, usize)> = None;
            for flow in open.iter().filter(|flow| !self.lists[**flow].is_empty()) {
                let gain = self.gain(*flow, self.lists[*flow][0]);
                if best.is_none_or(|(most, _)| gain > most) {
                    best = Some((gain, *flow));
                }
            }
            let Some((_, flow)) = best else { break };
            let head = self.lists[flow][0];
            let (numbers, cost) = self.find(flow, head).unwrap();
            let candidate = &self.problem.candidates(flow)[head];
            for (offer, number) in candidate.relays.iter().zip(&numbers) {
                let capacity = self.problem.offers()[*offer].relay_type.capacity.as_bps();
                if *number == self.free[*offer].len() {
                    self.free[*offer].push(capacity);
                }
                self.free[*offer][*number] -= candidate.rate.as_bps();
            }
            self.budget = self.budget.checked_sub(cost).unwrap();
            paths[flow] = candidate.relays.iter().copied().zip(numbers).collect();
            score[flow] = candidate.score;
            open.retain(|other| *other != flow);
        }
        let cost = self.problem.budget().checked_sub(self.budget).unwrap();
        Allocation { paths, score: score.into_iter().sum(), cost }
    }
}

type Set = Vec<usize>;

fn add_one(set: &Set) -> Vec<Set> {
    let with = |offer: usize| {
        let mut more = set.clone();
        more[offer] += 1;
        more
    };
    (0..set.len()).map(with).collect()
}

fn add_two(set: &Set) -> Vec<Set> {
    add_one(set).iter().flat_map(add_one).collect()
}

fn rollback(set: &Set) -> Vec<Set> {
    let mut sets = Vec::new();
    for offer in 0..set.len() {
        for _ in 0..set[offer] {
            let mut less = set.clone();
            less[offer] -= 1;
            sets.extend(add_two(&less));
        }
    }
    if sets.is_empty() { add_two(set) } else { sets }
}

/// Runs Algorithm 3 with its candidate sets.
fn algorithm_3(problem: &Problem, candidate_sets: fn(&Set) -> Vec<Set>) -> Allocation {
    let mut set: Set = problem.offers().iter().map(|offer| offer.running).collect();
    let mut best: Option<Allocation> = None;
    loop {
        let mut update = false;
        for candidate in candidate_sets(&set.clone()) {
            let found = Algorithm1::new(problem, &candidate, false).run();
            if best.as_ref().is_none_or(|best| found.score < best.score) {
                (best, set, update) = (Some(found), candidate, true);
            }
        }
        if !update {
            return best.unwrap();
        }
    }
}

fn followed(problem: &Problem, name: &str) -> Allocation {
    let unlimited = vec![usize::MAX; problem.offers().len()];
    match name {
        "f-fct" => Algorithm1::new(problem, &unlimited, false).run(),
        "f-cost" => Algorithm1::new(problem, &unlimited, true).run(),
        "1-p" => algorithm_3(problem, add_one),
        "2-p" => algorithm_3(problem, add_two),
        "2-p-rb" => algorithm_3(problem, rollback),
        other => panic!("{other} is none of the paper's"),
    }
}

fn solve(solver: &dyn Solver, problem: &Problem) -> Plan {
    solve_with(solver, problem, &OneByOne)
}

fn solve_with(solver: &dyn Solver, problem: &Problem, executor: &dyn Executor) -> Plan {
    let limits = Limits { executor, ..Limits::work(u64::MAX) };
    let plan = solver.solve(problem, &limits).unwrap();
    assert_eq!(verify(problem, &plan), vec![], "{}", solver.name());
    plan
}

/// An executor that runs the last item first, and counts the items.
#[derive(Default)]
struct LastFirst {
    done: AtomicUsize,
}

impl Executor for LastFirst {
    fn parallelism(&self) -> NonZeroUsize {
        NonZeroUsize::new(4).unwrap()
    }

    fn work_off(&self, pieces: &mut [Piece<'_>]) {
        self.done.fetch_add(pieces.len(), Ordering::Relaxed);
        pieces.iter_mut().rev().for_each(|piece| piece());
    }
}

/// Returns three threads, independent of the machine.
fn threads() -> Threads {
    Threads::new(NonZeroUsize::new(3).unwrap())
}

/// Asserts that the plan equals the allocation: each flow takes the same relays, whose names may
/// differ.
fn assert_same(problem: &Problem, plan: &Plan, expected: &Allocation) {
    assert_eq!(plan.score(problem).0, expected.score, "{}", plan.solver);
    assert_eq!(plan.cost, expected.cost, "{}", plan.solver);
    let mut names: BTreeMap<RelayId, (usize, usize)> = BTreeMap::new();
    for (planned, path) in plan.flows.iter().zip(&expected.paths) {
        let offers: Vec<usize> = path.iter().map(|(offer, _)| *offer).collect();
        assert_eq!(plan.offers_of(problem, planned).unwrap(), offers, "{}", plan.solver);
        for (name, relay) in planned.path.iter().zip(path) {
            assert_eq!(names.entry(name.clone()).or_insert(*relay), relay, "{}", plan.solver);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 250, ..ProptestConfig::default() })]

    #[test]
    fn every_heuristic_follows_its_pseudo_code(seed: u64) {
        let kind = Kind { flows: 9, regions: 5, beyond_paper: false };
        let problem = random(seed, kind).unwrap();
        for solver in FIVE {
            let plan = solve(solver, &problem);
            assert_same(&problem, &plan, &followed(&problem, solver.name()));
            prop_assert_eq!(&plan, &solve_with(solver, &problem, &LastFirst::default()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// Many relays of an offer, and budgets that are exhausted, so that runs continue from others
    /// and end early.
    #[test]
    fn heuristics_follow_pseudo_code(seed: u64) {
        let problem = random(seed, Kind { flows: 100, regions: 6, beyond_paper: false }).unwrap();
        for solver in FIVE {
            let plan = solve(solver, &problem);
            assert_same(&problem, &plan, &followed(&problem, solver.name()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    /// CP's setting, in which prices end most runs early, and offers are closed by many rates.
    #[test]
    fn proxy_greedy_follows_its_pseudo_code_near_regions(
        seed in 0_u64..1_000,
        usd_per_flow in 0.2..0.8_f64,
        capacity in 300.0..2_000.0_f64,
        one_source: bool,
    ) {
        let pattern = if one_source { Pattern::OneToMany } else { Pattern::ManyToMany };
        let mut inputs = near_regions(14, usd_per_flow, pattern, seed);
        inputs.start_up = StartUp::Ignored;
        inputs.regions.truncate(7);
        inputs.relay_types[0].capacity = mbps(capacity);
        let problem = Problem::new(inputs).unwrap();
        for solver in [&TwoProxy as &dyn Solver, &TwoProxyRollback] {
            let plan = solve_with(solver, &problem, &threads());
            assert_same(&problem, &plan, &followed(&problem, solver.name()));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// With unlimited and with limited work.
    #[test]
    fn plans_do_not_depend_on_executor(
        seed: u64,
        beyond_paper: bool,
        work in prop_oneof![0..20_000_u64, Just(u64::MAX)],
    ) {
        let Some(problem) = random(seed, Kind { flows: 40, regions: 8, beyond_paper }) else {
            return Ok(());
        };
        for solver in [&TwoProxy as &dyn Solver, &TwoProxyRollback] {
            let with = |executor: &dyn Executor| solver.solve(&problem,
                &Limits { executor, ..Limits::work(work) });
            let one_by_one = with(&OneByOne);
            prop_assert_eq!(&one_by_one, &with(&LastFirst::default()));
            prop_assert_eq!(&one_by_one, &with(&threads()));
        }
    }
}

#[test]
fn executor_runs_pieces_until_stopped() {
    let problem = random(7, Kind { flows: 100, regions: 8, beyond_paper: false }).unwrap();
    let executor = LastFirst::default();
    solve_with(&TwoProxyRollback, &problem, &executor);
    assert!(executor.done.load(Ordering::Relaxed) > 8, "a wave has several pieces");
    for executor in [&OneByOne as &dyn Executor, &threads()] {
        let (asked, is_stopped) = (AtomicUsize::new(0), AtomicBool::new(false));
        let should_stop = || {
            is_stopped.fetch_or(asked.fetch_add(1, Ordering::Relaxed) > 3, Ordering::Relaxed);
            is_stopped.load(Ordering::Relaxed)
        };
        let limits = Limits { should_stop: &should_stop, executor, ..Limits::work(u64::MAX) };
        let stopped = TwoProxyRollback.solve(&problem, &limits).unwrap_err();
        let SolveError::WorkLimit { best: Some(plan), .. } = stopped else { panic!("{stopped}") };
        assert_eq!(verify(&problem, &plan), vec![]);
    }
}

/// Returns the violations in plans of random problems (`examples/heuristics_hold.rs` makes more of
/// them), and the number of planned problems.
fn violations(seeds: std::ops::Range<u64>, kind: Kind) -> (Vec<String>, usize) {
    let (mut found, mut planned) = (Vec::new(), 0);
    for seed in seeds {
        let Some(problem) = random(seed, kind) else { continue };
        planned += 1;
        for solver in FIVE.into_iter().chain([&FlowGreedyRatio as &dyn Solver]) {
            match solver.solve(&problem, &Limits::work(u64::MAX)) {
                Ok(plan) => {
                    let wrong = verify(&problem, &plan);
                    let text = wrong.iter().map(|v| format!("{seed}, {}: {v}", solver.name()));
                    found.extend(text.take(1));
                }
                // Flows without direct path, and moves, may cost more than the budget.
                Err(SolveError::WorkLimit { best: None, .. }) if kind.beyond_paper => {}
                Err(error) => found.push(format!("{seed}, {}: {error}", solver.name())),
            }
        }
    }
    (found, planned)
}

#[test]
fn plans_of_small_random_problems_are_sound() {
    for beyond_paper in [false, true] {
        let kind = Kind { flows: 12, regions: 6, beyond_paper };
        let (found, planned) = violations(0..500, kind);
        assert_eq!(found, Vec::<String>::new());
        assert!(planned > 400, "{planned}");
    }
}

#[test]
fn plans_of_large_random_problems_are_sound() {
    let (found, planned) = violations(0..8, Kind { flows: 200, regions: 6, beyond_paper: true });
    assert_eq!(found, Vec::<String>::new());
    assert!(planned > 3, "{planned}");
}

/// Returns a problem to be solved by hand: an RTT in milliseconds is the FCT in seconds, because
/// each flow carries a thousand windows of 2.875 MB. A relay carries a flow for 23 cents.
fn hand_solvable(rtts: &[(&str, &str, u64)], regions: &[&str], budget_usd: f64) -> Problem {
    let place = |name: &str| {
        if name.contains(':') {
            LegEnd::Relay(RegionId::new(name).unwrap())
        } else {
            LegEnd::Site(SiteId::new(name).unwrap())
        }
    };
    let leg = |ms: u64| Leg::new(Duration::from_millis(ms));
    let legs: Legs =
        rtts.iter().map(|(from, to, ms)| ((place(from), place(to)), leg(*ms))).collect();
    let is_flow = |(from, to, _): &&(&str, &str, u64)| !from.contains(':') && !to.contains(':');
    let flows = rtts.iter().filter(is_flow).map(|(from, to, _)| {
        let mut flow = flow(from, from, to, 1);
        flow.volume = Bytes::new(2_875_000_000);
        flow
    });
    let regions = regions.iter().map(|id| RegionId::new(*id).unwrap()).collect();
    let mut inputs = Inputs::cloudpilot(flows.collect(), regions, legs, usd(budget_usd));
    inputs.start_up = StartUp::Ignored;
    Problem::new(inputs).unwrap()
}

fn seconds(solver: &dyn Solver, problem: &Problem) -> (u64, Money) {
    let plan = solve(solver, problem);
    (plan.total_fct.as_secs_f64().round() as u64, plan.cost)
}

#[test]
fn flow_greedy_and_proxy_greedy_buy_different_relays() {
    // Fig. 5: flow a gains most over both relays; p alone helps all three.
    let problem = hand_solvable(
        &[
            ("a", "x", 100),
            ("b", "y", 100),
            ("c", "z", 100),
            ("a", "k:p", 30),
            ("b", "k:p", 50),
            ("c", "k:p", 50),
            ("k:p", "x", 50),
            ("k:p", "y", 50),
            ("k:p", "z", 50),
            ("k:p", "k:q", 20),
            ("k:q", "x", 30),
        ],
        &["k:p", "k:q"],
        1.46,
    );
    // Set-up of two relays and egress of two flows use up the budget.
    assert_eq!(seconds(&FlowGreedyFct, &problem), (30 + 100 + 100, usd(1.46)));
    // A gain of 50 s for 23 cents and 23 % of a relay comes before 70 s for 46 cents and 77 %.
    let shared = (50 + 50 + 50, usd(0.5 + 3.0 * 0.23));
    assert_eq!(seconds(&FlowGreedyCost, &problem), shared);
    assert_eq!(seconds(&OneProxy, &problem), shared);
    // Any set with q makes F-FCT spend all on flow a; two relays at p do not.
    assert_eq!(seconds(&TwoProxy, &problem), shared);
    assert_eq!(seconds(&TwoProxyRollback, &problem), shared);
}

#[test]
fn single_relay_steps_miss_relay_pairs() {
    let rtts = [
        ("a", "x", 100),
        ("a", "k:q", 30),
        ("k:q", "k:r", 30),
        ("k:r", "x", 30),
        ("a", "k:p", 100),
        ("k:p", "x", 100),
    ];
    let problem = hand_solvable(&rtts, &["k:p", "k:q", "k:r"], 2.0);
    // The first set is {p}, as all of one relay are equal; with q or r more, nothing changes.
    assert_eq!(seconds(&OneProxy, &problem), (100, Money::ZERO));
    let found = (30, usd(1.46));
    assert_eq!(seconds(&TwoProxy, &problem), found);
    assert_eq!(seconds(&TwoProxyRollback, &problem), found);
    // With q first, that is the first set, and r helps.
    let problem = hand_solvable(&rtts, &["k:q", "k:r", "k:p"], 2.0);
    assert_eq!(seconds(&OneProxy, &problem), found);
}

#[test]
fn full_relay_passes_flows_on_to_their_next_path() {
    // 23 Mbit in 20 ms are 1.15 Gbit/s: one flow fills a relay of 2 Gbit/s for another.
    let problem = hand_solvable(
        &[
            ("a", "x", 100),
            ("b", "y", 90),
            ("a", "k:p", 20),
            ("b", "k:p", 20),
            ("k:p", "x", 20),
            ("k:p", "y", 20),
            ("b", "k:q", 60),
            ("k:q", "y", 60),
        ],
        &["k:p", "k:q"],
        1.46,
    );
    // F-FCT sets up a second relay at p.
    assert_eq!(seconds(&FlowGreedyFct, &problem), (20 + 20, usd(1.46)));
    assert_eq!(seconds(&OneProxy, &problem), (20 + 20, usd(1.46)));
    let running = |count: usize, budget_usd: f64| {
        let mut inputs = problem.inputs().clone();
        let offer = &problem.offers()[0];
        inputs.running.relays.insert((offer.region.clone(), offer.relay_type.id.clone()), count);
        inputs.budget = usd(budget_usd);
        Problem::new(inputs).unwrap()
    };
    // Running relays cost no set-up.
    assert_eq!(seconds(&FlowGreedyFct, &running(2, 0.46)), (20 + 20, usd(0.46)));
    assert_eq!(seconds(&FlowGreedyFct, &running(1, 0.95)), (20 + 90, usd(0.23)));
    assert_eq!(seconds(&TwoProxyRollback, &running(1, 0.96)), (20 + 20, usd(0.96)));
}

#[test]
fn work_limit_returns_best_plan_so_far() {
    let problem = random(7, Kind { flows: 200, regions: 6, beyond_paper: false }).unwrap();
    for solver in FIVE {
        match solver.solve(&problem, &Limits::work(3)) {
            Err(SolveError::WorkLimit { best: Some(plan), .. }) => {
                assert_eq!(verify(&problem, &plan), vec![]);
            }
            other => assert!(other.is_ok(), "{other:?}"),
        }
    }
}
