//! A packet flow under a controller with a lab of its own: from its declaration to the packets that
//! relays recovered, on a path that loses one in twenty.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod common;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::net::UdpSocket;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::controller::Controller;
use common::daemon::{is_root, skipped, until};
use common::{Files, command};
use serde_json::Value;

const SENDER: &str = "TRADEWIND_TEST_PACKET_SENDER";
const RECEIVER: &str = "TRADEWIND_TEST_PACKET_RECEIVER";
/// Packets that are sent, and the time between two.
const PACKETS: u64 = 6000;
const EVERY: Duration = Duration::from_millis(3);

/// Returns a topology of two sites and one region, where the Internet loses packets.
fn topology() -> String {
    let site = |id: &str, longitude: f64| {
        format!(
            "[[site]]\nid = \"{id}\"\naccess_rtt = \"4 ms\"\n\
             location = {{ latitude = 60.0, longitude = {longitude:.1} }}\n"
        )
    };
    let lossy = "[[pair]]\nbetween = [\"office\", \"plant\"]\nloss = 0.05\n";
    let region = "[[site]]\nregion = \"gcp:europe-north1\"\n";
    site("office", 25.0) + &site("plant", 10.0) + region + lossy
}

/// Sends numbered packets, in a process on a host of the test below; does nothing elsewhere.
#[test]
fn packet_sender() {
    let Some(address) = std::env::var_os(SENDER) else { return };
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let begun = Instant::now();
    for number in 0..PACKETS {
        let due = EVERY * u32::try_from(number).unwrap();
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
        let mut packet = vec![0; 200];
        packet[..8].copy_from_slice(&number.to_be_bytes());
        let _refused_while_the_gateway_changes = socket.send_to(&packet, address.to_str().unwrap());
    }
}

/// Counts the different packets that come, until none does for some seconds, in a process on a host
/// of the test below; does nothing elsewhere.
#[test]
fn packet_receiver() {
    let Some(address) = std::env::var_os(RECEIVER) else { return };
    let socket = UdpSocket::bind(address.to_str().unwrap()).unwrap();
    println!("listens");
    let (mut seen, mut packet) = (BTreeSet::new(), [0; 2000]);
    while let Ok(bytes) = socket.recv(&mut packet) {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(bytes, 200);
        seen.insert(u64::from_be_bytes(packet[..8].try_into().unwrap()));
    }
    println!("received {}", seen.len());
}

/// Starts one of the tests above on a host.
fn on(files: &Files, host: &str, test: &str, (variable, address): (&str, &str)) -> Child {
    let this = std::env::current_exe().unwrap();
    let words = ["lab", "exec", host, "--", this.to_str().unwrap(), "--exact", test, "--nocapture"];
    let mut command: Command = command(&words, &files.0);
    let command = command.env(variable, address).stdout(Stdio::piped()).stderr(Stdio::null());
    command.spawn().unwrap()
}

fn packets(files: &Files) -> Value {
    files.json("packets -o json")["flows"][0].clone()
}

#[test]
fn relays_recover_what_the_internet_loses_of_a_declared_flow() {
    if !is_root() {
        return skipped("a packet flow under a controller", "needs root");
    }
    let files = Files::new("controlled-packets");
    files.write("wan.toml", topology());
    files.prints("controller init net --agents 10.200.0.1:7440 --api 127.0.0.1:0");
    let mut run = command("controller run net --lab wan.toml", &files.0);
    let (process, _) = Controller::begin(&files, &mut run);
    let mut controller = Controller { files, process };
    let files = &controller.files;
    files.prints("budget 20usd/day");
    files.prints("mode auto");
    let said = files.prints(
        "flow add-packets call --from office --to 10.200.0.2:5004 --to-site plant \
         --packets-per-second 330 --packet 200B --budget 300ms",
    );
    assert!(said.contains("applications at office send to 127.0.0.1:16000"), "{said}");
    until("a plan gives it a relay", || packets(files)["path"][0] == "gcp:europe-north1-1");
    until("all hosts run it", || {
        let hosts = files.json("hosts -o json");
        hosts["hosts"]
            .as_array()
            .unwrap()
            .iter()
            .all(|host| host["state"] == "well" && host["processes"][0]["state"] == "ready")
    });
    let to = (RECEIVER, "10.200.0.2:5004");
    let mut receiver = on(files, "plant", "packet_receiver", to);
    let mut lines = BufReader::new(receiver.stdout.take().unwrap()).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|line| line.contains("listens")));
    let mut sender = on(files, "office", "packet_sender", (SENDER, "127.0.0.1:16000"));
    assert!(sender.wait().unwrap().success());
    // All of it, or the receiver could not write the rest.
    let lines: Vec<String> = lines.map_while(Result::ok).collect();
    assert!(receiver.wait().unwrap().success());
    let count = lines.iter().find_map(|line| line.split_once("received "));
    let received: u64 = count.unwrap().1.trim().parse().unwrap();
    // The Internet alone would lose 300.
    assert!(received > PACKETS - PACKETS / 100, "{received} of {PACKETS}");
    until("recovered packets are counted", || {
        let counts = &packets(files)["counts"];
        let count = |name: &str| counts[name].as_u64().unwrap();
        let is_whole = count("packets") >= received && count("expected") >= count("packets");
        is_whole && count("lost_by_internet") > 50 && count("relay_bytes") > 0
    });
    let shown = packets(files);
    // The flow begins as planned: at most the first second and a third goes without copies.
    assert_eq!(shown["service_now"], "caching", "{shown}");
    assert!(shown["counts"]["copies"].as_u64().unwrap() > PACKETS - 450, "{shown}");
    let recovered = shown["recovered"].as_u64().unwrap();
    let lost_by_internet = shown["counts"]["lost_by_internet"].as_u64().unwrap();
    assert!(recovered * 2 > lost_by_internet, "{shown}");
    assert!(shown["counts"]["usd"].as_f64().unwrap() > 0.0, "{shown}");
    let csv = files.prints("packets -o csv");
    assert!(
        csv.starts_with("id,from,to,") && csv.contains("\ncall,office,10.200.0.2:5004,"),
        "{csv}"
    );
    let table = files.prints("packets");
    assert!(
        table.contains("gcp:europe-north1-1") && table.contains("packet flow call: "),
        "{table}"
    );
    files.prints("flow remove call");
    assert_eq!(files.json("packets -o json")["flows"].as_array().unwrap().len(), 0);
    controller.end();
}
