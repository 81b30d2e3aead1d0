//! The sessions that the host's relay carried, by flow and neighbours.

use std::collections::BTreeMap;

use tradewind_control::message::RelayTally;
use tradewind_grant::PublicIdentity;
use tradewind_units::FlowId;

use crate::sessions::MAX_TALLIES;

type Key = (FlowId, PublicIdentity, Option<PublicIdentity>);

/// The figures of a session that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Carried {
    /// Bytes towards the destination.
    pub(crate) up: u64,
    /// Bytes towards the gateway.
    pub(crate) down: u64,
    pub(crate) ended_in_order: bool,
}

/// The tallies of a relay's sessions.
#[derive(Debug)]
pub(crate) struct Relayed(BTreeMap<Key, RelayTally>);

impl Relayed {
    pub(crate) const fn new() -> Self {
        Self(BTreeMap::new())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds a session; false if there is no room for another flow or neighbour.
    pub(crate) fn add(
        &mut self,
        flow: &FlowId,
        from: PublicIdentity,
        next: Option<PublicIdentity>,
        carried: Carried,
    ) -> bool {
        let key = (flow.clone(), from, next);
        if self.0.len() >= MAX_TALLIES && !self.0.contains_key(&key) {
            return false;
        }
        let tally = self.0.entry(key).or_insert_with_key(|(flow, from, next)| RelayTally {
            flow: flow.clone(),
            from: *from,
            next: *next,
            sessions: 0,
            failed: 0,
            bytes_up: 0,
            bytes_down: 0,
        });
        let count = if carried.ended_in_order { &mut tally.sessions } else { &mut tally.failed };
        *count += 1;
        tally.bytes_up = tally.bytes_up.saturating_add(carried.up);
        tally.bytes_down = tally.bytes_down.saturating_add(carried.down);
        true
    }

    /// Takes all tallies.
    pub(crate) fn take(&mut self) -> Vec<RelayTally> {
        std::mem::take(&mut self.0).into_values().collect()
    }
}
