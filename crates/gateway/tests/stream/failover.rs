//! Several paths to one destination: the choice, the fallback, and the retries.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tradewind_config::GatewayConfig;
use tradewind_desired::{Encryption, Hop, Route, RouteTable};
use tradewind_gateway::report::{PathOptionReport, Source};
use tradewind_gateway::{PathsReport, survey};

use crate::support::{
    Running, closed_port, connect, content, echo, forward, gateway_config, identity, loopback,
    open_relay_config, plain_legs, relay_config, route_over, send, skipped, wait_for,
};

/// Returns the configuration of a gateway whose port forwards to `to` over the first healthy one of
/// `routes`.
fn config(routes: Vec<Route>, to: SocketAddr) -> GatewayConfig {
    let mut config = gateway_config(Route::Refuse);
    config.routes = RouteTable::with_fallbacks(Vec::new(), routes).unwrap();
    config.forward = vec![forward(to)];
    config.metrics = Some(loopback());
    config
}

fn relay() -> Running {
    Running::relay(&relay_config())
}

fn over(relay: &Running, name: &str) -> Route {
    Route::Relays(vec![relay.hop(name)])
}

/// Sends `bytes` through `gateway` to an echo and expects them back.
fn goes_through(gateway: &Running, bytes: &[u8]) {
    let mut stream = connect(gateway.address());
    let mut sending = stream.try_clone().unwrap();
    let sent = bytes.to_vec();
    let sender = std::thread::spawn(move || send(&mut sending, &sent));
    let mut back = Vec::new();
    stream.read_to_end(&mut back).unwrap();
    sender.join().unwrap();
    assert!(back == bytes, "{} bytes of {}", back.len(), bytes.len());
}

/// Returns a page of the gateway's metrics port.
fn page(gateway: &Running, name: &str) -> String {
    let address = gateway.handle.metrics_addr().unwrap();
    let mut stream = connect(address);
    write!(stream, "GET {name} HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer.split_once("\r\n\r\n").unwrap().1.to_owned()
}

/// Returns the gateway's report on the paths of its default rule.
fn options(gateway: &Running) -> Vec<PathOptionReport> {
    let report = page(gateway, "/paths?to=198.51.100.1:80");
    let report: PathsReport = serde_json::from_str(&report).unwrap();
    assert_eq!((report.source, report.rules.len()), (Source::Gateway, 1));
    report.rules.into_iter().next().unwrap().options
}

fn state(gateway: &Running, way: usize) -> String {
    options(gateway)[way].state.clone().unwrap()
}

fn chosen(gateway: &Running) -> usize {
    options(gateway).iter().position(|way| way.chosen).unwrap()
}

/// Returns a relay's address at which `serve` handles every connection, under an unknown identity.
fn impostor(serve: impl Fn(std::net::TcpStream) + Send + 'static) -> (Hop, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            counted.fetch_add(1, Ordering::Relaxed);
            serve(stream.unwrap());
        }
    });
    let hop = Hop { name: "impostor".parse().unwrap(), address, identity: identity().public() };
    (hop, count)
}

#[test]
fn probes_measure_legs_and_first_path_is_used() {
    let relays = vec![relay(), relay(), relay()];
    let routes = vec![route_over(&relays), over(&relays[2], "other"), Route::Direct];
    let gateway = Running::gateway(&config(routes, echo()));
    wait_for("the first path to be good", || state(&gateway, 0) == "good");
    let options = options(&gateway);
    assert_eq!(options[0].legs_ms.len(), 3, "{options:?}");
    assert!(options[0].chosen && options[0].rtt_ms.unwrap() < 5000.0, "{options:?}");
    assert_eq!((options[2].kind.as_str(), &options[2].state), ("direct", &None));
    let metrics = page(&gateway, "/metrics");
    let legs = metrics.lines().filter(|line| line.contains("_gateway_leg_rtt_seconds{"));
    let of_first = legs.filter(|line| line.matches(" > ").count() == 2);
    assert_eq!(of_first.count(), 3, "{metrics}");
    goes_through(&gateway, &content(300_000));
    wait_for("the session", || relays[0].handle.snapshot().outcome("ended") == 1);
}

#[test]
fn dead_path_is_left_and_used_again() {
    let first = relay();
    let (address, second) = (first.address(), relay());
    let mut own = relay_config();
    own.identity = Some(identity());
    own.listen = vec![address];
    let mut hop = first.hop("first");
    hop.identity = own.identity.as_ref().unwrap().public();
    drop(first);
    let first = Running::relay_again(&own);
    let routes = vec![Route::Relays(vec![hop]), over(&second, "second"), Route::Direct];
    let gateway = Running::gateway(&config(routes, echo()));
    wait_for("both paths to be good", || (0..2).all(|way| state(&gateway, way) == "good"));
    wait_for("the choice", || chosen(&gateway) == 0);
    drop(first);
    wait_for("the first path to be dead", || state(&gateway, 0) == "dead");
    wait_for("the choice", || chosen(&gateway) == 1);
    goes_through(&gateway, b"over the second");
    wait_for("its account", || second.handle.snapshot().outcome("ended") == 1);
    drop(second);
    wait_for("the second path to be dead", || state(&gateway, 1) == "dead");
    wait_for("the choice", || chosen(&gateway) == 2);
    goes_through(&gateway, b"direct");
    let first = Running::relay_again(&own);
    wait_for("the first path to come back", || chosen(&gateway) == 0);
    goes_through(&gateway, b"over the first again");
    wait_for("its account", || first.handle.snapshot().outcome("ended") == 1);
}

#[test]
fn session_fails_over_from_a_dead_first_relay() {
    let down = closed_port();
    let gone =
        Hop { name: "gone".parse().unwrap(), address: down.address, identity: identity().public() };
    let second = relay();
    let routes = vec![Route::Relays(vec![gone]), over(&second, "second")];
    let gateway = Running::gateway(&config(routes, echo()));
    for length in [1, 1000, 300_000] {
        goes_through(&gateway, &content(length));
    }
    wait_for("three sessions", || second.handle.snapshot().outcome("ended") == 3);
}

#[test]
fn early_data_is_resent_on_the_next_path() {
    // The first relay is reached and its reply says that nothing was dialled: the next hop is down.
    let down = closed_port();
    let gone =
        Hop { name: "gone".parse().unwrap(), address: down.address, identity: identity().public() };
    let relays = [relay(), relay()];
    let routes =
        vec![Route::Relays(vec![relays[0].hop("first"), gone]), over(&relays[1], "second")];
    let gateway = Running::gateway(&config(routes, echo()));
    goes_through(&gateway, &content(20_000));
    wait_for("the session", || relays[1].handle.snapshot().outcome("ended") == 1);
}

#[test]
fn silent_leg_fails_over_in_time() {
    // It accepts and sends nothing: a handshake there never ends, and the relay itself would wait
    // for an hour.
    let (accepted, _streams) = mpsc::channel();
    let (hole, _) = impostor(move |stream| accepted.send(stream).unwrap_or_default());
    let mut patient = relay_config();
    patient.timeouts.dial = Duration::from_secs(3600);
    patient.leg.dial.encryption = Some(Encryption::Tls);
    let relays = [Running::relay(&patient), relay()];
    let routes =
        vec![Route::Relays(vec![relays[0].hop("first"), hole]), over(&relays[1], "second")];
    let gateway = Running::gateway(&config(routes, echo()));
    goes_through(&gateway, &content(20_000));
    wait_for("the session", || relays[1].handle.snapshot().outcome("ended") == 1);
}

#[test]
fn refusal_before_dial_fails_over() {
    let mut strict = relay_config();
    strict.policy.destinations.clear();
    let relays = [Running::relay(&strict), relay()];
    let routes = vec![over(&relays[0], "strict"), over(&relays[1], "second")];
    let gateway = Running::gateway(&config(routes, echo()));
    wait_for("both paths to be good", || (0..2).all(|way| state(&gateway, way) == "good"));
    goes_through(&gateway, b"allowed elsewhere");
    wait_for("its account", || relays[0].handle.snapshot().outcome("destination_refused") == 1);
    wait_for("the destination's rules are not the path's fault", || state(&gateway, 0) == "good");
}

#[test]
fn dialled_destination_is_not_retried() {
    let nobody = closed_port();
    let relays = [relay(), relay()];
    let routes = vec![over(&relays[0], "first"), over(&relays[1], "second"), Route::Direct];
    let gateway = Running::gateway(&config(routes, nobody.address));
    let mut stream = connect(gateway.address());
    assert!(stream.read(&mut [0]).is_err(), "a reset");
    wait_for("the end", || gateway.handle.snapshot().outcome("connection_refused") == 1);
    wait_for("its account", || relays[0].handle.snapshot().outcome("connection_refused") == 1);
    assert_eq!(relays[1].handle.snapshot().outcome("connection_refused"), 0);
}

#[test]
fn silent_relay_may_have_dialled() {
    // It takes the header and closes: perhaps it has dialled, perhaps not.
    let (hop, _) = impostor(|mut stream| {
        let _header = stream.read(&mut [0; 2048]);
    });
    let (to, arrived) = (echo(), Running::relay(&open_relay_config()));
    let routes = vec![Route::Relays(vec![hop]), over(&arrived, "second")];
    let mut config = config(routes, to);
    // In a handshake it would get none.
    config.leg = plain_legs();
    config.metrics = None;
    let gateway = Running::gateway(&config);
    let mut failed = 0;
    wait_for("the path to be blamed", || {
        let mut stream = connect(gateway.address());
        // The reset may come before there is anything to write.
        let through = stream.write_all(b"x").is_ok() && matches!(stream.read(&mut [0]), Ok(1));
        failed += u64::from(!through);
        through
    });
    wait_for("the failures' account", || {
        gateway.handle.snapshot().outcome("next_hop_failed") == failed
    });
}

#[test]
fn data_beyond_the_retained_is_not_resent() {
    // The impostor reads everything and answers nothing; with 200 kB sent the session must not
    // move.
    let (notify, notified) = mpsc::channel();
    let (hop, _) = impostor(move |mut stream| {
        let notify = notify.clone();
        std::thread::spawn(move || {
            let mut buffer = vec![0; 1 << 16];
            let mut sum = 0;
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                sum += read;
                if sum > 200_000 {
                    let _gone = notify.send(());
                    return;
                }
            }
        });
    });
    let second = Running::relay(&open_relay_config());
    let mut config = config(vec![Route::Relays(vec![hop]), over(&second, "second")], echo());
    config.timeouts.dial = Duration::from_secs(30);
    // In a handshake it would get none of it.
    config.leg = plain_legs();
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    stream.write_all(&content(400_000)).unwrap();
    notified.recv().unwrap();
    let mut rest = Vec::new();
    assert!(stream.read_to_end(&mut rest).is_err() || rest.is_empty());
    assert_eq!(second.handle.snapshot().outcome("ended"), 0);
}

#[test]
fn route_table_reload_keeps_sessions() {
    let relays = [relay(), relay()];
    let gateway_config = config(vec![over(&relays[0], "first")], echo());
    let gateway = tradewind_gateway::Gateway::bind(&gateway_config).unwrap();
    let reloader = gateway.reloader();
    let (handle, shutdown) = (gateway.handle(), tradewind_stream::Shutdown::new());
    let stop = shutdown.clone();
    let serving = std::thread::spawn(move || gateway.run(&stop).unwrap());
    let mut old = connect(handle.local_addrs()[0]);
    old.write_all(b"before").unwrap();
    old.read_exact(&mut [0; 6]).unwrap();

    let mut changed = gateway_config.clone();
    changed.routes = RouteTable::new(Vec::new(), over(&relays[1], "second")).unwrap();
    reloader.apply(&changed).unwrap();
    let mut new = connect(handle.local_addrs()[0]);
    new.write_all(b"after").unwrap();
    new.read_exact(&mut [0; 5]).unwrap();
    old.write_all(b"still").unwrap();
    old.read_exact(&mut [0; 5]).unwrap();

    let file = std::env::temp_dir().join(format!("tradewind-reload-{}.toml", std::process::id()));
    std::fs::write(&file, "[routes]\ndefault = ['lima']").unwrap();
    tradewind_stream::Reloads::new(&file, "").with(reloader.clone()).apply();
    std::fs::remove_file(&file).unwrap();
    let mut other = changed.clone();
    other.grant = Some(crate::support::grant_for(identity().public()));
    other.routes = RouteTable::default();
    assert!(reloader.apply(&other).is_err(), "another gateway's grant");
    let mut newer = connect(handle.local_addrs()[0]);
    newer.write_all(b"later").unwrap();
    newer.read_exact(&mut [0; 5]).unwrap();
    let both = relays[1].handle.snapshot().accepted;
    assert_eq!(both, 2, "the old routes stay, and what has no alternative is not probed");
    drop((old, new, newer));
    shutdown.stop();
    serving.join().unwrap();
}

#[test]
fn survey_needs_no_running_gateway() {
    let relays = vec![relay(), relay()];
    let down = closed_port();
    let gone =
        Hop { name: "gone".parse().unwrap(), address: down.address, identity: identity().public() };
    let config = config(vec![Route::Relays(vec![gone]), route_over(&relays)], echo());
    let report = survey(&config, None, 3).unwrap();
    let options = &report.rules[0].options;
    assert_eq!(options[0].state.as_deref(), Some("dead"));
    assert!(options[0].cause.ends_with("connection refused"), "{options:?}");
    assert_eq!((options[1].state.as_deref(), options[1].legs_ms.len()), (Some("good"), 2));
    assert!(options[1].chosen);
}

#[test]
fn drain_ends_probes() {
    let relays = [relay(), relay()];
    let routes = vec![over(&relays[0], "first"), over(&relays[1], "second")];
    let gateway = Running::gateway(&config(routes, echo()));
    wait_for("both paths to be good", || (0..2).all(|way| state(&gateway, way) == "good"));
    relays[0].shutdown.drain();
    wait_for("the draining relay to be left", || chosen(&gateway) == 1);
    wait_for("its end", || relays[0].handle.snapshot().open == 0);
    goes_through(&gateway, b"over the other");
}

/// Runs a command; returns true if it exists and succeeds.
pub(super) fn command(program: &str, arguments: &str) -> bool {
    let status = std::process::Command::new(program).args(arguments.split(' ')).status();
    status.is_ok_and(|status| status.success())
}

#[test]
fn blackholed_path_is_left_and_sessions_resume() {
    let namespace = match tradewind_net::netns::Namespace::create() {
        Ok(namespace) => namespace,
        Err(error) => return skipped(&error),
    };
    let outage = || {
        assert!(command("ip", "link set lo up"), "`ip` brings loopback up");
        if !command("nft", "add table ip outage") {
            return skipped(&"no packet filter: `nft` is missing or not allowed");
        }
        let mut own = relay_config();
        own.listen = vec!["127.0.0.2:0".parse().unwrap()];
        let (first, second) = (Running::relay(&own), relay());
        let routes = vec![over(&first, "first"), over(&second, "second")];
        let gateway = Running::gateway(&config(routes, echo()));
        wait_for("both paths to be good", || (0..2).all(|way| state(&gateway, way) == "good"));
        let mut old = connect(gateway.address());
        let mut talk = |word: &[u8; 4]| {
            old.write_all(word).unwrap();
            let mut back = [0; 4];
            old.read_exact(&mut back).unwrap();
            assert_eq!(&back, word);
        };
        talk(b"past");
        let hook = "add chain ip outage out { type filter hook output priority 0 ; }";
        assert!(command("nft", hook));
        assert!(command("nft", "add rule ip outage out ip daddr 127.0.0.2 drop"));
        let begun = std::time::Instant::now();
        wait_for("the path to be left", || state(&gateway, 0) == "dead");
        eprintln!("left {} ms after its packets began to vanish", begun.elapsed().as_millis());
        goes_through(&gateway, b"over the second");
        assert!(command("nft", "delete table ip outage"));
        talk(b"goes");
        wait_for("the path to come back", || chosen(&gateway) == 0);
    };
    namespace.run(outage).unwrap();
}

#[test]
fn slow_path_is_left_and_used_again() {
    let (first, second) = (relay(), relay());
    // A delay between gateway and relay.
    let delay_ms = Arc::new(AtomicUsize::new(0));
    let (delay, to) = (Arc::clone(&delay_ms), first.address());
    let (hop, _) = impostor(move |near| {
        let remote = connect(to);
        for (mut from, mut into) in
            [(near.try_clone().unwrap(), remote.try_clone().unwrap()), (remote, near)]
        {
            let delay = Arc::clone(&delay);
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(read @ 1..) = from.read(&mut buffer) {
                    std::thread::sleep(Duration::from_millis(delay.load(Ordering::Relaxed) as u64));
                    if into.write_all(&buffer[..read]).is_err() {
                        break;
                    }
                }
                let _gone = into.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    let slow = Hop { identity: first.hop("first").identity, ..hop };
    let routes = vec![Route::Relays(vec![slow]), over(&second, "second")];
    let gateway = Running::gateway(&config(routes, echo()));
    wait_for("both paths to be good", || (0..2).all(|way| state(&gateway, way) == "good"));
    delay_ms.store(100, Ordering::Relaxed);
    let begun = std::time::Instant::now();
    wait_for("the path to be slow", || state(&gateway, 0) == "slow");
    eprintln!("left {} ms after it had become slow", begun.elapsed().as_millis());
    wait_for("the choice", || chosen(&gateway) == 1);
    goes_through(&gateway, b"over the second");
    delay_ms.store(0, Ordering::Relaxed);
    wait_for("the path to come back", || chosen(&gateway) == 0);
}
