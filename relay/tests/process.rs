//! A relay as a process of its own: killed, out of descriptors, told to end by signals.
//!
//! This program is its own child: called with a configuration file it is a relay, else it runs
//! the tests one after the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use support::{
    Running, connect, content, destination, digest, echo, forward, gateway_config, identity,
    relay_config, relay_config_text, send, wait_for,
};
use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_relay::{Relay, RelayConfig, Shutdown};

const CONFIG: &str = "TRADEWIND_TEST_RELAY_CONFIG";

type Test = (&'static str, fn());

const TESTS: &[Test] = &[
    ("a_relay_killed_while_data_flows_shows_as_a_reset", killed_while_data_flows),
    ("a_relay_killed_while_its_session_is_silent_shows_as_a_reset", killed_while_silent),
    ("a_relay_killed_while_the_destination_is_slow_shows_as_a_reset", killed_while_slow),
    ("the_middle_of_three_relays_killed_shows_as_a_reset_at_both_ends", middle_killed),
    ("a_relay_killed_after_the_source_has_ended_shows_as_a_reset", killed_when_half_closed),
    ("a_relay_with_few_descriptors_admits_what_it_can_carry", few_descriptors),
    ("a_relay_out_of_descriptors_turns_clients_away_and_recovers", out_of_descriptors),
    ("a_gateway_leaves_a_relay_that_is_stopped_and_takes_it_again", stopped),
    ("a_gateway_leaves_a_path_whose_second_relay_is_killed", second_killed),
    ("sigterm_drains_and_a_second_one_stops", signals),
];

fn main() {
    if let Ok(config) = std::env::var(CONFIG) {
        return be_a_relay(&config);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|word| name.contains(*word));
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
        if arguments.iter().any(|word| word == "--list") {
            println!("{name}: test");
            continue;
        }
        print!("test {name} ... ");
        io::stdout().flush().unwrap();
        test();
        println!("ok");
    }
}

/// Runs a relay, and says on the first line of its output where it listens and serves metrics.
fn be_a_relay(config: &str) {
    // It ends when the tests do, however they end.
    std::thread::spawn(|| {
        let _closed = io::stdin().read(&mut [0]);
        std::process::exit(9);
    });
    let shutdown = Shutdown::on_signals().unwrap();
    let relay = Relay::bind(&RelayConfig::parse(config).unwrap()).unwrap();
    let handle = relay.handle();
    println!("{} {}", handle.local_addrs()[0], handle.metrics_addr().unwrap());
    relay.run(&shutdown).unwrap();
}

/// A relay in a process of its own; killed when dropped.
struct Process {
    child: Child,
    /// Held open apart, since waiting for a child closes it.
    _stdin: ChildStdin,
    hop: Hop,
    metrics: SocketAddr,
}

impl Process {
    fn start() -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()))
    }

    fn start_by(mut command: Command) -> Self {
        let key = identity();
        let config = format!("metrics = '127.0.0.1:0'\n{}", relay_config_text(&key));
        command.env(CONFIG, config).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let (address, metrics) = line.trim().split_once(' ').unwrap();
        let hop = Hop {
            name: "process".parse().unwrap(),
            address: address.parse().unwrap(),
            identity: key.public(),
        };
        let stdin = child.stdin.take().unwrap();
        Self { child, _stdin: stdin, hop, metrics: metrics.parse().unwrap() }
    }

    /// SIGKILL, and the process is gone when this returns.
    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn terminate(&self) {
        self.signal("TERM");
    }

    fn signal(&self, name: &str) {
        let (name, pid) = (format!("-{name}"), self.child.id().to_string());
        assert!(Command::new("kill").args([&name, &pid]).status().unwrap().success());
    }

    /// A figure of its metrics, if it answers.
    fn metric(&self, name: &str) -> Option<f64> {
        let text = get(self.metrics)?;
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    }
}

/// The metrics at `address`, if it answers.
fn get(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn gateway(hops: Vec<Hop>, to: SocketAddr) -> Running {
    let mut config = gateway_config(Route::Relays(hops));
    config.forward = vec![forward(to)];
    Running::gateway(&config)
}

fn assert_reset<T: std::fmt::Debug>(result: io::Result<T>) {
    use io::ErrorKind as Kind;
    let kind = result.unwrap_err().kind();
    // Reading, writing and shutting a connection that was reset are refused in words of their own.
    let reset = [Kind::ConnectionReset, Kind::BrokenPipe, Kind::NotConnected].contains(&kind);
    assert!(reset, "{kind}");
}

/// A destination that reads to the end, and says when the first bytes have come.
fn reader() -> (SocketAddr, std::thread::JoinHandle<io::Result<usize>>, mpsc::Receiver<()>) {
    let (started, has_started) = mpsc::channel();
    let (to, served) = destination(move |mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        started.send(()).unwrap();
        digest(&mut stream).map(|(count, _)| count)
    });
    (to, served, has_started)
}

/// Writes without end until that fails.
fn write_for_ever(stream: &mut TcpStream) -> io::Result<()> {
    let block = content(1 << 16);
    loop {
        stream.write_all(&block)?;
    }
}

fn killed_while_data_flows() {
    for _ in 0..10 {
        let (to, served, has_started) = reader();
        let mut process = Process::start();
        let gateway = gateway(vec![process.hop.clone()], to);
        let mut stream = connect(gateway.address());
        let writer = std::thread::spawn(move || write_for_ever(&mut stream));
        has_started.recv().unwrap();
        process.kill();
        assert_reset(served.join().unwrap());
        assert_reset(writer.join().unwrap());
    }
}

fn killed_while_silent() {
    let (to, served, has_started) = reader();
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], to);
    let mut stream = connect(gateway.address());
    stream.write_all(b"ping").unwrap();
    has_started.recv().unwrap();
    process.kill();
    assert_reset(served.join().unwrap());
    assert_reset(digest(&mut stream));
}

fn killed_while_slow() {
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        released.recv().unwrap();
        digest(&mut stream).map(|(count, _)| count)
    });
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], to);
    let mut stream = connect(gateway.address());
    let bytes = content(8_000_000);
    let writer = std::thread::spawn(move || {
        stream.write_all(&bytes)?;
        stream.shutdown(std::net::Shutdown::Write)?;
        digest(&mut stream)
    });
    wait_for("bytes in the relay", || {
        let moved = "tradewind_relay_moved_bytes_total{direction=\"up\"}";
        process.metric(moved).is_some_and(|bytes| bytes > 100_000.0)
    });
    process.kill();
    release.send(()).unwrap();
    assert_reset(served.join().unwrap());
    assert_reset(writer.join().unwrap());
}

fn middle_killed() {
    let (to, served, has_started) = reader();
    let (first, last) = (Running::relay(&relay_config()), Running::relay(&relay_config()));
    let mut middle = Process::start();
    let hops = vec![first.hop("first"), middle.hop.clone(), last.hop("last")];
    let gateway = gateway(hops, to);
    let mut stream = connect(gateway.address());
    let writer = std::thread::spawn(move || write_for_ever(&mut stream));
    has_started.recv().unwrap();
    middle.kill();
    assert_reset(served.join().unwrap());
    assert_reset(writer.join().unwrap());
}

fn killed_when_half_closed() {
    let (told, is_told) = mpsc::channel::<()>();
    let (release, released) = mpsc::channel::<()>();
    let (to, served) = destination(move |mut stream| {
        let received = digest(&mut stream).unwrap().0;
        told.send(()).unwrap();
        released.recv().unwrap();
        (received, write_for_ever(&mut stream))
    });
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], to);
    let mut stream = connect(gateway.address());
    send(&mut stream, b"all of it");
    is_told.recv().unwrap();
    process.kill();
    release.send(()).unwrap();
    assert_reset(digest(&mut stream));
    let (received, answer) = served.join().unwrap();
    assert_eq!(received, 9);
    assert_reset(answer);
}

fn ping(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(b"ping")?;
    stream.read_exact(&mut [0; 4])
}

fn few_descriptors() {
    const LIMIT: usize = 64;
    // Seven eighths of the descriptors, less 16, two for each session.
    const AFFORDABLE: usize = 20;
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -n {LIMIT}; exec \"$0\"")]);
    command.arg(std::env::current_exe().unwrap());
    let process = Process::start_by(command);
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut streams: Vec<TcpStream> = (0..LIMIT).map(|_| connect(gateway.address())).collect();
    let served: Vec<bool> = streams.iter_mut().map(|stream| ping(stream).is_ok()).collect();
    assert_eq!(served.iter().filter(|served| **served).count(), AFFORDABLE);
    assert_eq!(process.metric("tradewind_relay_shed_total"), Some(0.0));
    for (mut stream, served) in streams.into_iter().zip(served) {
        assert!(!served || ping(&mut stream).is_ok(), "a session that is open goes on");
    }
    wait_for("room", || ping(&mut connect(gateway.address())).is_ok());
}

fn out_of_descriptors() {
    let process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut open: Vec<TcpStream> = (0..8).map(|_| connect(gateway.address())).collect();
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
    // From now on no more than it has.
    let limit = |descriptors: &str| {
        let pid = process.child.id().to_string();
        let limit = format!("--nofile={descriptors}:");
        let mut command = Command::new("prlimit");
        assert!(command.args(["--pid", &pid, &limit]).status().unwrap().success());
    };
    let in_use = |number: &u32| {
        let path = format!("/proc/{}/fd/{number}", process.child.id());
        std::fs::symlink_metadata(path).is_ok()
    };
    let lowest_free = (0..).find(|number| !in_use(number)).unwrap();
    limit(&lowest_free.to_string());
    let waiting: Vec<TcpStream> = (0..20).map(|_| connect(process.hop.address)).collect();
    for mut stream in waiting {
        assert!(digest(&mut stream).is_err(), "turned away at once");
    }
    assert!(ping(&mut connect(gateway.address())).is_err());
    open.iter_mut().for_each(|stream| ping(stream).unwrap());
    limit("1024");
    wait_for("recovery", || ping(&mut connect(gateway.address())).is_ok());
    let shed = process.metric("tradewind_relay_shed_total").unwrap();
    assert!(shed >= 20.0, "{shed} of 20 were turned away for want of a descriptor");
}

/// A gateway that forwards to `to` over the first of `paths` that is fit.
fn gateway_of_paths(paths: Vec<Vec<Hop>>, to: SocketAddr) -> Running {
    let mut config = gateway_config(Route::Refuse);
    let routes = paths.into_iter().map(Route::Relays).collect();
    config.routes = RouteTable::with_fallbacks(Vec::new(), routes).unwrap();
    config.forward = vec![forward(to)];
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    Running::gateway(&config)
}

/// Whether the gateway says that `path` is in `state`.
fn path_is(gateway: &Running, path: &str, state: &str) -> bool {
    let labels = format!("{{path=\"{path}\",state=\"{state}\"}} 1.0");
    let metrics = gateway.handle.metrics_addr().unwrap();
    get(metrics).is_some_and(|text| text.contains(&labels))
}

/// New sessions open and carry, whatever becomes of the old ones.
fn new_sessions_work(gateway: &Running) {
    for _ in 0..5 {
        ping(&mut connect(gateway.address())).unwrap();
    }
}

fn stopped() {
    let process = Process::start();
    let second = Running::relay(&relay_config());
    let paths = vec![vec![process.hop.clone()], vec![second.hop("second")]];
    let gateway = gateway_of_paths(paths, echo());
    wait_for("the first path", || path_is(&gateway, "process", "good"));
    wait_for("the second path", || path_is(&gateway, "second", "good"));
    let mut old = connect(gateway.address());
    ping(&mut old).unwrap();
    // Its kernel still takes connections, so that only an unanswered probe tells.
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

fn second_killed() {
    let first = Running::relay(&relay_config());
    let mut process = Process::start();
    let paths = vec![vec![first.hop("first"), process.hop.clone()], vec![first.hop("first")]];
    let gateway = gateway_of_paths(paths, echo());
    wait_for("both paths", || {
        path_is(&gateway, "first > process", "good") && path_is(&gateway, "first", "good")
    });
    process.kill();
    let begun = Instant::now();
    // Until it is found, each session is told that the second relay could not be dialled, and goes on.
    new_sessions_work(&gateway);
    wait_for("the path to be left", || path_is(&gateway, "first > process", "dead"));
    print!("left {} ms after SIGKILL ... ", begun.elapsed().as_millis());
    new_sessions_work(&gateway);
}

fn signals() {
    let mut process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    process.terminate();
    wait_for("the listener to close", || TcpStream::connect(process.hop.address).is_err());
    ping(&mut stream).unwrap();
    process.terminate();
    let status = process.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    assert_reset(ping(&mut stream));
}
