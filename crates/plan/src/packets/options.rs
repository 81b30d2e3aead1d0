//! All options of a packet flow: each service over each relay or pair of relays, with the delivery
//! time of its slowest packets and its cost `[JQ 5.1, Tables 1 and 2]`.
//!
//! One-way delays are half of the problem's round trips. A leg that is unknown or blocked is not
//! used: without the Internet path only forwarding is possible.

use tradewind_model::Egress;
use tradewind_model::packet::cost::packet_cost_at_one;
use tradewind_model::packet::{PacketCost, PacketPath, PacketService, cost::packet_cost};
use tradewind_units::{Duration, Money, RegionId};

use super::{MAX_RELAYS, PacketError, PacketFlow, Packets};
use crate::problem::{Inputs, LegEnd};

/// The relays of an option, by the indices of their regions among the candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Over {
    Nothing,
    One(usize),
    Two(usize, usize),
}

impl Over {
    /// Returns the indices of its regions.
    pub(super) fn places(self) -> impl Iterator<Item = usize> {
        let (first, last) = match self {
            Self::Nothing => (None, None),
            Self::One(at) => (Some(at), None),
            Self::Two(first, last) => (Some(first), Some(last)),
        };
        first.into_iter().chain(last)
    }

    pub(super) fn regions(self, inputs: &Inputs) -> Vec<RegionId> {
        self.places().map(|at| inputs.regions[at].clone()).collect()
    }
}

/// A service over some relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ServiceOption {
    pub(super) service: PacketService,
    pub(super) over: Over,
    /// The delivery time of its slowest packets.
    pub(super) delivery: Duration,
}

/// The services that use relays.
pub(super) const BOUGHT: [PacketService; 3] =
    [PacketService::Coding, PacketService::Caching, PacketService::Forwarding];

/// One-way delays between all candidate regions, with the inputs that delays and costs are computed
/// from.
pub(super) struct DelayTable<'a> {
    pub(super) packets: &'a Packets,
    pub(super) inputs: &'a Inputs,
    /// By first and last relay.
    between: Vec<Vec<Option<Duration>>>,
}

/// One-way delays of a flow: over the Internet, and between its ends and each candidate region.
pub(super) struct Ends {
    internet: Option<Duration>,
    first: Vec<Option<Duration>>,
    last: Vec<Option<Duration>>,
}

impl<'a> DelayTable<'a> {
    pub(super) fn new(packets: &'a Packets, inputs: &'a Inputs) -> Self {
        let relay = |region: &RegionId| LegEnd::Relay(region.clone());
        let from = |from: &RegionId| {
            inputs.regions.iter().map(|to| one_way(inputs, relay(from), relay(to))).collect()
        };
        let has_pairs = inputs.max_relays >= MAX_RELAYS && !packets.flows.is_empty();
        let between =
            if has_pairs { inputs.regions.iter().map(from).collect() } else { Vec::new() };
        Self { packets, inputs, between }
    }

    pub(super) fn ends(&self, flow: &PacketFlow) -> Ends {
        let site = |site| LegEnd::Site(site);
        let (from, to) = (site(flow.source.clone()), site(flow.destination.clone()));
        let regions = if self.inputs.max_relays == 0 { &[][..] } else { &self.inputs.regions };
        let relays = || regions.iter().map(|region| LegEnd::Relay(region.clone()));
        Ends {
            first: relays().map(|relay| one_way(self.inputs, from.clone(), relay)).collect(),
            last: relays().map(|relay| one_way(self.inputs, relay, to.clone())).collect(),
            internet: one_way(self.inputs, from, to),
        }
    }

    /// Returns every option of a flow, whether or not its regions have room for it.
    pub(super) fn options(&self, flow: &PacketFlow, ends: &Ends) -> Vec<ServiceOption> {
        let direct = |delivery| ServiceOption {
            service: PacketService::Direct,
            over: Over::Nothing,
            delivery,
        };
        let mut options: Vec<ServiceOption> = ends.internet.map(direct).into_iter().collect();
        let all = || 0..ends.first.len();
        for first in all() {
            for over in
                std::iter::once(Over::One(first)).chain(all().map(|last| Over::Two(first, last)))
            {
                let delivery = |service| self.delivery(flow, ends, service, over);
                let option =
                    |service| Some(ServiceOption { service, over, delivery: delivery(service)? });
                options.extend(BOUGHT.into_iter().filter_map(option));
            }
        }
        options
    }

    /// Returns the delivery time of the slowest packets; `None` if there is no such option.
    pub(super) fn delivery(
        &self,
        flow: &PacketFlow,
        ends: &Ends,
        service: PacketService,
        over: Over,
    ) -> Option<Duration> {
        let (first, last, between) = match over {
            Over::Nothing => return ends.internet.filter(|_| service == PacketService::Direct),
            Over::One(at) => (at, at, Duration::ZERO),
            Over::Two(first, last) if first == last => return None,
            Over::Two(first, last) => (first, last, *self.between.get(first)?.get(last)?.as_ref()?),
        };
        let internet = match service {
            PacketService::Forwarding => Duration::ZERO,
            _ => ends.internet?,
        };
        let receiver_access = (*ends.last.get(last)?)?;
        let path = PacketPath {
            internet,
            source_access: (*ends.first.get(first)?)?,
            between_relays: between,
            receiver_access,
            helper_access: flow.helper_rtt.map_or(receiver_access, |rtt| rtt / 2),
            detection: self.packets.detection,
            encoding: self.packets.coding.within,
        };
        path.delivery(service)
    }

    /// Returns the cost of a service over these relays; `machine` returns the cost for the flow of
    /// a machine in a region.
    pub(super) fn cost(
        &self,
        flow: &PacketFlow,
        service: PacketService,
        over: Over,
        machine: impl Fn(&RegionId) -> Money,
    ) -> Result<PacketCost, PacketError> {
        let compute = over.regions(self.inputs).iter().map(machine).sum();
        Ok(PacketCost { compute, ..self.traffic_cost(flow, service, over)? })
    }

    /// Returns the cost of a service over these relays without their machines.
    pub(super) fn traffic_cost(
        &self,
        flow: &PacketFlow,
        service: PacketService,
        over: Over,
    ) -> Result<PacketCost, PacketError> {
        let destination = self.inputs.site_regions.get(&flow.destination);
        let to_receiver = destination.map_or(Egress::Internet, Egress::Region);
        let (stream, coding) = (self.packets.stream(flow), self.packets.coding.rates());
        let tariff = |at: usize, to: Egress<'_>| {
            let region = &self.inputs.regions[at];
            self.packets.relay_tariff(self.inputs, region, to)
        };
        let traffic = match over {
            Over::Nothing => PacketCost::default(),
            Over::One(at) => {
                packet_cost_at_one(service, &stream, &coding, &tariff(at, to_receiver)?)?
            }
            Over::Two(first, last) => {
                let ingress = tariff(first, Egress::Region(&self.inputs.regions[last]))?;
                packet_cost(service, &stream, &coding, &ingress, &tariff(last, to_receiver)?)?
            }
        };
        let source = self.source_cost(flow, service, over)?;
        Ok(PacketCost { compute: Money::ZERO, source, ..traffic })
    }

    /// Returns the egress cost that the source's own cloud charges: for the packets over the
    /// Internet, except with forwarding, and for the same volume to the first relay, except with
    /// direct.
    fn source_cost(
        &self,
        flow: &PacketFlow,
        service: PacketService,
        over: Over,
    ) -> Result<Money, PacketError> {
        let region = |site| self.inputs.site_regions.get(site);
        let (source, destination) = (region(&flow.source), region(&flow.destination));
        let volume = flow.rate.volume_in(flow.span);
        let price = |to: Egress<'_>| -> Result<Money, PacketError> {
            Ok(self.inputs.prices.source_egress(source, to)?.cost_of(volume))
        };
        let over_internet = match service {
            PacketService::Forwarding => Money::ZERO,
            _ => price(destination.map_or(Egress::Internet, Egress::Region))?,
        };
        let to_relay = match over.regions(self.inputs).first() {
            Some(first) => price(Egress::Region(first))?,
            None => Money::ZERO,
        };
        Ok(over_internet + to_relay)
    }
}

/// Returns half of the round-trip time between two places, if that is known.
fn one_way(inputs: &Inputs, from: LegEnd, to: LegEnd) -> Option<Duration> {
    inputs.legs.get(&(from, to)).map(|leg| leg.rtt / 2)
}
