//! How long what a relay brings back takes there: from a receiver's request at the relay to the packet that answers it on its way.
//!
//! A wire in front of the far gateway loses packets of the Internet path and looks at the clock when a request goes to the relay and when the answer comes
//! from there. So two passages over loopback and the wire's own turns count, too; over a network its round trip would come on top, and nothing else.

use std::collections::BTreeMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::bail;
use tradewind_net::udp::UdpOptions;
use tradewind_node::{Node, NodeConfig, RelayServices};
use tradewind_packet::ingress::Coding;

use crate::nodes::{FAR, RELAY, near, plain};
use crate::services::Carried;
use crate::traffic::port;

/// Of each packet, which is longer than all that is said about packets.
const BYTES: usize = 1_000;
const LONG: usize = 600;
/// Flows to the far gateway: with coding one of them is lost, and the others are what it is solved with.
const FLOWS: usize = 3;
/// Between packets of a flow, and which of them are lost.
const GAP: Duration = Duration::from_millis(5);
const LOSE_EACH: usize = 20;
/// Answers that are waited for, and how long.
const ANSWERS: usize = 300;
const PATIENCE: Duration = Duration::from_secs(120);

/// What the wire has seen.
#[derive(Debug, Default)]
struct Seen {
    /// Whose long datagrams are lost, once the paths are open.
    from: Option<SocketAddr>,
    count: usize,
    asked: Option<Instant>,
    took: Vec<Duration>,
}

impl Seen {
    /// Whether a datagram to the far gateway gets lost; one from the relay may be an answer.
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

    /// One goes back. A request is short; its helpers' answers are not.
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
            // What a full buffer loses shows as a loss.
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

/// Times from request to answer, sorted.
///
/// # Errors
/// When a node does not start, or too few packets come back.
pub(crate) fn run(carried: Carried) -> anyhow::Result<Vec<Duration>> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let ends = [(); FLOWS].map(|()| port(UdpOptions::default()));
    let far = Node::start(plain(FAR, &[RELAY]))?;
    let wire = wire(far.address(), Arc::clone(&seen))?;
    // Blocks of all flows, solved at the relay with what the far gateway lends of the others.
    let coding = Coding { packets: FLOWS as u8, ..Coding::default() };
    let services = RelayServices { coding, in_stream: None, ..RelayServices::default() };
    let relay = Node::start(NodeConfig { services, ..plain(RELAY, &[]) })?;
    let to = ends.each_ref().map(|end| end.address());
    let near = Node::start(near(1, carried.carriage(), (relay.address(), wire), &to)?)?;
    let application = UdpSocket::bind("127.0.0.1:0")?;
    let (begun, entrances) = (Instant::now(), near.local_addresses().to_vec());
    let is_served = || match carried {
        Carried::Coding => relay.snapshot().repairs > 100,
        _ => relay.snapshot().kept > 100,
    };
    let mut answered = 0;
    while answered < ANSWERS {
        if begun.elapsed() > PATIENCE {
            bail!("{answered} packets came back in {PATIENCE:?}: {:?}", relay.snapshot());
        }
        for entrance in &entrances {
            application.send_to(&[0; BYTES], *entrance)?;
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
