//! A plan from measurements of `tradewind probe` on loopback: its reports are read unchanged.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};

use common::{Files, command};
use serde_json::Value;

/// A responder on loopback and a folder, both removed with the test.
struct Hosts {
    files: Files,
    responder: Child,
    target: String,
}

impl Hosts {
    fn new() -> Self {
        let files = Files::new("probed");
        let mut responder = command("probe responder --listen 127.0.0.1:0", &files.0);
        let mut responder = responder.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut ready = String::new();
        BufReader::new(responder.stdout.take().unwrap()).read_line(&mut ready).unwrap();
        let ready: Value = serde_json::from_str(&ready).unwrap();
        let target = ready["listen"][0].as_str().unwrap().to_owned();
        Self { files, responder, target }
    }

    /// Keeps the JSON that a command prints, and returns it.
    fn keep(&self, name: &str, arguments: &[&str]) -> Value {
        let printed = self.files.prints(arguments);
        self.files.write(name, &printed);
        serde_json::from_str(&printed).unwrap()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        let _ = self.responder.kill();
        let _ = self.responder.wait();
    }
}

#[test]
fn plan_uses_probe_report() {
    let hosts = Hosts::new();
    let target = hosts.target.as_str();
    let rtts = ["probe", "rtt", target, "--samples", "3", "--interval", "5ms", "-o", "json"];
    let rtts = hosts.keep("rtt.json", &rtts);
    let rate = ["probe", "rate", target, "--max-rate", "50 Mbit/s", "--duration", "300ms"];
    let rate = hosts.keep("rate.json", &[&rate[..], &["-o", "json"]].concat());
    let problem = format!(
        "site = [{{ id = 'a' }}, {{ id = 'b' }}]\n\
         flow = [{{ id = 'f', from = 'a', to = 'b', volume = '10 MB' }}]\n\
         [leg.all]\nwindow = '1 GB'\n\
         [[probes]]\nfrom = 'a'\nreports = ['rtt.json', 'rate.json']\n\
         targets = {{ '{target}' = 'b' }}\n"
    );
    hosts.files.write("p.toml", problem);
    hosts.files.prints("plan --problem p.toml --out plan.json");
    let why = hosts.files.json("explain plan.json f -o json");
    let leg = &why["legs"][0];
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 1e-3;
    let rtt_ms = rtts[0]["rtt_min_ms"].as_f64().unwrap();
    assert!(near(leg["rtt_ms"].as_f64().unwrap(), rtt_ms), "{leg} {rtts}");
    let planned_mbps = leg["rate_mbps"].as_f64().unwrap();
    assert!(near(planned_mbps, rate["rate_mbps"].as_f64().unwrap()), "{leg} {rate}");
}
