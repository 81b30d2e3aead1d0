//! A load that speaks to the relay itself, so that nothing but the relay bounds what it forwards.
//!
//! A gateway between load and relay spends more on a packet than the relay does, and where both share CPUs the relay waits for it. Here each socket of
//! the load is a gateway's by itself: it agrees on keys with the relay, opens a path over it to the far gateway, and writes the headers of passed datagrams. What is
//! behind them no endpoint has sealed, which a relay does not look at; the far gateway counts it and drops it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use tradewind_grant::{Destination, Hop, Nonce, Request, Route, Sealer};
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpPort};
use tradewind_net::{clock, entropy};
use tradewind_packet::message::Message;
use tradewind_packet::session::{
    HEADER_BYTES, Limits, Link, Now, OVERHEAD, PASSED_BYTES, PeerId, Sessions, SessionsConfig,
};
use tradewind_units::{FlowId, Timestamp};

use crate::nodes::{grant, identity};

/// Whose sockets the load's are.
const SOURCE: u8 = 1;
/// Where it says that its packets go: the far gateway delivers none of them.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);
const PATIENCE: Duration = Duration::from_secs(10);
/// What the relay is asked for is asked for again after this.
const ASK_AGAIN: Duration = Duration::from_millis(200);

/// All sockets of a load, by their addresses.
#[derive(Default)]
pub(crate) struct Sources(Mutex<BTreeMap<SocketAddr, Source>>);

/// One socket's session with the relay, and the label of its path there.
struct Source {
    sessions: Sessions,
    peer: PeerId,
    label: u32,
}

impl Sources {
    /// Opens a path for a socket.
    ///
    /// # Errors
    /// When it is not open within ten seconds.
    pub(crate) fn open(&self, port: &UdpPort, hops: [Hop; 2]) -> anyhow::Result<()> {
        let source = Source::open(port, hops)?;
        self.0.lock().expect("nobody panics").insert(port.address(), source);
        Ok(())
    }

    /// Writes the headers of datagrams that leave by this socket.
    pub(crate) fn head(&self, port: &UdpPort, train: &mut [u8], segment: usize) {
        let mut sources = self.0.lock().expect("nobody panics");
        let source = sources.get_mut(&port.address()).expect("each has a path");
        let passed = source.sessions.pass(source.peer, source.label, train, segment);
        passed.expect("the session outlasts a round");
    }
}

/// Bytes before what a relay passes on.
pub(crate) const HEAD: [u8; PASSED_BYTES] = [0; PASSED_BYTES];

fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { steady: clock::monotonic(), unix: Timestamp::ZERO + unix }
}

impl Source {
    fn open(port: &UdpPort, hops: [Hop; 2]) -> anyhow::Result<Self> {
        let relay = hops[0];
        let (grant, header) = (grant(SOURCE)?, header(hops)?);
        let config = SessionsConfig {
            identity: identity(SOURCE),
            operators: Vec::new(),
            neighbours: [relay.identity].into(),
            limits: Limits::default(),
        };
        let mut sessions = Sessions::new(config, now(), entropy::bytes()?);
        let (link, shown) = (Link::Internet(relay.address), Some(grant));
        let Some(peer) = sessions.connect(now(), relay.identity, link, shown) else {
            bail!("no place for the relay");
        };
        let (begun, mut asked, mut label) = (Instant::now(), None::<Instant>, None);
        let mut incoming = ReceiveBatch::new(8);
        while label.is_none() {
            if begun.elapsed() > PATIENCE {
                bail!("no path over the relay within {PATIENCE:?}");
            }
            sessions.handle_timeout(now());
            if sessions.is_open(peer) && asked.is_none_or(|asked| asked.elapsed() > ASK_AGAIN) {
                asked = Some(Instant::now());
                send(port, relay.address, &question(&mut sessions, peer, &header));
            }
            while let Some(transmit) = sessions.poll_transmit() {
                send(port, relay.address, &transmit.bytes);
            }
            std::thread::sleep(Duration::from_millis(1));
            incoming.receive(port)?;
            incoming.for_each(|_, datagram| {
                let opened = sessions.handle_datagram(now(), link, datagram);
                let message = opened.map(|opened| Message::parse(&datagram[opened.payload]));
                if let Some(Ok(Message::Opened { next, .. })) = message {
                    label = Some(next);
                }
            });
        }
        let label = label.expect("it was told");
        Ok(Self { sessions, peer, label })
    }
}

/// The header that opens a path over the relay to the far gateway.
fn header(hops: [Hop; 2]) -> anyhow::Result<Vec<u8>> {
    let (flow, destination) = (FlowId::new("bench")?, Destination::Address(NOWHERE));
    let route = Route::new(hops.to_vec())?;
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let nonce = Nonce::from_entropy(entropy::bytes()?);
    Ok(Sealer::new(identity(SOURCE), grant(SOURCE)?)?.seal(now().unix, nonce, &request)?.bytes)
}

/// Asks for a path.
fn question(sessions: &mut Sessions, peer: PeerId, header: &[u8]) -> Vec<u8> {
    let mut message = Vec::new();
    Message::Open { label: 0, header }.write(&mut message);
    let mut datagram = vec![0; message.len() + OVERHEAD];
    datagram[HEADER_BYTES..][..message.len()].copy_from_slice(&message);
    sessions.seal(peer, &mut datagram).expect("a session is open");
    datagram
}

fn send(port: &UdpPort, to: SocketAddr, datagram: &[u8]) {
    let mut batch = SendBatch::new(1);
    batch.push(to, datagram.len()).expect("there is room").copy_from_slice(datagram);
    batch.flush(port);
}
