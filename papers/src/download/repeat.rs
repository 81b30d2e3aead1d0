//! One repeat: a lab with one seed and one loss, on which every strategy fetches once, one after
//! the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use tradewind_lab::LabOptions;
use tradewind_units::{HostId, SiteId};
use tradewind_wan::counters::LinkName;

use super::network::{Network, Via, host_of};
use super::outcome::via_text;
use super::scenario::{Pair, Scenario, Strategy};
use crate::harness::chain::{ClientAttachment, NewChain};
use crate::harness::checked::Checked;
use crate::harness::fetch::{File, FileServer};
use crate::harness::repeats::Part;
use crate::harness::service::LegText;
use crate::harness::watch::Arrivals;
use crate::harness::{ExperimentError, LabContext, ProcessError, RunOptions, fetch, watch};

/// The port of servers.
const SERVER_PORT: u16 = 8000;
/// Longest silence in a fetch. Chosen: beyond several time-outs of TCP in a row.
const QUIET: Duration = Duration::from_secs(60);
/// The size of the preceding fetch for strategies whose relays should know each other.
const WARM_UP_BYTES: u64 = 1000;
/// The time that relays then have for connections to the next relay. Chosen: several of the longest
/// round trips on Earth.
const WARM_UP: Duration = Duration::from_millis(1500);

/// A lab of the experiment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeat {
    /// Its seed.
    pub(super) seed: u64,
    /// The index of the loss in the scenario.
    pub(super) loss: usize,
}

impl Part for Repeat {
    fn seed(&self) -> u64 {
        self.seed
    }
}

/// One fetch.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// The index of the pair.
    pub(super) pair: usize,
    /// The index of the strategy.
    pub(super) strategy: usize,
    /// The index of the chain among those that the strategy tries.
    pub(super) chain: usize,
    /// Completion time, in seconds.
    pub(super) fct_s: f64,
    /// The bytes received by the first relay from the next one, where that is watched.
    pub(super) arrivals: Arrivals,
}

/// The shared context of repeats.
pub(super) struct Work<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) network: &'a Network,
    pub(super) options: &'a RunOptions,
}

impl Work<'_> {
    /// Runs a repeat.
    pub(super) fn run(
        &self,
        repeat: Repeat,
        checked: &mut Checked,
    ) -> Result<Vec<Sample>, ExperimentError> {
        let percent = self.scenario.losses_percent[repeat.loss];
        let topology = self.network.with_losses(self.scenario, &self.places(), percent / 100.0)?;
        let lab = LabOptions { seed: Some(repeat.seed), ..LabOptions::default() };
        let options = self.options;
        let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
        let servers = self.servers(&context)?;
        let mut samples = Vec::new();
        // Each chain has its own port: the rules of a killed forwarder stay on its host.
        let mut slots = 0..;
        for (pair_index, pair) in self.scenario.pairs.iter().enumerate() {
            for (strategy_index, strategy) in self.scenario.strategies.iter().enumerate() {
                let server = servers[&ends(pair, strategy)[1]].address;
                let tries = self.network.tries(pair, strategy);
                for (chain, via) in tries.iter().enumerate() {
                    options.stop.check()?;
                    let every = self.scenario.trace.as_ref().map(|trace| trace.every_ms);
                    let seed = repeat.seed;
                    let fetch = Fetch { pair, strategy, via, server, seed, watch_ms: every };
                    let name = fetch.name(percent);
                    let fetched = checked.in_time(options, &name, || {
                        let slot = slots.next().expect("there are more ports than fetches");
                        fetch.once(&context, slot)
                    })?;
                    let (pair, strategy) = (pair_index, strategy_index);
                    let Fetched { fct_s, arrivals } = fetched;
                    samples.push(Sample { pair, strategy, chain, fct_s, arrivals });
                }
            }
        }
        Ok(samples)
    }

    /// Returns the end points and all regions that a strategy uses.
    fn places(&self) -> BTreeSet<SiteId> {
        let mut places = BTreeSet::new();
        for pair in &self.scenario.pairs {
            places.extend([pair.client.clone(), pair.server.clone()]);
            for strategy in &self.scenario.strategies {
                let tries = self.network.tries(pair, strategy);
                places.extend(tries.into_iter().flatten().map(SiteId::from));
            }
        }
        places
    }

    /// Starts every server, for the whole repeat: a closed port may stay bound for a moment in a
    /// process that is just being started.
    fn servers(&self, context: &LabContext) -> Result<BTreeMap<HostId, FileServer>, ProcessError> {
        let strategies = &self.scenario.strategies;
        let hosts: BTreeSet<HostId> = (self.scenario.pairs.iter())
            .flat_map(|pair| strategies.iter().map(|strategy| ends(pair, strategy)))
            .map(|[_, server]| server)
            .collect();
        let start = |host: HostId| {
            let server = FileServer::start(context, &host, SERVER_PORT)?;
            Ok((host, server))
        };
        hosts.into_iter().map(start).collect()
    }
}

/// The result of a fetch.
struct Fetched {
    fct_s: f64,
    arrivals: Arrivals,
}

/// One fetch.
struct Fetch<'a> {
    pair: &'a Pair,
    strategy: &'a Strategy,
    via: &'a Via,
    /// The address of the server.
    server: SocketAddr,
    seed: u64,
    /// The interval at which the bytes from the second relay to the first are sampled.
    watch_ms: Option<f64>,
}

impl Fetch<'_> {
    /// Returns its name at this loss.
    fn name(&self, loss_percent: f64) -> String {
        let (pair, strategy, seed) = (&self.pair.name, &self.strategy.name, self.seed);
        let over = match self.via[..] {
            [] => String::new(),
            _ => format!(" over {}", via_text(self.via)),
        };
        format!("{pair}, loss {loss_percent} %, seed {seed}: {strategy}{over}")
    }

    /// Runs the fetch over a chain of its own; returns the result and the bounds that the lab
    /// broke.
    fn once(
        &self,
        context: &LabContext,
        slot: u16,
    ) -> Result<(Fetched, Vec<String>), ProcessError> {
        let strategy = self.strategy;
        let [client, _] = ends(self.pair, strategy);
        let usual = || self.via.iter().map(|region| host_of(&region.clone().into())).collect();
        let relays: Vec<HostId> = strategy.hosts.clone().unwrap_or_else(usual);
        let leg =
            LegText { accept: strategy.leg.clone(), dial: strategy.leg.clone(), to: Vec::new() };
        let gateway = LegText { accept: None, dial: strategy.gateway.clone(), to: Vec::new() };
        let chain = NewChain {
            slot,
            client: &client,
            server: self.server,
            relays: &relays,
            carriage: strategy.carriage,
            attachment: ClientAttachment::Forward,
            leg: &leg,
            gateway: &gateway,
        };
        let chain = chain.start(context)?;
        if strategy.warm_up {
            let small = File { bytes: WARM_UP_BYTES, seed: self.seed };
            fetch::fetch(context, &client, chain.dial_address, small, QUIET)?;
            std::thread::sleep(WARM_UP);
        }
        context.lab.reset_validity()?;
        let file = File { bytes: self.pair.size.as_u64(), seed: self.seed };
        let work = || fetch::fetch(context, &client, chain.dial_address, file, QUIET);
        let (fetched, arrivals) = match (self.watch_ms, &self.via[..]) {
            (Some(every_ms), [first, next, ..]) => {
                let link = LinkName::Pair(next.clone().into(), first.clone().into());
                watch::arrivals(context, &link, Duration::from_secs_f64(every_ms / 1e3), work)?
            }
            _ => (work(), Arrivals::default()),
        };
        let fetched = fetched?;
        let mut reasons = context.lab.validity()?.reasons;
        if !fetched.content_ok {
            reasons.push("the file came with other content".to_owned());
        }
        Ok((Fetched { fct_s: fetched.fct.as_secs_f64(), arrivals }, reasons))
    }
}

fn ends(pair: &Pair, strategy: &Strategy) -> [HostId; 2] {
    let usual = || [host_of(&pair.client), host_of(&pair.server)];
    strategy.ends.clone().unwrap_or_else(usual)
}
