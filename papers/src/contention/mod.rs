//! `trn-contention` \[TRN\]: flows of one machine to several regions, planned by the rates of
//! links, and by the caps of machines.
//!
//! Work on geo-distributed data takes a rate for each pair of regions, each measured alone. TRN
//! found that a machine's flows share one cap whatever their destinations, and proposes to plan for
//! that. Here one planning problem is solved twice, once without the caps of machines (*per link*)
//! and once with them (*per machine*), and the lab carries all flows at once over each plan, and
//! direct. A [`scenario`] names the problem and the network; a [`repeat`] carries the flows; the
//! [`outcome`] compares completion times with the plans' predictions.

mod outcome;
mod repeat;
mod scenario;

use tradewind_model::Catalogue;
use tradewind_plan::solver::DEFAULT;
use tradewind_plan::{Plan, Problem};
use tradewind_units::{HostId, SiteId};
use tradewind_wan::Topology;

use crate::harness::{
    Experiment, ExperimentError, Observer, Record, RunOptions, ScenarioError, planning, repeats,
};
use scenario::Scenario;

/// Paths of all flows, and the completion times expected of them.
struct Variant {
    name: &'static str,
    /// Each flow's relays, from its source on.
    paths: Vec<Vec<HostId>>,
    /// Each flow's completion time as predicted by its plan, in seconds.
    predicted_s: Vec<f64>,
}

/// Names of the variants, in their order.
const DIRECT: &str = "direct";
const PER_LINK: &str = "planned per link";
const PER_MACHINE: &str = "planned per machine";

/// Runs an experiment whose scenario is one of contention.
///
/// # Errors
/// When the scenario makes no sense, no plan is found, the lab or a process on it fails, or the run
/// is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let problem = experiment.beside(options, &scenario.problem)?;
    let topology = experiment.beside(options, &scenario.topology)?;
    let (problem, topology) = experiment.read(options, |_| {
        let topology = Topology::parse(&topology, &Catalogue::builtin());
        let wrong = |what: String| ScenarioError::Inconsistent { what };
        let topology =
            topology.map_err(|error| wrong(format!("{}: {error}", scenario.topology)))?;
        Ok((scenario.problem(&problem)?, topology))
    })?;
    let variants = variants(&problem, options)?;
    for host in
        variants.iter().flat_map(|variant| variant.paths.iter().flatten()).chain(&problem.hosts())
    {
        if topology.host(host).is_none() {
            let what = format!("{}: no host `{host}`", scenario.topology);
            return Err(ScenarioError::Inconsistent { what }.into());
        }
    }
    let seeds = scenario.runs.seeds(options);
    let step = "carry all flows over each plan";
    let work =
        repeat::Work { problem: &problem, variants: &variants, topology: &topology, options };
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        work.run(*seed, checked)
    })?;
    Ok(completed.record(|repeats, options| {
        outcome::record(&scenario, &problem, &variants, options, repeats)
    }))
}

/// Returns the direct paths, and those of both plans.
fn variants(
    problem: &scenario::Contention,
    options: &RunOptions,
) -> Result<Vec<Variant>, ExperimentError> {
    let plan = |problem: &Problem| planning::solve(DEFAULT, problem, &options.stop);
    let per_link = plan(&problem.per_link)?;
    let per_machine = plan(&problem.per_machine)?;
    let seconds = |fct: std::time::Duration| fct.as_secs_f64();
    let direct = per_machine.flows.iter();
    let direct = direct.map(|flow| flow.fct_direct.map_or(f64::NAN, seconds)).collect();
    Ok(vec![
        Variant {
            name: DIRECT,
            paths: vec![Vec::new(); per_machine.flows.len()],
            predicted_s: direct,
        },
        variant(PER_LINK, &per_link),
        variant(PER_MACHINE, &per_machine),
    ])
}

fn variant(name: &'static str, plan: &Plan) -> Variant {
    let path = |flow| {
        let regions = plan.regions_of(flow).expect("the verifier found every relay of every path");
        regions.into_iter().map(|region| host_of(&region.into())).collect()
    };
    Variant {
        name,
        paths: plan.flows.iter().map(path).collect(),
        predicted_s: plan.flows.iter().map(|flow| flow.fct.as_secs_f64()).collect(),
    }
}

/// Returns the host of a site that has its name.
fn host_of(site: &SiteId) -> HostId {
    HostId::new(site.as_str()).expect("a site's name is a host's name")
}
