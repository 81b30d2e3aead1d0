//! Bare UDP forwarding loops: threads that only copy, or copy and encrypt, as yardsticks for
//! relays.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use tradewind_net::clock;
use tradewind_net::epoll::Epoll;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};

use crate::Outcome;
use crate::traffic::{self, LoadPath, Traffic, WAIT, port};

/// The method by which a loop receives and sends datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loop {
    /// Trains, coalesced and split by the kernel: GRO in, GSO out.
    Trains,
    /// Trains, with each datagram encrypted twice: the least work of a relay that opens and seals.
    TrainsSealed,
    /// Batches of single datagrams.
    Batches,
}

impl Loop {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Trains => "bare loop, trains",
            Self::TrainsSealed => "loop that opens and seals, trains",
            Self::Batches => "bare loop, batches",
        }
    }

    fn options(self) -> UdpOptions {
        let trains = self != Self::Batches;
        UdpOptions { gro: trains, gso: trains, ..UdpOptions::default() }
    }
}

/// Datagrams copied so far, and the CPU time used.
type Copied = (u64, Duration);

/// Runs one round.
pub(crate) fn run(kind: Loop, traffic: Traffic, bytes: usize, span: Duration) -> Outcome {
    let (stop, copied) = (AtomicBool::new(false), Mutex::<Copied>::default());
    let (middle, end) = (port(kind.options()), port(UdpOptions::default()));
    let (first_hop, last_hop) = (middle.address(), end.address());
    std::thread::scope(|scope| {
        scope.spawn(|| match kind {
            Loop::TrainsSealed => forward(&middle, (&middle, last_hop), sealing(), &copied, &stop),
            _ => forward(&middle, (&middle, last_hop), copy, &copied, &stop),
        });
        let now = |_| *copied.lock().expect("nobody panics");
        let to = [first_hop];
        let path = LoadPath::straight(&to, &end);
        let (counted, arrived_a_second) = traffic::load(traffic, bytes, path, span, now);
        stop.store(true, Ordering::Relaxed);
        let [(before, cpu_before), (after, cpu_after)] = counted;
        let cpu = (cpu_after - cpu_before).as_secs_f64();
        Outcome { arrived_a_second, handled_a_cpu_second: (after - before) as f64 / cpu }
    })
}

/// A function that forwards one datagram from its first argument into its second, of the same
/// length.
trait Carry: FnMut(&mut [u8], &mut [u8]) {}
impl<F: FnMut(&mut [u8], &mut [u8])> Carry for F {}

fn copy(input: &mut [u8], output: &mut [u8]) {
    output.copy_from_slice(input);
}

/// Returns a function that copies, and encrypts with the packet plane's cipher before and after:
/// opening takes as long as sealing.
fn sealing() -> impl Carry {
    let key = UnboundKey::new(&AES_256_GCM, &[7; 32]).expect("32 bytes are a key of AES-256");
    let key = LessSafeKey::new(key);
    let seal = move |datagram: &mut [u8]| {
        // Nothing here is secret, so one nonce is enough.
        let nonce = Nonce::assume_unique_for_key([0; 12]);
        let sealed = key.seal_in_place_separate_tag(nonce, Aad::empty(), datagram);
        let tag = sealed.expect("datagrams are short");
        std::hint::black_box(tag.as_ref());
    };
    move |input, output| {
        seal(input);
        copy(input, output);
        seal(output);
    }
}

/// Forwards datagrams received on `from` to an address, through another port or the same.
fn forward(
    from: &UdpPort,
    (by, to): (&UdpPort, SocketAddr),
    mut carry: impl Carry,
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
            let buffer = match outgoing.push(to, datagram.len()) {
                Some(buffer) => buffer,
                None => {
                    sent += outgoing.flush(by).sent;
                    outgoing.push(to, datagram.len()).expect("an empty batch takes a datagram")
                }
            };
            carry(datagram, buffer);
        });
        sent += outgoing.flush(by).sent;
        *copied.lock().expect("nobody panics") = (sent, clock::thread_cpu() - begun);
    }
}

/// A pair of loops between a gateway and a relay that split trains, so that both receive datagrams
/// one by one.
pub(crate) struct Apart {
    /// The address at which the gateway reaches the relay.
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    ports: [Arc<UdpPort>; 2],
    relay: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Apart {
    /// Creates the loops in front of a relay.
    pub(crate) fn to(relay: SocketAddr) -> Self {
        let ports = [(); 2].map(|()| Arc::new(port(Loop::Batches.options())));
        let (address, stop) = (ports[0].address(), Arc::default());
        Self { address, stop, ports, relay, threads: Vec::new() }
    }

    /// Starts forwarding for the gateway at that address.
    pub(crate) fn carry_for(&mut self, gateway: SocketAddr) {
        for (from, by, to) in [(0, 1, self.relay), (1, 0, gateway)] {
            let [from, by] = [from, by].map(|which: usize| Arc::clone(&self.ports[which]));
            let stop = Arc::clone(&self.stop);
            let carry = move || forward(&from, (&by, to), copy, &Mutex::default(), &stop);
            self.threads.push(std::thread::spawn(carry));
        }
    }
}

impl Drop for Apart {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has already reported it.
            drop(thread.join());
        }
    }
}
