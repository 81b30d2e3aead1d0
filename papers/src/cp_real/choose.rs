//! Plans by all algorithms on the same measurements, and measures what could change them.
//!
//! The direct paths are measured first. Then, in rounds: plan by each algorithm with the known legs
//! and optimistic estimates of unmeasured ones; measure the legs of the plans; plan again. Once a
//! plan uses measured legs only, no other plan of its algorithm is judged too badly for want of a
//! measurement, because every alternative was estimated too well.

use std::collections::BTreeSet;

use tradewind_demo::scenario::Scenario;
use tradewind_model::StartUp;
use tradewind_model::cost::Prices;
use tradewind_plan::{Flow, Inputs, Plan, PlannedFlow, Problem, RelayType};
use tradewind_units::{Bytes, FlowId, PricePerGb, RegionId, SiteId, UnitError};

use super::knowledge::{Knowledge, KnowledgeError};
use super::measure::{Pair, Prober};
use crate::harness::{ExperimentError, NumericError, ProcessError, Stop, planning, unusable};

/// Largest number of relays on a path `[CP IV-B]`.
const MAX_RELAYS: usize = 2;

/// The plans and the data behind them.
pub(super) struct Choice {
    /// The problem, with all legs filled in.
    pub(super) problem: Problem,
    /// The plan of each algorithm.
    pub(super) plans: Vec<(&'static str, Plan)>,
    /// The number of the plans' legs whose rate was not measured.
    pub(super) unmeasured: usize,
}

/// Plans by each of `algorithms` for flows of `volume`, and measures in turn.
pub(super) fn choose(
    (scenario, volume): (&Scenario, Bytes),
    algorithms: &[&'static str],
    knowledge: &mut Knowledge,
    prober: &Prober<'_>,
    stop: &Stop,
) -> Result<Choice, ExperimentError> {
    let flows = flows_of(scenario, volume).map_err(ProcessError::from)?;
    let direct = flows.iter().map(|flow| (flow.source.clone(), flow.destination.clone()));
    let mut wanted: BTreeSet<Pair> = direct.collect();
    for round in 0.. {
        // Legs of sites come first: their rates bound the useful rate of legs between relays.
        let (between, of_sites): (Vec<Pair>, Vec<Pair>) =
            wanted.into_iter().partition(|pair| knowledge.is_between_relays(pair));
        for pairs in [of_sites, between] {
            let batch = pairs.iter().map(|pair| knowledge.test(pair));
            let batch = batch.collect::<Result<Vec<_>, _>>().map_err(unmeasured)?;
            knowledge.learn(prober.rates(&batch)?);
        }
        let problem = problem((scenario, volume), flows.clone(), knowledge)?;
        let plan = |name: &&'static str| Ok((*name, planning::solve(name, &problem, stop)?));
        let plans: Vec<(&'static str, Plan)> =
            algorithms.iter().map(plan).collect::<Result<_, ExperimentError>>()?;
        let legs = plans.iter().flat_map(|(_, plan)| legs_of(plan, &flows));
        let unmeasured: BTreeSet<Pair> = legs.filter(|pair| !knowledge.has_rate(pair)).collect();
        wanted = unmeasured
            .iter()
            .filter(|pair| prober.effort().between_relays || !knowledge.is_between_relays(pair))
            .cloned()
            .collect();
        if wanted.is_empty() || round + 1 == prober.effort().rounds {
            return Ok(Choice { problem, plans, unmeasured: unmeasured.len() });
        }
    }
    unreachable!("the last round returns")
}

/// Returns the flows of a scenario, of `volume` each.
fn flows_of(scenario: &Scenario, volume: Bytes) -> Result<Vec<Flow>, UnitError> {
    let flow = |(source, destination): (&SiteId, &SiteId)| {
        let id = FlowId::new(format!("{source}.{destination}"))?;
        Ok(Flow::new(id, source.clone(), destination.clone(), volume))
    };
    scenario.flows().map(flow).collect()
}

/// Returns the problem of flows of `volume`, each of whose bytes costs so much that the flow costs
/// what it does at its nominal volume.
fn problem(
    (scenario, volume): (&Scenario, Bytes),
    flows: Vec<Flow>,
    knowledge: &Knowledge,
) -> Result<Problem, ExperimentError> {
    let regions = scenario.regions.clone();
    let relay_type = RelayType {
        capacity: scenario.relay.capacity,
        // Legs are measured, so this cap is already part of them.
        per_connection: None,
        set_up: scenario.relay.setup,
        ..RelayType::cloudpilot()
    };
    let scale = scenario.volume_nominal.as_u64() as f64 / volume.as_u64() as f64;
    let egress = PricePerGb::from_usd_per_gb(scenario.relay.egress.as_usd_per_gb() * scale);
    let legs = knowledge.legs().map_err(unmeasured)?;
    let problem = Problem::new(Inputs {
        relay_types: vec![relay_type],
        prices: Prices::Flat(egress.map_err(ProcessError::from)?),
        max_relays: MAX_RELAYS,
        start_up: StartUp::Cold,
        ..Inputs::cloudpilot(flows, regions, legs, scenario.budget)
    });
    Ok(problem.map_err(NumericError::from)?)
}

fn unmeasured(error: KnowledgeError) -> ProcessError {
    unusable("measurements", &error)
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
