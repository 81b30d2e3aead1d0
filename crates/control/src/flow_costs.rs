//! The cost of flows by day: of what relays sent for them, and their shares of relays' machines.
//!
//! Traffic costs what relays counted, on the day on which they told it. What gateways told of
//! relays that tell nothing themselves costs by that. A session that one side tells before midnight
//! and the other after it costs once.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::{FlowId, Money, RelayId, Timestamp};

use crate::draft::{DAY_MS, unix_ms};
use crate::message::SessionTally;
use crate::prices;
use crate::state::State;
use crate::tenant::CarriedBefore;

/// A flow of a tenant, with what it had carried before.
pub(crate) struct Charged<'a> {
    pub(crate) flow: &'a FlowId,
    pub(crate) before: Option<&'a CarriedBefore>,
}

/// Returns the cost of groups of flows in each of the last `days`, today included.
pub(crate) fn costs_of<'a, K: Ord>(
    state: &State,
    now: Timestamp,
    days: u64,
    groups: impl Iterator<Item = (K, Vec<Charged<'a>>)>,
) -> BTreeMap<K, BTreeMap<u64, Money>> {
    let costs = Costs::new(state, now, days);
    let last = unix_ms(now) / DAY_MS;
    let of_group = |flows: &[Charged<'_>]| {
        let of_flow = |day, it: &Charged<'_>| costs.all_of(day, it.flow, it.before).total();
        let of_day = |day| (day, flows.iter().map(|flow| of_flow(day, flow)).sum());
        (first_day(now, days)..=last).map(of_day).collect()
    };
    groups.map(|(key, flows)| (key, of_group(&flows))).collect()
}

/// Returns the cost of all flows together in each of the last `days`, today included.
pub(crate) fn costs_of_all(state: &State, now: Timestamp, days: u64) -> BTreeMap<u64, FlowCost> {
    let costs = Costs::new(state, now, days);
    let first = first_day(now, days);
    let sessions = state.sessions.range((first, lowest())..).map(|(key, _)| key.clone());
    let packets = state.packets.range((first, lowest())..).map(|(key, _)| key.clone());
    let relayed = state.relayed.since(first).map(|row| (row.day, row.flow.clone()));
    let flows: BTreeSet<(u64, FlowId)> = sessions.chain(packets).chain(relayed).collect();
    let mut days: BTreeMap<u64, FlowCost> =
        (first..=unix_ms(now) / DAY_MS).map(|day| (day, FlowCost::default())).collect();
    for (day, flow) in &flows {
        if let Some(sum) = days.get_mut(day) {
            let FlowCost { traffic, machines } = costs.all_of(*day, flow, None);
            *sum = FlowCost { traffic: sum.traffic + traffic, machines: sum.machines + machines };
        }
    }
    days
}

/// Returns what a flow has carried today.
pub(crate) fn carried(state: &State, now: u64, flow: &FlowId) -> CarriedBefore {
    let day = now / DAY_MS;
    let key = (day, flow.clone());
    let tallies = state.sessions.get(&key).map(Vec::as_slice).unwrap_or_default();
    CarriedBefore {
        day,
        traffic: traffic_of(state, day, flow, tallies),
        packets: state.packets.get(&key).map_or(Money::ZERO, |day| day.counts.usd),
        bytes: bytes_over(tallies).into_iter().map(|(id, bytes)| (id.clone(), bytes)).collect(),
    }
}

/// The traffic of one relay in one day, and its cost.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) sessions: u64,
    pub(crate) bytes: u64,
    /// The bytes that gateways told of.
    told: u64,
    pub(crate) machine: Money,
    pub(crate) traffic: Money,
}

/// The use of relays in the last days.
pub(crate) struct Costs<'a> {
    state: &'a State,
    pub(crate) relays: BTreeMap<(u64, RelayId), Used>,
}

impl<'a> Costs<'a> {
    pub(crate) fn new(state: &'a State, now: Timestamp, days: u64) -> Self {
        let first = first_day(now, days);
        let mut relays: BTreeMap<(u64, RelayId), Used> = BTreeMap::new();
        for (day, spent) in state.spent.range(first..) {
            for (host, cost) in &spent.machines {
                if let Ok(relay) = RelayId::new(host.as_str()) {
                    relays.entry((*day, relay)).or_default().machine = *cost;
                }
            }
        }
        for row in state.relayed.since(first) {
            let used = relays.entry((row.day, row.relay.clone())).or_default();
            used.sessions = used.sessions.saturating_add(row.counted.sessions);
            used.bytes = used.bytes.saturating_add(row.counted.bytes);
            used.traffic = used.traffic + row.cost;
        }
        for ((day, flow), tallies) in state.sessions.range((first, lowest())..) {
            let shares = untold_shares(state, *day, flow, tallies);
            for tally in tallies.iter().filter(|tally| !tally.path.is_empty()) {
                for relay in &tally.path {
                    let used = relays.entry((*day, relay.clone())).or_default();
                    used.told = used.told.saturating_add(tally.bytes());
                }
                for Untold { relay, share, cost } in untold(state, &shares, tally) {
                    let used = relays.entry((*day, relay.clone())).or_default();
                    let part = |count: u64| (count as f64 * share) as u64;
                    let sessions = part(tally.sessions + tally.failed);
                    used.sessions = used.sessions.saturating_add(sessions);
                    used.bytes = used.bytes.saturating_add(part(tally.bytes()));
                    used.traffic = used.traffic + cost;
                }
            }
        }
        Self { state, relays }
    }

    /// Returns the cost of a flow in a day, its packets included, beyond what it carried `before`.
    fn all_of(&self, day: u64, flow: &FlowId, before: Option<&CarriedBefore>) -> FlowCost {
        if before.is_some_and(|before| day < before.day) {
            return FlowCost::default();
        }
        let key = (day, flow.clone());
        let tallies = self.state.sessions.get(&key).map(Vec::as_slice).unwrap_or_default();
        let packets = self.state.packets.get(&key).map_or(Money::ZERO, |day| day.counts.usd);
        let packets = before.map_or(packets, |before| before.packets_beyond(day, packets));
        let before = before.filter(|before| before.day == day);
        let FlowCost { traffic, machines } = self.of_flow(day, flow, tallies, before);
        FlowCost { traffic: traffic + packets, machines }
    }

    /// Returns the cost of a flow's sessions: their traffic, and the share of each relay's machine
    /// that their bytes have of all that it carried; of those beyond what was carried `before`.
    pub(crate) fn of_flow(
        &self,
        day: u64,
        flow: &FlowId,
        tallies: &[SessionTally],
        before: Option<&CarriedBefore>,
    ) -> FlowCost {
        let traffic = traffic_of(self.state, day, flow, tallies);
        let share = |(relay, bytes): (&RelayId, u64)| {
            let used = self.relays.get(&(day, relay.clone()))?;
            let known = before.and_then(|before| before.bytes.get(relay)).copied().unwrap_or(0);
            // A relay's count may come later, or be lost.
            let all = used.bytes.max(used.told).max(1);
            Some(part_of(used.machine, bytes.saturating_sub(known) as f64 / all as f64))
        };
        let machines = bytes_over(tallies).into_iter().filter_map(share).sum();
        let known = before.map(|before| before.traffic).unwrap_or_default();
        FlowCost { traffic: traffic.checked_sub(known).unwrap_or_default(), machines }
    }
}

/// The cost of a flow in a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FlowCost {
    /// Of what relays sent for it.
    pub(crate) traffic: Money,
    /// Its shares of relays' machines.
    pub(crate) machines: Money,
}

impl FlowCost {
    pub(crate) fn total(self) -> Money {
        self.traffic + self.machines
    }
}

/// Returns the bytes of sessions over each relay.
fn bytes_over(tallies: &[SessionTally]) -> BTreeMap<&RelayId, u64> {
    let mut relays: BTreeMap<&RelayId, u64> = BTreeMap::new();
    for tally in tallies {
        for relay in &tally.path {
            let bytes = relays.entry(relay).or_default();
            *bytes = bytes.saturating_add(tally.bytes());
        }
    }
    relays
}

/// Returns the cost of the traffic of a flow's sessions in a day: what relays counted, and of those
/// that do not tell it, what gateways told.
fn traffic_of(state: &State, day: u64, flow: &FlowId, tallies: &[SessionTally]) -> Money {
    let counted: Money = state.relayed.of_flow(day, flow).map(|row| row.cost).sum();
    let shares = untold_shares(state, day, flow, tallies);
    let of_tally = |tally| untold(state, &shares, tally).map(|untold| untold.cost).sum::<Money>();
    counted + tallies.iter().map(of_tally).sum()
}

/// Returns the share of a flow's bytes over each relay in a day that the relay did not tell itself
/// then. Of the others its count may be another day's.
fn untold_shares<'a>(
    state: &State,
    day: u64,
    flow: &FlowId,
    tallies: &'a [SessionTally],
) -> BTreeMap<&'a RelayId, f64> {
    let share = |(relay, bytes): (&'a RelayId, u64)| {
        let told = state.relayed.get(day, flow, relay).map_or(0, |row| row.told.bytes);
        let untold = bytes.saturating_sub(told);
        (relay, if told == 0 { 1.0 } else { untold as f64 / bytes.max(1) as f64 })
    };
    bytes_over(tallies).into_iter().map(share).collect()
}

/// Bytes of sessions that one relay sent, and does not tell itself.
struct Untold<'a> {
    relay: &'a RelayId,
    /// The share of the sessions.
    share: f64,
    cost: Money,
}

/// Returns the relays of sessions' path that do not tell all of them, with the cost of what they
/// sent by what gateways told.
fn untold<'a>(
    state: &'a State,
    shares: &'a BTreeMap<&'a RelayId, f64>,
    tally: &'a SessionTally,
) -> impl Iterator<Item = Untold<'a>> {
    let all = tally.path.iter().zip(prices::traffic(state, tally));
    let of_relay = |(relay, cost): (&'a RelayId, Money)| {
        let share = shares.get(relay).copied().unwrap_or(1.0);
        Untold { relay, share, cost: part_of(cost, share) }
    };
    all.map(of_relay).filter(|untold| untold.share > 0.0)
}

fn part_of(money: Money, share: f64) -> Money {
    if share < 1.0 { Money::from_usd(money.as_usd() * share).unwrap_or_default() } else { money }
}

/// Returns the first of the last `days`.
pub(crate) fn first_day(now: Timestamp, days: u64) -> u64 {
    (unix_ms(now) / DAY_MS + 1).saturating_sub(days)
}

/// Returns the name that comes before all others.
pub(crate) fn lowest() -> FlowId {
    FlowId::new("0").expect("a digit is a name")
}
