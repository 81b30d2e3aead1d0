//! The plan of streams and packet flows as one, on hosts. It is made of a copy of the state, so
//! that nothing waits for it.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_plan::{Inputs, PacketPlan, Plan, PlannedRelay};
use tradewind_units::{HostId, Money, RelayId, Timestamp};

pub use crate::event::JointPlan;

use crate::draft::unix_ms;
use crate::event::Refusal;
use crate::packet_flow::PlannedPackets;
use crate::packets::{self, PacketRelays, carries_packets};
use crate::planning;
use crate::prices;
use crate::record::{Host, PlanRecord};
use crate::state::State;
use crate::tenants;

impl JointPlan {
    /// Plans the packet flows beside a plan of the streams.
    pub(crate) fn new(state: &State, time: Timestamp, streams: Plan) -> Result<Self, Refusal> {
        let inputs = planning::inputs_now(state, time, |_| true);
        let streams = planning::within_tenants(state, time, &inputs, streams)?;
        Self::supposed(state, time, streams, &inputs, |_| true)
    }

    /// Plans them by these inputs, over some relay hosts alone.
    pub(crate) fn supposed(
        state: &State,
        time: Timestamp,
        streams: Plan,
        inputs: &Inputs,
        is_used: impl Fn(&Host) -> bool,
    ) -> Result<Self, Refusal> {
        let now = unix_ms(time);
        let mut assignment = Assignment::of(state, now, &streams)?;
        let mut packets = PlannedPackets::default();
        if !state.packet_flows.is_empty() {
            let hosts = state.relay_hosts(now).filter(|host| is_used(host));
            let able = PacketRelays::beside(state, &streams, &assignment.hosts, hosts);
            packets = packets::plan(state, now, inputs, &able);
            assignment.free.retain(|host| is_used(host));
            assignment.add_packets(&packets.plan)?;
        }
        let declared = streams.flows.iter().map(|flow| state.flows.get(&flow.id).cloned());
        let unknown = || Refusal::Conflict("a flow of the plan is not declared".to_owned());
        let flows = declared.collect::<Option<Vec<_>>>().ok_or_else(unknown)?;
        let usd_per_day = streams.cost.saturating_add(packets.plan.cost);
        let hosts = assignment.hosts;
        let (plan, packets) = named_by_hosts(&hosts, streams, packets);
        let record = PlanRecord {
            number: 0,
            made_unix_ms: now,
            plan,
            hosts: hosts.into_values().map(|host| (relay_of(&host), host)).collect(),
            usd_per_day,
            flows,
            demands: BTreeMap::new(),
            rests_on: Vec::new(),
            measurements: Vec::new(),
            measurements_in_effect: Vec::new(),
            known_legs: 0,
            budget: None,
            tenants: tenants::budgets(state, now),
            packets: Box::new(packets),
            paths_since: BTreeMap::new(),
            was_used: false,
        };
        Ok(Self { record: planning::with_basis(state, now, record) })
    }

    /// Returns the cost of a day.
    #[must_use]
    pub const fn cost(&self) -> Money {
        self.record.usd_per_day
    }

    /// Checks that its hosts can still do what it asks of them.
    pub(crate) fn check_hosts(&self, state: &State, now: u64) -> Result<(), Refusal> {
        let usable: BTreeMap<&HostId, &Host> =
            state.relay_hosts(now).map(|host| (&host.id, host)).collect();
        let paths = self.record.packets.plan.flows.iter().flat_map(|flow| &flow.path);
        let of_packets: BTreeSet<&RelayId> = paths.collect();
        let is_left = |(relay, id): &(&RelayId, &HostId)| {
            let host = usable.get(id);
            host.is_some_and(|host| !of_packets.contains(relay) || carries_packets(state, host))
        };
        match self.record.hosts.iter().find(|entry| !is_left(entry)) {
            Some((relay, _)) => Err(no_host(relay)),
            None => Ok(()),
        }
    }
}

/// Returns the plans with their relays named as the hosts.
fn named_by_hosts(
    hosts: &BTreeMap<RelayId, HostId>,
    mut plan: Plan,
    mut packets: PlannedPackets,
) -> (Plan, PlannedPackets) {
    let of_streams = plan.relays.iter_mut().map(|relay| &mut relay.id);
    let paths = plan.flows.iter_mut().flat_map(|flow| &mut flow.path);
    let of_packets = packets.plan.relays.iter_mut().map(|relay| &mut relay.id);
    let packet_paths = packets.plan.flows.iter_mut().flat_map(|flow| &mut flow.path);
    for relay in of_streams.chain(paths).chain(of_packets).chain(packet_paths) {
        if let Some(host) = hosts.get(relay) {
            *relay = relay_of(host);
        }
    }
    (plan, packets)
}

/// Returns the name of the relay of a host: the host's.
fn relay_of(host: &HostId) -> RelayId {
    RelayId::new(host.as_str()).expect("names of hosts and of relays have one form")
}

fn no_host(relay: &RelayId) -> Refusal {
    Refusal::Conflict(format!("no host for relay `{relay}` is left since it was made"))
}

/// The hosts of a plan's relays, and those that are left: first those that the plan in effect uses.
struct Assignment<'a> {
    state: &'a State,
    hosts: BTreeMap<RelayId, HostId>,
    free: Vec<&'a Host>,
}

impl<'a> Assignment<'a> {
    /// Returns a host for each relay of the streams' plan.
    fn of(state: &'a State, now: u64, plan: &Plan) -> Result<Self, Refusal> {
        let in_effect: BTreeSet<&HostId> =
            state.plan_in_effect().into_iter().flat_map(|plan| plan.hosts.values()).collect();
        let mut free: Vec<&Host> = state.relay_hosts(now).collect();
        free.sort_by_key(|host| (!in_effect.contains(&host.id), &host.id));
        let mut assignment = Self { state, hosts: BTreeMap::new(), free };
        for relay in &plan.relays {
            assignment.add(relay, |_| true)?;
        }
        let is_known = |relay: &RelayId| assignment.hosts.contains_key(relay);
        if !plan.flows.iter().flat_map(|flow| &flow.path).all(is_known) {
            let problem = "a path passes a relay that the plan does not run";
            return Err(Refusal::Invalid(problem.to_owned()));
        }
        Ok(assignment)
    }

    /// Adds a host that carries packets for each relay that packet flows add.
    fn add_packets(&mut self, packets: &PacketPlan) -> Result<(), Refusal> {
        packets.relays.iter().try_for_each(|relay| {
            let relay = PlannedRelay {
                id: relay.id.clone(),
                region: relay.region.clone(),
                relay_type: relay.relay_type.clone(),
            };
            self.add(&relay, |host| carries_packets(self.state, host))
        })
    }

    fn add(&mut self, relay: &PlannedRelay, fits: impl Fn(&Host) -> bool) -> Result<(), Refusal> {
        let is_such = |host: &&Host| is_for(self.state, host, relay) && fits(host);
        let found = self.free.iter().position(is_such).ok_or_else(|| no_host(&relay.id))?;
        self.hosts.insert(relay.id.clone(), self.free.remove(found).id.clone());
        Ok(())
    }
}

fn is_for(state: &State, host: &Host, relay: &PlannedRelay) -> bool {
    prices::offered(state, host) == Some((relay.region.clone(), relay.relay_type.clone()))
}
