//! Two relays in one region: a slow machine's traffic through a fast one [TRN], as planned.

use std::io::Write;

use tradewind_desired::{Inventory, compile};
use tradewind_grant::Destination;
use tradewind_model::Leg;
use tradewind_plan::{Flow, LegEnd, Legs, Plan, PlannedFlow, PlannedRelay};
use tradewind_units::{Bytes, Duration, FlowId, Money, RelayId, SiteId};

use crate::support::{
    Running, connect, content, destination, digest, forward, gateway_config, hash, relay_config,
    wait_for,
};

const REGION: &str = "aws:us-east-1";
const RELAYS: [&str; 2] = ["aws:us-east-1.1", "aws:us-east-1.2"];

/// Returns the plan of one flow from `vm` over both relays.
fn planned() -> (Plan, Flow) {
    let id: FlowId = "backup".parse().unwrap();
    let relays = RELAYS.map(|name| RelayId::new(name).unwrap());
    let flow = PlannedFlow {
        id: id.clone(),
        path: relays.to_vec(),
        fct: Duration::from_secs(1),
        fct_direct: None,
        egress: Money::ZERO,
        move_cost: Money::ZERO,
    };
    let plan = Plan {
        schema_version: 2,
        solver: "test".to_owned(),
        relays: relays
            .map(|id| PlannedRelay {
                id,
                region: REGION.parse().unwrap(),
                relay_type: "fast".parse().unwrap(),
            })
            .to_vec(),
        flows: vec![flow],
        cost: Money::ZERO,
        total_fct: Duration::from_secs(1),
        bound: Duration::from_secs(1),
        bound_cost: Money::ZERO,
    };
    let (source, end) = (SiteId::new("vm").unwrap(), SiteId::new("there").unwrap());
    (plan, Flow::new(id, source, end, Bytes::new(1)))
}

#[test]
fn intra_region_plan_is_carried() {
    let (plan, flow) = planned();
    let bytes = content(3_000_000);
    let sent = hash(&bytes);
    let (to, served) = destination(|mut stream| digest(&mut stream).unwrap());
    let relays = [Running::relay(&relay_config()), Running::relay(&relay_config())];
    let mut inventory = Inventory::default();
    inventory.destinations.insert(flow.id.clone(), Destination::address(to).unwrap());
    for (relay, planned) in relays.iter().zip(&plan.relays) {
        inventory.relays.insert(planned.id.clone(), relay.hop(planned.id.as_str()));
    }
    let site = LegEnd::Site(flow.source.clone());
    let region = LegEnd::Relay(REGION.parse().unwrap());
    let leg = Leg::new(Duration::from_millis(1)).with_connections(4);
    let legs = Legs::from([((site, region.clone()), leg), ((region.clone(), region), leg)]);
    inventory.leg = gateway_config(tradewind_desired::Route::Direct).leg.dial;
    let mut desired = compile(&plan, std::slice::from_ref(&flow), &legs, &inventory).unwrap();
    let vm = desired.gateways.remove(&flow.source).unwrap();
    let mut config = gateway_config(vm.routes.route(&Destination::address(to).unwrap()).clone());
    config.routes = vm.routes;
    config.leg.to = vm.legs.to;
    assert_eq!(config.leg.to.len(), 1, "four connections to the first relay");
    config.forward = vec![forward(to)];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    stream.write_all(&bytes).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(served.join().unwrap(), (bytes.len(), sent));
    for relay in &relays {
        let all = bytes.len() as u64;
        wait_for("all bytes to be counted", || relay.handle.snapshot().bytes_up == all);
    }
}
