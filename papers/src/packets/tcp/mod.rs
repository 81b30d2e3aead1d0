//! Short transfers of kernel TCP over paths that lose packets in bursts: `jq-tcp` [JQ 5.4].
//!
//! TCP recovers most losses by itself, but not those at its ends: a lost SYN-ACK, or lost last
//! packets of a reply, cost a time-out, and several in a row cost growing ones. A packet service
//! recovers such packets before the time-out, so that it shortens the tail of the completion times.
//! Packets are intercepted whole by the gateways' TUN devices; clients and servers are unmodified.
//!
//! For comparison, kcptun runs on the direct path without relays, if it is installed.
//!
//! | module | holds |
//! |---|---|
//! | [`arm`] | the carriers of files and their processes |
//! | [`kcptun`] | kcptun between a client's and its server's host |

mod arm;
mod kcptun;

use std::fmt::Write as _;

use serde::Deserialize;
use tradewind_lab::LabOptions;
use tradewind_output::chart::Scale;
use tradewind_units::HostId;
use tradewind_wan::Topology;
use tradewind_wan::counters::LinkName;

use self::arm::{Arm, Carriers};
use super::requests::{self, Asking, Pair};
use crate::harness::packets::Party;
use crate::harness::{
    Experiment, ExperimentError, Figure, Finding, LabContext, NumericError, Observer, ProcessError,
    Record, Row, RunOptions, Runs, ScenarioError, Spot, catalogue, from_toml, quantile, repeats,
    within,
};

/// The shares at which completion times are reported, with their names.
const SHARES: [(f64, &str); 5] =
    [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "all")];
/// The share that counts as the tail.
const TAIL: f64 = 0.999;
/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    arms: Vec<Arm>,
    pairs: usize,
    requests: usize,
    requests_quick: usize,
    first_requests: usize,
    request_bytes: usize,
    answer_bytes: usize,
    direct_ms: f64,
    access_ms: f64,
    between_relays_ms: f64,
    burst_enter: f64,
    burst_leave: f64,
    cross_stream: [u8; 2],
    in_stream: [u8; 2],
}

impl Scenario {
    fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        within([
            ("pairs", scenario.pairs as f64, 1.0, 40.0),
            ("arms", scenario.arms.len() as f64, 1.0, 8.0),
            ("requests", scenario.requests as f64, 1.0, 100_000.0),
            ("requests_quick", scenario.requests_quick as f64, 1.0, 100_000.0),
            ("first_requests", scenario.first_requests as f64, 0.0, 1000.0),
            ("request_bytes", scenario.request_bytes as f64, 1.0, 1e6),
            ("answer_bytes", scenario.answer_bytes as f64, 1.0, 1e9),
            ("direct_ms", scenario.direct_ms, 1.0, 1e4),
            ("access_ms", scenario.access_ms, 0.1, 1e4),
            ("between_relays_ms", scenario.between_relays_ms, 1.0, 1e4),
            ("burst_enter", scenario.burst_enter, 0.0, 0.5),
            ("burst_leave", scenario.burst_leave, 0.01, 1.0),
        ])?;
        scenario.arms.iter().try_for_each(Arm::check)?;
        Ok(scenario)
    }

    /// Returns a topology of two relays, and a client and a server for each pair.
    fn topology(&self) -> String {
        let mut text = format!(
            "[default.pair]\nrtt = \"{} ms\"\n[[site]]\nid = \"near\"\n[[site]]\nid = \"remote\"\n",
            self.between_relays_ms
        );
        let (enter, leave) = (self.burst_enter, self.burst_leave);
        for pair in 0..self.pairs {
            write!(
                text,
                "[[site]]\nid = \"c{pair}\"\n[[site]]\nid = \"s{pair}\"\n\
                 [[pair]]\nbetween = [\"c{pair}\", \"s{pair}\"]\nrtt = \"{} ms\"\n\
                 burst_loss = {{ enter = {enter}, leave = {leave} }}\n\
                 [[pair]]\nbetween = [\"c{pair}\", \"near\"]\nrtt = \"{1} ms\"\n\
                 [[pair]]\nbetween = [\"s{pair}\", \"remote\"]\nrtt = \"{1} ms\"\n",
                self.direct_ms, self.access_ms
            )
            .expect("text takes text");
        }
        text
    }

    fn asking(&self, quick: bool) -> Asking {
        Asking {
            request_bytes: self.request_bytes,
            answer_bytes: self.answer_bytes,
            first: self.first_requests,
            requests: if quick { self.requests_quick } else { self.requests },
        }
    }
}

/// One run: completion times in milliseconds, and the share of the servers' segments that was
/// retransmitted.
struct Run {
    /// The arm's name; `None` for TCP alone.
    arm: Option<String>,
    /// The times of the files; of a file that was given up, the time until then.
    took_ms: Vec<f64>,
    given_up: usize,
    /// The retransmitted shares; empty if the servers' segments do not cross the path.
    again: Vec<f64>,
    /// The bytes delivered by all paths and legs, in kB per file.
    carried_kb: f64,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario is inconsistent, the lab or a process on it fails, or the run is stopped.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let topology = Topology::parse(&scenario.topology(), catalogue())
        .map_err(|error| NumericError::Nothing { what: format!("the network: {error}") })?;
    let possible: Vec<&Arm> = scenario.arms.iter().filter(|arm| arm.is_possible()).collect();
    let arms = || [None].into_iter().chain(possible.iter().copied().map(Some));
    let cases: Vec<(u64, Option<&Arm>)> = scenario
        .runs
        .seeds(options)
        .into_iter()
        .flat_map(|seed| arms().map(move |arm| (seed, arm)))
        .collect();
    let step = "fetch files";
    let completed = repeats::each(step, &cases, 1, options, observer, |(seed, arm), checked| {
        let (run, reasons) = on_lab(&scenario, &topology, options, *seed, *arm)?;
        let name = arm.map_or("TCP alone", |arm| &arm.name);
        checked.add(&format!("{name}, seed {seed}"), reasons);
        Ok::<_, ExperimentError>(run)
    })?;
    Ok(completed.record(|all, options| record(&scenario, options, &possible, all)))
}

/// Runs one arm; returns the result and the bounds that the lab broke.
fn on_lab(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
    arm: Option<&Arm>,
) -> Result<(Run, Vec<String>), ExperimentError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let context = LabContext::start(topology, &lab, &options.program, &options.stop)?;
    let ends = ends(scenario, &context)?;
    let is_peer = arm.is_some_and(Arm::is_peer);
    let mut carriers = Carriers::start(scenario, &context, &ends, arm)?;
    let mut pairs = Vec::new();
    for (client, server) in &ends {
        let dial_address = carriers.dial_address(server);
        let to = (&server.host, server.application());
        pairs.push(Pair::open(&context, (&client.host, dial_address), to)?);
    }
    context.lab.reset_validity().map_err(ProcessError::from)?;
    let before = carried_kb(&context)?;
    let asking = scenario.asking(options.quick);
    let asked = requests::run(&context, &pairs, asking);
    context.stop.check()?;
    carriers.check()?;
    let files = asked?.concat();
    let all = scenario.pairs * (asking.first + asking.requests);
    let carried_kb = (carried_kb(&context)? - before) / all as f64;
    let reasons = context.lab.validity().map_err(ProcessError::from)?.reasons;
    let mut again = Vec::new();
    for (_, server) in ends.iter().filter(|_| !is_peer) {
        again.push(100.0 * context.tcp_counters(&server.host)?.share_again_since(&<_>::default()));
    }
    let took_ms = files.iter().map(|file| file.took.as_secs_f64() * 1e3).collect();
    let given_up = files.iter().filter(|file| !file.is_whole).count();
    let arm = arm.map(|arm| arm.name.clone());
    Ok((Run { arm, took_ms, given_up, again, carried_kb }, reasons))
}

/// Returns the bytes delivered by all paths and legs so far, in kB.
fn carried_kb(context: &LabContext) -> Result<f64, ProcessError> {
    let counters = context.lab.counters()?;
    let legs = counters.links.iter().filter(|link| matches!(link.name, LinkName::Pair(..)));
    Ok(legs.map(|link| link.tally.delivered_bytes as f64).sum::<f64>() / 1e3)
}

/// Returns the clients and servers.
fn ends(scenario: &Scenario, context: &LabContext) -> Result<Vec<(Party, Party)>, ProcessError> {
    let party = |name: String| Party::new(context, HostId::new(name)?);
    (0..scenario.pairs)
        .map(|pair| Ok((party(format!("c{pair}"))?, party(format!("s{pair}"))?)))
        .collect()
}

fn record(scenario: &Scenario, options: &RunOptions, arms: &[&Arm], all: &[Run]) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    let of = |arm: Option<&Arm>| -> Vec<&Run> {
        let name = arm.map(|arm| &arm.name);
        all.iter().filter(|run| run.arm.as_ref() == name).collect()
    };
    let direct = of(None);
    add_rows("TCP alone", &direct, &mut rows);
    for arm in arms {
        let such = of(Some(arm));
        add_rows(&format!("TCP over {}", arm.name), &such, &mut rows);
        compare(arm, &direct, &such, &mut rows, &mut findings);
    }
    let mut assumptions = scenario.assumptions.clone();
    let count = scenario.pairs * scenario.asking(options.quick).requests;
    let times = scenario.runs.seeds(options).len();
    let without = if arms.len() < scenario.arms.len() {
        "; without kcptun, which is not installed (Debian package kcptun)"
    } else {
        ""
    };
    assumptions.push(format!(
        "{count} files per run of each arm, {} in all; {}{without}",
        count * times,
        scenario.runs.describe(options)
    ));
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings));
    let figure = Figure {
        title: "completion times".to_owned(),
        x_label: "share of files".to_owned(),
        y_label: "at most (ms)".to_owned(),
        scale: Scale::Names,
    };
    Record { figures: vec![figure], ..tables }
}

fn add_rows(name: &str, runs: &[&Run], rows: &mut Vec<Row>) {
    for (place, (share, share_name)) in SHARES.into_iter().enumerate() {
        let values: Vec<f64> = runs.iter().map(|run| quantile(&run.took_ms, share)).collect();
        let spot = Spot {
            figure: 0,
            line: name.to_owned(),
            x: place as f64,
            x_name: share_name.to_owned(),
        };
        let row = Row::of(&format!("{share_name} of files, {name}"), None, &values, "ms", "");
        rows.push(row.drawn_at(spot));
    }
    let given_up: Vec<f64> = runs.iter().map(|run| run.given_up as f64).collect();
    let note = format!(
        "after {} s of silence; they count as that long",
        requests::TRANSFER_TIMEOUT.as_secs()
    );
    rows.push(Row::of(&format!("given up, {name}"), None, &given_up, "files", &note));
    let again: Vec<f64> = runs.iter().flat_map(|run| run.again.iter().copied()).collect();
    if !again.is_empty() {
        let case = format!("sent again by servers, {name}");
        rows.push(Row::of(&case, None, &again, "% of segments", ""));
    }
    let carried_kb: Vec<f64> = runs.iter().map(|run| run.carried_kb).collect();
    let case = format!("carried on all paths and legs, {name}");
    rows.push(Row::of(&case, None, &carried_kb, "kB for each file", "what arrived"));
}

/// Returns all runs' completion times together.
fn together(runs: &[&Run]) -> Vec<f64> {
    runs.iter().flat_map(|run| run.took_ms.iter().copied()).collect()
}

/// Compares the tail and the median with TCP alone, over all runs' files together, because one run
/// has few files in its tail.
fn compare(
    arm: &Arm,
    direct: &[&Run],
    such: &[&Run],
    rows: &mut Vec<Row>,
    findings: &mut Vec<Finding>,
) {
    let shorter = |tail: f64, with: f64| 100.0 * (1.0 - with / tail);
    let at = |share: f64| [direct, such].map(|runs| quantile(&together(runs), share));
    let ([tail, with], [median, middle]) = (at(TAIL), at(0.5));
    let (by, name, paper) = (shorter(tail, with), &arm.name, arm.paper_shorter_percent);
    let pairs = direct.iter().zip(such);
    let each: Vec<f64> = pairs
        .map(|(direct, such)| {
            shorter(quantile(&direct.took_ms, TAIL), quantile(&such.took_ms, TAIL))
        })
        .collect();
    let note =
        format!("n = {} files with, {} without", together(such).len(), together(direct).len());
    let case = format!("tail shorter by, {name}");
    rows.push(Row::of(&format!("{case}, all runs together"), paper, &[by], "%", &note));
    rows.push(Row::of(&format!("{case}, run by run"), None, &each, "%", ""));
    if arm.is_peer() {
        // There is no claim of the paper about its figures.
        return;
    }
    let (claim, least) = match paper {
        Some(paper) => {
            (format!("{name}: the tail of completion times is shorter by {paper} %"), paper)
        }
        None => (format!("{name}: the tail of completion times is shorter (ours)"), 0.0),
    };
    findings.push(Finding::new(
        &claim,
        by > 0.0 && by >= least,
        format!("99.9 % of files within {with:.0} ms, without {tail:.0} ms: shorter by {by:.0} %"),
    ));
    findings.push(Finding::new(
        &format!("{name}: half of the files are there after at most a tenth more time"),
        middle <= 1.1 * median,
        format!("{middle:.0} ms, without {median:.0} ms"),
    ));
}

#[cfg(test)]
mod tests {
    use super::arm::{ArmKind, Overlay};
    use super::*;

    const TEXT: &str = include_str!("../../../scenarios/jq-tcp.toml");
    const KCPTUN: &str = "kcptun on the direct path";

    fn arm(name: &str) -> Arm {
        let scenario = Scenario::parse(TEXT).unwrap();
        scenario.arms.into_iter().find(|arm| arm.name == name).unwrap()
    }

    fn of(arm: Option<&Arm>, took_ms: Vec<f64>) -> Run {
        let again = if arm.is_some_and(Arm::is_peer) { Vec::new() } else { vec![1.0] };
        let arm = arm.map(|arm| arm.name.clone());
        Run { arm, took_ms, given_up: 0, again, carried_kb: 60.0 }
    }

    #[test]
    fn built_in_scenario_is_consistent() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let topology = Topology::parse(&scenario.topology(), catalogue()).unwrap();
        assert_eq!(topology.hosts.len(), 2 + 2 * scenario.pairs);
        // At least as many files as the paper has.
        let runs = scenario.runs.seeds(&RunOptions::of_tests()).len();
        assert!(runs * scenario.pairs * scenario.requests >= 10_000);
        let overlays = scenario.arms.iter().filter_map(|arm| match &arm.kind {
            ArmKind::Gateways(overlay) => Some(overlay),
            ArmKind::Kcptun(_) => None,
        });
        let chosen: Vec<&Overlay> = overlays.filter(|it| it.from_servers.is_some()).collect();
        assert_eq!(chosen.len(), 2);
        assert!(chosen.iter().all(|it| it.service == "caching" && it.from_clients.is_some()));
        assert!(arm(KCPTUN).is_peer());
        let wrong = Scenario::parse(&TEXT.replace("tcp_syn", "tcp_sin")).unwrap_err();
        assert!(wrong.to_string().contains("unknown field `tcp_sin`"), "{wrong}");
        let error = Scenario::parse(&TEXT.replace("pairs = 40", "pairs = 0")).unwrap_err();
        assert!(error.to_string().contains("pairs: 0 given, expected 1 to 40"), "{error}");
    }

    #[test]
    fn arm_is_a_service_or_kcptun() {
        let expected = "expected `service`, with copies or without, or `kcptun` alone";
        for (from, to) in [
            ("name = \"coding\", service = \"coding\"", "name = \"coding\""),
            (
                "service = \"caching\" }",
                "service = \"caching\", kcptun = { mode = \"fast\", repair = [3, 10] } }",
            ),
            ("kcptun = {", "from_servers = { tcp_syn = true }, kcptun = {"),
        ] {
            assert!(TEXT.contains(from), "{from}");
            let error = Scenario::parse(&TEXT.replacen(from, to, 1)).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
        let error = Scenario::parse(&TEXT.replace("repair = [3,", "repair = [0,")).unwrap_err();
        assert!(error.to_string().contains("kcptun repair packets: 0 given"), "{error}");
    }

    #[test]
    fn kcptun_is_reported_or_reported_missing() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let (coding, peer) = (arm("coding"), arm(KCPTUN));
        let took_ms = |ms: f64| vec![ms; 1000];
        let all = [
            of(None, took_ms(900.0)),
            of(Some(&coding), took_ms(800.0)),
            of(Some(&peer), took_ms(300.0)),
        ];
        let made = |arms: &[&Arm]| record(&scenario, &RunOptions::of_tests(), arms, &all);
        let of_peer = |record: &Record| -> Vec<String> {
            let cases = record.rows.iter().map(|row| row.case.clone());
            cases.filter(|case| case.contains("kcptun")).collect()
        };
        let notes_absence = |record: &Record| {
            record
                .assumptions
                .iter()
                .any(|assumption| assumption.contains("without kcptun, which is not"))
        };
        let every: Vec<&Arm> = scenario.arms.iter().collect();
        let (with, without) = (made(&every), made(&[&coding]));
        let cases = of_peer(&with);
        assert!(
            cases.contains(&format!("tail shorter by, {KCPTUN}, all runs together")),
            "{cases:?}"
        );
        // Its servers' segments do not leave their hosts.
        assert!(cases.iter().all(|case| !case.starts_with("sent again")), "{cases:?}");
        assert!(with.findings.iter().all(|finding| !finding.paper.contains("kcptun")));
        assert!(!notes_absence(&with) && notes_absence(&without) && of_peer(&without).is_empty());
        assert_eq!(without.findings.len(), 2);
    }

    #[test]
    fn shorter_tail_and_longer_median_are_found() {
        let with_tail = |tail: f64| [vec![800.0; 980], vec![tail; 20]].concat();
        let coding = arm("coding");
        let (direct, coded) = (of(None, with_tail(9000.0)), of(Some(&coding), with_tail(900.0)));
        let (mut rows, mut findings) = (Vec::new(), Vec::new());
        compare(&coding, &[&direct], &[&coded], &mut rows, &mut findings);
        assert!((rows[0].ours - 90.0).abs() < 1e-9 && rows[0].paper == Some(83.0));
        assert!(findings.iter().all(|finding| finding.holds), "{findings:?}");
        let slow = of(Some(&coding), with_tail(900.0).iter().map(|ms| 2.0 * ms).collect());
        compare(&coding, &[&direct], &[&slow], &mut rows, &mut findings);
        assert!(!findings[2].holds && !findings[3].holds, "{findings:?}");
    }

    #[test]
    fn tail_covers_all_runs() {
        let syn = arm("caching of SYN-ACKs alone");
        let all = |tail: f64| of(None, [vec![800.0; 997], vec![tail; 3]].concat());
        // One run's tail hardly shortens, the other's much: together half of the tail is as long as
        // before.
        let (direct, such) = ([all(9000.0), all(9000.0)], [all(8900.0), all(900.0)]);
        let (mut rows, mut findings) = (Vec::new(), Vec::new());
        compare(&syn, &[&direct[0], &direct[1]], &[&such[0], &such[1]], &mut rows, &mut findings);
        assert!(rows[0].ours < 5.0 && rows[0].paper == Some(33.0), "{}", rows[0].ours);
        assert!(rows[1].ours > 40.0 && !findings[0].holds, "{}", rows[1].ours);
    }
}
