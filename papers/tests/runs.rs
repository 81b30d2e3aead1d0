//! Numeric experiments as users run them: no privileges, results in every form; and refusals.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::Files;

#[test]
fn numeric_experiment_output_formats() {
    let files = Files::new("papers-runs");
    let built_in = include_str!("../scenarios/cp-lastmile.toml");
    files.write("small.toml", built_in.replace("flows = 30", "flows = 2"));
    let run = "run cp-lastmile --scenario small.toml --repeat 2";
    let table = files.prints(&format!("{run} --out record.json"));
    assert!(table.contains("the paper says") && table.contains("20 Gbit/s relays"), "{table}");
    let json = files.prints(&format!("{run} -o json"));
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["ours_low"].is_number()));
    for out in ["plot.svg", "page.html"] {
        files.prints(&format!("report record.json --out {out}"));
        assert!(files.read(out).contains("<polyline"));
    }
    files.refuses(&format!("{run} --out plot.png"), ".svg, .html or .json");
    assert!(files.prints("list").contains("numeric"));
}

#[test]
fn wrong_usage_and_bad_files_end_with_2() {
    let files = Files::new("papers-refusals");
    files.write("binary", [0xff, 0xfe, 0x00, 0x80]);
    files.write("empty", "");
    files.write("nonsense.toml", "nonsense = 1");
    for file in ["absent", "binary", "empty"] {
        files.refuses(&format!("run cp-budget --scenario {file}"), &format!("{file}: "));
        files.refuses(&format!("run cdd-rtt --rtt {file}"), &format!("{file}: "));
        files.refuses(&format!("report {file}"), &format!("{file}: "));
    }
    files.refuses("run jq-delay --scenario nonsense.toml", "nonsense.toml: ");
    files.refuses("run jq-cost --rtt rtt.csv", "no table of RTTs (--rtt)");
    files.refuses("run nothing", "expected one of: ");
    files.refuses("run cp-real --tradewind absent", "--tradewind names another");
    files.refuses("sail", "'sail'");
}

#[test]
fn run_checks_its_output_before_it_begins() {
    let files = Files::new("papers-kept");
    // A run would read this file first.
    let begin = |experiment| format!("run {experiment} --scenario missing.toml --out");
    let nowhere = files.run(&format!("{} nowhere/x.json", begin("jq-delay")));
    assert!(common::text(&nowhere.stderr).contains("nowhere/x.json"));
    let program = std::env::current_exe().unwrap();
    let tradewind = program.display();
    files.refuses(
        &format!("{} x.svg --tradewind {tradewind}", begin("cp-real")),
        "cp-real has no plots",
    );
    assert!(!files.0.join("x.svg").exists());
    files.refuses(&format!("{} x.json", begin("jq-delay")), "missing.toml");
    assert!(!files.0.join("x.json").exists());
}
