//! A controller with a lab of its own: `tradewind controller run --lab`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;
#[path = "common/lab.rs"]
mod lab;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use common::daemon::{is_root, skipped, until};
use common::{Files, command};
use lab::{Lab, processes_of};
use serde_json::Value;

const RUN: &str = "controller run net --lab wan.toml --relay-setup 2s --relay-type gcp:e2-medium";
const INIT: &str = "controller init net --agents 10.200.0.1:7440 --api 127.0.0.1:0";

/// Returns a topology of two sites and one region.
fn topology() -> String {
    let site = |id: &str, longitude: f64| {
        format!(
            "[[site]]\nid = \"{id}\"\naccess_rtt = \"4 ms\"\n\
             location = {{ latitude = 60.0, longitude = {longitude:.1} }}\n"
        )
    };
    site("office", 25.0) + &site("plant", 10.0) + "[[site]]\nregion = \"gcp:europe-north1\"\n"
}

/// Starts the controller, and writes the port that it got where commands look.
fn start(files: &Files) -> Child {
    let mut process = command(RUN, &files.0);
    let mut process = process.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        (&ready["ready"], &ready["agents"]),
        (&"controller".into(), &"10.200.0.1:7440".into())
    );
    let access = files.read("net/admin.toml");
    let (_, token) = access.split_once('\n').unwrap();
    let api = ready["api"].as_str().unwrap();
    files.write("net/admin.toml", format!("api = \"http://{api}\"\n{token}"));
    process
}

fn signal(process: &Child, signal: &str) {
    let sent = Command::new("kill").args([signal, &process.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

fn is_in_use(folder: &Path) -> bool {
    !processes_of(folder).is_empty()
}

#[test]
fn lab_has_an_agent_on_each_host_and_ends_with_its_controller() {
    if !is_root() {
        return skipped("a controller with a lab", "needs root");
    }
    let files = Files::new("controlled-lab");
    files.write("wan.toml", topology());
    files.prints(INIT);
    let mut process = start(&files);
    assert!(is_in_use(&files.0));
    let hosts = files.json("hosts -o json");
    let hosts = hosts["hosts"].as_array().unwrap();
    let named: Vec<[&str; 3]> = hosts
        .iter()
        .map(|host| ["id", "role", "address"].map(|key| host[key].as_str().unwrap()))
        .collect();
    let expected = [
        ["gcp:europe-north1-1", "relay", "10.200.0.3"],
        ["office-1", "gateway", "10.200.0.1"],
        ["plant-1", "gateway", "10.200.0.2"],
    ];
    assert_eq!(named, expected);
    assert_eq!(hosts[0]["relay_type"], "gcp:e2-medium");
    assert_eq!(files.json("mode -o json")["relay_setup"], "2 s");
    files
        .prints("flow add backup --from office --to 10.200.0.2:8000 --to-site plant --per-day 1GB");
    // The agents take what the controller asks: the ceiling allows the lab.
    until("a gateway listens", || {
        let hosts = files.json("hosts -o json");
        hosts["hosts"][1]["processes"][0]["listen"][0] == "127.0.0.1:15000"
    });
    // The lab is one as any other, meanwhile.
    files.prints("lab set office,plant rtt=30ms");
    files.prints("lab exec plant -- true");
    files.refuses("lab up wan.toml", "a lab is up already");
    files.refuses("controller run other --lab wan.toml", "a lab is up already");
    files.refuses_with(RUN, 1, "net: another controller runs with this folder");
    files.prints("host revoke gcp:europe-north1-1");
    signal(&process, "-TERM");
    assert!(process.wait().unwrap().success());
    assert!(!is_in_use(&files.0));

    // The same hosts come back, and nobody waits for the one that is revoked.
    let mut process = start(&files);
    let again = files.json("hosts -o json");
    let names = again["hosts"].as_array().unwrap().iter().map(|host| host["id"].as_str().unwrap());
    assert!(names.eq(expected.map(|[id, ..]| id)), "{again}");
    signal(&process, "-KILL");
    process.wait().unwrap();
    until("all of the lab ends", || !is_in_use(&files.0));

    files.write("wan.toml", topology().replace("plant", "mine"));
    let expected = "net: it knows `plant-1` at 10.200.0.2, which wan.toml does not have";
    files.refuses_with(RUN, 2, expected);
    files.write("net/agents/plant/controller.toml", "nonsense");
    files.write("wan.toml", topology());
    files.refuses_with(RUN, 1, "net/agents/plant: ");
    assert!(!is_in_use(&files.0));
}

#[test]
fn topology_and_folder_must_fit() {
    let files = Files::new("controlled-lab-input");
    files.refuses_with(RUN, 2, "wan.toml: ");
    files.write("wan.toml", "[[site]]\nregion = \"gcp:europe-north1\"\n");
    files.refuses_with(RUN, 2, "wan.toml: all of its sites are regions");
    let (sites, _) =
        topology().split_once("[[site]]\nregion").map(|(a, b)| (a.to_owned(), b.len())).unwrap();
    files.write("wan.toml", sites);
    files.refuses_with(RUN, 2, "wan.toml: no site of it has a `region`");
    assert!(!files.0.join("net").exists());
    files.write("wan.toml", topology());
    files.prints("controller init net --agents 127.0.0.1:7440");
    let expected = "net: its agents dial 127.0.0.1:7440, which wan.toml does not have";
    files.refuses_with(RUN, 2, expected);
}

#[test]
fn busy_port_ends_the_lab_in_one_line() {
    if !is_root() {
        return skipped("a controller with a lab", "needs root");
    }
    let files = Files::new("controlled-lab-busy");
    files.write("wan.toml", topology());
    // If it fails, another has the port, which serves as well.
    let _taken = TcpListener::bind("127.0.0.1:7441");
    files.refuses_with(RUN, 1, "api: listen on 127.0.0.1:7441: ");
    assert!(files.read("net/controller.toml").contains("agents = \"10.200.0.1:7440\""));
    assert!(!is_in_use(&files.0));
}

#[test]
fn sessions_go_on_while_controller_and_agent_are_killed() {
    if !is_root() {
        return skipped("a killed controller with a lab", "needs root");
    }
    let lab = Lab::up("killed-controller", &topology());
    let _server = lab.echo("plant", "echo_server", "TRADEWIND_TEST_ECHO_SERVER", "10.200.0.2:8000");
    let controller = lab.control();
    let agent = lab.join("office", "--role gateway --site office");
    let flow = "--from office --to 10.200.0.2:8000 --to-site plant --per-day 1GB";
    lab.prints(&format!("flow add first {flow}"));
    let first = lab.session(15_000);
    first.goes_on();
    drop(controller);
    drop(agent);
    first.goes_on();
    let second = lab.session(15_000);
    // The agent comes back first, and runs on by its last document.
    let _agent = lab.run_agent("office");
    first.goes_on();
    lab.session(15_000).goes_on();
    let _controller = lab.control();
    lab.until_well();
    // What is declared now comes into effect.
    lab.prints(&format!("flow add other {flow}"));
    lab.session(15_001).goes_on();
    first.goes_on();
    second.goes_on();
}

/// Returns the number of descriptors of programs and maps of the kernel that processes hold.
fn programs_of(folder: &Path) -> usize {
    let descriptors = |process: &u32| {
        let entries = fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok()).collect::<Vec<_>>()
    };
    let all = processes_of(folder);
    let is_of_bpf = |link: &PathBuf| link.to_string_lossy().contains("bpf");
    all.iter().flat_map(descriptors).filter(is_of_bpf).count()
}

#[test]
fn hosts_learn_windows_until_the_controllers_kill_switch() {
    if !is_root() {
        return skipped("jump-start of hosts in a lab", "needs root");
    }
    let lab = Lab::up("fleet-jump", &topology());
    let files = &lab.0;
    let _server = lab.echo("plant", "echo_server", "TRADEWIND_TEST_ECHO_SERVER", "10.200.0.2:8000");
    let _controller = lab.control();
    let _agent = lab.join("office", "--role gateway --site office");
    let flow = "--from office --to 10.200.0.2:8000 --to-site plant --per-day 1GB";
    lab.prints(&format!("flow add bulk {flow}"));
    let first = lab.session(15_000);
    let shown = || -> Value {
        serde_json::from_str(&lab.prints("jumpstart overlay show -o json")).unwrap()
    };
    assert_eq!(shown()["hosts"], serde_json::json!([]));

    // Beyond the ceiling its host refuses, and goes on as before.
    lab.prints("jumpstart overlay on --window-max 101");
    let refuses = "it refuses its document: process `gateway`: jumpstart.learn.c_max: 101 segments";
    until("the host refuses", || {
        shown()["hosts"][0]["why_not"].as_str().is_some_and(|why| why.starts_with(refuses))
    });
    first.goes_on();
    lab.prints("jumpstart overlay on --sites office --control-share 10% --window-max 60");
    until("a learner reports", || {
        let host = &shown()["hosts"][0];
        let why = host["why_not"].as_str().unwrap_or_default();
        host["is_acting"] == true
            || !why.is_empty() && !why.contains("document") && !why.contains("not reported")
    });
    let is_acting = shown()["hosts"][0]["is_acting"] == true;
    if !is_acting {
        skipped("windows in the kernel", &shown()["hosts"][0]["why_not"].to_string());
    }
    assert_eq!(programs_of(&files.0) > 0, is_acting);
    let bulk = lab.echo("office", "bulk_client", "TRADEWIND_TEST_BULK_CLIENT", "127.0.0.1:15000");
    until("a window is learned", || {
        let known = &shown()["hosts"][0]["destinations"][0];
        known["destination"] == "10.200.0.2/32"
            && known["window_segments"].as_u64().is_some_and(|window| (11..=60).contains(&window))
            && known["is_in_force"] == is_acting
    });
    let text = lab.prints("jumpstart overlay show");
    assert!(text.contains("10.200.0.2/32") && text.contains("too few"), "{text}");

    lab.prints("jumpstart overlay off");
    until("nothing is learned or set", || {
        let host = &shown()["hosts"][0];
        let windows = host["destinations"].as_array();
        host["is_acting"] != true && windows.is_none_or(Vec::is_empty)
    });
    assert!(!files.read("agent-office/data/gateway.toml").contains("jumpstart"));
    let socket = files.0.join("agent-office/data/learners/gateway.sock");
    until("the learner's socket is gone", || !socket.exists());
    // The program itself goes with the last session that is older.
    first.goes_on();
    drop((first, bulk));
    until("the kernel has no program", || programs_of(&files.0) == 0);
}
