//! The responder of rate tests: a TCP server with limits.
//!
//! It sends and receives only on connections that the caller opened, so it cannot be made to flood
//! a third host. Everything a caller can use is bounded ([`ResponderConfig`]); a connection that is
//! not yet part of a test has 5 s, 1 KiB and one of [`MAX_PENDING`] places, of which the source
//! that holds most loses its oldest for the next. There is no default address: to open a responder
//! to a network is explicit, and it needs a secret where others can reach it.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tradewind_net::{congestion, entropy};
use tradewind_telemetry::{LogLimit, limited};
use tradewind_units::{Bytes, Source};

use crate::meter::{Event, Role, Transfer};
use crate::pending::{Admission, Pending, PendingSlot, until_evicted};
use crate::protocol::{
    Answer, Challenge, Direction, Finish, FinishCause, Hello, MAX_CALLER_FRAME_BYTES,
    MAX_CONNECTIONS, PREFACE_BYTES, Preface, Progress, Request, Stop, TestId, VERSION, from_json,
    split_request, to_json,
};
use crate::stream::{Data, FrameError, read_frame, share_of, write_frame};
use crate::{ProbeError, Secret, transfer};

/// Most connections that have not shown their purpose; for one more, another is closed. Chosen.
pub const MAX_PENDING: usize = 256;
/// Longest time for a connection to send its request before it is authenticated. Chosen: a round
/// trip takes less than a second.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// Longest time for a test's data connections to arrive. Chosen: a few lost SYNs.
const GATHER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time beyond the requested duration after which a test is ended from here. Chosen: the caller's
/// stop may be late by a slow start and a standing queue.
const OVERTIME: Duration = Duration::from_secs(10);
/// Longest time for the caller to read messages, and to close at the end. Chosen.
const CALLER_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept (e.g. no descriptors left), so that it does not spin. Chosen.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest and longest interval that a caller may request.
const INTERVAL_RANGE_US: std::ops::RangeInclusive<u64> = 10_000..=10_000_000;

/// The address and limits of a responder.
#[derive(Debug, Clone)]
pub struct ResponderConfig {
    /// The address to listen on; there is no default.
    pub bind: SocketAddr,
    /// Most tests at once; 4. More are refused, not queued: a queued test would measure late.
    pub max_tests: usize,
    /// Most connections of one test, at most and by default [`MAX_CONNECTIONS`].
    pub max_connections: u32,
    /// Longest test; 60 s.
    pub max_duration: Duration,
    /// Most payload of one test, either direction; 100 GB. A test that reaches it ends with a
    /// report.
    pub max_bytes: Bytes,
    /// The secret that callers must prove to know, if any.
    pub secret: Option<Secret>,
    /// False to receive payload alone: true.
    pub sends: bool,
}

impl ResponderConfig {
    /// Creates the settings of a responder on `bind` with the default limits and no secret.
    #[must_use]
    pub const fn new(bind: SocketAddr) -> Self {
        Self {
            bind,
            max_tests: 4,
            max_connections: MAX_CONNECTIONS,
            max_duration: Duration::from_secs(60),
            max_bytes: Bytes::new(100_000_000_000),
            secret: None,
            sends: true,
        }
    }
}

/// A listening responder.
#[derive(Debug)]
pub struct Responder {
    listener: TcpListener,
    local_addr: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: ResponderConfig,
    pending: Arc<Pending>,
    tests: Arc<Semaphore>,
    waiting: Mutex<BTreeMap<TestId, mpsc::Sender<(u32, TcpStream)>>>,
}

impl Responder {
    /// Opens the listener; connections are served from [`Responder::run`] on.
    ///
    /// # Errors
    /// When the address cannot be bound or a limit is invalid.
    pub async fn bind(config: ResponderConfig) -> Result<Self, ProbeError> {
        check(&config)?;
        let listen = |cause| ProbeError::Listen { address: config.bind, cause };
        let listener = TcpListener::bind(config.bind).await.map_err(listen)?;
        let local_addr = listener.local_addr().map_err(listen)?;
        let shared = Arc::new(Shared {
            pending: Pending::new(MAX_PENDING),
            tests: Arc::new(Semaphore::new(config.max_tests)),
            waiting: Mutex::default(),
            config,
        });
        Ok(Self { listener, local_addr, shared })
    }

    /// Returns the address it listens on, with the port that the system chose if 0 was given.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Serves connections until `shutdown` is done; running tests are then ended with their totals.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        let (closing, closed) = watch::channel(false);
        let mut running = JoinSet::new();
        // By source; `None`: no connection could be accepted.
        let lines = LogLimit::<Option<Source>>::new();
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => break,
                Some(_) = running.join_next() => {}
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, from)) => {
                        let Admission { place, evicted, displaced } =
                            self.shared.pending.take(from.ip());
                        if let Some(source) = displaced {
                            limited!(
                                warn, lines, Some(source), %source,
                                "too many callers at once: the one that had waited longest of the \
                                 source with most was turned away"
                            );
                        }
                        let (shared, closed) = (Arc::clone(&self.shared), closed.clone());
                        running.spawn(async move {
                            tokio::select! {
                                () = serve(stream, from, shared, place, closed) => {}
                                () = until_evicted(evicted) => {}
                            }
                        });
                    }
                    Err(error) => {
                        limited!(
                            warn, lines, None, %error,
                            "the probe responder cannot accept a connection"
                        );
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        drop(self.listener);
        closing.send_replace(true);
        let all = async { while running.join_next().await.is_some() {} };
        if timeout(CALLER_TIMEOUT, all).await.is_err() {
            tracing::warn!("callers of the probe responder did not close in time and were cut off");
        }
    }
}

fn check(config: &ResponderConfig) -> Result<(), ProbeError> {
    let refused = |option, expected: &str, value: String| ProbeError::Option {
        option,
        expected: expected.to_owned(),
        value,
    };
    if config.max_tests == 0 || config.max_tests > 1024 {
        return Err(refused("max_tests", "1 to 1024", config.max_tests.to_string()));
    }
    if !(1..=MAX_CONNECTIONS).contains(&config.max_connections) {
        let expected = format!("1 to {MAX_CONNECTIONS}");
        return Err(refused("max_connections", &expected, config.max_connections.to_string()));
    }
    if config.max_duration.is_zero() || config.max_duration > Duration::from_secs(86_400) {
        let value = format!("{:?}", config.max_duration);
        return Err(refused("max_duration", "above 0 and at most a day", value));
    }
    if config.max_bytes == Bytes::ZERO {
        return Err(refused("max_bytes", "above 0", config.max_bytes.to_string()));
    }
    Ok(())
}

/// Serves one connection of any kind. Its failures are the caller's and only logged for debugging.
async fn serve(
    mut stream: TcpStream,
    from: SocketAddr,
    shared: Arc<Shared>,
    place: PendingSlot,
    closed: watch::Receiver<bool>,
) {
    let mut preface = [0; PREFACE_BYTES];
    match timeout(REQUEST_TIMEOUT, stream.read_exact(&mut preface)).await {
        Ok(Ok(_)) => {}
        // The usual end of a round-trip probe: it connects and resets.
        Ok(Err(_)) | Err(_) => return,
    }
    match Preface::parse(&preface) {
        Ok(Preface::Control) => {
            if let Err(error) = serve_control(stream, &shared, place, closed).await {
                tracing::debug!(%from, %error, "a probe test broke off");
            }
        }
        Ok(Preface::Data { index, test }) => {
            let waiting = shared.waiting().get(&test).cloned();
            match waiting {
                // The channel holds as many connections as the test has. If it is full, a
                // connection is a duplicate, which is dropped.
                Some(waiting) => drop(waiting.try_send((index, stream))),
                None => tracing::debug!(%from, "a data connection for no test"),
            }
        }
        Ok(Preface::Transfer { bytes }) => {
            let is_offered = shared.config.secret.is_none() && bytes <= transfer::MAX_BYTES;
            if is_offered && let Err(error) = take_transfer(stream, bytes).await {
                tracing::debug!(%from, %error, "a probe transfer broke off");
            }
            drop(place);
        }
        Err(error) => tracing::debug!(%from, %error, "a caller that speaks no probe protocol"),
    }
}

/// Takes the bytes of a transfer, and answers when all have come.
async fn take_transfer(mut stream: TcpStream, bytes: u32) -> io::Result<()> {
    let mut rest = (&mut stream).take(bytes.into());
    let mut nowhere = tokio::io::sink();
    let taken = timeout(transfer::LIMIT, tokio::io::copy(&mut rest, &mut nowhere)).await??;
    if taken < u64::from(bytes) {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    stream.write_u8(1).await?;
    // The caller closes first, so that the answer is not lost in a reset.
    let _closed = timeout(CALLER_TIMEOUT, stream.read_u8()).await;
    Ok(())
}

async fn serve_control(
    stream: TcpStream,
    shared: &Arc<Shared>,
    place: PendingSlot,
    mut closed: watch::Receiver<bool>,
) -> Result<(), FrameError> {
    stream.set_nodelay(true)?;
    let (mut reader, mut writer) = stream.into_split();
    let request = timeout(REQUEST_TIMEOUT, negotiate(&mut reader, &mut writer, shared));
    let admitted = request.await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    drop(place);
    let transfer = match admitted {
        Some(admitted) => run_test(&mut reader, &mut writer, admitted, &mut closed).await?,
        None => None,
    };
    // The caller closes first, so that no message to it is lost in a reset.
    writer.shutdown().await?;
    let _ = timeout(CALLER_TIMEOUT, reader.read_u8()).await;
    drop(transfer);
    Ok(())
}

/// An admitted test; its place among the tests is free again when this is dropped.
struct Admitted {
    request: Request,
    test: TestId,
    connections: mpsc::Receiver<(u32, TcpStream)>,
    shared: Arc<Shared>,
    _place: OwnedSemaphorePermit,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.waiting().remove(&self.test);
    }
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, BTreeMap<TestId, mpsc::Sender<(u32, TcpStream)>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits `request`, or returns the reason for refusing it.
    fn admit(self: &Arc<Self>, request: Request) -> Result<Admitted, String> {
        self.check(&request)?;
        let place = Arc::clone(&self.tests)
            .try_acquire_owned()
            .map_err(|_| format!("busy: {} tests are running, the limit", self.config.max_tests))?;
        let test = TestId(entropy::bytes().map_err(|error| error.to_string())?);
        let (sender, connections) = mpsc::channel(request.connections as usize);
        self.waiting().insert(test, sender);
        Ok(Admitted { request, test, connections, shared: Arc::clone(self), _place: place })
    }

    fn check(&self, request: &Request) -> Result<(), String> {
        let config = &self.config;
        let (connections, most) = (request.connections, config.max_connections);
        if !(1..=most).contains(&connections) {
            return Err(format!("1 to {most} connections, not {connections}"));
        }
        let (asked, most) = (Duration::from_millis(request.duration_ms), config.max_duration);
        if asked.is_zero() || asked > most {
            return Err(format!("a duration above 0 and at most {most:?}, not {asked:?}"));
        }
        if let Some(volume) = request.volume_bytes
            && !(1..=config.max_bytes.as_u64()).contains(&volume)
        {
            return Err(format!("a volume of 1 B to {}, not {volume} B", config.max_bytes));
        }
        if request.direction == Direction::Download && !config.sends {
            return Err("tests towards the responder alone: it sends no payload".to_owned());
        }
        if !INTERVAL_RANGE_US.contains(&request.interval_us) {
            return Err(format!("an interval of 10 ms to 10 s, not {} us", request.interval_us));
        }
        Ok(())
    }
}

/// Greets the caller, reads and checks its request, and answers. `None`: refused.
async fn negotiate(
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
    shared: &Arc<Shared>,
) -> Result<Option<Admitted>, FrameError> {
    let challenge = Challenge(entropy::bytes()?);
    let secret = shared.config.secret.as_ref();
    let hello = Hello { protocol: VERSION, challenge, secret_required: secret.is_some() };
    write_frame(writer, &to_json(&hello)).await?;
    let frame = read_frame(reader, MAX_CALLER_FRAME_BYTES).await?;
    let (proof, bytes) = split_request(&frame)?;
    let verdict = if secret.is_some_and(|secret| !secret.verifies(&challenge, bytes, &proof)) {
        Err("the secret is wrong or missing".to_owned())
    } else {
        let request: Request = from_json("request", bytes)?;
        set_congestion(reader.as_ref(), &request).and_then(|()| shared.admit(request))
    };
    let answer = match &verdict {
        Ok(admitted) => Answer::Accepted { test: admitted.test },
        Err(reason) => Answer::Refused { reason: reason.clone() },
    };
    write_frame(writer, &to_json(&answer)).await?;
    Ok(verdict.ok())
}

/// Sets the congestion control that the request names for this side, if it sends. It is set on the
/// control connection too: so a refusal by the kernel is known before the test begins.
fn set_congestion(socket: &TcpStream, request: &Request) -> Result<(), String> {
    match &request.congestion_control {
        Some(name) if request.direction == Direction::Download => congestion::set(socket, name)
            .map_err(|error| format!("congestion control `{name}` cannot be set here: {error}")),
        _ => Ok(()),
    }
}

/// Runs the test from its data connections on. The transfer is returned because its connections are
/// reset when it is dropped, which must not overtake the last message on the control connection.
async fn run_test(
    reader: &mut OwnedReadHalf,
    writer: &mut OwnedWriteHalf,
    mut admitted: Admitted,
    closed: &mut watch::Receiver<bool>,
) -> Result<Option<Transfer>, FrameError> {
    let stop = read_stop(reader);
    tokio::pin!(stop);
    let gathered = tokio::select! {
        gathered = timeout(GATHER_TIMEOUT, gather(&mut admitted)) => gathered,
        stopped = &mut stop => return stopped.map(|()| None),
    };
    let Ok(streams) = gathered else {
        finish(writer, FinishCause::ConnectionsMissing, None).await?;
        return Ok(None);
    };
    let streams = streams?;
    let request = &admitted.request;
    let limit = admitted.shared.config.max_bytes.as_u64();
    let volume = request.volume_bytes.unwrap_or(limit);
    let with_share =
        |(index, stream)| Data::new(stream, Some(share_of(volume, request.connections, index)));
    let connections = (0..).zip(streams).map(with_share).collect();
    let role = match request.direction {
        Direction::Upload => Role::Receiver,
        Direction::Download => Role::Sender,
    };
    send_progress(writer, &Progress::Started).await?;
    let interval = Duration::from_micros(request.interval_us);
    let mut transfer = Transfer::start(role, connections, interval);
    let deadline = Instant::now() + Duration::from_millis(request.duration_ms) + OVERTIME;
    let mut complete = false;
    let cause = loop {
        tokio::select! {
            event = transfer.next(), if !complete => match event {
                Event::Interval(record) => send_progress(writer,
                    &Progress::Interval(record)).await?,
                // The bytes that a sender handed to its kernel are still in flight: the caller
                // sends the stop.
                Event::Complete if role == Role::Sender && request.volume_bytes.is_some() => {
                    complete = true;
                }
                Event::Complete if request.volume_bytes.is_some() => break FinishCause::Volume,
                Event::Complete => break FinishCause::ByteLimit,
                Event::Lost(_) => break FinishCause::ConnectionLost,
            },
            stopped = &mut stop => {
                stopped?;
                break FinishCause::Stopped;
            }
            () = sleep_until(deadline) => break FinishCause::TimeLimit,
            () = shutting_down(closed) => break FinishCause::ShuttingDown,
        }
    };
    if let Some(rest) = transfer.end() {
        send_progress(writer, &Progress::Interval(rest)).await?;
    }
    finish(writer, cause, Some(&transfer)).await?;
    Ok(Some(transfer))
}

async fn shutting_down(closed: &mut watch::Receiver<bool>) {
    // An error means that the responder is gone, which is a shutdown too.
    let _ = closed.wait_for(|closed| *closed).await;
}

/// Waits for all data connections of a test, in the order of their indices.
async fn gather(admitted: &mut Admitted) -> io::Result<Vec<TcpStream>> {
    let count = admitted.request.connections as usize;
    let mut streams: BTreeMap<u32, TcpStream> = BTreeMap::new();
    while streams.len() < count {
        let Some((index, stream)) = admitted.connections.recv().await else {
            return Err(io::ErrorKind::UnexpectedEof.into());
        };
        if index < admitted.request.connections {
            stream.set_zero_linger()?;
            set_congestion(&stream, &admitted.request).map_err(io::Error::other)?;
            streams.entry(index).or_insert(stream);
        }
    }
    Ok(streams.into_values().collect())
}

async fn read_stop(reader: &mut OwnedReadHalf) -> Result<(), FrameError> {
    let frame = read_frame(reader, MAX_CALLER_FRAME_BYTES).await?;
    let Stop::Stop = from_json("stop", &frame)?;
    Ok(())
}

async fn finish(
    writer: &mut OwnedWriteHalf,
    cause: FinishCause,
    transfer: Option<&Transfer>,
) -> Result<(), FrameError> {
    let connections = transfer.map(Transfer::totals).unwrap_or_default();
    send_progress(writer, &Progress::Finished(Finish { cause, connections })).await
}

async fn send_progress(writer: &mut OwnedWriteHalf, progress: &Progress) -> Result<(), FrameError> {
    let json = to_json(progress);
    match timeout(CALLER_TIMEOUT, write_frame(writer, &json)).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
    }
}
