//! The measurements: each opens its own sessions through a running subject and returns figures.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use tradewind_units::{Bandwidth, Bytes};

use crate::access::{Access, Keys, Session};
use crate::nameless;
use crate::place::{Place, Port};
use crate::server::{ANSWER, Counts, EARLY_ANSWER, SHORT_BYTES};
use crate::subject::Running;

/// Threads that open sessions at a time to measure the rate of connections.
const CONNECTING_THREADS: usize = 16;
/// Sessions in which a server answers early, one after the other.
pub(crate) const EARLY_SESSIONS: usize = 20;
/// Longest wait of such a session for anything. Chosen: far above all that happens.
const EARLY_LIMIT: Duration = Duration::from_secs(10);
/// Size of one exchange on an open session.
const EXCHANGE_BYTES: usize = 64;
/// Exchanges before those that count, as a warm-up.
const EXCHANGES_BEFORE: usize = 200;
/// Warm-up of the rate of connections.
const CONNECTING_BEFORE: Duration = Duration::from_millis(200);
/// Warm-up of streams: windows and buffers have grown by then.
const STREAMING_BEFORE: Duration = Duration::from_millis(400);
/// Pause after which a proxy that has just opened many sessions is idle again.
const REST: Duration = Duration::from_millis(200);

/// A subject under load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measurement<'a> {
    pub(crate) place: &'a Place,
    pub(crate) keys: &'a Keys,
    pub(crate) counts: &'a Counts,
    pub(crate) running: &'a Running,
}

/// The result of a stream measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Streamed {
    pub(crate) gbps: f64,
    /// CPU seconds of the proxy for each GB (10^9 bytes).
    pub(crate) cpu_s_per_gb: Option<f64>,
}

/// The result of opening short sessions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Connected {
    pub(crate) per_s: f64,
    /// CPU time of the proxy for each session, in microseconds.
    pub(crate) cpu_us: Option<f64>,
}

/// Latencies of exchanges, in microseconds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Exchanged {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

impl Measurement<'_> {
    /// Starts a thread in the client's namespace.
    fn client<'s, T: Send + 's>(
        self,
        scope: &'s thread::Scope<'s, '_>,
        work: impl FnOnce(Access) -> io::Result<T> + Send + 's,
    ) -> anyhow::Result<thread::ScopedJoinHandle<'s, anyhow::Result<T>>>
    where
        Self: 's,
    {
        let access = self.running.access(self.keys)?;
        Ok(scope.spawn(move || {
            self.place.client.enter()?;
            work(access).context("a client's session")
        }))
    }

    /// Runs `work` while `streams` sessions send as fast as possible.
    fn beside_streams<T>(
        self,
        streams: usize,
        work: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let stop = AtomicBool::new(false);
        // Sent by `sendfile`, which costs the sender no copy.
        let source = nameless::file(&vec![b's'; SOURCE_BYTES as usize])?;
        thread::scope(|scope| {
            let send = |mut access: Access| send_until(&stop, &source, &mut access);
            let senders: Vec<_> =
                (0..streams).map(|_| self.client(scope, send)).collect::<Result<_, _>>()?;
            thread::sleep(STREAMING_BEFORE);
            let done = work();
            stop.store(true, Relaxed);
            for sender in senders {
                sender.join().expect("a sender does not panic")?;
            }
            done
        })
    }

    /// Sends over `streams` sessions at once for `window`, as fast as possible.
    pub(crate) fn stream(self, streams: usize, window: Duration) -> anyhow::Result<Streamed> {
        self.beside_streams(streams, || {
            let (sunk, cpu, begin) =
                (self.counts.sunk.load(Relaxed), self.running.cpu_time()?, Instant::now());
            thread::sleep(window);
            let bytes = Bytes::new(self.counts.sunk.load(Relaxed) - sunk);
            let (span, cpu_after) = (begin.elapsed(), self.running.cpu_time()?);
            let rate = Bandwidth::from_transfer(bytes, span).context("nothing arrived")?;
            let cpu = cpu.zip(cpu_after).map(|(before, after)| after.saturating_sub(before));
            Ok(Streamed {
                gbps: rate.as_mbps() / 1e3,
                cpu_s_per_gb: cpu.map(|cpu| cpu.as_secs_f64() / bytes.as_gb()),
            })
        })
    }

    /// Opens short sessions for `window`, each with one request and its response.
    pub(crate) fn connect(self, window: Duration) -> anyhow::Result<Connected> {
        let stop = AtomicBool::new(false);
        let answered = AtomicU64::new(0);
        thread::scope(|scope| {
            let ask = |mut access: Access| ask_until(&stop, &answered, &mut access);
            let clients: Vec<_> = (0..CONNECTING_THREADS)
                .map(|_| self.client(scope, ask))
                .collect::<Result<_, _>>()?;
            thread::sleep(CONNECTING_BEFORE);
            let (before, cpu, begin) =
                (answered.load(Relaxed), self.running.cpu_time()?, Instant::now());
            thread::sleep(window);
            let count = (answered.load(Relaxed) - before) as f64;
            let (span, cpu_after) = (begin.elapsed(), self.running.cpu_time()?);
            stop.store(true, Relaxed);
            for client in clients {
                client.join().expect("a client does not panic")?;
            }
            ensure!(count > 0.0, "no session was answered");
            let cpu = cpu.zip(cpu_after).map(|(before, after)| after.saturating_sub(before));
            Ok(Connected {
                per_s: count / span.as_secs_f64(),
                cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count),
            })
        })
    }

    /// Uploads to a server that answers early and resets, [`EARLY_SESSIONS`] times; returns how
    /// often its response was received.
    pub(crate) fn early_answers(self) -> anyhow::Result<usize> {
        thread::scope(|scope| {
            let upload = |mut access: Access| {
                let mut seen = 0;
                for _ in 0..EARLY_SESSIONS {
                    seen += usize::from(is_answered_early(&mut access)?);
                }
                Ok(seen)
            };
            self.client(scope, upload)?.join().expect("a client does not panic")
        })
    }

    /// Exchanges small messages on one open session.
    pub(crate) fn exchange(self, exchanges: usize) -> anyhow::Result<Exchanged> {
        thread::scope(|scope| {
            let client = self.client(scope, |mut access| ping(exchanges, &mut access))?;
            let mut spans_us = client.join().expect("a client does not panic")?;
            spans_us.sort_by(f64::total_cmp);
            let quantile = |share: f64| spans_us[(share * (spans_us.len() - 1) as f64) as usize];
            Ok(Exchanged { p50_us: quantile(0.5), p99_us: quantile(0.99) })
        })
    }

    /// Exchanges the same messages beside `streams` sessions that send as fast as possible.
    pub(crate) fn exchange_beside(
        self,
        streams: usize,
        exchanges: usize,
    ) -> anyhow::Result<Exchanged> {
        self.beside_streams(streams, || self.exchange(exchanges))
    }

    /// Returns the memory that the proxy's processes use for 1,000 more idle sessions. Each has
    /// carried a byte there and back.
    pub(crate) fn idle_memory(self, sessions: usize) -> anyhow::Result<Option<Bytes>> {
        thread::scope(|scope| {
            // Program pages that the first sessions touch are not the sessions'.
            let first = self.client(scope, |mut access| open_idle(&mut access))?;
            drop(first.join().expect("a client does not panic")?);
            thread::sleep(REST);
            let Some(before) = self.running.memory()? else { return Ok(None) };
            let client = self.client(scope, |mut access| {
                (0..sessions).map(|_| open_idle(&mut access)).collect::<io::Result<Vec<Session>>>()
            })?;
            let open = client.join().expect("a client does not panic")?;
            thread::sleep(REST);
            let after = self.running.memory()?.context("the proxy is gone")?;
            let grown = after.saturating_sub(before);
            Ok(Some(Bytes::new(grown.as_u64() * 1000 / open.len() as u64)))
        })
    }
}

/// Size of the file that streams are sent from, in a loop.
const SOURCE_BYTES: u64 = 16 << 20;

fn send_until(stop: &AtomicBool, source: &File, access: &mut Access) -> io::Result<()> {
    /// Bytes sent between two checks of `stop`.
    const AT_ONCE: u64 = 1 << 20;
    // A descriptor of its own, as the file position belongs to the descriptor.
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(source));
    let mut source = File::open(path)?;
    let mut session = access.open(Port::Sink, b"s")?;
    session.await_open()?;
    let mut position = 0;
    while !stop.load(Relaxed) {
        if position >= SOURCE_BYTES {
            source.rewind()?;
            position = 0;
        }
        position += io::copy(&mut (&source).take(AT_ONCE), &mut session.stream)?;
    }
    Ok(())
}

fn ask_until(stop: &AtomicBool, answered: &AtomicU64, access: &mut Access) -> io::Result<()> {
    let mut buffer = [0; 1024];
    while !stop.load(Relaxed) {
        let mut session = access.open(Port::Answer, &[b'r'; SHORT_BYTES])?;
        if session.read_to_end(&mut buffer)? != ANSWER {
            return Err(io::Error::other("the answer is not the server's"));
        }
        answered.fetch_add(1, Relaxed);
    }
    Ok(())
}

fn ping(exchanges: usize, access: &mut Access) -> io::Result<Vec<f64>> {
    let mut session = access.open(Port::Echo, &[])?;
    session.await_open()?;
    let mut spans_us = Vec::with_capacity(exchanges);
    let mut back = [0; EXCHANGE_BYTES];
    for number in 0..EXCHANGES_BEFORE + exchanges {
        let message = [number as u8; EXCHANGE_BYTES];
        let begin = Instant::now();
        session.stream.write_all(&message)?;
        session.stream.read_exact(&mut back)?;
        let span = begin.elapsed();
        if back != message {
            return Err(io::Error::other("the echo is not what was sent"));
        }
        if number >= EXCHANGES_BEFORE {
            spans_us.push(span.as_secs_f64() * 1e6);
        }
    }
    Ok(spans_us)
}

/// Uploads until that fails, and returns whether the server's response was received.
fn is_answered_early(access: &mut Access) -> io::Result<bool> {
    let mut session = access.open(Port::Early, b"!")?;
    session.await_open()?;
    let stream = &mut session.stream;
    stream.set_read_timeout(Some(EARLY_LIMIT))?;
    stream.set_write_timeout(Some(EARLY_LIMIT))?;
    stream.read_exact(&mut [0])?;
    let block = [b'u'; 64 << 10];
    while stream.write_all(&block).is_ok() {}
    let mut answer = Vec::new();
    // The write has already reported how the connection ended.
    let _read = stream.read_to_end(&mut answer);
    Ok(answer == EARLY_ANSWER)
}

fn open_idle(access: &mut Access) -> io::Result<Session> {
    let mut session = access.open(Port::Echo, b"i")?;
    session.await_open()?;
    session.stream.read_exact(&mut [0])?;
    Ok(session)
}
