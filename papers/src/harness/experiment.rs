//! An experiment and its scenario.

use std::path::Path;

use tradewind_demo::scenario::{Scenario, ScenarioError};
use tradewind_model::Catalogue;
use tradewind_output::progress::Observer;
use tradewind_units::HostId;
use tradewind_wan::Topology;

use super::{ExperimentError, Record, RunOptions};

/// Runs an experiment.
type Run = fn(&Experiment, &RunOptions, &mut dyn Observer) -> Result<Record, ExperimentError>;

/// Environment that an experiment runs in.
#[derive(Clone, Copy)]
pub(crate) enum Environment {
    /// The lab: real kernel TCP.
    Lab(Run),
    /// Nothing but a processor.
    Numeric {
        /// Runs it.
        run: Run,
        /// Checks that a text is a scenario of it.
        check: fn(&str) -> Result<(), ScenarioError>,
        /// True if it can use measured round-trip times.
        takes_table: bool,
    },
}

/// One experiment.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// Its name, e.g. `cp-real`.
    pub name: &'static str,
    /// Section of the paper that describes it.
    pub source: &'static str,
    /// Its summary, in a line.
    pub summary: &'static str,
    /// The text of its built-in scenario, a file of `papers/scenarios/`.
    pub scenario: &'static str,
    pub(crate) environment: Environment,
}

impl Experiment {
    /// Returns whether it runs on the lab (real kernel TCP); otherwise it is numeric.
    #[must_use]
    pub const fn on_lab(&self) -> bool {
        matches!(self.environment, Environment::Lab(_))
    }

    /// Returns whether its record has plots.
    #[must_use]
    pub fn has_plots(&self) -> bool {
        !WITHOUT_PLOTS.contains(&self.name)
    }

    /// Refuses options that it cannot use.
    ///
    /// # Errors
    /// [`ExperimentError::NoTable`] and [`ExperimentError::NoParts`].
    pub fn check(&self, options: &RunOptions) -> Result<(), ExperimentError> {
        let takes_table = match self.environment {
            Environment::Lab(_) => false,
            Environment::Numeric { takes_table, .. } => takes_table,
        };
        if options.rtt.is_some() && !takes_table {
            return Err(ExperimentError::NoTable { name: self.name });
        }
        if options.first_part && !self.on_lab() {
            return Err(ExperimentError::NoParts { name: self.name });
        }
        Ok(())
    }

    /// Runs it.
    ///
    /// # Errors
    /// When a given option or file makes no sense, the lab or a process on it fails, or the run is
    /// stopped.
    pub fn run(
        &self,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Record, ExperimentError> {
        self.check(options)?;
        match self.environment {
            Environment::Lab(run) => {
                let mut record = run(self, options, observer)?;
                if options.first_part {
                    self.name.clone_into(&mut record.name);
                }
                Ok(record)
            }
            Environment::Numeric { run, .. } => run(self, options, observer),
        }
    }

    /// Checks that a text is a scenario of this experiment; `None` where that takes more than the
    /// text, as on the lab.
    #[must_use]
    pub fn check_text(&self, text: &str) -> Option<Result<(), ScenarioError>> {
        match self.environment {
            Environment::Lab(_) => None,
            Environment::Numeric { check, .. } => Some(check(text)),
        }
    }

    /// Reads its scenario, the given one or the built-in one.
    pub(crate) fn read<T>(
        &self,
        options: &RunOptions,
        parse: impl FnOnce(&str) -> Result<T, ScenarioError>,
    ) -> Result<T, ExperimentError> {
        let Some(file) = &options.scenario else { return Ok(parse(self.scenario)?) };
        parse(&read_text(file)?)
            .map_err(|error| ExperimentError::GivenScenario { file: file.clone(), error })
    }

    /// Reads a file that the scenario names: beside a given one, or built in.
    pub(crate) fn beside(
        &self,
        options: &RunOptions,
        name: &str,
    ) -> Result<String, ExperimentError> {
        if let Some(file) = &options.scenario {
            return read_text(&file.parent().unwrap_or(Path::new(".")).join(name));
        }
        let known = NAMED.iter().find(|(known, _)| *known == name);
        known.map(|(_, text)| (*text).to_owned()).ok_or_else(|| {
            let what = format!("`{name}` is not built in");
            ExperimentError::Scenario(ScenarioError::Inconsistent { what })
        })
    }

    /// Reads a topology that the scenario names; `lacks` returns what the scenario misses in it.
    pub(crate) fn read_topology(
        &self,
        options: &RunOptions,
        name: &str,
        lacks: impl FnOnce(&Topology) -> Option<String>,
    ) -> Result<Topology, ExperimentError> {
        let text = self.beside(options, name)?;
        self.read(options, |_| {
            let wrong =
                |what: String| ScenarioError::Inconsistent { what: format!("{name}: {what}") };
            let topology =
                Topology::parse(&text, &Catalogue::builtin()).map_err(|e| wrong(e.to_string()))?;
            lacks(&topology).map_or(Ok(topology), |what| Err(wrong(what)))
        })
    }
}

/// Names the first of `hosts` that is not in a topology.
pub(crate) fn missing<'a>(
    topology: &Topology,
    hosts: impl IntoIterator<Item = &'a HostId>,
) -> Option<String> {
    let missing = hosts.into_iter().find(|host| topology.host(host).is_none());
    missing.map(|host| format!("no host `{host}`"))
}

/// Reads a text file that a user named.
pub(crate) fn read_text(file: &Path) -> Result<String, ExperimentError> {
    std::fs::read_to_string(file)
        .map_err(|error| ExperimentError::File { file: file.to_owned(), what: error.to_string() })
}

/// Refuses the first value outside its range; each item is a name, the value, the minimum and the
/// maximum.
pub(crate) fn within<'a>(
    ranges: impl IntoIterator<Item = (&'a str, f64, f64, f64)>,
) -> Result<(), ScenarioError> {
    for (name, value, least, most) in ranges {
        if !(least..=most).contains(&value) {
            let what = format!("{name}: {value} given, expected {least} to {most}");
            return Err(ScenarioError::Inconsistent { what });
        }
    }
    Ok(())
}

/// Files that built-in scenarios name: topologies, a planning problem, another experiment's places.
const NAMED: [(&str, &str); 12] = [
    ("cdd-wan.toml", include_str!("../../scenarios/cdd-wan.toml")),
    ("cdd-fair-wan.toml", include_str!("../../scenarios/cdd-fair-wan.toml")),
    ("cp-model.toml", include_str!("../../scenarios/cp-model.toml")),
    ("cp-real-wan.toml", Scenario::CP_REAL_WAN),
    ("jq-recovery.toml", include_str!("../../scenarios/jq-recovery.toml")),
    ("jq-video-wan.toml", include_str!("../../scenarios/jq-video-wan.toml")),
    ("plan/trn-contention.toml", include_str!("../../scenarios/plan/trn-contention.toml")),
    ("soak-wan.toml", include_str!("../../scenarios/soak-wan.toml")),
    ("stream-chains-wan.toml", include_str!("../../scenarios/stream-chains-wan.toml")),
    ("stream-wan.toml", include_str!("../../scenarios/stream-wan.toml")),
    ("trn-contention-wan.toml", include_str!("../../scenarios/trn-contention-wan.toml")),
    ("trn-wan.toml", include_str!("../../scenarios/trn-wan.toml")),
];

/// Experiments whose records are tables alone.
const WITHOUT_PLOTS: [&str; 7] = [
    "cp-real",
    "jq-mobile",
    "packet-failover",
    "packet-uplink",
    "rt-ramp",
    "stream-first-byte",
    "stream-failover",
];
