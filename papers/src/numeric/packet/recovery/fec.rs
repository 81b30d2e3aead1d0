//! `jq-fec`: recovery by coding, compared with that by repair packets on the direct path [JQ 5.2,
//! "CR-WAN vs. on-path FEC schemes"].
//!
//! A what-if on the losses of `jq-recovery`, as the paper's is on its probes: packets are taken
//! five at a time, and the packets after them stand for their repair packets, so that an outage
//! hits both. The paper counts access losses as repaired for coding, and not for repair packets on
//! the direct path; here that is one of four ways to count.

use serde::Deserialize;
use tradewind_output::chart::Scale;

use super::{Case, Fate, Loss, Scenario as Network, share, world};
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Record, Row, Runs, ScenarioError, Spot, from_toml, mean,
    within,
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
    /// The same in a quick run.
    pub cycles_quick: u32,
    /// Packets that share repair packets on the direct path.
    pub block: usize,
    /// Numbers of repair packets for them, from few to many.
    pub repairs: Vec<usize>,
    /// Other shares of wide-area losses that are bursts, besides the network's: they decide what
    /// FEC can do.
    pub burst_sweep: Vec<f64>,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let repairs = scenario.repairs.iter();
        let repairs = repairs.map(|count| ("repairs", *count as f64, 1.0, scenario.block as f64));
        let ranges = [
            ("cycles", f64::from(scenario.cycles), 1.0, 10_000.0),
            ("cycles_quick", f64::from(scenario.cycles_quick), 1.0, 10_000.0),
            ("block", scenario.block as f64, 1.0, 32.0),
            ("numbers of repairs", scenario.repairs.len() as f64, 1.0, 8.0),
        ];
        let sweep = scenario.burst_sweep.iter();
        let sweep = sweep.map(|share| ("burst_sweep", *share, 0.0, 1.0));
        within(ranges.into_iter().chain(repairs).chain(sweep))?;
        Ok(scenario)
    }

    /// Returns the name of an overhead.
    fn overhead(&self, repairs: usize) -> String {
        format!("FEC at {:.0} %", 100.0 * repairs as f64 / self.block as f64)
    }
}

/// Definition of recovery by coding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Count {
    /// The losses that it recovers, and all access losses: "existing techniques" would repair
    /// those, the paper says.
    AsPaper,
    /// The losses that it recovers.
    Measured,
    /// The losses that it recovers with ARQ on access paths.
    WithArq,
    /// The losses that it recovers, with access losses left out on both sides.
    WideArea,
}

impl Count {
    const ALL: [Self; 4] = [Self::AsPaper, Self::Measured, Self::WithArq, Self::WideArea];

    const fn name(self) -> &'static str {
        match self {
            Self::AsPaper => "access losses counted as repaired for coding",
            Self::Measured => "coding as it is",
            Self::WithArq => "coding with ARQ",
            Self::WideArea => "wide-area losses alone",
        }
    }
}

/// A loss, and its recovery by each means.
#[derive(Debug, Clone)]
struct Judged {
    path: usize,
    burst: usize,
    span: u32,
    on_access: bool,
    /// By coding, without ARQ and with it.
    coded: [bool; 2],
    /// By repair packets on the direct path, for each of [`Scenario::repairs`].
    repaired: Vec<bool>,
}

impl Judged {
    fn counts(&self, count: Count) -> bool {
        count != Count::WideArea || !self.on_access
    }

    fn is_coded(&self, count: Count) -> bool {
        match count {
            Count::AsPaper => self.on_access || self.coded[0],
            Count::Measured | Count::WideArea => self.coded[0],
            Count::WithArq => self.coded[1],
        }
    }
}

/// Returns whether so many repair packets recover all that is lost of the block of the packet at
/// `place`: any of them recovers any one lost packet, as in the crate `fec`. They have the fates of
/// the packets after the block; `None` where too few were sent.
fn is_repaired(fates: &[Fate], place: usize, block: usize, repairs: usize) -> Option<bool> {
    let begin = place - place % block;
    let end = begin + block;
    let lost = fates.get(begin..end)?.iter().filter(|fate| !fate.came).count();
    let come = fates.get(end..end + repairs)?.iter().filter(|fate| fate.came).count();
    Some(come >= lost)
}

/// Judges one run: all losses, except those in blocks that a span's end cuts off.
fn judge(scenario: &Scenario, network: &Network, seed: u64) -> Result<Vec<Judged>, NumericError> {
    let mut judged = Vec::new();
    let case = Case::prompt(network.access_share, false);
    let (mut losses, mut span): (Vec<Loss>, u32) = (Vec::new(), 0);
    world::run(network, case, seed, &mut |paths| {
        let known = losses.len();
        super::gather(paths, &mut losses);
        judged.extend(losses[known..].iter().map(|loss| {
            let fates = &paths[loss.path].1;
            let repaired = |repairs| is_repaired(fates, loss.place, scenario.block, repairs);
            let repaired: Option<Vec<bool>> =
                scenario.repairs.iter().copied().map(repaired).collect();
            repaired.map(|repaired| Judged {
                path: loss.path,
                burst: loss.burst,
                span,
                on_access: loss.on_access,
                coded: [loss.is_recovered(), false],
                repaired,
            })
        }));
        span += 1;
    })?;
    // The same packets are lost with ARQ.
    let with_arq = super::find(network, Case { arq: true, ..case }, seed)?.losses;
    let both = judged.into_iter().zip(with_arq);
    let both = both.filter_map(|(judged, loss): (Option<Judged>, Loss)| {
        judged.map(|judged| Judged { coded: [judged.coded[0], loss.is_recovered()], ..judged })
    });
    Ok(both.collect())
}

/// Returns recovery by coding over recovery by FEC, less one, in per cent, for each path with
/// losses.
fn increases(run: &[Judged], count: Count, fec: usize) -> Vec<f64> {
    by(run, count, |loss| loss.path)
        .iter()
        .map(|losses| {
            let coded = losses.iter().filter(|loss| loss.is_coded(count)).count() as f64;
            let repaired = losses.iter().filter(|loss| loss.repaired[fec]).count() as f64;
            if coded > repaired { 100.0 * (coded / repaired - 1.0) } else { 0.0 }
        })
        .collect()
}

/// Groups the losses that count by key; within a group they keep their order.
fn by<K: Ord>(run: &[Judged], count: Count, key: impl Fn(&Judged) -> K) -> Vec<Vec<&Judged>> {
    let mut losses: Vec<&Judged> = run.iter().filter(|loss| loss.counts(count)).collect();
    losses.sort_by_key(|loss| key(loss));
    losses.chunk_by(|one, next| key(one) == key(next)).map(<[_]>::to_vec).collect()
}

/// Returns the share of paths with an episode in the first `spans` spans that coding recovers whole
/// and FEC does not.
fn beyond_fec(run: &[Judged], count: Count, fec: usize, spans: u32) -> Option<f64> {
    let paths = by(run, count, |loss| loss.path);
    let has_one = |losses: &Vec<&Judged>| {
        let early = losses.iter().filter(|loss| loss.span < spans);
        let early: Vec<&Judged> = early.copied().collect();
        early.chunk_by(|one, next| one.burst == next.burst).any(|episode| {
            episode.iter().all(|loss| loss.is_coded(count))
                && episode.iter().any(|loss| !loss.repaired[fec])
        })
    };
    share(paths.iter().map(has_one))
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
    let quick = job.options.quick;
    let cycles = if quick { scenario.cycles_quick } else { scenario.cycles };
    let mut network = Network { cycles, ..network.clone() };
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    network.shorten(quick, &mut record);
    let seeds = scenario.runs.seeds(job.options);
    let step = format!("{}: losses with coding and with FEC", scenario.name);
    let runs = each(&step, &seeds, Threads::All, job, |seed| judge(scenario, &network, seed))?;
    record.figures = figures();
    rates(scenario, &runs, &mut record);
    paths(scenario, &runs, &mut record);
    episodes(scenario, &runs, cycles, &mut record);
    findings(scenario, &runs, cycles, &mut record);
    for share in &scenario.burst_sweep {
        // Outages keep their share.
        let burst_share = share.min(1.0 - network.outage_share);
        let other = Network { burst_share, ..network.clone() };
        let step =
            format!("{}: {:.0} % of wide-area losses in bursts", scenario.name, 100.0 * share);
        let runs = each(&step, &seeds, Threads::All, job, |seed| judge(scenario, &other, seed))?;
        bursts(scenario, burst_share, &runs, cycles, &mut record);
    }
    Ok(record)
}

/// Increases that are reported and drawn, in per cent.
const STEPS: [f64; 6] = [10.0, 25.0, 50.0, 100.0, 160.0, 400.0];

fn figures() -> Vec<Figure> {
    let figure = |title: &str, x_label: &str, scale| Figure {
        title: title.to_owned(),
        x_label: x_label.to_owned(),
        y_label: "paths (%)".to_owned(),
        scale,
    };
    vec![
        figure("recovery by coding over that by FEC", "increase of at least", Scale::Names),
        figure("paths with an episode beyond FEC", "spans", Scale::Linear),
    ]
}

/// Adds the share of all losses that each means recovers.
fn rates(scenario: &Scenario, runs: &[Vec<Judged>], record: &mut Record) {
    let mut row = |case: &str, is_back: &dyn Fn(&Judged) -> bool, count: Count| {
        let of = |run: &Vec<Judged>| share(run.iter().filter(|l| l.counts(count)).map(is_back));
        let values: Vec<f64> = runs.iter().filter_map(of).collect();
        if !values.is_empty() {
            let case = format!("recovered: {case}");
            let counted = runs.iter().flatten().filter(|loss| loss.counts(count)).count();
            let note = format!("n = {counted} losses");
            record.rows.push(Row::of(&case, None, &values, "% of losses", &note));
        }
    };
    for (fec, repairs) in scenario.repairs.iter().enumerate() {
        let name = scenario.overhead(*repairs);
        row(&name, &|loss| loss.repaired[fec], Count::Measured);
        let case = format!("{name}, {}", Count::WideArea.name());
        row(&case, &|loss| loss.repaired[fec], Count::WideArea);
    }
    for count in Count::ALL {
        row(&format!("coding, {}", count.name()), &|loss| loss.is_coded(count), count);
    }
}

/// The paper's increases of recovery and the shares of paths that have them, in per cent: over the
/// least overhead, and over the most.
const PAPER_LEAST: (f64, f64) = (100.0, 70.0);
const PAPER_MOST: (f64, f64) = (160.0, 10.0);

/// Returns the share of paths whose recovery increases by `step` per cent at least.
fn risen(run: &[Judged], count: Count, fec: usize, step: f64) -> Option<f64> {
    share(increases(run, count, fec).into_iter().map(|increase| increase >= step))
}

fn paths(scenario: &Scenario, runs: &[Vec<Judged>], record: &mut Record) {
    let last = scenario.repairs.len() - 1;
    for count in Count::ALL {
        for (fec, repairs) in scenario.repairs.iter().enumerate() {
            for (place, step) in STEPS.into_iter().enumerate() {
                let values: Vec<f64> =
                    runs.iter().filter_map(|run| risen(run, count, fec, step)).collect();
                let is_papers = count == Count::AsPaper;
                let paper = match (fec == 0, fec == last) {
                    (true, _) if is_papers && step == PAPER_LEAST.0 => Some(PAPER_LEAST.1),
                    (_, true) if is_papers && step == PAPER_MOST.0 => Some(PAPER_MOST.1),
                    _ => None,
                };
                let (name, x_name) = (scenario.overhead(*repairs), format!("{step} %"));
                let case =
                    format!("recovery up by {x_name} at least over {name}, {}", count.name());
                let row = Row::of(&case, paper, &values, "% of paths", "");
                let spot = Spot { figure: 0, line: name, x: place as f64, x_name };
                match count {
                    _ if values.is_empty() => {}
                    Count::AsPaper => record.rows.push(row.drawn_at(spot)),
                    // With other counts, at the paper's two increases alone.
                    _ if [PAPER_LEAST.0, PAPER_MOST.0].contains(&step) => record.rows.push(row),
                    _ => {}
                }
            }
        }
    }
}

fn episodes(scenario: &Scenario, runs: &[Vec<Judged>], cycles: u32, record: &mut Record) {
    let last = scenario.repairs.len() - 1;
    let most = scenario.overhead(scenario.repairs[last]);
    let all = std::iter::successors(Some(1), |spans| Some(spans * 2));
    let mut spans_shown: Vec<u32> = all.take_while(|spans| *spans < cycles).collect();
    spans_shown.push(cycles);
    for count in Count::ALL {
        for spans in &spans_shown {
            let values: Vec<f64> =
                runs.iter().filter_map(|run| beyond_fec(run, count, last, *spans)).collect();
            let paper = (count == Count::AsPaper && *spans == cycles).then_some(90.0);
            let x_name = if *spans == 1 { "1 span".to_owned() } else { format!("{spans} spans") };
            let case = format!(
                "an episode of {x_name} that {most} leaves and coding recovers, {}",
                count.name()
            );
            let spot =
                Spot { figure: 1, line: count.name().to_owned(), x: f64::from(*spans), x_name };
            if !values.is_empty() {
                let row = Row::of(&case, paper, &values, "% of paths", "");
                record.rows.push(row.drawn_at(spot));
            }
        }
    }
}

/// Adds the same measures, counted as in the paper, for another share of bursts.
fn bursts(
    scenario: &Scenario,
    share_of_bursts: f64,
    runs: &[Vec<Judged>],
    cycles: u32,
    record: &mut Record,
) {
    let (count, last) = (Count::AsPaper, scenario.repairs.len() - 1);
    let with = format!("with {:.0} % of wide-area losses in bursts", 100.0 * share_of_bursts);
    let mut row = |case: String, unit: &str, measure: &dyn Fn(&[Judged]) -> Option<f64>| {
        let values: Vec<f64> = runs.iter().filter_map(|run| measure(run)).collect();
        if !values.is_empty() {
            record.rows.push(Row::of(&format!("{case}, {with}"), None, &values, unit, ""));
        }
    };
    for (fec, repairs) in scenario.repairs.iter().enumerate() {
        row(format!("recovered: {}", scenario.overhead(*repairs)), "% of losses", &|run| {
            share(run.iter().map(|loss| loss.repaired[fec]))
        });
    }
    let [least, most] = [0, last].map(|fec| scenario.overhead(scenario.repairs[fec]));
    row(format!("recovery up by 100 % at least over {least}"), "% of paths", &|run| {
        risen(run, count, 0, PAPER_LEAST.0)
    });
    row(format!("an episode that {most} leaves and coding recovers"), "% of paths", &|run| {
        beyond_fec(run, count, last, cycles)
    });
}

fn findings(scenario: &Scenario, runs: &[Vec<Judged>], cycles: u32, record: &mut Record) {
    let last = scenario.repairs.len() - 1;
    let over = |measure: &dyn Fn(&[Judged]) -> Option<f64>| {
        mean(&runs.iter().filter_map(|run| measure(run)).collect::<Vec<f64>>())
    };
    let mut add_finding = |paper: &str, holds: bool, ours: String| {
        record.findings.push(Finding::new(paper, holds, ours));
    };
    let episode = |count| over(&|run| beyond_fec(run, count, last, cycles));
    let [biased, measured, arq, wide] = Count::ALL.map(episode);
    add_finding(
        "90 % of paths have an episode that coding recovers and 100 % FEC on the direct path does \
         not",
        biased >= 90.0,
        format!(
            "{biased:.0} % of paths; {measured:.0} without that assumption on access losses, \
             {arq:.0} with ARQ, {wide:.0} with wide-area losses alone"
        ),
    );
    let doubled = |count| over(&|run| risen(run, count, 0, PAPER_LEAST.0));
    let [biased, measured, arq, wide] = Count::ALL.map(doubled);
    add_finding(
        "over 20 % FEC recovery goes up by 100 % on 70 % of paths",
        biased >= PAPER_LEAST.1,
        format!(
            "on {biased:.0} % of paths; {measured:.0}, {arq:.0} and {wide:.0} counted otherwise"
        ),
    );
    let remote = |count| over(&|run| risen(run, count, last, PAPER_MOST.0));
    let [biased, measured, arq, wide] = Count::ALL.map(remote);
    add_finding(
        "over 100 % FEC it goes up by more than 160 % on 10 % of paths",
        biased >= PAPER_MOST.1,
        format!(
            "on {biased:.0} % of paths; {measured:.0}, {arq:.0} and {wide:.0} counted otherwise"
        ),
    );
    let rate = |is_back: &dyn Fn(&Judged) -> bool| over(&|run| share(run.iter().map(is_back)));
    let (coded, repaired) =
        (rate(&|loss| loss.is_coded(Count::Measured)), rate(&|loss| loss.repaired[last]));
    let with = rate(&|loss| loss.is_coded(Count::WithArq));
    let most = scenario.overhead(scenario.repairs[last]);
    add_finding(
        "coding recovers more than FEC of any overhead, also without the assumption on access \
         losses (ours)",
        coded > repaired,
        format!("{coded:.1} % of all losses; {most} {repaired:.1}"),
    );
    add_finding(
        "it does with ARQ on access paths (ours)",
        with > repaired,
        format!("{with:.1} % of all losses; {most} {repaired:.1}"),
    );
}

#[cfg(test)]
mod tests {
    use tradewind_fec::{Decoder, Encoder};
    use tradewind_units::Timestamp;

    use super::*;

    const TEXT: &str = include_str!("../../../../scenarios/jq-fec.toml");
    const NETWORK: &str = include_str!("../../../../scenarios/jq-recovery.toml");

    /// Returns packets, by a letter each: `x` is lost.
    fn fates(text: &str) -> Vec<Fate> {
        let sent = Fate::in_flight(Timestamp::ZERO);
        text.chars().map(|letter| Fate { came: letter != 'x', ..sent }).collect()
    }

    #[test]
    fn one_repair_packet_is_needed_for_each_lost_packet() {
        for (text, expected) in [
            ("..x.......", [true, true, true]),
            ("..xx......", [false, true, true]),
            ("..xx.x....", [false, false, true]),
            ("..xxxxx...", [false, false, true]),
            ("..xxxxxx..", [false, false, false]),
            ("xxxxxxxxxx", [false, false, false]),
        ] {
            let place = text.find('x').unwrap();
            let fates = fates(text);
            let ours = [1, 2, 5].map(|repairs| is_repaired(&fates, place, 5, repairs).unwrap());
            assert_eq!(ours, expected, "{text}");
        }
        assert_eq!(is_repaired(&fates("..x...."), 2, 5, 2), Some(true));
        assert_eq!(is_repaired(&fates("..x...."), 2, 5, 5), None);
    }

    #[test]
    fn decoder_agrees_with_repair_count() {
        let packets: Vec<Vec<u8>> = (0..5).map(|n| vec![n; 20 + usize::from(n)]).collect();
        for repairs in [1, 2, 5] {
            let mut encoder = Encoder::new(repairs).unwrap();
            for (column, packet) in packets.iter().enumerate() {
                encoder.add(column, packet).unwrap();
            }
            for pattern in 0_u32..1 << (5 + repairs) {
                let came = |place: usize| pattern & (1 << place) != 0;
                let all: String =
                    (0..10).map(|n| if n < 5 + repairs && !came(n) { 'x' } else { '.' }).collect();
                let mut decoder = Decoder::new(encoder.members(), repairs).unwrap();
                for column in (0..5).filter(|column| came(*column)) {
                    decoder.add_source(column, &packets[column]).unwrap();
                }
                for row in (0..repairs).filter(|row| came(5 + row)) {
                    decoder.add_repair(row, encoder.repair(row)).unwrap();
                }
                let lost: Vec<usize> = (0..5).filter(|column| !came(*column)).collect();
                let counted = is_repaired(&fates(&all), 0, 5, repairs).unwrap();
                assert_eq!(decoder.is_solvable(), counted, "{all}");
                if counted {
                    let solved = decoder.recover().unwrap();
                    let right = |(column, packet): &(usize, Vec<u8>)| packets[*column] == *packet;
                    assert!(solved.len() == lost.len() && solved.iter().all(right), "{all}");
                }
            }
        }
    }

    fn judged(path: usize, burst: usize, span: u32, coded: bool, repaired: [bool; 2]) -> Judged {
        let (on_access, repaired) = (false, repaired.to_vec());
        Judged { path, burst, span, on_access, coded: [coded, true], repaired }
    }

    #[test]
    fn paths_and_episodes_are_compared_by_recovery() {
        let run = [
            // Path 0: an episode of two that FEC leaves one of; later one that coding leaves.
            judged(0, 0, 0, true, [false, true]),
            judged(0, 0, 0, true, [false, false]),
            judged(0, 2, 1, false, [true, true]),
            // Path 1: an episode of one beyond FEC, in the second span.
            judged(1, 1, 1, true, [false, false]),
        ];
        assert_eq!(increases(&run, Count::Measured, 0), [100.0, f64::INFINITY]);
        assert_eq!(increases(&run, Count::Measured, 1), [0.0, f64::INFINITY]);
        assert_eq!(risen(&run, Count::Measured, 0, 160.0), Some(50.0));
        assert_eq!(
            [1, 2].map(|spans| beyond_fec(&run, Count::Measured, 1, spans)),
            [Some(50.0), Some(100.0)]
        );
        let mut lost_on_access = run.to_vec();
        lost_on_access[3].on_access = true;
        lost_on_access[3].coded = [false, true];
        let with = |count| beyond_fec(&lost_on_access, count, 1, 2);
        assert_eq!(Count::ALL.map(with), [Some(100.0), Some(50.0), Some(100.0), Some(100.0)]);
    }

    #[test]
    fn more_overhead_repairs_more_and_coding_beats_fec() {
        let scenario = Scenario { cycles: 2, ..Scenario::parse(TEXT).unwrap() };
        let network = Network::parse(NETWORK).unwrap();
        let loss_percent = network.loss_percent.map(|percent| 5.0 * percent);
        let network = Network { on_s: 6.0, cycles: 2, loss_percent, ..network };
        let run = judge(&scenario, &network, 1).unwrap();
        assert!(run.len() > 200, "{}", run.len());
        let rate = |is_back: &dyn Fn(&Judged) -> bool| share(run.iter().map(is_back)).unwrap();
        let fec = [0, 1, 2].map(|fec| rate(&|loss| loss.repaired[fec]));
        assert!(fec[0] < fec[1] && fec[1] < fec[2], "{fec:?}");
        // Coding recovers more than the least of these as it is, and more than any once access
        // losses are repaired.
        let coded =
            [Count::Measured, Count::WithArq].map(|count| rate(&|loss| loss.is_coded(count)));
        assert!(coded[0] > fec[0] && coded[1] > fec[2], "{coded:?} {fec:?}");
        // FEC repairs short access losses, coding none.
        let on_access = run.iter().filter(|loss| loss.on_access);
        let coded = share(on_access.clone().map(|loss| loss.coded[0]));
        let repaired = share(on_access.map(|loss| loss.repaired[2]));
        assert!(repaired > coded, "{coded:?} {repaired:?}");
        assert!(beyond_fec(&run, Count::AsPaper, 2, 2) >= beyond_fec(&run, Count::AsPaper, 2, 1));
        assert!(beyond_fec(&run, Count::AsPaper, 2, 2).unwrap() > 5.0);
    }

    #[test]
    fn invalid_scenarios_are_refused_in_one_line() {
        for (from, to, expected) in [
            ("block = 5", "block = 4", "repairs: 5 given, expected 1 to 4"),
            ("cycles = ", "cycles = 0 #", "cycles: 0 given, expected 1 to 10000"),
            ("repairs = [1, 2, 5]", "repairs = []", "numbers of repairs: 0 given"),
            ("burst_sweep = [", "burst_sweep = [7, ", "burst_sweep: 7 given, expected 0 to 1"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Scenario::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
