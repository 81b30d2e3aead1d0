//! Abilities that a host lacks, and the fallbacks: always reported in one line, and the daemon
//! runs.

use std::process::Command;

use tradewind_net::cgroup;
use tradewind_net::jumpstart::{JumpStarts, Options};

use crate::world::{World, ip, skipped, until};

const AUTO: &str = "through = \"auto\"";

/// Without CAP_BPF, and CAP_SYS_ADMIN, which implies it.
pub(crate) const NO_EBPF: [&str; 3] = ["setpriv", "--bounding-set", "-bpf,-sys_admin"];
/// Without any network capability.
const NO_RIGHTS: [&str; 3] = ["setpriv", "--bounding-set", "-bpf,-sys_admin,-net_admin"];
/// With control groups of version 1 only.
const CGROUP_1_ONLY: [&str; 5] = [
    "unshare",
    "-m",
    "sh",
    "-c",
    "for at in $(grep -o ' [^ ]* [^ ]* - cgroup2' /proc/self/mountinfo | cut -d' ' -f2); \
     do umount -l $at; done; exec \"$0\" \"$@\"",
];

pub(crate) fn has(test: &str, tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok();
    if !found {
        skipped(test, &format!("needs {tool} (Debian: util-linux)"));
    }
    found
}

fn may_attach(world: &World) -> bool {
    world.near.run(|| JumpStarts::attach(&Options::default())).unwrap().is_ok()
}

#[test]
fn routes_are_used_without_ebpf_or_cgroup_2() {
    for (test, wrapper, why) in [
        ("missing-ebpf", &NO_EBPF[..], "CAP_BPF"),
        ("missing-cgroup2", &CGROUP_1_ONLY[..], "no control group of version 2"),
    ] {
        let Some(world) = World::new(test) else { return };
        if !has(test, wrapper[0]) {
            return;
        }
        let before = world.routes(&[]);
        let _open = world.connection_with_window(40);
        let (mut daemon, ready) = world.daemon_by(wrapper, AUTO);
        assert!(ready.contains("\"through\":\"routes\"") && ready.contains(why), "{ready}");
        until("a route", || world.ours().contains("initcwnd 40"));
        assert_eq!(world.initial_window(), 40);
        assert_eq!(daemon.terminate(), Some(0));
        assert_eq!(world.routes(&[]), before);
    }
}

#[test]
fn only_selected_control_group_is_sampled() {
    let Some(world) = World::new("missing-group") else { return };
    let own = match cgroup::own() {
        Ok(own) => own,
        Err(error) => return skipped("missing-group", &error),
    };
    let other = own.join(format!("tw-missing-group-{}", std::process::id()));
    if let Err(error) = std::fs::create_dir(&other) {
        return skipped("missing-group", &format!("{}: {error}", other.display()));
    }
    let _open = world.connection_with_window(40);
    for (group, connections) in [(&other, 0), (&own, 1)] {
        world.look_at(group);
        let (mut daemon, _) = world.daemon_by(&[], "through = \"none\"");
        // It polls the connections before it answers.
        let status = world.ask(&["status"]);
        assert!(status.contains(&format!("connections {connections}\n")), "{status}");
        assert_eq!(daemon.terminate(), Some(0));
    }
    std::fs::remove_dir(&other).unwrap();
    world.look_at(&other);
    let (mut daemon, ready) = world.daemon_by(&[], "through = \"none\"");
    assert_eq!((ready.as_str(), daemon.0.wait().unwrap().success()), ("", false));
}

#[test]
fn daemon_without_privileges_learns_and_reports_why() {
    let Some(world) = World::new("missing-rights") else { return };
    if !has("missing-rights", NO_RIGHTS[0]) {
        return;
    }
    let _open = world.connection_with_window(40);
    let (mut daemon, ready) = world.daemon_by(&NO_RIGHTS, AUTO);
    assert!(ready.contains("\"through\":\"none\"") && ready.contains("CAP_NET_ADMIN"), "{ready}");
    until("a value", || world.ask(&["status"]).contains("10.1.0.2/32"));
    let status = world.ask(&["status"]);
    assert!(status.contains("acts through nothing, only shows"), "{status}");
    assert_eq!(world.initial_window(), 10);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn routing_daemons_routes_are_respected() {
    let Some(world) = World::new("missing-foreign") else { return };
    let _open = world.connection_with_window(40);
    // A BGP route (186) for exactly that host.
    ip(&world.near, "route add 10.1.0.2/32 dev wa proto 186 metric 20");
    let before = world.routes(&[]);
    let mut daemon = world.daemon(&[]);
    until("a value", || world.ask(&["status"]).contains("10.1.0.2/32"));
    assert_eq!((world.ours(), world.routes(&[])), (String::new(), before));
    // After its withdrawal ours is added; when it returns with two next hops, ours is removed at
    // once.
    ip(&world.near, "route del 10.1.0.2/32 dev wa proto 186 metric 20");
    until("a route of ours", || world.ours().contains("initcwnd 40"));
    let hops = "nexthop dev wa nexthop via 10.1.0.77 dev wa";
    ip(&world.near, &format!("route add 10.1.0.2/32 proto 186 metric 20 {hops}"));
    until("ours to give way", || world.ours().is_empty());
    assert!(world.routes(&[]).contains("proto bgp"), "{}", world.routes(&[]));
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn multipath_route_is_copied_with_all_next_hops() {
    let Some(world) = World::new("missing-ecmp") else { return };
    ip(&world.remote, "addr add 10.1.0.3/24 dev wb");
    ip(&world.remote, "addr add 10.5.0.1/32 dev lo");
    let hops = "nexthop via 10.1.0.2 weight 1 nexthop via 10.1.0.3 weight 1";
    let _open = world.with_window(40, "10.5.0.1", "10.5.0.0/16", hops);
    let before = world.routes(&[]);
    let mut daemon = world.daemon(&[]);
    until("a route", || world.ours().contains("10.5.0.1"));
    let ours = world.ours();
    assert!(ours.contains("via 10.1.0.2") && ours.contains("via 10.1.0.3"), "{ours}");
    assert_eq!(world.initial_window_to("10.5.0.1"), 40, "{ours}");
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(world.routes(&[]), before);
}

#[test]
fn ipv6_only_host_jumps_by_sockops_and_by_routes() {
    for act in [AUTO, "through = \"routes\""] {
        let Some(world) = World::new("missing-ipv4") else { return };
        ip(&world.near, "addr flush dev wa scope global");
        ip(&world.near, "addr add fd10::1/64 dev wa nodad");
        assert_eq!(world.routes(&[]), "", "no IPv4 here");
        let _open =
            world.with_window(40, "fd10::2", "fd10::/64 dev wa proto kernel metric 256", "");
        let before = world.routes_of("-6");
        let (mut daemon, _) = world.daemon_by(&[], act);
        until("the learned window", || world.initial_window_to("fd10::2") == 40);
        let by_route = world.routes_of("-6").contains("initcwnd 40");
        assert_eq!(by_route, act != AUTO || !may_attach(&world), "{act}");
        assert_eq!(daemon.terminate(), Some(0));
        assert_eq!(world.initial_window_to("fd10::2"), 10);
        assert_eq!(world.routes_of("-6"), before, "{act}");
    }
}
