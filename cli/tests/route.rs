//! `tradewind route`: what it advises, and what it refuses, in one line.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");

fn route(arguments: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.arg("route").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn answer(arguments: &[&str]) -> serde_json::Value {
    let output = route(&[arguments, &["-o", "json"]].concat());
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn refused(arguments: &[&str], expected: &str) {
    let output = route(arguments);
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{line}");
    assert!(line.starts_with("tradewind: ") && line.lines().count() == 1, "{line}");
    assert!(line.contains(expected), "expected `{expected}` in {line}");
}

/// A table of round-trip times, gone with the test.
struct Table(PathBuf);

impl Table {
    fn new(test: &str, rows: &str) -> Self {
        let name = format!("tradewind-{test}-{}.csv", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, format!("src,dst,rtt_ms\n{rows}")).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_far_pair_is_relayed_and_a_near_small_file_goes_direct() {
    let far = answer(&["aws:ap-south-1", "37.77,-122.42", "--clouds", "aws"]);
    assert_eq!((far["schema_version"].as_u64(), far["verdict"].as_str()), (Some(1), Some("relay")));
    assert!(far["rtt_source"].as_str().unwrap().starts_with("guessed by distance"));
    let largest: Vec<f64> = far["routes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|route| route["largest_leg_ms"].as_f64().unwrap())
        .collect();
    assert!(largest.is_sorted(), "{largest:?}");

    assert!(far.get("prices_dated").is_none(), "flat prices have no date");
    let listed = ["aws:ap-south-1", "37.77,-122.42", "--clouds", "aws", "--prices", "catalogue"];
    let dated = answer(&listed)["prices_dated"].as_str().unwrap().to_owned();
    let table = String::from_utf8(route(&listed).stdout).unwrap();
    assert!(table.ends_with(&format!("egress prices: the catalogue of {dated}\n")), "{table}");

    let near = answer(&["40.71,-74.01", "37.77,-122.42", "--volume", "18 kB"]);
    assert_eq!(near["verdict"], "direct");
    assert!(near["reasons"][0].as_str().unwrap().starts_with("18 kB is small"));
    assert_eq!(near["path"].as_array().unwrap().len(), 0);
}

#[test]
fn a_pair_with_raised_windows_goes_direct_and_says_why() {
    let output =
        route(&["aws:ap-south-1", "-23.5,-46.6", "--window", "64 MB", "--volume", "20 GB"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.contains("direct is best:\n  - the direct path already runs at 1 Gbit/s"),
        "{text}"
    );
}

#[test]
fn measured_times_go_before_guesses() {
    let table = Table::new("route", "here,there,200\nhere,x:a,100\nx:a,there,100\nx:a,x:b,10\n");
    let answered = answer(&["here", "there", "--rtt", table.path(), "--loss", "0.01 %"]);
    assert_eq!(answered["rtt_source"], "measured, from the table");
    assert_eq!(answered["path"], serde_json::json!(["x:a"]));
    assert_eq!(answered["routes"].as_array().unwrap().len(), 2, "x:b has no leg to either end");
}

#[test]
fn what_makes_no_sense_is_refused_in_one_line() {
    let table = Table::new("refused", "here,there,200\nhere,x:a,1e99\n");
    refused(&["aws:ap-south-1", "aws:ap-south-1"], "the same place");
    refused(&["aws:nowhere", "aws:ap-south-1"], "`aws:nowhere`: a region of the catalogue or LAT");
    refused(&["91,0", "aws:ap-south-1"], "a latitude from -90 to 90");
    refused(&["1,2", "aws:ap-south-1", "--clouds", "moon"], "no region of a cloud `moon`");
    refused(&["1,2", "aws:ap-south-1", "--relays", "5"], "--relays");
    refused(&["1,2", "aws:ap-south-1", "--volume", "0 B"], "--volume");
    refused(&["1,2", "aws:ap-south-1", "--window", "1 B"], "--window");
    refused(&["here", "there", "--rtt", table.path()], "line 3: rtt_ms");
    refused(&["here", "there", "--rtt", "/no/such/file"], "/no/such/file: No such file");
    let table = Table::new("unknown", "here,there,200\n");
    refused(&["here", "moon", "--rtt", table.path()], "the table has no place `moon`");
}
