//! The scenario file of rates: flows that run at once, their relays, and the paper's statements on
//! their sums.

use std::collections::BTreeSet;

use serde::Deserialize;
use tradewind_desired::LegProfile;
use tradewind_units::HostId;
use tradewind_wan::Topology;

use crate::harness::chain::Carriage;
use crate::harness::{Runs, ScenarioError, from_toml, missing};

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
    /// Number of runs, and their seeds.
    pub(crate) runs: Runs,
    /// Time for which connections run before they are measured, in seconds.
    pub(crate) settle_s: f64,
    /// Time for which they are measured, in seconds.
    pub(crate) measure_s: f64,
    /// The same in a quick run.
    pub(crate) measure_s_quick: f64,
    /// Label of the horizontal axis of the plot of all cases.
    pub(crate) x_label: String,
    /// Cases, measured one after the other.
    #[serde(rename = "case")]
    pub(crate) cases: Vec<Case>,
    /// The paper's statements on two cases.
    #[serde(rename = "claim", default)]
    pub(crate) claims: Vec<Claim>,
    /// The paper's statements on a case in which flows start and end.
    #[serde(default)]
    pub(crate) steady: Vec<Steady>,
}

/// Flows that run at once.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Case {
    /// Its name.
    pub(crate) name: String,
    /// The flows.
    #[serde(rename = "flow")]
    pub(crate) flows: Vec<Flow>,
    /// The sum of their rates in the paper, in Mbit/s.
    pub(crate) paper_mbps: Option<f64>,
    /// Its position in the plot, if it is drawn.
    pub(crate) at: Option<At>,
    /// Interval at which it is measured from its begin on, in seconds; else it is measured once,
    /// when slow start is over.
    pub(crate) every_s: Option<f64>,
    /// Its duration in seconds, where it is measured at intervals; else the scenario's.
    pub(crate) lasts_s: Option<f64>,
    /// True if quick runs include it.
    #[serde(default = "yes")]
    pub(crate) quick: bool,
}

/// A position in the plot of all cases.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct At {
    /// The line.
    pub(crate) line: String,
    /// The name on the horizontal axis.
    pub(crate) x: String,
}

const fn yes() -> bool {
    true
}

const fn one() -> u16 {
    1
}

const fn split() -> Carriage {
    Carriage::Split
}

/// A flow.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Flow {
    /// The sender.
    pub(crate) from: HostId,
    /// The receiver, which dials.
    pub(crate) to: HostId,
    /// Number of connections.
    #[serde(default = "one")]
    pub(crate) connections: u16,
    /// The relays, from the receiver's side.
    #[serde(default)]
    pub(crate) relays: Vec<HostId>,
    /// Mode of the relays.
    #[serde(default = "split")]
    pub(crate) carriage: Carriage,
    /// Profile of the relays' connections.
    pub(crate) leg: Option<LegProfile>,
    /// Begin of the connections, in seconds from the case's begin.
    #[serde(default)]
    pub(crate) from_s: f64,
    /// Their end; with the case when absent.
    pub(crate) until_s: Option<f64>,
}

impl Flow {
    /// Describes it in a few words.
    pub(crate) fn describe(&self) -> String {
        let until = self.until_s.map(|until_s| format!(" to {until_s}")).unwrap_or_default();
        let when = match (self.from_s > 0.0, self.until_s) {
            (false, None) => String::new(),
            _ => format!(", from {}{until} s", self.from_s),
        };
        format!("{} to {}{when}", self.connections, self.to)
    }
}

/// A sentence about two cases: the rate of one is so many times that of the other.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Claim {
    /// The paper's sentence.
    pub(crate) paper: String,
    /// The case whose rate is compared.
    pub(crate) of: String,
    /// The case with whose rate it is compared.
    pub(crate) over: String,
    /// Least ratio for the sentence to hold.
    pub(crate) least: Option<f64>,
    /// Largest ratio for the sentence to hold.
    pub(crate) most: Option<f64>,
}

/// A sentence about a case that is measured at intervals: all its flows together have the same rate
/// throughout.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Steady {
    /// The paper's sentence.
    pub(crate) paper: String,
    /// The case.
    pub(crate) case: String,
    /// Largest deviation from its median.
    pub(crate) within_percent: f64,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or the parts do not fit together.
    pub(crate) fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        match scenario.problem() {
            Some(what) => Err(ScenarioError::Inconsistent { what }),
            None => Ok(scenario),
        }
    }

    fn problem(&self) -> Option<String> {
        let names: BTreeSet<&String> = self.cases.iter().map(|case| &case.name).collect();
        let claimed = self.claims.iter().flat_map(|claim| [&claim.of, &claim.over]);
        let mut named = claimed.chain(self.steady.iter().map(|steady| &steady.case));
        if let Some(name) = named.find(|name| !names.contains(name)) {
            return Some(format!("claim, steady: no case `{name}`"));
        }
        if self.cases.is_empty() || names.len() < self.cases.len() {
            return Some("case: at least one, and no name twice".to_owned());
        }
        let spans = [self.settle_s, self.measure_s, self.measure_s_quick];
        if !spans.iter().all(|span| (0.1..=3600.0).contains(span)) {
            return Some("settle_s, measure_s, measure_s_quick: 0.1 to 3600".to_owned());
        }
        self.cases.iter().find_map(|case| case.problem(self.settle_s))
    }

    /// Returns the times at which a case is sampled, in seconds from its begin: each span between
    /// two is a measurement.
    pub(crate) fn marks(&self, case: &Case) -> Vec<f64> {
        let Some(every_s) = case.every_s else {
            return vec![self.settle_s, self.settle_s + self.measure_s];
        };
        let lasts_s = case.lasts_s.unwrap_or(self.settle_s + self.measure_s);
        let count = (lasts_s / every_s).floor() as u32;
        (0..=count).map(|mark| f64::from(mark) * every_s).collect()
    }

    /// Returns the names along the plot of all cases, in the order of the cases.
    pub(crate) fn x_names(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for at in self.cases.iter().filter_map(|case| case.at.as_ref()) {
            if !names.contains(&at.x.as_str()) {
                names.push(at.x.as_str());
            }
        }
        names
    }

    /// Returns the same, shortened.
    pub(crate) fn quick(mut self) -> Self {
        let before = self.cases.len();
        self.cases.retain(|case| case.quick);
        self.assumptions.push(format!(
            "a quick run measures {} of {before} cases for {} s instead of {} s",
            self.cases.len(),
            self.measure_s_quick,
            self.measure_s
        ));
        self.measure_s = self.measure_s_quick;
        self
    }

    /// Names a host that the topology lacks, if it lacks one.
    pub(super) fn lacks(&self, topology: &Topology) -> Option<String> {
        missing(topology, self.hosts())
    }

    /// Returns all hosts that it names.
    pub(crate) fn hosts(&self) -> BTreeSet<&HostId> {
        let flows = self.cases.iter().flat_map(|case| &case.flows);
        flows.flat_map(|flow| [&flow.from, &flow.to].into_iter().chain(&flow.relays)).collect()
    }
}

impl Case {
    fn problem(&self, settle_s: f64) -> Option<String> {
        let name = &self.name;
        if self.flows.is_empty() || self.flows.iter().any(|flow| flow.connections == 0) {
            return Some(format!("case `{name}`: at least one flow, of at least one connection"));
        }
        if self.every_s.is_some_and(|every_s| !(0.1..=60.0).contains(&every_s)) {
            return Some(format!("case `{name}`: every_s: 0.1 to 60"));
        }
        let least = settle_s + self.every_s.unwrap_or_default();
        if self.lasts_s.is_some_and(|lasts_s| !(least..=3600.0).contains(&lasts_s)) {
            return Some(format!("case `{name}`: lasts_s: longer than settle_s, at most 3600"));
        }
        let in_order = |flow: &Flow| {
            flow.from_s >= 0.0 && flow.until_s.is_none_or(|until_s| until_s > flow.from_s)
        };
        (!self.flows.iter().all(in_order))
            .then(|| format!("case `{name}`: from_s, until_s: 0 or more, and one after the other"))
    }
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::*;

    #[test]
    fn built_in_scenarios_name_known_hosts() {
        let texts = [
            include_str!("../../scenarios/trn-vmcap.toml"),
            include_str!("../../scenarios/trn-intra.toml"),
            include_str!("../../scenarios/trn-scope-lab.toml"),
            include_str!("../../scenarios/cp-kinds.toml"),
        ];
        for text in texts {
            let scenario = Scenario::parse(text).unwrap();
            let wan = match scenario.topology.as_str() {
                "trn-wan.toml" => include_str!("../../scenarios/trn-wan.toml"),
                _ => include_str!("../../../examples/cp-real-wan.toml"),
            };
            let lacks =
                |text| scenario.lacks(&Topology::parse(text, &Catalogue::builtin()).unwrap());
            assert_eq!(lacks(wan), None);
            let missing = lacks("[[site]]\nregion = \"gcp:us-west1\"\n").unwrap();
            assert!(missing.contains("no host `"), "{missing}");
            let quick = scenario.clone().quick();
            let least: f64 = quick.cases.iter().filter_map(|case| quick.marks(case).pop()).sum();
            assert!(least <= 40.0, "{}: a quick run takes {least} s", quick.name);
            assert!(!scenario.clone().quick().cases.is_empty());
            let unknown = text.replace("\nover = \"", "\nover = \"no ");
            assert!(Scenario::parse(&unknown).is_err(), "{}", scenario.name);
        }
    }

    #[test]
    fn inconsistent_scenarios_are_refused() {
        let text = include_str!("../../scenarios/trn-vmcap.toml");
        for (from, to, what) in [
            ("settle_s = 3", "settle_s = 0", "settle_s, measure_s, measure_s_quick"),
            ("connections = 16", "connections = 0", "of at least one connection"),
            ("every_s = 1", "every_s = 0", "every_s: 0.1 to 60"),
            ("lasts_s = ", "lasts_s = 0.", "lasts_s: longer than settle_s"),
            ("until_s = ", "until_s = 0.0", "from_s, until_s"),
        ] {
            assert!(text.contains(from), "{from}");
            let error = Scenario::parse(&text.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(what), "{error}");
        }
    }
}
