//! The sessions of a soak: the traffic of clients and servers, and its possible ends.
//!
//! A request contains the kind, the size and the seed of a content. Both ends know the content, so
//! each byte is compared on arrival; an end of the stream is distinguished from a reset, because
//! only the former means that everything arrived.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tradewind_units::HostId;

use super::scenario::Scenario;
use crate::harness::carry::{CarryError, Content, STOP_CHECK, is_time_out};
use crate::harness::{LabContext, ProcessError, Random};

/// The port of the server.
const SERVER_PORT: u16 = 8000;
/// The length of a request: a kind, a size and a seed.
const REQUEST_BYTES: usize = 17;
/// Longest silence. A lost reset is detected when relays probe their silent neighbour, which they
/// do after a minute of silence, and again after one more; then it has to travel.
pub(super) const QUIET: Duration = Duration::from_secs(150);
/// The pause of a slow reader between two blocks.
const SLOW: Duration = Duration::from_millis(50);
/// The server's reply to a content that arrived unchanged, and to any other.
const RIGHT: u8 = 1;
const WRONG: u8 = 0;

/// The kind of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// A few bytes in each direction.
    Small,
    /// A file from the server, which closes first.
    Fetch,
    /// The same with a slow reader.
    SlowFetch,
    /// A file to the server; the client closes first and gets the server's verdict.
    Push,
    /// A file in each direction at once.
    Exchange,
    /// A file that the client aborts half-way by a reset.
    ClientResets,
    /// A file that the server aborts half-way by a reset.
    ServerResets,
}

impl Kind {
    pub(super) const ALL: [Self; 7] = [
        Self::Small,
        Self::Fetch,
        Self::SlowFetch,
        Self::Push,
        Self::Exchange,
        Self::ClientResets,
        Self::ServerResets,
    ];

    /// Returns its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Small => "small request",
            Self::Fetch => "download",
            Self::SlowFetch => "download, slow reader",
            Self::Push => "upload, half-closed",
            Self::Exchange => "both ways at once",
            Self::ClientResets => "reset by the client",
            Self::ServerResets => "reset by the server",
        }
    }

    fn of(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).copied()
    }
}

/// The end of a session, as its client saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum End {
    /// As expected.
    Done,
    /// Refused or reset.
    Broken,
    /// The stream ended in order before all data had arrived.
    Early,
    /// The received bytes differ from the sent ones.
    Altered,
    /// No progress for [`QUIET`].
    Stuck,
}

impl End {
    /// Returns its name.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Done => "as they should",
            Self::Broken => "broken",
            Self::Early => "ended early",
            Self::Altered => "altered",
            Self::Stuck => "stuck",
        }
    }
}

/// A session that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended {
    /// Its kind.
    pub(super) kind: Kind,
    /// The index of its chain.
    pub(super) chain: usize,
    /// The begin.
    pub(super) begun: Instant,
    /// The end.
    pub(super) ended: Instant,
    /// The kind of its end.
    pub(super) end: End,
}

/// One end of a session.
struct Talk<'a> {
    stream: TcpStream,
    stop: &'a (dyn Fn() -> bool + Sync),
}

impl Talk<'_> {
    fn read_exactly(&mut self, mut buffer: &mut [u8]) -> Result<(), End> {
        let mut since = Instant::now();
        while !buffer.is_empty() {
            match self.stream.read(buffer) {
                Ok(0) => return Err(End::Early),
                Ok(count) => (buffer, since) = (&mut buffer[count..], Instant::now()),
                Err(error) => self.wait_or_give_up(&error, since)?,
            }
        }
        Ok(())
    }

    /// Reads a content, pausing after each block, and compares it.
    fn compare(&mut self, content: Content, rest: Duration) -> Result<(), End> {
        let mut buffer = Vec::new();
        for block in content {
            buffer.resize(block.len(), 0);
            self.read_exactly(&mut buffer)?;
            if buffer != block {
                return Err(End::Altered);
            }
            std::thread::sleep(rest);
        }
        Ok(())
    }

    /// Waits for the end of the stream.
    fn read_end(&mut self) -> Result<(), End> {
        match self.read_exactly(&mut [0]) {
            Ok(()) => Err(End::Altered),
            Err(End::Early) => Ok(()),
            Err(end) => Err(end),
        }
    }

    fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), End> {
        let mut since = Instant::now();
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(count) => (bytes, since) = (&bytes[count..], Instant::now()),
                Err(error) => self.wait_or_give_up(&error, since)?,
            }
        }
        Ok(())
    }

    fn write_content(&mut self, content: Content) -> Result<(), End> {
        content.into_iter().try_for_each(|block| self.write_all(&block))
    }

    fn end(&self) -> Result<(), End> {
        self.stream.shutdown(Shutdown::Write).map_err(|_| End::Broken)
    }

    /// Closes the connection by a reset.
    fn reset(self) {
        // If this fails the peer sees an early end, and reports it.
        let _ = socket2::SockRef::from(&self.stream).set_linger(Some(Duration::ZERO));
    }

    fn wait_or_give_up(&self, error: &std::io::Error, since: Instant) -> Result<(), End> {
        if !is_time_out(error) || (self.stop)() {
            Err(End::Broken)
        } else if since.elapsed() > QUIET {
            Err(End::Stuck)
        } else {
            Ok(())
        }
    }

    fn other(&self) -> Result<Self, End> {
        let stream = self.stream.try_clone().map_err(|_| End::Broken)?;
        Ok(Self { stream, stop: self.stop })
    }

    /// Sends a content and receives another one at once; half-closes when it is sent.
    fn exchange(&mut self, mine: Content, its: Content) -> Result<(), End> {
        let mut sending = self.other()?;
        std::thread::scope(|scope| {
            let sent = scope.spawn(move || {
                sending.write_content(mine)?;
                sending.end()
            });
            let received = self.compare(its, Duration::ZERO).and_then(|()| self.read_end());
            match (received, sent.join().expect("sending does not panic")) {
                // The kernel reports a reset once: to the sender, if it writes first; the reader
                // then sees an end of stream.
                (Err(End::Early), Err(End::Broken)) => Err(End::Broken),
                (received, sent) => received.and(sent),
            }
        })
    }
}

fn talk(stream: TcpStream, stop: &(dyn Fn() -> bool + Sync)) -> std::io::Result<Talk<'_>> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(STOP_CHECK))?;
    stream.set_write_timeout(Some(STOP_CHECK))?;
    Ok(Talk { stream, stop })
}

/// A server of sessions on a host; it ends when dropped.
pub(super) struct Server {
    /// Its address.
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    early: AtomicU64,
    altered: AtomicU64,
}

impl Server {
    /// Starts the server on `host`.
    ///
    /// # Errors
    /// When the host does not exist or the port is in use.
    pub(super) fn start(lab_context: &LabContext, host: &HostId) -> Result<Self, ProcessError> {
        let address = SocketAddr::new(IpAddr::V4(lab_context.lab.address_v4(host)?), SERVER_PORT);
        let failed = |source| ProcessError::Carry {
            flow: format!("sessions of {host}"),
            source: CarryError::Io { what: "listen at", address, source },
        };
        let listener =
            lab_context.lab.enter(host, || TcpListener::bind(address))?.map_err(failed)?;
        // On Linux the read time-out also bounds `accept`.
        let timed = socket2::SockRef::from(&listener).set_read_timeout(Some(STOP_CHECK));
        timed.map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let mine = shared.clone();
        let thread = std::thread::spawn(move || accept_all(&listener, &mine));
        Ok(Self { address, shared, thread: Some(thread) })
    }

    /// Returns the number of uploads that ended early, and of altered ones.
    pub(super) fn wrongs(&self) -> (u64, u64) {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (read(&self.shared.early), read(&self.shared.altered))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept_all(listener: &TcpListener, shared: &Shared) {
    let stop = || shared.stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        while !stop() {
            let Ok((stream, _)) = listener.accept() else { continue };
            scope.spawn(move || {
                let stop = || shared.stop.load(Ordering::Relaxed);
                // The client reports the end of the session, except for defects that only a server
                // sees.
                match talk(stream, &stop).map(serve) {
                    Ok(Err(End::Early)) => shared.early.fetch_add(1, Ordering::Relaxed),
                    Ok(Err(End::Altered)) => shared.altered.fetch_add(1, Ordering::Relaxed),
                    _ => 0,
                };
            });
        }
    });
}

/// Serves one session.
fn serve(mut talk: Talk<'_>) -> Result<(), End> {
    let mut request = [0; REQUEST_BYTES];
    // A session without a request was given up on its path.
    talk.read_exactly(&mut request).map_err(|_| End::Broken)?;
    let number = |part: &[u8]| u64::from_le_bytes(part.try_into().expect("eight bytes"));
    let (size, seed) = (number(&request[1..9]), number(&request[9..]));
    match Kind::of(request[0]).ok_or(End::Altered)? {
        Kind::Small | Kind::Fetch | Kind::SlowFetch | Kind::ClientResets => {
            talk.write_content(Content::new(size, seed))?;
            talk.end()?;
            // The client closes after it. One that resets has no more to send.
            talk.read_end().or(Err(End::Broken))
        }
        Kind::Push => {
            let came = talk.compare(Content::new(size, seed), Duration::ZERO);
            let came = came.and_then(|()| talk.read_end());
            talk.write_all(&[if came.is_ok() { RIGHT } else { WRONG }])?;
            came
        }
        Kind::Exchange => talk.exchange(Content::new(size, seed), Content::new(size, !seed)),
        Kind::ServerResets => {
            talk.write_content(Content::new(size / 2, seed))?;
            talk.reset();
            Ok(())
        }
    }
}

/// The sessions of all clients.
pub(super) struct Sessions<'a> {
    lab_context: &'a LabContext,
    client: &'a HostId,
    at_once: u16,
    largest: u64,
    seed: u64,
    dial_addresses: Vec<SocketAddr>,
    next: AtomicU64,
}

impl<'a> Sessions<'a> {
    /// Creates sessions over chains with these addresses.
    pub(super) fn new(
        lab_context: &'a LabContext,
        scenario: &'a Scenario,
        seed: u64,
        dial_addresses: Vec<SocketAddr>,
    ) -> Self {
        Self {
            lab_context,
            client: &scenario.client,
            at_once: scenario.sessions,
            largest: scenario.largest.as_u64(),
            seed,
            dial_addresses,
            next: AtomicU64::new(0),
        }
    }

    /// Opens sessions one after the other, in each of the configured number of threads, until
    /// `over` is set.
    pub(super) fn run(&self, over: &AtomicBool) -> Result<Vec<Ended>, ProcessError> {
        let namespace = self.lab_context.lab.namespace(self.client)?;
        let one_after_the_other = || {
            let mut ended = Vec::new();
            while !over.load(Ordering::Relaxed) && !self.lab_context.stop.is_set() {
                ended.push(self.one());
            }
            ended
        };
        let all = std::thread::scope(|scope| {
            let inside = || namespace.run(one_after_the_other);
            let threads: Vec<_> = (0..self.at_once).map(|_| scope.spawn(inside)).collect();
            let joined = threads.into_iter().map(|it| it.join().expect("no session panics"));
            joined.collect::<Result<Vec<_>, _>>()
        });
        let all = all.map_err(tradewind_lab::LabError::from)?;
        Ok(all.into_iter().flatten().collect())
    }

    fn one(&self) -> Ended {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut random = Random::new(self.seed.wrapping_mul(1 << 32) ^ number);
        let kind = Kind::ALL[random.draw(Kind::ALL.len())];
        let chain = random.draw(self.dial_addresses.len());
        // Sizes are distributed over all orders of magnitude.
        let size = (self.largest as f64).powf(random.fraction()).max(2.0) as u64;
        let size = if kind == Kind::Small { size.min(500) } else { size };
        let seed = (random.draw(usize::MAX) as u64) | 1;
        let begun = Instant::now();
        let end = self.act(kind, chain, size, seed).err().unwrap_or(End::Done);
        if end != End::Done {
            tracing::debug!(kind = kind.name(), chain, size, ?end, "session");
        }
        Ended { kind, chain, begun, ended: Instant::now(), end }
    }

    fn act(&self, kind: Kind, chain: usize, size: u64, seed: u64) -> Result<(), End> {
        let stop = || self.lab_context.stop.is_set();
        let stream = TcpStream::connect_timeout(&self.dial_addresses[chain], QUIET);
        let stream = stream.map_err(|error| match error.kind() {
            ErrorKind::TimedOut => End::Stuck,
            _ => End::Broken,
        })?;
        let mut talk = talk(stream, &stop).map_err(|_| End::Broken)?;
        let code = Kind::ALL.iter().position(|known| *known == kind).expect("all kinds are there");
        let mut request = vec![code as u8];
        request.extend(size.to_le_bytes());
        request.extend(seed.to_le_bytes());
        talk.write_all(&request)?;
        let content = Content::new(size, seed);
        match kind {
            Kind::Small | Kind::Fetch => {
                talk.compare(content, Duration::ZERO)?;
                talk.read_end()
            }
            Kind::SlowFetch => {
                talk.compare(content, SLOW)?;
                talk.read_end()
            }
            Kind::Push => {
                talk.write_content(content)?;
                talk.end()?;
                let mut verdict = [0];
                talk.read_exactly(&mut verdict)?;
                talk.read_end()?;
                if verdict[0] == RIGHT { Ok(()) } else { Err(End::Altered) }
            }
            Kind::Exchange => talk.exchange(Content::new(size, !seed), content),
            Kind::ClientResets => {
                talk.read_exactly(&mut vec![0; size.div_ceil(2).min(1 << 20) as usize])?;
                talk.reset();
                Ok(())
            }
            // The data is intact until the reset, and the stream may not end in order.
            Kind::ServerResets => match talk.compare(content, Duration::ZERO) {
                Err(End::Broken) => Ok(()),
                Ok(()) => Err(End::Altered),
                Err(end) => Err(end),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the two ends of a connection.
    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn session_ends_are_distinguished() {
        let never = || false;
        let come = |spoil: fn(TcpStream, Vec<u8>)| {
            let (near, remote) = pair();
            let sender = std::thread::spawn(move || {
                spoil(remote, Content::new(1000, 7).flatten().collect())
            });
            let mut talk = talk(near, &never).unwrap();
            let came = talk.compare(Content::new(1000, 7), Duration::ZERO);
            let came = came.and_then(|()| talk.read_end());
            sender.join().unwrap();
            came
        };
        assert_eq!(come(|mut remote, bytes| remote.write_all(&bytes).unwrap()), Ok(()));
        let early =
            |mut remote: TcpStream, bytes: Vec<u8>| remote.write_all(&bytes[..999]).unwrap();
        assert_eq!(come(early), Err(End::Early));
        let altered = |mut remote: TcpStream, mut bytes: Vec<u8>| {
            bytes[500] ^= 1;
            remote.write_all(&bytes).unwrap();
        };
        assert_eq!(come(altered), Err(End::Altered));
        let more = |mut remote: TcpStream, mut bytes: Vec<u8>| {
            bytes.push(0);
            remote.write_all(&bytes).unwrap();
        };
        assert_eq!(come(more), Err(End::Altered));
        let reset = |remote: TcpStream, _| {
            socket2::SockRef::from(&remote).set_linger(Some(Duration::ZERO)).unwrap();
        };
        assert_eq!(come(reset), Err(End::Broken));
    }

    #[test]
    fn server_serves_every_kind_of_session() {
        let never = || false;
        let (near, remote) = pair();
        let serving = std::thread::spawn(move || serve(talk(remote, &|| false).unwrap()));
        let mut client = talk(near, &never).unwrap();
        let push = Kind::ALL.iter().position(|kind| *kind == Kind::Push).unwrap() as u8;
        let mut request = vec![push];
        request.extend(10_u64.to_le_bytes());
        request.extend(7_u64.to_le_bytes());
        client.write_all(&request).unwrap();
        client.write_all(b"0123456789").unwrap();
        let mut verdict = [RIGHT];
        client.read_exactly(&mut verdict).unwrap();
        assert_eq!(verdict, [WRONG]);
        assert_eq!(serving.join().unwrap(), Err(End::Altered));
    }
}
