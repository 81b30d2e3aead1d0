//! The daemon with the kernel program.

use tradewind_net::jumpstart::{JumpStarts, Options};
use tradewind_net::netns::Namespace;

use crate::world::{World, skipped, until};

const ACT: &str = "through = \"sockops\"";

/// Creates a world, or reports that the test is skipped because no program can be attached.
fn world(test: &str) -> Option<World> {
    World::new(test).filter(|world| can_attach(test, &world.near))
}

/// Returns whether a program can be attached for connections of `host`; reports if not.
pub(crate) fn can_attach(test: &str, host: &Namespace) -> bool {
    let attached = host.run(|| JumpStarts::attach(&Options::default())).unwrap();
    if let Err(error) = &attached {
        skipped(test, error);
    }
    attached.is_ok()
}

#[test]
fn learned_window_is_used_without_routes() {
    let Some(world) = world("sockops-learns") else { return };
    let before = world.routes(&[]);
    let open = [world.connection_with_window(40), world.connection_with_window(60)];
    let (mut daemon, ready) = world.daemon_by(&[], "through = \"auto\"");
    assert!(ready.contains("\"through\":\"sockops\",\"why\":null"), "{ready}");
    // The mean of the open connections [RT Fig. 7]; those that jumped are as large.
    until("the learned window", || world.initial_window() == 50);
    assert_eq!(world.routes(&[]), before);
    assert!(world.ask(&["status"]).contains("mode riptide, through sockops"));
    drop(open);
    until("the time to live's end", || world.initial_window() == 10);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn killed_daemon_leaves_kernel_defaults() {
    let Some(world) = world("sockops-killed") else { return };
    let _open = world.connection_with_window(40);
    let (mut daemon, _) = world.daemon_by(&[], ACT);
    until("the learned window", || world.initial_window() == 40);
    daemon.end();
    assert_eq!(world.initial_window(), 10);
    // The next daemon finds no obstacle.
    let (mut daemon, _) = world.daemon_by(&[], ACT);
    until("the learned window", || world.initial_window() == 40);
    assert_eq!(daemon.terminate(), Some(0));
    assert_eq!(world.initial_window(), 10);
}

#[test]
fn values_of_stopped_daemon_expire() {
    let Some(world) = world("sockops-stopped") else { return };
    let _open = world.connection_with_window(40);
    let (mut daemon, _) = world.daemon_by(&[], ACT);
    until("the learned window", || world.initial_window() == 40);
    daemon.signal("STOP");
    until("the values' end", || world.initial_window() == 10);
    daemon.signal("CONT");
    until("the learned window", || world.initial_window() == 40);
    assert_eq!(daemon.terminate(), Some(0));
}

#[test]
fn kill_switch_persists_across_restarts() {
    let Some(world) = world("sockops-switch") else { return };
    let _open = world.connection_with_window(40);
    let (mut daemon, _) = world.daemon_by(&[], ACT);
    until("the learned window", || world.initial_window() == 40);
    assert_eq!(world.ask(&["off"]), "off: connections start by default\n");
    assert_eq!(world.initial_window(), 10);
    assert_eq!(daemon.terminate(), Some(0));
    let (mut daemon, _) = world.daemon_by(&[], ACT);
    until("a look", || !world.ask(&["status"]).contains("connections 0"));
    assert!(world.ask(&["status"]).contains("off by the kill switch"));
    assert_eq!(world.initial_window(), 10);
    assert_eq!(world.ask(&["on"]), "on\n");
    until("the learned window", || world.initial_window() == 40);
    assert_eq!(daemon.terminate(), Some(0));
}
