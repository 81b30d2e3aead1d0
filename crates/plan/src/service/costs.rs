//! Estimates of the costs of a flow's packet services while it runs.
//!
//! At first there are configured costs, for the expected loss, or none: then a service's cost is
//! the traffic that leaves relays. Later the relays' accounting gives prices and, for the service
//! that runs, the bytes that leave them for each byte copied to them, which is remembered for a
//! while after the service was replaced. The costs of services that have not run are adjusted to
//! the loss that receivers report, by the model of [`packet_cost`]: a lost packet leaves the egress
//! relay once more, and with coding helpers are asked for theirs.
//!
//! | relays report prices | costs configured | cost of a service that has run | cost of another |
//! |---|---|---|---|
//! | yes | yes | as billed | as configured, adjusted to the loss |
//! | yes | no | as billed | traffic that leaves relays, at their prices |
//! | no | yes | as configured | as configured |
//! | no | no | traffic that left relays | traffic that leaves relays |

use std::collections::BTreeMap;

use tradewind_model::packet::cost::{packet_cost, packet_cost_at_one};
use tradewind_model::packet::{CodingRates, PacketService, RelayTariff, Stream, Tariff};
use tradewind_units::{Bandwidth, Bytes, Duration, Money, PricePerGb, Ratio, Timestamp};

use super::Report;

/// Services that cost something.
const BOUGHT: [PacketService; 3] =
    [PacketService::Coding, PacketService::Caching, PacketService::Forwarding];
/// Time over which a service's traffic is measured. Chosen: relays report once a second, so that a
/// second's traffic is uncertain.
const INTERVAL: Duration = Duration::from_secs(30);
/// Time after a change of the service for which accounting may still be of the one before. Chosen:
/// of three reports one may get lost.
const SETTLES: Duration = Duration::from_secs(3);
/// Fewest packets of an interval that is evaluated. Chosen: three a second.
const MIN_PACKETS: u64 = 100;
/// Time for which a service's measured traffic is remembered. Chosen: other flows, with which
/// blocks are shared, come and go; once it is forgotten, trying the service again takes half a
/// minute.
const REMEMBERED: Duration = Duration::from_secs(600);
/// Weight of the previous reports against the last one. Chosen: a time constant of about an
/// interval, at one report a second.
const REPORTS_LAST: f64 = 31.0 / 32.0;
/// Weight of the configured loss against reports, in packets. Chosen: a hundred packets tell little
/// of a loss of one in a hundred.
const CONFIGURED_LOSS_WEIGHT: f64 = 100.0;
/// Size of packets before one is measured. Source: the packets of the model's flows [JQ 5.1.1].
const FIRST_PACKET: Bytes = Bytes::new(1000);

/// Configured costs of the services, for each GB of the flow.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfiguredCosts {
    /// The costs by service.
    pub costs: BTreeMap<PacketService, Money>,
    /// The loss ratio of the Internet path that they are for.
    pub loss: Ratio,
}

/// The traffic of a flow that has left the relays of one role, as they report it: totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RelayUsage {
    /// Bytes with all headers.
    pub bytes: u64,
    /// The price of these bytes.
    pub nano_usd: u64,
}

/// A flow's traffic so far: totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Packets sent.
    pub packets: u64,
    /// Their bytes, with the headers between relays.
    pub bytes: u64,
    /// Packets that were copied to the relays, each once.
    pub copied: u64,
    /// Traffic that left the ingress relay.
    pub ingress: RelayUsage,
    /// Traffic that left the egress relay; `None` if one relay is both.
    pub egress: Option<RelayUsage>,
}

/// Bytes that leave the ingress relay, and the egress relay, for each byte that is copied to
/// relays.
type Parts = [f64; 2];

/// The measured traffic of a service.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Measured {
    parts: Parts,
    loss: Ratio,
    at: Timestamp,
}

/// A measuring interval of one service.
#[derive(Debug, Clone, Copy)]
struct Interval {
    service: PacketService,
    begins: Timestamp,
    before: Spent,
}

/// Estimates of the costs of one flow's services.
#[derive(Debug, Clone)]
pub struct FlowCosts {
    configured: Option<ConfiguredCosts>,
    coding: CodingRates,
    /// Packets that were expected, and those that the Internet lost, both exponentially decayed.
    expected: f64,
    lost: f64,
    packet: Bytes,
    /// Dollars for each GB that leaves the ingress relay, and the egress relay.
    prices: Option<[f64; 2]>,
    is_one_relay: bool,
    measured: BTreeMap<PacketService, Measured>,
    interval: Option<Interval>,
}

impl FlowCosts {
    /// Creates estimates from configured costs, if any, and the relays' coding rates.
    #[must_use]
    pub fn new(configured: Option<ConfiguredCosts>, coding: CodingRates) -> Self {
        let loss = configured.as_ref().map(|configured| configured.loss.as_f64());
        let expected = loss.map_or(0.0, |_| CONFIGURED_LOSS_WEIGHT);
        Self {
            configured,
            coding,
            expected,
            lost: loss.unwrap_or(0.0) * expected,
            packet: FIRST_PACKET,
            prices: None,
            is_one_relay: false,
            measured: BTreeMap::new(),
            interval: None,
        }
    }

    /// Discards all that was measured, after the flow's relays have changed.
    pub fn forget_relays(&mut self) {
        (self.prices, self.interval, self.is_one_relay) = (None, None, false);
        self.measured.clear();
    }

    /// Processes a receiver's report.
    pub fn note_report(&mut self, report: Report) {
        self.expected = self.expected * REPORTS_LAST + report.expected as f64;
        self.lost = self.lost * REPORTS_LAST + report.lost_by_internet as f64;
    }

    /// Processes the flow's traffic so far; `service` carries it now.
    pub fn note_spent(&mut self, now: Timestamp, service: PacketService, spent: Spent) {
        self.measured.retain(|_, measured| now.since(measured.at) < REMEMBERED);
        match self.interval {
            Some(interval) if interval.service == service => {
                if now.since(interval.begins) >= INTERVAL {
                    self.measure(now, service, (interval.before, spent));
                    self.interval = Some(Interval { begins: now, before: spent, ..interval });
                } else if now <= interval.begins {
                    self.interval = Some(Interval { before: spent, ..interval });
                }
            }
            _ => {
                let begins = now + SETTLES;
                self.interval = Some(Interval { service, begins, before: spent });
            }
        }
    }

    fn measure(&mut self, at: Timestamp, service: PacketService, (before, after): (Spent, Spent)) {
        let packets = after.packets.saturating_sub(before.packets);
        let copied = after.copied.saturating_sub(before.copied);
        if service == PacketService::Direct || packets == 0 || copied < MIN_PACKETS {
            return;
        }
        let mean = after.bytes.saturating_sub(before.bytes) as f64 / packets as f64;
        let passed = |after: RelayUsage, before: RelayUsage| RelayUsage {
            bytes: after.bytes.saturating_sub(before.bytes),
            nano_usd: after.nano_usd.saturating_sub(before.nano_usd),
        };
        let ingress = passed(after.ingress, before.ingress);
        let egress = passed(after.egress.unwrap_or_default(), before.egress.unwrap_or_default());
        self.is_one_relay = after.egress.is_none();
        self.packet = Bytes::new(mean.round() as u64);
        self.note_prices([ingress, egress]);
        let parts = [ingress, egress].map(|left| left.bytes as f64 / (copied as f64 * mean));
        self.measured.insert(service, Measured { parts, loss: self.loss(), at });
    }

    /// Updates the prices. A relay that has sent nothing in the interval is assumed to charge what
    /// it charged before, or what the other relay does.
    fn note_prices(&mut self, left: [RelayUsage; 2]) {
        let price =
            |left: RelayUsage| (left.bytes > 0).then(|| left.nano_usd as f64 / left.bytes as f64);
        let [ingress, egress] = left.map(price);
        let before = |role: usize| self.prices.map(|prices| prices[role]);
        let [known_ingress, known_egress] = [ingress.or(before(0)), egress.or(before(1))];
        let prices = known_ingress.or(known_egress).zip(known_egress.or(known_ingress));
        let is_priced = |(ingress, egress): &(f64, f64)| *ingress > 0.0 || *egress > 0.0;
        self.prices = prices.filter(is_priced).map(|(ingress, egress)| [ingress, egress]);
    }

    /// Returns the Internet path's loss ratio; before the first report that of the configured
    /// costs, or zero.
    #[must_use]
    pub fn loss(&self) -> Ratio {
        Ratio::new(self.lost / self.expected).unwrap_or(Ratio::ZERO)
    }

    /// Returns the estimated cost of each service for each GB.
    #[must_use]
    pub fn now(&self) -> BTreeMap<PacketService, Money> {
        let cost = |service| Some((service, Money::from_usd(self.cost(service)?).ok()?));
        BOUGHT.into_iter().filter_map(cost).collect()
    }

    fn cost(&self, service: PacketService) -> Option<f64> {
        let loss = self.loss();
        let modelled = |loss| self.modelled(service, loss);
        let moved = |cost: f64, from| Some((cost + modelled(loss)? - modelled(from)?).max(0.0));
        let configured = self
            .configured
            .as_ref()
            .and_then(|configured| Some((configured.costs.get(&service)?, configured.loss)));
        match (self.prices, configured, self.measured.get(&service)) {
            (None, Some((cost, _)), _) => Some(cost.as_usd()),
            (_, _, Some(Measured { parts, loss, .. })) => {
                let [ingress, egress] = self.prices();
                moved(parts[0] * ingress + parts[1] * egress, *loss)
            }
            (_, Some((cost, expected)), None) => moved(cost.as_usd(), expected),
            (_, None, None) => modelled(loss),
        }
    }

    /// Returns the prices of the ingress and the egress relay; equal ones if relays report none.
    fn prices(&self) -> [f64; 2] {
        self.prices.unwrap_or([1.0; 2])
    }

    /// Returns the cost of a GB by the paper's formulas, with the relays' prices.
    fn modelled(&self, service: PacketService, loss: Ratio) -> Option<f64> {
        let second = Duration::from_secs(1);
        let stream = Stream {
            rate: Bandwidth::from_mbps(8000.0).ok()?,
            span: second,
            packet: self.packet,
            loss,
            uplink: Tariff::FREE,
            retention: Duration::ZERO,
        };
        let relay = |usd_per_gb: f64| -> Option<RelayTariff> {
            Some(RelayTariff {
                ingress: Tariff::FREE,
                egress: Tariff::PerGb(PricePerGb::from_usd_per_gb(usd_per_gb).ok()?),
                vm_hour: Money::ZERO,
                flows_per_vm: 1,
                storage_gb_hour: Money::ZERO,
            })
        };
        let [ingress, egress] = self.prices();
        let (ingress, egress) = (relay(ingress)?, relay(egress)?);
        let cost = if self.is_one_relay {
            packet_cost_at_one(service, &stream, &self.coding, &ingress)
        } else {
            packet_cost(service, &stream, &self.coding, &ingress, &egress)
        };
        Some(cost.ok()?.total().as_usd())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use PacketService::{Caching, Coding, Forwarding};

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn ratio(value: f64) -> Ratio {
        Ratio::new(value).unwrap()
    }

    /// Returns two repair packets for ten, and one for five.
    fn rates() -> CodingRates {
        CodingRates { in_stream: 0.2, ..CodingRates::paper() }
    }

    fn usd(costs: [f64; 3]) -> BTreeMap<PacketService, Money> {
        BOUGHT.into_iter().zip(costs.map(|usd| Money::from_usd(usd).unwrap())).collect()
    }

    fn configured(loss: f64) -> FlowCosts {
        let costs = usd([0.03, 0.08, 0.17]);
        FlowCosts::new(Some(ConfiguredCosts { costs, loss: ratio(loss) }), rates())
    }

    fn unconfigured() -> FlowCosts {
        FlowCosts::new(None, rates())
    }

    fn cents(costs: &FlowCosts) -> [i64; 3] {
        BOUGHT.map(|service| (costs.now()[&service].as_usd() * 100.0).round() as i64)
    }

    fn report(costs: &mut FlowCosts, lost: u64) {
        let report = Report { expected: 1000, in_time: 1000, lost_by_internet: lost };
        (0..200).for_each(|_| costs.note_report(report));
    }

    /// A flow of a hundred packets of 1,000 bytes a second. A given number of hundredths of its
    /// bytes leave each relay, which charges `cents` for each GB.
    struct Running {
        costs: FlowCosts,
        now: u64,
        spent: Spent,
        cents: [u64; 2],
    }

    impl Running {
        fn new(costs: FlowCosts, cents: [u64; 2]) -> Self {
            let spent = Spent { egress: Some(RelayUsage::default()), ..Spent::default() };
            Self { costs, now: 0, spent, cents }
        }

        fn run(&mut self, service: PacketService, hundredths: [u64; 2], seconds: u64) {
            for _ in 0..seconds {
                self.now += 1;
                self.spent.packets += 100;
                self.spent.bytes += 100_000;
                self.spent.copied += 100 * u64::from(service != PacketService::Direct);
                let roles = [&mut self.spent.ingress, self.spent.egress.as_mut().unwrap()];
                for (left, (hundredths, cents)) in
                    roles.into_iter().zip(hundredths.into_iter().zip(self.cents))
                {
                    left.bytes += 1000 * hundredths;
                    left.nano_usd += 10 * hundredths * cents;
                }
                self.costs.note_spent(at(self.now), service, self.spent);
            }
        }
    }

    #[test]
    fn unpriced_services_cost_relay_egress() {
        let mut costs = unconfigured();
        assert_eq!(cents(&costs), [40, 100, 200]);
        report(&mut costs, 100);
        // A tenth is recovered: it leaves the egress relay once more, and with coding nine helpers
        // get requests of 64 bytes each.
        assert_eq!(cents(&costs), [56, 110, 200]);
    }

    #[test]
    fn configured_costs_hold_without_prices() {
        let mut running = Running::new(configured(0.01), [0, 0]);
        report(&mut running.costs, 500);
        running.run(Coding, [120, 0], 60);
        assert_eq!(cents(&running.costs), [3, 8, 17]);
    }

    #[test]
    fn running_service_costs_billed_traffic() {
        let mut running = Running::new(configured(0.01), [10, 10]);
        running.run(Coding, [120, 0], 32);
        assert_eq!(cents(&running.costs), [3, 8, 17], "not long enough");
        running.run(Coding, [120, 0], 10);
        assert_eq!(cents(&running.costs), [12, 8, 17]);
        // Costs are for each byte that is copied, not for each that is sent.
        let mut chosen = Running::new(configured(0.01), [10, 10]);
        for _ in 0..42 {
            chosen.spent.packets += 300;
            chosen.spent.bytes += 300_000;
            chosen.run(Coding, [120, 0], 1);
        }
        assert_eq!(cents(&chosen.costs), [12, 8, 17]);
    }

    #[test]
    fn costs_of_previous_service_are_not_counted() {
        let mut running = Running::new(unconfigured(), [0, 0]);
        running.run(Forwarding, [100, 100], 40);
        running.run(Caching, [100, 100], 2);
        running.run(Caching, [100, 0], 40);
        assert_eq!(cents(&running.costs), [40, 100, 200]);
    }

    #[test]
    fn measured_costs_are_remembered() {
        let mut running = Running::new(unconfigured(), [0, 0]);
        running.run(Coding, [120, 0], 40);
        running.run(Caching, [100, 0], 500);
        assert_eq!(cents(&running.costs), [120, 100, 200]);
        running.run(Caching, [100, 0], 200);
        assert_eq!(cents(&running.costs), [40, 100, 200]);
        running.run(Coding, [120, 0], 40);
        running.costs.forget_relays();
        assert_eq!(cents(&running.costs), [40, 100, 200]);
    }

    #[test]
    fn prices_of_relays_count_without_configured_costs() {
        let mut running = Running::new(unconfigured(), [2, 10]);
        report(&mut running.costs, 100);
        running.run(Caching, [100, 10], 40);
        // 0.4 parts at 2 cents and 0.158 at 10; 1 and 0.1; 1 and 1.
        assert_eq!(cents(&running.costs), [2, 3, 12]);
        report(&mut running.costs, 500);
        // Requests to helpers leave the expensive relay: coding is no longer the cheapest.
        assert_eq!(cents(&running.costs), [9, 7, 12]);
    }

    /// A flow is not to begin over the Internet alone because its first twenty packets came.
    #[test]
    fn few_packets_do_not_replace_the_expected_loss() {
        let mut costs = configured(0.03);
        assert_eq!(costs.loss(), ratio(0.03));
        costs.note_report(Report { expected: 20, in_time: 20, lost_by_internet: 0 });
        assert!(costs.loss() > ratio(0.02));
        report(&mut costs, 0);
        assert!(costs.loss() < ratio(0.000_1));
        assert_eq!(unconfigured().loss(), Ratio::ZERO);
    }

    #[test]
    fn reported_costs_follow_loss() {
        let mut running = Running::new(configured(0.1), [8, 9]);
        report(&mut running.costs, 100);
        running.run(Forwarding, [100, 100], 40);
        assert_eq!(cents(&running.costs), [3, 8, 17], "as was expected");
        report(&mut running.costs, 500);
        // 0.4 more of 9 cents, with coding 1.576 times that.
        assert_eq!(cents(&running.costs), [9, 12, 17]);
        report(&mut running.costs, 0);
        assert_eq!(cents(&running.costs), [2, 7, 17]);
    }

    #[test]
    fn over_one_relay_nothing_leaves_for_another() {
        let mut running = Running::new(unconfigured(), [10, 0]);
        report(&mut running.costs, 100);
        running.run(Caching, [10, 0], 40);
        running.costs.forget_relays();
        running.spent.egress = None;
        for _ in 0..40 {
            running.now += 1;
            running.spent.packets += 100;
            running.spent.bytes += 100_000;
            running.spent.copied += 100;
            running.spent.ingress.bytes += 10_000;
            running.spent.ingress.nano_usd += 1_000;
            running.costs.note_spent(at(running.now), Caching, running.spent);
        }
        assert_eq!(cents(&running.costs), [2, 1, 10]);
    }

    #[test]
    fn few_packets_tell_nothing() {
        let mut costs = unconfigured();
        for second in 0..200 {
            let ingress = RelayUsage { bytes: second * 9_000, nano_usd: 0 };
            let spent = Spent {
                packets: second,
                bytes: second * 1000,
                copied: second,
                ingress,
                egress: None,
            };
            costs.note_spent(at(second), Caching, spent);
        }
        assert_eq!(cents(&costs), [40, 100, 200]);
    }
}
