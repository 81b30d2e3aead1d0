//! Problems to solve: CP's four cities over real regions, and small ones generated from a seed.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod enumeration;
pub(crate) mod family;
pub(crate) mod near_regions;
pub(crate) mod random;

use tradewind_model::leg::{RELAY_FLOW_MBPS, RELAY_TO_RELAY_WINDOW};
use tradewind_model::{Catalogue, Coordinates, Leg, RttModel};
use tradewind_plan::{Flow, Inputs, LegEnd, Legs};
use tradewind_units::{Bandwidth, Bytes, Duration, FlowId, Money, RegionId, SiteId};

pub(crate) fn usd(amount: f64) -> Money {
    Money::from_usd(amount).unwrap()
}

pub(crate) fn mbps(rate: f64) -> Bandwidth {
    Bandwidth::from_mbps(rate).unwrap()
}

/// Returns hamina, London, Sao Paulo and Tokyo in a full mesh of 2 GB flows [CP VII-C].
pub(crate) fn four_cities(regions: &[&str], budget_usd: f64) -> Inputs {
    let catalogue = Catalogue::builtin();
    let at = |latitude, longitude| Coordinates::new(latitude, longitude).unwrap();
    let sites = [
        ("hamina", at(60.57, 27.20)),
        ("london", at(51.51, -0.13)),
        ("sao-paulo", at(-23.55, -46.63)),
        ("tokyo", at(35.68, 139.69)),
    ];
    let regions: Vec<RegionId> = regions.iter().map(|id| RegionId::new(*id).unwrap()).collect();
    let site_places =
        sites.iter().map(|(name, at)| (LegEnd::Site(SiteId::new(*name).unwrap()), *at));
    let relay_places = regions
        .iter()
        .map(|id| (LegEnd::Relay(id.clone()), catalogue.require(id).unwrap().location));
    let places: Vec<(LegEnd, Coordinates)> = site_places.chain(relay_places).collect();
    let mut legs = Legs::new();
    for (from, from_at) in &places {
        for (to, to_at) in places.iter().filter(|(to, _)| to != from) {
            let leg = Leg::new(RttModel::fitted().rtt_between(*from_at, *to_at));
            legs.insert((from.clone(), to.clone()), dressed(leg, from, to));
        }
    }
    let mut flows = Vec::new();
    for (source, _) in &sites {
        for (destination, _) in sites.iter().filter(|(to, _)| to != source) {
            flows.push(flow(&format!("{source}-{destination}"), source, destination, 2_000));
        }
    }
    Inputs::cloudpilot(flows, regions, legs, usd(budget_usd))
}

/// Sets windows and caps as in CP: large windows between relays, 1 Gbit/s last miles, 1.75 Gbit/s a
/// flow at relays.
fn dressed(leg: Leg, from: &LegEnd, to: &LegEnd) -> Leg {
    let is_site = |place: &LegEnd| matches!(place, LegEnd::Site(_));
    let leg = if is_site(from) || is_site(to) {
        leg.capped_at(mbps(1000.0))
    } else {
        leg.with_window(RELAY_TO_RELAY_WINDOW)
    };
    if is_site(from) && is_site(to) {
        leg
    } else {
        leg.capped_per_connection_at(mbps(RELAY_FLOW_MBPS))
    }
}

pub(crate) fn flow(id: &str, source: &str, destination: &str, megabytes: u64) -> Flow {
    Flow::new(
        FlowId::new(id).unwrap(),
        SiteId::new(source).unwrap(),
        SiteId::new(destination).unwrap(),
        Bytes::new(megabytes * 1_000_000),
    )
}

/// Returns a small problem made from numbers: RTTs in milliseconds for each ordered pair of places,
/// taken in turn.
pub(crate) fn drawn(
    flow_count: usize,
    region_count: usize,
    rtts_ms: &[u64],
    capacity_mbps: f64,
    budget_usd: f64,
) -> Inputs {
    let sites: Vec<LegEnd> = (0..flow_count + 1)
        .map(|index| LegEnd::Site(SiteId::new(format!("site{index}")).unwrap()))
        .collect();
    let regions: Vec<RegionId> =
        (0..region_count).map(|index| RegionId::new(format!("cloud:r{index}")).unwrap()).collect();
    let relays = regions.iter().map(|id| LegEnd::Relay(id.clone()));
    let places: Vec<LegEnd> = sites.into_iter().chain(relays).collect();
    let mut rtts = rtts_ms.iter().cycle();
    let mut legs = Legs::new();
    for from in &places {
        for to in places.iter().filter(|to| *to != from) {
            let rtt = Duration::from_millis(*rtts.next().unwrap());
            legs.insert((from.clone(), to.clone()), dressed(Leg::new(rtt), from, to));
        }
    }
    let flows = (0..flow_count)
        .map(|index| {
            let (source, destination) = (format!("site{index}"), format!("site{}", index + 1));
            flow(&format!("flow{index}"), &source, &destination, 200 + 300 * index as u64)
        })
        .collect();
    let mut inputs = Inputs::cloudpilot(flows, regions, legs, usd(budget_usd));
    inputs.relay_types[0].capacity = mbps(capacity_mbps);
    inputs
}

/// Returns inputs generated from a seed: regions and sites at random places, RTTs by the fitted
/// model, CP's windows, caps and prices; flows of 0.5 to 8 GB between random sites.
pub(crate) fn world(flow_count: usize, region_count: usize, budget_usd: f64, seed: u64) -> Inputs {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut below = |count: usize| {
        // Knuth's linear congruential generator; its high bits are good enough for places.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((state >> 33) as usize) % count
    };
    let mut place = || {
        let latitude = below(9_500) as f64 / 100.0 - 35.0;
        Coordinates::new(latitude, below(36_000) as f64 / 100.0 - 180.0).unwrap()
    };
    let site_count = flow_count.clamp(2, 150);
    let mut places: Vec<(LegEnd, Coordinates)> = Vec::new();
    let regions: Vec<RegionId> =
        (0..region_count).map(|index| RegionId::new(format!("cloud:r{index}")).unwrap()).collect();
    places.extend(regions.iter().map(|id| (LegEnd::Relay(id.clone()), place())));
    let site = |index: usize| format!("site{index}");
    let sites =
        (0..site_count).map(|index| (LegEnd::Site(SiteId::new(site(index)).unwrap()), place()));
    places.extend(sites.collect::<Vec<_>>());
    let mut legs = Legs::new();
    for (from, from_at) in &places {
        for (to, to_at) in places.iter().filter(|(to, _)| to != from) {
            let leg = Leg::new(RttModel::fitted().rtt_between(*from_at, *to_at));
            legs.insert((from.clone(), to.clone()), dressed(leg, from, to));
        }
    }
    let flows = (0..flow_count)
        .map(|index| {
            let source = below(site_count);
            let destination = (source + 1 + below(site_count - 1)) % site_count;
            let megabytes = 500 + below(7_500) as u64;
            flow(&format!("flow{index}"), &site(source), &site(destination), megabytes)
        })
        .collect();
    Inputs::cloudpilot(flows, regions, legs, usd(budget_usd))
}
