//! `jq-straggler`: one repair packet of several flows compared with two, where helpers answer late
//! or not at all [JQ 5.2, "straggler protection"].
//!
//! A block of six packets of which one is lost needs five more to be solved with one repair packet,
//! and so waits for each helper; with two it needs four, and does not wait for one straggler.

use serde::Deserialize;
use tradewind_output::chart::Scale;
use tradewind_packet::event::Arrival;
use tradewind_units::Duration;

use super::stragglers::Helpers;
use super::{
    Case, Found, Loss, Scenario as Network, all_recovered, counted, find, recovered, share, values,
};
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Record, Row, Runs, ScenarioError, Spot, from_toml, mean,
    quantile, within,
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
    /// The file of the network: a scenario of `jq-recovery`.
    pub network: String,
    /// Number of times that its paths send.
    pub cycles: u32,
    /// Numbers of repair packets that are compared: few, more.
    pub repairs: [u8; 2],
    /// Share of helpers' answers that are late or never sent.
    pub straggling: f64,
    /// The same, swept.
    pub straggling_sweep: Vec<f64>,
    /// Share of these that are never sent.
    pub silent: f64,
    /// Delays of the others, equal factors equally likely.
    pub late_ms: [f64; 2],
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let [few, more] = scenario.repairs.map(f64::from);
        let [least, most] = scenario.late_ms;
        let ranges = [
            ("cycles", f64::from(scenario.cycles), 1.0, 10_000.0),
            ("repairs", few, 1.0, 7.0),
            ("repairs", more, few + 1.0, 8.0),
            ("straggling", scenario.straggling, 0.0, 1.0),
            ("silent", scenario.silent, 0.0, 1.0),
            ("late_ms", least, 0.001, 1e5),
            ("late_ms", most, least, 1e5),
        ];
        let sweep = scenario.straggling_sweep.iter();
        let sweep = sweep.map(|share| ("straggling_sweep", *share, 0.0, 1.0));
        within(ranges.into_iter().chain(sweep))?;
        Ok(scenario)
    }

    fn helpers(&self, straggling: f64) -> Helpers {
        Helpers { straggling, silent: self.silent, late_ms: self.late_ms }
    }
}

/// Runs of one share of stragglers, with few and with more repair packets: the same seeds, hence
/// the same losses and stragglers.
struct Pairs {
    straggling: f64,
    /// True if flows have repair packets of their own, too.
    in_stream: bool,
    few: Vec<Found>,
    more: Vec<Found>,
}

impl Pairs {
    /// Returns a measure of the two runs of each seed.
    fn both(&self, measure: impl Fn(&Found, &Found) -> Option<f64>) -> Vec<f64> {
        self.few.iter().zip(&self.more).filter_map(|(few, more)| measure(few, more)).collect()
    }

    fn name(&self) -> &'static str {
        if self.in_stream { "with in-stream repair packets" } else { "cross-stream alone" }
    }
}

/// Runs the experiment on `network`.
///
/// # Errors
/// When the network makes no sense, or the run is stopped.
pub fn run(
    scenario: &Scenario,
    network: &Network,
    job: &mut Job<'_>,
) -> Result<Record, NumericError> {
    let mut network = Network { cycles: scenario.cycles, ..network.clone() };
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    network.shorten(job.options.quick, &mut record);
    let seeds = scenario.runs.seeds(job.options);
    let mut compare = |straggling: f64, in_stream: bool| {
        let runs = |repairs: u8, job: &mut Job<'_>| {
            let such = with(&network, repairs, in_stream);
            let helpers = scenario.helpers(straggling);
            let case = Case { helpers, ..Case::prompt(network.access_share, false) };
            let percent = straggling * 100.0;
            let step =
                format!("{}: {percent} % stragglers, {repairs} repair packets", scenario.name);
            each(&step, &seeds, Threads::All, job, |seed| find(&such, case, seed))
        };
        let [few, more] = scenario.repairs;
        let (few, more) = (runs(few, job)?, runs(more, job)?);
        Ok::<_, NumericError>(Pairs { straggling, in_stream, few, more })
    };
    let compared = [true, false].map(|in_stream| compare(scenario.straggling, in_stream));
    let compared = compared.into_iter().collect::<Result<Vec<_>, _>>()?;
    let others = scenario.straggling_sweep.iter().filter(|share| **share != scenario.straggling);
    let others = others.map(|share| compare(*share, true)).collect::<Result<Vec<_>, _>>()?;
    record.figures = vec![Figure {
        title: "losses recovered within one round trip".to_owned(),
        x_label: "answers of helpers late or never (%)".to_owned(),
        y_label: "recovered (%)".to_owned(),
        scale: Scale::Linear,
    }];
    for pairs in &compared {
        rows(scenario, pairs, &mut record);
    }
    let mut swept: Vec<&Pairs> = compared[..1].iter().chain(&others).collect();
    swept.sort_by(|a, b| a.straggling.total_cmp(&b.straggling));
    sweep(scenario, &swept, &mut record);
    findings(&compared, &swept, &mut record);
    Ok(record)
}

/// Returns the network with so many repair packets of several flows, and with or without those of
/// one flow.
fn with(network: &Network, repairs: u8, in_stream: bool) -> Network {
    let cross_stream = [repairs, network.cross_stream[1]];
    let own = if in_stream { network.in_stream } else { [0, network.in_stream[1]] };
    Network { cross_stream, in_stream: own, ..network.clone() }
}

/// Returns the share of paths with losses whose recovery increases by more than a tenth.
fn better_paths(few: &Found, more: &Found) -> Option<f64> {
    let of = |found: &Found, path| recovered(found.losses.iter().filter(|loss| loss.path == path));
    let paths = 0..few.outcome.paths.len();
    share(paths.filter_map(|path| Some(of(more, path)? > 1.1 * of(few, path)?)))
}

/// Difference from which on the paper counts a recovery as sooner.
const SOONER: Duration = Duration::from_millis(50);

/// Returns the losses that helpers recover when there are more repair packets, each with its fate
/// when there are few. The same packets are lost in both runs.
fn helped<'a>(
    few: &'a Found,
    more: &'a Found,
) -> impl Iterator<Item = (&'a Loss, &'a Loss)> + Clone {
    let both = few.losses.iter().zip(&more.losses);
    both.filter(|(_, more)| more.is_recovered() && more.arrival == Some(Arrival::CrossStream))
}

/// Returns the share of these that are recovered so much sooner; of all, or of those that are
/// recovered with few repair packets, too, however late.
fn sooner(few: &Found, more: &Found, in_both: bool) -> Option<f64> {
    let counted = helped(few, more).filter(|(few, _)| !in_both || few.after.is_some());
    share(counted.map(|(few, more)| few.after.is_none() || more.took + SOONER <= few.took))
}

/// Returns a quantile of recovery times in milliseconds, in the first or in the second run, of
/// losses that are recovered in both, in the second by helpers.
fn took_ms(few: &Found, more: &Found, of_more: bool, at: f64) -> Option<f64> {
    let both = helped(few, more).filter(|(few, _)| few.after.is_some());
    let took = both.map(|(few, more)| if of_more { more.took } else { few.took });
    let took: Vec<f64> = took.map(|took| took.as_secs_f64() * 1e3).collect();
    (!took.is_empty()).then(|| quantile(&took, at))
}

fn name(repairs: u8) -> String {
    if repairs == 1 { "1 repair packet".to_owned() } else { format!("{repairs} repair packets") }
}

fn rows(scenario: &Scenario, pairs: &Pairs, record: &mut Record) {
    let note = counted(&pairs.more);
    let place = pairs.name();
    let mut row = |case: &str, paper: Option<f64>, values: Vec<f64>, unit: &str| {
        if !values.is_empty() {
            let case = format!("{case}, {place}");
            record.rows.push(Row::of(
                &case,
                paper.filter(|_| pairs.in_stream),
                &values,
                unit,
                &note,
            ));
        }
    };
    for (repairs, runs) in scenario.repairs.into_iter().zip([&pairs.few, &pairs.more]) {
        let name = name(repairs);
        row(&format!("recovered, {name}"), None, values(runs, all_recovered), "% of losses");
        let wide = |found: &Found| recovered(found.losses.iter().filter(|loss| !loss.on_access));
        row(&format!("recovered, wide area, {name}"), None, values(runs, wide), "% of losses");
        let asked = |found: &Found| {
            Some(found.outcome.traffic.helps as f64 / found.losses.len().max(1) as f64)
        };
        row(&format!("helpers asked, {name}"), None, values(runs, asked), "for each loss");
    }
    let better = pairs.both(better_paths);
    row("recovery up by more than 10 %", Some(60.0), better, "% of paths");
    let by_helpers = |few: &Found, more: &Found| {
        Some(100.0 * helped(few, more).count() as f64 / more.losses.len().max(1) as f64)
    };
    row("brought back by helpers", None, pairs.both(by_helpers), "% of losses");
    let of_these = "% of these";
    let all = pairs.both(|few, more| sooner(few, more, false));
    row("at least 50 ms sooner, or only with the second", Some(70.0), all, of_these);
    let both = pairs.both(|few, more| sooner(few, more, true));
    row("at least 50 ms sooner, of those that come back with one, too", None, both, of_these);
    for (at, of) in [(0.5, "half"), (0.95, "95 %")] {
        for (place, repairs) in scenario.repairs.into_iter().enumerate() {
            let took = pairs.both(|few, more| took_ms(few, more, place == 1, at));
            let case = format!("{of} of those that come back with both within, {}", name(repairs));
            row(&case, None, took, "ms");
        }
    }
}

fn sweep(scenario: &Scenario, swept: &[&Pairs], record: &mut Record) {
    for (place, repairs) in scenario.repairs.into_iter().enumerate() {
        for pairs in swept {
            let runs = if place == 0 { &pairs.few } else { &pairs.more };
            let values = values(runs, all_recovered);
            if values.is_empty() {
                continue;
            }
            let percent = (pairs.straggling * 1000.0).round() / 10.0;
            let (line, x_name) = (name(repairs), format!("{percent} %"));
            let case = format!("recovered, {x_name} of answers late or never, {line}");
            let spot = Spot { figure: 0, line, x: percent, x_name };
            let row = Row::of(&case, None, &values, "% of losses", &counted(runs));
            record.rows.push(row.drawn_at(spot));
        }
    }
    for pairs in swept {
        let percent = (pairs.straggling * 1000.0).round() / 10.0;
        let better = pairs.both(better_paths);
        if !better.is_empty() {
            let case =
                format!("recovery up by more than 10 %, {percent} % of answers late or never");
            record.rows.push(Row::of(&case, None, &better, "% of paths", ""));
        }
    }
}

fn findings(compared: &[Pairs], swept: &[&Pairs], record: &mut Record) {
    let [usual, alone] = compared else { return };
    let mut add_finding = |paper: &str, holds: bool, ours: String| {
        record.findings.push(Finding::new(paper, holds, ours));
    };
    let better = [usual, alone].map(|pairs| mean(&pairs.both(better_paths)));
    add_finding(
        "with two repair packets 60 % of paths recover over 10 % more than with one",
        better[0] >= 60.0,
        format!("{:.0} % of paths; {:.0} {}", better[0], better[1], alone.name()),
    );
    let sooner_of =
        |pairs: &Pairs, in_both| mean(&pairs.both(|few, more| sooner(few, more, in_both)));
    let [all, both] = [false, true].map(|in_both| sooner_of(usual, in_both));
    add_finding(
        "70 % of the packets recovered come back at least 50 ms sooner",
        all >= 70.0,
        format!(
            "{all:.0} % of those that helpers bring back, counting those that come back only with \
             two; {both:.0} % of those that come back with both"
        ),
    );
    let rate = |runs: &[Found]| mean(&values(runs, all_recovered));
    let gain = |pairs: &Pairs| rate(&pairs.more) - rate(&pairs.few);
    let (first, last) = (swept[0], swept[swept.len() - 1]);
    let (least, most) = (gain(first), gain(last));
    add_finding(
        "the second repair packet is worth the more the more helpers straggle (ours)",
        most > least,
        format!(
            "{least:.1} percentage points more recovered at {:.0} % stragglers, {most:.1} at {:.0} \
             %",
            first.straggling * 100.0,
            last.straggling * 100.0
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../../../scenarios/jq-straggler.toml");
    const NETWORK: &str = include_str!("../../../../scenarios/jq-recovery.toml");

    /// Returns the network with more losses, for a short time.
    fn network() -> Network {
        let network = Network::parse(NETWORK).unwrap();
        let loss_percent = network.loss_percent.map(|percent| 3.0 * percent);
        Network { on_s: 6.0, loss_percent, ..network }
    }

    fn pairs(straggling: f64, in_stream: bool) -> Pairs {
        let scenario = Scenario::parse(TEXT).unwrap();
        let helpers = scenario.helpers(straggling);
        let case = Case { helpers, ..Case::prompt(0.0, false) };
        let runs = |repairs| vec![find(&with(&network(), repairs, in_stream), case, 1).unwrap()];
        Pairs { straggling, in_stream, few: runs(1), more: runs(2) }
    }

    #[test]
    fn second_repair_packet_replaces_a_straggler() {
        let pairs = pairs(0.2, false);
        let (few, more) = (&pairs.few[0], &pairs.more[0]);
        assert!(few.losses.len() > 100, "{}", few.losses.len());
        // The same packets are lost, whatever is sent beside them.
        let places = |found: &Found| -> Vec<(usize, usize)> {
            found.losses.iter().map(|loss| (loss.path, loss.place)).collect()
        };
        assert_eq!(places(few), places(more));
        let rates = [few, more].map(|found| all_recovered(found).unwrap());
        assert!(rates[1] > rates[0] + 10.0, "{rates:?}");
        assert!(better_paths(few, more).unwrap() > 50.0);
        assert!(sooner(few, more, false).unwrap() > 20.0);
        assert!(sooner(few, more, false) >= sooner(few, more, true));
    }

    #[test]
    fn second_repair_packet_gains_less_without_stragglers() {
        let (none, some) = (pairs(0.0, true), pairs(0.3, true));
        let gain = |pairs: &Pairs| {
            all_recovered(&pairs.more[0]).unwrap() - all_recovered(&pairs.few[0]).unwrap()
        };
        assert!(gain(&some) > gain(&none), "{} {}", gain(&some), gain(&none));
        assert!(sooner(&none.few[0], &none.more[0], true).unwrap_or(0.0) < 20.0);
        assert!(all_recovered(&none.more[0]).unwrap() > 95.0);
    }

    #[test]
    fn invalid_scenarios_are_refused_in_one_line() {
        for (from, to, expected) in [
            ("repairs = [1, 2]", "repairs = [2, 2]", "repairs: 2 given, expected 3 to 8"),
            ("silent = ", "silent = 2 #", "silent: 2 given, expected 0 to 1"),
            ("late_ms = [", "late_ms = [9000, 1] # [", "late_ms: 1 given, expected 9000"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Scenario::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
