//! From a plan to what each gateway is told: the route table of every source.

use std::collections::BTreeMap;

use tradewind_grant::{Destination, DestinationRule};
use tradewind_plan::{Flow, Plan};
use tradewind_units::{FlowId, RelayId, SiteId};

use crate::{DesiredError, Hop, Route, RouteTable};

/// What a plan leaves open: where its relays listen, and what its flows' destinations are.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Relays that run, by the plan's name for them.
    pub relays: BTreeMap<RelayId, Hop>,
    /// Where each flow goes.
    pub destinations: BTreeMap<FlowId, Destination>,
}

/// The route table of each source's gateway. Flows without relays are direct; what no flow of the plan goes to is refused.
///
/// # Errors
/// When the inventory lacks a relay or a destination of the plan, or a path makes no route.
pub fn compile(
    plan: &Plan,
    flows: &[Flow],
    inventory: &Inventory,
) -> Result<BTreeMap<SiteId, RouteTable>, DesiredError> {
    let mut rules: BTreeMap<SiteId, Vec<(DestinationRule, Route)>> = BTreeMap::new();
    for planned in &plan.flows {
        let unknown = || DesiredError::UnknownFlow(planned.id.clone());
        let flow = flows.iter().find(|flow| flow.id == planned.id).ok_or_else(unknown)?;
        let destination = inventory.destinations.get(&planned.id).ok_or_else(unknown)?;
        let hops: Vec<Hop> = planned
            .path
            .iter()
            .map(|relay| {
                let missing = || DesiredError::UnknownRelay {
                    route: format!("flow `{}`", planned.id),
                    relay: relay.clone(),
                };
                inventory.relays.get(relay).cloned().ok_or_else(missing)
            })
            .collect::<Result<_, _>>()?;
        let route = if hops.is_empty() { Route::Direct } else { Route::Relays(hops) };
        rules.entry(flow.source.clone()).or_default().push((destination.as_rule(), route));
    }
    rules
        .into_iter()
        .map(|(source, rules)| Ok((source, RouteTable::new(rules, Route::Refuse)?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_grant::IdentityKey;
    use tradewind_plan::{PlannedFlow, PlannedRelay};
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
