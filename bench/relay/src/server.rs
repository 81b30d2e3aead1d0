//! The server's side of the load: four listeners, each with threads that block, and a collector of
//! traces.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use tradewind_net::discard::discard;
use tradewind_net::netns::Namespace;
use tradewind_net::tcp::{self, SocketOptions};
use tradewind_units::Bytes;

use crate::place::{COLLECTOR, Port};

/// Size of a short request and of its response.
pub(crate) const SHORT_BYTES: usize = 100;
/// The bytes of every response.
pub(crate) const ANSWER: [u8; SHORT_BYTES] = [b'a'; SHORT_BYTES];
/// Threads that answer short requests: more than the sessions that wait for one at a time.
const ANSWERING_THREADS: usize = 24;
/// The server's early response to an upload.
pub(crate) const EARLY_ANSWER: [u8; 300] = [b'e'; 300];
/// Bytes of the upload that it reads before that.
const EARLY_BYTES: usize = 64 << 10;
/// Longest wait for the rest of the upload, and for the answer's arrival. Chosen: far above both.
const EARLY_LIMIT: Duration = Duration::from_secs(5);
const EARLY_LOOK: Duration = Duration::from_micros(200);
/// Length of the accept queue: Linux's default maximum.
const BACKLOG: u16 = 4096;
/// Size of one receive of the sink.
const SINK_BYTES: usize = 1 << 20;

/// Pause of the sink after a short receive: at 20 Gbit/s 250 KB arrive in it.
const SINK_PAUSE: Duration = Duration::from_micros(100);

/// The server's counters.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Bytes that the sink received.
    pub(crate) sunk: AtomicU64,
}

/// Starts the server's threads; they end with the process.
pub(crate) fn start(namespace: &Namespace) -> anyhow::Result<Arc<Counts>> {
    let counts = Arc::new(Counts::default());
    let options = SocketOptions::default();
    let listeners = namespace
        .run(|| Port::ALL.map(|port| tcp::listen(port_address(port), 1, BACKLOG, &options)))?;
    for (port, listener) in Port::ALL.into_iter().zip(listeners) {
        let mut listener = listener.context("listen in the server's namespace")?;
        let listener = listener.pop().expect("one listener was asked for");
        listener.set_nonblocking(false).context("make a listener wait")?;
        let listener = Arc::new(listener);
        let threads = if port == Port::Answer { ANSWERING_THREADS } else { 1 };
        for _ in 0..threads {
            let (listener, counts) = (Arc::clone(&listener), Arc::clone(&counts));
            thread::Builder::new()
                .name(format!("server {port:?}"))
                .spawn(move || serve(port, &listener, &counts))
                .context("start a server thread")?;
        }
    }
    let listener = namespace.run(|| TcpListener::bind(COLLECTOR))?.context("listen for traces")?;
    let collector = move || {
        // A batch that a killed relay did not finish needs no error here.
        listener.incoming().flatten().for_each(|stream| drop(collect_spans(&stream)));
    };
    thread::Builder::new().name("collector".to_owned()).spawn(collector).context("collector")?;
    Ok(counts)
}

/// Takes one batch of spans: reads an HTTP request, and answers that all is well.
fn collect_spans(mut stream: &TcpStream) -> io::Result<()> {
    let (mut request, mut body) = (BufReader::new(stream), 0);
    loop {
        let mut line = String::new();
        request.read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(length) = line.strip_prefix("content-length:") {
            body = length.trim().parse().map_err(io::Error::other)?;
        }
    }
    io::copy(&mut request.take(body), &mut io::sink())?;
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}

fn port_address(port: Port) -> std::net::SocketAddr {
    (std::net::Ipv4Addr::UNSPECIFIED, port.number()).into()
}

fn serve(port: Port, listener: &TcpListener, counts: &Arc<Counts>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else { continue };
        match port {
            // A client that is killed in the middle of a request needs no error here.
            Port::Answer => drop(answer(stream)),
            Port::Sink | Port::Echo | Port::Early => {
                let counts = Arc::clone(counts);
                let session = move || match port {
                    Port::Sink => sink(&stream, &counts),
                    // A client that only looks whether a proxy is there needs no answer.
                    Port::Early => drop(answer_early(stream)),
                    _ => echo(stream),
                };
                // Without a thread, the client sees the connection close.
                drop(thread::Builder::new().stack_size(256 << 10).spawn(session));
            }
        }
    }
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    let mut request = [0; SHORT_BYTES];
    stream.read_exact(&mut request)?;
    stream.write_all(&ANSWER)
}

/// Answers an upload after its first [`EARLY_BYTES`], and resets while the client still uploads:
/// with the rest unread, once the answer has arrived at the peer.
fn answer_early(mut stream: TcpStream) -> io::Result<()> {
    stream.read_exact(&mut [0])?;
    stream.write_all(b"?")?;
    stream.read_exact(&mut [0; EARLY_BYTES])?;
    stream.write_all(&EARLY_ANSWER)?;
    let begun = Instant::now();
    let is_due = || -> io::Result<bool> {
        let is_acknowledged = tcp::unacknowledged(&stream)? == Bytes::ZERO;
        Ok(is_acknowledged && tcp::unread(&stream)? > Bytes::ZERO)
    };
    while !is_due()? && begun.elapsed() < EARLY_LIMIT {
        thread::sleep(EARLY_LOOK);
    }
    Ok(())
}

/// Discards a stream. The sink does not block on its socket but polls it after [`SINK_PAUSE`]: a
/// sender to a blocked thread pays for waking it on another CPU, which no sender over a real wire
/// does.
fn sink(stream: &TcpStream, counts: &Counts) {
    while let Ok(count @ 1..) = discard(stream, SINK_BYTES) {
        counts.sunk.fetch_add(count as u64, Relaxed);
        if count < SINK_BYTES / 2 {
            thread::sleep(SINK_PAUSE);
        }
    }
}

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 4096];
    drop(stream.set_nodelay(true));
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        if stream.write_all(&buffer[..count]).is_err() {
            return;
        }
    }
}
