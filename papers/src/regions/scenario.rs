//! The scenario file of rates between regions: the regions, the limits of their machines, and the
//! strategies.

use serde::Deserialize;
use tradewind_desired::{Connections, LegProfile};
use tradewind_model::Catalogue;
use tradewind_units::{Bandwidth, Bytes, HostId, RegionId};
use tradewind_wan::Topology;

use crate::harness::{Runs, ScenarioError, from_toml};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// The number of repeats and their seeds.
    pub(crate) runs: Runs,
    /// The regions; every ordered pair downloads, one after the other.
    pub(crate) regions: Vec<RegionId>,
    /// The regions of a quick run.
    pub(crate) regions_quick: Vec<RegionId>,
    /// The largest rate of a VM.
    pub(crate) vm: Bandwidth,
    /// The largest rate of each of its connections; `None` means the VM's.
    pub(crate) per_connection: Option<Bandwidth>,
    /// The time for which a download runs before it is measured, in seconds.
    pub(crate) settle_s: f64,
    /// The duration of the measurement, in seconds.
    pub(crate) measure_s: f64,
    /// `settle_s` of a quick run.
    pub(crate) settle_s_quick: f64,
    /// `measure_s` of a quick run.
    pub(crate) measure_s_quick: f64,
    /// The gain by the best relay that counts, for experiments about relays.
    pub(crate) gain: Option<f64>,
    /// The kinds of downloads.
    #[serde(rename = "strategy")]
    pub(crate) strategies: Vec<Strategy>,
}

const fn yes() -> bool {
    true
}

/// A kind of download.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Strategy {
    /// Its name.
    pub(crate) name: String,
    /// Largest receive buffer of the hosts.
    pub(crate) receive_buffer: Bytes,
    /// Largest send buffer of the hosts.
    pub(crate) send_buffer: Bytes,
    /// Connections of the striped leg; `None` means one plain connection without gateway and relay.
    pub(crate) connections: Option<Connections>,
    /// Congestion control of the striped leg; `None` means Cubic, the hosts' default.
    pub(crate) congestion_control: Option<String>,
    /// The time before the measurement, if it is longer than the scenario's, in seconds.
    #[serde(default)]
    pub(crate) settle_s: f64,
    /// `true` when quick runs include it.
    #[serde(default = "yes")]
    pub(crate) quick: bool,
}

impl Scenario {
    /// Parses a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or the parts are inconsistent.
    pub(crate) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let problem = scenario.problem();
        if let Some(what) = problem {
            return Err(ScenarioError::Inconsistent { what });
        }
        for strategy in &scenario.strategies {
            scenario.topology(strategy)?;
        }
        Ok(scenario)
    }

    fn problem(&self) -> Option<String> {
        let spans = [self.settle_s, self.measure_s, self.settle_s_quick, self.measure_s_quick];
        let is_span = |span: &f64| span.is_finite() && (0.0..=600.0).contains(span);
        let of_strategies = self.strategies.iter().map(|strategy| strategy.settle_s);
        if !spans.into_iter().chain(of_strategies).all(|span| is_span(&span))
            || self.measure_s <= 0.0
            || self.measure_s_quick <= 0.0
        {
            return Some("settle_s, measure_s: 0 to 600 s, and something to measure".to_owned());
        }
        if self.regions.len() < 2 || self.regions_quick.len() < 2 {
            return Some("regions, regions_quick: at least two".to_owned());
        }
        if let Some(id) = self.regions_quick.iter().find(|id| !self.regions.contains(id)) {
            return Some(format!("regions_quick: `{id}` is not among the regions"));
        }
        if self.gain.is_some_and(|gain| !(1.0..100.0).contains(&gain)) {
            return Some("gain: 1 to 100".to_owned());
        }
        if self.strategies.is_empty() || !self.strategies.iter().any(|strategy| strategy.quick) {
            return Some("strategy: at least one, and one for quick runs".to_owned());
        }
        None
    }

    /// Returns the scenario of a quick run.
    pub(crate) fn quick(mut self) -> Self {
        self.regions.clone_from(&self.regions_quick);
        (self.settle_s, self.measure_s) = (self.settle_s_quick, self.measure_s_quick);
        self.strategies.retain(|strategy| strategy.quick);
        self
    }

    /// Returns the network of a strategy: a machine in each region, with its buffers.
    pub(crate) fn topology(&self, strategy: &Strategy) -> Result<Topology, ScenarioError> {
        let mut text = format!(
            "[default.host]\ncongestion_control = 'cubic'\negress = '{}'\n\
             receive_buffer = '{}'\nsend_buffer = '{}'\n",
            self.vm, strategy.receive_buffer, strategy.send_buffer,
        );
        if let Some(cap) = self.per_connection {
            text.push_str(&format!("per_connection = '{cap}'\n"));
        }
        for region in &self.regions {
            text.push_str(&format!("[[site]]\nregion = '{region}'\n"));
        }
        Topology::parse(&text, &Catalogue::builtin()).map_err(|error| ScenarioError::Inconsistent {
            what: format!("regions, vm, strategy: {error}"),
        })
    }

    /// Returns every ordered pair: the sending and the receiving region.
    pub(crate) fn pairs(&self) -> Vec<[&RegionId; 2]> {
        let all = self.regions.iter();
        all.clone()
            .flat_map(|from| all.clone().filter(move |to| *to != from).map(move |to| [from, to]))
            .collect()
    }

    /// Returns the largest payload rate of a strategy under the caps with full packets, in Mbit/s.
    pub(crate) fn allowed_mbps(&self, strategy: &Strategy) -> f64 {
        let each = self.per_connection.unwrap_or(self.vm).as_mbps();
        let count = match strategy.connections {
            None | Some(Connections::One) => 1.0,
            Some(Connections::Fixed(number)) => f64::from(number.get()),
            Some(Connections::Adaptive) => f64::INFINITY,
        };
        (count * each).min(self.vm.as_mbps()) * PAYLOAD_PER_IP
    }
}

/// Bytes of payload for each byte of IP: full packets of 1500 bytes, with time stamps.
const PAYLOAD_PER_IP: f64 = 1448.0 / 1500.0;

impl Strategy {
    /// Returns the gateway's settings of the leg; `None` without one.
    pub(crate) fn leg(&self) -> Option<LegProfile> {
        let (connections, congestion_control) =
            (self.connections?, self.congestion_control.clone());
        let stripe_after = Bytes::ZERO;
        Some(LegProfile { congestion_control, connections, stripe_after, ..LegProfile::default() })
    }

    /// Returns the relay's settings, as sender, of the other end of the same leg.
    pub(crate) fn other_end(&self) -> Option<LegProfile> {
        let congestion_control = Some(self.congestion_control.clone()?);
        Some(LegProfile { congestion_control, ..LegProfile::default() })
    }
}

/// Returns the host of a region.
pub(crate) fn host_of(region: &RegionId) -> HostId {
    HostId::new(region.as_str()).expect("a region's name is a host's name")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SINGLE: &str = include_str!("../../scenarios/trn-single.toml");
    const TUNED: &str = include_str!("../../scenarios/trn-tuned.toml");

    #[test]
    fn built_in_scenarios_are_consistent() {
        let single = Scenario::parse(SINGLE).unwrap();
        assert_eq!((single.regions.len(), single.pairs().len()), (11, 110));
        assert!(single.strategies.iter().all(|strategy| strategy.connections.is_none()));
        let tuned = Scenario::parse(TUNED).unwrap();
        assert!(tuned.strategies.iter().any(|known| known.connections.is_some()));
        for scenario in [single, tuned] {
            let quick = scenario.quick();
            // About a second passes until the first byte and between two strategies.
            let each = |known: &Strategy| known.settle_s.max(quick.settle_s) + quick.measure_s;
            let pairs = quick.pairs().len() as f64;
            let least: f64 = quick.strategies.iter().map(|known| each(known) * pairs + 1.0).sum();
            assert!(least <= 40.0, "{}: a quick run takes {least} s", quick.name);
        }
    }

    #[test]
    fn strategy_is_bounded_by_connection_and_machine_caps() {
        let tuned = Scenario::parse(TUNED).unwrap();
        let vm = tuned.vm.as_mbps() * PAYLOAD_PER_IP;
        let each = tuned.per_connection.unwrap().as_mbps() * PAYLOAD_PER_IP;
        let with = |connections| {
            tuned.allowed_mbps(&Strategy { connections, ..tuned.strategies[0].clone() })
        };
        assert_eq!(with(None), each);
        assert_eq!(with(Some(Connections::fixed(2).unwrap())), 2.0 * each);
        assert_eq!(with(Some(Connections::fixed(64).unwrap())), vm);
        assert_eq!(with(Some(Connections::Adaptive)), vm);
    }

    #[test]
    fn inconsistent_regions_scenario_is_refused() {
        for (from, to, what) in [
            ("measure_s = ", "measure_s = -", "something to measure"),
            ("gain = 1.5", "gain = 0.5", "gain: 1 to 100"),
            ("regions_quick = [", "regions_quick = [\"gcp:us-west1\", ", "not among the regions"),
            ("vm = \"400 Mbit/s\"", "vm = \"400 Mbit\"", "a rate such as"),
        ] {
            assert!(SINGLE.contains(from), "{from}");
            let error = Scenario::parse(&SINGLE.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
