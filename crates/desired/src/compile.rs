//! The compiler from a plan to the desired state of each gateway and relay: the route table of
//! every source, and the leg profiles.
//!
//! A plan gives each flow one path. The fallbacks come from the same plan, best first: the path
//! over siblings, other relays in the same regions; the path without one of its relays; and direct,
//! where that is allowed. Fallbacks hold no reserved capacity: they carry flows that would
//! otherwise fail. Each relay may dial the addresses that the paths over it need, fallbacks
//! included, and each gateway's grant covers the needs of its own paths.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tradewind_grant::{Destination, DestinationRule};
use tradewind_plan::{Flow, LegEnd, Legs, Plan};
use tradewind_units::{Bytes, FlowId, RelayId, Segments, SiteId};

use crate::legs::{Collected, accepted, initial_window, wide};
use crate::permissions::{DialPolicy, GrantTerms};
use crate::route_table::MAX_ROUTES;
use crate::{DesiredError, Hop, LegProfile, ProcessLegs, Route, RouteTable};

/// The facts that a plan leaves open: the addresses of its relays, and the destinations of its
/// flows.
#[derive(Debug, Clone, Default)]
pub struct Inventory {
    /// Running relays, by their names in the plan.
    pub relays: BTreeMap<RelayId, Hop>,
    /// The destination of each flow.
    pub destinations: BTreeMap<FlowId, Destination>,
    /// The allowed fallbacks of relayed flows.
    pub fallbacks: Fallbacks,
    /// The profile of legs between gateways and relays where the plan does not require something
    /// else, encryption included.
    pub leg: LegProfile,
}

/// The desired state of all gateways and relays of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    /// The gateway of each source.
    pub gateways: BTreeMap<SiteId, DesiredGateway>,
    /// Each relay of the inventory.
    pub relays: BTreeMap<RelayId, DesiredRelay>,
}

/// The desired state of a relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredRelay {
    /// The address at which neighbours reach it.
    pub address: SocketAddr,
    /// The addresses that it may dial.
    pub policy: DialPolicy,
    /// The profiles of its connections.
    pub legs: ProcessLegs,
    /// Initial window that the plan assumes towards destinations. It is learned, as no profile can
    /// state it.
    pub learned: Option<Segments>,
}

/// The desired state of a gateway.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DesiredGateway {
    /// The path of each flow.
    pub routes: RouteTable,
    /// The profiles of its connections.
    pub legs: ProcessLegs,
    /// The terms that its grant must cover.
    pub grant: GrantTerms,
    /// Its flows, with their destinations.
    pub flows: Vec<(FlowId, Destination)>,
    /// Initial window that the plan assumes towards destinations of direct flows; it is learned.
    pub learned: Option<Segments>,
}

/// The allowed fallbacks of relayed flows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Fallbacks {
    /// Other paths over the plan's relays.
    pub relays: bool,
    /// No relays at all, as the last resort.
    pub direct: bool,
}

/// Compiles the desired state of gateways and relays from the plan and the `legs` that it was made
/// from. Flows without relays are direct; other destinations than the plan's are refused.
///
/// # Errors
/// When the inventory lacks a relay or a destination of it, or a path makes no route.
pub fn compile(
    plan: &Plan,
    flows: &[Flow],
    legs: &Legs,
    inventory: &Inventory,
) -> Result<Desired, DesiredError> {
    let mut rules: BTreeMap<SiteId, Vec<(DestinationRule, Vec<Route>)>> = BTreeMap::new();
    let mut dialled = Dialled {
        plan,
        legs,
        inventory,
        by: BTreeMap::new(),
        relays: BTreeMap::new(),
        gateways: BTreeMap::new(),
    };
    for planned in &plan.flows {
        let unknown = || DesiredError::UnknownFlow(planned.id.clone());
        let flow = flows.iter().find(|flow| flow.id == planned.id).ok_or_else(unknown)?;
        let destination = inventory.destinations.get(&planned.id).ok_or_else(unknown)?;
        let paths = paths(plan, &planned.path, inventory.fallbacks);
        let routes = paths
            .iter()
            .map(|path| route(&planned.id, path, inventory))
            .collect::<Result<_, _>>()?;
        paths.iter().for_each(|path| dialled.walk(flow, destination, path));
        let gateway = dialled.gateways.entry(flow.source.clone()).or_default();
        gateway.flows.push((flow.id.clone(), destination.clone()));
        rules.entry(flow.source.clone()).or_default().push((destination.as_rule(), routes));
    }
    let gateways = rules
        .into_iter()
        .map(|(source, rules)| {
            let routes = RouteTable::with_fallbacks(rules, vec![Route::Refuse])?;
            let known = dialled.gateways.remove(&source).unwrap_or_default();
            let GatewayNeeds { grant, flows, window, learned } = known;
            let legs = dialled.legs_of(&By::Gateway(source.clone()), window);
            Ok((source, DesiredGateway { routes, legs, grant, flows, learned }))
        })
        .collect::<Result<_, DesiredError>>()?;
    Ok(Desired { gateways, relays: dialled.into_relays() })
}

/// The dialling side of a leg.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum By {
    Gateway(SiteId),
    Relay(RelayId),
}

/// The legs of all paths between gateways and relays, while they are collected.
struct Dialled<'a> {
    plan: &'a Plan,
    legs: &'a Legs,
    inventory: &'a Inventory,
    by: BTreeMap<By, Collected>,
    relays: BTreeMap<RelayId, RelayNeeds>,
    gateways: BTreeMap<SiteId, GatewayNeeds>,
}

/// The needs of the paths over one relay.
#[derive(Default)]
struct RelayNeeds {
    policy: DialPolicy,
    /// The profile of accepted connections.
    accept: Option<LegProfile>,
    /// Largest window towards destinations, if it is above a host's default.
    window: Option<Bytes>,
    learned: Option<Segments>,
}

/// The needs of one gateway's flows.
#[derive(Default)]
struct GatewayNeeds {
    grant: GrantTerms,
    flows: Vec<(FlowId, Destination)>,
    /// Largest window towards destinations of direct flows, if it is above a host's default.
    window: Option<Bytes>,
    learned: Option<Segments>,
}

impl Dialled<'_> {
    /// Adds one path; its last leg, to the destination, is no leg between neighbours of the
    /// overlay.
    fn walk(&mut self, flow: &Flow, destination: &Destination, path: &[RelayId]) {
        let source = LegEnd::Site(flow.source.clone());
        let mut from = (By::Gateway(flow.source.clone()), Some(source));
        for relay in path {
            let place = self.place(relay);
            let Some(hop) = self.inventory.relays.get(relay) else { continue };
            match &from.0 {
                By::Gateway(_) => {}
                By::Relay(before) => {
                    self.relays.entry(before.clone()).or_default().policy.add_hop(hop.address);
                }
            }
            let grant = &mut self.gateways.entry(flow.source.clone()).or_default().grant;
            grant.add_relay(hop.identity);
            let needs = self.relays.entry(relay.clone()).or_default();
            if let Some(leg) = from.1.zip(place.clone()).and_then(|ends| self.legs.get(&ends)) {
                self.by.entry(from.0).or_default().add(hop.address, leg);
                let base = needs.accept.take().unwrap_or_else(|| self.inventory.leg.clone());
                needs.accept = Some(accepted(&base, leg));
            }
            from = (By::Relay(relay.clone()), place);
        }
        self.arrive(flow, destination, from);
    }

    /// Adds the last leg of a path, which its last relay or the gateway dials.
    fn arrive(&mut self, flow: &Flow, destination: &Destination, from: (By, Option<LegEnd>)) {
        let end = LegEnd::Site(flow.destination.clone());
        let leg = from.1.and_then(|place| self.legs.get(&(place, end)));
        let (first, wide) = (leg.and_then(initial_window), leg.and_then(wide));
        let (learned, window) = match from.0 {
            By::Gateway(site) => {
                let needs = self.gateways.entry(site).or_default();
                (&mut needs.learned, &mut needs.window)
            }
            By::Relay(relay) => {
                let grant = &mut self.gateways.entry(flow.source.clone()).or_default().grant;
                grant.add_destination(destination);
                let needs = self.relays.entry(relay).or_default();
                needs.policy.add_destination(destination);
                (&mut needs.learned, &mut needs.window)
            }
        };
        *learned = (*learned).max(first);
        *window = (*window).max(wide);
    }

    fn place(&self, relay: &RelayId) -> Option<LegEnd> {
        let planned = self.plan.relays.iter().find(|planned| planned.id == *relay)?;
        Some(LegEnd::Relay(planned.region.clone()))
    }

    /// Returns the leg profiles of one process, with this window towards destinations.
    fn legs_of(&mut self, who: &By, window: Option<Bytes>) -> ProcessLegs {
        let base = &self.inventory.leg;
        let dial = LegProfile { window: base.window.max(window), ..base.clone() };
        let to = self.by.remove(who).unwrap_or_default().differing_from(&dial, base);
        ProcessLegs { accept: LegProfile::default(), dial, to }
    }

    fn into_relays(mut self) -> BTreeMap<RelayId, DesiredRelay> {
        let hops: Vec<Hop> = self.inventory.relays.values().cloned().collect();
        let of = |Hop { name, address, .. }: Hop| {
            let needs = self.relays.remove(&name).unwrap_or_default();
            let RelayNeeds { policy, accept, window, learned } = needs;
            let legs = self.legs_of(&By::Relay(name.clone()), window);
            let accept = accept.unwrap_or_else(|| self.inventory.leg.clone());
            let legs = ProcessLegs { accept, ..legs };
            (name, DesiredRelay { address, policy, legs, learned })
        };
        hops.into_iter().map(of).collect()
    }
}

/// Returns the route over `path` for a flow; direct if there are no relays.
fn route(flow: &FlowId, path: &[RelayId], inventory: &Inventory) -> Result<Route, DesiredError> {
    let hop = |relay: &RelayId| {
        let missing =
            || DesiredError::UnknownRelay { route: format!("flow `{flow}`"), relay: relay.clone() };
        inventory.relays.get(relay).cloned().ok_or_else(missing)
    };
    let hops: Vec<Hop> = path.iter().map(hop).collect::<Result<_, _>>()?;
    Ok(if hops.is_empty() { Route::Direct } else { Route::Relays(hops) })
}

/// Returns the planned path and its fallbacks, best first, without duplicates, at most
/// [`MAX_ROUTES`].
fn paths(plan: &Plan, planned: &[RelayId], allowed: Fallbacks) -> Vec<Vec<RelayId>> {
    let mut paths = vec![planned.to_vec()];
    if planned.is_empty() {
        return paths;
    }
    let most_relayed = if allowed.direct { MAX_ROUTES - 1 } else { MAX_ROUTES };
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

/// Returns a path with each relay replaced by another of its region where the plan has one.
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
    use crate::{Connections, Encryption, LegTo};
    use tradewind_grant::IdentityKey;
    use tradewind_model::Leg;
    use tradewind_plan::{PlannedFlow, PlannedRelay};
    use tradewind_units::{Duration, Money};

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

    fn relay_id(name: &str) -> RelayId {
        RelayId::new(name).unwrap()
    }

    /// Adds a relay to the plan, at 192.0.2.`seed`.
    fn add_relay(plan: &mut Plan, inventory: &mut Inventory, seed: u8, name: &str) {
        let id = relay_id(name);
        let region = name.rsplit_once('.').unwrap().0.parse().unwrap();
        let relay_type = "small".parse().unwrap();
        plan.relays.push(PlannedRelay { id: id.clone(), region, relay_type });
        let address = format!("192.0.2.{seed}:7001").parse().unwrap();
        let identity = IdentityKey::from_entropy([seed; 32]).public();
        inventory.relays.insert(id.clone(), Hop { name: id, address, identity });
    }

    #[test]
    fn each_source_gets_only_its_own_routes() {
        let (plan, flows) = planned();
        let desired = compile(&plan, &flows, &Legs::new(), &inventory()).unwrap();
        assert_eq!(desired.gateways.len(), 2);
        let tokyo = &desired.gateways[&SiteId::new("tokyo").unwrap()].routes;
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
            add_relay(&mut plan, &mut inventory, seed, name);
        }
        inventory.fallbacks = Fallbacks { relays: true, direct: true };
        let gateways = compile(&plan, &flows, &Legs::new(), &inventory).unwrap().gateways;
        let (_, routes) = gateways[&SiteId::new("tokyo").unwrap()]
            .routes
            .routes_to(&"192.0.2.9:8001".parse().unwrap());
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
        let (_, routes) = gateways[&SiteId::new("hamina").unwrap()]
            .routes
            .routes_to(&"192.0.2.9:8003".parse().unwrap());
        assert_eq!(
            routes.iter().map(name).collect::<Vec<_>>(),
            ["gcp:europe-north1.1", "gcp:europe-north1.2", "Direct"]
        );
    }

    #[test]
    fn policies_and_grants_cover_the_paths() {
        let (mut plan, flows) = planned();
        let mut inventory = inventory();
        let names = ["gcp:asia-northeast1.1", "gcp:europe-north1.1", "gcp:europe-north1.2"];
        for (seed, name) in (1..).zip(names) {
            add_relay(&mut plan, &mut inventory, seed, name);
        }
        inventory.fallbacks.relays = true;
        let desired = compile(&plan, &flows, &Legs::new(), &inventory).unwrap();
        let shown = |rules: &[DestinationRule]| -> Vec<String> {
            rules.iter().map(ToString::to_string).collect()
        };
        let policy = |name: &str| &desired.relays[&relay_id(name)].policy;
        let first = policy(names[0]);
        assert_eq!(shown(&first.next_hops), ["192.0.2.2/32:7001", "192.0.2.3/32:7001"]);
        // A path without the last relay ends at the first one.
        assert_eq!(shown(&first.destinations), ["192.0.2.9/32:8001"]);
        let last = policy(names[1]);
        assert!(last.next_hops.is_empty(), "{last:?}");
        assert_eq!(shown(&last.destinations), ["192.0.2.9/32:8001", "192.0.2.9/32:8003"]);
        assert!(!last.is_loopback());

        let grant = &desired.gateways[&SiteId::new("tokyo").unwrap()].grant;
        assert_eq!(shown(&grant.destinations), ["192.0.2.9/32:8001"], "the direct flow needs none");
        let identities = [1, 2, 3].map(|seed| IdentityKey::from_entropy([seed; 32]).public());
        assert!(identities.iter().all(|relay| grant.relays.contains(relay)), "{grant:?}");
        assert_eq!(grant.relays.len(), 3);
    }

    #[test]
    fn initial_window_towards_destinations_is_learned() {
        let (mut plan, flows) = planned();
        let mut inventory = inventory();
        for (seed, name) in (1..).zip(["gcp:asia-northeast1.1", "gcp:europe-north1.1"]) {
            add_relay(&mut plan, &mut inventory, seed, name);
        }
        let mut fast = Leg::new(Duration::from_millis(50));
        fast.initial_window = tradewind_units::Segments::new(80).unwrap();
        let end = LegEnd::Site("elsewhere".parse().unwrap());
        let last = LegEnd::Relay("gcp:europe-north1".parse().unwrap());
        let direct = LegEnd::Site("tokyo".parse().unwrap());
        let legs = Legs::from([
            ((last, end.clone()), fast),
            ((direct, end), Leg::new(Duration::from_millis(200))),
        ]);
        let desired = compile(&plan, &flows, &legs, &inventory).unwrap();
        let learned = |name: &str| desired.relays[&relay_id(name)].learned;
        assert_eq!(learned("gcp:europe-north1.1"), Some(fast.initial_window));
        assert_eq!(learned("gcp:asia-northeast1.1"), None);
        assert_eq!(desired.gateways[&SiteId::new("tokyo").unwrap()].learned, None);
    }

    #[test]
    fn intra_region_connections_are_dialled() {
        let (mut plan, flows) = planned();
        let mut inventory = inventory();
        let names = ["gcp:europe-north1.1", "gcp:asia-northeast1.1", "gcp:europe-north1.2"];
        for (seed, name) in (1..).zip(names) {
            add_relay(&mut plan, &mut inventory, seed, name);
        }
        // A slow machine's traffic over a fast one of its region.
        plan.flows[2].path = vec![names[0], names[2]].into_iter().map(relay_id).collect();
        inventory.leg.encryption = Some(Encryption::None);
        let site = |name: &str| LegEnd::Site(name.parse().unwrap());
        let relay = |name: &str| LegEnd::Relay(name.parse().unwrap());
        let leg = |n| Leg::new(Duration::from_millis(50)).with_connections(n);
        let (north, asia) = (relay("gcp:europe-north1"), relay("gcp:asia-northeast1"));
        let legs = Legs::from([
            ((site("tokyo"), asia.clone()), leg(1)),
            ((asia, north.clone()), leg(8)),
            ((site("hamina"), north.clone()), leg(2)),
            ((north.clone(), north), leg(4)),
        ]);
        let desired = compile(&plan, &flows, &legs, &inventory).unwrap();
        let numbers = |legs: &ProcessLegs| -> Vec<(u8, Connections)> {
            let number = |to: &LegTo| match to.address.ip() {
                std::net::IpAddr::V4(ip) => ip.octets()[3],
                std::net::IpAddr::V6(_) => 0,
            };
            assert!(legs.to.iter().all(|to| to.dial.encryption == Some(Encryption::None)));
            legs.to.iter().map(|to| (number(to), to.dial.connections)).collect()
        };
        let many = |n| Connections::fixed(n).unwrap();
        let gateway = |name: &str| &desired.gateways[&SiteId::new(name).unwrap()].legs;
        assert!(numbers(gateway("tokyo")).is_empty(), "as all of its legs are");
        assert_eq!(numbers(gateway("hamina")), [(1, many(2))]);
        assert_eq!(numbers(&desired.relays[&relay_id(names[0])].legs), [(3, many(4))]);
        assert_eq!(numbers(&desired.relays[&relay_id(names[1])].legs), [(1, many(8))]);
        assert!(numbers(&desired.relays[&relay_id(names[2])].legs).is_empty());
        for DesiredRelay { legs, .. } in desired.relays.values() {
            assert_eq!((&legs.accept, &legs.dial), (&inventory.leg, &inventory.leg));
        }
    }

    #[test]
    fn missing_inventory_entries_are_named() {
        let (plan, flows) = planned();
        let mut without = inventory();
        without.relays.remove(&RelayId::new("gcp:europe-north1.1").unwrap());
        let error = compile(&plan, &flows, &Legs::new(), &without).unwrap_err().to_string();
        assert!(error.starts_with("flow `out`: relay `gcp:europe-north1.1`"), "{error}");

        let mut without = inventory();
        without.destinations.remove(&FlowId::new("back").unwrap());
        let error = compile(&plan, &flows, &Legs::new(), &without).unwrap_err().to_string();
        assert!(error.contains("flow `back`"), "{error}");
        let error =
            compile(&plan, &flows[..2], &Legs::new(), &inventory()).unwrap_err().to_string();
        assert!(error.contains("flow `back`"), "{error}");
    }
}
