//! What is due when.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tradewind_units::Timestamp;

/// Lanes. Chosen: a machine has a few spans after which something is due.
const LANES: usize = 4;

/// Deadlines with what they are for; equal ones in the order of their keys, so that a run is the
/// same each time.
///
/// Nothing is taken back: whoever set a deadline that no longer holds ignores it when it is due.
///
/// Most deadlines are set a fixed span ahead, so that those of one span come in their order: they
/// wait in a lane for each such span, at whose ends they are set and taken. What fits no lane waits
/// in a heap.
#[derive(Debug, Clone)]
pub(crate) struct Timers<K> {
    lanes: [VecDeque<(Timestamp, K)>; LANES],
    heap: BinaryHeap<Reverse<(Timestamp, K)>>,
}

impl<K: Ord> Default for Timers<K> {
    fn default() -> Self {
        Self { lanes: [(); LANES].map(|()| VecDeque::new()), heap: BinaryHeap::new() }
    }
}

impl<K: Ord + Copy> Timers<K> {
    /// Sets a deadline.
    pub(crate) fn set(&mut self, at: Timestamp, key: K) {
        // The nearest below: a lane of shorter spans is left to these.
        let (mut nearest, mut empty) = (None, None);
        for (place, lane) in self.lanes.iter().enumerate() {
            match lane.back() {
                Some(last) if is_before(&(at, key), last) => {}
                Some(last) => nearest = nearest.max(Some((last.0, place))),
                None => empty = Some(place),
            }
        }
        match nearest.map(|(_, place)| place).or(empty) {
            Some(place) => self.lanes[place].push_back((at, key)),
            None => self.heap.push(Reverse((at, key))),
        }
    }

    /// The lane, or the heap, that has the first deadline, and that.
    fn look(&self) -> Option<(usize, &(Timestamp, K))> {
        let mut first = self.heap.peek().map(|Reverse(first)| (LANES, first));
        for (place, lane) in self.lanes.iter().enumerate() {
            if let Some(front) = lane.front()
                && first.is_none_or(|(_, first)| is_before(front, first))
            {
                first = Some((place, front));
            }
        }
        first
    }

    /// The first deadline.
    pub(crate) fn first(&self) -> Option<(Timestamp, K)> {
        self.look().map(|(_, first)| *first)
    }

    /// Takes the first deadline if it is due.
    pub(crate) fn pop_due(&mut self, now: Timestamp) -> Option<(Timestamp, K)> {
        let (place, _) = self.look().filter(|(_, first)| first.0 <= now)?;
        match self.lanes.get_mut(place) {
            Some(lane) => lane.pop_front(),
            None => self.heap.pop().map(|Reverse(first)| first),
        }
    }
}

/// Whether one deadline comes before another: keys are long, and looked at where times are the
/// same.
fn is_before<K: Ord>(one: &(Timestamp, K), other: &(Timestamp, K)) -> bool {
    one.0 < other.0 || (one.0 == other.0 && one.1 < other.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn it_agrees_with_a_heap(
            steps in prop::collection::vec((0..20_u64, 0..7_usize, 0..100_u64, any::<u8>()),
                1..300),
        ) {
            let (mut timers, mut heap) = (Timers::default(), BinaryHeap::new());
            let mut now = 0;
            for (passed, span, other, key) in steps {
                now += passed;
                let spans = [10, 30, 60, 150, 150, 1000, other];
                let at = Timestamp::from_nanos(now + spans[span]);
                timers.set(at, key);
                heap.push(Reverse((at, key)));
                let is_due = |first: &Reverse<(Timestamp, u8)>| first.0.0.as_nanos() <= now;
                while heap.peek().is_some_and(is_due) {
                    let expected = heap.pop().map(|Reverse(first)| first);
                    prop_assert_eq!(timers.pop_due(Timestamp::from_nanos(now)), expected);
                }
                prop_assert_eq!(timers.pop_due(Timestamp::from_nanos(now)), None);
                prop_assert_eq!(timers.first(), heap.peek().map(|Reverse(first)| *first));
            }
        }
    }

    #[test]
    fn what_is_set_a_fixed_span_ahead_needs_no_heap() {
        let mut timers = Timers::default();
        for now in 0..1000_u64 {
            for span in [20, 30, 60] {
                timers.set(Timestamp::from_nanos(now + span), span);
            }
            while timers.pop_due(Timestamp::from_nanos(now)).is_some() {}
        }
        assert!(timers.heap.is_empty());
    }
}
