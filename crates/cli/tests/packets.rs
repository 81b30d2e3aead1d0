//! The binary as relay and gateways around an unmodified UDP application: packets over a relay and
//! the Internet, which continue when the relay is killed.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

mod common;

use std::io::{BufRead, BufReader, Lines, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use common::ended;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A folder of the test's files, removed with it.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tradewind-packets-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, content: &str) {
        std::fs::write(self.0.join(name), content).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(PROGRAM).args(arguments).current_dir(&self.0).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts `command` with a configuration; returns it with its ready message.
    fn start(&self, command: &str, config: &str, content: &str) -> (Process, serde_json::Value) {
        self.write(config, content);
        let mut child = Command::new(PROGRAM)
            .args([command, "--config", config])
            .current_dir(&self.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let process = Process(child);
        (process, serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A process, killed when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an application that echoes every datagram; it ends with the test's process.
fn echo() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            let _ = socket.send_to(&buffer[..length], from);
        }
    });
    address
}

fn until(what: &str, watched: &[&str], mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        if begun.elapsed() > TEST_TIMEOUT {
            let shown: Vec<String> = watched.iter().map(|address| metrics(address)).collect();
            panic!("{what} did not come:\n{}", shown.join("\n\n"));
        }
    }
}

fn round_trip(application: &UdpSocket, number: u32) -> bool {
    application.send(&number.to_be_bytes()).unwrap();
    let mut buffer = [0; 64];
    while let Ok(length) = application.recv(&mut buffer) {
        if buffer[..length] == number.to_be_bytes() {
            return true;
        }
    }
    false
}

/// Returns the packet metrics of a relay or gateway.
fn metrics(address: &str) -> String {
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let packets = text.lines().filter(|line| line.starts_with("tradewind_packet"));
    packets.collect::<Vec<_>>().join("\n")
}

/// Returns the value of one of them.
fn metric(address: &str, name: &str) -> f64 {
    let metrics = metrics(address);
    let line = metrics.lines().find(|line| line.starts_with(name));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0.0)
}

#[test]
fn udp_flows_survive_the_death_of_a_relay() {
    let files = Files::new();
    let operator = files.run(&["keygen", "operator", "operator.key"]);
    let [near, relay, remote] = ["near", "relay", "remote"]
        .map(|name| files.run(&["keygen", "identity", &format!("{name}.key")]));
    files.write(
        "grant.toml",
        &format!(
            "gateway = '{near}'\ndestinations = ['127.0.0.0/8:*']\nrelays = 'any'\n\
             expires = '1 h'\n"
        ),
    );
    let grant = files.run(&["grant", "issue", "--key", "operator.key", "grant.toml"]);
    let (_remote, ready) = files.start(
        "gateway",
        "remote.toml",
        &format!(
            "identity_file = 'remote.key'\n[packet_endpoint]\nlisten = '127.0.0.1:0'\n\
             operators = ['{operator}']\n\
             relays = ['{relay}']\ndestinations = ['127.0.0.0/8:*']\nallow_loopback = true\n"
        ),
    );
    let remote_address = ready["packet"]["listen"].as_str().unwrap().to_owned();
    let (relay_process, ready) = files.start(
        "relay",
        "relay.toml",
        &format!(
            "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
             metrics = '127.0.0.1:0'\n\
             [packet]\nlisten = '127.0.0.1:0'\nworkers = 2\nnext_hops = ['127.0.0.0/8:*']\n\
             allow_loopback = true\n"
        ),
    );
    let relay_address = ready["packet"]["listen"].as_str().unwrap().to_owned();
    let relay_metrics = ready["metrics"].as_str().unwrap().to_owned();
    let (_near, ready) = files.start(
        "gateway",
        "near.toml",
        &format!(
            "identity_file = 'near.key'\ngrant = '{grant}'\nmetrics = '127.0.0.1:0'\n\
             [[packet]]\nlisten = '127.0.0.1:0'\nto = '{}'\npaths = 'relays'\n\
             remote = {{ address = '{remote_address}', identity = '{remote}' }}\n\
             relays = [{{ address = '{relay_address}', identity = '{relay}' }}]\n",
            echo()
        ),
    );
    let near_metrics = ready["metrics"].as_str().unwrap().to_owned();
    let application = UdpSocket::bind("127.0.0.1:0").unwrap();
    application.connect(ready["packet"]["applications"][0].as_str().unwrap()).unwrap();
    application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    until("packets over the relay", &[&near_metrics, &relay_metrics], || {
        round_trip(&application, 1)
            && metric(&relay_metrics, "tradewind_packet_datagrams_total{outcome=\"forwarded\"}")
                > 10.0
    });
    until("the path's metric", &[&near_metrics], || {
        metric(&near_metrics, "tradewind_packet_paths_up") > 0.0
    });
    until("the status", &[&near_metrics], || {
        let status = files.run(&["packet", "status", "--gateway", &near_metrics, "-o", "json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let flow = &status["flows"][0];
        assert!(flow.is_null() || flow["listen"] == ready["packet"]["applications"][0], "{status}");
        flow["service"] == "forwarding"
    });
    drop(relay_process);
    until("the direct path", &[&near_metrics], || {
        (10..20).all(|number| round_trip(&application, number))
    });
}

/// A process and its successors by upgrades; all of them end when this is dropped.
struct Line {
    first: Process,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Line {
    fn start(files: &Files, program: &str, file: &str, config: &str) -> (Self, serde_json::Value) {
        files.write(file, config);
        let mut child = Command::new(PROGRAM)
            .args([program, "--config", file])
            .current_dir(&files.0)
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut line = Self { first: Process(child), lines };
        let ready = line.ready();
        (line, ready)
    }

    fn ready(&mut self) -> serde_json::Value {
        serde_json::from_str(&self.lines.next().unwrap().unwrap()).unwrap()
    }

    /// Upgrades the first process to a successor, and returns that one's ready message; the first
    /// has no session, and ends.
    fn upgrade(&mut self) -> serde_json::Value {
        let number = self.first.0.id().to_string();
        assert!(Command::new("kill").args(["-USR2", &number]).status().unwrap().success());
        let ready = self.ready();
        until("the old process's end", &[], || self.first.0.try_wait().unwrap().is_some());
        ready
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let group = format!("-{}", self.first.0.id());
        let _ = Command::new("kill").args(["-KILL", "--", &group]).status();
    }
}

/// Starts a relay, a remote and a local gateway, each with its ready message: the local one's first
/// port goes over the Internet, its second over the relay.
fn relayed_and_direct(files: &Files) -> [(Line, serde_json::Value); 3] {
    let operator = files.run(&["keygen", "operator", "operator.key"]);
    let [relay, near, remote] = ["relay", "near", "remote"]
        .map(|name| files.run(&["keygen", "identity", &format!("{name}.key")]));
    let spec = format!(
        "gateway = '{near}'\ndestinations = ['127.0.0.0/8:*']\nrelays = ['{relay}', '{remote}']\n\
         expires = '1 h'\n"
    );
    files.write("grant.toml", &spec);
    let grant = files.run(&["grant", "issue", "--key", "operator.key", "grant.toml"]);
    let config = format!(
        "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
         [packet]\nlisten = '127.0.0.1:0'\nworkers = 2\nnext_hops = ['127.0.0.0/8:*']\n\
         allow_loopback = true\n"
    );
    let relays = Line::start(files, "relay", "relay.toml", &config);
    let config = format!(
        "identity_file = 'remote.key'\n[packet_endpoint]\nlisten = '127.0.0.1:0'\n\
         operators = ['{operator}']\n\
         relays = ['{relay}']\ndestinations = ['127.0.0.0/8:*']\nallow_loopback = true\n"
    );
    let remotes = Line::start(files, "gateway", "remote.toml", &config);
    let [relay_address, remote_address] =
        [&relays, &remotes].map(|(_, ready)| &ready["packet"]["listen"]);
    let packet = |more: &str| {
        format!(
            "[[packet]]\nlisten = '127.0.0.1:0'\nto = '{}'\n\
             remote = {{ address = {remote_address}, identity = '{remote}' }}\n{more}",
            echo()
        )
    };
    let relayed = format!(
        "paths = 'relays'\nrelays = [{{ address = {relay_address}, identity = '{relay}' }}]\n"
    );
    let sections = [packet(""), packet(&relayed)].concat();
    let config = format!("identity_file = 'near.key'\ngrant = '{grant}'\n{sections}");
    let nears = Line::start(files, "gateway", "near.toml", &config);
    [nears, remotes, relays]
}

#[test]
fn udp_sockets_are_handed_over_on_upgrade() {
    let files =
        Files(std::env::temp_dir().join(format!("tradewind-packets-up-{}", std::process::id())));
    std::fs::create_dir_all(&files.0).unwrap();
    let mut all = relayed_and_direct(&files);
    let applications = [0, 1].map(|at| {
        let application = UdpSocket::bind("127.0.0.1:0").unwrap();
        application.connect(all[0].1["packet"]["applications"][at].as_str().unwrap()).unwrap();
        application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        application
    });
    let wait_for_replies = |who: &str| {
        until(who, &[], || applications.iter().all(|application| round_trip(application, 1)));
    };
    wait_for_replies("packets");
    for ((line, before), who) in
        all.iter_mut().zip(["the local gateway", "the remote one", "the relay"])
    {
        let after = line.upgrade();
        assert_eq!((&after["packet"], &after["listen"]), (&before["packet"], &before["listen"]));
        wait_for_replies(&format!("packets through the successor of {who}"));
    }
}

impl Process {
    /// Ends it by SIGTERM.
    fn end(mut self) {
        let number = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &number]).status().unwrap().success());
        assert!(self.0.wait().unwrap().success());
    }
}

#[test]
fn conversations_and_paths_are_logged() {
    let path = std::env::temp_dir().join(format!("tradewind-packets-log-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let files = Files(path);
    let operator = files.run(&["keygen", "operator", "operator.key"]);
    let [near, relay, remote] = ["near", "relay", "remote"]
        .map(|name| files.run(&["keygen", "identity", &format!("{name}.key")]));
    let spec = format!(
        "gateway = '{near}'\ndestinations = ['127.0.0.0/8:*']\nrelays = 'any'\nexpires = '1 h'\n"
    );
    files.write("grant.toml", &spec);
    let grant = files.run(&["grant", "issue", "--key", "operator.key", "grant.toml"]);
    let log = |section: &str, name: &str| {
        format!("[{section}]\nto = '{}'\n", files.0.join(name).display())
    };
    let config = format!(
        "identity_file = 'remote.key'\n[packet_endpoint]\nlisten = '127.0.0.1:0'\n\
         operators = ['{operator}']\nrelays = ['{relay}']\ndestinations = ['127.0.0.0/8:*']\n\
         allow_loopback = true\n{}",
        log("access_log", "remote.log")
    );
    let (remote_process, ready) = files.start("gateway", "remote.toml", &config);
    let remote_address = ready["packet"]["listen"].as_str().unwrap().to_owned();
    let config = format!(
        "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
         metrics = '127.0.0.1:0'\n[packet]\nlisten = '127.0.0.1:0'\nworkers = 2\n\
         next_hops = ['127.0.0.0/8:*']\nallow_loopback = true\n{}",
        log("audit_log", "audit.log")
    );
    let (relay_process, ready) = files.start("relay", "relay.toml", &config);
    let relay_address = ready["packet"]["listen"].as_str().unwrap().to_owned();
    let relay_metrics = ready["metrics"].as_str().unwrap().to_owned();
    let to = echo().to_string();
    let config = format!(
        "identity_file = 'near.key'\ngrant = '{grant}'\n{}[[packet]]\nlisten = '127.0.0.1:0'\n\
         to = '{to}'\npaths = 'relays'\n\
         remote = {{ address = '{remote_address}', identity = '{remote}' }}\n\
         relays = [{{ address = '{relay_address}', identity = '{relay}' }}]\n",
        log("access_log", "near.log")
    );
    let (near_process, ready) = files.start("gateway", "near.toml", &config);
    let application = UdpSocket::bind("127.0.0.1:0").unwrap();
    application.connect(ready["packet"]["applications"][0].as_str().unwrap()).unwrap();
    application.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    until("answers over the relay", &[&relay_metrics], || {
        round_trip(&application, 1)
            && metric(&relay_metrics, "tradewind_packet_datagrams_total{outcome=\"forwarded\"}")
                > 10.0
    });
    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(files.0.join(name)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    until("the relay's word on the path", &[], || !lines("audit.log").is_empty());
    let path = lines("audit.log").remove(0);
    assert_eq!((&path["kind"], &path["destination"]), (&"packet_path".into(), &(*to).into()));
    assert_eq!((&path["gateway"], &path["neighbour"]), (&(*near).into(), &(*near).into()));
    [near_process, remote_process, relay_process].into_iter().for_each(Process::end);
    let source = application.local_addr().unwrap().to_string();
    for (name, other, source) in [("near.log", &remote, Some(source)), ("remote.log", &near, None)]
    {
        let line = lines(name).remove(0);
        assert_eq!((&line["grant"], &line["gateway"]), (&path["grant"], &(*near).into()), "{line}");
        assert_eq!((&line["remote"], &line["destination"]), (&(**other).into(), &(*to).into()));
        assert_eq!(line["source"].as_str(), source.as_deref(), "{line}");
        assert_eq!((&line["service"], &line["path"]), (&"forwarding".into(), &(*relay).into()));
        is_of_four_bytes_a_packet(&line);
    }
}

/// Asserts the counts of a conversation in which each packet had four bytes, and some were
/// answered.
fn is_of_four_bytes_a_packet(line: &serde_json::Value) {
    assert_eq!((&line["program"], &line["kind"]), (&"gateway".into(), &"packets".into()));
    let count = |key: &str| line[key].as_u64().unwrap();
    assert!(count("packets_up") >= count("packets_down") && count("packets_down") > 0, "{line}");
    assert_eq!(count("bytes_up"), count("packets_up") * 4, "{line}");
    assert_eq!(count("bytes_down"), count("packets_down") * 4, "{line}");
    assert!(line["first_byte_ms"].as_f64() <= line["duration_ms"].as_f64(), "{line}");
    let ended = line["outcome"].as_str().unwrap();
    assert!(["cut", "gone"].contains(&ended), "{line}");
}

#[test]
fn packet_errors_take_one_line() {
    let files =
        Files(std::env::temp_dir().join(format!("tradewind-packets-bad-{}", std::process::id())));
    std::fs::create_dir_all(&files.0).unwrap();
    let operator = files.run(&["keygen", "operator", "operator.key"]);
    files.run(&["keygen", "identity", "relay.key"]);
    for (packet, expected) in [
        ("workers = 2", "`packet` (line 4): missing field `listen`"),
        (
            "listen = '127.0.0.1:0'\nworkers = 0",
            "`packet.workers` (line 6): expected 1 to 1024 threads",
        ),
        (
            "listen = '127.0.0.1:0'\nworker = 1",
            "`packet.worker` (line 6): unknown field `worker`, expected",
        ),
        ("listen = '127.0.0.1:0'\ncoding = { within = '0 s' }", "`packet.coding` (line 6): "),
        (
            "listen = '127.0.0.1:0'\nnext_hops = ['remote.example:7001']",
            "`packet.next_hops` (line 6): `remote.example:7001`: expected ranges of addresses",
        ),
        ("listen = '192.0.2.1:7001'", "bind the socket of udp 192.0.2.1:7001: "),
    ] {
        let config = format!(
            "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
             [packet]\n{packet}\n"
        );
        files.write("relay.toml", &config);
        let mut command = Command::new(PROGRAM);
        let output = ended(command.args(["relay", "--config", "relay.toml"]).current_dir(&files.0));
        let line = String::from_utf8(output.stderr).unwrap();
        assert!(line.lines().count() == 1 && line.contains(expected), "{line}");
    }
}

/// Errors that show only once all sections are read together, or when the node opens.
#[test]
fn errors_between_sections_name_line_and_section() {
    let path = std::env::temp_dir().join(format!("tradewind-packets-which-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let files = Files(path);
    files.run(&["keygen", "operator", "operator.key"]);
    let [near, remote] =
        ["near.key", "remote.key"].map(|key| files.run(&["keygen", "identity", key]));
    let spec = format!(
        "gateway = '{near}'\ndestinations = ['10.0.0.0/8:*']\nrelays = 'any'\nexpires = '1 h'\n"
    );
    files.write("grant.toml", &spec);
    let grant = files.run(&["grant", "issue", "--key", "operator.key", "grant.toml"]);
    files.write("members.toml", "");
    let at = |ip: &str| format!("remote = {{ address = '{ip}:7001', identity = '{remote}' }}");
    let (there, here) = (at("192.0.2.4"), at("127.0.0.1"));
    let port = |port: u16, remote: &str| {
        format!("[[packet]]\nlisten = '127.0.0.1:{port}'\nto = '10.0.0.7:1'\n{remote}\n")
    };
    let tun = |net: u8| {
        let name = format!("tun = {{ name = 'tw0', destinations = ['10.{net}.0.0/16:*'] }}");
        format!("[[packet]]\n{there}\n{name}\n")
    };
    let intercepted = "tproxy = { destinations = ['10.0.0.7/32:5'], local_output = true }";
    let members = "[packet_endpoint]\nmembers = 'members.toml'\n";
    for (sections, expected) in [
        (tun(1) + &tun(2), "configuration, `packet[1].tun.name` (line 8): `tw0` is there twice"),
        (
            port(1, &there) + &port(2, "remote = 'berlin'") + members,
            "configuration, `packet[1].remote` (line 10): no endpoint among the members",
        ),
        (
            port(1, "remote = 'berlin'"),
            "configuration, `packet[0].remote` (line 6): `berlin` is an id of `members`",
        ),
        (
            port(1, &there) + &format!("[[packet]]\n{here}\n{intercepted}\n"),
            "configuration, `packet[1].tproxy.local_output` (line 9): 127.0.0.1:7001",
        ),
        (
            "[packet_endpoint]\nlisten = '127.0.0.1:0'\ndestinations = ['*.example.com:1']".into(),
            "configuration, `packet_endpoint.destinations` (line 5): `*.example.com:1`: ",
        ),
    ] {
        let config = format!("identity_file = 'near.key'\ngrant = '{grant}'\n{sections}");
        files.write("near.toml", &config);
        let mut command = Command::new(PROGRAM);
        let output =
            ended(command.args(["gateway", "--config", "near.toml"]).current_dir(&files.0));
        let text = String::from_utf8(output.stderr).unwrap();
        let line = text.lines().last().unwrap();
        assert!(line.contains(&format!("near.toml: {expected}")), "{line}");
        assert_eq!(output.status.code(), Some(2), "{line}");
    }
}

#[test]
fn doctor_reads_packet_sections() {
    let path = std::env::temp_dir().join(format!("tradewind-packets-doc-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let files = Files(path);
    let remote = files.run(&["keygen", "identity", "remote.key"]);
    let doctor = |packet: &str| {
        let section = format!(
            "[[packet]]\nlisten = '127.0.0.1:1'\nto = '10.0.0.7:1'\n\
             remote = {{ address = '192.0.2.4:7001', identity = '{remote}' }}\n{packet}\n"
        );
        files.write("gateway.toml", &format!("identity_file = 'remote.key'\n{section}"));
        let mut command = Command::new(PROGRAM);
        command.args(["doctor", "--config", "gateway.toml", "-o", "json"]);
        command.current_dir(&files.0).output().unwrap()
    };
    let output = doctor("budget = '0 s'");
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!(
        line,
        "tradewind: gateway.toml: configuration, `packet[0].budget` (line 6): expected at least 1 \
         ms\n"
    );
    assert_eq!(output.status.code(), Some(2));
    let report: serde_json::Value = serde_json::from_slice(&doctor("").stdout).unwrap();
    let most = std::fs::read_to_string("/proc/sys/net/core/rmem_max").unwrap();
    let is_short = most.trim().parse::<u64>().unwrap() < 4 << 20;
    assert_eq!(
        report["shortfalls"].to_string().contains("receive buffers of"),
        is_short,
        "{report}"
    );
}

/// A gateway itself reports refusals by its grant, and silent peers, which neither end reports to
/// it.
#[test]
fn gateway_reports_refusals_and_silent_peers() {
    let path = std::env::temp_dir().join(format!("tradewind-packets-said-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    let files = Files(path);
    files.run(&["keygen", "operator", "operator.key"]);
    let [near, remote] =
        ["near.key", "remote.key"].map(|key| files.run(&["keygen", "identity", key]));
    let spec = format!(
        "gateway = '{near}'\ndestinations = ['127.0.0.1/32:1']\nrelays = ['{near}']\n\
         expires = '1 h'\n"
    );
    files.write("grant.toml", &spec);
    let grant = files.run(&["grant", "issue", "--key", "operator.key", "grant.toml"]);
    // A socket that never answers.
    let nobody = UdpSocket::bind("127.0.0.1:0").unwrap();
    let silent = nobody.local_addr().unwrap();
    let packet = format!(
        "[[packet]]\nlisten = '127.0.0.1:0'\nto = '127.0.0.1:5'\n\
         remote = {{ address = '{silent}', identity = '{remote}' }}\n"
    );
    let config =
        |more: &str| format!("identity_file = 'near.key'\ngrant = '{grant}'\n{packet}{more}");
    files.write("near.toml", &config(""));
    let gateway = |log: Stdio| {
        let mut command = Command::new(PROGRAM);
        command.args(["gateway", "--config", "near.toml"]).current_dir(&files.0);
        command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
    };
    let mut running = Process(gateway(Stdio::piped()));
    let mut lines = BufReader::new(running.0.stderr.take().unwrap()).lines();
    for expected in [
        "it does not cover where these packets go",
        "it does not list this relay or remote gateway",
        "identity and the same wire version, does it trust",
    ] {
        let logged = lines.find(|line| line.as_ref().is_ok_and(|line| line.contains(expected)));
        assert!(logged.is_some(), "{expected}");
    }
    // The error names which of two entries is wrong, and where.
    files.write("near.toml", &config(&packet.replace("to = '127.0.0.1:5'", "to = 'tokyo:5'")));
    let output = gateway(Stdio::piped()).wait_with_output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert!(
        line.lines().count() == 1 && line.contains("configuration, `packet[1].to` (line 9): "),
        "{line}"
    );
}
