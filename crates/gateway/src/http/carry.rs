//! Plain requests, one after the other: each is sent to the server that its URL names, and its
//! response is returned.
//!
//! Request and response are forwarded at the same time, so that a server may answer early, and a
//! client may wait for an interim response (100). The connection to a server is reused for the next
//! request to the same one.

use std::future::{pending, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::task::Poll;
use std::time::Duration;

use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tradewind_grant::{Destination, Status};
use tradewind_net::tcp;
use tradewind_stream::access_log::{Goes, Record, count, note, recorded};
use tradewind_stream::connection::Connection;
use tradewind_stream::connection::head::{HeadError, ReadAhead};
use tradewind_stream::connection::side::Side;
use tradewind_stream::counts::Outcome;
use tradewind_stream::failure::{Failure, plain};
use tradewind_stream::limits::memory::Memory;
use tradewind_stream::limits::quota::Meter;
use tradewind_stream::process::worker::{Cause, Worker};
use tradewind_stream::session::buffer_pool::BUFFER_BYTES;
use tradewind_stream::session::pump::{Broken, IdleLimits, IoContext};
use tradewind_stream::traces;
use tradewind_telemetry::limited;

use super::body::Body;
use super::head::{MAX_BYTES, Origin, Request, Response, Scan, Target};
use super::{HttpError, late, refused, too_long};
use crate::attempt::{NotOpen, OpenPath, Wanted};
use crate::service::{GatewayService, Listener};
use crate::session::{BadRequest, bad_request};

/// Longest time that a client's connection waits for another request. Chosen: the value of common
/// proxies and servers.
const KEPT_OPEN: Duration = Duration::from_secs(60);
/// Longest time to close a connection to a server.
const PARTING_TIME: Duration = Duration::from_millis(100);

/// A client whose requests are carried.
pub(crate) struct Client<'a> {
    pub(crate) service: &'a GatewayService,
    pub(crate) listener: &'a Listener,
    pub(crate) application: &'a Connection,
    pub(crate) worker: &'a Worker,
    /// The client's address.
    pub(crate) source: tradewind_units::Source,
    /// The access log's record of its connection; each request has a record of its own.
    pub(crate) record: Option<&'a Arc<Record>>,
    pub(crate) read_ahead: &'a mut ReadAhead,
    /// The rate limits of requests, and of responses.
    pub(crate) meters: [Option<Meter>; 2],
    pub(crate) memory: Option<Arc<Memory>>,
}

/// The outcome of a client's requests.
pub(crate) enum Served {
    /// It requests a tunnel.
    Tunnel(Destination),
    /// Its connection is to be closed gracefully, after the bytes of `word`.
    Over { word: Vec<u8>, outcome: Outcome },
    /// Its connection is to be reset.
    Broken(Outcome),
}

/// A server's connection.
struct Server {
    connection: Connection,
    read_ahead: ReadAhead,
    destination: Destination,
}

/// The connections that may be reused after a response.
struct Reusable {
    client: bool,
    server: bool,
}

/// The reason why a request was not answered completely.
enum Trouble {
    /// The path is not open, or the server does not answer: the client is sent an error.
    Failed(Failure),
    /// The server's idle connection ended before any byte of a response.
    Stale(Failure),
    /// The client sent an invalid request.
    Malformed(HttpError),
    /// The client is gone.
    ClientGone(io::Error),
    /// A response ended early.
    Cut(String),
    /// Nothing was transferred within the idle limit.
    Silent,
}

/// The reason why a body was not forwarded.
enum Fault {
    Taking(io::Error),
    Giving(io::Error),
    Malformed(HttpError),
}

/// Reads a request of a client, within `limit`.
pub(crate) async fn read_request(
    application: &Connection,
    worker: &Worker,
    read_ahead: &mut ReadAhead,
    limit: Duration,
) -> Result<Request, BadRequest> {
    let mut scan = Scan::default();
    let read = |bytes: &[u8]| Request::read(&mut scan, bytes);
    let reading = read_ahead.read_head(application, &worker.buffer_pool, MAX_BYTES, read);
    match timeout(limit, reading).await {
        Ok(Ok(request)) => Ok(request),
        Ok(Err(error)) => {
            let is_too_long = matches!(error, HeadError::TooLong(_));
            let bad = bad_request(error, HttpError::answer);
            Err(if is_too_long { BadRequest { answer: too_long(), ..bad } } else { bad })
        }
        // A client that has sent nothing, such as a browser that connects in advance, is sent no
        // answer.
        Err(_) => Err(BadRequest {
            line: format!("no whole request within {limit:?}"),
            answer: if read_ahead.is_empty() { Vec::new() } else { late() },
            outcome: Outcome::NoHeader,
        }),
    }
}

impl Client<'_> {
    /// Carries `first` and the requests that follow it.
    pub(crate) async fn serve(&mut self, first: Request) -> Served {
        let (mut request, mut idle) = (first, None);
        loop {
            let origin = match &request.target {
                Target::Tunnel(destination) => return Served::Tunnel(destination.clone()),
                Target::Origin(origin) => origin.clone(),
            };
            let record = self.record.map(|record| record.of_next_request());
            let over = recorded(record.clone(), async {
                match self.exchange(&request, &origin, &mut idle).await {
                    Ok(true) => None,
                    Ok(false) => Some(Served::in_order(Vec::new(), Outcome::Ended)),
                    Err(trouble) => Some(self.tell(&origin, trouble)),
                }
            });
            let over = over.await;
            let outcome = over.as_ref().map_or(Outcome::Ended, Served::outcome);
            record.iter().for_each(|record| record.finish(outcome));
            if let Some(over) = over {
                return over;
            }
            request = match self.next_request().await {
                Ok(Some(request)) => request,
                Ok(None) => return Served::in_order(Vec::new(), Outcome::Ended),
                Err(bad) => {
                    let (lines, from) = (self.worker.lines(), self.application.remote());
                    limited!(info, lines, self.cause(), "refused: {from}: {}", bad.line);
                    return Served::in_order(bad.answer, bad.outcome);
                }
            }
        }
    }

    /// Returns the cause that rate-limited log lines about the client are attributed to.
    const fn cause(&self) -> Cause {
        Cause::Source(self.source)
    }

    fn tell(&self, origin: &Origin, trouble: Trouble) -> Served {
        let (flow, to) = (&self.listener.flow, &origin.destination);
        let (lines, from) = (self.worker.lines(), self.application.remote());
        match trouble {
            Trouble::Failed(failure) | Trouble::Stale(failure) => {
                let why = &failure.message;
                limited!(warn, lines, self.cause(), %flow, "flow of {from} to {to} failed: {why}");
                note(|facts| facts.failed(failure.status, &failure.message));
                let word = refused(failure.status, failure.peer_message());
                Served::in_order(word, Outcome::Failed(failure.status))
            }
            Trouble::Malformed(error) => {
                limited!(info, lines, self.cause(), "refused: {from}: {error}");
                Served::in_order(error.answer(), Outcome::Malformed)
            }
            Trouble::ClientGone(error) => {
                tracing::debug!(%flow, "flow to {to} broke off: upstream: {}", plain(&error));
                note(|facts| facts.broke(&Broken::Upstream(error)));
                Served::Broken(Outcome::Broken)
            }
            Trouble::Cut(why) => {
                tracing::debug!(%flow, "flow to {to} broke off: downstream: {why}");
                Served::Broken(Outcome::Broken)
            }
            Trouble::Silent => Served::Broken(Outcome::Idle),
        }
    }

    /// Returns the next request; `None` if the client sends none in time, or this process is
    /// leaving.
    async fn next_request(&mut self) -> Result<Option<Request>, BadRequest> {
        let Self { application, worker, read_ahead, service, .. } = self;
        if read_ahead.is_empty() {
            let read = read_ahead.read_more(application, &worker.buffer_pool, MAX_BYTES);
            let has_more = tokio::select! {
                read = read => matches!(read, Ok(1..)),
                () = sleep(KEPT_OPEN) => false,
                () = worker.leaving() => false,
            };
            if !has_more {
                return Ok(None);
            }
        }
        let request =
            read_request(application, worker, read_ahead, service.timeouts().header()).await?;
        service.admit_request(application, &request).await?;
        Ok(Some(request))
    }

    /// Carries one request, and returns whether the client's connection may be used for another
    /// one.
    async fn exchange(
        &mut self,
        request: &Request,
        origin: &Origin,
        idle: &mut Option<Server>,
    ) -> Result<bool, Trouble> {
        let mut body = request.body();
        let mut flight = request.to_origin(origin);
        let used = body.pass(self.read_ahead.bytes(), &mut flight).map_err(Trouble::Malformed)?;
        self.read_ahead.use_up(used);
        let buffer_pool = &self.worker.buffer_pool;
        let is_same = |server: &Server| server.destination == origin.destination;
        if let Some(mut server) = idle.take() {
            // A request with side effects that may have arrived must not be sent again over another
            // connection.
            if request.is_repeatable() && is_same(&server) && server.is_quiet(buffer_pool) {
                let given = server.connection.write_all(&flight).await;
                self.worker.counts.up.moved(flight.len());
                count(Goes::Up, flight.len() as u64);
                let answered = match given {
                    Ok(()) => self.answer(request, &mut server, &mut body, true).await,
                    Err(error) => Err(Trouble::Stale(lost(&error))),
                };
                match answered {
                    Err(Trouble::Stale(_)) => {}
                    Err(trouble) => return Err(trouble),
                    Ok(after) => return Ok(after.settle(server, idle).await),
                }
            } else {
                server.end().await;
            }
        }
        let mut server = self.open(origin, flight).await?;
        let after = self.answer(request, &mut server, &mut body, false).await?;
        Ok(after.settle(server, idle).await)
    }

    /// Opens the path to a server; `flight` is sent over it first.
    async fn open(&self, origin: &Origin, flight: Vec<u8>) -> Result<Server, Trouble> {
        let Self { service, listener, application, worker, source, .. } = self;
        let destination = &origin.destination;
        let flow = service.flow_of(listener, destination);
        note(|facts| {
            facts.flow = Some(flow.clone());
            facts.destination = Some(destination.clone());
        });
        let (source, trace) = (*source, traces::begin());
        let wanted =
            Wanted { application: None, listener, flow, destination, worker, source, trace };
        let opened = tokio::select! {
            opened = service.opener.open(&wanted, flight) => opened,
            error = application.failure() => return Err(Trouble::ClientGone(error)),
        };
        let OpenPath { downstream, up, down, .. } = match opened {
            Ok(path) => path,
            Err(NotOpen::Failed { failure, .. }) => return Err(Trouble::Failed(failure)),
            Err(NotOpen::ApplicationGone(error)) => return Err(Trouble::ClientGone(error)),
        };
        let failed = |error: io::Error| Trouble::Failed(lost(&error));
        let leg = service.session_settings.legs.of(&Side::Lent(&downstream));
        leg.settled.apply(&downstream).map_err(|error| failed(error.source))?;
        let rest = up.leave(worker.up_context()).map_err(failed)?;
        downstream.write_all(&rest.raw).await.map_err(failed)?;
        count(Goes::Up, rest.bytes_read());
        let (read_ahead, destination) = (ReadAhead::of(down.into_leading()), destination.clone());
        Ok(Server { connection: downstream, read_ahead, destination })
    }

    /// Sends the rest of a request's body, and forwards the response.
    async fn answer(
        &mut self,
        request: &Request,
        server: &mut Server,
        body: &mut Body,
        is_reused: bool,
    ) -> Result<Reusable, Trouble> {
        let Self { service, application, worker, read_ahead, meters: [up, down], memory, .. } =
            self;
        let (moved, sent) = (AtomicU64::new(0), AtomicBool::new(body.is_over()));
        let (memory, moved) = (memory.as_ref(), &moved);
        let Server { connection: server, read_ahead: early, .. } = server;
        let io_context = worker.up_context().within(memory);
        let (connection, goes) = (*application, Goes::Up);
        let mut from_client = Source { connection, read_ahead, meter: up, io_context, moved, goes };
        let io_context = worker.down_context().within(memory);
        let (connection, read_ahead, goes) = (&*server, early, Goes::Down);
        let mut from_server =
            Source { connection, read_ahead, meter: down, io_context, moved, goes };
        let mut is_sending = !body.is_over();
        let mut sending = pin!(async {
            from_client.pass(body, connection).await?;
            sent.store(true, Relaxed);
            Ok(())
        });
        let may_go_on = || sent.load(Relaxed) && !worker.is_leaving();
        let mut responding =
            pin!(respond(request, &mut from_server, application, may_go_on, is_reused));
        let mut gone = pin!(application.failure());
        let mut silence =
            pin!(silence(moved, service.session_settings.timeouts.idle(), application.stream()));
        loop {
            tokio::select! {
                biased;
                passed = &mut sending, if is_sending => match passed {
                    // A server that stops reading may have answered.
                    Ok(()) | Err(Fault::Giving(_)) => is_sending = false,
                    Err(Fault::Taking(error)) => return Err(Trouble::ClientGone(error)),
                    Err(Fault::Malformed(error)) => return Err(Trouble::Malformed(error)),
                },
                responded = &mut responding => return responded,
                error = &mut gone => return Err(Trouble::ClientGone(error)),
                () = &mut silence => return Err(Trouble::Silent),
            }
        }
    }
}

impl Served {
    const fn in_order(word: Vec<u8>, outcome: Outcome) -> Self {
        Self::Over { word, outcome }
    }

    /// Returns the outcome of the connection, if it is over.
    const fn outcome(&self) -> Outcome {
        match self {
            Self::Tunnel(_) => Outcome::Ended,
            Self::Over { outcome, .. } | Self::Broken(outcome) => *outcome,
        }
    }
}

impl Reusable {
    /// Keeps the server's connection or closes it; returns whether the client's may be reused.
    async fn settle(self, server: Server, idle: &mut Option<Server>) -> bool {
        if self.server && self.client {
            *idle = Some(server)
        } else {
            server.end().await
        }
        self.client
    }
}

impl Server {
    /// Returns whether it has sent nothing since its last response: an end, or unsolicited data,
    /// makes it unusable.
    fn is_quiet(&self, buffer_pool: &tradewind_stream::session::buffer_pool::BufferPool) -> bool {
        let read = buffer_pool.receive(&Side::Lent(&self.connection), 1, <[u8]>::len);
        let is_silent = matches!(&read, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
        self.read_ahead.is_empty() && is_silent
    }

    /// Closes the connection gracefully, as far as that is possible at once.
    async fn end(self) {
        let ending = async {
            tcp::end_in_order_on_close(&self.connection)?;
            self.connection.end().await
        };
        // The connection is dropped whether the other end has acknowledged that or not.
        let _result = timeout(PARTING_TIME, ending).await;
    }
}

/// Waits for a response, and forwards it.
async fn respond(
    request: &Request,
    from: &mut Source<'_>,
    to: &Connection,
    may_go_on: impl Fn() -> bool,
    is_reused: bool,
) -> Result<Reusable, Trouble> {
    let is_new = request.is_http_11();
    let mut is_first = true;
    let response = loop {
        let mut scan = Scan::default();
        let read = |bytes: &[u8]| Response::read(&mut scan, bytes, request.is_head());
        let reading = from.read_ahead.read_head(
            from.connection,
            from.io_context.buffer_pool,
            MAX_BYTES,
            read,
        );
        let response = reading.await.map_err(|error| {
            let has_ended = matches!(error, HeadError::Ended(0) | HeadError::Io(_));
            let failure = Failure::new(Status::NextHopFailed, format!("no response: {error}"));
            if is_reused && is_first && has_ended {
                Trouble::Stale(failure)
            } else {
                Trouble::Failed(failure)
            }
        })?;
        if response.changes_protocol() {
            let message = "the server changes the protocol, which nobody asked for";
            return Err(Trouble::Failed(Failure::new(Status::NextHopFailed, message)));
        }
        if !response.is_interim() {
            break response;
        }
        is_first = false;
        if is_new {
            let head = response.to_client(is_new, true).map_err(wrong)?;
            to.write_all(&head).await.map_err(Trouble::ClientGone)?;
        }
    };
    let may_go_on = may_go_on();
    let client = request.keeps_alive() && may_go_on && !response.ends_connection(is_new);
    let server = response.keeps_alive() && may_go_on;
    let mut body = response.body(is_new);
    let mut flight = response.to_client(is_new, client).map_err(wrong)?;
    from.take(&mut body, &mut flight).map_err(wrong)?;
    from.give(&flight, to).await.map_err(Trouble::ClientGone)?;
    match from.pass(&mut body, to).await {
        Ok(()) => Ok(Reusable { client, server }),
        Err(Fault::Giving(error)) => Err(Trouble::ClientGone(error)),
        Err(Fault::Taking(error)) => Err(Trouble::Cut(plain(&error))),
        Err(Fault::Malformed(error)) => Err(Trouble::Cut(error.to_string())),
    }
}

/// Returns the trouble of an invalid response.
fn wrong(error: HttpError) -> Trouble {
    Trouble::Failed(Failure::new(Status::NextHopFailed, format!("no response: {error}")))
}

/// Returns the failure of a lost connection to a server.
fn lost(error: &io::Error) -> Failure {
    Failure::new(Status::NextHopFailed, format!("no response: {}", plain(error)))
}

/// A connection that a body is received on.
struct Source<'a> {
    connection: &'a Connection,
    read_ahead: &'a mut ReadAhead,
    meter: &'a mut Option<Meter>,
    io_context: IoContext<'a>,
    moved: &'a AtomicU64,
    goes: Goes,
}

impl Source<'_> {
    /// Forwards the rest of `body`.
    async fn pass(&mut self, body: &mut Body, to: &Connection) -> Result<(), Fault> {
        while !body.is_over() {
            let mut output = Vec::new();
            if self.read_ahead.is_empty() && self.read_more().await.map_err(Fault::Taking)? == 0 {
                body.end(&mut output).map_err(Fault::Malformed)?;
            }
            self.take(body, &mut output).map_err(Fault::Malformed)?;
            self.give(&output, to).await.map_err(Fault::Giving)?;
        }
        Ok(())
    }

    /// Converts the received part of `body`.
    fn take(&mut self, body: &mut Body, output: &mut Vec<u8>) -> Result<(), HttpError> {
        let used = body.pass(self.read_ahead.bytes(), output)?;
        self.read_ahead.use_up(used);
        Ok(())
    }

    async fn give(&self, output: &[u8], to: &Connection) -> io::Result<()> {
        let _held = self.io_context.memory.map(|memory| memory.hold(output.len()));
        to.write_all(output).await?;
        self.io_context.counts.moved(output.len());
        self.moved.fetch_add(output.len() as u64, Relaxed);
        count(self.goes, output.len() as u64);
        Ok(())
    }

    /// Reads as much as the rates and the memory allow.
    async fn read_more(&mut self) -> io::Result<usize> {
        let most = self.io_context.memory.map_or(BUFFER_BYTES, |memory| memory.most());
        let Some(meter) = self.meter else {
            return self
                .read_ahead
                .read_more(self.connection, self.io_context.buffer_pool, most)
                .await;
        };
        self.connection.readable().await?;
        let counts = self.io_context.counts;
        let booked = poll_fn(|cx| meter.poll_booked(cx, || counts.throttled())).await;
        let reading = self.read_ahead.read_more(
            self.connection,
            self.io_context.buffer_pool,
            most.min(booked),
        );
        let read = reading.await;
        meter.settle(*read.as_ref().unwrap_or(&0));
        read
    }
}

/// Waits until nothing has moved for as long as the idle limits allow.
async fn silence(moved: &AtomicU64, limits: IdleLimits, client: &TcpStream) {
    let Some(step) = [limits.open, limits.half_closed].into_iter().flatten().min() else {
        return pending().await;
    };
    let (mut before, mut silent) = (0, Duration::ZERO);
    loop {
        sleep(step).await;
        let now = moved.load(Relaxed);
        silent = if now == before { silent + step } else { Duration::ZERO };
        before = now;
        let is_over = |limit: Option<Duration>| limit.is_some_and(|limit| silent >= limit);
        if is_over(limits.open) || (is_over(limits.half_closed) && has_ended(client).await) {
            return;
        }
    }
}

/// Returns whether a client has closed its direction and no data of it is left to read.
async fn has_ended(client: &TcpStream) -> bool {
    let mut byte = [0];
    poll_fn(|cx| {
        let mut buffer = ReadBuf::new(&mut byte);
        Poll::Ready(matches!(client.poll_peek(cx, &mut buffer), Poll::Ready(Ok(0))))
    })
    .await
}
