//! Tests of the egress cost of the first hop, which depends on its destination, on a family of
//! problems over the catalogue's regions and prices.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::enumeration::enumerated;
use common::random::Numbers;
use common::{flow, mbps, usd};
use tradewind_model::catalogue::Egress;
use tradewind_model::cost::Prices;
use tradewind_model::{Catalogue, Leg, Region, RttModel, StartUp};
use tradewind_plan::solver::{self, Limits};
use tradewind_plan::{Inputs, LegEnd, Legs, Objective, Plan, Problem, verify};
use tradewind_units::{Duration, Money, RegionId, RelayId, SiteId};

/// Returns a few flows between sites in clouds, over a few regions whose relays cost nothing to set
/// up.
fn drawn(seed: u64, catalogue: &Catalogue) -> Inputs {
    let mut numbers = Numbers::new(seed);
    let all: Vec<&Region> =
        catalogue.regions().filter(|region| region.id.cloud() != "ibm").collect();
    let mut region = || all[numbers.below(all.len() as u64) as usize];
    let mut sites: Vec<(SiteId, &Region)> =
        (0..3).map(|at| (SiteId::new(format!("site{at}")).unwrap(), region())).collect();
    if seed.is_multiple_of(4) {
        // Egress from Google to Sydney over the Internet costs more than that to another cloud
        // nearby plus that from there.
        let named = |id: &str| *all.iter().find(|region| region.id.as_str() == id).unwrap();
        (sites[0].1, sites[1].1) = (named("gcp:us-east4"), named("aws:ap-southeast-2"));
        let first = named("aws:us-east-1");
        return problem(seed, catalogue, &sites, vec![first, region()]);
    }
    let relays = (0..3).map(|_| region()).collect();
    problem(seed, catalogue, &sites, relays)
}

fn problem(
    seed: u64,
    catalogue: &Catalogue,
    sites: &[(SiteId, &Region)],
    mut relays: Vec<&Region>,
) -> Inputs {
    relays.sort_by(|a, b| a.id.cmp(&b.id));
    relays.dedup_by(|a, b| a.id == b.id);
    let places = sites.iter().map(|(site, at)| (LegEnd::Site(site.clone()), at.location));
    let places = places.chain(relays.iter().map(|at| (LegEnd::Relay(at.id.clone()), at.location)));
    let places: Vec<_> = places.collect();
    let mut legs = Legs::new();
    for (from, at) in &places {
        for (to, there) in places.iter().filter(|(to, _)| to != from) {
            let rtt = RttModel::fitted().rtt_between(*at, *there).max(Duration::from_millis(1));
            legs.insert((from.clone(), to.clone()), Leg::new(rtt).capped_at(mbps(1000.0)));
        }
    }
    let flows = vec![
        flow("out", "site0", "site1", 2_000),
        flow("back", "site1", "site0", 1_000),
        flow("far", "site2", "site1", 4_000),
    ];
    let regions: Vec<RegionId> = relays.iter().map(|at| at.id.clone()).collect();
    let mut inputs = Inputs::cloudpilot(flows, regions, legs, usd(1e6));
    inputs.start_up = StartUp::Ignored;
    inputs.prices = Prices::Catalogue(Box::new(catalogue.clone()));
    inputs.relay_types[0].set_up = Money::ZERO;
    // In every other problem the last flow's destination is outside all clouds.
    let inside =
        sites.iter().filter(|(site, _)| seed.is_multiple_of(2) || site.as_str() != "site1");
    inputs.site_regions = inside.map(|(site, at)| (site.clone(), at.id.clone())).collect();
    inputs.objective = if seed.is_multiple_of(3) { Objective::TotalFct } else { Objective::Cost };
    inputs
}

/// Returns the egress cost of a plan, hop by hop from the catalogue.
fn bill(inputs: &Inputs, plan: &Plan, catalogue: &Catalogue) -> f64 {
    let mut usd = 0.0;
    for (flow, planned) in inputs.flows.iter().zip(&plan.flows) {
        let region =
            |id: &RelayId| plan.relays.iter().find(|relay| relay.id == *id).unwrap().region.clone();
        let mut hops: Vec<Option<RegionId>> = vec![inputs.site_regions.get(&flow.source).cloned()];
        hops.extend(planned.path.iter().map(|relay| Some(region(relay))));
        hops.push(inputs.site_regions.get(&flow.destination).cloned());
        for pair in hops.windows(2) {
            let Some(from) = &pair[0] else { continue };
            let to = pair[1].as_ref().map_or(Egress::Internet, Egress::Region);
            usd += catalogue.egress_price(from, to).unwrap().as_usd_per_gb() * flow.volume.as_gb();
        }
    }
    usd
}

#[test]
fn first_hop_is_charged_in_every_objective() {
    let catalogue = Catalogue::builtin();
    let mut cheaper_over_a_relay = 0;
    for seed in 0..36 {
        let inputs = drawn(seed, &catalogue);
        let problem = Problem::new(inputs.clone()).unwrap();
        let (_, score, cost) = enumerated(&problem).unwrap();
        for name in ["auto", "greedy"] {
            let solver = solver::by_name(name).unwrap();
            let plan = solver::solve(solver.as_ref(), &problem, &Limits::work(5_000_000)).unwrap();
            assert_eq!(verify(&problem, &plan), vec![], "{seed} {name}");
            let bill = bill(&inputs, &plan, &catalogue);
            assert!((plan.cost.as_usd() - bill).abs() < 1e-7, "{seed} {name}: {bill} {plan:?}");
            if name == "auto" {
                assert_eq!(plan.score(&problem), (score, cost), "{seed}: {plan:?}");
                let relayed = plan.flows.iter().zip(&inputs.flows).enumerate();
                let lowers = relayed.filter(|(at, (planned, _))| {
                    !planned.path.is_empty()
                        && planned.egress < problem.egress_cost(*at, &[]).unwrap()
                });
                cheaper_over_a_relay += lowers.count();
            }
        }
    }
    assert!(cheaper_over_a_relay > 0, "in some a relay lowers the bill");
}
