//! The scenario file of a soak: hosts, durations and faults.

use std::time::Duration;

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_units::{Bytes, HostId};
use tradewind_wan::Topology;

use crate::harness::chain::ClientAttachment;
use crate::harness::{ScenarioError, from_toml, missing};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Scenario {
    /// Its name.
    pub(super) name: String,
    /// The topology's file, beside it.
    pub(super) topology: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub(super) assumptions: Vec<String>,
    /// Seed of sessions and of the lab.
    pub(super) seed: u64,
    /// The client host.
    pub(super) client: HostId,
    /// The relays, from the client's side; the faults of the network are between them.
    pub(super) relays: [HostId; 2],
    /// The server host.
    pub(super) server: HostId,
    /// Concurrent sessions, over all chains.
    pub(super) sessions: u16,
    /// The largest file of a session.
    pub(super) largest: Bytes,
    /// Rounds, each with a rest after it.
    rounds: u32,
    /// The duration of a round, in seconds.
    round_s: f64,
    /// Rounds of a quick run.
    quick_rounds: u32,
    /// The duration of a round of a quick run, in seconds.
    quick_round_s: f64,
    /// The time without faults between two faults, in seconds.
    calm_s: f64,
    /// The chains, each of a gateway and relays of its own on the same hosts.
    #[serde(rename = "chain")]
    pub(super) chains: Vec<Chain>,
    /// The faults, in turn.
    #[serde(rename = "fault")]
    pub(super) faults: Vec<Fault>,
}

/// A chain.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Chain {
    /// Its name.
    pub(super) name: String,
    /// The attachment of the client to it.
    #[serde(default)]
    pub(super) attachment: ClientAttachment,
    /// The dial settings of its gateway and relays; they accept with the same encryption.
    pub(super) leg: LegProfile,
}

/// A fault.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fault {
    /// The kind of fault.
    pub(super) what: What,
    /// Its duration, in seconds.
    lasts_s: f64,
}

/// The kind of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum What {
    /// A fiftieth of the packets between the relays is lost.
    Loss,
    /// All packets between the relays are lost.
    Outage,
    /// The second relay is killed (SIGKILL), and restarted at the end.
    Kill,
    /// The first relay is stopped (SIGSTOP).
    Pause,
    /// The first relay may open no further descriptors.
    Descriptors,
}

impl What {
    /// Returns its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Outage => "outage",
            Self::Kill => "kill -9 of a relay",
            Self::Pause => "SIGSTOP of a relay",
            Self::Descriptors => "no descriptors",
        }
    }

    /// Returns whether sessions may break by it. TCP repairs the network's faults, and a stopped
    /// relay continues.
    pub(super) const fn may_break(self) -> bool {
        matches!(self, Self::Kill | Self::Descriptors)
    }
}

impl Chain {
    /// Returns whether idle connections to its relays are held ready.
    pub(super) const fn is_warm(&self) -> bool {
        self.leg.warm.is_some()
    }
}

impl Fault {
    /// Returns its duration.
    pub(super) fn lasts(self) -> Duration {
        Duration::from_secs_f64(self.lasts_s)
    }
}

/// Longest duration of anything here, in seconds.
const A_DAY_S: f64 = 86_400.0;

impl Scenario {
    /// Parses a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, or a number is out of range.
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

    /// Returns the first host that is missing in the topology.
    pub(super) fn lacks(&self, topology: &Topology) -> Option<String> {
        missing(topology, self.relays.iter().chain([&self.client, &self.server]))
    }

    /// Returns the number of rounds of a run.
    pub(super) const fn rounds(&self, quick: bool) -> u32 {
        if quick { self.quick_rounds } else { self.rounds }
    }

    /// Returns the duration of a round.
    pub(super) fn round(&self, quick: bool) -> Duration {
        Duration::from_secs_f64(if quick { self.quick_round_s } else { self.round_s })
    }

    /// Returns whether a fault belongs to a round, counted from one. Kills belong to the first
    /// half, so that restarted processes have enough rests to show whether they grow.
    pub(super) fn has_in_round(&self, what: What, round: u32, quick: bool) -> bool {
        what != What::Kill || 2 * round <= self.rounds(quick)
    }

    /// Returns the time without faults between two faults.
    pub(super) fn calm(&self) -> Duration {
        Duration::from_secs_f64(self.calm_s)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::*;

    const BUILT_IN: &str = include_str!("../../scenarios/soak.toml");

    #[test]
    fn built_in_soak_has_its_hosts_and_planned_duration() {
        let scenario = Scenario::parse(BUILT_IN).unwrap();
        assert_eq!(scenario.round(false) * scenario.rounds(false), Duration::from_secs(900));
        assert!(scenario.round(true) * scenario.rounds(true) <= Duration::from_secs(45));
        let wan = include_str!("../../scenarios/soak-wan.toml");
        let topology = Topology::parse(wan, &Catalogue::builtin()).unwrap();
        assert_eq!(scenario.lacks(&topology), None);
        let other = Scenario::parse(&BUILT_IN.replace("\"server\"", "\"elsewhere\"")).unwrap();
        assert_eq!(other.lacks(&topology).as_deref(), Some("no host `elsewhere`"));
        let may_break = scenario.faults.iter().filter(|fault| fault.what.may_break()).count();
        assert_eq!(may_break, 2);
    }

    #[test]
    fn inconsistent_soak_scenario_is_refused() {
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
