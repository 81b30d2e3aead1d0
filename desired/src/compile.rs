//! From a plan to what each gateway is told: the route table of every source.
//!
//! A plan gives each flow one path. What to fall back to comes from the same plan, best first: the path
//! over siblings, other relays in the same regions; the path without one of its relays; and
//! direct, where that is allowed. Fallbacks hold no reserved capacity: they carry what would
//! otherwise not be carried.

use std::collections::BTreeMap;

use tradewind_grant::{Destination, DestinationRule};
use tradewind_plan::{Flow, Plan};
use tradewind_units::{FlowId, RelayId, SiteId};

use crate::route_table::MOST_ROUTES;
use crate::{DesiredError, Hop, Route, RouteTable};

/// What a plan leaves open: where its relays listen, and what its flows' destinations are.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Relays that run, by the plan's name for them.
    pub relays: BTreeMap<RelayId, Hop>,
    /// Where each flow goes.
    pub destinations: BTreeMap<FlowId, Destination>,
    /// What a relayed flow may fall back to.
    pub fallbacks: Fallbacks,
}

/// What a relayed flow may fall back to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// Other paths over the plan's relays.
    pub relays: bool,
    /// No relays at all, as the last resort.
    pub direct: bool,
}

/// The route table of each source's gateway. Flows without relays are direct; what no flow of the plan goes to is refused.
///
/// # Errors
/// When flows of the plan share legs, the inventory lacks a relay or a destination of it, or a path makes no route.
pub fn compile(
    plan: &Plan,
    flows: &[Flow],
    inventory: &Inventory,
) -> Result<BTreeMap<SiteId, RouteTable>, DesiredError> {
    if !plan.shared_legs.is_empty() {
        let (count, saved) = (plan.shared_legs.len(), plan.saved());
        return Err(DesiredError::SharedLegs { count, saved });
    }
    let mut rules: BTreeMap<SiteId, Vec<(DestinationRule, Vec<Route>)>> = BTreeMap::new();
    for planned in &plan.flows {
        let unknown = || DesiredError::UnknownFlow(planned.id.clone());
        let flow = flows.iter().find(|flow| flow.id == planned.id).ok_or_else(unknown)?;
        let destination = inventory.destinations.get(&planned.id).ok_or_else(unknown)?;
        let routes = paths(plan, &planned.path, inventory.fallbacks)
            .iter()
            .map(|path| route(&planned.id, path, inventory))
            .collect::<Result<_, _>>()?;
        rules.entry(flow.source.clone()).or_default().push((destination.as_rule(), routes));
    }
    rules
        .into_iter()
        .map(|(source, rules)| {
            Ok((source, RouteTable::with_fallbacks(rules, vec![Route::Refuse])?))
        })
        .collect()
}

/// The route over `path` for a flow; without relays it is direct.
fn route(flow: &FlowId, path: &[RelayId], inventory: &Inventory) -> Result<Route, DesiredError> {
    let hop = |relay: &RelayId| {
        let missing =
            || DesiredError::UnknownRelay { route: format!("flow `{flow}`"), relay: relay.clone() };
        inventory.relays.get(relay).cloned().ok_or_else(missing)
    };
    let hops: Vec<Hop> = path.iter().map(hop).collect::<Result<_, _>>()?;
    Ok(if hops.is_empty() { Route::Direct } else { Route::Relays(hops) })
}

/// The planned path and what may stand in for it, best first, none twice, at most [`MOST_ROUTES`].
fn paths(plan: &Plan, planned: &[RelayId], allowed: Fallbacks) -> Vec<Vec<RelayId>> {
    let mut paths = vec![planned.to_vec()];
    if planned.is_empty() {
        return paths;
    }
    let most_relayed = if allowed.direct { MOST_ROUTES - 1 } else { MOST_ROUTES };
    if allowed.relays {
        let without = |index: usize| {
            let mut rest = planned.to_vec();
            rest.remove(index);
            rest
        };
        let shorter = (0..planned.len()).map(without).filter(|path| !path.is_empty());
        for path in siblings(plan, planned).into_iter().chain(shorter) {
            if paths.len() < most_relayed && !paths.contains(&path) {
                paths.push(path);
            }
        }
    }
    if allowed.direct {
        paths.push(Vec::new());
    }
    paths
}

/// The path that shares as few relays as the plan allows: each replaced by another of its region.
fn siblings(plan: &Plan, planned: &[RelayId]) -> Option<Vec<RelayId>> {
    let mut path: Vec<RelayId> = Vec::with_capacity(planned.len());
    for relay in planned {
        let region = plan.relays.iter().find(|known| known.id == *relay).map(|known| &known.region);
        let sibling = plan.relays.iter().find(|other| {
            Some(&other.region) == region
                && !planned.contains(&other.id)
                && !path.contains(&other.id)
        });
        path.push(sibling.map_or(relay, |sibling| &sibling.id).clone());
    }
    (path != planned).then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_grant::IdentityKey;
    use tradewind_plan::{PlannedFlow, PlannedRelay, SharedLeg};
    use tradewind_units::{Bytes, Duration, Money};

    const FLOWS: [(&str, &str, &[&str]); 3] = [
        ("out", "tokyo", &["gcp:asia-northeast1.1", "gcp:europe-north1.1"]),
        ("near", "tokyo", &[]),
        ("back", "hamina", &["gcp:europe-north1.1"]),
    ];

    fn planned() -> (Plan, Vec<Flow>) {
        let span = Duration::from_secs(1);
        let id = |name: &str| FlowId::new(name).unwrap();
        let relay = |name: &&str| RelayId::new(*name).unwrap();
        let planned = FLOWS.iter().map(|(name, _, path)| PlannedFlow {
            id: id(name),
            path: path.iter().map(relay).collect(),
            fct: span,
            fct_direct: None,
            egress: Money::ZERO,
            move_cost: Money::ZERO,
        });
        let flows = FLOWS.iter().map(|(name, source, _)| {
            let (source, destination) = (SiteId::new(*source), SiteId::new("elsewhere"));
            Flow::new(id(name), source.unwrap(), destination.unwrap(), Bytes::new(1))
        });
        let plan = Plan {
            schema_version: 1,
            solver: "test".into(),
            relays: Vec::<PlannedRelay>::new(),
            flows: planned.collect(),
            shared_legs: Vec::new(),
            cost: Money::ZERO,
            total_fct: span,
            bound: span,
            bound_cost: Money::ZERO,
        };
        (plan, flows.collect())
    }

    fn inventory() -> Inventory {
        let mut inventory = Inventory::default();
        for (port, (name, ..)) in (8001..).zip(FLOWS) {
            let destination: Destination = format!("192.0.2.9:{port}").parse().unwrap();
            inventory.destinations.insert(FlowId::new(name).unwrap(), destination);
        }
        for (seed, name) in (1..).zip(["gcp:asia-northeast1.1", "gcp:europe-north1.1"]) {
            let name = RelayId::new(name).unwrap();
            let address = format!("192.0.2.{seed}:7001").parse().unwrap();
            let identity = IdentityKey::from_entropy([seed; 32]).public();
            inventory.relays.insert(name.clone(), Hop { name, address, identity });
        }
        inventory
    }

    #[test]
    fn each_source_gets_the_routes_of_its_own_flows_and_refuses_the_rest() {
        let (plan, flows) = planned();
        let tables = compile(&plan, &flows, &inventory()).unwrap();
        assert_eq!(tables.len(), 2);
        let tokyo = &tables[&SiteId::new("tokyo").unwrap()];
        let route = |port: u16| tokyo.route(&format!("192.0.2.9:{port}").parse().unwrap());
        let Route::Relays(hops) = route(8001) else { panic!("{:?}", route(8001)) };
        let names: Vec<&str> = hops.iter().map(|hop| hop.name.as_str()).collect();
        assert_eq!(names, ["gcp:asia-northeast1.1", "gcp:europe-north1.1"]);
        assert_eq!(route(8002), &Route::Direct);
        assert_eq!(route(8003), &Route::Refuse, "another source's flow");
    }

    #[test]
    fn fallbacks_are_siblings_then_shorter_paths_then_direct() {
        let (mut plan, flows) = planned();
        let mut inventory = inventory();
        let names = ["gcp:asia-northeast1.1", "gcp:europe-north1.1", "gcp:europe-north1.2"];
        for (seed, name) in (1..).zip(names) {
            let id = RelayId::new(name).unwrap();
            let region = name.rsplit_once('.').unwrap().0.parse().unwrap();
            plan.relays.push(PlannedRelay {
                id: id.clone(),
                region,
                relay_type: "small".parse().unwrap(),
            });
            let address = format!("192.0.2.{seed}:7001").parse().unwrap();
            let identity = IdentityKey::from_entropy([seed; 32]).public();
            inventory.relays.insert(id.clone(), Hop { name: id, address, identity });
        }
        inventory.fallbacks = Fallbacks { relays: true, direct: true };
        let tables = compile(&plan, &flows, &inventory).unwrap();
        let (_, routes) =
            tables[&SiteId::new("tokyo").unwrap()].routes_to(&"192.0.2.9:8001".parse().unwrap());
        let name = |route: &Route| match route {
            Route::Relays(hops) => {
                hops.iter().map(|hop| hop.name.as_str()).collect::<Vec<_>>().join(" ")
            }
            other => format!("{other:?}"),
        };
        let expected = [
            "gcp:asia-northeast1.1 gcp:europe-north1.1",
            "gcp:asia-northeast1.1 gcp:europe-north1.2",
            "gcp:europe-north1.1",
            "Direct",
        ];
        assert_eq!(routes.iter().map(name).collect::<Vec<_>>(), expected);
        let (_, routes) =
            tables[&SiteId::new("hamina").unwrap()].routes_to(&"192.0.2.9:8003".parse().unwrap());
        assert_eq!(
            routes.iter().map(name).collect::<Vec<_>>(),
            ["gcp:europe-north1.1", "gcp:europe-north1.2", "Direct"]
        );
    }

    #[test]
    fn a_plan_that_counts_on_shared_legs_is_refused() {
        let (mut plan, flows) = planned();
        plan.shared_legs.push(SharedLeg {
            content: "film".parse().unwrap(),
            source: "tokyo".parse().unwrap(),
            path: vec![RelayId::new("gcp:asia-northeast1.1").unwrap()],
            flows: ["out", "near"].map(|id| FlowId::new(id).unwrap()).into(),
            saved: Money::from_usd(0.32).unwrap(),
        });
        let error = compile(&plan, &flows, &inventory()).unwrap_err().to_string();
        let expected = "the plan counts on 1 shared legs, which save $0.32 of egress, but relays send each flow by itself: \
                        plan without `content`";
        assert_eq!(error, expected);
    }

    #[test]
    fn what_the_inventory_lacks_is_named() {
        let (plan, flows) = planned();
        let mut without = inventory();
        without.relays.remove(&RelayId::new("gcp:europe-north1.1").unwrap());
        let error = compile(&plan, &flows, &without).unwrap_err().to_string();
        assert!(error.starts_with("flow `out`: relay `gcp:europe-north1.1`"), "{error}");

        let mut without = inventory();
        without.destinations.remove(&FlowId::new("back").unwrap());
        let error = compile(&plan, &flows, &without).unwrap_err().to_string();
        assert!(error.contains("flow `back`"), "{error}");
        let error = compile(&plan, &flows[..2], &inventory()).unwrap_err().to_string();
        assert!(error.contains("flow `back`"), "{error}");
    }
}
