//! `tradewind plan --flows-from` and `tradewind plan regret`: planning for predicted flows.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::{Files, RTTS, text};
use serde_json::Value;

/// Writes the problem, its table, and a log of these rows.
fn with_log(test: &str, log: &str) -> Files {
    let files = Files::new(&format!("expected-{test}"));
    files.write("p.toml", PROBLEM);
    files.write("rtt.csv", RTTS);
    write_log(&files, log);
    files
}

fn write_log(files: &Files, log: &str) {
    files.write("log.csv", format!("time_s,source,destination,volume\n{log}"));
}

fn json(files: &Files, arguments: &str) -> Value {
    files.json(&format!("{arguments} -o json"))
}

/// A relay pays for 2 GB from `a` to `b`, and never from `a` to `c`.
const PROBLEM: &str = r#"budget_usd = 1.0
regions = ["gcp:europe-west2"]
rtt_tables = ["rtt.csv"]
site = [{ id = "a" }, { id = "b" }, { id = "c" }]
[[flow]]
id = "remote"
from = "a"
to = "b"
volume = "1 kB"
weight = 3
[egress]
usd_per_gb = 0.08
"#;

/// Returns a log with much from `a` to `b` in even hours, little in odd ones, and a constant flow
/// from `a` to `c`.
fn rhythm(hours: u64) -> String {
    let row = |hour: u64| {
        let remote = if hour.is_multiple_of(2) { "2 GB" } else { "1 kB" };
        format!("{0},a,b,{remote}\n{0},a,c,10 MB\n", hour * 3600 + 5)
    };
    (0..hours).map(row).collect()
}

const NEXT: &str = "plan --problem p.toml --flows-from log.csv --period 1h";
const REGRET: &str = "plan regret --problem p.toml --flows-from log.csv --period 1h";

#[test]
fn expected_flows_stand_in_place_of_the_files() {
    let files = with_log("stand-in", &rhythm(12));
    let plan = json(&files, &format!("{NEXT} --out plan.json"));
    assert_eq!((&plan["status"], &plan["relays"][0]["count"]), (&"optimal".into(), &1.into()));
    let flows = plan["flows"].as_array().unwrap();
    let ids: Vec<&str> = flows.iter().map(|flow| flow["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["remote", "a..c"], "the file's flow lends its name");
    assert_eq!(flows[0]["path"].as_array().unwrap().len(), 1);
    let weighted = 3.0 * flows[0]["fct_s"].as_f64().unwrap() + flows[1]["fct_s"].as_f64().unwrap();
    assert!((plan["weighted_fct_s"].as_f64().unwrap() - weighted).abs() < 1e-6, "and its weight");
    let forecast = &plan["forecast"];
    assert_eq!(forecast["predictor"], serde_json::json!({"kind": "seasonal", "periods": 2}));
    assert_eq!((&forecast["begins_s"], &forecast["period_s"]), (&43200.0.into(), &3600.0.into()));
    assert_eq!((&forecast["tested_periods"], &forecast["error_ratio"]), (&6.into(), &0.0.into()));
    let volume =
        serde_json::json!({"source": "a", "destination": "b", "volume_bytes": 2_000_000_000_u64});
    assert_eq!((&forecast["flows"][0], forecast["flows"].as_array().unwrap().len()), (&volume, 2));
    let output = files.run(NEXT);
    let (table, note) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{note}");
    assert!(table.contains("gcp:europe-west2.1"), "{table}");
    let expected =
        "note: 2 flows are expected from 43200 s to 46800 s by `seasonal, 2 periods`, 0.0 % wrong";
    assert!(note.starts_with(expected), "{note}");

    // The plan's file holds the problem that it was made for.
    let why = json(&files, "explain plan.json remote");
    assert_eq!(why["fct_s"], flows[0]["fct_s"]);
    // An odd hour follows, for which no relay pays.
    write_log(&files, &rhythm(13));
    assert!(json(&files, NEXT)["relays"].as_array().unwrap().is_empty());
    let sweep = json(
        &files,
        "plan sweep --problem p.toml --flows-from log.csv --period 1h --from 0 --to 1 --steps 2",
    );
    assert_eq!(sweep["points"].as_array().unwrap().len(), 2);
}

#[test]
fn true_forecast_has_no_regret() {
    let files = with_log("no-regret", &rhythm(13));
    let report = json(&files, REGRET);
    let periods = report["periods"].as_array().unwrap();
    assert_eq!((periods.len(), &periods[0]["begins_s"]), (7, &21600.0.into()));
    for period in periods {
        assert_eq!((&period["error_ratio"], &period["flows"]), (&0.0.into(), &2.into()));
        for carriage in ["as_planned", "rerouted", "clairvoyant"] {
            assert_eq!(period[carriage]["regret"].as_f64(), Some(0.0), "{carriage}: {period}");
        }
        assert_eq!(period["as_planned"]["cost_usd"], period["clairvoyant"]["cost_usd"]);
    }
    assert_eq!(report["mean"]["as_planned_regret_ratio"], 0.0);
    let last = json(&files, &format!("{REGRET} --last 2"));
    assert_eq!(last["periods"], Value::from(periods[5..].to_vec()));
}

#[test]
fn packet_flows_are_reserved_in_each_period() {
    let files = with_log("packets-regret", &rhythm(13));
    let call = "[[packet_flow]]\nid = \"call\"\nfrom = \"a\"\nto = \"b\"\nrate = \"1.5 Mbit/s\"\n\
                packet = \"1 kB\"\nbudget = \"300 ms\"\n";
    files.write("p.toml", format!("{PROBLEM}{call}"));
    // As much as the relay and its egress cost: the call takes a part of it.
    let joint = json(&files, &format!("{REGRET} --budget 0.66"));
    let [reserve, left] =
        ["packets_reserve_usd", "streams_budget_usd"].map(|key| joint[key].as_f64().unwrap());
    assert!(reserve > 0.0 && (reserve + left - 0.66).abs() < 1e-9, "{joint}");
    assert_eq!(joint["budget_usd"], 0.66);
    files.write("p.toml", PROBLEM);
    let streams = json(&files, &format!("{REGRET} --budget {left}"));
    assert_eq!(joint["periods"], streams["periods"], "as if there were so much less");
    let richer = json(&files, &format!("{REGRET} --budget 0.66"));
    assert_ne!(joint["periods"], richer["periods"]);
    assert!(richer.get("packets_reserve_usd").is_none(), "{richer}");

    files.write("p.toml", format!("{PROBLEM}{call}"));
    let table = files.prints(REGRET);
    assert!(table.contains("packet flows: the same in each period"), "{table}");
    let refused = [("300 ms", " --budget 0.0001", "limited"), ("90 ms", "", "infeasible")];
    for (budget, option, status) in refused {
        files.write("p.toml", format!("{PROBLEM}{call}").replace("300 ms", budget));
        let line = format!("p.toml: {status}: packet flow");
        files.refuses_with(&format!("{REGRET}{option}"), 1, &line);
    }
}

#[test]
fn unexpected_flow_goes_direct_with_regret() {
    // By all earlier hours, hour 12 should be quiet between `a` and `b`; it is not.
    let quiet: String = (0..12).map(|hour| format!("{},a,c,10 MB\n", hour * 3600)).collect();
    let files = with_log("surprise", &format!("{quiet}43200,a,b,2 GB\n"));
    let report = json(&files, &format!("{REGRET} --last 1"));
    let period = &report["periods"][0];
    let by = &period["as_planned"];
    assert_eq!((&by["unplanned_flows"], &by["relayed_flows"]), (&1.into(), &0.into()));
    assert_eq!((&by["total_fct_s"], &by["cost_usd"]), (&period["direct_fct_s"], &0.0.into()));
    assert!(by["regret"].as_f64().unwrap() > 1.0, "{period}");
    assert!(period["clairvoyant"]["cost_usd"].as_f64().unwrap() > 0.5);

    let table = files.prints(&format!("{REGRET} --last 1"));
    for expected in ["last period", "as planned s", "clairvoyant s", "mean over 1 period: "] {
        assert!(table.contains(expected), "expected `{expected}` in {table}");
    }
}

#[test]
fn unplanned_volume_goes_direct_beyond_the_budget() {
    // The budget pays for the relay and some 6 GB of egress; 5 GB are expected, 9 GB arrive.
    let row = |hour: u64, volume: u64| format!("{},a,b,{volume} GB\n", hour * 3600);
    let files = with_log("money", &format!("{}{}", row(0, 5), row(1, 9)));
    let report = json(&files, REGRET);
    let by = &report["periods"][0]["as_planned"];
    assert_eq!((&by["displaced_flows"], &by["cost_usd"]), (&1.into(), &0.5.into()));
    assert_eq!(by["total_fct_s"], report["periods"][0]["direct_fct_s"]);
    // With a reserve, the plan drops the relay if it cannot be used.
    let reserved = json(&files, &format!("{REGRET} --reserve 2"));
    assert_eq!(reserved["periods"][0]["as_planned"]["cost_usd"], 0.0);
}

#[test]
fn invalid_logs_are_refused_in_one_line() {
    let files = with_log("refused", &format!("{}9,a,atlantis,1 GB\n", rhythm(2)));
    let expected = "p.toml: log.csv: line 6: destination: no site `atlantis`; the problem file \
                    has `a`, `b`, `c`";
    files.refuses(NEXT, expected);
    files.refuses(REGRET, expected);
    let files = with_log("refused-too", "5,a,b,1 GB\n7205,a,b,1 GB\n14405,a,b,1 GB\n");
    files.refuses(NEXT, "log.csv: nothing is expected from 18000 s on");
    files.refuses(&format!("{NEXT} --season 9"), "log.csv: season: 2 to 2 periods can be tested");
    files.refuses(&format!("{REGRET} --season 3"), "log.csv: a log of two periods is needed");
    files.refuses(&format!("{REGRET} --reserve 0"), "a factor from 0.5 to 10");
    files.refuses("plan --problem p.toml --flows-from log.csv", "--period");
    files.refuses("plan --problem p.toml --period 1h", "--flows-from");
    files.refuses("plan regret --problem p.toml", "--flows-from");
    let files = with_log("no-leg", "5,b,c,1 GB\n");
    files.refuses(NEXT, "p.toml: line 4: id: no round-trip time from site b to site c");
}
