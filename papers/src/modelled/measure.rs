//! One tuple: its own lab, on which an endless download is measured over no, one and two relays.

use std::time::Duration;

use tradewind_lab::LabOptions;
use tradewind_units::HostId;

use super::scenario::{HOSTS, Scenario, topology};
use crate::harness::chain::{Carriage, ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::FileServer;
use crate::harness::repeats::Part;
use crate::harness::service::LegText;
use crate::harness::{ExperimentError, LabContext, ProcessError, RunOptions, fetch};
use crate::numeric::formula::{self, KINDS, Tuple};

/// First port of the servers; each kind of path has the next one.
const FIRST_SERVER_PORT: u16 = 8000;

/// A tuple to measure.
pub(super) struct Work {
    pub(super) setting: String,
    pub(super) tuple: Tuple,
    pub(super) seed: u64,
}

/// Results of a tuple.
pub(super) struct Measured {
    pub(super) setting: String,
    /// Round trip of the direct path, in ms.
    pub(super) rtt_ms: f64,
    /// Rates by the formula and on the lab, in Mbit/s, by kind of path.
    pub(super) mbps: [(f64, f64); KINDS.len()],
}

impl Part for Work {
    fn seed(&self) -> u64 {
        self.seed
    }
}

impl Work {
    /// Measures it.
    pub(super) fn run(
        &self,
        scenario: &Scenario,
        model: &formula::Scenario,
        options: &RunOptions,
        checked: &mut Checked,
    ) -> Result<Measured, ExperimentError> {
        let topology = topology(model, &self.tuple)?;
        let lab = LabOptions { seed: Some(self.seed), ..LabOptions::default() };
        let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
        let mut measured = Measured {
            setting: self.setting.clone(),
            rtt_ms: self.tuple.path(0).rtts[0].as_secs_f64() * 1e3,
            mbps: [(f64::NAN, f64::NAN); KINDS.len()],
        };
        // Each chain has its own ports: one that has just ended may hold a port for a moment.
        let mut slots = 0..;
        for (relays, mbps) in measured.mbps.iter_mut().enumerate() {
            mbps.0 = formula::predicted(model, &self.tuple, relays).as_mbps();
            let Self { setting, seed, .. } = self;
            let name =
                format!("{setting}, {:.0} ms, seed {seed}: {}", measured.rtt_ms, KINDS[relays]);
            mbps.1 = checked.in_time(options, &name, || {
                let slot = slots.next().expect("there are more ports than downloads");
                rate(&context, scenario, relays, slot)
            })?;
        }
        Ok(measured)
    }
}

/// Returns the rate of the payload in Mbit/s over so many relays, and the lab's reasons against it.
fn rate(
    context: &LabContext,
    scenario: &Scenario,
    relays: usize,
    slot: u16,
) -> Result<(f64, Vec<String>), ProcessError> {
    context.stop.check()?;
    let host = |name: &str| HostId::new(name).expect("names of hosts are names");
    let [source, .., destination] = HOSTS;
    let destination = host(destination);
    let server = FileServer::start(context, &host(source), FIRST_SERVER_PORT + slot)?;
    // The destination dials, so its relays are listed from there.
    let via: Vec<HostId> = HOSTS[1..=relays].iter().rev().map(|name| host(name)).collect();
    let chain = NewChain {
        slot,
        client: &destination,
        server: server.address,
        relays: &via,
        carriage: Carriage::Split,
        attachment: ClientAttachment::Forward,
        leg: &LegText::default(),
        gateway: &LegText::default(),
    };
    let chain = chain.start(context)?;
    let settle = Duration::from_secs_f64(scenario.settle_s);
    let span = Duration::from_secs_f64(scenario.measure_s);
    let rate = fetch::steady_rate(context, &destination, chain.dial_address, settle, span)?;
    Ok((rate.as_mbps(), context.lab.validity()?.reasons))
}
