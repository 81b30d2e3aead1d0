//! What open sessions were let in by: asked again when it changes, and a session that it allows no more ends at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tokio::time::Instant;
use tradewind_grant::{Destination, GrantError, Policy, Trust, VerifiedGrant};
use tradewind_units::Timestamp;

use crate::counts::Outcome;

/// What a relay goes by, and a reload replaces.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Whose grants it believes.
    pub(crate) trust: Arc<Trust>,
    /// The file that says what these have revoked.
    pub(crate) revocations: Option<PathBuf>,
    /// What it agrees to dial.
    pub(crate) policy: Policy,
}

/// The connection that a relay has dialled for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Dialled {
    /// To the destination, at this address.
    Destination(SocketAddr),
    /// To the next relay.
    NextHop(SocketAddr),
}

/// What one session was let in by.
#[derive(Debug)]
pub(crate) struct Basis {
    pub(crate) verified: VerifiedGrant,
    pub(crate) destination: Destination,
    pub(crate) dialled: Dialled,
}

/// All open sessions of a relay.
#[derive(Debug, Default)]
pub(crate) struct Authorizations(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    open: BTreeMap<u64, Held>,
    /// When sessions are to end, the next first.
    ends: BTreeSet<(Instant, u64)>,
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Held> {
        let held = self.open.remove(&number)?;
        if let Some(ends) = held.ends {
            self.ends.remove(&(ends, number));
        }
        Some(held)
    }
}

#[derive(Debug)]
struct Held {
    basis: Arc<Basis>,
    /// Absent where that lies beyond all time.
    ends: Option<Instant>,
    end: oneshot::Sender<Outcome>,
}

/// One session's entry, until it is dropped.
#[derive(Debug)]
pub(crate) struct Authorization {
    table: Arc<Authorizations>,
    number: u64,
    ended: oneshot::Receiver<Outcome>,
}

impl Authorizations {
    /// Enters a session, which its grant allows at `unix` since the epoch.
    pub(crate) fn enter(self: &Arc<Self>, unix: Timestamp, basis: Arc<Basis>) -> Authorization {
        let (end, ended) = oneshot::channel();
        // By a clock that does not jump: what the wall clock says later ends no session.
        let ends = Instant::now().checked_add(basis.verified.grant.session_limit(unix));
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.ends.extend(ends.map(|ends| (ends, number)));
        table.open.insert(number, Held { basis, ends, end });
        Authorization { table: Arc::clone(self), number, ended }
    }

    /// Ends every session that `check` refuses now, and returns how many these are.
    pub(crate) fn end_refused(&self, check: impl Fn(&Basis) -> Result<(), GrantError>) -> usize {
        // Workers enter sessions meanwhile; those that come later check themselves.
        let open: Vec<(u64, Arc<Basis>)> = {
            let table = self.lock();
            table.open.iter().map(|(number, held)| (*number, Arc::clone(&held.basis))).collect()
        };
        let mut ended = 0;
        for (number, basis) in open {
            let Err(cause) = check(&basis) else { continue };
            let held = self.lock().remove(number);
            if let Some(held) = held
                && held.end.send(Outcome::Revoked).is_ok()
            {
                tracing::debug!("session to {} ended: {cause}", basis.destination);
                ended += 1;
            }
        }
        ended
    }

    /// Ends every session whose grant has ended by `now`, or that has its greatest age.
    pub(crate) fn end_due(&self, now: Instant) {
        let mut table = self.lock();
        while let Some((ends, number)) = table.ends.first().copied().filter(|(at, _)| *at <= now) {
            table.ends.remove(&(ends, number));
            if let Some(held) = table.remove(number) {
                // A session that has ended meanwhile hears of nothing.
                let _gone = held.end.send(Outcome::Expired);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authorization {
    /// Ready when the session is to end, with what becomes of it.
    pub(crate) fn poll_ended(&mut self, cx: &mut Context<'_>) -> Poll<Outcome> {
        match Pin::new(&mut self.ended).poll(cx) {
            Poll::Ready(Ok(outcome)) => Poll::Ready(outcome),
            // Its entry goes with this alone.
            Poll::Ready(Err(_)) | Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Authorization {
    fn drop(&mut self) {
        drop(self.table.lock().remove(self.number));
    }
}
