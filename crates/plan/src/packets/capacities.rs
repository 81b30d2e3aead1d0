//! Relays that packet flows may take: those that the streams buy and those that run already, whose
//! machines are paid, up to their free capacity; and those that packet flows add, which are paid in
//! full.

use std::collections::BTreeMap;

use tradewind_units::{Bandwidth, Money, RegionId, RelayId};

use super::planned::PacketRelay;
use super::{PacketFlow, Packets};
use crate::plan::{Plan, relay_id};
use crate::problem::{Inputs, RelayType};

/// A relay and its free capacity.
struct FreeCapacity {
    relay: PacketRelay,
    /// True if it is part of the streams' plan, and not added by packet flows.
    is_streams: bool,
    /// True if its machine is paid.
    is_paid: bool,
    left_bps: u64,
    left_flows: u32,
    /// Whole hours for which packet flows have paid for it.
    hours: u64,
    is_used: bool,
}

impl FreeCapacity {
    fn fits(&self, rate: Bandwidth) -> bool {
        self.left_bps >= rate.as_bps() && self.left_flows > 0
    }
}

/// All relays by region, with the criteria by which flows choose them.
pub(super) struct FreeCapacities<'a> {
    packets: &'a Packets,
    inputs: &'a Inputs,
    by_region: BTreeMap<RegionId, Vec<FreeCapacity>>,
    choice: Choice,
}

/// The criteria by which flows choose their relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    /// True: by a flow's share of the price of a full machine; false: by the cost that it adds.
    pub(super) by_share: bool,
    /// True if relays that are paid are not used.
    pub(super) apart: bool,
}

impl Choice {
    pub(super) const ALL: [Self; 4] = [
        Self { by_share: false, apart: false },
        Self { by_share: true, apart: false },
        Self { by_share: false, apart: true },
        Self { by_share: true, apart: true },
    ];
}

impl<'a> FreeCapacities<'a> {
    /// Creates the list of the streams' relays and of others that run; it is empty without a plan.
    pub(super) fn new(
        packets: &'a Packets,
        inputs: &'a Inputs,
        streams: Option<&Plan>,
        choice: Choice,
    ) -> Self {
        let mut capacities = Self { packets, inputs, by_region: BTreeMap::new(), choice };
        if let Some(plan) = streams {
            let loads = loads(inputs, plan);
            for relay in &plan.relays {
                let is_apart = choice.apart || packets.barred.contains(&relay.id);
                let of_type = inputs.relay_types.iter().find(|known| known.id == relay.relay_type);
                let capacity = of_type.map_or(0, |known| known.capacity.as_bps());
                let load = loads.get(&relay.id).copied().unwrap_or_default();
                capacities.by_region.entry(relay.region.clone()).or_default().push(FreeCapacity {
                    relay: PacketRelay {
                        id: relay.id.clone(),
                        region: relay.region.clone(),
                        relay_type: relay.relay_type.clone(),
                        runs: false,
                    },
                    is_streams: true,
                    is_paid: true,
                    left_bps: capacity.saturating_sub(load),
                    left_flows: if is_apart { 0 } else { u32::MAX },
                    hours: 0,
                    is_used: false,
                });
            }
            if !choice.apart {
                capacities.add_running(plan);
            }
        }
        capacities
    }

    /// Adds relays that run and that the streams' plan does not use.
    fn add_running(&mut self, plan: &Plan) {
        for ((region, id), count) in &self.inputs.running.relays {
            let is_one =
                |relay: &&crate::PlannedRelay| relay.region == *region && relay.relay_type == *id;
            let planned = plan.relays.iter().filter(is_one).count();
            let Some(of_type) = self.inputs.relay_types.iter().find(|known| known.id == *id) else {
                continue;
            };
            // A flow takes one relay of a region, so no more than there are flows are needed.
            for _ in planned..*count.min(&(planned + self.packets.flows.len())) {
                self.add(region, of_type, true);
            }
        }
    }

    fn add(&mut self, region: &RegionId, of_type: &RelayType, runs: bool) {
        let capacities = self.by_region.entry(region.clone()).or_default();
        let is_new = |id: &RelayId| capacities.iter().all(|capacity| capacity.relay.id != *id);
        let numbers = (capacities.len()..).map(|number| relay_id(region, number));
        let Some(id) = numbers.into_iter().find(is_new) else { return };
        let shared_by = self.packets.prices.get(region).map_or(1, |prices| prices.flows);
        capacities.push(FreeCapacity {
            relay: PacketRelay { id, region: region.clone(), relay_type: of_type.id.clone(), runs },
            is_streams: false,
            is_paid: runs,
            left_bps: of_type.capacity.as_bps(),
            left_flows: if runs { u32::MAX } else { shared_by },
            hours: 0,
            is_used: false,
        });
    }

    /// Returns whether a flow of this rate finds a relay in the region, or may add one.
    pub(super) fn has_room(&self, region: &RegionId, rate: Bandwidth) -> bool {
        self.fit(region, rate).is_some() || self.offered(region, rate).is_some()
    }

    /// Returns the relay type that a flow of this rate may add in the region.
    fn offered(&self, region: &RegionId, rate: Bandwidth) -> Option<&'a RelayType> {
        let there = self.by_region.get(region).map_or(&[][..], Vec::as_slice);
        let may_be_added = |known: &&RelayType| {
            let kind = (region.clone(), known.id.clone());
            let count = there.iter().filter(|it| it.relay.relay_type == known.id).count();
            known.capacity >= rate
                && !self.inputs.not_offered.contains(&kind)
                && self.inputs.most.get(&kind).is_none_or(|most| count < *most)
        };
        self.inputs.relay_types.iter().find(may_be_added)
    }

    /// Returns the relay of the region that a flow of this rate takes: a paid one, or one that
    /// other packet flows share.
    fn fit(&self, region: &RegionId, rate: Bandwidth) -> Option<usize> {
        let capacities = self.by_region.get(region)?;
        let paid = capacities.iter().position(|capacity| capacity.is_paid && capacity.fits(rate));
        paid.or_else(|| capacities.iter().position(|capacity| capacity.fits(rate)))
    }

    /// Returns the machine cost that a relay in the region adds to the total if `flow` takes it.
    pub(super) fn machine(&self, region: &RegionId, flow: &PacketFlow) -> Money {
        let hours = match self.fit(region, flow.rate).map(|at| &self.by_region[region][at]) {
            Some(capacity) if capacity.is_paid => 0,
            Some(capacity) => flow.hours().saturating_sub(capacity.hours),
            None => flow.hours(),
        };
        let prices = self.packets.prices.get(region);
        prices.map_or(Money::ZERO, |prices| prices.machine(hours))
    }

    /// Returns the machine cost by which the flow chooses: the cost that it adds, or its share of a
    /// full machine.
    pub(super) fn judged(&self, region: &RegionId, flow: &PacketFlow) -> Money {
        let adds = self.machine(region, flow);
        let paid = self.fit(region, flow.rate).is_some_and(|at| self.by_region[region][at].is_paid);
        match self.packets.prices.get(region).filter(|_| self.choice.by_share && !paid) {
            Some(prices) => prices.machine(flow.hours()).shared_by(prices.flows),
            None => adds,
        }
    }

    /// Places a flow on a relay in the region: a paid one, one that other packet flows share, or a
    /// new one.
    pub(super) fn take(&mut self, region: &RegionId, flow: &PacketFlow) -> Option<RelayId> {
        let rate = flow.rate;
        let there = self.fit(region, rate);
        if there.is_none() {
            let of_type = self.offered(region, rate)?;
            self.add(region, of_type, false);
        }
        let capacities = self.by_region.get_mut(region)?;
        let at = there.unwrap_or(capacities.len().checked_sub(1)?);
        let capacity = capacities.get_mut(at)?;
        capacity.left_bps = capacity.left_bps.saturating_sub(rate.as_bps());
        capacity.left_flows = capacity.left_flows.saturating_sub(1);
        capacity.hours = capacity.hours.max(flow.hours());
        capacity.is_used = true;
        Some(capacity.relay.id.clone())
    }

    /// Returns the relays to run besides those of the streams.
    pub(super) fn added(&self) -> Vec<PacketRelay> {
        let capacities = self.by_region.values().flatten();
        capacities
            .filter(|capacity| capacity.is_used && !capacity.is_streams)
            .map(|capacity| capacity.relay.clone())
            .collect()
    }
}

/// Returns the load of the streams on each relay, in bit/s: the sum of their mean rates [CP V-B].
pub(super) fn loads(inputs: &Inputs, plan: &Plan) -> BTreeMap<RelayId, u64> {
    let volumes: BTreeMap<_, _> = inputs.flows.iter().map(|flow| (&flow.id, flow.volume)).collect();
    let mut loads: BTreeMap<RelayId, u64> = BTreeMap::new();
    for flow in &plan.flows {
        let rate = volumes
            .get(&flow.id)
            .and_then(|volume| Bandwidth::from_transfer(*volume, flow.fct))
            .map_or(u64::MAX, Bandwidth::as_bps);
        for relay in &flow.path {
            let load = loads.entry(relay.clone()).or_default();
            *load = load.saturating_add(rate);
        }
    }
    loads
}
