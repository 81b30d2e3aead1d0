//! `tradewind agent` against a controller that says what the test has it say.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::{TcpListener, TcpStream};
use tradewind_config::Kind;
use tradewind_control::learner::JumpArm;
use tradewind_control::message::{
    Arm, Document, DocumentVersion, JoinAnswer, JoinRequest, Probe, ProbeKind, ProbeOutcome,
    Process, ProcessState, ProcessStatus, Report, ReportAnswer, SCHEMA_VERSION, SESSIONS_SOCKET,
    SessionBatch, SignedDocument,
};
use tradewind_control::record::Role;
use tradewind_control::{Invite, InviteSecret};
use tradewind_grant::first_flight::PROOF_BYTES;
use tradewind_grant::{IdentityKey, OperatorKey};
use tradewind_net::privileges::{Account, is_root};
use tradewind_stream::connection::Tls;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
/// Far beyond what anything here takes; only a failed test waits so long.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn role() -> Role {
    Role::Relay { region: "lab:here".parse().unwrap(), relay_type: "small".parse().unwrap() }
}

/// The controller's answers, and the requests that it got.
#[derive(Default)]
struct Said {
    document: Option<SignedDocument>,
    probes: Vec<Probe>,
    joins: Vec<JoinRequest>,
    reports: Vec<Report>,
    /// True if answers to reports are lost from now on.
    loses_answers: bool,
    /// The versions that agents said they had.
    had: Vec<String>,
}

/// A controller on a thread. It ends, with all its connections, when it is dropped.
struct Controller {
    address: SocketAddr,
    said: Arc<Mutex<Said>>,
    end: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

fn key() -> IdentityKey {
    IdentityKey::from_entropy([42; 32])
}

impl Controller {
    fn start(address: SocketAddr, said: Arc<Mutex<Said>>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind(address)).unwrap();
        let address = listener.local_addr().unwrap();
        let (end, ended) = tokio::sync::oneshot::channel();
        let serving = Arc::clone(&said);
        let serve = async move {
            let tls = Arc::new(Tls::new(&key()).unwrap());
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(Arc::clone(&tls), stream, Arc::clone(&serving)));
            }
        };
        let thread = thread::spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = serve => {}
                    _ = ended => {}
                }
            });
        });
        Self { address, said, end: Some(end), thread: Some(thread) }
    }

    fn says(&self, document: SignedDocument) {
        self.said.lock().unwrap().document = Some(document);
    }

    /// Waits for a report from now on that `fits`.
    fn report(&self, what: &str, fits: impl Fn(&Report) -> bool) -> Report {
        self.said.lock().unwrap().reports.clear();
        let newest = || self.said.lock().unwrap().reports.iter().find(|r| fits(r)).cloned();
        until(what, newest)
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ended = self.thread.take().unwrap().join();
    }
}

/// Returns the ClientHello of a first flight, which follows a proof.
async fn hello_of(stream: &TcpStream) -> Option<Vec<u8>> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let hello = bytes.get(PROOF_BYTES..).unwrap_or_default();
        if let [22, 3, _, high, low, rest @ ..] = hello
            && rest.len() == usize::from(u16::from_be_bytes([*high, *low]))
        {
            return Some(hello.to_vec());
        }
        stream.readable().await.ok()?;
        match stream.try_read(&mut buffer) {
            Ok(0) => return None,
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(_) => {}
        }
    }
}

async fn serve(tls: Arc<Tls>, stream: TcpStream, said: Arc<Mutex<Said>>) {
    let Some(hello) = hello_of(&stream).await else { return };
    let Ok(sealed) = tls.seal_accepted(stream, &hello).await else { return };
    let answer = service_fn(move |request| {
        let said = Arc::clone(&said);
        async move { Ok::<_, std::convert::Infallible>(answer(request, &said).await) }
    });
    let _ended = http1::Builder::new().serve_connection(TokioIo::new(sealed), answer).await;
}

async fn answer(request: Request<Incoming>, said: &Mutex<Said>) -> Response<Full<Bytes>> {
    let (path, query) = (request.uri().path().to_owned(), request.uri().query().map(str::to_owned));
    let body = request.into_body().collect().await.unwrap().to_bytes();
    match path.as_str() {
        "/v1/join" => {
            said.lock().unwrap().joins.push(serde_json::from_slice(&body).unwrap());
            let host = "lab:here-1".parse().unwrap();
            json(&JoinAnswer { schema_version: SCHEMA_VERSION, host, role: role() })
        }
        "/v1/desired" => {
            let have = query.unwrap_or_default().replace("have=", "");
            said.lock().unwrap().had.push(have.clone());
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(1) {
                let newest = said.lock().unwrap().document.clone();
                let is_newer = |signed: &SignedDocument| {
                    let text = serde_json::to_value(signed).unwrap()["document"].to_string();
                    have.is_empty() || !text.contains(&format!("\\\"version\\\":\\\"{have}\\\""))
                };
                if let Some(newest) = newest.filter(is_newer) {
                    return json(&newest);
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let mut nothing = Response::new(Full::default());
            *nothing.status_mut() = StatusCode::NO_CONTENT;
            nothing
        }
        _ => {
            let mut said = said.lock().unwrap();
            said.reports.push(serde_json::from_slice(&body).unwrap());
            if said.loses_answers {
                let mut lost = Response::new(Full::default());
                *lost.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                return lost;
            }
            let probes = std::mem::take(&mut said.probes);
            json(&ReportAnswer { schema_version: SCHEMA_VERSION, probes })
        }
    }
}

fn json(value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    Response::new(Full::new(serde_json::to_vec(value).unwrap().into()))
}

fn version(version: u64) -> DocumentVersion {
    DocumentVersion { epoch: 1, version }
}

/// Returns a relay's configuration with these further lines.
fn relay(more: &str) -> String {
    let operator = OperatorKey::from_entropy([7; 32]).public();
    format!(
        "listen = ['127.0.0.1:0']\nidentity_file = 'data.key'\noperators = ['{operator}']\n\
         workers = 1\n{more}"
    )
}

fn document(number: u64, configs: &[(&str, String)]) -> Document {
    let process = |(name, config): &(&str, String)| Process {
        name: (*name).to_owned(),
        kind: Kind::Relay,
        config: config.clone(),
        files: BTreeMap::new(),
    };
    Document {
        schema_version: SCHEMA_VERSION,
        version: version(number),
        host: "lab:here-1".parse().unwrap(),
        issued_unix_ms: 0,
        processes: configs.iter().map(process).collect(),
        responder_port: 0,
        report_every_ms: 200,
        watched: Vec::new(),
    }
}

fn signed(document: &Document) -> SignedDocument {
    SignedDocument::sign(document, &key().signer()).unwrap()
}

/// A host with an agent. All its processes end when it is dropped.
struct Host {
    dir: PathBuf,
    agent: Option<Child>,
}

impl Host {
    fn new(name: &str) -> Self {
        let name = format!("tradewind-agent-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Self { dir, agent: None }
    }

    fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("agent").args(words).arg("--dir").arg(self.home()).stdin(Stdio::null());
        command
    }

    fn join(&self, controller: SocketAddr) -> std::process::Output {
        let secret = InviteSecret::from_entropy([5; 16]);
        let invite = Invite { controller, identity: key().public(), role: role(), secret };
        let ceiling = self.dir.join("ceiling");
        let rules = "roles = ['relay', 'gateway']\nnext_hops = []\n\
                     destinations = ['127.0.0.1/32:*', '192.0.2.0/24:*']\n";
        fs::write(&ceiling, rules).unwrap();
        let ceiling = ceiling.display().to_string();
        let mut join = self.command(&["join", "-", "--enrol-only", "--ceiling", &ceiling]);
        let join = join.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut join = join.spawn().unwrap();
        let line = format!("{invite}\n");
        join.stdin.take().unwrap().write_all(line.as_bytes()).unwrap();
        join.wait_with_output().unwrap()
    }

    /// Starts the agent.
    fn run(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let out = fs::File::create(self.dir.join("out")).unwrap();
        let agent = self.command(&["run"]).stdout(out).stderr(log).spawn().unwrap();
        self.agent = Some(agent);
    }

    /// Kills the agent, which has no time to do anything.
    fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    fn out(&self) -> String {
        fs::read_to_string(self.dir.join("out")).unwrap_or_default()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Returns the processes that run with this configuration.
    fn processes(&self, name: &str) -> Vec<u32> {
        let config = self.home().join("data").join(format!("{name}.toml"));
        let command = if name.starts_with("gateway") { "gateway" } else { "relay" };
        let arguments = [command.into(), "--config".into(), config.into(), "--watch".into()];
        let found = tradewind_net::processes::with_arguments(&arguments);
        found.iter().map(|running| running.process).collect()
    }

    fn status(&self) -> Value {
        let output = self.command(&["status", "-o", "json"]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            let _gone = agent.kill();
            let _reaped = agent.wait();
        }
        let names = ["relay", "other", "gateway", "gateway-2", "gateway-3"];
        for process in names.iter().flat_map(|name| self.processes(name)) {
            let _gone = Command::new("kill").args(["-KILL", &process.to_string()]).status();
        }
        if thread::panicking() {
            eprintln!("{}", self.log());
        }
        let _gone = fs::remove_dir_all(&self.dir);
    }
}

fn is_ready(report: &Report, number: u64) -> bool {
    report.applied == Some(version(number))
        && report.processes.iter().all(|process| process.state == ProcessState::Ready)
}

/// Waits until the relay listens, as a connection shows.
fn is_reached(report: &Report) {
    let address = report.processes[0].listen[0];
    std::net::TcpStream::connect(address).unwrap();
}

#[test]
fn agent_runs_what_its_controller_says_and_its_ceiling_allows() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let mut host = Host::new("documents");
    let joined = host.join(controller.address);
    assert!(joined.status.success(), "{}", String::from_utf8_lossy(&joined.stderr));
    let again = host.join(controller.address);
    assert_eq!(String::from_utf8_lossy(&again.stdout), "joined as lab:here-1\n");
    let joins = said.lock().unwrap().joins.clone();
    assert_eq!(joins[0], joins[1], "the same identity both times");

    host.run();
    until("a ready line", || host.out().contains("\"ready\":\"agent\"").then_some(()));
    controller.says(signed(&document(1, &[("relay", relay(""))])));
    let report = controller.report("a relay", |r| is_ready(r, 1));
    is_reached(&report);
    let first = host.processes("relay");

    // A changed policy is applied by the running process.
    let policy = "[policy]\ndestinations = ['192.0.2.7:443']\n";
    controller.says(signed(&document(2, &[("relay", relay(policy))])));
    controller.report("a policy", |r| is_ready(r, 2));
    until("the reload", || host.log().contains("relay.toml: taken over").then_some(()));
    assert_eq!(host.processes("relay"), first);

    // Another key takes a new process.
    let more = format!("metrics = '127.0.0.1:0'\n{policy}");
    controller.says(signed(&document(3, &[("relay", relay(&more))])));
    until("a successor", || {
        let now = host.processes("relay");
        (now.len() == 1 && now != first).then_some(())
    });
    is_reached(&controller.report("it again", |r| is_ready(r, 3)));

    // Beyond the ceiling, by another's signature, for another host: nothing changes.
    let second = host.processes("relay");
    let open = relay("[policy]\ndestinations = ['0.0.0.0/0:*']\n");
    controller.says(signed(&document(4, &[("relay", open)])));
    let refused = controller.report("a refusal", |r| r.refused.is_some());
    assert_eq!(refused.applied, Some(version(3)));
    let reason = refused.refused.unwrap().reason;
    assert!(reason.contains("0.0.0.0/0:* is beyond the ceiling"), "{reason}");
    let stranger = IdentityKey::from_entropy([43; 32]).signer();
    let nothing = document(5, &[]);
    controller.says(SignedDocument::sign(&nothing, &stranger).unwrap());
    until("no trust", || host.log().contains("not signed by this controller").then_some(()));
    let of_another = Document { host: "lab:here-2".parse().unwrap(), ..nothing };
    controller.says(signed(&of_another));
    until("no match", || host.log().contains("it is for host `lab:here-2`").then_some(()));
    assert_eq!(host.processes("relay"), second);
    assert_eq!(host.status()["applied"], "1.3");

    // A process that is no longer named ends, another one begins.
    controller.says(signed(&document(6, &[("other", relay(""))])));
    controller.report("another", |r| is_ready(r, 6) && r.processes[0].name == "other");
    until("the end", || host.processes("relay").is_empty().then_some(()));
    until("no leftovers", || (!host.home().join("data/relay.toml").exists()).then_some(()));
}

#[test]
fn relay_outlives_controller_and_agent() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let address = controller.address;
    let mut host = Host::new("outlives");
    assert!(host.join(address).status.success());
    host.run();
    controller.says(signed(&document(1, &[("relay", relay(""))])));
    let before = controller.report("a relay", |r| is_ready(r, 1));
    let process = host.processes("relay");

    drop(controller);
    until("an unreached controller", || (host.status()["is_linked"] == false).then_some(()));
    host.kill();
    is_reached(&before);
    // Without the controller, the agent finds the relay by what it kept.
    host.run();
    until("the relay", || (host.status()["processes"][0]["state"] == "ready").then_some(()));
    assert_eq!(host.processes("relay"), process);
    let second = host.command(&["run"]).output().unwrap();
    let line = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(line.contains("another agent runs here"), "{line}");

    said.lock().unwrap().had.clear();
    let controller = Controller::start(address, said);
    let after = controller.report("it again", |r| is_ready(r, 1));
    assert_eq!(after.processes, before.processes);
    let had = until("a poll", || controller.said.lock().unwrap().had.first().cloned());
    assert_eq!(had, "1.1");

    // A relay that is killed is started again.
    assert!(
        Command::new("kill").args(["-KILL", &process[0].to_string()]).status().unwrap().success()
    );
    let report = controller.report("another", |r| {
        is_ready(r, 1) && r.processes[0].listen != before.processes[0].listen
    });
    assert_ne!(host.processes("relay"), process);
    is_reached(&report);

    // Leaving ends it, once no agent would start it again, and leaves nothing.
    let early = host.command(&["leave"]).output().unwrap();
    let line = String::from_utf8_lossy(&early.stderr).into_owned();
    assert!(line.contains("another agent runs here"), "{line}");
    host.kill();
    for _ in 0..2 {
        assert!(host.command(&["leave"]).status().unwrap().success());
        assert!(host.processes("relay").is_empty() && !host.home().exists());
    }
}

#[test]
fn death_of_a_process_is_reported_at_once() {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::default());
    let mut host = Host::new("death");
    assert!(host.join(controller.address).status.success());
    host.run();
    // By the clock, the next report would come much later.
    let document = Document { report_every_ms: 60_000, ..document(1, &[("relay", relay(""))]) };
    controller.says(signed(&document));
    controller.report("ready", |report| is_ready(report, 1));
    let process = host.processes("relay")[0];
    let killed = Instant::now();
    Command::new("kill").args(["-KILL", &process.to_string()]).status().unwrap();
    let has_failed = |report: &Report| report.processes[0].state == ProcessState::Failed;
    let report = controller.report("its death", has_failed);
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    let failure = report.processes[0].failure.clone().unwrap();
    assert!(failure.starts_with("ended with signal: 9"), "{failure}");
    controller.report("another one", |report| is_ready(report, 1));
}

#[test]
fn probes_are_run_and_reported_until_acknowledged() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let mut host = Host::new("probes");
    assert!(host.join(controller.address).status.success());
    host.run();
    // The agent's own responder, on a port that was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let document = Document { responder_port: free.port(), ..document(1, &[]) };
    controller.says(signed(&document));
    controller.report("the document", |r| r.applied == Some(version(1)));
    let probe = |id, target, kind| Probe { id, to: "there".parse().unwrap(), target, kind };
    let rate = ProbeKind::Rate { connections: 2, duration_ms: 500, max_rate_mbps: Some(50.0) };
    let silent = "127.0.0.1:1".parse().unwrap();
    said.lock().unwrap().probes = vec![
        probe(1, free, ProbeKind::Rtt { samples: 3, interval_ms: 10 }),
        probe(2, free, rate),
        probe(3, silent, ProbeKind::Rtt { samples: 1, interval_ms: 10 }),
        probe(4, free, ProbeKind::Transfers { sizes: [1000, 50_000, 100_000] }),
    ];
    let mut results = BTreeMap::new();
    until("four results", || {
        for report in said.lock().unwrap().reports.drain(..) {
            results.extend(report.results.into_iter().map(|result| (result.id, result.outcome)));
        }
        (results.len() == 4).then_some(())
    });
    assert!(
        matches!(results[&1], ProbeOutcome::Rtt { samples: 1..=3, min_ms, .. } if min_ms < 1000.0)
    );
    let ProbeOutcome::Rate { rate_mbps, connections: 2, bytes, .. } = results[&2] else {
        panic!("{results:?}")
    };
    assert!(rate_mbps > 0.0 && bytes > 0, "{results:?}");
    assert!(matches!(&results[&3], ProbeOutcome::Failed { reason } if reason.contains("refused")));
    let ProbeOutcome::Transfers { times } = &results[&4] else { panic!("{results:?}") };
    let sizes: Vec<_> = times.iter().map(|time| (time.arm, time.size_bytes)).collect();
    // Nothing was learned, and so nothing jumps.
    let control = [1000, 50_000, 100_000].map(|size| (JumpArm::Control, size));
    assert_eq!(sizes, control);
    controller.report("nothing left", |r| r.results.is_empty());
}

/// Returns a document of a gateway that goes direct to `to` and tells the agent its sessions.
fn document_of_gateway(to: SocketAddr) -> Document {
    // The socket is root's then, and the process is not.
    let nobody = Account::find("nobody").ok().flatten();
    let run_as = nobody.filter(|nobody| is_root() && nobody.out_of_reach().is_none());
    let run_as = run_as.map_or("", |_| "run_as = 'nobody'\n");
    let config = format!(
        "direct = true\nallow_loopback = true\nworkers = 1\n{run_as}[[forward]]\n\
         listen = '127.0.0.1:0'\nto = '{to}'\nflow = 'orders'\n[routes]\ndefault = 'direct'\n\
         [access_log]\nto = 'unix:{SESSIONS_SOCKET}'\n"
    );
    let gateway =
        Process { name: "gateway".to_owned(), kind: Kind::Gateway, config, files: BTreeMap::new() };
    Document { processes: vec![gateway], ..document(1, &[]) }
}

/// Starts a destination that sends everything back.
fn echo() -> SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let _ended = std::io::copy(&mut stream.try_clone().unwrap(), &mut stream);
        }
    });
    address
}

/// Carries a session of a hundred bytes each way.
fn carry(gateway: SocketAddr) {
    let mut stream = std::net::TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(&[7; 100]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 100);
}

/// The batches of sessions in the reports of an agent.
type Batches = BTreeMap<(u64, u64), SessionBatch>;

/// Adds the batches that were reported since, and returns all sessions; a batch never changes.
fn sessions_in(batches: &mut Batches, controller: &Controller) -> u64 {
    for report in controller.said.lock().unwrap().reports.drain(..) {
        let Some(batch) = report.sessions else { continue };
        let known = batches.entry((batch.run, batch.number)).or_insert_with(|| batch.clone());
        assert_eq!(*known, batch);
    }
    batches.values().flat_map(|batch| &batch.tallies).map(|tally| tally.sessions).sum()
}

#[test]
fn sessions_are_tallied_and_each_counts_once() {
    let said = Arc::default();
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::clone(&said));
    let mut host = Host::new("sessions");
    assert!(host.join(controller.address).status.success());
    host.run();
    controller.says(signed(&document_of_gateway(echo())));
    let gateway = controller.report("a gateway", |r| is_ready(r, 1)).processes[0].listen[0];
    let process = host.processes("gateway");

    said.lock().unwrap().loses_answers = true;
    carry(gateway);
    let mut repeats = Vec::new();
    until("the same batch twice", || {
        repeats.extend(said.lock().unwrap().reports.drain(..).filter_map(|r| r.sessions));
        (repeats.len() > 1).then_some(())
    });
    assert_eq!(repeats[0], repeats[1]);
    let first = repeats.remove(0);
    let [tally] = &first.tallies[..] else { panic!("{first:?}") };
    assert_eq!((tally.flow.as_str(), tally.path.len(), tally.arm), ("orders", 0, Arm::Other));
    assert_eq!((tally.sessions, tally.failed, tally.size_class), (1, 0, 7));
    assert_eq!((tally.bytes_up, tally.bytes_down), (100, 100));
    assert!(tally.seconds > 0.0 && tally.log_seconds.is_finite(), "{tally:?}");

    // Those that end meanwhile are of the next batch.
    carry(gateway);
    carry(gateway);
    said.lock().unwrap().loses_answers = false;
    let mut batches = Batches::from([((first.run, first.number), first.clone())]);
    until("all three", || (sessions_in(&mut batches, &controller) == 3).then_some(()));
    controller.report("nothing left", |r| r.sessions.is_none());
    assert_eq!(sessions_in(&mut batches, &controller), 3);

    // A gateway that outlives its agent finds the next one's socket; sessions meanwhile are lost.
    host.kill();
    carry(gateway);
    host.run();
    until("the gateway", || (host.status()["processes"][0]["state"] == "ready").then_some(()));
    assert_eq!(host.processes("gateway"), process);
    let mut again = Batches::new();
    until("a session that is told", || {
        carry(gateway);
        (sessions_in(&mut again, &controller) > 0).then_some(())
    });
    assert!(again.values().all(|batch| batch.run != first.run), "{again:?}");
}

/// Returns an address that nobody listens on.
fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Returns a configuration with metrics.
fn with_metrics(config: &str) -> String {
    format!("metrics = '{}'\n{config}", free_address())
}

#[test]
fn spend_of_the_owner_closes_the_relay_whatever_the_controller_says_and_outlives_the_agent() {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::default());
    let mut host = Host::new("spend");
    assert!(host.join(controller.address).status.success());
    let file = host.home().join("ceiling.toml");
    let ceiling = fs::read_to_string(&file).unwrap();
    // A thousand bytes.
    let spend = "rate = '50 Mbit/s'\nspend = '0.0000001 usd/day'\negress_usd_per_gb = 0.1\n";
    fs::write(&file, format!("{spend}{ceiling}")).unwrap();
    host.run();

    let log = format!("access_log = {{ to = 'unix:{SESSIONS_SOCKET}' }}\n");
    let mut wanted = document_of_gateway(echo());
    wanted.processes[0].config = with_metrics(&wanted.processes[0].config);
    wanted.processes.extend(document(1, &[("relay", with_metrics(&relay(&log)))]).processes);
    controller.says(signed(&wanted));
    let report = controller.report("both", |r| is_ready(r, 1) && r.processes.len() == 2);
    assert_eq!(report.bounds.unwrap().rate, Some("50 Mbit/s".parse().unwrap()));
    assert!(!is_used_up(&report));
    let config = fs::read_to_string(host.home().join("data/relay.toml")).unwrap();
    assert!(config.contains("25 Mbit/s"), "half of it: {config}");

    let gateway = report.processes.iter().find(|it| it.name == "gateway").unwrap().listen[0];
    for _ in 0..12 {
        carry(gateway);
    }
    controller.report("the end of the spend", is_used_up);
    until("no relay", || host.processes("relay").is_empty().then_some(()));
    carry(gateway);

    // Neither a newer document nor a new agent opens it again.
    controller.says(signed(&Document { version: version(2), ..wanted.clone() }));
    controller.report("the next document", |r| is_ready(r, 2) && is_used_up(r));
    host.kill();
    // The killed one has not seen this.
    controller.says(signed(&Document { version: version(3), ..wanted }));
    host.run();
    controller.report("another agent", |r| is_ready(r, 3) && is_used_up(r));
    assert!(host.processes("relay").is_empty());
}

/// Returns a host whose owner bounds its spend to so many bytes, and its controller.
fn host_with_spend(name: &str, bytes: u64) -> (Controller, Host) {
    let controller = Controller::start("127.0.0.1:0".parse().unwrap(), Arc::default());
    let mut host = Host::new(name);
    assert!(host.join(controller.address).status.success());
    let file = host.home().join("ceiling.toml");
    let ceiling = fs::read_to_string(&file).unwrap();
    let usd = bytes as f64 / 1e9;
    let spend = format!("spend = '{usd:.9} usd/day'\negress_usd_per_gb = 1.0\n");
    fs::write(&file, format!("{spend}{ceiling}")).unwrap();
    host.run();
    (controller, host)
}

/// Returns whether the spend of a report's host is used up.
fn is_used_up(report: &Report) -> bool {
    report.bounds.unwrap().spend.unwrap().is_used_up
}

/// Sends so many bytes over an open session, and waits until they come back.
fn send(stream: &mut std::net::TcpStream, bytes: usize) {
    stream.write_all(&vec![7; bytes]).unwrap();
    stream.read_exact(&mut vec![0; bytes]).unwrap();
}

#[test]
fn all_processes_end_where_a_used_up_spend_cannot_be_put_into_effect() {
    let (controller, host) = host_with_spend("unable", 1000);
    let mut wanted = document_of_gateway(echo());
    wanted.processes[0].config = with_metrics(&wanted.processes[0].config);
    controller.says(signed(&wanted));
    let gateway = controller.report("a gateway", |r| is_ready(r, 1)).processes[0].listen[0];
    // What runs is beyond it from now on, in whatever form.
    let file = host.home().join("ceiling.toml");
    let ceiling = fs::read_to_string(&file).unwrap();
    fs::write(&file, ceiling.replace("127.0.0.1/32", "192.0.2.1/32")).unwrap();
    for _ in 0..12 {
        carry(gateway);
    }
    controller.report("the end of the spend", is_used_up);
    until("no gateway", || host.processes("gateway").is_empty().then_some(()));
}

#[test]
fn process_that_drains_counts_beside_the_next_one_and_has_further_documents_wait() {
    let (controller, _host) = host_with_spend("drains", 1000);
    // Each destination serves one session at a time.
    let says = |number: u64, name: &str| {
        let mut wanted = Document { version: version(number), ..document_of_gateway(echo()) };
        wanted.processes[0].name = name.to_owned();
        wanted.processes[0].config = with_metrics(&wanted.processes[0].config);
        controller.says(signed(&wanted));
    };
    let open = |name: &str| {
        let is_ready = |it: &&ProcessStatus| it.name == name && it.state == ProcessState::Ready;
        let report = controller.report(name, |r| r.processes.iter().any(|it| is_ready(&it)));
        let process = report.processes.iter().find(is_ready).unwrap();
        std::net::TcpStream::connect(process.listen[0]).unwrap()
    };
    says(1, "gateway");
    let mut old = open("gateway");
    send(&mut old, 100);
    says(2, "gateway-2");
    let mut new = open("gateway-2");
    says(3, "gateway-3");
    thread::sleep(Duration::from_secs(2));
    let waits = controller.report("no news", |_| true);
    assert_eq!((waits.applied, waits.refused), (Some(version(2)), None));

    // So much over the second one hides what the first one sends, if the larger sum counts.
    send(&mut new, 600);
    send(&mut old, 500);
    drop(old);
    controller.report("both", is_used_up);
    controller.report("the third document", |r| r.applied == Some(version(3)));
}

#[test]
fn rate_tests_run_one_at_a_time_and_count_even_if_they_fail() {
    // It takes connections, and is no responder.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (controller, host) = host_with_spend("rate-tests", 20_000_000);
    let probe = |id, max_rate_mbps| Probe {
        id,
        to: "there".parse().unwrap(),
        target: silent.local_addr().unwrap(),
        kind: ProbeKind::Rate { connections: 1, duration_ms: 8000, max_rate_mbps },
    };
    controller.said.lock().unwrap().probes =
        vec![probe(1, None), probe(2, Some(8.0)), probe(3, Some(8.0)), probe(4, Some(1.0))];
    let failure = |id: u64| {
        until("a failure", || {
            let said = controller.said.lock().unwrap();
            let result = said.reports.iter().flat_map(|r| &r.results).find(|it| it.id == id)?;
            let ProbeOutcome::Failed { reason } = &result.outcome else { panic!("{result:?}") };
            Some(reason.clone())
        })
    };
    for (id, expected) in [(1, "greatest rate"), (3, "one rate test"), (4, "one rate test")] {
        let reason = failure(id);
        assert!(reason.contains(expected), "{id}: {reason}");
    }
    let reason = failure(2);
    assert!(!reason.contains("ceiling"), "{reason}");
    let spent: Value =
        serde_json::from_str(&fs::read_to_string(host.home().join("spent.json")).unwrap()).unwrap();
    assert_eq!(spent["tests"], 8_000_000 + (4 << 20), "the second alone, in full");

    // Another one would go beyond the spend.
    controller.said.lock().unwrap().probes = vec![probe(5, Some(8.0))];
    assert!(failure(5).contains("`spend`"));
}

#[test]
fn bad_invites_and_folders_are_refused_in_one_line() {
    let host = Host::new("bad");
    let refuses = |words: &[&str], code: i32, expected: &str| {
        let output = host.command(words).output().unwrap();
        let line = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line}");
        assert!(line.contains(expected) && line.lines().count() == 1, "{line}");
    };
    refuses(&["join", "twinvite1_nonsense"], 2, "not an invite");
    refuses(&["run"], 2, "has joined no controller yet");
    refuses(&["status"], 2, "has joined no controller yet");
    let secret = InviteSecret::from_entropy([5; 16]);
    let closed = "127.0.0.1:1".parse().unwrap();
    let invite = Invite { controller: closed, identity: key().public(), role: role(), secret };
    refuses(&["join", &invite.to_string()], 1, "controller 127.0.0.1:1: cannot be reached");
}
