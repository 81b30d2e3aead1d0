//! Mode `paced` with the kernel program, over an emulated path: a veth pair has no round-trip time
//! over which a rate could be shared.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::sleep;
use std::time::Duration;

use tradewind_lab::{Lab, LabOptions};
use tradewind_model::Catalogue;
use tradewind_net::capability::may_make_networks;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bandwidth, HostId};
use tradewind_wan::Topology;

use crate::sockops::can_attach;
use crate::world::{World, ip, skipped, until};

/// 50 Mbit/s over 40 ms are 165 segments in flight. The queue holds slow start's excess.
const PATH: &str = r#"
seed = 1
[[site]]
id = "near"
location = { latitude = 50.0, longitude = 8.0 }
[[site]]
id = "remote"
location = { latitude = 50.0, longitude = 8.0 }
[[pair]]
between = ["near", "remote"]
rtt = "40 ms"
rate = "50 Mbit/s"
queue = "2 MB"
"#;
/// No connection is held back for comparison, so that all with a share jump.
const CONFIG: &str = "[learn]\nmode = \"paced\"\ncontrol_share = 0\n\
                      [observe]\ninterval = \"100 ms\"\n[act]\nthrough = \"routes\"\n";
/// Some twenty round trips of the path at its rate.
pub(crate) const BULK_BYTES: usize = 5_000_000;
/// Shares end after four round trips; the number of connections at once is known for a hundred.
const LOANS_ENDED: Duration = Duration::from_millis(400);
/// Connections opened at once.
const CROWD: usize = 4;

/// Sets up near and remote host on the lab; `None`, with a message, where that is not possible.
pub(crate) fn on_the_lab(test: &str) -> Option<(Lab, World, String)> {
    if !may_make_networks() {
        skipped(test, &"no right to make network namespaces");
        return None;
    }
    let topology = Topology::parse(PATH, &Catalogue::builtin()).unwrap();
    let lab = Lab::start(&topology, &LabOptions::default()).unwrap();
    let [near, remote] = ["near", "remote"].map(|name| HostId::new(name).unwrap());
    let address = lab.address_v4(&remote).unwrap().to_string();
    let [near, remote] = [near, remote].map(|host| lab.namespace(&host).unwrap());
    let world = World::between(near, remote, test);
    std::fs::write(world.directory.join("config.toml"), CONFIG).unwrap();
    can_attach(test, &world.near).then_some((lab, world, address))
}

/// Sends a file to the remote host over a new connection, which stays open.
fn send_bulk(world: &World, address: &str) -> (TcpStream, TcpStream) {
    let (mut near, mut remote) = world.connect_to(address);
    std::thread::scope(|scope| {
        scope.spawn(|| remote.read_exact(&mut vec![0; BULK_BYTES]).unwrap());
        near.write_all(&vec![7; BULK_BYTES]).unwrap();
    });
    (near, remote)
}

/// Returns the daemon's state of the remote host.
fn explained(world: &World, address: &str) -> serde_json::Value {
    let explained = world.ask(&["explain", address, "--output", "json"]);
    let explained: serde_json::Value = serde_json::from_str(&explained).unwrap();
    explained["destination"].clone()
}

/// Returns the rate limit of a connection that jumped, in Mbit/s; others begin by default, without
/// one.
fn limit(near: &TcpStream) -> Option<f64> {
    let info = TcpInfo::of(near).unwrap();
    let jumped = info.congestion_window.unwrap().as_u32() > 10;
    assert_eq!(jumped, info.pacing_limit.is_some(), "a jump is paced, and only a jump");
    info.pacing_limit.map(Bandwidth::as_mbps)
}

fn limits(near: &[TcpStream]) -> Vec<f64> {
    near.iter().filter_map(limit).collect()
}

#[test]
fn simultaneous_starts_share_the_learned_rate() {
    let test = "paced-shares";
    let Some((_lab, world, remote)) = on_the_lab(test) else { return };
    let (mut daemon, ready) = world.daemon_by(&[], "through = \"sockops\"");
    assert!(ready.contains("\"through\":\"sockops\""), "{ready}");
    let _bulk = send_bulk(&world, &remote);
    let rate = || explained(&world, &remote)["pacing_mbps"].as_f64();
    until("a learned rate", || rate().is_some());
    assert!(world.ask(&["status"]).contains("mode paced, through sockops"));
    // A change of less than a twentieth is not passed to the kernel.
    let most = || rate().unwrap() * 1.06;
    let (first, _remote) = world.connect_at_once(CROWD, &remote);
    let shares = limits(&first);
    assert!(!shares.is_empty() && shares.iter().sum::<f64>() <= most(), "{shares:?}");
    sleep(LOANS_ENDED);
    let (known, _remote) = world.connect_at_once(CROWD, &remote);
    let shares = limits(&known);
    assert!(shares.len() > 1 && shares.iter().sum::<f64>() <= most(), "{shares:?}");
    // From now on nothing that one of them sends is acknowledged.
    let mut lossy = known.iter().find(|near| limit(near).is_some()).unwrap();
    let near = lossy.local_addr().unwrap().ip();
    ip(&world.remote, &format!("rule add pref 10 to {near} blackhole"));
    lossy.write_all(&[7; 5000]).unwrap();
    let share = || explained(&world, &remote)["guard_ratio"].as_f64().unwrap();
    until("the loss to be told", || share() < 1.0);
    assert_eq!(daemon.terminate(), Some(0));
    ip(&world.remote, "rule del pref 10");
    assert_eq!(world.initial_window_to(&remote), 10);
}
