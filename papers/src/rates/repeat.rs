//! One repeat: a lab of one seed, on which every case runs, one after the other.

use std::time::{Duration, Instant};

use tradewind_lab::LabOptions;
use tradewind_wan::Topology;

use super::scenario::{Case, Flow, Scenario};
use crate::harness::chain::{Chain, ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::{FileServer, LongFetch};
use crate::harness::service::LegText;
use crate::harness::{LabContext, ProcessError, RunOptions};

/// First port of the servers; each flow of a case has the next one.
const FIRST_SERVER_PORT: u16 = 8000;
/// Pause until the rest of a case has left the network.
const REST: Duration = Duration::from_millis(500);
/// Longest sleep between two checks for flows that must start or end.
const LOOK: Duration = Duration::from_millis(50);

/// Results of a repeat.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Intervals by case, in the scenario's order.
    pub(super) cases: Vec<Vec<Interval>>,
}

/// A span of a case.
#[derive(Debug, Clone)]
pub(super) struct Interval {
    /// Its begin, in seconds from the case's begin.
    pub(super) from_s: f64,
    /// Rate of each flow, payload in Mbit/s.
    pub(super) mbps: Vec<f64>,
}

impl Interval {
    /// Returns the rate of all flows together.
    pub(super) fn sum(&self) -> f64 {
        self.mbps.iter().sum()
    }
}

/// Runs a repeat.
///
/// # Errors
/// When the lab or a process on it fails, or the run is stopped.
pub(super) fn run(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
    checked: &mut Checked,
) -> Result<Outcome, ProcessError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(topology, &lab, &options.program, &options.stop)?;
    let mut outcome = Outcome { cases: Vec::new() };
    // Each flow has its own ports: one that has just ended may hold a port for a moment.
    let mut slot = 0;
    for case in &scenario.cases {
        let name = format!("{}, seed {seed}", case.name);
        let intervals = checked.in_time(options, &name, || {
            let intervals = measure(&context, scenario, case, slot)?;
            slot += case.flows.len() as u16;
            let reasons = context.lab.validity()?.reasons;
            std::thread::sleep(REST);
            Ok((intervals, reasons))
        })?;
        outcome.cases.push(intervals);
    }
    Ok(outcome)
}

/// Runs a case; the lab's validity record covers the measurement alone.
fn measure(
    context: &LabContext,
    scenario: &Scenario,
    case: &Case,
    slot: u16,
) -> Result<Vec<Interval>, ProcessError> {
    let flows = case.flows.iter().zip(slot..);
    let running: Result<Vec<Running<'_>>, ProcessError> =
        flows.map(|(flow, slot)| Running::new(context, flow, slot)).collect();
    let (mut running, began) = (running?, Instant::now());
    let mut counts: Vec<(f64, Vec<u64>)> = Vec::new();
    for mark_s in scenario.marks(case) {
        let until = Duration::from_secs_f64(mark_s);
        loop {
            context.stop.check()?;
            for flow in &mut running {
                flow.come_or_go(context, began.elapsed().as_secs_f64())?;
            }
            match until.checked_sub(began.elapsed()) {
                Some(left) if !left.is_zero() => std::thread::sleep(left.min(LOOK)),
                _ => break,
            }
        }
        if counts.is_empty() {
            context.lab.reset_validity()?;
        }
        let received = running.iter().map(Running::received).collect();
        counts.push((began.elapsed().as_secs_f64(), received));
    }
    let between = |two: &[(f64, Vec<u64>)]| {
        let (from_s, before) = &two[0];
        let (to_s, after) = &two[1];
        let rate =
            |(after, before): (&u64, &u64)| (after - before) as f64 * 8.0 / 1e6 / (to_s - from_s);
        Interval { from_s: *from_s, mbps: after.iter().zip(before).map(rate).collect() }
    };
    Ok(counts.windows(2).map(between).collect())
}

/// A flow whose server and relays run. Fields are dropped in their order: connections, then what
/// carries them.
struct Running<'a> {
    flow: &'a Flow,
    fetches: Vec<LongFetch>,
    /// Bytes that ended connections have received.
    ended_bytes: u64,
    chain: Chain,
    _server: FileServer,
}

impl<'a> Running<'a> {
    fn new(context: &LabContext, flow: &'a Flow, slot: u16) -> Result<Self, ProcessError> {
        let server = FileServer::start(context, &flow.from, FIRST_SERVER_PORT + slot)?;
        let leg = LegText { accept: flow.leg.clone(), dial: flow.leg.clone(), to: Vec::new() };
        let chain = NewChain {
            slot,
            client: &flow.to,
            server: server.address,
            relays: &flow.relays,
            carriage: flow.carriage,
            attachment: ClientAttachment::Forward,
            leg: &leg,
            gateway: &LegText::default(),
        };
        let chain = chain.start(context)?;
        Ok(Self { flow, fetches: Vec::new(), ended_bytes: 0, chain, _server: server })
    }

    /// Starts its connections, or ends them, when they are due.
    fn come_or_go(&mut self, context: &LabContext, now_s: f64) -> Result<(), ProcessError> {
        let over = self.flow.until_s.is_some_and(|until_s| now_s >= until_s);
        if over {
            self.ended_bytes = self.received();
            self.fetches.clear();
        } else if self.fetches.is_empty() && now_s >= self.flow.from_s {
            let start = |_| LongFetch::start(context, &self.flow.to, self.chain.dial_address);
            self.fetches = (0..self.flow.connections).map(start).collect::<Result<_, _>>()?;
        }
        Ok(())
    }

    fn received(&self) -> u64 {
        self.ended_bytes + self.fetches.iter().map(LongFetch::received).sum::<u64>()
    }
}
