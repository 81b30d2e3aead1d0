//! Many agents at one controller, over TLS on loopback, and 1,000 flows: how long a plan takes and
//! the API meanwhile, the controller's processor time at rest, and the time from one change of all
//! gateways' documents until the last gateway has its own.
//!
//! The controller is a process of its own. Agents do as they are told; their probes have made-up
//! results, by which relays pay.
//!
//! `cargo run --release -p tradewind-controller --example agents_at_once [agents]`

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes as Body;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tradewind_control::Record;
use tradewind_control::message::{
    CONFIG_VERSION, Document, Probe, ProbeKind, ProbeOutcome, ProbeResult, ProcessState,
    ProcessStatus, Report, ReportAnswer, SCHEMA_VERSION, SignedDocument,
};
use tradewind_control::record::{FlowRecord, Host, Role, Step};
use tradewind_controller::folder::{Access, Settings};
use tradewind_controller::store::Store;
use tradewind_controller::view::{Flows, PlanView, SettingsRequest, SettingsView, Status};
use tradewind_controller::{Client, Folder, Server};
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_model::Catalogue;
use tradewind_plan::solver::OneByOne;
use tradewind_stream::connection::Tls;
use tradewind_units::{Bytes, FlowId, HostId, Money, SiteId};

/// Agents, unless the argument says otherwise.
const AGENTS: usize = 500;
/// Relays are one agent of this many.
const AGENTS_A_RELAY: usize = 25;
/// Flows of each gateway; 1,000 of 500 agents.
const FLOWS_A_GATEWAY: usize = 2;
/// Sites of destinations.
const DESTINATIONS: usize = 40;
/// Time between two reports of an agent.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Time at rest that is measured.
const AT_REST: Duration = Duration::from_secs(20);
/// Longest time of each part.
const MAX: Duration = Duration::from_secs(300);
/// Ticks of the processor clock in a second, as in `/proc/PID/stat`.
const TICKS: f64 = 100.0;

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("controller") {
        return serve(&PathBuf::from(arguments.next().unwrap_or_default()));
    }
    let agents = first.map_or(Ok(AGENTS), |text| text.parse())?;
    let place = std::env::temp_dir().join(format!("tradewind-agents-{}", std::process::id()));
    let outcome = run(&place, agents);
    std::fs::remove_dir_all(&place)?;
    outcome
}

/// Runs the controller of a folder, and prints its addresses.
fn serve(place: &Path) -> Result<(), Failed> {
    let server = Server::open(&Folder::new(place), Arc::new(OneByOne))?;
    let (agents, api) = server.addresses()?;
    println!("{agents} {api} {}", server.identity());
    Ok(server.run()?)
}

/// The controller's process.
struct Controller {
    process: Child,
    agents: SocketAddr,
    api: SocketAddr,
    identity: PublicIdentity,
}

impl Controller {
    fn start(place: &Path) -> Result<Self, Failed> {
        let mut command = Command::new(std::env::current_exe()?);
        let command = command.arg("controller").arg(place).stdout(Stdio::piped());
        let mut process = command.spawn()?;
        let mut line = String::new();
        let output = process.stdout.take().ok_or("no output")?;
        BufReader::new(output).read_line(&mut line)?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [agents, api, identity] = words[..] else { return Err("no addresses".into()) };
        let (agents, api, identity) = (agents.parse()?, api.parse()?, identity.parse()?);
        Ok(Self { process, agents, api, identity })
    }

    /// Returns the seconds of processor time so far.
    fn seconds(&self) -> Result<f64, Failed> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let (_, fields) = stat.rsplit_once(')').ok_or("stat")?;
        let fields: Vec<&str> = fields.split_whitespace().collect();
        Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / TICKS)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _ = self.process.wait();
    }
}

fn run(place: &Path, agents: usize) -> Result<(), Failed> {
    let relays = (agents / AGENTS_A_RELAY).max(1);
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let folder = Folder::new(place);
    folder.init(&Settings::new(any, any, any))?;
    let hosts = hosts(agents, relays);
    let flows = flows(agents - relays)?;
    println!("{agents} agents, {relays} of them relays; {} flows", flows.len());
    let records: Vec<Record> = hosts
        .iter()
        .cloned()
        .map(Record::Host)
        .chain(flows.into_iter().map(Record::Flow))
        .collect();
    Store::open(&folder.store())?.append(0, &records)?;
    let controller = Controller::start(place)?;
    let access = Access { api: format!("http://{}", controller.api), ..folder.admin()? };
    let client = Client::new(&access)?;

    let all = Arc::new(All {
        controller: (controller.agents, controller.identity),
        relays,
        is_over: AtomicBool::new(false),
        seen: Mutex::new(vec![Seen::default(); agents]),
    });
    let begun = Instant::now();
    let running = Arc::clone(&all);
    // It ends with this process.
    std::thread::spawn(move || run_agents(&running));
    wait("all agents are measured", || Ok(all.every(|seen| seen.is_idle)))?;
    println!("joined and measured: {:.1} s", begun.elapsed().as_secs_f64());
    let other = Client::new(&access)?;
    let outcome = plan(&client, &other)
        .and_then(|()| rest(&controller, agents))
        .and_then(|()| change(&client, &all, &hosts));
    all.is_over.store(true, Relaxed);
    outcome
}

fn budget(client: &Client, usd: f64) -> Result<(), Failed> {
    let budget_usd_per_day = Some(Money::from_usd(usd)?);
    let request = SettingsRequest { budget_usd_per_day, ..SettingsRequest::default() };
    let _: SettingsView = client.put("/v1/settings", &request)?;
    Ok(())
}

/// Has a plan made, while `client` asks for the status, and puts it into effect.
fn plan(client: &Client, planner: &Client) -> Result<(), Failed> {
    budget(client, 1e6)?;
    let (plan, took, slowest) = std::thread::scope(|scope| {
        let begun = Instant::now();
        let body = serde_json::json!({});
        let planning = scope.spawn(move || planner.post::<PlanView>("/v1/plans", &body));
        let mut slowest = Duration::ZERO;
        while !planning.is_finished() {
            let asked = Instant::now();
            client.get::<Status>("/v1/status")?;
            slowest = slowest.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(5));
        }
        let plan = planning.join().map_err(|_| "planning failed")??;
        Ok::<_, Failed>((plan, begun.elapsed(), slowest))
    })?;
    println!(
        "plan: {:.2} s, {} relays; slowest answer of the API meanwhile: {:.0} ms",
        took.as_secs_f64(),
        plan.record.plan.relays.len(),
        slowest.as_secs_f64() * 1000.0
    );
    let begun = Instant::now();
    // The controller may have made another one since.
    client.act("/v1/plans/newest/apply")?;
    wait("the plan is in effect", || {
        let status: Status = client.get("/v1/status")?;
        Ok(status.step == Step::Done && status.plan.is_some())
    })?;
    println!("put into effect: {:.1} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// Measures the controller while nothing changes.
fn rest(controller: &Controller, agents: usize) -> Result<(), Failed> {
    let (begun, before) = (Instant::now(), controller.seconds()?);
    std::thread::sleep(AT_REST.min(Duration::from_millis(200) * u32::try_from(agents)?));
    let share = (controller.seconds()? - before) / begun.elapsed().as_secs_f64();
    println!("controller at rest: {share:.2} of a core");
    Ok(())
}

/// Takes the budget away, which sends all flows direct.
fn change(client: &Client, all: &All, hosts: &[Host]) -> Result<(), Failed> {
    let flows: Flows = client.get("/v1/flows")?;
    let relayed = flows.flows.into_iter().filter(|view| !view.path.is_empty());
    let relayed: BTreeSet<SiteId> = relayed.map(|view| view.flow.from).collect();
    let newest = all.newest();
    let begun = Instant::now();
    budget(client, 0.0)?;
    let answered = begun.elapsed();
    let is_told = |(number, seen): (usize, &Seen)| {
        !relayed.contains(&hosts[number].role.site()) || seen.version > newest
    };
    wait("all gateways have the change", || {
        let seen = all.seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(seen.iter().enumerate().all(is_told))
    })?;
    println!(
        "change of {} gateways: decided in {:.2} s, at the last one in {:.2} s",
        relayed.len(),
        answered.as_secs_f64(),
        begun.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Waits until something is so.
fn wait(what: &str, is_so: impl Fn() -> Result<bool, Failed>) -> Result<(), Failed> {
    let begun = Instant::now();
    while !is_so()? {
        if begun.elapsed() > MAX {
            return Err(format!("{what}: not within {MAX:?}").into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

fn key(number: usize, part: u8) -> IdentityKey {
    let mut entropy = [part; 32];
    entropy[8..16].copy_from_slice(&number.to_le_bytes());
    IdentityKey::from_entropy(entropy)
}

/// Returns the hosts: relays, each in a region of its own as long as there are some, then gateways.
fn hosts(agents: usize, relays: usize) -> Vec<Host> {
    let catalogue = Catalogue::builtin();
    let regions: Vec<_> = catalogue.regions().map(|region| region.id.clone()).collect();
    let host = |number: usize| {
        let role = if number < relays {
            let region = regions[number % regions.len()].clone();
            Role::Relay { region, relay_type: "standard".parse().expect("a type") }
        } else {
            Role::Gateway { site: site("office", number - relays) }
        };
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(203, 0, 0, 0)) + number as u32);
        Host {
            id: format!("host-{number}").parse::<HostId>().expect("a name"),
            role,
            identity: key(number, 1).public(),
            data_identity: key(number, 2).public(),
            address: IpAddr::V4(address),
            joined_unix_ms: 0,
            is_trusted: true,
            is_drained: false,
            config_version: CONFIG_VERSION,
            counts_from_unix_ms: None,
        }
    };
    (0..agents).map(host).collect()
}

fn site(name: &str, number: usize) -> SiteId {
    format!("{name}-{number}").parse().expect("a name")
}

fn flows(gateways: usize) -> Result<Vec<FlowRecord>, Failed> {
    let flow = |number: usize| {
        let (gateway, of_it) = (number / FLOWS_A_GATEWAY, number % FLOWS_A_GATEWAY);
        let to = (gateway * 7 + of_it * 3) % DESTINATIONS;
        let port = 15_000 + u16::try_from(of_it)?;
        Ok(FlowRecord {
            id: format!("flow-{number}").parse::<FlowId>()?,
            from: site("office", gateway),
            to: format!("198.51.100.{}:443", to + 1).parse()?,
            to_site: site("far", to),
            per_day: Bytes::new(10_000_000_000),
            weight: 1,
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
        })
    };
    (0..gateways * FLOWS_A_GATEWAY).map(flow).collect()
}

/// The state of one agent.
#[derive(Debug, Clone, Default)]
struct Seen {
    /// The version of its document.
    version: u64,
    /// True once it was given no probes.
    is_idle: bool,
}

/// All agents.
struct All {
    controller: (SocketAddr, PublicIdentity),
    /// The first of them are relays.
    relays: usize,
    /// True once the controller's process ends.
    is_over: AtomicBool,
    seen: Mutex<Vec<Seen>>,
}

impl All {
    fn every(&self, is_so: impl Fn(&Seen) -> bool) -> bool {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter().all(is_so)
    }

    fn newest(&self) -> u64 {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().map(|seen| seen.version).max().unwrap_or(0)
    }

    fn note(&self, number: usize, change: impl FnOnce(&mut Seen)) {
        change(&mut self.seen.lock().unwrap_or_else(PoisonError::into_inner)[number]);
    }
}

fn run_agents(all: &Arc<All>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let count = all.seen.lock().unwrap_or_else(PoisonError::into_inner).len();
    runtime.expect("a runtime").block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..count {
            let all = Arc::clone(all);
            tasks.spawn(async move {
                let ended = agent(&all, number).await;
                if let Some(error) = ended.err().filter(|_| !all.is_over.load(Relaxed)) {
                    eprintln!("agent {number}: {error}");
                }
            });
        }
        while tasks.join_next().await.is_some() {}
    });
}

/// A connection to the controller.
struct Link(SendRequest<Full<Body>>);

impl Link {
    async fn dial(all: &All, number: usize) -> Result<Self, Failed> {
        let (address, identity) = all.controller;
        let tls = Tls::new(&key(number, 1))?;
        let stream = TcpStream::connect(address).await?;
        let connection = tls.seal_dialled(stream, identity).await?;
        let (sender, driver) = http1::handshake(TokioIo::new(connection)).await?;
        tokio::spawn(driver);
        Ok(Self(sender))
    }

    async fn ask(
        &mut self,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<(StatusCode, Body), Failed> {
        let request = Request::builder().method(method).uri(path).header("host", "controller");
        let response = self.0.send_request(request.body(Full::new(Body::from(body)))?).await?;
        let status = response.status();
        Ok((status, response.into_body().collect().await?.to_bytes()))
    }
}

/// Runs an agent: one connection waits for documents, another reports.
async fn agent(all: &Arc<All>, number: usize) -> Result<(), Failed> {
    let document: Mutex<Option<Document>> = Mutex::new(None);
    tokio::try_join!(take_documents(all, number, &document), report(all, number, &document))?;
    Ok(())
}

async fn take_documents(
    all: &All,
    number: usize,
    document: &Mutex<Option<Document>>,
) -> Result<(), Failed> {
    let mut link = Link::dial(all, number).await?;
    let mut path = "/v1/desired".to_owned();
    loop {
        let (status, body) = link.ask(Method::GET, &path, Vec::new()).await?;
        if status != StatusCode::OK {
            continue;
        }
        let signed: SignedDocument = serde_json::from_slice(&body)?;
        let taken = signed.verify(&all.controller.1)?;
        path = format!("/v1/desired?have={}", taken.version);
        all.note(number, |seen| seen.version = taken.version.version);
        *document.lock().unwrap_or_else(PoisonError::into_inner) = Some(taken);
    }
}

async fn report(
    all: &All,
    number: usize,
    document: &Mutex<Option<Document>>,
) -> Result<(), Failed> {
    let mut link = Link::dial(all, number).await?;
    let mut results: Vec<ProbeResult> = Vec::new();
    let is_relay = number < all.relays;
    loop {
        let mut report = Report {
            schema_version: SCHEMA_VERSION,
            agent_version: "0.1.0".to_owned(),
            config_version: CONFIG_VERSION,
            results: std::mem::take(&mut results),
            ..Report::default()
        };
        if let Some(document) = document.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            report.applied = Some(document.version);
            let status = |name: &String| ProcessStatus {
                name: name.clone(),
                state: ProcessState::Ready,
                listen: Vec::new(),
                sessions: Some(0),
                flows: None,
                failure: None,
            };
            report.processes = document.processes.iter().map(|it| status(&it.name)).collect();
        }
        let body = serde_json::to_vec(&report)?;
        let (status, body) = link.ask(Method::POST, "/v1/report", body).await?;
        if status != StatusCode::OK {
            return Err(format!("{status}: {}", String::from_utf8_lossy(&body)).into());
        }
        let answer: ReportAnswer = serde_json::from_slice(&body)?;
        results = answer.probes.iter().map(|probe| result(is_relay, probe)).collect();
        let is_measured = results.is_empty() && report.applied.is_some();
        all.note(number, |seen| seen.is_idle |= is_measured);
        // At first they measure without a pause.
        let is_idle = all.every(|seen| seen.is_idle);
        if is_idle || results.is_empty() {
            // Spread over the time between two reports.
            let spread = REPORT_EVERY.mul_f64((number * 37 % 100) as f64 / 1000.0);
            tokio::time::sleep(REPORT_EVERY.mul_f64(0.95) + spread).await;
        }
    }
}

/// Returns a made-up result: direct paths take 200 ms, others 60 ms.
fn result(is_relay: bool, probe: &Probe) -> ProbeResult {
    let is_direct = !is_relay && probe.to.as_str().starts_with("far");
    let ms = if is_direct { 200.0 } else { 60.0 };
    let outcome = match probe.kind {
        ProbeKind::Rtt { samples, .. } => {
            ProbeOutcome::Rtt { min_ms: ms, median_ms: ms, spread_ms: 1.0, samples }
        }
        _ => ProbeOutcome::Failed { reason: "no test here".to_owned() },
    };
    ProbeResult { id: probe.id, to: probe.to.clone(), measured_unix_ms: 0, outcome }
}
