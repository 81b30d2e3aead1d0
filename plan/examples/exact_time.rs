//! How long the exact solvers take: random sites, 18 regions, RTTs by the distance model.
//!
//! `cargo run --release -p tradewind-plan --example exact_time -- [SECONDS [FLOWS ...]]`
//!
//! Prints one line for each number of flows, budget and solver: the program's size, the time taken, the plan's total, its
//! proven bound and the gap between them. Budgets are dollars a flow.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::unwrap_used,
    reason = "a command that reads a clock and the tests' problems, not part of the pure library"
)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::time::Instant;

use common::{flow, mbps, usd};
use tradewind_model::leg::{RELAY_FLOW_MBPS, RELAY_TO_RELAY_WINDOW};
use tradewind_model::{Catalogue, Coordinates, Leg, RttModel};
use tradewind_plan::solver::exact::Size;
use tradewind_plan::solver::{Exact, ExactCp, Greedy};
use tradewind_plan::{Inputs, Legs, Limits, Place, Plan, Problem, SolveError, Solver, verify};
use tradewind_units::{Duration, SiteId};

const REGIONS: usize = 18;
const BUDGETS_USD: [f64; 2] = [0.2, 0.5];

/// Numbers in a fixed order (SplitMix64).
struct Draw(u64);

impl Draw {
    /// From 0 to below 1.
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) as f64 / 2f64.powi(64)
    }

    fn within(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.next()
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() * count as f64) as usize
    }
}

/// Flows of 0.5 to 4 GB between sites some hundred kilometres around regions, which is where people live.
fn inputs(flow_count: usize, budget_usd: f64, seed: u64) -> Inputs {
    let mut draw = Draw(seed);
    let catalogue = Catalogue::builtin();
    let all: Vec<_> = catalogue.regions().filter(|r| r.id.as_str().starts_with("gcp:")).collect();
    let regions: Vec<_> = all.iter().step_by(all.len() / REGIONS).take(REGIONS).collect();
    let sites = (flow_count / 2).max(4);
    let mut places: Vec<(Place, Coordinates)> = Vec::new();
    for index in 0..sites {
        let near = all[draw.below(all.len())].location;
        let latitude = (near.latitude() + draw.within(-5.0, 5.0)).clamp(-80.0, 80.0);
        let longitude = (near.longitude() + draw.within(-5.0, 5.0)).clamp(-180.0, 179.9);
        let at = Coordinates::new(latitude, longitude).unwrap();
        places.push((Place::Site(SiteId::new(format!("site{index}")).unwrap()), at));
    }
    places.extend(regions.iter().map(|r| (Place::Relay(r.id.clone()), r.location)));
    let mut legs = Legs::new();
    for (from, from_at) in &places {
        for (to, to_at) in places.iter().filter(|(to, _)| to != from) {
            let leg = Leg::new(RttModel::fitted().rtt_between(*from_at, *to_at));
            legs.insert((from.clone(), to.clone()), dressed(leg, from, to));
        }
    }
    let flows = (0..flow_count)
        .map(|index| {
            let from = draw.below(sites);
            let to = (from + 1 + draw.below(sites - 1)) % sites;
            let megabytes = draw.within(500.0, 4000.0) as u64;
            flow(&format!("flow{index}"), &format!("site{from}"), &format!("site{to}"), megabytes)
        })
        .collect();
    let regions = regions.iter().map(|region| region.id.clone()).collect();
    Inputs::cloudpilot(flows, regions, legs, usd(budget_usd * flow_count as f64))
}

/// Windows and caps as in CP: large windows between relays, 1 Gbit/s last miles.
fn dressed(leg: Leg, from: &Place, to: &Place) -> Leg {
    match (from, to) {
        (Place::Site(_), Place::Site(_)) => leg.capped_at(mbps(1000.0)),
        (Place::Relay(_), Place::Relay(_)) => {
            leg.with_window(RELAY_TO_RELAY_WINDOW).capped_per_connection_at(mbps(RELAY_FLOW_MBPS))
        }
        _ => leg.capped_at(mbps(1000.0)).capped_per_connection_at(mbps(RELAY_FLOW_MBPS)),
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let limit = arguments.next().map_or(10.0, |text| text.parse().expect("seconds are expected"));
    let limit = Duration::from_secs_f64(limit);
    let mut counts: Vec<usize> =
        arguments.map(|text| text.parse().expect("a number of flows is expected")).collect();
    if counts.is_empty() {
        counts = vec![10, 20, 40, 60];
    }
    println!("| flows | budget | solver | columns | rows | entries | time | total | bound | gap |");
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for count in counts {
        for budget in BUDGETS_USD {
            let problem = Problem::new(inputs(count, budget, 7)).expect("it makes sense");
            let label = format!("| {count} | ${budget} a flow");
            measure(&label, "greedy", None, &problem, limit);
            measure(&label, "exact", Exact::size(&problem), &problem, limit);
            measure(&label, "exact-cp", ExactCp::size(&problem), &problem, limit);
        }
    }
}

fn measure(label: &str, solver: &str, size: Option<Size>, problem: &Problem, limit: Duration) {
    let start = Instant::now();
    let left = || limit.saturating_sub(start.elapsed());
    let limits = Limits { time_left: Some(&left), ..Limits::work(u64::MAX) };
    let solved = match solver {
        "exact" => Exact::default().solve(problem, &limits),
        "exact-cp" => ExactCp::default().solve(problem, &limits),
        _ => Greedy.solve(problem, &Limits::work(100_000_000)),
    };
    let taken = start.elapsed();
    let (note, plan) = match solved {
        Ok(plan) => ("", plan),
        Err(SolveError::WorkLimit { best: Some(plan), .. }) => (", stopped", *plan),
        Err(error) => {
            println!("{label} | {solver} | {error}");
            return;
        }
    };
    assert_eq!(verify(problem, &plan), vec![]);
    let size = size.map_or_else(
        || "| | |".to_owned(),
        |size| format!("| {} | {} | {}", size.columns, size.rows, size.entries),
    );
    print_line(&format!("{label} | {solver} {size}"), &plan, taken, note);
}

fn print_line(label: &str, plan: &Plan, taken: Duration, note: &str) {
    let (total, bound) = (plan.total_fct.as_secs_f64(), plan.bound.as_secs_f64());
    println!(
        "{label} | {:.2} s{note} | {total:.2} s | {bound:.2} s | {:.2} % |",
        taken.as_secs_f64(),
        100.0 * (total - bound) / total
    );
}
