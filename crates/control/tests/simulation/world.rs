//! Places, the figures of the paths between them, flows, and chance.

use tradewind_control::packet_flow::PacketFlowRecord;
use tradewind_control::record::{FlowRecord, Role};
use tradewind_desired::packets::Chooser;
use tradewind_grant::Destination;
use tradewind_model::fct::path_fct;
use tradewind_model::leg::{DEFAULT_WINDOW, RELAY_TO_RELAY_WINDOW};
use tradewind_model::{Leg, StartUp};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, Ratio, RegionId, RelayTypeId, SiteId};

use super::gigabytes;

/// The true time at the begin, in milliseconds since the Unix epoch: in November 2026.
pub(super) const START: u64 = 1_795_000_000_000;

/// A host that is to join.
pub(super) enum Place {
    Relay(&'static str),
    Gateway(&'static str),
}

pub(super) const RELAYS: [Place; 5] = [
    Place::Relay("gcp:europe-north1"),
    Place::Relay("gcp:europe-north1"),
    Place::Relay("gcp:asia-east1"),
    Place::Relay("gcp:asia-east1"),
    Place::Relay("gcp:us-east1"),
];
pub(super) const GATEWAYS: [Place; 2] = [Place::Gateway("office"), Place::Gateway("plant")];

impl Place {
    pub(super) fn role(&self) -> Role {
        match self {
            Self::Relay(region) => Role::Relay {
                region: RegionId::new(*region).unwrap(),
                relay_type: RelayTypeId::new("standard").unwrap(),
            },
            Self::Gateway(site) => Role::Gateway { site: SiteId::new(*site).unwrap() },
        }
    }
}

/// Returns a packet flow between the gateways.
pub(super) fn packet_flow() -> PacketFlowRecord {
    PacketFlowRecord {
        id: FlowId::new("call").unwrap(),
        from: SiteId::new("office").unwrap(),
        to: ([198, 51, 100, 77], 5004).into(),
        to_site: SiteId::new("plant").unwrap(),
        packets_per_second: 50.0,
        packet: Bytes::new(200),
        budget: Duration::from_millis(150),
        max_loss: Ratio::new(0.001).unwrap(),
        listen: ([127, 0, 0, 1], 16_000).into(),
        service: Chooser::Auto,
    }
}

/// Returns the position of a place on a line, in milliseconds.
fn position(place: &SiteId) -> f64 {
    match place.as_str() {
        "office" => 0.0,
        "plant" => 5.0,
        "gcp:europe-north1" => 10.0,
        "gcp:us-east1" => 60.0,
        "gcp:asia-east1" => 110.0,
        _ => 120.0,
    }
}

/// Returns the round-trip time between two places: three times as long outside the clouds' own
/// networks.
pub(super) fn rtt_ms(from: &SiteId, to: &SiteId) -> f64 {
    let is_site = |place: &SiteId| !place.as_str().starts_with("gcp:");
    let detour = if is_site(from) && is_site(to) { 3.0 } else { 1.0 };
    2.0 + (position(from) - position(to)).abs() * detour
}

/// Returns the rate of a leg.
pub(super) fn rate_mbps(from: &SiteId, to: &SiteId) -> f64 {
    (20_000.0 / rtt_ms(from, to)).min(900.0)
}

/// Differences from the world as it should be.
#[derive(Default)]
pub(super) struct Conditions {
    /// The share by which round-trip times vary, each time anew.
    pub(super) jitter: f64,
    /// A leg with the factors of its true round-trip time and rate, and of the rate that its
    /// sender claims.
    pub(super) leg: Option<Changed>,
    /// Bytes of a session, if not three megabytes.
    pub(super) bytes: Option<u64>,
}

pub(super) struct Changed {
    pub(super) from: &'static str,
    pub(super) to: &'static str,
    pub(super) rtt: f64,
    pub(super) rate: f64,
    pub(super) claimed: f64,
}

impl Conditions {
    fn changed(&self, from: &SiteId, to: &SiteId) -> Option<&Changed> {
        self.leg.as_ref().filter(|leg| leg.from == from.as_str() && leg.to == to.as_str())
    }

    pub(super) fn rtt_ms(&self, from: &SiteId, to: &SiteId) -> f64 {
        rtt_ms(from, to) * self.changed(from, to).map_or(1.0, |leg| leg.rtt)
    }

    fn true_mbps(&self, from: &SiteId, to: &SiteId) -> f64 {
        rate_mbps(from, to) * self.changed(from, to).map_or(1.0, |leg| leg.rate)
    }

    /// Returns the rate that the sender of a leg claims to have measured.
    pub(super) fn claimed_mbps(&self, from: &SiteId, to: &SiteId) -> f64 {
        self.true_mbps(from, to) * self.changed(from, to).map_or(1.0, |leg| leg.claimed)
    }

    pub(super) fn session_bytes(&self) -> u64 {
        self.bytes.unwrap_or(3_000_000)
    }

    /// Returns the time of a session over these places.
    pub(super) fn seconds(&self, places: &[SiteId]) -> f64 {
        let leg = |pair: &[SiteId]| {
            let (from, to) = (&pair[0], &pair[1]);
            let is_cloud = |place: &SiteId| place.as_str().starts_with("gcp:");
            let window =
                if is_cloud(from) && is_cloud(to) { RELAY_TO_RELAY_WINDOW } else { DEFAULT_WINDOW };
            let rtt = Duration::from_secs_f64(self.rtt_ms(from, to) / 1000.0);
            let rate = Bandwidth::from_mbps(self.true_mbps(from, to)).unwrap();
            Leg::new(rtt).with_window(window).capped_at(rate)
        };
        let legs: Vec<Leg> = places.windows(2).map(leg).collect();
        path_fct(&legs, Bytes::new(self.session_bytes()), StartUp::default()).as_secs_f64()
    }
}

/// Returns a flow; each has two variants.
pub(super) fn flow(number: u64, variant: u64) -> FlowRecord {
    let host = 10 + number as u8 * 2 + variant as u8;
    FlowRecord {
        id: FlowId::new(format!("flow{number}")).unwrap(),
        from: SiteId::new(["office", "plant"][number as usize % 2]).unwrap(),
        to: format!("198.51.100.{host}:443").parse().unwrap(),
        to_site: SiteId::new(format!("far{host}")).unwrap(),
        per_day: gigabytes(20),
        weight: 1,
        listen: ([127, 0, 0, 1], 9000 + number as u16).into(),
    }
}

/// Returns the site of a flow's destination: that of its variant.
pub(super) fn destination(flow: &FlowId, to: &Destination) -> SiteId {
    let number: u64 = flow.as_str().trim_start_matches("flow").parse().unwrap();
    let variants = [self::flow(number, 0), self::flow(number, 1)];
    variants.into_iter().find(|flow| flow.to == *to).unwrap().to_site
}

/// Numbers by chance under a seed (splitmix64).
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x5851_f42d_4c95_7f2d)
    }

    pub(super) const fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }

    /// Returns a number from 0 to 1.
    pub(super) const fn unit(&mut self) -> f64 {
        self.below(1 << 32) as f64 / (1_u64 << 32) as f64
    }

    pub(super) const fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
}
