//! A controller that a test plays, and a host with an agent.

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
use tradewind_control::message::{
    Document, DocumentVersion, JoinAnswer, JoinRequest, Probe, Process, ProcessState, Report,
    ReportAnswer, SCHEMA_VERSION, SESSIONS_SOCKET, SignedDocument,
};
use tradewind_control::record::Role;
use tradewind_control::{Invite, InviteSecret};
use tradewind_grant::first_flight::PROOF_BYTES;
use tradewind_grant::{IdentityKey, OperatorKey};
use tradewind_net::privileges::{Account, is_root};
use tradewind_stream::connection::Tls;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
/// Far beyond what anything here takes; only a failed test waits so long.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn until<T>(what: &str, mut found: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(started.elapsed() < TEST_TIMEOUT, "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub(crate) fn role() -> Role {
    Role::Relay { region: "lab:here".parse().unwrap(), relay_type: "small".parse().unwrap() }
}

/// The controller's answers, and the requests that it got.
#[derive(Default)]
pub(crate) struct Said {
    pub(crate) document: Option<SignedDocument>,
    pub(crate) probes: Vec<Probe>,
    pub(crate) joins: Vec<JoinRequest>,
    pub(crate) reports: Vec<Report>,
    /// True if answers to reports are lost from now on.
    pub(crate) loses_answers: bool,
    /// The versions that agents said they had.
    pub(crate) had: Vec<String>,
}

/// A controller on a thread. It ends, with all its connections, when it is dropped.
pub(crate) struct Controller {
    pub(crate) address: SocketAddr,
    pub(crate) said: Arc<Mutex<Said>>,
    pub(crate) end: Option<tokio::sync::oneshot::Sender<()>>,
    pub(crate) thread: Option<thread::JoinHandle<()>>,
}

pub(crate) fn key() -> IdentityKey {
    IdentityKey::from_entropy([42; 32])
}

impl Controller {
    pub(crate) fn start(address: SocketAddr, said: Arc<Mutex<Said>>) -> Self {
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

    pub(crate) fn says(&self, document: SignedDocument) {
        self.said.lock().unwrap().document = Some(document);
    }

    /// Waits for a report from now on that `fits`.
    pub(crate) fn report(&self, what: &str, fits: impl Fn(&Report) -> bool) -> Report {
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
pub(crate) async fn hello_of(stream: &TcpStream) -> Option<Vec<u8>> {
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

pub(crate) async fn serve(tls: Arc<Tls>, stream: TcpStream, said: Arc<Mutex<Said>>) {
    let Some(hello) = hello_of(&stream).await else { return };
    let Ok(sealed) = tls.seal_accepted(stream, &hello).await else { return };
    let answer = service_fn(move |request| {
        let said = Arc::clone(&said);
        async move { Ok::<_, std::convert::Infallible>(answer(request, &said).await) }
    });
    let _ended = http1::Builder::new().serve_connection(TokioIo::new(sealed), answer).await;
}

pub(crate) async fn answer(
    request: Request<Incoming>,
    said: &Mutex<Said>,
) -> Response<Full<Bytes>> {
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
            json(&ReportAnswer { schema_version: SCHEMA_VERSION, probes, shared: Vec::new() })
        }
    }
}

pub(crate) fn json(value: &impl serde::Serialize) -> Response<Full<Bytes>> {
    Response::new(Full::new(serde_json::to_vec(value).unwrap().into()))
}

pub(crate) fn version(version: u64) -> DocumentVersion {
    DocumentVersion { epoch: 1, version }
}

/// Returns a relay's configuration with these further lines.
pub(crate) fn relay(more: &str) -> String {
    let operator = OperatorKey::from_entropy([7; 32]).public();
    format!(
        "listen = ['127.0.0.1:0']\nidentity_file = 'data.key'\noperators = ['{operator}']\n\
         workers = 1\n{more}"
    )
}

pub(crate) fn document(number: u64, configs: &[(&str, String)]) -> Document {
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

pub(crate) fn signed(document: &Document) -> SignedDocument {
    SignedDocument::sign(document, &key().signer()).unwrap()
}

/// A host with an agent. All its processes end when it is dropped.
pub(crate) struct Host {
    pub(crate) dir: PathBuf,
    pub(crate) agent: Option<Child>,
}

impl Host {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("tradewind-agent-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&dir);
        fs::create_dir(&dir).unwrap();
        Self { dir, agent: None }
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.arg("agent").args(words).arg("--dir").arg(self.home()).stdin(Stdio::null());
        command
    }

    pub(crate) fn join(&self, controller: SocketAddr) -> std::process::Output {
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

    /// Returns what its owner's access log holds.
    pub(crate) fn access_log(&self) -> String {
        fs::read_to_string(self.dir.join("access.log")).unwrap_or_default()
    }

    /// Starts the agent, which also writes the access logs of its processes to a file.
    pub(crate) fn run(&mut self) {
        let log = fs::File::options().create(true).append(true).open(self.dir.join("log")).unwrap();
        let out = fs::File::create(self.dir.join("out")).unwrap();
        let mut agent = self.command(&["run"]);
        agent.env("TRADEWIND_ACCESS_LOG", self.dir.join("access.log"));
        let agent = agent.stdout(out).stderr(log).spawn().unwrap();
        self.agent = Some(agent);
    }

    /// Kills the agent, which has no time to do anything.
    pub(crate) fn kill(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub(crate) fn out(&self) -> String {
        fs::read_to_string(self.dir.join("out")).unwrap_or_default()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// Returns the processes that run with this configuration.
    pub(crate) fn processes(&self, name: &str) -> Vec<u32> {
        let config = self.home().join("data").join(format!("{name}.toml"));
        let command = if name.starts_with("gateway") { "gateway" } else { "relay" };
        let arguments = [command.into(), "--config".into(), config.into(), "--watch".into()];
        let found = tradewind_net::processes::with_arguments(&arguments);
        found.iter().map(|running| running.process).collect()
    }

    pub(crate) fn status(&self) -> Value {
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

pub(crate) fn is_ready(report: &Report, number: u64) -> bool {
    report.applied == Some(version(number))
        && report.processes.iter().all(|process| process.state == ProcessState::Ready)
}

/// Waits until the relay listens, as a connection shows.
pub(crate) fn is_reached(report: &Report) {
    let address = report.processes[0].listen[0];
    std::net::TcpStream::connect(address).unwrap();
}

/// Returns a document of a gateway that goes direct to `to` and tells the agent its sessions.
pub(crate) fn document_of_gateway(to: SocketAddr) -> Document {
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
pub(crate) fn echo() -> SocketAddr {
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
pub(crate) fn carry(gateway: SocketAddr) {
    let mut stream = std::net::TcpStream::connect(gateway).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.write_all(&[7; 100]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(stream.read_to_end(&mut Vec::new()).unwrap(), 100);
}
