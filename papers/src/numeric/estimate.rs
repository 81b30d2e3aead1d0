//! `cdd-rtt`, its numeric half \[CDD, "Is RTT a Good Proxy for Performance?"\]: the gains that RTTs
//! predict.
//!
//! Three estimates, each a ratio of RTTs: one forwarding relay over direct (whole RTTs), three
//! split relays over two (the inner leg over the larger of the two that replace it), one split
//! relay over direct (the direct RTT over the larger leg). The paper found the first two to
//! correlate with measured gains and the third one to fail. Here gains are the completion-time
//! model's, over losses that the paper does not state: the same on every leg of the open Internet,
//! or one of each leg's own.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use tradewind_model::StartUp;
use tradewind_model::cost::Prices;
use tradewind_model::fct::path_completion;
use tradewind_output::chart::Scale;
use tradewind_plan::RelayType;
use tradewind_plan::routing::advice::{Settings, legs};
use tradewind_plan::routing::{MinMaxPath, Router};
use tradewind_units::{Bandwidth, Bytes, RegionId};

use super::formula::{check_losses, lossy};
use super::rtts::{Rtts, others};
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Random, Record, Row, Runs, ScenarioError, Spot, catalogue,
    correlation, from_toml, quantile,
};

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// Its assumptions, a sentence each.
    #[serde(default)]
    pub assumptions: Vec<String>,
    /// Number of runs, and their seeds.
    pub runs: Runs,
    /// Volume of a download.
    pub volume: Bytes,
    /// Window of every connection.
    pub window: Bytes,
    /// Rate of end points, each way.
    pub last_mile: Bandwidth,
    /// Losses that all legs with an end point have, in per cent: a case each.
    pub same_loss_percent: Vec<f64>,
    /// Least and largest loss of legs that have one of their own, in per cent: one more case.
    pub own_loss_percent: [f64; 2],
    /// End points that download, and the clouds of their relays.
    pub pairs: Vec<Pair>,
}

/// A pair of end points, and a cloud whose regions may hold relays.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// The region that stands for the source's city, of another cloud.
    pub from: RegionId,
    /// The region that stands for the destination's.
    pub to: RegionId,
    /// The relays' cloud.
    pub relays_of: String,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        check_losses("same_loss_percent", &scenario.same_loss_percent)?;
        check_losses("own_loss_percent", &scenario.own_loss_percent)?;
        let [least, most] = scenario.own_loss_percent;
        if least <= 0.0 || most < least {
            return wrong(format!(
                "own_loss_percent: [{least}, {most}] given, expected a range above 0"
            ));
        }
        if scenario.volume.as_u64() == 0 || scenario.window.as_u64() == 0 {
            return wrong("volume, window: above zero".to_owned());
        }
        for pair in &scenario.pairs {
            if let Some(id) =
                [&pair.from, &pair.to].iter().find(|id| catalogue().region(id).is_none())
            {
                return wrong(format!(
                    "pairs: `{id}` is not in the catalogue{}",
                    catalogue().did_you_mean(id.as_str())
                ));
            }
            if regions_of(&pair.relays_of).len() < 3 {
                let cloud = &pair.relays_of;
                return wrong(format!(
                    "pairs: relays_of: `{cloud}` has not three regions in the catalogue"
                ));
            }
            if pair.from == pair.to {
                return wrong(format!("pairs: from `{}` to itself", pair.from));
            }
        }
        if scenario.pairs.is_empty() {
            return wrong("pairs: at least one".to_owned());
        }
        Ok(scenario)
    }
}

fn regions_of(cloud: &str) -> Vec<RegionId> {
    let ids = catalogue().regions().map(|region| region.id.clone());
    ids.filter(|id| id.cloud() == cloud).collect()
}

/// Losses of legs in one case of one run.
enum Losses {
    Same(f64),
    /// One for each leg between an end (source: `true`) and a relay, and one for the direct path.
    Own(BTreeMap<(bool, Option<usize>), f64>),
}

impl Losses {
    fn own(relays: usize, [least, most]: [f64; 2], random: &mut Random) -> Self {
        let keys = (0..relays).map(Some).flat_map(|relay| [(true, relay), (false, relay)]);
        let keys: Vec<(bool, Option<usize>)> = keys.chain([(true, None)]).collect();
        Self::Own(keys.into_iter().map(|key| (key, random.log_uniform(least, most))).collect())
    }

    fn at(&self, source: bool, relay: Option<usize>) -> f64 {
        match self {
            Self::Same(percent) => *percent,
            Self::Own(all) => all.get(&(source, relay)).copied().unwrap_or_default(),
        }
    }
}

/// Estimates, each with the model's gain.
#[derive(Default, Clone)]
struct Pairs([Vec<(f64, f64)>; ESTIMATES.len()]);

/// The three estimates.
const ESTIMATES: [&str; 3] = [
    "one forwarding relay over direct",
    "three split relays over two",
    "one split relay over direct",
];
const FORWARDED: usize = 0;
const THIRD: usize = 1;
const SINGLE: usize = 2;

/// Times of paths in one case of one run.
struct Clock<'a> {
    settings: &'a Settings,
    losses: &'a Losses,
}

impl Clock<'_> {
    /// Returns the seconds over a path whose relays split.
    fn split(&self, path: &MinMaxPath) -> f64 {
        let first = self.losses.at(true, path.relays.first().copied());
        let last = self.losses.at(false, path.relays.last().copied());
        self.seconds(path, first, last)
    }

    /// Returns the seconds over a path whose relay forwards: one connection, both legs' RTTs and
    /// losses.
    fn forwarded(&self, path: &MinMaxPath) -> f64 {
        let whole = MinMaxPath { relays: Vec::new(), rtts: vec![path.total_rtt()] };
        let relay = path.relays.first().copied();
        let (a, b) = (self.losses.at(true, relay), self.losses.at(false, relay));
        // With the same loss everywhere, a path loses as the direct one does: its loss counts once.
        let loss =
            if let Losses::Same(percent) = self.losses { *percent } else { a + b - a * b / 100.0 };
        self.seconds(&whole, loss, loss)
    }

    fn seconds(&self, path: &MinMaxPath, first: f64, last: f64) -> f64 {
        let mut legs = legs(path, self.settings);
        let end = legs.len() - 1;
        for (index, loss) in [(end, last), (0, first)] {
            if loss > 0.0 {
                legs[index] = lossy(legs[index], loss);
            }
        }
        path_completion(&legs, self.settings.volume, self.settings.start_up).total().as_secs_f64()
    }
}

fn compare(router: &Router, clock: &Clock<'_>, pairs: &mut Pairs) {
    let Some(direct) = router.path(&[]) else { return };
    let direct_s = clock.split(&direct);
    let direct_rtt = direct.total_rtt().as_secs_f64();
    for path in router.best(1, usize::MAX) {
        let forwarded = direct_rtt / path.total_rtt().as_secs_f64();
        pairs.0[FORWARDED].push((forwarded, direct_s / clock.forwarded(&path)));
        let single = direct_rtt / path.largest_leg().as_secs_f64();
        pairs.0[SINGLE].push((single, direct_s / clock.split(&path)));
    }
    let two = router.cloudified(2, 1);
    let Some(two_s) = two.first().map(|path| clock.split(path)) else { return };
    for path in router.cloudified(3, usize::MAX) {
        if let Some(estimate) = router.gain_over_two(&path) {
            pairs.0[THIRD].push((estimate, two_s / clock.split(&path)));
        }
    }
}

fn settings(scenario: &Scenario) -> Settings {
    Settings {
        source: None,
        volume: scenario.volume,
        most_relays: 3,
        window: scenario.window,
        relay_window: scenario.window,
        last_mile: Some(scenario.last_mile),
        loss: None,
        connections: 1,
        relay_type: RelayType::cloudpilot(),
        prices: Prices::cloudpilot(),
        destination: None,
        start_up: StartUp::Cold,
    }
}

/// Returns the names of the cases, in order.
fn cases(scenario: &Scenario) -> Vec<String> {
    let [least, most] = scenario.own_loss_percent;
    let same = scenario.same_loss_percent.iter().map(|percent| format!("{percent} %"));
    same.chain([format!("own, {least} to {most} %")]).collect()
}

/// Returns the estimates and gains of one run, case by case.
fn one(
    scenario: &Scenario,
    rtts: &Rtts<'_>,
    random: &mut Random,
) -> Result<Vec<Pairs>, NumericError> {
    let settings = settings(scenario);
    let mut all = vec![Pairs::default(); scenario.same_loss_percent.len() + 1];
    for pair in &scenario.pairs {
        let relays = others(&regions_of(&pair.relays_of), &pair.from, &pair.to);
        let router = rtts.router(&pair.from, &pair.to, &relays);
        let own = Losses::own(relays.len(), scenario.own_loss_percent, random);
        let same = scenario.same_loss_percent.iter().map(|percent| Losses::Same(*percent));
        for (losses, pairs) in same.chain([own]).zip(&mut all) {
            compare(&router, &Clock { settings: &settings, losses: &losses }, pairs);
        }
    }
    if all[0].0.iter().any(|pairs| pairs.len() < 3) {
        let what = "pairs: too few paths with known RTTs to correlate".to_owned();
        return Err(NumericError::Nothing { what });
    }
    Ok(all)
}

/// Runs the experiment.
///
/// # Errors
/// When too few RTTs are known, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let table = job.table.take();
    let seeds = scenario.runs.seeds(job.options);
    let mut regions: BTreeSet<RegionId> = BTreeSet::new();
    for pair in &scenario.pairs {
        regions.extend(regions_of(&pair.relays_of));
        regions.extend([pair.from.clone(), pair.to.clone()]);
    }
    let step = format!("{}: {} cases", scenario.name, scenario.same_loss_percent.len() + 1);
    let runs = each(&step, &seeds, Threads::All, job, |seed| {
        let mut random = Random::new(seed);
        let rtts = Rtts::new(table.as_ref(), &regions, &mut random)?;
        one(scenario, &rtts, &mut random)
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    super::add_rtt_assumption(&mut record, table.is_some());
    rows(scenario, &runs, &mut record);
    findings(scenario, &runs, &mut record);
    Ok(record)
}

fn rows(scenario: &Scenario, runs: &[Vec<Pairs>], record: &mut Record) {
    let figure = |title: &str, y_label: &str| Figure {
        title: title.to_owned(),
        x_label: "loss towards end points".to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Names,
    };
    record.figures = vec![
        figure("correlation of estimated and modelled gains", "Pearson's coefficient"),
        figure("how far the estimate is off, median over the paths", "off by (%)"),
    ];
    let off = |pairs: &[(f64, f64)]| {
        let off: Vec<f64> =
            pairs.iter().map(|(estimate, gain)| 100.0 * (estimate / gain - 1.0).abs()).collect();
        quantile(&off, 0.5)
    };
    for (index, case) in cases(scenario).into_iter().enumerate() {
        for (estimate, line) in ESTIMATES.into_iter().enumerate() {
            let paths = format!("{} paths a run", runs[0][index].0[estimate].len());
            for (figure, (what, unit)) in
                [("correlation", ""), ("off by", "%")].into_iter().enumerate()
            {
                let of = |pairs: &[(f64, f64)]| {
                    if figure == 0 { correlation(pairs) } else { off(pairs) }
                };
                let values: Vec<f64> = runs.iter().map(|run| of(&run[index].0[estimate])).collect();
                let spot =
                    Spot { figure, line: line.to_owned(), x: index as f64, x_name: case.clone() };
                let name = format!("{what}, {line}, loss {case}");
                record.rows.push(Row::of(&name, None, &values, unit, &paths).drawn_at(spot));
            }
        }
    }
}

/// Correlation from which on an estimate counts as correlated. Chosen: half of the variance
/// explained; the paper shows plots without a figure.
pub(crate) const CORRELATES: f64 = 0.7;

fn findings(scenario: &Scenario, runs: &[Vec<Pairs>], record: &mut Record) {
    let names = cases(scenario);
    let mean = |case: usize, estimate: usize| {
        let all = runs.iter().map(|run| correlation(&run[case].0[estimate]));
        crate::harness::mean(&all.collect::<Vec<f64>>())
    };
    let own = names.len() - 1;
    for (estimate, paper) in [
        (FORWARDED, "without splitting, end-to-end RTT foretells the gain"),
        (THIRD, "with splitting, RTTs foretell what three relays gain over two"),
    ] {
        let all: Vec<f64> = (0..names.len()).map(|case| mean(case, estimate)).collect();
        let words: Vec<String> =
            names.iter().zip(&all).map(|(case, value)| format!("{value:.2} at {case}")).collect();
        let holds = all.iter().all(|value| *value >= CORRELATES);
        let ours = format!("correlation {}", words.join(", "));
        record.findings.push(Finding::new(paper, holds, ours));
    }
    let (single, third) = (mean(own, SINGLE), mean(own, THIRD));
    record.findings.push(Finding::new(
        "for a single split relay the estimate fails, possibly by congestion and loss",
        single < CORRELATES && single < third,
        format!(
            "correlation {single:.2} where each leg has its own loss; {:.2} where none has any",
            mean(0, SINGLE)
        ),
    ));
}
