//! Results of the fetches of all repeats, beside the paper's.

use tradewind_model::statistics::{median, median_interval, median_or_nan};
use tradewind_output::chart::Scale;
use tradewind_units::RegionId;

use super::network::{Network, Via};
use super::repeat::{Repeat, Sample};
use super::scenario::{Floor, Order, Pair, Relays, Scenario, Share, Strategy};
use crate::harness::{Figure, Finding, Record, Row, RunOptions, Spot};

/// The context of the results.
pub(super) struct Outcome<'a> {
    /// The scenario as it was run.
    pub(super) scenario: &'a Scenario,
    /// The whole scenario, including what a quick run leaves out.
    pub(super) whole: &'a Scenario,
    pub(super) network: &'a Network,
    pub(super) options: &'a RunOptions,
}

/// A pair, a loss and a strategy, by their indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cell {
    pub(super) pair: usize,
    pub(super) loss: usize,
    pub(super) strategy: usize,
}

/// Completion times by repeat.
pub(super) struct Times<'a> {
    repeats: &'a [Repeat],
    samples: &'a [Vec<Sample>],
}

impl<'a> Times<'a> {
    /// Collects the samples of the repeats' labs.
    pub(super) fn new(repeats: &'a [Repeat], samples: &'a [Vec<Sample>]) -> Self {
        Self { repeats, samples }
    }

    /// Returns the fetches over one chain, in the repeats' order.
    pub(super) fn samples(&self, cell: Cell, chain: usize) -> impl Iterator<Item = &'a Sample> {
        let here =
            self.repeats.iter().zip(self.samples).filter(move |(at, _)| at.loss == cell.loss);
        let wanted = move |sample: &&Sample| {
            (sample.pair, sample.strategy, sample.chain) == (cell.pair, cell.strategy, chain)
        };
        here.flat_map(move |(_, samples)| samples.iter().filter(wanted))
    }

    /// Returns the completion times of these fetches.
    pub(super) fn of_chain(&self, cell: Cell, chain: usize) -> Vec<f64> {
        self.samples(cell, chain).map(|sample| sample.fct_s).collect()
    }

    /// Returns the chain with the least median among `chains`.
    fn best(&self, cell: Cell, chains: usize) -> usize {
        let of = |chain: &usize| median(&self.of_chain(cell, *chain));
        (0..chains).min_by(|a, b| of(a).total_cmp(&of(b))).unwrap_or_default()
    }
}

impl Outcome<'_> {
    /// Returns the record of the experiment.
    pub(super) fn record(&self, repeats: &[Repeat], samples: &[Vec<Sample>]) -> Record {
        let times = Times::new(repeats, samples);
        let mut rows = Vec::new();
        for (pair, known) in self.scenario.pairs.iter().enumerate() {
            for (loss, percent) in self.scenario.losses_percent.iter().enumerate() {
                rows.extend(self.rows(&times, pair, known, loss, *percent));
            }
        }
        let mut figures = self.figures();
        let orders = self.scenario.orders.iter().filter_map(|order| self.ordered(&times, order));
        let floors = self.scenario.floors.iter().filter_map(|floor| self.near(&times, floor));
        let shares = self.scenario.shares.iter().filter_map(|share| self.shared(&times, share));
        let mut findings: Vec<Finding> = orders.chain(shares).chain(floors).collect();
        for estimate in &self.scenario.estimates {
            if let Some(predicted) = self.predicted(&times, estimate, figures.len()) {
                rows.extend(predicted.rows);
                figures.push(predicted.figure);
                findings.push(predicted.finding);
            }
        }
        if let Some(trace) = &self.scenario.trace {
            let sequence = self.sequence(&times, trace, figures.len());
            rows.extend(sequence.rows);
            figures.push(sequence.figure);
            findings.extend(sequence.finding);
        }
        let tables = Record::of_tables(&self.scenario.name, self.assumptions(), (rows, findings));
        Record { figures, ..tables }
    }

    /// Returns two figures for each pair: gains over direct, and times.
    fn figures(&self) -> Vec<Figure> {
        let figure = |pair: &Pair, title: &str, y_label: &str| Figure {
            title: format!("{}, {}: {title}", pair.name, pair.size),
            x_label: "loss of the Internet path".to_owned(),
            y_label: y_label.to_owned(),
            scale: Scale::Names,
        };
        let both = |pair: &Pair| {
            [
                figure(pair, "times faster than direct, medians", "direct time / time"),
                figure(pair, "completion times, medians", "seconds"),
            ]
        };
        self.scenario.pairs.iter().flat_map(both).collect()
    }

    fn rows(
        &self,
        times: &Times<'_>,
        pair_index: usize,
        pair: &Pair,
        loss: usize,
        percent: f64,
    ) -> Vec<Row> {
        let cell = |strategy| Cell { pair: pair_index, loss, strategy };
        let spot = |figure: usize, line: &str| Spot {
            figure: 2 * pair_index + figure,
            line: line.to_owned(),
            x: loss as f64,
            x_name: format!("{percent} %"),
        };
        let direct = self.scenario.strategies.iter().position(|known| known.relays.is_none());
        let direct = times.of_chain(cell(direct.expect("a scenario has a direct strategy")), 0);
        let case = |strategy: &str| format!("{}, loss {percent} %: {strategy}", pair.name);
        let mut rows = vec![self.floor_row(pair, &case("floor")).drawn_at(spot(1, "floor"))];
        for (index, strategy) in self.scenario.strategies.iter().enumerate() {
            let tries = self.network.tries(pair, strategy);
            let best = times.best(cell(index), tries.len());
            let took = times.of_chain(cell(index), best);
            let gains = ratios(&direct, &took);
            let paper = strategy.paper.get(&pair.name).copied();
            let note = format!("{}; {}", via_text(&tries[best]), mean_rate_note(&direct, &took));
            let name = best_of(&strategy.name, tries.len());
            let gain = Row::of_median(&case(&name), paper, &gains, "x", &note);
            rows.push(gain.drawn_at(spot(0, &name)));
            let fct = Row::of_median(&case(&name), None, &took, "s", "");
            rows.push(fct.drawn_at(spot(1, &name)));
            if tries.len() > 1 {
                rows.extend(self.tries_rows(times, cell(index), strategy, &tries, &direct, &case));
            }
        }
        rows
    }

    /// Returns the results of a strategy's chains: the one that the rule ranks first, each of them
    /// if shown, and their median.
    fn tries_rows(
        &self,
        times: &Times<'_>,
        cell: Cell,
        strategy: &Strategy,
        tries: &[Via],
        direct: &[f64],
        case: &impl Fn(&str) -> String,
    ) -> Vec<Row> {
        let gains: Vec<Vec<f64>> =
            (0..tries.len()).map(|chain| ratios(direct, &times.of_chain(cell, chain))).collect();
        let shown = matches!(&strategy.relays, Some(Relays::Ruled(rule)) if rule.show);
        let name = case(&format!("{}: first by the rule", strategy.name));
        let mut rows = vec![Row::of_median(&name, None, &gains[0], "x", &via_text(&tries[0]))];
        rows.extend(tries.iter().zip(&gains).filter(|_| shown).map(|(via, gains)| {
            let name = format!("{}: {}", strategy.name, via_text(via));
            Row::of_median(&case(&name), None, gains, "x", "")
        }));
        let medians: Vec<f64> = gains.iter().map(|gains| median(gains)).collect();
        let name = case(&format!("{}: median chain", strategy.name));
        let note = format!("of {} chains", tries.len());
        rows.push(Row::of(&name, strategy.paper_median, &[median(&medians)], "x", &note));
        rows
    }

    fn floor_row(&self, pair: &Pair, case: &str) -> Row {
        let two = self.scenario.strategies.iter().flat_map(|known| self.network.tries(pair, known));
        let via: Vec<RegionId> = two.into_iter().find(|via| via.len() == 2).unwrap_or_default();
        let floor = self.network.floor(pair, &via).as_secs_f64();
        let note = format!(
            "over {}: handshakes of the access legs, one round trip end to end, size over the \
             slower end's rate",
            via_text(&via)
        );
        Row::of(case, None, &[floor], "s", &note)
    }

    /// Returns the times of a strategy's best chain.
    fn of_best(&self, times: &Times<'_>, cell: Cell) -> Vec<f64> {
        let known = &self.scenario.strategies[cell.strategy];
        let tries = self.network.tries(&self.scenario.pairs[cell.pair], known).len();
        times.of_chain(cell, times.best(cell, tries))
    }

    /// Returns the finding whether each group's best is faster than the previous group's best, at
    /// each loss.
    fn ordered(&self, times: &Times<'_>, order: &Order) -> Option<Finding> {
        let pair = self.scenario.pairs.iter().position(|pair| pair.name == order.pair)?;
        let mut holds = true;
        let mut by_loss = Vec::new();
        for (loss, percent) in self.scenario.losses_percent.iter().enumerate() {
            let groups = order.slowest_first.iter().filter_map(|group| {
                let medians = group.iter().filter_map(|name| {
                    let cell = Cell { pair, loss, strategy: self.place(name)? };
                    Some(median(&if order.by_rule.contains(name) {
                        times.of_chain(cell, 0)
                    } else {
                        self.of_best(times, cell)
                    }))
                });
                medians.min_by(f64::total_cmp)
            });
            let groups: Vec<f64> = groups.collect();
            holds &= groups.windows(2).all(|two| two[1] <= two[0]);
            let seconds: Vec<String> = groups.iter().map(|fct| format!("{fct:.2}")).collect();
            by_loss.push(format!("{percent} %: {} s", seconds.join(" > ")));
        }
        let by_rule = match &order.by_rule[..] {
            [] => String::new(),
            names => format!(" ({}: the rule's first chain)", names.join(", ")),
        };
        let by_loss = by_loss.join("; ");
        let ours = format!("medians of the best of each{by_rule}, slowest first; loss {by_loss}");
        Some(Finding::new(&order.paper, holds, ours))
    }

    /// Returns the finding whether a strategy's share of another's time stays within its bounds at
    /// each loss, judged by the interval of the median of the ratio within one repeat.
    fn shared(&self, times: &Times<'_>, share: &Share) -> Option<Finding> {
        let pair = self.scenario.pairs.iter().position(|pair| pair.name == share.pair)?;
        let [ours, theirs] = [self.place(&share.strategy)?, self.place(&share.of)?];
        let mut holds = true;
        let mut by_loss = Vec::new();
        for (loss, percent) in self.scenario.losses_percent.iter().enumerate() {
            let [ours, theirs] =
                [ours, theirs].map(|strategy| self.of_best(times, Cell { pair, loss, strategy }));
            let shares = ratios(&ours, &theirs);
            let (low, high) = bounds(&shares);
            holds &= high <= share.at_most && share.at_least.is_none_or(|least| low >= least);
            let [ours, theirs] = [ours, theirs].map(|took| median_or_nan(&took));
            let middle = median_or_nan(&shares);
            by_loss.push(format!(
                "{percent} %: {middle:.2} [{low:.2}, {high:.2}], {ours:.3} s of {theirs:.3} s"
            ));
        }
        let ours = format!("ratios of the repeats and times, medians; loss {}", by_loss.join("; "));
        Some(Finding::new(&share.paper, holds, ours))
    }

    fn near(&self, times: &Times<'_>, floor: &Floor) -> Option<Finding> {
        let pair = self.scenario.pairs.iter().position(|pair| pair.name == floor.pair)?;
        let loss =
            self.scenario.losses_percent.iter().position(|loss| *loss == floor.loss_percent)?;
        let strategy = self.place(&floor.strategy)?;
        let known = &self.scenario.pairs[pair];
        let via = self.network.tries(known, &self.scenario.strategies[strategy]);
        let least = self.network.floor(known, &via[0]).as_secs_f64();
        let took = median(&times.of_chain(Cell { pair, loss, strategy }, 0));
        let above = 100.0 * (took / least - 1.0);
        let ours = format!("{took:.3} s, {above:.0} % above the floor of {least:.3} s");
        Some(Finding::new(&floor.paper, above <= floor.within_percent, ours))
    }

    pub(super) fn place(&self, name: &str) -> Option<usize> {
        self.scenario.strategies.iter().position(|known| known.name == name)
    }

    fn assumptions(&self) -> Vec<String> {
        let mut lines = self.scenario.assumptions.clone();
        lines.push(format!(
            "legs between an end point and a relay lose {} of the Internet path's loss; legs \
             between relays lose nothing",
            self.scenario.access_share
        ));
        lines.push(self.scenario.runs.describe_medians(self.options));
        if self.options.quick {
            let names = |scenario: &Scenario| {
                let pairs = scenario.pairs.iter().map(|pair| pair.name.clone());
                let strategies = scenario.strategies.iter().map(|known| known.name.clone());
                pairs.chain(strategies).collect::<Vec<String>>()
            };
            let present = names(self.scenario);
            let mut left: Vec<String> =
                names(self.whole).into_iter().filter(|name| !present.contains(name)).collect();
            if self.whole.losses_percent != self.scenario.losses_percent {
                left.push(format!("losses but {:?} %", self.scenario.losses_percent));
            }
            let fewer = |known: &Strategy| match &known.relays {
                Some(Relays::Ruled(rule)) => rule.tries_quick < rule.tries,
                _ => false,
            };
            if self.whole.strategies.iter().any(fewer) {
                left.push("all chains but the first few of each strategy".to_owned());
            }
            if !left.is_empty() {
                lines.push(format!("a quick run leaves out: {}", left.join(", ")));
            }
        }
        lines
    }
}

/// Returns the interval of the median, or minimum and maximum of fewer than six values, for which
/// it is undefined.
fn bounds(values: &[f64]) -> (f64, f64) {
    let range = || {
        let of = |choose: fn(f64, f64) -> f64| values.iter().copied().reduce(choose);
        (of(f64::min).unwrap_or(f64::NAN), of(f64::max).unwrap_or(f64::NAN))
    };
    median_interval(values).unwrap_or_else(range)
}

/// Returns the name of a strategy's row: of several chains it shows the best one.
fn best_of(strategy: &str, tries: usize) -> String {
    match tries {
        1 => strategy.to_owned(),
        _ => format!("{strategy}: best of {tries}"),
    }
}

/// Returns the speed-up of `took` over `direct`, repeat by repeat.
pub(super) fn ratios(direct: &[f64], took: &[f64]) -> Vec<f64> {
    direct.iter().zip(took).map(|(direct, took)| direct / took).collect()
}

/// Returns a note with the ratio as CDD computes it: of mean rates.
fn mean_rate_note(direct: &[f64], took: &[f64]) -> String {
    let mean_rate = |times: &[f64]| {
        times.iter().map(|time| 1.0 / time).sum::<f64>() / times.len().max(1) as f64
    };
    format!("ratio of mean rates: {:.2}", mean_rate(took) / mean_rate(direct))
}

pub(super) fn via_text(via: &[RegionId]) -> String {
    let names: Vec<&str> = via.iter().map(RegionId::as_str).collect();
    if names.is_empty() { "no relay".to_owned() } else { names.join(" > ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::watch::Arrivals;

    /// Returns the finding at one loss for these shares of HAProxy's time, one for each repeat.
    fn found(shares: &[f64]) -> Finding {
        let text = include_str!("../../scenarios/stream-chains.toml");
        let scenario = Scenario::parse(text).unwrap().quick();
        let network = include_str!("../../scenarios/stream-chains-wan.toml");
        let network = Network::parse(network, "stream-chains-wan.toml").unwrap();
        let outcome = Outcome {
            scenario: &scenario,
            whole: &scenario,
            network: &network,
            options: &RunOptions::of_tests(),
        };
        let place = |name: &str| outcome.place(name).unwrap();
        let sample = |strategy, fct_s| Sample {
            pair: 0,
            strategy,
            chain: 0,
            fct_s,
            arrivals: Arrivals::default(),
        };
        // Repeats differ more from each other than the two strategies do within one.
        let fetched = |(repeat, share): (usize, &f64)| {
            let theirs = 1.0 + repeat as f64;
            vec![sample(place("HAProxy"), theirs), sample(place("Tradewind"), theirs * share)]
        };
        let samples: Vec<Vec<Sample>> = shares.iter().enumerate().map(fetched).collect();
        let repeats = vec![Repeat { seed: 1, loss: 0 }; samples.len()];
        let share = scenario.shares.iter().find(|share| share.at_most == 0.5).unwrap();
        outcome.shared(&Times::new(&repeats, &samples), share).unwrap()
    }

    #[test]
    fn share_holds_by_interval_of_ratios() {
        let even = found(&[0.4; 10]);
        assert!(even.holds && even.ours.contains("0 %: 0.40 [0.40, 0.40]"), "{}", even.ours);
        // One of ten repeats may be beyond the bound; two may not, because their median may be.
        assert!(found(&[0.9, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]).holds);
        let wide = found(&[0.9, 0.9, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4]);
        assert!(!wide.holds && wide.ours.contains("[0.40, 0.90]"), "{}", wide.ours);
        // With few repeats each must be below.
        assert!(found(&[0.4, 0.49, 0.45]).holds && !found(&[0.4, 0.4, 0.51]).holds);
        assert!(!found(&[]).holds);
    }

    /// Returns the record of cdd-hops in which the chains of one and of three relays take these
    /// times and all others take 2 s.
    fn of_hops(one: &[f64], three: &[f64]) -> Record {
        let text = include_str!("../../scenarios/cdd-hops.toml");
        let scenario = Scenario::parse(text).unwrap();
        let network = include_str!("../../scenarios/cdd-wan.toml");
        let network = Network::parse(network, "cdd-wan.toml").unwrap();
        let options = RunOptions::of_tests();
        let outcome =
            Outcome { scenario: &scenario, whole: &scenario, network: &network, options: &options };
        let mut samples = Vec::new();
        for (strategy, known) in scenario.strategies.iter().enumerate() {
            let times = match known.name.as_str() {
                "one relay" => one,
                "three relays" => three,
                _ => &[],
            };
            for chain in 0..network.tries(&scenario.pairs[0], known).len() {
                let fct_s = times.get(chain).copied().unwrap_or(2.0);
                let arrivals = Arrivals::default();
                samples.push(Sample { pair: 0, strategy, chain, fct_s, arrivals });
            }
        }
        let repeats = [0, 1].map(|loss| Repeat { seed: 1, loss });
        outcome.record(&repeats, &[samples.clone(), samples])
    }

    #[test]
    fn findings_by_rule_use_its_first_chain() {
        let without_knowing = |record: &Record| {
            let is_meant = |finding: &&Finding| finding.paper.starts_with("without knowing which");
            record.findings.iter().find(is_meant).unwrap().holds
        };
        assert!(without_knowing(&of_hops(&[1.8, 1.7], &[1.5])));
        // A single relay that wins by chance counts, a middle relay does not.
        let by_chance = of_hops(&[1.8, 1.7], &[1.9, 1.5]);
        assert!(!without_knowing(&by_chance));
        let best = &by_chance.findings[0];
        assert!(best.paper.starts_with("the best three") && best.holds, "{}", best.ours);
        let names: Vec<&str> = by_chance.rows.iter().map(|row| row.case.as_str()).collect();
        for name in ["one relay: best of 14", "three relays: first by the rule", "two relays"] {
            let name = format!("Mumbai-SF, loss 0.01 %: {name}");
            assert!(names.contains(&name.as_str()), "{name}: {names:?}");
        }
    }

    #[test]
    fn alike_means_a_share_within_both_bounds() {
        let alike = |one: f64| of_hops(&[one; 14], &[]).findings[2].holds;
        assert!(alike(1.7) && alike(2.4));
        assert!(!alike(1.5) && !alike(2.6));
    }
}
