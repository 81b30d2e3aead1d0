//! `tradewind jumpstart` with real connections, in network namespaces made for the test: the next
//! connection starts with the learned window, and nothing is left behind, however the daemon ends.
//!
//! Times are waited for, not asserted.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

#[path = "../common/mod.rs"]
mod common;
mod embedded;
mod embedded_modes;
mod fleet;
mod legs;
mod missing;
mod paced;
mod service;
mod sockops;
mod world;

use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::process::Command;

use common::ended;
use world::{PROGRAM, World, until};

#[test]
fn next_connection_starts_with_the_learned_window() {
    let Some(world) = World::new("jumpstart-learns") else { return };
    assert_eq!(world.initial_window(), 10);
    let before = world.routes(&[]);
    let open = [world.connection_with_window(40), world.connection_with_window(60)];
    let mut daemon = world.daemon(&[]);
    until("a route", || world.ours().contains("10.1.0.2 dev wa"));
    // The mean of the open connections [RT Fig. 7], and its effect on the next one.
    assert!(world.ours().contains("initcwnd 50 initrwnd"), "{}", world.ours());
    assert_eq!(world.initial_window(), 50);
    let explained = world.ask(&["explain", "10.1.0.2", "--output", "json"]);
    assert!(explained.contains("\"window_segments\": 50"), "{explained}");
    assert!(world.ask(&["status"]).contains("10.1.0.2/32"));
    // An unused entry is forgotten after its time to live.
    drop(open);
    until("the route's end", || world.ours().is_empty());
    assert_eq!((world.initial_window(), world.routes(&[])), (10, before.clone()));
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(world.routes(&[]), before);
    assert!(!world.directory.join("jumpstart.sock").exists());
}

#[test]
fn hints_flush_and_stop_reach_the_routes() {
    let Some(world) = World::new("jumpstart-stops") else { return };
    let before = world.routes(&[]);
    let _open = world.connection_with_window(40);
    let mut daemon = world.daemon(&[]);
    until("a route", || !world.ours().is_empty());
    assert_eq!(
        world.ask(&["hint", "10.1.0.0/16", "--at-most", "20", "--for", "1min"]).lines().count(),
        1
    );
    until("the hint's window", || world.ours().contains("initcwnd 20"));
    world.ask(&["hint", "10.1.0.0/16", "--scale", "0.75", "--for", "1min"]);
    until("the next hint's window", || world.ours().contains("initcwnd 30"));
    assert_eq!(world.ask(&["flush"]), "forgotten: 1\n");
    until("what is open to be learned again", || world.ours().contains("initcwnd 30"));
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(world.routes(&[]), before);
    assert_eq!(world.initial_window(), 10);
}

#[test]
fn killed_daemons_routes_are_swept_at_the_next_start() {
    let Some(world) = World::new("jumpstart-crashes") else { return };
    let before = world.routes(&[]);
    let open = world.connection_with_window(40);
    let mut daemon = world.daemon(&[]);
    until("a route", || !world.ours().is_empty());
    daemon.end();
    drop(open);
    assert!(!world.ours().is_empty(), "IPv4 routes have no expiry: they outlive a crash");
    let mut daemon = world.daemon(&[]);
    until("the sweep", || world.ours().is_empty());
    assert_eq!(world.routes(&[]), before, "others' routes are as they were");
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn windows_of_other_hosts_are_used_until_nobody_confirms_them() {
    let Some(world) = World::new("jumpstart-shared") else { return };
    let mut daemon = world.daemon(&[]);
    let windows = r#"[{"destination":"10.1.0.2/32","window_segments":40}]"#;
    let request = format!(r#"{{"share":{{"windows":{windows},"lasts_s":10}}}}"#);
    until("the daemon listens", || {
        let told = UnixStream::connect(world.directory.join("jumpstart.sock"));
        told.is_ok_and(|mut told| writeln!(told, "{request}").is_ok())
    });
    until("a route", || world.ours().contains("10.1.0.2 dev wa"));
    assert_eq!(world.initial_window(), 40);
    until("the end of what was shared", || world.ours().is_empty());
    assert_eq!(world.initial_window(), 10);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn errors_take_one_line() {
    let directory = std::env::temp_dir().join(format!("tw-jumpstart-wrong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("wrong.toml"), "[learn]\nc_max = 5\n").unwrap();
    std::fs::write(directory.join("sizes"), "10 kB\nmany\n").unwrap();
    for (arguments, expected) in [
        (
            &["run", "--config", "wrong.toml"][..],
            "wrong.toml: configuration, `learn` (line 1): c_min: 10",
        ),
        (&["run", "--config", "none.toml"], "none.toml: No such file"),
        (&["status"], "no jump-start daemon answers"),
        (&["off", "--socket", "x.off"], "control socket x.off: a name that ends in `.off`"),
        (&["run", "--socket", "x.off"], "control socket x.off: a name that ends in `.off`"),
        (&["explain", "10.0.0.300"], "10.0.0.300"),
        (&["hint", "10.0.0.0/8", "--for", "1min"], "--freeze, --at-most or --scale"),
        (&["model", "--sizes-file", "sizes", "--rtts", "10ms"], "sizes, line 2"),
        (&["model", "--sizes", "10 kB"], "--rtts"),
    ] {
        let mut command = Command::new(PROGRAM);
        command.arg("jumpstart").args(arguments).current_dir(&directory);
        command.env("TRADEWIND_RUNTIME_DIR", &directory).env("TRADEWIND_LOG", "off");
        let output = ended(&mut command);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && line.lines().count() == 1, "{arguments:?}: {line}");
        assert!(
            line.starts_with("tradewind: ") && line.contains(expected),
            "{arguments:?}: {line}"
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn dry_run_learns_and_changes_nothing() {
    let Some(world) = World::new("jumpstart-dry") else { return };
    let before = world.routes(&[]);
    let _open = world.connection_with_window(40);
    let mut daemon = world.daemon(&["--dry-run"]);
    until("a value", || world.ask(&["status"]).contains("10.1.0.2/32"));
    assert_eq!((world.routes(&[]), world.initial_window()), (before, 10));
    assert_eq!(daemon.terminate(), Some(0));
}
