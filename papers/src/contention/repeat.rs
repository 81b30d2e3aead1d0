//! One repeat: a lab of one seed, on which all flows are carried at once, over one plan after the
//! other.

use std::time::Duration;

use tradewind_lab::LabOptions;
use tradewind_wan::Topology;

use super::scenario::Contention;
use super::{Variant, host_of};
use crate::harness::chain::{Carriage, Chain, ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::{File, FileServer};
use crate::harness::service::LegText;
use crate::harness::{LabContext, ProcessError, RunOptions, fetch};

/// First port of the servers; each flow has the next one.
const FIRST_SERVER_PORT: u16 = 8000;
/// Longest silence in a transfer.
const QUIET: Duration = Duration::from_secs(60);
/// Pause until the rest of a transfer has left the network.
const REST: Duration = Duration::from_millis(500);

/// Results of a repeat.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// Completion times in seconds, by variant, then by flow.
    pub(super) fct_s: Vec<Vec<f64>>,
}

/// Parameters that repeats share.
pub(super) struct Work<'a> {
    pub(super) problem: &'a Contention,
    pub(super) variants: &'a [Variant],
    pub(super) topology: &'a Topology,
    pub(super) options: &'a RunOptions,
}

impl Work<'_> {
    /// Runs a repeat.
    pub(super) fn run(&self, seed: u64, checked: &mut Checked) -> Result<Outcome, ProcessError> {
        let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
        let options = self.options;
        let context = LabContext::start(self.topology, &lab, &options.program, &options.stop)?;
        let mut outcome = Outcome { fct_s: Vec::new() };
        // Each transfer has its own ports: one that has just ended may hold a port for a moment.
        let mut slot = 0;
        for variant in self.variants {
            let name = format!("{}, seed {seed}", variant.name);
            let fct_s = checked.in_time(options, &name, || {
                let fct_s = self.carry(&context, variant, slot, seed)?;
                slot += self.problem.flows().len() as u16;
                let reasons = context.lab.validity()?.reasons;
                std::thread::sleep(REST);
                Ok((fct_s, reasons))
            })?;
            outcome.fct_s.push(fct_s);
        }
        Ok(outcome)
    }

    /// Carries all flows at once, each fetched by its destination; returns their completion times
    /// in seconds.
    fn carry(
        &self,
        context: &LabContext,
        variant: &Variant,
        slot: u16,
        seed: u64,
    ) -> Result<Vec<f64>, ProcessError> {
        context.stop.check()?;
        let flows = self.problem.flows();
        let mut ready: Vec<(Chain, FileServer)> = Vec::new();
        for ((flow, path), slot) in flows.iter().zip(&variant.paths).zip(slot..) {
            let server =
                FileServer::start(context, &host_of(&flow.source), FIRST_SERVER_PORT + slot)?;
            let relays: Vec<_> = path.iter().rev().cloned().collect();
            let chain = NewChain {
                slot,
                client: &host_of(&flow.destination),
                server: server.address,
                relays: &relays,
                carriage: Carriage::Split,
                attachment: ClientAttachment::Forward,
                leg: &LegText::default(),
                gateway: &LegText::default(),
            };
            ready.push((chain.start(context)?, server));
        }
        context.lab.reset_validity()?;
        std::thread::scope(|scope| {
            let fetches: Vec<_> = flows
                .iter()
                .zip(&ready)
                .map(|(flow, (chain, _))| {
                    let file = File { bytes: flow.volume.as_u64(), seed };
                    let client = host_of(&flow.destination);
                    scope.spawn(move || {
                        fetch::fetch(context, &client, chain.dial_address, file, QUIET)
                    })
                })
                .collect();
            let joined = fetches.into_iter().map(|it| it.join().expect("a fetch does not panic"));
            joined
                .zip(flows)
                .map(|(fetched, flow)| {
                    let fetched = fetched?;
                    if !fetched.content_ok {
                        let why = "the file came altered".to_owned();
                        return Err(ProcessError::Program { name: flow.id.to_string(), why });
                    }
                    Ok(fetched.fct.as_secs_f64())
                })
                .collect()
        })
    }
}
