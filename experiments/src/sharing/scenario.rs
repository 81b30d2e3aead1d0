//! The scenario file of a shared bottleneck: who is there, who comes, and what of that must not hurt.

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_units::{Bytes, HostId};

use crate::numeric::Runs;
use crate::scenario::{ScenarioError, from_toml};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// The topology's file, beside it.
    pub(crate) topology: String,
    /// What it assumes, a sentence each.
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// How often, with which seeds.
    pub(crate) runs: Runs,
    /// The topology's link that is shared.
    pub(crate) link: String,
    /// Who fetches.
    pub(crate) client: HostId,
    /// From whom.
    pub(crate) server: HostId,
    /// Over which two relays, from the client's side; the link lies between them.
    pub(crate) relays: [HostId; 2],
    /// What is fetched.
    pub(crate) size: Bytes,
    /// Fetches with nobody else on the link.
    #[serde(default)]
    pub(crate) alone: Vec<Alone>,
    /// Fetches beside others.
    pub(crate) beside: Beside,
}

/// Fetches at once, with nobody else on the link.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alone {
    /// Its name.
    pub(crate) name: String,
    /// How many at once.
    pub(crate) flows: u16,
    /// How relays set up their connections; by the host's own ways when absent.
    pub(crate) leg: Option<LegProfile>,
    /// Whether a small fetch goes before, so that the relays' connection is there.
    #[serde(default)]
    pub(crate) warm: bool,
    /// Whose losses it must not exceed.
    pub(crate) reference: Option<String>,
    /// How much later than round trips and the link's rate allow it may end.
    pub(crate) within_percent: Option<f64>,
}

/// Fetches beside others.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Beside {
    /// Who downloads all the time.
    pub(crate) long_client: HostId,
    /// From whom.
    pub(crate) long_server: HostId,
    /// On how many connections.
    pub(crate) long_flows: usize,
    /// Who downloads a little, again and again.
    pub(crate) short_client: HostId,
    /// From whom.
    pub(crate) short_server: HostId,
    /// How much.
    pub(crate) short_size: Bytes,
    /// How long they have for themselves first, in seconds.
    pub(crate) settle_s: f64,
    /// How long they are watched then, in seconds.
    pub(crate) watch_s: f64,
    /// The same in a quick run.
    pub(crate) settle_s_quick: f64,
    /// How long they are watched in a quick run, in seconds.
    pub(crate) watch_s_quick: f64,
    /// From one fetch of the newcomer to the next, in seconds.
    pub(crate) every_s: f64,
    /// Who comes, each in turn; without a leg: nobody.
    #[serde(rename = "newcomer")]
    pub(crate) newcomers: Vec<Newcomer>,
}

/// Who comes.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Newcomer {
    /// Its name.
    pub(crate) name: String,
    /// How relays set up their connections; absent: nobody comes.
    pub(crate) leg: Option<LegProfile>,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or the parts do not fit together.
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

    /// The same with others watched for a shorter time.
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

    const TEXT: &str = include_str!("../../../scenarios/cdd-fair.toml");

    #[test]
    fn the_built_in_scenario_has_all_that_it_names() {
        let topology = include_str!("../../../scenarios/cdd-fair-wan.toml");
        let topology = Topology::parse(topology, &Catalogue::builtin()).unwrap();
        assert_eq!(check(&Scenario::parse(TEXT).unwrap(), &topology), None);
        let strange = TEXT.replace("link = \"shared\"", "link = \"other\"");
        let what = check(&Scenario::parse(&strange).unwrap(), &topology);
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
    fn a_reference_that_is_not_there_is_told() {
        let strange = TEXT.replace("reference = \"8 x Cubic", "reference = \"9 x Cubic");
        let error = Scenario::parse(&strange).unwrap_err();
        assert!(error.to_string().contains("no `9 x Cubic"), "{error}");
    }
}
