//! `tradewind plan` and `tradewind explain` run as by a user: answers in the form of
//! docs/reference/plan.md, and errors of one line.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::path::Path;

use common::{Files, RTTS};
use serde_json::Value;
use tradewind_config::{GatewayConfig, RelayConfig};
use tradewind_desired::{Connections, Route};

fn repository() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// Returns the path of a file in examples/plan.
fn scenario(name: &str) -> String {
    repository().join("examples/plan").join(name).display().to_string()
}

/// Two flows from one site; the first may go over a relay, which pays with a budget of a dollar.
const SMALL: &str = r#"budget_usd = 1.0
regions = ["gcp:europe-west2"]
rtt_tables = ["rtt.csv"]
[[site]]
id = "a"
[[site]]
id = "b"
[[site]]
id = "c"
[[flow]]
id = "remote"
from = "a"
to = "b"
volume = "2 GB"
[[flow]]
id = "near"
from = "a"
to = "c"
volume = "2 GB"
[egress]
usd_per_gb = 0.08
"#;

fn small(test: &str) -> Files {
    let files = Files::new(test);
    files.write("p.toml", SMALL);
    files.write("rtt.csv", RTTS);
    files
}

#[test]
fn times_beyond_a_hundred_years_are_noted() {
    let files = small("slow");
    let slow = "[[pair]]\nbetween = [\"a\", \"b\"]\nrate = \"1 bit/s\"\n";
    files.write("p.toml", format!("{SMALL}{slow}"));
    let stderr = common::text(&files.run("plan --problem p.toml --algorithm greedy").stderr);
    assert!(
        stderr.contains("note: a path of flow `remote` takes a hundred years or more"),
        "{stderr}"
    );
    assert!(!stderr.contains("`near`"), "{stderr}");
}

#[test]
fn machine_hours_follow_plan_or_period() {
    let files = small("hours");
    let machine = "[[relay_type]]\nid = \"vm\"\ncapacity = \"2 Gbit/s\"\nset_up_usd = 0.1\n\
                   usd_per_hour = 0.2\n";
    let cost = |text: &str, volume: &str, period: &str| {
        let text = text.replace("volume = \"2 GB\"", volume).replace("budget_usd = 1.0", "");
        files.write("p.toml", format!("{period}{text}{machine}"));
        let plan = files.json("plan --problem p.toml -o json");
        let hours = (plan["makespan_s"].as_f64().unwrap() / 3600.0).ceil();
        let egress = plan["flows"].as_array().unwrap().iter();
        let egress: f64 = egress.map(|flow| flow["cost_usd"].as_f64().unwrap()).sum();
        let relays = plan["relays"][0]["count"].as_f64().unwrap();
        ((plan["cost_usd"].as_f64().unwrap() - egress) / relays, hours)
    };
    let near = |(cost, hours): (f64, f64), expected: f64, least: f64| {
        assert!((cost - expected).abs() < 1e-6 && hours >= least, "{cost} for {hours} h");
    };
    near(cost(SMALL, "volume = \"2 GB\"", ""), 0.3, 1.0);
    let (long, hours) = cost(SMALL, "volume = \"1 TB\"", "");
    near((long, hours), 0.1 + 0.2 * hours, 2.0);
    near(cost(SMALL, "volume = \"1 TB\"", "period = \"1 h\"\n"), 0.3, 2.0);
}

#[test]
fn plan_has_the_documented_form() {
    let files = small("form");
    let plan = files.json("plan --problem p.toml -o json --out plan.json");
    assert_eq!(plan["schema_version"], 1);
    assert_eq!((&plan["status"], &plan["objective"]), (&"optimal".into(), &"total-fct".into()));
    assert_eq!((&plan["budget_usd"], &plan["gap"]), (&1.0.into(), &0.0.into()));
    for key in [
        "total_fct_s",
        "direct_fct_s",
        "acceleration",
        "cost_usd",
        "bound_s",
        "solve_s",
        "makespan_s",
        "weighted_fct_s",
        "bound_cost_usd",
    ] {
        assert!(plan[key].as_f64().is_some_and(|number| number >= 0.0), "{key}: {plan}");
    }
    assert!((plan["cost_usd"].as_f64().unwrap() - 0.66).abs() < 1e-9, "half a dollar and 2 GB");
    assert_eq!(plan["relays"][0]["region"], "gcp:europe-west2");
    assert_eq!(
        (&plan["relays"][0]["count"], plan["relays"].as_array().unwrap().len()),
        (&1.into(), 1)
    );
    assert_eq!(plan["flows"][0]["id"], "remote");
    assert_eq!(plan["flows"][0]["path"], serde_json::json!(["gcp:europe-west2.1"]));
    assert_eq!(plan["flows"][1]["path"], serde_json::json!([]));
    let total = |key: &str| -> f64 {
        plan["flows"].as_array().unwrap().iter().map(|flow| flow[key].as_f64().unwrap()).sum()
    };
    assert!((total("fct_s") - plan["total_fct_s"].as_f64().unwrap()).abs() < 1e-6);
    assert!((total("direct_fct_s") - plan["direct_fct_s"].as_f64().unwrap()).abs() < 1e-6);
    assert!(plan.get("problem").is_none(), "the problem is in the file, not in the answer");

    let stored: Value = serde_json::from_str(&files.read("plan.json")).unwrap();
    assert_eq!(stored["flows"], plan["flows"]);
    assert_eq!(stored["problem"]["tables"]["rtt.csv"], RTTS);
    let table = files.prints("plan --problem p.toml --algorithm greedy");
    assert!(
        table.contains("gcp:europe-west2.1") && table.contains("cost $0.66 (of $1.00)"),
        "{table}"
    );
    assert!(
        plan.get("prices_dated").is_none() && !table.contains("egress prices of"),
        "its own price"
    );
    let listed = SMALL.replace("[egress]\nusd_per_gb = 0.08\n", "");
    assert_ne!(listed, SMALL);
    files.write("listed.toml", &listed);
    let dated = files.json("plan --problem listed.toml -o json")["prices_dated"].clone();
    let line = format!("egress prices of the catalogue: gcp of {}", dated.as_str().unwrap());
    for command in ["plan", "plan compare"] {
        let table = files.prints(&format!("{command} --problem listed.toml"));
        assert!(table.ends_with(&format!("{line}\n")), "{command}: {table}");
    }
    let poor = files.json("plan --problem p.toml --budget 0.6 -o json");
    assert_eq!((&poor["cost_usd"], &poor["relays"]), (&0.0.into(), &serde_json::json!([])));
}

#[test]
fn bad_files_and_options_take_one_line() {
    let files = small("bad");
    for (from, to, expected) in [
        ("budget_usd = 1.0", "budget_usd = nan", "bad.toml: line 1: budget_usd: money: "),
        ("gcp:europe-west2", "gcp:mars", "bad.toml: line 2: regions: region `gcp:mars`"),
        ("rtt.csv", "absent.csv", "bad.toml: line 3: rtt_tables: "),
        ("rtt.csv", "bad.csv", "bad.toml: bad.csv: line 2: rtt_ms: duration: "),
        (
            "rtt.csv",
            "short.csv",
            "bad.toml: line 12: from: no round-trip time from site a to site b",
        ),
        (
            "id = \"c\"",
            "id = \"c\"\ncolour = 1",
            "bad.toml: line 10: colour: unknown field `colour`",
        ),
        ("volume = \"2 GB\"", "volume = \"0 B\"", "bad.toml: line 14: volume: a volume above zero"),
        ("usd_per_gb = 0.08", "usd_per_gb = -0.08", "bad.toml: line 21: usd_per_gb: price: "),
    ] {
        assert!(SMALL.contains(from), "{from}");
        files.write("bad.toml", SMALL.replacen(from, to, 1));
        files.write("bad.csv", "src,dst,rtt_ms\na,b,NaN\n");
        files.write("short.csv", "src,dst,rtt_ms\n");
        for command in ["plan", "plan compare", "plan sweep --from 0 --to 1 --steps 2"] {
            files.refuses_with(&format!("{command} --problem bad.toml"), 2, expected);
        }
    }
    files.refuses_with("plan --problem absent.toml", 2, "absent.toml: No such file");
    files.refuses_with("plan --problem p.toml --algorithm sail", 2, "invalid value 'sail'");
    files.refuses_with("plan --problem p.toml --budget -1", 2, "invalid value '-1' for '--budget");
    files.refuses_with("plan --problem p.toml --budget=-1", 2, "invalid value '-1'");
    files.refuses_with("plan --problem p.toml --deadline 5", 2, "invalid value '5'");
    files.refuses_with(
        "plan sweep --problem p.toml --from 2 --to 1 --steps 3",
        2,
        "--to: more than",
    );
    files.refuses_with(
        "plan sweep --problem p.toml --from 0 --to 1 --steps 1",
        2,
        "invalid value '1'",
    );
    files.refuses_with(
        "plan sweep --problem p.toml --from 0 --to 1 --steps 2 --out x.png",
        2,
        "--out: a name that ends in",
    );
}

#[test]
fn problems_without_a_plan_exit_with_1() {
    let files = small("none");
    let late = SMALL.replacen("volume = \"2 GB\"", "volume = \"2 GB\"\ndeadline = \"1 s\"", 1);
    files.write("late.toml", &late);
    files.refuses_with(
        "plan --problem late.toml",
        1,
        "late.toml: infeasible: flow `remote`: its deadline is 1.000 s",
    );
    files.refuses_with("plan compare --problem late.toml", 1, "late.toml: infeasible: ");
    let output = files.run("plan --problem late.toml -o json");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &answer["status"]), (Some(1), &"infeasible".into()));
    assert!(answer["total_fct_s"].is_null() && answer["reason"].is_string());

    let blocked = format!("{SMALL}[[pair]]\nfrom = \"a\"\nto = \"b\"\nblocked = true\n");
    files.write("blocked.toml", &blocked);
    files.refuses_with(
        "plan --problem blocked.toml --budget 0.1",
        1,
        "blocked.toml: infeasible: flow `remote`",
    );
    files.prints("plan --problem blocked.toml");
    // Each flow is affordable, both together are not: an exact algorithm proves that, others only
    // fail to find a plan.
    files.write(
        "both.toml",
        format!("{blocked}[[pair]]\nfrom = \"a\"\nto = \"c\"\nblocked = true\n"),
    );
    let both = "plan --problem both.toml --budget 0.7 --algorithm";
    files.refuses_with(
        &format!("{both} exact"),
        1,
        "both.toml: infeasible: flows: the budget of $0.7",
    );
    files.refuses_with(&format!("{both} f-fct"), 1, "both.toml: limited: no plan was found");
    let output = files.run(&format!("{both} f-fct -o json"));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &answer["status"]), (Some(1), &"limited".into()));
    // A plan that is found, but not proved to be the best.
    let star = scenario("one-to-many.toml");
    let cut =
        files.json(&format!("plan --problem {star} --algorithm exact --deadline 1ms -o json"));
    assert_eq!(cut["status"], "feasible");
    assert!(cut["gap"].as_f64().unwrap() > 0.0 && cut["bound_s"].as_f64().unwrap() > 0.0, "{cut}");
}

#[test]
fn compare_shows_every_algorithm_once() {
    let files = small("compare");
    let all = files.json("plan compare --problem p.toml -o json");
    let rows = all["algorithms"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["algorithm"].as_str().unwrap()).collect();
    let known: Vec<&str> = tradewind_plan::solver::names().collect();
    assert_eq!(names, known);
    for row in rows {
        let gap = row["gap"].as_f64().unwrap();
        assert!((0.0..1.0).contains(&gap), "{row}");
        assert!(row["total_fct_s"].as_f64() >= all["bound_s"].as_f64(), "{row}");
    }
    let table = files.prints("plan compare --problem p.toml");
    assert!(names.iter().all(|name| table.contains(name)), "{table}");
}

#[test]
fn sweep_improves_with_budget_and_writes_its_plot() {
    let files = Files::new("sweep");
    let problem = scenario("four-cities.toml");
    let arguments = format!(
        "plan sweep --problem {problem} --from 0 --to 12 --steps 5 --algorithm greedy -o json \
         --out s.html"
    );
    let sweep = files.json(&arguments);
    let points = sweep["points"].as_array().unwrap();
    assert_eq!(points.len(), 5);
    let totals: Vec<f64> = points.iter().map(|p| p["total_fct_s"].as_f64().unwrap()).collect();
    assert!(totals.is_sorted_by(|a, b| a >= b), "{totals:?}");
    assert!(totals[4] < totals[0] / 2.0, "{totals:?}");
    assert!(points.iter().all(|p| p["cost_usd"].as_f64() <= p["budget_usd"].as_f64()));
    assert!(points.iter().any(|p| p["pareto"] == true));
    let page = files.read("s.html");
    assert!(page.contains("<svg") && page.contains("</html>") && !page.contains("src="), "{page}");
}

/// Two flows, each with a relay of its own, of which the budget pays for one: that of `s` saves
/// more in all, that of `t` does not shorten the last completion.
const LAST: &str = r#"objective = "makespan"
regions = ["gcp:us-east4", "gcp:us-west1"]
start_up = "ignored"
max_relays = 1
site = [{ id = "s1" }, { id = "s2" }, { id = "t1" }, { id = "t2" }]
flow = [
  { id = "s", from = "s1", to = "s2", volume = "1 GB" },
  { id = "t", from = "t1", to = "t2", volume = "0.95 GB" },
]
pair = [
  { between = ["s1", "s2"], rtt = "200 ms" },
  { between = ["t1", "t2"], rtt = "200 ms" },
  { between = ["s1", "gcp:us-east4"], rtt = "160 ms" },
  { between = ["s2", "gcp:us-east4"], rtt = "160 ms" },
  { between = ["t1", "gcp:us-west1"], rtt = "20 ms" },
  { between = ["t2", "gcp:us-west1"], rtt = "20 ms" },
  { between = ["s1", "gcp:us-west1"], blocked = true },
  { between = ["s2", "gcp:us-west1"], blocked = true },
  { between = ["t1", "gcp:us-east4"], blocked = true },
  { between = ["t2", "gcp:us-east4"], blocked = true },
]
[egress]
usd_per_gb = 0.0
pair = [
  { from = "gcp:us-east4", to = "internet", usd_per_gb = 2.0 },
  { from = "gcp:us-west1", to = "internet", usd_per_gb = 1.4736842105 },
]
"#;

#[test]
fn sweep_and_compare_use_makespan() {
    let files = Files::new("makespan");
    files.write("p.toml", LAST);
    let close = |value: &Value, expected: f64| {
        let value = value.as_f64().unwrap();
        assert!((value - expected).abs() < 0.05, "{value}, not {expected}");
    };
    let sweep = files
        .json("plan sweep --problem p.toml --from 2.0 --to 2.6 --steps 2 --out s.html -o json");
    let [less, more] = &sweep["points"].as_array().unwrap()[..] else { panic!("{sweep}") };
    close(&less["value"], 69.6);
    close(&more["value"], 66.1);
    assert_eq!(less["cost_usd"], 0.0, "nothing is spent that the makespan does not need: {sweep}");
    assert_eq!((&less["pareto"], &more["pareto"]), (&true.into(), &true.into()));
    assert!(files.read("s.html").contains("last completion time in seconds"));
    let table = files.prints("plan sweep --problem p.toml --from 2.0 --to 2.6 --steps 2");
    assert!(table.contains("makespan s") && table.contains("66.087"), "{table}");

    let all = files.json("plan compare --problem p.toml --budget 2.6 -o json");
    let bound = all["bound_s"].as_f64().unwrap();
    for row in all["algorithms"].as_array().unwrap() {
        let Some(value) = row["value"].as_f64() else { continue };
        close(&row["gap"], (value - bound) / value);
    }
    let table = files.prints("plan compare --problem p.toml --budget 2.6");
    assert!(table.contains("makespan s"), "{table}");
    let table = files.prints("plan --problem p.toml --budget 2.6");
    assert!(table.contains("optimal: makespan 66.087 s, proven"), "{table}");

    let weighted =
        LAST.replace("\"makespan\"", "\"total-fct\"").replacen("from", "weight = 3, from", 1);
    files.write("w.toml", weighted);
    let table = files.prints("plan compare --problem w.toml --budget 2.6");
    assert!(table.contains("weighted FCT s"), "{table}");
}

#[test]
fn explain_names_the_limit_and_alternatives() {
    let files = small("explain");
    files.prints("plan --problem p.toml --out plan.json");
    let remote = files.json("explain plan.json remote -o json");
    assert_eq!(remote["path"][0]["region"], "gcp:europe-west2");
    assert_eq!(remote["legs"][1]["bound_by"], "window");
    assert_eq!(remote["binding"], "window of gcp:europe-west2 -> b");
    let others = remote["alternatives"].as_array().unwrap();
    assert_eq!((others.len(), &others[0]["verdict"]), (2, &"selected".into()));
    assert_eq!(others[1]["path"], serde_json::json!([]));
    assert!((others[1]["extra_cost_usd"].as_f64().unwrap() + 0.66).abs() < 1e-9);

    files.prints("plan --problem p.toml --budget 0.6 --out poor.json");
    let remote = files.json("explain poor.json remote -o json");
    assert_eq!(
        (&remote["binding"], &remote["alternatives"][0]["verdict"]),
        (&"budget".into(), &"budget".into())
    );
    assert_eq!(remote["alternatives"][0]["extra_relays"], 1);
    let table = files.prints("explain poor.json remote");
    assert!(table.contains("the budget keeps it from faster paths"), "{table}");
    assert!(table.contains("over the budget"), "{table}");

    files.refuses_with("explain plan.json no-flow", 2, "plan.json: no flow `no-flow`");
    files.refuses_with(
        "explain p.toml remote",
        2,
        "p.toml: expected a plan that `tradewind plan --out` wrote: ",
    );
    files.refuses_with("explain absent.json remote", 2, "absent.json: No such file");
    let forged = files.read("plan.json").replacen("\"cost_usd\": 0.66", "\"cost_usd\": 0.16", 1);
    files.write("forged.json", &forged);
    files.refuses_with("explain forged.json remote", 2, "forged.json: it is no plan for p.toml: ");
    files.write("slow.csv", RTTS.replace("a,b,200", "a,b,100"));
    files.write("other.toml", SMALL.replace("rtt.csv", "slow.csv"));
    files.refuses_with(
        "explain plan.json remote --problem other.toml",
        2,
        "plan.json: it is no plan for other.toml",
    );
}

/// Makes an identity, `NAME.key`; returns its public half.
fn identity(files: &Files, name: &str) -> String {
    files.prints(&format!("keygen identity {name}.key")).trim().to_owned()
}

/// Writes configurations of a gateway and a relay for `--base`.
fn write_bases(files: &Files, gateway: &str, operator: &str) {
    files.write(
        "grant.toml",
        format!(
            "gateway = '{gateway}'\ndestinations = ['198.51.100.9:443']\nrelays = 'any'\n\
             expires = '1 h'"
        ),
    );
    let grant = files.prints("grant issue --key op.key grant.toml");
    std::fs::create_dir(files.0.join("base")).unwrap();
    files.write(
        "base/gateway-a.toml",
        format!(
            "identity_file = 'gateway.key'\ngrant = '{}'\nsocks5 = ['127.0.0.1:0']",
            grant.trim()
        ),
    );
    files.write(
        "base/relay-gcp:europe-west2.1.toml",
        format!(
            "listen = ['0.0.0.0:7000']\nidentity_file = 'relay.key'\noperators = ['{}']\n\
             policy.destinations = ['10.0.0.0/8:443']",
            operator.trim()
        ),
    );
}

#[test]
fn plan_becomes_configurations() {
    let files = small("configure");
    files.write("p.toml", format!("{SMALL}[leg.all]\nconnections = 4\n"));
    files.prints("plan --problem p.toml --out plan.json");
    let (relay, gateway) = (identity(&files, "relay"), identity(&files, "gateway"));
    let operator = files.prints("keygen operator op.key");
    let destinations = "remote = '198.51.100.9:443'\nnear = 'near.example.com:80'";
    let inventory = format!(
        "[[relay]]\nname = 'gcp:europe-west2.1'\naddress = '192.0.2.1:7000'\nidentity = '{relay}'
        [fallback]\ndirect = true\n[destinations]\n{destinations}"
    );
    files.write("inventory.toml", &inventory);
    let configure = "plan configure plan.json --inventory inventory.toml --out new";
    files.prints(&configure.replace("--out new", "--out drafts"));
    let draft = GatewayConfig::parse(&files.read("drafts/gateway-a.toml"));
    assert!(draft.is_err(), "only a part of one");

    write_bases(&files, &gateway, &operator);
    files.prints(&format!("{configure} --base base"));
    let config = GatewayConfig::parse(&files.read("new/gateway-a.toml")).unwrap();
    let [first] = &config.leg.to[..] else { panic!("{:?}", config.leg) };
    assert_eq!(first.address, "192.0.2.1:7000".parse().unwrap());
    assert_eq!(first.dial.connections, Connections::fixed(4).unwrap(), "as the plan counts on");
    let remote = config.routes.routes_to(&"198.51.100.9:443".parse().unwrap()).1;
    assert!(
        matches!(remote, [Route::Relays(hops), Route::Direct] if hops.len() == 1),
        "{remote:?}"
    );
    let near = config.routes.routes_to(&"near.example.com:80".parse().unwrap()).1;
    assert_eq!(near, [Route::Direct]);

    let policy =
        RelayConfig::parse(&files.read("new/relay-gcp-europe-west2.1.toml")).unwrap().policy;
    let allowed: Vec<_> = policy.destinations.iter().map(ToString::to_string).collect();
    assert_eq!(allowed, ["10.0.0.0/8:443", "198.51.100.9/32:443"], "the base's, and the plan's");
    assert!(
        files.read("new/relay-gcp-europe-west2.1.service").contains("tradewind relay --config")
    );

    let line = "inventory.toml: flow `near` is planned, but where it goes is not said";
    files.write("inventory.toml", inventory.replace("near =", "other ="));
    files.refuses_with(configure, 2, line);
    files.write("inventory.toml", &inventory);
    files.refuses_with(configure, 1, "new/gateway-a.service: is there already; `--base`");
    files.write("inventory.toml", inventory.replace("[fallback]", "[fall]"));
    files.refuses(configure, "unknown field `fall`, expected one of");
    files.write("base/gateway-a.toml", "socks = []");
    files.write("inventory.toml", &inventory);
    files.refuses_with(
        &format!("{configure} --base base"),
        2,
        "gateway-a.toml: configuration, `socks`",
    );
}

#[test]
fn examples_are_planned() {
    let files = Files::new("examples");
    let lines = files
        .prints(&format!("plan --problem {} --algorithm greedy", scenario("four-cities.toml")));
    assert!(lines.contains("acceleration 3.33") && lines.contains("cost $5.88"), "{lines}");
    let types = files.json(&format!("plan --problem {} -o json", scenario("relay-types.toml")));
    let backup = &types["flows"][0];
    assert_eq!(backup["path"], serde_json::json!(["aws:us-east-1.1"]), "a relay beside the source");
    assert!(backup["fct_s"].as_f64().unwrap() * 3.0 < backup["direct_fct_s"].as_f64().unwrap());
    let star = files.json(&format!(
        "plan --problem {} --algorithm greedy --deadline 1ms -o json",
        scenario("one-to-many.toml")
    ));
    assert_eq!(star["flows"].as_array().unwrap().len(), 30);
}
