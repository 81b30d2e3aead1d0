//! Slots of UDP flows, shared by all sources.
//!
//! A flow keeps its slot however long it is idle. Each source may hold as many slots as are still
//! free; one that has its share evicts its flow that has been idle longest.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::time::Instant;
use tradewind_units::Source;

use tradewind_config::Share;
use tradewind_stream::limits::quota::{Members, Slot};

/// Most flows of all associations together. Chosen: each holds two queues and a descriptor.
const MAX_FLOWS: usize = 1024;

/// All slots.
#[derive(Debug)]
pub(super) struct FlowSlots {
    flows: Arc<Members<Source>>,
    in_use: Mutex<InUse>,
}

/// The occupied slots, by source and number.
#[derive(Debug, Default)]
struct InUse {
    next: u64,
    held: BTreeMap<(Source, u64), Arc<SlotState>>,
}

/// The slot of one flow, freed on drop.
#[derive(Debug)]
pub(super) struct FlowSlot {
    slots: Arc<FlowSlots>,
    key: (Source, u64),
    held: Arc<SlotState>,
}

/// The state of a flow in its slot.
#[derive(Debug)]
pub(super) struct SlotState {
    last: Mutex<Instant>,
    /// Absent once the flow is evicted.
    place: Mutex<Option<Slot<Source>>>,
    leave: Notify,
}

impl FlowSlots {
    pub(super) fn new() -> Self {
        let flows = Members::sharing(MAX_FLOWS, Share::default());
        Self { flows, in_use: Mutex::default() }
    }

    /// Returns a slot for a flow of `source`, and whether another flow of that source was evicted
    /// for it; `None` if there is no free slot and that source has no flow to evict.
    pub(super) fn enter(self: &Arc<Self>, source: Source) -> Option<(FlowSlot, bool)> {
        let mut in_use = lock(&self.in_use);
        let (place, has_evicted) = match self.flows.enter(source, None) {
            Some(place) => (place, false),
            None => {
                let of_source = in_use.held.range((source, 0)..=(source, u64::MAX));
                let oldest = of_source.min_by_key(|(_, held)| held.last());
                let oldest = oldest.map(|(key, _)| *key)?;
                in_use.held.remove(&oldest)?.give_up();
                (self.flows.enter(source, None)?, true)
            }
        };
        let (last, place) = (Mutex::new(Instant::now()), Mutex::new(Some(place)));
        let held = Arc::new(SlotState { last, place, leave: Notify::new() });
        let key = (source, in_use.next);
        in_use.next += 1;
        in_use.held.insert(key, Arc::clone(&held));
        Some((FlowSlot { slots: Arc::clone(self), key, held }, has_evicted))
    }
}

impl FlowSlot {
    pub(super) fn held(&self) -> &Arc<SlotState> {
        &self.held
    }
}

impl Drop for FlowSlot {
    fn drop(&mut self) {
        lock(&self.slots.in_use).held.remove(&self.key);
        lock(&self.held.place).take();
    }
}

impl SlotState {
    /// Notes activity.
    pub(super) fn touch(&self) {
        *lock(&self.last) = Instant::now();
    }

    /// Returns the time of the last activity.
    pub(super) fn last(&self) -> Instant {
        *lock(&self.last)
    }

    /// Waits until the flow is evicted.
    pub(super) async fn is_left(&self) {
        self.leave.notified().await;
    }

    fn give_up(&self) {
        lock(&self.place).take();
        self.leave.notify_one();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns flows of one source up to its share; it can have no more of them.
    fn full(slots: &Arc<FlowSlots>, source: Source) -> Vec<FlowSlot> {
        let enter = |_| slots.enter(source).filter(|(_, has_evicted)| !has_evicted);
        (0..MAX_FLOWS / 2).map_while(enter).map(|(slot, _)| slot).collect()
    }

    fn source(last: u8) -> Source {
        Source::of([192, 0, 2, last].into())
    }

    #[test]
    fn one_source_leaves_slots_to_others() {
        let slots = Arc::new(FlowSlots::new());
        let held = full(&slots, source(1));
        assert_eq!(held.len(), MAX_FLOWS / 2);
        let (_mine, has_evicted) = slots.enter(source(1)).unwrap();
        assert!(has_evicted, "it had its share");
        let (_other, has_evicted) = slots.enter(source(2)).unwrap();
        assert!(!has_evicted);
        drop(held);
        assert!(!slots.enter(source(1)).unwrap().1);
    }

    #[test]
    fn longest_idle_flow_is_evicted() {
        let slots = Arc::new(FlowSlots::new());
        let held = full(&slots, source(1));
        let touched = held.iter().enumerate().filter(|(place, _)| *place != 7);
        touched.for_each(|(_, slot)| slot.held().touch());
        let (_newest, has_evicted) = slots.enter(source(1)).unwrap();
        assert!(has_evicted);
        let gone = held.iter().map(|slot| lock(&slot.held.place).is_none());
        let gone: Vec<usize> = gone.enumerate().filter(|(_, it)| *it).map(|(at, _)| at).collect();
        assert_eq!(gone, [7]);
    }
}
