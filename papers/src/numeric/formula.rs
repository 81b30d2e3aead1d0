//! `cp-model`, its numeric half [CP IV-C]: CP's formula for rates, compared with our whole model of
//! a transfer.
//!
//! CP measured the rate of 40 s long transfers over some 75 tuples of source, destination and
//! relays, and found its formula, the least of window over RTT and bandwidth, near to all. Here the
//! completion-time model takes the place of the measurement: dialling, slow start, relays' buffers,
//! and loss, all of which the formula leaves out. So this half shows the cost of the formula's
//! assumptions; the other half, `cp-model-lab`, measures on kernel TCP.

use serde::Deserialize;
use tradewind_model::fct::{path_completion, path_rate};
use tradewind_model::leg::Loss;
use tradewind_model::tcp::LossResponse;
use tradewind_model::{Coordinates, Leg, RttModel, StartUp};
use tradewind_output::chart::Scale;
use tradewind_plan::RelayType;
use tradewind_plan::routing::MinMaxPath;
use tradewind_plan::routing::advice::{Settings, legs};
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, RegionId};

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
    /// Tuples drawn of each setting in each run.
    pub tuples: usize,
    /// Time for which a rate is measured, in seconds.
    pub measured_s: f64,
    /// Window of connections with an end point.
    pub window: Bytes,
    /// Window between relays.
    pub relay_window: Bytes,
    /// Rate of one connection through a relay.
    pub relay_per_connection: Bandwidth,
    /// Rate of end points, each way.
    pub last_mile: Bandwidth,
    /// Losses on legs with an end point, in per cent.
    pub loss_percent: Vec<f64>,
    /// Places from which sources, destinations and relays are drawn.
    pub settings: Vec<Places>,
}

/// Places from which sources, destinations and relays are drawn.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Places {
    /// Its name.
    pub name: String,
    /// Regions, or `latitude,longitude`.
    pub sources: Vec<String>,
    /// Regions, or `latitude,longitude`.
    pub destinations: Vec<String>,
    /// Regions.
    pub relays: Vec<RegionId>,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        if !(1..=10_000).contains(&scenario.tuples) {
            return wrong(format!("tuples: {} given, expected 1 to 10000", scenario.tuples));
        }
        if !(1.0..=3600.0).contains(&scenario.measured_s) {
            return wrong(format!("measured_s: {} given, expected 1 to 3600", scenario.measured_s));
        }
        check_losses("loss_percent", &scenario.loss_percent)?;
        if scenario.settings.is_empty() {
            return wrong("settings: at least one".to_owned());
        }
        for places in &scenario.settings {
            places.check()?;
        }
        Ok(scenario)
    }
}

/// Refuses shares that no loss can have.
pub(super) fn check_losses(key: &str, percent: &[f64]) -> Result<(), ScenarioError> {
    let wrong = percent.iter().find(|loss| !(0.0..=50.0).contains(*loss));
    let what = match wrong {
        Some(loss) => format!("{key}: {loss} given, expected 0 to 50 per cent"),
        None if percent.is_empty() => format!("{key}: at least one"),
        None => return Ok(()),
    };
    Err(ScenarioError::Inconsistent { what })
}

impl Places {
    fn check(&self) -> Result<(), ScenarioError> {
        let wrong = |what: String| {
            Err(ScenarioError::Inconsistent { what: format!("settings: `{}`: {what}", self.name) })
        };
        for (key, names) in [("sources", &self.sources), ("destinations", &self.destinations)] {
            if let Some(name) = names.iter().find(|name| place(name).is_none()) {
                return wrong(format!(
                    "{key}: `{name}`: expected a region of the catalogue or `latitude,longitude`"
                ));
            }
        }
        let unknown = self.relays.iter().find(|id| place(id.as_str()).is_none());
        if let Some(id) = unknown {
            return wrong(format!(
                "relays: `{id}` is not in the catalogue{}",
                catalogue().did_you_mean(id.as_str())
            ));
        }
        // One for each end, at which no relay may lie, and two for a path.
        if self.relays.len() < 4 {
            return wrong(format!(
                "relays: {} given, at least 4 are drawn from",
                self.relays.len()
            ));
        }
        let drawn = |names: &[String]| !names.is_empty();
        let differ = self.sources.len() > 1 || self.sources != self.destinations;
        if !drawn(&self.sources) || !drawn(&self.destinations) || !differ {
            return wrong("sources, destinations: two places at least".to_owned());
        }
        Ok(())
    }
}

/// Returns the coordinates of a region, or those written.
fn place(name: &str) -> Option<Coordinates> {
    if let Some((latitude, longitude)) = name.split_once(',') {
        let degrees = |text: &str| text.trim().parse::<f64>().ok();
        return Coordinates::new(degrees(latitude)?, degrees(longitude)?).ok();
    }
    Some(catalogue().region(&RegionId::new(name).ok()?)?.location)
}

/// One tuple: source, two relays, destination. It gives the paths over no relay, the first one and
/// both.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuple {
    stops: [Coordinates; 4],
}

/// Kinds of paths by their number of relays.
pub(crate) const KINDS: [&str; 3] = ["direct", "one relay", "two relays"];

impl Tuple {
    /// Returns the path over so many relays, with its round trips.
    pub(crate) fn path(&self, relays: usize) -> MinMaxPath {
        let stops = self.stops;
        let stops: Vec<Coordinates> = stops[..=relays].iter().chain(&stops[3..]).copied().collect();
        let rtts = stops.windows(2).map(|ends| RttModel::fitted().rtt_between(ends[0], ends[1]));
        MinMaxPath { relays: (0..relays).collect(), rtts: rtts.collect() }
    }
}

/// Draws a tuple; an end may be a region, and then no relay lies there.
pub(crate) fn draw(places: &Places, random: &mut Random) -> Tuple {
    let at = |name: &str| place(name).expect("the scenario was checked");
    let (source, destination) = loop {
        let source = &places.sources[random.draw(places.sources.len())];
        let destination = &places.destinations[random.draw(places.destinations.len())];
        if source != destination {
            break (source, destination);
        }
    };
    let free: Vec<&RegionId> = (places.relays.iter())
        .filter(|id| id.as_str() != source && id.as_str() != destination)
        .collect();
    let first = random.draw(free.len());
    let second = (first + 1 + random.draw(free.len() - 1)) % free.len();
    let (first, second) = (at(free[first].as_str()), at(free[second].as_str()));
    Tuple { stops: [at(source), first, second, at(destination)] }
}

/// Returns the rate of the path over so many relays by the paper's formula.
pub(crate) fn predicted(scenario: &Scenario, tuple: &Tuple, relays: usize) -> Bandwidth {
    path_rate(&legs(&tuple.path(relays), &settings(scenario)))
}

/// Returns the settings of the paper's machines; losses are added to legs afterwards.
fn settings(scenario: &Scenario) -> Settings {
    let relay_type = RelayType {
        per_connection: Some(scenario.relay_per_connection),
        ..RelayType::cloudpilot()
    };
    Settings {
        source: None,
        volume: Bytes::new(0),
        most_relays: 2,
        window: scenario.window,
        relay_window: scenario.relay_window,
        last_mile: Some(scenario.last_mile),
        loss: None,
        connections: 1,
        relay_type,
        prices: tradewind_model::cost::Prices::cloudpilot(),
        destination: None,
        start_up: StartUp::Cold,
    }
}

/// Returns the legs, those with an end point with this loss.
pub(super) fn with_loss(legs: &[Leg], percent: f64) -> Vec<Leg> {
    let last = legs.len() - 1;
    let lossy = |(index, leg): (usize, &Leg)| {
        let at_an_end = index == 0 || index == last;
        if at_an_end && percent > 0.0 { lossy(*leg, percent) } else { *leg }
    };
    legs.iter().enumerate().map(lossy).collect()
}

/// Returns a leg with this loss, to which CUBIC responds.
///
/// # Panics
/// When the loss is no share; scenarios are checked for that.
pub(super) fn lossy(leg: Leg, percent: f64) -> Leg {
    let ratio = Ratio::new(percent / 100.0).expect("the scenario was checked");
    leg.with_loss(Loss { ratio, response: LossResponse::Cubic })
}

/// Returns the mean rate in bit/s of the data that arrives in `span`, from the moment on that the
/// first byte can.
///
/// Found from completion times: the volume that takes as long. Slow start is over long before, so
/// that a step along the path's long-run rate is exact but for rounding.
fn measured_rate(legs: &[Leg], span: Duration) -> f64 {
    let rate = path_rate(legs);
    let mut volume = rate.volume_in(span).as_u64() as f64;
    for _ in 0..4 {
        let took = path_completion(legs, Bytes::new(volume as u64), StartUp::Cold);
        let late = took.total().saturating_sub(took.set_up).as_secs_f64() - span.as_secs_f64();
        volume = (volume - late * rate.as_bytes_per_s()).max(0.0);
    }
    volume * 8.0 / span.as_secs_f64()
}

/// Predictions, each with its "measured" value: rates by kind of path, accelerations of the relayed
/// kinds.
#[derive(Clone, Default)]
struct Pairs {
    rates: [Vec<(f64, f64)>; KINDS.len()],
    accelerations: [Vec<(f64, f64)>; KINDS.len() - 1],
}

fn compare(scenario: &Scenario, tuples: &[Tuple], percent: f64) -> Pairs {
    let settings = settings(scenario);
    let span = Duration::from_secs_f64(scenario.measured_s);
    let mut pairs = Pairs::default();
    for tuple in tuples {
        let rates: Vec<(f64, f64)> = (0..KINDS.len())
            .map(|relays| {
                let legs = legs(&tuple.path(relays), &settings);
                let measured = measured_rate(&with_loss(&legs, percent), span);
                (path_rate(&legs).as_bps() as f64, measured)
            })
            .collect();
        let (direct, direct_measured) = rates[0];
        for (kind, (predicted, measured)) in rates.into_iter().enumerate() {
            pairs.rates[kind].push((predicted, measured));
            if kind > 0 {
                let pair = (predicted / direct, measured / direct_measured.max(1.0));
                pairs.accelerations[kind - 1].push(pair);
            }
        }
    }
    pairs
}

/// Returns the errors of predictions, in per cent of the measured values.
pub(crate) fn off(pairs: &[(f64, f64)]) -> Vec<f64> {
    pairs.iter().map(|(predicted, measured)| 100.0 * (predicted / measured - 1.0).abs()).collect()
}

/// Runs the experiment: for each loss all tuples of all settings.
///
/// # Errors
/// When the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let seeds = scenario.runs.seeds(job.options);
    let step = format!("{}: {} losses", scenario.name, scenario.loss_percent.len());
    let runs = each(&step, &seeds, Threads::All, job, |seed| {
        let mut random = Random::new(seed);
        let mut tuples = Vec::new();
        for places in &scenario.settings {
            tuples.extend((0..scenario.tuples).map(|_| draw(places, &mut random)));
        }
        let losses = scenario.loss_percent.iter();
        Ok(losses.map(|loss| compare(scenario, &tuples, *loss)).collect::<Vec<Pairs>>())
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    rows(scenario, &runs, &mut record);
    findings(scenario, &mut record);
    Ok(record)
}

fn figure(title: &str, y_label: &str) -> Figure {
    Figure {
        title: title.to_owned(),
        x_label: "loss towards end points".to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Names,
    }
}

const RATES: usize = 0;
const ACCELERATIONS: usize = 1;
const CORRELATIONS: usize = 2;

fn rows(scenario: &Scenario, runs: &[Vec<Pairs>], record: &mut Record) {
    record.figures = vec![
        figure("rate: how far the formula is off, median over the tuples", "off by (%)"),
        figure("acceleration: how far the formula is off, median over the tuples", "off by (%)"),
        figure("correlation of rates by formula and by the whole model", "Pearson's coefficient"),
    ];
    for (index, loss) in scenario.loss_percent.iter().enumerate() {
        let mut push = |figure: usize, line: &str, of: &dyn Fn(&Pairs) -> f64| {
            let values: Vec<f64> = runs.iter().map(|run| of(&run[index])).collect();
            let x_name = format!("{loss} %");
            let unit = if figure == CORRELATIONS { "" } else { "%" };
            let case = format!("{}, {line}, loss {x_name}", record.figures[figure].title);
            let spot = Spot { figure, line: line.to_owned(), x: index as f64, x_name };
            record.rows.push(Row::of(&case, None, &values, unit, "").drawn_at(spot));
        };
        for (kind, name) in KINDS.into_iter().enumerate() {
            push(RATES, name, &|pairs| quantile(&off(&pairs.rates[kind]), 0.5));
            push(CORRELATIONS, name, &|pairs| correlation(&pairs.rates[kind]));
            if kind > 0 {
                let of = |pairs: &Pairs| quantile(&off(&pairs.accelerations[kind - 1]), 0.5);
                push(ACCELERATIONS, name, &of);
            }
        }
    }
}

/// Largest median error of predictions that count as close, in per cent. Chosen: what separates the
/// points of a plot from its diagonal for the eye; the paper says "close" and has no figure.
pub(crate) const CLOSE_PERCENT: f64 = 10.0;

fn findings(scenario: &Scenario, record: &mut Record) {
    let at = |index: usize| {
        let here = record.rows.iter().filter(move |row| {
            row.at.as_ref().is_some_and(|at| at.x == index as f64 && at.figure != CORRELATIONS)
        });
        here.map(|row| row.ours).fold(0.0, f64::max)
    };
    let (first, last) = (at(0), at(scenario.loss_percent.len() - 1));
    let ours = format!(
        "largest median error {first:.1} % at {} % loss, {last:.0} % at {} %: the formula has no \
         loss",
        scenario.loss_percent[0],
        scenario.loss_percent[scenario.loss_percent.len() - 1]
    );
    record.findings.push(Finding::new(
        "predictions of rate and acceleration are close to the real ones",
        first <= CLOSE_PERCENT,
        ours,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_measurement_approaches_the_formulas_rate() {
        let leg = Leg::new(Duration::from_millis(100));
        let formula = path_rate(&[leg]).as_bps() as f64;
        let short = measured_rate(&[leg], Duration::from_secs(5)) / formula;
        let long = measured_rate(&[leg], Duration::from_secs(400)) / formula;
        assert!(short < 0.95 && long > 0.998 && long <= 1.0, "{short} {long}");
    }

    #[test]
    fn bad_scenarios_are_refused_with_the_value() {
        let text = include_str!("../../scenarios/cp-model.toml");
        let refused = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Scenario::parse(&text.replace(from, to)).unwrap_err().to_string()
        };
        assert!(refused("tuples = 25", "tuples = 0").contains("tuples: 0 given"));
        assert!(refused("measured_s = 40", "measured_s = nan").contains("NaN given"));
        assert!(refused("32.78,35.02", "32.78;35.02").contains("`32.78;35.02`"));
        assert!(refused("tuples = 25", "pairs = 25").contains("line "));
    }
}
