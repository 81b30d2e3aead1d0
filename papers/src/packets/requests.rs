//! Applications that request files one after the other, each over a connection of its own.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tradewind_net::epoll::Epoll;
use tradewind_units::HostId;

use crate::harness::carry::{STOP_CHECK, io_error};
use crate::harness::exchange::lab;
use crate::harness::{LabContext, ProcessError, Stop};

/// Longest time that an end waits for the peer's bytes before it gives the file up. Chosen: many
/// times the slowest of a thousand files where paths lose one packet in a hundred. Kernels double
/// the wait after each time-out, and go on for a quarter of an hour.
pub(super) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// The result of a file's transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct File {
    /// The time from `connect` to the last byte, or until it was given up.
    pub(super) took: Duration,
    pub(super) is_whole: bool,
}

/// The sizes and the number of requests.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    pub(super) request_bytes: usize,
    pub(super) answer_bytes: usize,
    /// The number of files before those that count.
    pub(super) first: usize,
    pub(super) requests: usize,
}

/// A client and its server, which listens.
pub(super) struct Pair {
    client: HostId,
    /// The address that the client dials: the server itself, or a program that carries connections
    /// there.
    dial_address: SocketAddr,
    listener: TcpListener,
}

impl Pair {
    /// Opens the server's listener at `address` on its host; the client dials `dial_address`.
    ///
    /// # Errors
    /// When a host does not exist, or the address is in use.
    pub(super) fn open(
        context: &LabContext,
        (client, dial_address): (&HostId, SocketAddr),
        (server, address): (&HostId, SocketAddr),
    ) -> Result<Self, ProcessError> {
        let listener = context.lab.enter(server, || TcpListener::bind(address))?;
        let listener = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        let listener = listener.map_err(|error| failed("listen at", address, error))?;
        Ok(Self { client: client.clone(), dial_address, listener })
    }

    /// Requests all files and returns the results of those that count.
    fn ask(&self, context: &LabContext, asking: Asking) -> Result<Vec<File>, ProcessError> {
        let ask = || {
            let mut files = Vec::with_capacity(asking.requests);
            for number in 0..asking.first + asking.requests {
                context.stop.check()?;
                let one = self.ask_once(asking);
                let one = one.map_err(|error| failed("ask", self.dial_address, error))?;
                files.extend((number >= asking.first).then_some(one));
            }
            Ok(files)
        };
        context.lab.enter(&self.client, ask)?
    }

    fn ask_once(&self, asking: Asking) -> io::Result<File> {
        let begun = Instant::now();
        let is_whole = match fetch(self.dial_address, asking) {
            Ok(()) => true,
            Err(error) if is_silence(&error) => false,
            Err(error) => return Err(error),
        };
        Ok(File { took: begun.elapsed(), is_whole })
    }

    /// Serves until `over` is set, each connection on a thread of its own, so that a client that
    /// has given up blocks no other. Clients report broken connections.
    fn serve(&self, asking: Asking, over: &AtomicBool, stop: &Stop) -> Result<(), ProcessError> {
        let mut epoll = Epoll::new().map_err(lab)?;
        epoll.watch(&self.listener, 0).map_err(lab)?;
        thread::scope(|scope| {
            while !over.load(Ordering::Relaxed) {
                stop.check()?;
                if epoll.wait(Some(STOP_CHECK)).map_err(lab)?.next().is_none() {
                    continue;
                }
                if let Ok((stream, _)) = self.listener.accept() {
                    scope.spawn(move || drop(answer(stream, asking)));
                }
            }
            Ok(())
        })
    }
}

/// Fetches a file.
fn fetch(address: SocketAddr, asking: Asking) -> io::Result<()> {
    let mut stream = TcpStream::connect_timeout(&address, TRANSFER_TIMEOUT)?;
    stream.set_read_timeout(Some(TRANSFER_TIMEOUT))?;
    stream.write_all(&vec![1; asking.request_bytes])?;
    stream.read_exact(&mut vec![0; asking.answer_bytes])
}

/// Returns whether an operation timed out.
fn is_silence(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

fn answer(mut stream: TcpStream, asking: Asking) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(TRANSFER_TIMEOUT))?;
    stream.set_write_timeout(Some(TRANSFER_TIMEOUT))?;
    stream.read_exact(&mut vec![0; asking.request_bytes])?;
    stream.write_all(&vec![2; asking.answer_bytes])
}

/// Runs all clients at the same time; returns the results of their files, by pair.
///
/// # Errors
/// When a socket fails, or the run is stopped.
pub(super) fn run(
    context: &LabContext,
    pairs: &[Pair],
    asking: Asking,
) -> Result<Vec<Vec<File>>, ProcessError> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let servers: Vec<_> = pairs
            .iter()
            .map(|pair| scope.spawn(|| pair.serve(asking, &over, &context.stop)))
            .collect();
        let clients: Vec<_> =
            pairs.iter().map(|pair| scope.spawn(|| pair.ask(context, asking))).collect();
        let files: Vec<_> = clients
            .into_iter()
            .map(|client| client.join().expect("a client does not panic"))
            .collect();
        over.store(true, Ordering::Relaxed);
        for server in servers {
            server.join().expect("a server does not panic")?;
        }
        files.into_iter().collect()
    })
}

fn failed(what: &'static str, address: SocketAddr, source: io::Error) -> ProcessError {
    io_error("files", what, address, source)
}
