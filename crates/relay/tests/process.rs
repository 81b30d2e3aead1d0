//! A relay or gateway as a process of its own: killed, out of descriptors, ended by signals,
//! upgraded.
//!
//! This program is its own child: called with a configuration it is a relay or a gateway, otherwise
//! it runs the tests one after the other.
#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod support;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use support::{
    Running, connect, content, destination, digest, echo, forward, gateway_config,
    gateway_config_text, grant_for, identity, loopback, relay_config, relay_config_text,
    relay_loopback, send, set_plain, unix_now, wait_for,
};
use tradewind_desired::{Hop, Route, RouteTable};
use tradewind_grant::{
    self as grant, Destination, Nonce, PublicIdentity, Request, RevocationList, Sealer, Status,
};
use tradewind_net::processes;
use tradewind_relay::{Gateway, GatewayConfig, Handle, Relay, RelayConfig, Reloads, Shutdown};
use tradewind_telemetry::logs::FILTER_VARIABLE;
use tradewind_telemetry::{LogFormat, init_logs};

/// The file of a relay's configuration, and of a gateway's.
const RELAY_CONFIG: &str = "TRADEWIND_TEST_RELAY_CONFIG";
const GATEWAY_CONFIG: &str = "TRADEWIND_TEST_GATEWAY_CONFIG";
/// The variable that is set if the process is to log.
const LOGS: &str = "TRADEWIND_TEST_LOGS";

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
    ("a_stalled_reader_of_standard_error_stops_no_session", stalled_standard_error),
    ("an_upgrade_under_load_refuses_and_loses_nothing", upgrade_of_a_relay),
    ("an_upgrade_of_a_gateway_under_load_refuses_and_loses_nothing", upgrade_of_a_gateway),
    ("what_one_process_accepted_is_a_replay_to_the_next", upgrade_and_replays),
    (
        "a_successor_that_stands_still_keeps_headers_waiting_and_no_session",
        upgrade_to_one_that_stops,
    ),
    ("a_successor_that_fails_changes_nothing", upgrade_that_fails),
    ("a_successor_that_declines_is_told_in_its_own_words", upgrade_that_is_declined),
    ("a_listener_that_systemd_passes_is_served_and_handed_on", passed_by_systemd),
    ("sighup_takes_a_policy_over_and_ends_what_it_allows_no_more", reload_of_a_policy),
    ("sighup_takes_operators_over_and_ends_what_others_granted", reload_of_operators),
    ("a_file_that_cannot_be_taken_over_changes_nothing_and_is_told", reload_that_fails),
    ("sighup_takes_a_gateways_routes_over", reload_of_a_gateway),
    ("a_revocation_ends_sessions_and_refuses_new_ones_with_its_own_cause", revocation),
    ("signals_without_a_meaning_are_ignored_with_a_line", signals_without_meaning),
];

fn main() {
    if let Ok(config) = std::env::var(RELAY_CONFIG) {
        return be_a_relay(&config);
    }
    if let Ok(config) = std::env::var(GATEWAY_CONFIG) {
        return be_a_gateway(&config);
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let filters: Vec<&String> = arguments.iter().filter(|word| !word.starts_with('-')).collect();
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|word| name.contains(*word));
    for (plain, legs) in [(false, "encrypted"), (true, "plain")] {
        set_plain(plain);
        for (name, test) in TESTS.iter().filter(|(name, _)| wanted(name)) {
            if arguments.iter().any(|word| word == "--list") {
                println!("{name}, {legs}: test");
                continue;
            }
            print!("test {name}, {legs} ... ");
            io::stdout().flush().unwrap();
            test();
            println!("ok");
        }
    }
}

fn be_a_relay(file: &str) {
    let shutdown = be_a_child();
    let config = fs::read_to_string(file).unwrap();
    let relay = RelayConfig::parse(&config).and_then(|config| Relay::bind(&config));
    let relay = relay.unwrap_or_else(|error| {
        // As the program `tradewind` does.
        tradewind_net::handover::decline(&error.to_string());
        std::process::exit(1);
    });
    let reloads = Reloads::new(Path::new(file), &config).with(relay.reloader());
    reloads.start(false, &shutdown).unwrap();
    say_where(&relay.handle());
    relay.run(&shutdown).unwrap();
}

fn be_a_gateway(file: &str) {
    let shutdown = be_a_child();
    let config = fs::read_to_string(file).unwrap();
    let gateway = Gateway::bind(&GatewayConfig::parse(&config).unwrap()).unwrap();
    let reloads = Reloads::new(Path::new(file), &config).with(gateway.reloader());
    reloads.start(false, &shutdown).unwrap();
    say_where(&gateway.handle());
    gateway.run(&shutdown).unwrap();
}

/// Handles signals, and ends when the tests do, however they end.
fn be_a_child() -> Shutdown {
    std::thread::spawn(|| {
        let _closed = io::stdin().read(&mut [0]);
        std::process::exit(9);
    });
    if std::env::var_os(LOGS).is_some() {
        init_logs(LogFormat::Text, "info").unwrap();
    }
    Shutdown::on_signals().unwrap()
}

/// Prints the addresses on which it listens and serves metrics, in one line.
fn say_where(handle: &Handle) {
    println!("{} {}", handle.local_addrs()[0], handle.metrics_addr().unwrap());
}

/// A relay or gateway in a process of its own; killed when dropped.
struct Process {
    child: Child,
    /// Held open apart, since waiting for a child closes it.
    _stdin: ChildStdin,
    hop: Hop,
    metrics: SocketAddr,
    file: PathBuf,
    /// The configuration at the start.
    config: String,
    /// Its successors write here, too.
    stdout: BufReader<ChildStdout>,
}

impl Process {
    fn start() -> Self {
        Self::start_by(Command::new(std::env::current_exe().unwrap()))
    }

    fn start_by(command: Command) -> Self {
        Self::start_at(command, relay_loopback())
    }

    fn start_at(command: Command, listen: SocketAddr) -> Self {
        let key = identity();
        let config = relay_config_text(&key).replace("127.0.7.1:0", &listen.to_string());
        Self::start_as((RELAY_CONFIG, &config), key.public(), command)
    }

    /// Starts a gateway that forwards to `to` over a relay.
    fn gateway(relay: &Hop, to: SocketAddr) -> Self {
        let key = identity();
        let config = gateway_config_text(&key, relay, to);
        let command = Command::new(std::env::current_exe().unwrap());
        Self::start_as((GATEWAY_CONFIG, &config), key.public(), command)
    }

    fn start_as(
        (variable, config): (&str, &str),
        identity: PublicIdentity,
        mut command: Command,
    ) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let name = format!("tradewind-process-{}-{number}.toml", std::process::id());
        let file = std::env::temp_dir().join(name);
        let config = format!("metrics = '127.0.0.1:0'\n{config}");
        fs::write(&file, &config).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        command.env(variable, &file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        stdout.read_line(&mut line).unwrap();
        let (address, metrics) = line.trim().split_once(' ').unwrap();
        let hop =
            Hop { name: "process".parse().unwrap(), address: address.parse().unwrap(), identity };
        let stdin = child.stdin.take().unwrap();
        let metrics = metrics.parse().unwrap();
        Self { child, _stdin: stdin, hop, metrics, file, config, stdout }
    }

    /// Reloads it with another configuration.
    fn reload(&self, config: &str) {
        fs::write(&self.file, config).unwrap();
        self.signal("HUP");
    }

    /// Sends SIGKILL, and waits until the process is gone.
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

    /// Upgrades it, and waits until its successor is about to serve.
    fn upgrade(&mut self) {
        self.signal("USR2");
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert!(line.starts_with(&self.hop.address.to_string()), "{line}");
    }

    /// Returns a value of its metrics, if it answers.
    fn metric(&self, name: &str) -> Option<f64> {
        let text = get(self.metrics)?;
        text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    }
}

/// Returns the metrics at `address`, if it answers.
fn get(address: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect(address).ok()?;
    let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    Some(text)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
        let _gone = fs::remove_file(&self.file);
    }
}

/// The log of a process, in a file that is removed with this.
struct Log(PathBuf);

impl Log {
    /// Returns the command of a process that logs there.
    fn command(&self) -> Command {
        self.command_of(std::env::current_exe().unwrap())
    }

    fn command_of(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env(LOGS, "1").stderr(fs::File::create(&self.0).unwrap());
        command
    }

    fn new(name: &str) -> Self {
        let name = format!("tradewind-process-{}-{name}.log", std::process::id());
        Self(std::env::temp_dir().join(name))
    }

    /// Waits for a line with all of `words`, and returns it.
    fn wait_for(&self, words: &[&str]) -> String {
        let mut found = None;
        wait_for(&format!("{words:?} in the log"), || {
            let text = fs::read_to_string(&self.0).unwrap();
            let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
            found = text.lines().find(is_it).map(str::to_owned);
            found.is_some()
        });
        found.unwrap()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
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
    // Reading, writing and shutting a connection that was reset fail with different errors.
    let reset = [Kind::ConnectionReset, Kind::BrokenPipe, Kind::NotConnected].contains(&kind);
    assert!(reset, "{kind}");
}

/// Starts a destination that reads to the end, and signals the first bytes.
fn reader() -> (SocketAddr, std::thread::JoinHandle<io::Result<usize>>, mpsc::Receiver<()>) {
    let (started, has_started) = mpsc::channel();
    let (to, served) = destination(move |mut stream| {
        stream.read_exact(&mut [0; 4]).unwrap();
        started.send(()).unwrap();
        digest(&mut stream).map(|(count, _)| count)
    });
    (to, served, has_started)
}

/// Writes until that fails.
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
    const LIMIT: usize = 256;
    const CLIENTS: usize = 96;
    let log = Log::new("descriptors");
    let mut command = log.command_of("sh");
    command.args(["-c", &format!("ulimit -n {LIMIT}; exec \"$0\"")]);
    command.arg(std::env::current_exe().unwrap());
    let process = Process::start_by(command);
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut streams: Vec<TcpStream> = (0..CLIENTS).map(|_| connect(gateway.address())).collect();
    let served: Vec<bool> = streams.iter_mut().map(|stream| ping(stream).is_ok()).collect();
    let count = served.iter().filter(|served| **served).count();
    // Half of the sessions that it logs as its limit, which are the share of one gateway.
    let line = log.wait_for(&[&format!("{LIMIT} descriptors, "), " sessions, not "]);
    let (_, rest) = line.split_once(" allow ").unwrap();
    let affordable: usize = rest.split(' ').next().unwrap().parse().unwrap();
    assert!(affordable < CLIENTS, "fewer than what asks for them: {line}");
    assert_eq!(count, affordable.div_ceil(2), "{line}");
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
    // From now on no more descriptors than it has.
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

/// Starts a gateway that forwards to `to` over the first healthy path of `paths`.
fn gateway_of_paths(paths: Vec<Vec<Hop>>, to: SocketAddr) -> Running {
    let mut config = gateway_config(Route::Refuse);
    let routes = paths.into_iter().map(Route::Relays).collect();
    config.routes = RouteTable::with_fallbacks(Vec::new(), routes).unwrap();
    config.forward = vec![forward(to)];
    config.metrics = Some("127.0.0.1:0".parse().unwrap());
    Running::gateway(&config)
}

/// Returns true if the gateway reports that `path` is in `state`.
fn path_is(gateway: &Running, path: &str, state: &str) -> bool {
    let labels = format!("{{path=\"{path}\",state=\"{state}\"}} 1.0");
    let metrics = gateway.handle.metrics_addr().unwrap();
    get(metrics).is_some_and(|text| text.contains(&labels))
}

/// Checks that new sessions open and carry data.
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
    // Until it is detected, each session gets the reply that the second relay could not be dialled,
    // and goes on.
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

/// Checks a process whose log's reader reads nothing, like a terminal after Ctrl-S.
fn stalled_standard_error() {
    /// Causes of one line each, which exceed a pipe several times.
    const CAUSES_OF_LINES: usize = 3000;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(LOGS, "1").env(FILTER_VARIABLE, "debug").stderr(Stdio::piped());
    let mut process = Process::start_by(command);
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut old = connect(gateway.address());
    ping(&mut old).unwrap();
    for _ in 0..CAUSES_OF_LINES {
        let _reset = connect(process.hop.address).write_all(&[0x55; 64]);
    }
    wait_for("a line for each", || {
        process.metric("tradewind_relay_accepted_total") >= Some(CAUSES_OF_LINES as f64)
    });
    ping(&mut old).unwrap();
    let mut stream = connect(gateway.address());
    let bytes = content(20_000_000);
    let (mut writing, sent) = (stream.try_clone().unwrap(), bytes.clone());
    let writer = std::thread::spawn(move || send(&mut writing, &sent));
    assert_eq!(digest(&mut stream).unwrap(), digest(&mut &bytes[..]).unwrap());
    writer.join().unwrap();
    drop(old);
    process.terminate();
    let status = process.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
}

/// Opens short sessions one after the other until stopped; panics when one is refused or lost.
fn short_sessions(
    address: SocketAddr,
    over: &Arc<AtomicBool>,
    count: &Arc<AtomicUsize>,
) -> std::thread::JoinHandle<()> {
    let (over, count) = (Arc::clone(over), Arc::clone(count));
    std::thread::spawn(move || {
        while !over.load(Relaxed) {
            let mut stream = connect(address);
            ping(&mut stream).expect("served");
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(digest(&mut stream).expect("ended in order").0, 0);
            count.fetch_add(1, Relaxed);
        }
    })
}

fn upgrade_of_a_relay() {
    let process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    upgrade_under_load(process, gateway.address(), "tradewind_relay");
}

fn upgrade_of_a_gateway() {
    let relay = Running::relay(&relay_config());
    let process = Process::gateway(&relay.hop("relay"), echo());
    let entrance = process.hop.address;
    upgrade_under_load(process, entrance, "tradewind_gateway");
}

/// Upgrades a process while sessions that it carries begin and end at `entrance`.
fn upgrade_under_load(mut process: Process, entrance: SocketAddr, kind: &str) {
    let mut long = connect(entrance);
    ping(&mut long).unwrap();
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = (0..4).map(|_| short_sessions(entrance, &over, &count)).collect();
    let so_many_more = |many: usize| {
        let before = count.load(Relaxed);
        let ended = || load.iter().any(std::thread::JoinHandle::is_finished);
        wait_for("sessions", || count.load(Relaxed) >= before + many || ended());
    };
    so_many_more(100);
    process.upgrade();
    so_many_more(200);
    // The old process serves its sessions to their end, and ends then.
    ping(&mut long).unwrap();
    assert!(process.child.try_wait().unwrap().is_none());
    long.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(digest(&mut long).unwrap().0, 0);
    let status = process.child.wait().unwrap();
    assert_eq!((status.code(), status.signal()), (Some(0), None));
    so_many_more(100);
    over.store(true, Relaxed);
    load.into_iter().for_each(|load| load.join().unwrap());
    wait_for("the successor's metrics", || {
        process.metric(&format!("{kind}_sessions_total{{outcome=\"ended\"}}")) >= Some(300.0)
    });
}

/// Returns a header for `hop`, sealed now; the key of its reply is not needed.
fn sealed(sealer: &mut Sealer, hop: &Hop, nonce: u8) -> Vec<u8> {
    let hop = grant::Hop { address: hop.address, identity: hop.identity };
    let route = grant::Route::new(vec![hop]).unwrap();
    let destination = Destination::address(echo()).unwrap();
    let flow = "test".parse().unwrap();
    let request = Request { flow: &flow, destination: &destination, route: &route };
    sealer.seal(unix_now(), Nonce::from_entropy([nonce; 16]), &request).unwrap().bytes
}

/// Returns the status with which a relay answers `header` on `stream`.
fn status_of(mut stream: &TcpStream, header: &[u8]) -> u8 {
    stream.write_all(header).unwrap();
    let mut answer = [0; 7];
    stream.read_exact(&mut answer).unwrap();
    answer[6]
}

fn upgrade_and_replays() {
    // The test itself writes its headers.
    set_plain(true);
    let mut process = Process::start();
    let address = process.hop.address;
    let key = identity();
    let grant = grant_for(key.public());
    let mut sealer = Sealer::new(key, grant).unwrap();
    let mut header = |nonce| sealed(&mut sealer, &process.hop, nonce);
    let (before, on_its_way, after, late) = (header(1), header(2), header(3), header(4));
    assert_eq!(status_of(&connect(address), &before), Status::Ok as u8);
    // Connections that the old process has, and whose headers it reads when the new one serves.
    let with_old: Vec<_> = (0..3).map(|_| connect(address)).collect();
    let held = "tradewind_relay_open_sessions";
    wait_for("the old process to have them", || process.metric(held) >= Some(3.0));
    process.upgrade();
    wait_for("the new process", || status_of(&connect(address), &before) == Status::Replayed as u8);
    assert_eq!(
        status_of(&connect(address), &on_its_way),
        Status::Ok as u8,
        "honest, and sealed before"
    );
    assert_eq!(status_of(&connect(address), &after), Status::Ok as u8);
    assert_eq!(status_of(&with_old[0], &after), Status::Replayed as u8, "the new one accepted it");
    assert_eq!(status_of(&with_old[1], &late), Status::Ok as u8);
    assert_eq!(
        status_of(&connect(address), &late),
        Status::Replayed as u8,
        "the old one accepted it"
    );
    assert_eq!(status_of(&with_old[2], &before), Status::Replayed as u8);
}

/// A process that is halted until this is dropped.
struct Halted(u32);

impl Halted {
    /// Halts the only child of a process.
    fn child_of(process: u32) -> Self {
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        let children = threads.map(|task| fs::read_to_string(task.path().join("children")));
        let children = children.map(|list| list.unwrap_or_default()).collect::<String>();
        let child = children.split_whitespace().next().unwrap().parse().unwrap();
        processes::pause(child).unwrap();
        Self(child)
    }
}

impl Drop for Halted {
    fn drop(&mut self) {
        processes::resume(self.0).unwrap();
    }
}

fn upgrade_to_one_that_stops() {
    // The test itself writes its headers.
    set_plain(true);
    let mut process = Process::start();
    let address = process.hop.address;
    let key = identity();
    let mut sealer = Sealer::new(key.clone(), grant_for(key.public())).unwrap();
    let mut header = |nonce| sealed(&mut sealer, &process.hop, nonce);
    let (before, late) = (header(1), header(2));
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut carried = connect(gateway.address());
    ping(&mut carried).unwrap();
    assert_eq!(status_of(&connect(address), &before), Status::Ok as u8);
    let waiting: Vec<_> = (0..3).map(|_| connect(address)).collect();
    let held = "tradewind_relay_open_sessions";
    wait_for("the old process to have them", || process.metric(held) >= Some(4.0));
    process.upgrade();
    wait_for("the new process", || status_of(&connect(address), &before) == Status::Replayed as u8);
    let halted = Halted::child_of(process.child.id());
    (&waiting[0]).write_all(&late).unwrap();
    for _ in 0..5 {
        ping(&mut carried).unwrap();
    }
    // The header waits still, while open sessions went on.
    waiting[0].set_nonblocking(true).unwrap();
    let told = waiting[0].peek(&mut [0]).unwrap_err();
    assert_eq!(told.kind(), io::ErrorKind::WouldBlock);
    drop(halted);
}

fn upgrade_that_fails() {
    // The program's file is gone when its successor is to be started.
    let copy = std::env::temp_dir().join(format!("tradewind-upgrade-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let process = Process::start_by(Command::new(&copy));
    std::fs::remove_file(&copy).unwrap();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    process.signal("USR2");
    for _ in 0..20 {
        ping(&mut connect(gateway.address())).unwrap();
    }
    ping(&mut stream).unwrap();
}

fn upgrade_that_is_declined() {
    let log = Log::new("declined");
    let process = Process::start_by(log.command());
    let gateway = gateway(vec![process.hop.clone()], echo());
    let bad = process.config.replace(ALL_DESTINATIONS, "destinations = ['192.0.2.1/33:*']");
    fs::write(&process.file, bad).unwrap();
    process.signal("USR2");
    log.wait_for(&["nothing has changed", "the new process says", "policy.destinations"]);
    ping(&mut connect(gateway.address())).unwrap();
}

fn passed_by_systemd() {
    let listener = std::net::TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    // The shell moves the listener from the log's descriptor to that of systemd.
    let mut command = Command::new("sh");
    let script = "exec 3>&2 2>/dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\"";
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command.stderr(Stdio::from(std::os::fd::OwnedFd::from(listener.try_clone().unwrap())));
    let mut process = Process::start_at(command, address);
    assert_eq!(process.hop.address, address);
    let gateway = gateway(vec![process.hop.clone()], echo());
    ping(&mut connect(gateway.address())).unwrap();
    process.upgrade();
    for _ in 0..20 {
        ping(&mut connect(gateway.address())).unwrap();
    }
}

/// The rule of a relay's policy that covers all of loopback, and one for a single destination.
const ALL_DESTINATIONS: &str =
    "destinations = ['127.0.0.0/8:*', '[::1]/128:*', '*.example.com:*', '*.invalid:*']";

fn only(to: SocketAddr) -> String {
    format!("destinations = ['{}/32:{}']", to.ip(), to.port())
}

/// Waits until `stream` is reset, and returns the time taken.
fn reset_after(stream: &mut TcpStream) -> Duration {
    let begun = Instant::now();
    assert_reset(stream.read_exact(&mut [0; 1]));
    begun.elapsed()
}

fn reload_of_a_policy() {
    let (kept, dropped) = (echo(), echo());
    let log = Log::new("policy");
    let process = Process::start_by(log.command());
    let to_kept = gateway(vec![process.hop.clone()], kept);
    let to_dropped = gateway(vec![process.hop.clone()], dropped);
    let (mut stays, mut goes) = (connect(to_kept.address()), connect(to_dropped.address()));
    ping(&mut stays).unwrap();
    ping(&mut goes).unwrap();
    process.reload(&process.config.replace(ALL_DESTINATIONS, &only(kept)));
    print!("ended {} ms after SIGHUP ... ", reset_after(&mut goes).as_millis());
    ping(&mut stays).unwrap();
    ping(&mut connect(to_kept.address())).unwrap();
    assert_reset(ping(&mut connect(to_dropped.address())));
    log.wait_for(&["taken over", "1 session ended"]);
    assert_eq!(process.metric("tradewind_relay_sessions_total{outcome=\"revoked\"}"), Some(1.0));
    process.reload(&process.config);
    wait_for("the old policy", || ping(&mut connect(to_dropped.address())).is_ok());
    ping(&mut stays).unwrap();
}

fn reload_of_operators() {
    let process = Process::start();
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    let ours = support::operator().public().to_string();
    let other = grant::OperatorKey::from_entropy([8; 32]).public().to_string();
    let both = format!("{ours}', '{other}");
    process.reload(&process.config.replace(&ours, &both));
    process.reload(&process.config.replace(&ours, &both));
    ping(&mut stream).unwrap();
    process.reload(&process.config.replace(&ours, &other));
    reset_after(&mut stream);
    assert_reset(ping(&mut connect(gateway.address())));
    process.reload(&process.config);
    wait_for("the operator", || ping(&mut connect(gateway.address())).is_ok());
}

fn reload_that_fails() {
    let log = Log::new("fails");
    let process = Process::start_by(log.command());
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    // Its valid parts are not applied either.
    let nothing = process.config.replace(ALL_DESTINATIONS, "destinations = ['192.0.2.1/33:*']");
    process.reload(&nothing);
    log.wait_for(&["policy.destinations", "nothing of it is taken over"]);
    ping(&mut stream).unwrap();
    ping(&mut connect(gateway.address())).unwrap();
    let restart = process.config.replace("workers = 1", "workers = 2");
    process.reload(&restart);
    log.wait_for(&["`workers`: takes effect after an upgrade (SIGUSR2) or a restart"]);
    // Limits are applied, except those of listeners.
    let limits = "[limits]\nsessions = 1\nbacklog = 7\neach_gateway = { sessions = 1 }\n";
    process.reload(&process.config.replace("[policy]", &format!("{limits}[policy]")));
    log.wait_for(&["`limits.backlog`: takes effect after an upgrade (SIGUSR2) or a restart"]);
    assert!(ping(&mut connect(gateway.address())).is_err(), "there are more than one already");
    process.reload(&restart);
    wait_for("room", || ping(&mut connect(gateway.address())).is_ok());
    let text = fs::read_to_string(&log.0).unwrap();
    let refused = text.lines().find(|line| line.contains("nothing of it")).unwrap();
    assert!(!refused.contains("restart"), "{refused}");
    ping(&mut stream).unwrap();
}

fn reload_of_a_gateway() {
    let relays = [Running::relay(&relay_config()), Running::relay(&relay_config())];
    let (first, second) = (relays[0].hop("first"), relays[1].hop("second"));
    let process = Process::gateway(&first, echo());
    let mut stream = connect(process.hop.address);
    ping(&mut stream).unwrap();
    let moved = process.config.replace(&first.address.to_string(), &second.address.to_string());
    let moved = moved.replace(&first.identity.to_string(), &second.identity.to_string());
    process.reload(&moved);
    wait_for("the second relay", || {
        ping(&mut connect(process.hop.address)).unwrap();
        relays[1].handle.snapshot().accepted > 0
    });
    ping(&mut stream).unwrap();
}

/// A file of the tests, which is removed with this.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _gone = fs::remove_file(&self.0);
    }
}

fn revocation() {
    let list = |version, gateways: &[PublicIdentity]| {
        let gateways = gateways.iter().copied().collect();
        let list = RevocationList { version, gateways, ..RevocationList::default() };
        format!("# of the tests\n{}\n", list.sign(&support::operator()).unwrap())
    };
    let name = format!("tradewind-revoked-{}", std::process::id());
    let (file, log) = (Scratch(std::env::temp_dir().join(name)), Log::new("revoked"));
    fs::write(&file.0, list(1, &[])).unwrap();
    let key = identity();
    let config = relay_config_text(&key);
    let config = format!("revocations = '{}'\n{config}", file.0.display());
    let process = Process::start_as((RELAY_CONFIG, &config), key.public(), log.command());
    let gateways = [0, 1].map(|_| gateway(vec![process.hop.clone()], echo()));
    let [mut stays, mut goes] = [0, 1].map(|at| connect(gateways[at].address()));
    ping(&mut stays).unwrap();
    ping(&mut goes).unwrap();
    // The process gets no signal.
    let revoked = gateways[1].identity();
    fs::write(&file.0, list(3, &[revoked])).unwrap();
    print!("ended {} ms after the list ... ", reset_after(&mut goes).as_millis());
    log.wait_for(&["revocations: taken over", "1 session ended"]);
    assert_reset(ping(&mut connect(gateways[1].address())));
    log.wait_for(&["refused: ", &format!("gateway {revoked} was revoked by operator key")]);
    wait_for("the count", || {
        let name = "tradewind_relay_sessions_total{outcome=\"grant_revoked\"}";
        process.metric(name).is_some_and(|count| count >= 1.0)
    });
    // An older list, by itself and at a reload.
    fs::write(&file.0, list(2, &[])).unwrap();
    log.wait_for(&["version 2 of the revocation list", "version 3, which is in force"]);
    process.reload(&process.config);
    log.wait_for(&["version 2 of the revocation list", "what was in force before stays"]);
    assert_reset(ping(&mut connect(gateways[1].address())));
    fs::write(&file.0, "nonsense").unwrap();
    log.wait_for(&["line 1: revocation list: it does not begin with its prefix"]);
    ping(&mut stays).unwrap();
    fs::write(&file.0, list(4, &[])).unwrap();
    wait_for("the gateway", || ping(&mut connect(gateways[1].address())).is_ok());
    ping(&mut stays).unwrap();
}

fn signals_without_meaning() {
    let log = Log::new("signals");
    let process = Process::start_by(log.command());
    let gateway = gateway(vec![process.hop.clone()], echo());
    let mut stream = connect(gateway.address());
    ping(&mut stream).unwrap();
    for name in ["USR1", "ALRM", "VTALRM", "PROF", "IO", "PWR", "XCPU", "XFSZ", "RTMIN+3"] {
        process.signal(name);
        log.wait_for(&[&format!("SIG{name} has no meaning here and is ignored")]);
    }
    process.signal("PIPE");
    ping(&mut stream).unwrap();
    ping(&mut connect(gateway.address())).unwrap();
}
