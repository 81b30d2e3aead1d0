//! Tests of quotas of relays of a type in a region, against enumeration of all plans.

#![cfg(feature = "highs")]
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::enumeration::enumerated;
use common::random::{Kind, Numbers, random};
use common::{mbps, usd};
use tradewind_plan::solver::{SolveError, by_name, names, solve};
use tradewind_plan::{Inputs, Limits, Objective, Plan, Problem, Violation, verify};

const SMALL: Kind = Kind { flows: 4, regions: 3, beyond_paper: false };

/// The algorithms that prove their plans optimal on small problems.
const EXACT: [&str; 3] = ["exhaustive", "exact", "auto"];

/// Returns problems generated from seeds, each without and with quotas of zero to two relays.
fn problems(count: u64) -> impl Iterator<Item = (u64, Problem, Problem)> {
    (0..count).filter_map(|seed| {
        let free = random(seed, SMALL)?;
        let mut numbers = Numbers::new(seed + 1_000_000);
        let mut inputs = Inputs { budget: usd(20.0), ..free.inputs().clone() };
        for relay_type in &mut inputs.relay_types {
            relay_type.capacity = relay_type.capacity.min(mbps(600.0));
        }
        if numbers.once_in(4) {
            inputs.objective = Objective::Cost;
        }
        for offer in free.offers() {
            let key = (offer.region.clone(), offer.relay_type.id.clone());
            inputs.most.insert(key, numbers.below(3) as usize);
        }
        let free = Inputs { most: Default::default(), ..inputs.clone() };
        Some((seed, Problem::new(free).ok()?, Problem::new(inputs).ok()?))
    })
}

/// Returns the plan of the algorithm, whether or not it finished.
fn plan(name: &str, problem: &Problem) -> Option<Plan> {
    match solve(by_name(name)?.as_ref(), problem, &Limits::work(2_000_000)) {
        Ok(plan) => Some(plan),
        Err(SolveError::WorkLimit { best, .. }) => best.map(|plan| *plan),
        Err(_) => None,
    }
}

#[test]
fn quotas_are_respected_by_all_algorithms() {
    let (mut tried, mut bound) = (0, 0);
    for (seed, free, limited) in problems(80) {
        let best = enumerated(&limited);
        for name in names() {
            let plan = plan(name, &limited);
            if EXACT.contains(&name) {
                let found = plan.as_ref().map(|plan| plan.score(&limited));
                let best = best.map(|(_, score, cost)| (score, cost));
                assert_eq!(found, best, "seed {seed}, {name}");
            }
            let Some(plan) = plan else { continue };
            assert_eq!(verify(&limited, &plan), vec![], "seed {seed}, {name}");
        }
        tried += 1;
        bound += usize::from(enumerated(&free) != best);
    }
    assert!(tried > 50 && bound > 5, "{bound} of {tried} problems are bound by a quota");
}

#[test]
fn relays_beyond_a_quota_are_found_by_the_verifier() {
    let is_of_quota = |violation: &Violation| matches!(violation, Violation::TooManyRelays { .. });
    let mut found = 0;
    for (seed, free, limited) in problems(80) {
        let Some(plan) = plan("exhaustive", &free) else { continue };
        let counts = limited.offers().iter().any(|offer| {
            let of = plan.relays.iter().filter(|relay| {
                relay.region == offer.region && relay.relay_type == offer.relay_type.id
            });
            offer.most.is_some_and(|most| of.count() > most)
        });
        assert_eq!(verify(&limited, &plan).iter().any(is_of_quota), counts, "seed {seed}");
        found += usize::from(counts);
    }
    assert!(found > 5, "{found} plans exceed a quota");
}
