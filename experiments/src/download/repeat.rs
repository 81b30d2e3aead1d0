//! One repeat: a lab of one seed and one loss, on which every strategy fetches once, one after the other.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use tradewind_lab::LabOptions;
use tradewind_units::{HostId, SiteId};
use tradewind_wan::counters::LinkName;

use super::network::{Network, Via, host_of};
use super::outcome::via_text;
use super::scenario::{Pair, Scenario, Strategy};
use crate::demo::DemoError;
use crate::experiment::{ExperimentError, RunOptions};
use crate::lab_run::Ground;
use crate::lab_run::chain::{Entrance, NewChain};
use crate::lab_run::checked::Checked;
use crate::lab_run::fetch::{self, File, FileServer};
use crate::lab_run::repeats::Part;
use crate::lab_run::service::LegText;
use crate::lab_run::watch::{self, Arrivals};

/// Where servers listen.
const SERVER_PORT: u16 = 8000;
/// Longest silence in a fetch. Chosen: beyond several time-outs of TCP in a row.
const QUIET: Duration = Duration::from_secs(60);
/// What is fetched before, where a strategy wants relays to know each other.
const WARM_UP_BYTES: u64 = 1000;
/// How long relays have then for connections to the next relay. Chosen: several of the longest round trips on Earth.
const WARM_UP: Duration = Duration::from_millis(1500);

/// Which lab.
#[derive(Debug, Clone, Copy)]
pub(super) struct Repeat {
    /// Its seed.
    pub(super) seed: u64,
    /// The loss's place among those of the scenario.
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
    /// The pair's place.
    pub(super) pair: usize,
    /// The strategy's place.
    pub(super) strategy: usize,
    /// The chain's place among those that the strategy tries.
    pub(super) chain: usize,
    /// Completion time, in seconds.
    pub(super) fct_s: f64,
    /// What came to the first relay from the next one, where that is watched.
    pub(super) arrivals: Arrivals,
}

/// What repeats share.
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
        let ground = Ground::start(&topology, &lab, &options.program, &options.stop)?;
        let servers = self.servers(&ground)?;
        let mut samples = Vec::new();
        // Each chain has a port of its own: the rules of a forwarder that was killed stay with its host.
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
                        fetch.once(&ground, slot)
                    })?;
                    let (pair, strategy) = (pair_index, strategy_index);
                    let Fetched { fct_s, arrivals } = fetched;
                    samples.push(Sample { pair, strategy, chain, fct_s, arrivals });
                }
            }
        }
        Ok(samples)
    }

    /// The end points and all regions that a strategy uses.
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

    /// Every server, for the whole repeat: a port that is given up may stay taken for a moment, by a process that is
    /// just being started.
    fn servers(&self, ground: &Ground) -> Result<BTreeMap<HostId, FileServer>, DemoError> {
        let strategies = &self.scenario.strategies;
        let hosts: BTreeSet<HostId> = (self.scenario.pairs.iter())
            .flat_map(|pair| strategies.iter().map(|strategy| ends(pair, strategy)))
            .map(|[_, server]| server)
            .collect();
        let start = |host: HostId| {
            let server = FileServer::start(ground, &host, SERVER_PORT)?;
            Ok((host, server))
        };
        hosts.into_iter().map(start).collect()
    }
}

/// What a fetch came to.
struct Fetched {
    fct_s: f64,
    arrivals: Arrivals,
}

/// A fetch to do.
struct Fetch<'a> {
    pair: &'a Pair,
    strategy: &'a Strategy,
    via: &'a Via,
    /// Where the server listens.
    server: SocketAddr,
    seed: u64,
    /// How often to look at what comes to the first relay from the next one.
    watch_ms: Option<f64>,
}

impl Fetch<'_> {
    /// What it is called at this loss.
    fn name(&self, loss_percent: f64) -> String {
        let (pair, strategy, seed) = (&self.pair.name, &self.strategy.name, self.seed);
        let over = match self.via[..] {
            [] => String::new(),
            _ => format!(" over {}", via_text(self.via)),
        };
        format!("{pair}, loss {loss_percent} %, seed {seed}: {strategy}{over}")
    }

    /// Does it over a chain of its own; with it, what the lab says against it.
    fn once(&self, ground: &Ground, slot: u16) -> Result<(Fetched, Vec<String>), DemoError> {
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
            entrance: Entrance::Forward,
            leg: &leg,
            gateway: &gateway,
        };
        let chain = chain.start(ground)?;
        if strategy.warm_up {
            let small = File { bytes: WARM_UP_BYTES, seed: self.seed };
            fetch::fetch(ground, &client, chain.entrance, small, QUIET)?;
            std::thread::sleep(WARM_UP);
        }
        ground.lab.reset_validity()?;
        let file = File { bytes: self.pair.size.as_u64(), seed: self.seed };
        let work = || fetch::fetch(ground, &client, chain.entrance, file, QUIET);
        let (fetched, arrivals) = match (self.watch_ms, &self.via[..]) {
            (Some(every_ms), [first, next, ..]) => {
                let link = LinkName::Pair(next.clone().into(), first.clone().into());
                watch::arrivals(ground, &link, Duration::from_secs_f64(every_ms / 1e3), work)?
            }
            _ => (work(), Arrivals::default()),
        };
        let fetched = fetched?;
        let mut reasons = ground.lab.validity()?.reasons;
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
