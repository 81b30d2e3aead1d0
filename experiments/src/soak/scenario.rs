//! The scenario file of a soak: who takes part, for how long, and what hurts them.

use std::time::Duration;

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_units::{Bytes, HostId};
use tradewind_wan::Topology;

use crate::experiment::missing;
use crate::lab_run::chain::Entrance;
use crate::scenario::{ScenarioError, from_toml};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Its name.
    pub(super) name: String,
    /// The topology's file, beside it.
    pub(super) topology: String,
    /// What it assumes, a sentence each.
    #[serde(default)]
    pub(super) assumptions: Vec<String>,
    /// Seed of sessions and of the lab.
    pub(super) seed: u64,
    /// Who opens sessions.
    pub(super) client: HostId,
    /// The relays, from the client's side; what is between them is hurt.
    pub(super) relays: [HostId; 2],
    /// Who answers.
    pub(super) server: HostId,
    /// Sessions at once, over all chains.
    pub(super) sessions: u16,
    /// The largest file of a session.
    pub(super) largest: Bytes,
    /// Rounds, each with a rest after it.
    rounds: u32,
    /// How long one is, in seconds.
    round_s: f64,
    /// Rounds of a quick run.
    quick_rounds: u32,
    /// How long one of a quick run is, in seconds.
    quick_round_s: f64,
    /// How long nothing is hurt between two faults, in seconds.
    calm_s: f64,
    /// The chains, each of a gateway and relays of its own on the same hosts.
    #[serde(rename = "chain")]
    pub(super) chains: Vec<Chain>,
    /// What hurts, in turn.
    #[serde(rename = "fault")]
    pub(super) faults: Vec<Fault>,
}

/// A chain.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Chain {
    /// Its name.
    pub(super) name: String,
    /// How the client comes to it.
    #[serde(default)]
    pub(super) entrance: Entrance,
    /// How its gateway and relays dial relays; they accept by the same encryption.
    pub(super) leg: LegProfile,
}

/// A fault.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    /// What it is.
    pub(super) what: What,
    /// How long it lasts, in seconds.
    lasts_s: f64,
}

/// What a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// A fiftieth of what passes between the relays is lost.
    Loss,
    /// Nothing passes between the relays.
    Outage,
    /// The second relay is killed (SIGKILL), and started again at the end.
    Kill,
    /// The first relay stands still (SIGSTOP).
    Pause,
    /// The first relay may open no more descriptors than it has.
    Descriptors,
}

impl What {
    /// Its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Outage => "outage",
            Self::Kill => "kill -9 of a relay",
            Self::Pause => "SIGSTOP of a relay",
            Self::Descriptors => "no descriptors",
        }
    }

    /// Whether sessions may break by it. What the network does to them TCP repairs, and a relay that stands still goes on.
    pub(super) const fn may_break(self) -> bool {
        matches!(self, Self::Kill | Self::Descriptors)
    }
}

impl Chain {
    /// Whether connections to its relays are kept ready.
    pub(super) const fn is_warm(&self) -> bool {
        self.leg.warm.is_some()
    }
}

impl Fault {
    /// How long it lasts.
    pub(super) fn lasts(self) -> Duration {
        Duration::from_secs_f64(self.lasts_s)
    }
}

/// Longest time of anything here, in seconds.
const A_DAY_S: f64 = 86_400.0;

impl Scenario {
    /// Reads one.
    ///
    /// # Errors
    /// When it is no TOML of this form, or a number makes no sense.
    pub(super) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: &str| Err(ScenarioError::Inconsistent { what: what.to_owned() });
        let is_span = |seconds: f64| (0.0..=A_DAY_S).contains(&seconds);
        let spans = [scenario.round_s, scenario.quick_round_s, scenario.calm_s];
        if !spans.into_iter().chain(scenario.faults.iter().map(|it| it.lasts_s)).all(is_span) {
            return wrong("round_s, quick_round_s, calm_s, lasts_s: from 0 to 86400 seconds");
        }
        if scenario.rounds == 0 || scenario.quick_rounds == 0 || scenario.sessions == 0 {
            return wrong("rounds, quick_rounds, sessions: 1 at least");
        }
        let mut names: Vec<&str> = scenario.chains.iter().map(|it| it.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        if names.is_empty() || names.len() < scenario.chains.len() {
            return wrong("chain: one at least, each with a name of its own");
        }
        if scenario.largest.as_u64() == 0 {
            return wrong("largest: 1 byte at least");
        }
        Ok(scenario)
    }

    /// What the topology lacks.
    pub(super) fn lacks(&self, topology: &Topology) -> Option<String> {
        missing(topology, self.relays.iter().chain([&self.client, &self.server]))
    }

    /// Rounds of a run.
    pub(super) const fn rounds(&self, quick: bool) -> u32 {
        if quick { self.quick_rounds } else { self.rounds }
    }

    /// How long a round is.
    pub(super) fn round(&self, quick: bool) -> Duration {
        Duration::from_secs_f64(if quick { self.quick_round_s } else { self.round_s })
    }

    /// Whether a fault belongs to a round, which are counted from one: kills to the first half, so that what was started anew rests often enough to
    /// tell whether it grows.
    pub(super) fn has_in_round(&self, what: What, round: u32, quick: bool) -> bool {
        what != What::Kill || 2 * round <= self.rounds(quick)
    }

    /// How long nothing is hurt between two faults.
    pub(super) fn calm(&self) -> Duration {
        Duration::from_secs_f64(self.calm_s)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::*;

    const BUILT_IN: &str = include_str!("../../../scenarios/soak.toml");

    #[test]
    fn the_built_in_soak_lasts_a_quarter_of_an_hour_and_its_hosts_are_there() {
        let scenario = Scenario::parse(BUILT_IN).unwrap();
        assert_eq!(scenario.round(false) * scenario.rounds(false), Duration::from_secs(900));
        assert!(scenario.round(true) * scenario.rounds(true) <= Duration::from_secs(45));
        let wan = include_str!("../../../scenarios/soak-wan.toml");
        let topology = Topology::parse(wan, &Catalogue::builtin()).unwrap();
        assert_eq!(scenario.lacks(&topology), None);
        let other = Scenario::parse(&BUILT_IN.replace("\"server\"", "\"elsewhere\"")).unwrap();
        assert_eq!(other.lacks(&topology).as_deref(), Some("no host `elsewhere`"));
        let may_break = scenario.faults.iter().filter(|fault| fault.what.may_break()).count();
        assert_eq!(may_break, 2);
    }

    #[test]
    fn what_makes_no_sense_is_told() {
        for (from, to, what) in [
            ("calm_s = 2", "calm_s = -1", "from 0 to 86400"),
            ("lasts_s = 4", "lasts_s = nan", "from 0 to 86400"),
            ("sessions = 24", "sessions = 0", "1 at least"),
            ("largest = \"4 MB\"", "largest = \"0 B\"", "1 byte at least"),
            ("what = \"kill\"", "what = \"kiss\"", "unknown variant"),
            ("name = \"warm\"", "name = \"plain\"", "a name of its own"),
        ] {
            assert!(BUILT_IN.contains(from), "{from}");
            let error = Scenario::parse(&BUILT_IN.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
