//! Results of the downloads of all repeats, beside the paper's.

use std::collections::BTreeMap;

use tradewind_desired::Connections;
use tradewind_model::statistics::median;
use tradewind_output::chart::Scale;
use tradewind_units::RegionId;

use super::repeat::Outcome;
use super::scenario::{Scenario, Strategy, host_of};
use crate::harness::{Figure, Finding, Record, Row, RunOptions, Spot};

/// TRN's slide: the least and the greatest rate of its matrix, in Mbit/s, and the share of pairs
/// whose rate the best relay raises by more than half.
const PAPER_LEAST_MBPS: f64 = 20.0;
const PAPER_MOST_MBPS: f64 = 398.0;
const PAPER_GAINING_PERCENT: f64 = 40.0;
/// The least share of the caps that a striped leg should reach. Chosen: congestion control needs
/// the rest at a cap that drops.
const MIN_SHARE: f64 = 0.85;
/// The largest ratio of rates that count as homogeneous.
const HOMOGENEOUS: f64 = 1.2;

/// Returns the record of the experiment.
pub(super) fn record(scenario: &Scenario, options: &RunOptions, repeats: &[Outcome]) -> Record {
    let rates = Rates { scenario, repeats };
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    if options.quick {
        let count = scenario.regions.len();
        assumptions.push(format!(
            "a quick run has {count} of the regions, measures for {} s after {} s, and leaves slow \
             strategies out",
            scenario.measure_s, scenario.settle_s
        ));
    }
    let mut rows = Vec::new();
    for (index, strategy) in scenario.strategies.iter().enumerate() {
        rows.extend(rates.matrix(index, strategy));
        rows.extend(rates.summary(index, strategy));
    }
    let mut findings = Vec::new();
    if let Some(gain) = scenario.gain {
        rows.push(rates.gaining(gain));
        findings.push(rates.distant_are_slow());
        findings.push(rates.relays_gain(gain));
    }
    if scenario.per_connection.is_some() {
        findings.extend(rates.one_is_not_enough());
        findings.extend(rates.homogeneous());
        findings.extend(rates.caps_are_filled());
    }
    let figure = Figure {
        title: "rate by round trip, medians".to_owned(),
        x_label: "round trip, ms".to_owned(),
        y_label: "Mbit/s".to_owned(),
        scale: Scale::Linear,
    };
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings));
    Record { figures: vec![figure], ..tables }
}

struct Rates<'a> {
    scenario: &'a Scenario,
    repeats: &'a [Outcome],
}

impl Rates<'_> {
    /// Returns the rates of one pair, in the repeats' order.
    fn of(&self, strategy: usize, pair: usize) -> Vec<f64> {
        self.repeats.iter().map(|repeat| repeat.mbps[strategy][pair]).collect()
    }

    /// Returns each pair's median, in the pairs' order.
    fn medians(&self, strategy: usize) -> Vec<f64> {
        let pairs = self.scenario.pairs().len();
        (0..pairs).map(|pair| median(&self.of(strategy, pair))).collect()
    }

    /// Returns each pair's round trip in ms, in the pairs' order.
    fn rtts_ms(&self) -> Vec<f64> {
        let topology = self.scenario.topology(&self.scenario.strategies[0]);
        let topology = topology.expect("the scenario was checked");
        let site = |region: &RegionId| {
            topology.site(&region.clone().into()).expect("a site for each region")
        };
        let rtt = |[from, to]: [&RegionId; 2]| {
            let (a, b) = (site(from), site(to));
            (topology.pair(a, b).delay + topology.pair(b, a).delay).as_secs_f64() * 1e3
        };
        self.scenario.pairs().into_iter().map(rtt).collect()
    }

    /// Returns the pairs, nearest first.
    fn by_distance(&self) -> Vec<(usize, f64)> {
        let mut pairs: Vec<(usize, f64)> = self.rtts_ms().into_iter().enumerate().collect();
        pairs.sort_by(|a, b| a.1.total_cmp(&b.1));
        pairs
    }

    /// Returns a row for each pair, nearest first.
    fn matrix(&self, index: usize, strategy: &Strategy) -> Vec<Row> {
        let pairs = self.scenario.pairs();
        let row = |(pair, rtt_ms): (usize, f64)| {
            let [from, to] = pairs[pair];
            let case = format!("{}: {from} > {to}", strategy.name);
            let note = format!("round trip {rtt_ms:.0} ms");
            let spot = Spot {
                figure: 0,
                line: strategy.name.clone(),
                x: rtt_ms,
                x_name: format!("{rtt_ms:.0} ms"),
            };
            Row::of_median(&case, None, &self.of(index, pair), "Mbit/s", &note).drawn_at(spot)
        };
        self.by_distance().into_iter().map(row).collect()
    }

    /// Returns rows with the least rate, the greatest rate, and their ratio.
    fn summary(&self, index: usize, strategy: &Strategy) -> Vec<Row> {
        let (least, most) = extremes(&self.medians(index));
        let is_paper = self.scenario.gain.is_some() && index == 0;
        let paper = |value: f64| is_paper.then_some(value);
        let row = |what: &str, paper: Option<f64>, value: f64, unit: &str, note: &str| {
            Row::of(&format!("{}: {what}", strategy.name), paper, &[value], unit, note)
        };
        let allowed = self.scenario.allowed_mbps(strategy);
        let caps = format!("the caps of machine and connections allow {allowed:.0} Mbit/s");
        vec![
            row("slowest pair", paper(PAPER_LEAST_MBPS), least, "Mbit/s", &caps),
            row("fastest pair", paper(PAPER_MOST_MBPS), most, "Mbit/s", &caps),
            row(
                "fastest over slowest",
                paper(PAPER_MOST_MBPS / PAPER_LEAST_MBPS),
                most / least,
                "x",
                "",
            ),
        ]
    }

    /// Returns the factor by which the best relay would raise each pair's rate, by the rates of its
    /// two legs.
    fn relay_gains(&self) -> Vec<f64> {
        let pairs = self.scenario.pairs();
        let medians = self.medians(0);
        let rates: BTreeMap<[String; 2], f64> = pairs
            .iter()
            .zip(&medians)
            .map(|(pair, rate)| (pair.map(|region| host_of(region).to_string()), *rate))
            .collect();
        let rate = |from: &RegionId, to: &RegionId| {
            rates.get(&[from.to_string(), to.to_string()]).copied()
        };
        let gain = |([from, to], direct): ([&RegionId; 2], f64)| {
            let over = |relay: &RegionId| Some(rate(from, relay)?.min(rate(relay, to)?));
            let best = self.scenario.regions.iter().filter_map(over).fold(0.0, f64::max);
            best / direct
        };
        pairs.into_iter().zip(medians).map(gain).collect()
    }

    fn gaining_percent(&self, gain: f64) -> f64 {
        let gains = self.relay_gains();
        let gaining = gains.iter().filter(|known| **known > gain).count();
        100.0 * gaining as f64 / gains.len() as f64
    }

    fn gaining(&self, gain: f64) -> Row {
        let case = format!("pairs that gain more than {gain}x over the best relay");
        let note = "by the lesser of the two legs' rates, as TRN counts";
        let percent = self.gaining_percent(gain);
        Row::of(&case, Some(PAPER_GAINING_PERCENT), &[percent], "%", note)
    }

    fn distant_are_slow(&self) -> Finding {
        let medians = self.medians(0);
        let pairs = self.by_distance();
        let third = pairs.len().div_ceil(3);
        let of = |pairs: &[(usize, f64)]| {
            median(&pairs.iter().map(|(pair, _)| medians[*pair]).collect::<Vec<f64>>())
        };
        let (near, remote) = (of(&pairs[..third]), of(&pairs[pairs.len() - third..]));
        let ours = format!(
            "median of the nearest third {near:.0} Mbit/s, of the farthest {remote:.0} Mbit/s"
        );
        Finding::new("lower bandwidth between distant regions", near > remote, ours)
    }

    fn relays_gain(&self, gain: f64) -> Finding {
        let percent = self.gaining_percent(gain);
        let paper = format!(
            "about {PAPER_GAINING_PERCENT} % of pairs can have more than {gain}x by a relay \
             (here: at least a quarter)"
        );
        Finding::new(&paper, percent >= 25.0, format!("{percent:.0} %"))
    }

    /// Returns the strategies with a striped leg, with their indices.
    fn striped(&self) -> impl Iterator<Item = (usize, &Strategy)> {
        let all = self.scenario.strategies.iter().enumerate();
        all.filter(|(_, strategy)| strategy.connections.is_some())
    }

    fn one_is_not_enough(&self) -> Option<Finding> {
        let mut all = self.scenario.strategies.iter().enumerate();
        let (index, strategy) = all
            .rfind(|(_, strategy)| matches!(strategy.connections, None | Some(Connections::One)))?;
        let (_, most) = extremes(&self.medians(index));
        let vm = self.scenario.vm.as_mbps();
        let ours = format!("{}: at most {most:.0} of {vm:.0} Mbit/s", strategy.name);
        let paper = "a single connection does not use what the VM may send";
        Some(Finding::new(paper, most < 0.9 * vm, ours))
    }

    fn homogeneous(&self) -> Option<Finding> {
        let vm = self.scenario.vm.as_mbps();
        let (index, strategy) = self
            .striped()
            .find(|(_, strategy)| self.scenario.allowed_mbps(strategy) > 0.95 * vm)?;
        let (least, most) = extremes(&self.medians(index));
        let ours = format!("{}: {least:.0} to {most:.0} Mbit/s", strategy.name);
        let paper =
            "with many connections the rate is homogeneous over all regions, at the VM's cap";
        let holds = most <= HOMOGENEOUS * least && least >= MIN_SHARE * vm;
        Some(Finding::new(paper, holds, ours))
    }

    /// Returns one finding for each congestion control of striped legs.
    fn caps_are_filled(&self) -> Vec<Finding> {
        let mut shares: BTreeMap<&str, Vec<(&str, f64)>> = BTreeMap::new();
        for (index, strategy) in self.striped() {
            let (least, _) = extremes(&self.medians(index));
            let share = least / self.scenario.allowed_mbps(strategy);
            let control = strategy.congestion_control.as_deref().unwrap_or("cubic");
            shares.entry(control).or_default().push((&strategy.name, share));
        }
        let finding = |(control, shares): (&str, Vec<(&str, f64)>)| {
            let by_pair: Vec<String> = shares
                .iter()
                .map(|(name, share)| format!("{name} {:.0} %", 100.0 * share))
                .collect();
            let holds = shares.iter().all(|(_, share)| *share >= MIN_SHARE);
            let paper = format!(
                "ours: a striped leg with {control} gets {:.0} % of what the caps of its \
                 connections and of the VM allow, at least",
                100.0 * MIN_SHARE
            );
            Finding::new(&paper, holds, format!("slowest pair of each: {}", by_pair.join(", ")))
        };
        shares.into_iter().map(finding).collect()
    }
}

fn extremes(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    (least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario() -> Scenario {
        Scenario::parse(include_str!("../../scenarios/trn-single.toml")).unwrap().quick()
    }

    /// Returns a repeat in which `rate` maps the round trip in ms to a rate.
    fn repeat(scenario: &Scenario, rate: impl Fn(f64) -> f64) -> Outcome {
        let empty = Rates { scenario, repeats: &[] };
        let mbps = empty.rtts_ms().into_iter().map(rate).collect();
        Outcome { mbps: vec![mbps; scenario.strategies.len()] }
    }

    #[test]
    fn relays_gain_only_if_rates_depend_on_rtt() {
        let scenario = scenario();
        let by_window = [repeat(&scenario, |rtt_ms| 24e3 / rtt_ms)];
        let rates = Rates { scenario: &scenario, repeats: &by_window };
        assert!(rates.distant_are_slow().holds);
        assert!(rates.relay_gains().iter().any(|gain| *gain > 1.0));
        let even = [repeat(&scenario, |_| 400.0)];
        let rates = Rates { scenario: &scenario, repeats: &even };
        assert!(!rates.distant_are_slow().holds);
        assert_eq!(rates.relay_gains().iter().copied().fold(0.0, f64::max), 1.0);
        assert_eq!(rates.gaining_percent(1.5), 0.0);
    }
}
