//! Files served and fetched over plain sockets: unmodified end points of an experiment.
//!
//! A client dials, sends a request of 16 bytes (size and seed) and reads to the end. The flow
//! completion time runs from its `connect` to the last byte; both ends use this machine's clock.

use std::io::{Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tradewind_units::{Bandwidth, HostId};

use super::LabContext;
use super::ProcessError;
use super::carry::{CarryError, Content, STOP_CHECK, is_time_out};

/// Bytes read at a time. Chosen: the amount that a window of a fast path delivers between two
/// wake-ups.
const READ_BYTES: usize = 256 * 1024;
/// Length of a request.
const REQUEST_BYTES: usize = 16;

/// A function that serves one connection until it ends or a stop is requested; the client reports
/// errors.
pub(crate) type Answer = fn(TcpStream, &AtomicBool) -> std::io::Result<()>;

/// A server of files, or of another reply, on a host; it ends when dropped.
pub(crate) struct FileServer {
    /// Its address.
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FileServer {
    /// Starts a file server at `port` of `host`.
    ///
    /// # Errors
    /// When the host does not exist or the port is in use.
    pub(crate) fn start(
        context: &LabContext,
        host: &HostId,
        port: u16,
    ) -> Result<Self, ProcessError> {
        Self::answering(context, host, port, serve)
    }

    /// Starts a server with another reply than files.
    ///
    /// # Errors
    /// The same as of [`FileServer::start`].
    pub(crate) fn answering(
        context: &LabContext,
        host: &HostId,
        port: u16,
        answer: Answer,
    ) -> Result<Self, ProcessError> {
        let address = SocketAddr::new(IpAddr::V4(context.lab.address_v4(host)?), port);
        let failed = |source| ProcessError::Carry {
            flow: format!("files of {host}"),
            source: CarryError::Io { what: "listen at", address, source },
        };
        let listener = context.lab.enter(host, || TcpListener::bind(address))?.map_err(failed)?;
        // On Linux the read time-out also bounds `accept`.
        let timed = socket2::SockRef::from(&listener).set_read_timeout(Some(STOP_CHECK));
        timed.map_err(failed)?;
        let stop = Arc::new(AtomicBool::new(false));
        let thread_stop = stop.clone();
        let thread = std::thread::spawn(move || accept_all(&listener, &thread_stop, answer));
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for FileServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_all(listener: &TcpListener, stop: &AtomicBool, answer: Answer) {
    std::thread::scope(|scope| {
        while !stop.load(Ordering::Relaxed) {
            if let Ok((stream, _)) = listener.accept() {
                // A client reports an aborted transfer itself.
                scope.spawn(move || answer(stream, stop));
            }
        }
    });
}

/// Serves one request for a file.
fn serve(mut stream: TcpStream, stop: &AtomicBool) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STOP_CHECK))?;
    stream.set_write_timeout(Some(STOP_CHECK))?;
    let mut request = [0; REQUEST_BYTES];
    read_exactly(&mut stream, &mut request, stop)?;
    let number = |half: &[u8]| u64::from_le_bytes(half.try_into().expect("eight bytes"));
    let (size, seed) = (number(&request[..8]), number(&request[8..]));
    for block in Content::new(size, seed) {
        let mut rest = &block[..];
        while !rest.is_empty() {
            match stream.write(rest) {
                // With an endless file, writes may never time out, so the stop request is checked
                // after each.
                Ok(_) if stop.load(Ordering::Relaxed) => return Ok(()),
                Ok(written) => rest = &rest[written..],
                Err(error) if is_time_out(&error) && !stop.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error),
            }
        }
    }
    stream.shutdown(Shutdown::Write)?;
    // The client closes first, so that no data is cut off.
    read_exactly(&mut stream, &mut request, stop)
}

/// Fills `buffer`, unless the stream ends or `stop` is set; reads that time out are repeated.
pub(crate) fn read_exactly(
    stream: &mut TcpStream,
    mut buffer: &mut [u8],
    stop: &AtomicBool,
) -> std::io::Result<()> {
    while !buffer.is_empty() {
        match stream.read(buffer) {
            Ok(0) => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if is_time_out(&error) && !stop.load(Ordering::Relaxed) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// A file to fetch.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    /// Its size.
    pub(crate) bytes: u64,
    /// The seed of its content.
    pub(crate) seed: u64,
}

/// The result of a fetch.
#[derive(Debug, Clone)]
pub(crate) struct Fetched {
    /// The time from `connect` to the last byte.
    pub(crate) fct: Duration,
    /// `true` when the file arrived complete and unchanged.
    pub(crate) content_ok: bool,
}

/// Fetches `file` from `client` over the listener at `dial`; `quiet` is the longest silence.
///
/// # Errors
/// When a socket call fails, nothing arrives for `quiet`, or the run is stopped.
pub(crate) fn fetch(
    context: &LabContext,
    client: &HostId,
    dial: SocketAddr,
    file: File,
    quiet: Duration,
) -> Result<Fetched, ProcessError> {
    let domain = socket2::Domain::for_address(dial);
    let made =
        context.lab.enter(client, || socket2::Socket::new(domain, socket2::Type::STREAM, None))?;
    let fetched = made
        .map_err(|source| CarryError::Io { what: "make a socket for", address: dial, source })
        .and_then(|socket| fetch_over(context, socket, dial, file, quiet));
    fetched.map_err(|source| match source {
        CarryError::Stopped => ProcessError::Stopped,
        source => ProcessError::Carry { flow: format!("{client} from {dial}"), source },
    })
}

/// An endless download, which ends when dropped.
pub(crate) struct LongFetch {
    received: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl LongFetch {
    /// Starts the download from `client`.
    ///
    /// # Errors
    /// When the host does not exist.
    pub(crate) fn start(
        context: &LabContext,
        client: &HostId,
        dial: SocketAddr,
    ) -> Result<Self, ProcessError> {
        let namespace = context.lab.namespace(client)?;
        let stop = Arc::new(AtomicBool::new(false));
        let received = Arc::new(AtomicU64::new(0));
        let (thread_stop, count) = (stop.clone(), received.clone());
        // An aborted download shows as a count that no longer grows.
        let thread = std::thread::spawn(move || {
            if let Ok(Ok(stream)) = namespace.run(|| TcpStream::connect(dial)) {
                let _ended = take_all(stream, &thread_stop, &count);
            }
        });
        Ok(Self { received, stop, thread: Some(thread) })
    }

    /// Returns the bytes received so far.
    pub(crate) fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

impl Drop for LongFetch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Returns the rate of an endless download to `client` over `span`, after it has run for `settle`.
/// The lab's validity record covers that span alone.
///
/// # Errors
/// When a socket call fails, the download ends, or the run is stopped.
pub(crate) fn steady_rate(
    context: &LabContext,
    client: &HostId,
    dial: SocketAddr,
    settle: Duration,
    span: Duration,
) -> Result<Bandwidth, ProcessError> {
    let failed = |what| {
        move |source| ProcessError::Carry {
            flow: format!("{client} from {dial}"),
            source: CarryError::Io { what, address: dial, source },
        }
    };
    let domain = socket2::Domain::for_address(dial);
    let made =
        context.lab.enter(client, || socket2::Socket::new(domain, socket2::Type::STREAM, None))?;
    let socket = made.map_err(failed("make a socket for"))?;
    socket.connect_timeout(&dial.into(), settle + span).map_err(failed("connect to"))?;
    let mut stream = TcpStream::from(socket);
    ask_for_all(&mut stream).map_err(failed("ask"))?;
    let mut buffer = vec![0; READ_BYTES];
    let mut take = |span: Duration| -> Result<(u64, Duration), ProcessError> {
        let (began, mut bytes) = (Instant::now(), 0);
        while began.elapsed() < span {
            context.stop.check()?;
            match stream.read(&mut buffer) {
                Ok(0) => {
                    let cut = std::io::ErrorKind::UnexpectedEof.into();
                    return Err(failed("receive from")(cut));
                }
                Ok(count) => bytes += count as u64,
                Err(error) if is_time_out(&error) => {}
                Err(error) => return Err(failed("receive from")(error)),
            }
        }
        Ok((bytes, began.elapsed()))
    };
    take(settle)?;
    context.lab.reset_validity()?;
    let (bytes, took) = take(span)?;
    Ok(Bandwidth::saturating_from_bytes_per_s(bytes as f64 / took.as_secs_f64()))
}

/// Requests an endless file.
fn ask_for_all(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(STOP_CHECK))?;
    let mut request = [0; REQUEST_BYTES];
    request[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    stream.write_all(&request)
}

fn take_all(mut stream: TcpStream, stop: &AtomicBool, received: &AtomicU64) -> std::io::Result<()> {
    ask_for_all(&mut stream)?;
    let mut buffer = vec![0; READ_BYTES];
    while !stop.load(Ordering::Relaxed) {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
            Err(error) if is_time_out(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn fetch_over(
    context: &LabContext,
    socket: socket2::Socket,
    dial: SocketAddr,
    file: File,
    quiet: Duration,
) -> Result<Fetched, CarryError> {
    let failed = |what| move |source| CarryError::Io { what, address: dial, source };
    let mut request = [0; REQUEST_BYTES];
    request[..8].copy_from_slice(&file.bytes.to_le_bytes());
    request[8..].copy_from_slice(&file.seed.to_le_bytes());
    let mut content = Vec::with_capacity(usize::try_from(file.bytes).unwrap_or_default());
    let mut buffer = vec![0; READ_BYTES];
    let started = Instant::now();
    socket.connect_timeout(&dial.into(), quiet).map_err(failed("connect to"))?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true).map_err(failed("set up"))?;
    stream.set_read_timeout(Some(STOP_CHECK)).map_err(failed("set up"))?;
    stream.write_all(&request).map_err(failed("ask"))?;
    let mut last = started;
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => {
                last = Instant::now();
                content.extend_from_slice(&buffer[..count]);
            }
            Err(error) if is_time_out(&error) => {
                if context.stop.is_set() {
                    return Err(CarryError::Stopped);
                }
                if last.elapsed() > quiet {
                    let (received, expected) = (content.len() as u64, file.bytes);
                    return Err(CarryError::Stalled { address: dial, quiet, received, expected });
                }
            }
            Err(source) => return Err(failed("receive from")(source)),
        }
    }
    Ok(Fetched {
        fct: last.saturating_duration_since(started),
        content_ok: is_content(&content, file),
    })
}

fn is_content(content: &[u8], file: File) -> bool {
    let mut rest = content;
    let same = Content::new(file.bytes, file.seed).all(|block| {
        let (head, tail) = rest.split_at(block.len().min(rest.len()));
        rest = tail;
        head == block
    });
    same && rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn altered_content_is_detected() {
        let file = File { bytes: 300_000, seed: 5 };
        let mut content: Vec<u8> = Content::new(file.bytes, file.seed).flatten().collect();
        assert!(is_content(&content, file));
        assert!(!is_content(&content[1..], file));
        content[299_999] ^= 1;
        assert!(!is_content(&content, file));
        content.push(0);
        assert!(!is_content(&content, file));
    }
}
