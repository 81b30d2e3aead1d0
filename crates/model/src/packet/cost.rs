//! Cost of a packet service for a flow `[JQ Tables 1 and 2]`, and the points that JQ 7 leaves open:
//! storage, the sender's own uplink, and tariffs by the 95th percentile.
//!
//! With b the flow's bytes, p its loss, r and s the coding rates, N the bytes of requests for lost
//! packets:
//!
//! | | ingress relay | egress relay |
//! |---|---|---|
//! | forwarding | in b, out b | in b, out b |
//! | caching | in b, out b | in b + N, out bp |
//! | coding | in b, out b (r + s) | in b (r + s) + N + helpers' packets, out bp + requests to helpers |
//!
//! Two entries of Table 2 are corrected. What coding takes in at the egress relay is paid at that
//! relay's price (in print: the ingress relay's). Caching takes in and sends out b at the ingress
//! relay (garbled in print).

use tradewind_units::{Bandwidth, Bytes, Duration, Money, PricePerGb, Ratio, UnitError};

use super::PacketService;

/// Hours of a month, as clouds count them.
const HOURS_A_MONTH: f64 = 730.0;
const SECONDS_AN_HOUR: f64 = 3600.0;

/// A tariff for traffic.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Tariff {
    /// By volume, as clouds do.
    PerGb(PricePerGb),
    /// By the 95th percentile of a month's rates, in dollars for each Mbit/s, as carriers do. A
    /// flow is charged its rate for the part of the month that it lasts: what it adds if it runs
    /// when the link is busy.
    Percentile {
        /// Dollars a month for each Mbit/s.
        usd_per_mbps: f64,
    },
}

impl Tariff {
    /// No charge, as for traffic that enters a cloud.
    pub const FREE: Self = Self::PerGb(PricePerGb::FREE);

    /// Returns the price of each GB, in dollars. By the 95th percentile too it does not depend on
    /// the rate, since a flow is charged its rate for its time alone.
    #[must_use]
    pub fn usd_per_gb(self) -> f64 {
        self.usd(1e9, Duration::from_secs(1))
    }

    /// Returns the cost of `bytes` within `span`, in dollars.
    fn usd(self, bytes: f64, span: Duration) -> f64 {
        match self {
            Self::PerGb(price) => bytes / 1e9 * price.as_usd_per_gb(),
            Self::Percentile { usd_per_mbps } => {
                // Mbit/s times the share of a month: the span cancels out of the rate.
                let mbps_hours = bytes * 8.0 / 1e6 / SECONDS_AN_HOUR;
                let share = if span.is_zero() { 0.0 } else { mbps_hours / HOURS_A_MONTH };
                share * usd_per_mbps
            }
        }
    }
}

/// Prices of one relay's cloud.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RelayTariff {
    /// For what enters the relay.
    pub ingress: Tariff,
    /// For what leaves it: at the ingress relay for the other relay, at the egress relay for
    /// receivers.
    pub egress: Tariff,
    /// For an hour of the machine.
    pub vm_hour: Money,
    /// Flows that share the machine.
    pub flows_per_vm: u32,
    /// For storing a GB for an hour; the machine's own memory costs nothing more.
    pub storage_gb_hour: Money,
}

/// A flow of packets.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stream {
    /// The rate at which it sends.
    pub rate: Bandwidth,
    /// Its duration.
    pub span: Duration,
    /// The size of a packet.
    pub packet: Bytes,
    /// Share of its packets that the Internet loses.
    pub loss: Ratio,
    /// The tariff of the sender's own uplink for copies.
    pub uplink: Tariff,
    /// The time for which the egress relay keeps packets.
    pub retention: Duration,
}

/// Coding rates of a flow, and parameters of recovery.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CodingRates {
    /// r: repair packets for each packet, across flows.
    pub cross_stream: f64,
    /// s: repair packets for each packet, within the flow.
    pub in_stream: f64,
    /// Helpers that are asked for each packet that is recovered across flows: one less than flows
    /// in a block.
    pub helpers: u32,
    /// Share of lost packets that in-stream repair packets recover, without helpers.
    pub in_stream_share: Ratio,
    /// The size of a request for a lost packet, and of one to a helper.
    pub request: Bytes,
    /// Factor by which a flow takes more of a machine than without coding (alpha).
    pub compute_factor: f64,
}

impl CodingRates {
    /// Returns the paper's: r = 2/10, no in-stream coding, ten flows a block, 2.6 times the machine
    /// `[JQ 5.1.1]`. Requests of 64 bytes are ours.
    #[must_use]
    pub fn paper() -> Self {
        Self {
            cross_stream: 0.2,
            in_stream: 0.0,
            helpers: 9,
            in_stream_share: Ratio::ZERO,
            request: Bytes::new(64),
            compute_factor: 2.6,
        }
    }
}

/// Cost of a service for a flow over its whole duration.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Default,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct PacketCost {
    /// Traffic in and out at the ingress relay.
    #[serde(rename = "ingress_relay_usd")]
    pub ingress_relay: Money,
    /// The same at the egress relay.
    #[serde(rename = "egress_relay_usd")]
    pub egress_relay: Money,
    /// Both machines' shares.
    #[serde(rename = "compute_usd")]
    pub compute: Money,
    /// Packets stored at the egress relay.
    #[serde(rename = "storage_usd")]
    pub storage: Money,
    /// Copies on the sender's uplink.
    #[serde(rename = "uplink_usd")]
    pub uplink: Money,
    /// The price of the sender's own cloud, by where it sends; the functions of this module leave
    /// it out.
    #[serde(rename = "source_usd", default)]
    pub source: Money,
}

impl PacketCost {
    /// Returns the sum of all parts.
    #[must_use]
    pub fn total(&self) -> Money {
        let traffic = self.ingress_relay + self.egress_relay;
        traffic + self.compute + self.storage + self.uplink + self.source
    }
}

/// Bytes that a service moves: in and out at the ingress relay, in and out at the egress relay.
struct Volumes {
    ingress: [f64; 2],
    egress: [f64; 2],
    /// Share of the flow's bytes that the egress relay keeps.
    stored: f64,
}

impl Volumes {
    /// Returns the same where one relay is both: nothing passes between relays, and everything that
    /// enters comes from outside.
    fn at_one(service: PacketService, stream: &Stream, coding: &CodingRates) -> Self {
        let two = Self::of(service, stream, coding);
        let [_, between] = two.ingress;
        let [entering, leaving] = two.egress;
        let ingress = [two.ingress[0], 0.0];
        Self { ingress, egress: [(entering - between).max(0.0), leaving], stored: two.stored }
    }

    fn of(service: PacketService, stream: &Stream, coding: &CodingRates) -> Self {
        let bytes = stream.rate.volume_in(stream.span).as_u64() as f64;
        let lost = bytes * stream.loss.as_f64();
        let packet = stream.packet.as_u64().max(1) as f64;
        let requests = lost / packet * coding.request.as_u64() as f64;
        match service {
            PacketService::Direct => Self { ingress: [0.0; 2], egress: [0.0; 2], stored: 0.0 },
            PacketService::Forwarding => {
                Self { ingress: [bytes; 2], egress: [bytes; 2], stored: 0.0 }
            }
            PacketService::Caching => {
                Self { ingress: [bytes; 2], egress: [bytes + requests, lost], stored: 1.0 }
            }
            PacketService::Coding => {
                let rate = coding.cross_stream + coding.in_stream;
                let helped = 1.0 - coding.in_stream_share.as_f64();
                let asked = f64::from(coding.helpers) * helped;
                Self {
                    ingress: [bytes, bytes * rate],
                    egress: [bytes * rate + requests + asked * lost, lost + asked * requests],
                    stored: rate,
                }
            }
        }
    }
}

/// Returns the cost of `service` for `stream` over two relays.
///
/// # Errors
/// When the sum is beyond what money can express.
pub fn packet_cost(
    service: PacketService,
    stream: &Stream,
    coding: &CodingRates,
    ingress: &RelayTariff,
    egress: &RelayTariff,
) -> Result<PacketCost, UnitError> {
    let volumes = Volumes::of(service, stream, coding);
    cost_of(&volumes, service, stream, coding, ingress, egress)
}

/// Returns the cost of `service` for `stream` over one relay, which is ingress and egress relay at
/// once: nothing passes between relays, and one machine is paid. What enters counts at the ingress
/// relay, traffic from and to receivers at the egress relay `[JQ 3.5]`.
///
/// # Errors
/// When the sum is beyond what money can express.
pub fn packet_cost_at_one(
    service: PacketService,
    stream: &Stream,
    coding: &CodingRates,
    relay: &RelayTariff,
) -> Result<PacketCost, UnitError> {
    let volumes = Volumes::at_one(service, stream, coding);
    let once = RelayTariff { vm_hour: Money::ZERO, ..*relay };
    cost_of(&volumes, service, stream, coding, &once, relay)
}

fn cost_of(
    volumes: &Volumes,
    service: PacketService,
    stream: &Stream,
    coding: &CodingRates,
    ingress: &RelayTariff,
    egress: &RelayTariff,
) -> Result<PacketCost, UnitError> {
    if service == PacketService::Direct {
        return Ok(PacketCost::default());
    }
    let traffic = |tariff: &RelayTariff, [entering, leaving]: [f64; 2]| {
        let usd =
            tariff.ingress.usd(entering, stream.span) + tariff.egress.usd(leaving, stream.span);
        Money::from_usd(usd)
    };
    let hours = stream.span.as_secs_f64() / SECONDS_AN_HOUR;
    let factor = if service == PacketService::Coding { coding.compute_factor } else { 1.0 };
    let machine = |tariff: &RelayTariff| {
        tariff.vm_hour.as_usd() / f64::from(tariff.flows_per_vm.max(1)) * hours * factor
    };
    let stored_gb = stream.rate.volume_in(stream.retention).as_gb() * volumes.stored;
    // With forwarding the copy is sent in place of the packet itself.
    let copied = if service == PacketService::Forwarding { 0.0 } else { volumes.ingress[0] };
    Ok(PacketCost {
        ingress_relay: traffic(ingress, volumes.ingress)?,
        egress_relay: traffic(egress, volumes.egress)?,
        compute: Money::from_usd(machine(ingress) + machine(egress))?,
        storage: Money::from_usd(stored_gb * hours * egress.storage_gb_hour.as_usd())?,
        uplink: Money::from_usd(stream.uplink.usd(copied, stream.span))?,
        source: Money::ZERO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_gb(usd: f64) -> Tariff {
        Tariff::PerGb(PricePerGb::from_usd_per_gb(usd).unwrap())
    }

    /// Returns a flow of 1.5 Mbit/s for an hour, as Skype's [JQ 5.1.1].
    fn stream(loss: f64) -> Stream {
        Stream {
            rate: Bandwidth::from_mbps(1.5).unwrap(),
            span: Duration::from_secs(3600),
            packet: Bytes::new(1000),
            loss: Ratio::new(loss).unwrap(),
            uplink: Tariff::FREE,
            retention: Duration::ZERO,
        }
    }

    /// Returns a machine of which a flow's share at both relays is 0.19 cents an hour [JQ 5.1.1].
    fn relay(egress: f64) -> RelayTariff {
        RelayTariff {
            ingress: Tariff::FREE,
            egress: per_gb(egress),
            vm_hour: Money::from_usd(0.095).unwrap(),
            flows_per_vm: 100,
            storage_gb_hour: Money::ZERO,
        }
    }

    fn cost(service: PacketService, stream: &Stream, ends: [&RelayTariff; 2]) -> PacketCost {
        packet_cost(service, stream, &CodingRates::paper(), ends[0], ends[1]).unwrap()
    }

    fn cents(money: Money) -> f64 {
        money.as_usd() * 100.0
    }

    #[test]
    fn oceania_to_europe_matches_the_papers_costs() {
        let (oceania, europe) = (relay(0.098), relay(0.02));
        let ends = [&oceania, &europe];
        let near = |money, paper: f64| (cents(money) - paper).abs() < 0.006;
        for service in [PacketService::Caching, PacketService::Forwarding] {
            assert!(near(cost(service, &stream(0.01), ends).ingress_relay, 6.62), "{service}");
            assert!(near(cost(service, &stream(0.01), ends).compute, 0.19), "{service}");
        }
        let coding = cost(PacketService::Coding, &stream(0.01), ends);
        assert!(near(coding.ingress_relay, 1.32));
        // 2.6 times 0.19; the paper prints 0.51.
        assert!((cents(coding.compute) - 0.51).abs() < 0.02);
    }

    #[test]
    fn coding_is_cheapest_at_usual_losses_only() {
        // Cheap at the ingress relay, dear at the egress one: the threshold is lowest there.
        let (ingress, egress) = (relay(0.02), relay(0.09));
        let total = |service, loss| cost(service, &stream(loss), [&ingress, &egress]).total();
        assert!(total(PacketService::Coding, 0.01) < total(PacketService::Caching, 0.01));
        assert!(total(PacketService::Caching, 0.01) < total(PacketService::Forwarding, 0.01));
        // Requests to helpers leave the egress relay too, and outweigh what coding saves at the
        // ingress relay.
        assert!(total(PacketService::Coding, 0.1) < total(PacketService::Caching, 0.1));
        assert!(total(PacketService::Coding, 0.5) > total(PacketService::Caching, 0.5));
    }

    #[test]
    fn ingress_is_paid_where_it_enters() {
        let free = relay(0.0);
        let mut paid = free;
        paid.ingress = per_gb(0.1);
        let lossless = stream(0.0);
        let coding = cost(PacketService::Coding, &lossless, [&free, &paid]);
        assert!((cents(coding.egress_relay) - 0.675 * 0.2 * 10.0).abs() < 1e-6);
        assert_eq!(coding.ingress_relay, Money::ZERO);
    }

    #[test]
    fn storage_uplink_and_percentiles_are_counted() {
        let mut egress = relay(0.02);
        egress.storage_gb_hour = Money::from_usd(1.0).unwrap();
        let with_storage = Stream {
            retention: Duration::from_secs(600),
            uplink: Tariff::Percentile { usd_per_mbps: 730.0 },
            ..stream(0.0)
        };
        let caching = cost(PacketService::Caching, &with_storage, [&relay(0.02), &egress]);
        assert!((caching.storage.as_usd() - 0.1125).abs() < 1e-9);
        // 1.5 Mbit/s for one of 730 hours.
        assert!((caching.uplink.as_usd() - 1.5).abs() < 1e-9);
        let forwarding = cost(PacketService::Forwarding, &with_storage, [&relay(0.02), &egress]);
        assert_eq!((forwarding.storage, forwarding.uplink), (Money::ZERO, Money::ZERO));
    }

    #[test]
    fn over_one_relay_nothing_is_paid_between_relays() {
        let mut relay = relay(0.1);
        relay.ingress = per_gb(0.01);
        let stream = stream(0.01);
        let over_one =
            |service| packet_cost_at_one(service, &stream, &CodingRates::paper(), &relay).unwrap();
        let near = |money, expected: f64| (cents(money) - expected).abs() < 1e-6;
        // 0.675 GB, of which one per cent is lost; a request has 64 bytes for each packet of 1,000.
        let forwarding = over_one(PacketService::Forwarding);
        assert!(near(forwarding.ingress_relay, 0.675), "{forwarding:?}");
        assert!(near(forwarding.egress_relay, 6.75), "{forwarding:?}");
        let caching = over_one(PacketService::Caching);
        assert!(near(caching.egress_relay, 0.0675 + 0.000_432), "{caching:?}");
        // Nine helpers are asked, and lend as many packets.
        let coding = over_one(PacketService::Coding);
        let entering = (0.000_432 + 9.0 * 0.006_75) * 1.0;
        let leaving = (0.006_75 + 9.0 * 0.000_432) * 10.0;
        assert!(near(coding.ingress_relay, 0.675), "{coding:?}");
        assert!((cents(coding.egress_relay) - entering - leaving).abs() < 1e-3, "{coding:?}");
        assert!(near(coding.compute, 2.6 * 0.095), "one machine: {coding:?}");
    }

    #[test]
    fn each_gb_by_percentile_costs_the_same_at_any_rate() {
        let monthly = Tariff::Percentile { usd_per_mbps: 730.0 };
        // A GB is 8,000 Mbit, and an hour of one Mbit/s, a dollar, is 3,600.
        assert!((monthly.usd_per_gb() - 8000.0 / 3600.0).abs() < 1e-9);
        assert!((per_gb(0.09).usd_per_gb() - 0.09).abs() < 1e-12);
    }

    #[test]
    fn direct_costs_nothing() {
        let relay = relay(0.1);
        assert_eq!(
            cost(PacketService::Direct, &stream(0.5), [&relay, &relay]).total(),
            Money::ZERO
        );
    }
}
