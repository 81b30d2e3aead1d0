//! Bare loops over UDP: a thread that does nothing but copy, the yardstick for relays.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tradewind_net::clock;
use tradewind_net::epoll::Epoll;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};

use crate::Outcome;
use crate::traffic::{self, Traffic, WAIT, Way, port};

/// How a loop takes and gives datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loop {
    /// Trains of the kernel's making: GRO in, GSO out.
    Trains,
    /// Batches of single ones.
    Batches,
}

impl Loop {
    fn options(self) -> UdpOptions {
        let trains = matches!(self, Self::Trains);
        UdpOptions { gro: trains, gso: trains, ..UdpOptions::default() }
    }
}

/// What a loop has copied so far, and the CPU time that it took.
type Copied = (u64, Duration);

/// One round.
pub(crate) fn run(kind: Loop, traffic: Traffic, bytes: usize, span: Duration) -> Outcome {
    let (stop, copied) = (AtomicBool::new(false), Mutex::<Copied>::default());
    let (middle, end) = (port(kind.options()), port(UdpOptions::default()));
    let (first_hop, last_hop) = (middle.address(), end.address());
    std::thread::scope(|scope| {
        scope.spawn(|| forward(&middle, (&middle, last_hop), &copied, &stop));
        let now = |_| *copied.lock().expect("nobody panics");
        let to = [first_hop];
        let way = Way::straight(&to, &end);
        let (counted, arrived_a_second) = traffic::load(traffic, bytes, way, span, now);
        stop.store(true, Ordering::Relaxed);
        let [(before, cpu_before), (after, cpu_after)] = counted;
        let cpu = (cpu_after - cpu_before).as_secs_f64();
        Outcome { arrived_a_second, handled_a_cpu_second: (after - before) as f64 / cpu }
    })
}

/// Copies what comes to `from` by another port, or the same, to an address.
fn forward(
    from: &UdpPort,
    (by, to): (&UdpPort, SocketAddr),
    copied: &Mutex<Copied>,
    stop: &AtomicBool,
) {
    let (mut incoming, mut outgoing) = (ReceiveBatch::new(32), SendBatch::new(64));
    let mut epoll = Epoll::new().expect("a descriptor is left");
    epoll.watch(from, 0).expect("a socket can be watched");
    let (mut sent, begun) = (0, clock::thread_cpu());
    while !stop.load(Ordering::Relaxed) {
        if incoming.receive(from).expect("the socket is open") == 0 {
            epoll.wait(Some(WAIT)).expect("epoll waits").count();
            continue;
        }
        incoming.for_each(|_, datagram| {
            let room = match outgoing.push(to, datagram.len()) {
                Some(room) => room,
                None => {
                    sent += outgoing.flush(by).sent;
                    outgoing.push(to, datagram.len()).expect("an empty batch takes a datagram")
                }
            };
            room.copy_from_slice(datagram);
        });
        sent += outgoing.flush(by).sent;
        *copied.lock().expect("nobody panics") = (sent, clock::thread_cpu() - begun);
    }
}

/// Takes trains apart: a loop each way between a gateway and a relay, so that datagrams reach both one by one.
pub(crate) struct Apart {
    /// Where the gateway finds the relay.
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    ports: [Arc<UdpPort>; 2],
    relay: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Apart {
    /// In front of a relay.
    pub(crate) fn to(relay: SocketAddr) -> Self {
        let ports = [(); 2].map(|()| Arc::new(port(Loop::Batches.options())));
        let (address, stop) = (ports[0].address(), Arc::default());
        Self { address, stop, ports, relay, threads: Vec::new() }
    }

    /// Begins, for the gateway at that address.
    pub(crate) fn carry_for(&mut self, gateway: SocketAddr) {
        for (from, by, to) in [(0, 1, self.relay), (1, 0, gateway)] {
            let [from, by] = [from, by].map(|which: usize| Arc::clone(&self.ports[which]));
            let stop = Arc::clone(&self.stop);
            let carry = move || forward(&from, (&by, to), &Mutex::default(), &stop);
            self.threads.push(std::thread::spawn(carry));
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // One that panicked has said so.
            drop(thread.join());
        }
    }
}
