//! The most sessions that were open at once, from when they began and ended.

use std::collections::{BTreeMap, VecDeque};

use super::{HOUR_MS, MAX_TALLIES};

/// Most ends of sessions that are kept of one flow, to tell how many were open at once. Chosen:
/// 2 KB.
const MAX_ENDS: usize = 128;

/// The sessions of one hour that were open when others ended, by flow or destination.
#[derive(Debug)]
pub(super) struct Overlaps<Key> {
    hour: u64,
    /// Of each flow the newest ends, in milliseconds since the Unix epoch, with the number of
    /// sessions that were open just before, and have ended since.
    ends: BTreeMap<Key, VecDeque<(u64, u64)>>,
}

impl<Key: Ord + Clone> Overlaps<Key> {
    pub(super) const fn new() -> Self {
        Self { hour: 0, ends: BTreeMap::new() }
    }

    /// Adds a session that has ended, and returns the most sessions of its flow that were open at
    /// once when one of the hour ended; 0 if there are too many flows.
    pub(super) fn add(&mut self, flow: &Key, began: u64, ended: u64) -> u64 {
        if ended / HOUR_MS != self.hour {
            self.hour = ended / HOUR_MS;
            self.ends.clear();
        }
        if self.ends.len() >= MAX_TALLIES && !self.ends.contains_key(flow) {
            return 0;
        }
        let ends = self.ends.entry(flow.clone()).or_default();
        let meanwhile = ends.iter_mut().rev().take_while(|(end, _)| *end > began);
        meanwhile.for_each(|(_, open)| *open += 1);
        ends.push_back((ended, 1));
        // A long session among very many short ones is missed at those that ended first.
        if ends.len() > MAX_ENDS {
            ends.pop_front();
        }
        ends.iter().map(|(_, open)| *open).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use tradewind_units::FlowId;

    use super::*;

    /// Half past an hour.
    const NOW: u64 = 1_795_003_200_000 + HOUR_MS / 2;

    #[test]
    fn memory_of_open_sessions_is_bounded() {
        let mut overlaps = Overlaps::new();
        let flow = |number: usize| format!("flow-{number}").parse::<FlowId>().unwrap();
        for number in 0..MAX_TALLIES + 2 {
            let most = overlaps.add(&flow(number), NOW, NOW + 1);
            assert_eq!(most, u64::from(number < MAX_TALLIES));
        }
        for at in 2..1000 {
            overlaps.add(&flow(0), NOW + at - 1, NOW + at);
        }
        assert_eq!(overlaps.ends.len(), MAX_TALLIES);
        assert!(overlaps.ends.values().all(|ends| ends.len() <= MAX_ENDS));
        assert_eq!(overlaps.add(&flow(0), NOW, NOW + 1000), 2);
        overlaps.add(&flow(0), NOW, NOW + HOUR_MS);
        assert_eq!(overlaps.ends.len(), 1);
    }
}
