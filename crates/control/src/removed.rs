//! Flows that tenants had lately: whose word counts for what is told of them yet, and whose it is.

use std::collections::BTreeMap;

use tradewind_units::{FlowId, Money, SiteId};

use crate::packet_flow::PacketTally;
use crate::record::Record;
use crate::state::State;
use crate::tenant::{Removed, Tenant, TenantId};

/// Returns whether a gateway of a site may tell of a flow's sessions: one that comes from there, or
/// that a tenant had there lately.
pub(crate) fn may_tell(state: &State, flow: &FlowId, site: &SiteId) -> bool {
    let left = |tenant: &Tenant| {
        tenant.removed.get(flow).is_some_and(|removed| removed.from.contains(site))
    };
    state.flows.get(flow).is_some_and(|flow| flow.from == *site) || state.tenants.values().any(left)
}

/// Returns whether a flow was a tenant's lately, so that what relays carry of it is the tenant's.
pub(crate) fn was_removed(state: &State, flow: &FlowId) -> bool {
    state.tenants.values().any(|tenant| tenant.removed.contains_key(flow))
}

/// Packet flows that tenants had lately, for what their gateways tell of them yet.
pub(crate) struct RemovedFlows<'a> {
    state: &'a State,
    day: u64,
    changed: BTreeMap<TenantId, Tenant>,
}

impl<'a> RemovedFlows<'a> {
    pub(crate) const fn new(state: &'a State, day: u64) -> Self {
        Self { state, day, changed: BTreeMap::new() }
    }

    /// Charges packets that a gateway tells of to the tenant whose flow it had at that address, and
    /// returns their cost.
    pub(crate) fn charge(&mut self, site: &SiteId, tally: &PacketTally) -> Money {
        let is_it = |removed: &&Removed| {
            let is_there = removed.packets.is_some_and(|it| it.listen == tally.listen);
            is_there && removed.from.contains(site)
        };
        let has_it = |tenant: &&Tenant| tenant.removed.values().any(|removed| is_it(&removed));
        let Some(known) = self.state.tenants.values().find(has_it) else { return Money::ZERO };
        let tenant = self.changed.entry(known.id.clone()).or_insert_with(|| known.clone());
        let packets = tenant.removed.values_mut().find(|removed| is_it(&&**removed));
        let Some(packets) = packets.and_then(|removed| removed.packets.as_mut()) else {
            return Money::ZERO;
        };
        let usd = tally.counts.usd.min(packets.most);
        packets.most = packets.most.checked_sub(usd).unwrap_or_default();
        tenant.settle(self.day, usd);
        usd
    }

    pub(crate) fn into_records(self, records: &mut Vec<Record>) {
        records.extend(self.changed.into_values().map(Record::Tenant));
    }
}
