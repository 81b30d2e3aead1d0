//! Numbered datagrams that applications send at a steady pace, and their arrivals.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_units::HostId;

use crate::harness::carry::{STOP_CHECK, io_error};
use crate::harness::{LabContext, ProcessError, Stop};

/// The length of a datagram's number.
const NUMBER_BYTES: usize = 8;
/// The interval at which a receiver checks whether the run is over.
const LOOK: Duration = Duration::from_millis(50);

/// Two applications: one sends datagrams to the other.
pub(super) struct Pair {
    sender: UdpSocket,
    receiver: UdpSocket,
    /// The address to which the sender writes, and the receiver's address.
    addresses: [SocketAddr; 2],
    /// The sender's offset in the interval.
    phase: Duration,
    marks: Option<Marks>,
}

/// The marking of datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Marks {
    /// One of this many datagrams is marked.
    pub(super) each: usize,
    /// The code point.
    pub(super) dscp: u8,
}

/// The send and arrival times of a pair's datagrams, by their number.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// The send times.
    pub(super) sent: Vec<Duration>,
    /// The first arrival of each, if any.
    pub(super) came: Vec<Option<Duration>>,
}

/// A steady stream of datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// The time between two datagrams of a pair.
    pub(super) interval: Duration,
    /// The number of datagrams.
    pub(super) count: usize,
    /// The length of a datagram.
    pub(super) bytes: usize,
    /// The time for which datagrams may be in flight after the last one was sent.
    pub(super) last_ones: Duration,
}

impl Pair {
    /// Opens both sockets: the receiver's at `to` on its host, the sender's on its own host,
    /// connected to `through`.
    ///
    /// # Errors
    /// When a host does not exist, or a socket cannot be opened.
    pub(super) fn open(
        context: &LabContext,
        (source, through): (&HostId, SocketAddr),
        (destination, to): (&HostId, SocketAddr),
        phase: Duration,
    ) -> Result<Self, ProcessError> {
        let sender = context.lab.enter(source, || {
            let from = if through.ip().is_loopback() { "127.0.0.1:0" } else { "0.0.0.0:0" };
            let socket = UdpSocket::bind(from)?;
            socket.connect(through)?;
            socket.set_nonblocking(true)?;
            Ok::<_, io::Error>(socket)
        })?;
        let receiver = context.lab.enter(destination, || {
            let socket = UdpSocket::bind(to)?;
            socket.set_read_timeout(Some(LOOK))?;
            Ok::<_, io::Error>(socket)
        })?;
        let sender = sender.map_err(|error| failed("send to", through, error))?;
        let receiver = receiver.map_err(|error| failed("listen at", to, error))?;
        Ok(Self { sender, receiver, addresses: [through, to], phase, marks: None })
    }

    /// Returns the pair with marked datagrams.
    pub(super) fn marked(self, marks: Marks) -> Self {
        Self { marks: Some(marks), ..self }
    }

    /// Sets the code point of datagram `number`; it is the upper six bits of the field.
    fn mark(&self, number: usize) -> io::Result<()> {
        let Some(Marks { each, dscp }) = self.marks else { return Ok(()) };
        let is_chosen = number.is_multiple_of(each);
        let dscp = if is_chosen { u32::from(dscp) << 2 } else { 0 };
        socket2::SockRef::from(&self.sender).set_tos_v4(dscp)
    }

    fn send(&self, number: usize, datagram: &[u8]) -> Result<(), ProcessError> {
        let marked = self.mark(number);
        match marked.and_then(|()| self.sender.send(datagram)) {
            Err(error) if !is_passing(&error) => Err(failed("send to", self.addresses[0], error)),
            _ => Ok(()),
        }
    }

    /// Returns the first arrival of each datagram, until `over` is set.
    fn receive(
        &self,
        count: usize,
        begun: Instant,
        over: &AtomicBool,
    ) -> Result<Vec<Option<Duration>>, ProcessError> {
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
                Err(error) => return Err(failed("receive at", self.addresses[1], error)),
            }
        }
    }
}

/// Sends at `pace` from every pair's sender; returns the observations in the pairs' order.
///
/// # Errors
/// When a socket fails, or the run is stopped.
pub(super) fn run(pairs: &[Pair], pace: Pace, stop: &Stop) -> Result<Vec<Seen>, ProcessError> {
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
            .collect::<Result<_, ProcessError>>()
    })
}

/// Sends each pair's datagrams on schedule; returns their send times, by pair.
fn send(
    pairs: &[Pair],
    pace: Pace,
    begun: Instant,
    stop: &Stop,
) -> Result<Vec<Vec<Duration>>, ProcessError> {
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

/// Returns whether an error may affect just one datagram: a full queue, or no listener for the
/// previous one.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionRefused)
}

/// Returns the error of an operation on a socket.
pub(super) fn failed(what: &'static str, address: SocketAddr, source: io::Error) -> ProcessError {
    io_error("datagrams", what, address, source)
}
