//! Traffic between two hosts of a lab, over ordinary sockets created in their namespaces.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use sha2::{Digest, Sha256};
use tradewind_lab::{Lab, LabError};
use tradewind_units::HostId;

const READ_BYTES: usize = 256 << 10;
/// The silence after which a receiver assumes that no more will arrive.
const SILENCE: Duration = Duration::from_millis(1500);

/// The time between the starts of connections of one measurement.
const APART: Duration = Duration::from_millis(7);

/// The IP version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Version {
    V4,
    V6,
}

/// Returns the address of a host.
pub fn address(lab: &Lab, host: &HostId, version: Version) -> Result<IpAddr, LabError> {
    match version {
        Version::V4 => lab.address(host),
        Version::V6 => lab.address_v6(host).map(IpAddr::V6),
    }
}

/// Connects two hosts; returns the sender's end and the receiver's.
pub fn connect(
    lab: &Lab,
    (from, to): (&HostId, &HostId),
    version: Version,
) -> Result<(TcpStream, TcpStream), LabError> {
    let place = SocketAddr::new(address(lab, to, version)?, 0);
    let listener = lab.enter(to, || TcpListener::bind(place))?.expect("a free port");
    let place = listener.local_addr().expect("it is bound");
    let sender = lab.enter(from, || TcpStream::connect(place))?;
    let (receiver, _) = listener.accept().expect("a connection was made");
    Ok((sender.expect("the listener is there"), receiver))
}

/// Returns the payload bytes per second that one TCP connection delivers in `span`, after
/// `warm_up`.
pub fn tcp_rate(
    lab: &Lab,
    (from, to): (&HostId, &HostId),
    warm_up: Duration,
    span: Duration,
) -> Result<f64, LabError> {
    let (mut sender, mut receiver) = connect(lab, (from, to), Version::V4)?;
    let (received, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let rate = thread::scope(|scope| {
        scope.spawn(|| {
            let payload = vec![0x5a; READ_BYTES];
            while sender.write_all(&payload).is_ok() {
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
            // Queued data must not be sent any more.
            let _ = socket2::SockRef::from(&sender).set_linger(Some(Duration::ZERO));
            drop(sender);
        });
        scope.spawn(|| {
            let mut buffer = vec![0; READ_BYTES];
            while let Ok(count) = receiver.read(&mut buffer) {
                if count == 0 || is_over.load(Ordering::Relaxed) {
                    break;
                }
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
            let _ = socket2::SockRef::from(&receiver).set_linger(Some(Duration::ZERO));
            drop(receiver);
        });
        thread::sleep(warm_up);
        let (started, before) = (Instant::now(), received.load(Ordering::Relaxed));
        thread::sleep(span);
        let bytes = received.load(Ordering::Relaxed) - before;
        let rate = bytes as f64 / started.elapsed().as_secs_f64();
        is_over.store(true, Ordering::Relaxed);
        rate
    });
    Ok(rate)
}

/// Measures many connections at once, like [`tcp_rate`]; returns their rates in order. They start
/// some milliseconds apart, so that their bursts do not coincide.
pub fn tcp_rates<'a>(
    lab: &Lab,
    pairs: &'a [(HostId, HostId)],
    warm_up: Duration,
    span: Duration,
) -> Result<Vec<f64>, LabError> {
    thread::scope(|scope| {
        let start = |(index, (from, to)): (usize, &'a (HostId, HostId))| {
            scope.spawn(move || {
                thread::sleep(APART * index as u32);
                tcp_rate(lab, (from, to), warm_up, span)
            })
        };
        let running: Vec<_> = pairs.iter().enumerate().map(start).collect();
        running.into_iter().map(|worker| worker.join().expect("workers do not panic")).collect()
    })
}

/// Sends `volume` bytes and returns whether they arrived unchanged, by SHA-256.
pub fn arrives_intact(
    lab: &Lab,
    ends: (&HostId, &HostId),
    version: Version,
    volume: usize,
) -> Result<bool, LabError> {
    let (mut sender, mut receiver) = connect(lab, ends, version)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let payload: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    })
    .take(volume / 8)
    .flatten()
    .collect();
    let sent = Sha256::digest(&payload);
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&payload).expect("the receiver reads to the end");
            drop(sender);
        });
        let mut hash = Sha256::new();
        let mut buffer = vec![0; READ_BYTES];
        loop {
            match receiver.read(&mut buffer).expect("the sender sends to the end") {
                0 => return hash.finalize(),
                count => hash.update(&buffer[..count]),
            }
        }
    });
    Ok(sent == received)
}

/// Measures the round-trip times of `count` TCP handshakes, `gap` apart. The remote kernel replies:
/// a program would add its wake-up time.
pub fn round_trips(
    lab: &Lab,
    (from, to): (&HostId, &HostId),
    count: usize,
    gap: Duration,
) -> Result<Vec<Duration>, LabError> {
    let there = SocketAddr::new(lab.address(to)?, 0);
    let listener = lab.enter(to, || TcpListener::bind(there))?.expect("a free port");
    let there = listener.local_addr().expect("it is bound");
    lab.enter(from, || {
        let handshake = |_| {
            thread::sleep(gap);
            let domain = socket2::Domain::for_address(there);
            let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None)
                .expect("a descriptor is free");
            let started = Instant::now();
            socket.connect(&there.into()).expect("the listener is there");
            started.elapsed()
        };
        (0..count).map(handshake).collect()
    })
}

/// A train of numbered UDP packets.
#[derive(Clone, Copy)]
pub struct Train {
    /// Total number of packets.
    pub packets: u32,
    /// Payload of each packet.
    pub payload: usize,
    /// Packets passed to the kernel together, as one super-packet; 1 means one by one.
    pub together: usize,
    /// The time between two passes; zero means as fast as possible.
    pub gap: Duration,
}

/// Sends the train and returns for each packet, by number, whether it arrived.
pub fn udp_train(
    lab: &Lab,
    (from, to): (&HostId, &HostId),
    train: Train,
) -> Result<Vec<bool>, LabError> {
    let there = SocketAddr::new(lab.address(to)?, 0);
    let here = SocketAddr::new(lab.address(from)?, 0);
    let receiver = lab.enter(to, || UdpSocket::bind(there))?.expect("a free port");
    let sender = lab.enter(from, || UdpSocket::bind(here))?.expect("a free port");
    sender.connect(receiver.local_addr().expect("it is bound")).expect("a route");
    receiver.set_read_timeout(Some(SILENCE)).expect("a time-out above zero");
    // A buffer above the system's limit needs a privilege; without it the limit applies.
    let _ = setsockopt(&receiver.as_fd(), sockopt::RcvBufForce, &(32 << 20));
    if train.together > 1 {
        setsockopt(&sender, sockopt::UdpGsoSegment, &(train.payload as i32))
            .expect("Linux 4.18 and later send UDP super-packets");
    }
    Ok(thread::scope(|scope| {
        scope.spawn(move || send_train(&sender, train));
        let mut arrived = vec![false; train.packets as usize];
        let mut packet = vec![0; 65_536];
        while let Ok(len) = receiver.recv(&mut packet) {
            let number = packet[..len].first_chunk().map(|bytes| u32::from_be_bytes(*bytes));
            let Some(number) = number.filter(|number| *number < train.packets) else { continue };
            arrived[number as usize] = true;
            if number + 1 == train.packets {
                break;
            }
        }
        arrived
    }))
}

fn send_train(sender: &UdpSocket, train: Train) {
    let started = Instant::now();
    let mut sent = 0;
    let mut batches = 0;
    while sent < train.packets {
        let last = (sent + train.together as u32).min(train.packets);
        let mut batch = vec![0; train.payload * (last - sent) as usize];
        for (packet, number) in batch.chunks_exact_mut(train.payload).zip(sent..) {
            packet[..4].copy_from_slice(&number.to_be_bytes());
        }
        sender.send(&batch).expect("a route");
        sent = last;
        batches += 1;
        // The average gap is kept, whatever the scheduler does in between.
        if let Some(ahead) = (train.gap * batches).checked_sub(started.elapsed()) {
            thread::sleep(ahead);
        }
    }
}

/// The losses of a train.
#[derive(Debug, Clone, Copy)]
pub struct LossStatistics {
    /// The share of lost packets.
    pub share: f64,
    /// The mean length of bursts, in packets.
    pub mean_burst: f64,
}

/// Returns the losses of a train.
pub fn losses(arrived: &[bool]) -> LossStatistics {
    let lost = arrived.iter().filter(|arrived| !**arrived).count();
    let begins = |pair: &[bool]| pair[0] && !pair[1];
    let bursts = arrived.windows(2).filter(|pair| begins(pair)).count()
        + usize::from(arrived.first() == Some(&false));
    LossStatistics {
        share: lost as f64 / arrived.len() as f64,
        mean_burst: lost as f64 / bursts.max(1) as f64,
    }
}
