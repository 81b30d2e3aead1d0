//! coturn, the usual TURN server [RFC 8656], with one thread for all relayed packets.
//!
//! Each sender allocates an address on it and binds a channel from there to the end: a header of 4
//! bytes before a payload then names the channel.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};

use crate::traffic::{self, LoadPath, Traffic, port};
use crate::{Outcome, cpu};

const PROGRAM: &str = "turnserver";
/// Longest wait for a request to be granted.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The magic cookie of STUN messages [RFC 8489 5].
const MAGIC: u32 = 0x2112_a442;
const ALLOCATE: u16 = 0x0003;
const BIND_CHANNEL: u16 = 0x0009;
/// Added to a request's type in a success response.
const SUCCESS: u16 = 0x0100;
const FAILURE: u16 = 0x0110;
const CHANNEL: [u8; 2] = [0x40, 0x00];

/// Returns the path of the program, if it is installed.
pub(crate) fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(PROGRAM)).find(|path| path.is_file())
}

/// Runs one round.
///
/// # Errors
/// When it does not start.
pub(crate) fn run(traffic: Traffic, bytes: usize, span: Duration) -> anyhow::Result<Outcome> {
    let server = Server::start()?;
    let end = port(UdpOptions::default());
    let (to, remote) = (server.address, end.address());
    let length = u16::try_from(bytes).context("a payload has at most 64 KB")?.to_be_bytes();
    let head = [CHANNEL, length].concat();
    let introduce =
        |port: &UdpPort| introduce(port, to, remote).expect("coturn relays on loopback");
    let first = [to];
    let path = LoadPath::straight(&first, &end).introduced(&head, &introduce);
    let now = |reached| (reached, cpu::of_process(server.child.id()));
    let (counted, arrived_a_second) = traffic::load(traffic, bytes, path, span, now);
    let [(before, cpu_before), (after, cpu_after)] = counted;
    let cpu = (cpu_after? - cpu_before?).as_secs_f64();
    Ok(Outcome { arrived_a_second, handled_a_cpu_second: (after - before) as f64 / cpu })
}

/// A server process, killed when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start() -> anyhow::Result<Self> {
        let path = find().context("coturn is not installed")?;
        let free = UdpSocket::bind("127.0.0.1:0")?.local_addr()?;
        let mut command = Command::new(path);
        command.args(["-n", "--no-auth", "--no-cli", "--no-tls", "--no-dtls", "--no-tcp"]);
        command.args(["--no-tcp-relay", "--allow-loopback-peers", "--relay-threads=0"]);
        command.args(["--listening-ip=127.0.0.1", "--relay-ip=127.0.0.1", "--realm=bench"]);
        command.args(["--log-file=stdout", "--simple-log", "--pidfile=/dev/null"]);
        command.args(["--userdb=/dev/null", &format!("--listening-port={}", free.port())]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().context("start coturn")?;
        let server = Self { child, address: free };
        let probe = port(UdpOptions::default());
        introduce(&probe, server.address, probe.address())?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended already.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Binds [`CHANNEL`] of `server` for packets from `port` to `remote`.
fn introduce(port: &UdpPort, server: SocketAddr, remote: SocketAddr) -> anyhow::Result<()> {
    const REQUESTED_TRANSPORT: u16 = 0x0019;
    const CHANNEL_NUMBER: u16 = 0x000c;
    const XOR_PEER_ADDRESS: u16 = 0x0012;
    let SocketAddr::V4(remote) = remote else { bail!("the bench is on 127.0.0.1") };
    let ip: Ipv4Addr = *remote.ip();
    let masked_port = remote.port() ^ (MAGIC >> 16) as u16;
    let masked_ip = u32::from(ip) ^ MAGIC;
    let ([p, q], [a, b, c, d]) = (masked_port.to_be_bytes(), masked_ip.to_be_bytes());
    ask(port, server, ALLOCATE, &[(REQUESTED_TRANSPORT, [17, 0, 0, 0].into())])?;
    let channel = [CHANNEL, [0, 0]].concat();
    let peer = vec![0, 1, p, q, a, b, c, d];
    ask(port, server, BIND_CHANNEL, &[(CHANNEL_NUMBER, channel), (XOR_PEER_ADDRESS, peer)])
}

/// Sends a request until it is granted.
fn ask(
    port: &UdpPort,
    server: SocketAddr,
    kind: u16,
    attributes: &[(u16, Vec<u8>)],
) -> anyhow::Result<()> {
    let mut body = Vec::new();
    for (kind, value) in attributes {
        body.extend(kind.to_be_bytes());
        body.extend((value.len() as u16).to_be_bytes());
        body.extend(value);
    }
    // A socket sends one request of each type, so the type suffices to match the response.
    let [high, low] = kind.to_be_bytes();
    let length = (body.len() as u16).to_be_bytes();
    let request = [&[high, low], &length[..], &MAGIC.to_be_bytes(), &[low; 12], &body].concat();
    let (mut outgoing, mut incoming) = (SendBatch::new(1), ReceiveBatch::new(1));
    let begun = Instant::now();
    let mut refusal = "it answered nothing to it".to_owned();
    while begun.elapsed() < TIMEOUT {
        let buffer = outgoing.push(server, request.len()).context("a batch has room")?;
        buffer.copy_from_slice(&request);
        outgoing.flush(port);
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(1));
            if incoming.receive(port)? > 0 {
                let (mut is_granted, mut failed) = (false, None);
                incoming.for_each(|_, datagram| {
                    is_granted |= datagram.starts_with(&(kind + SUCCESS).to_be_bytes());
                    failed = failed.take().or_else(|| failure(kind, datagram));
                });
                if is_granted {
                    return Ok(());
                }
                refusal = failed.unwrap_or(refusal);
            }
        }
    }
    bail!("coturn has not granted request {kind:#06x} within {TIMEOUT:?}: {refusal}")
}

/// Returns the reason of a failure response to this request type, if the response holds one:
/// ERROR-CODE is its first attribute [RFC 8489 14.8].
fn failure(kind: u16, answer: &[u8]) -> Option<String> {
    const HEADER: usize = 20;
    let is_failure = answer.starts_with(&(kind + FAILURE).to_be_bytes());
    let attribute = answer.get(HEADER..).filter(|_| is_failure)?;
    let length = usize::from(u16::from_be_bytes([*attribute.get(2)?, *attribute.get(3)?]));
    let [_, _, class, number, reason @ ..] = attribute.get(4..4 + length)? else { return None };
    let code = 100 * u16::from(class & 7) + u16::from(*number);
    Some(format!("error {code}, {}", String::from_utf8_lossy(reason)))
}
