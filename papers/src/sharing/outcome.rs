//! Results of sharing: completion times beside the least possible, and retransmissions.

use std::collections::BTreeSet;

use tradewind_model::statistics::{mean, median};
use tradewind_output::chart::Scale;
use tradewind_units::{Bandwidth, Duration};
use tradewind_wan::Topology;

use super::repeat::{BesideSample, Outcome};
use super::scenario::{Alone, Scenario};
use crate::harness::{Figure, Finding, Record, Row, RunOptions, Spot, round_trip};

/// Bytes of an IP packet for each byte of payload: full packets of 1500 bytes, with time stamps.
const IP_PER_PAYLOAD: f64 = 1500.0 / 1448.0;

/// The indices of the figures.
const ALONE: usize = 0;
const BESIDE_TIMES: usize = 1;
const BESIDE_RATES: usize = 2;

/// Returns the first item of the scenario that is missing in the topology.
pub(super) fn check(scenario: &Scenario, topology: &Topology) -> Option<String> {
    let beside = &scenario.beside;
    let ends = [&scenario.client, &scenario.server, &beside.long_client, &beside.long_server];
    let hosts = ends.into_iter().chain([&beside.short_client, &beside.short_server]);
    let missing = hosts.chain(&scenario.relays).find(|host| topology.host(host).is_none());
    if let Some(host) = missing {
        return Some(format!("no host `{host}`"));
    }
    link_rate(scenario, topology)
        .is_none()
        .then(|| format!("no link `{}` with a rate", scenario.link))
}

fn link_rate(scenario: &Scenario, topology: &Topology) -> Option<Bandwidth> {
    topology.links.iter().find(|link| link.name == scenario.link)?.rate
}

/// Returns the least time of a fetch: one round trip over all legs and the file at the link's rate;
/// handshakes of the legs to the client and the server, and of the one between the relays unless a
/// warm connection exists.
fn floor(scenario: &Scenario, topology: &Topology, warm: bool) -> Duration {
    let rtt = |a, b| round_trip(topology, a, b);
    let [west, east] = &scenario.relays;
    let access = rtt(&scenario.client, west) + rtt(east, &scenario.server);
    let between = rtt(west, east);
    let handshakes = if warm { access } else { access + between };
    let rate = link_rate(scenario, topology).expect("the scenario was checked");
    handshakes + access + between + rate.time_for(scenario.size.scaled(IP_PER_PAYLOAD))
}

/// Returns the record of all repeats.
pub(super) fn record(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    repeats: &[Outcome],
) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    for (index, case) in scenario.alone.iter().enumerate() {
        let all = Case { scenario, repeats, index, case };
        let least = floor(scenario, topology, case.warm).as_secs_f64();
        rows.extend(all.rows(least));
        findings.extend(all.near(least));
        findings.extend(all.no_more_loss());
    }
    for (index, newcomer) in scenario.beside.newcomers.iter().enumerate() {
        rows.extend(beside_rows(repeats, index, &newcomer.name));
    }
    findings.extend(hurt(scenario, repeats));
    let mut assumptions = scenario.assumptions.clone();
    assumptions.push(scenario.runs.describe_medians(options));
    assumptions.push(
        "the least time counts handshakes of all legs that are not warm, one round trip, and the \
         file at the link's rate"
            .to_owned(),
    );
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings));
    Record { figures: figures(scenario), ..tables }
}

/// Returns the figures, in the order of [`ALONE`], [`BESIDE_TIMES`] and [`BESIDE_RATES`].
fn figures(scenario: &Scenario) -> Vec<Figure> {
    let figure = |title: String, x_label: &str, y_label: &str| Figure {
        title,
        x_label: x_label.to_owned(),
        y_label: y_label.to_owned(),
        scale: Scale::Names,
    };
    let alone = format!("{} alone on the link, until the last has ended", scenario.size);
    let times = "beside others: completion times, medians".to_owned();
    let rates = "beside others: what their long downloads get".to_owned();
    vec![
        figure(alone, "downloads at once", "seconds"),
        figure(times, "who comes", "seconds"),
        figure(rates, "who comes", "Mbit/s"),
    ]
}

/// A case of fetches alone on the link.
struct Case<'a> {
    scenario: &'a Scenario,
    repeats: &'a [Outcome],
    index: usize,
    case: &'a Alone,
}

impl Case<'_> {
    /// Returns the completion times by repeat; of several concurrent ones the last counts.
    fn times(&self) -> Vec<f64> {
        let last = |times: &Vec<f64>| times.iter().copied().fold(f64::NAN, f64::max);
        self.repeats.iter().map(|repeat| last(&repeat.alone[self.index].fct_s)).collect()
    }

    fn again(&self, index: usize) -> Vec<f64> {
        self.repeats.iter().map(|repeat| repeat.alone[index].again).collect()
    }

    fn rows(&self, least: f64) -> [Row; 2] {
        let name = &self.case.name;
        let which = if self.case.flows == 1 { "time" } else { "time of the last" };
        let note = match self.case.flows {
            1 => format!("least possible {least:.3} s"),
            _ => String::new(),
        };
        let per_cent: Vec<f64> = self.again(self.index).iter().map(|share| share * 100.0).collect();
        let took =
            Row::of_median(&format!("alone: {name}: {which}"), None, &self.times(), "s", &note);
        [
            took.drawn_at(self.spot()),
            Row::of(&format!("alone: {name}: sent again"), None, &per_cent, "%", ""),
        ]
    }

    /// Returns the position in the figure: the number of concurrent flows is x, the settings are
    /// the line.
    fn spot(&self) -> Spot {
        let Alone { name, flows, .. } = self.case;
        let fewer: BTreeSet<u16> =
            self.scenario.alone.iter().map(|case| case.flows).filter(|it| it < flows).collect();
        let line = name.strip_prefix(&format!("{flows} x ")).unwrap_or(name).to_owned();
        Spot { figure: ALONE, line, x: fewer.len() as f64, x_name: flows.to_string() }
    }

    fn near(&self, least: f64) -> Option<Finding> {
        let within = self.case.within_percent?;
        let took = median(&self.times());
        let above = 100.0 * (took / least - 1.0);
        let paper = format!(
            "ours: {} ends within {within} % of round trips and size over rate",
            self.case.name
        );
        let ours = format!("{took:.3} s, {above:.0} % above {least:.3} s");
        Some(Finding::new(&paper, above <= within, ours))
    }

    fn no_more_loss(&self) -> Option<Finding> {
        let reference = self.case.reference.as_ref()?;
        let other = self.scenario.alone.iter().position(|case| case.name == *reference)?;
        let paper = format!("ours: {} loses no more than {reference}", self.case.name);
        Some(no_more_again(&paper, &self.again(self.index), &self.again(other)))
    }
}

fn beside_rows(repeats: &[Outcome], index: usize, name: &str) -> Vec<Row> {
    let of = |value: fn(&BesideSample) -> f64| -> Vec<f64> {
        repeats.iter().map(|repeat| value(&repeat.beside[index])).collect()
    };
    let case = |what: &str| format!("others, beside {name}: {what}");
    let spot = |figure: usize, line: &str| Spot {
        figure,
        line: line.to_owned(),
        x: index as f64,
        x_name: name.to_owned(),
    };
    let row = |what: &str, values: &[f64], unit: &str, figure: usize| {
        Row::of_median(&case(what), None, values, unit, "").drawn_at(spot(figure, what))
    };
    let slowest = |it: &BesideSample| it.short_s.iter().copied().fold(f64::NAN, f64::max);
    let mut rows = vec![
        row("long downloads", &of(|it| it.long_mbps), "Mbit/s", BESIDE_RATES),
        Row::of(&case("long downloads sent again"), None, &of(|it| it.long_again * 100.0), "%", ""),
        row("short download, median", &of(|it| median(&it.short_s)), "s", BESIDE_TIMES),
        row("short download, slowest", &of(slowest), "s", BESIDE_TIMES),
    ];
    if repeats.iter().any(|repeat| !repeat.beside[index].fct_s.is_empty()) {
        let mine = |what: &str| format!("{name}, beside others: {what}");
        let again = of(|it| it.again * 100.0);
        let took = Row::of_median(&mine("time"), None, &of(|it| median(&it.fct_s)), "s", "");
        rows.push(took.drawn_at(spot(BESIDE_TIMES, "newcomer's download")));
        rows.push(Row::of(&mine("sent again"), None, &again, "%", ""));
    }
    rows
}

/// Returns the findings about each newcomer's effect on others, compared with the first newcomer
/// with a leg, which is regular TCP.
fn hurt(scenario: &Scenario, repeats: &[Outcome]) -> Vec<Finding> {
    let newcomers = scenario.beside.newcomers.iter().enumerate();
    let mut with_leg = newcomers.filter(|(_, newcomer)| newcomer.leg.is_some());
    let Some((usual, _)) = with_leg.next() else { return Vec::new() };
    let middle = |index: usize, value: fn(&BesideSample) -> f64| {
        median(&repeats.iter().map(|repeat| value(&repeat.beside[index])).collect::<Vec<f64>>())
    };
    let figures =
        |index: usize| [middle(index, |it| it.long_mbps), middle(index, |it| median(&it.short_s))];
    let [its_long, its_short] = figures(usual);
    let again = |index: usize| -> Vec<f64> {
        repeats.iter().map(|repeat| repeat.beside[index].long_again).collect()
    };
    with_leg
        .flat_map(|(index, newcomer)| {
            let [long, short] = figures(index);
            let holds = long >= 0.95 * its_long && short <= 1.05 * its_short;
            let paper =
                format!("{} is not more aggressive to others than regular TCP", newcomer.name);
            let ours = format!(
                "others' long downloads {long:.1} against {its_long:.1} Mbit/s, short ones \
                 {short:.3} against {its_short:.3} s (within 5 % counts as equal)"
            );
            let loss =
                format!("beside {} others lose no more than beside regular TCP", newcomer.name);
            [Finding::new(&paper, holds, ours), no_more_again(&loss, &again(index), &again(usual))]
        })
        .collect()
}

/// Returns the finding that no larger share is retransmitted than in the reference: the upper 95 %
/// bound of the mean ratio, from the paired differences, is at most 1.
fn no_more_again(paper: &str, mine: &[f64], theirs: &[f64]) -> Finding {
    let differences: Vec<f64> = mine.iter().zip(theirs).map(|(mine, its)| mine - its).collect();
    let average = |values: &[f64]| values.iter().sum::<f64>() / values.len().max(1) as f64;
    let (my_mean, its_mean) = (average(mine), average(theirs));
    if my_mean == 0.0 {
        return Finding::new(paper, true, "nothing was sent again".to_owned());
    }
    let upper = mean(&differences).map_or(f64::INFINITY, |estimate| estimate.high);
    let bound = 1.0 + upper / its_mean;
    let ours = format!(
        "{:.2} % against {:.2} % sent again, upper 95 % bound of the ratio {bound:.2}",
        my_mean * 100.0,
        its_mean * 100.0
    );
    Finding::new(paper, bound <= 1.0, ours)
}

#[cfg(test)]
mod tests {
    use tradewind_model::Catalogue;

    use super::super::repeat::AloneSample;
    use super::*;

    #[test]
    fn figure_positions_follow_flow_counts_and_newcomers() {
        let text = include_str!("../../scenarios/cdd-fair.toml");
        let scenario = Scenario::parse(text).unwrap();
        let topology = include_str!("../../scenarios/cdd-fair-wan.toml");
        let topology = Topology::parse(topology, &Catalogue::builtin()).unwrap();
        let alone = scenario
            .alone
            .iter()
            .map(|case| AloneSample { fct_s: vec![0.5; usize::from(case.flows)], again: 0.0 });
        let beside = scenario.beside.newcomers.iter().map(|newcomer| BesideSample {
            fct_s: newcomer.leg.iter().map(|_| 1.0).collect(),
            again: 0.0,
            long_mbps: 100.0,
            long_again: 0.0,
            short_s: vec![0.2, 0.3, 0.7],
        });
        let repeat = Outcome { alone: alone.collect(), beside: beside.collect() };
        let record = record(&scenario, &topology, &RunOptions::of_tests(), &[repeat]);
        let charts = record.charts();
        let [alone, times, rates] = &charts[..] else { panic!("{} figures", charts.len()) };
        let lines: Vec<(&str, Vec<&str>)> = (alone.lines.iter())
            .map(|line| (&line.name[..], line.points.iter().map(|at| &at.name[..]).collect()))
            .collect();
        assert_eq!(lines[0], ("Cubic from 10 segments", vec!["1", "8"]));
        assert_eq!(lines[4], ("paced-start", vec!["8"]));
        assert_eq!(times.lines[0].points.len(), 4);
        assert_eq!(times.lines[2].points.len(), 3, "nobody's download is not there");
        assert_eq!(rates.lines[0].points[0].name, "nobody");
    }
}
