//! Legs of the overlay begin like other connections: with the windows that the host's daemon has
//! learned.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use tradewind_config::RelayConfig;
use tradewind_grant::{Grant, IdentityKey, OperatorKey, Relays};
use tradewind_net::netns::Namespace;
use tradewind_net::sock_diag::{Connection, Filter, SockDiag};
use tradewind_net::tcp_info::TcpInfo;
use tradewind_relay::Relay;
use tradewind_stream::Shutdown;
use tradewind_units::Timestamp;

use crate::world::{Guard, PROGRAM, World, until};

pub(crate) fn operator() -> OperatorKey {
    OperatorKey::from_entropy([9; 32])
}

/// A relay on a thread inside the remote host.
pub(crate) struct RemoteRelay {
    pub(crate) address: SocketAddr,
    pub(crate) identity: String,
    shutdown: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl RemoteRelay {
    pub(crate) fn start(remote: &Namespace) -> Self {
        let config = format!(
            "listen = ['10.1.0.2:0']\nidentity = '{}'\noperators = ['{}']\nworkers = 1
            [policy]\ndestinations = ['127.0.0.0/8:*']\nallow_loopback = true",
            *IdentityKey::from_entropy([1; 32]).to_secret_text(),
            operator().public(),
        );
        let bind = || Relay::bind(&RelayConfig::parse(&config).unwrap()).unwrap();
        let relay = remote.run(bind).unwrap();
        let (address, identity) = (relay.handle().local_addrs()[0], relay.identity().to_string());
        let shutdown = Shutdown::new();
        let shutdown_of_thread = shutdown.clone();
        // Threads inherit the namespace of the one that starts them.
        let run = || std::thread::spawn(move || relay.run(&shutdown_of_thread).unwrap());
        let thread = Some(remote.run(run).unwrap());
        Self { address, identity, shutdown, thread }
    }
}

impl Drop for RemoteRelay {
    fn drop(&mut self) {
        self.shutdown.stop();
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Returns a gateway's configuration that sends everything over the relay at `address`.
pub(crate) fn gateway_text(address: SocketAddr, identity: &str, more: &str) -> String {
    let key = IdentityKey::from_entropy([3; 32]);
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let grant = Grant {
        gateway: key.public(),
        not_before: Timestamp::ZERO + (since_epoch - Duration::from_secs(60)),
        expires: Timestamp::ZERO + since_epoch + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: ["127.0.0.0/8:*", "10.0.0.0/8:*", "[fd10::]/16:*"]
            .map(|rule| rule.parse().unwrap())
            .to_vec(),
    };
    format!(
        "identity = '{}'\ngrant = '{}'\nconnect = ['127.0.0.1:0']\nallow_loopback = true\n
        [routes]\ndefault = ['first']\n[[routes.relay]]\nname = 'first'\naddress = '{address}'\n\
        identity = '{identity}'\n{more}",
        *key.to_secret_text(),
        grant.sign(&operator()).unwrap(),
    )
}

/// Starts a gateway on the near host; returns its process and its CONNECT address.
fn gateway(world: &World, relay: &RemoteRelay) -> (Guard, SocketAddr) {
    let file = world.directory.join("gateway.toml");
    std::fs::write(&file, gateway_text(relay.address, &relay.identity, "")).unwrap();
    std::fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["gateway", "--config"]).arg(file).env("TRADEWIND_LOG", "off");
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut gateway = Guard(world.near.run(|| command.spawn().unwrap()).unwrap());
    let mut line = String::new();
    BufReader::new(gateway.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ready: serde_json::Value = serde_json::from_str(&line).unwrap();
    (gateway, ready["listen"][0].as_str().unwrap().parse().unwrap())
}

/// A session from the near host that stays open until dropped.
pub(crate) struct Session {
    near: TcpStream,
    remote: TcpStream,
}

impl Session {
    /// Opens a session over the gateway at `gateway` to `destination`, and waits for bytes from
    /// there.
    pub(crate) fn over(world: &World, gateway: SocketAddr, destination: &TcpListener) -> Self {
        let mut near = world.near.run(|| TcpStream::connect(gateway).unwrap()).unwrap();
        let to = destination.local_addr().unwrap();
        write!(near, "CONNECT {to} HTTP/1.1\r\n\r\n").unwrap();
        let (mut remote, _) = destination.accept().unwrap();
        remote.write_all(b"here").unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"here") {
            let mut byte = [0];
            near.read_exact(&mut byte).unwrap();
            seen.push(byte[0]);
        }
        Self { near, remote }
    }

    /// Sends so many bytes to its destination.
    pub(crate) fn carry(&mut self, bytes: usize) {
        let Self { near, remote } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| remote.read_exact(&mut vec![0; bytes]).unwrap());
            near.write_all(&vec![7; bytes]).unwrap();
        });
    }
}

/// Returns the near host's connections with `port` at either end.
pub(crate) fn connections_to(world: &World, port: u16) -> Vec<TcpInfo> {
    let filter = Filter { ports: vec![port], ..Filter::default() };
    let mut found = Vec::new();
    let look = || SockDiag::open().unwrap().each(&filter, |c: &Connection| found.push(c.info));
    world.near.run(look).unwrap().unwrap();
    found
}

/// Returns their windows.
pub(crate) fn windows_to(world: &World, port: u16) -> Vec<u32> {
    let window = |info: TcpInfo| info.congestion_window.unwrap().as_u32();
    connections_to(world, port).into_iter().map(window).collect()
}

#[test]
fn gateway_leg_starts_with_learned_window() {
    let Some(world) = World::new("jumpstart-legs") else { return };
    let relay = RemoteRelay::start(&world.remote);
    let (_gateway, listen) = gateway(&world, &relay);
    let destination = world.remote.run(|| TcpListener::bind("127.0.0.1:0").unwrap()).unwrap();
    let legs = || windows_to(&world, relay.address.port());
    let session = || Session::over(&world, listen, &destination);
    let ends = session();
    assert!(legs().iter().all(|window| *window < 30), "{:?}", legs());
    drop(ends);
    // Large windows of other connections to the relay's host, and a daemon. The remains of the
    // first leg count, too.
    let _open = [(); 4].map(|()| world.connection_with_window(90));
    let mut daemon = world.daemon(&[]);
    until("a large window", || world.initial_window() >= 50);
    let _ends = session();
    assert!(legs().iter().any(|window| *window >= 50), "{:?}", legs());
    assert_eq!(daemon.terminate(), Some(0));
}
