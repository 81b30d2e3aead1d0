//! CP's setting: 18 of GCP's regions, end points near them, RTTs by the distance model, CP's
//! windows, caps and prices.

use tradewind_model::{Catalogue, Coordinates, Leg, RttModel};
use tradewind_plan::{Flow, Inputs, LegEnd, Legs};
use tradewind_units::SiteId;

use super::random::Numbers;
use super::{dressed, flow, usd};

const REGIONS: usize = 18;

/// Sites that send in [`Pattern::LocalizedOneToMany`].
const SERVERS: usize = 3;

/// The pattern of sources and destinations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// Half as many sites as flows; 0.5 to 4 GB from any to any other.
    ManyToMany,
    /// 2 GB from one site to as many others as there are flows [CP VII-A].
    OneToMany,
    /// 0.5 to 4 GB from pairs of sites that share nothing.
    OneToOne,
    /// 2 GB to one site from as many others as there are flows.
    ManyToOne,
    /// 2 GB from the nearest of three sites, or in one of ten cases from another, to as many others
    /// as there are flows.
    LocalizedOneToMany,
}

/// Returns flows between sites within some hundred kilometres of regions, which is where people
/// live.
pub(crate) fn near_regions(
    flow_count: usize,
    usd_per_flow: f64,
    pattern: Pattern,
    seed: u64,
) -> Inputs {
    let mut draw = Numbers::new(seed);
    let catalogue = Catalogue::builtin();
    let all: Vec<_> = catalogue.regions().filter(|r| r.id.as_str().starts_with("gcp:")).collect();
    let regions: Vec<_> = all.iter().step_by(all.len() / REGIONS).take(REGIONS).collect();
    let sites = match pattern {
        Pattern::ManyToMany => (flow_count / 2).max(4),
        Pattern::OneToMany | Pattern::ManyToOne => flow_count + 1,
        Pattern::OneToOne => 2 * flow_count,
        Pattern::LocalizedOneToMany => SERVERS + flow_count,
    };
    let mut places: Vec<(LegEnd, Coordinates)> = Vec::new();
    for index in 0..sites {
        let near = all[draw.below(all.len() as u64) as usize].location;
        let mut aside = || draw.below(10_001) as f64 / 1_000.0 - 5.0;
        let latitude = (near.latitude() + aside()).clamp(-80.0, 80.0);
        let longitude = (near.longitude() + aside()).clamp(-180.0, 179.9);
        let at = Coordinates::new(latitude, longitude).unwrap();
        places.push((LegEnd::Site(SiteId::new(format!("site{index}")).unwrap()), at));
    }
    places.extend(regions.iter().map(|r| (LegEnd::Relay(r.id.clone()), r.location)));
    let mut legs = Legs::new();
    for (from, from_at) in &places {
        for (to, to_at) in places.iter().filter(|(to, _)| to != from) {
            let leg = Leg::new(RttModel::fitted().rtt_between(*from_at, *to_at));
            legs.insert((from.clone(), to.clone()), dressed(leg, from, to));
        }
    }
    let site = |index: usize| format!("site{index}");
    let flows = (0..flow_count).map(|index| {
        let id = format!("flow{index}");
        match pattern {
            Pattern::ManyToMany => any_to_any(&mut draw, index, sites),
            Pattern::OneToMany => flow(&id, "site0", &site(index + 1), 2_000),
            Pattern::ManyToOne => flow(&id, &site(index + 1), "site0", 2_000),
            Pattern::OneToOne => {
                let megabytes = 500 + draw.below(3_500);
                flow(&id, &site(2 * index), &site(2 * index + 1), megabytes)
            }
            Pattern::LocalizedOneToMany => {
                let to = site(SERVERS + index);
                let servers = by_distance(&legs, &to);
                flow(&id, &servers[usize::from(draw.once_in(10))], &to, 2_000)
            }
        }
    });
    let flows = flows.collect();
    let regions = regions.iter().map(|region| region.id.clone()).collect();
    Inputs::cloudpilot(flows, regions, legs, usd(usd_per_flow * flow_count as f64))
}

/// Returns the sites that send in [`Pattern::LocalizedOneToMany`], the nearest to this one first.
fn by_distance(legs: &Legs, to: &str) -> Vec<String> {
    let place = |name: &str| LegEnd::Site(SiteId::new(name).unwrap());
    let mut servers: Vec<String> = (0..SERVERS).map(|server| format!("site{server}")).collect();
    servers.sort_by_key(|server| legs[&(place(server), place(to))].rtt);
    servers
}

fn any_to_any(draw: &mut Numbers, index: usize, sites: usize) -> Flow {
    let from = draw.below(sites as u64);
    let to = (from + 1 + draw.below(sites as u64 - 1)) % sites as u64;
    let (from, to) = (format!("site{from}"), format!("site{to}"));
    flow(&format!("flow{index}"), &from, &to, 500 + draw.below(3_500))
}
