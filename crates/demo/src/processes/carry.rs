//! Carries one volume over one TCP connection, timed and verified.
//!
//! The content is pseudo-random from a seed, so that nothing on the path can compress it, and both
//! ends hash it independently. The flow completion time runs from the sender's `connect` to the
//! arrival of the last byte; in the lab both ends read the same monotonic clock, so no clock error
//! enters it.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::ProcessError;

/// Bytes that are generated, sent and hashed at a time. Chosen: large enough for the cost of a
/// system call to matter little.
const BLOCK_BYTES: usize = 256 * 1024;

/// The interval at which a blocked end checks for a stop request.
pub const STOP_CHECK: Duration = Duration::from_millis(200);

/// The number of bytes received so far and the stop request, shared with the watcher.
#[derive(Debug, Default)]
pub struct Watch {
    /// Bytes that the receiver has got.
    pub received: AtomicU64,
    /// Set by the watcher to end the transfer.
    pub stop: AtomicBool,
}

/// The result of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carried {
    /// The time from the sender's `connect` to the arrival of the last byte.
    pub fct: Duration,
    /// Bytes received.
    pub bytes: u64,
    /// `true` when the SHA-256 of the received bytes is that of the sent ones.
    pub sha256_ok: bool,
}

/// The reason why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum CarryError {
    /// A socket call failed.
    #[error("{what} {address}: {source}")]
    Io {
        /// The failed operation.
        what: &'static str,
        /// The peer.
        address: SocketAddr,
        /// The system's error.
        source: std::io::Error,
    },
    /// No byte moved for too long.
    #[error(
        "nothing arrived from {address} for {quiet:?} ({received} of {expected} bytes were there)"
    )]
    Stalled {
        /// The sender as the receiver sees it, or the receiver's own address if nobody connected.
        address: SocketAddr,
        /// The time without any data.
        quiet: Duration,
        /// Bytes received.
        received: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// The watcher asked to stop.
    #[error("stopped on request")]
    Stopped,
}

/// Returns the error of an operation on a socket of `flow`.
pub fn io_error(
    flow: &str,
    what: &'static str,
    address: SocketAddr,
    source: std::io::Error,
) -> ProcessError {
    ProcessError::Carry { flow: flow.to_owned(), source: CarryError::Io { what, address, source } }
}

/// Sends `volume` bytes through `outgoing` to `dial`, receives them at `listener`, and compares.
///
/// Both sockets were created inside the hosts that use them; `outgoing` is not yet connected.
/// `quiet` is the longest silence.
///
/// # Errors
/// When a socket call fails on either end, nothing arrives for `quiet`, or `watch.stop` is set.
pub fn carry(
    outgoing: socket2::Socket,
    dial: SocketAddr,
    listener: &TcpListener,
    volume: u64,
    seed: u64,
    quiet: Duration,
    watch: &Watch,
) -> Result<Carried, CarryError> {
    let sent_hash = hash_of(volume, seed);
    let result = std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(listener, volume, quiet, watch));
        let sent = send(outgoing, dial, volume, seed, quiet, watch);
        if sent.is_err() {
            watch.stop.store(true, Ordering::Relaxed);
        }
        let received = receiver.join().expect("the receiver does not panic");
        match (sent, received) {
            // The receiver's error counts more: a sender often sees only the reset.
            (_, Err(error)) if !matches!(error, CarryError::Stopped) => Err(error),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok((started, socket)), Ok(received)) => {
                drop(socket);
                Ok((started, received))
            }
        }
    });
    let (started, received) = result?;
    Ok(Carried {
        fct: received.last_byte.saturating_duration_since(started),
        bytes: received.bytes,
        sha256_ok: received.bytes == volume && received.hash == sent_hash,
    })
}

/// Dials and sends; returns the start time, and the socket, which must outlive the transfer.
fn send(
    socket: socket2::Socket,
    dial: SocketAddr,
    volume: u64,
    seed: u64,
    quiet: Duration,
    watch: &Watch,
) -> Result<(Instant, TcpStream), CarryError> {
    let failed = |what| move |source| CarryError::Io { what, address: dial, source };
    let started = Instant::now();
    socket.connect_timeout(&dial.into(), quiet).map_err(failed("connect to"))?;
    let mut stream = TcpStream::from(socket);
    stream.set_write_timeout(Some(STOP_CHECK)).map_err(failed("set up"))?;
    for block in Content::new(volume, seed) {
        write_block(&mut stream, &block, watch, dial)?;
    }
    stream.shutdown(Shutdown::Write).map_err(failed("end sending to"))?;
    Ok((started, stream))
}

fn write_block(
    stream: &mut TcpStream,
    mut block: &[u8],
    watch: &Watch,
    dial: SocketAddr,
) -> Result<(), CarryError> {
    while !block.is_empty() {
        if watch.stop.load(Ordering::Relaxed) {
            return Err(CarryError::Stopped);
        }
        match stream.write(block) {
            Ok(written) => block = &block[written..],
            Err(error) if is_time_out(&error) => {}
            Err(source) => return Err(CarryError::Io { what: "send to", address: dial, source }),
        }
    }
    Ok(())
}

struct Received {
    bytes: u64,
    hash: [u8; 32],
    last_byte: Instant,
}

fn receive(
    listener: &TcpListener,
    volume: u64,
    quiet: Duration,
    watch: &Watch,
) -> Result<Received, CarryError> {
    let (mut stream, peer) = accept(listener, volume, quiet, watch)?;
    let failed = |source| CarryError::Io { what: "receive from", address: peer, source };
    stream.set_read_timeout(Some(STOP_CHECK)).map_err(failed)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; BLOCK_BYTES];
    let mut bytes = 0;
    let mut last_byte = Instant::now();
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return Ok(Received { bytes, hash: hash.finalize().into(), last_byte }),
            Ok(count) => {
                last_byte = Instant::now();
                hash.update(&buffer[..count]);
                bytes += count as u64;
                watch.received.store(bytes, Ordering::Relaxed);
            }
            Err(error) if is_time_out(&error) => {
                stop_or_stalled(peer, last_byte, quiet, bytes, volume, watch)?;
            }
            Err(source) => return Err(failed(source)),
        }
    }
}

/// Waits for the sender without blocking for more than [`STOP_CHECK`].
fn accept(
    listener: &TcpListener,
    volume: u64,
    quiet: Duration,
    watch: &Watch,
) -> Result<(TcpStream, SocketAddr), CarryError> {
    let unknown = SocketAddr::from(([0, 0, 0, 0], 0));
    let address = listener.local_addr().unwrap_or(unknown);
    let failed = |source| CarryError::Io { what: "accept at", address, source };
    listener.set_nonblocking(true).map_err(failed)?;
    let since = Instant::now();
    loop {
        match listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false).map_err(failed)?;
                return Ok((stream, peer));
            }
            Err(error) if is_time_out(&error) => {
                stop_or_stalled(address, since, quiet, 0, volume, watch)?;
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(source) => return Err(failed(source)),
        }
    }
}

fn stop_or_stalled(
    address: SocketAddr,
    since: Instant,
    quiet: Duration,
    received: u64,
    expected: u64,
    watch: &Watch,
) -> Result<(), CarryError> {
    if watch.stop.load(Ordering::Relaxed) {
        return Err(CarryError::Stopped);
    }
    if since.elapsed() > quiet {
        watch.stop.store(true, Ordering::Relaxed);
        return Err(CarryError::Stalled { address, quiet, received, expected });
    }
    Ok(())
}

/// Returns whether a socket call ended by its time-out.
pub fn is_time_out(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The content of a transfer, block by block: a seeded pseudo-random block, stamped with its index.
pub struct Content {
    block: Vec<u8>,
    left: u64,
    index: u64,
}

impl Content {
    /// Creates content of `volume` bytes.
    pub fn new(volume: u64, seed: u64) -> Self {
        let mut state = seed | 1;
        let words = (0..BLOCK_BYTES / 8).flat_map(|_| {
            // xorshift64: sufficient to keep anything on the path from compressing the content.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()
        });
        Self { block: words.collect(), left: volume, index: 0 }
    }
}

impl Iterator for Content {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        if self.left == 0 {
            return None;
        }
        self.block[..8].copy_from_slice(&self.index.to_le_bytes());
        self.index += 1;
        let size = usize::try_from(self.left).map_or(BLOCK_BYTES, |left| left.min(BLOCK_BYTES));
        self.left -= size as u64;
        Some(self.block[..size].to_vec())
    }
}

fn hash_of(volume: u64, seed: u64) -> [u8; 32] {
    let mut hash = Sha256::new();
    for block in Content::new(volume, seed) {
        hash.update(&block);
    }
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> socket2::Socket {
        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()
    }

    fn loopback() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    #[test]
    fn volume_arrives_whole_and_hashes_right() {
        let (listener, address) = loopback();
        let volume = 3 * BLOCK_BYTES as u64 + 17;
        let quiet = Duration::from_secs(20);
        let carried =
            carry(socket(), address, &listener, volume, 7, quiet, &Watch::default()).unwrap();
        assert_eq!(carried.bytes, volume);
        assert!(carried.sha256_ok);
    }

    #[test]
    fn altered_content_is_detected() {
        let (listener, address) = loopback();
        let volume = 100_000;
        let sender = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).unwrap();
            let mut content: Vec<u8> = Content::new(volume, 7).flatten().collect();
            content[50_000] ^= 1;
            stream.write_all(&content).unwrap();
        });
        let watch = Watch::default();
        let received = receive(&listener, volume, Duration::from_secs(20), &watch).unwrap();
        sender.join().unwrap();
        assert_eq!(received.bytes, volume);
        assert_ne!(received.hash, hash_of(volume, 7));
    }

    #[test]
    fn refused_connection_names_the_address() {
        let (listener, _) = loopback();
        let (gone, address) = loopback();
        drop(gone);
        let quiet = Duration::from_secs(20);
        let error =
            carry(socket(), address, &listener, 10, 7, quiet, &Watch::default()).unwrap_err();
        assert!(error.to_string().contains(&address.to_string()), "{error}");
    }

    #[test]
    fn missing_sender_is_reported_as_a_stall() {
        let (listener, _) = loopback();
        let watch = Watch::default();
        let stalled = receive(&listener, 10, Duration::from_millis(1), &watch);
        assert!(matches!(stalled, Err(CarryError::Stalled { received: 0, .. })));
    }
}
