//! Numeric experiments as users run them: no privileges, results in every form.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory of one test's files, gone with it.
struct Files(PathBuf);

impl Drop for Files {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn tradewind(arguments: &[&str], directory: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tradewind"));
    command.args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_numeric_experiment_gives_table_json_plot_and_page() {
    let name = format!("tradewind-lab-numeric-{}", std::process::id());
    let files = Files(std::env::temp_dir().join(name));
    fs::create_dir_all(&files.0).unwrap();
    let built_in = include_str!("../../scenarios/cp-lastmile.toml");
    fs::write(files.0.join("small.toml"), built_in.replace("flows = 30", "flows = 2")).unwrap();
    let run = ["lab", "run", "cp-lastmile", "--scenario", "small.toml", "--repeat", "2"];
    let asked = |more: &[&str]| {
        let output = tradewind(&[&run[..], more].concat(), &files.0);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = asked(&["--out", "record.json"]);
    assert!(table.contains("the paper says") && table.contains("20 Gbit/s relays"), "{table}");
    let json: serde_json::Value = serde_json::from_str(&asked(&["-o", "json"])).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert!(json["rows"].as_array().unwrap().iter().all(|row| row["ours_low"].is_number()));
    for out in ["plot.svg", "page.html"] {
        let arguments = ["lab", "report", "record.json", "--out", out];
        let output = tradewind(&arguments, &files.0);
        assert!(output.status.success(), "{output:?}");
        assert!(fs::read_to_string(files.0.join(out)).unwrap().contains("<polyline"));
    }
    let refused = tradewind(&[&run[..], &["--out", "plot.png"]].concat(), &files.0);
    assert_eq!(refused.status.code(), Some(2));
    let list = tradewind(&["lab", "list"], &files.0);
    assert!(String::from_utf8_lossy(&list.stdout).contains("numeric"));
}
