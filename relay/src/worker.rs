//! A worker: what one thread shares among its sessions, and the room it has for them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::config::Limits;
use crate::counts::{Counts, Outcome};
use crate::pump::Means;
use crate::stock::Stock;

/// What one thread shares among its sessions.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) stock: Stock,
    pub(crate) counts: Counts,
    room: Arc<Room>,
    emptied: Notify,
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
    open: AtomicUsize,
    unauthenticated: AtomicUsize,
}

impl Room {
    /// Room for at most `most_open` sessions.
    pub(crate) fn new(limits: &Limits, most_open: usize) -> Self {
        Self {
            most_open,
            most_unauthenticated: limits.unauthenticated,
            open: AtomicUsize::new(0),
            unauthenticated: AtomicUsize::new(0),
        }
    }
}

impl Worker {
    pub(crate) fn new(room: Arc<Room>) -> Self {
        Self {
            stock: Stock::new(),
            counts: Counts::default(),
            room,
            emptied: Notify::new(),
            strangers: Mutex::default(),
        }
    }

    /// Gives a connection that was just accepted its seat; `None` when there is no room.
    ///
    /// Where strangers have taken all the room that they get, the one that has waited longest here is
    /// turned out for the new one. Who may be here shows it within a round trip or two, so who
    /// dawdles is turned out first, however many they are.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Seat> {
        self.counts.accepted();
        let room = &self.room;
        let open = room.open.fetch_add(1, Relaxed);
        let unauthenticated = room.unauthenticated.fetch_add(1, Relaxed);
        self.counts.open.fetch_add(1, Relaxed);
        let number = self.next_stranger();
        let worker = Arc::clone(self);
        let mut seat = Seat { worker, number, authenticated: false, outcome: Outcome::Cut };
        let is_crowded = unauthenticated >= room.most_unauthenticated;
        if open >= room.most_open || (is_crowded && !self.turn_out_oldest_stranger()) {
            seat.outcome = Outcome::Full;
            return None;
        }
        Some(seat)
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
        Means { stock: &self.stock, counts: &self.counts.up }
    }

    /// What a downstream direction moves with.
    pub(crate) fn means_down(&self) -> Means<'_> {
        Means { stock: &self.stock, counts: &self.counts.down }
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

/// One connection's place in its worker. It counts the connection's outcome when it is given up:
/// cut, unless something else was said.
#[derive(Debug)]
pub(crate) struct Seat {
    worker: Arc<Worker>,
    /// Its place in the order of arrival at the worker.
    number: u64,
    authenticated: bool,
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
        self.worker.room.open.fetch_sub(1, Relaxed);
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
        let limits = Limits { sessions: 2, unauthenticated: 1, backlog: 1 };
        let worker = Arc::new(Worker::new(Arc::new(Room::new(&limits, limits.sessions))));
        let mut first = worker.seat().unwrap();
        assert!(worker.seat().is_none(), "one is not authenticated yet");
        first.authenticated();
        let second = worker.seat().unwrap();
        assert!(worker.seat().is_none(), "two are open");
        second.leave(Outcome::Ended);
        drop(first);
        let sum = Snapshot::of([&worker.counts].into_iter());
        assert_eq!((sum.accepted, sum.open), (4, 0));
        assert_eq!((sum.outcome("full"), sum.outcome("ended"), sum.outcome("cut")), (2, 1, 1));
    }
}
