//! Faults around a flow that goes over a relay: the controller cut off, killed, set to another day,
//! and put back to an older backup. Sessions go on, new ones start, and all converges.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;
#[path = "common/lab.rs"]
mod lab;

use std::fs;
use std::process::Command;
use std::time::Duration;

use common::PROGRAM;
use common::daemon::{is_root, skipped, until};
use lab::{Lab, Process};
use serde_json::Value;

/// The variable that says for how many seconds the controller is cut off. `make test-long` asks for
/// ten minutes.
const PARTITION: &str = "TRADEWIND_TEST_PARTITION_S";
/// The hosts, and what `invite` needs to know of each. The last two are relays.
const HOSTS: [(&str, &str); 4] = [
    ("office", "--role gateway --site office"),
    ("plant", "--role gateway --site plant"),
    ("gcp:us-east4", "--role relay --region gcp:us-east4"),
    ("gcp:us-west1", "--role relay --region gcp:us-west1"),
];
/// A library that sets the clock of a process a day ahead, by the function that the standard
/// library asks.
const DAY_AHEAD: &str = "
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
  int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, \"clock_gettime\");
  int result = real(clock, now);
  if (clock == CLOCK_REALTIME) now->tv_sec += 86400;
  return result;
}
";

/// Returns a topology in which a relay between two distant sites pays: the window of a host bounds
/// what one connection carries over the whole way.
fn topology() -> String {
    let site = |id: &str, latitude: f64, longitude: f64| {
        format!(
            "[[site]]\nid = \"{id}\"\naccess_rtt = \"8 ms\"\nwindow = \"2.875 MB\"\n\
             location = {{ latitude = {latitude:.1}, longitude = {longitude:.1} }}\n"
        )
    };
    let regions = HOSTS[2..].iter().map(|(region, _)| format!("[[site]]\nregion = \"{region}\"\n"));
    let sites = site("office", -23.5, -46.6) + &site("plant", 35.7, 139.7);
    sites + &regions.collect::<String>()
}

/// Returns the relays of a flow's path in effect.
fn path(lab: &Lab, flow: &str) -> Vec<Value> {
    let flows: Value = serde_json::from_str(&lab.prints("flows -o json")).unwrap();
    let flows = flows["flows"].as_array().unwrap();
    let found = flows.iter().find(|it| it["id"] == flow).unwrap();
    found["path"].as_array().unwrap().clone()
}

/// Returns the sessions of a flow that its relays have counted.
fn counted_by_relays(lab: &Lab, flow: &str) -> u64 {
    let cost: Value = serde_json::from_str(&lab.prints("cost -o json")).unwrap();
    let rows = cost["relayed"].as_array().unwrap();
    let rows = rows.iter().filter(|row| row["flow"] == flow);
    rows.filter_map(|row| row["counted_sessions"].as_u64()).sum()
}

/// Drops all packets between the controller and agents of other hosts.
fn cut(lab: &Lab) {
    let chain = "type filter hook input priority 0; iifname != \"lo\" tcp dport 7440 drop;";
    let rules = format!("table inet cut {{\nchain agents {{\n{chain}\n}}\n}}\n");
    lab.0.write("cut.nft", rules);
    nft(lab, &["-f", "cut.nft"]);
}

fn nft(lab: &Lab, words: &[&str]) {
    let output = lab.on("office", &[&["nft"], words].concat()).output().unwrap();
    assert!(output.status.success(), "{}", common::text(&output.stderr));
}

/// Starts the controller with its clock a day ahead.
fn control_tomorrow(lab: &Lab) -> Process {
    lab.0.write("day.c", DAY_AHEAD);
    let place = |name: &str| lab.0.0.join(name).display().to_string();
    let (source, library) = (place("day.c"), place("day.so"));
    let words = ["-shared", "-fPIC", "-o", &library, &source, "-ldl"];
    assert!(Command::new("cc").args(words).status().unwrap().success());
    let preload = format!("LD_PRELOAD={library}");
    lab.ready("office", &["env", &preload, PROGRAM, "controller", "run", "net"])
}

#[test]
fn flow_over_a_relay_outlives_faults_of_the_controller() {
    if !is_root() {
        return skipped("faults of a controller around a relay", "needs root");
    }
    let lab = Lab::up("controller-faults", &topology());
    let _server = lab.echo("plant", "echo_server", "TRADEWIND_TEST_ECHO_SERVER", "10.200.0.2:8000");
    let controller = lab.control();
    let mut agents: Vec<Process> = HOSTS.iter().map(|(host, role)| lab.join(host, role)).collect();
    let declare = |name: &str| {
        let flow = "--from office --to 10.200.0.2:8000 --to-site plant --per-day 200MB";
        lab.prints(&format!("flow add {name} {flow}"));
    };
    declare("first");
    for words in ["budget 6usd/day", "gain --control-share 0%", "mode auto"] {
        lab.prints(words);
    }
    until("a relay is in the path", || !path(&lab, "first").is_empty());
    lab.until_well();
    let first = lab.session(15_000);
    first.goes_on();

    // Cut off, with agents killed and started anew meanwhile.
    cut(&lab);
    agents.clear();
    first.goes_on();
    let second = lab.session(15_000);
    agents.extend(HOSTS.iter().map(|(host, _)| lab.run_agent(host)));
    let seconds = std::env::var(PARTITION).map_or(5, |text| text.parse().unwrap());
    std::thread::sleep(Duration::from_secs(seconds));
    let third = lab.session(15_000);
    let go_on = || [&first, &second, &third].into_iter().for_each(|session| session.goes_on());
    go_on();
    nft(&lab, &["delete", "table", "inet", "cut"]);
    lab.until_well();
    declare("second");
    lab.session(15_001).goes_on();
    go_on();

    // Killed, and a day ahead; then right again.
    let backup = lab.0.0.join("older.db").display().to_string();
    lab.prints(&format!("controller backup net {backup}"));
    drop(controller);
    let tomorrow = control_tomorrow(&lab);
    lab.until_well();
    go_on();
    lab.session(15_000).goes_on();
    declare("third");
    lab.session(15_002).goes_on();
    drop(tomorrow);
    go_on();
    let today = lab.control();
    lab.until_well();
    declare("fourth");
    lab.session(15_003).goes_on();
    go_on();

    // An older store knows less, and is in force all the same.
    drop(today);
    lab.prints(&format!("controller restore net {backup}"));
    assert!(fs::exists(lab.0.0.join("net/store.db.before-restore")).unwrap());
    let _restored = lab.control();
    lab.until_well();
    go_on();
    declare("fifth");
    lab.session(15_002).goes_on();
    lab.session(15_000).goes_on();
    assert!(!path(&lab, "first").is_empty());
    drop((first, second, third));
    until("relays report their sessions", || counted_by_relays(&lab, "first") >= 3);
}
