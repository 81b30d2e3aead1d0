//! What happened, for metrics: one set of counters a worker, so that no two threads write to one.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),+ $(,)?) => {
        /// One worker's counters.
        #[derive(Debug, Default)]
        pub struct Counts { $($(#[$doc])* pub(crate) $name: AtomicU64),+ }

        /// Counters at one time.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub struct Snapshot { $($(#[$doc])* pub $name: u64),+ }

        impl Counts {
            /// The counters now.
            #[must_use]
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.$name.load(Ordering::Relaxed)),+ }
            }
        }

        impl Snapshot {
            /// The sums.
            #[must_use]
            pub fn plus(self, other: Self) -> Self {
                Self { $($name: self.$name + other.$name),+ }
            }

            /// Names and values.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name)),+].into_iter()
            }
        }
    };
}

counters! {
    /// Datagrams from neighbours.
    received,
    /// Datagrams to neighbours.
    sent,
    /// Datagrams to neighbours that did not leave: buffer full, too long, or no route.
    unsent,
    /// Datagrams that the kernel dropped because they were not fetched in time.
    overrun,
    /// Packets passed on from one neighbour to the next.
    forwarded,
    /// Packets of applications that were sealed for a far endpoint.
    taken,
    /// Packets of applications that could not be sent: no session yet, too many flows, or too long.
    refused,
    /// Packets handed to applications.
    delivered,
    /// Copies of packets that had arrived before, and replays.
    duplicates,
    /// Datagrams dropped for another reason.
    dropped,
    /// Overlay paths that answer, as of the last second.
    paths_up,
}

pub(crate) fn add(counter: &AtomicU64, count: u64) {
    // One thread writes: no need for a locked addition.
    counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
}
