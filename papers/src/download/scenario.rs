//! The scenario file of downloads: fetches, chains of relays, losses, and the paper's findings.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_units::{Bytes, HostId, RegionId, SiteId};

use crate::harness::chain::Carriage;
use crate::harness::{Runs, ScenarioError, from_toml};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// The topology's file, beside it.
    pub(crate) topology: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// The number of repeats and their seeds.
    pub(crate) runs: Runs,
    /// The number of repeats that run at a time, each on a lab of its own.
    #[serde(default = "one")]
    pub(crate) at_once: usize,
    /// Losses of the Internet path between two end points, in per cent; each is a case.
    pub(crate) losses_percent: Vec<f64>,
    /// The losses of a quick run.
    pub(crate) losses_percent_quick: Vec<f64>,
    /// The share of this loss on each leg between an end point and a relay.
    pub(crate) access_share: f64,
    /// The clients, servers and files.
    #[serde(rename = "pair")]
    pub(crate) pairs: Vec<Pair>,
    /// The strategies.
    #[serde(rename = "strategy")]
    pub(crate) strategies: Vec<Strategy>,
    /// The orders that the paper claims.
    #[serde(rename = "order", default)]
    pub(crate) orders: Vec<Order>,
    /// Bounds on the ratio of two strategies' times.
    #[serde(rename = "share", default)]
    pub(crate) shares: Vec<Share>,
    /// Bounds on the distance from the least possible time.
    #[serde(rename = "floor", default)]
    pub(crate) floors: Vec<Floor>,
    /// Gains that round trips should predict.
    #[serde(rename = "estimate", default)]
    pub(crate) estimates: Vec<Estimate>,
    /// The observation of bytes between two relays.
    pub(crate) trace: Option<Trace>,
}

const fn one() -> usize {
    1
}

const fn yes() -> bool {
    true
}

/// A client, a server and a file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pair {
    /// Its name in the paper.
    pub(crate) name: String,
    /// The site of the client.
    pub(crate) client: SiteId,
    /// The site of the server.
    pub(crate) server: SiteId,
    /// The file's size.
    pub(crate) size: Bytes,
    /// `true` when quick runs include it.
    #[serde(default = "yes")]
    pub(crate) quick: bool,
}

/// A kind of transfer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strategy {
    /// Its name.
    pub(crate) name: String,
    /// The relays; `None` means direct.
    pub(crate) relays: Option<Relays>,
    /// Other hosts in their regions, with other settings.
    pub(crate) hosts: Option<Vec<HostId>>,
    /// The forwarding method of the relays.
    #[serde(default = "split")]
    pub(crate) carriage: Carriage,
    /// The relays' socket settings, both for accepted and for dialled connections.
    pub(crate) leg: Option<LegProfile>,
    /// The settings of the gateway on the client's host; `None` means that host's own.
    pub(crate) gateway: Option<LegProfile>,
    /// `true` when a small fetch goes first, so that relays know of each other.
    #[serde(default)]
    pub(crate) warm_up: bool,
    /// Other hosts at the client's and the server's site, with other settings.
    pub(crate) ends: Option<[HostId; 2]>,
    /// `true` when quick runs include it.
    #[serde(default = "yes")]
    pub(crate) quick: bool,
    /// The paper's speed-up over direct, by pair.
    #[serde(default)]
    pub(crate) paper: BTreeMap<String, f64>,
    /// The paper's median speed-up over the chains that it tries.
    pub(crate) paper_median: Option<f64>,
}

const fn split() -> Carriage {
    Carriage::Split
}

/// The selection of relays.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub(crate) enum Relays {
    /// These, from the client's side.
    Named(Vec<RegionId>),
    /// Selected by CDD's rule.
    Ruled(Rule),
}

/// CDD's rule: nearest to the client, nearest to the server, smallest largest leg between; a single
/// relay by the smaller of its larger leg.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rule {
    /// The cloud of the relays.
    pub(crate) cloud: String,
    /// The number of relays.
    pub(crate) count: usize,
    /// The number of chains that are tried, in the rule's order; the best of them counts.
    #[serde(default = "one")]
    pub(crate) tries: usize,
    /// The number of chains in a quick run.
    #[serde(default = "one")]
    pub(crate) tries_quick: usize,
    /// `true` when each try is shown.
    #[serde(default)]
    pub(crate) show: bool,
}

/// Groups of strategies, each faster than the one before. The best of a group counts, and of a
/// strategy that tries several chains its best chain.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Order {
    /// The paper's sentence.
    pub(crate) paper: String,
    /// The name of the pair.
    pub(crate) pair: String,
    /// The groups.
    pub(crate) slowest_first: Vec<Vec<String>>,
    /// Strategies for which the chain counts that their rule ranks first before any measurement.
    #[serde(default)]
    pub(crate) by_rule: Vec<String>,
}

/// A bound on a strategy's share of another's time, at every loss; of either the best chain counts.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Share {
    /// The sentence and its source.
    pub(crate) paper: String,
    /// The name of the pair.
    pub(crate) pair: String,
    /// The name of the strategy.
    pub(crate) strategy: String,
    /// The name of the strategy to which it is compared.
    pub(crate) of: String,
    /// The largest share.
    pub(crate) at_most: f64,
    /// The smallest share, for two strategies that should be alike.
    pub(crate) at_least: Option<f64>,
}

/// A bound on a strategy's distance from the least possible time.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Floor {
    /// The sentence and its source.
    pub(crate) paper: String,
    /// The name of the pair.
    pub(crate) pair: String,
    /// The name of the strategy.
    pub(crate) strategy: String,
    /// The loss, in per cent.
    pub(crate) loss_percent: f64,
    /// The largest excess over the least time, in per cent.
    pub(crate) within_percent: f64,
}

/// Gains that ratios of round trips should foretell, chain by chain.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Estimate {
    /// The paper's sentence.
    pub(crate) paper: String,
    /// The name of the pair.
    pub(crate) pair: String,
    /// The strategy whose chains gain.
    pub(crate) strategy: String,
    /// The strategy over which they gain.
    pub(crate) over: String,
    /// The ratio.
    pub(crate) by: By,
    /// `true` when the paper finds that the two correlate.
    pub(crate) correlates: bool,
}

/// A ratio of round trips: that of `over` to that of the chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum By {
    /// From end to end.
    EndToEnd,
    /// The largest leg.
    LargestLeg,
    /// The largest leg between relays.
    LargestInnerLeg,
}

/// The observation of bytes from the second relay to the first, for strategies with at least two
/// relays.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Trace {
    /// The sampling interval, in milliseconds.
    pub(crate) every_ms: f64,
    /// The shortest silence that counts as a gap, in milliseconds.
    pub(crate) gap_ms: f64,
    /// The strategy that sends in bursts, according to the paper.
    pub(crate) bursty: String,
    /// The strategy that sends evenly.
    pub(crate) even: String,
    /// Rates within bursts in the paper, in Mbit/s, by strategy.
    pub(crate) paper_mbps: BTreeMap<String, f64>,
}

impl Scenario {
    /// Parses a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or the parts are inconsistent.
    pub(crate) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        match scenario.problem() {
            Some(what) => Err(ScenarioError::Inconsistent { what }),
            None => Ok(scenario),
        }
    }

    /// Returns the scenario of a quick run.
    pub(crate) fn quick(mut self) -> Self {
        self.losses_percent.clone_from(&self.losses_percent_quick);
        self.pairs.retain(|pair| pair.quick);
        self.strategies.retain(|strategy| strategy.quick);
        for strategy in &mut self.strategies {
            if let Some(Relays::Ruled(rule)) = &mut strategy.relays {
                rule.tries = rule.tries_quick;
            }
        }
        self
    }

    fn problem(&self) -> Option<String> {
        if self.pairs.is_empty() || !self.strategies.iter().any(|known| known.relays.is_none()) {
            return Some("pair, strategy: at least one pair, and a direct strategy".to_owned());
        }
        if !(0.0..=1.0).contains(&self.access_share) {
            return Some(format!("access_share: {} given, expected 0 to 1", self.access_share));
        }
        let losses = [&self.losses_percent, &self.losses_percent_quick];
        if losses.iter().any(|losses| losses.is_empty())
            || losses.iter().copied().flatten().any(|loss| !(0.0..=100.0).contains(loss))
        {
            return Some("losses_percent, losses_percent_quick: one or more, 0 to 100".to_owned());
        }
        if self.at_once == 0 {
            return Some("at_once: at least 1".to_owned());
        }
        let is_span = |ms: f64| (1.0..=1000.0).contains(&ms);
        if self.trace.as_ref().is_some_and(|it| !is_span(it.every_ms) || !is_span(it.gap_ms)) {
            return Some("trace: every_ms, gap_ms: 1 to 1000".to_owned());
        }
        let is_whole = |known: &Strategy| match (&known.hosts, &known.relays) {
            (Some(hosts), Some(Relays::Named(via))) => hosts.len() == via.len(),
            (hosts, _) => hosts.is_none(),
        };
        if let Some(known) = self.strategies.iter().find(|known| !is_whole(known)) {
            let name = &known.name;
            return Some(format!("strategy `{name}`: hosts: one for each named relay"));
        }
        let is_wide = |share: &Share| share.at_least.is_none_or(|least| least <= share.at_most);
        if let Some(share) = self.shares.iter().find(|share| !is_wide(share)) {
            let most = share.at_most;
            return Some(format!(
                "share of `{}`: at_least: expected at most {most}",
                share.strategy
            ));
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = self.strategies.iter().find(|known| !names.insert(&known.name)) {
            return Some(format!("strategy: `{}` is there twice", twice.name));
        }
        self.unknown_name()
    }

    fn unknown_name(&self) -> Option<String> {
        let pairs: BTreeSet<&String> = self.pairs.iter().map(|pair| &pair.name).collect();
        let strategies: BTreeSet<&String> =
            self.strategies.iter().map(|known| &known.name).collect();
        let in_orders = self.orders.iter().flat_map(|order| order.slowest_first.iter().flatten());
        let in_orders = in_orders.chain(self.orders.iter().flat_map(|order| &order.by_rule));
        let in_estimates = self.estimates.iter().flat_map(|known| [&known.strategy, &known.over]);
        let in_trace = self.trace.iter().flat_map(|trace| [&trace.bursty, &trace.even]);
        let in_shares = self.shares.iter().flat_map(|share| [&share.strategy, &share.of]);
        let named = in_orders.chain(self.floors.iter().map(|floor| &floor.strategy));
        let mut named = named.chain(in_estimates).chain(in_trace).chain(in_shares);
        if let Some(name) = named.find(|name| !strategies.contains(name)) {
            return Some(format!("order, share, floor, estimate, trace: no strategy `{name}`"));
        }
        let paper = self.strategies.iter().flat_map(|known| known.paper.keys());
        let named = paper.chain(self.orders.iter().map(|order| &order.pair));
        let named = named.chain(self.floors.iter().map(|floor| &floor.pair));
        let named = named.chain(self.shares.iter().map(|share| &share.pair));
        let mut named = named.chain(self.estimates.iter().map(|estimate| &estimate.pair));
        let unknown = named.find(|name| !pairs.contains(name));
        unknown.map(|name| format!("paper, order, share, floor, estimate: no pair `{name}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::Network;
    use super::*;

    const TOPOLOGY: &str = include_str!("../../scenarios/cdd-wan.toml");
    const SPLIT: &str = include_str!("../../scenarios/cdd-split.toml");

    #[test]
    fn built_in_download_scenarios_are_consistent() {
        let network = Network::parse(TOPOLOGY, "cdd-wan.toml").unwrap();
        let chains = include_str!("../../scenarios/stream-chains-wan.toml");
        let chains = Network::parse(chains, "stream-chains-wan.toml").unwrap();
        let text = include_str!("../../scenarios/stream-chains.toml");
        chains.check(&Scenario::parse(text).unwrap()).unwrap();
        for text in [
            SPLIT,
            include_str!("../../scenarios/cdd-hops.toml"),
            include_str!("../../scenarios/cdd-cc.toml"),
            include_str!("../../scenarios/cdd-small.toml"),
            include_str!("../../scenarios/cdd-four.toml"),
            include_str!("../../scenarios/cdd-mixed.toml"),
            include_str!("../../scenarios/cdd-e2e.toml"),
            include_str!("../../scenarios/cdd-sequence.toml"),
            include_str!("../../scenarios/cdd-rtt-lab.toml"),
        ] {
            let scenario = Scenario::parse(text).unwrap();
            network.check(&scenario).unwrap();
            let quick = scenario.clone().quick();
            assert_eq!(quick.losses_percent, scenario.losses_percent_quick, "{}", scenario.name);
            assert!(!quick.pairs.is_empty() && quick.strategies.len() > 1);
        }
    }

    #[test]
    fn inconsistent_download_scenario_is_refused() {
        for (from, to, what) in [
            ("at_once = 3", "at_once = 0", "at_once: at least 1"),
            ("access_share = 0.25", "access_share = 2.0", "access_share: 2 given"),
            ("[\"split 3\"]", "[\"split 9\"]", "no strategy `split 9`"),
            ("{ Mumbai-SF = 1.4 }", "{ Delhi-SF = 1.4 }", "no pair `Delhi-SF`"),
            (
                "paper = \"forwarding < splitting at one",
                "by_rule = [\"x\"]\npaper = \"f",
                "no strategy `x`",
            ),
            ("name = \"split 1\"", "name = \"split 2\"", "`split 2` is there twice"),
            ("name = \"split 1\"", "name = \"split 1\"\nhosts = [\"a\"]", "one for each named"),
        ] {
            assert!(SPLIT.contains(from), "{from}");
            let error = Scenario::parse(&SPLIT.replace(from, to)).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
        let network = Network::parse(TOPOLOGY, "cdd-wan.toml").unwrap();
        let altered = SPLIT.replace("client = \"sf\"", "client = \"la\"");
        let error = network.check(&Scenario::parse(&altered).unwrap()).unwrap_err();
        assert!(error.to_string().contains("site `la` is not in cdd-wan.toml"), "{error}");
    }
}
