//! Scenario files of the placement experiments: settings of [CP VII-A], and their variations.
//!
//! `[setting]` holds everything; each of `points`, and each of `lines` if there are several,
//! changes some of it.

use serde::Deserialize;
use toml::Spanned;
use tradewind_plan::solver::names;
use tradewind_units::time::duration_from_millis;
use tradewind_units::{Bandwidth, Bytes, Money, PricePerGb, RegionId};

use super::cases::{Setting, UseCase};
use crate::harness::{Runs, ScenarioError, catalogue, from_toml};

/// Most flows of a point. Chosen: the five heuristics take minutes a run there.
const MAX_FLOWS: usize = 1_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScenarioFile {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    algorithms: Vec<Spanned<String>>,
    regions: Vec<Spanned<RegionId>>,
    show: Vec<Measure>,
    #[serde(default)]
    x: Option<Axis>,
    setting: Terms,
    #[serde(default)]
    lines: Vec<Terms>,
    points: Vec<Terms>,
    #[serde(default)]
    paper: Vec<PaperValue>,
}

/// A measure of each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// Direct over planned total FCT.
    Acceleration,
    /// Relays set up.
    Relays,
    /// Share of the cost for setting relays up.
    SetUpShare,
    /// Share of the flows that go over no relay.
    Direct,
    /// Share of the flows that go over one.
    OneRelay,
    /// Share of the flows that go over two.
    TwoRelays,
    /// Time to solve.
    SolveMs,
    /// Its processor time, where the kernel reports it.
    CpuMs,
}

impl Measure {
    /// Returns its name for people, and its unit.
    #[must_use]
    pub const fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Acceleration => ("acceleration", "x"),
            Self::Relays => ("relays", ""),
            Self::SetUpShare => ("share of the cost that is set-up", "%"),
            Self::Direct => ("flows that go direct", "%"),
            Self::OneRelay => ("flows over one relay", "%"),
            Self::TwoRelays => ("flows over two relays", "%"),
            Self::SolveMs => ("time to solve", "ms"),
            Self::CpuMs => ("processor time to solve", "ms"),
        }
    }
}

/// The key of the settings that the horizontal axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Number of flows.
    Flows,
    /// Budget of a flow in dollars.
    BudgetUsdPerFlow,
    /// Mbit/s of last miles; a logarithmic axis.
    LastMile,
}

/// A figure of the paper's text.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperValue {
    /// The measure.
    pub show: Measure,
    /// The algorithm.
    pub algorithm: String,
    /// The name of the point; all points when absent.
    #[serde(default)]
    pub point: Option<String>,
    /// The figure.
    pub value: f64,
}

/// Settings, or changes of them.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Terms {
    name: Option<String>,
    use_case: Option<UseCase>,
    source: Option<RegionId>,
    flows: Option<usize>,
    volume: Option<Bytes>,
    budget_usd_per_flow: Option<Money>,
    relay_setup_usd: Option<Money>,
    egress_usd_per_gb: Option<PricePerGb>,
    relay_capacity: Option<Bandwidth>,
    relay_per_connection: Option<Bandwidth>,
    last_mile: Option<Bandwidth>,
    near_rtt_ms: Option<f64>,
}

impl Terms {
    /// Returns these, completed by those of `base`.
    fn over(&self, base: &Self) -> Self {
        Self {
            name: self.name.clone().or_else(|| base.name.clone()),
            use_case: self.use_case.or(base.use_case),
            source: self.source.clone().or_else(|| base.source.clone()),
            flows: self.flows.or(base.flows),
            volume: self.volume.or(base.volume),
            budget_usd_per_flow: self.budget_usd_per_flow.or(base.budget_usd_per_flow),
            relay_setup_usd: self.relay_setup_usd.or(base.relay_setup_usd),
            egress_usd_per_gb: self.egress_usd_per_gb.or(base.egress_usd_per_gb),
            relay_capacity: self.relay_capacity.or(base.relay_capacity),
            relay_per_connection: self.relay_per_connection.or(base.relay_per_connection),
            last_mile: self.last_mile.or(base.last_mile),
            near_rtt_ms: self.near_rtt_ms.or(base.near_rtt_ms),
        }
    }

    fn setting(self, regions: &[RegionId]) -> Result<Setting, String> {
        let missing = |key: &str| format!("setting: `{key}` is missing");
        let flows = self.flows.ok_or_else(|| missing("flows"))?;
        if !(1..=MAX_FLOWS).contains(&flows) {
            return Err(format!("flows: {flows} given, expected 1 to {MAX_FLOWS}"));
        }
        let near = self.near_rtt_ms.ok_or_else(|| missing("near_rtt_ms"))?;
        // Below it no place is near: the distance model's fixed part alone is 3.5 ms.
        if !(5.0..=1_000.0).contains(&near) {
            return Err(format!("near_rtt_ms: {near} given, expected 5 to 1000"));
        }
        let near = duration_from_millis(near).map_err(|error| format!("near_rtt_ms: {error}"))?;
        if let Some(source) = self.source.as_ref().filter(|source| !regions.contains(source)) {
            return Err(format!("source: `{source}` is not among `regions`"));
        }
        Ok(Setting {
            use_case: self.use_case.ok_or_else(|| missing("use_case"))?,
            source: self.source,
            flows,
            volume: self.volume.ok_or_else(|| missing("volume"))?,
            budget_per_flow: self
                .budget_usd_per_flow
                .ok_or_else(|| missing("budget_usd_per_flow"))?,
            set_up: self.relay_setup_usd.ok_or_else(|| missing("relay_setup_usd"))?,
            egress: self.egress_usd_per_gb.ok_or_else(|| missing("egress_usd_per_gb"))?,
            capacity: self.relay_capacity.ok_or_else(|| missing("relay_capacity"))?,
            per_connection: self
                .relay_per_connection
                .ok_or_else(|| missing("relay_per_connection"))?,
            last_mile: self.last_mile.ok_or_else(|| missing("last_mile"))?,
            near,
        })
    }
}

/// A checked scenario.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its assumptions, a sentence each.
    pub assumptions: Vec<String>,
    /// Number of runs, and their seeds.
    pub runs: Runs,
    /// The names of the algorithms that are compared.
    pub algorithms: Vec<String>,
    /// Regions in which relays may run, and near which end points lie.
    pub regions: Vec<RegionId>,
    /// Measures that are shown, a figure each.
    pub show: Vec<Measure>,
    /// The horizontal axis; names of the points when absent.
    pub x: Option<Axis>,
    /// The variations: for each line (unnamed if there is but one) its points.
    pub points: Vec<PointSetting>,
    /// Figures of the paper's text.
    pub paper: Vec<PaperValue>,
}

/// One point.
#[derive(Debug, Clone)]
pub struct PointSetting {
    /// The line's name, where there are several.
    pub line: Option<String>,
    /// Its name.
    pub name: String,
    /// Its position on the horizontal axis.
    pub x: f64,
    /// Its setting.
    pub setting: Setting,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let file: ScenarioFile = from_toml(text)?;
        let line_of = |at: usize| 1 + text[..at].matches('\n').count();
        check_names(&file, line_of)?;
        if file.points.is_empty() || file.show.is_empty() || file.algorithms.is_empty() {
            let what = "points, show, algorithms: each needs an entry".to_owned();
            return Err(ScenarioError::Inconsistent { what });
        }
        let regions: Vec<RegionId> =
            file.regions.iter().map(|region| region.get_ref().clone()).collect();
        let points = points(&file, &regions)?;
        Ok(Self {
            name: file.name,
            assumptions: file.assumptions,
            runs: file.runs,
            algorithms: file.algorithms.into_iter().map(Spanned::into_inner).collect(),
            regions,
            show: file.show,
            x: file.x,
            points,
            paper: file.paper,
        })
    }
}

fn points(file: &ScenarioFile, regions: &[RegionId]) -> Result<Vec<PointSetting>, ScenarioError> {
    let one = [Terms::default()];
    let lines = if file.lines.is_empty() { &one[..] } else { &file.lines };
    let mut points = Vec::new();
    for line in lines {
        for (index, point) in file.points.iter().enumerate() {
            let terms = point.over(&line.over(&file.setting));
            let wrong = |what: String| ScenarioError::Inconsistent {
                what: format!("point {}: {what}", index + 1),
            };
            let setting = terms.setting(regions).map_err(wrong)?;
            setting.check(regions).map_err(wrong)?;
            let (x, name) = match file.x {
                Some(axis) => axis.of(&setting),
                None => (index as f64, format!("point {}", index + 1)),
            };
            let name = point.name.clone().unwrap_or(name);
            points.push(PointSetting { line: line.name.clone(), name, x, setting });
        }
    }
    Ok(points)
}

fn check_names(file: &ScenarioFile, line_of: impl Fn(usize) -> usize) -> Result<(), ScenarioError> {
    let refused =
        |at: usize, problem: String| Err(ScenarioError::Toml { line: line_of(at), problem });
    for algorithm in &file.algorithms {
        if !names().any(|name| name == algorithm.get_ref()) {
            let known: Vec<&str> = names().collect();
            let given = algorithm.get_ref();
            return refused(
                algorithm.span().start,
                format!("algorithms: no `{given}`; there are {}", known.join(", ")),
            );
        }
    }
    for region in &file.regions {
        if let Err(error) = catalogue().require(region.get_ref()) {
            let meant = catalogue().did_you_mean(region.get_ref().as_str());
            return refused(region.span().start, format!("regions: {error}{meant}"));
        }
    }
    if file.regions.is_empty() {
        return Err(ScenarioError::Inconsistent { what: "regions: at least one".to_owned() });
    }
    Ok(())
}

impl Axis {
    /// Returns a setting's position on it, and that in words.
    fn of(self, setting: &Setting) -> (f64, String) {
        match self {
            Self::Flows => (setting.flows as f64, format!("{} flows", setting.flows)),
            Self::BudgetUsdPerFlow => {
                let usd = setting.budget_per_flow.as_usd();
                (usd, format!("${usd:.2} a flow"))
            }
            Self::LastMile => (setting.last_mile.as_mbps(), setting.last_mile.to_string()),
        }
    }

    /// Returns its label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Flows => "flows",
            Self::BudgetUsdPerFlow => "budget a flow in dollars",
            Self::LastMile => "last mile in Mbit/s",
        }
    }
}
