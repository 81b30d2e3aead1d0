//! The rules by which open sessions were authorized. When they change every open session is checked
//! again, and one that they no longer allow ends at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::task::AbortHandle;
use tokio::time::Instant;
use tradewind_grant::{Destination, GrantError, Policy, Trust, VerifiedGrant};
use tradewind_units::Timestamp;

use crate::counts::Outcome;

/// The rules of a relay, which a reload replaces.
#[derive(Debug)]
pub struct Rules {
    /// The operators whose grants it accepts.
    pub trust: Arc<Trust>,
    /// The file of what these operators have revoked.
    pub revocations: Option<PathBuf>,
    /// The policy of what it may dial.
    pub policy: Policy,
}

/// The connection that a relay has dialled for a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialled {
    /// To the destination, at this address.
    Destination(SocketAddr),
    /// To the next relay.
    NextHop(SocketAddr),
}

/// The facts by which one session was authorized.
#[derive(Debug)]
pub struct SessionAuthorization {
    /// The grant, verified.
    pub verified: VerifiedGrant,
    /// The destination that the session asks for.
    pub destination: Destination,
    /// The address that was dialled for it.
    pub dialled: Dialled,
}

/// All open sessions of a relay.
#[derive(Debug, Default)]
pub struct Authorizations(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    sessions: BTreeMap<u64, Entry>,
}

#[derive(Debug)]
struct Entry {
    basis: Arc<SessionAuthorization>,
    /// The time at which the session must end; absent if that is beyond the range of the clock.
    ends: Option<Instant>,
    /// The task that serves the session.
    task: AbortHandle,
    /// Cause of its end, if it was ended.
    ended: Option<Outcome>,
}

impl Entry {
    /// Ends the session, unless that is done.
    fn end(&mut self, outcome: Outcome) -> bool {
        if self.ended.is_some() {
            return false;
        }
        self.ended = Some(outcome);
        self.task.abort();
        true
    }
}

/// One session's entry, until it is dropped.
#[derive(Debug)]
pub(crate) struct Authorization {
    table: Arc<Authorizations>,
    number: u64,
}

impl Authorizations {
    /// Enters a session, which `task` serves and its grant allows at `unix` since the epoch.
    pub(crate) fn enter(
        self: &Arc<Self>,
        unix: Timestamp,
        basis: Arc<SessionAuthorization>,
        task: AbortHandle,
    ) -> Authorization {
        // By a monotonic clock: a later jump of the wall clock ends no session.
        let ends = Instant::now().checked_add(basis.verified.grant.session_limit(unix));
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.sessions.insert(number, Entry { basis, ends, task, ended: None });
        Authorization { table: Arc::clone(self), number }
    }

    /// Ends every session that `check` refuses now, and returns how many these are.
    pub fn end_refused(
        &self,
        check: impl Fn(&SessionAuthorization) -> Result<(), GrantError>,
    ) -> usize {
        // Workers enter sessions meanwhile; those that come later check themselves.
        let open: Vec<(u64, Arc<SessionAuthorization>)> = {
            let table = self.lock();
            table
                .sessions
                .iter()
                .map(|(number, entry)| (*number, Arc::clone(&entry.basis)))
                .collect()
        };
        let mut ended = 0;
        for (number, basis) in open {
            let Err(cause) = check(&basis) else { continue };
            let mut table = self.lock();
            let entry = table.sessions.get_mut(&number);
            if entry.is_some_and(|entry| entry.end(Outcome::Revoked)) {
                tracing::debug!("session to {} ended: {cause}", basis.destination);
                ended += 1;
            }
        }
        ended
    }

    /// Ends every session whose grant has ended by `now`, or that has its greatest age.
    pub fn end_expired(&self, now: Instant) {
        let mut table = self.lock();
        for entry in table.sessions.values_mut() {
            if entry.ends.is_some_and(|ends| ends <= now) {
                entry.end(Outcome::Expired);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Authorization {
    /// Takes the session out, and returns why it was ended, if it was.
    pub(crate) fn leave(self) -> Option<Outcome> {
        self.remove().and_then(|entry| entry.ended)
    }

    fn remove(&self) -> Option<Entry> {
        self.table.lock().sessions.remove(&self.number)
    }
}

impl Drop for Authorization {
    fn drop(&mut self) {
        drop(self.remove());
    }
}
