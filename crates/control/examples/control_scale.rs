//! Time of each kind of decision of the controller, its memory, and bytes of messages, by the
//! number of its agents and flows. No sockets and no store; the clock is virtual.
//!
//! `cargo run --release -p tradewind-control --example control_scale [AGENTS FLOWS]...`

#![allow(clippy::unwrap_used, reason = "a program that may fail by panic")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program, not the pure crate"
)]

use std::time::{Duration, Instant};

use tradewind_control::message::{CONFIG_VERSION, Report, SCHEMA_VERSION};
use tradewind_control::record::{FlowRecord, Host, Mode, Record, Role, Settings};
use tradewind_control::{Controller, Event, Keys, Refusal, SettingsRequest};
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_model::Catalogue;
use tradewind_model::measurement::{LegMeasurement, Method, RttSummary};
use tradewind_plan::Limits;
use tradewind_plan::solver::{FlowGreedyFct, Solver as _};
use tradewind_units::{
    Bytes, FlowId, HostId, Money, RegionId, RelayTypeId, SiteId, Timestamp, time,
};

/// Agents and flows, unless arguments say otherwise.
const SIZES: [(usize, usize); 3] = [(100, 1_000), (1_000, 10_000), (10_000, 100_000)];
/// Time at which the run begins, in milliseconds since the Unix epoch: in November 2026.
const START: u64 = 1_795_000_000_000;
/// Gateways among the agents: one in so many.
const GATEWAYS: usize = 10;
/// Destinations of all flows.
const DESTINATIONS: usize = 200;
/// Time between two reports of an agent, in seconds.
const REPORT_EVERY: f64 = 5.0;

fn main() {
    let arguments: Vec<usize> =
        std::env::args().skip(1).map(|text| text.parse().expect("a number")).collect();
    let sizes: Vec<(usize, usize)> = match arguments.as_slice() {
        [] => SIZES.to_vec(),
        pairs => pairs.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(),
    };
    println!(
        "| agents | flows | memory MB | report us | reports, share of a core | tick ms | change ms \
         | problem s | greedy plan s | plan to documents s | bytes/s of reports |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    for (agents, flows) in sizes {
        println!("{}", measured(agents, flows));
    }
}

/// Returns the row of one size.
fn measured(agents: usize, flows: usize) -> String {
    let before = resident_mb();
    let mut run = Run::new(agents, flows);
    let memory = resident_mb() - before;
    let report = run.reports();
    let tick = run.event(&Event::Tick);
    // Every host whose document has changed gets a new one.
    let change = run.event(&Event::ChangeSettings(SettingsRequest::mode(Mode::Suggest)));
    let load = report.as_secs_f64() * agents as f64 / REPORT_EVERY;
    let planned = match run.plan() {
        Ok(times) => times.map(|time| format!("{:.2}", time.as_secs_f64())).join(" | "),
        Err(refused) => format!("{refused} | |"),
    };
    format!(
        "| {agents} | {flows} | {memory:.0} | {:.0} | {load:.3} | {:.1} | {:.1} | {planned} | \
         {:.0} |",
        report.as_secs_f64() * 1e6,
        tick.as_secs_f64() * 1e3,
        change.as_secs_f64() * 1e3,
        run.report_bytes as f64 * agents as f64 / REPORT_EVERY,
    )
}

/// A controller in virtual time.
struct Run {
    controller: Controller,
    agents: usize,
    now_ms: u64,
    report_bytes: usize,
}

impl Run {
    fn new(agents: usize, flows: usize) -> Self {
        let keys = Keys {
            identity: IdentityKey::from_entropy([200; 32]),
            operator: OperatorKey::from_entropy([201; 32]),
        };
        let mut controller = Controller::new(keys, records(agents, flows));
        let watching = Event::Tick;
        for _ in 0..2 {
            let decision = controller.decide(timestamp(START), &watching, [0; 32]).unwrap();
            decision.records.into_iter().for_each(|record| controller.apply(record));
        }
        Self { controller, agents, now_ms: START, report_bytes: 0 }
    }

    /// Decides and applies an event; returns the time that took.
    fn event(&mut self, event: &Event) -> Duration {
        let begun = Instant::now();
        let decision = self.controller.decide(timestamp(self.now_ms), event, [1; 32]).unwrap();
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        begun.elapsed()
    }

    /// Has every agent report; returns the mean time of a report.
    fn reports(&mut self) -> Duration {
        let mut taken = Duration::ZERO;
        for number in 0..self.agents {
            self.now_ms += 1;
            let identity = identity(number);
            let have = self.controller.document(&identity, None);
            let document = have.map(|signed| serde_json::to_value(signed).unwrap());
            let version = document.and_then(|value| {
                let inner: serde_json::Value =
                    serde_json::from_str(value.get("document")?.as_str()?).ok()?;
                inner.get("version")?.as_str()?.parse().ok()
            });
            let report = Report {
                schema_version: SCHEMA_VERSION,
                agent_version: "0.1.0".to_owned(),
                config_version: CONFIG_VERSION,
                applied: version,
                ..Report::default()
            };
            self.report_bytes = serde_json::to_vec(&report).unwrap().len();
            taken += self.event(&Event::Report { identity, report });
        }
        taken / u32::try_from(self.agents).unwrap()
    }

    /// Makes a plan and puts it into effect; returns the time of the problem, of the plan, and of
    /// the documents, or why there is no plan.
    fn plan(&mut self) -> Result<[Duration; 3], Refusal> {
        let begun = Instant::now();
        let problem = self.controller.problem(timestamp(self.now_ms))?;
        let assembled = begun.elapsed();
        let plan = FlowGreedyFct.solve(&problem, &Limits::work(u64::MAX)).unwrap();
        let solved = begun.elapsed() - assembled;
        let now = timestamp(self.now_ms);
        let joint = Controller::joint_of(self.controller.state(), now, plan)?;
        let planned = self.event(&Event::Planned(Box::new(joint)));
        let number = self.controller.state().newest_plan().unwrap().number;
        let applied = self.event(&Event::Apply { plan: number });
        Ok([assembled, solved, planned + applied])
    }
}

/// Returns the records of hosts, flows, and the legs that the flows may use.
fn records(agents: usize, flows: usize) -> Vec<Record> {
    let catalogue = Catalogue::builtin();
    let regions: Vec<RegionId> = catalogue.regions().map(|region| region.id.clone()).collect();
    let gateways = (agents / GATEWAYS).max(1);
    let site = |number: usize| SiteId::new(format!("site-{}", number % gateways)).unwrap();
    let far = |number: usize| SiteId::new(format!("far-{}", number % DESTINATIONS)).unwrap();
    let mut records = vec![Record::Settings(Settings {
        budget_usd_per_day: Money::from_usd(10_000.0).unwrap(),
        ..Settings::default()
    })];
    for number in 0..agents {
        let role = if number < gateways {
            Role::Gateway { site: site(number) }
        } else {
            let region = regions[number % regions.len()].clone();
            Role::Relay { region, relay_type: RelayTypeId::new("standard").unwrap() }
        };
        let octets = u32::try_from(number).unwrap().to_be_bytes();
        records.push(Record::Host(Host {
            id: HostId::new(format!("host-{number}")).unwrap(),
            role,
            identity: identity(number),
            data_identity: identity(number),
            address: [10, octets[1], octets[2], octets[3]].into(),
            joined_unix_ms: START,
            is_trusted: true,
            is_drained: false,
            config_version: CONFIG_VERSION,
            counts_from_unix_ms: None,
        }));
    }
    for number in 0..flows {
        let to = 1 + number / gateways % 60_000;
        records.push(Record::Flow(FlowRecord {
            id: FlowId::new(format!("flow-{number}")).unwrap(),
            from: site(number),
            to: format!("198.51.100.{}:{to}", number % DESTINATIONS).parse().unwrap(),
            to_site: far(number),
            per_day: Bytes::new(10_000_000_000),
            weight: 1,
            listen: ([127, 0, 0, 1], u16::try_from(1024 + to).unwrap()).into(),
        }));
    }
    let used = &regions[..regions.len().min(agents - gateways)];
    let places = |region: &RegionId| SiteId::from(region.clone());
    let mut legs = Vec::new();
    for near in (0..gateways).map(site) {
        legs.extend(used.iter().map(|region| leg(&near, &places(region), 40)));
    }
    for distant in (0..DESTINATIONS.min(flows)).map(far) {
        legs.extend(used.iter().map(|region| leg(&places(region), &distant, 40)));
    }
    for one in used {
        let others = used.iter().filter(|other| *other != one);
        legs.extend(others.map(|other| leg(&places(one), &places(other), 60)));
    }
    let direct = (0..flows).map(|number| leg(&site(number), &far(number), 200));
    records.extend(legs.into_iter().chain(direct).map(Record::Measurement));
    records
}

fn leg(source: &SiteId, destination: &SiteId, ms: u32) -> LegMeasurement {
    // Places differ, so that no two paths are alike.
    let names = source.as_str().bytes().chain(destination.as_str().bytes());
    let extra = names.fold(7_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) % ms;
    let rtt = time::duration_from_millis(f64::from(ms + extra)).unwrap();
    LegMeasurement {
        source: source.clone(),
        destination: destination.clone(),
        rtt: RttSummary::single(rtt),
        rate: None,
        method: Method::Tcp,
        measured_at_unix_ms: Some(START),
    }
}

fn identity(number: usize) -> PublicIdentity {
    let mut entropy = [7; 32];
    entropy[..8].copy_from_slice(&(number as u64).to_be_bytes());
    IdentityKey::from_entropy(entropy).public()
}

const fn timestamp(unix_ms: u64) -> Timestamp {
    Timestamp::from_nanos(unix_ms * 1_000_000)
}

/// Returns the memory that the process has in use.
fn resident_mb() -> f64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: f64 = pages.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4096.0 / 1e6
}
