//! Many concurrent transfers with both ends in one process: files fetched over new or idle
//! connections, timed by one thread.
//!
//! A fetch over a new connection begins with `connect`; the server writes as soon as it has
//! accepted, as if the request had arrived with the last packet of the handshake. Over an idle
//! connection one byte is the request. Both ends are in this process, so the sender's windows and
//! retransmissions can be read, and its initial congestion window and pacing set, for each
//! connection.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use tradewind_lab::LabError;
use tradewind_net::NetError;
use tradewind_net::epoll::Epoll;
use tradewind_net::initial_window::{InitialWindow, InitialWindows};
use tradewind_net::pacing;
use tradewind_net::tcp::SocketOptions;
use tradewind_net::tcp_info::TcpInfo;
use tradewind_units::{Bandwidth, Bytes, HostId, Segments};

use super::LabContext;
use super::ProcessError;
use super::carry::{self, CarryError};

/// Longest time that an exchange may take after its last start. Chosen: far beyond any transfer
/// here.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(30);
/// The size of the senders' buffers: files of up to 3 MB are written at once, larger ones as buffer
/// space becomes free. It also holds the kernel's own overhead.
const SEND_BUFFER: Bytes = Bytes::new(4 << 20);
/// The interval of checks for a stop request and for the deadline.
const LOOK: Duration = Duration::from_millis(100);
/// Bytes read at a time.
const READ_BYTES: usize = 256 * 1024;
/// Epoll tokens: receivers' ends count from 0, senders' ends of idle connections and listeners from
/// these.
const FIRST_SERVER: u64 = 1 << 31;
const FIRST_LISTENER: u64 = 1 << 32;

/// A host's listener that serves files.
pub(crate) struct FileListener {
    listener: TcpListener,
    address: SocketAddr,
}

impl FileListener {
    /// Opens a listener at any port of `host`; accepted connections start with the initial window
    /// `first`, if given.
    ///
    /// # Errors
    /// When the host does not exist, or an option is refused.
    pub(crate) fn open(
        context: &LabContext,
        host: &HostId,
        first: Option<(&InitialWindows, InitialWindow)>,
    ) -> Result<Self, ProcessError> {
        let address = SocketAddr::new(IpAddr::V4(context.lab.address_v4(host)?), 0);
        let bound = context.lab.enter(host, || TcpListener::bind(address))?;
        let failed = |what| move |source| io_error(what, address, source);
        let listener = bound.map_err(failed("listen at"))?;
        let options = SocketOptions {
            send_buffer: Some(SEND_BUFFER),
            initial_window: first.map(|(windows, window)| (windows.clone(), window)),
            ..SocketOptions::default()
        };
        options.apply(&listener).map_err(|refused| {
            io_error("set up the listener at", address, std::io::Error::other(refused))
        })?;
        listener.set_nonblocking(true).map_err(failed("set up the listener at"))?;
        let address = listener.local_addr().map_err(failed("listen at"))?;
        Ok(Self { listener, address })
    }
}

/// Both ends of a connection.
pub(crate) struct ConnectionPair {
    client: TcpStream,
    server: TcpStream,
}

impl ConnectionPair {
    /// Returns the kernel's information about the sender's end.
    ///
    /// # Errors
    /// When the kernel does not provide it.
    pub(crate) fn info(&self) -> Result<TcpInfo, ProcessError> {
        let none = SocketAddr::from(([0, 0, 0, 0], 0));
        let address = self.server.peer_addr().unwrap_or(none);
        TcpInfo::of(&self.server).map_err(|source| io_error("ask about", address, source))
    }
}

/// The connection of a fetch.
pub(crate) enum Over<'a> {
    /// A new connection from this host to this listener.
    New(&'a HostId, &'a FileListener),
    /// An idle connection.
    Idle(ConnectionPair),
}

/// A file to fetch.
pub(crate) struct Fetch<'a> {
    /// The start, relative to the begin of the exchange.
    pub(crate) at: Duration,
    /// The connection.
    pub(crate) over: Over<'a>,
    /// Its size.
    pub(crate) bytes: u64,
    /// The largest rate of the sender, and its duration from the begin of sending.
    pub(crate) paced: Option<(Bandwidth, Duration)>,
}

/// The result of a fetch.
pub(crate) struct Done {
    /// The connection, still open.
    pub(crate) link: ConnectionPair,
    /// The time from `connect`, or from the request on an idle connection, to the last byte.
    pub(crate) fct: Duration,
    /// `true` when the connection was new.
    pub(crate) new: bool,
    /// Congestion window before the first byte.
    pub(crate) initial_window: u32,
    /// The largest rate before the first byte, as the kernel reports it; `None` without a limit.
    pub(crate) held_to: Option<Bandwidth>,
    /// Segments retransmitted for this file.
    pub(crate) retransmitted: u32,
}

/// Periodic sampling of senders.
pub(crate) struct Looks<'l> {
    /// The time between two samples.
    pub(crate) every: Duration,
    /// A function that is called with the index and the kernel's information of each active sender.
    pub(crate) each: &'l mut dyn FnMut(usize, &TcpInfo),
}

/// Runs all fetches; returns their results in order, `settle` after the last byte.
///
/// # Errors
/// When a socket call fails, nothing ends for too long, or the run is stopped.
pub(crate) fn exchange(
    context: &LabContext,
    fetches: Vec<Fetch<'_>>,
    settle: Duration,
    mut looks: Option<Looks<'_>>,
) -> Result<Vec<Done>, ProcessError> {
    let mut exchange = Exchange::new(context, fetches)?;
    let begun = Instant::now();
    let latest = exchange.running.iter().map(|running| running.at).max().unwrap_or_default();
    let mut next_look = looks.as_ref().map(|looks| looks.every);
    loop {
        context.stop.check()?;
        let now = begun.elapsed();
        let mut next = exchange.act(now)?;
        if let (Some(looks), Some(at)) = (&mut looks, &mut next_look) {
            if *at <= now {
                exchange.look(looks)?;
                *at += looks.every;
            }
            next = Some(next.map_or(*at, |next| next.min(*at)));
        }
        if exchange.running.iter().all(|running| running.fct.is_some()) {
            break;
        }
        if now > latest + ACCEPT_TIMEOUT {
            return Err(exchange.stalled());
        }
        let wait = next.map_or(LOOK, |at| at.saturating_sub(begun.elapsed())).min(LOOK);
        let tokens: Vec<u64> = exchange.epoll.wait(Some(wait)).map_err(lab)?.collect();
        for token in tokens {
            exchange.handle_event(token, begun)?;
        }
    }
    std::thread::sleep(settle);
    exchange.running.into_iter().map(Running::end).collect()
}

/// A running fetch.
struct Running<'a> {
    at: Duration,
    bytes: u64,
    paced: Option<(Bandwidth, Duration)>,
    file_listener: Option<&'a FileListener>,
    /// The client's socket until the fetch begins and connects it.
    client: Option<socket2::Socket>,
    stream: Option<TcpStream>,
    server: Option<TcpStream>,
    begun: bool,
    initial_window: u32,
    held_to: Option<Bandwidth>,
    retransmitted_before: u32,
    unsent: usize,
    received: u64,
    lift_at: Option<Duration>,
    fct: Option<Duration>,
}

/// The state of an exchange.
struct Exchange<'a> {
    epoll: Epoll,
    file_listeners: Vec<&'a FileListener>,
    running: Vec<Running<'a>>,
    buffer: Vec<u8>,
    /// The bytes of which files consist.
    payload: Vec<u8>,
}

impl<'a> Exchange<'a> {
    fn new(context: &LabContext, fetches: Vec<Fetch<'a>>) -> Result<Self, ProcessError> {
        let epoll = Epoll::new().map_err(lab)?;
        let mut file_listeners: Vec<&FileListener> = Vec::new();
        let mut running = Vec::new();
        for fetch in fetches {
            let mut new = Running {
                at: fetch.at,
                bytes: fetch.bytes,
                paced: fetch.paced,
                file_listener: None,
                client: None,
                stream: None,
                server: None,
                begun: false,
                initial_window: 0,
                held_to: None,
                retransmitted_before: 0,
                unsent: 0,
                received: 0,
                lift_at: None,
                fct: None,
            };
            match fetch.over {
                Over::New(host, file_listener) => {
                    new.client = Some(client_socket(context, host, file_listener.address)?);
                    new.file_listener = Some(file_listener);
                    if !file_listeners.iter().any(|known| std::ptr::eq(*known, file_listener)) {
                        let token = FIRST_LISTENER + file_listeners.len() as u64;
                        epoll.watch(&file_listener.listener, token).map_err(lab)?;
                        file_listeners.push(file_listener);
                    }
                }
                Over::Idle(link) => {
                    new.stream = Some(link.client);
                    new.server = Some(link.server);
                }
            }
            running.push(new);
        }
        let largest = running.iter().map(|running| running.bytes).max().unwrap_or(0);
        let most = largest.min(SEND_BUFFER.as_u64());
        let payload = vec![0x5a; usize::try_from(most).expect("the buffer's size fits")];
        Ok(Self { epoll, file_listeners, running, buffer: vec![0; READ_BYTES], payload })
    }

    /// Samples each active sender.
    fn look(&self, looks: &mut Looks<'_>) -> Result<(), ProcessError> {
        for (index, running) in self.running.iter().enumerate() {
            if let (Some(server), true, None) = (&running.server, running.begun, running.fct) {
                let info =
                    TcpInfo::of(server).map_err(|source| running.failed("ask about", source))?;
                (looks.each)(index, &info);
            }
        }
        Ok(())
    }

    /// Begins fetches and lifts pacing limits that are due, and writes where buffers have space;
    /// returns the next time at which something is due. It is called each time a receiver has read,
    /// which is what frees buffer space.
    fn act(&mut self, now: Duration) -> Result<Option<Duration>, ProcessError> {
        let mut next: Option<Duration> = None;
        let mut sooner = |at: Duration| next = Some(next.map_or(at, |next| next.min(at)));
        for (index, running) in self.running.iter_mut().enumerate() {
            if !running.begun {
                if running.at > now {
                    sooner(running.at);
                    continue;
                }
                running.begin()?;
                let stream = running.stream.as_ref().expect("it has just begun");
                self.epoll.watch(stream, index as u64).map_err(lab)?;
                if let Some(server) = &running.server {
                    self.epoll.watch(server, FIRST_SERVER + index as u64).map_err(lab)?;
                }
            }
            running.write(&self.payload)?;
            match running.lift_at {
                Some(at) if at <= now => {
                    let server = running.server.as_ref().expect("a paced sender was accepted");
                    pacing::clear(server).map_err(|source| running.failed("unpace", source))?;
                    running.lift_at = None;
                }
                Some(at) => sooner(at),
                None => {}
            }
        }
        Ok(next)
    }

    /// Handles input on a socket.
    fn handle_event(&mut self, token: u64, begun: Instant) -> Result<(), ProcessError> {
        if token >= FIRST_LISTENER {
            let file_listener = self.file_listeners
                [usize::try_from(token - FIRST_LISTENER).expect("few listeners")];
            return self.accept(file_listener, begun);
        }
        let index = usize::try_from(token % FIRST_SERVER).expect("few connections");
        let running = &mut self.running[index];
        if token >= FIRST_SERVER {
            if let Some(server) = &running.server {
                self.epoll.forget(server);
            }
            return running.asked(begun.elapsed(), &self.payload);
        }
        if running.fct.is_none() && running.read(&mut self.buffer)? {
            running.fct = Some(begun.elapsed().saturating_sub(running.at));
            let stream = running.stream.as_ref().expect("it has just been read");
            self.epoll.forget(stream);
        }
        Ok(())
    }

    fn accept(&mut self, file_listener: &FileListener, begun: Instant) -> Result<(), ProcessError> {
        loop {
            let (server, peer) = match file_listener.listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(source) => return Err(io_error("accept at", file_listener.address, source)),
            };
            let from = |running: &&mut Running<'_>| {
                let local = running.stream.as_ref().and_then(|stream| stream.local_addr().ok());
                running.server.is_none() && local == Some(peer)
            };
            // A connection of someone else is dropped.
            let Some(running) = self.running.iter_mut().find(from) else { continue };
            running.serve(server, begun.elapsed(), &self.payload)?;
        }
    }

    fn stalled(&self) -> ProcessError {
        let slow = self.running.iter().find(|running| running.fct.is_none());
        let none = SocketAddr::from(([0, 0, 0, 0], 0));
        let (received, expected) = slow.map_or((0, 0), |slow| (slow.received, slow.bytes));
        let address = slow.map_or(none, Running::address);
        let source = CarryError::Stalled { address, quiet: ACCEPT_TIMEOUT, received, expected };
        ProcessError::Carry { flow: "fetch".to_owned(), source }
    }
}

impl Running<'_> {
    /// Connects, or sends the request over an idle connection.
    fn begin(&mut self) -> Result<(), ProcessError> {
        self.begun = true;
        let Some(socket) = self.client.take() else {
            let mut stream = self.stream.as_ref().expect("a kept connection has both ends");
            return stream.write_all(&[1]).map_err(|source| self.failed("ask over", source));
        };
        let address = self.address();
        match socket.connect(&address.into()) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(IN_PROGRESS) => {}
            Err(source) => return Err(io_error("connect to", address, source)),
        }
        self.stream = Some(socket.into());
        Ok(())
    }

    /// Handles the request that arrived over an idle connection.
    fn asked(&mut self, now: Duration, payload: &[u8]) -> Result<(), ProcessError> {
        let server = self.server.take().expect("a kept connection has both ends");
        let read = (&server).read(&mut [0; 16]);
        read.map_err(|source| self.failed("read the request of", source))?;
        self.serve(server, now, payload)
    }

    /// Starts the sender's end: reads its window, paces it and begins to send.
    fn serve(
        &mut self,
        server: TcpStream,
        now: Duration,
        payload: &[u8],
    ) -> Result<(), ProcessError> {
        server.set_nonblocking(true).map_err(|source| self.failed("set up", source))?;
        let info = TcpInfo::of(&server).map_err(|source| self.failed("ask about", source))?;
        self.initial_window = info.congestion_window.map_or(0, Segments::as_u32);
        self.retransmitted_before = info.retransmitted_segments;
        if let Some((rate, span)) = self.paced {
            pacing::cap(&server, rate).map_err(|source| self.failed("pace", source))?;
            self.lift_at = Some(now + span);
            let held = TcpInfo::of(&server).map_err(|source| self.failed("ask about", source))?;
            self.held_to = held.pacing_limit;
        }
        self.unsent = usize::try_from(self.bytes).expect("files fit into memory");
        self.server = Some(server);
        self.write(payload)
    }

    /// Writes as much as the send buffer takes.
    fn write(&mut self, payload: &[u8]) -> Result<(), ProcessError> {
        while let (Some(mut server), 1..) = (self.server.as_ref(), self.unsent) {
            match server.write(&payload[..self.unsent.min(payload.len())]) {
                Ok(count) => self.unsent -= count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(source) => return Err(self.failed("send to", source)),
            }
        }
        Ok(())
    }

    /// Reads the data available; returns whether the file is complete.
    fn read(&mut self, buffer: &mut [u8]) -> Result<bool, ProcessError> {
        let mut stream = self.stream.as_ref().expect("who hears has begun");
        loop {
            match stream.read(buffer) {
                Ok(0) => {
                    let ended = std::io::Error::from(ErrorKind::UnexpectedEof);
                    return Err(self.failed("read from", ended));
                }
                Ok(count) => self.received += count as u64,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(source) => return Err(self.failed("read from", source)),
            }
        }
        Ok(self.received >= self.bytes)
    }

    fn end(self) -> Result<Done, ProcessError> {
        let ended = "every fetch has ended";
        let link =
            ConnectionPair { client: self.stream.expect(ended), server: self.server.expect(ended) };
        if self.lift_at.is_some() {
            pacing::clear(&link.server)
                .map_err(|source| io_error("unpace", SocketAddr::from(([0; 4], 0)), source))?;
        }
        let again = link.info()?.retransmitted_segments;
        Ok(Done {
            fct: self.fct.expect(ended),
            new: self.file_listener.is_some(),
            initial_window: self.initial_window,
            held_to: self.held_to,
            retransmitted: again.saturating_sub(self.retransmitted_before),
            link,
        })
    }

    /// Returns the address of the sender.
    fn address(&self) -> SocketAddr {
        let none = SocketAddr::from(([0, 0, 0, 0], 0));
        let peer = self.stream.as_ref().and_then(|stream| stream.peer_addr().ok());
        self.file_listener.map(|file_listener| file_listener.address).or(peer).unwrap_or(none)
    }

    fn failed(&self, what: &'static str, source: std::io::Error) -> ProcessError {
        io_error(what, self.address(), source)
    }
}

/// Creates a non-blocking socket on `host`.
fn client_socket(
    context: &LabContext,
    host: &HostId,
    to: SocketAddr,
) -> Result<socket2::Socket, ProcessError> {
    let made = context.lab.enter(host, || {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    })?;
    made.map_err(|source| io_error("make a socket for", to, source))
}

/// `EINPROGRESS`: the connection is being established.
const IN_PROGRESS: i32 = 115;

pub(crate) fn lab(error: NetError) -> ProcessError {
    ProcessError::Lab(LabError::from(error))
}

fn io_error(what: &'static str, address: SocketAddr, source: std::io::Error) -> ProcessError {
    carry::io_error("fetch", what, address, source)
}
