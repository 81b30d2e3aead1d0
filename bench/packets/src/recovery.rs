//! The recovery time at a relay: from the arrival of a receiver's request to the packet sent in
//! response.
//!
//! A wire in front of the remote gateway drops packets of the Internet path and takes the time when
//! a request leaves for the relay and when the recovered packet arrives from there. So two passages
//! over loopback and the wire's own scheduling are included; over a network only the round trip
//! would be added.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use tradewind_node::{Node, NodeConfig, RelayServices};
use tradewind_packet::ingress::Coding;

use crate::nodes::{RELAY, REMOTE, near, plain};
use crate::services::Carried;
use crate::traffic::application;

/// Length of each packet; longer than any control message.
const BYTES: usize = 1_000;
const LONG: usize = 600;
/// Flows to the remote gateway: with coding one of them loses a packet, and the others are used to
/// solve for it.
const FLOWS: usize = 3;
/// The gap between packets of a flow, and the ratio of lost ones.
const GAP: Duration = Duration::from_millis(5);
const LOSE_EACH: usize = 20;
/// The number of recoveries to measure, and the longest wait for them.
const ANSWERS: usize = 300;
const TIMEOUT: Duration = Duration::from_secs(120);

/// The state of the wire.
#[derive(Debug, Default)]
struct Seen {
    /// The sender whose long datagrams are dropped, once the paths are open.
    from: Option<SocketAddr>,
    count: usize,
    asked: Option<Instant>,
    took: Vec<Duration>,
}

impl Seen {
    /// Returns whether a datagram to the remote gateway is delivered; one from the relay may be a
    /// recovered packet.
    fn comes(&mut self, from: SocketAddr, length: usize) -> bool {
        if length < LONG || self.from.is_none() {
            return true;
        }
        if self.from != Some(from) {
            self.took.extend(self.asked.take().map(|asked| asked.elapsed()));
            return true;
        }
        self.count += 1;
        !self.count.is_multiple_of(LOSE_EACH)
    }

    /// Notes a datagram from the remote gateway. Requests are short; packets that it lends as a
    /// helper are long.
    fn goes_back(&mut self, to: SocketAddr, length: usize) {
        if length < LONG && self.from.is_some_and(|from| from != to) {
            self.asked = Some(Instant::now());
        }
    }
}

/// Starts a wire to `node`; its threads end with the process.
fn wire(node: SocketAddr, seen: Arc<Mutex<Seen>>) -> anyhow::Result<SocketAddr> {
    let socket = Arc::new(UdpSocket::bind("127.0.0.1:0")?);
    let address = socket.local_addr()?;
    std::thread::spawn(move || {
        let (mut others, mut buffer) = (BTreeMap::new(), [0; 65_536]);
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            if !seen.lock().expect("nobody panics").comes(from, length) {
                continue;
            }
            let up = others.entry(from).or_insert_with(|| {
                let up =
                    Arc::new(UdpSocket::bind("127.0.0.1:0").expect("loopback has a free port"));
                up.connect(node).expect("loopback is there");
                carry_back(Arc::clone(&up), Arc::clone(&socket), from, Arc::clone(&seen));
                up
            });
            // A full buffer counts as a loss.
            drop(up.send(&buffer[..length]));
        }
    });
    Ok(address)
}

fn carry_back(up: Arc<UdpSocket>, by: Arc<UdpSocket>, to: SocketAddr, seen: Arc<Mutex<Seen>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(length) = up.recv(&mut buffer) {
            seen.lock().expect("nobody panics").goes_back(to, length);
            drop(by.send_to(&buffer[..length], to));
        }
    });
}

/// Returns the times from request to recovered packet, sorted.
///
/// # Errors
/// When a node does not start, or too few packets are recovered.
pub(crate) fn run(carried: Carried) -> anyhow::Result<Vec<Duration>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let ends = [(); FLOWS].map(|()| application());
    let remote = Node::start(plain(REMOTE, &[RELAY]))?;
    let wire = wire(remote.address(), Arc::clone(&seen))?;
    // Blocks span all flows and are solved at the relay with the other flows' packets, which the
    // remote gateway lends.
    let coding = Coding { packets: FLOWS as u8, ..Coding::default() };
    let services = RelayServices { coding, in_stream: None, ..RelayServices::default() };
    let relay = Node::start(NodeConfig { services, ..plain(RELAY, &[]) })?;
    let to = ends.each_ref().map(|end| end.address());
    let near = Node::start(near(1, carried.carriage(), (relay.address(), wire), &to)?)?;
    let application = UdpSocket::bind("127.0.0.1:0")?;
    let (begun, listeners) = (Instant::now(), near.local_addresses().to_vec());
    let is_served = || match carried {
        Carried::Coding => relay.snapshot().repairs > 100,
        _ => relay.snapshot().cached > 100,
    };
    let mut answered = 0;
    while answered < ANSWERS {
        if begun.elapsed() > TIMEOUT {
            bail!("{answered} packets came back in {TIMEOUT:?}: {:?}", relay.snapshot());
        }
        for source in &listeners {
            application.send_to(&[0; BYTES], *source)?;
        }
        std::thread::sleep(GAP);
        let mut seen = seen.lock().expect("nobody panics");
        answered = seen.took.len();
        if seen.from.is_none() && is_served() {
            seen.from = Some(near.address());
        }
    }
    let mut took = std::mem::take(&mut seen.lock().expect("nobody panics").took);
    took.sort();
    Ok(took)
}
