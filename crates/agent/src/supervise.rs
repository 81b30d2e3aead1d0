//! The processes of the data plane.
//!
//! They are no part of the agent: an agent that ends leaves them running, and the next one finds
//! them by their arguments, which name the configuration file in its folder. Their standard output,
//! with the ready line, goes to a file for the same reason.
//!
//! A process that is told to start its successor asks for it here ([`Starter`]), so that the
//! successor can have rights that the process has given up.

mod health;
mod successors;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde::Deserialize;
use tradewind_config::Kind;
use tradewind_control::message::{Document, Process, ProcessState, ProcessStatus, STARTER_SOCKET};
use tradewind_net::handover::starter::{STARTER, Starter};
use tradewind_net::processes::{self, Running};
use tradewind_node::{GATEWAY_LIVE_KEYS, RELAY_LIVE_KEYS};
use tradewind_stream::process::in_force::config_hash;
use tradewind_stream::process::reload;
use tradewind_units::{Duration, FlowId};

use crate::backoff::{Backoff, entropy};
use crate::home::{Change, Draining, PendingSignal};
use crate::metrics::Metrics;
use crate::{AgentError, Home};

/// First and longest pause before a process that ended by itself is started again. Chosen: a port
/// that another program gives up soon, and one that it does not.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(60);
/// Time of running after which the pauses begin anew. Chosen: a start takes far less.
const STEADY: Duration = Duration::from_secs(60);
/// Longest wait for the successor at an upgrade. Chosen: longer than the process itself waits.
const UPGRADE_LIMIT: Duration = Duration::from_secs(75);
/// Environment variables that are meant for the agent, and not for its processes.
const NOT_INHERITED: [&str; 6] = [
    "NOTIFY_SOCKET",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
];

/// The processes of a folder.
#[derive(Debug)]
pub struct Supervisor {
    home: Home,
    program: PathBuf,
    /// Time before a relay starts that does not run.
    relay_setup: Duration,
    units: BTreeMap<String, Unit>,
    draining: Vec<Draining>,
    /// The signals that processes are still to get, as they are kept.
    kept_due: BTreeMap<String, PendingSignal>,
    /// Those started here, until they have ended.
    children: Vec<Child>,
    /// The files of the document in the working directory.
    files: BTreeSet<String>,
    /// Answers processes that ask for their successors, from the first document on, and the user
    /// as which they ask.
    starter: Option<(String, Starter)>,
    /// True if there may have been a former process since [`Supervisor::take_formers`].
    had_formers: bool,
}

/// A process of the document.
#[derive(Debug)]
struct Unit {
    kind: Kind,
    running: Option<Running>,
    /// The lines that it has printed: one when it is ready, and another after each upgrade.
    lines: usize,
    listen: Vec<SocketAddr>,
    /// Its learner of initial windows, if it has one.
    learner: Option<ReadyLearner>,
    /// The signal that it gets once it is ready, which takes one before as its end.
    due: PendingSignal,
    /// The end of the wait for its successor, while one starts.
    upgrading: Option<Instant>,
    /// The successor that was started here for this upgrade.
    successor: Option<u32>,
    /// True if the last upgrade was asked for again, as its successor was not started here.
    is_repeated: bool,
    failure: Option<String>,
    /// The hash of its configuration file, and the time since which file and process are the same.
    config: Option<(i64, Instant)>,
    /// True if it does not run by that file.
    is_stale: bool,
    /// Times in a row that it was asked and was not alive.
    ill: u32,
    /// The reason of the last time.
    illness: Option<String>,
    metrics: Option<Metrics>,
    /// Its open sessions when it was asked last.
    sessions: Option<u64>,
    /// Those of each flow, at gateways.
    flows: Option<BTreeMap<FlowId, u64>>,
    begun: Instant,
    /// Time from which on its machine is there.
    set_up: Instant,
    next_start: Instant,
    backoff: Backoff,
}

/// The part of a ready line that the agent reads.
#[derive(Deserialize)]
struct Ready {
    listen: Vec<SocketAddr>,
    jumpstart: Option<ReadyLearner>,
}

/// The learner of a process, as its ready line says: without a socket it has not started.
#[derive(Debug, Clone, Deserialize)]
struct ReadyLearner {
    why: Option<String>,
    socket: Option<PathBuf>,
}

impl Supervisor {
    /// Creates one for the processes in `home`, which `program` runs. Nothing is started yet.
    ///
    /// # Errors
    /// When the list of processes that were told to end, or are to be told of new files, cannot be
    /// read.
    pub fn new(home: Home, program: PathBuf) -> Result<Self, AgentError> {
        let (draining, kept_due) = (home.draining()?, home.due()?);
        Ok(Self {
            home,
            program,
            relay_setup: Duration::ZERO,
            units: BTreeMap::new(),
            draining,
            kept_due,
            children: Vec::new(),
            files: BTreeSet::new(),
            starter: None,
            had_formers: true,
        })
    }

    /// Has relays start only so long after a document names them, as if their machines were set up
    /// first. One that runs already, or that ends by itself, waits for nothing.
    #[must_use]
    pub fn with_relay_setup(self, relay_setup: Duration) -> Self {
        Self { relay_setup, ..self }
    }

    /// Puts a document into effect that the ceiling allows: tells processes to end that are no
    /// longer in it, writes the files of the others, and has them read these. Processes start at
    /// the next [`Supervisor::look`].
    ///
    /// # Errors
    /// When a file cannot be written; what was done until then stays.
    pub fn apply(&mut self, document: &Document, now: Instant) -> Result<(), AgentError> {
        let wanted: BTreeMap<&str, Kind> =
            document.processes.iter().map(|p| (p.name.as_str(), p.kind)).collect();
        self.end_unwanted(&wanted)?;
        self.units.retain(|name, unit| wanted.get(name.as_str()) == Some(&unit.kind));
        self.kept_due.retain(|name, _| wanted.contains_key(name.as_str()));
        self.files = document.processes.iter().flat_map(files_of).collect();
        for process in &document.processes {
            let due = due(process, &self.home.change(process)?);
            let set_up = now + self.setup_of(process);
            let unit = self.units.entry(process.name.clone());
            let unit = unit.or_insert_with(|| {
                // An agent before may not have come to send it.
                let due = self.kept_due.get(&process.name).copied().unwrap_or_default();
                Unit { due, set_up, ..Unit::new(process.kind, now) }
            });
            unit.due = unit.due.max(due);
            unit.metrics = Metrics::of(process);
            if due != PendingSignal::Nothing && unit.running.is_none() {
                // What made it end may be mended.
                unit.next_start = now;
            }
        }
        self.listen_for_requests(document);
        // Before the files, so that none is new without its signal.
        self.keep_due()?;
        document.processes.iter().try_for_each(|process| self.home.write_process(process))?;
        for process in &document.processes {
            let hash = config_hash(&process.config);
            let unit = self.units.get_mut(&process.name);
            if let Some(unit) = unit.filter(|unit| unit.config.is_none_or(|it| it.0 != hash)) {
                // Writing takes time, too.
                unit.config = Some((hash, now.max(Instant::now())));
            }
        }
        self.tidy();
        Ok(())
    }

    /// Returns the time that the machine of a new process takes.
    fn setup_of(&self, process: &Process) -> Duration {
        let waits = self.relay_setup > Duration::ZERO
            && process.kind == Kind::Relay
            && !self.units.contains_key(&process.name)
            && self.find(&process.name, process.kind).is_empty();
        if waits { self.relay_setup } else { Duration::ZERO }
    }

    /// Keeps the signals that are due, for the next agent.
    fn keep_due(&mut self) -> Result<(), AgentError> {
        let mut due = self.kept_due.clone();
        for (name, unit) in &self.units {
            match unit.due {
                PendingSignal::Nothing => due.remove(name),
                signal => due.insert(name.clone(), signal),
            };
        }
        if due != self.kept_due {
            self.home.set_due(&due)?;
            self.kept_due = due;
        }
        Ok(())
    }

    /// Tells all processes to end.
    ///
    /// # Errors
    /// When that cannot be kept; they are told nevertheless.
    pub fn end_all(&mut self) -> Result<(), AgentError> {
        let mut ended = Ok(());
        for (name, unit) in std::mem::take(&mut self.units) {
            ended = ended.and(self.end(&name, unit.kind));
        }
        ended
    }

    /// Tells those processes of the folder to end that are not `wanted`.
    pub(crate) fn end_unwanted(&mut self, wanted: &BTreeMap<&str, Kind>) -> Result<(), AgentError> {
        let mut ended = Ok(());
        for name in self.home.configured() {
            for kind in [Kind::Relay, Kind::Gateway] {
                if wanted.get(name.as_str()) != Some(&kind) {
                    ended = ended.and(self.end(&name, kind));
                }
            }
        }
        ended
    }

    /// Returns the processes that were told to end and still run.
    pub(crate) fn draining(&self) -> Vec<Running> {
        let all = self.draining.iter().map(Draining::running);
        all.filter(Running::is_running).collect()
    }

    /// Tells the processes of this name and kind to end, and not twice.
    fn end(&mut self, name: &str, kind: Kind) -> Result<(), AgentError> {
        let found = self.find(name, kind);
        if found.is_empty() {
            return Ok(());
        }
        for Running { process, started } in found {
            // It may have ended meanwhile.
            let _gone = processes::end(process);
            self.draining.push(Draining { name: name.to_owned(), process, started });
        }
        self.had_formers = true;
        self.home.set_draining(&self.draining)
    }

    /// Returns whether processes only serve what they have: they were told to end, or a successor
    /// has taken over or is about to.
    pub(crate) fn has_formers(&self) -> bool {
        let has_former = |(name, unit): (&String, &Unit)| {
            unit.upgrading.is_some() || self.find(name, unit.kind).len() > 1
        };
        !self.draining.is_empty() || self.units.iter().any(has_former)
    }

    /// Returns whether there were such processes since the last call, or others ended.
    pub(crate) fn take_formers(&mut self) -> bool {
        let has_formers = self.has_formers();
        std::mem::replace(&mut self.had_formers, has_formers) || has_formers
    }

    /// Removes files that belong to no process. One that is about to end may still read its own.
    fn tidy(&self) {
        if self.draining.is_empty() {
            self.home.remove_others(&self.files);
        }
    }

    /// Returns the running processes of this name and kind, the oldest first, without those that
    /// were told to end.
    fn find(&self, name: &str, kind: Kind) -> Vec<Running> {
        let mut found = processes::with_arguments(&arguments(&self.home, name, kind));
        found.retain(|running| self.draining.iter().all(|other| other.running() != *running));
        found
    }

    /// Looks after the processes: starts those that do not run, finds successors, sends the signals
    /// that are due. Returns whether their state changed.
    pub fn look(&mut self, now: Instant) -> bool {
        let before = self.statuses();
        let ended = self.reap();
        if !self.draining.is_empty() {
            let count = self.draining.len();
            self.draining.retain(|draining| draining.running().is_running());
            if self.draining.len() < count {
                if let Err(error) = self.home.set_draining(&self.draining) {
                    tracing::warn!("{error}");
                }
                self.tidy();
            }
        }
        for name in self.units.keys().cloned().collect::<Vec<_>>() {
            let Some(mut unit) = self.units.remove(&name) else { continue };
            self.reconcile_process(&name, &mut unit, &ended, now);
            self.units.insert(name, unit);
        }
        self.start_successors();
        if let Err(error) = self.keep_due() {
            tracing::warn!("{error}");
        }
        self.statuses() != before
    }

    /// Takes the children away that have ended, and returns how they did.
    fn reap(&mut self) -> BTreeMap<u32, String> {
        let mut ended = BTreeMap::new();
        self.children.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                ended.insert(child.id(), format!("ended with {status}"));
                false
            }
            Err(_) => false,
        });
        ended
    }

    fn reconcile_process(
        &mut self,
        name: &str,
        unit: &mut Unit,
        ended: &BTreeMap<u32, String>,
        now: Instant,
    ) {
        if let Some(running) = unit.running.filter(|running| !running.is_running()) {
            unit.running = None;
            self.had_formers = true;
            // Those before it only serve what they have.
            let next = self.find(name, unit.kind).pop().filter(|next| *next > running);
            match next {
                Some(next) => unit.running = Some(next),
                None => {
                    let how = ended.get(&running.process).map_or("ended", String::as_str);
                    unit.fail(format!("{how}; the agent's log has its last words"), now);
                    tracing::warn!("process `{name}` {how}");
                }
            }
        }
        if unit.running.is_none() && unit.next_start.max(unit.set_up) <= now {
            self.begin(name, unit, now);
        }
        if unit.running.is_some() {
            self.read_ready(name, unit, now);
            self.kill_late_successor(unit, now);
            unit.signal_when_ready(name, now);
            self.had_formers |= unit.upgrading.is_some();
        }
    }

    /// Finds a process that runs already, or starts it.
    fn begin(&mut self, name: &str, unit: &mut Unit, now: Instant) {
        if let Some(running) = self.find(name, unit.kind).pop() {
            tracing::info!("process `{name}` runs already: {}", running.process);
            unit.running = Some(running);
            unit.begun = now;
            // It may be the successor of one that an agent before has told to start it.
            unit.confirm_from(now + UPGRADE_LIMIT);
            return;
        }
        (unit.lines, unit.due) = (0, PendingSignal::Nothing);
        (unit.upgrading, unit.successor) = (None, None);
        unit.listen.clear();
        unit.learner = None;
        unit.begun = now;
        match self.start(name, unit.kind) {
            Ok(child) => {
                tracing::info!("process `{name}` starts: {}", child.id());
                // One that is gone already is found so the next time.
                let process = child.id();
                let running = Running::of(process).unwrap_or(Running { started: 0, process });
                unit.running = Some(running);
                self.children.push(child);
            }
            Err(error) => {
                tracing::warn!("process `{name}`: {error}");
                unit.fail(error.to_string(), now);
            }
        }
    }

    fn start(&self, name: &str, kind: Kind) -> Result<Child, AgentError> {
        let ready = self.home.ready(name);
        drop(File::create(&ready).map_err(|error| AgentError::file(&ready, error))?);
        let mut command = command(&self.home, &self.program, (name, kind))?;
        command.spawn().map_err(|error| AgentError::file(&self.program, error))
    }

    fn read_ready(&self, name: &str, unit: &mut Unit, now: Instant) {
        let text = fs::read_to_string(self.home.ready(name)).unwrap_or_default();
        // A line counts once it is whole.
        let lines = text.matches('\n').count();
        if lines == unit.lines {
            return;
        }
        let is_of_successor = unit.lines > 0;
        unit.lines = lines;
        unit.failure = None;
        // The process before it may still answer.
        unit.confirm_from(now);
        if let Some(Ready { listen, jumpstart }) = text
            .lines()
            .nth(lines.saturating_sub(1))
            .and_then(|line| serde_json::from_str(line).ok())
        {
            (unit.listen, unit.learner) = (listen, jumpstart);
        }
        if is_of_successor {
            unit.running = self.find(name, unit.kind).pop().or(unit.running);
            self.end_upgrade(unit);
        }
    }

    /// Returns the state of the processes: those of the document, then those that drain.
    #[must_use]
    pub fn statuses(&self) -> Vec<ProcessStatus> {
        let wanted = self.units.iter().map(|(name, unit)| ProcessStatus {
            name: name.clone(),
            state: unit.state(),
            listen: unit.listen.clone(),
            sessions: unit.sessions.filter(|_| unit.state() == ProcessState::Ready),
            flows: unit.flows.clone().filter(|_| unit.state() == ProcessState::Ready),
            failure: unit.told_failure(),
        });
        let draining = self.draining.iter().map(|draining| ProcessStatus {
            name: draining.name.clone(),
            state: ProcessState::Draining,
            listen: Vec::new(),
            sessions: None,
            flows: None,
            failure: None,
        });
        wanted.chain(draining).collect()
    }
}

impl Supervisor {
    /// Returns the processes with a learner of initial windows, and why it did not start, if so.
    pub fn learners(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.units.iter().filter_map(|(name, unit)| {
            let learner = unit.learner.as_ref()?;
            let is_absent = learner.socket.is_none();
            let why = learner.why.as_deref().filter(|_| is_absent);
            Some((name.as_str(), why))
        })
    }
}

impl Unit {
    fn new(kind: Kind, now: Instant) -> Self {
        Self {
            kind,
            running: None,
            lines: 0,
            listen: Vec::new(),
            learner: None,
            due: PendingSignal::Nothing,
            upgrading: None,
            successor: None,
            is_repeated: false,
            failure: None,
            config: None,
            is_stale: false,
            ill: 0,
            illness: None,
            metrics: None,
            sessions: None,
            flows: None,
            begun: now,
            set_up: now,
            next_start: now,
            backoff: Backoff::new(FIRST_PAUSE, MAX_PAUSE),
        }
    }

    fn fail(&mut self, failure: String, now: Instant) {
        if now.saturating_duration_since(self.begun) >= STEADY {
            self.backoff.succeed();
        }
        self.next_start = now + self.backoff.fail(entropy());
        self.failure = Some(failure);
        self.listen.clear();
        (self.lines, self.learner) = (0, None);
        (self.is_stale, self.ill) = (false, 0);
    }

    fn state(&self) -> ProcessState {
        match (self.running, self.lines) {
            (None, _) if self.failure.is_some() => ProcessState::Failed,
            (None, _) | (Some(_), 0) => ProcessState::Starting,
            (Some(_), _) => ProcessState::Ready,
        }
    }

    /// Sends the signal that is due, if the process would take it as it is meant.
    fn signal_when_ready(&mut self, name: &str, now: Instant) {
        if self.upgrading.is_some_and(|until| until <= now) {
            self.upgrading = None;
            let failure = "it does not start anew with its new configuration, and goes on with the \
                           old one; the agent's log has the reason";
            self.failure = Some(failure.to_owned());
        }
        let Some(running) = self.running.filter(|_| self.lines > 0 && self.upgrading.is_none())
        else {
            return;
        };
        let sent = match self.due {
            PendingSignal::Nothing => return,
            PendingSignal::Reload => processes::reload(running.process),
            PendingSignal::Upgrade => {
                tracing::info!("process `{name}` starts anew for its new configuration");
                self.upgrading = Some(now + UPGRADE_LIMIT);
                processes::upgrade(running.process)
            }
        };
        self.due = PendingSignal::Nothing;
        // It has ended, which the next look finds.
        drop(sent);
    }
}

/// Returns the arguments of a process, by which it is found as well.
fn arguments(home: &Home, name: &str, kind: Kind) -> [OsString; 4] {
    let command = if kind == Kind::Relay { "relay" } else { "gateway" };
    [command.into(), "--config".into(), home.config(name).into(), "--watch".into()]
}

/// Returns the command that starts a process, or its successor.
fn command(home: &Home, program: &Path, (name, kind): (&str, Kind)) -> Result<Command, AgentError> {
    let ready = home.ready(name);
    // Its successors print to the same file.
    let out = File::options().append(true).open(&ready);
    let out = out.map_err(|error| AgentError::file(&ready, error))?;
    let mut command = Command::new(program);
    command.args(arguments(home, name, kind)).current_dir(home.data());
    command.env(STARTER, home.data().join(STARTER_SOCKET));
    command.stdin(Stdio::null()).stdout(out);
    for variable in NOT_INHERITED {
        command.env_remove(variable);
    }
    // The terminal's signals are for the agent alone.
    command.process_group(0);
    Ok(command)
}

/// Returns the signal that a change takes. A changed configuration is found by the process itself.
fn due(process: &Process, change: &Change) -> PendingSignal {
    let (of_streams, of_packets): (&[&str], &[&str]) = match process.kind {
        Kind::Gateway => (&tradewind_gateway::LIVE_KEYS, GATEWAY_LIVE_KEYS),
        _ => (&tradewind_relay::LIVE_KEYS, RELAY_LIVE_KEYS),
    };
    let live = [of_streams, of_packets].concat();
    match &change.config_before {
        Some(before) if !before.is_empty() => {
            let [before, after] = [before.as_str(), &process.config]
                .map(|text| text.parse::<toml::Table>().unwrap_or_default());
            // A running gateway takes another grant, but neither its first one nor the loss of it.
            let has_grant = |table: &toml::Table| table.contains_key("grant");
            let is_live = has_grant(&before) == has_grant(&after)
                && reload::changed(&before, &after, &live).is_empty();
            if is_live { PendingSignal::Nothing } else { PendingSignal::Upgrade }
        }
        _ if change.files => PendingSignal::Reload,
        _ => PendingSignal::Nothing,
    }
}

/// Returns the files of a process in the working directory.
fn files_of(process: &Process) -> impl Iterator<Item = String> {
    let own = ["toml", "ready"].map(|end| format!("{}.{end}", process.name));
    own.into_iter().chain(process.files.keys().cloned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a script that stands for a relay, by its name: it says that it is ready, and does
    /// this when it is told to start anew. It forks nothing, which would be taken for a successor.
    pub(super) fn script(told: &str) -> String {
        format!(
            "mkfifo gate 2>/dev/null; exec 3<>gate; trap '{told}' USR2; echo '{{\"listen\":[]}}'\n\
             while [ -e data.key ]; do read x <&3; done\n"
        )
    }

    /// Returns a document with a relay, for which a script stands.
    pub(super) fn document(config: &str, script: &str) -> Document {
        Document {
            schema_version: 1,
            version: "1.1".parse().unwrap(),
            host: "lab:here-1".parse().unwrap(),
            issued_unix_ms: 0,
            processes: vec![Process {
                name: "relay".to_owned(),
                kind: Kind::Relay,
                config: config.to_owned(),
                files: [("relay".to_owned(), script.to_owned())].into(),
            }],
            responder_port: 0,
            report_every_ms: 0,
            watched: Vec::new(),
        }
    }

    #[test]
    fn signal_that_an_agent_did_not_send_is_sent_by_the_next_one() {
        let name = format!("tradewind-supervise-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&place);
        let home = Home::at(&place).unwrap();
        let _lock = home.lock().unwrap();
        home.data_key().unwrap();
        // It runs the file `relay` in the working directory.
        let program = PathBuf::from("/bin/sh");
        let relay = script("echo $$ >>told");
        let document = |workers: u32| document(&format!("workers = {workers}"), &relay);
        let until = |supervisor: &mut Supervisor, done: &dyn Fn(&Supervisor) -> bool| {
            let begun = Instant::now();
            while !done(supervisor) {
                supervisor.look(Instant::now());
                assert!(begun.elapsed() < Duration::from_secs(60), "never");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        let is_ready = |supervisor: &Supervisor| {
            supervisor.statuses().iter().all(|status| status.state == ProcessState::Ready)
        };
        let mut first = Supervisor::new(home.clone(), program.clone()).unwrap();
        first.apply(&document(1), Instant::now()).unwrap();
        until(&mut first, &is_ready);
        first.apply(&document(2), Instant::now()).unwrap();
        // It is killed before it looks again; the next one is given the same document.
        let children = std::mem::take(&mut first.children);
        drop(first);
        let mut second = Supervisor::new(home.clone(), program.clone()).unwrap();
        second.apply(&document(2), Instant::now()).unwrap();
        let told = || fs::read_to_string(home.data().join("told")).unwrap_or_default();
        until(&mut second, &|_| !told().is_empty());
        assert_eq!(told(), format!("{}\n", children[0].id()));
        assert_eq!(home.due().unwrap(), BTreeMap::new());
        fs::remove_dir_all(&place).unwrap();
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn relay_starts_once_its_machine_is_set_up() {
        let name = format!("tradewind-supervise-setup-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        let _none = fs::remove_dir_all(&place);
        let home = Home::at(&place).unwrap();
        let _lock = home.lock().unwrap();
        home.data_key().unwrap();
        let setup = Duration::from_secs(600);
        let supervisor = || Supervisor::new(home.clone(), "/bin/sh".into()).unwrap();
        let relay = script(":");
        let state = |supervisor: &Supervisor| supervisor.statuses()[0].state;
        let mut first = supervisor().with_relay_setup(setup);
        let begun = Instant::now();
        first.apply(&document("workers = 1", &relay), begun).unwrap();
        let almost = begun + setup - Duration::from_millis(1);
        first.look(almost);
        // Another configuration does not set it up sooner.
        first.apply(&document("workers = 2", &relay), almost).unwrap();
        first.look(almost);
        assert!(first.children.is_empty());
        assert_eq!(state(&first), ProcessState::Starting);
        first.look(begun + setup);
        assert_eq!(first.children.len(), 1);
        // The next agent finds it, and waits for no machine.
        let children = std::mem::take(&mut first.children);
        drop(first);
        let mut second = supervisor().with_relay_setup(setup);
        second.apply(&document("workers = 2", &relay), Instant::now()).unwrap();
        while state(&second) != ProcessState::Ready {
            second.look(Instant::now());
            assert!(begun.elapsed() < Duration::from_secs(60), "never");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(second.children.is_empty());
        fs::remove_dir_all(&place).unwrap();
        for mut child in children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    #[test]
    fn change_takes_no_more_than_it_needs() {
        let due_of = |kind, before: Option<&str>, after: &str, files| {
            let (name, config) = ("it".to_owned(), after.to_owned());
            let process = Process { name, kind, config, files: BTreeMap::new() };
            due(&process, &Change { config_before: before.map(str::to_owned), files })
        };
        for (kind, before, after, files, expected) in [
            (Kind::Relay, None, "workers = 1", false, PendingSignal::Nothing),
            (Kind::Relay, None, "workers = 1", true, PendingSignal::Reload),
            // A process that is not started yet reads all of it.
            (Kind::Relay, Some(""), "workers = 1", false, PendingSignal::Nothing),
            (Kind::Relay, Some("workers = 1"), "workers = 2", false, PendingSignal::Upgrade),
            (
                Kind::Relay,
                Some("a = 1"),
                "a = 1\n[policy]\nnever = []",
                true,
                PendingSignal::Nothing,
            ),
            (Kind::Relay, Some("routes = 1"), "routes = 2", false, PendingSignal::Upgrade),
            (Kind::Gateway, Some("routes = 1"), "routes = 2", false, PendingSignal::Nothing),
            (Kind::Gateway, Some("forward = 1"), "forward = 2", false, PendingSignal::Upgrade),
            // It takes another grant, but neither the first nor the loss of it.
            (Kind::Gateway, Some("grant = 1"), "grant = 2", false, PendingSignal::Nothing),
            (
                Kind::Gateway,
                Some("direct = true"),
                "direct = true\ngrant = 1",
                false,
                PendingSignal::Upgrade,
            ),
            (
                Kind::Gateway,
                Some("direct = true\ngrant = 1"),
                "direct = true",
                false,
                PendingSignal::Upgrade,
            ),
        ] {
            assert_eq!(due_of(kind, before, after, files), expected, "{before:?} {after}");
        }
    }
}
