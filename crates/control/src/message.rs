//! The messages between controller and agents: JSON over HTTP/1.1, over TLS 1.3 by identities.
//!
//! An agent dials out. The identity that it proves in the TLS handshake is its name; no message
//! repeats it.
//!
//! | request | body | answer |
//! |---|---|---|
//! | `POST /v1/join` | [`JoinRequest`] | 200 [`JoinAnswer`] |
//! | `GET /v1/desired?have=EPOCH.VERSION` | | 200 [`SignedDocument`]; 204 after [`LONG_POLL`] |
//! | `POST /v1/report` | [`Report`] | 200 [`ReportAnswer`] |
//!
//! Errors have a 4xx or 5xx status and an [`ErrorAnswer`]. Readers ignore unknown fields, so that
//! agents of the release before work with the controller of this one, and the reverse.

mod sessions;

use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use base64ct::{Base64UrlUnpadded, Encoding as _};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_config::Kind;
use tradewind_grant::signing::SIGNATURE_BYTES;
use tradewind_grant::{IdentitySigner, PublicIdentity};
use tradewind_units::{Duration, FlowId, HostId, SiteId};

pub use self::sessions::{Arm, FlowHour, LearnedHour, RelayTally, SessionBatch, SessionTally};
use crate::bounds::Bounds;
use crate::invite::InviteSecret;
use crate::learner::{LearnerReport, SharedWindow};
use crate::record::Role;
use crate::transfer_times::TransferTime;

/// The version of all messages: raised when a field changes its meaning or is removed.
pub const SCHEMA_VERSION: u32 = 1;
/// The version of the configurations that agents of this program read, which refuse keys that they
/// do not know: raised when documents begin to have another key. Agents state theirs, and documents
/// for older ones are without it.
pub const CONFIG_VERSION: u32 = 2;
/// The first [`CONFIG_VERSION`] of agents that take a gateway's `access_log`, which tells them its
/// sessions, and its `control_share`.
pub const TELLS_SESSIONS: u32 = 1;
/// The first of agents that tell the sessions of a gateway's proxies.
pub const OFFERS_PROXIES: u32 = 2;
/// The first of agents that run packet planes.
pub const CARRIES_PACKETS: u32 = 2;
/// The first of agents that report what processes with a `[jumpstart]` learn, and that take its
/// `socket`.
pub const LEARNS: u32 = 2;
/// The first of agents that time transfers, and whose responders take them.
pub const TIMES_TRANSFERS: u32 = 2;
/// The time after which a long poll without news is answered. Chosen: below the idle timeout of
/// common firewalls and proxies (60 s).
pub const LONG_POLL: Duration = Duration::from_secs(25);
/// Most bytes of a message. Chosen: a gateway of 10,000 flows takes about a quarter.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;

/// The version of a document. A restored store begins a new epoch, and agents take its documents
/// whatever version they have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentVersion {
    /// The epoch of the controller's store.
    pub epoch: u64,
    /// The version within it, from 1.
    pub version: u64,
}

impl fmt::Display for DocumentVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.epoch, self.version)
    }
}

impl FromStr for DocumentVersion {
    type Err = MessageError;

    fn from_str(text: &str) -> Result<Self, MessageError> {
        let parts = text.split_once('.').and_then(|(epoch, version)| {
            Some(Self { epoch: epoch.parse().ok()?, version: version.parse().ok()? })
        });
        parts.ok_or(MessageError::Version)
    }
}

tradewind_units::text_schema!(DocumentVersion, "EPOCH.VERSION", "^[0-9]+\\.[0-9]+$", "1.12");

impl Serialize for DocumentVersion {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DocumentVersion {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// The request of a host to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The invite's secret.
    pub secret: InviteSecret,
    /// The identity of the host's data plane: relay and gateway. The agent's own is proved by TLS.
    pub data_identity: PublicIdentity,
    /// The address at which neighbours reach the host; when absent the one that the request came
    /// from.
    pub address: Option<IpAddr>,
    /// The version of the agent's program.
    pub agent_version: String,
    /// Its [`CONFIG_VERSION`]; 0 of agents before there was one.
    #[serde(default)]
    pub config_version: u32,
}

/// The answer to a host that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinAnswer {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The host's name.
    pub host: HostId,
    /// The host's role.
    pub role: Role,
}

/// The desired state of one host: all of it, each time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Its version.
    pub version: DocumentVersion,
    /// The host that it is for; agents refuse another's.
    pub host: HostId,
    /// Time when it was made, in milliseconds since the Unix epoch.
    pub issued_unix_ms: u64,
    /// The processes to run; all others of this agent end gracefully.
    pub processes: Vec<Process>,
    /// The port of the responder of rate tests.
    pub responder_port: u16,
    /// Time between two reports, in milliseconds.
    pub report_every_ms: u64,
    /// The neighbours whose connections the agent watches.
    #[serde(default)]
    pub watched: Vec<Watched>,
}

/// The socket, in the working directory of a process, to which it sends its access log, and on
/// which the agent listens.
pub const SESSIONS_SOCKET: &str = "sessions.sock";

/// The socket, in the working directory of processes, at which they ask for their successors.
pub const STARTER_SOCKET: &str = "starter.sock";

/// The folder, in the working directory of processes, of their learners' control sockets.
pub const LEARNERS_FOLDER: &str = "learners";

/// Returns the control socket of the learner inside a process, in its working directory.
#[must_use]
pub fn learner_socket(process: &str) -> String {
    format!("{LEARNERS_FOLDER}/{process}.sock")
}

/// A neighbour whose connections an agent watches.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Watched {
    /// Its place.
    pub site: SiteId,
    /// Its address; connections to and from any of its ports count.
    pub address: IpAddr,
}

/// A process of the data plane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its name, unique on the host: `relay` or `gateway`.
    pub name: String,
    /// The kind of its configuration.
    pub kind: Kind,
    /// Its configuration (TOML, `tradewind_config`). Its files are in the working directory:
    /// `data.key` is the host's own identity, made there; others are in `files`.
    pub config: String,
    /// Texts of further files, by their names without folders.
    pub files: BTreeMap<String, String>,
}

/// A document and its signature by the controller's identity.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignedDocument {
    /// The JSON of the [`Document`], exactly as it was signed.
    document: String,
    /// The signature, in base64url.
    signature: String,
}

/// Put before the signed bytes, so that no signature for another purpose passes for one of a
/// document.
const SIGNED_AS: &[u8] = b"tradewind document 1\n";

impl SignedDocument {
    /// Signs a document by the controller's identity.
    ///
    /// # Errors
    /// When it cannot be written as JSON: a bug.
    pub fn sign(document: &Document, signer: &IdentitySigner) -> Result<Self, MessageError> {
        let document = serde_json::to_string(document).map_err(|_| MessageError::Document)?;
        let signature = signer.sign(&signed_bytes(&document));
        Ok(Self { document, signature: Base64UrlUnpadded::encode_string(&signature) })
    }

    /// Returns the document, if `controller` has signed it.
    ///
    /// # Errors
    /// When the signature is not the controller's, or the document cannot be read.
    pub fn verify(&self, controller: &PublicIdentity) -> Result<Document, MessageError> {
        let mut signature = [0; SIGNATURE_BYTES];
        let decoded = Base64UrlUnpadded::decode(&self.signature, &mut signature);
        if !decoded.is_ok_and(|bytes| bytes.len() == SIGNATURE_BYTES) {
            return Err(MessageError::Signature);
        }
        if !controller.verifies(&signed_bytes(&self.document), &signature) {
            return Err(MessageError::Signature);
        }
        serde_json::from_str(&self.document).map_err(|_| MessageError::Document)
    }
}

fn signed_bytes(document: &str) -> Vec<u8> {
    [SIGNED_AS, document.as_bytes()].concat()
}

/// A report of an agent, sent periodically and after each change.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The version of the agent's program.
    pub agent_version: String,
    /// Its [`CONFIG_VERSION`]; 0 of agents before there was one.
    #[serde(default)]
    pub config_version: u32,
    /// The document that the agent has applied.
    pub applied: Option<DocumentVersion>,
    /// The document that it refused, and why, in one line: one beyond the host's ceiling, or with
    /// a configuration that it cannot read.
    pub refused: Option<RefusedDocument>,
    /// The processes that it runs.
    pub processes: Vec<ProcessStatus>,
    /// Results of probes since the last acknowledged report.
    pub results: Vec<ProbeResult>,
    /// Sessions that ended since the last acknowledged report, if any did.
    #[serde(default)]
    pub sessions: Option<SessionBatch>,
    /// The figures of connections to neighbours since the last acknowledged report.
    #[serde(default)]
    pub passive: Vec<PassiveLeg>,
    /// The learners of initial windows inside processes.
    #[serde(default)]
    pub learners: Vec<LearnerReport>,
    /// The rate and spend of its owner's ceiling, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Bounds>,
}

/// The figures of a host's connections to a neighbour, by `TCP_INFO`, at no cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassiveLeg {
    /// The place at the other end.
    pub to: SiteId,
    /// The greatest rate of all connections together over a second or more in which the network
    /// alone limited every one of them, after slow start, in Mbit/s; absent if there was no such
    /// time.
    pub rate_mbps: Option<f64>,
    /// Connections that carried that rate.
    pub connections: u32,
    /// The share of bytes that were sent again, if any were sent.
    pub retransmitted: Option<f64>,
    /// The least smoothed round-trip time of any connection that sent, in milliseconds: queueing
    /// included.
    pub rtt_ms: Option<f64>,
    /// Bytes that the neighbour has acknowledged.
    pub bytes: u64,
}

/// A document that an agent refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct RefusedDocument {
    /// Its version.
    pub version: DocumentVersion,
    /// The reason.
    pub reason: String,
}

/// The state of one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ProcessStatus {
    /// Its name in the document.
    pub name: String,
    /// Its state.
    pub state: ProcessState,
    /// The addresses that it listens on, once ready.
    pub listen: Vec<SocketAddr>,
    /// Open sessions, if it says.
    pub sessions: Option<u64>,
    /// Open sessions of each flow that has some, if a gateway says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<BTreeMap<FlowId, u64>>,
    /// The last reason why it ended, if it did; of a ready one, why it does not run by
    /// its newest configuration.
    pub failure: Option<String>,
}

impl ProcessStatus {
    /// Returns whether it does not do what it is to do: it has ended by itself, or does not run
    /// by its newest configuration.
    #[must_use]
    pub fn fails(&self) -> bool {
        match self.state {
            ProcessState::Failed => true,
            ProcessState::Ready => self.failure.is_some(),
            ProcessState::Starting | ProcessState::Draining => false,
        }
    }
}

/// The state of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProcessState {
    /// Started, and not ready yet.
    Starting,
    /// Ready.
    Ready,
    /// Ends when its sessions have ended.
    Draining,
    /// Ended by itself; it is started again after a pause that grows.
    Failed,
}

/// The answer to a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ReportAnswer {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Probes to run now, at most one rate test among them.
    pub probes: Vec<Probe>,
    /// Windows that the other hosts of its site have learned.
    #[serde(default)]
    pub shared: Vec<SharedWindow>,
}

/// A probe to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Its number, which the result repeats.
    pub id: u64,
    /// The place at the other end.
    pub to: SiteId,
    /// The address to probe.
    pub target: SocketAddr,
    /// The quantity to measure.
    pub kind: ProbeKind,
}

/// The quantity that a probe measures.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "measure")]
pub enum ProbeKind {
    /// The round-trip time, by handshakes with any listener.
    Rtt {
        /// Handshakes.
        samples: u32,
        /// Time between two, in milliseconds.
        interval_ms: u64,
    },
    /// The rate towards a responder.
    Rate {
        /// Connections.
        connections: u32,
        /// Longest time of transfer, in milliseconds.
        duration_ms: u64,
        /// Most that each connection sends, in Mbit/s; no cap when absent.
        max_rate_mbps: Option<f64>,
    },
    /// The completion times of transfers to a responder, each over a new connection: of every size
    /// one with the kernel's own first window, and one with the learned window where there is one.
    Transfers {
        /// Their sizes, in bytes.
        sizes: [u32; 3],
    },
}

/// The result of a probe.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProbeResult {
    /// The number of the probe.
    pub id: u64,
    /// The place at the other end.
    pub to: SiteId,
    /// Time of the measurement, in milliseconds since the Unix epoch.
    pub measured_unix_ms: u64,
    /// The figures.
    pub outcome: ProbeOutcome,
}

/// The figures of a probe, or why there are none.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "measured")]
pub enum ProbeOutcome {
    /// Round-trip times.
    Rtt {
        /// Least, in milliseconds.
        min_ms: f64,
        /// Median, in milliseconds.
        median_ms: f64,
        /// The 90th less the 10th percentile, in milliseconds.
        spread_ms: f64,
        /// Handshakes that count.
        samples: u32,
    },
    /// A rate.
    Rate {
        /// The steady rate, in Mbit/s.
        rate_mbps: f64,
        /// Connections.
        connections: u32,
        /// The window of one connection, in bytes, where that is what bound the rate.
        window_bytes: Option<u64>,
        /// The share of segments that were sent again, if known.
        retransmitted: Option<f64>,
        /// True if the rate still grew at the end: then it is only a lower bound.
        still_grew: bool,
        /// Bytes that the test carried.
        bytes: u64,
    },
    /// Completion times.
    Transfers {
        /// Each transfer.
        times: Vec<TransferTime>,
    },
    /// The probe failed.
    Failed {
        /// The reason, in one line.
        reason: String,
    },
}

/// The body of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ErrorAnswer {
    /// The problem, its place, and what would be right, in one line.
    pub error: String,
}

/// A message that cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The text is no version of a document.
    #[error("not a document's version: expected EPOCH.VERSION, such as 1.4")]
    Version,
    /// The signature is missing or wrong.
    #[error("the document is not signed by this controller")]
    Signature,
    /// The document is malformed.
    #[error("the document cannot be read")]
    Document,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{host, keys};

    #[test]
    fn only_the_controllers_documents_pass() {
        let document = Document {
            schema_version: SCHEMA_VERSION,
            version: "3.14".parse().unwrap(),
            host: host("office-1"),
            issued_unix_ms: 1,
            processes: Vec::new(),
            responder_port: 7001,
            report_every_ms: 5000,
            watched: Vec::new(),
        };
        let controller = keys().identity;
        let signed = SignedDocument::sign(&document, &controller.signer()).unwrap();
        assert_eq!(signed.verify(&controller.public()), Ok(document.clone()));
        let other = tradewind_grant::IdentityKey::from_entropy([9; 32]).public();
        assert_eq!(signed.verify(&other), Err(MessageError::Signature));
        let changed = SignedDocument {
            document: signed.document.replace("office-1", "office-2"),
            ..signed.clone()
        };
        assert_eq!(changed.verify(&controller.public()), Err(MessageError::Signature));
        let unsigned = SignedDocument { signature: String::new(), ..signed };
        assert_eq!(unsigned.verify(&controller.public()), Err(MessageError::Signature));
    }

    #[test]
    fn versions_are_two_numbers() {
        let version = DocumentVersion { epoch: 2, version: 10 };
        assert_eq!(version.to_string().parse(), Ok(version));
        for text in ["", "1", "1.", ".1", "1.x", "1.2.3", "-1.2"] {
            assert_eq!(text.parse::<DocumentVersion>(), Err(MessageError::Version), "{text}");
        }
    }
}
