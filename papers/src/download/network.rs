//! The network of a download: the part of a topology that a run needs, with its losses, and results
//! derived from its round trips.

use std::collections::BTreeSet;

use toml::{Table, Value};
use tradewind_model::Catalogue;
use tradewind_plan::routing::Router;
use tradewind_units::{Bandwidth, Duration, HostId, RegionId, SiteId};
use tradewind_wan::Topology;

use super::scenario::{Pair, Relays, Rule, Scenario, Strategy};
use crate::harness::ScenarioError;

/// Bytes of an IP packet for each byte of payload: full packets of 1500 bytes, with time stamps.
const IP_PER_PAYLOAD: f64 = 1500.0 / 1448.0;

/// The whole topology of a scenario.
pub(super) struct Network {
    /// The parsed text of the file.
    table: Table,
    topology: Topology,
}

/// A chain of relays, from the client's side.
pub(super) type Via = Vec<RegionId>;

impl Network {
    /// Parses the topology's text.
    pub(super) fn parse(text: &str, file: &str) -> Result<Self, ScenarioError> {
        let wrong = |what: String| ScenarioError::Inconsistent { what: format!("{file}: {what}") };
        let topology =
            Topology::parse(text, &Catalogue::builtin()).map_err(|e| wrong(e.to_string()))?;
        let table = text.parse::<Table>().map_err(|e| wrong(e.message().to_owned()))?;
        Ok(Self { table, topology })
    }

    /// Checks that the topology has everything that a scenario names.
    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), ScenarioError> {
        let missing = |what: String| {
            let file = &scenario.topology;
            Err(ScenarioError::Inconsistent { what: format!("{what} is not in {file}") })
        };
        let sites = scenario.pairs.iter().flat_map(|pair| [&pair.client, &pair.server]);
        if let Some(site) = sites.into_iter().find(|site| self.topology.site(site).is_none()) {
            return missing(format!("site `{site}`"));
        }
        let ends = scenario.strategies.iter().filter_map(|strategy| strategy.ends.as_ref());
        let relays = scenario.strategies.iter().filter_map(|strategy| strategy.hosts.as_ref());
        let mut named = ends.flatten().chain(relays.flatten());
        if let Some(host) = named.find(|host| self.topology.host(host).is_none()) {
            return missing(format!("host `{host}`"));
        }
        for strategy in &scenario.strategies {
            let Some(relays) = &strategy.relays else { continue };
            for pair in &scenario.pairs {
                if self.chains(pair, relays).is_empty() {
                    return missing(format!("a chain of relays for `{}`", strategy.name));
                }
            }
        }
        Ok(())
    }

    /// Returns the chains that a strategy tries, in their order; direct is a chain without relays.
    pub(super) fn tries(&self, pair: &Pair, strategy: &Strategy) -> Vec<Via> {
        strategy
            .relays
            .as_ref()
            .map_or_else(|| vec![Via::new()], |relays| self.chains(pair, relays))
    }

    fn chains(&self, pair: &Pair, relays: &Relays) -> Vec<Via> {
        match relays {
            Relays::Named(via) => {
                let there = via.iter().all(|id| self.topology.site(&id.clone().into()).is_some());
                if there { vec![via.clone()] } else { Vec::new() }
            }
            Relays::Ruled(rule) => self.ruled(pair, rule),
        }
    }

    fn ruled(&self, pair: &Pair, rule: &Rule) -> Vec<Via> {
        let regions = self.topology.sites.iter().filter_map(|site| site.region.clone());
        let regions: Vec<RegionId> = regions.filter(|id| id.cloud() == rule.cloud).collect();
        let sites: Vec<SiteId> = regions.iter().cloned().map(SiteId::from).collect();
        let router = Router::new(&pair.client, &pair.server, &sites, |a, b| Some(self.rtt(a, b)));
        let paths = router.cloudified(rule.count, rule.tries);
        let named = |index: &usize| regions[*index].clone();
        paths.iter().map(|path| path.relays.iter().map(named).collect()).collect()
    }

    /// Returns the round trip between two sites without queueing.
    ///
    /// # Panics
    /// When a site is missing; [`Network::check`] rules that out.
    pub(super) fn rtt(&self, a: &SiteId, b: &SiteId) -> Duration {
        let index = |site| self.topology.site(site).expect("the scenario was checked");
        let (a, b) = (index(a), index(b));
        self.topology.pair(a, b).delay + self.topology.pair(b, a).delay
    }

    /// Returns the round trips of a chain's legs, from the client on.
    pub(super) fn legs(&self, pair: &Pair, via: &[RegionId]) -> Vec<Duration> {
        let relays = via.iter().cloned().map(SiteId::from);
        let stops: Vec<SiteId> = std::iter::once(pair.client.clone())
            .chain(relays)
            .chain(std::iter::once(pair.server.clone()))
            .collect();
        stops.windows(2).map(|leg| self.rtt(&leg[0], &leg[1])).collect()
    }

    /// Returns the least time of a fetch over `via`: handshakes on the legs to the end points
    /// (direct: on the only leg), one round trip end to end, and the file at the rate of the slower
    /// end.
    pub(super) fn floor(&self, pair: &Pair, via: &[RegionId]) -> Duration {
        let legs = self.legs(pair, via);
        let through: Duration = legs.iter().sum();
        let handshakes: Duration = match &legs[..] {
            [only] => *only,
            [first, .., last] => *first + *last,
            [] => Duration::ZERO,
        };
        let carried = pair.size.scaled(IP_PER_PAYLOAD);
        let sending = self.slower_end(pair).map_or(Duration::ZERO, |rate| rate.time_for(carried));
        handshakes + through + sending
    }

    fn slower_end(&self, pair: &Pair) -> Option<Bandwidth> {
        let host_at = |site: &SiteId| {
            let index = self.topology.site(site)?;
            self.topology.hosts.iter().find(|host| host.site == index)
        };
        let ingress = host_at(&pair.client).and_then(|host| host.ingress);
        let egress = host_at(&pair.server).and_then(|host| host.egress);
        ingress.into_iter().chain(egress).min()
    }

    /// Returns the topology with these sites alone, and with losses on all pairs that touch an end
    /// point.
    pub(super) fn with_losses(
        &self,
        scenario: &Scenario,
        places: &BTreeSet<SiteId>,
        loss: f64,
    ) -> Result<Topology, ScenarioError> {
        let mut table = self.table.clone();
        let named = |entry: &Value, key: &str| {
            entry.get(key).and_then(Value::as_str).and_then(|id| SiteId::new(id).ok())
        };
        let is_retained = |entry: &Value, keys: &[&str]| {
            let name = keys.iter().find_map(|key| named(entry, key));
            name.is_some_and(|site| places.contains(&site))
        };
        for (section, keys) in [("site", &["id", "region"][..]), ("host", &["site"])] {
            if let Some(Value::Array(entries)) = table.get_mut(section) {
                entries.retain(|entry| is_retained(entry, keys));
            }
        }
        let ends = |site: &SiteId| {
            scenario.pairs.iter().any(|pair| pair.client == *site || pair.server == *site)
        };
        let mut pairs = Vec::new();
        for (index, a) in places.iter().enumerate() {
            for b in places.iter().skip(index + 1) {
                let share = match (ends(a), ends(b)) {
                    (true, true) => 1.0,
                    (false, false) => continue,
                    _ => scenario.access_share,
                };
                let between = [a, b].map(|site| Value::from(site.as_str())).to_vec();
                let pair = [("between", Value::Array(between)), ("loss", (loss * share).into())];
                let pair = pair.map(|(key, value)| (key.to_owned(), value));
                pairs.push(Value::Table(pair.into_iter().collect()));
            }
        }
        match table.entry("pair").or_insert_with(|| Value::Array(Vec::new())) {
            Value::Array(entries) => entries.extend(pairs),
            _ => unreachable!("the topology was read before"),
        }
        let wrong = |what: String| {
            let file = &scenario.topology;
            ScenarioError::Inconsistent { what: format!("{file}: with losses: {what}") }
        };
        let text = toml::to_string(&table).map_err(|e| wrong(e.to_string()))?;
        Topology::parse(&text, &Catalogue::builtin()).map_err(|e| wrong(e.to_string()))
    }
}

/// Returns the host of a site that has its name.
pub(super) fn host_of(site: &SiteId) -> HostId {
    HostId::new(site.as_str()).expect("a site's name is a host's name")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cdd() -> (Network, Scenario) {
        let text = include_str!("../../scenarios/cdd-wan.toml");
        let scenario = include_str!("../../scenarios/cdd-split.toml");
        let network = Network::parse(text, "cdd-wan.toml").unwrap();
        (network, Scenario::parse(scenario).unwrap())
    }

    fn named(name: &str) -> RegionId {
        RegionId::new(name).unwrap()
    }

    #[test]
    fn relays_are_those_of_the_papers_rule() {
        let (network, scenario) = cdd();
        network.check(&scenario).unwrap();
        let rule =
            |count| Rule { cloud: "aws".into(), count, tries: 1, tries_quick: 1, show: false };
        let via = |count| network.ruled(&scenario.pairs[0], &rule(count)).remove(0);
        // [CDD Fig. 3]: us-we-1 and ap-so-1 at the ends, ap-ne-1 the best between them.
        assert_eq!(via(2), [named("aws:us-west-1"), named("aws:ap-south-1")]);
        assert_eq!(via(3).len(), 3);
        assert_eq!(via(1).len(), 1);
    }

    #[test]
    fn least_time_is_handshakes_one_rtt_and_the_file() {
        let (network, scenario) = cdd();
        let pair = &scenario.pairs[0];
        let direct = network.floor(pair, &[]);
        let rtt = network.rtt(&pair.client, &pair.server);
        let sending = Duration::from_secs_f64(3.9e6 * 8.0 * IP_PER_PAYLOAD / 100e6);
        assert!(direct.abs_diff(rtt * 2 + sending) < Duration::from_millis(1));
        let relayed = network.floor(pair, &[named("aws:us-west-1"), named("aws:ap-south-1")]);
        assert!(relayed < direct);
    }

    #[test]
    fn losses_are_on_pairs_with_an_end_point_only() {
        let (network, scenario) = cdd();
        let site = |name: &str| SiteId::new(name).unwrap();
        let names = ["sf", "mumbai", "aws:us-west-1", "aws:ap-south-1"];
        let places = names.map(site).into_iter().collect();
        let topology = network.with_losses(&scenario, &places, 0.01).unwrap();
        assert_eq!(topology.hosts.len(), 8, "three at each end, one at each relay");
        let loss = |a: &str, b: &str| {
            let index = |name| topology.site(&site(name)).unwrap();
            topology.pair(index(a), index(b)).loss.random.as_f64()
        };
        assert_eq!(loss("sf", "mumbai"), 0.01);
        assert_eq!(loss("aws:us-west-1", "sf"), 0.0025);
        assert_eq!(loss("aws:us-west-1", "aws:ap-south-1"), 0.0);
        assert_eq!(topology.hosts[0].egress, Some("100 Mbit/s".parse().unwrap()));
    }
}
