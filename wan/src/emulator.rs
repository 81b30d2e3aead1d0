//! The emulator's core: segments in, deliveries out, in virtual time.

use std::marker::PhantomData;

use tradewind_units::{Duration, Timestamp};

use crate::{Admission, Bundle, ChangeError, Counters, Delivery, PairChange, topology::Topology};

/// An emulated network of hosts. See the crate's words for its contract.
#[derive(Debug)]
pub struct Wan<P> {
    content: PhantomData<P>,
}

impl<P: Clone> Wan<P> {
    /// A network at rest, at time zero.
    #[must_use]
    pub fn new(topology: &Topology, seed: u64) -> Self {
        let _ = (topology, seed);
        todo!()
    }

    /// Sets how far apart the segments of one delivery may be due (250 us unless set).
    pub fn set_coalesce(&mut self, span: Duration) {
        let _ = span;
        todo!()
    }

    /// Lets a bundle enter at `now`. Times must not go back from call to call.
    pub fn push(&mut self, now: Timestamp, bundle: Bundle<P>) -> Admission {
        let _ = (now, bundle);
        todo!()
    }

    /// When to call [`Self::pop_due`] next; `None` when nothing is on its way.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Timestamp> {
        todo!()
    }

    /// The next delivery that is due at `now` or was before; call until it returns `None`.
    pub fn pop_due(&mut self, now: Timestamp) -> Option<Delivery<P>> {
        let _ = now;
        todo!()
    }

    /// Alters a pair of sites at `now`.
    ///
    /// # Errors
    /// When the change names an unknown site or a value that the pair cannot take.
    pub fn apply(&mut self, now: Timestamp, change: &PairChange) -> Result<(), ChangeError> {
        let _ = (now, change);
        todo!()
    }

    /// The counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        todo!()
    }
}
