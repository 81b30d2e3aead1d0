//! `jq-delay`: arrival times of packets over the Internet and over each packet service, between
//! clients all over the world [JQ 5.1].
//!
//! The paper measured 22,000 paths between hosts of RIPE Atlas. Here clients are drawn: each has a
//! relay in some region, an access delay to it from a distribution that the paper's Fig. 4(d)
//! describes in words, and an Internet path that is longer or shorter than the relays' by a factor
//! that is drawn too.

use std::collections::BTreeSet;

use serde::Deserialize;
use tradewind_model::Continent;
use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_output::chart::Scale;
use tradewind_units::{Duration, RegionId};

use super::PARTS;
use crate::harness::seeds::{Threads, each};
use crate::harness::{
    Figure, Finding, Job, NumericError, Random, Record, Row, Runs, ScenarioError, Spot, catalogue,
    from_toml, mean, quantile,
};
use crate::numeric::rtts::Rtts;

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
    /// The relays' cloud.
    pub relays_of: String,
    /// Paths that a run draws.
    pub paths: u32,
    /// One-way delay from a client to its relay, in milliseconds, at the median.
    pub access_median_ms: f64,
    /// Spread of access delays: half of them are within this of the median, in natural logarithms.
    pub access_spread: f64,
    /// The Internet's delay between the relays' places over the relays' own, at the median.
    pub internet_median: f64,
    /// Spread of these factors: half of them are within this of the median, in natural logarithms.
    pub internet_spread: f64,
    /// Helpers of which the farthest counts.
    pub helpers: u32,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    /// When the TOML is malformed, a key is unknown or missing, or a value makes no sense.
    pub fn parse(text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self = from_toml(text)?;
        let wrong = |what: String| Err(ScenarioError::Inconsistent { what });
        let positive = [
            ("access_median_ms", scenario.access_median_ms, 1000.0),
            ("access_spread", scenario.access_spread, 3.0),
            ("internet_median", scenario.internet_median, 10.0),
            ("internet_spread", scenario.internet_spread, 3.0),
        ];
        for (name, value, most) in positive {
            if !(value > 0.0 && value <= most) {
                return wrong(format!(
                    "{name}: {value} given, expected above 0 and at most {most}"
                ));
            }
        }
        if !(1..=1_000_000).contains(&scenario.paths) || !(1..=100).contains(&scenario.helpers) {
            return wrong("paths: 1 to 1000000; helpers: 1 to 100".to_owned());
        }
        if regions(&scenario).iter().any(Vec::is_empty) {
            let cloud = &scenario.relays_of;
            return wrong(format!(
                "relays_of: `{cloud}` has no region in one of North America, Europe, Asia and \
                 Oceania"
            ));
        }
        Ok(scenario)
    }
}

/// Returns the cloud's regions in each part of the world.
fn regions(scenario: &Scenario) -> [Vec<RegionId>; PARTS.len()] {
    PARTS.map(|(_, continent): (_, Continent)| {
        let all = catalogue().regions().filter(|region| region.continent == continent);
        all.map(|region| region.id.clone()).filter(|id| id.cloud() == scenario.relays_of).collect()
    })
}

/// A drawn path, by the parts of the world of its ends.
struct Drawn {
    ends: [usize; 2],
    path: PacketPath,
}

fn draw(
    scenario: &Scenario,
    rtts: &Rtts<'_>,
    random: &mut Random,
) -> Result<Vec<Drawn>, NumericError> {
    let regions = regions(scenario);
    let millis = |millis: f64| Duration::from_secs_f64(millis / 1e3);
    let mut drawn = Vec::new();
    for _ in 0..scenario.paths {
        let from = random.draw(PARTS.len());
        let to = (from + 1 + random.draw(PARTS.len() - 1)) % PARTS.len();
        let ends = [from, to].map(|part| &regions[part][random.draw(regions[part].len())]);
        let Some(rtt) = rtts.between(ends[0], ends[1]) else { continue };
        let mut access =
            || millis(scenario.access_median_ms * random.laplace(scenario.access_spread).exp());
        let (source_access, receiver_access) = (access(), access());
        let helper_access = (0..scenario.helpers).map(|_| access()).max().unwrap_or_default();
        let between_relays = rtt / 2;
        let factor = scenario.internet_median * random.laplace(scenario.internet_spread).exp();
        let internet = source_access + between_relays.mul_f64(factor) + receiver_access;
        let delays = PacketPath {
            internet,
            source_access,
            between_relays,
            receiver_access,
            helper_access,
            ..PacketPath::default()
        };
        drawn.push(Drawn { ends: [from, to], path: delays });
    }
    if drawn.is_empty() {
        return Err(NumericError::Nothing { what: "no path with a known RTT".to_owned() });
    }
    Ok(drawn)
}

fn delivery_ms(path: &PacketPath, service: PacketService) -> f64 {
    path.delivery(service).unwrap_or(path.internet).as_secs_f64() * 1e3
}

/// Returns how much later than due a lost packet arrives, over the Internet's round trip.
fn recovery(path: &PacketPath, service: PacketService) -> Option<f64> {
    Some(path.recovery(service)?.as_secs_f64() / (2.0 * path.internet.as_secs_f64()))
}

fn share(values: impl Iterator<Item = bool>) -> f64 {
    let (mut holds, mut all) = (0_u32, 0_u32);
    for value in values {
        holds += u32::from(value);
        all += 1;
    }
    100.0 * f64::from(holds) / f64::from(all.max(1))
}

/// A measure of one run.
type Measure = Box<dyn Fn(&[Drawn]) -> f64>;

fn within_ms(service: PacketService, limit: f64) -> Measure {
    Box::new(move |paths| share(paths.iter().map(|p| delivery_ms(&p.path, service) <= limit)))
}

fn within_between(ends: [usize; 2], limit: f64) -> Measure {
    Box::new(move |paths| {
        let joins = |drawn: &&Drawn| drawn.ends == ends || drawn.ends == [ends[1], ends[0]];
        let between = paths.iter().filter(joins);
        share(between.map(|p| delivery_ms(&p.path, PacketService::Caching) <= limit))
    })
}

fn recovered_within(services: &'static [PacketService], limit: f64) -> Measure {
    Box::new(move |paths| {
        let all = paths.iter().flat_map(|p| services.iter().filter_map(|s| recovery(&p.path, *s)));
        share(all.map(|value| value <= limit))
    })
}

const BOTH: &[PacketService] = &[PacketService::Caching, PacketService::Coding];

/// Returns the measures for which the paper's text has figures.
fn measures() -> Vec<(&'static str, f64, Measure)> {
    let [caching, coding] = [PacketService::Caching, PacketService::Coding];
    vec![
        ("caching delivers within 200 ms", 85.0, within_ms(caching, 200.0)),
        ("coding delivers within 200 ms", 50.0, within_ms(coding, 200.0)),
        ("caching delivers within 200 ms, US-EU", 95.0, within_between([0, 1], 200.0)),
        ("caching delivers within 200 ms, EU-OC", 50.0, within_between([1, 3], 200.0)),
        ("recovered within 0.5 RTT, caching and coding", 75.0, recovered_within(BOTH, 0.5)),
        ("recovered within 0.25 RTT, caching", 90.0, recovered_within(&BOTH[..1], 0.25)),
        ("recovered within 0.25 RTT, coding", 20.0, recovered_within(&BOTH[1..], 0.25)),
    ]
}

/// Runs the experiment.
///
/// # Errors
/// When too few RTTs are known, or the run is stopped.
pub fn run(scenario: &Scenario, job: &mut Job<'_>) -> Result<Record, NumericError> {
    let table = job.table.take();
    let seeds = scenario.runs.seeds(job.options);
    let all: BTreeSet<RegionId> = regions(scenario).into_iter().flatten().collect();
    let step = format!("{}: {} paths a run", scenario.name, scenario.paths);
    let runs = each(&step, &seeds, Threads::All, job, |seed| {
        let mut random = Random::new(seed);
        let rtts = Rtts::new(table.as_ref(), &all, &mut random)?;
        draw(scenario, &rtts, &mut random)
    })?;
    let mut record =
        Record::of_runs(&scenario.name, &scenario.assumptions, &scenario.runs, job.options);
    crate::numeric::add_rtt_assumption(&mut record, table.is_some());
    record.figures = vec![Figure {
        title: "packets that arrive in time".to_owned(),
        x_label: "latency budget (ms)".to_owned(),
        y_label: "paths (%)".to_owned(),
        scale: Scale::Linear,
    }];
    for (case, paper, measure) in measures() {
        let values: Vec<f64> = runs.iter().map(|run| measure(run)).collect();
        record.rows.push(Row::of(case, Some(paper), &values, "% of paths", ""));
    }
    for service in PacketService::ALL {
        for budget in (50..=400).step_by(50).map(f64::from) {
            let measure = within_ms(service, budget);
            let values: Vec<f64> = runs.iter().map(|run| measure(run)).collect();
            let (line, x_name) = (service.to_string(), format!("{budget} ms"));
            let name = format!("{service} within {budget} ms");
            let spot = Spot { figure: 0, line, x: budget, x_name };
            record.rows.push(Row::of(&name, None, &values, "% of paths", "").drawn_at(spot));
        }
    }
    findings(&runs, &mut record);
    Ok(record)
}

fn findings(runs: &[Vec<Drawn>], record: &mut Record) {
    let over = |measure: &dyn Fn(&[Drawn]) -> f64| {
        mean(&runs.iter().map(|run| measure(run)).collect::<Vec<f64>>())
    };
    let ratio = |share: f64| {
        over(&|paths: &[Drawn]| {
            let ratios: Vec<f64> = paths
                .iter()
                .map(|p| {
                    delivery_ms(&p.path, PacketService::Forwarding)
                        / delivery_ms(&p.path, PacketService::Direct)
                })
                .collect();
            quantile(&ratios, share)
        })
    };
    record.findings.push(Finding::new(
        "for a majority of paths forwarding is as fast as the Internet",
        ratio(0.5) <= 1.1,
        format!("forwarding takes {:.2} of the Internet's time at the median", ratio(0.5)),
    ));
    record.findings.push(Finding::new(
        "the Internet has a long tail that forwarding has not",
        ratio(0.05) < 0.75,
        format!("on one path of twenty forwarding takes at most {:.2} of it", ratio(0.05)),
    ));
    let quarter = |services| over(&*recovered_within(services, 0.25));
    let (caching, coding) = (quarter(&BOTH[..1]), quarter(&BOTH[1..]));
    record.findings.push(Finding::new(
        "caching recovers most packets within 0.25 RTT, coding most of its own between 0.25 and \
         0.5",
        caching > 50.0 && coding < 50.0,
        format!("within 0.25 RTT: caching {caching:.0} %, coding {coding:.0} %"),
    ));
}
