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
