//! Packet flows in `tradewind plan`, `explain` and `plan configure`, run as by a user.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::path::Path;

use common::Files;
use serde_json::Value;
use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_grant::{IdentityKey, PublicIdentity};
use tradewind_node::{Remote, Via};
use tradewind_units::{Duration, Money};

/// A stream that pays for a relay in London, and a call for which that relay is better.
const JOINT: &str = r#"budget_usd = 1.0
regions = ["gcp:europe-west2"]
rtt_tables = ["rtt.csv"]
site = [{ id = "a" }, { id = "b" }, { id = "c" }]
flow = [{ id = "bulk", from = "a", to = "b", volume = "2 GB" }]
[[packet_flow]]
id = "call"
from = "a"
to = "b"
rate = "1.5 Mbit/s"
packet = "1 kB"
budget = "300 ms"
[egress]
usd_per_gb = 0.08
"#;

fn joint(test: &str) -> Files {
    let files = Files::new(test);
    files.write("p.toml", JOINT);
    files.write("rtt.csv", common::RTTS);
    files
}

#[test]
fn streams_and_packet_flows_are_planned_together() {
    let files = joint("packet-flows");
    let plan = files.json("plan --problem p.toml -o json --out plan.json");
    let call = &plan["packets"]["flows"][0];
    assert_eq!((&call["id"], &call["path"]), (&"call".into(), &plan["flows"][0]["path"]));
    assert_eq!(plan["packets"]["relays"], serde_json::json!([]), "the stream's relay will do");
    assert_eq!(call["costs"]["compute_usd"], 0.0, "and its machine is paid");
    let services = call["services"].as_array().unwrap();
    let verdicts: Vec<&str> = services.iter().map(|one| one["verdict"].as_str().unwrap()).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == "selected").count(), 1, "{plan}");
    assert_eq!(verdicts[0], "lossy", "a hundredth is lost");
    assert!(usd(&plan["budget_usd"]) < 1.0 && all_costs(&plan) <= 1.0, "{plan}");

    let table = files.prints("plan --problem p.toml");
    assert!(table.contains("packet flow") && table.contains("together $"), "{table}");
    assert_eq!(&files.json("explain plan.json call -o json"), call);
    let explained = files.prints("explain plan.json call");
    assert!(
        explained.contains("loses too much") && explained.contains("machines $0.0000"),
        "{explained}"
    );
    let forged =
        files.read("plan.json").replacen("\"compute_usd\": 0.0", "\"compute_usd\": 0.1", 1);
    files.write("forged.json", forged);
    files.refuses_with("explain forged.json call", 2, "forged.json: it is no plan for p.toml: ");
}

fn usd(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("dollars, not {value}"))
}

/// Returns the total cost of a plan, or of a row of a comparison.
fn all_costs(plan: &Value) -> f64 {
    usd(&plan["cost_usd"]) + usd(&plan["packets"]["cost_usd"])
}

/// Asserts that the figures of a row are those of this plan, packet flows included.
fn is_of_plan(row: &Value, plan: &Value) {
    for key in ["status", "total_fct_s", "cost_usd", "acceleration"] {
        assert_eq!(row[key], plan[key], "{key}: {row}");
    }
    assert_eq!(row["packets_cost_usd"], plan["packets"]["cost_usd"], "{row}");
    assert!((usd(&row["joint_cost_usd"]) - all_costs(plan)).abs() < 1e-9, "{row}");
    let added = plan["packets"]["relays"].as_array().unwrap().len();
    assert_eq!(row["packet_relays"], added, "{row}");
}

#[test]
fn compare_includes_packet_flows_for_each_algorithm() {
    let files = joint("packets-compared");
    let compared = files.json("plan compare --problem p.toml -o json");
    assert_eq!(compared["budget_usd"], 1.0);
    for row in compared["algorithms"].as_array().unwrap() {
        let algorithm = row["algorithm"].as_str().unwrap();
        let plan = files.json(&format!("plan --problem p.toml --algorithm {algorithm} -o json"));
        is_of_plan(row, &plan);
        assert_eq!(compared["streams_budget_usd"], plan["budget_usd"]);
        assert!(usd(&row["joint_cost_usd"]) <= 1.0, "{row}");
    }
    let table = files.prints("plan compare --problem p.toml");
    assert!(table.contains("packets $") && table.contains("together $"), "{table}");

    files.refuses_with(
        "plan compare --problem p.toml --budget 0.0001",
        1,
        "p.toml: limited: packet flows: they may cost $0.03",
    );
    files.write("late.toml", JOINT.replace("300 ms", "90 ms"));
    for command in ["compare", "sweep --from 0 --to 1 --steps 2"] {
        files.refuses_with(
            &format!("plan {command} --problem late.toml"),
            1,
            "late.toml: infeasible: packet flow `call`: no service meets its budget of 90.0 ms",
        );
    }
    let plain = JOINT.split("[[packet_flow]]").next().unwrap();
    files.write("plain.toml", plain);
    let plain = files.json("plan compare --problem plain.toml -o json");
    assert!(plain.get("streams_budget_usd").is_none());
    assert!(plain["algorithms"][0].get("joint_cost_usd").is_none(), "{plain}");
}

#[test]
fn sweep_step_equals_the_plan_for_its_budget() {
    let files = joint("packets-swept");
    let arguments = "plan sweep --problem p.toml --from 0 --to 1 --steps 5 --algorithm exact";
    let sweep = files.json(&format!("{arguments} -o json"));
    let [none, points @ ..] = &sweep["points"].as_array().unwrap()[..] else { panic!("{sweep}") };
    assert_eq!((&none["budget_usd"], &none["status"]), (&0.0.into(), &"limited".into()));
    assert!(none["reason"].as_str().unwrap().starts_with("packet flows: they may cost $"));
    assert!(none["cost_usd"].is_null() && none.get("joint_cost_usd").is_none(), "{none}");
    for point in points {
        let budget = usd(&point["budget_usd"]);
        let plan = files
            .json(&format!("plan --problem p.toml --algorithm exact --budget {budget} -o json"));
        is_of_plan(point, &plan);
        assert_eq!(point["streams_budget_usd"], plan["budget_usd"]);
        assert!(point["reason"].is_null() && usd(&point["joint_cost_usd"]) <= budget, "{point}");
    }
    let added: Vec<&Value> = points.iter().map(|point| &point["packet_relays"]).collect();
    assert_eq!(added, [1, 1, 0, 0], "the stream's relay serves the call from three quarters on");

    let shown = files.run(arguments);
    let (table, note) = (common::text(&shown.stdout), common::text(&shown.stderr));
    assert!(table.contains("limited") && table.contains("together $"), "{table}");
    let prefix = "note: budgets below $";
    assert!(note.starts_with(prefix) && note.ends_with(": 1 of 5\n"), "{note}");
    // The line names the least budget that suffices, to the last digit.
    let least = note[prefix.len()..].split(' ').next().unwrap();
    files.prints(&format!("plan --problem p.toml --budget {least}"));
    let reserve: f64 = least.parse().unwrap();
    let less = reserve - 1e-8;
    files.refuses_with(
        &format!("plan --problem p.toml --budget {less:.9}"),
        1,
        "p.toml: limited: packet flows: they may cost $",
    );
    let poor = files.run(&format!("plan sweep --problem p.toml --from 0 --to {less:.9} --steps 2"));
    assert_eq!(poor.status.code(), Some(1), "{poor:?}");
    assert!(common::text(&poor.stdout).contains("together $"), "{poor:?}");
}

#[test]
fn packet_flows_alone_without_plan() {
    let files = joint("packets-alone");
    let stream = "flow = [{ id = \"bulk\", from = \"a\", to = \"b\", volume = \"2 GB\" }]\n";
    let alone = JOINT.replace(stream, "");
    assert_ne!(alone, JOINT);
    files.write("p.toml", &alone);
    let plan = files.json("plan --problem p.toml -o json --out plan.json");
    assert_eq!((&plan["status"], &plan["flows"]), (&"optimal".into(), &serde_json::json!([])));
    assert_eq!(plan["packets"]["relays"][0]["id"], "gcp:europe-west2.1");
    assert!(files.prints("plan --problem p.toml").contains("for packet flows alone"));
    files.prints("explain plan.json call");
    let sweep = files.json("plan sweep --problem p.toml --from 0 --to 1 --steps 2 -o json");
    assert_eq!(
        (&sweep["points"][0]["status"], &sweep["points"][1]["cost_usd"]),
        (&"limited".into(), &0.0.into())
    );
    is_of_plan(&sweep["points"][1], &plan);
    let compared = files.json("plan compare --problem p.toml -o json");
    compared["algorithms"].as_array().unwrap().iter().for_each(|row| is_of_plan(row, &plan));

    files.write("late.toml", alone.replace("300 ms", "90 ms"));
    files.refuses_with(
        "plan --problem late.toml",
        1,
        "late.toml: infeasible: packet flow `call`: no service meets its budget of 90.0 ms: the \
         fastest, forwarding over gcp:europe-west2, \
         takes 100.0 ms",
    );
    files.refuses_with(
        "plan --problem p.toml --budget 0.0001",
        1,
        "p.toml: limited: packet flows: they may cost $",
    );
}

/// A planned call, with the identities of its gateways and relays.
struct Configured {
    files: Files,
    inventory: String,
    relay: PublicIdentity,
    remote: PublicIdentity,
}

impl Configured {
    fn new(test: &str) -> Self {
        let files = joint(test);
        files.prints("plan --problem p.toml --out plan.json");
        let public = |seed: u8| IdentityKey::from_entropy([seed; 32]).public();
        let (relay, remote) = (public(2), public(3));
        let inventory = format!(
            "[[relay]]\nname = 'gcp:europe-west2.1'\naddress = '192.0.2.1:7000'\n\
             identity = '{relay}'
            [[packet_relay]]\nname = 'gcp:europe-west2.1'\naddress = '192.0.2.1:7001'\n\
            identity = '{relay}'
            [destinations]\nbulk = '198.51.100.9:443'
            [[packet]]\nflow = 'call'\nlisten = '127.0.0.1:5004'\nto = '10.0.0.7:5004'
            remote = {{ address = '192.0.2.9:7001', identity = '{remote}' }}\n"
        );
        files.write("inventory.toml", &inventory);
        Self { files, inventory, relay, remote }
    }

    /// Writes the configurations.
    fn configure(&self, options: &str) {
        let command = "plan configure plan.json --inventory inventory.toml --out new";
        self.files.prints(&format!("{command}{options}"));
    }

    /// Returns one of them.
    fn text(&self, name: &str) -> String {
        self.files.read(&format!("new/{name}.toml"))
    }
}

const GATEWAY: &str = "gateway-a";
const RELAY: &str = "relay-gcp-europe-west2.1";

#[test]
fn packet_sections_are_written_with_prices_and_costs() {
    let configured = Configured::new("packet-sections");
    configured.configure("");
    let gateway: toml::Table = configured.text(GATEWAY).parse().unwrap();
    let sections = toml::Table::from_iter([("packet".to_owned(), gateway["packet"].clone())]);
    let gateway = GatewayConfig::parse(&toml::to_string(&sections).unwrap()).unwrap();
    let packets = gateway.packets().unwrap().unwrap();
    let delivery = &packets.paths[0].delivery;
    assert!(
        matches!(&delivery.remote, Remote::At(hop) if hop.identity == configured.remote),
        "{delivery:?}"
    );
    let relay = configured.relay;
    assert!(matches!(&delivery.relays, Via::Relays(relays) if relays[0].identity == relay));
    assert_eq!(delivery.carriage.budget_ms, 300);
    assert!(delivery.max_loss.is_some_and(|share| (share.as_f64() - 0.001).abs() < 1e-12));
    // Over one relay all packets are forwarded at its egress price; a hundredth is lost and
    // recovered from helpers.
    let usd = |usd| Money::from_usd(usd).unwrap();
    let costs = delivery.assumed.costs.unwrap();
    assert_eq!((costs.forwarding, costs.caching), (usd(0.08), usd(0.0008)));
    assert!(costs.caching < costs.coding && costs.coding < costs.forwarding, "{costs:?}");
    assert_eq!(costs.loss.as_f64(), 0.01, "for which they were planned");
    assert_eq!(delivery.assumed.coding.within, Duration::from_millis(30));
    let packet = &configured.text(RELAY).parse::<toml::Table>().unwrap()["packet"];
    assert_eq!(packet["listen"].as_str(), Some("0.0.0.0:7001"));
    let price = packet["usd_per_gb"]["to_endpoints"].as_float().unwrap();
    assert!((price - 0.08).abs() < 1e-12);
    assert_eq!(packet["next_hops"].as_array().unwrap().len(), 1);
}

#[test]
fn plan_replaces_only_its_own_packet_settings() {
    let configured = Configured::new("packet-base");
    let files = &configured.files;
    std::fs::create_dir(files.0.join("base")).unwrap();
    let operator = files.prints("keygen operator op.key");
    files.write(
        &format!("base/{RELAY}.toml"),
        format!(
            "listen = ['0.0.0.0:7000']\nidentity_file = 'relay.key'\noperators = ['{}']\n\
             [packet]\nlisten = '192.0.2.1:7001'
            next_hops = ['192.0.2.50:7001']\n\
            coding = {{ across_gateways = true, in_stream = [0, 1] }}",
            operator.trim()
        ),
    );
    configured.configure(" --base base");
    let text = configured.text(RELAY);
    let config = RelayConfig::parse(&text).unwrap();
    let packet = config.packet.as_ref().unwrap();
    assert_eq!(packet.listen, "192.0.2.1:7001".parse().unwrap());
    assert_eq!(packet.next_hops.len(), 2);
    assert!(packet.coding.across_gateways);
    assert_eq!(packet.coding.in_stream.map(|[repairs, _]| repairs), Some(1));
}

#[test]
fn planned_service_is_retained_and_unknown_flows_refused() {
    let configured = Configured::new("packet-planned");
    let (files, inventory) = (&configured.files, &configured.inventory);
    files.write("inventory.toml", format!("{inventory}service = 'planned'\n"));
    configured.configure("");
    let plan: Value = serde_json::from_str(&files.read("plan.json")).unwrap();
    let text = configured.text(GATEWAY);
    let section = &text.parse::<toml::Table>().unwrap()["packet"][0];
    assert_eq!(section["service"].as_str(), plan["packets"]["flows"][0]["service"].as_str());
    assert!(section.get("costs").is_none() && section.get("max_loss").is_none());
    assert!(GatewayConfig::parse(&text).is_err(), "a part of one");

    files.write("inventory.toml", inventory.replace("flow = 'call'", "flow = 'other'"));
    files.refuses_with(
        "plan configure plan.json --inventory inventory.toml --out other",
        2,
        "inventory.toml: packet flow `call` is planned, but no `[[packet]]` names it",
    );
}

#[test]
fn packet_relay_may_send_to_a_loopback_hop() {
    let configured = Configured::new("packet-loopback");
    let files = &configured.files;
    let allows = || -> Option<bool> {
        let relay: toml::Table = configured.text(RELAY).parse().unwrap();
        relay["packet"].get("allow_loopback").and_then(toml::Value::as_bool)
    };
    configured.configure("");
    assert_eq!(allows(), None);
    let inventory = configured.inventory.replace("192.0.2.9:7001", "127.0.0.1:7009");
    files.write("inventory.toml", &inventory);
    std::fs::remove_dir_all(files.0.join("new")).unwrap();
    configured.configure("");
    assert_eq!(allows(), Some(true));
}

#[test]
fn packet_only_relay_listens_at_the_inventory_address() {
    let configured = Configured::new("packet-alone");
    let files = &configured.files;
    let stream = "flow = [{ id = \"bulk\", from = \"a\", to = \"b\", volume = \"2 GB\" }]\n";
    files.write("p.toml", JOINT.replace(stream, ""));
    files.prints("plan --problem p.toml --out plan.json");
    let operator = files.prints("keygen operator op.key");
    let inventory = |text: &str| {
        files.write("inventory.toml", format!("operators = ['{}']\n{text}", operator.trim()));
    };
    inventory(&configured.inventory);
    configured.configure("");
    let relay: toml::Table = configured.text(RELAY).parse().unwrap();
    assert_eq!(relay["listen"][0].as_str(), Some("0.0.0.0:7000"));
    let (_, without) = configured.inventory.split_once("[[packet_relay]]").unwrap();
    inventory(&format!("[[packet_relay]]{without}"));
    files.refuses_with(
        "plan configure plan.json --inventory inventory.toml --out other",
        2,
        &format!("{RELAY}.toml: listen: missing; relay `gcp:europe-west2.1` carries packets alone"),
    );
}

#[test]
fn packet_relay_missing_from_the_inventory_is_refused() {
    let configured = Configured::new("packet-relay-missing");
    let files = &configured.files;
    let (before, after) = configured.inventory.split_once("[[packet_relay]]").unwrap();
    let renamed = after.replacen("gcp:europe-west2.1", "gcp:other.1", 1);
    files.write("inventory.toml", format!("{before}[[packet_relay]]{renamed}"));
    files.refuses_with(
        "plan configure plan.json --inventory inventory.toml --out other",
        2,
        "inventory.toml: packet flow `call`: relay `gcp:europe-west2.1` is not listed under \
         `packet_relay`",
    );
}

#[test]
fn example_is_planned() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = repository.join("examples/plan/calls.toml").display().to_string();
    let files = Files::new("calls");
    let plan = files.json(&["plan", "--problem", &file, "-o", "json"]);
    let flows = plan["packets"]["flows"].as_array().unwrap();
    let services: Vec<&str> = flows.iter().map(|flow| flow["service"].as_str().unwrap()).collect();
    assert_eq!(services[2], "direct", "its loss can be borne");
    assert!(services[..2].iter().all(|service| *service != "direct"), "{services:?}");
}
