//! What open sessions were let in by: asked again when it changes, and a session that it allows no more ends at once.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::oneshot;
use tradewind_grant::{Destination, GrantError, RelayPolicy, Trust, VerifiedGrant};

use crate::counts::Outcome;

/// What a relay goes by, and a reload replaces.
#[derive(Debug)]
pub(crate) struct Rules {
    /// Whose grants it believes.
    pub(crate) trust: Arc<Trust>,
    /// What it agrees to dial.
    pub(crate) policy: RelayPolicy,
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
}

#[derive(Debug)]
struct Held {
    basis: Arc<Basis>,
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
    /// Enters a session.
    pub(crate) fn enter(self: &Arc<Self>, basis: Arc<Basis>) -> Authorization {
        let (end, ended) = oneshot::channel();
        let mut table = self.lock();
        let number = table.next;
        table.next += 1;
        table.open.insert(number, Held { basis, end });
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
            let held = self.lock().open.remove(&number);
            if let Some(held) = held
                && held.end.send(Outcome::Revoked).is_ok()
            {
                tracing::debug!("session to {} ended: {cause}", basis.destination);
                ended += 1;
            }
        }
        ended
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
        drop(self.table.lock().open.remove(&self.number));
    }
}
