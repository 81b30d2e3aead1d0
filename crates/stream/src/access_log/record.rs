//! The record of one session, which is filled for the access log and traces while it is served.
//!
//! The code that serves a session notes facts; the task that serves the connection holds the record
//! ([`note`]), so that the parts of a session need not pass it on to each other. With neither
//! access log nor traces nothing is held or noted.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::time::Instant;
use tradewind_grant::{Destination, GrantId, PublicIdentity, Status};
use tradewind_units::{Duration, FlowId, Ratio, Timestamp};

use super::in_words;
use crate::counts::Outcome;
use crate::session::pump::Broken;
use crate::traces::TraceFacts;

tokio::task_local! {
    /// The record of the connection that the task serves.
    static RECORD: Option<Arc<Record>>;
}

/// Runs `serve`, which [`note`]s into `record`. This is no `async` function, since that would hold
/// `serve` twice: as its argument, and as what it awaits.
pub fn recorded<T>(
    record: Option<Arc<Record>>,
    serve: impl Future<Output = T>,
) -> impl Future<Output = T> {
    RECORD.scope(record, serve)
}

/// Notes something of the session that the current task serves, if it is recorded.
pub fn note(note: impl FnOnce(&mut SessionFacts)) {
    let _unserved =
        RECORD.try_with(|record| record.as_ref().map(|record| note(&mut record.facts())));
}

/// Counts bytes of the session that the current task serves, if it is recorded.
pub fn count(goes: Goes, bytes: u64) {
    let _unserved =
        RECORD.try_with(|record| record.as_ref().map(|record| record.moved(goes, bytes)));
}

/// A direction of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Goes {
    /// Away from the side that dialled this process.
    Up = 1,
    /// Towards it.
    Down = 2,
}

/// The arm of a session in the comparison of paths over relays with the direct one. It stays
/// whatever path the session takes in the end, so that failures of its path count in its arm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// The first path of its route, which is over relays.
    Overlay,
    /// Drawn by lot to go direct instead.
    Control,
}

impl Arm {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Overlay => "overlay",
            Self::Control => "control",
        }
    }
}

/// An output of sessions that have ended.
pub(crate) trait SessionSink: std::fmt::Debug + Send + Sync {
    /// Takes a session that is over. Returns at once.
    fn session_ended(&self, record: &Record, outcome: Outcome);
}

/// The outputs of a process's sessions.
#[derive(Debug)]
pub(crate) struct Sinks {
    sinks: Vec<Arc<dyn SessionSink>>,
    /// The share of sessions that are traced.
    traced: Ratio,
}

impl Sinks {
    /// Creates the outputs, where a share of sessions is `traced`; `None` if there are none.
    pub(crate) fn of(sinks: Vec<Arc<dyn SessionSink>>, traced: Ratio) -> Option<Arc<Self>> {
        (!sinks.is_empty()).then(|| Arc::new(Self { sinks, traced }))
    }
}

/// The record of one session.
#[derive(Debug)]
pub struct Record {
    sinks: Arc<Sinks>,
    pub(crate) source: SocketAddr,
    pub(crate) begun: Instant,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    /// The time of the first byte downstream, in microseconds from the beginning; 0 before.
    first_byte_us: AtomicU64,
    /// The direction that ended first; 0 before.
    ended_first: AtomicU8,
    facts: Mutex<SessionFacts>,
}

/// The facts of a session beside its byte counts.
#[derive(Debug, Default)]
pub struct SessionFacts {
    /// The flow, once it is known.
    pub flow: Option<FlowId>,
    /// Its destination; until that is known it is no session.
    pub destination: Option<Destination>,
    /// The grant that admits the session.
    pub grant: Option<GrantId>,
    /// The gateway that the session comes from.
    pub gateway: Option<PublicIdentity>,
    /// The number of destinations of its datagrams, if it is an association of SOCKS5.
    pub datagrams_to: Option<usize>,
    /// The neighbour that sent it, at relays.
    pub neighbour: Option<PublicIdentity>,
    /// The relay that it is passed on to, at relays; none at the last one.
    pub next: Option<PublicIdentity>,
    /// The user of a proxy, by whose name and password it was admitted.
    pub user: Option<String>,
    /// The client's address, if a PROXY header or the like reported it.
    pub client: Option<SocketAddr>,
    /// Relays by name, or `direct`, at gateways; at relays the next hop, or the destination's
    /// address.
    pub path: Option<String>,
    /// The arm that it belongs to, at gateways; none if it goes direct by plan, or if its route's
    /// first path is known to be down.
    pub arm: Option<Arm>,
    /// The ids and dials of its trace.
    pub trace: TraceFacts,
    /// The cause of its end, and the side.
    pub(crate) cause: Option<String>,
    ended_by: Option<&'static str>,
    timeout: Option<&'static str>,
}

impl SessionFacts {
    /// Notes why the path could not be opened.
    pub fn failed(&mut self, status: Status, message: &str) {
        self.cause = Some(message.to_owned());
        self.trace.end_dial(Some((status, message)));
        let is_farther = matches!(
            status,
            Status::ConnectionRefused
                | Status::Unreachable
                | Status::TimedOut
                | Status::NextHopFailed
                | Status::NameNotFound
        );
        self.ended_by = Some(if is_farther { "downstream" } else { "self" });
        self.timeout = (status == Status::TimedOut).then_some("dial");
    }

    /// Notes why it broke off.
    pub fn broke(&mut self, why: &Broken) {
        self.cause = Some(why.to_string());
        let (by, error) = match why {
            Broken::Upstream(error) => ("upstream", error),
            Broken::Downstream(error) => ("downstream", error),
            Broken::Idle(_) => {
                self.ended_by = Some("self");
                return;
            }
        };
        self.ended_by = Some(by);
        self.timeout = (error.kind() == std::io::ErrorKind::TimedOut).then_some("user");
    }

    /// Notes that the side which gave no answer was probed, and sent nothing.
    pub(crate) fn note_keepalive(&mut self) {
        self.timeout = Some("keepalive");
    }
}

/// The side that ended a session, and the timeout if one did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) by: &'static str,
    pub(crate) timeout: Option<&'static str>,
}

impl Record {
    /// Creates the record of a connection from `source`, which starts now.
    pub(crate) fn new(sinks: &Arc<Sinks>, source: SocketAddr) -> Arc<Self> {
        let trace = TraceFacts::new(sinks.traced);
        Arc::new(Self {
            sinks: Arc::clone(sinks),
            source,
            begun: Instant::now(),
            bytes_up: AtomicU64::new(0),
            bytes_down: AtomicU64::new(0),
            first_byte_us: AtomicU64::new(0),
            ended_first: AtomicU8::new(0),
            facts: Mutex::new(SessionFacts { trace, ..SessionFacts::default() }),
        })
    }

    /// Creates the record of the next request on the same connection, which starts now.
    pub fn of_next_request(&self) -> Arc<Self> {
        let next = Self::new(&self.sinks, self.source);
        let (client, user) = {
            let facts = self.facts();
            (facts.client, facts.user.clone())
        };
        {
            let mut facts = next.facts();
            (facts.client, facts.user) = (client, user);
        }
        next
    }

    pub(crate) fn facts(&self) -> MutexGuard<'_, SessionFacts> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts bytes that were given to the receiving side.
    pub fn moved(&self, goes: Goes, bytes: u64) {
        if bytes == 0 {
            return;
        }
        if goes == Goes::Up {
            self.bytes_up.fetch_add(bytes, Relaxed);
            return;
        }
        if self.bytes_down.fetch_add(bytes, Relaxed) == 0 {
            let us = u64::try_from(self.begun.elapsed().as_micros()).unwrap_or(u64::MAX);
            self.first_byte_us.store(us.max(1), Relaxed);
        }
    }

    /// Tells the outputs that the session is over.
    pub fn finish(&self, outcome: Outcome) {
        self.sinks.sinks.iter().for_each(|sink| sink.session_ended(self, outcome));
    }

    /// Returns the bytes given to the dialled side, and to the dialling side.
    pub(crate) fn bytes(&self) -> [u64; 2] {
        [self.bytes_up.load(Relaxed), self.bytes_down.load(Relaxed)]
    }

    /// Returns the time from its beginning to the first byte downstream, if there was one.
    pub(crate) fn first_byte(&self) -> Option<Duration> {
        let us = self.first_byte_us.load(Relaxed);
        (us > 0).then(|| Duration::from_micros(us))
    }

    /// Returns the session's line; `None` if the connection had no session.
    pub(super) fn to_line(
        &self,
        program: &str,
        now: Timestamp,
        outcome: Outcome,
    ) -> Option<serde_json::Value> {
        let facts = self.facts();
        let destination = match (&facts.destination, facts.datagrams_to) {
            (None, None) => return None,
            (destination, _) => destination.as_ref().map(ToString::to_string),
        };
        let ending = self.ending(&facts, outcome);
        let [bytes_up, bytes_down] = self.bytes();
        let ms = |span: Duration| span.as_micros() as f64 / 1000.0;
        fn text<T: ToString>(known: Option<&T>) -> Option<String> {
            known.map(T::to_string)
        }
        let mut line = serde_json::json!({
            "time": in_words(now),
            "program": program,
            "kind": "session",
            "trace_id": text(facts.trace.id().as_ref()),
            "flow": text(facts.flow.as_ref()),
            "grant": text(facts.grant.as_ref()),
            "gateway": text(facts.gateway.as_ref()),
            "source": facts.client.unwrap_or(self.source).to_string(),
            "peer": self.source.to_string(),
            "user": facts.user,
            "neighbour": text(facts.neighbour.as_ref()),
            "next": text(facts.next.as_ref()),
            "destination": destination,
            "path": facts.path,
            "arm": facts.arm.map(Arm::name),
            "bytes_up": bytes_up,
            "bytes_down": bytes_down,
            "duration_ms": ms(self.begun.elapsed()),
            "first_byte_ms": self.first_byte().map(ms),
            "outcome": outcome.name(),
            "ended_by": ending.by,
            "timeout": ending.timeout,
            "cause": facts.cause,
        });
        if let Some(count) = facts.datagrams_to {
            line["destinations"] = count.into();
        }
        Some(line)
    }

    /// Returns the side that ended the session, and the timeout if one did.
    pub(crate) fn ending(&self, facts: &SessionFacts, outcome: Outcome) -> Ending {
        let ended_first = self.ended_first.load(Relaxed);
        let half_closed = ended_first != 0;
        let (by, timeout) = match outcome {
            Outcome::Idle => ("self", Some(if half_closed { "half_closed" } else { "idle" })),
            Outcome::Ended if ended_first == Goes::Down as u8 => ("downstream", None),
            Outcome::Ended => ("upstream", None),
            _ => (facts.ended_by.unwrap_or("self"), facts.timeout),
        };
        Ending { by, timeout }
    }
}

/// The part of a session's record that one direction updates.
#[derive(Debug, Clone)]
pub(crate) struct Follower {
    record: Arc<Record>,
    goes: Goes,
}

impl Follower {
    /// Creates the follower of a direction that has moved `moved` bytes so far.
    pub(crate) fn new(record: &Arc<Record>, goes: Goes, moved: u64) -> Self {
        let follower = Self { record: Arc::clone(record), goes };
        follower.moved(moved);
        follower
    }

    /// Counts bytes that were given to the receiving side.
    pub(crate) fn moved(&self, bytes: u64) {
        self.record.moved(self.goes, bytes);
    }

    /// Notes that the direction has ended in order.
    pub(crate) fn ended(&self) {
        let goes = self.goes as u8;
        let _later = self.record.ended_first.compare_exchange(0, goes, Relaxed, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_session_is_held_once() {
        let serve = async {
            let state = [0_u8; 4096];
            std::future::ready(()).await;
            assert_eq!(state.len(), 4096);
        };
        let bare = size_of_val(&serve);
        assert!(size_of_val(&recorded(None, serve)) < bare + 128);
    }
}
