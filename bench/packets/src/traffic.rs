//! The load, and the thread that counts arriving datagrams.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tradewind_net::epoll::Epoll;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};

const FLOWS: usize = 64;
const TRAIN: usize = 32;
/// Longest wait for datagrams before a thread checks whether to stop.
pub(crate) const WAIT: Duration = Duration::from_millis(20);

/// The order of datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Traffic {
    /// Trains: many in a row of one flow.
    Trains,
    /// Single datagrams of many flows in turn.
    Singles,
}

impl Traffic {
    /// Returns a socket for each flow.
    fn senders(self) -> Vec<UdpPort> {
        let (gso, flows) = match self {
            Self::Trains => (true, 1),
            Self::Singles => (false, FLOWS),
        };
        (0..flows).map(|_| port(UdpOptions { gso, ..UdpOptions::default() })).collect()
    }

    /// Returns the number of datagrams of a flow before the next flow's turn.
    const fn in_a_row(self) -> usize {
        match self {
            Self::Trains => TRAIN,
            Self::Singles => 1,
        }
    }
}

pub(crate) fn port(options: UdpOptions) -> UdpPort {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    UdpPort::bind(address, &options).expect("loopback has a free port")
}

/// Returns a socket of an application that packets are delivered to: apart from nodes, as their
/// next hops are no destinations.
pub(crate) fn application() -> UdpPort {
    let address = SocketAddr::from(([127, 0, 0, 2], 0));
    UdpPort::bind(address, &UdpOptions::default()).expect("loopback has a free port")
}

/// The path of a load.
#[derive(Clone, Copy)]
pub(crate) struct LoadPath<'a> {
    /// Addresses to send to, in turn.
    to: &'a [SocketAddr],
    end: &'a UdpPort,
    /// The bytes before each payload.
    head: &'a [u8],
    /// Registers a socket before it sends.
    introduce: &'a (dyn Fn(&UdpPort) + Sync),
    /// Writes the headers of a socket's outgoing datagrams, which lie back to back and have the
    /// given length each.
    write_heads: &'a (dyn Fn(&UdpPort, &mut [u8], usize) + Sync),
}

impl<'a> LoadPath<'a> {
    /// Creates a path to these addresses in turn, which forward the datagrams unchanged to `end`.
    pub(crate) fn straight(to: &'a [SocketAddr], end: &'a UdpPort) -> Self {
        Self { to, end, head: &[], introduce: &|_| {}, write_heads: &|_, _, _| {} }
    }

    /// Sends through a forwarder that must know each sender beforehand, and removes `head` from
    /// each datagram.
    pub(crate) fn introduced(
        self,
        head: &'a [u8],
        introduce: &'a (dyn Fn(&UdpPort) + Sync),
    ) -> Self {
        Self { head, introduce, ..self }
    }

    /// Sends with headers written for each datagram.
    pub(crate) fn with_heads(
        self,
        write_heads: &'a (dyn Fn(&UdpPort, &mut [u8], usize) + Sync),
    ) -> Self {
        Self { write_heads, ..self }
    }
}

/// The datagrams that arrived at the end of a path.
#[derive(Debug, Default)]
struct Arrivals {
    received: AtomicU64,
    /// Datagrams dropped because the socket's buffer was full.
    overrun: AtomicU64,
}

/// Sends payloads of `bytes` as fast as possible, and calls `measured` before and after `span`,
/// once queues are full, with the number of datagrams that have reached the end. Returns its
/// results, and the number of datagrams received a second.
pub(crate) fn load<T>(
    traffic: Traffic,
    bytes: usize,
    path: LoadPath<'_>,
    span: Duration,
    measured: impl Fn(u64) -> T,
) -> ([T; 2], f64) {
    let (stop, arrivals) = (AtomicBool::new(false), Arrivals::default());
    let ports = traffic.senders();
    ports.iter().for_each(path.introduce);
    let received = || arrivals.received.load(Ordering::Relaxed);
    let ask = || measured(received() + arrivals.overrun.load(Ordering::Relaxed));
    std::thread::scope(|scope| {
        scope.spawn(|| drain(path.end, &stop, &arrivals));
        scope.spawn(|| send(&ports, traffic, bytes, path, &stop));
        std::thread::sleep(span / 5);
        let (first, begun, before) = (ask(), Instant::now(), received());
        std::thread::sleep(span);
        let arrived_a_second = (received() - before) as f64 / begun.elapsed().as_secs_f64();
        let last = ask();
        stop.store(true, Ordering::Relaxed);
        ([first, last], arrived_a_second)
    })
}

fn drain(port: &UdpPort, stop: &AtomicBool, arrivals: &Arrivals) {
    let mut incoming = ReceiveBatch::new(32);
    let mut epoll = Epoll::new().expect("a descriptor is left");
    epoll.watch(port, 0).expect("a socket can be watched");
    while !stop.load(Ordering::Relaxed) {
        if incoming.receive(port).expect("the socket is open") == 0 {
            epoll.wait(Some(WAIT)).expect("epoll waits").count();
            continue;
        }
        let mut count = 0;
        incoming.for_each(|_, _| count += 1);
        arrivals.received.fetch_add(count, Ordering::Relaxed);
        arrivals.overrun.store(incoming.drops().into(), Ordering::Relaxed);
    }
}

fn send(ports: &[UdpPort], traffic: Traffic, bytes: usize, path: LoadPath<'_>, stop: &AtomicBool) {
    let (mut outgoing, mut turns) = (SendBatch::new(1), path.to.iter().cycle());
    let segment = path.head.len() + bytes;
    let datagram = [path.head, &vec![0; bytes]].concat();
    let mut train = datagram.repeat(traffic.in_a_row());
    while !stop.load(Ordering::Relaxed) {
        for port in ports {
            let Some(to) = turns.next() else { return };
            (path.write_heads)(port, &mut train, segment);
            for datagram in train.chunks(segment) {
                if let Some(buffer) = outgoing.push(*to, segment) {
                    buffer.copy_from_slice(datagram);
                }
            }
            outgoing.flush(port);
        }
    }
}
