//! The gains that ratios of round trips predict \[CDD, "Is RTT a Good Proxy for Performance?"\]:
//! for each chain, the ratio beside the measured gain.

use tradewind_model::statistics::median;
use tradewind_output::chart::Scale;
use tradewind_units::{Duration, RegionId};

use super::outcome::{Cell, Outcome, Times, ratios, via_text};
use super::scenario::{By, Estimate, Pair};
use crate::harness::{Figure, Finding, Row, Spot, correlation};
use crate::numeric::estimate::CORRELATES;

/// The result for one estimate.
pub(super) struct Predicted {
    pub(super) rows: Vec<Row>,
    pub(super) figure: Figure,
    pub(super) finding: Finding,
}

impl Outcome<'_> {
    /// Compares the gains of a strategy's chains with the ratios of round trips; `None` where a
    /// quick run left one of the two strategies out.
    pub(super) fn predicted(
        &self,
        times: &Times<'_>,
        estimate: &Estimate,
        figure: usize,
    ) -> Option<Predicted> {
        let pair = self.scenario.pairs.iter().position(|pair| pair.name == estimate.pair)?;
        let [strategy, over] = [&estimate.strategy, &estimate.over].map(|name| self.place(name));
        let (strategy, over) = (strategy?, over?);
        let known = &self.scenario.pairs[pair];
        let tries =
            |strategy: usize| self.network.tries(known, &self.scenario.strategies[strategy]);
        let over_via = tries(over).swap_remove(0);
        let via = tries(strategy);
        let ratio = |via: &[RegionId]| {
            let span = |via: &[RegionId]| self.span(estimate.by, known, via).as_secs_f64();
            span(&over_via) / span(via)
        };
        let (mut rows, mut coefficients, mut all) = (Vec::new(), Vec::new(), Vec::new());
        for (loss, percent) in self.scenario.losses_percent.iter().enumerate() {
            let cell = |strategy| Cell { pair, loss, strategy };
            let base = times.of_chain(cell(over), 0);
            let gains = |chain: usize| ratios(&base, &times.of_chain(cell(strategy), chain));
            let mut chains: Vec<(f64, usize)> =
                via.iter().enumerate().map(|(chain, via)| (ratio(via), chain)).collect();
            chains.sort_by(|a, b| a.0.total_cmp(&b.0));
            let mut points = Vec::new();
            for (predicted, chain) in chains {
                let gains = gains(chain);
                points.push((predicted, median(&gains)));
                let name = format!(
                    "{}, loss {percent} %: {} over {}: {}",
                    known.name,
                    estimate.strategy,
                    estimate.over,
                    via_text(&via[chain])
                );
                let note = format!("predicted {predicted:.2}x");
                let spot = Spot {
                    figure,
                    line: format!("loss {percent} %"),
                    x: predicted,
                    x_name: format!("{predicted:.2}x, {}", via_text(&via[chain])),
                };
                rows.push(Row::of_median(&name, None, &gains, "x", &note).drawn_at(spot));
            }
            let coefficient = correlation(&points);
            coefficients.push(format!("{coefficient:.2} at {percent} %"));
            all.push(coefficient);
        }
        let holds = all.iter().all(|value| (*value >= CORRELATES) == estimate.correlates);
        let ours = format!("correlation over {} chains: {}", via.len(), coefficients.join(", "));
        let figure = Figure {
            title: format!("{} over {}: predicted and measured", estimate.strategy, estimate.over),
            x_label: "ratio of round trips".to_owned(),
            y_label: "gain, median".to_owned(),
            scale: Scale::Linear,
        };
        Some(Predicted { rows, figure, finding: Finding::new(&estimate.paper, holds, ours) })
    }

    /// Returns the round trip that an estimate uses.
    fn span(&self, by: By, pair: &Pair, via: &[RegionId]) -> Duration {
        let legs = self.network.legs(pair, via);
        let inner = legs.get(1..legs.len() - 1).unwrap_or_default();
        match by {
            By::EndToEnd => legs.iter().sum(),
            By::LargestLeg => legs.into_iter().max().unwrap_or_default(),
            By::LargestInnerLeg => inner.iter().copied().max().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::network::Network;
    use super::super::repeat::{Repeat, Sample};
    use super::super::scenario::Scenario;
    use super::*;
    use crate::harness::RunOptions;
    use crate::harness::watch::Arrivals;

    #[test]
    fn only_gains_that_follow_rtt_ratios_correlate() {
        let text = include_str!("../../scenarios/cdd-wan.toml");
        let network = Network::parse(text, "cdd-wan.toml").unwrap();
        let scenario = include_str!("../../scenarios/cdd-rtt-lab.toml");
        let scenario = Scenario::parse(scenario).unwrap();
        let options = RunOptions::of_tests();
        let outcome =
            Outcome { scenario: &scenario, whole: &scenario, network: &network, options: &options };
        let pair = &scenario.pairs[0];
        let holds = |estimate: usize, fct: &dyn Fn(&[Duration], usize) -> f64| {
            let mut samples = Vec::new();
            for (strategy, known) in scenario.strategies.iter().enumerate() {
                for (chain, via) in network.tries(pair, known).iter().enumerate() {
                    let fct_s = fct(&network.legs(pair, via), chain);
                    let arrivals = Arrivals::default();
                    samples.push(Sample { pair: 0, strategy, chain, fct_s, arrivals });
                }
            }
            let repeats = [0, 1].map(|loss| Repeat { seed: 1, loss });
            let samples = [samples.clone(), samples];
            let times = Times::new(&repeats, &samples);
            let estimate = &scenario.estimates[estimate];
            outcome.predicted(&times, estimate, 0).unwrap().finding.holds
        };
        let end_to_end = |legs: &[Duration], _: usize| legs.iter().sum::<Duration>().as_secs_f64();
        let by_chance =
            |_: &[Duration], chain: usize| if chain.is_multiple_of(2) { 1.0 } else { 2.0 };
        assert!(holds(0, &end_to_end));
        assert!(!holds(0, &by_chance));
        let inner = |legs: &[Duration], _: usize| {
            let inner = legs.get(1..legs.len() - 1).unwrap_or_default();
            inner.iter().max().map_or(9.0, Duration::as_secs_f64)
        };
        assert!(holds(1, &inner));
        // According to the paper, this one does not correlate.
        assert!(holds(2, &by_chance));
    }
}
