//! Chooses relays within the budget, and measures what could change the choice.
//!
//! The direct paths are measured first. Then, in rounds: plan with the known legs and optimistic
//! estimates of unmeasured ones; measure the legs of the plan; plan again. Once a plan uses
//! measured legs only, no other plan can beat it, because every alternative was estimated too well
//! rather than too badly.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use tradewind_model::StartUp;
use tradewind_model::cost::Prices;
use tradewind_plan::solver::{self, Solver, best_of};
use tradewind_plan::{Flow, Inputs, Limits, Plan, PlannedFlow, Problem, RelayType, verify};
use tradewind_units::{FlowId, RegionId, SiteId};

use super::DemoError;
use super::knowledge::Knowledge;
use super::measure::{Pair, Prober};
use crate::executor::Threads;
use crate::processes::Stop;
use crate::report::MeasuredLeg;
use crate::scenario::Scenario;

/// Largest number of relays on a path `[CP IV-B]`.
const MAX_RELAYS: usize = 2;
/// Longest time for one plan. Chosen: the two to four rounds together take one to two seconds.
const PLANNING_TIME: Duration = Duration::from_millis(500);

/// The chosen plan and the data behind it.
pub(super) struct Choice {
    /// The problem, with all legs filled in.
    pub(super) problem: Problem,
    /// The best affordable plan.
    pub(super) plan: Plan,
    /// Rate tests that were run.
    pub(super) measured: Vec<MeasuredLeg>,
    /// The number of the plan's legs whose rate was not measured.
    pub(super) unmeasured: usize,
}

/// Returns the flows of a scenario, at nominal volume.
pub(super) fn flows_of(scenario: &Scenario) -> Result<Vec<Flow>, DemoError> {
    scenario
        .flows()
        .map(|(source, destination)| {
            let id = FlowId::new(format!("{source}.{destination}"))?;
            Ok(Flow::new(id, source.clone(), destination.clone(), scenario.volume_nominal))
        })
        .collect()
}

/// Plans and measures in turn; `progress` is called in every round with the numbers of finished and
/// of all tests.
pub(super) fn choose(
    scenario: &Scenario,
    knowledge: &mut Knowledge,
    prober: &Prober<'_>,
    stop: &Stop,
    mut progress: impl FnMut(u64, u64),
) -> Result<Choice, DemoError> {
    let flows = flows_of(scenario)?;
    let direct = flows.iter().map(|flow| (flow.source.clone(), flow.destination.clone()));
    let mut wanted: BTreeSet<Pair> = direct.collect();
    let mut tests = 0;
    for round in 0.. {
        // Legs of sites come first: their rates bound the useful rate of legs between relays.
        let (between, of_sites): (Vec<Pair>, Vec<Pair>) =
            wanted.into_iter().partition(|pair| knowledge.is_between_relays(pair));
        let total = (tests + between.len() + of_sites.len()) as u64;
        for pairs in [of_sites, between] {
            let batch = pairs.iter().map(|pair| knowledge.test(pair));
            let batch = batch.collect::<Result<Vec<_>, _>>()?;
            let rates = prober.rates(&batch, |done| progress(tests as u64 + done, total))?;
            tests += rates.len();
            knowledge.learn(rates);
        }
        let problem = problem(scenario, flows.clone(), knowledge)?;
        let plan = solve(&problem, stop)?;
        let unmeasured: BTreeSet<Pair> =
            legs_of(&plan, &flows).filter(|pair| !knowledge.has_rate(pair)).collect();
        wanted = unmeasured
            .iter()
            .filter(|pair| prober.effort().between_relays || !knowledge.is_between_relays(pair))
            .cloned()
            .collect();
        if wanted.is_empty() || round + 1 == prober.effort().rounds {
            let measured = knowledge.measured();
            return Ok(Choice { problem, plan, measured, unmeasured: unmeasured.len() });
        }
    }
    unreachable!("the last round returns")
}

fn problem(
    scenario: &Scenario,
    flows: Vec<Flow>,
    knowledge: &Knowledge,
) -> Result<Problem, DemoError> {
    let regions = scenario.regions.clone();
    let standard = RelayType::cloudpilot();
    let relay_type = RelayType {
        capacity: scenario.relay.capacity,
        // Legs are measured, so this cap is already part of them.
        per_connection: None,
        set_up: scenario.relay.setup,
        ..standard
    };
    Ok(Problem::new(Inputs {
        relay_types: vec![relay_type],
        prices: Prices::Flat(scenario.relay.egress),
        max_relays: MAX_RELAYS,
        start_up: StartUp::Cold,
        ..Inputs::cloudpilot(flows, regions, knowledge.legs()?, scenario.budget)
    })?)
}

/// Returns the plan that users get by default, checked by the verifier, which shares no code with
/// the solver.
///
/// # Errors
/// When there is no plan, the verifier rejects it, or the run is stopped.
pub fn solve(problem: &Problem, stop: &Stop) -> Result<Plan, DemoError> {
    let solver = default_solver();
    let begun = Instant::now();
    let time_left = || PLANNING_TIME.saturating_sub(begun.elapsed());
    let should_stop = || stop.is_set() || time_left().is_zero();
    let limits = Limits {
        work: u64::MAX,
        should_stop: &should_stop,
        time_left: Some(&time_left),
        executor: &Threads::available(),
    };
    let plan = best_of(&[solver.as_ref()], problem, &limits)?;
    stop.check()?;
    let violations = verify(problem, &plan);
    match violations.first() {
        None => Ok(plan),
        Some(violation) => Err(DemoError::Plan(violation.to_string())),
    }
}

fn default_solver() -> Box<dyn Solver> {
    solver::by_name(solver::DEFAULT).expect("the registry holds its own default")
}

/// Returns every leg that the plan's paths use.
fn legs_of<'a>(plan: &'a Plan, flows: &'a [Flow]) -> impl Iterator<Item = Pair> + 'a {
    plan.flows.iter().zip(flows).flat_map(|(planned, flow)| {
        let relays = regions_of(plan, planned).into_iter().map(SiteId::from);
        let stops: Vec<SiteId> = std::iter::once(flow.source.clone())
            .chain(relays)
            .chain(std::iter::once(flow.destination.clone()))
            .collect();
        stops.windows(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect::<Vec<_>>()
    })
}

/// Returns the regions of a flow's path.
pub(super) fn regions_of(plan: &Plan, flow: &PlannedFlow) -> Vec<RegionId> {
    plan.regions_of(flow).expect("the verifier found every relay of every path")
}
