//! The scenario file of contention: which planning problem, over which network.

use serde::Deserialize;
use tradewind_model::Catalogue;
use tradewind_plan::{Flow, Problem, file};
use tradewind_units::HostId;

use super::host_of;
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
    /// The planning problem's file, beside it. It states caps of sites, and for each pair what it carries alone.
    pub(crate) problem: String,
    /// What it assumes, a sentence each.
    #[serde(default)]
    pub(crate) assumptions: Vec<String>,
    /// How often, with which seeds.
    pub(crate) runs: Runs,
}

/// One problem, with the caps of machines and without.
pub(super) struct Contention {
    /// Each pair by itself.
    pub(super) per_link: Problem,
    /// With what machines send in all.
    pub(super) per_machine: Problem,
}

impl Contention {
    /// What is carried.
    pub(super) fn flows(&self) -> &[Flow] {
        self.per_machine.flows()
    }

    /// Where flows start and end.
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

    /// Its problem, whose text this is.
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

    use super::super::{PER_LINK, PER_MACHINE, ways};
    use super::*;
    use crate::experiment::RunOptions;

    const SCENARIO: &str = include_str!("../../../scenarios/trn-contention.toml");
    const PROBLEM: &str = include_str!("../../../scenarios/plan/trn-contention.toml");
    const WAN: &str = include_str!("../../../scenarios/trn-contention-wan.toml");

    #[test]
    fn plans_per_link_and_per_machine_give_the_relay_to_different_flows() {
        let scenario = Scenario::parse(SCENARIO).unwrap();
        let problem = scenario.problem(PROBLEM).unwrap();
        let options = RunOptions::of_tests();
        let ways = ways(&problem, &options).unwrap();
        let of = |name: &str| ways.iter().find(|way| way.name == name).unwrap();
        let relayed = |name: &str, source: &str| -> Vec<bool> {
            let flows = problem.flows().iter().zip(&of(name).paths);
            let mine = flows.filter(|(flow, _)| flow.source.as_str() == source);
            mine.map(|(_, path)| !path.is_empty()).collect()
        };
        assert_eq!(relayed(PER_LINK, "virginia"), [false; 4]);
        assert_eq!(relayed(PER_LINK, "mumbai"), [true]);
        assert_eq!(relayed(PER_MACHINE, "virginia"), [true; 4]);
        let topology = Topology::parse(WAN, &Catalogue::builtin()).unwrap();
        for host in ways.iter().flat_map(|way| way.paths.iter().flatten()).chain(&problem.hosts()) {
            assert!(topology.host(host).is_some(), "{host}");
        }
    }

    #[test]
    fn a_problem_without_caps_is_refused() {
        let scenario = Scenario::parse(SCENARIO).unwrap();
        let capless = PROBLEM.replace("egress_cap_outside", "# egress_cap_outside");
        let error = scenario.problem(&capless).err().unwrap().to_string();
        assert!(error.contains("no site has an egress_cap"), "{error}");
    }
}
