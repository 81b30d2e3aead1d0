//! A relay and a gateway with embedded learners, without a daemon.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};

use serde_json::Value;
use tradewind_grant::IdentityKey;

use crate::common::ended;
use crate::legs::{RemoteRelay, Session, gateway_text, operator, windows_to};
use crate::missing::{NO_EBPF, has};
use crate::sockops::can_attach;
use crate::world::{Guard, PROGRAM, World, until};

/// Settings of a learner that polls often and forgets soon.
pub(crate) const LEARN: &str = "\n[jumpstart.learn]\nttl = '5 s'\ncontrol_share = 0\n\
                                [jumpstart.observe]\ninterval = '100 ms'\n";
/// Settings of a relay for connections that send nothing.
pub(crate) const LONG_TIMEOUTS: &str = "[timeouts]\nheader = '10 min'\n";

/// Returns a relay's configuration on the near host.
pub(crate) fn relay_text(more: &str) -> String {
    relay_text_at("10.1.0.1:0", more)
}

/// Returns a relay's configuration that listens at `address`.
pub(crate) fn relay_text_at(address: &str, more: &str) -> String {
    format!(
        "listen = ['{address}']\nidentity = '{}'\noperators = ['{}']\nworkers = 1\n\
         [policy]\ndestinations = ['10.0.0.0/8:*', '[fd10::]/16:*']\n{more}",
        *IdentityKey::from_entropy([2; 32]).to_secret_text(),
        operator().public(),
    )
}

/// A process with an embedded learner, and its ready message.
pub(crate) struct Learning {
    pub(crate) process: Guard,
    /// Its successors write here, too.
    pub(crate) stdout: BufReader<ChildStdout>,
    pub(crate) ready: Value,
}

impl Learning {
    /// Starts `role` with the configuration `text` in the file `name`, through `wrapper`.
    pub(crate) fn start(
        world: &World,
        role: &str,
        name: &str,
        text: &str,
        wrapper: &[&str],
    ) -> Self {
        let file = world.directory.join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let line = [wrapper, &[PROGRAM, role, "--config", file.to_str().unwrap()]].concat();
        let mut command = Command::new(line[0]);
        command.args(&line[1..]).env("TRADEWIND_RUNTIME_DIR", &world.directory);
        command.env("TRADEWIND_LOG", "off").stdin(Stdio::null()).stdout(Stdio::piped());
        let mut process = Guard(world.near.run(|| command.spawn().unwrap()).unwrap());
        let mut stdout = BufReader::new(process.0.stdout.take().unwrap());
        let ready = next_line(&mut stdout);
        Self { process, stdout, ready }
    }

    /// Upgrades to a successor, and waits until that is ready.
    pub(crate) fn hand_over(&mut self) {
        self.process.signal("USR2");
        let ready = next_line(&mut self.stdout);
        assert_eq!(ready["jumpstart"], self.ready["jumpstart"]);
    }

    pub(crate) fn listen(&self) -> SocketAddr {
        self.ready["listen"][0].as_str().unwrap().parse().unwrap()
    }

    fn identity(&self) -> &str {
        self.ready["identity"].as_str().unwrap()
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.ready["jumpstart"]["socket"].as_str().unwrap().into()
    }
}

pub(crate) fn next_line(stdout: &mut BufReader<ChildStdout>) -> Value {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

/// Ends the process that serves `socket` now, which is not the `first` one.
pub(crate) fn end_successor(world: &World, socket: &Path, first: u32) {
    let successor = status(world, socket)["process"].as_u64().unwrap();
    assert_ne!(successor, u64::from(first));
    let ended = Command::new("kill").arg(successor.to_string()).status().unwrap();
    assert!(ended.success());
    until("the successor's end", || !socket.exists());
}

pub(crate) fn status(world: &World, socket: &Path) -> Value {
    asked(world, socket, &["status"])
}

pub(crate) fn asked(world: &World, socket: &Path, question: &[&str]) -> Value {
    let at = ["--socket", socket.to_str().unwrap(), "--output", "json"];
    let answer = world.ask(&[question, &at].concat());
    serde_json::from_str(&answer).unwrap_or_default()
}

/// Returns the learner's state of the remote host.
fn known(world: &World, socket: &Path) -> Value {
    known_of(world, socket, "10.1.0.2")
}

/// Returns the learner's state of the host at `address`.
pub(crate) fn known_of(world: &World, socket: &Path, address: &str) -> Value {
    asked(world, socket, &["explain", address])["destination"].take()
}

/// Returns the window in force towards the remote host.
pub(crate) fn learned(world: &World, socket: &Path) -> Option<u64> {
    learned_of(world, socket, "10.1.0.2")
}

/// Returns the window in force towards the host at `address`.
pub(crate) fn learned_of(world: &World, socket: &Path, address: &str) -> Option<u64> {
    let known = known_of(world, socket, address);
    (known["in_force"] == true).then(|| known["window_segments"].as_u64().unwrap())
}

/// Runs `open`, whose connections begin with 90 segments, as if their windows had grown to that.
pub(crate) fn with_large_windows<T>(world: &World, open: impl FnOnce() -> T) -> T {
    let route = "10.1.0.0/24 dev wa proto kernel scope link src 10.1.0.1";
    with_large_windows_over(world, route, open)
}

/// Runs `open`, whose connections over `route` begin with 90 segments.
pub(crate) fn with_large_windows_over<T>(
    world: &World,
    route: &str,
    open: impl FnOnce() -> T,
) -> T {
    let route = &format!("route replace {route}");
    crate::world::ip(&world.near, &format!("{route} initcwnd 90"));
    let opened = open();
    crate::world::ip(&world.near, route);
    opened
}

/// Starts a gateway on the near host whose sessions go over `relay`.
pub(crate) fn before(world: &World, relay: &Learning) -> Learning {
    let text = gateway_text(relay.listen(), relay.identity(), "");
    Learning::start(world, "gateway", "gateway.toml", &text, &[])
}

/// Returns the metrics of `process`.
fn metrics(world: &World, process: &Learning) -> String {
    let address: SocketAddr = process.ready["metrics"].as_str().unwrap().parse().unwrap();
    let mut stream = world.near.run(|| TcpStream::connect(address).unwrap()).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn relay_applies_learned_windows_without_daemon() {
    let test = "embedded-relay";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let destination = world.remote.run(|| TcpListener::bind("10.1.0.2:0").unwrap()).unwrap();
    let port = destination.local_addr().unwrap().port();
    let routes = world.routes(&[]);
    let text = format!("metrics = '127.0.0.1:0'\n{}", relay_text(LEARN));
    let mut relay = Learning::start(&world, "relay", "relay.toml", &text, &[]);
    let socket = relay.socket();
    assert_eq!(socket, world.directory.join("jumpstart-relay.sock"));
    assert_eq!(relay.ready["jumpstart"]["through"], "sockops", "{}", relay.ready);
    let gateway = before(&world, &relay);
    let session = |gateway: &Learning| Session::over(&world, gateway.listen(), &destination);
    let windows = || windows_to(&world, port);
    let first = with_large_windows(&world, || session(&gateway));
    assert!(windows().iter().all(|window| *window >= 90), "{:?}", windows());
    until("a large window", || learned(&world, &socket) >= Some(80));
    let next = session(&gateway);
    assert!(windows().iter().all(|window| *window >= 80), "{:?}", windows());
    // Connections of other processes to the same host are not changed, and neither is a route.
    assert_eq!((world.initial_window(), world.routes(&[])), (10, routes.clone()));
    let jumped = "tradewind_jumpstart_starts_total{what=\"jumped\"}";
    until("its metrics", || metrics(&world, &relay).contains(jumped));
    // An unused entry is forgotten after its time to live.
    drop((first, next));
    until("to be forgotten", || known(&world, &socket).is_null());
    let usual = session(&gateway);
    assert!(windows().iter().all(|window| *window < 30), "{:?}", windows());
    drop(usual);
    // Killed with learned values: the next connection begins by default, and the next process finds
    // no obstacle.
    let last = with_large_windows(&world, || session(&gateway));
    until("a large window", || learned(&world, &socket) >= Some(80));
    relay.process.end();
    drop((last, gateway));
    assert_eq!((world.initial_window(), world.routes(&[])), (10, routes));
    let mut relay = Learning::start(&world, "relay", "relay.toml", &text, &[]);
    assert_eq!(
        (relay.socket(), &relay.ready["jumpstart"]["through"]),
        (socket.clone(), &"sockops".into())
    );
    let gateway = before(&world, &relay);
    let usual = session(&gateway);
    assert!(windows().iter().all(|window| *window < 30), "{:?}", windows());
    drop(usual);
    assert_eq!(relay.process.terminate(), Some(0));
    assert!(!socket.exists());
}

#[test]
fn gateway_starts_legs_with_learned_windows() {
    let test = "embedded-gateway";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let relay = RemoteRelay::start(&world.remote);
    let destination = world.remote.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let text = gateway_text(relay.address, &relay.identity, LEARN);
    let mut gateway = Learning::start(&world, "gateway", "gateway.toml", &text, &[]);
    let session = || Session::over(&world, gateway.listen(), &destination);
    let windows = || windows_to(&world, relay.address.port());
    let first = with_large_windows(&world, session);
    until("a large window", || learned(&world, &gateway.socket()) >= Some(80));
    let next = session();
    assert!(windows().iter().all(|window| *window >= 80), "{:?}", windows());
    assert_eq!(world.initial_window(), 10);
    drop((first, next));
    assert_eq!(gateway.process.terminate(), Some(0));
}

#[test]
fn window_of_profile_is_unchanged() {
    let test = "embedded-stated";
    let Some(world) = World::new(test).filter(|world| can_attach(test, &world.near)) else {
        return;
    };
    let destination = world.remote.run(|| TcpListener::bind("10.1.0.2:0").unwrap()).unwrap();
    let stated = "[leg.dial]\ninitial_window = 20\n";
    let text = relay_text(&format!("{LONG_TIMEOUTS}{stated}{LEARN}"));
    let relay = Learning::start(&world, "relay", "relay.toml", &text, &[]);
    let gateway = before(&world, &relay);
    // Connections accepted from there are learned from as well.
    let _accepted = with_large_windows(&world, || {
        world.remote.run(|| TcpStream::connect(relay.listen()).unwrap()).unwrap()
    });
    until("a large window", || learned(&world, &relay.socket()) >= Some(80));
    let _session = Session::over(&world, gateway.listen(), &destination);
    let windows = windows_to(&world, destination.local_addr().unwrap().port());
    assert!(windows.iter().all(|window| (20..30).contains(window)), "{windows:?}");
}

#[test]
fn successor_serves_same_control_socket() {
    let test = "embedded-upgrade";
    let Some(world) = World::new(test) else { return };
    let text = relay_text(LEARN);
    let mut relay = Learning::start(&world, "relay", "relay.toml", &text, &[]);
    let (socket, first) = (relay.socket(), relay.process.0.id());
    assert_eq!(status(&world, &socket)["process"], first);
    relay.hand_over();
    // It has no sessions, and ends as soon as the next one serves.
    assert_eq!(relay.process.0.wait().unwrap().code(), Some(0));
    end_successor(&world, &socket, first);
}

#[test]
fn relay_runs_without_learner_and_reports_why() {
    let test = "embedded-lacks";
    let Some(world) = World::new(test) else { return };
    let text = relay_text(LEARN);
    let first = Learning::start(&world, "relay", "relay.toml", &text, &[]);
    // A second relay of the same name: the socket is in use.
    let second = Learning::start(&world, "relay", "other/relay.toml", &text, &[]);
    let why = second.ready["jumpstart"]["why"].as_str().unwrap();
    let socket = first.socket();
    let expected = format!("{}: another process's jump-start answers there", socket.display());
    assert!(why.contains(&expected) && !why.contains('\n'), "{why}");
    assert_eq!(second.ready["jumpstart"]["through"], Value::Null);
    drop(second);
    assert_eq!(status(&world, &socket)["process"], first.process.0.id());
    if !has(test, NO_EBPF[0]) {
        return;
    }
    let unprivileged = Learning::start(&world, "relay", "plain.toml", &text, &NO_EBPF);
    let reported = &unprivileged.ready["jumpstart"];
    let why = reported["why"].as_str().unwrap();
    assert!(why.contains("CAP_BPF") && !why.contains('\n'), "{why}");
    assert_eq!(reported["through"], "none");
    assert_eq!(status(&world, &unprivileged.socket())["why"], why);
}

#[test]
fn invalid_jumpstart_section_is_refused_in_one_line() {
    let directory = std::env::temp_dir().join(format!("tw-embedded-wrong-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    for (more, expected) in [
        (
            "[jumpstart.learn]\nc_maximum = 5",
            "wrong.toml: configuration, `jumpstart.learn.c_maximum` (line 8): unknown field",
        ),
        (
            "[jumpstart.act]\nthrough = 'routes'",
            "wrong.toml: configuration, `jumpstart.act.through` (line 8): routes hold for",
        ),
    ] {
        let file = directory.join("wrong.toml");
        std::fs::write(&file, relay_text(more)).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        let mut command = Command::new(PROGRAM);
        command.args(["relay", "--config", "wrong.toml"]).current_dir(&directory);
        let output = ended(&mut command);
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && line.lines().count() == 1, "{line}");
        assert!(line.starts_with(&format!("tradewind: {expected}")), "{line}");
    }
    std::fs::remove_dir_all(&directory).unwrap();
}
