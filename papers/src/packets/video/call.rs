//! The ends of a running call: the sender forwards packets of ffmpeg or generates them; the
//! receiver keeps packets until they are played.
//!
//! Both ends replace an application's sockets: the sender paces like conferencing applications, the
//! receiver is a play-out buffer of fixed delay, which passes packets to ffmpeg in order when they
//! are due.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_units::HostId;

use super::ledger::Ledger;
use super::rtp::{self, Rtp};
use super::shield::{Opener, Shield};
use crate::harness::{LabContext, ProcessError};
use crate::packets::traffic::{failed, is_passing};

/// The interval at which an end checks whether the run is over.
pub(super) const LOOK: Duration = Duration::from_millis(20);
/// The time between two voice packets.
const VOICE_INTERVAL: Duration = Duration::from_millis(20);
/// Longest datagram.
const DATAGRAM_BYTES: usize = 2048;

/// The start and the progress of a run.
pub(super) struct Clock {
    begun: Instant,
    /// The number of calls of which a packet has arrived.
    arrived: AtomicUsize,
    /// Set when nothing more is sent.
    pub(super) all_sent: AtomicBool,
    /// Set when nothing more is received.
    pub(super) over: AtomicBool,
}

impl Clock {
    pub(super) fn start() -> Self {
        let (arrived, all_sent, over) = Default::default();
        Self { begun: Instant::now(), arrived, all_sent, over }
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Returns whether packets of `calls` calls have arrived.
    pub(super) fn has_arrived(&self, calls: usize) -> bool {
        self.arrived.load(Ordering::Relaxed) >= calls
    }

    fn sleep_until(&self, due: Duration) {
        thread::sleep(due.saturating_sub(self.now()));
    }
}

/// The source of a call's packets.
pub(super) enum Source {
    /// A player that sends to this socket; packets are spaced by at least the given time.
    Player(UdpSocket, Duration),
    /// Steady voice packets.
    Voice,
}

/// One call.
pub(super) struct Call {
    /// The source of its packets.
    pub(super) source: Source,
    /// The socket towards the receiver, with its address.
    pub(super) out: (UdpSocket, SocketAddr),
    /// The socket of the receiver, with its address.
    pub(super) listen: (UdpSocket, SocketAddr),
    /// A player that gets the packets when they are played.
    pub(super) player: Option<(UdpSocket, SocketAddr)>,
    /// The protection against losses by its ends.
    pub(super) shield: Shield,
    /// The time from sending to playing a packet.
    pub(super) budget: Duration,
}

/// The result of a call.
pub(super) struct Played {
    /// The record of its packets.
    pub(super) ledger: Ledger,
    /// The index of the first packet that was played.
    pub(super) first: Option<usize>,
}

/// Binds a socket on a host.
///
/// # Errors
/// When the host does not exist, or the address is in use.
pub(super) fn bind(
    context: &LabContext,
    host: &HostId,
    address: SocketAddr,
) -> Result<UdpSocket, ProcessError> {
    let bound = context.lab.enter(host, || {
        let socket = UdpSocket::bind(address)?;
        socket.set_read_timeout(Some(LOOK))?;
        Ok::<_, io::Error>(socket)
    })?;
    bound.map_err(|error| failed("listen at", address, error))
}

/// Returns a socket on a host that is connected to `to`.
///
/// # Errors
/// When the host does not exist, or there is no route.
pub(super) fn towards(
    context: &LabContext,
    host: &HostId,
    to: SocketAddr,
) -> Result<(UdpSocket, SocketAddr), ProcessError> {
    let connected = context.lab.enter(host, || {
        let socket = UdpSocket::bind("127.0.0.1:0").and_then(|socket| {
            socket.connect(to)?;
            Ok(socket)
        })?;
        socket.set_nonblocking(true)?;
        Ok::<_, io::Error>(socket)
    })?;
    Ok((connected.map_err(|error| failed("send to", to, error))?, to))
}

fn send((socket, to): &(UdpSocket, SocketAddr), datagram: &[u8]) -> Result<(), ProcessError> {
    match socket.send(datagram) {
        Err(error) if !is_passing(&error) => Err(failed("send to", *to, error)),
        _ => Ok(()),
    }
}

/// Returns the next datagram's length, or `None` at the time-out.
fn receive(
    socket: &UdpSocket,
    at: SocketAddr,
    into: &mut [u8],
) -> Result<Option<usize>, ProcessError> {
    match socket.recv(into) {
        Ok(length) => Ok(Some(length)),
        Err(error) if is_passing(&error) => Ok(None),
        Err(error) => Err(failed("receive at", at, error)),
    }
}

impl Call {
    /// Carries the call until the clock says that it is over.
    ///
    /// # Errors
    /// When a socket fails.
    pub(super) fn run(&self, clock: &Clock) -> Result<Played, ProcessError> {
        let ledger = Mutex::new(Ledger::new(self.budget));
        let (sent, first) = thread::scope(|scope| {
            let receiver = scope.spawn(|| self.play(clock, &ledger));
            let sent = match &self.source {
                Source::Player(socket, gap) => self.pass_on(clock, socket, *gap, &ledger),
                Source::Voice => self.speak(clock, &ledger),
            };
            (sent, receiver.join().expect("a receiver does not panic"))
        });
        sent?;
        Ok(Played {
            ledger: ledger.into_inner().unwrap_or_else(PoisonError::into_inner),
            first: first?,
        })
    }

    /// Forwards the player's packets, no two closer than `gap`.
    fn pass_on(
        &self,
        clock: &Clock,
        socket: &UdpSocket,
        gap: Duration,
        ledger: &Mutex<Ledger>,
    ) -> Result<(), ProcessError> {
        let mut wrapper = self.shield.wrapper().map_err(coding)?;
        let (mut packet, mut due) = ([0; DATAGRAM_BYTES], Duration::ZERO);
        while !clock.all_sent.load(Ordering::Relaxed) {
            let Some(length) = receive(socket, self.out.1, &mut packet)? else { continue };
            let Some(rtp) = Rtp::parse(&packet[..length]) else { continue };
            clock.sleep_until(due);
            due = clock.now() + gap;
            locked(ledger).leave(rtp, clock.now());
            for datagram in wrapper.wrap(&packet[..length]).map_err(coding)? {
                send(&self.out, &datagram)?;
            }
        }
        Ok(())
    }

    /// Sends voice packets.
    fn speak(&self, clock: &Clock, ledger: &Mutex<Ledger>) -> Result<(), ProcessError> {
        let mut wrapper = self.shield.wrapper().map_err(coding)?;
        for number in 0..u16::MAX {
            clock.sleep_until(VOICE_INTERVAL * number.into());
            if clock.all_sent.load(Ordering::Relaxed) {
                break;
            }
            let packet = rtp::voice(number);
            let rtp = Rtp::parse(&packet).expect("a packet of our own");
            locked(ledger).leave(rtp, clock.now());
            for datagram in wrapper.wrap(&packet).map_err(coding)? {
                send(&self.out, &datagram)?;
            }
        }
        Ok(())
    }

    /// Receives packets, and passes due ones to the player in order; returns the index of the first
    /// one played.
    fn play(&self, clock: &Clock, ledger: &Mutex<Ledger>) -> Result<Option<usize>, ProcessError> {
        let (socket, address) = &self.listen;
        let mut opener = self.shield.opener();
        let mut waiting: BTreeMap<usize, (Duration, Vec<u8>)> = BTreeMap::new();
        let (mut datagram, mut first, mut has_come) = ([0; DATAGRAM_BYTES], None, false);
        while !clock.over.load(Ordering::Relaxed) {
            let next = waiting.first_key_value().map(|(_, (due, _))| *due);
            let timeout = next.map_or(LOOK, |due| due.saturating_sub(clock.now()));
            // A time-out of zero would mean none.
            let timeout = timeout.clamp(Duration::from_millis(1), LOOK);
            let set = socket.set_read_timeout(Some(timeout));
            set.map_err(|error| failed("receive at", *address, error))?;
            if let Some(length) = receive(socket, *address, &mut datagram)? {
                let packets = take(&datagram[..length], &mut opener, clock, ledger, &mut waiting);
                if packets > 0 && !has_come {
                    has_come = true;
                    clock.arrived.fetch_add(1, Ordering::Relaxed);
                }
            }
            while let Some(entry) = waiting.first_entry().filter(|e| e.get().0 <= clock.now()) {
                let (place, (_, packet)) = entry.remove_entry();
                first.get_or_insert(place);
                if let Some(player) = &self.player {
                    send(player, &packet)?;
                }
            }
        }
        if let Some(player) = &self.player {
            send(player, &rtp::bye())?;
        }
        Ok(first)
    }
}

/// Queues the packets of a datagram that are in time; returns the number of its packets, in time or
/// not.
fn take(
    datagram: &[u8],
    opener: &mut Opener,
    clock: &Clock,
    ledger: &Mutex<Ledger>,
    waiting: &mut BTreeMap<usize, (Duration, Vec<u8>)>,
) -> usize {
    let mut packets = 0;
    for packet in opener.open(datagram) {
        let Some(rtp) = Rtp::parse(&packet) else { continue };
        packets += 1;
        if let Some((place, due)) = locked(ledger).come(rtp, clock.now()) {
            waiting.insert(place, (due, packet));
        }
    }
    packets
}

fn locked(ledger: &Mutex<Ledger>) -> MutexGuard<'_, Ledger> {
    ledger.lock().unwrap_or_else(PoisonError::into_inner)
}

fn coding(error: tradewind_fec::FecError) -> ProcessError {
    ProcessError::Program { name: "repair packets".into(), why: error.to_string() }
}
