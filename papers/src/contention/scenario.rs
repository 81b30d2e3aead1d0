//! The scenario file of contention: a planning problem and its network.

use serde::Deserialize;
use tradewind_model::Catalogue;
use tradewind_plan::{Flow, Problem, file};
use tradewind_units::HostId;

use super::host_of;
use crate::harness::{Runs, ScenarioError, from_toml};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Scenario {
    /// Its name.
    pub(crate) name: String,
    /// The topology's file, beside it.
    pub(crate) topology: String,
    /// The planning problem's file, beside it. It states caps of sites, and for each pair its rate
    /// alone.
    pub(crate) problem: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// Number of runs, and their seeds.
    pub(crate) runs: Runs,
}

/// One problem, with the caps of machines and without.
pub(super) struct Contention {
    /// Without the caps of machines.
    pub(super) per_link: Problem,
    /// With the caps of machines.
    pub(super) per_machine: Problem,
}

impl Contention {
    /// Returns the flows to carry.
    pub(super) fn flows(&self) -> &[Flow] {
        self.per_machine.flows()
    }

    /// Returns the hosts at which flows start and end.
    pub(super) fn hosts(&self) -> Vec<HostId> {
        let ends = self.flows().iter().flat_map(|flow| [&flow.source, &flow.destination]);
        ends.map(host_of).collect()
    }
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, or a key is unknown or missing.
    pub(crate) fn parse(text: &str) -> Result<Self, ScenarioError> {
        from_toml(text)
    }

    /// Reads its problem from this text.
    pub(super) fn problem(&self, text: &str) -> Result<Contention, ScenarioError> {
        let wrong = |what: String| ScenarioError::Inconsistent {
            what: format!("{}: {what}", self.problem),
        };
        let file = file::parse(text, &Catalogue::builtin(), &mut |_| {
            Err("an experiment's problem states all by itself".to_owned())
        });
        let inputs = file.map_err(|error| wrong(error.to_string()))?.inputs;
        let mut without = inputs.clone();
        if without.site_caps.is_empty() && without.site_caps_outside.is_empty() {
            return Err(wrong("no site has an egress_cap or egress_cap_outside to plan by".into()));
        }
        without.site_caps.clear();
        without.site_caps_outside.clear();
        let problem = |inputs| Problem::new(inputs).map_err(|error| wrong(error.to_string()));
        Ok(Contention { per_link: problem(without)?, per_machine: problem(inputs)? })
    }
}

#[cfg(test)]
mod tests {
    use tradewind_wan::Topology;

    use super::super::{PER_LINK, PER_MACHINE, variants};
    use super::*;
    use crate::harness::RunOptions;

    const SCENARIO: &str = include_str!("../../scenarios/trn-contention.toml");
    const PROBLEM: &str = include_str!("../../scenarios/plan/trn-contention.toml");
    const WAN: &str = include_str!("../../scenarios/trn-contention-wan.toml");

    #[test]
    fn per_link_and_per_machine_plans_relay_different_flows() {
        let scenario = Scenario::parse(SCENARIO).unwrap();
        let problem = scenario.problem(PROBLEM).unwrap();
        let options = RunOptions::of_tests();
        let variants = variants(&problem, &options).unwrap();
        let of = |name: &str| variants.iter().find(|variant| variant.name == name).unwrap();
        let relayed = |name: &str, source: &str| -> Vec<bool> {
            let flows = problem.flows().iter().zip(&of(name).paths);
            let mine = flows.filter(|(flow, _)| flow.source.as_str() == source);
            mine.map(|(_, path)| !path.is_empty()).collect()
        };
        assert_eq!(relayed(PER_LINK, "virginia"), [false; 4]);
        assert_eq!(relayed(PER_LINK, "mumbai"), [true]);
        assert_eq!(relayed(PER_MACHINE, "virginia"), [true; 4]);
        let topology = Topology::parse(WAN, &Catalogue::builtin()).unwrap();
        for host in variants
            .iter()
            .flat_map(|variant| variant.paths.iter().flatten())
            .chain(&problem.hosts())
        {
            assert!(topology.host(host).is_some(), "{host}");
        }
    }

    #[test]
    fn problem_without_caps_is_refused() {
        let scenario = Scenario::parse(SCENARIO).unwrap();
        let capless = PROBLEM.replace("egress_cap_outside", "# egress_cap_outside");
        let error = scenario.problem(&capless).err().unwrap().to_string();
        assert!(error.contains("no site has an egress_cap"), "{error}");
    }
}
