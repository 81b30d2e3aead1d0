//! Relays, gateways and peers on loopback, with real kernel TCP.
#![allow(dead_code, unreachable_pub, reason = "each test program uses its own part")]

#[path = "../../../stream/tests/common/names.rs"]
pub mod names;
pub mod proxy;

use std::io::{self, Read, Write};
use std::net::{Shutdown as Half, SocketAddr, TcpListener, TcpStream};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tradewind_config::{Forward, GatewayConfig, LegProfiles, Limits, RelayConfig, Timeouts};
use tradewind_desired::{Encryption, Hop, Route, RouteTable};
use tradewind_gateway::Gateway;
use tradewind_grant::{Grant, IdentityKey, OperatorKey, PublicIdentity, Relays, SignedGrant};
use tradewind_net::iproute::{self, Tool};
use tradewind_net::netns::Namespace;
use tradewind_relay::Relay;
use tradewind_stream::{Handle, Shutdown};
use tradewind_units::Timestamp;

/// Longer than anything here takes on a loaded machine; no test passes by waiting for it.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

pub fn loopback() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// Returns the address on which relays, and proxies before them, listen: apart from destinations,
/// which may be no relay.
pub fn relay_loopback() -> SocketAddr {
    "127.0.7.1:0".parse().unwrap()
}

/// An address without a listener, and none can be opened as long as this exists: another test could
/// be given the port of a listener that is gone.
pub struct ClosedPort {
    pub address: SocketAddr,
    _bound: tokio::net::TcpSocket,
}

pub fn closed_port() -> ClosedPort {
    let bound = tokio::net::TcpSocket::new_v4().unwrap();
    bound.bind(loopback()).unwrap();
    ClosedPort { address: bound.local_addr().unwrap(), _bound: bound }
}

/// An address that answers nothing: the queue of its listener is full.
pub struct FullBacklog {
    pub address: SocketAddr,
    listener: TcpListener,
    waiting: Vec<TcpStream>,
}

impl FullBacklog {
    pub fn new() -> Self {
        const ONE_WAITS: Duration = Duration::from_millis(200);
        let options = tradewind_net::tcp::SocketOptions::default();
        let listener = tradewind_net::tcp::listen(loopback(), 1, 0, &options).unwrap().remove(0);
        let address = listener.local_addr().unwrap();
        let connect = |_| TcpStream::connect_timeout(&address, ONE_WAITS).ok();
        let waiting: Vec<_> = (0..64).map_while(connect).collect();
        assert!(waiting.len() < 64, "the queue is never full");
        Self { address, listener, waiting }
    }

    /// Empties the queue, so that others get in, and returns the connections accepted before
    /// `over`.
    pub fn others_until(self, mut over: impl FnMut() -> bool) -> Vec<TcpStream> {
        let own: Vec<_> = self.waiting.iter().map(|one| one.local_addr().unwrap()).collect();
        let mut others = Vec::new();
        wait_for("the others", || {
            // Connections from before that are accepted after it.
            let is_over = over();
            while let Ok((stream, peer)) = self.listener.accept() {
                if !own.contains(&peer) {
                    stream.set_nonblocking(false).unwrap();
                    patient(&stream);
                    others.push(stream);
                }
            }
            is_over
        });
        others
    }
}

pub fn operator() -> OperatorKey {
    OperatorKey::from_entropy([9; 32])
}

/// Returns a new identity for each call.
pub fn identity() -> IdentityKey {
    static NEXT: AtomicU8 = AtomicU8::new(10);
    IdentityKey::from_entropy([NEXT.fetch_add(1, Ordering::Relaxed); 32])
}

pub fn unix_now() -> Timestamp {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    Timestamp::ZERO + now
}

/// Returns a grant for all of loopback over any relay.
pub fn grant_for(gateway: PublicIdentity) -> SignedGrant {
    let now = unix_now();
    Grant {
        gateway,
        not_before: Timestamp::from_nanos(now.as_nanos() - 60_000_000_000),
        expires: now + Duration::from_secs(3600),
        sessions: None,
        extensions: tradewind_grant::Extensions::default(),
        relays: Relays::Any,
        destinations: rules(),
    }
    .sign(&operator())
    .unwrap()
}

pub fn rules() -> Vec<tradewind_grant::DestinationRule> {
    ["127.0.0.0/8:*", "[::1]/128:*"].map(|rule| rule.parse().unwrap()).to_vec()
}

/// Test programs whose legs are plain; all others use the default.
const PLAIN_PROGRAMS: [&str; 3] = ["stream_plain", "leaks", "forbidden"];
static PLAIN: LazyLock<AtomicBool> =
    LazyLock::new(|| PLAIN_PROGRAMS.contains(&env!("CARGO_CRATE_NAME")).into());

/// Returns true if legs are plain.
pub fn is_plain() -> bool {
    PLAIN.load(Ordering::Relaxed)
}

/// Makes legs plain from now on, or encrypted.
pub fn set_plain(plain: bool) {
    PLAIN.store(plain, Ordering::Relaxed);
}

/// Returns a gateway's legs.
pub fn legs() -> LegProfiles {
    if is_plain() { plain_legs() } else { LegProfiles::default() }
}

/// Returns a gateway's legs that are not encrypted.
pub fn plain_legs() -> LegProfiles {
    let mut legs = LegProfiles::default();
    legs.dial.encryption = Some(Encryption::None);
    legs
}

/// Returns a relay's configuration for loopback, one worker, any port.
pub fn relay_config() -> RelayConfig {
    RelayConfig::parse(&relay_config_text(&identity())).unwrap()
}

/// Returns the same for a relay that takes encrypted and plain connections, for tests that write
/// headers themselves.
pub fn open_relay_config() -> RelayConfig {
    let mut config = relay_config();
    config.leg.accept.encryption = Some(Encryption::Either);
    config
}

/// Returns the same as text.
pub fn relay_config_text(key: &IdentityKey) -> String {
    format!(
        "listen = ['127.0.7.1:0']
        identity = '{}'
        operators = ['{}']
        workers = 1
        [policy]
        destinations = ['127.0.0.0/8:*', '[::1]/128:*', '*.example.com:*', '*.invalid:*']
        next_hops = ['127.0.7.0/24:*']
        allow_loopback = true
        {}",
        *key.to_secret_text(),
        operator().public(),
        if is_plain() {
            "[leg]\naccept = { encryption = 'none' }\ndial = { encryption = 'none' }"
        } else {
            ""
        },
    )
}

/// Returns a gateway's configuration as text: one port, which forwards to `to` over a relay.
pub fn gateway_config_text(key: &IdentityKey, relay: &Hop, to: SocketAddr) -> String {
    format!(
        "identity = '{}'
        grant = '{}'
        workers = 1
        [[forward]]
        listen = '127.0.0.1:0'
        to = '{to}'
        [routes]
        default = ['relay']
        [[routes.relay]]
        name = 'relay'
        address = '{}'
        identity = '{}'
        {}",
        *key.to_secret_text(),
        grant_for(key.public()),
        relay.address,
        relay.identity,
        if is_plain() { "[leg]\ndial = { encryption = 'none' }" } else { "" },
    )
}

/// A relay or gateway on a thread; it stops when dropped.
pub struct Running {
    pub handle: Handle,
    pub shutdown: Shutdown,
    identity: Option<PublicIdentity>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    pub fn relay(config: &RelayConfig) -> Self {
        Self::relay_of(Relay::bind(config).unwrap())
    }

    /// Starts a relay on the address of one that has just ended. A process that another test starts
    /// may hold that one's listener a moment longer.
    pub fn relay_again(config: &RelayConfig) -> Self {
        let mut relay = None;
        wait_for("the port to be free", || {
            relay = Relay::bind(config).ok();
            relay.is_some()
        });
        Self::relay_of(relay.unwrap())
    }

    pub fn relay_of(relay: Relay) -> Self {
        let (handle, identity) = (relay.handle(), relay.identity());
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || relay.run(&stop).unwrap());
        Self { handle, shutdown, identity: Some(identity), thread: Some(thread) }
    }

    pub fn gateway(config: &GatewayConfig) -> Self {
        Self::gateway_of(Gateway::bind(config).unwrap())
    }

    pub fn gateway_of(gateway: Gateway) -> Self {
        let (handle, identity) = (gateway.handle(), gateway.identity());
        let shutdown = Shutdown::new();
        let stop = shutdown.clone();
        let thread = std::thread::spawn(move || gateway.run(&stop).unwrap());
        Self { handle, shutdown, identity, thread: Some(thread) }
    }

    pub fn identity(&self) -> PublicIdentity {
        self.identity.unwrap()
    }

    pub fn address(&self) -> SocketAddr {
        self.handle.local_addrs()[0]
    }

    pub fn hop(&self, name: &str) -> Hop {
        Hop {
            name: name.parse().unwrap(),
            address: self.address(),
            identity: self.identity.unwrap(),
        }
    }

    /// Waits until it has ended by itself.
    pub fn join(mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.shutdown.stop();
            thread.join().unwrap();
        }
    }
}

/// Returns a gateway's configuration whose flows all take `route`.
pub fn gateway_config(route: Route) -> GatewayConfig {
    let key = identity();
    GatewayConfig {
        grant_file: None,
        grant: Some(grant_for(key.public())),
        identity: Some(key),
        identity_file: None,
        previous_identity: None,
        previous_identity_file: None,
        revocations: None,
        forward: Vec::new(),
        tproxy: Vec::new(),
        optimistic: false,
        socks5: Vec::new(),
        connect: Vec::new(),
        expose: false,
        expose_without_password: false,
        user: Vec::new(),
        direct: true,
        allow_loopback: true,
        routes: RouteTable::new(Vec::new(), route).unwrap(),
        limits: Limits::default(),
        timeouts: Timeouts::default(),
        leg: legs(),
        metrics: None,
        metrics_expose: false,
        metrics_hosts: Vec::new(),
        workers: Some(1),
        packet: Vec::new(),
        packet_endpoint: None,
        socks5_udp: None,
        jumpstart: None,
        access_log: None,
        traces: None,
        control_share: tradewind_units::Ratio::ZERO,
        run_as: None,
    }
}

pub fn forward(to: SocketAddr) -> Forward {
    Forward {
        section: 0,
        listen: loopback(),
        to: to.to_string().parse().unwrap(),
        flow: "test".parse().unwrap(),
        send_proxy: None,
        accept_proxy: Vec::new(),
    }
}

/// Relays in a row and a gateway whose first port forwards to a destination over them.
pub struct Chain {
    pub gateway: Running,
    pub relays: Vec<Running>,
}

impl Chain {
    pub fn new(relays: usize, to: SocketAddr) -> Self {
        Self::of((0..relays).map(|_| Running::relay(&relay_config())).collect(), to)
    }

    pub fn of(relays: Vec<Running>, to: SocketAddr) -> Self {
        let mut config = gateway_config(route_over(&relays));
        config.forward = vec![forward(to)];
        Self { gateway: Running::gateway(&config), relays }
    }

    pub fn connect(&self) -> TcpStream {
        connect(self.gateway.address())
    }
}

pub fn route_over(relays: &[Running]) -> Route {
    if relays.is_empty() {
        return Route::Direct;
    }
    let name = |index: usize| format!("relay-{}", index + 1);
    Route::Relays(relays.iter().enumerate().map(|(i, relay)| relay.hop(&name(i))).collect())
}

pub fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    patient(&stream);
    stream
}

pub fn patient(stream: &TcpStream) {
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    stream.set_write_timeout(Some(TEST_TIMEOUT)).unwrap();
}

/// Starts a destination that serves one connection with `serve`, and returns the result of that.
pub fn destination<T: Send + 'static>(
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    destination_at(loopback(), serve)
}

pub fn destination_at<T: Send + 'static>(
    address: SocketAddr,
    serve: impl FnOnce(TcpStream) -> T + Send + 'static,
) -> (SocketAddr, JoinHandle<T>) {
    let listener = TcpListener::bind(address).unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        patient(&stream);
        serve(stream)
    });
    (address, thread)
}

/// Starts a destination that sends everything back, on a thread of its own for each connection, for
/// as long as the test runs.
pub fn echo() -> SocketAddr {
    let listener = TcpListener::bind(loopback()).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ended = io::copy(&mut stream.try_clone().unwrap(), &mut stream);
                let _gone = stream.shutdown(Half::Write);
            });
        }
    });
    address
}

/// Returns bytes that no shift or repetition leaves the same.
pub fn content(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_ne_bytes());
    }
    bytes.truncate(length);
    bytes
}

pub fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Reads to the end of file and returns the count and hash.
pub fn digest(stream: &mut impl Read) -> io::Result<(usize, [u8; 32])> {
    let (mut hasher, mut count) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok((count, hasher.finalize().into())),
            read => {
                count += read;
                hasher.update(&buffer[..read]);
            }
        }
    }
}

/// Sends `bytes` and ends the direction.
pub fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.write_all(bytes).unwrap();
    stream.shutdown(Half::Write).unwrap();
}

/// Resets the connection.
pub fn reset(stream: TcpStream) {
    tradewind_net::tcp::reset_on_close(&stream).unwrap();
    drop(stream);
}

/// Waits for `event`.
pub fn wait_for(what: &str, mut event: impl FnMut() -> bool) {
    let start = Instant::now();
    while !event() {
        assert!(start.elapsed() < TEST_TIMEOUT, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Reports that a test did not run, past the capture of tests that pass.
pub fn skipped(why: &dyn std::fmt::Display) {
    let _written = io::stderr().write_all(format!("SKIPPED: {why}\n").as_bytes());
}

/// Runs a test in a network of its own, where it may change settings, if this process may create
/// one; otherwise here, where it may not.
pub fn apart(test: impl FnOnce() + Send) {
    match Namespace::create() {
        Ok(namespace) => {
            iproute::batch(&namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
            namespace.run(test).unwrap();
        }
        Err(_) => test(),
    }
}
