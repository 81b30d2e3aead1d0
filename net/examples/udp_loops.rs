//! What a bare loop over UDP carries on this machine: `cargo run --release -p tradewind-net --example udp_loops [seconds]`.
//!
//! One thread sends, one forwards, one counts what arrives, all on loopback. The forwarder does nothing but copy: the yardstick
//! for relays, which also decrypt, look up and encrypt. Loops: with trains (GRO in, GSO out), and with batches of single datagrams
//! (recvmmsg, sendmmsg). Traffic: trains of 32 datagrams of one flow, and single datagrams of 64 flows in turn.
//!
//! Printed: datagrams that arrived a second, and datagrams forwarded by a second of the forwarding thread's CPU time, which holds
//! when the three threads share fewer cores. Medians of five rounds, loops in turns, after one round that is not counted.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tradewind_net::clock;
use tradewind_net::epoll::Epoll;
use tradewind_net::udp::{ReceiveBatch, SendBatch, UdpOptions, UdpPort};

const ROUNDS: usize = 5;
const FLOWS: usize = 64;
const TRAIN: usize = 32;
const WAIT: Duration = Duration::from_millis(20);

#[derive(Debug, Clone, Copy)]
enum Traffic {
    Trains,
    Singles,
}

#[derive(Debug, Clone, Copy)]
enum Loop {
    Trains,
    Batches,
}

impl Loop {
    fn options(self) -> UdpOptions {
        let trains = matches!(self, Self::Trains);
        UdpOptions { gro: trains, gso: trains, ..UdpOptions::default() }
    }
}

/// What a round came to.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    arrived_a_second: f64,
    forwarded_a_cpu_second: f64,
}

fn main() {
    let seconds = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let span = Duration::from_secs_f64(seconds);
    println!("bytes | traffic | loop | arrived a second | forwarded by a second of CPU");
    for bytes in [200, 1400] {
        for traffic in [Traffic::Trains, Traffic::Singles] {
            let loops = [Loop::Trains, Loop::Batches];
            let mut outcomes = loops.map(|_| Vec::new());
            for round in 0..=ROUNDS {
                for (kind, outcomes) in loops.iter().zip(&mut outcomes) {
                    let outcome = run(*kind, traffic, bytes, span);
                    if round > 0 {
                        outcomes.push(outcome);
                    }
                }
            }
            for (kind, outcomes) in loops.iter().zip(&outcomes) {
                let arrived = median(outcomes, |outcome| outcome.arrived_a_second);
                let forwarded = median(outcomes, |outcome| outcome.forwarded_a_cpu_second);
                println!("{bytes} | {traffic:?} | {kind:?} | {arrived:.0} | {forwarded:.0}");
            }
        }
    }
}

fn median(outcomes: &[Outcome], of: impl Fn(&Outcome) -> f64) -> f64 {
    let mut values: Vec<f64> = outcomes.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn port(options: UdpOptions) -> UdpPort {
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    UdpPort::bind(address, &options).expect("loopback has a free port")
}

fn run(kind: Loop, traffic: Traffic, bytes: usize, span: Duration) -> Outcome {
    let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
    let (middle, end) = (port(kind.options()), port(UdpOptions::default()));
    let (first_hop, last_hop) = (middle.address(), end.address());
    std::thread::scope(|scope| {
        let forwarder = scope.spawn(|| forward(&middle, last_hop, &stop));
        scope.spawn(|| {
            drain(&end, &stop, |count| {
                arrived.fetch_add(count, Ordering::Relaxed);
            });
        });
        scope.spawn(|| send(traffic, bytes, first_hop, &stop));
        // The first moments fill queues.
        std::thread::sleep(span / 5);
        let (before, begun) = (arrived.load(Ordering::Relaxed), Instant::now());
        std::thread::sleep(span);
        let count = arrived.load(Ordering::Relaxed) - before;
        let arrived_a_second = count as f64 / begun.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        let (forwarded, cpu) = forwarder.join().expect("the forwarder ends in order");
        let forwarded_a_cpu_second = forwarded as f64 / cpu.as_secs_f64();
        Outcome { arrived_a_second, forwarded_a_cpu_second }
    })
}

/// Copies what comes to `to`; returns how many datagrams left and the CPU time that it took.
fn forward(port: &UdpPort, to: SocketAddr, stop: &AtomicBool) -> (u64, Duration) {
    let (mut incoming, mut outgoing) = (ReceiveBatch::new(32), SendBatch::new(64));
    let mut epoll = Epoll::new().expect("a descriptor is left");
    epoll.watch(port, 0).expect("a socket can be watched");
    let (mut sent, begun) = (0, clock::thread_cpu());
    while !stop.load(Ordering::Relaxed) {
        if incoming.receive(port).expect("the socket is open") == 0 {
            epoll.wait(Some(WAIT)).expect("epoll waits").count();
            continue;
        }
        incoming.for_each(|_, _, datagram| {
            let room = match outgoing.push(to, datagram.len()) {
                Some(room) => room,
                None => {
                    sent += outgoing.flush(port).sent;
                    outgoing.push(to, datagram.len()).expect("an empty batch takes a datagram")
                }
            };
            room.copy_from_slice(datagram);
        });
        sent += outgoing.flush(port).sent;
    }
    (sent, clock::thread_cpu() - begun)
}

fn drain(port: &UdpPort, stop: &AtomicBool, took: impl Fn(u64)) {
    let mut incoming = ReceiveBatch::new(32);
    let mut epoll = Epoll::new().expect("a descriptor is left");
    epoll.watch(port, 0).expect("a socket can be watched");
    while !stop.load(Ordering::Relaxed) {
        if incoming.receive(port).expect("the socket is open") == 0 {
            epoll.wait(Some(WAIT)).expect("epoll waits").count();
            continue;
        }
        let mut count = 0;
        incoming.for_each(|_, _, _| count += 1);
        took(count);
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
