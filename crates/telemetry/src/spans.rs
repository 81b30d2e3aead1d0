//! Spans sent to a collector of OpenTelemetry: OTLP over HTTP, in protobuf, by a thread of its own.
//!
//! Nobody waits for the collector. Spans wait in a bounded queue; where that is full they are
//! dropped and counted. A batch that the collector does not take because it is away or busy is sent
//! again, at growing intervals, while the queue holds what follows; one that it refuses is dropped
//! and counted. Either is logged once, until the collector takes spans again.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc as blocking;
use std::time::Duration;

use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::header::{CONNECTION, CONTENT_TYPE, HOST, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// Most groups of spans that wait for the collector. Chosen: at some kilobytes for the spans of a
/// session a few megabytes, the specification's default for a queue of spans.
const MAX_WAITING: usize = 2048;
/// Spans after which a batch is sent at once. Chosen: the specification's default.
const BATCH_SPANS: usize = 512;
/// Longest wait of a span for a batch. Chosen: a trace is seen soon, in one request a second.
const BATCH_DELAY: Duration = Duration::from_secs(1);
/// Longest wait for the collector's answer. Chosen: the specification's default.
const EXPORT_LIMIT: Duration = Duration::from_secs(10);
/// Time for the rest of an answer whose status says that the spans were taken. Chosen: it tells
/// only which were rejected.
const ANSWER_LIMIT: Duration = Duration::from_secs(1);
/// Time after which a batch is given up that the collector asks to send again. Chosen: a collector
/// restarts within it, and one that cannot take this batch delays the others no longer.
const GIVE_UP_AFTER: Duration = Duration::from_secs(300);
/// First and longest pause before a batch is sent again. Chosen: a restart of the collector loses
/// nothing, and one that is away costs next to nothing.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const MAX_PAUSE: Duration = Duration::from_secs(30);
/// Most bytes of an answer, which holds a count and a message. Chosen.
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// A collector of OpenTelemetry.
#[derive(Debug, Clone)]
pub struct TraceCollector {
    /// Its host and port.
    pub authority: String,
    /// The path of its receiver of traces.
    pub path: String,
}

/// A bounded queue of spans for a collector; clones share it. When the last clone is dropped, its
/// thread sends what waits, once, and ends.
#[derive(Debug, Clone)]
pub struct SpanExporter {
    queue: mpsc::Sender<Queued>,
    counts: Arc<SpanCounts>,
}

/// An item of the queue.
#[derive(Debug)]
enum Queued {
    Spans(Vec<Span>),
    /// A request to send what waits, and to say when that is done.
    Flush(blocking::Sender<()>),
}

/// The counts of spans.
#[derive(Debug, Default)]
struct SpanCounts {
    exported: AtomicU64,
    /// Those that found no room in the queue.
    overflowed: AtomicU64,
    /// Those that the collector refused, or that it had not taken at the end.
    refused: AtomicU64,
}

impl SpanExporter {
    /// Starts the thread that sends spans of `resource` to `collector`.
    ///
    /// # Errors
    /// When the thread or its runtime cannot be started.
    pub fn start(collector: TraceCollector, resource: Vec<KeyValue>) -> io::Result<Self> {
        Self::with_queue(collector, resource, MAX_WAITING)
    }

    fn with_queue(
        collector: TraceCollector,
        resource: Vec<KeyValue>,
        most: usize,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (queue, waiting) = mpsc::channel(most);
        let counts = Arc::<SpanCounts>::default();
        let resource = Resource { attributes: resource, ..Resource::default() };
        let counted = Arc::clone(&counts);
        let export = Export { collector, resource, waiting, counts: counted, has_failed: false };
        let thread = std::thread::Builder::new().name("traces".to_owned());
        thread.spawn(move || runtime.block_on(export.run()))?;
        Ok(Self { queue, counts })
    }

    /// Queues the spans of a session, all or none. Returns at once.
    pub fn put(&self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        if self.queue.try_send(Queued::Spans(spans)).is_err() {
            self.counts.overflowed.fetch_add(count, Relaxed);
        }
    }

    /// Has all waiting spans sent, and waits for that, for at most `limit`. Returns whether they
    /// were.
    pub fn flush(&self, limit: Duration) -> bool {
        let (done, is_done) = blocking::channel();
        let is_queued = self.queue.try_send(Queued::Flush(done)).is_ok();
        is_queued && is_done.recv_timeout(limit).is_ok()
    }

    /// Returns a collector of the counts, for the process's metrics.
    #[must_use]
    pub fn metrics(&self) -> Box<dyn Collector> {
        Box::new(SpanMetrics(Arc::clone(&self.counts)))
    }
}

/// The reason why a batch was not taken.
enum NotTaken {
    /// The collector is away, or asks to be sent it again.
    Now(String),
    /// It refuses this batch.
    Ever(String),
}

impl NotTaken {
    fn now(problem: impl std::fmt::Display) -> Self {
        Self::Now(problem.to_string())
    }
}

/// The event that completes a batch.
enum Filled {
    Due,
    Flush(blocking::Sender<()>),
    /// There are no more clones of the exporter.
    Closed,
}

/// The thread's side of an exporter.
struct Export {
    collector: TraceCollector,
    resource: Resource,
    waiting: mpsc::Receiver<Queued>,
    counts: Arc<SpanCounts>,
    /// True from a failure until the next success.
    has_failed: bool,
}

impl Export {
    async fn run(mut self) {
        loop {
            let (batch, filled) = self.batch().await;
            if !batch.is_empty() {
                self.deliver(batch).await;
            }
            match filled {
                Filled::Due => {}
                Filled::Flush(done) => drop(done.send(())),
                Filled::Closed => return,
            }
        }
    }

    /// Waits for a batch.
    async fn batch(&mut self) -> (Vec<Span>, Filled) {
        let (mut batch, mut due) = (Vec::new(), None);
        loop {
            let queued = match due {
                None => self.waiting.recv().await,
                Some(due) => match timeout_at(due, self.waiting.recv()).await {
                    Ok(queued) => queued,
                    Err(_) => return (batch, Filled::Due),
                },
            };
            match queued {
                Some(Queued::Spans(spans)) => batch.extend(spans),
                Some(Queued::Flush(done)) => return (batch, Filled::Flush(done)),
                None => return (batch, Filled::Closed),
            }
            if batch.len() >= BATCH_SPANS {
                return (batch, Filled::Due);
            }
            due.get_or_insert_with(|| Instant::now() + BATCH_DELAY);
        }
    }

    /// Sends a batch until the collector takes or refuses it.
    async fn deliver(&mut self, spans: Vec<Span>) {
        let count = spans.len() as u64;
        let body = Bytes::from(self.request(spans).encode_to_vec());
        let (mut pause, give_up_at) = (FIRST_PAUSE, Instant::now() + GIVE_UP_AFTER);
        loop {
            let is_awaited = self.waiting.sender_strong_count() > 0;
            match self.post(body.clone()).await {
                Ok(rejected) => {
                    let rejected = rejected.min(count);
                    self.counts.exported.fetch_add(count - rejected, Relaxed);
                    self.counts.refused.fetch_add(rejected, Relaxed);
                    if std::mem::take(&mut self.has_failed) {
                        tracing::info!("traces: {} takes spans again", self.collector.authority);
                    }
                    return;
                }
                Err(NotTaken::Now(problem)) if is_awaited && Instant::now() < give_up_at => {
                    self.complain(&problem, "spans wait, and those beyond the queue are dropped");
                    sleep(pause).await;
                    pause = MAX_PAUSE.min(2 * pause);
                }
                Err(NotTaken::Now(problem) | NotTaken::Ever(problem)) => {
                    self.counts.refused.fetch_add(count, Relaxed);
                    return self.complain(&problem, "what it refuses is dropped");
                }
            }
        }
    }

    /// Logs the first of several failures.
    fn complain(&mut self, problem: &str, consequence: &str) {
        if !std::mem::replace(&mut self.has_failed, true) {
            let TraceCollector { authority, path } = &self.collector;
            tracing::warn!("traces: http://{authority}{path}: {problem}; {consequence}");
        }
    }

    fn request(&self, spans: Vec<Span>) -> ExportTraceServiceRequest {
        let scope = InstrumentationScope {
            name: "tradewind".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            ..InstrumentationScope::default()
        };
        let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() }];
        let resource = Some(self.resource.clone());
        let resource_spans =
            vec![ResourceSpans { resource, scope_spans, ..ResourceSpans::default() }];
        ExportTraceServiceRequest { resource_spans }
    }

    /// Sends one request. Returns the number of spans that the collector rejects.
    async fn post(&self, body: Bytes) -> Result<u64, NotTaken> {
        let late = |_| NotTaken::Now(format!("no answer within {EXPORT_LIMIT:?}"));
        let response = timeout(EXPORT_LIMIT, self.send(body)).await.map_err(late)??;
        let status = response.status();
        if !status.is_success() {
            let problem = format!("answers {status}");
            return Err(if is_temporary(status) {
                NotTaken::Now(problem)
            } else {
                NotTaken::Ever(problem)
            });
        }
        let answer = Limited::new(response.into_body(), MAX_ANSWER_BYTES).collect();
        // It has the spans, whatever becomes of its answer.
        let answer = match timeout(ANSWER_LIMIT, answer).await {
            Ok(Ok(answer)) => answer.to_bytes(),
            _ => Bytes::new(),
        };
        let rejected = ExportTraceServiceResponse::decode(answer)
            .ok()
            .and_then(|answer| answer.partial_success)
            .map_or(0, |partial| partial.rejected_spans);
        Ok(u64::try_from(rejected).unwrap_or(0))
    }

    /// Sends one request, over a connection of its own.
    async fn send(&self, body: Bytes) -> Result<Response<Incoming>, NotTaken> {
        let TraceCollector { authority, path } = &self.collector;
        let request = Request::post(path)
            .header(HOST, authority)
            .header(CONTENT_TYPE, "application/x-protobuf")
            .header(USER_AGENT, concat!("tradewind/", env!("CARGO_PKG_VERSION")))
            .header(CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|error| NotTaken::Ever(error.to_string()))?;
        let stream = TcpStream::connect(authority).await.map_err(NotTaken::now)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(NotTaken::now)?;
        // It ends with the answer.
        tokio::spawn(connection);
        sender.send_request(request).await.map_err(NotTaken::now)
    }
}

/// Returns whether a request with this answer is to be sent again, by the specification of OTLP.
const fn is_temporary(status: StatusCode) -> bool {
    matches!(status.as_u16(), 429 | 502..=504)
}

/// The metrics of an exporter.
#[derive(Debug)]
struct SpanMetrics(Arc<SpanCounts>);

impl Collector for SpanMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let counter = |count: &AtomicU64| ConstCounter::new(count.load(Relaxed));
        let help = "Spans that the collector of traces has taken";
        let exported =
            encoder.encode_descriptor("trace_spans_exported", help, None, MetricType::Counter)?;
        counter(&self.0.exported).encode(exported)?;
        let help = "Spans of traces that found no room, or that the collector refused";
        let mut dropped =
            encoder.encode_descriptor("trace_spans_dropped", help, None, MetricType::Counter)?;
        for (reason, count) in [("queue_full", &self.0.overflowed), ("refused", &self.0.refused)] {
            counter(count).encode(dropped.encode_family(&[("reason", reason)])?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;

    use super::*;
    use crate::Registry;

    fn exporter(to: &TcpListener, most: usize) -> SpanExporter {
        let authority = to.local_addr().unwrap().to_string();
        let collector = TraceCollector { authority, path: "/v1/traces".to_owned() };
        SpanExporter::with_queue(collector, Vec::new(), most).unwrap()
    }

    /// Takes one request, and gives `answer`.
    fn answer(listener: &TcpListener, answer: &[u8]) -> ExportTraceServiceRequest {
        answer_and_hold(listener, answer).0
    }

    /// Does the same, and returns the connection besides, which stays open.
    fn answer_and_hold(
        listener: &TcpListener,
        answer: &[u8],
    ) -> (ExportTraceServiceRequest, std::net::TcpStream) {
        let (mut stream, _) = listener.accept().unwrap();
        let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
        loop {
            let read = stream.read(&mut chunk).unwrap();
            assert!(read > 0, "the request ends early");
            bytes.extend_from_slice(&chunk[..read]);
            let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
            let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
            assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
            assert!(head.contains("content-type: application/x-protobuf"), "{head}");
            let length = head.split("content-length: ").nth(1).unwrap();
            let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
            let body = &bytes[end + 4..];
            if body.len() == length {
                stream.write_all(answer).unwrap();
                return (ExportTraceServiceRequest::decode(body).unwrap(), stream);
            }
        }
    }

    fn ok(body: &[u8]) -> Vec<u8> {
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    }

    fn spans(name: &str, count: usize) -> Vec<Span> {
        vec![Span { name: name.to_owned(), ..Span::default() }; count]
    }

    fn names(request: &ExportTraceServiceRequest) -> Vec<&str> {
        let spans = &request.resource_spans[0].scope_spans[0].spans;
        spans.iter().map(|span| span.name.as_str()).collect()
    }

    /// Returns the exported spans, those beyond the queue, and those that were refused.
    fn counts(exporter: &SpanExporter) -> [u64; 3] {
        let registry = Registry::new("relay", "0.1.0");
        registry.register(|inner| inner.register_collector(exporter.metrics()));
        let text = registry.encode();
        [
            "exported_total ",
            "dropped_total{reason=\"queue_full\"} ",
            "dropped_total{reason=\"refused\"} ",
        ]
        .map(|name| {
            let start = format!("tradewind_trace_spans_{name}");
            let line = text.lines().find(|line| line.starts_with(&start));
            line.unwrap_or_else(|| panic!("{text}"))[start.len()..].parse().unwrap()
        })
    }

    /// Longer than anything here takes on a loaded machine.
    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn waiting_spans_are_sent_together_and_rejected_ones_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(&listener, 9);
        exporter.put(spans("first", 2));
        exporter.put(spans("second", 1));
        let flushing = exporter.clone();
        let flushed = std::thread::spawn(move || flushing.flush(PATIENCE));
        // `partial_success` (field 1) with one of `rejected_spans` (field 1).
        let request = answer(&listener, &ok(&[0x0a, 2, 0x08, 1]));
        assert!(flushed.join().unwrap());
        assert_eq!(names(&request), ["first", "first", "second"]);
        assert_eq!(counts(&exporter), [2, 0, 1]);
    }

    #[test]
    fn absent_collector_costs_a_bounded_queue_and_nobody_waits() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(&listener, 2);
        exporter.put(spans("first", BATCH_SPANS));
        // It takes the request, and asks for patience: the batch stays with the thread.
        let busy = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";
        assert_eq!(names(&answer(&listener, busy)).len(), BATCH_SPANS);
        for _ in 0..4 {
            exporter.put(spans("more", 3));
        }
        assert!(!exporter.flush(Duration::ZERO));
        assert_eq!(counts(&exporter), [0, 6, 0]);
        assert_eq!(names(&answer(&listener, &ok(b"")))[0], "first", "sent again");
        assert_eq!(names(&answer(&listener, &ok(b""))), ["more"; 6]);
        assert!(exporter.flush(PATIENCE));
        assert_eq!(counts(&exporter), [BATCH_SPANS as u64 + 6, 6, 0]);
    }

    #[test]
    fn answer_that_never_ends_is_not_awaited() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(&listener, 9);
        exporter.put(spans("first", BATCH_SPANS));
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
        let (request, held) = answer_and_hold(&listener, head);
        assert_eq!(names(&request)[0], "first");
        exporter.put(spans("second", 1));
        let flushing = exporter.clone();
        let flushed = std::thread::spawn(move || flushing.flush(PATIENCE));
        assert_eq!(names(&answer(&listener, &ok(b""))), ["second"]);
        assert!(flushed.join().unwrap());
        assert_eq!(counts(&exporter), [BATCH_SPANS as u64 + 1, 0, 0]);
        drop(held);
    }

    #[test]
    fn refused_batch_is_dropped_and_counted() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let exporter = exporter(&listener, 9);
        exporter.put(spans("first", BATCH_SPANS));
        answer(&listener, b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
        exporter.put(spans("second", BATCH_SPANS));
        assert_eq!(names(&answer(&listener, &ok(b"")))[0], "second");
        assert!(exporter.flush(PATIENCE));
        assert_eq!(counts(&exporter), [BATCH_SPANS as u64, 0, BATCH_SPANS as u64]);
    }
}
