//! Selection of a flow's packet service: the cheapest that meets its latency budget `[JQ 3.3]`.
//! `keeper` changes it while the flow runs, and `costs` tracks the services' costs.
//!
//! *Direct* is one of them: if the Internet path is fast enough and loses no more than the flow
//! tolerates, no other is bought. With caching and coding, packets that are not lost arrive over
//! the Internet; if that is too slow, only forwarding can help.

use std::collections::BTreeMap;

use tradewind_model::packet::{PacketPath, PacketService};
use tradewind_units::{Duration, Money, Ratio};

mod costs;
mod guard;
mod keeper;
mod queue;

pub use costs::{ConfiguredCosts, FlowCosts, RelayUsage, Spent};
pub use keeper::{Cause, Change, Report, ServiceKeeper};
pub use queue::StandingQueue;

/// Time from a packet's expected arrival to the request for its recovery. Chosen: a gap due to
/// reordering has time to close.
pub const DETECTION: Duration = Duration::from_millis(5);

/// The requirements of a flow.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Demand {
    /// The latency budget: packets with a longer one-way delay are useless.
    pub budget: Duration,
    /// The ratio of packets that may be lost or late.
    pub bearable: Ratio,
}

impl Demand {
    /// Returns whether a service meets it whose slowest packets arrive after `delivery`, on an
    /// Internet path with loss ratio `loss`.
    #[must_use]
    pub fn is_met(&self, service: PacketService, delivery: Duration, loss: Ratio) -> bool {
        let is_bearable =
            service != PacketService::Direct || loss.as_f64() <= self.bearable.as_f64();
        delivery <= self.budget && is_bearable
    }
}

/// One service for one flow.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct ServiceOffer {
    /// The service.
    pub service: PacketService,
    /// The delivery time of its slowest packets, which are lost ones with caching and coding.
    #[serde(with = "tradewind_units::time::as_seconds", rename = "delivery_s")]
    pub delivery: Duration,
    /// Its cost over the flow's duration.
    pub cost: Money,
    /// True if it meets the demand.
    pub meets: bool,
}

/// The selected service, with all that were considered.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Choice {
    /// The service.
    pub service: PacketService,
    /// True if it meets the demand; if none does, it is the fastest.
    pub meets: bool,
    /// All services, the cheapest first.
    pub offers: Vec<ServiceOffer>,
}

/// Chooses the service of a flow with `demand` whose Internet path has loss ratio `loss`; `costs`
/// holds the services that are available.
///
/// *Direct* costs nothing and is always available. Among those that meet the demand at the same
/// cost the fastest is selected.
#[must_use]
pub fn choose(
    demand: Demand,
    path: &PacketPath,
    loss: Ratio,
    costs: &BTreeMap<PacketService, Money>,
) -> Choice {
    let offers = offers(demand, path, loss, costs);
    let chosen = offers.iter().find(|offer| offer.meets).copied();
    let service =
        chosen.or_else(|| fastest(&offers)).map_or(PacketService::Direct, |it| it.service);
    Choice { service, meets: chosen.is_some(), offers }
}

/// Returns all available services, the cheapest first.
#[must_use]
pub fn offers(
    demand: Demand,
    path: &PacketPath,
    loss: Ratio,
    costs: &BTreeMap<PacketService, Money>,
) -> Vec<ServiceOffer> {
    let offer = |service: PacketService| {
        let cost = match service {
            PacketService::Direct => Money::ZERO,
            _ => *costs.get(&service)?,
        };
        let delivery = path.delivery(service).unwrap_or(path.internet);
        let meets = demand.is_met(service, delivery, loss);
        Some(ServiceOffer { service, delivery, cost, meets })
    };
    let mut offers: Vec<ServiceOffer> = PacketService::ALL.into_iter().filter_map(offer).collect();
    offers.sort_by_key(ServiceOffer::rank);
    offers
}

impl ServiceOffer {
    /// Returns the key by which offers are sorted.
    fn rank(&self) -> (Money, Duration, PacketService) {
        (self.cost, self.delivery, self.service)
    }
}

/// Returns the fastest offer, with direct last: without a service lost packets never arrive,
/// however fast the Internet is.
fn fastest<'a>(offers: impl IntoIterator<Item = &'a ServiceOffer>) -> Option<ServiceOffer> {
    let is_last = |offer: &ServiceOffer| offer.service == PacketService::Direct;
    offers.into_iter().copied().min_by_key(|offer| (is_last(offer), offer.delivery, offer.cost))
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    pub(super) fn ratio(value: f64) -> Ratio {
        Ratio::new(value).unwrap()
    }

    /// Returns a path with 80 ms over the Internet; forwarding takes 90, caching 100, coding 124.
    pub(super) fn path() -> PacketPath {
        PacketPath {
            internet: ms(80),
            source_access: ms(5),
            between_relays: ms(75),
            receiver_access: ms(10),
            helper_access: ms(12),
            ..PacketPath::default()
        }
    }

    fn costs() -> BTreeMap<PacketService, Money> {
        let usd = |usd| Money::from_usd(usd).unwrap();
        [
            (PacketService::Coding, usd(0.01)),
            (PacketService::Caching, usd(0.04)),
            (PacketService::Forwarding, usd(0.08)),
        ]
        .into()
    }

    fn chosen(budget: u64, bearable: f64, loss: f64) -> (PacketService, bool) {
        let demand = Demand { budget: ms(budget), bearable: ratio(bearable) };
        let choice = choose(demand, &path(), ratio(loss), &costs());
        (choice.service, choice.meets)
    }

    #[test]
    fn tighter_budget_buys_a_dearer_service() {
        assert_eq!(chosen(150, 0.001, 0.01), (PacketService::Coding, true));
        assert_eq!(chosen(124, 0.001, 0.01), (PacketService::Coding, true));
        assert_eq!(chosen(123, 0.001, 0.01), (PacketService::Caching, true));
        assert_eq!(chosen(99, 0.001, 0.01), (PacketService::Forwarding, true));
        assert_eq!(chosen(89, 0.001, 0.01), (PacketService::Forwarding, false));
    }

    #[test]
    fn sufficient_internet_path_costs_nothing() {
        assert_eq!(chosen(150, 0.01, 0.01), (PacketService::Direct, true));
        assert!(!chosen(79, 0.01, 0.0).1);
    }

    #[test]
    fn cheapest_service_is_chosen_even_if_faster() {
        let mut costs = costs();
        costs.insert(PacketService::Caching, Money::from_usd(0.005).unwrap());
        let demand = Demand { budget: ms(150), bearable: ratio(0.001) };
        let choice = choose(demand, &path(), ratio(0.01), &costs);
        assert_eq!(choice.service, PacketService::Caching);
    }
}
