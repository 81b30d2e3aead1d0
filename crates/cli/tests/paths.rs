//! `tradewind gateway`, `netcheck` and `ping` together: the choice is visible, and a changed file
//! is applied.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use tradewind_config::RelayConfig;
use tradewind_grant::{Grant, IdentityKey, OperatorKey, Relays};
use tradewind_relay::Relay;
use tradewind_stream::Shutdown;
use tradewind_units::Timestamp;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
/// Longest wait: far above any normal duration on a loaded machine; no test passes by waiting for
/// it.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A relay on a thread.
struct Running {
    address: SocketAddr,
    identity: String,
    shutdown: Shutdown,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn relay(seed: u8) -> Self {
        let config = format!(
            "listen = ['127.0.7.1:0']\nidentity = '{}'\noperators = ['{}']\nworkers = 1
            [policy]\ndestinations = ['127.0.0.0/8:*']\nnext_hops = ['127.0.7.0/24:*']\n\
            allow_loopback = true",
            *IdentityKey::from_entropy([seed; 32]).to_secret_text(),
            operator().public(),
        );
        let relay = Relay::bind(&RelayConfig::parse(&config).unwrap()).unwrap();
        let (address, identity) = (relay.handle().local_addrs()[0], relay.identity().to_string());
        let shutdown = Shutdown::new();
        let shutdown_of_thread = shutdown.clone();
        let thread = Some(std::thread::spawn(move || relay.run(&shutdown_of_thread).unwrap()));
        Self { address, identity, shutdown, thread }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.shutdown.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn operator() -> OperatorKey {
    OperatorKey::from_entropy([9; 32])
}

/// A gateway's process and its configuration; both removed with the test.
struct Gateway {
    file: PathBuf,
    child: Option<Child>,
    listen: SocketAddr,
}

/// Returns the part of a configuration that no reload changes.
fn fixed_part(metrics: SocketAddr) -> String {
    let key = IdentityKey::from_entropy([3; 32]);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let grant = Grant {
        gateway: key.public(),
        not_before: Timestamp::ZERO + (since_epoch - Duration::from_secs(60)),
        expires: Timestamp::ZERO + since_epoch + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: vec!["127.0.0.0/8:*".parse().unwrap()],
    };
    format!(
        "identity = '{}'\ngrant = '{}'\nconnect = ['127.0.0.1:0']\nmetrics = '{metrics}'\n\
         direct = true\nallow_loopback = true\n",
        *key.to_secret_text(),
        grant.sign(&operator()).unwrap(),
    )
}

fn routes(relays: &[&Running], default: &str) -> String {
    let mut text = format!("[routes]\n{default}\n");
    for (relay, name) in relays.iter().zip(["hamina", "tokyo"]) {
        let Running { address, identity, .. } = relay;
        text += &format!(
            "[[routes.relay]]\nname = '{name}'\naddress = '{address}'\nidentity = '{identity}'\n"
        );
    }
    text
}

impl Gateway {
    fn file(test: &str, text: &str) -> PathBuf {
        let name = format!("tradewind-paths-{test}-{}.toml", std::process::id());
        let file = std::env::temp_dir().join(name);
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        file
    }

    fn start(test: &str, text: &str) -> Self {
        let file = Self::file(test, text);
        let mut command = Command::new(PROGRAM);
        command.args(["gateway", "--config"]).arg(&file).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
        let listen = ready["listen"][0].as_str().unwrap().parse().unwrap();
        Self { file, child: Some(child), listen }
    }

    fn hang_up(&self) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args(["-HUP", &pid]).status().unwrap().success());
    }

    /// Ends it; returns its log.
    fn end(&mut self) -> String {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        let mut log = String::new();
        child.stderr.take().unwrap().read_to_string(&mut log).unwrap();
        child.wait().unwrap();
        log
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.end();
        }
        let _gone = std::fs::remove_file(&self.file);
    }
}

fn tradewind(arguments: &[&str], config: &std::path::Path) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).arg("--config").arg(config).stdin(Stdio::null()).output().unwrap()
}

fn report(arguments: &[&str], config: &std::path::Path) -> serde_json::Value {
    let output = tradewind(&[arguments, &["-o", "json"]].concat(), config);
    assert!(!output.stdout.is_empty(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn wait_for(what: &str, mut event: impl FnMut() -> bool) {
    let start = Instant::now();
    while !event() {
        assert!(start.elapsed() < TEST_TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

#[test]
fn running_gateway_shows_paths_and_applies_valid_tables() {
    let (first, second) = (Running::relay(1), Running::relay(2));
    let fixed = fixed_part(free_port());
    let both = "default = ['hamina', 'tokyo']\ndefault_fallback = [['tokyo'], 'direct']";
    let mut gateway =
        Gateway::start("running", &(fixed.clone() + &routes(&[&first, &second], both)));
    let file = gateway.file.clone();
    wait_for("a good path", || {
        let options = &report(&["netcheck"], &file)["rules"][0]["options"];
        options[0]["state"] == "good" && options[0]["chosen"] == true
    });
    let answer = report(&["ping", "127.0.0.1:80"], &file);
    assert_eq!(answer["source"], "gateway");
    assert_eq!(answer["rules"][0]["options"][0]["legs_ms"].as_array().unwrap().len(), 2);
    let table = tradewind(&["ping", "127.0.0.1:80"], &file);
    let text = String::from_utf8(table.stdout).unwrap();
    assert!(table.status.success() && text.contains("hamina > tokyo"), "{text}");

    // A tunnel that stays open over every reload.
    let to = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut tunnel = TcpStream::connect(gateway.listen).unwrap();
    write!(tunnel, "CONNECT {} HTTP/1.1\r\n\r\n", to.local_addr().unwrap()).unwrap();
    let (mut remote, _) = to.accept().unwrap();

    std::fs::write(&file, fixed.clone() + &routes(&[&first], "default = ['lima']")).unwrap();
    gateway.hang_up();
    let both_ways = "default = ['tokyo']\ndefault_fallback = ['direct']";
    std::fs::write(
        &file,
        format!("optimistic = true\n{fixed}{}", routes(&[&first, &second], both_ways)),
    )
    .unwrap();
    gateway.hang_up();
    wait_for("the new table", || {
        gateway.hang_up();
        report(&["netcheck"], &file)["rules"][0]["options"].as_array().unwrap().len() == 2
    });
    remote.write_all(b"still here").unwrap();
    let mut seen = Vec::new();
    while !seen.ends_with(b"still here") {
        let mut byte = [0];
        tunnel.read_exact(&mut byte).unwrap();
        seen.push(byte[0]);
    }
    let log = gateway.end();
    assert!(log.contains(".toml: taken over"), "{log}");
    assert!(log.contains("`optimistic`: takes effect after an upgrade"), "{log}");
}

#[test]
fn only_path_of_a_gateway_is_probed_on_request() {
    let (first, second) = (Running::relay(7), Running::relay(8));
    let text =
        fixed_part(free_port()) + &routes(&[&first, &second], "default = ['hamina', 'tokyo']");
    let gateway = Gateway::start("only", &text);
    let answer = report(&["ping", "127.0.0.1:80"], &gateway.file);
    let option = &answer["rules"][0]["options"][0];
    assert_eq!(
        (&answer["source"], &option["chosen"]),
        (&"gateway".into(), &true.into()),
        "{answer}"
    );
    assert_eq!(option["legs_ms"].as_array().unwrap().len(), 2, "{answer}");
    assert!(option["state"] == "good" && option["rtt_ms"].is_number(), "{answer}");
    assert!(option["cause"].as_str().unwrap().starts_with("the only path; "), "{answer}");
    drop(second);
    let dead = tradewind(&["netcheck"], &gateway.file);
    assert_eq!(dead.status.code(), Some(1), "{dead:?}");
}

#[test]
fn invalid_table_is_refused_and_old_routes_stay() {
    let first = Running::relay(4);
    let fixed = fixed_part(free_port());
    let text =
        fixed.clone() + &routes(&[&first], "default = ['hamina']\ndefault_fallback = ['direct']");
    let mut gateway = Gateway::start("bad", &text);
    let file = gateway.file.clone();
    std::fs::write(&file, fixed + "[routes]\ndefault = ['lima']").unwrap();
    gateway.hang_up();
    let log = std::thread::spawn({
        let stderr = gateway.child.as_mut().unwrap().stderr.take().unwrap();
        move || {
            BufReader::new(stderr).lines().map(Result::unwrap).find(|line| line.contains("lima"))
        }
    });
    let line = log.join().unwrap().unwrap();
    assert!(
        line.contains("relay `lima` is not listed")
            && line.ends_with("what was in force before stays"),
        "{line}"
    );
    std::fs::write(&file, text).unwrap();
    let options = &report(&["netcheck"], &file)["rules"][0]["options"];
    assert_eq!(options[0]["relays"][0]["name"], "hamina");
    let mut child = gateway.child.take().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn configured_paths_are_probed_without_a_gateway() {
    let first = Running::relay(5);
    let gone = Running::relay(6);
    let text =
        routes(&[&first, &gone], "default = ['hamina', 'tokyo']\ndefault_fallback = [['hamina']]");
    drop(gone);
    let file = Gateway::file("survey", &(fixed_part(free_port()) + &text));
    let answer = report(&["ping", "127.0.0.1:80", "-n", "2"], &file);
    let options = &answer["rules"][0]["options"];
    assert_eq!(
        (&answer["source"], &options[0]["state"]),
        (&"probes".into(), &"dead".into()),
        "{answer}"
    );
    assert!(options[0]["cause"].as_str().unwrap().contains("connection refused"), "{answer}");
    assert_eq!(
        (&options[1]["state"], &options[1]["chosen"]),
        (&"good".into(), &true.into()),
        "{answer}"
    );
    let wrong = tradewind(&["ping", "nowhere"], &file);
    let line = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(2) && line.lines().count() == 1, "{line}");
    std::fs::remove_file(file).unwrap();
}
