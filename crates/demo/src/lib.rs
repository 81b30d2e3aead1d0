//! The demo, experiment `cp-real` `[CP VII-C]`: measure, predict, choose, deploy, carry, compare;
//! on real kernel TCP.
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | flows, candidate regions, prices and the topology's name |
//! | [`processes`] | processes on the lab's hosts, and transfers between them |
//! | [`mod@report`] | the result as data, table and page |
//! | [`executor`] | threads for the planner |
//! | [`overlay`] | agents of a controller on the lab's hosts |
//!
//! [`run`] lists the steps. The planner uses the probe's reports and the scenario's prices, never
//! the topology. Relays, gateways and probes are processes of the binary that any user runs, on
//! hosts of the lab. However the run ends, everything it started is cleaned up: namespaces and
//! processes are tied to this process by the kernel, files by [`Drop`].

mod choose;
mod deploy;
mod error;
pub mod executor;
mod knowledge;
mod lanes;
mod measure;
pub mod overlay;
pub mod processes;
pub mod report;
pub mod scenario;
mod transfers;

use std::path::PathBuf;
use std::time::Instant;

use tradewind_lab::LabOptions;
use tradewind_model::StartUp;
use tradewind_model::catalogue::Catalogue;
use tradewind_model::fct::{path_fct, path_rate};
use tradewind_output::progress::Observer;
use tradewind_plan::Flow;
use tradewind_units::{Bytes, HostId, SiteId};
use tradewind_wan::Topology;

pub use choose::solve;
pub use error::DemoError;

use crate::processes::{LabContext, ProcessError, Stop};
use crate::report::{DemoReport, FlowResult, Place, RelayResult, Role, SCHEMA_VERSION, StepTime};
use crate::scenario::Scenario;
use choose::{Choice, regions_of};
use knowledge::Knowledge;
use measure::{Effort, Prober};
use transfers::{PathKind, Transfer};

/// Options of a run.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The scenario.
    pub scenario: Scenario,
    /// `true` to shorten what can be: fewer handshakes, shorter rate tests, smaller volumes.
    pub quick: bool,
    /// Seed of the emulated network; `None` selects the topology's.
    pub seed: Option<u64>,
    /// The binary `tradewind`, for the processes on the hosts.
    pub program: PathBuf,
    /// Set by the caller to end the run.
    pub stop: Stop,
}

/// Runs the demo.
///
/// # Errors
/// When the lab cannot start, a process fails, a transfer is aborted, or the run is stopped.
pub fn run(options: &DemoOptions, observer: &mut dyn Observer) -> Result<DemoReport, DemoError> {
    let scenario = &options.scenario;
    let topology = read_topology(scenario)?;
    let mut watch = StepWatch { observer, steps: Vec::new(), begun: None };
    let effort = if options.quick { Effort::QUICK } else { Effort::FULL };
    let repeats_until = Instant::now() + effort.repeats_until;

    watch.begin("emulate the WAN", 1);
    let lab_options = LabOptions { seed: options.seed, ..LabOptions::default() };
    let context = LabContext::start(&topology, &lab_options, &options.program, &options.stop)?;

    let choice = measure_and_choose(options, &context, effort, &mut watch)?;
    let flows = choice.problem.flows().to_vec();

    let plan = &choice.plan;
    watch
        .begin("start relays and gateways", plan.relays.len() as u64 + scenario.sites.len() as u64);
    let legs = &choice.problem.inputs().legs;
    let deployment =
        deploy::deploy(&context, plan, &flows, legs, |done| watch.observer.advance_to(done))?;

    let volume =
        if options.quick { scenario.volume_carried_quick } else { scenario.volume_carried };
    let transfers = predict(&choice, &flows, volume);
    let carried = carry_all(&context, &deployment, &flows, &transfers, repeats_until, &mut watch)?;
    let steps = watch.end();

    let results = flow_results(&choice, &flows, volume, &transfers, &carried);
    let invalid_because = carried.invalid_because(&flows);
    Ok(report(options, &topology, &choice, results, invalid_because, steps))
}

/// Parses the scenario's topology, in which each of its sites and regions has a host.
///
/// # Errors
/// When the text is malformed, or a site or region of the scenario is missing in it.
pub fn read_topology(scenario: &Scenario) -> Result<Topology, DemoError> {
    let topology =
        Topology::parse(&scenario.topology, &Catalogue::builtin()).map_err(|source| {
            ProcessError::Topology { file: scenario.topology_file.clone(), source }
        })?;
    let regions = scenario.regions.iter().cloned().map(SiteId::from);
    for place in scenario.sites.iter().cloned().chain(regions) {
        let host = host_of(&place);
        if !topology.hosts.iter().any(|known| known.id == host) {
            let file = scenario.topology_file.clone();
            let line = scenario.line_of(place.as_str()).unwrap_or(1);
            return Err(DemoError::NoHost { line, place, file });
        }
    }
    Ok(topology)
}

/// Measures round-trip times, then plans and measures rates in turn.
fn measure_and_choose(
    options: &DemoOptions,
    context: &LabContext,
    effort: Effort,
    watch: &mut StepWatch<'_>,
) -> Result<Choice, DemoError> {
    let scenario = &options.scenario;
    let hosts = context.lab.hosts().count() as u64;
    watch.begin("measure round-trip times", hosts);
    let prober = Prober::start(context, effort)?;
    let rtts = prober.rtts(|done| watch.observer.advance_to(done))?;
    let mut knowledge =
        Knowledge::new(&scenario.sites, &scenario.regions, scenario.relay.per_connection, rtts);

    watch.begin("measure rates, predict, choose relays", 100);
    choose::choose(scenario, &mut knowledge, &prober, &context.stop, |done, total| {
        watch.observer.advance_to(100 * done / total.max(1));
    })
}

/// Returns the transfers to carry, with predictions at the carried volume: every flow direct, then
/// those with a path over it.
fn predict(choice: &Choice, flows: &[Flow], volume: Bytes) -> Vec<Transfer> {
    let transfer = |index: usize, kind: PathKind| {
        let path = match kind {
            PathKind::Direct => Some(Vec::new()),
            PathKind::Planned => choice.plan.offers_of(&choice.problem, &choice.plan.flows[index]),
        };
        let relays = path.iter().flatten().map(|offer| {
            let region = choice.problem.offers()[*offer].region.clone();
            host_of(&region.into())
        });
        let [source, destination] = [&flows[index].source, &flows[index].destination].map(host_of);
        let hosts = [source].into_iter().chain(relays).chain([destination]).collect();
        let legs = path.as_ref().and_then(|path| choice.problem.legs(index, path));
        let legs = legs.expect("direct legs were measured, and those of the plan were verified");
        let predicted = path_fct(&legs, volume, StartUp::Cold);
        Transfer { flow: index, kind, hosts, rate: path_rate(&legs), volume, predicted }
    };
    let direct = (0..flows.len()).map(|index| transfer(index, PathKind::Direct));
    let planned = (0..flows.len())
        .filter(|index| !choice.plan.flows[*index].path.is_empty())
        .map(|index| transfer(index, PathKind::Planned));
    direct.chain(planned).collect()
}

fn carry_all(
    context: &LabContext,
    deployment: &deploy::Deployment,
    flows: &[Flow],
    transfers: &[Transfer],
    repeats_until: Instant,
    watch: &mut StepWatch<'_>,
) -> Result<transfers::Carriage, DemoError> {
    let mut carriage = transfers::Carriage::default();
    for (kind, step) in [
        (PathKind::Direct, "carry every flow direct"),
        (PathKind::Planned, "carry the flows over their paths"),
    ] {
        let mine: Vec<&Transfer> =
            transfers.iter().filter(|transfer| transfer.kind == kind).collect();
        let total: u64 = mine.iter().map(|transfer| transfer.volume.as_u64()).sum();
        watch.begin(step, total);
        let done = |bytes| watch.observer.advance_to(bytes);
        carriage.add(transfers::carry(context, deployment, flows, &mine, repeats_until, done)?);
    }
    Ok(carriage)
}

fn flow_results(
    choice: &Choice,
    flows: &[Flow],
    volume: Bytes,
    transfers: &[Transfer],
    carried: &transfers::Carriage,
) -> Vec<FlowResult> {
    let predicted = |flow: usize, kind: PathKind| {
        let found =
            transfers.iter().find(|transfer| (transfer.flow, transfer.kind) == (flow, kind));
        found.map(|transfer| transfer.predicted.as_secs_f64())
    };
    (flows.iter().enumerate().zip(&choice.plan.flows))
        .map(|((index, flow), planned)| {
            let direct = carried.outcome(index, PathKind::Direct);
            // A flow whose best path is the direct one is carried once.
            let over_path = carried.outcome(index, PathKind::Planned).or(direct);
            let outcomes = [direct, over_path];
            let fct = |outcome: Option<&transfers::Outcome>| {
                outcome.map_or(f64::NAN, |outcome| outcome.fct.as_secs_f64())
            };
            let predicted_direct_s = predicted(index, PathKind::Direct).unwrap_or(f64::NAN);
            FlowResult {
                source: flow.source.to_string(),
                destination: flow.destination.to_string(),
                bytes: volume.as_u64(),
                bytes_nominal: flow.volume.as_u64(),
                path: regions_of(&choice.plan, planned).iter().map(ToString::to_string).collect(),
                fct_direct_s: fct(direct),
                fct_planned_s: fct(over_path),
                predicted_direct_s,
                predicted_planned_s: predicted(index, PathKind::Planned)
                    .unwrap_or(predicted_direct_s),
                egress_usd: planned.egress.as_usd(),
                sha256_ok: outcomes.iter().all(|o| o.is_some_and(|outcome| outcome.sha256_ok)),
                valid: outcomes.iter().all(|o| o.is_some_and(|outcome| outcome.reasons.is_empty())),
            }
        })
        .collect()
}

fn report(
    options: &DemoOptions,
    topology: &Topology,
    choice: &Choice,
    flows: Vec<FlowResult>,
    invalid_because: Vec<String>,
    steps: Vec<StepTime>,
) -> DemoReport {
    let scenario = &options.scenario;
    let mut report = DemoReport {
        schema_version: SCHEMA_VERSION,
        name: scenario.name.clone(),
        seed: options.seed.unwrap_or(topology.seed),
        assumptions: assumptions(options, choice),
        valid: false,
        invalid_because,
        relays: relay_results(choice),
        measured: choice.measured.clone(),
        places: places(topology, choice),
        flows,
        cost_usd: choice.plan.cost.as_usd(),
        budget_usd: scenario.budget.as_usd(),
        acceleration: f64::NAN,
        acceleration_predicted: f64::NAN,
        prediction_error_median: f64::NAN,
        prediction_error_most: f64::NAN,
        steps,
    };
    report.summarise();
    report
}

fn assumptions(options: &DemoOptions, choice: &Choice) -> Vec<String> {
    let scenario = &options.scenario;
    let mut lines = scenario.assumptions.clone();
    let carried =
        if options.quick { scenario.volume_carried_quick } else { scenario.volume_carried };
    lines.push(format!(
        "each flow carries {carried} instead of the {} that is planned and priced; \
             predictions in the table are for what is carried",
        scenario.volume_nominal
    ));
    lines.push(format!(
        "{} rates were measured; {} legs of the plan rest on the model alone",
        choice.measured.len(),
        choice.unmeasured
    ));
    if options.quick {
        lines.push(
            "a quick run: fewer handshakes, shorter rate tests, none between relays, smaller \
             volumes"
                .into(),
        );
    }
    lines
}

fn relay_results(choice: &Choice) -> Vec<RelayResult> {
    let mut results: Vec<RelayResult> = Vec::new();
    for relay in &choice.plan.relays {
        let users = choice.plan.flows.iter().filter(|flow| flow.path.contains(&relay.id)).count();
        let users = u32::try_from(users).unwrap_or(u32::MAX);
        match results.iter_mut().find(|result| result.region == relay.region.as_str()) {
            Some(result) => {
                result.count += 1;
                result.flows += users;
            }
            None => results.push(RelayResult {
                region: relay.region.to_string(),
                count: 1,
                flows: users,
            }),
        }
    }
    results
}

fn places(topology: &Topology, choice: &Choice) -> Vec<Place> {
    let located = topology.sites.iter().filter_map(|site| Some((site, site.location?)));
    located
        .map(|(site, location)| {
            let relay =
                choice.plan.relays.iter().any(|relay| relay.region.as_str() == site.id.as_str());
            let role = match (site.region.is_some(), relay) {
                (false, _) => Role::Site,
                (true, true) => Role::Relay,
                (true, false) => Role::Candidate,
            };
            Place {
                name: site.id.to_string(),
                latitude_deg: location.latitude(),
                longitude_deg: location.longitude(),
                role,
            }
        })
        .collect()
}

/// Returns the host of a site; the demo's topologies have one host per site, with the site's name.
fn host_of(site: &SiteId) -> HostId {
    HostId::new(site.as_str()).expect("a site's name is a host's name")
}

/// A wrapper of the observer that records the duration of each step.
struct StepWatch<'a> {
    observer: &'a mut dyn Observer,
    steps: Vec<StepTime>,
    begun: Option<(String, Instant)>,
}

impl StepWatch<'_> {
    fn begin(&mut self, step: &str, total: u64) {
        self.close();
        self.begun = Some((step.to_owned(), Instant::now()));
        self.observer.begin(step, total);
    }

    fn close(&mut self) {
        if let Some((step, since)) = self.begun.take() {
            self.steps.push(StepTime { step, seconds: since.elapsed().as_secs_f64() });
        }
    }

    fn end(mut self) -> Vec<StepTime> {
        self.close();
        self.steps
    }
}
