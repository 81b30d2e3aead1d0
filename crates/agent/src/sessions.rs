//! The sessions that gateways and relays end: their access logs come as datagrams to a socket in
//! the working directory, and are tallied until the controller has them.
//!
//! Sessions that end while the agent is away are lost: nobody receives their lines.

mod learned;
mod overlaps;

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Deserialize;
use tokio::net::UnixDatagram;
use tokio::task::AbortHandle;
use tradewind_config::{GatewayConfig, Kind, LogTarget, RelayConfig};
use tradewind_control::message::{
    Arm, Document, FlowHour, Process, SESSIONS_SOCKET, SessionBatch, SessionTally,
};
use tradewind_control::packet_flow::PacketTally;
use tradewind_grant::{Destination, PublicIdentity};
use tradewind_net::log_file;
use tradewind_net::privileges::{Account, DEFAULT_USER, is_root};
use tradewind_stream::clock::unix_now;
use tradewind_telemetry::LineQueue;
use tradewind_telemetry::output::LineFile;
use tradewind_units::{Bytes, FlowId, RelayId};

use self::learned::Learned;
use self::overlaps::Overlaps;
use crate::AgentError;
use crate::relayed::{Carried, Relayed};

/// Most tallies of one batch; sessions of others are counted and left out. Chosen: hundreds of
/// flows, each in ten size classes over several paths.
pub(crate) const MAX_TALLIES: usize = 4096;
/// Most flows and hours of one batch. A session of an hour for which there is no room counts in the
/// newest one of its flow. Chosen: two dozen flows in a week without a controller.
const MAX_HOURS: usize = 4096;
/// Most services of a packet flow in one batch. Chosen: its service changes each few seconds, and
/// the controller does not answer for a minute.
const MAX_SERVICES: usize = 16;
const HOUR_MS: u64 = 3_600_000;
/// Most relays of a path. Chosen: more than any plan has.
const MAX_RELAYS: usize = 16;
/// Longest line. Chosen: several times the longest that a gateway writes.
const MAX_LINE: usize = 16 * 1024;
/// Most bytes of lines that wait for the owner's file. Chosen: as at an access log.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// Longest wait for that file at the end. Chosen.
const FLUSH_LIMIT: std::time::Duration = std::time::Duration::from_secs(1);
/// Least completion time, as a logarithm of zero is none.
const MIN_SECONDS: f64 = 1e-6;

/// A line of an access log, as far as it counts here.
#[derive(Debug, Deserialize)]
struct Line {
    program: String,
    kind: String,
    flow: Option<FlowId>,
    destination: Option<Destination>,
    path: Option<String>,
    arm: Option<Arm>,
    bytes_up: u64,
    bytes_down: u64,
    duration_ms: f64,
    outcome: String,
    neighbour: Option<PublicIdentity>,
    next: Option<PublicIdentity>,
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
    hours: BTreeMap<(FlowId, u64), FlowHour>,
    /// The packets of each flow, one tally for each service in turn.
    packets: BTreeMap<SocketAddr, Vec<PacketTally>>,
    overlaps: Overlaps<FlowId>,
    learned: Learned,
    relayed: Relayed,
    /// Bytes of ended sessions, both ways, since they were taken last.
    sent: u64,
    missing: Missing,
}

/// A session that has ended.
#[derive(Debug)]
struct Session {
    began_ms: u64,
    ended_ms: u64,
    bytes_up: u64,
    bytes_down: u64,
    /// Its completion time; `None` if it did not end in order.
    seconds: Option<f64>,
}

impl Session {
    fn of(line: &Line, ended_ms: u64) -> Self {
        let seconds = (line.duration_ms / 1000.0).max(MIN_SECONDS);
        Self {
            began_ms: ended_ms.saturating_sub(line.duration_ms as u64),
            ended_ms,
            bytes_up: line.bytes_up,
            bytes_down: line.bytes_down,
            seconds: (line.outcome == "ended").then_some(seconds),
        }
    }

    const fn bytes(&self) -> u64 {
        self.bytes_up.saturating_add(self.bytes_down)
    }
}

impl Tallies {
    /// Creates none yet; `run` is random.
    #[must_use]
    pub const fn new(run: u64) -> Self {
        let missing = Missing { foreign: 0, dropped: 0, crowded: 0 };
        Self {
            run,
            fixed: None,
            number: 0,
            open: BTreeMap::new(),
            hours: BTreeMap::new(),
            packets: BTreeMap::new(),
            overlaps: Overlaps::new(),
            learned: Learned::new(),
            relayed: Relayed::new(),
            sent: 0,
            missing,
        }
    }

    /// Adds a line of an access log that came at this time, in milliseconds since the Unix epoch.
    /// Sessions without a path, and datagrams, count in no tally.
    pub fn add(&mut self, line: &[u8], unix_ms: u64) {
        match serde_json::from_slice::<Line>(line) {
            Ok(line) => self.add_line(&line, unix_ms),
            Err(_) => match serde_json::from_slice::<Gap>(line) {
                Ok(gap) => self.missing.dropped += gap.dropped_lines,
                Err(_) => self.missing.foreign += 1,
            },
        }
    }

    fn add_line(&mut self, line: &Line, unix_ms: u64) {
        if line.kind == "session" {
            self.sent = self.sent.saturating_add(line.bytes_up).saturating_add(line.bytes_down);
        }
        if line.program == "relay" {
            return self.add_relayed(line);
        }
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
        let session = Session::of(line, unix_ms);
        if let Some(to) = line.destination.as_ref().filter(|_| Learned::is_proxy(&flow)) {
            if !self.learned.add(to, &session) {
                self.missing.crowded += 1;
            }
            return;
        }
        self.add_session(flow, path, line.arm.unwrap_or(Arm::Other), &session);
    }

    fn add_session(&mut self, flow: FlowId, path: Vec<RelayId>, arm: Arm, session: &Session) {
        let bytes = session.bytes();
        let key = Key { flow, path, arm, size_class: bytes.max(1).ilog2() as u8 };
        if self.open.len() >= MAX_TALLIES && !self.open.contains_key(&key) {
            self.missing.crowded += 1;
            return;
        }
        let concurrent = self.overlaps.add(&key.flow, session.began_ms, session.ended_ms);
        // Without room the controller takes the hour in which the tallies come.
        if let Some(hour) = self.hour(&key.flow, session.ended_ms / HOUR_MS) {
            hour.sessions += 1;
            hour.bytes = hour.bytes.saturating_add(bytes);
            hour.concurrent = hour.concurrent.max(concurrent);
        }
        let tally = self.open.entry(key).or_insert_with_key(empty);
        tally.bytes_up = tally.bytes_up.saturating_add(session.bytes_up);
        tally.bytes_down = tally.bytes_down.saturating_add(session.bytes_down);
        if let Some(seconds) = session.seconds {
            tally.sessions += 1;
            tally.seconds += seconds;
            tally.log_seconds += seconds.ln();
            tally.log_seconds_squared += seconds.ln().powi(2);
        } else {
            tally.failed += 1;
        }
    }

    /// Adds a line of a relay.
    fn add_relayed(&mut self, line: &Line) {
        let (Some(flow), Some(from), "session") = (&line.flow, line.neighbour, &*line.kind) else {
            self.missing.foreign += 1;
            return;
        };
        let carried = Carried {
            up: line.bytes_up,
            down: line.bytes_down,
            ended_in_order: line.outcome == "ended",
        };
        if !self.relayed.add(flow, from, line.next, carried) {
            self.missing.crowded += 1;
        }
    }

    /// Returns the sums of a flow and hour, or of the flow's newest hour if there is no room for
    /// another; `None` if it has none either.
    fn hour(&mut self, flow: &FlowId, hour: u64) -> Option<&mut FlowHour> {
        let mut key = (flow.clone(), hour);
        if self.hours.len() >= MAX_HOURS && !self.hours.contains_key(&key) {
            let of_flow = self.hours.range((flow.clone(), 0)..=(flow.clone(), u64::MAX));
            key = of_flow.last()?.0.clone();
        }
        let (flow, hour) = key.clone();
        let empty = FlowHour { flow, hour, sessions: 0, bytes: 0, concurrent: 0 };
        Some(self.hours.entry(key).or_insert(empty))
    }

    /// Returns the batch for a report: the one that waits to be acknowledged, or else what ended
    /// since; none if nothing did.
    pub fn batch(&mut self) -> Option<SessionBatch> {
        let is_empty = self.open.is_empty()
            && self.packets.is_empty()
            && self.learned.is_empty()
            && self.relayed.is_empty();
        if self.fixed.is_none() && !is_empty {
            self.number += 1;
            self.fixed = Some(SessionBatch {
                run: self.run,
                number: self.number,
                tallies: std::mem::take(&mut self.open).into_values().collect(),
                hours: std::mem::take(&mut self.hours).into_values().collect(),
                packets: std::mem::take(&mut self.packets).into_values().flatten().collect(),
                learned: self.learned.take(),
                relayed: self.relayed.take(),
            });
        }
        self.fixed.clone()
    }

    /// Adds what became of a packet flow's packets since the last call: to those before of the same
    /// service.
    pub fn add_packets(&mut self, tally: PacketTally) {
        let of_flow = self.packets.entry(tally.listen).or_default();
        let is_full = of_flow.len() >= MAX_SERVICES;
        match of_flow.last_mut() {
            Some(last) if is_full || last.service == tally.service => {
                *last = PacketTally { counts: last.counts.plus(tally.counts), ..tally };
            }
            _ => of_flow.push(tally),
        }
    }

    /// Forgets the batch of the last report, which was acknowledged.
    pub fn acknowledge(&mut self) {
        self.fixed = None;
    }

    /// Returns the bytes of ended sessions, both ways, since the last call.
    pub fn take_sent(&mut self) -> Bytes {
        Bytes::new(std::mem::take(&mut self.sent))
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
    (text != "packets" && relays.len() <= MAX_RELAYS).then_some(relays)
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
    /// The owner's file, to which all lines are appended.
    copy: Option<LineQueue>,
}

impl Sessions {
    /// Creates tallies without a socket; `run` is random.
    #[must_use]
    pub fn new(run: u64) -> Self {
        let tallies = Arc::new(Mutex::new(Tallies::new(run)));
        Self { tallies, sender: None, reader: None, has_told_foreign: false, copy: None }
    }

    /// Appends the lines of all sockets from now on to `file` as well, which another program may
    /// move away.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn copy_to(&mut self, file: &Path) -> Result<(), AgentError> {
        let opened = LineFile::open(file, log_file::open_append, None);
        let queue = opened.and_then(|it| LineQueue::start("access", MAX_WAITING_BYTES, it));
        self.copy = Some(queue.map_err(|error| AgentError::file(file, error))?);
        Ok(())
    }

    /// Notes whether a process of a document tells its sessions.
    pub fn expect(&mut self, document: &Document) {
        if let Some(run_as) = document.processes.iter().find_map(teller) {
            self.sender = Some(run_as.unwrap_or_else(|| DEFAULT_USER.to_owned()));
        }
    }

    /// Listens in the folder `data` from the first document on in which a process logs there, and
    /// anew where reading has failed. Processes that ran before find the new socket by its path.
    ///
    /// # Errors
    /// When there can be no socket; the next call tries again.
    pub fn listen(&mut self, data: &Path) -> Result<(), AgentError> {
        let reads = self.reader.as_ref().is_some_and(|reader| !reader.is_finished());
        let Some(sender) = self.sender.as_deref().filter(|_| !reads) else { return Ok(()) };
        let path = data.join(SESSIONS_SOCKET);
        let bound = place(&path, sender, |path| UnixDatagram::bind(path));
        let socket = bound.map_err(|error| AgentError::file(&path, error))?;
        let reader = tokio::spawn(read(socket, Arc::clone(&self.tallies), self.copy.clone()));
        self.reader = Some(reader.abort_handle());
        Ok(())
    }

    /// Returns the tallies, for others to add to.
    #[must_use]
    pub fn shared(&self) -> Arc<Mutex<Tallies>> {
        Arc::clone(&self.tallies)
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

    /// Returns the bytes of ended sessions, both ways, since the last call.
    pub fn take_sent(&self) -> Bytes {
        self.tallies().take_sent()
    }

    /// Forgets the batch of the last report, which was acknowledged.
    pub fn acknowledge(&self) {
        self.tallies().acknowledge();
    }
}

impl Drop for Sessions {
    fn drop(&mut self) {
        self.reader.iter().for_each(AbortHandle::abort);
        if let Some(copy) = &self.copy {
            let _all_written = copy.flush(FLUSH_LIMIT);
        }
    }
}

fn lock(tallies: &Mutex<Tallies>) -> MutexGuard<'_, Tallies> {
    tallies.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the user of a process that logs to the socket, if its configuration names one; `None` if
/// it does not log there.
fn teller(process: &Process) -> Option<Option<String>> {
    let (log, run_as) = match process.kind {
        Kind::Gateway => {
            let config = GatewayConfig::parse(&process.config).ok()?;
            (config.access_log, config.run_as)
        }
        Kind::Relay => {
            let config = RelayConfig::parse(&process.config).ok()?;
            (config.access_log, config.run_as)
        }
        _ => return None,
    };
    let socket = LogTarget::Unix(PathBuf::from(SESSIONS_SOCKET));
    log.is_some_and(|log| log.to == socket).then_some(run_as)
}

/// Returns the user as which a process goes on that root starts as `user`; `None` if it stays what
/// it is.
pub(crate) fn account_of(user: &str) -> io::Result<Option<Account>> {
    if !is_root() {
        return Ok(None);
    }
    let account = Account::find(user).map_err(io::Error::other)?;
    Ok(account.filter(|account| account.out_of_reach().is_none()))
}

/// Returns the user as which a process goes on that root starts.
pub(crate) fn run_as(process: &Process) -> String {
    let table: toml::Table = process.config.parse().unwrap_or_default();
    let named = table.get("run_as").and_then(toml::Value::as_str);
    named.unwrap_or(DEFAULT_USER).to_owned()
}

/// Places a socket at `path`, instead of one from before. Where root runs this, `user` may send to
/// it, as which processes go on that root starts.
pub(crate) fn place<S>(
    path: &Path,
    user: &str,
    bind: impl FnOnce(&Path) -> io::Result<S>,
) -> io::Result<S> {
    // Processes that look for the name meanwhile find the old socket or the new one.
    let mut new = path.to_owned().into_os_string();
    new.push(format!(".new-{}", std::process::id()));
    let new = PathBuf::from(new);
    let _none = fs::remove_file(&new);
    let socket = bind(&new)?;
    let mut mode = 0o600;
    if let Some(account) = account_of(user)? {
        chown(&new, Some(account.user_id()), None)?;
        // A process that stays root may lack the right to pass over permissions.
        mode = 0o660;
    }
    fs::set_permissions(&new, fs::Permissions::from_mode(mode))?;
    fs::rename(&new, path)?;
    Ok(socket)
}

/// Reads lines until it is aborted, or fails; each goes to `copy` as well.
async fn read(socket: UnixDatagram, tallies: Arc<Mutex<Tallies>>, copy: Option<LineQueue>) {
    let mut line = vec![0; MAX_LINE];
    loop {
        match socket.recv(&mut line).await {
            Ok(length) => {
                let now = unix_now().as_nanos() / 1_000_000;
                lock(&tallies).add(&line[..length], now);
                if let Some(copy) = &copy {
                    // What found no room is marked by a line of its own.
                    let _has_room = copy.put(&line[..length]);
                }
            }
            Err(error) => return tracing::error!("{SESSIONS_SOCKET}: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tradewind_control::message::{LearnedHour, RelayTally};
    use tradewind_grant::IdentityKey;

    use super::*;

    /// Half past an hour.
    const NOW: u64 = 1_795_003_200_000 + HOUR_MS / 2;

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
        tallies.add(&line(serde_json::json!({})), NOW);
        tallies.add(&line(serde_json::json!({ "duration_ms": 2000.0, "bytes_down": 2023 })), NOW);
        tallies.add(&line(serde_json::json!({ "outcome": "broken", "bytes_down": 1030 })), NOW);
        tallies.add(&line(serde_json::json!({ "path": "direct", "arm": "control" })), NOW);
        tallies.add(&line(serde_json::json!({ "path": "direct", "arm": null })), NOW);
        tallies.add(
            &line(serde_json::json!({ "bytes_up": 0, "bytes_down": 0, "path": "direct",
            "arm": null, "duration_ms": 0.0 })),
            NOW,
        );
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
    fn sessions_are_summed_up_by_hour_with_the_most_at_once() {
        let mut tallies = Tallies::new(7);
        let ended = |tallies: &mut Tallies, flow: &str, at: u64, seconds: u64| {
            let fields = serde_json::json!({ "flow": flow, "duration_ms": seconds * 1000 });
            tallies.add(&line(fields), NOW + at * 1000);
        };
        // Two at once, then one alone, then one that spans all three.
        ended(&mut tallies, "a", 10, 10);
        ended(&mut tallies, "a", 12, 5);
        ended(&mut tallies, "a", 30, 3);
        ended(&mut tallies, "b", 30, 30);
        let of = |flow: &str, hour: u64, sessions: u64, concurrent: u64| FlowHour {
            flow: flow.parse().unwrap(),
            hour: NOW / HOUR_MS + hour,
            sessions,
            bytes: sessions * 1024,
            concurrent,
        };
        let hours = tallies.batch().unwrap().hours;
        assert_eq!(hours, [of("a", 0, 3, 2), of("b", 0, 1, 1)]);
        tallies.acknowledge();
        ended(&mut tallies, "a", 31, 25);
        ended(&mut tallies, "a", 3600, 1);
        ended(&mut tallies, "a", 3600, 1);
        let batch = tallies.batch().unwrap();
        assert_eq!(batch.hours, [of("a", 0, 1, 3), of("a", 1, 2, 2)]);
        assert_eq!(batch.tallies.iter().map(SessionTally::bytes).sum::<u64>(), 3 * 1024);
    }

    #[test]
    fn number_of_hours_is_bounded_and_no_session_lost() {
        let mut tallies = Tallies::new(7);
        for hour in 0..MAX_HOURS as u64 + 5 {
            tallies.add(&line(serde_json::json!({})), NOW + hour * HOUR_MS);
        }
        tallies.add(&line(serde_json::json!({ "flow": "other" })), NOW);
        assert_eq!(tallies.take_missing(), Missing::default());
        let batch = tallies.batch().unwrap();
        assert_eq!(batch.hours.len(), MAX_HOURS);
        assert_eq!(batch.hours.last().unwrap().sessions, 6);
        let sessions = |tally: &SessionTally| tally.sessions;
        let all: u64 = batch.tallies.iter().map(sessions).sum();
        let hours: u64 = batch.hours.iter().map(|hour| hour.sessions).sum();
        assert_eq!((hours + 1, all), (all, MAX_HOURS as u64 + 6), "all but those of `other`");
    }

    #[test]
    fn sessions_through_proxies_without_a_flow_are_learned() {
        let mut tallies = Tallies::new(7);
        let ended = |tallies: &mut Tallies, proxy: &str, to: &str, outcome: &str| {
            let fields = serde_json::json!({ "flow": proxy, "destination": to, "path": "direct",
                "arm": null, "outcome": outcome });
            tallies.add(&line(fields), NOW);
        };
        // A gateway names those to the destination of a flow after it.
        ended(&mut tallies, "orders", "db.example.com:5432", "ended");
        ended(&mut tallies, "socks5", "198.51.100.7:443", "ended");
        ended(&mut tallies, "connect", "198.51.100.7:443", "ended");
        ended(&mut tallies, "connect", "198.51.100.7:443", "broken");
        ended(&mut tallies, "socks5", "[2001:db8::7]:443", "broken");
        // Ports of flows are named after those, whatever their destination.
        ended(&mut tallies, "orders", "198.51.100.7:443", "ended");
        let batch = tallies.batch().unwrap();
        let of = |to: &str, sessions: u64, failed: u64| LearnedHour {
            to: to.parse().unwrap(),
            hour: NOW / HOUR_MS,
            sessions,
            failed,
            bytes: sessions * 1024,
            seconds: 0.5 * (sessions - failed) as f64,
            concurrent: sessions,
        };
        let expected = [of("198.51.100.7:443", 3, 1), of("[2001:db8::7]:443", 1, 1)];
        assert_eq!(batch.learned, expected);
        assert_eq!(batch.tallies.len(), 1);
        let SessionTally { flow, sessions, .. } = &batch.tallies[0];
        assert_eq!((flow.as_str(), *sessions), ("orders", 2));
        tallies.acknowledge();
        // A batch may have nothing else.
        ended(&mut tallies, "socks5", "198.51.100.7:443", "ended");
        let next = tallies.batch().unwrap();
        assert_eq!((next.tallies.len(), next.learned[0].sessions), (0, 1));
        assert_eq!(tallies.take_missing(), Missing::default());
    }

    #[test]
    fn sessions_of_a_relay_are_tallied_by_neighbours() {
        let mut tallies = Tallies::new(7);
        let [gateway, next] = [1, 2].map(|it| IdentityKey::from_entropy([it; 32]).public());
        let carried = |next: Option<PublicIdentity>, outcome: &str| {
            line(serde_json::json!({
                "program": "relay", "path": "192.0.2.9:7000", "arm": null, "outcome": outcome,
                "neighbour": gateway.to_string(), "next": next.map(|next| next.to_string()),
            }))
        };
        tallies.add(&carried(Some(next), "ended"), NOW);
        tallies.add(&carried(Some(next), "broken"), NOW);
        tallies.add(&carried(None, "ended"), NOW);
        // Without a neighbour it is none of a relay.
        tallies.add(&line(serde_json::json!({ "program": "relay" })), NOW);
        assert_eq!(tallies.take_missing(), Missing { foreign: 1, ..Missing::default() });
        let batch = tallies.batch().unwrap();
        assert_eq!((batch.tallies.len(), batch.hours.len()), (0, 0));
        let of = |next, sessions, failed| RelayTally {
            flow: "orders".parse().unwrap(),
            from: gateway,
            next,
            sessions,
            failed,
            bytes_up: 24 * (sessions + failed),
            bytes_down: 1000 * (sessions + failed),
        };
        assert_eq!(batch.relayed, [of(None, 1, 0), of(Some(next), 1, 1)]);
        tallies.add(&carried(None, "ended"), NOW);
        assert_eq!(tallies.batch(), Some(batch), "the answer was lost");
        tallies.acknowledge();
        assert_eq!(tallies.batch().unwrap().relayed, [of(None, 1, 0)]);
    }

    #[test]
    fn batch_is_repeated_until_acknowledged_and_then_the_next() {
        let mut tallies = Tallies::new(7);
        tallies.add(&line(serde_json::json!({})), NOW);
        let first = tallies.batch().unwrap();
        tallies.add(&line(serde_json::json!({})), NOW);
        tallies.add(&line(serde_json::json!({})), NOW);
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
            tallies.add(ignored, NOW);
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
            &line(serde_json::json!({ "path": "first > ".repeat(MAX_RELAYS) + "last" })),
            &line(serde_json::json!({ "arm": "left" })),
            &line(serde_json::json!({ "bytes_up": -1 })),
            &line(serde_json::json!({ "duration_ms": -1.0 })),
        ] {
            tallies.add(foreign, NOW);
            let missing = Missing { foreign: 1, ..Missing::default() };
            assert_eq!(tallies.take_missing(), missing, "{}", String::from_utf8_lossy(foreign));
        }
        tallies.add(b"{\"dropped_lines\":3}", NOW);
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
        let [old, new] =
            [(); 2].map(|()| place(&path, "nobody", |at| UnixDatagram::bind(at)).unwrap());
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

    #[tokio::test]
    async fn lines_go_to_the_owners_file_as_well() {
        let name = format!("tradewind-sessions-copy-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        let mut sessions = Sessions::new(7);
        let refused = sessions.copy_to(&folder.join("none/access.log")).unwrap_err().to_string();
        assert!(refused.contains("none/access.log: "), "{refused}");
        let file = folder.join("access.log");
        sessions.copy_to(&file).unwrap();
        sessions.sender = Some("nobody".to_owned());
        sessions.listen(&folder).unwrap();
        let sender = UnixDatagram::unbound().unwrap();
        let (one, other) = (line(serde_json::json!({})), b"{\"kind\":\"other\"}".to_vec());
        for line in [&one, &other] {
            sender.send_to(line, folder.join(SESSIONS_SOCKET)).await.unwrap();
        }
        let expected = [&one[..], b"\n", &other[..], b"\n"].concat();
        let begun = std::time::Instant::now();
        while fs::read(&file).unwrap() != expected {
            assert!(begun.elapsed().as_secs() < 60, "{:?}", fs::read_to_string(&file));
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        assert_eq!(sessions.batch().unwrap().tallies.len(), 1, "it is tallied all the same");
        drop(sessions);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn number_of_tallies_is_bounded() {
        let mut tallies = Tallies::new(7);
        for number in 0..MAX_TALLIES + 2 {
            tallies.add(&line(serde_json::json!({ "flow": format!("flow-{number}") })), NOW);
        }
        tallies.add(&line(serde_json::json!({ "flow": "flow-0" })), NOW);
        assert_eq!(tallies.take_missing(), Missing { crowded: 2, ..Missing::default() });
        let batch = tallies.batch().unwrap();
        assert_eq!(batch.tallies.len(), MAX_TALLIES);
        assert_eq!(batch.tallies.iter().map(|tally| tally.sessions).max(), Some(2));
    }
}
