//! A worker: what one thread shares among its sessions, and the room it has for them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use tradewind_grant::DestinationRule;

use crate::access_log::{AccessLog, Goes, Record};
use crate::config::{Limits, Share};
use crate::counts::{Counts, DirectionCounts, Outcome};
use crate::memory::Memory;
use crate::pump::{GiveWay, Means};
use crate::quota::{Members, Meter, Place, Rate, Source};
use crate::session::Session;
use crate::stock::Stock;
use crate::stripe::LEAST_TO_STRIPE;

/// What one thread shares among its sessions.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) stock: Stock,
    pub(crate) counts: Counts,
    give_way: GiveWay,
    room: Arc<Room>,
    emptied: Notify,
    /// Whether what is new is no longer this worker's.
    leaving: watch::Sender<bool>,
    strangers: Mutex<Strangers>,
}

/// Connections whose peers have not shown yet that they may be here, oldest first.
#[derive(Debug, Default)]
struct Strangers {
    next_number: u64,
    waiting: BTreeMap<u64, AbortHandle>,
    /// Those turned out whose tasks have not ended yet.
    turned_out: BTreeSet<u64>,
}

/// The room of the whole process.
#[derive(Debug)]
pub(crate) struct Room {
    most_open: usize,
    most_unauthenticated: usize,
    /// Connections beyond the limits that are heard so that they can be told.
    most_guests: usize,
    open: AtomicUsize,
    unauthenticated: AtomicUsize,
    guests: AtomicUsize,
    rate: Option<Arc<Rate>>,
    memory: Option<Arc<Memory>>,
    /// Who is bound by a share for each source; absent when there is none.
    sources: Option<Arc<Members<Source>>>,
    trusted_sources: Vec<DestinationRule>,
    /// Where sessions are told of at their end.
    access_log: Option<Arc<AccessLog>>,
}

impl Room {
    /// Room for at most `most_open` sessions.
    pub(crate) fn new(
        limits: &Limits,
        most_open: usize,
        access_log: Option<Arc<AccessLog>>,
    ) -> Self {
        /// Chosen: enough that a client which comes again and again reads why; the rest is reset at once.
        const MOST_GUESTS: usize = 64;
        let by_source = limits.each_source != Share::default();
        Self {
            most_open,
            most_unauthenticated: limits.unauthenticated,
            most_guests: MOST_GUESTS.min(most_open / 8),
            open: AtomicUsize::new(0),
            unauthenticated: AtomicUsize::new(0),
            guests: AtomicUsize::new(0),
            rate: limits.rate.map(|rate| Arc::new(Rate::new(rate))),
            memory: limits.memory.map(|limit| Memory::new(limit, most_open)),
            sources: by_source.then(|| Members::new(limits.each_source)),
            trusted_sources: limits.trusted_sources.clone(),
            access_log,
        }
    }

    /// A place for `peer` among its source's sessions; none is needed without a limit.
    fn place_of(&self, peer: SocketAddr) -> Result<Option<Place<Source>>, Outcome> {
        let Some(sources) = &self.sources else { return Ok(None) };
        if self.trusted_sources.iter().any(|rule| rule.covers_source(peer.ip())) {
            return Ok(None);
        }
        let place = sources.enter(Source::of(peer.ip()), None);
        place.map(Some).ok_or(Outcome::SourceFull)
    }

    /// What binds a connection of `peer` that comes now, or why there is no room for it. A guest is
    /// counted apart.
    fn admit(&self, peer: SocketAddr) -> Result<Option<Place<Source>>, Outcome> {
        if self.open.fetch_add(1, Relaxed) >= self.most_open {
            self.open.fetch_sub(1, Relaxed);
            return Err(Outcome::Full);
        }
        self.place_of(peer).inspect_err(|_| {
            self.open.fetch_sub(1, Relaxed);
        })
    }
}

impl Worker {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self {
            stock: Stock::new(),
            counts: Counts::default(),
            give_way: GiveWay::default(),
            room,
            emptied: Notify::new(),
            leaving: watch::Sender::new(false),
            strangers: Mutex::default(),
        }
    }

    /// Gives a connection that was just accepted its seat; `None` when there is no room.
    ///
    /// Where strangers have taken all the room that they get, the one that has waited longest here is
    /// turned out for the new one. Who may be here shows it within a round trip or two, so who
    /// dawdles is turned out first, however many they are.
    ///
    /// A few connections beyond the limits get a seat with a refusal, to hear it.
    pub(crate) fn seat(self: &Arc<Self>, peer: SocketAddr) -> Option<Seat> {
        self.counts.accepted();
        let room = &self.room;
        let unauthenticated = room.unauthenticated.fetch_add(1, Relaxed);
        self.counts.open.fetch_add(1, Relaxed);
        let (source, refusal) = match room.admit(peer) {
            Ok(source) => (source, None),
            Err(refusal) => (None, Some(refusal)),
        };
        let mut seat = Seat {
            worker: Arc::clone(self),
            number: self.next_stranger(),
            authenticated: false,
            refusal,
            source,
            record: room.access_log.as_ref().map(|log| Record::new(log, peer)),
            outcome: Outcome::Cut,
        };
        if let Some(refusal) = refusal
            && room.guests.fetch_add(1, Relaxed) >= room.most_guests
        {
            seat.outcome = refusal;
            return None;
        }
        let is_crowded = unauthenticated >= room.most_unauthenticated;
        if is_crowded && !self.turn_out_oldest_stranger() {
            seat.outcome = Outcome::Full;
            return None;
        }
        Some(seat)
    }

    /// Bytes that wait in sessions, where they are limited.
    pub(crate) fn held_bytes(&self) -> Option<usize> {
        self.room.memory.as_ref().map(|memory| memory.held())
    }

    /// Whether there is memory for another striped leg.
    pub(crate) fn may_stripe(&self) -> bool {
        may_stripe_within(self.room.memory.as_ref())
    }

    /// Says which task serves the stranger of this seat, before it first runs.
    pub(crate) fn serve_stranger(&self, seat_number: u64, task: AbortHandle) {
        self.strangers().waiting.insert(seat_number, task);
    }

    fn next_stranger(&self) -> u64 {
        let mut strangers = self.strangers();
        strangers.next_number += 1;
        strangers.next_number
    }

    /// False when none waits here.
    fn turn_out_oldest_stranger(&self) -> bool {
        let mut strangers = self.strangers();
        let Some((number, task)) = strangers.waiting.pop_first() else { return false };
        strangers.turned_out.insert(number);
        task.abort();
        true
    }

    fn strangers(&self) -> std::sync::MutexGuard<'_, Strangers> {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an upstream direction moves with.
    pub(crate) fn means_up(&self) -> Means<'_> {
        self.means(&self.counts.up)
    }

    /// What a downstream direction moves with.
    pub(crate) fn means_down(&self) -> Means<'_> {
        self.means(&self.counts.down)
    }

    fn means<'a>(&'a self, counts: &'a DirectionCounts) -> Means<'a> {
        let Self { stock, give_way, room, .. } = self;
        Means { stock, counts, give_way, memory: room.memory.as_ref() }
    }

    /// From now on connections that could serve for something new end instead.
    pub(crate) fn leave(&self) {
        self.leaving.send_replace(true);
    }

    /// Whether what is new is no longer this worker's.
    pub(crate) fn is_leaving(&self) -> bool {
        *self.leaving.borrow()
    }

    /// Waits until that is so.
    pub(crate) async fn leaving(&self) {
        let mut told = self.leaving.subscribe();
        // The sender lives as long as the worker.
        let _gone = told.wait_for(|leaving| *leaving).await;
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

/// Whether `memory` has room for another striped leg, where it is limited.
pub(crate) fn may_stripe_within(memory: Option<&Arc<Memory>>) -> bool {
    memory.is_none_or(|memory| memory.free() >= LEAST_TO_STRIPE)
}

/// One connection's place in its worker. It counts the connection's outcome when it is given up:
/// cut, unless something else was said.
#[derive(Debug)]
pub(crate) struct Seat {
    worker: Arc<Worker>,
    /// Its place in the order of arrival at the worker.
    number: u64,
    authenticated: bool,
    /// Why it is only here to be told that there is no room.
    refusal: Option<Outcome>,
    /// Its place among its source's sessions, where these are limited.
    source: Option<Place<Source>>,
    /// What it is to be told as at its end; absent without an access log.
    record: Option<Arc<Record>>,
    outcome: Outcome,
}

impl Seat {
    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Its place in the order of arrival at the worker.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    /// The peer has shown that it may be here.
    pub(crate) fn authenticated(&mut self) {
        if !self.authenticated {
            self.authenticated = true;
            self.worker.strangers().waiting.remove(&self.number);
            self.worker.room.unauthenticated.fetch_sub(1, Relaxed);
        }
    }

    /// Why there is no room for it, if there is none; it is to be told.
    pub(crate) const fn refusal(&self) -> Option<Outcome> {
        self.refusal
    }

    /// Binds `session` by the rates and the memory that are its, if there are any.
    pub(crate) fn bind(&self, session: &mut Session) {
        if let Some(record) = &self.record {
            session.up.record(record, Goes::Up);
            session.down.record(record, Goes::Down);
        }
        let by_grant = session.place.as_ref();
        session.memory = self.memory(by_grant.and_then(|place| place.memory.clone()));
        let rates = self.rates(by_grant.and_then(|place| place.rate.clone()));
        if !rates.is_empty() {
            for direction in [&mut session.up, &mut session.down] {
                direction.bind(Meter::through(&rates, direction.moved()));
            }
        }
    }

    /// The memory that binds a connection, if any does.
    pub(crate) fn memory(&self, by_grant: Option<Arc<Memory>>) -> Option<Arc<Memory>> {
        let by_source = self.source.as_ref().and_then(|place| place.memory.clone());
        let memory = [self.worker.room.memory.clone(), by_source, by_grant];
        Memory::joint(memory.into_iter().flatten().collect())
    }

    /// The rates that bind a connection.
    pub(crate) fn rates(&self, by_grant: Option<Arc<Rate>>) -> Vec<Arc<Rate>> {
        let by_source = self.source.as_ref().and_then(|place| place.rate.clone());
        [self.worker.room.rate.clone(), by_source, by_grant].into_iter().flatten().collect()
    }

    /// What its session is to be told as.
    pub(crate) const fn record(&self) -> Option<&Arc<Record>> {
        self.record.as_ref()
    }

    /// Gives the place up after `outcome`.
    pub(crate) fn leave(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.authenticated();
        if self.worker.strangers().turned_out.remove(&self.number) {
            self.outcome = Outcome::Full;
        }
        self.worker.counts.outcome(self.outcome);
        self.record.iter().for_each(|record| record.finish(self.outcome));
        let room = &self.worker.room;
        let taken = if self.refusal.is_some() { &room.guests } else { &room.open };
        taken.fetch_sub(1, Relaxed);
        if self.worker.counts.open.fetch_sub(1, Relaxed) == 1 {
            self.worker.emptied.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counts::Snapshot;

    #[test]
    fn a_connection_without_room_is_turned_away_and_counted() {
        let limits = Limits { sessions: 2, unauthenticated: 1, ..Limits::default() };
        let peer = "192.0.2.1:1".parse().unwrap();
        let worker = Arc::new(Worker::new(Arc::new(Room::new(&limits, limits.sessions, None))));
        let mut first = worker.seat(peer).unwrap();
        assert!(worker.seat(peer).is_none(), "one is not authenticated yet");
        first.authenticated();
        let second = worker.seat(peer).unwrap();
        assert!(worker.seat(peer).is_none(), "two are open");
        second.leave(Outcome::Ended);
        drop(first);
        let sum = Snapshot::of([&worker.counts].into_iter());
        assert_eq!((sum.accepted, sum.open), (4, 0));
        assert_eq!((sum.outcome("full"), sum.outcome("ended"), sum.outcome("cut")), (2, 1, 1));
    }
}
