//! The papers' experiments by name: their summaries, their runs, and the results.
//!
//! A run compares the paper's value with ours, states its assumptions, and reports whether the lab
//! kept time. Repeats take successive seeds; a row's interval is that of Student's t over them.
//! Each experiment has a scenario file, built in; another one may be given.

mod cp_real;
mod record;

use std::io;
use std::path::{Path, PathBuf};

use tradewind_model::Catalogue;
use tradewind_units::HostId;
use tradewind_wan::Topology;

use crate::contention;
use crate::demo::{DemoError, Observer, Stop};
use crate::download;
use crate::jump;
use crate::modelled;
use crate::numeric::{self, NumericError};
use crate::opening;
use crate::packets;
use crate::rates;
use crate::regions;
use crate::scenario::{Scenario, ScenarioError};
use crate::sharing;
use crate::soak;

pub use record::{Figure, Finding, Record, Row, SCHEMA_VERSION, Spot};

/// Options of a run.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// Another scenario than the built-in one.
    pub scenario: Option<PathBuf>,
    /// A CSV table of measured RTTs, for experiments that take one.
    pub rtt: Option<PathBuf>,
    /// Seed of the first repeat; the scenario's when absent.
    pub seed: Option<u64>,
    /// Number of repeats, each with the next seed; the scenario's number when absent, or one.
    pub repeat: Option<u32>,
    /// True to shorten the run, so that it ends within 45 s (on the lab: each repeat).
    pub quick: bool,
    /// True to run one part alone, on the lab, to see that it runs: its record holds no figure.
    pub first_part: bool,
    /// The binary `tradewind`, for processes on hosts of the lab.
    pub program: PathBuf,
    /// Set from outside to end the run.
    pub stop: Stop,
}

#[cfg(test)]
impl RunOptions {
    /// Returns the options of one plain run.
    pub(crate) fn of_tests() -> Self {
        Self {
            scenario: None,
            rtt: None,
            seed: None,
            repeat: None,
            quick: false,
            first_part: false,
            program: PathBuf::new(),
            stop: Stop::default(),
        }
    }
}

/// Reasons for which a run ended without a record.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// A run on the lab failed, or any run was stopped.
    #[error(transparent)]
    Demo(#[from] DemoError),
    /// A numeric one failed.
    #[error(transparent)]
    Numeric(#[from] NumericError),
    /// A built-in scenario makes no sense.
    #[error(transparent)]
    Scenario(#[from] ScenarioError),
    /// A given scenario makes no sense.
    #[error("{}: {error}", file.display())]
    GivenScenario {
        /// The file.
        file: PathBuf,
        /// The error in it.
        error: ScenarioError,
    },
    /// A given file cannot be read, or holds something else.
    #[error("{}: {what}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The error in it.
        what: String,
    },
    /// A table of RTTs for an experiment that cannot use one.
    #[error("{name}: it takes no table of RTTs (--rtt)")]
    NoTable {
        /// The experiment.
        name: &'static str,
    },
    /// The first part alone of an experiment that is not on the lab.
    #[error("{name}: it has no parts (--first-part), as it is not on the lab; --quick shortens it")]
    NoParts {
        /// The experiment.
        name: &'static str,
    },
}

impl ExperimentError {
    /// Returns whether what its user wrote is at fault, and not what the host lacks.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        match self {
            Self::GivenScenario { .. }
            | Self::File { .. }
            | Self::NoTable { .. }
            | Self::NoParts { .. } => true,
            Self::Demo(error) => error.is_of_configuration(),
            Self::Numeric(_) | Self::Scenario(_) => false,
        }
    }
}

/// Environment that an experiment runs in.
#[derive(Clone, Copy)]
enum Environment {
    /// The lab: real kernel TCP.
    Lab(fn(&Experiment, &RunOptions, &mut dyn Observer) -> Result<Record, ExperimentError>),
    /// Nothing but a processor.
    Numeric(numeric::Kind),
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
    /// The text of its built-in scenario, a file of `scenarios/`.
    pub scenario: &'static str,
    environment: Environment,
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
            Environment::Numeric(kind) => kind.takes_table(),
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
            Environment::Numeric(kind) => numeric::run(kind, self, options, observer),
        }
    }

    /// Checks that a text is a scenario of this experiment; `None` where that takes more than the
    /// text, as on the lab.
    #[must_use]
    pub fn check_text(&self, text: &str) -> Option<Result<(), ScenarioError>> {
        match self.environment {
            Environment::Lab(_) => None,
            Environment::Numeric(kind) => Some(numeric::check(kind, text)),
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

    /// Reads the scenario as [`Experiment::read`], for an experiment on the lab; its topology lies
    /// beside a given file.
    fn read_lab(&self, options: &RunOptions) -> Result<Scenario, ExperimentError> {
        let Some(file) = &options.scenario else { return Ok(Scenario::cp_real()?) };
        let beside = file.parent().unwrap_or(Path::new("."));
        let load = |name: &str| {
            let topology = beside.join(name);
            read_text(&topology).map_err(io::Error::other)
        };
        self.read(options, |text| Scenario::parse(text, load))
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

/// Files that built-in scenarios name: topologies, a planning problem, another experiment's places.
const NAMED: [(&str, &str); 12] = [
    ("cdd-wan.toml", include_str!("../../../../scenarios/cdd-wan.toml")),
    ("cdd-fair-wan.toml", include_str!("../../../../scenarios/cdd-fair-wan.toml")),
    ("cp-model.toml", include_str!("../../../../scenarios/cp-model.toml")),
    ("cp-real-wan.toml", Scenario::CP_REAL_WAN),
    ("jq-recovery.toml", include_str!("../../../../scenarios/jq-recovery.toml")),
    ("jq-video-wan.toml", include_str!("../../../../scenarios/jq-video-wan.toml")),
    ("plan/trn-contention.toml", include_str!("../../../../scenarios/plan/trn-contention.toml")),
    ("soak-wan.toml", include_str!("../../../../scenarios/soak-wan.toml")),
    ("stream-chains-wan.toml", include_str!("../../../../scenarios/stream-chains-wan.toml")),
    ("stream-wan.toml", include_str!("../../../../scenarios/stream-wan.toml")),
    ("trn-contention-wan.toml", include_str!("../../../../scenarios/trn-contention-wan.toml")),
    ("trn-wan.toml", include_str!("../../../../scenarios/trn-wan.toml")),
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

/// A numeric experiment of the list.
macro_rules! numeric {
    ($name:literal, $source:literal, $kind:ident, $summary:literal) => {
        Experiment {
            name: $name,
            source: $source,
            summary: $summary,
            scenario: include_str!(concat!("../../../../scenarios/", $name, ".toml")),
            environment: Environment::Numeric(numeric::Kind::$kind),
        }
    };
}

/// An experiment of the list that runs on real kernel TCP.
macro_rules! lab {
    ($name:literal, $source:literal, $run:path, $summary:literal) => {
        Experiment {
            name: $name,
            source: $source,
            summary: $summary,
            scenario: include_str!(concat!("../../../../scenarios/", $name, ".toml")),
            environment: Environment::Lab($run),
        }
    };
}

/// Returns all experiments, by paper and name.
#[must_use]
pub const fn all() -> &'static [Experiment] {
    ALL
}

const ALL: &[Experiment] = &[
    numeric!(
        "cp-model",
        "CP IV-C",
        Model,
        "rates by the paper's formula against the whole model of a transfer"
    ),
    lab!("cp-model-lab", "CP IV-C", modelled::run, "the same formula against kernel TCP"),
    lab!(
        "cp-kinds",
        "CP IV-A",
        rates::run,
        "direct, one forwarding relay, one and two splitting ones, by location"
    ),
    numeric!("cp-flows", "CP VII-B", Flows, "one source in Tokyo to more and more destinations"),
    numeric!("cp-budget", "CP VII-B", Budget, "what each algorithm makes of more budget"),
    numeric!("cp-cost", "CP VII-B", Cost, "free set-up, then free transfer"),
    numeric!("cp-lastmile", "CP VII-B", LastMile, "faster last miles, relays of two sizes"),
    numeric!("cp-usecases", "CP VII-B", UseCases, "the four use cases"),
    numeric!("cp-runtime", "CP VII-B", RunTime, "how long the algorithms take"),
    Experiment {
        name: "cp-real",
        source: "CP VII-C",
        summary: "full mesh of four sites, six dollars: plan, deploy, transfer, compare",
        scenario: Scenario::CP_REAL,
        environment: Environment::Lab(cp_real::run),
    },
    numeric!(
        "trn-scope",
        "TRN",
        Scope,
        "what a relay still gains once windows, connections and VM caps are seen to"
    ),
    lab!(
        "trn-single",
        "TRN",
        regions::run,
        "what one default connection carries between eleven regions"
    ),
    lab!(
        "trn-tuned",
        "TRN",
        regions::run,
        "raised windows, then one stream over many connections, below a VM's cap"
    ),
    lab!(
        "trn-scope-lab",
        "TRN",
        rates::run,
        "what a relay gains before and after tuning, on kernel TCP"
    ),
    lab!(
        "trn-vmcap",
        "TRN",
        rates::run,
        "connections share a VM's cap, wherever they go, whoever comes and goes"
    ),
    lab!("trn-intra", "TRN", rates::run, "a slow VM sends through a fast one of its own region"),
    lab!(
        "trn-contention",
        "TRN",
        contention::run,
        "one VM's flows to several regions, planned per link and per VM"
    ),
    lab!(
        "cdd-split",
        "CDD III-A",
        download::run,
        "forwarding against splitting with one to three relays, and Quick-Start"
    ),
    lab!("cdd-hops", "CDD III-B", download::run, "every single relay, every middle relay of three"),
    lab!("cdd-cc", "CDD III-C", download::run, "Cubic, BBR and Quick-Start at the relays"),
    lab!("cdd-small", "CDD III-E", download::run, "files of 17 and 18 KB, also with TCP Fast Open"),
    lab!(
        "cdd-fair",
        "CDD III-D",
        sharing::run,
        "what large initial windows do to others at a shared bottleneck"
    ),
    lab!("cdd-four", "CDD III-F", download::run, "four relays by least largest inner leg"),
    lab!("cdd-mixed", "CDD III-G", download::run, "relays of two clouds against those of one"),
    lab!(
        "cdd-sequence",
        "CDD III-D",
        download::run,
        "bytes over time between two relays: slow start's bursts, Quick-Start's slope"
    ),
    lab!("cdd-e2e", "CDD V", download::run, "BBR or large windows end to end against relays"),
    numeric!("cdd-rtt", "CDD", Rtt, "which gains round-trip times foretell, and which not"),
    lab!(
        "cdd-rtt-lab",
        "CDD III-F",
        download::run,
        "the same on kernel TCP: round trips beside measured gains"
    ),
    numeric!("jq-delay", "JQ 5.1", PacketDelay, "when packets arrive over each packet service"),
    numeric!("jq-cost", "JQ 5.1.1", PacketCost, "what each packet service costs"),
    numeric!(
        "jq-recovery",
        "JQ 5.2",
        PacketRecovery,
        "what coding recovers of what paths lose, with and without ARQ on access paths"
    ),
    numeric!(
        "jq-fec",
        "JQ 5.2",
        PacketFec,
        "what coding recovers beside repair packets on the direct path"
    ),
    numeric!(
        "jq-straggler",
        "JQ 5.2",
        PacketStraggler,
        "one repair packet across flows against two, where helpers answer late or not at all"
    ),
    lab!(
        "jq-recovery-lab",
        "JQ 5.2",
        packets::recovery::run,
        "the same of relays and gateways on the lab, beside the simulation"
    ),
    lab!(
        "jq-video",
        "JQ 5.3",
        packets::video::run,
        "a video and a voice call through an outage of their paths, by each packet service"
    ),
    lab!(
        "jq-tcp",
        "JQ 5.4",
        packets::tcp::run,
        "short transfers over lossy paths: kernel TCP inside packet services, and alone"
    ),
    lab!(
        "jq-mobile",
        "JQ 5.5",
        packets::mobile::run,
        "a call between phones with copies of all or of chosen packets, and a file beside it"
    ),
    numeric!("rt-model", "RT II-B", Rounds, "round trips that larger initial windows save"),
    numeric!("rt-cmax", "RT IV-B1", Cmax, "windows of 34 PoPs by the bound on what is learned"),
    numeric!(
        "rt-traffic",
        "RT IV-B1",
        Traffic,
        "windows at a busy PoP and at one with probes alone"
    ),
    lab!(
        "rt-probes",
        "RT IV-B2",
        jump::probes::run,
        "probes between 34 PoPs, with the daemon and without"
    ),
    lab!(
        "rt-guard",
        "ours",
        jump::guard::run,
        "what jumps cost on shallow queues, in crowds, on links that got worse"
    ),
    lab!("soak", "ours", soak::run, "sessions of all kinds for a quarter of an hour, under faults"),
    lab!("rt-ramp", "ours", jump::ramp::run, "1 MB against a round trip and its time on the wire"),
    lab!(
        "stream-chains",
        "ours",
        download::run,
        "files over two of our relays against two HAProxys, as they come and tuned by hand"
    ),
    lab!(
        "stream-first-byte",
        "ours",
        opening::first_byte::run,
        "when the first byte comes over a warm chain, by port forward and by TPROXY"
    ),
    lab!(
        "stream-failover",
        "ours",
        opening::failover::run,
        "how soon new sessions leave a path that dies or slows down"
    ),
    lab!(
        "packet-failover",
        "ours",
        packets::failover::run,
        "what packets see when a relay dies and comes back, and when a gateway is killed"
    ),
    lab!(
        "packet-uplink",
        "ours",
        packets::uplink::run,
        "whether copies congest what they protect on a short uplink, and whether auto steps back"
    ),
];

/// Returns the experiment of this name.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static Experiment> {
    all().iter().find(|experiment| experiment.name == name)
}
