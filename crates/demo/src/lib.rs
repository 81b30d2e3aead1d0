//! The demo `[CP VII-C]`: the overlay's own loop on a lab of real kernel TCP, and what it gains.
//!
//! | module | holds |
//! |---|---|
//! | [`scenario`] | flows, candidate regions, prices and the topology's name |
//! | [`controlled`] | a controller in this process, with agents on the lab's hosts |
//! | `looped` | its loop: declare, measure, plan, put into effect |
//! | `taken` | checks that transfers took their paths, by what gateways told |
//! | [`processes`] | processes on the lab's hosts, and transfers between them |
//! | [`transfers`], [`lanes`] | transfers with their validity, and which run at once |
//! | [`mod@report`] | the result as data, table and page |
//! | [`executor`] | threads for the planner |
//! | [`overlay`] | agents of a controller on the lab's hosts |
//!
//! [`run`] lists the steps. A controller measures, plans and puts the plan into effect, as it does
//! anywhere: the demo declares flows, budget and prices by its API, then carries bytes direct and
//! over the overlay. Agents, relays and gateways are processes of the binary that any user runs, on
//! hosts of the lab. However the run ends, everything it started is cleaned up: namespaces and
//! processes are tied to this process by the kernel, files by [`Drop`].

pub mod controlled;
mod error;
pub mod executor;
pub mod lanes;
mod looped;
pub mod overlay;
pub mod processes;
pub mod report;
pub mod scenario;
mod taken;
pub mod transfers;

use std::path::PathBuf;
use std::time::Instant;

use tradewind_lab::LabOptions;
use tradewind_model::catalogue::Catalogue;
use tradewind_output::progress::Observer;
use tradewind_units::{HostId, SiteId};
use tradewind_wan::Topology;

pub use error::DemoError;

use crate::controlled::Controlled;
use crate::looped::{Effort, Planned};
use crate::processes::{LabContext, ProcessError, Stop};
use crate::report::{
    DemoReport, FlowResult, MapPoint, RelayResult, Role, SCHEMA_VERSION, StepTime,
};
use crate::scenario::Scenario;
use crate::transfers::{Carriage, Outcome, PathKind, Transfer};

/// Options of a run.
#[derive(Debug, Clone)]
pub struct DemoOptions {
    /// The scenario.
    pub scenario: Scenario,
    /// `true` to shorten what can be: no rate tests, smaller volumes.
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
/// When the lab or the controller cannot start, something does not come about in time, a process
/// fails, a transfer is aborted, or the run is stopped.
pub fn run(options: &DemoOptions, observer: &mut dyn Observer) -> Result<DemoReport, DemoError> {
    let scenario = &options.scenario;
    let topology = read_topology(scenario)?;
    let mut watch = StepWatch { observer, steps: Vec::new(), begun: None };
    let effort = if options.quick { Effort::QUICK } else { Effort::FULL };
    let repeats_until = Instant::now() + effort.repeats_until;

    watch.begin("emulate the WAN", 1);
    let lab_options = LabOptions { seed: options.seed, ..LabOptions::default() };
    let context = LabContext::start(&topology, &lab_options, &options.program, &options.stop)?;

    let hosts = looped::hosts(scenario, &context)?;
    watch.begin("start the controller, and an agent on each host", hosts.len() as u64);
    let advance = |done| watch.observer.advance_to(done);
    let mut overlay = Controlled::start(&context, &hosts, advance)?;

    watch.begin("measure and plan", looped::legs(scenario) as u64);
    looped::declare(&overlay.client, scenario, &context, &effort)?;
    let plan = looped::plan(&mut overlay, scenario, &effort, |done| {
        watch.observer.advance_to(done);
    })?;
    watch.begin("put the plan into effect", 1);
    looped::apply(&mut overlay, &plan)?;

    let volume =
        if options.quick { scenario.volume_carried_quick } else { scenario.volume_carried };
    let transfers = plan.transfers(volume)?;
    let mut carried = carry_all(&mut overlay, &transfers, repeats_until, &mut watch)?;
    watch.begin("check which paths they took", 1);
    taken::check(&mut overlay, &plan, &mut carried)?;
    drop(overlay);
    let steps = watch.end();
    Ok(report(options, &topology, &plan, (&transfers, &carried), steps))
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

/// Returns the host of a site; a scenario's topology has one host per site, with the site's name.
///
/// # Panics
/// Never: names of sites and of hosts have one form.
#[must_use]
pub fn host_of(site: &SiteId) -> HostId {
    HostId::new(site.as_str()).expect("a site's name is a host's name")
}

fn carry_all(
    overlay: &mut Controlled<'_>,
    transfers: &[Transfer],
    repeats_until: Instant,
    watch: &mut StepWatch<'_>,
) -> Result<Carriage, DemoError> {
    let mut carriage = Carriage::default();
    for (kind, step) in [
        (PathKind::Direct, "carry every flow direct"),
        (PathKind::Planned, "carry the flows over their paths"),
    ] {
        let mine: Vec<&Transfer> =
            transfers.iter().filter(|transfer| transfer.kind == kind).collect();
        let total: u64 = mine.iter().map(|transfer| transfer.volume.as_u64()).sum();
        watch.begin(step, total);
        let done = |bytes| watch.observer.advance_to(bytes);
        carriage.add(transfers::carry(overlay.context, &mine, repeats_until, done)?);
        overlay.check()?;
    }
    Ok(carriage)
}

fn flow_results(plan: &Planned, transfers: &[Transfer], carried: &Carriage) -> Vec<FlowResult> {
    let of = |flow: usize, kind: PathKind| {
        transfers.iter().find(|transfer| (transfer.flow, transfer.kind) == (flow, kind))
    };
    let predicted =
        |flow, kind| of(flow, kind).map(|transfer: &Transfer| transfer.predicted.as_secs_f64());
    let result = |(index, (flow, _)): (usize, (&_, _))| {
        let flow: &tradewind_control::record::FlowRecord = flow;
        let direct = carried.outcome(index, PathKind::Direct);
        // A flow whose best path is the direct one is carried once.
        let over_path = carried.outcome(index, PathKind::Planned).or(direct);
        let outcomes = [direct, over_path];
        let fct = |outcome: Option<&Outcome>| {
            outcome.map_or(f64::NAN, |outcome| outcome.fct.as_secs_f64())
        };
        let predicted_direct_s = predicted(index, PathKind::Direct).unwrap_or(f64::NAN);
        FlowResult {
            source: flow.from.to_string(),
            destination: flow.to_site.to_string(),
            bytes: of(index, PathKind::Direct).map_or(0, |transfer| transfer.volume.as_u64()),
            bytes_nominal: flow.per_day.as_u64(),
            path: plan.regions(index),
            fct_direct_s: fct(direct),
            fct_planned_s: fct(over_path),
            predicted_direct_s,
            predicted_planned_s: predicted(index, PathKind::Planned).unwrap_or(predicted_direct_s),
            egress_usd: plan.record.plan.flows.get(index).map_or(0.0, |it| it.egress.as_usd()),
            sha256_ok: outcomes.iter().all(|o| o.is_some_and(|outcome| outcome.sha256_ok)),
            valid: outcomes.iter().all(|o| o.is_some_and(|outcome| outcome.reasons.is_empty())),
        }
    };
    plan.record.paths().enumerate().map(result).collect()
}

fn report(
    options: &DemoOptions,
    topology: &Topology,
    plan: &Planned,
    (transfers, carried): (&[Transfer], &Carriage),
    steps: Vec<StepTime>,
) -> DemoReport {
    let scenario = &options.scenario;
    let mut report = DemoReport {
        schema_version: SCHEMA_VERSION,
        name: scenario.name.clone(),
        seed: options.seed.unwrap_or(topology.seed),
        assumptions: assumptions(options, plan),
        valid: false,
        invalid_because: carried.invalid_because(),
        flows: flow_results(plan, transfers, carried),
        relays: relay_results(plan),
        measured: plan.rates().collect(),
        places: places(topology, plan),
        cost_usd: plan.record.usd_per_day.as_usd(),
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

fn assumptions(options: &DemoOptions, plan: &Planned) -> Vec<String> {
    let scenario = &options.scenario;
    let mut lines = scenario.assumptions.clone();
    let carried =
        if options.quick { scenario.volume_carried_quick } else { scenario.volume_carried };
    lines.push(format!(
        "each flow carries {carried} instead of the {} that is planned and priced; \
             predictions in the table are for what is carried",
        scenario.volume_nominal
    ));
    let (measured, all) = plan.measured_legs();
    lines.push(format!(
        "{measured} of the plan's {all} legs have a measured rate; those of the others are \
         estimated by window over round-trip time"
    ));
    if options.quick {
        lines.push("a quick run: no rate tests, smaller volumes".into());
    }
    lines
}

fn relay_results(plan: &Planned) -> Vec<RelayResult> {
    let mut results: Vec<RelayResult> = Vec::new();
    for relay in &plan.record.plan.relays {
        let users = plan.record.plan.flows.iter().filter(|flow| flow.path.contains(&relay.id));
        let users = u32::try_from(users.count()).unwrap_or(u32::MAX);
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

fn places(topology: &Topology, plan: &Planned) -> Vec<MapPoint> {
    let located = topology.sites.iter().filter_map(|site| Some((site, site.location?)));
    let relays = &plan.record.plan.relays;
    located
        .map(|(site, location)| {
            let relay = relays.iter().any(|relay| relay.region.as_str() == site.id.as_str());
            let role = match (site.region.is_some(), relay) {
                (false, _) => Role::Site,
                (true, true) => Role::Relay,
                (true, false) => Role::Candidate,
            };
            MapPoint {
                name: site.id.to_string(),
                latitude_deg: location.latitude(),
                longitude_deg: location.longitude(),
                role,
            }
        })
        .collect()
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
