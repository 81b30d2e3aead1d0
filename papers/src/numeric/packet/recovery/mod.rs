//! `jq-recovery`, its simulation half: recovery by coding on 45 wide-area paths [JQ 5.2].
//!
//! The machines are those of `packet`, the paths those of `wan`. The losses, on the wide area and
//! on access paths, are our assumption, stated in the scenario; the share on access paths is swept,
//! with and without retransmission of copies there.
//!
//! On the same network, `jq-fec` ([`fec`]) compares coding with repair packets on the direct path,
//! and `jq-straggler` ([`straggler`]) two repair packets of several flows with one.

mod account;
pub mod fec;
mod machines;
mod paths;
mod scenario;
pub mod straggler;
mod stragglers;
mod world;

use tradewind_output::chart::Scale;
use tradewind_packet::event::Arrival;
use tradewind_units::Duration;

use crate::harness::seeds::{Threads, each};
use crate::harness::{Figure, Finding, Job, NumericError, Record, Row, Spot, mean};
use account::gather;
pub(crate) use account::{CLASSES, Loss, losses, recovered, share};
pub(crate) use paths::{Path, network};
pub use scenario::{Group, Scenario};
pub(crate) use world::Fate;

use stragglers::Helpers;
use world::{Coded, Outcome};

/// A case of a run.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Case {
    /// Share of all losses that happens on access paths.
    access: f64,
    /// True if copies that access paths lose are sent again.
    arq: bool,
    /// Behaviour of helpers.
    helpers: Helpers,
}

impl Case {
    /// Creates a case with helpers that answer at once.
    fn prompt(access: f64, arq: bool) -> Self {
        Self { access, arq, helpers: Helpers::default() }
    }
}

/// A run's losses and costs.
struct Found {
    losses: Vec<Loss>,
    outcome: Outcome,
}

/// Runs the experiment.
///
/// # Errors
/// When the network makes no sense, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let mut scenario = scenario.clone();
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    scenario.shorten(job.options.quick, &mut record);
    let seeds = scenario.runs.seeds(job.options);
    let usual = scenario.access_share;
    let others = scenario.access_sweep.iter().filter(|share| **share != usual);
    let shares = [usual].into_iter().chain(others.copied());
    let mut found = Vec::new();
    for case in shares.flat_map(|share| [false, true].map(|arq| Case::prompt(share, arq))) {
        let percent = case.access * 100.0;
        let arq = line(case.arq);
        let step = format!("{}: {percent} % of losses on access paths, {arq}", scenario.name);
        let runs = each(&step, &seeds, Threads::All, job, |seed| find(&scenario, case, seed))?;
        found.push((case, runs));
    }
    record.figures = vec![Figure {
        title: "losses recovered within one round trip".to_owned(),
        x_label: "losses on access paths (%)".to_owned(),
        y_label: "recovered (%)".to_owned(),
        scale: Scale::Linear,
    }];
    for (case, runs) in &found[..2] {
        rows(&scenario, case.arq, runs, &mut record);
    }
    sweep(&found, &mut record);
    findings(&scenario, &found, &mut record);
    Ok(record)
}

/// Runs a case once.
fn find(scenario: &Scenario, case: Case, seed: u64) -> Result<Found, NumericError> {
    let mut losses = Vec::new();
    let outcome = world::run(scenario, case, seed, &mut |paths| gather(paths, &mut losses))?;
    Ok(Found { losses, outcome })
}

/// Returns every path of one run, and the fates of the packets that it sent in the first span.
///
/// # Errors
/// When the network makes no sense.
pub(crate) fn simulate(
    scenario: &Scenario,
    arq: bool,
    seed: u64,
) -> Result<Vec<(Path, Vec<Fate>)>, NumericError> {
    let (mut first, case) = (Vec::new(), Case::prompt(scenario.access_share, arq));
    world::run(scenario, case, seed, &mut |paths| {
        if first.is_empty() {
            first = paths.to_vec();
        }
    })?;
    Ok(first)
}

fn line(arq: bool) -> &'static str {
    if arq { "with ARQ" } else { "without ARQ" }
}

/// Returns the values of all runs that have one.
fn values(runs: &[Found], measure: impl Fn(&Found) -> Option<f64>) -> Vec<f64> {
    runs.iter().filter_map(measure).collect()
}

/// Describes the number of losses that figures are of.
fn counted(runs: &[Found]) -> String {
    format!("n = {} losses", runs.iter().map(|found| found.losses.len()).sum::<usize>())
}

fn all_recovered(found: &Found) -> Option<f64> {
    recovered(found.losses.iter())
}

/// Returns the share of recovered losses that were recovered within `limit` round trips.
fn within(found: &Found, limit: f64) -> Option<f64> {
    let recovered = found.losses.iter().filter(|loss| loss.is_recovered());
    share(recovered.map(|loss| loss.after.is_some_and(|after| after <= limit)))
}

fn rows(scenario: &Scenario, arq: bool, runs: &[Found], record: &mut Record) {
    let name = line(arq);
    let paper = |value: f64| (!arq).then_some(value);
    let count = counted(runs);
    let mut row = |case: &str, paper: Option<f64>, values: Vec<f64>, unit: &str| {
        if !values.is_empty() {
            let case = format!("{case}, {name}");
            record.rows.push(Row::of(&case, paper, &values, unit, &count));
        }
    };
    let of_losses = "% of losses";
    row("recovered within one RTT", paper(78.0), values(runs, all_recovered), of_losses);
    for on_access in [false, true] {
        let place = if on_access { "access" } else { "wide area" };
        for (class, (length, ..)) in CLASSES.iter().enumerate() {
            let is_such = |loss: &&Loss| loss.class == class && loss.on_access == on_access;
            let part = |found: &Found| {
                let such = found.losses.iter().filter(is_such).count();
                Some(100.0 * such as f64 / found.losses.len().max(1) as f64)
            };
            let back = |found: &Found| recovered(found.losses.iter().filter(is_such));
            row(&format!("{place}, {length}: part of all"), None, values(runs, part), of_losses);
            row(&format!("{place}, {length}: recovered"), None, values(runs, back), of_losses);
        }
    }
    let of_recovered = "% of recovered";
    row("within 0.5 RTT", paper(95.0), values(runs, |found| within(found, 0.5)), of_recovered);
    row("within 0.25 RTT", None, values(runs, |found| within(found, 0.25)), of_recovered);
    let first = |found: &Found| {
        let of_first =
            |loss: &&Loss| found.outcome.paths[loss.path].group == 0 && loss.is_recovered();
        share(
            found.losses.iter().filter(of_first).map(|loss| loss.took <= Duration::from_millis(75)),
        )
    };
    let us_eu = format!("{} within 75 ms", scenario.groups[0].name);
    row(&us_eu, paper(90.0), values(runs, first), of_recovered);
    let in_stream = |found: &Found| {
        let back = found.losses.iter().filter_map(|loss| loss.arrival);
        share(back.map(|arrival| arrival == Arrival::InStream))
    };
    row("by in-stream repair packets", None, values(runs, in_stream), of_recovered);
    let good_paths = |found: &Found| {
        let paths = 0..found.outcome.paths.len();
        let shares = paths
            .filter_map(|path| recovered(found.losses.iter().filter(|loss| loss.path == path)));
        share(shares.map(|share| share > 80.0))
    };
    row("over 80 % recovered", paper(82.0), values(runs, good_paths), "% of paths");
    costs(scenario, name, runs, record);
}

/// Adds the traffic over the relays and their access legs, besides the packets themselves.
fn costs(scenario: &Scenario, name: &str, runs: &[Found], record: &mut Record) {
    let mut row = |case: &str, values: Vec<f64>, unit: &str| {
        if !values.is_empty() {
            record.rows.push(Row::of(&format!("{case}, {name}"), None, &values, unit, ""));
        }
    };
    row("between relays, full blocks: repair packets", values(runs, full_overhead), "% of packets");
    let early = |found: &Found| Some(100.0 * rate(&found.outcome.blocks.early)?);
    row("between relays, other blocks: repair packets", values(runs, early), "% of packets");
    let is_early = |found: &Found| {
        let count =
            |coded: &[Coded; 2]| coded.iter().map(|coded| coded.packets).sum::<u64>() as f64;
        let blocks = &found.outcome.blocks;
        let (early, full) = (count(&blocks.early), count(&blocks.full));
        Some(100.0 * early / (early + full).max(1.0))
    };
    row("packets in blocks that were not full", values(runs, is_early), "% of packets");
    let bytes = |found: &Found| {
        let blocks = &found.outcome.blocks;
        let sent: u64 = blocks.full.iter().chain(&blocks.early).map(|coded| coded.bytes).sum();
        let packets = found.outcome.traffic.packets as f64 * scenario.payload_bytes as f64;
        Some(100.0 * sent as f64 / packets)
    };
    row("between relays: bytes of repair packets", values(runs, bytes), "% of payload");
    let per_loss =
        |count: u64, found: &Found| Some(count as f64 / found.losses.len().max(1) as f64);
    let asked = |found: &Found| per_loss(found.outcome.traffic.asked, found);
    row("packets asked for", values(runs, asked), "for each loss");
    row("helpers asked", values(runs, |f| per_loss(f.outcome.traffic.helps, f)), "for each loss");
    row("packets lent", values(runs, |f| per_loss(f.outcome.traffic.lent, f)), "for each loss");
    let per_packet = |count: u64, found: &Found| {
        Some(100.0 * count as f64 / found.outcome.traffic.packets.max(1) as f64)
    };
    let resent = |found: &Found| per_packet(found.outcome.traffic.resent, found);
    row("copies sent again", values(runs, resent), "% of packets");
    let forwarded = |found: &Found| per_packet(found.outcome.traffic.forwarded, found);
    row(
        "between relays: copies that came late, as they are",
        values(runs, forwarded),
        "% of packets",
    );
    let acknowledged = |found: &Found| per_packet(found.outcome.traffic.acknowledgements, found);
    row("acknowledgements", values(runs, acknowledged), "% of packets");
}

/// Returns the repair packets for each packet: cross-stream and in-stream together.
fn rate(coded: &[Coded; 2]) -> Option<f64> {
    let rates = coded.iter().filter(|coded| coded.packets > 0);
    let rates: Vec<f64> = rates.map(|coded| coded.repairs as f64 / coded.packets as f64).collect();
    (!rates.is_empty()).then(|| rates.iter().sum())
}

fn full_overhead(found: &Found) -> Option<f64> {
    Some(100.0 * rate(&found.outcome.blocks.full)?)
}

fn sweep(found: &[(Case, Vec<Found>)], record: &mut Record) {
    let mut cases: Vec<&(Case, Vec<Found>)> = found.iter().collect();
    cases.sort_by(|(a, _), (b, _)| a.arq.cmp(&b.arq).then(a.access.total_cmp(&b.access)));
    for (Case { access, arq, .. }, runs) in cases {
        let values = values(runs, all_recovered);
        if values.is_empty() {
            continue;
        }
        let percent = (access * 1000.0).round() / 10.0;
        let line = line(*arq).to_owned();
        let case = format!("recovered, {percent} % of losses on access paths, {line}");
        let spot = Spot { figure: 0, line, x: percent, x_name: format!("{percent} %") };
        let row = Row::of(&case, None, &values, "% of losses", &counted(runs));
        record.rows.push(row.drawn_at(spot));
    }
}

fn findings(scenario: &Scenario, found: &[(Case, Vec<Found>)], record: &mut Record) {
    let over = |case: usize, measure: &dyn Fn(&Found) -> Option<f64>| {
        mean(&values(&found[case].1, measure))
    };
    let without = over(0, &all_recovered);
    let mut add_finding = |paper: &str, holds: bool, ours: String| {
        record.findings.push(Finding::new(paper, holds, ours));
    };
    add_finding(
        "78 % of all lost packets are recovered within one round trip",
        without >= 78.0,
        format!("{without:.1} % without ARQ"),
    );
    let (fast, fast_arq) = (over(0, &|f| within(f, 0.5)), over(1, &|f| within(f, 0.5)));
    add_finding(
        "95 % of these within half a round trip",
        fast >= 95.0,
        format!("{fast:.1} % without ARQ, {fast_arq:.1} % with it"),
    );
    let with = over(1, &all_recovered);
    add_finding(
        "most of what coding cannot recover was lost on access paths; repeating would help",
        with >= 95.0,
        format!("{with:.1} % of all losses recovered with ARQ"),
    );
    let wide = over(0, &|found| recovered(found.losses.iter().filter(|loss| !loss.on_access)));
    let access = over(0, &|found| recovered(found.losses.iter().filter(|loss| loss.on_access)));
    add_finding(
        "recovery goes up significantly when access losses are left out",
        wide > without,
        format!("without ARQ {wide:.1} % of wide-area losses, {access:.1} % of access losses"),
    );
    let (full, most) = (over(1, &full_overhead), 100.0 * scenario.overhead());
    add_finding(
        "the overhead between the relays is r + s",
        full <= most + 1e-9,
        format!("full blocks {full:.1} % of packets, r + s is {most:.1} %"),
    );
}

#[cfg(test)]
mod tests;
