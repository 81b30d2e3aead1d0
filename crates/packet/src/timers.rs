//! A queue of timers.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use tradewind_units::Timestamp;

/// The number of lanes. Chosen: a machine has a few timeouts of different lengths.
const LANES: usize = 4;

/// Deadlines with their keys; equal ones in the order of the keys, so that runs are reproducible.
///
/// Deadlines cannot be cancelled: the owner ignores one that no longer holds when it is due.
///
/// Most deadlines are set a fixed span ahead, so that those of one span are in order: they wait in
/// a lane for each span, which is pushed at one end and popped at the other. Deadlines that fit no
/// lane wait in a heap.
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
        // The lane with the latest end that fits, so that lanes of shorter spans stay in use for
        // these.
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

    /// Returns the lane, or the heap, that has the first deadline, and the deadline.
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

    /// Returns the first deadline.
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

/// Returns whether one deadline is before another. Keys are compared only at equal times, since
/// they are long.
fn is_before<K: Ord>(one: &(Timestamp, K), other: &(Timestamp, K)) -> bool {
    one.0 < other.0 || (one.0 == other.0 && one.1 < other.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn timers_agree_with_heap(
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
    fn fixed_span_timers_need_no_heap() {
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
