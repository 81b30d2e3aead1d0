//! A worker: the resources that the sessions of one thread share, and the limits that all workers
//! share.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tradewind_grant::{DestinationRule, PublicIdentity};
use tradewind_telemetry::LogLimit;
use tradewind_units::eviction::Holder;
use tradewind_units::{Source, Timestamp};

use crate::access_log::Record;
use crate::access_log::record::Sinks;
use crate::counts::{Counts, DirectionCounts, Outcome};
use crate::limits::admission::{Admission, NotAdmitted, Stage};
use crate::limits::memory::Memory;
use crate::limits::quota::{Members, Rate, Slot, rate_of};
use crate::process::live::Live;
use crate::session::authorization::{Authorization, Authorizations, SessionAuthorization};
use crate::session::buffer_pool::BufferPool;
use crate::session::pump::{IoContext, Yielding};
use crate::stripe::may_stripe_within;
use tradewind_config::{Limits, Share};

/// The resources that the sessions of one thread share.
#[derive(Debug)]
pub struct Worker {
    /// The buffers that its sessions share.
    pub buffer_pool: BufferPool,
    /// The counts of its sessions.
    pub counts: Counts,
    yielding: Yielding,
    limits: Arc<SharedLimits>,
    emptied: Notify,
    /// Set once this worker takes no new sessions.
    leaving: watch::Sender<bool>,
}

/// The limits that all workers of a process share, and their use.
#[derive(Debug)]
pub(crate) struct SharedLimits {
    admission: Mutex<Admission<AbortHandle>>,
    rate: Mutex<Option<Arc<Rate>>>,
    /// Set once memory is limited, and then as long as the process runs.
    memory: OnceLock<Arc<Memory>>,
    /// The sources that have a share each.
    sources: Arc<Members<Source>>,
    bound_sources: Live<BoundSources>,
    /// The outputs of sessions that have ended.
    sinks: Option<Arc<Sinks>>,
    lines: LogLimit<Cause>,
}

/// The sources that are limited to a share.
#[derive(Debug)]
struct BoundSources {
    /// True if there is a share for each.
    has_share: bool,
    /// The sources that are exempt.
    trusted: Vec<DestinationRule>,
}

impl BoundSources {
    fn of(limits: &Limits) -> Self {
        let has_share = limits.each_source != Share::default();
        Self { has_share, trusted: limits.trusted_sources.clone() }
    }
}

/// The peer that causes a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cause {
    /// The peer at this source.
    Source(Source),
    /// A gateway, whichever neighbour brings its sessions.
    Gateway(PublicIdentity),
}

impl SharedLimits {
    /// Creates the limits of a process with at most `most_sessions` sessions.
    pub(crate) fn new(limits: &Limits, most_sessions: usize, sinks: Option<Arc<Sinks>>) -> Self {
        let memory = OnceLock::new();
        if let Some(limit) = limits.memory {
            let _first = memory.set(Memory::new(limit, most_sessions));
        }
        Self {
            admission: Mutex::new(Admission::new(most_sessions, limits.unauthenticated)),
            rate: Mutex::new(limits.rate.map(|rate| Arc::new(Rate::new(rate)))),
            memory,
            sources: Members::new(limits.each_source),
            bound_sources: Live::new(BoundSources::of(limits)),
            sinks,
            lines: LogLimit::new(),
        }
    }

    /// Changes the limits. Open sessions go on even above the new limit; rates and memory limits
    /// apply to those that they applied to before.
    pub(crate) fn set(&self, limits: &Limits, most_sessions: usize) {
        match (self.memory.get(), limits.memory) {
            (Some(memory), limit) => memory.set(limit, most_sessions),
            (None, Some(limit)) => {
                let _first = self.memory.set(Memory::new(limit, most_sessions));
            }
            (None, None) => {}
        }
        let mut rate = self.rate.lock().unwrap_or_else(PoisonError::into_inner);
        *rate = rate_of(rate.as_ref(), limits.rate);
        drop(rate);
        self.sources.set(None, limits.each_source);
        self.bound_sources.replace(BoundSources::of(limits));
        let evicted = self.lock().set(most_sessions, limits.unauthenticated);
        evicted.iter().for_each(AbortHandle::abort);
    }

    /// Returns the rate of all sessions together, if that is limited.
    fn rate(&self) -> Option<Arc<Rate>> {
        self.rate.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn holder(&self, peer: IpAddr) -> Holder {
        let bound = self.bound_sources.current();
        let is_trusted = bound.trusted.iter().any(|rule| rule.covers_source(peer));
        Holder { is_trusted, source: Source::of(peer) }
    }

    /// Takes a place among the sessions of a source; none is needed without a limit.
    fn place_of(&self, holder: Holder) -> Result<Option<Slot<Source>>, Outcome> {
        if holder.is_trusted || !self.bound_sources.current().has_share {
            return Ok(None);
        }
        self.sources.enter(holder.source, None).map(Some).ok_or(Outcome::SourceFull)
    }

    /// Runs `act` on the admission, and ends the connection that it evicts.
    fn admission<E>(
        &self,
        act: impl FnOnce(&mut Admission<AbortHandle>) -> Result<Option<AbortHandle>, E>,
    ) -> Result<(), E> {
        let evicted = act(&mut self.lock())?;
        if let Some(task) = evicted {
            task.abort();
        }
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Admission<AbortHandle>> {
        self.admission.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Worker {
    pub(crate) fn new(limits: Arc<SharedLimits>) -> Self {
        Self {
            buffer_pool: BufferPool::default(),
            counts: Counts::default(),
            yielding: Yielding::default(),
            limits,
            emptied: Notify::new(),
            leaving: watch::Sender::new(false),
        }
    }

    /// Returns the permit of a connection that was just accepted. It is unauthenticated, and counts
    /// as such from [`Worker::serve`] on.
    pub(crate) fn permit(self: &Arc<Self>, peer: SocketAddr) -> Permit {
        self.counts.accepted();
        self.counts.open.fetch_add(1, Relaxed);
        Permit {
            worker: Arc::clone(self),
            number: self.limits.lock().number(),
            holder: self.limits.holder(peer.ip()),
            stage: Stage::Unauthenticated,
            source: None,
            gateway: None,
            task: None,
            authorization: None,
            record: self.limits.sinks.as_ref().map(|sinks| Record::new(sinks, peer)),
            outcome: Outcome::Cut,
        }
    }

    /// Registers the task that serves the connection with this number, before it first runs. If
    /// there are too many unauthenticated connections, one is evicted: see [`Admission`].
    pub(crate) fn serve(&self, (number, holder): (u64, Holder), task: AbortHandle) {
        let arrive = |admission: &mut Admission<_>| {
            Ok::<_, Infallible>(admission.arrive(number, holder, task))
        };
        let Ok(()) = self.limits.admission(arrive);
    }

    /// Returns the rate limit of log lines that peers cause.
    pub fn lines(&self) -> &LogLimit<Cause> {
        &self.limits.lines
    }

    /// Returns the bytes that wait in sessions, where they are limited.
    pub(crate) fn held_bytes(&self) -> Option<usize> {
        self.limits.memory.get().map(|memory| memory.held())
    }

    /// Returns true if there is memory for another striped leg.
    pub fn may_stripe(&self) -> bool {
        may_stripe_within(self.limits.memory.get())
    }

    /// Returns the I/O context of an upstream direction.
    pub fn up_context(&self) -> IoContext<'_> {
        self.io_context(&self.counts.up)
    }

    /// Returns the I/O context of a downstream direction.
    pub fn down_context(&self) -> IoContext<'_> {
        self.io_context(&self.counts.down)
    }

    fn io_context<'a>(&'a self, counts: &'a DirectionCounts) -> IoContext<'a> {
        let Self { buffer_pool, yielding, limits, .. } = self;
        IoContext { buffer_pool, counts, yielding, memory: limits.memory.get() }
    }

    /// Has connections that could serve a new session end instead from now on.
    pub(crate) fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Returns true if this worker takes no new sessions.
    pub fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Waits until this worker takes no new sessions.
    pub async fn leaving(&self) {
        let mut receiver = self.leaving.subscribe();
        // The sender lives as long as the worker.
        let _gone = receiver.wait_for(|leaving| *leaving).await;
    }

    /// Waits until this worker serves no connection.
    pub(crate) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            if self.counts.open.load(Relaxed) == 0 {
                return;
            }
            emptied.await;
        }
    }
}

/// One connection's permit. When it is dropped it counts the connection's outcome: cut, unless
/// another was set.
#[derive(Debug)]
pub struct Permit {
    worker: Arc<Worker>,
    /// Its place in the order of arrival.
    number: u64,
    holder: Holder,
    stage: Stage,
    /// Its place among its source's sessions, if these are limited.
    source: Option<Slot<Source>>,
    /// Its place among its gateway's sessions, at relays.
    gateway: Option<Slot<PublicIdentity>>,
    /// The task that serves it, from its admission until it is authorized.
    task: Option<AbortHandle>,
    /// Its entry among the authorized sessions, at relays.
    authorization: Option<Authorization>,
    /// Its record for the access log and traces; absent without either.
    record: Option<Arc<Record>>,
    outcome: Outcome,
}

impl Permit {
    /// Returns the worker that serves the connection.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Returns its place in the order of arrival, and its source.
    pub(crate) const fn arrival(&self) -> (u64, Holder) {
        (self.number, self.holder)
    }

    /// Returns the source address of the connection.
    pub const fn source(&self) -> Source {
        self.holder.source
    }

    /// Admits the connection among the sessions, since its peer is authenticated; `gateway` is its
    /// place among those of its gateway, at relays.
    ///
    /// # Errors
    /// The reason that there is no place. The connection stays as it was, so that it can get the
    /// reason and may be evicted.
    pub fn admit(&mut self, gateway: Option<Slot<PublicIdentity>>) -> Result<(), Outcome> {
        self.advance(Stage::Admitted)?;
        self.gateway = gateway;
        Ok(())
    }

    /// Marks the connection as resting, in a place from which it may be evicted, since its
    /// neighbour has sent its hello.
    pub fn rest(&mut self) -> Result<(), Outcome> {
        self.advance(Stage::Resting)
    }

    fn advance(&mut self, to: Stage) -> Result<(), Outcome> {
        let (number, from) = (self.number, self.stage);
        let limits = &self.worker.limits;
        if self.source.is_none() {
            self.source = limits.place_of(self.holder)?;
        }
        let mut task = None;
        let admitted = limits.admission(|admission| match to {
            Stage::Resting => admission.rest(number),
            Stage::Unauthenticated | Stage::Admitted => {
                task = admission.task(number, from).cloned();
                admission.admit(number, from)
            }
        });
        admitted.map_err(|refused| match refused {
            NotAdmitted::Full => Outcome::Full,
            NotAdmitted::Evicted => Outcome::Evicted,
        })?;
        self.stage = to;
        self.task = task;
        Ok(())
    }

    /// Enters its session among those that may be revoked and expire: the task that serves it is
    /// aborted then.
    pub fn authorize(
        &mut self,
        sessions: &Arc<Authorizations>,
        unix: Timestamp,
        basis: Arc<SessionAuthorization>,
    ) {
        if let Some(task) = self.task.take() {
            self.authorization = Some(sessions.enter(unix, basis, task));
        }
    }

    /// Returns the memory limit of a connection, if there is one.
    pub fn memory(&self, by_grant: Option<Arc<Memory>>) -> Option<Arc<Memory>> {
        let by_source = self.source.as_ref().and_then(|place| place.memory.clone());
        let by_gateway = self.gateway.as_ref().and_then(|place| place.memory.clone());
        let memory = [self.worker.limits.memory.get().cloned(), by_source, by_gateway, by_grant];
        Memory::joint(memory.into_iter().flatten().collect())
    }

    /// Returns the rates of a connection.
    pub fn rates(&self, by_grant: Option<Arc<Rate>>) -> Vec<Arc<Rate>> {
        let by_source = self.source.as_ref().and_then(|place| place.rate.clone());
        let by_gateway = self.gateway.as_ref().and_then(|place| place.rate.clone());
        let rates = [self.worker.limits.rate(), by_source, by_gateway, by_grant];
        rates.into_iter().flatten().collect()
    }

    /// Returns its record for the access log and traces.
    pub const fn record(&self) -> Option<&Arc<Record>> {
        self.record.as_ref()
    }

    /// Drops the permit with `outcome`.
    pub(crate) fn leave(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.worker.limits.lock().leave(self.number, self.stage) {
            self.outcome = Outcome::Evicted;
        }
        let ended_by_rules = self.authorization.take().and_then(Authorization::leave);
        self.outcome = ended_by_rules.unwrap_or(self.outcome);
        self.worker.counts.outcome(self.outcome);
        self.record.iter().for_each(|record| record.finish(self.outcome));
        if self.worker.counts.open.fetch_sub(1, Relaxed) == 1 {
            self.worker.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Snapshot;

    /// Returns a permit of `worker`, which a task serves that only an eviction ends.
    fn arrive(worker: &Arc<Worker>, peer: &str) -> (Permit, tokio::task::JoinHandle<()>) {
        let permit = worker.permit(peer.parse().unwrap());
        let task = tokio::spawn(std::future::pending());
        worker.serve(permit.arrival(), task.abort_handle());
        (permit, task)
    }

    #[tokio::test]
    async fn eviction_order_spans_workers() {
        let limits = Limits { sessions: 2, unauthenticated: 2, ..Limits::default() };
        let limits = Arc::new(SharedLimits::new(&limits, limits.sessions, None));
        let workers = [(); 2].map(|()| Arc::new(Worker::new(Arc::clone(&limits))));
        let (idle, evicted) = arrive(&workers[0], "192.0.2.9:1");
        let (_other, _) = arrive(&workers[0], "192.0.2.9:2");
        // At a worker that has none of them.
        let (mut first, _) = arrive(&workers[1], "192.0.2.1:1");
        assert!(evicted.await.unwrap_err().is_cancelled());
        assert_eq!(first.admit(None), Ok(()));
        drop(idle);
        let (mut second, _) = arrive(&workers[1], "192.0.2.1:2");
        assert_eq!(second.admit(None), Ok(()));
        let (mut third, _) = arrive(&workers[1], "192.0.2.1:3");
        assert_eq!(third.admit(None), Err(Outcome::Full), "two are open");
        second.leave(Outcome::Ended);
        assert_eq!(third.admit(None), Ok(()));
        drop(first);
        let sum = Snapshot::of(workers.iter().map(|worker| &worker.counts));
        assert_eq!((sum.accepted, sum.open), (5, 2));
        assert_eq!((sum.outcome("evicted"), sum.outcome("ended"), sum.outcome("cut")), (1, 1, 1));
    }
}
