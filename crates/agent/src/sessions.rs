//! The sessions that gateways end: their access logs come as datagrams to a socket in the working
//! directory, and are tallied until the controller has them.
//!
//! Sessions that end while the agent is away are lost: nobody receives their lines.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use tokio::net::UnixDatagram;
use tokio::task::AbortHandle;
use tradewind_config::{GatewayConfig, Kind, LogTarget};
use tradewind_control::message::{Arm, Document, SESSIONS_SOCKET, SessionBatch, SessionTally};
use tradewind_net::privileges::{Account, DEFAULT_USER, is_root};
use tradewind_units::{FlowId, RelayId};

use crate::AgentError;

/// Most tallies of one batch; sessions of others are counted and left out. Chosen: hundreds of
/// flows, each in ten size classes over several paths.
const MOST_TALLIES: usize = 4096;
/// Most relays of a path. Chosen: more than any plan has.
const MOST_RELAYS: usize = 16;
/// Longest line. Chosen: several times the longest that a gateway writes.
const LONGEST_LINE: usize = 16 * 1024;
/// Least completion time, as a logarithm of zero is none.
const LEAST_SECONDS: f64 = 1e-6;

/// A line of an access log, as far as it counts here.
#[derive(Debug, Deserialize)]
struct Line {
    kind: String,
    flow: Option<FlowId>,
    path: Option<String>,
    arm: Option<Arm>,
    bytes_up: u64,
    bytes_down: u64,
    duration_ms: f64,
    outcome: String,
}

/// The line of a log that reports lines that did not fit.
#[derive(Debug, Deserialize)]
struct Gap {
    dropped_lines: u64,
}

/// The key of a tally.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    flow: FlowId,
    path: Vec<RelayId>,
    arm: Arm,
    size_class: u8,
}

/// Lines that became part of no tally.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Missing {
    /// Lines that are none of an access log.
    pub foreign: u64,
    /// Lines that the gateway dropped.
    pub dropped: u64,
    /// Sessions for which there was no room.
    pub crowded: u64,
}

/// The tallies of ended sessions. A batch is fixed when it is first asked for, and stays the same
/// until it is acknowledged; what ends meanwhile is of the next one. So each session is in one
/// batch, whatever becomes of reports.
#[derive(Debug)]
pub struct Tallies {
    run: u64,
    /// The batch that waits to be acknowledged.
    fixed: Option<SessionBatch>,
    /// The number of the newest batch.
    number: u64,
    open: BTreeMap<Key, SessionTally>,
    missing: Missing,
}

impl Tallies {
    /// Creates none yet; `run` is random.
    #[must_use]
    pub const fn new(run: u64) -> Self {
        let missing = Missing { foreign: 0, dropped: 0, crowded: 0 };
        Self { run, fixed: None, number: 0, open: BTreeMap::new(), missing }
    }

    /// Adds a line of an access log. Sessions without a path, and datagrams, count in no tally.
    pub fn add(&mut self, line: &[u8]) {
        match serde_json::from_slice::<Line>(line) {
            Ok(line) => self.add_line(&line),
            Err(_) => match serde_json::from_slice::<Gap>(line) {
                Ok(gap) => self.missing.dropped += gap.dropped_lines,
                Err(_) => self.missing.foreign += 1,
            },
        }
    }

    fn add_line(&mut self, line: &Line) {
        let is_possible = line.duration_ms.is_finite() && line.duration_ms >= 0.0;
        let path = line.path.as_deref().map(path_of);
        let (flow, path) = match (line.kind.as_str(), &line.flow, path) {
            ("session", Some(flow), Some(Some(path))) if is_possible => (flow.clone(), path),
            // No path was tried, or packets carried it.
            ("session", _, None) | ("packets", _, _) => return,
            ("session", ..) if line.path.as_deref() == Some("packets") => return,
            _ => {
                self.missing.foreign += 1;
                return;
            }
        };
        let bytes = line.bytes_up.saturating_add(line.bytes_down);
        let size_class = bytes.max(1).ilog2() as u8;
        let arm = line.arm.unwrap_or(Arm::Other);
        let key = Key { flow, path, arm, size_class };
        if self.open.len() >= MOST_TALLIES && !self.open.contains_key(&key) {
            self.missing.crowded += 1;
            return;
        }
        let tally = self.open.entry(key).or_insert_with_key(empty);
        tally.bytes_up = tally.bytes_up.saturating_add(line.bytes_up);
        tally.bytes_down = tally.bytes_down.saturating_add(line.bytes_down);
        if line.outcome == "ended" {
            let seconds = (line.duration_ms / 1000.0).max(LEAST_SECONDS);
            tally.sessions += 1;
            tally.seconds += seconds;
            tally.log_seconds += seconds.ln();
            tally.log_seconds_squared += seconds.ln().powi(2);
        } else {
            tally.failed += 1;
        }
    }

    /// Returns the batch for a report: the one that waits to be acknowledged, or else what ended
    /// since; none if nothing did.
    pub fn batch(&mut self) -> Option<SessionBatch> {
        if self.fixed.is_none() && !self.open.is_empty() {
            self.number += 1;
            let tallies = std::mem::take(&mut self.open).into_values().collect();
            self.fixed = Some(SessionBatch { run: self.run, number: self.number, tallies });
        }
        self.fixed.clone()
    }

    /// Forgets the batch of the last report, which was acknowledged.
    pub fn acknowledge(&mut self) {
        self.fixed = None;
    }

    /// Returns the lines that are part of no tally since the last call.
    pub fn take_missing(&mut self) -> Missing {
        std::mem::take(&mut self.missing)
    }
}

fn empty(key: &Key) -> SessionTally {
    let Key { flow, path, arm, size_class } = key.clone();
    SessionTally::new(flow, path, arm, size_class)
}

/// Returns the relays of a path as an access log names them.
fn path_of(text: &str) -> Option<Vec<RelayId>> {
    if text == "direct" {
        return Some(Vec::new());
    }
    let relays: Vec<RelayId> =
        text.split(" > ").map(|name| name.parse().ok()).collect::<Option<_>>()?;
    (text != "packets" && relays.len() <= MOST_RELAYS).then_some(relays)
}

/// The socket that gateways send their access logs to, and the tallies of it.
#[derive(Debug)]
pub struct Sessions {
    tallies: Arc<Mutex<Tallies>>,
    /// The user who sends, once a gateway of a document does.
    sender: Option<String>,
    /// Ends the task that reads the socket.
    reader: Option<AbortHandle>,
    has_told_foreign: bool,
}

impl Sessions {
    /// Creates tallies without a socket; `run` is random.
    #[must_use]
    pub fn new(run: u64) -> Self {
        let tallies = Arc::new(Mutex::new(Tallies::new(run)));
        Self { tallies, sender: None, reader: None, has_told_foreign: false }
    }

    /// Notes whether a gateway of a document tells its sessions.
    pub fn expect(&mut self, document: &Document) {
        if let Some(gateway) = logging_gateway(document) {
            self.sender = Some(gateway.run_as.unwrap_or_else(|| DEFAULT_USER.to_owned()));
        }
    }

    /// Listens in the folder `data` from the first document on in which a gateway logs there, and
    /// anew where reading has failed. Processes that ran before find the new socket by its path.
    ///
    /// # Errors
    /// When there can be no socket; the next call tries again.
    pub fn listen(&mut self, data: &Path) -> Result<(), AgentError> {
        let reads = self.reader.as_ref().is_some_and(|reader| !reader.is_finished());
        let Some(sender) = self.sender.as_deref().filter(|_| !reads) else { return Ok(()) };
        let path = data.join(SESSIONS_SOCKET);
        let socket = bind(&path, sender).map_err(|error| AgentError::file(&path, error))?;
        let reader = tokio::spawn(read(socket, Arc::clone(&self.tallies)));
        self.reader = Some(reader.abort_handle());
        Ok(())
    }

    fn tallies(&self) -> MutexGuard<'_, Tallies> {
        lock(&self.tallies)
    }

    /// Returns the batch for a report ([`Tallies::batch`]), and logs what is missing in it.
    pub fn batch(&mut self) -> Option<SessionBatch> {
        let (batch, missing) = {
            let mut tallies = self.tallies();
            (tallies.batch(), tallies.take_missing())
        };
        let Missing { foreign, dropped, crowded } = missing;
        if foreign > 0 && !self.has_told_foreign {
            self.has_told_foreign = true;
            tracing::warn!(
                "{SESSIONS_SOCKET}: {foreign} lines are none of an access log; they are ignored, \
                 and further ones without a word"
            );
        }
        if dropped + crowded > 0 {
            tracing::warn!("{} sessions are in no tally: there are too many", dropped + crowded);
        }
        batch
    }

    /// Forgets the batch of the last report, which was acknowledged.
    pub fn acknowledge(&self) {
        self.tallies().acknowledge();
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.reader.iter().for_each(AbortHandle::abort);
    }
}

fn lock(tallies: &Mutex<Tallies>) -> MutexGuard<'_, Tallies> {
    tallies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the first gateway of a document that logs to the socket.
fn logging_gateway(document: &Document) -> Option<GatewayConfig> {
    let gateways = document.processes.iter().filter(|process| process.kind == Kind::Gateway);
    let configs = gateways.filter_map(|process| GatewayConfig::parse(&process.config).ok());
    let socket = LogTarget::Unix(PathBuf::from(SESSIONS_SOCKET));
    configs.into_iter().find(|config| {
        let log = config.access_log.as_ref();
        log.is_some_and(|log| log.to == socket)
    })
}

/// Binds the socket in place of one from before. Where root runs this, `sender` may send, as which
/// processes go on that root starts.
fn bind(path: &Path, sender: &str) -> io::Result<UnixDatagram> {
    // Processes that look for the name meanwhile find the old socket or the new one.
    let mut new = path.to_owned().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let _none = fs::remove_file(&new);
    let socket = UnixDatagram::bind(&new)?;
    let mut mode = 0o600;
    if is_root() {
        let account = Account::find(sender).map_err(io::Error::other)?;
        if let Some(account) = account.filter(|account| account.out_of_reach().is_none()) {
            chown(&new, Some(account.user_id()), None)?;
            // A process that stays root may lack the right to pass over permissions.
            mode = 0o660;
        }
    }
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, path)?;
    Ok(socket)
}

/// Reads lines until it is aborted, or fails.
async fn read(socket: UnixDatagram, tallies: Arc<Mutex<Tallies>>) {
    let mut line = vec![0; LONGEST_LINE];
    loop {
        match socket.recv(&mut line).await {
            Ok(length) => lock(&tallies).add(&line[..length]),
            Err(error) => return tracing::error!("{SESSIONS_SOCKET}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a line of an ended session with some fields replaced.
    fn line(replaced: serde_json::Value) -> Vec<u8> {
        let mut line = serde_json::json!({
            "kind": "session", "program": "gateway", "time": "2027-01-31T00:00:00.000Z",
            "flow": "orders", "path": "first > second", "arm": "overlay",
            "bytes_up": 24, "bytes_down": 1000, "duration_ms": 500.0, "outcome": "ended",
        });
        let replaced = replaced.as_object().unwrap().clone();
        line.as_object_mut().unwrap().extend(replaced);
        line.to_string().into_bytes()
    }

    fn relays(names: &[&str]) -> Vec<RelayId> {
        names.iter().map(|name| name.parse().unwrap()).collect()
    }

    #[tokio::test]
    async fn socket_is_bound_again_after_its_reader_ended() {
        let name = format!("tradewind-sessions-{}", std::process::id());
        let data = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&data);
        fs::create_dir(&data).unwrap();
        let mut sessions = Sessions::new(7);
        sessions.sender = Some(DEFAULT_USER.to_owned());
        sessions.listen(&data).unwrap();
        // As after an error of the socket.
        let reader = sessions.reader.clone().unwrap();
        reader.abort();
        while !reader.is_finished() {
            tokio::task::yield_now().await;
        }
        sessions.listen(&data).unwrap();
        let gateway = UnixDatagram::unbound().unwrap();
        let line = line(serde_json::json!({}));
        gateway.send_to(&line, data.join(SESSIONS_SOCKET)).await.unwrap();
        let received = async {
            while sessions.batch().is_none() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(60), received).await.unwrap();
        fs::remove_dir_all(&data).unwrap();
    }

    #[test]
    fn sessions_are_tallied_by_flow_path_arm_and_size() {
        let mut tallies = Tallies::new(7);
        assert_eq!(tallies.batch(), None);
        tallies.add(&line(serde_json::json!({})));
        tallies.add(&line(serde_json::json!({ "duration_ms": 2000.0, "bytes_down": 2023 })));
        tallies.add(&line(serde_json::json!({ "outcome": "broken", "bytes_down": 1030 })));
        tallies.add(&line(serde_json::json!({ "path": "direct", "arm": "control" })));
        tallies.add(&line(serde_json::json!({ "path": "direct", "arm": null })));
        tallies.add(&line(serde_json::json!({ "bytes_up": 0, "bytes_down": 0, "path": "direct",
            "arm": null, "duration_ms": 0.0 })));
        let batch = tallies.batch().unwrap();
        assert_eq!((batch.run, batch.number, batch.tallies.len()), (7, 1, 4));
        let find = |arm, class| {
            batch.tallies.iter().find(|it| it.arm == arm && it.size_class == class).unwrap()
        };
        let overlay = find(Arm::Overlay, 10);
        assert_eq!(overlay.flow.as_str(), "orders");
        assert_eq!(overlay.path, relays(&["first", "second"]));
        assert_eq!((overlay.sessions, overlay.failed), (2, 1));
        assert_eq!((overlay.bytes_up, overlay.bytes_down), (72, 1000 + 2023 + 1030));
        assert_eq!(overlay.seconds, 2.5);
        assert!(overlay.log_seconds.abs() < 1e-9, "half a second and two");
        assert!((overlay.log_seconds_squared - 2.0 * 2_f64.ln().powi(2)).abs() < 1e-9);
        assert_eq!(find(Arm::Control, 10).path, []);
        assert_eq!(find(Arm::Other, 10).sessions, 1);
        assert!(find(Arm::Other, 0).log_seconds.is_finite());
        assert_eq!(tallies.take_missing(), Missing::default());
    }

    #[test]
    fn batch_is_repeated_until_acknowledged_and_then_the_next() {
        let mut tallies = Tallies::new(7);
        tallies.add(&line(serde_json::json!({})));
        let first = tallies.batch().unwrap();
        tallies.add(&line(serde_json::json!({})));
        tallies.add(&line(serde_json::json!({})));
        assert_eq!(tallies.batch(), Some(first.clone()), "the answer was lost");
        tallies.acknowledge();
        let second = tallies.batch().unwrap();
        assert_eq!((first.number, second.number), (1, 2));
        assert_eq!((first.tallies[0].sessions, second.tallies[0].sessions), (1, 2));
        tallies.acknowledge();
        assert_eq!(tallies.batch(), None);
    }

    #[test]
    fn other_lines_are_ignored_and_counted() {
        let mut tallies = Tallies::new(7);
        for ignored in [
            &line(serde_json::json!({ "path": null })),
            &line(serde_json::json!({ "path": "packets" })),
            &line(serde_json::json!({ "kind": "packets", "outcome": "idle" })),
        ] {
            tallies.add(ignored);
        }
        assert_eq!(tallies.take_missing(), Missing::default());
        for foreign in [
            &b"hello"[..],
            &[0xff, 0xfe],
            b"{}",
            &line(serde_json::json!({ "kind": "packet_path" })),
            &line(serde_json::json!({ "flow": null })),
            &line(serde_json::json!({ "flow": "a b" })),
            &line(serde_json::json!({ "path": "first >> second" })),
            &line(serde_json::json!({ "path": "first > ".repeat(MOST_RELAYS) + "last" })),
            &line(serde_json::json!({ "arm": "left" })),
            &line(serde_json::json!({ "bytes_up": -1 })),
            &line(serde_json::json!({ "duration_ms": -1.0 })),
        ] {
            tallies.add(foreign);
            let missing = Missing { foreign: 1, ..Missing::default() };
            assert_eq!(tallies.take_missing(), missing, "{}", String::from_utf8_lossy(foreign));
        }
        tallies.add(b"{\"dropped_lines\":3}");
        assert_eq!(tallies.take_missing(), Missing { dropped: 3, ..Missing::default() });
        assert_eq!(tallies.batch(), None);
    }

    #[tokio::test]
    async fn socket_replaces_the_one_before_and_is_closed_to_others() {
        let name = format!("tradewind-sessions-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let path = folder.join(SESSIONS_SOCKET);
        let old = bind(&path, "nobody").unwrap();
        let new = bind(&path, "nobody").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        assert!(mode == 0o600 || is_root() && mode == 0o660, "{mode:o}");
        let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
        sender.send_to(b"line", &path).unwrap();
        let mut line = [0; 9];
        assert_eq!(new.recv(&mut line).await.unwrap(), 4);
        assert!(old.try_recv(&mut line).is_err());
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no leftovers");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn number_of_tallies_is_bounded() {
        let mut tallies = Tallies::new(7);
        for number in 0..MOST_TALLIES + 2 {
            tallies.add(&line(serde_json::json!({ "flow": format!("flow-{number}") })));
        }
        tallies.add(&line(serde_json::json!({ "flow": "flow-0" })));
        assert_eq!(tallies.take_missing(), Missing { crowded: 2, ..Missing::default() });
        let batch = tallies.batch().unwrap();
        assert_eq!(batch.tallies.len(), MOST_TALLIES);
        assert_eq!(batch.tallies.iter().map(|tally| tally.sessions).max(), Some(2));
    }
}
