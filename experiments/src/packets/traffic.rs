//! Datagrams of applications: sent at a steady pace by some, each numbered, and seen to come by others.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_units::HostId;

use crate::demo::{DemoError, Stop};
use crate::lab_run::Ground;
use crate::lab_run::carry::{STOP_CHECK, io_error};

/// Bytes of the number that a datagram begins with.
const NUMBER_BYTES: usize = 8;
/// How long a receiver waits for the next datagram before it looks whether all is over.
const LOOK: Duration = Duration::from_millis(50);

/// Two applications, the datagrams of one going to the other.
pub(super) struct Pair {
    sender: UdpSocket,
    receiver: UdpSocket,
    /// Where the sender writes to, and where the receiver listens.
    ways: [SocketAddr; 2],
    /// When in the interval it sends.
    phase: Duration,
    marks: Option<Marks>,
}

/// Which datagrams an application marks, and how.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    /// The first of each so many.
    pub(super) each: usize,
    /// The code point.
    pub(super) dscp: u8,
}

/// What became of a pair's datagrams, by their number.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// When each was sent.
    pub(super) sent: Vec<Duration>,
    /// When each came first, if it did.
    pub(super) came: Vec<Option<Duration>>,
}

/// A steady stream of datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Between two datagrams of a pair.
    pub(super) interval: Duration,
    /// How many.
    pub(super) count: usize,
    /// How long each is.
    pub(super) bytes: usize,
    /// How long datagrams may be under way after the last was sent.
    pub(super) last_ones: Duration,
}

impl Pair {
    /// Opens both sockets: the receiver's at `to` on its host, the sender's on its own, towards `through`.
    ///
    /// # Errors
    /// When a host is not there, or a socket cannot be opened.
    pub(super) fn open(
        ground: &Ground,
        (source, through): (&HostId, SocketAddr),
        (destination, to): (&HostId, SocketAddr),
        phase: Duration,
    ) -> Result<Self, DemoError> {
        let sender = ground.lab.enter(source, || {
            let from = if through.ip().is_loopback() { "127.0.0.1:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(from)?;
            socket.connect(through)?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        })?;
        let receiver = ground.lab.enter(destination, || {
            let socket = UdpSocket::bind(to)?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok::<_, io::Error>(socket)
        })?;
        let sender = sender.map_err(|error| failed("send to", through, error))?;
        let receiver = receiver.map_err(|error| failed("listen at", to, error))?;
        Ok(Self { sender, receiver, ways: [through, to], phase, marks: None })
    }

    /// The same pair, which marks datagrams.
    pub(super) fn marked(self, marks: Marks) -> Self {
        Self { marks: Some(marks), ..self }
    }

    /// The code point is the upper six bits of the field.
    fn mark(&self, number: usize) -> io::Result<()> {
        let Some(Marks { each, dscp }) = self.marks else { return Ok(()) };
        let is_chosen = number.is_multiple_of(each);
        let dscp = if is_chosen { u32::from(dscp) << 2 } else { 0 };
        socket2::SockRef::from(&self.sender).set_tos_v4(dscp)
    }

    fn send(&self, number: usize, datagram: &[u8]) -> Result<(), DemoError> {
        let marked = self.mark(number);
        match marked.and_then(|()| self.sender.send(datagram)) {
            Err(error) if !is_passing(&error) => Err(failed("send to", self.ways[0], error)),
            _ => Ok(()),
        }
    }

    /// When each datagram came first, until it is `over`.
    fn receive(
        &self,
        count: usize,
        begun: Instant,
        over: &AtomicBool,
    ) -> Result<Vec<Option<Duration>>, DemoError> {
        let mut came = vec![None; count];
        let mut datagram = [0; 2048];
        loop {
            match self.receiver.recv(&mut datagram) {
                Ok(length) if length >= NUMBER_BYTES => {
                    let number = datagram[..NUMBER_BYTES].try_into().expect("eight bytes");
                    let place = usize::try_from(u64::from_be_bytes(number)).unwrap_or(usize::MAX);
                    if let Some(place) = came.get_mut(place) {
                        place.get_or_insert(begun.elapsed());
                    }
                }
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if over.load(Ordering::Relaxed) {
                        return Ok(came);
                    }
                }
                Err(error) => return Err(failed("receive at", self.ways[1], error)),
            }
        }
    }
}

/// Sends at `pace` from every pair's sender; what was seen, in the pairs' order.
///
/// # Errors
/// When a socket fails, or the run is told to stop.
pub(super) fn run(pairs: &[Pair], pace: Pace, stop: &Stop) -> Result<Vec<Seen>, DemoError> {
    let (begun, over) = (Instant::now(), AtomicBool::new(false));
    thread::scope(|scope| {
        let receivers: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| pair.receive(pace.count, begun, &over)))
            .collect();
        let sent = send(pairs, pace, begun, stop);
        if sent.is_ok() {
            thread::sleep(pace.last_ones);
        }
        over.store(true, Ordering::Relaxed);
        let came: Vec<_> = receivers
            .into_iter()
            .map(|receiver| receiver.join().expect("a receiver does not panic"))
            .collect();
        sent?
            .into_iter()
            .zip(came)
            .map(|(sent, came)| Ok(Seen { sent, came: came? }))
            .collect::<Result<_, DemoError>>()
    })
}

/// Sends each pair's datagrams in time; when each left, by pair.
fn send(
    pairs: &[Pair],
    pace: Pace,
    begun: Instant,
    stop: &Stop,
) -> Result<Vec<Vec<Duration>>, DemoError> {
    let mut order: Vec<usize> = (0..pairs.len()).collect();
    order.sort_unstable_by_key(|index| pairs[*index].phase);
    let mut sent = vec![Vec::with_capacity(pace.count); pairs.len()];
    let mut datagram = vec![0; pace.bytes.max(NUMBER_BYTES)];
    let mut looked = begun;
    for number in 0..pace.count {
        datagram[..NUMBER_BYTES].copy_from_slice(&(number as u64).to_be_bytes());
        let round = pace.interval * u32::try_from(number).unwrap_or(u32::MAX);
        for index in &order {
            let due = begun + round + pairs[*index].phase;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            sent[*index].push(begun.elapsed());
            pairs[*index].send(number, &datagram)?;
        }
        if looked.elapsed() > STOP_CHECK {
            looked = Instant::now();
            stop.check()?;
        }
    }
    Ok(sent)
}

/// Whether the next datagram may do better: the queue is full, or nobody listened to the one before.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused)
}

/// What became of a socket.
pub(super) fn failed(what: &'static str, address: SocketAddr, source: io::Error) -> DemoError {
    io_error("datagrams", what, address, source)
}
