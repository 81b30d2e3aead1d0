//! The load, and who counts what arrives.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tradewind_net::epoll::Epoll;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};

const FLOWS: usize = 64;
const TRAIN: usize = 32;
/// How long a thread waits for datagrams before it looks whether all is over.
pub(crate) const WAIT: Duration = Duration::from_millis(20);

/// How datagrams come.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Traffic {
    /// Many in a row of one flow.
    Trains,
    /// One of each of many flows.
    Singles,
}

pub(crate) fn port(options: UdpOptions) -> UdpPort {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    UdpPort::bind(address, &options).expect("loopback has a free port")
}

/// Sends to `to` as fast as it goes while `measured` is asked before and after `span`, once queues are full; returns what it
/// said, and how many datagrams came to `end` a second.
pub(crate) fn load<T>(
    traffic: Traffic,
    bytes: usize,
    (to, end): (SocketAddr, &UdpPort),
    span: Duration,
    measured: impl Fn() -> T,
) -> ([T; 2], f64) {
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| drain(end, &stop, &arrived));
        scope.spawn(|| send(traffic, bytes, to, &stop));
        std::thread::sleep(span / 5);
        let (first, begun, before) = (measured(), Instant::now(), arrived.load(Ordering::Relaxed));
        std::thread::sleep(span);
        let count = arrived.load(Ordering::Relaxed) - before;
        let arrived_a_second = count as f64 / begun.elapsed().as_secs_f64();
        let last = measured();
        stop.store(true, Ordering::Relaxed);
        ([first, last], arrived_a_second)
    })
}

fn drain(port: &UdpPort, stop: &AtomicBool, arrived: &AtomicU64) {
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
        arrived.fetch_add(count, Ordering::Relaxed);
    }
}

fn send(traffic: Traffic, bytes: usize, to: SocketAddr, stop: &AtomicBool) {
    let trains = matches!(traffic, Traffic::Trains);
    let options = UdpOptions { gso: trains, ..UdpOptions::default() };
    let ports: Vec<_> = (0..if trains { 1 } else { FLOWS }).map(|_| port(options)).collect();
    let mut outgoing = SendBatch::new(1);
    while !stop.load(Ordering::Relaxed) {
        for port in &ports {
            for _ in 0..if trains { TRAIN } else { 1 } {
                if let Some(room) = outgoing.push(to, bytes) {
                    room[0] = 1;
                }
            }
            outgoing.flush(port);
        }
    }
}
