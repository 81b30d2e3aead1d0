//! A load that sends to the relay directly, and an end that does only what the relay needs, so that
//! only the relay limits its forwarding rate.
//!
//! A gateway spends more CPU on a packet than the relay does, and where they share CPUs the relay
//! waits for it. Here each socket of the load acts as a gateway: it agrees on keys with the relay,
//! opens a path over it to the end, and writes the headers of passed datagrams. The payload is not
//! sealed end to end, which a relay does not check; the end accepts paths, and counts received
//! datagrams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::bail;
use tradewind_grant::{Destination, Hop, Nonce, Request, Route, Sealer};
use tradewind_net::epoll::Epoll;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpPort};
use tradewind_net::{clock, entropy};
use tradewind_packet::message::Message;
use tradewind_packet::session::{
    HEADER_BYTES, Limits, Link, Now, OVERHEAD, PASSED_BYTES, PeerId, Sessions, SessionsConfig,
};
use tradewind_units::{FlowId, Timestamp};

use crate::nodes::{RELAY, REMOTE, grant, identity};
use crate::traffic::WAIT;

/// The number of the node that the load's sockets act as.
const SOURCE: u8 = 1;
/// The destination given in the header; nothing is delivered there.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 9);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Interval after which a request to the relay is repeated.
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

    /// Writes the headers of datagrams that leave from this socket.
    pub(crate) fn head(&self, port: &UdpPort, train: &mut [u8], segment: usize) {
        let mut sources = self.0.lock().expect("nobody panics");
        let source = sources.get_mut(&port.address()).expect("each has a path");
        let passed = source.sessions.pass(source.peer, source.label, train, segment);
        passed.expect("the session outlasts a round");
    }
}

/// Space for the header of passed datagrams.
pub(crate) const HEAD: [u8; PASSED_BYTES] = [0; PASSED_BYTES];

fn now() -> Now {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Now { steady: clock::monotonic(), unix: Timestamp::ZERO + unix }
}

impl Source {
    fn open(port: &UdpPort, hops: [Hop; 2]) -> anyhow::Result<Self> {
        let relay = hops[0];
        let grant = grant(SOURCE)?;
        let config = SessionsConfig {
            identity: identity(SOURCE),
            operators: Vec::new(),
            neighbours: [relay.identity].into(),
            limits: Limits::default(),
        };
        let mut sessions = Sessions::new(config, now(), entropy::bytes()?);
        let (link, shown) = (Link::to(relay.address), Some(grant));
        let Some(peer) = sessions.connect(now(), relay.identity, link, shown) else {
            bail!("no place for the relay");
        };
        let (begun, mut asked, mut label) = (Instant::now(), None::<Instant>, None);
        let mut incoming = ReceiveBatch::new(8);
        while label.is_none() {
            if begun.elapsed() > TIMEOUT {
                bail!("no path over the relay within {TIMEOUT:?}");
            }
            sessions.handle_timeout(now());
            if sessions.is_open(peer) && asked.is_none_or(|asked| asked.elapsed() > ASK_AGAIN) {
                asked = Some(Instant::now());
                // A new header each time, as gateways do: a relay that has just started refuses
                // older ones.
                let header = header(hops)?;
                let question = Message::Open { label: 0, header: &header };
                send(port, relay.address, &sealed(&mut sessions, peer, &question));
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

/// The first byte of passed datagrams.
const PASSED: u8 = 0x16;

/// Runs the remote gateway's part until `stop` is set: accepts paths that end here, and counts the
/// datagrams that arrive along them.
pub(crate) fn end(port: &UdpPort, arrived: &AtomicU64, stop: &AtomicBool) {
    let config = SessionsConfig {
        identity: identity(REMOTE),
        operators: Vec::new(),
        neighbours: [identity(RELAY).public()].into(),
        limits: Limits::default(),
    };
    let seed = entropy::bytes().expect("the system has entropy");
    let mut sessions = Sessions::new(config, now(), seed);
    let (mut incoming, mut labels) = (ReceiveBatch::new(32), 0..);
    let mut epoll = Epoll::new().expect("a descriptor is left");
    epoll.watch(port, 0).expect("a socket can be watched");
    while !stop.load(Ordering::Relaxed) {
        if incoming.receive(port).expect("the socket is open") == 0 {
            epoll.wait(Some(WAIT)).expect("epoll waits").count();
            continue;
        }
        incoming.for_each_train(|arrival, train| {
            if train.bytes().first() == Some(&PASSED) {
                arrived.fetch_add(train.count() as u64, Ordering::Relaxed);
                return;
            }
            let segment = train.segment();
            for datagram in train.bytes().chunks_mut(segment) {
                let answer = let_open(&mut sessions, arrival.from, datagram, &mut labels);
                answer.iter().for_each(|answer| send(port, arrival.from, answer));
            }
        });
        while let Some(transmit) = sessions.poll_transmit() {
            if let Link::Internet(to) = transmit.link {
                send(port, to.remote, &transmit.bytes);
            }
        }
    }
}

/// Returns the reply to a datagram that opens a path.
fn let_open(
    sessions: &mut Sessions,
    from: SocketAddr,
    datagram: &mut [u8],
    labels: &mut impl Iterator<Item = u32>,
) -> Option<Vec<u8>> {
    let opened = sessions.handle_datagram(now(), Link::to(from), datagram)?;
    let Ok(Message::Open { label, .. }) = Message::parse(&datagram[opened.payload]) else {
        return None;
    };
    Some(sealed(sessions, opened.peer, &Message::Opened { label, next: labels.next()? }))
}

/// Returns the hop header that opens a path over the relay to its end.
fn header(hops: [Hop; 2]) -> anyhow::Result<Vec<u8>> {
    let (flow, destination) = (FlowId::new("bench")?, Destination::Address(NOWHERE));
    let route = Route::new(hops.to_vec())?;
    let request = Request { flow: &flow, destination: &destination, route: &route };
    let nonce = Nonce::from_entropy(entropy::bytes()?);
    Ok(Sealer::new(identity(SOURCE), grant(SOURCE)?)?.seal(now().unix, nonce, &request)?.bytes)
}

/// Returns a message sealed for a neighbour.
fn sealed(sessions: &mut Sessions, peer: PeerId, message: &Message<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.write(&mut bytes);
    let mut datagram = vec![0; bytes.len() + OVERHEAD];
    datagram[HEADER_BYTES..][..bytes.len()].copy_from_slice(&bytes);
    sessions.seal(peer, &mut datagram).expect("a session is open");
    datagram
}

fn send(port: &UdpPort, to: SocketAddr, datagram: &[u8]) {
    let mut batch = SendBatch::new(1);
    batch.push(to, datagram.len()).expect("there is room").copy_from_slice(datagram);
    batch.flush(port);
}
