//! A controller with a lab of its own: `tradewind controller run --lab`.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::daemon::{is_root, skipped, until};
use common::{Files, command};
use serde_json::Value;

const RUN: &str = "controller run net --lab wan.toml";
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

/// Returns whether a process has the lab of `folder`: all inherit its place by the environment.
fn is_in_use(folder: &Path) -> bool {
    let place = format!("TRADEWIND_RUNTIME_DIR={}/place", folder.display());
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let mut environments =
        processes.filter_map(|entry| fs::read(entry.path().join("environ")).ok());
    environments.any(|all| all.split(|byte| *byte == 0).any(|one| one == place.as_bytes()))
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
    signal(&process, "-TERM");
    assert!(process.wait().unwrap().success());
    assert!(!is_in_use(&files.0));

    // The same hosts come back.
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
