//! Gateways that leave paths with dead relays.

use super::*;

/// Starts a gateway that forwards to `to` over the first healthy path of `paths`.
pub(super) fn gateway_of_paths(paths: Vec<Vec<Hop>>, to: SocketAddr) -> Running {
    let mut config = gateway_config(Route::Refuse);
    let routes = paths.into_iter().map(Route::Relays).collect();
    config.routes = RouteTable::with_fallbacks(Vec::new(), routes).unwrap();
    config.forward = vec![forward(to)];
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    Running::gateway(&config)
}

/// Returns true if the gateway reports that `path` is in `state`.
pub(super) fn path_is(gateway: &Running, path: &str, state: &str) -> bool {
    let labels = format!("{{path=\"{path}\",state=\"{state}\"}} 1.0");
    let metrics = gateway.handle.metrics_addr().unwrap();
    get(metrics).is_some_and(|text| text.contains(&labels))
}

/// Checks that new sessions open and carry data.
pub(super) fn new_sessions_work(gateway: &Running) {
    for _ in 0..5 {
        ping(&mut connect(gateway.address())).unwrap();
    }
}

pub(super) fn stopped() {
    let process = Process::start();
    let second = Running::relay(&relay_config());
    let paths = vec![vec![process.hop.clone()], vec![second.hop("second")]];
    let gateway = gateway_of_paths(paths, echo());
    wait_for("the first path", || path_is(&gateway, "process", "good"));
    wait_for("the second path", || path_is(&gateway, "second", "good"));
    let mut old = connect(gateway.address());
    ping(&mut old).unwrap();
    // Its kernel still accepts connections, so that only an unanswered probe detects it.
    process.signal("STOP");
    let begun = Instant::now();
    wait_for("the path to be left", || path_is(&gateway, "process", "dead"));
    print!("left {} ms after SIGSTOP ... ", begun.elapsed().as_millis());
    new_sessions_work(&gateway);
    wait_for("five pings of four bytes", || second.handle.snapshot().bytes_up == 20);
    process.signal("CONT");
    ping(&mut old).unwrap();
    wait_for("the path to come back", || path_is(&gateway, "process", "good"));
    new_sessions_work(&gateway);
    assert_eq!(second.handle.snapshot().bytes_up, 20, "over the first again");
}

pub(super) fn second_killed() {
    let first = Running::relay(&relay_config());
    let mut process = Process::start();
    let paths = vec![vec![first.hop("first"), process.hop.clone()], vec![first.hop("first")]];
    let gateway = gateway_of_paths(paths, echo());
    wait_for("both paths", || {
        path_is(&gateway, "first > process", "good") && path_is(&gateway, "first", "good")
    });
    process.kill();
    let begun = Instant::now();
    // Until it is detected, each session gets the reply that the second relay could not be dialled,
    // and goes on.
    new_sessions_work(&gateway);
    wait_for("the path to be left", || path_is(&gateway, "first > process", "dead"));
    print!("left {} ms after SIGKILL ... ", begun.elapsed().as_millis());
    new_sessions_work(&gateway);
}
