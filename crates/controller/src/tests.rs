//! The whole controller over sockets: agents by their own small client, operators by
//! [`Client`] and by hand.

mod asking;
mod bodies;
mod jumpstart;
mod learned;
mod observing;
mod origins;
mod packets;
mod tenants;

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tradewind_control::Invite;
use tradewind_control::message::{
    CONFIG_VERSION, Document, ErrorAnswer, JoinAnswer, JoinRequest, ProbeKind, ProbeOutcome,
    ProbeResult, Process, ProcessState, ProcessStatus, Report, ReportAnswer, SCHEMA_VERSION,
    SignedDocument,
};
use tradewind_control::record::{Role, Step};
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_plan::solver::OneByOne;
use tradewind_stream::clock::unix_now;
use tradewind_stream::connection::Tls;
use tradewind_units::{Money, Ratio};

use crate::engine::millis;
use crate::folder::{Access, Folder, Settings};
use crate::server::{Server, Stopper};
use crate::store;
use crate::testing::TestFolder;
use crate::view::{
    Audit, Explained, FlowRequest, FlowView, Flows, Gain, HostState, Hosts, InviteAnswer,
    InviteRequest, InviteView, PlanView, SettingsRequest, SettingsView, Status, StatusProblem,
};
use crate::{Client, ClientError};

/// A controller that runs on a thread.
struct Running {
    folder: Folder,
    agents: SocketAddr,
    api: SocketAddr,
    metrics: Option<SocketAddr>,
    identity: PublicIdentity,
    stopper: Stopper,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// Starts a controller in a new folder at `place`.
    fn new(place: &TestFolder) -> Self {
        let folder = Folder::new(place.path().join("net"));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let advertise = SocketAddr::from((Ipv4Addr::LOCALHOST, 7440));
        folder.init(&Settings::new(any, any, advertise)).unwrap();
        Self::of(folder)
    }

    fn of(folder: Folder) -> Self {
        let server = Server::open(&folder, Arc::new(OneByOne)).unwrap();
        let (agents, api) = server.addresses().unwrap();
        let (identity, stopper) = (server.identity(), server.stopper());
        let metrics = server.metrics_address();
        let thread = Some(std::thread::spawn(move || server.run().unwrap()));
        Self { folder, agents, api, metrics, identity, stopper, thread }
    }

    /// Ends it in order, and returns its folder.
    fn end(mut self) -> Folder {
        self.stopper.stop();
        self.thread.take().unwrap().join().unwrap();
        self.folder.clone()
    }

    fn client(&self) -> Client {
        self.client_of(self.folder.admin().unwrap())
    }

    fn client_of(&self, access: Access) -> Client {
        Client::new(&Access { api: format!("http://{}", self.api), ..access }).unwrap()
    }

    fn invite(&self, role: Role) -> Invite {
        let request = InviteRequest { role, ttl_ms: 3_600_000 };
        let answer: InviteAnswer = self.client().post("/v1/invites", &request).unwrap();
        answer.invite.parse().unwrap()
    }

    /// Returns the number of entries of the audit log.
    fn audited(&self) -> usize {
        self.client().get::<Audit>("/v1/audit").unwrap().entries.len()
    }

    /// Sends an HTTP request as it stands, and returns the status line and the body.
    fn raw(&self, request: &str) -> (String, String) {
        let mut stream = std::net::TcpStream::connect(self.api).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.lines().next().unwrap().to_owned(), body.to_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            let _failed_already = thread.join();
        }
    }
}

fn gateway() -> Role {
    Role::Gateway { site: "office".parse().unwrap() }
}

fn flow() -> FlowRequest {
    FlowRequest {
        from: "office".parse().unwrap(),
        to: "192.0.2.7:443".parse().unwrap(),
        to_site: None,
        per_day: "200 GB".parse().unwrap(),
        weight: None,
        listen: None,
    }
}

/// An agent: one request a connection.
struct Agent {
    tls: Tls,
    data_identity: PublicIdentity,
    controller: (SocketAddr, PublicIdentity),
    runtime: tokio::runtime::Runtime,
}

impl Agent {
    fn new(seed: u8, running: &Running) -> Self {
        let tls = Tls::new(&IdentityKey::from_entropy([seed; 32])).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let data_identity = IdentityKey::from_entropy([100 + seed; 32]).public();
        Self { tls, data_identity, controller: (running.agents, running.identity), runtime }
    }

    fn ask(&self, method: Method, path: &str, body: Vec<u8>) -> (StatusCode, Bytes) {
        self.runtime.block_on(async {
            let (address, identity) = self.controller;
            let stream = TcpStream::connect(address).await.unwrap();
            let connection = self.tls.seal_dialled(stream, identity).await.unwrap();
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(connection)).await.unwrap();
            let driver = tokio::spawn(connection);
            let request = Request::builder().method(method).uri(path).header("host", "controller");
            let request = request.body(Full::new(Bytes::from(body))).unwrap();
            let response = sender.send_request(request).await.unwrap();
            let status = response.status();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            driver.abort();
            (status, body)
        })
    }

    fn join(&self, invite: &Invite) -> (StatusCode, Bytes) {
        let request = JoinRequest {
            schema_version: SCHEMA_VERSION,
            secret: invite.secret,
            data_identity: self.data_identity,
            address: None,
            agent_version: "0.1.0".to_owned(),
            config_version: CONFIG_VERSION,
        };
        self.ask(Method::POST, "/v1/join", serde_json::to_vec(&request).unwrap())
    }

    fn report(&self, report: &Report) -> (StatusCode, Bytes) {
        self.ask(Method::POST, "/v1/report", serde_json::to_vec(report).unwrap())
    }
}

fn error_of(body: &[u8]) -> String {
    serde_json::from_slice::<ErrorAnswer>(body).unwrap().error
}

#[test]
fn host_joins_gets_its_document_and_reports() {
    let place = TestFolder::new("join");
    let running = Running::new(&place);
    let invite = running.invite(gateway());
    assert_eq!(invite.identity, running.identity);
    assert_eq!(invite.controller.port(), 7440);
    let agent = Agent::new(1, &running);
    let (status, body) = agent.ask(Method::GET, "/v1/desired", Vec::new());
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert!(error_of(&body).contains("has not joined"));
    let (status, body) = agent.join(&invite);
    assert_eq!(status, StatusCode::OK, "{body:?}");
    let joined: JoinAnswer = serde_json::from_slice(&body).unwrap();
    // Again by the same host, as after a lost answer; never by another one.
    assert_eq!(agent.join(&invite).0, StatusCode::OK);
    assert_eq!(Agent::new(2, &running).join(&invite).0, StatusCode::FORBIDDEN);
    // The controller tells who has used it, by a name that is not its secret.
    let request = InviteRequest { role: gateway(), ttl_ms: 1000 };
    let other: InviteAnswer = running.client().post("/v1/invites", &request).unwrap();
    let used_by = |id: &str| {
        let view: InviteView = running.client().get(&format!("/v1/invites/{id}")).unwrap();
        view.host
    };
    assert_eq!(used_by(&invite.secret.hash().to_string()), Some(joined.host.clone()));
    assert_eq!(used_by(&other.id), None);
    let secret = format!("/v1/invites/{}", String::from(invite.secret));
    assert!(running.client().get::<InviteView>(&secret).is_err());

    let flow: FlowView = running.client().put("/v1/flows/backup", &flow()).unwrap();
    assert_eq!(flow.flow.listen, "127.0.0.1:15000".parse().unwrap());
    let (status, body) = agent.ask(Method::GET, "/v1/desired", Vec::new());
    assert_eq!(status, StatusCode::OK, "{body:?}");
    let signed: SignedDocument = serde_json::from_slice(&body).unwrap();
    let document = signed.verify(&running.identity).unwrap();
    assert_eq!(document.host, joined.host);
    assert!(document.processes[0].config.contains("127.0.0.1:15000"), "{document:?}");

    let report = Report {
        schema_version: SCHEMA_VERSION,
        agent_version: "0.1.0".to_owned(),
        config_version: CONFIG_VERSION,
        applied: Some(document.version),
        ..Report::default()
    };
    let (status, body) = agent.report(&report);
    assert_eq!(status, StatusCode::OK, "{body:?}");
    let _: ReportAnswer = serde_json::from_slice(&body).unwrap();
    let hosts: Hosts = running.client().get("/v1/hosts").unwrap();
    assert_eq!((&hosts.hosts[0].id, hosts.hosts[0].state), (&joined.host, HostState::Well));
    let status: Status = running.client().get("/v1/status").unwrap();
    assert_eq!((status.hosts_well, status.hosts, status.flows), (1, 1, 1));
    let is_older = |problem: &StatusProblem| problem.what.contains("does not tell its sessions");
    assert!(!status.problems.iter().any(is_older), "{:?}", status.problems);
    let of_older = Report { config_version: 0, ..report.clone() };
    assert_eq!(agent.report(&of_older).0, StatusCode::OK);
    let status: Status = running.client().get("/v1/status").unwrap();
    assert!(status.problems.iter().any(is_older), "{:?}", status.problems);

    running.client().act(&format!("/v1/hosts/{}/revoke", joined.host)).unwrap();
    let (status, body) = agent.report(&report);
    assert_eq!(
        (status, error_of(&body).as_str()),
        (StatusCode::FORBIDDEN, "this host was revoked")
    );
}

#[test]
fn long_poll_is_answered_by_a_change_and_by_the_end() {
    let place = TestFolder::new("poll");
    let running = Running::new(&place);
    let invite = running.invite(gateway());
    let agent = Agent::new(1, &running);
    assert_eq!(agent.join(&invite).0, StatusCode::OK);
    let (_, body) = agent.ask(Method::GET, "/v1/desired", Vec::new());
    let signed: SignedDocument = serde_json::from_slice(&body).unwrap();
    let version = signed.verify(&running.identity).unwrap().version;
    let path = format!("/v1/desired?have={version}");
    let begun = Instant::now();
    let changed = std::thread::scope(|scope| {
        let poll = scope.spawn(|| Agent::new(1, &running).ask(Method::GET, &path, Vec::new()));
        std::thread::sleep(Duration::from_millis(300));
        assert!(!poll.is_finished(), "nothing is newer yet");
        let _: FlowView = running.client().put("/v1/flows/backup", &flow()).unwrap();
        poll.join().unwrap()
    });
    assert_eq!(changed.0, StatusCode::OK);
    let signed: SignedDocument = serde_json::from_slice(&changed.1).unwrap();
    let newer = signed.verify(&running.identity).unwrap().version;
    assert!(newer > version);
    let path = format!("/v1/desired?have={newer}");
    let ended = std::thread::scope(|scope| {
        let poll = scope.spawn(|| agent.ask(Method::GET, &path, Vec::new()));
        std::thread::sleep(Duration::from_millis(300));
        running.stopper.stop();
        poll.join().unwrap()
    });
    assert_eq!(ended.0, StatusCode::NO_CONTENT);
    assert!(begun.elapsed() < Duration::from_secs(20), "a poll waits for 25 s without news");
    let (status, body) = {
        let running = Running::of(running.end());
        Agent::new(1, &running).ask(Method::GET, "/v1/desired?have=x", Vec::new())
    };
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(error_of(&body).contains("EPOCH.VERSION"));
}

#[test]
fn stranger_gets_no_byte() {
    let place = TestFolder::new("silent");
    let running = Running::new(&place);
    let mut stream = std::net::TcpStream::connect(running.agents).unwrap();
    stream.write_all(&[22; 600]).unwrap();
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer);
    assert!(answer.is_empty());
}

#[test]
fn body_of_a_stranger_is_short() {
    let place = TestFolder::new("large");
    let running = Running::new(&place);
    let agent = Agent::new(1, &running);
    let (status, body) = agent.ask(Method::POST, "/v1/join", vec![b' '; 20_000]);
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{body:?}");
    let (status, body) = agent.ask(Method::POST, "/v1/report", vec![b' '; 20_000]);
    assert_eq!(status, StatusCode::FORBIDDEN, "{body:?}");
    let (status, body) = agent.ask(Method::POST, "/v1/join", b"{}".to_vec());
    assert_eq!(status, StatusCode::BAD_REQUEST, "{body:?}");
    assert_eq!(agent.ask(Method::GET, "/v1/secrets", Vec::new()).0, StatusCode::NOT_FOUND);
    assert_eq!(agent.ask(Method::GET, "/v1/join", Vec::new()).0, StatusCode::METHOD_NOT_ALLOWED);
}

#[test]
fn only_operators_change_things() {
    let place = TestFolder::new("roles");
    let running = Running::new(&place);
    let reader = running.client_of(running.folder.reader().unwrap());
    let settings: SettingsView = reader.get("/v1/settings").unwrap();
    assert_eq!(settings.budget_usd_per_day, Money::ZERO);
    let request = SettingsRequest {
        budget_usd_per_day: Some(Money::from_usd(6.0).unwrap()),
        alarm_share: Some(0.8),
        ..SettingsRequest::default()
    };
    let refused = reader.put::<SettingsView>("/v1/settings", &request).unwrap_err();
    assert!(matches!(refused, ClientError::Refused { status: 403, .. }), "{refused}");
    assert!(matches!(
        reader.delete("/v1/flows/backup"),
        Err(ClientError::Refused { status: 403, .. })
    ));
    let changed: SettingsView = running.client().put("/v1/settings", &request).unwrap();
    assert_eq!(changed.budget_usd_per_day.as_usd(), 6.0);
    let mode = SettingsRequest {
        mode: Some(tradewind_control::record::Mode::Auto),
        control_share: Some(Ratio::new(0.05).unwrap()),
        ..SettingsRequest::default()
    };
    let changed: SettingsView = running.client().put("/v1/settings", &mode).unwrap();
    assert_eq!(changed.control_share.as_f64(), 0.05);
    assert_eq!((changed.budget_usd_per_day.as_usd(), changed.alarm_share), (6.0, Some(0.8)));
    let gain: Gain = reader.get("/v1/gain?days=7").unwrap();
    assert_eq!((gain.days, gain.control_share.as_f64()), (7, 0.05));
    assert_eq!(gain.spending.budget.as_usd(), 6.0);
    assert_eq!(reader.get::<Gain>("/v1/gain").unwrap().days, 1);
    for wrong in ["days=0", "days=32", "days=x", "day=1", "days=1&days=2"] {
        let refused = reader.get::<Gain>(&format!("/v1/gain?{wrong}")).unwrap_err();
        assert!(refused.to_string().contains("from 1 to 31"), "{wrong}: {refused}");
    }
    let audit: Audit = reader.get("/v1/audit").unwrap();
    assert!(audit.entries[1].action.contains("by the controller"), "{audit:?}");
    assert!(audit.entries[0].number > audit.entries[1].number);
}

#[test]
fn wrong_requests_get_one_line() {
    let place = TestFolder::new("wrong");
    let running = Running::new(&place);
    let client = running.client();
    let status_of = |error: ClientError| match error {
        ClientError::Refused { status, error } => {
            assert_eq!(error.lines().count(), 1, "{error}");
            status
        }
        other => panic!("{other}"),
    };
    assert_eq!(status_of(client.get::<Flows>("/v1/nothing").unwrap_err()), 404);
    assert_eq!(status_of(client.delete("/v1/flows").unwrap_err()), 405);
    assert_eq!(status_of(client.delete("/v1/flows/none").unwrap_err()), 404);
    assert_eq!(status_of(client.act("/v1/hosts/none/drain").unwrap_err()), 404);
    assert_eq!(status_of(client.act("/v1/plans/seven/apply").unwrap_err()), 400);
    assert_eq!(status_of(client.act("/v1/plans/7/apply").unwrap_err()), 404);
    assert_eq!(status_of(client.get::<FlowView>("/v1/plans/newest").unwrap_err()), 404);
    let body = serde_json::json!({ "budget": 6 });
    assert_eq!(status_of(client.put::<SettingsView>("/v1/settings", &body).unwrap_err()), 400);
    assert_eq!(status_of(client.post::<Status>("/v1/plans", &body).unwrap_err()), 409);
    let refused = client.post::<Status>("/v1/plans", &body).unwrap_err().to_string();
    assert_eq!(refused, "no flow is declared");
}

#[test]
fn each_flow_of_a_site_gets_its_port() {
    let place = TestFolder::new("ports");
    let running = Running::new(&place);
    let client = running.client();
    let port = |name: &str, request: &FlowRequest| -> u16 {
        let view: FlowView = client.put(&format!("/v1/flows/{name}"), request).unwrap();
        view.flow.listen.port()
    };
    assert_eq!((port("a", &flow()), port("b", &flow())), (15_000, 15_001));
    // Changed, it stays where applications know it; at another site ports are free.
    let larger = FlowRequest { per_day: "1 TB".parse().unwrap(), ..flow() };
    let elsewhere = FlowRequest { from: "plant".parse().unwrap(), ..flow() };
    assert_eq!((port("a", &larger), port("c", &elsewhere)), (15_000, 15_000));
    let flows: Flows = client.get("/v1/flows").unwrap();
    assert_eq!(flows.flows[0].flow.per_day, "1 TB".parse().unwrap());
    assert_eq!(flows.flows[0].flow.to_site.as_str(), "192.0.2.7");
}

#[test]
fn state_survives_a_restart_and_a_restore() {
    let place = TestFolder::new("restart");
    let running = Running::new(&place);
    let invite = running.invite(gateway());
    let agent = Agent::new(1, &running);
    assert_eq!(agent.join(&invite).0, StatusCode::OK);
    let _: FlowView = running.client().put("/v1/flows/backup", &flow()).unwrap();
    let copy = place.path().join("copy.db");
    store::backup(&running.folder.store(), &copy).unwrap();
    let second = Server::open(&running.folder, Arc::new(OneByOne)).unwrap_err().to_string();
    assert!(second.contains("another controller runs with this folder"), "{second}");
    running.client().delete("/v1/flows/backup").unwrap();
    let folder = running.end();

    let running = Running::of(folder);
    let flows: Flows = running.client().get("/v1/flows").unwrap();
    assert!(flows.flows.is_empty());
    assert_eq!(Agent::new(1, &running).join(&invite).0, StatusCode::OK);
    let folder = running.end();

    assert_eq!(store::restore(&folder.store(), &copy).unwrap(), 2);
    let running = Running::of(folder);
    let flows: Flows = running.client().get("/v1/flows").unwrap();
    assert_eq!(flows.flows.len(), 1);
}

/// A host of the overlay that does what it is told, and whose probes have made-up results.
struct Host {
    agent: Agent,
    identity: PublicIdentity,
    results: Vec<ProbeResult>,
    document: Option<Document>,
}

impl Host {
    fn join(seed: u8, running: &Running, role: Role) -> Self {
        let agent = Agent::new(seed, running);
        let (status, body) = agent.join(&running.invite(role));
        assert_eq!(status, StatusCode::OK, "{body:?}");
        Self { agent, identity: running.identity, results: Vec::new(), document: None }
    }

    /// Takes the newest document, reports that it runs, and runs the probes of the answer: the
    /// direct path takes 200 ms, every other leg 80 ms.
    fn round(&mut self) {
        let have = self.document.as_ref().map(|document| document.version);
        let path = have.map_or("/v1/desired".to_owned(), |have| format!("/v1/desired?have={have}"));
        if have.is_none() || self.is_behind(&path) {
            let (_, body) = self.agent.ask(Method::GET, "/v1/desired", Vec::new());
            let signed: SignedDocument = serde_json::from_slice(&body).unwrap();
            self.document = Some(signed.verify(&self.identity).unwrap());
        }
        let document = self.document.as_ref().unwrap();
        let status = |process: &Process| ProcessStatus {
            name: process.name.clone(),
            state: ProcessState::Ready,
            listen: Vec::new(),
            sessions: Some(0),
            flows: None,
            failure: None,
        };
        let report = Report {
            schema_version: SCHEMA_VERSION,
            agent_version: "0.1.0".to_owned(),
            config_version: CONFIG_VERSION,
            applied: Some(document.version),
            refused: None,
            processes: document.processes.iter().map(status).collect(),
            results: std::mem::take(&mut self.results),
            sessions: None,
            passive: Vec::new(),
            learners: Vec::new(),
            bounds: None,
        };
        let is_gateway = document.processes.iter().any(|process| process.name == "gateway");
        let (status, body) = self.agent.report(&report);
        assert_eq!(status, StatusCode::OK, "{body:?}");
        let answer: ReportAnswer = serde_json::from_slice(&body).unwrap();
        for probe in answer.probes {
            let is_direct = is_gateway && probe.to.as_str() == "192.0.2.7";
            let ms = if is_direct { 200.0 } else { 80.0 };
            let outcome = match probe.kind {
                ProbeKind::Rtt { samples, .. } => {
                    ProbeOutcome::Rtt { min_ms: ms, median_ms: ms, spread_ms: 0.0, samples }
                }
                _ => ProbeOutcome::Failed { reason: "no test".to_owned() },
            };
            let measured_unix_ms = millis(unix_now());
            self.results.push(ProbeResult {
                id: probe.id,
                to: probe.to,
                measured_unix_ms,
                outcome,
            });
        }
    }

    /// Returns whether there is a newer document, without the wait of a long poll.
    fn is_behind(&self, path: &str) -> bool {
        let asked = async {
            let (address, identity) = self.agent.controller;
            let stream = TcpStream::connect(address).await.unwrap();
            let mut connection = self.agent.tls.seal_dialled(stream, identity).await.unwrap();
            let request = format!("GET {path} HTTP/1.1\r\nhost: controller\r\n\r\n");
            connection.write_all(request.as_bytes()).await.unwrap();
            let mut first = [0; 12];
            let read = tokio::io::AsyncReadExt::read_exact(&mut connection, &mut first);
            let wait = Duration::from_millis(100);
            tokio::time::timeout(wait, read).await.is_ok_and(|read| read.is_ok())
        };
        self.agent.runtime.block_on(asked)
    }
}

#[test]
fn overlay_is_measured_planned_and_put_into_effect() {
    let place = TestFolder::new("loop");
    let running = Running::new(&place);
    let client = running.client();
    let _: FlowView = client.put("/v1/flows/backup", &flow()).unwrap();
    let budget = SettingsRequest::budget(Money::from_usd(100.0).unwrap());
    let _: SettingsView = client.put("/v1/settings", &budget).unwrap();
    let relay = Role::Relay {
        region: "gcp:europe-north1".parse().unwrap(),
        relay_type: "standard".parse().unwrap(),
    };
    let mut hosts = [Host::join(1, &running, gateway()), Host::join(2, &running, relay)];
    let deadline = Instant::now() + Duration::from_secs(60);
    let plan: PlanView = loop {
        assert!(Instant::now() < deadline, "no plan uses the relay");
        hosts.iter_mut().for_each(Host::round);
        match client.post::<PlanView>("/v1/plans", &serde_json::json!({})) {
            Ok(plan) if !plan.record.plan.relays.is_empty() => break plan,
            _ => std::thread::sleep(Duration::from_millis(100)),
        }
    };
    assert!(!plan.is_applied && !plan.record.rests_on.is_empty());
    let flow = &plan.record.plan.flows[0];
    assert!(flow.fct < flow.fct_direct.unwrap());
    client.act(&format!("/v1/plans/{}/apply", plan.record.number)).unwrap();
    let status = loop {
        assert!(Instant::now() < deadline, "the rollout does not end");
        hosts.iter_mut().for_each(Host::round);
        let status: Status = client.get("/v1/status").unwrap();
        if status.step == Step::Done {
            break status;
        }
    };
    assert_eq!(status.plan, Some(plan.record.number));
    assert_eq!(status.usd_per_day, plan.record.usd_per_day);
    assert_eq!((status.flows_over_relays, status.hosts_well), (1, 2), "{status:?}");
    let view: FlowView = client.get("/v1/flows/backup").unwrap();
    assert_eq!(view.path[0].as_str(), "gcp:europe-north1-1");
    observing::demand_is_declared(&client, &view);
    let number = plan.record.number;
    assert_eq!(view.why, format!("plan {number}: faster than direct"));
    assert!(view.since_unix_ms.is_some_and(|since| since <= millis(unix_now())), "{view:?}");
    assert_eq!(view.usd_per_day, Some(plan.record.plan.flows[0].egress));
    let explained: Explained = client.get("/v1/flows/backup/explain").unwrap();
    let explanation = &explained.explanation;
    assert!(explanation.is_over_relays && explanation.path.hosts == view.path, "{explanation:?}");
    assert_eq!(explanation.path.legs.len(), 2);
    assert!(client.get::<Explained>("/v1/flows/none/explain").is_err());
    observing::answers_are_as_documented(&running);
    observing::legs_are_measured(&client);
    observing::relay_is_at_its_place(&client);
    asking::plans_are_asked_about(&running, &plan);

    let nothing = SettingsRequest::budget(Money::ZERO);
    let _: SettingsView = client.put("/v1/settings", &nothing).unwrap();
    let view = loop {
        assert!(Instant::now() < deadline, "relays go on without a budget");
        hosts.iter_mut().for_each(Host::round);
        let view: FlowView = client.get("/v1/flows/backup").unwrap();
        if view.path.is_empty() {
            break view;
        }
    };
    assert!(["there is no budget", "the budget of today is spent"].contains(&view.why.as_str()));
    assert_eq!(view.usd_per_day, None);
}
