//! The slow machine of TRN: a fast one in its region relays for it, from the plan to the desired
//! state of gateway and relay.

#![allow(clippy::unwrap_used, reason = "a test may fail by panic")]

use tradewind_desired::{Connections, Hop, Inventory, Route, compile};
use tradewind_grant::{Destination, IdentityKey};
use tradewind_model::Catalogue;
use tradewind_plan::solver::{self, Limits};
use tradewind_plan::{Problem, file, verify};

/// A machine in Virginia sends to California; of its 10 Gbit/s at most 300 Mbit/s may leave the
/// region. Relays may run beside it.
const TEXT: &str = r#"
budget_usd = 20.0
start_up = "ignored"
same_region_rtt = "1 ms"
regions = ["aws:us-east-1"]
[leg.all]
connections = 8
[egress]
usd_per_gb = 0.02
[[relay_type]]
id = "fast"
set_up_usd = 0.1
capacity = "10 Gbit/s"
[[site]]
id = "vm"
region = "aws:us-east-1"
egress_cap_outside = "300 Mbit/s"
[[site]]
id = "there"
region = "aws:us-west-1"
[[pair]]
between = ["aws:us-east-1", "aws:us-west-1"]
rtt = "80 ms"
[[flow]]
id = "backup"
from = "vm"
to = "there"
volume = "10 GB"
"#;

#[test]
fn slow_gateway_uses_a_fast_relay_in_its_region() {
    let read = file::parse(TEXT, &Catalogue::builtin(), &mut |_| Err("no tables".to_owned()));
    let problem = Problem::new(read.unwrap().inputs).unwrap();
    let auto = solver::by_name("auto").unwrap();
    let plan = solver::solve(auto.as_ref(), &problem, &Limits::work(2_000_000)).unwrap();
    assert_eq!(verify(&problem, &plan), vec![]);
    let [flow] = &plan.flows[..] else { panic!("one flow: {plan:?}") };
    let direct = flow.fct_direct.unwrap().as_secs_f64();
    assert!(direct > 5.0 * flow.fct.as_secs_f64(), "300 Mbit/s direct: {flow:?}");

    let destination: Destination = "192.0.2.99:443".parse().unwrap();
    let mut inventory = Inventory::default();
    inventory.destinations.insert(flow.id.clone(), destination.clone());
    for (seed, relay) in (1..).zip(&plan.relays) {
        assert_eq!(relay.region.as_str(), "aws:us-east-1");
        let address = format!("192.0.2.{seed}:7000").parse().unwrap();
        let identity = IdentityKey::from_entropy([seed; 32]).public();
        let hop = Hop { name: relay.id.clone(), address, identity };
        inventory.relays.insert(relay.id.clone(), hop);
    }
    let legs = &problem.inputs().legs;
    let desired = compile(&plan, problem.flows(), legs, &inventory).unwrap();
    let gateway = &desired.gateways[&"vm".parse().unwrap()];
    let Route::Relays(hops) = gateway.routes.route(&destination) else { panic!("{gateway:?}") };
    assert_eq!(
        hops.iter().map(|hop| &hop.name).collect::<Vec<_>>(),
        flow.path.iter().collect::<Vec<_>>()
    );
    let [first] = &gateway.legs.to[..] else { panic!("{:?}", gateway.legs) };
    assert_eq!(first.address, hops[0].address);
    assert_eq!(
        first.dial.connections,
        Connections::fixed(8).unwrap(),
        "as the plan predicted with"
    );
}
