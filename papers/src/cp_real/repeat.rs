//! One repeat: a lab of one seed, measured once, on which all flows are carried direct, and over
//! the plan of each algorithm.

use std::time::Instant;

use tradewind_demo::host_of;
use tradewind_demo::scenario::Scenario;
use tradewind_demo::transfers::{self, Carriage, PathKind, Transfer};
use tradewind_lab::LabOptions;
use tradewind_model::StartUp;
use tradewind_model::fct::{path_fct, path_rate};
use tradewind_plan::Plan;
use tradewind_units::Bytes;
use tradewind_wan::Topology;

use super::algorithms;
use super::choose::{self, Choice, regions_of};
use super::deploy::{self, Deployment, Receivers};
use super::knowledge::Knowledge;
use super::measure::{Effort, Prober};
use crate::harness::checked::Checked;
use crate::harness::{ExperimentError, LabContext, ProcessError, RunOptions};

/// Parameters that repeats share.
pub(super) struct Work<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) topology: &'a Topology,
    pub(super) options: &'a RunOptions,
}

/// A completion time in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Time {
    pub(super) predicted_s: f64,
    pub(super) measured_s: f64,
}

/// Results of one algorithm.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OfAlgorithm {
    pub(super) name: &'static str,
    /// The time of each flow.
    pub(super) flows: Vec<Time>,
    /// Its relays.
    pub(super) relays: usize,
    /// Its price at nominal volumes, in dollars.
    pub(super) cost_usd: f64,
}

/// Results of a repeat.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The time of each flow on its direct path.
    pub(super) direct: Vec<Time>,
    /// Those of the plans.
    pub(super) planned: Vec<OfAlgorithm>,
    /// The number of the plans' legs whose rate was not measured.
    pub(super) unmeasured: usize,
    /// True if all bytes came as they were sent.
    pub(super) content_ok: bool,
}

impl Work<'_> {
    /// Runs a repeat.
    pub(super) fn run(&self, seed: u64, checked: &mut Checked) -> Result<Outcome, ExperimentError> {
        let options = self.options;
        let effort = if options.quick { Effort::QUICK } else { Effort::FULL };
        let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
        let context = LabContext::start(self.topology, &lab, &options.program, &options.stop)?;
        let choice = self.measure(&context, effort)?;
        let receivers = deploy::receivers(&context.lab, choice.problem.flows())?;
        let direct = self.transfers((&choice, &receivers), &choice.plans[0].1, None);
        let direct_carried = carry(&context, &direct, effort)?;
        checked.add(&format!("direct, seed {seed}"), direct_carried.invalid_because());
        let mut outcome = Outcome {
            direct: times(&direct, &direct_carried),
            planned: Vec::new(),
            unmeasured: choice.unmeasured,
            content_ok: is_intact(&direct, &direct_carried),
        };
        // Two algorithms with one plan have one result.
        let mut done: Vec<(&Plan, Vec<Time>)> = Vec::new();
        for ((name, plan), slot) in choice.plans.iter().zip(0..) {
            let known = done.iter().find(|(other, _)| is_same(other, plan));
            let flows = match known {
                Some((_, flows)) => flows.clone(),
                None => {
                    let flows = choice.problem.flows();
                    let legs = &choice.problem.inputs().legs;
                    let deployed = deploy::deploy(&context, plan, (flows, &receivers), legs, slot)?;
                    let over = self.transfers((&choice, &receivers), plan, Some(&deployed));
                    let carried = carry(&context, &over, effort)?;
                    checked.add(&format!("{name}, seed {seed}"), carried.invalid_because());
                    outcome.content_ok &= is_intact(&over, &carried);
                    // A flow whose best path is the direct one is carried once.
                    let mut flows = outcome.direct.clone();
                    for (transfer, time) in over.iter().zip(times(&over, &carried)) {
                        flows[transfer.flow] = time;
                    }
                    done.push((plan, flows.clone()));
                    flows
                }
            };
            let (relays, cost_usd) = (plan.relays.len(), plan.cost.as_usd());
            outcome.planned.push(OfAlgorithm { name, flows, relays, cost_usd });
        }
        Ok(outcome)
    }

    fn measure(&self, context: &LabContext, effort: Effort) -> Result<Choice, ExperimentError> {
        let Self { scenario, options, .. } = self;
        let prober = Prober::start(context, effort)?;
        let (sites, regions) = (&scenario.sites, &scenario.regions);
        let per_connection = scenario.relay.per_connection;
        let mut knowledge = Knowledge::new(sites, regions, per_connection, prober.rtts()?);
        choose::choose(
            (scenario, self.volume()),
            &algorithms(),
            &mut knowledge,
            &prober,
            &options.stop,
        )
    }

    fn volume(&self) -> Bytes {
        let Self { scenario, options, .. } = self;
        if options.quick { scenario.volume_carried_quick } else { scenario.volume_carried }
    }

    /// Returns the transfers of all flows on their direct paths, or with a deployed plan of those
    /// that have a path over relays, with predictions for what is carried.
    fn transfers(
        &self,
        (choice, receivers): (&Choice, &Receivers),
        plan: &Plan,
        deployed: Option<&Deployment>,
    ) -> Vec<Transfer> {
        let kind = if deployed.is_some() { PathKind::Planned } else { PathKind::Direct };
        let flows = choice.problem.flows().iter().zip(&plan.flows).enumerate();
        let transfer = |(index, (flow, planned))| {
            let (flow, planned): (&tradewind_plan::Flow, &tradewind_plan::PlannedFlow) =
                (flow, planned);
            let offers = match kind {
                PathKind::Direct => Vec::new(),
                PathKind::Planned => plan.offers_of(&choice.problem, planned)?,
            };
            if offers.is_empty() && kind == PathKind::Planned {
                return None;
            }
            let legs = choice.problem.legs(index, &offers)?;
            let receiver = receivers[&flow.id];
            let dial = deployed.and_then(|it| it.listener(&flow.id)).unwrap_or(receiver);
            let relays = match kind {
                PathKind::Direct => Vec::new(),
                PathKind::Planned => regions_of(plan, planned),
            };
            let relays = relays.into_iter().map(|region| host_of(&region.into()));
            let [source, destination] = [&flow.source, &flow.destination].map(host_of);
            Some(Transfer {
                flow: index,
                name: flow.id.clone(),
                kind,
                hosts: [source].into_iter().chain(relays).chain([destination]).collect(),
                dial,
                receiver,
                rate: path_rate(&legs),
                volume: self.volume(),
                predicted: path_fct(&legs, self.volume(), StartUp::Cold),
            })
        };
        flows.filter_map(transfer).collect()
    }
}

fn carry(
    context: &LabContext,
    transfers: &[Transfer],
    effort: Effort,
) -> Result<Carriage, ProcessError> {
    let all: Vec<&Transfer> = transfers.iter().collect();
    transfers::carry(context, &all, Instant::now() + effort.to_carry, |_| {})
}

fn times(transfers: &[Transfer], carried: &Carriage) -> Vec<Time> {
    let time = |transfer: &Transfer| {
        let outcome = carried.outcome(transfer.flow, transfer.kind);
        Time {
            predicted_s: transfer.predicted.as_secs_f64(),
            measured_s: outcome.map_or(f64::NAN, |outcome| outcome.fct.as_secs_f64()),
        }
    };
    transfers.iter().map(time).collect()
}

fn is_intact(transfers: &[Transfer], carried: &Carriage) -> bool {
    transfers.iter().all(|transfer| {
        let outcome = carried.outcome(transfer.flow, transfer.kind);
        outcome.is_some_and(|outcome| outcome.sha256_ok)
    })
}

/// Returns whether two plans have the same paths over the same relays.
fn is_same(one: &Plan, other: &Plan) -> bool {
    let paths = |plan: &Plan| {
        let of = |flow| regions_of(plan, flow);
        plan.flows.iter().map(of).collect::<Vec<_>>()
    };
    one.relays.len() == other.relays.len() && paths(one) == paths(other)
}
