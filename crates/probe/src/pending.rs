//! Connections that have not shown their purpose: the source that holds most of them pays for the
//! next one with its oldest.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;
use tradewind_units::Source;
use tradewind_units::eviction::{EvictionQueue, Holder};

/// The places of connections that have not shown their purpose.
#[derive(Debug)]
pub(crate) struct Pending {
    most: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next_number: u64,
    queue: EvictionQueue<PendingConnection>,
}

/// A place as its holder is told to leave it.
#[derive(Debug)]
struct PendingConnection {
    source: Source,
    leave: oneshot::Sender<()>,
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    pending: Arc<Pending>,
    number: u64,
}

impl Pending {
    /// Creates `most` places, all free.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    /// Takes a place for a connection from `address`. Returns it, what tells when it is to be left
    /// for others, and the source that has lost a place for it, if one has.
    pub(crate) fn take(
        self: &Arc<Self>,
        address: IpAddr,
    ) -> (Place, oneshot::Receiver<()>, Option<Source>) {
        let source = Source::of(address);
        let (leave, left) = oneshot::channel();
        let mut state = self.state();
        state.next_number += 1;
        let number = state.next_number;
        let holder = Holder { is_trusted: false, source };
        state.queue.insert(number, holder, PendingConnection { source, leave });
        let is_crowded = state.queue.len() > self.most;
        let evicted = is_crowded.then(|| state.queue.evict()).flatten();
        drop(state);
        let loser = evicted.map(|pending| {
            // One that has just left needs no word.
            let _gone = pending.leave.send(());
            pending.source
        });
        (Place { pending: Arc::clone(self), number }, left, loser)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.pending.state().queue.remove(self.number);
    }
}

/// Waits until a place is to be left for others; for ever, once it is free.
pub(crate) async fn evicted(left: oneshot::Receiver<()>) {
    if left.await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_that_holds_most_pays_with_its_oldest() {
        let pending = Pending::new(3);
        let take = |last: u8| pending.take([192, 0, 2, last].into());
        let (_first, mut first_left, _) = take(1);
        let (_second, mut second_left, _) = take(1);
        let (_third, mut third_left, loser) = take(1);
        assert_eq!(loser, None);
        let (other, mut other_left, loser) = take(2);
        assert_eq!(loser, Some(Source::of([192, 0, 2, 1].into())));
        assert_eq!(first_left.try_recv(), Ok(()));
        drop(other);
        assert_eq!(other_left.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let (_fourth, _left, loser) = take(2);
        assert_eq!(loser, None, "a place was free");
        assert!(second_left.try_recv().is_err() && third_left.try_recv().is_err());
    }
}
