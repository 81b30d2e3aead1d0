//! Tests of `verify`, of the inputs that `Problem::new` refuses, and of the plan's text form.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

mod common;

use common::{four_cities, usd};
use tradewind_plan::problem::MAX_RELAYS;
use tradewind_plan::solver::{Greedy, solve};
use tradewind_plan::{
    Inputs, LegEnd, Limits, Objective, Plan, PlannedRelay, Problem, ProblemError, Solver,
    Violation, verify,
};
use tradewind_units::{Bytes, Duration, FlowId, Money, RegionId, RelayId};

const REGIONS: [&str; 5] = [
    "gcp:us-east4",
    "gcp:southamerica-east1",
    "gcp:europe-west2",
    "gcp:asia-northeast1",
    "gcp:us-west1",
];

fn solved() -> (Problem, Plan) {
    let problem = Problem::new(four_cities(&REGIONS, 6.0)).unwrap();
    let plan = Greedy.solve(&problem, &Limits::work(1_000_000)).unwrap();
    assert!(!plan.relays.is_empty());
    (problem, plan)
}

/// Returns the first flow that has a relay.
fn relayed(plan: &Plan) -> usize {
    plan.flows.iter().position(|flow| !flow.path.is_empty()).unwrap()
}

/// Returns whether `verify` reports such a violation once `change` is made to a valid plan.
fn objects(change: impl Fn(&mut Plan), expected: fn(&Violation) -> bool) -> bool {
    let (problem, mut plan) = solved();
    assert_eq!(verify(&problem, &plan), vec![]);
    change(&mut plan);
    let found = verify(&problem, &plan);
    assert!(found.iter().all(|violation| !violation.to_string().contains('\n')));
    found.iter().any(expected)
}

#[test]
fn verify_objects_to_every_kind_of_mutation() {
    use Violation as V;
    let ghost = || RelayId::new("ghost.1").unwrap();
    type Case<'a> = (&'a dyn Fn(&mut Plan), fn(&V) -> bool);
    let cases: [Case<'_>; 13] = [
        (&|p| drop(p.flows.pop()), |v| matches!(v, V::FlowCount { count: 0, .. })),
        (&|p| p.flows.push(p.flows[0].clone()), |v| matches!(v, V::FlowCount { count: 2, .. })),
        (&|p| p.flows[0].id = FlowId::new("x").unwrap(), |v| matches!(v, V::UnknownFlow(_))),
        (&|p| p.relays.push(p.relays[0].clone()), |v| matches!(v, V::RelayTwice(_))),
        (&|p| p.relays.push(PlannedRelay { id: ghost(), ..p.relays[0].clone() }), |v| {
            matches!(v, V::RelayUnused(_))
        }),
        (&|p| p.relays[0].region = RegionId::new("gcp:moon").unwrap(), |v| {
            matches!(v, V::NotOffered { .. })
        }),
        (
            &|p| {
                let flow = relayed(p);
                p.flows[flow].path[0] = ghost();
            },
            |v| matches!(v, V::UnknownRelay { .. }),
        ),
        (
            &|p| {
                let flow = relayed(p);
                let again = p.flows[flow].path[0].clone();
                p.flows[flow].path.push(again);
            },
            |v| matches!(v, V::Loop { .. }),
        ),
        (
            &|p| {
                let flow = relayed(p);
                p.flows[flow].path.extend([ghost(), ghost()]);
                p.relays.push(PlannedRelay { id: ghost(), ..p.relays[0].clone() });
            },
            |v| matches!(v, V::PathTooLong { .. }),
        ),
        (&|p| p.flows[0].fct /= 2, |v| matches!(v, V::WrongTime { what: "completion time", .. })),
        (&|p| p.flows[0].fct_direct = None, |v| {
            matches!(v, V::WrongTime { what: "direct completion time", .. })
        }),
        (&|p| p.cost = usd(0.01), |v| matches!(v, V::WrongCost { .. })),
        (&|p| p.total_fct += Duration::from_secs(1), |v| matches!(v, V::WrongTotal { .. })),
    ];
    for (index, (change, expected)) in cases.into_iter().enumerate() {
        assert!(objects(change, expected), "mutation {index}");
    }
}

#[test]
fn verify_refuses_wrong_egress_and_bound_above_total() {
    let wrong_egress = |plan: &mut Plan| plan.flows[0].egress = usd(5.0);
    assert!(objects(wrong_egress, |v| matches!(v, Violation::WrongCost { .. })));
    let wrong_bound = |plan: &mut Plan| plan.bound = plan.total_fct + Duration::from_secs(1);
    assert!(objects(wrong_bound, |v| matches!(v, Violation::WrongBound)));
}

#[test]
fn verify_refuses_plan_for_larger_budget_or_capacity() {
    let (_, plan) = solved();
    let poorer = Problem::new(four_cities(&REGIONS, 1.0)).unwrap();
    let found = verify(&poorer, &plan);
    assert!(found.iter().any(|v| matches!(v, Violation::OverBudget { .. })), "{found:?}");
    let mut narrow = four_cities(&REGIONS, 6.0);
    narrow.relay_types[0].capacity = common::mbps(100.0);
    let found = verify(&Problem::new(narrow).unwrap(), &plan);
    assert!(found.iter().any(|v| matches!(v, Violation::OverCapacity { .. })), "{found:?}");
    let (relay, mut elsewhere) = (plan.relays[0].clone(), four_cities(&REGIONS, 6.0));
    elsewhere.not_offered.insert((relay.region, relay.relay_type));
    let found = verify(&Problem::new(elsewhere).unwrap(), &plan);
    assert!(found.iter().any(|v| matches!(v, Violation::NotOffered { .. })), "{found:?}");
}

#[test]
fn verify_refuses_late_plan_and_unknown_leg() {
    let (problem, plan) = solved();
    let fastest = |flow: usize| problem.candidates(flow).iter().map(|c| c.fct).min().unwrap();
    let slow = (0..plan.flows.len()).find(|flow| plan.flows[*flow].fct > fastest(*flow)).unwrap();
    let mut hasty = four_cities(&REGIONS, 6.0);
    hasty.flows[slow].deadline = Some(fastest(slow));
    let found = verify(&Problem::new(hasty).unwrap(), &plan);
    assert!(found.iter().any(|v| matches!(v, Violation::Late { .. })), "{found:?}");

    let flow = relayed(&plan);
    let first = plan.regions_of(&plan.flows[flow]).unwrap()[0].clone();
    let mut cut = four_cities(&REGIONS, 6.0);
    let source = LegEnd::Site(cut.flows[flow].source.clone());
    cut.legs.remove(&(source, LegEnd::Relay(first)));
    let found = verify(&Problem::new(cut).unwrap(), &plan);
    assert!(found.iter().any(|v| matches!(v, Violation::UnknownLeg(_))), "{found:?}");
}

#[test]
fn plan_survives_its_text_form() {
    let (problem, plan) = solved();
    let text = serde_json::to_string_pretty(&plan).unwrap();
    for field in ["schema_version", "cost_usd", "total_fct_s", "fct_direct_s", "egress_usd"] {
        assert!(text.contains(field), "{field}");
    }
    let back: Plan = serde_json::from_str(&text).unwrap();
    assert_eq!(verify(&problem, &back), vec![]);
    assert_eq!(back, plan);
}

#[test]
fn inputs_without_sense_are_refused_in_one_line() {
    let base = || four_cities(&REGIONS, 6.0);
    let refused = |inputs| Problem::new(inputs).unwrap_err();

    let mut twice = base();
    twice.flows[1].id = twice.flows[0].id.clone();
    assert!(matches!(refused(twice), ProblemError::FlowTwice(_)));
    let mut nowhere = base();
    nowhere.flows[0].destination = nowhere.flows[0].source.clone();
    assert!(matches!(refused(nowhere), ProblemError::FlowToItself { .. }));
    let mut empty = base();
    empty.flows[0].volume = Bytes::ZERO;
    assert!(matches!(refused(empty), ProblemError::NoVolume(_)));
    let mut doubled = base();
    doubled.regions.push(doubled.regions[0].clone());
    assert!(matches!(refused(doubled), ProblemError::RegionTwice(_)));
    let mut long = base();
    long.max_relays = MAX_RELAYS + 1;
    assert_eq!(refused(long).to_string(), "relays on a path: at most 4, not 5");
    let mut unconnected = base();
    unconnected.legs.clear();
    assert_eq!(
        refused(unconnected).to_string(),
        "flow `hamina-london`: no path from `hamina` to `london` has all its legs known"
    );
}

#[test]
fn catalogue_prices_use_region_of_site() {
    let mut inputs = four_cities(&REGIONS, 6.0);
    let catalogue = Box::new(tradewind_model::Catalogue::builtin());
    inputs.prices = tradewind_model::cost::Prices::Catalogue(catalogue);
    let tokyo = RegionId::new("gcp:asia-northeast1").unwrap();
    let to_tokyo = inputs.flows.iter().position(|f| f.id.as_str() == "london-tokyo").unwrap();
    let over = [inputs.regions.iter().position(|r| r.as_str() == "gcp:us-west1").unwrap()];
    let outside = Problem::new(inputs.clone()).unwrap().egress_cost(to_tokyo, &over).unwrap();
    inputs.site_regions.insert(inputs.flows[to_tokyo].destination.clone(), tokyo);
    let inside = Problem::new(inputs).unwrap().egress_cost(to_tokyo, &over).unwrap();
    assert_eq!((outside, inside), (usd(0.24), usd(0.16)));
}

#[test]
fn verify_refuses_bound_above_objective() {
    for objective in [Objective::TotalFct, Objective::Makespan, Objective::Cost] {
        let problem = Problem::new(Inputs { objective, ..four_cities(&REGIONS, 6.0) }).unwrap();
        let plan = solve(&Greedy, &problem, &Limits::work(1_000_000)).unwrap();
        assert!(plan.makespan() < plan.total_fct);
        let bounded = match objective {
            Objective::Makespan => plan.makespan(),
            Objective::TotalFct | Objective::Cost => plan.total_fct,
        };
        let found = |bound: Duration, bound_cost: Money| {
            verify(&problem, &Plan { bound, bound_cost, ..plan.clone() })
        };
        assert_eq!(found(bounded, plan.cost), vec![], "{objective:?}");
        let later = bounded + Duration::from_millis(1);
        assert_eq!(found(later, plan.cost), vec![Violation::WrongBound], "{objective:?}");
        let dearer = plan.cost + usd(1e-9);
        assert_eq!(found(bounded, dearer), vec![Violation::WrongBound], "{objective:?}");
    }
}
