//! Numeric experiments as users run them: no privileges, results in every form.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use common::{Files, text};

#[test]
fn a_numeric_experiment_gives_table_json_plot_and_page() {
    let files = Files::new("lab-numeric");
    let built_in = include_str!("../../../scenarios/cp-lastmile.toml");
    files.write("small.toml", built_in.replace("flows = 30", "flows = 2"));
    let run = ["lab", "run", "cp-lastmile", "--scenario", "small.toml", "--repeat", "2"];
    let asked = |more: &[&str]| files.prints(&[&run[..], more].concat());
    let table = asked(&["--out", "record.json"]);
    assert!(table.contains("the paper says") && table.contains("20 Gbit/s relays"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&asked(&["-o", "json"])).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["ours_low"].is_number()));
    for out in ["plot.svg", "page.html"] {
        files.prints(&["lab", "report", "record.json", "--out", out]);
        assert!(files.read(out).contains("<polyline"));
    }
    let refused = files.run(&[&run[..], &["--out", "plot.png"]].concat());
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused.stderr));
    assert!(files.prints("lab list").contains("numeric"));
}
