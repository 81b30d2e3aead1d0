//! The binary as relay and gateways around a SOCKS5 client that sends by UDP, and a UDP
//! application.

#![allow(clippy::unwrap_used, reason = "a test fails by panic")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tradewind");
const TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two datagrams that may be lost.
const AGAIN: Duration = Duration::from_millis(200);

/// A folder of the test's files, removed with it.
struct Files(PathBuf);

impl Files {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tradewind-socks-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn run(&self, arguments: &[&str]) -> String {
        let output = Command::new(PROGRAM).args(arguments).current_dir(&self.0).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts `command` with a configuration; returns it with its ready message.
    fn start(&self, command: &str, config: &str, content: &str) -> (Process, serde_json::Value) {
        std::fs::write(self.0.join(config), content).unwrap();
        let mut child = Command::new(PROGRAM)
            .args([command, "--config", config])
            .current_dir(&self.0)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        (Process(child), ready)
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

#[test]
fn udp_of_a_socks5_client_goes_over_a_relay() {
    let files = Files::new();
    let operator = files.run(&["keygen", "operator", "operator.key"]);
    let [near, relay, remote] = ["near", "relay", "remote"]
        .map(|name| files.run(&["keygen", "identity", &format!("{name}.key")]));
    let grant = format!(
        "gateway = '{near}'\ndestinations = ['127.0.0.0/8:*']\nrelays = 'any'\nexpires = '1 h'\n"
    );
    std::fs::write(files.0.join("grant.toml"), grant).unwrap();
    let grant = files.run(&["grant", "issue", "--key", "operator.key", "grant.toml"]);
    let listens =
        |ready: &serde_json::Value| ready["packet"]["listen"].as_str().unwrap().to_owned();
    let endpoint = format!(
        "identity_file = 'remote.key'\n[packet_endpoint]\nlisten = '127.0.0.1:0'\n\
         operators = ['{operator}']\nrelays = ['{relay}']\n\
         destinations = ['127.0.0.0/8:*']\nallow_loopback = true\n"
    );
    let (_remote, ready) = files.start("gateway", "remote.toml", &endpoint);
    let remote_at = listens(&ready);
    let middle = format!(
        "listen = ['127.0.0.1:0']\nidentity_file = 'relay.key'\noperators = ['{operator}']\n\
         [packet]\nlisten = '127.0.0.1:0'\nworkers = 1\nnext_hops = ['{remote_at}']\n\
         allow_loopback = true\n"
    );
    let (_relay, ready) = files.start("relay", "relay.toml", &middle);
    let relay_at = listens(&ready);
    let first = format!(
        "identity_file = 'near.key'\ngrant = '{grant}'\nsocks5 = ['127.0.0.1:0']\n\
         [socks5_udp]\nservice = 'forwarding'\npaths = 'relays'\n\
         remote = {{ address = '{remote_at}', identity = '{remote}' }}\n\
         relays = [{{ address = '{relay_at}', identity = '{relay}' }}]\n"
    );
    let (_near, ready) = files.start("gateway", "near.toml", &first);
    let socks = ready["listen"][0].as_str().unwrap();

    let mut association = TcpStream::connect(socks).unwrap();
    association.write_all(&[5, 1, 0, 5, 3, 0, 1, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut answers = [0; 12];
    association.read_exact(&mut answers).unwrap();
    assert_eq!(answers[..6], [5, 0, 5, 0, 0, 1]);
    let port = u16::from_be_bytes([answers[10], answers[11]]);
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(AGAIN)).unwrap();
    let SocketAddr::V4(to) = echo() else { panic!() };
    let head = [&[0, 0, 0, 1][..], &to.ip().octets(), &to.port().to_be_bytes()].concat();
    let datagram = [&head, &b"there and back"[..]].concat();
    let (begun, mut buffer) = (Instant::now(), [0; 2048]);
    loop {
        client.send(&datagram).unwrap();
        match client.recv(&mut buffer) {
            Ok(length) => break assert_eq!(buffer[..length], datagram),
            Err(_) => assert!(begun.elapsed() < TEST_TIMEOUT, "no answer"),
        }
    }
}
