//! The agent's loop: fetch, check, apply, measure, report.
//!
//! The last document that was applied is put into effect at once, without the controller. Nothing
//! depends on the host's clock but the dates of measurements, and the days of a ceiling's spend.

mod bounds;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Interval, MissedTickBehavior, interval, sleep, sleep_until};
use tradewind_control::Ceiling;
use tradewind_control::message::{
    CONFIG_VERSION, Document, DocumentVersion, MessageError, ProbeResult, RefusedDocument, Report,
    ReportAnswer, SCHEMA_VERSION, SignedDocument,
};
use tradewind_stream::clock::unix_now;
use tradewind_stream::connection::Tls;
use tradewind_units::Duration;

use crate::backoff::{Backoff, entropy};
use crate::home::{Membership, Status};
use crate::learners::{Learners, make_folder};
use crate::link::{Link, LinkError};
use crate::packets::Packets;
use crate::passive::Passive;
use crate::probes::{Probes, ResponderHere};
use crate::sessions::Sessions;
use crate::spend::Spent;
use crate::supervise::Supervisor;
use crate::trouble::Trouble;
use crate::{AGENT_VERSION, AgentError, Home};

/// First and longest pause before the controller is asked again. Chosen: it restarts in seconds,
/// and is not crowded when it was away for long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Time between two looks at the processes. Chosen: shorter than a process takes to start.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two counts of the sessions that processes have open. Chosen: that of reports.
const COUNT_EVERY: Duration = Duration::from_secs(5);
/// Time between two questions whether a process is alive. Chosen: one that hangs is found in
/// seconds.
const HEALTH_EVERY: Duration = Duration::from_secs(1);
/// Time between two reports before a document says so. Chosen: that of a person who waits.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Least time between two reports. Chosen: a burst of changes is one report.
const MIN_BETWEEN_REPORTS: Duration = Duration::from_millis(100);
/// Most results that wait for a controller that is away; the oldest are dropped. Chosen: an hour
/// of one each second.
const MAX_RESULTS: usize = 3600;

/// Options of a run.
#[derive(Debug, Clone)]
pub struct Options {
    /// The program that runs relays and gateways: `tradewind`.
    pub program: PathBuf,
    /// True to tell the processes to end with the agent, which otherwise leaves them running.
    pub stop_processes: bool,
    /// Time before a relay starts, as if its machine were set up first: for trials.
    pub relay_setup: Duration,
    /// The file to which the access logs of the processes are appended, if the owner wants them.
    pub access_log: Option<PathBuf>,
}

/// Runs the agent in `home`, which the caller has locked, until SIGTERM or SIGINT. Calls `ready`
/// once, when the controller has answered.
///
/// # Errors
/// When the host has not joined, or its files or the system do not let it run.
pub async fn run(
    home: &Home,
    options: &Options,
    ready: impl FnOnce(&Membership),
) -> Result<(), AgentError> {
    let membership =
        home.membership()?.ok_or_else(|| AgentError::NotJoined(home.path().to_owned()))?;
    // It exists, or no process would start.
    home.data_key()?;
    let tls = Arc::new(Tls::new(&home.agent_key()?)?);
    let handler = |kind| signal(kind).map_err(AgentError::system("signals"));
    let (mut term, mut interrupt) =
        (handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?);
    let supervisor = Supervisor::new(home.clone(), options.program.clone())?;
    let supervisor = supervisor.with_relay_setup(options.relay_setup);
    let (results, mut measured) = mpsc::unbounded_channel();
    let sources = Sources::start(results, options.access_log.as_deref())?;
    let mut agent = Agent::new(home.clone(), membership.clone(), supervisor, sources);
    agent.take_last_document().await;

    let link = || Link::new(Arc::clone(&tls), membership.controller, membership.identity);
    let (news, mut fetched) = mpsc::channel(1);
    let poller = tokio::spawn(poll(link(), agent.applied(), news));
    let (reports, to_send) = mpsc::channel(1);
    let (outcomes, mut reported) = mpsc::channel(1);
    let reporter = tokio::spawn(send_reports(link(), to_send, outcomes));

    let (mut looks, mut counts, mut healths) =
        (every(LOOK), every(COUNT_EVERY), every(HEALTH_EVERY));
    let (count, mut counted) = mpsc::unbounded_channel();
    let (check, mut checked) = mpsc::unbounded_channel();
    let (mut ready, mut waiting) = (Some(ready), None);
    loop {
        let due = agent.report_due();
        tokio::select! {
            Some(news) = fetched.recv(), if waiting.is_none() => waiting = Some(news),
            Some(outcome) = reported.recv() => {
                let has_answered = agent.was_reported(outcome);
                if let Some(ready) = ready.take_if(|_| has_answered) {
                    ready(&membership);
                }
            }
            Some(result) = measured.recv() => agent.keep(result),
            _ = looks.tick() => agent.look().await,
            _ = counts.tick() => agent.count(&count),
            _ = healths.tick() => agent.check_health(&check),
            Some((name, alive)) = checked.recv() => agent.take_health(&name, alive),
            Some((name, counted)) = counted.recv() => agent.take_count(&name, counted),
            () = sleep_until(due.unwrap_or_else(Instant::now).into()), if due.is_some() => {
                let report = agent.report();
                // The reporter waits for it.
                let _gone = reports.send(report).await;
            }
            _ = term.recv() => break,
            _ = interrupt.recv() => break,
        }
        if let Some((signed, answer)) = waiting.take_if(|_| !agent.must_wait()) {
            // The poller waits for it.
            let _gone = answer.send(agent.take(&signed).await);
        }
    }
    poller.abort();
    reporter.abort();
    if options.stop_processes {
        agent.supervisor.end_all()?;
    }
    agent.is_linked = false;
    agent.write_status();
    Ok(())
}

/// Returns an interval whose late ticks put off those after them.
fn every(period: std::time::Duration) -> Interval {
    let mut interval = interval(period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// A document that was fetched, and the way to say what to ask for next: `None` if it is not to be
/// taken at all.
type Fetched = (SignedDocument, oneshot::Sender<Option<DocumentVersion>>);

/// Fetches documents, one after the other.
async fn poll(mut link: Link, mut have: Option<DocumentVersion>, news: mpsc::Sender<Fetched>) {
    let mut backoff = Backoff::new(FIRST_PAUSE, MAX_PAUSE);
    loop {
        match link.desired(have).await {
            Ok(None) => backoff.succeed(),
            Ok(Some(signed)) => {
                let (answer, answered) = oneshot::channel();
                if news.send((signed, answer)).await.is_err() {
                    return;
                }
                match answered.await {
                    Ok(Some(version)) => {
                        have = Some(version);
                        backoff.succeed();
                    }
                    Ok(None) => sleep(backoff.fail(entropy())).await,
                    Err(_) => return,
                }
            }
            // The reporter says why.
            Err(_) => sleep(backoff.fail(entropy())).await,
        }
    }
}

/// Sends reports, one after the other.
async fn send_reports(
    mut link: Link,
    mut reports: mpsc::Receiver<Report>,
    outcomes: mpsc::Sender<Result<ReportAnswer, LinkError>>,
) {
    while let Some(report) = reports.recv().await {
        if outcomes.send(link.report(&report).await).await.is_err() {
            return;
        }
    }
}

/// The sources of what reports say beside the processes.
struct Sources {
    probes: Probes,
    sessions: Sessions,
    packets: Packets,
    passive: Passive,
    learners: Learners,
}

impl Sources {
    /// Starts them; results of probes go to `results`.
    fn start(
        results: mpsc::UnboundedSender<ProbeResult>,
        access_log: Option<&Path>,
    ) -> Result<Self, AgentError> {
        let random = tradewind_net::entropy::bytes().map_err(AgentError::system("entropy"))?;
        let mut sessions = Sessions::new(u64::from_le_bytes(random));
        if let Some(file) = access_log {
            sessions.copy_to(file)?;
        }
        Ok(Self {
            probes: Probes::new(results),
            sessions,
            packets: Packets::default(),
            passive: Passive::start()?,
            learners: Learners::start()?,
        })
    }
}

/// The state of an agent.
struct Agent {
    home: Home,
    membership: Membership,
    supervisor: Supervisor,
    responder: ResponderHere,
    sources: Sources,
    document: Option<Document>,
    refused: Option<RefusedDocument>,
    results: Vec<ProbeResult>,
    /// The number of results in the report that is on its way.
    sent: Option<usize>,
    next_report: Instant,
    backoff: Backoff,
    is_linked: bool,
    link_trouble: Trouble,
    responder_trouble: Trouble,
    sessions_trouble: Trouble,
    spent: Spent,
    /// The same as it is kept.
    kept_spent: Option<Spent>,
    /// True while the document is in effect as it is once the ceiling's spend is used up.
    is_used_up: bool,
    spent_trouble: Trouble,
}

/// The reason why a document is not taken.
enum NotTaken {
    /// It is not this controller's, not this host's, or an older one.
    Foreign(String),
    /// This host may not, or cannot, run what it says.
    Refused(DocumentVersion, String),
    /// It could not be put into effect now, and is tried again.
    Failed(DocumentVersion, String),
}

impl NotTaken {
    /// Returns the version, if it is known whose it is, and the reason.
    fn told(self) -> (Option<DocumentVersion>, String) {
        match self {
            Self::Foreign(reason) => (None, reason),
            Self::Refused(version, reason) | Self::Failed(version, reason) => {
                (Some(version), reason)
            }
        }
    }
}

impl Agent {
    fn new(home: Home, membership: Membership, supervisor: Supervisor, sources: Sources) -> Self {
        Self {
            home,
            membership,
            supervisor,
            responder: ResponderHere::default(),
            sources,
            document: None,
            refused: None,
            results: Vec::new(),
            sent: None,
            next_report: Instant::now(),
            backoff: Backoff::new(FIRST_PAUSE, MAX_PAUSE),
            is_linked: false,
            link_trouble: Trouble::default(),
            responder_trouble: Trouble::default(),
            sessions_trouble: Trouble::default(),
            spent: Spent::default(),
            kept_spent: None,
            is_used_up: false,
            spent_trouble: Trouble::default(),
        }
    }

    fn applied(&self) -> Option<DocumentVersion> {
        self.document.as_ref().map(|document| document.version)
    }

    /// Puts the last document into effect that was applied before the agent started. If the ceiling
    /// no longer allows it, or bounds rate or spend and it fails, its processes are told to end.
    async fn take_last_document(&mut self) {
        self.spent = Spent::kept(&self.home, unix_now().as_nanos() / 1_000_000);
        let taken = match self.home.document() {
            Ok(None) => return,
            Ok(Some(signed)) => self.verify(&signed).and_then(|document| self.apply(document)),
            Err(error) => Err(NotTaken::Foreign(error.to_string())),
        };
        match taken {
            Ok(()) => self.look().await,
            Err(NotTaken::Foreign(reason) | NotTaken::Failed(_, reason)) if !self.is_bounded() => {
                tracing::warn!("the last document: {reason}; processes that run go on");
            }
            Err(why) => {
                let (version, reason) = why.told();
                tracing::warn!("the last document: {reason}; its processes are told to end");
                let nothing =
                    self.no_processes(version.unwrap_or(DocumentVersion { epoch: 0, version: 0 }));
                if let Err(error) = self.supervisor.apply(&nothing, Instant::now()) {
                    tracing::warn!("{error}");
                }
                self.refused = version.map(|version| RefusedDocument { version, reason });
            }
        }
        self.write_status();
    }

    /// Returns a document of no processes.
    fn no_processes(&self, version: DocumentVersion) -> Document {
        Document {
            schema_version: SCHEMA_VERSION,
            version,
            host: self.membership.host.clone(),
            issued_unix_ms: 0,
            processes: Vec::new(),
            responder_port: 0,
            report_every_ms: 0,
            watched: Vec::new(),
        }
    }

    /// Takes a document that was fetched. Returns what to ask for next; `None` if it is none of
    /// this controller for this host.
    async fn take(&mut self, signed: &SignedDocument) -> Option<DocumentVersion> {
        let verified = self.verify(signed);
        let version = verified.as_ref().ok().map(|document| document.version);
        let taken = verified.and_then(|document| {
            let version_now = document.version;
            self.apply(document)?;
            self.refused = None;
            let failed = |error: AgentError| NotTaken::Failed(version_now, error.to_string());
            self.home.keep_document(signed).map_err(failed)
        });
        match taken {
            Ok(()) => {
                if let Some(version) = version {
                    tracing::info!("document {version}: applied");
                }
                self.look().await;
            }
            Err(NotTaken::Foreign(reason)) => {
                tracing::warn!("a document is not taken: {reason}");
                return None;
            }
            Err(NotTaken::Refused(version, reason)) => {
                tracing::warn!("document {version} is refused: {reason}");
                self.refused = Some(RefusedDocument { version, reason });
            }
            Err(NotTaken::Failed(version, reason)) => {
                tracing::warn!("document {version}: {reason}");
                self.refused = Some(RefusedDocument { version, reason });
                self.changed();
                return None;
            }
        }
        self.changed();
        version
    }

    /// Checks who signed a document, whom it is for, and that it is newer.
    fn verify(&self, signed: &SignedDocument) -> Result<Document, NotTaken> {
        let verified = signed.verify(&self.membership.identity);
        let document =
            verified.map_err(|error: MessageError| NotTaken::Foreign(error.to_string()))?;
        if document.host != self.membership.host {
            let (host, own) = (&document.host, &self.membership.host);
            return Err(NotTaken::Foreign(format!("it is for host `{host}`, not `{own}`")));
        }
        if let Some(applied) = self.applied().filter(|applied| document.version <= *applied) {
            let version = document.version;
            return Err(NotTaken::Foreign(format!("version {version} is not above {applied}")));
        }
        Ok(document)
    }

    /// Checks a document by the ceiling and puts it into effect.
    fn apply(&mut self, document: Document) -> Result<(), NotTaken> {
        let refused = |error: String| NotTaken::Refused(document.version, error);
        let ceiling = self.ceiling().map_err(|error| refused(error.to_string()))?;
        ceiling.allows(&document).map_err(|error| refused(error.to_string()))?;
        let is_used_up = ceiling.is_used_up(self.spent.sent());
        let bounded = ceiling.bounded(&document, is_used_up);
        let bounded = bounded.map_err(|error| refused(error.to_string()))?;
        // Before a process that logs there starts.
        self.sources.sessions.expect(&bounded);
        self.listen_for_sessions();
        let failed = |error: AgentError| NotTaken::Failed(document.version, error.to_string());
        make_folder(&self.home.data(), &bounded).map_err(failed)?;
        let applied = self.supervisor.apply(&bounded, Instant::now());
        applied.map_err(failed)?;
        self.sources.packets.watch(&bounded, &self.sources.sessions);
        self.sources.passive.observer().watch(&document.watched, document.responder_port);
        (self.document, self.is_used_up) = (Some(document), is_used_up);
        Ok(())
    }

    /// Returns the owner's ceiling, or that of the host's role where there is none.
    fn ceiling(&self) -> Result<Ceiling, AgentError> {
        Ok(self.home.ceiling()?.unwrap_or_else(|| Ceiling::of_role(&self.membership.role)))
    }

    /// Listens for the ends of sessions, where a gateway tells them.
    fn listen_for_sessions(&mut self) {
        if let Err(error) = self.sources.sessions.listen(&self.home.data()) {
            self.sessions_trouble.say(error.to_string());
        }
    }

    /// Looks after the processes and the responder.
    async fn look(&mut self) {
        let port = self.document.as_ref().map_or(0, |document| document.responder_port);
        if let Err(error) = self.responder.listen(port).await {
            self.responder_trouble.say(error.to_string());
        }
        self.listen_for_sessions();
        if self.supervisor.look(Instant::now()) {
            self.changed();
        }
        self.sources.learners.expect(self.home.data(), self.supervisor.learners());
    }

    /// Has a change reported, and written where `tradewind agent status` reads it.
    fn changed(&mut self) {
        self.next_report = self.next_report.min(Instant::now() + MIN_BETWEEN_REPORTS);
        self.write_status();
    }

    fn keep(&mut self, result: ProbeResult) {
        self.results.push(result);
        if self.results.len() > MAX_RESULTS && self.sent.is_none() {
            self.results.remove(0);
        }
        self.next_report = self.next_report.min(Instant::now() + MIN_BETWEEN_REPORTS);
    }

    /// Returns when the next report is due; `None` while one is on its way.
    fn report_due(&self) -> Option<Instant> {
        self.sent.is_none().then_some(self.next_report)
    }

    fn report(&mut self) -> Report {
        self.sent = Some(self.results.len());
        // A change from now on is due after the outcome of this one.
        self.next_report = Instant::now() + self.report_every();
        Report {
            schema_version: SCHEMA_VERSION,
            agent_version: AGENT_VERSION.to_owned(),
            config_version: CONFIG_VERSION,
            applied: self.applied(),
            refused: self.refused.clone(),
            processes: self.supervisor.statuses(),
            results: self.results.clone(),
            sessions: self.sources.sessions.batch(),
            passive: self.sources.passive.observer().report(),
            learners: self.sources.learners.reports(),
            bounds: self.bounds(),
        }
    }

    fn report_every(&self) -> Duration {
        let every = self.document.as_ref().map(|document| document.report_every_ms);
        every.map_or(REPORT_EVERY, Duration::from_millis).max(MIN_BETWEEN_REPORTS)
    }

    /// Takes the outcome of a report; returns whether the controller has answered.
    fn was_reported(&mut self, outcome: Result<ReportAnswer, LinkError>) -> bool {
        let sent = self.sent.take().unwrap_or_default();
        let was_linked = self.is_linked;
        self.is_linked = outcome.is_ok();
        match outcome {
            Ok(answer) => {
                self.backoff.succeed();
                self.link_trouble = Trouble::default();
                self.sources.sessions.acknowledge();
                self.sources.passive.observer().acknowledge();
                for result in self.results.drain(..sent) {
                    self.sources.probes.forget(result.id);
                }
                let most = self.ceiling().map_or(0, |ceiling| ceiling.initial_window);
                self.sources.learners.share(&answer.shared, most);
                self.start(answer.probes);
            }
            Err(error) => {
                let controller = self.membership.controller;
                self.link_trouble.say(format!("controller {controller}: {error}"));
                self.next_report = Instant::now() + self.backoff.fail(entropy());
            }
        }
        if self.is_linked != was_linked {
            self.write_status();
        }
        self.is_linked
    }

    fn write_status(&self) {
        let status = Status {
            schema_version: 1,
            host: self.membership.host.clone(),
            controller: self.membership.controller,
            is_linked: self.is_linked,
            applied: self.applied(),
            refused: self.refused.clone(),
            processes: self.supervisor.statuses(),
        };
        if let Err(error) = self.home.set_status(&status) {
            tracing::warn!("{error}");
        }
    }
}
