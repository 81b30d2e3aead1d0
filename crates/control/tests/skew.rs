//! Agents of the release before work with the controller of this one, and the reverse: messages of
//! both are kept in `tests/kept`, and each side reads the other's. `1` is the release before,
//! without sessions and what connections show; `2` is this one. A message that changes gets a new
//! number, and its types of before go to `frozen`. Configurations inside documents have only keys
//! that the agent they are for knows.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test reads kept messages")]

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tradewind_control::message::{
    CONFIG_VERSION, Document, JoinAnswer, JoinRequest, Report, ReportAnswer,
};
use tradewind_control::packet_flow::PacketFlowRecord;
use tradewind_control::record::{FlowRecord, Role};
use tradewind_control::{Answer, Controller, Event, JumpstartRequest, Keys, SettingsRequest};
use tradewind_desired::packets::Chooser;
use tradewind_grant::{IdentityKey, OperatorKey, PublicIdentity};
use tradewind_units::{Duration, Ratio, Timestamp};

fn kept(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kept");
    fs::read_to_string(folder.join(format!("{name}.json"))).unwrap()
}

/// Checks that both types read both messages, and that the newer message is all of the newer type.
fn check<New, Old>(name: &str)
where
    New: Serialize + DeserializeOwned,
    Old: Serialize + DeserializeOwned,
{
    let (before, now) = (kept(&format!("{name}-1")), kept(&format!("{name}-2")));
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    // Each is complete: what is read of it says the same.
    let old: Old = serde_json::from_str(&before).unwrap();
    assert_eq!(serde_json::to_value(&old).unwrap(), value(&before), "{name}");
    let new: New = serde_json::from_str(&now).unwrap();
    assert_eq!(serde_json::to_value(&new).unwrap(), value(&now), "{name}");
    // The newer side reads all that the older one said.
    let newer: New = serde_json::from_str(&before).unwrap();
    let (read, said) = (serde_json::to_value(&newer).unwrap(), value(&before));
    for (field, said) in said.as_object().unwrap() {
        assert_eq!(&read[field], said, "{name}: {field}");
    }
    // The older side reads what it knows of, as if the older one had said it.
    let older: Old = serde_json::from_str(&now).unwrap();
    assert_eq!(serde_json::to_value(&older).unwrap(), value(&before), "{name}");
}

#[test]
fn both_releases_read_each_others_messages() {
    check::<Document, frozen::Document>("document");
    check::<Report, frozen::Report>("report");
    check::<ReportAnswer, frozen::ReportAnswer>("report-answer");
    check::<JoinRequest, frozen::JoinRequest>("join-request");
    check::<JoinAnswer, frozen::JoinAnswer>("join-answer");
}

/// The keys of a gateway's configuration that agents of the release before know; they refuse a
/// configuration with another one.
const GATEWAY_KEYS_BEFORE: [&str; 28] = [
    "identity_file",
    "identity",
    "previous_identity_file",
    "previous_identity",
    "run_as",
    "grant",
    "grant_file",
    "revocations",
    "forward",
    "tproxy",
    "socks5",
    "connect",
    "expose",
    "expose_without_password",
    "user",
    "optimistic",
    "direct",
    "allow_loopback",
    "routes",
    "limits",
    "timeouts",
    "leg",
    "metrics",
    "metrics_expose",
    "metrics_hosts",
    "workers",
    "packet",
    "jumpstart",
];

/// A controller with one host.
struct Overlay {
    controller: Controller,
    now: u64,
}

fn host() -> PublicIdentity {
    IdentityKey::from_entropy([1; 32]).public()
}

impl Overlay {
    fn new() -> Self {
        let identity = IdentityKey::from_entropy([200; 32]);
        let operator = OperatorKey::from_entropy([201; 32]);
        Self { controller: Controller::new(Keys { identity, operator }, []), now: 1_795_000_000 }
    }

    fn event(&mut self, event: &Event) -> Answer {
        let now = Timestamp::from_nanos(self.now * 1_000_000_000);
        let decision = self.controller.decide(now, event, [7; 32]).unwrap();
        decision.records.into_iter().for_each(|record| self.controller.apply(record));
        decision.answer
    }

    /// Lets a gateway join by a kept request, whose secret is this controller's.
    fn join(&mut self, kept_request: &str) {
        let role = Role::Gateway { site: "office".parse().unwrap() };
        let (ttl, controller) = (Duration::from_secs(60), ([192, 0, 2, 1], 7440).into());
        let Answer::Invite(invite) = self.event(&Event::Invite { role, ttl, controller }) else {
            panic!("no invite");
        };
        let mut request: Value = serde_json::from_str(&kept(kept_request)).unwrap();
        request["secret"] = serde_json::to_value(invite.secret).unwrap();
        let request = serde_json::from_value(request).unwrap();
        let from = [192, 0, 2, 2].into();
        self.event(&Event::Join { identity: host(), from, request });
    }

    fn report(&mut self, kept_report: &str) {
        let report = serde_json::from_str(&kept(kept_report)).unwrap();
        self.event(&Event::Report { identity: host(), report });
        self.now += 60;
        self.event(&Event::Tick);
    }

    /// Returns the keys of the gateway's configuration, as its document has them.
    fn keys(&self) -> Vec<String> {
        let document = self.controller.document(&host(), None).unwrap();
        let document = document.verify(&self.controller_identity()).unwrap();
        let config: toml::Table = document.processes[0].config.parse().unwrap();
        config.into_iter().map(|(key, _)| key).collect()
    }

    fn controller_identity(&self) -> PublicIdentity {
        IdentityKey::from_entropy([200; 32]).public()
    }
}

#[test]
fn documents_have_only_keys_that_their_agents_know() {
    let mut overlay = Overlay::new();
    overlay.join("join-request-1");
    overlay.event(&Event::AddFlow(FlowRecord {
        id: "backup".parse().unwrap(),
        from: "office".parse().unwrap(),
        to: "192.0.2.7:443".parse().unwrap(),
        to_site: "far".parse().unwrap(),
        per_day: "1 GB".parse().unwrap(),
        weight: 1,
        listen: "127.0.0.1:15000".parse().unwrap(),
    }));
    let is_new = |key: &String| !GATEWAY_KEYS_BEFORE.contains(&key.as_str());
    assert!(!overlay.keys().iter().any(is_new), "{:?}", overlay.keys());
    overlay.report("report-1");
    assert!(!overlay.keys().iter().any(is_new), "{:?}", overlay.keys());
    // The host gets a newer program, and then the one of before again.
    overlay.report("report-2");
    let new: Vec<String> = overlay.keys().into_iter().filter(is_new).collect();
    assert_eq!(new, ["access_log", "control_share"]);
    overlay.report("report-1");
    assert!(!overlay.keys().iter().any(is_new), "{:?}", overlay.keys());
    // What it would not report is not asked of it, although it knows the key.
    let is_on = Some(true);
    let request = JumpstartRequest { is_on, ..JumpstartRequest::default() };
    overlay.event(&Event::ChangeSettings(SettingsRequest::jumpstart(request)));
    assert!(!overlay.keys().contains(&"jumpstart".to_owned()));
    overlay.report("report-2");
    assert!(overlay.keys().contains(&"jumpstart".to_owned()));
    // One that joins as it is now has all at once.
    let mut overlay = Overlay::new();
    overlay.join("join-request-2");
    assert_eq!(
        overlay.controller.state().hosts.values().next().unwrap().config_version,
        CONFIG_VERSION
    );
}

/// A packet flow that the host delivers.
fn packet_flow() -> PacketFlowRecord {
    PacketFlowRecord {
        id: "call".parse().unwrap(),
        from: "far".parse().unwrap(),
        to: "192.0.2.2:5004".parse().unwrap(),
        to_site: "office".parse().unwrap(),
        packets_per_second: 50.0,
        packet: "200 B".parse().unwrap(),
        budget: Duration::from_millis(150),
        max_loss: Ratio::default(),
        listen: "127.0.0.1:16000".parse().unwrap(),
        service: Chooser::Auto,
    }
}

#[test]
fn packet_planes_are_only_for_agents_that_know_them() {
    let mut overlay = Overlay::new();
    overlay.join("join-request-1");
    overlay.event(&Event::AddPacketFlow(packet_flow()));
    // It delivers the flow, which an older agent would refuse.
    let processes = |overlay: &Overlay| -> usize {
        let document = overlay.controller.document(&host(), None).unwrap();
        document.verify(&overlay.controller_identity()).unwrap().processes.len()
    };
    assert_eq!(processes(&overlay), 0);
    overlay.report("report-2");
    assert!(overlay.keys().contains(&"packet_endpoint".to_owned()), "{:?}", overlay.keys());
    overlay.report("report-1");
    assert_eq!(processes(&overlay), 0);
}

#[test]
fn sessions_without_hours_packets_and_counts_of_relays_are_read() {
    let mut report: Value = serde_json::from_str(&kept("report-2")).unwrap();
    for field in ["hours", "packets", "relayed", "learned"] {
        assert!(report["sessions"].as_object_mut().unwrap().remove(field).is_some());
    }
    let read: Report = serde_json::from_value(report).unwrap();
    let sessions = read.sessions.unwrap();
    assert_eq!((sessions.tallies.len(), sessions.hours.len()), (1, 0));
    assert_eq!((sessions.packets.len(), sessions.relayed.len()), (0, 0));
}

/// The messages of the release before; names and addresses are texts.
mod frozen {
    use std::collections::BTreeMap;

    use serde::{Deserialize, Serialize};

    #[derive(Serialize, Deserialize)]
    pub(crate) struct JoinRequest {
        schema_version: u32,
        secret: String,
        data_identity: String,
        address: Option<String>,
        agent_version: String,
    }

    #[derive(Serialize, Deserialize)]
    pub(crate) struct JoinAnswer {
        schema_version: u32,
        host: String,
        role: Role,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", tag = "role")]
    enum Role {
        Relay { region: String, relay_type: String },
        Gateway { site: String },
        Probe { site: String },
    }

    #[derive(Serialize, Deserialize)]
    pub(crate) struct Document {
        schema_version: u32,
        version: String,
        host: String,
        issued_unix_ms: u64,
        processes: Vec<Process>,
        responder_port: u16,
        report_every_ms: u64,
    }

    #[derive(Serialize, Deserialize)]
    struct Process {
        name: String,
        kind: String,
        config: String,
        files: BTreeMap<String, String>,
    }

    #[derive(Serialize, Deserialize)]
    pub(crate) struct Report {
        schema_version: u32,
        agent_version: String,
        applied: Option<String>,
        refused: Option<RefusedDocument>,
        processes: Vec<ProcessStatus>,
        results: Vec<ProbeResult>,
    }

    #[derive(Serialize, Deserialize)]
    struct RefusedDocument {
        version: String,
        reason: String,
    }

    #[derive(Serialize, Deserialize)]
    struct ProcessStatus {
        name: String,
        state: ProcessState,
        listen: Vec<String>,
        sessions: Option<u64>,
        failure: Option<String>,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case")]
    enum ProcessState {
        Starting,
        Ready,
        Draining,
        Failed,
    }

    #[derive(Serialize, Deserialize)]
    pub(crate) struct ReportAnswer {
        schema_version: u32,
        probes: Vec<Probe>,
    }

    #[derive(Serialize, Deserialize)]
    struct Probe {
        id: u64,
        to: String,
        target: String,
        kind: ProbeKind,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", tag = "measure")]
    enum ProbeKind {
        Rtt { samples: u32, interval_ms: u64 },
        Rate { connections: u32, duration_ms: u64, max_rate_mbps: Option<f64> },
    }

    #[derive(Serialize, Deserialize)]
    struct ProbeResult {
        id: u64,
        to: String,
        measured_unix_ms: u64,
        outcome: ProbeOutcome,
    }

    #[derive(Serialize, Deserialize)]
    #[serde(rename_all = "kebab-case", tag = "measured")]
    enum ProbeOutcome {
        Rtt {
            min_ms: f64,
            median_ms: f64,
            spread_ms: f64,
            samples: u32,
        },
        Rate {
            rate_mbps: f64,
            connections: u32,
            window_bytes: Option<u64>,
            retransmitted: Option<f64>,
            still_grew: bool,
            bytes: u64,
        },
        Failed {
            reason: String,
        },
    }
}
