//! Agents of the release before work with the controller of this one, and the reverse: messages of
//! both are kept in `tests/kept`, and each side reads the other's. `1` is the release before,
//! without sessions and what connections show; `2` is this one. A message that changes gets a new
//! number, and its types of before go to `frozen`.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::disallowed_methods, reason = "a test reads kept messages")]

use std::fs;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tradewind_control::message::{Document, JoinAnswer, JoinRequest, Report, ReportAnswer};

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
