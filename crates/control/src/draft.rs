//! The records of a decision while they are made, and the state that they would lead to.

use tradewind_units::Timestamp;

use crate::event::Refusal;
use crate::record::{AuditEntry, Record};
use crate::state::State;

/// The actor of what the operator does, in the audit log.
pub(crate) const OPERATOR: &str = "operator";
/// The actor of what the controller does by itself.
pub(crate) const CONTROLLER: &str = "controller";

/// Milliseconds of a day and of an hour.
pub(crate) const DAY_MS: u64 = 86_400_000;
pub(crate) const HOUR_MS: u64 = 3_600_000;

/// A decision while it is made.
pub(crate) struct Draft {
    /// Time now.
    pub(crate) time: Timestamp,
    /// The state with the records so far.
    pub(crate) state: State,
    records: Vec<Record>,
}

impl Draft {
    /// Starts without records.
    pub(crate) fn new(state: &State, time: Timestamp) -> Self {
        Self { time, state: state.clone(), records: Vec::new() }
    }

    /// Returns the time now, in milliseconds since the Unix epoch.
    pub(crate) const fn now(&self) -> u64 {
        unix_ms(self.time)
    }

    /// Makes changes, or none of them if they are refused.
    pub(crate) fn try_to<T>(
        &mut self,
        change: impl FnOnce(&mut Self) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let (state, records) = (self.state.clone(), self.records.len());
        let changed = change(self);
        if changed.is_err() {
            self.state = state;
            self.records.truncate(records);
        }
        changed
    }

    /// Adds a record.
    pub(crate) fn push(&mut self, record: Record) {
        self.state.apply(record.clone());
        self.records.push(record);
    }

    /// Adds a line of the audit log.
    pub(crate) fn audit(&mut self, actor: &str, action: String) {
        let mut counters = self.state.counters;
        let number = counters.next_audit;
        counters.next_audit += 1;
        self.push(Record::Counters(counters));
        let entry = AuditEntry { number, unix_ms: self.now(), actor: actor.to_owned(), action };
        self.push(Record::Audit(entry));
    }

    /// Returns the number of a new plan.
    pub(crate) fn next_plan(&mut self) -> u64 {
        let mut counters = self.state.counters;
        counters.next_plan += 1;
        self.push(Record::Counters(counters));
        counters.next_plan - 1
    }

    /// Returns the version of a new document.
    pub(crate) fn next_version(&mut self) -> u64 {
        let mut counters = self.state.counters;
        counters.next_version += 1;
        self.push(Record::Counters(counters));
        counters.next_version - 1
    }

    /// Returns the records; of the counters the last one only.
    pub(crate) fn into_records(mut self) -> Vec<Record> {
        let is_counters = |record: &Record| matches!(record, Record::Counters(_));
        let last = self.records.iter().rposition(is_counters);
        let mut index = 0;
        self.records.retain(|record| {
            index += 1;
            !is_counters(record) || Some(index - 1) == last
        });
        self.records
    }
}

/// Returns a time in milliseconds since the Unix epoch.
pub(crate) const fn unix_ms(time: Timestamp) -> u64 {
    time.as_nanos() / 1_000_000
}
