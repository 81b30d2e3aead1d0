//! A worker: what one thread shares among its sessions, and the room it has for them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::sync::Notify;

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
        Self { stock: Stock::new(), counts: Counts::default(), room, emptied: Notify::new() }
    }

    /// Gives a connection that was just accepted its seat; `None` when there is no room.
    pub(crate) fn seat(self: &Arc<Self>) -> Option<Seat> {
        self.counts.accepted();
        let room = &self.room;
        let open = room.open.fetch_add(1, Relaxed);
        let unauthenticated = room.unauthenticated.fetch_add(1, Relaxed);
        self.counts.open.fetch_add(1, Relaxed);
        let mut seat =
            Seat { worker: Arc::clone(self), authenticated: false, outcome: Outcome::Cut };
        if open >= room.most_open || unauthenticated >= room.most_unauthenticated {
            seat.outcome = Outcome::Full;
            return None;
        }
        Some(seat)
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
    authenticated: bool,
    outcome: Outcome,
}

impl Seat {
    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The peer has shown that it may be here.
    pub(crate) fn authenticated(&mut self) {
        if !self.authenticated {
            self.authenticated = true;
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
