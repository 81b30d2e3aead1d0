//! One repeat: a lab with one seed, on which every case runs once, alone and beside others.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tradewind_desired::LegProfile;
use tradewind_lab::LabOptions;
use tradewind_wan::Topology;
use tradewind_wan::counters::LinkName;

use super::scenario::{Alone, Newcomer, Scenario};
use crate::harness::chain::{Carriage, Chain, ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::{File, FileServer, LongFetch};
use crate::harness::service::LegText;
use crate::harness::{LabContext, ProcessError, RunOptions, fetch};

/// The port of servers.
const SERVER_PORT: u16 = 8000;
/// Longest silence in a fetch.
const QUIET: Duration = Duration::from_secs(60);
/// The size of the fetch that warms the relays' connection up, and the time for it.
const WARM_UP_BYTES: u64 = 1000;
const WARM_UP: Duration = Duration::from_secs(1);
/// The time until packets of a fetch have left the network.
const REST: Duration = Duration::from_millis(500);

/// The result of a repeat.
#[derive(Debug, Clone)]
pub(super) struct Outcome {
    /// The samples of cases alone, in the scenario's order.
    pub(super) alone: Vec<AloneSample>,
    /// The samples beside others, in the scenario's order.
    pub(super) beside: Vec<BesideSample>,
}

/// Fetches alone on the link.
#[derive(Debug, Clone)]
pub(super) struct AloneSample {
    /// Completion times, in seconds.
    pub(super) fct_s: Vec<f64>,
    /// The share of segments that the sending relay retransmitted.
    pub(super) again: f64,
}

/// Fetches beside others.
#[derive(Debug, Clone)]
pub(super) struct BesideSample {
    /// The newcomer's completion times, in seconds.
    pub(super) fct_s: Vec<f64>,
    /// The share of segments that its sending relay retransmitted; NaN without a newcomer.
    pub(super) again: f64,
    /// The rate of the long downloads, in Mbit/s of IP.
    pub(super) long_mbps: f64,
    /// The share of segments that their server retransmitted.
    pub(super) long_again: f64,
    /// The short downloads' completion times, in seconds.
    pub(super) short_s: Vec<f64>,
}

/// Runs a repeat.
pub(super) fn run(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
    checked: &mut Checked,
) -> Result<Outcome, ProcessError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(topology, &lab, &options.program, &options.stop)?;
    let serve = |host| FileServer::start(&context, host, SERVER_PORT);
    let beside = &scenario.beside;
    let servers =
        (serve(&scenario.server)?, serve(&beside.long_server)?, serve(&beside.short_server)?);
    let mut here = Here {
        context: &context,
        scenario,
        seed,
        server: servers.0.address,
        long: servers.1.address,
        short: servers.2.address,
        slot: 0,
    };
    let mut outcome = Outcome { alone: Vec::new(), beside: Vec::new() };
    for case in &scenario.alone {
        let name = format!("alone: {}, seed {seed}", case.name);
        outcome.alone.push(checked.in_time(options, &name, || {
            Ok((here.alone(case)?, context.lab.validity()?.reasons))
        })?);
    }
    for newcomer in &scenario.beside.newcomers {
        let name = format!("beside others: {}, seed {seed}", newcomer.name);
        outcome.beside.push(checked.in_time(options, &name, || {
            Ok((here.beside(newcomer)?, context.lab.validity()?.reasons))
        })?);
    }
    Ok(outcome)
}

/// The context of a repeat on its lab.
struct Here<'a> {
    context: &'a LabContext,
    scenario: &'a Scenario,
    seed: u64,
    server: SocketAddr,
    long: SocketAddr,
    short: SocketAddr,
    /// The number of the next chain.
    slot: u16,
}

impl Here<'_> {
    fn alone(&mut self, case: &Alone) -> Result<AloneSample, ProcessError> {
        self.context.stop.check()?;
        let chain = self.chain(case.leg.as_ref())?;
        if case.warm {
            self.fetch(&chain, WARM_UP_BYTES)?;
            std::thread::sleep(WARM_UP);
        }
        self.context.lab.reset_validity()?;
        let sender = &self.scenario.relays[1];
        let before = self.context.tcp_counters(sender)?;
        let size = self.scenario.size.as_u64();
        let this = &*self;
        let fct_s: Result<Vec<f64>, ProcessError> = std::thread::scope(|scope| {
            let fetches: Vec<_> =
                (0..case.flows).map(|_| scope.spawn(|| this.fetch(&chain, size))).collect();
            fetches.into_iter().map(|it| it.join().expect("a fetch does not panic")).collect()
        });
        let fct_s = fct_s?;
        let after = self.context.tcp_counters(sender)?;
        std::thread::sleep(REST);
        Ok(AloneSample { fct_s, again: after.share_again_since(&before) })
    }

    fn beside(&mut self, newcomer: &Newcomer) -> Result<BesideSample, ProcessError> {
        self.context.stop.check()?;
        let (context, beside) = (self.context, &self.scenario.beside);
        let downloads: Result<Vec<LongFetch>, ProcessError> = (0..beside.long_flows)
            .map(|_| LongFetch::start(context, &beside.long_client, self.long))
            .collect();
        let downloads = downloads?;
        let chain = newcomer.leg.as_ref().map(|leg| self.chain(Some(leg))).transpose()?;
        std::thread::sleep(Duration::from_secs_f64(beside.settle_s));

        context.lab.reset_validity()?;
        let counts = || -> Result<_, ProcessError> {
            let sender = context.tcp_counters(&self.scenario.relays[1])?;
            Ok((sender, context.tcp_counters(&beside.long_server)?, self.long_bytes()?))
        };
        let before = counts()?;
        let over = AtomicBool::new(false);
        let (fct_s, short_s) = std::thread::scope(|scope| {
            let shorts = scope.spawn(|| self.short_fetches(&over));
            let fetched = self.fetch_every(chain.as_ref());
            over.store(true, Ordering::Relaxed);
            (fetched, shorts.join().expect("a fetch does not panic"))
        });
        let after = counts()?;
        drop(downloads);
        std::thread::sleep(REST);
        let (fct_s, span_s) = fct_s?;
        let again = match &chain {
            Some(_) => after.0.share_again_since(&before.0),
            None => f64::NAN,
        };
        Ok(BesideSample {
            fct_s,
            again,
            long_mbps: (after.2 - before.2) as f64 * 8.0 / 1e6 / span_s,
            long_again: after.1.share_again_since(&before.1),
            short_s: short_s?,
        })
    }

    /// Repeats the newcomer's fetch while the others are observed; returns its times, and the
    /// elapsed seconds.
    fn fetch_every(&self, chain: Option<&Chain>) -> Result<(Vec<f64>, f64), ProcessError> {
        let beside = &self.scenario.beside;
        let (began, mut times) = (Instant::now(), Vec::new());
        let mut due = 0.0;
        while due < beside.watch_s {
            let wait = due - began.elapsed().as_secs_f64();
            std::thread::sleep(Duration::from_secs_f64(wait.max(0.0)));
            self.context.stop.check()?;
            if let Some(chain) = chain {
                times.push(self.fetch(chain, self.scenario.size.as_u64())?);
            }
            due += beside.every_s;
        }
        let rest = beside.watch_s - began.elapsed().as_secs_f64();
        std::thread::sleep(Duration::from_secs_f64(rest.max(0.0)));
        Ok((times, began.elapsed().as_secs_f64()))
    }

    fn short_fetches(&self, over: &AtomicBool) -> Result<Vec<f64>, ProcessError> {
        let beside = &self.scenario.beside;
        let file = File { bytes: beside.short_size.as_u64(), seed: self.seed };
        let mut times = Vec::new();
        while !over.load(Ordering::Relaxed) {
            let fetched =
                fetch::fetch(self.context, &beside.short_client, self.short, file, QUIET)?;
            times.push(fetched.fct.as_secs_f64());
        }
        Ok(times)
    }

    fn chain(&mut self, leg: Option<&LegProfile>) -> Result<Chain, ProcessError> {
        let leg = LegText { accept: leg.cloned(), dial: leg.cloned(), to: Vec::new() };
        let slot = self.slot;
        self.slot += 1;
        let chain = NewChain {
            slot,
            client: &self.scenario.client,
            server: self.server,
            relays: &self.scenario.relays,
            carriage: Carriage::Split,
            attachment: ClientAttachment::Forward,
            leg: &leg,
            gateway: &LegText::default(),
        };
        chain.start(self.context)
    }

    /// Fetches once; returns the completion time in seconds.
    fn fetch(&self, chain: &Chain, bytes: u64) -> Result<f64, ProcessError> {
        let file = File { bytes, seed: self.seed };
        let client = &self.scenario.client;
        let fetched = fetch::fetch(self.context, client, chain.dial_address, file, QUIET)?;
        if !fetched.content_ok {
            let name = format!("relays to {client}");
            return Err(ProcessError::Program { name, why: "the file came altered".to_owned() });
        }
        Ok(fetched.fct.as_secs_f64())
    }

    /// Returns the bytes that the long downloads' client has received.
    fn long_bytes(&self) -> Result<u64, ProcessError> {
        let name = LinkName::Ingress(self.scenario.beside.long_client.clone());
        let counters = self.context.lab.counters()?;
        let link = counters.links.iter().find(|link| link.name == name);
        Ok(link.map_or(0, |link| link.tally.delivered_bytes))
    }
}
