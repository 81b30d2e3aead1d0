//! An experiment on packet services run as by a user, on a lab with few hosts and few packets: it
//! works on a machine of any speed.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::Write as _;

use common::{Files, is_tradewind_built, text};

const TEST: &str = "short_transfers_end_alone_and_inside_a_packet_service";
/// Abilities that a machine without the right to run the lab, or gateways in it, may lack.
const MAY_LACK: [&str; 2] = ["namespace", "/dev/net/tun"];

#[test]
fn short_transfers_end_alone_and_inside_a_packet_service() {
    if !is_tradewind_built(TEST) {
        return;
    }
    let files = Files::new("lab-packets");
    let mut small = include_str!("../scenarios/jq-tcp.toml").to_owned();
    let begin = small.find("arms = [").unwrap();
    let end = begin + small[begin..].find("\n]\n").unwrap();
    let arm = "arms = [\n  { name = \"coding\", service = \"coding\" },\n  \
               { name = \"kcptun\", kcptun = { mode = \"fast3\", repair = [3, 10] } },";
    small.replace_range(begin..end, arm);
    for (from, to) in [
        ("pairs = 40", "pairs = 1"),
        ("requests_quick = 12", "requests_quick = 3"),
        ("direct_ms = 200", "direct_ms = 20"),
        ("access_ms = 30", "access_ms = 3"),
        ("between_relays_ms = 200", "between_relays_ms = 20"),
    ] {
        assert!(small.contains(from), "{from}");
        small = small.replace(from, to);
    }
    files.write("small.toml", small);
    let run = "run jq-tcp --scenario small.toml --quick -o json";
    let output = files.run(run);
    let errors = text(&output.stderr);
    if output.stdout.is_empty() && MAY_LACK.iter().any(|lack| errors.contains(lack)) {
        // Past the capture of the test's output.
        let _written =
            std::io::stderr().write_all(format!("SKIPPED {TEST}: {errors}\n").as_bytes());
        return;
    }
    // A busy machine makes it invalid, but it is a record.
    let record: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"));
    let rows = record["rows"].as_array().unwrap();
    for case in ["all of files, TCP alone", "all of files, TCP over coding"] {
        let row = rows.iter().find(|row| row["case"] == case);
        let took = row.and_then(|row| row["ours"].as_f64());
        // Two round trips at least.
        assert!(took.is_some_and(|took| took > 40.0), "{case}: {took:?} in {rows:?}");
    }
    assert_eq!(record["findings"].as_array().unwrap().len(), 2, "{record}");
    // Where kcptun is not installed, the record says so.
    let is_of_kcptun = |row: &serde_json::Value| row["case"] == "all of files, TCP over kcptun";
    let is_missing = record["assumptions"].to_string().contains("without kcptun");
    assert_ne!(rows.iter().any(is_of_kcptun), is_missing, "{record}");
}
