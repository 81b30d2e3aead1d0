//! The scenario file of a shared bottleneck: the permanent flows, the newcomers, and the limits of
//! their effect.

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_units::{Bytes, HostId};

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
    /// The shared link of the topology.
    pub(crate) link: String,
    /// The client.
    pub(crate) client: HostId,
    /// The server.
    pub(crate) server: HostId,
    /// The two relays, from the client's side; the link lies between them.
    pub(crate) relays: [HostId; 2],
    /// The size of the file.
    pub(crate) size: Bytes,
    /// Fetches alone on the link.
    #[serde(default)]
    pub(crate) alone: Vec<Alone>,
    /// Fetches beside others.
    pub(crate) beside: Beside,
}

/// Concurrent fetches, alone on the link.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alone {
    /// Its name.
    pub(crate) name: String,
    /// The number of concurrent fetches.
    pub(crate) flows: u16,
    /// The relays' settings; `None` means the hosts' own.
    pub(crate) leg: Option<LegProfile>,
    /// `true` when a small fetch goes first, so that the relays have a connection.
    #[serde(default)]
    pub(crate) warm: bool,
    /// The name of the case whose losses it must not exceed.
    pub(crate) reference: Option<String>,
    /// The largest excess over the least possible time, in per cent.
    pub(crate) within_percent: Option<f64>,
}

/// Fetches beside others.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Beside {
    /// The client of the long downloads.
    pub(crate) long_client: HostId,
    /// The server of the long downloads.
    pub(crate) long_server: HostId,
    /// The number of connections of the long downloads.
    pub(crate) long_flows: usize,
    /// The client of repeated short downloads.
    pub(crate) short_client: HostId,
    /// The server of the short downloads.
    pub(crate) short_server: HostId,
    /// The size of a short download.
    pub(crate) short_size: Bytes,
    /// The time before the newcomer, in seconds.
    pub(crate) settle_s: f64,
    /// The time of observation, in seconds.
    pub(crate) watch_s: f64,
    /// `settle_s` of a quick run.
    pub(crate) settle_s_quick: f64,
    /// `watch_s` of a quick run.
    pub(crate) watch_s_quick: f64,
    /// The time from one fetch of the newcomer to the next, in seconds.
    pub(crate) every_s: f64,
    /// The newcomers, one per part of the run; without a leg there is none.
    #[serde(rename = "newcomer")]
    pub(crate) newcomers: Vec<Newcomer>,
}

/// A newcomer.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Newcomer {
    /// Its name.
    pub(crate) name: String,
    /// The relays' settings; `None` means that there is no newcomer.
    pub(crate) leg: Option<LegProfile>,
}

impl Scenario {
    /// Parses a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or the parts are inconsistent.
    pub(crate) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let names: Vec<&String> = scenario.alone.iter().map(|alone| &alone.name).collect();
        let references = scenario.alone.iter().filter_map(|alone| alone.reference.as_ref());
        let unknown = references.into_iter().find(|name| !names.contains(name));
        let nobody = scenario.beside.newcomers.iter().all(|newcomer| newcomer.leg.is_some());
        let what = match unknown {
            Some(name) => format!("alone: no `{name}` to refer to"),
            None if nobody => "beside: a newcomer without a leg, to compare with".to_owned(),
            None if scenario.alone.iter().any(|alone| alone.flows == 0) => {
                "alone: flows: at least 1".to_owned()
            }
            None => return Ok(scenario),
        };
        Err(ScenarioError::Inconsistent { what })
    }

    /// Returns the scenario of a quick run, with shorter observation.
    pub(crate) fn quick(mut self) -> Self {
        let beside = &mut self.beside;
        let shorter = format!(
            "a quick run watches others for {} s after {} s instead of {} s after {} s",
            beside.watch_s_quick, beside.settle_s_quick, beside.watch_s, beside.settle_s
        );
        (beside.settle_s, beside.watch_s) = (beside.settle_s_quick, beside.watch_s_quick);
        self.assumptions.push(shorter);
        self
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;
    use tradewind_wan::Topology;

    use super::super::outcome::check;
    use super::*;

    const TEXT: &str = include_str!("../../scenarios/cdd-fair.toml");

    #[test]
    fn built_in_scenario_names_exist() {
        let topology = include_str!("../../scenarios/cdd-fair-wan.toml");
        let topology = Topology::parse(topology, &Catalogue::builtin()).unwrap();
        assert_eq!(check(&Scenario::parse(TEXT).unwrap(), &topology), None);
        let altered = TEXT.replace("link = \"shared\"", "link = \"other\"");
        let what = check(&Scenario::parse(&altered).unwrap(), &topology);
        assert_eq!(what.as_deref(), Some("no link `other` with a rate"));
    }

    #[test]
    fn eight_at_once_share_at_most_0_85_of_the_rate() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let eight = scenario.alone.iter().find(|case| case.name == "8 x paced-start").unwrap();
        let rate = eight.leg.as_ref().unwrap().pacing_rate.unwrap();
        assert!(rate.scaled(8.0).as_mbps() <= 0.85 * 200.0 + 1e-6);
    }

    #[test]
    fn missing_reference_is_refused() {
        let altered = TEXT.replace("reference = \"8 x Cubic", "reference = \"9 x Cubic");
        let error = Scenario::parse(&altered).unwrap_err();
        assert!(error.to_string().contains("no `9 x Cubic"), "{error}");
    }
}
