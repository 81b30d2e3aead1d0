//! `rt-guard`: costs of jumps where they can do harm, by the default window, by `riptide` and by
//! `paced`.
//!
//! The paper saw no harm `[RT IV-B2]`, on links that are well provisioned. Here the links are not.
//! All cases of a seed run side by side, each on its own pair of hosts; the arms of a case one
//! after the other.

use std::time::Duration;

use serde::Deserialize;
use tradewind_lab::LabOptions;
use tradewind_net::initial_window::InitialWindows;
use tradewind_output::chart::Scale;
use tradewind_units::time::{as_millis_f64, as_text};
use tradewind_units::{Bandwidth, Bytes, Segments};
use tradewind_wan::PairChange;

use super::arm::{Arm, Start};
use super::compare;
use super::{host, site, site_text, topology, unprepare};
use crate::harness::exchange::Done;
use crate::harness::{
    Experiment, ExperimentError, Figure, Finding, LabContext, Observer, ProcessError, Random,
    Record, Row, RunOptions, Runs, ScenarioError, Spot, from_toml, quantile, repeats,
};

/// The paper's bound [RT IV-B1], in both modes.
const C_MAX: u32 = 100;
/// Time within which simultaneous downloads begin.
const STARTS_WITHIN: Duration = Duration::from_millis(5);
/// Pause after a measured download: its losses are known, the queue is empty.
const SETTLE: Duration = Duration::from_millis(250);
/// Longest lateness of any packet. Where one retransmitted segment decides, a single pause of the
/// machine does: half of the shortest round trip is half of the time after which a sender
/// retransmits.
const MAX_LATE: Duration = Duration::from_millis(20);

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    train: Train,
    #[serde(rename = "case")]
    cases: Vec<Case>,
}

/// Training of the learners.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Train {
    downloads: u32,
    bytes: Bytes,
}

/// A path and what is fetched over it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    rate: Bandwidth,
    #[serde(with = "as_text")]
    rtt: Duration,
    queue: Bytes,
    bytes: Bytes,
    #[serde(default = "once")]
    at_once: u32,
    worse_rate: Option<Bandwidth>,
    #[serde(default)]
    seen: bool,
    #[serde(default)]
    unprepared: bool,
    /// True if the bounds on the cost of jumps apply to it.
    #[serde(default)]
    judged: bool,
}

const fn once() -> u32 {
    1
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        if scenario.cases.is_empty() || scenario.train.downloads == 0 {
            return wrong("case, train.downloads: at least one".to_owned());
        }
        for case in &scenario.cases {
            let name = &case.name;
            if !(1..=64).contains(&case.at_once) {
                return wrong(format!("case `{name}`: at_once: 1 to 64"));
            }
            if case.bytes.as_u64() > 3_000_000 || scenario.train.bytes.as_u64() > 3_000_000 {
                return wrong(format!("case `{name}`: bytes: at most 3 MB, written at once"));
            }
        }
        Ok(scenario)
    }

    /// Returns the topology: a pair of sites for each case.
    fn topology(&self, seed: u64) -> String {
        let mut text = format!("seed = {seed}\n[default.host]\ncongestion_control = \"cubic\"\n");
        for index in 0..self.cases.len() {
            let [from, to] = names(index);
            text += &site_text(&from);
            text += &site_text(&to);
        }
        for (index, case) in self.cases.iter().enumerate() {
            let [from, to] = names(index);
            let (rtt, rate, queue) = (as_millis_f64(case.rtt), case.rate, case.queue);
            text += &format!(
                "[[pair]]\nbetween = [\"{from}\", \"{to}\"]\nrtt = \"{rtt} ms\"\n\
                 jitter = \"1 ms\"\nrate = \"{rate}\"\nqueue = \"{queue}\"\n"
            );
        }
        text
    }
}

fn names(case: usize) -> [String; 2] {
    [format!("from-{case}"), format!("to-{case}")]
}

/// Results of an arm's measured downloads.
#[derive(Debug, Clone, Default)]
struct Outcome {
    /// Segments sent again, by all downloads together.
    retransmitted: u32,
    /// The same in the burst before, when the number of simultaneous starts was not known; zero for
    /// a single download.
    retransmitted_unannounced: u32,
    fct_ms: Vec<f64>,
    initial_window: u32,
    /// Sum of its connections' rate limits, as a share of the rate that `paced` had learned.
    given: Option<f64>,
    /// Rate that `paced` had learned, in Mbit/s.
    learned_mbps: Option<f64>,
}

/// Index of `paced` among the arms.
const PACED: usize = 2;

/// Results by arm, in the order of [`Start::ALL`].
type Arms = [Outcome; 3];

/// Runs the experiment.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let windows = InitialWindows::attach()
        .map_err(tradewind_lab::LabError::from)
        .map_err(ProcessError::from)?;
    let seeds = scenario.runs.seeds(options);
    let step = "default, riptide, paced";
    let completed = repeats::each(step, &seeds, 1, options, observer, |seed, checked| {
        let name = format!("seed {seed}");
        checked.in_time(options, &name, || one(&scenario, &windows, *seed, options))
    })?;
    Ok(completed.record(|all, options| record(&scenario, all, options)))
}

fn record(scenario: &Scenario, all: &[Vec<Arms>], options: &RunOptions) -> Record {
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, options);
    let ignorant = all.iter().flatten().filter(|arms| arms[PACED].learned_mbps.is_none()).count();
    if ignorant > 0 {
        record.doubt([format!("`paced` had learned no rate in {ignorant} of the cases")]);
    }
    record.figures = figures();
    for (index, case) in scenario.cases.iter().enumerate() {
        let of_case: Vec<&Arms> = all.iter().map(|arms| &arms[index]).collect();
        rows((index, case), &of_case, &mut record);
        if case.judged {
            findings(case, &of_case, &mut record);
        }
    }
    record
}

/// Runs all cases of a seed; returns the reasons against the lab's figures, too.
fn one(
    scenario: &Scenario,
    windows: &InitialWindows,
    seed: u64,
    options: &RunOptions,
) -> Result<(Vec<Arms>, Vec<String>), ProcessError> {
    let topology = topology(&scenario.topology(seed), &scenario.name)?;
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(&topology, &lab, &options.program, &options.stop)?;
    context.lab.reset_validity()?;
    let arms: Result<Vec<Arms>, ProcessError> = std::thread::scope(|scope| {
        let live = |(index, case)| {
            let (context, train) = (&context, scenario.train);
            scope.spawn(move || live(context, windows, train, case, index, seed))
        };
        let running: Vec<_> = scenario.cases.iter().enumerate().map(live).collect();
        running.into_iter().map(|case| case.join().expect("a case does not panic")).collect()
    });
    let (arms, validity) = (arms?, context.lab.validity()?);
    let mut reasons = validity.reasons;
    if validity.lateness_us_max > MAX_LATE.as_secs_f64() * 1e6 {
        let late_ms = validity.lateness_us_max / 1e3;
        reasons.push(format!("a packet came {late_ms:.0} ms late"));
    }
    Ok((arms, reasons))
}

/// Runs all arms of a case.
fn live(
    context: &LabContext,
    windows: &InitialWindows,
    train: Train,
    case: &Case,
    index: usize,
    seed: u64,
) -> Result<Arms, ProcessError> {
    let names = names(index);
    let [from, to] = names.each_ref().map(|name| host(name));
    if case.unprepared {
        unprepare(&context.lab, &to)?;
    }
    let mut random = Random::new(seed.wrapping_mul(64).wrapping_add(index as u64));
    let starts: Vec<Duration> =
        (0..case.at_once).map(|_| STARTS_WITHIN.mul_f64(random.fraction())).collect();
    let mut outcomes = Arms::default();
    let first = usize::try_from(seed % 3).unwrap_or(0);
    for turn in 0..Start::ALL.len() {
        let place = (first + turn) % Start::ALL.len();
        let c_max = Segments::new(C_MAX).expect("above zero");
        let ends = (from.clone(), to.clone());
        let mut arm = Arm::new(context, windows, Start::ALL[place], c_max, ends)?;
        outcomes[place] = measure(&mut arm, train, case, &names, &starts)?;
    }
    Ok(outcomes)
}

fn measure(
    arm: &mut Arm<'_>,
    train: Train,
    case: &Case,
    names: &[String; 2],
    starts: &[Duration],
) -> Result<Outcome, ProcessError> {
    set_rate(arm, names, case.worse_rate.map(|_| case.rate))?;
    let mut open = Vec::new();
    for _ in 0..train.downloads {
        open.push(arm.train(train.bytes.as_u64(), SETTLE)?);
    }
    set_rate(arm, names, case.worse_rate)?;
    if case.seen
        && let Some(link) = open.pop()
    {
        open.push(arm.again(link, train.bytes.as_u64() / 2)?);
        std::thread::sleep(SETTLE);
    }
    let bytes = case.bytes.as_u64();
    let mut outcome = Outcome { learned_mbps: arm.learned_mbps(), ..Outcome::default() };
    if starts.len() > 1 {
        outcome.retransmitted_unannounced = retransmitted(&arm.burst(bytes, starts, SETTLE)?);
    }
    let burst = arm.burst(bytes, starts, SETTLE)?;
    outcome.retransmitted = retransmitted(&burst);
    outcome.fct_ms = burst.iter().map(|done| as_millis_f64(done.fct)).collect();
    outcome.initial_window = burst.iter().map(|done| done.initial_window).max().unwrap_or(0);
    outcome.given = outcome.learned_mbps.map(|learned| given_mbps(&burst) / learned);
    Ok(outcome)
}

/// Returns the sum of the rate limits of connections that start with a rate, as the kernel reports
/// them.
fn given_mbps(done: &[Done]) -> f64 {
    done.iter().filter_map(|done| done.held_to).map(Bandwidth::as_mbps).sum()
}

fn retransmitted(done: &[Done]) -> u32 {
    done.iter().map(|done| done.retransmitted).sum()
}

/// Sets the rate of the path to the receiver, if one is given.
fn set_rate(
    arm: &Arm<'_>,
    names: &[String; 2],
    rate: Option<Bandwidth>,
) -> Result<(), ProcessError> {
    let Some(rate) = rate else { return Ok(()) };
    let mut change = PairChange::new(site(&names[0]), site(&names[1]), true);
    change.rate = Some(Some(rate));
    Ok(arm.lab().apply(&change)?)
}

/// Returns one arm's values over the seeds.
fn values(of_case: &[&Arms], arm: usize, of: impl Fn(&Outcome) -> f64) -> Vec<f64> {
    of_case.iter().map(|arms| of(&arms[arm])).collect()
}

/// Returns the figures of segments sent again and of times, case by case.
fn figures() -> Vec<Figure> {
    let figure = |title: &str, y_label: &str| Figure {
        title: title.to_owned(),
        x_label: "case".to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Names,
    };
    vec![figure("segments sent again", "segments"), figure("time from connect", "ms")]
}

fn rows((index, case): (usize, &Case), of_case: &[&Arms], record: &mut Record) {
    for (arm, start) in Start::ALL.iter().enumerate() {
        arm_rows((index, case), of_case, (arm, start.name()), record);
    }
    let name = &case.name;
    let again = |outcome: &Outcome| f64::from(outcome.retransmitted);
    for (arm, start) in Start::ALL.iter().enumerate().skip(1) {
        let found = compare::ratio(&values(of_case, arm, again), &values(of_case, 0, again));
        record.rows.extend(found.map(|found| Row {
            case: format!("{name}: sent again, {} over default", start.name()),
            paper: None,
            ours: found.ratio,
            ours_low: found.low.filter(|low| low.is_finite()),
            ours_high: found.high.filter(|high| high.is_finite()),
            unit: "x".to_owned(),
            note: "ratio of sums; bounds by resampling the paired seeds".to_owned(),
            at: None,
        }));
    }
    let of_paced = |of: fn(&Outcome) -> Option<f64>| -> Vec<f64> {
        of_case.iter().filter_map(|arms| of(&arms[PACED])).collect()
    };
    let learned = of_paced(|outcome| outcome.learned_mbps);
    if !learned.is_empty() {
        let case = format!("{name}: learned rate, paced");
        record.rows.push(Row::of(&case, None, &learned, "Mbit/s", "payload"));
    }
    let given = of_paced(|outcome| outcome.given);
    if case.at_once > 1 && !given.is_empty() {
        let most = given.iter().copied().fold(0.0, f64::max);
        let note = format!("greatest of all seeds: {most:.3}; rates that the kernel held them to");
        let case = format!("{name}: given of the learned rate, paced");
        record.rows.push(Row::of(&case, None, &given, "", &note));
    }
}

/// Adds the rows of one arm.
fn arm_rows(
    (index, case): (usize, &Case),
    of_case: &[&Arms],
    (arm, start): (usize, &str),
    record: &mut Record,
) {
    let name = &case.name;
    let of = |what: &str, unit: &str, note: &str, of: &dyn Fn(&Outcome) -> f64| {
        let values = values(of_case, arm, of);
        Row::of(&format!("{name}: {what}, {start}"), None, &values, unit, note)
    };
    let spot = |figure| {
        let (line, x, x_name) = (start.to_owned(), index as f64, name.clone());
        Spot { figure, line, x, x_name }
    };
    let segments = "segments";
    let again = of("sent again", segments, "", &|outcome| f64::from(outcome.retransmitted));
    let note = "from connect; median of a run";
    let time = of("time", "ms", note, &|outcome| quantile(&outcome.fct_ms, 0.5));
    record.rows.extend([again.drawn_at(spot(0)), time.drawn_at(spot(1))]);
    let mut row = |what: &str, unit: &str, note: &str, value: &dyn Fn(&Outcome) -> f64| {
        record.rows.push(of(what, unit, note, value));
    };
    let crowd = case.at_once > 1;
    if crowd {
        let note = "nobody knew how many would come";
        row("sent again in the first burst", segments, note, &|outcome| {
            f64::from(outcome.retransmitted_unannounced)
        });
    }
    if crowd {
        row("longest time", "ms", "", &|outcome| quantile(&outcome.fct_ms, 1.0));
    }
    row("initial window", segments, "", &|outcome| f64::from(outcome.initial_window));
}

/// Adds the required findings: `paced` retransmits no more than the default window, with 95 %
/// confidence, and `riptide` does.
fn findings(case: &Case, of_case: &[&Arms], record: &mut Record) {
    let again = |outcome: &Outcome| f64::from(outcome.retransmitted);
    let name = &case.name;
    let [default, riptide, paced] = [0, 1, 2].map(|arm| values(of_case, arm, again));
    let sum = |values: &[f64]| values.iter().sum::<f64>();
    let describe = |of: Option<compare::Ratio>, values: &[f64]| match of {
        Some(compare::Ratio { ratio, low: Some(low), high: Some(high) }) => {
            format!("{ratio:.2} times as many as by default ({low:.2} to {high:.2})")
        }
        Some(of) => format!("{:.2} times as many as by default", of.ratio),
        None => format!("{:.0} segments in all, by default none", sum(values)),
    };
    let less = compare::ratio(&paced, &default);
    let holds = match less {
        Some(of) => of.high.unwrap_or(of.ratio) <= 1.0,
        None => sum(&paced) == 0.0,
    };
    let sentence = format!("{name}: `paced` sends no more again than the default window");
    record.findings.push(Finding::new(&sentence, holds, describe(less, &paced)));
    let more = compare::ratio(&riptide, &default);
    let holds = match more {
        Some(of) => of.low.unwrap_or(of.ratio) > 1.0,
        None => sum(&riptide) > 0.0,
    };
    let sentence = format!("{name}: plain averaging, `riptide`, sends more again");
    record.findings.push(Finding::new(&sentence, holds, describe(more, &riptide)));
    let given = of_case.iter().filter_map(|arms| arms[PACED].given).fold(0.0, f64::max);
    if case.at_once > 1 {
        let sentence = format!("{name}: shares sum up to at most 0.85 of the learned rate");
        record.findings.push(Finding::new(
            &sentence,
            // Rates are whole bits a second.
            given > 0.0 && given <= 0.85 + 1e-6,
            format!("at most {given:.3}, by what the kernel held the connections to"),
        ));
    }
}
