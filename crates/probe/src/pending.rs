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

/// A place, with what tells its holder to leave it.
#[derive(Debug)]
struct PendingConnection {
    source: Source,
    evict: oneshot::Sender<()>,
}

/// A place; it is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct PendingSlot {
    pending: Arc<Pending>,
    number: u64,
}

/// The result of taking a place.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The place.
    pub(crate) place: PendingSlot,
    /// Resolves when the place is to be left for others.
    pub(crate) evicted: oneshot::Receiver<()>,
    /// The source that has lost a place for it, if one has.
    pub(crate) displaced: Option<Source>,
}

impl Pending {
    /// Creates `most` places, all free.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    /// Takes a place for a connection from `address`.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Admission {
        let source = Source::of(address);
        let (evict, evicted) = oneshot::channel();
        let mut state = self.state();
        state.next_number += 1;
        let number = state.next_number;
        let holder = Holder { is_trusted: false, source };
        state.queue.insert(number, holder, PendingConnection { source, evict });
        let is_crowded = state.queue.len() > self.most;
        let oldest = is_crowded.then(|| state.queue.evict()).flatten();
        drop(state);
        let displaced = oldest.map(|pending| {
            // One that has just left needs no word.
            let _gone = pending.evict.send(());
            pending.source
        });
        Admission { place: PendingSlot { pending: Arc::clone(self), number }, evicted, displaced }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PendingSlot {
    fn drop(&mut self) {
        self.pending.state().queue.remove(self.number);
    }
}

/// Waits until a place is to be left for others; for ever, once it is free.
pub(crate) async fn until_evicted(evicted: oneshot::Receiver<()>) {
    if evicted.await.is_err() {
        std::future::pending::<()>().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_place_of_largest_source_is_evicted() {
        let pending = Pending::new(3);
        let take = |last: u8| pending.take([192, 0, 2, last].into());
        let (mut first, mut second, mut third) = (take(1), take(1), take(1));
        assert_eq!(third.displaced, None);
        let Admission { place, mut evicted, displaced } = take(2);
        assert_eq!(displaced, Some(Source::of([192, 0, 2, 1].into())));
        assert_eq!(first.evicted.try_recv(), Ok(()));
        drop(place);
        assert_eq!(evicted.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        let fourth = take(2);
        assert_eq!(fourth.displaced, None, "a place was free");
        assert!(second.evicted.try_recv().is_err() && third.evicted.try_recv().is_err());
    }
}
