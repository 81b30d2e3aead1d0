//! The predicted speedups of flows, by day.

use std::collections::BTreeMap;
use std::sync::Arc;

use tradewind_units::FlowId;

use crate::record::{DAYS_IN_MEMORY, DayPredicted};

/// The rows of the newest [`DAYS_IN_MEMORY`]. Copies share the days that they have in common.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PredictedDays(BTreeMap<u64, Arc<BTreeMap<FlowId, DayPredicted>>>);

impl PredictedDays {
    /// Returns the row of a flow in a day.
    #[must_use]
    pub fn get(&self, day: u64, flow: &FlowId) -> Option<&DayPredicted> {
        self.0.get(&day)?.get(flow)
    }

    /// Returns the rows of each day before one, by flow, oldest first.
    pub(crate) fn days_before(
        &self,
        day: u64,
    ) -> impl DoubleEndedIterator<Item = &BTreeMap<FlowId, DayPredicted>> {
        self.0.range(..day).map(|(_, rows)| rows.as_ref())
    }

    /// Returns all rows, oldest first.
    pub fn rows(&self) -> impl Iterator<Item = &DayPredicted> {
        self.0.values().flat_map(|rows| rows.values())
    }

    /// Adds a row, or replaces it, and drops the days that are too old beside the newest.
    pub(crate) fn set(&mut self, row: DayPredicted) {
        let rows = self.0.entry(row.day).or_default();
        Arc::make_mut(rows).insert(row.flow.clone(), row);
        while self.0.len() > DAYS_IN_MEMORY {
            self.0.pop_first();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_days_are_kept() {
        let mut days = PredictedDays::default();
        for day in 1..=40 {
            let flow = FlowId::new("a").unwrap();
            days.set(DayPredicted { day, flow, classes: Vec::new() });
        }
        let known: Vec<u64> = days.rows().map(|row| row.day).collect();
        assert_eq!(known, (10..=40).collect::<Vec<_>>());
    }
}
