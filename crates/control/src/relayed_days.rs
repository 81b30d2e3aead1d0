//! The rows of what relays carried, by day.
//!
//! Copies share the days that they have in common, as a draft is made of a copy of the state: a row
//! of today copies the rows of today at most.

use std::collections::BTreeMap;
use std::sync::Arc;

use tradewind_units::{FlowId, RelayId};

use crate::record::{DAYS_IN_MEMORY, DayRelayed};

/// The rows of the newest [`DAYS_IN_MEMORY`], by day, flow and relay.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayedDays(BTreeMap<u64, Arc<Rows>>);

/// The rows of one day.
type Rows = BTreeMap<(FlowId, RelayId), DayRelayed>;

impl RelayedDays {
    /// Returns the row of a flow and relay in a day.
    #[must_use]
    pub fn get(&self, day: u64, flow: &FlowId, relay: &RelayId) -> Option<&DayRelayed> {
        self.0.get(&day)?.get(&(flow.clone(), relay.clone()))
    }

    /// Returns the rows from a day on, oldest first.
    pub fn since(&self, first: u64) -> impl Iterator<Item = &DayRelayed> {
        self.0.range(first..).flat_map(|(_, rows)| rows.values())
    }

    /// Returns the rows of a flow in a day.
    pub(crate) fn of_flow<'a>(
        &'a self,
        day: u64,
        flow: &'a FlowId,
    ) -> impl Iterator<Item = &'a DayRelayed> {
        let first = (flow.clone(), RelayId::new("0").expect("a digit is a name"));
        let rows = self.0.get(&day).into_iter().flat_map(move |rows| rows.range(first.clone()..));
        rows.map(|(_, row)| row).take_while(move |row| row.flow == *flow)
    }

    /// Adds a row, or replaces it, and drops the days that are too old beside the newest.
    pub(crate) fn set(&mut self, row: DayRelayed) {
        let rows = self.0.entry(row.day).or_default();
        Arc::make_mut(rows).insert((row.flow.clone(), row.relay.clone()), row);
        let newest = self.0.last_key_value().map_or(0, |(newest, _)| *newest);
        while let Some(oldest) = self.0.first_entry()
            && oldest.key().saturating_add(DAYS_IN_MEMORY as u64) <= newest
        {
            oldest.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(day: u64, flow: &str, relay: &str) -> DayRelayed {
        DayRelayed::new(day, FlowId::new(flow).unwrap(), RelayId::new(relay).unwrap())
    }

    fn days(rows: &RelayedDays) -> Vec<u64> {
        rows.since(0).map(|row| row.day).collect()
    }

    #[test]
    fn newest_days_are_kept() {
        let mut rows = RelayedDays::default();
        for day in 1..=40 {
            rows.set(row(day, "a", "r"));
        }
        assert_eq!(days(&rows), (10..=40).collect::<Vec<_>>());
        // One of long ago, and one after a gap.
        rows.set(row(9, "a", "r"));
        assert_eq!(rows.since(0).count(), DAYS_IN_MEMORY);
        rows.set(row(69, "a", "r"));
        assert_eq!(days(&rows), [39, 40, 69]);
        assert_eq!(rows.since(40).count(), 2);
    }

    #[test]
    fn rows_are_found_by_day_and_flow() {
        let mut rows = RelayedDays::default();
        let all = [(1, "a", "r"), (1, "b", "r"), (1, "b", "s"), (1, "c", "r"), (2, "b", "r")];
        for (day, flow, relay) in all {
            rows.set(row(day, flow, relay));
        }
        let flow = FlowId::new("b").unwrap();
        let relays = rows.of_flow(1, &flow).map(|row| row.relay.as_str());
        assert_eq!(relays.collect::<Vec<_>>(), ["r", "s"]);
        assert_eq!(rows.of_flow(3, &flow).count(), 0);
        assert!(rows.get(2, &flow, &RelayId::new("r").unwrap()).is_some());
        assert!(rows.get(2, &flow, &RelayId::new("s").unwrap()).is_none());
    }

    #[test]
    fn copies_share_days_before() {
        let mut rows = RelayedDays::default();
        rows.set(row(1, "a", "r"));
        rows.set(row(2, "a", "r"));
        let mut copy = rows.clone();
        copy.set(row(2, "b", "r"));
        assert!(Arc::ptr_eq(&rows.0[&1], &copy.0[&1]));
        assert!(!Arc::ptr_eq(&rows.0[&2], &copy.0[&2]));
        assert_eq!((days(&rows), days(&copy)), (vec![1, 2], vec![1, 2, 2]));
    }
}
