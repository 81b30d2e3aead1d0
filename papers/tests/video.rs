//! `jq-video` run as by a user: real ffmpeg through relays and gateways on the lab; and the message
//! where ffmpeg is missing.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::Write as _;
use std::process::{Command, Stdio};

use common::{Files, PROGRAM, is_tradewind_built, text};
use serde_json::Value;

/// Reports that the test was skipped, past the capture of its output.
fn skipped(why: &str) {
    let _written = std::io::stderr().write_all(format!("SKIPPED jq-video: {why}\n").as_bytes());
}

fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("-version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// Writes the built-in scenario with two services, shorter, and with a budget that a busy machine
/// keeps.
fn short(files: &Files) {
    let built_in = include_str!("../scenarios/jq-video.toml");
    let changed = [
        (
            "\"direct\", \"fec\", \"caching\", \"coding\", \"forwarding\"]",
            "\"direct\", \"forwarding\"]",
        ),
        ("budget_ms = 150", "budget_ms = 1500"),
        ("kbit_per_s = 1000", "kbit_per_s = 400"),
        ("spans_quick = { settle_s = 1.5", "spans_quick = { settle_s = 6"),
    ];
    let text = changed.iter().fold(built_in.to_owned(), |text, (from, to)| {
        assert!(text.contains(from), "{from}");
        text.replace(from, to)
    });
    files.write("short.toml", text);
    files.write("jq-video-wan.toml", include_str!("../scenarios/jq-video-wan.toml"));
}

fn row(record: &Value, case: &str) -> f64 {
    let rows = record["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["case"] == case);
    row.unwrap_or_else(|| panic!("no row `{case}` in {record}"))["ours"].as_f64().unwrap()
}

#[test]
fn lost_frames_arrive_over_the_relays() {
    if !is_installed("ffmpeg") {
        return skipped("ffmpeg is not installed (Debian package ffmpeg)");
    }
    if !is_tradewind_built("jq-video") {
        return;
    }
    let files = Files::new("video");
    short(&files);
    let run = files.run("run jq-video --quick --scenario short.toml --out record.json -o json");
    let stderr = text(&run.stderr);
    // Exit code 3: the lab did not keep time, which nothing here depends on.
    if !matches!(run.status.code(), Some(0 | 3)) {
        assert!(stderr.contains("lab: "), "{stderr}");
        return skipped(&stderr);
    }
    let record: Value = serde_json::from_str(&text(&run.stdout)).unwrap();
    assert!(row(&record, "video: mean PSNR, without losses") > 30.0);
    let broken = |arm: &str| row(&record, &format!("video: frames broken, outage, {arm}"));
    let (direct, forwarded) = (broken("direct"), broken("forwarding"));
    assert!(direct > 90.0 && forwarded < direct / 2.0, "{direct} % and {forwarded} %");
    let psnr = |arm: &str| row(&record, &format!("video: mean PSNR, outage, {arm}"));
    assert!(psnr("forwarding") > psnr("direct"), "{record}");
    let lost = |arm: &str| row(&record, &format!("voice: late or lost, outage, {arm}"));
    assert!(lost("direct") > 90.0 && lost("forwarding") < lost("direct"), "{record}");
    files.prints("report record.json --out plot.svg");
    assert!(files.read("plot.svg").contains("<polyline"));
}

#[test]
fn missing_ffmpeg_is_reported_in_one_line() {
    if !is_tradewind_built("jq-video") {
        return;
    }
    let files = Files::new("video-without");
    let mut command = Command::new(PROGRAM);
    command.args(["run", "jq-video", "--quick"]).current_dir(&files.0).env("PATH", "");
    let output = command.output().unwrap();
    let stderr = text(&output.stderr);
    if stderr.contains("lab: ") {
        return skipped(&stderr);
    }
    assert!(!output.status.success() && output.stdout.is_empty());
    let line = stderr.trim_end();
    assert!(!line.contains('\n'), "{stderr}");
    assert!(line.contains("ffmpeg: it is not installed (Debian package ffmpeg;"), "{stderr}");
}
