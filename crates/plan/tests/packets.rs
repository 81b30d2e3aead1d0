//! Tests of packet flows: costs computed by hand, the cheapest option by plain enumeration, and the
//! errors if there is none.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::collections::BTreeMap;
use std::sync::LazyLock;

use proptest::prelude::*;
use tradewind_model::Catalogue;
use tradewind_model::packet::PacketService;
use tradewind_plan::file::{self, FileError, ProblemFile};
use tradewind_plan::packets::{PacketError, PacketVerdict, PacketViolation, PlannedPacketFlow};
use tradewind_plan::solver::{Greedy, Limits, Solver};
use tradewind_plan::{LegEnd, PacketPlan, Plan, Problem, verify};
use tradewind_units::{Duration, Money, RegionId, SiteId};

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(Catalogue::builtin);

fn try_read(text: &str) -> Result<ProblemFile, FileError> {
    file::parse(text, &CATALOGUE, &mut |name: &str| Err(format!("{name}: not there")))
}

fn read(text: &str) -> ProblemFile {
    try_read(text).unwrap_or_else(|error| panic!("{error}"))
}

fn planned(text: &str) -> PacketPlan {
    let read = read(text);
    let plan = read.packets.plan(&read.inputs, Some(&Plan::nothing())).unwrap();
    assert_eq!(read.packets.verify(&read.inputs, &Plan::nothing(), &plan), []);
    plan
}

/// A flow from Sydney to Dublin as in the paper's example: 1.5 Mbit/s for an hour, 1 % lost, 9.8
/// cents a GB between the relays and 2 cents to the receiver, a machine's share of 0.095 cents [JQ
/// 5.1.1]. The Internet takes 140 ms one way, the relays 5 + 130 + 10.
const CALL: &str = concat!(
    r#"
regions = ["aws:ap-southeast-2", "aws:eu-west-1"]
site = [{ id = "a" }, { id = "b" }]
packet_flow = [{ id = "call", from = "a", to = "b", rate = "1.5 Mbit/s", packet = "1 kB", "#,
    r#"budget = "220 ms", internet_loss = 0.01 }]
[packets]
usd_per_hour = 0.00095
coding = { cross_stream = [2, 10], in_stream = [0, 1], within = "0 ms" }
detection = "0 ms"
[egress]
pair = [
  { from = "aws:ap-southeast-2", to = "aws:eu-west-1", usd_per_gb = 0.098 },
  { from = "aws:eu-west-1", to = "internet", usd_per_gb = 0.02 },
  { from = "aws:ap-southeast-2", to = "internet", usd_per_gb = 0.2 },
]
[[pair]]
between = ["a", "b"]
rtt = "280 ms"
[[pair]]
between = ["a", "aws:ap-southeast-2"]
rtt = "10 ms"
[[pair]]
between = ["aws:ap-southeast-2", "aws:eu-west-1"]
rtt = "260 ms"
[[pair]]
between = ["b", "aws:eu-west-1"]
rtt = "20 ms"
[[pair]]
between = ["a", "aws:eu-west-1"]
blocked = true
[[pair]]
between = ["b", "aws:ap-southeast-2"]
rtt = "300 ms"
"#
);

fn cents(money: Money) -> f64 {
    money.as_usd() * 100.0
}

fn considered(flow: &PlannedPacketFlow, service: PacketService) -> (f64, f64, PacketVerdict) {
    let one = flow.services.iter().find(|one| one.service == service).unwrap();
    (one.delivery.as_secs_f64() * 1e3, cents(one.cost), one.verdict)
}

fn names(regions: &[RegionId]) -> Vec<&str> {
    regions.iter().map(RegionId::as_str).collect()
}

#[test]
fn oceania_europe_call_costs_match_paper() {
    let plan = planned(CALL);
    let flow = &plan.flows[0];
    assert_eq!(flow.service, PacketService::Coding);
    let relays: Vec<&str> = flow.path.iter().map(|relay| relay.as_str()).collect();
    assert_eq!(relays, ["aws:ap-southeast-2.1", "aws:eu-west-1.1"]);
    assert!(plan.relays.iter().all(|relay| !relay.runs) && plan.relays.len() == 2);
    // 0.675 GB. Coding: a fifth leaves Sydney; Dublin sends lost packets and nine requests of 64
    // bytes for each lost packet of 1,000.
    let lost = 0.006_75;
    let asked = lost * 0.064;
    let coding = 0.135 * 9.8 + (lost + 9.0 * asked) * 2.0 + 0.19;
    let caching = 0.675 * 9.8 + lost * 2.0 + 0.19;
    let forwarding = 0.675 * 9.8 + 0.675 * 2.0 + 0.19;
    let near = |(delivery, cost, verdict), [at, expected]: [f64; 2], why| {
        let (is_then, is_that): (f64, f64) = (delivery - at, cost - expected);
        assert!(is_then.abs() < 1e-6 && is_that.abs() < 1e-5, "{delivery} ms, {cost} cents");
        assert_eq!(verdict, why);
    };
    // Coding sends requests to the relay and, from there, to helpers as far away as the receiver.
    let [coded, cached, forwarded] =
        [PacketService::Coding, PacketService::Caching, PacketService::Forwarding]
            .map(|service| considered(flow, service));
    near(coded, [180.0, coding], PacketVerdict::Selected);
    near(cached, [160.0, caching], PacketVerdict::Dearer);
    near(forwarded, [145.0, forwarding], PacketVerdict::Dearer);
    assert_eq!(considered(flow, PacketService::Direct).2, PacketVerdict::Lossy);
    assert!((cents(flow.costs.ingress_relay) - 0.135 * 9.8).abs() < 1e-5, "{:?}", flow.costs);
    assert_eq!(plan.cost, flow.cost);
    let per_gb = flow.usd_per_gb.unwrap();
    assert!((cents(per_gb.caching) - (caching - 0.19) / 0.675).abs() < 1e-4, "{per_gb:?}");
}

#[test]
fn source_cloud_charges_egress_by_destination() {
    let inside =
        CALL.replacen("{ id = \"a\" }", "{ id = \"a\", region = \"aws:ap-southeast-2\" }", 1);
    let flow = &planned(&inside).flows[0];
    // 0.675 GB over the Internet at 20 cents, and to the relay in the same region for nothing.
    assert_eq!(flow.service, PacketService::Forwarding, "which sends nothing over the Internet");
    assert_eq!(flow.costs.source, Money::ZERO);
    let outside = planned(CALL);
    for service in [PacketService::Direct, PacketService::Coding, PacketService::Caching] {
        let (_, cost, _) = considered(flow, service);
        let (_, before, _) = considered(&outside.flows[0], service);
        assert!((cost - before - 13.5).abs() < 1e-5, "{service}: {cost} {before}");
    }
    assert_eq!(flow.costs.total(), flow.cost);
    // To a receiver in another region of the cloud, the price for that applies.
    let both = inside.replacen("{ id = \"b\" }", "{ id = \"b\", region = \"aws:eu-west-1\" }", 1);
    let both = both.replacen("blocked = true", "rtt = \"280 ms\"", 1);
    let (_, direct, _) = considered(&planned(&both).flows[0], PacketService::Direct);
    assert!((direct - 0.675 * 9.8).abs() < 1e-5, "{direct}");
}

#[test]
fn tighter_budget_buys_dearer_service() {
    let service = |budget: &str| {
        let plan = planned(&CALL.replace("220 ms", budget));
        (plan.flows[0].service, cents(plan.cost))
    };
    let (coding, cheap) = service("180 ms");
    let (caching, dear) = service("179 ms");
    let (forwarding, dearest) = service("145 ms");
    assert_eq!(
        [coding, caching, forwarding],
        [PacketService::Coding, PacketService::Caching, PacketService::Forwarding]
    );
    assert!(cheap < dear && dear < dearest);
    let read = read(&CALL.replace("220 ms", "144 ms"));
    let error = read.packets.plan(&read.inputs, None).unwrap_err();
    assert!(error.is_without_plan());
    assert_eq!(
        error.to_string(),
        "packet flow `call`: no service meets its budget of 144.0 ms: the fastest, forwarding \
         over aws:ap-southeast-2 > aws:eu-west-1, \
         takes 145.0 ms"
    );
    // One relay in Sydney would be slower and more expensive: 5 + 150.
    let far = planned(&CALL.replace("220 ms", "156 ms").replace("\"260 ms\"", "\"400 ms\""));
    assert_eq!(names(&far.flows[0].services[1].regions).len(), 2);
    assert_eq!(far.flows[0].path.len(), 1, "{far:?}");
}

#[test]
fn sufficient_internet_path_needs_no_relay() {
    let good = CALL.replace("internet_loss = 0.01", "internet_loss = 0.001");
    let plan = planned(&good);
    assert_eq!((plan.flows[0].service, plan.cost), (PacketService::Direct, Money::ZERO));
    assert!(plan.relays.is_empty() && plan.flows[0].usd_per_gb.is_none());
    // The expected loss is that of the leg; if none is stated, 1 %.
    let unsaid = CALL.replace(", internet_loss = 0.01", "");
    assert!((planned(&unsaid).flows[0].internet_loss.as_f64() - 0.01).abs() < 1e-12);
    let leg = format!("{unsaid}[leg.direct]\nloss = 0.03\n");
    assert!((planned(&leg).flows[0].internet_loss.as_f64() - 0.03).abs() < 1e-12);
    // Without an Internet path only forwarding is possible.
    let dead = CALL.replacen("rtt = \"280 ms\"", "blocked = true", 1);
    let plan = planned(&dead);
    assert_eq!(plan.flows[0].service, PacketService::Forwarding);
    assert_eq!(plan.flows[0].services.len(), 1);
}

#[test]
fn percentiles_storage_uplinks_and_ingress_are_counted() {
    let caching = "220 ms\", internet_loss = 0.01";
    let at = |budget: &str, more: &str, site: &str| {
        let text = CALL.replace(caching, &format!("{budget}\", internet_loss = 0.01"));
        let text = text.replace("{ id = \"a\" }", &format!("{{ id = \"a\"{site} }}"));
        planned(&text.replace("[packets]\n", &format!("[packets]\n{more}\n")))
    };
    let before = at("170 ms", "", "");
    let with = |more: &str, site: &str| at("170 ms", more, site).flows[0].costs;
    let plain = before.flows[0].costs;
    assert_eq!(before.flows[0].service, PacketService::Caching);
    // 1.5 Mbit/s for one of 730 hours.
    let uplink = with("", ", uplink = { usd_per_mbps = 3.65 }").uplink;
    assert!((uplink.as_usd() - 0.0075).abs() < 1e-9);
    let by_volume = with("", ", uplink = { usd_per_gb = 0.01 }").uplink;
    assert!((by_volume.as_usd() - 0.006_75).abs() < 1e-9);
    // If copies are expensive, it is cheaper to send packets over the relays alone.
    let dear = at("170 ms", "", ", uplink = { usd_per_gb = 1 }");
    assert_eq!(dear.flows[0].service, PacketService::Forwarding);
    // A second of it is 187,500 bytes.
    let storage = with("storage_usd_per_gb_hour = 10", "").storage;
    assert!((storage.as_usd() - 0.001_875).abs() < 1e-9, "{storage:?}");
    let ingress = with("ingress = { usd_per_gb = 0.1 }", "");
    let entering = ingress.ingress_relay.as_usd() - plain.ingress_relay.as_usd();
    assert!((entering - 0.0675).abs() < 1e-8, "{entering}");
    let monthly = with(
        "at = [{ cloud = \"aws\", usd_per_hour = 0.01 }, { region = \"aws:eu-west-1\", egress = { \
         usd_per_mbps = 7.3 } }]",
        "",
    );
    // The lost packets are 1 % of the rate, for one of 730 hours.
    assert!((monthly.egress_relay.as_usd() - 0.000_15).abs() < 1e-9, "{monthly:?}");
    assert!((monthly.compute.as_usd() - 0.02).abs() < 1e-9, "{monthly:?}");
}

/// A bulk stream besides the call, for which a relay in Dublin pays off.
const BULK: &str = r#"
[[flow]]
id = "bulk"
from = "a"
to = "b"
volume = "20 GB"
"#;

#[test]
fn free_capacity_of_bought_relays_costs_nothing() {
    let text = format!("{}{BULK}", CALL.replace("\"260 ms\"", "\"60 ms\""));
    let read = read(&text);
    let problem = Problem::new(read.inputs.clone()).unwrap();
    let streams = Greedy.solve(&problem, &Limits::work(10_000)).unwrap();
    assert_eq!(verify(&problem, &streams), []);
    assert_eq!(streams.relays.len(), 2, "{streams:?}");
    let alone = read.packets.plan(&read.inputs, None).unwrap();
    let joint = read.packets.plan(&read.inputs, Some(&streams)).unwrap();
    assert_eq!(read.packets.verify(&read.inputs, &streams, &joint), []);
    assert!(joint.relays.is_empty() && joint.flows[0].costs.compute == Money::ZERO);
    assert!(joint.cost < alone.cost);
    let reserve = read.packets.reserve(&read.inputs).unwrap();
    assert_eq!((reserve.cost(), reserve.left_of(alone.cost)), (alone.cost, Ok(Money::ZERO)));
    let poor = reserve.left_of(joint.cost).unwrap_err();
    assert!(matches!(&poor, PacketError::OverBudget { .. }) && poor.is_without_plan());

    // The streams use a relay completely: the call adds another.
    let mut full = streams.clone();
    full.flows[0].fct = Duration::from_secs(80);
    let beside = read.packets.plan(&read.inputs, Some(&full)).unwrap();
    let added: Vec<&str> = beside.relays.iter().map(|relay| relay.id.as_str()).collect();
    assert_eq!(added, ["aws:ap-southeast-2.2", "aws:eu-west-1.2"]);
    assert_eq!(
        (beside.cost, read.packets.verify(&read.inputs, &full, &beside)),
        (alone.cost, vec![])
    );
    // The verifier refuses the relays that are full.
    let forged = read.packets.verify(&read.inputs, &full, &joint);
    assert!(matches!(forged[..], [PacketViolation::Overloaded(_), ..]), "{forged:?}");

    let runs = text + "[running]\nrelay = [{ region = \"aws:eu-west-1\" }]\n";
    let read = try_read(&runs).unwrap();
    let plan = read.packets.plan(&read.inputs, Some(&Plan::nothing())).unwrap();
    assert_eq!(read.packets.verify(&read.inputs, &Plan::nothing(), &plan), []);
    let runs: Vec<bool> = plan.relays.iter().map(|relay| relay.runs).collect();
    assert_eq!(runs, [false, true]);
    assert!((cents(plan.flows[0].costs.compute) - 0.095).abs() < 1e-6);
}

#[test]
fn quotas_of_relays_hold_for_packet_flows() {
    let mut read = read(CALL);
    let nothing = Plan::nothing();
    let plan = read.packets.plan(&read.inputs, Some(&nothing)).unwrap();
    for relay in &plan.relays {
        read.inputs.most.insert((relay.region.clone(), relay.relay_type.clone()), 1);
    }
    assert_eq!(read.packets.plan(&read.inputs, Some(&nothing)).as_ref(), Ok(&plan));
    assert_eq!(read.packets.verify(&read.inputs, &nothing, &plan), []);
    let first = &plan.relays[0];
    read.inputs.most.insert((first.region.clone(), first.relay_type.clone()), 0);
    let wrong = read.packets.verify(&read.inputs, &nothing, &plan);
    assert_eq!(wrong, [PacketViolation::Relay(first.id.clone())]);
    let error = read.packets.plan(&read.inputs, Some(&nothing)).unwrap_err();
    assert!(matches!(error, PacketError::NoService { .. }), "{error}");
}

#[test]
fn unshared_machines_are_paid_by_whole_hours() {
    let dear = CALL.replace("usd_per_hour = 0.00095", "usd_per_hour = 0.095");
    // Both take the relay in Sydney and the one in Dublin: the second flow lasts an hour and a
    // half.
    let second = |span: &str| {
        let one =
            "rate = \"1.5 Mbit/s\", packet = \"1 kB\", budget = \"220 ms\", internet_loss = 0.01 }";
        let later =
            format!("{one}, {{ id = \"later\", from = \"a\", to = \"b\", span = \"{span}\", {one}");
        dear.replacen(one, &later, 1)
    };
    let compute = |text: &str| -> Vec<f64> {
        let plan = planned(text);
        assert!(plan.flows.iter().all(|flow| flow.path.len() == 2), "{plan:?}");
        let total: f64 = plan.flows.iter().map(|flow| flow.cost.as_usd()).sum();
        assert!((total - plan.cost.as_usd()).abs() < 1e-9);
        plan.flows.iter().map(|flow| flow.costs.compute.as_usd()).collect()
    };
    assert_eq!(compute(&dear), [0.19], "two machines for an hour, and no share of them");
    assert_eq!(compute(&second("20 min")), [0.19, 0.0], "which the second flow shares");
    assert_eq!(compute(&second("90 min")), [0.19, 0.19], "and has for another hour");
}

#[test]
fn forged_plans_are_found_out() {
    let read = read(CALL);
    let nothing = Plan::nothing();
    let plan = read.packets.plan(&read.inputs, Some(&nothing)).unwrap();
    let wrong = |change: &dyn Fn(&mut PacketPlan)| {
        let mut forged = plan.clone();
        change(&mut forged);
        read.packets.verify(&read.inputs, &nothing, &forged)
    };
    let id = || plan.flows[0].id.clone();
    let cheap = Money::from_usd(0.001).unwrap();
    assert_eq!(wrong(&|plan| plan.flows.clear()), [PacketViolation::Flows]);
    assert_eq!(wrong(&|plan| plan.cost = cheap), [PacketViolation::Sum]);
    assert!(wrong(&|plan| plan.flows[0].cost = cheap).contains(&PacketViolation::Cost(id())));
    assert_eq!(
        wrong(&|plan| plan.flows[0].delivery = Duration::ZERO),
        [PacketViolation::Delivery(id())]
    );
    assert!(wrong(&|plan| plan.flows[0].path.reverse()).contains(&PacketViolation::Path(id())));
    assert!(wrong(&|plan| plan.flows[0].path.clear()).contains(&PacketViolation::Path(id())));
    assert!(wrong(&|plan| plan.relays.clear()).contains(&PacketViolation::Path(id())));
    let runs = wrong(&|plan| plan.relays[0].runs = true);
    assert!(matches!(runs[0], PacketViolation::Relay(_)), "{runs:?}");
    let relay = plan.relays[0].clone();
    let mut elsewhere = read.inputs.clone();
    elsewhere.not_offered.insert((relay.region, relay.relay_type));
    let not_offered = read.packets.verify(&elsewhere, &nothing, &plan);
    assert_eq!(not_offered, [PacketViolation::Relay(relay.id)]);
}

#[test]
fn invalid_values_are_refused_with_line_and_field() {
    for (from, to, expected) in [
        ("rate = \"1.5 Mbit/s\", packet", "packet", "line 4: from: exactly two of `rate`"),
        ("packet = \"1 kB\"", "packet = \"0 B\"", "line 4: packet: a packet of 1 to 65507 bytes"),
        ("packet = \"1 kB\"", "packets_per_second = 0", "line 4: packets_per_second: 0.001 to"),
        (
            "packet = \"1 kB\"",
            "packets_per_second = 1",
            "line 4: packets_per_second: packets of 187500",
        ),
        ("budget = \"220 ms\"", "budget = \"0 ms\"", "line 4: from: a `budget` and a `span` above"),
        ("budget = \"220 ms\"", "span = \"1 h\"", "line 4: packet_flow: missing field `budget`"),
        ("to = \"b\", rate", "to = \"a\", rate", "line 4: to: a packet flow from `a` to itself"),
        ("to = \"b\", rate", "to = \"c\", rate", "line 4: to: no site `c`"),
        ("[2, 10]", "[9, 10]", "line 7: coding: 1 to 8 repair packets"),
        ("usd_per_hour = 0.00095", "flows_per_machine = 0", "line 6: flows_per_machine: 1 or more"),
        ("usd_per_hour = 0.00095", "ingress = {}", "line 6: ingress: either `usd_per_gb` or"),
        (
            "usd_per_hour = 0.00095",
            "at = [{ cloud = \"moon\" }]",
            "line 6: cloud: no cloud `moon` in the catalogue",
        ),
        ("usd_per_hour = 0.00095", "at = [{}]", "line 6: at: either `region` or `cloud`"),
    ] {
        assert!(CALL.contains(from), "{from}");
        let error = try_read(&CALL.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{expected}: {error}");
    }
    let twice = format!("{CALL}{}", BULK.replace("bulk", "call"));
    let error = try_read(&twice).unwrap_err().to_string();
    assert!(error.contains("a second flow `call`"), "{error}");
    // For clouds without a machine in the catalogue a price must be stated.
    let read = try_read(&CALL.replace("usd_per_hour = 0.00095\n", "")).unwrap();
    let dublin = RegionId::new("aws:eu-west-1").unwrap();
    assert_eq!(read.packets.prices[&dublin].vm_hour, Money::from_usd(0.108).unwrap());
}

/// Returns the cheapest option of a flow by plain enumeration over services and relays, each cost
/// computed from the table's entries: dollars and milliseconds.
fn enumerated(read: &ProblemFile, flow: usize) -> Option<(f64, f64)> {
    let flow = &read.packets.flows[flow];
    let half = |from: &LegEnd, to: &LegEnd| {
        let leg = read.inputs.legs.get(&(from.clone(), to.clone()))?;
        Some(leg.rtt.as_secs_f64() * 500.0)
    };
    let site = |id: &SiteId| LegEnd::Site(id.clone());
    let (from, to) = (site(&flow.source), site(&flow.destination));
    let budget = flow.demand.budget.as_secs_f64() * 1e3 + 1e-6;
    let bearable = flow.demand.bearable.as_f64();
    let internet = half(&from, &to);
    let mut all = Vec::new();
    if let Some(internet) = internet
        && flow.loss.as_f64() <= bearable
    {
        all.push((0.0, internet));
    }
    let gigabytes = flow.rate.as_bps() as f64 / 8e9 * flow.span.as_secs_f64();
    let lost = gigabytes * flow.loss.as_f64();
    let requests = lost * 64.0 / flow.packet.as_u64() as f64;
    let hours = (flow.span.as_secs_f64() / 3600.0).ceil();
    let price = |region: &RegionId, to: Option<&RegionId>| {
        let to = to.map_or(tradewind_model::Egress::Internet, tradewind_model::Egress::Region);
        read.inputs.prices.egress(region, to).unwrap().as_usd_per_gb()
    };
    for first in &read.inputs.regions {
        for last in &read.inputs.regions {
            let [at, end] = [first, last].map(|region| LegEnd::Relay(region.clone()));
            let between = if first == last { Some(0.0) } else { half(&at, &end) };
            let (Some(x), Some(s), Some(r)) = (between, half(&from, &at), half(&end, &to)) else {
                continue;
            };
            let is_one = first == last;
            let (c1, c2) = (if is_one { 0.0 } else { price(first, Some(last)) }, price(last, None));
            let machines = [first, last].map(|region| {
                let prices = read.packets.prices[region];
                prices.vm_hour.as_usd() * hours
            });
            let machines = if is_one { machines[0] } else { machines[0] + machines[1] };
            all.push((gigabytes * (c1 + c2) + machines, s + x + r));
            let Some(y) = internet else { continue };
            let wait = |later: f64| (s + later + x - y - 5.0 - r).max(0.0);
            all.push((gigabytes * c1 + lost * c2 + machines, y + 5.0 + 2.0 * r + wait(0.0)));
            let coding = gigabytes * 0.4 * c1 + (lost + 9.0 * requests) * c2 + machines;
            all.push((coding, y + 5.0 + 4.0 * r + wait(30.0)));
        }
    }
    let meeting = all.into_iter().filter(|(_, delivery)| *delivery <= budget);
    meeting.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Returns a small problem with so many regions and flows, and with round-trip times and prices
/// taken in turn.
fn drawn(
    regions: usize,
    flows: usize,
    rtts: &[u32],
    cents: &[u32],
    demands: &[(u32, u32)],
) -> String {
    const REGIONS: [&str; 4] =
        ["aws:eu-west-1", "gcp:us-east4", "azure:eastus", "aws:ap-southeast-2"];
    let regions = &REGIONS[..regions];
    let mut text = format!("regions = {regions:?}\nsite = [{{ id = \"a\" }}, {{ id = \"b\" }}]\n");
    for (index, (budget, loss)) in demands.iter().take(flows).enumerate() {
        let (rate, packet) = (0.2 + index as f64, 200 + 300 * index);
        text += &format!(
            "[[packet_flow]]\nid = \"f{index}\"\nfrom = \"a\"\nto = \"b\"\nrate = \"{rate} \
             Mbit/s\"\npacket = \"{packet} B\"\n\
             budget = \"{budget} ms\"\ninternet_loss = {}\nspan = \"{} min\"\n",
            f64::from(*loss) / 1e3,
            7 + 60 * index
        );
    }
    let places: Vec<&str> = ["a", "b"].into_iter().chain(regions.iter().copied()).collect();
    let (mut rtts, mut cents) = (rtts.iter().cycle(), cents.iter().cycle());
    for (at, from) in places.iter().enumerate() {
        for to in &places[at + 1..] {
            let rtt = rtts.next().unwrap();
            let leg =
                if rtt % 17 == 0 { "blocked = true".into() } else { format!("rtt = \"{rtt} ms\"") };
            text += &format!("[[pair]]\nbetween = [\"{from}\", \"{to}\"]\n{leg}\n");
        }
    }
    for from in regions {
        for to in regions.iter().filter(|to| *to != from).copied().chain(["internet"]) {
            let price = f64::from(*cents.next().unwrap()) / 100.0;
            text += &format!(
                "[[egress.pair]]\nfrom = \"{from}\"\nto = \"{to}\"\nusd_per_gb = {price}\n"
            );
        }
    }
    text
}

proptest! {
    #[test]
    fn no_service_over_any_relays_is_cheaper(
        (regions, flows) in (1_usize..=4, 1_usize..=3),
        rtts in prop::collection::vec(2_u32..300, 21),
        cents in prop::collection::vec(0_u32..25, 16),
        demands in prop::collection::vec((20_u32..500, 0_u32..80), 3),
    ) {
        let read = read(&drawn(regions, flows, &rtts, &cents, &demands));
        let best: Vec<_> = (0..flows).map(|flow| enumerated(&read, flow)).collect();
        match read.packets.plan(&read.inputs, Some(&Plan::nothing())) {
            Ok(plan) => {
                prop_assert_eq!(read.packets.verify(&read.inputs, &Plan::nothing(), &plan), []);
                // Flows may share machines: then their total is less than the sum of each alone.
                let apart: f64 = best.into_iter().map(|best| best.unwrap().0).sum();
                let cost = plan.cost.as_usd();
                // Volumes are whole bytes, and each part of a cost whole nano-dollars.
                let same = (cost - apart).abs() < 1e-8;
                let is_least = same || (flows > 1 && cost < apart);
                prop_assert!(is_least, "{cost} not {apart}");
                prop_assert_eq!(&read.packets.plan(&read.inputs, None).unwrap().cost, &plan.cost);
            }
            Err(error) => {
                prop_assert!(best.contains(&None), "{error}");
                let line = error.to_string();
                prop_assert!(error.is_without_plan() && !line.contains('\n'), "{line}");
            }
        }
    }

    #[test]
    fn streams_and_packet_flows_share_budget(
        rtts in prop::collection::vec(2_u32..300, 21),
        cents in prop::collection::vec(0_u32..25, 16),
        demands in prop::collection::vec((100_u32..500, 0_u32..80), 3),
        budget in 0_u32..300,
    ) {
        let read = read(&format!("{}{}", drawn(4, 3, &rtts, &cents, &demands),
            BULK.replace("20 GB", "4 GB")));
        let budget = Money::from_usd(f64::from(budget) / 100.0).unwrap();
        let made = Problem::new(read.inputs.clone()).ok()
            .zip(read.packets.reserve(&read.inputs).ok());
        let Some((problem, reserve)) = made else { return Ok(()) };
        let Ok(left) = reserve.left_of(budget) else {
            prop_assert!(reserve.cost() > budget);
            return Ok(());
        };
        let problem = problem.with_budget(left);
        let Ok(streams) = Greedy.solve(&problem, &Limits::work(10_000)) else { return Ok(()) };
        prop_assert_eq!(verify(&problem, &streams), []);
        let packets = read.packets.plan(&read.inputs, Some(&streams)).unwrap();
        prop_assert_eq!(read.packets.verify(&read.inputs, &streams, &packets), []);
        prop_assert!(packets.cost <= reserve.cost() && streams.cost + packets.cost <= budget);
    }

    #[test]
    fn plan_survives_being_written_and_read(
        rtts in prop::collection::vec(2_u32..200, 21),
        demands in prop::collection::vec((200_u32..500, 0_u32..80), 3),
    ) {
        let read = read(&drawn(3, 3, &rtts, &[2, 9, 12], &demands));
        if let Ok(plan) = read.packets.plan(&read.inputs, None) {
            let text = serde_json::to_string(&plan).unwrap();
            let again: PacketPlan = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(read.packets.verify(&read.inputs, &Plan::nothing(), &again), []);
            let costs = |plan: &PacketPlan| -> BTreeMap<_, _> {
                plan.flows.iter().map(|flow| (flow.id.clone(), flow.costs)).collect()
            };
            prop_assert_eq!(costs(&again), costs(&plan));
        }
    }
}
