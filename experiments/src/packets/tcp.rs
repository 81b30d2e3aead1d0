//! Short transfers of kernel TCP over paths that lose packets in bursts: `jq-tcp` [JQ 5.4].
//!
//! TCP brings most losses back by itself, but not those at its ends: a lost SYN-ACK, or the last packets of an answer, cost a timeout, and
//! more of them in a row cost ever longer ones. A packet service brings such packets back before the timeout, so that it is the
//! tail of the completion times that gets shorter. Packets are taken whole by the gateways' TUN devices; clients and servers know of nothing.

use std::fmt::Write as _;
use std::thread;
use std::time::{Duration, Instant};

use serde::Deserialize;
use tradewind_lab::LabOptions;
use tradewind_net::iproute::{Tool, ask};
use tradewind_units::HostId;
use tradewind_wan::Topology;

use super::requests::{self, Asking, Pair};
use crate::demo::{DemoError, Observer};
use crate::experiment::{
    Experiment, ExperimentError, Figure, Finding, Record, Row, RunOptions, Spot,
};
use crate::lab_run::Ground;
use crate::lab_run::exchange::lab;
use crate::lab_run::packets::{Carriage, Coding, DEVICE, Party};
use crate::lab_run::process::Service;
use crate::lab_run::{repeats, service};
use crate::numeric::{NumericError, Runs, catalogue, quantile};
use crate::report::chart::Scale;
use crate::scenario::{ScenarioError, from_toml, within};

/// What the completion times are told at: share, and its name.
const SHARES: [(f64, &str); 5] =
    [(0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "all")];
/// The share that counts as the tail.
const TAIL: f64 = 0.999;
/// By how much the paper's tail got shorter, in per cent.
const PAPER: f64 = 83.0;
/// How long gateways may take until they take packets, and how often it is looked.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(100);

/// A scenario file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    name: String,
    #[serde(default)]
    assumptions: Vec<String>,
    runs: Runs,
    services: Vec<String>,
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
            ("pairs", scenario.pairs as f64, 1.0, 20.0),
            ("services", scenario.services.len() as f64, 1.0, 3.0),
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
        Ok(scenario)
    }

    /// The two relays, and a client and a server for each pair.
    fn topology(&self) -> String {
        let mut text = format!(
            "[default.pair]\nrtt = \"{} ms\"\n[[site]]\nid = \"near\"\n[[site]]\nid = \"far\"\n",
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
                 [[pair]]\nbetween = [\"s{pair}\", \"far\"]\nrtt = \"{1} ms\"\n",
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

/// One run: completion times in milliseconds, and the part of the servers' segments that was sent again.
struct Run {
    service: Option<String>,
    took_ms: Vec<f64>,
    again: Vec<f64>,
}

/// Runs the experiment.
///
/// # Errors
/// When the scenario makes no sense, the lab or what runs on it fails, or the run is told to stop.
pub(crate) fn run(
    experiment: &Experiment,
    options: &RunOptions,
    observer: &mut dyn Observer,
) -> Result<Record, ExperimentError> {
    let scenario = experiment.read(options, Scenario::parse)?;
    let topology = Topology::parse(&scenario.topology(), catalogue())
        .map_err(|error| NumericError::Nothing { what: format!("the network: {error}") })?;
    let services = || [None].into_iter().chain(scenario.services.iter().map(Some));
    let cases: Vec<(u64, Option<&String>)> = scenario
        .runs
        .seeds(options)
        .into_iter()
        .flat_map(|seed| services().map(move |service| (seed, service)))
        .collect();
    let step = "fetch files";
    let kept = repeats::each(step, &cases, 1, options, observer, |(seed, service), checked| {
        let service = service.map(String::as_str);
        let (run, reasons) = on_lab(&scenario, &topology, options, *seed, service)?;
        checked.add(&format!("{}, seed {seed}", service.unwrap_or("TCP alone")), reasons);
        Ok::<_, ExperimentError>(run)
    })?;
    Ok(kept.record(|all, options| record(&scenario, options, all)))
}

/// A run, and what the lab says against it.
fn on_lab(
    scenario: &Scenario,
    topology: &Topology,
    options: &RunOptions,
    seed: u64,
    service: Option<&str>,
) -> Result<(Run, Vec<String>), ExperimentError> {
    let lab = LabOptions { seed: Some(seed), ..LabOptions::default() };
    let ground = Ground::start(topology, &lab, &options.program, &options.stop)?;
    let ends = ends(scenario, &ground)?;
    let _services = match service {
        Some(service) => start(scenario, &ground, &ends, service)?,
        None => Vec::new(),
    };
    let mut pairs = Vec::new();
    for (client, server) in &ends {
        let to = (&server.host, server.application());
        pairs.push(Pair::open(&ground, &client.host, to)?);
    }
    ground.lab.reset_validity().map_err(DemoError::from)?;
    let took = requests::run(&ground, &pairs, scenario.asking(options.quick))?;
    let reasons = ground.lab.validity().map_err(DemoError::from)?.reasons;
    let mut again = Vec::new();
    for (_, server) in &ends {
        again.push(100.0 * ground.tcp_counters(&server.host)?.share_again_since(&<_>::default()));
    }
    let took_ms = took.iter().flatten().map(|took| took.as_secs_f64() * 1e3).collect();
    Ok((Run { service: service.map(str::to_owned), took_ms, again }, reasons))
}

/// Clients and servers.
fn ends(scenario: &Scenario, ground: &Ground) -> Result<Vec<(Party, Party)>, DemoError> {
    let party = |name: String| Party::new(ground, HostId::new(name)?);
    (0..scenario.pairs)
        .map(|pair| Ok((party(format!("c{pair}"))?, party(format!("s{pair}"))?)))
        .collect()
}

/// Starts the relays and each pair's gateways, and waits until these take packets.
fn start(
    scenario: &Scenario,
    ground: &Ground,
    ends: &[(Party, Party)],
    service: &str,
) -> Result<Vec<Service>, DemoError> {
    let operator = service::operator()?;
    let coding = Coding {
        cross_stream: scenario.cross_stream,
        in_stream: scenario.in_stream,
        across_gateways: true,
    };
    let party = |name: &str| Party::new(ground, HostId::new(name.to_owned())?);
    let (near, far) = (party("near")?, party("far")?);
    let relays = [near.stop(), far.stop()];
    let mut services = vec![
        near.relay(ground, &operator, &[relays[1].identity], coding)?,
        far.relay(ground, &operator, &[relays[0].identity], coding)?,
    ];
    for (client, server) in ends {
        ground.stop.check()?;
        let last = [relays[1].identity];
        services.push(server.far_gateway(ground, &operator, &last, Some(client))?);
        let carriage = Carriage {
            service,
            relays: &relays,
            far: server,
            repeat_copies: true,
            budget: None,
            copies: None,
        };
        services.push(client.near_device(ground, &operator, &carriage)?);
    }
    let begun = Instant::now();
    for (client, server) in ends {
        wait_until_taken(ground, client, server, begun)?;
    }
    Ok(services)
}

/// Waits until a client's packets to its server are routed into the gateway's device.
fn wait_until_taken(
    ground: &Ground,
    client: &Party,
    server: &Party,
    begun: Instant,
) -> Result<(), DemoError> {
    let to = server.application().ip().to_string();
    let route = || ask(Tool::Ip, &["route", "get", &to]);
    while !ground.lab.enter(&client.host, route)?.map_err(lab)?.contains(DEVICE) {
        ground.stop.check()?;
        if begun.elapsed() > PATIENCE {
            let why = format!("its device has taken no packets for {} s", PATIENCE.as_secs());
            return Err(DemoError::Program { name: format!("gateway-{}", client.host), why });
        }
        thread::sleep(LOOK);
    }
    Ok(())
}

fn record(scenario: &Scenario, options: &RunOptions, all: &[Run]) -> Record {
    let (mut rows, mut findings) = (Vec::new(), Vec::new());
    let of = |service: Option<&String>| -> Vec<&Run> {
        all.iter().filter(|run| run.service.as_ref() == service).collect()
    };
    let direct = of(None);
    tell("TCP alone", &direct, &mut rows);
    for service in &scenario.services {
        let such = of(Some(service));
        tell(&format!("TCP over {service}"), &such, &mut rows);
        compare(service, &direct, &such, &mut rows, &mut findings);
    }
    let mut assumptions = scenario.assumptions.clone();
    let count = scenario.pairs * scenario.asking(options.quick).requests;
    assumptions.push(format!("{count} files a run; {}", scenario.runs.told(options)));
    let tables = Record::of_tables(&scenario.name, assumptions, (rows, findings));
    let figure = Figure {
        title: "completion times".to_owned(),
        x_label: "share of files".to_owned(),
        y_label: "at most (ms)".to_owned(),
        scale: Scale::Names,
    };
    Record { figures: vec![figure], ..tables }
}

fn tell(name: &str, runs: &[&Run], rows: &mut Vec<Row>) {
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
    let again: Vec<f64> = runs.iter().flat_map(|run| run.again.iter().copied()).collect();
    rows.push(Row::of(
        &format!("sent again by servers, {name}"),
        None,
        &again,
        "% of segments",
        "",
    ));
}

/// All runs' completion times together.
fn together(runs: &[&Run]) -> Vec<f64> {
    runs.iter().flat_map(|run| run.took_ms.iter().copied()).collect()
}

fn compare(
    service: &str,
    direct: &[&Run],
    such: &[&Run],
    rows: &mut Vec<Row>,
    findings: &mut Vec<Finding>,
) {
    let shorter = |one: &Run, other: &Run| {
        100.0 * (1.0 - quantile(&other.took_ms, TAIL) / quantile(&one.took_ms, TAIL))
    };
    let each: Vec<f64> =
        direct.iter().zip(such).map(|(direct, such)| shorter(direct, such)).collect();
    let paper = (service == "coding").then_some(PAPER);
    rows.push(Row::of(&format!("tail shorter by, {service}"), paper, &each, "%", ""));
    let at = |share: f64| [direct, such].map(|runs| quantile(&together(runs), share));
    let ([tail, with], [median, middle]) = (at(TAIL), at(0.5));
    let by = 100.0 * (1.0 - with / tail);
    findings.push(Finding::new(
        &format!("{service}: the tail of completion times is shorter by {PAPER} %"),
        by >= PAPER,
        format!("99.9 % of files within {with:.0} ms, without {tail:.0} ms: shorter by {by:.0} %"),
    ));
    findings.push(Finding::new(
        &format!("{service}: half of the files are there after at most a tenth more time"),
        middle <= 1.1 * median,
        format!("{middle:.0} ms, without {median:.0} ms"),
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = include_str!("../../../scenarios/jq-tcp.toml");

    fn of(service: Option<&str>, took_ms: Vec<f64>) -> Run {
        let service = service.map(str::to_owned);
        Run { service, took_ms, again: vec![1.0] }
    }

    #[test]
    fn the_built_in_scenario_holds_together() {
        let scenario = Scenario::parse(TEXT).unwrap();
        let topology = Topology::parse(&scenario.topology(), catalogue()).unwrap();
        assert_eq!(topology.hosts.len(), 2 + 2 * scenario.pairs);
        let error = Scenario::parse(&TEXT.replace("pairs = 6", "pairs = 0")).unwrap_err();
        assert!(error.to_string().contains("pairs: 0 given, expected 1 to 20"), "{error}");
    }

    #[test]
    fn a_tail_that_is_cut_off_is_found_and_a_median_that_suffers_too() {
        let with_tail = |tail: f64| [vec![800.0; 980], vec![tail; 20]].concat();
        let (direct, coding) = (of(None, with_tail(9000.0)), of(Some("coding"), with_tail(900.0)));
        let (mut rows, mut findings) = (Vec::new(), Vec::new());
        compare("coding", &[&direct], &[&coding], &mut rows, &mut findings);
        assert!((rows[0].ours - 90.0).abs() < 1e-9 && rows[0].paper == Some(PAPER));
        assert!(findings.iter().all(|finding| finding.holds), "{findings:?}");
        let slow = of(Some("coding"), with_tail(900.0).iter().map(|ms| 2.0 * ms).collect());
        compare("coding", &[&direct], &[&slow], &mut rows, &mut findings);
        assert!(!findings[2].holds && !findings[3].holds, "{findings:?}");
    }
}
