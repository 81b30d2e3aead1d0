//! Traces: one for each sampled session, over all its hops, at a real receiver of OTLP; and a
//! collector that is away.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use prost::Message as _;
use tradewind_config::{GatewayConfig, RelayConfig, TracesConfig};
use tradewind_desired::{Route, RouteTable};
use tradewind_telemetry::otlp::collector::trace::v1::ExportTraceServiceRequest;
use tradewind_telemetry::otlp::common::v1::KeyValue;
use tradewind_telemetry::otlp::common::v1::any_value::Value;
use tradewind_telemetry::otlp::trace::v1::span::SpanKind;
use tradewind_telemetry::otlp::trace::v1::status::StatusCode;
use tradewind_telemetry::otlp::trace::v1::{ResourceSpans, Span};
use tradewind_units::Ratio;

use super::access_log::{Folder, access_log_in};
use super::drain::get;
use crate::support::{
    Running, closed_port, connect, destination, digest, echo, forward, gateway_config, loopback,
    relay_config, route_over, send, wait_for,
};

/// A receiver of OTLP over HTTP.
struct Collector {
    address: SocketAddr,
    requests: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind(loopback()).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::<Mutex<Vec<_>>>::default();
        let received = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let body = take_request(stream.unwrap());
                received.lock().unwrap().push(body);
            }
        });
        Self { address, requests }
    }

    /// Returns a configuration that sends it this share of sessions.
    fn config(&self, share: f64) -> Option<TracesConfig> {
        config_for(self.address, share)
    }

    /// Returns the spans received so far: for each the name of its service, and the span.
    fn spans(&self) -> Vec<Received> {
        let requests = self.requests.lock().unwrap();
        let decoded = requests
            .iter()
            .map(|body| ExportTraceServiceRequest::decode(body.as_slice()).unwrap().resource_spans);
        decoded.flatten().flat_map(Received::all_of).collect()
    }
}

fn config_for(collector: SocketAddr, share: f64) -> Option<TracesConfig> {
    let endpoint = format!("http://{collector}").parse().unwrap();
    Some(TracesConfig { sample: Ratio::new(share).unwrap(), ..TracesConfig::to(endpoint) })
}

/// Reads a request and accepts it; returns its body.
fn take_request(mut stream: TcpStream) -> Vec<u8> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 4096]);
    loop {
        let read = stream.read(&mut chunk).unwrap();
        assert!(read > 0, "the request ends early");
        bytes.extend_from_slice(&chunk[..read]);
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else { continue };
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap().to_lowercase();
        assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
        let length = head.split("content-length: ").nth(1).unwrap();
        let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
        if bytes.len() == end + 4 + length {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            return bytes.split_off(end + 4);
        }
    }
}

/// A span, with the attributes of its process and its own as text.
#[derive(Debug, Clone)]
struct Received {
    resource: BTreeMap<String, String>,
    attributes: BTreeMap<String, String>,
    span: Span,
}

impl Received {
    fn all_of(spans: ResourceSpans) -> Vec<Self> {
        let resource = texts(&spans.resource.unwrap().attributes);
        let all = spans.scope_spans.into_iter().flat_map(|scope| scope.spans);
        let received = |span: Span| {
            let (resource, attributes) = (resource.clone(), texts(&span.attributes));
            Self { resource, attributes, span }
        };
        all.map(received).collect()
    }

    fn is(&self, service: &str, name: &str) -> bool {
        self.resource["service.name"] == service && self.span.name == name
    }

    fn trace_id(&self) -> String {
        self.span.trace_id.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn has_failed(&self) -> bool {
        self.span.status.as_ref().is_some_and(|status| status.code == StatusCode::Error as i32)
    }
}

fn texts(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |one: &KeyValue| match one.value.clone().unwrap().value.unwrap() {
        Value::StringValue(text) => text,
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    };
    let texts: BTreeMap<_, _> = attributes.iter().map(|one| (one.key.clone(), text(one))).collect();
    assert_eq!(texts.len(), attributes.len(), "no key twice");
    texts
}

/// Returns the spans whose parent is this one.
fn children<'a>(spans: &'a [Received], of: &Received) -> Vec<&'a Received> {
    spans.iter().filter(|span| span.span.parent_span_id == of.span.span_id).collect()
}

/// Returns the only span whose parent is this one and that has this name.
fn child<'a>(spans: &'a [Received], of: &Received, name: &str) -> &'a Received {
    let all = children(spans, of);
    assert_eq!(all.len(), 1, "{of:?}: {all:?}");
    assert_eq!(all[0].span.name, name);
    all[0]
}

fn relay_for(collector: &Collector, folder: &Folder, name: &str) -> RelayConfig {
    let mut config = relay_config();
    (config.traces, config.access_log) = (collector.config(1.0), access_log_in(folder, name));
    config
}

fn gateway_for(collector: &Collector, folder: &Folder, route: Route) -> GatewayConfig {
    let mut config = gateway_config(route);
    (config.traces, config.access_log) = (collector.config(1.0), access_log_in(folder, "gateway"));
    config
}

#[test]
fn session_over_two_relays_is_one_trace() {
    let (collector, folder) = (Collector::start(), Folder::new("traces-chain"));
    let (to, served) = destination(|mut stream| {
        let received = digest(&mut stream).unwrap().0;
        send(&mut stream, b"answer");
        received
    });
    let configs = ["relay-1", "relay-2"].map(|name| relay_for(&collector, &folder, name));
    let relays = configs.each_ref().map(Running::relay);
    let mut config = gateway_for(&collector, &folder, route_over(&relays));
    config.forward = vec![forward(to)];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    send(&mut stream, &[7; 300_000]);
    assert_eq!(digest(&mut stream).unwrap().0, 6);
    assert_eq!(served.join().unwrap(), 300_000);
    let identities = relays.each_ref().map(|relay| relay.identity().to_string());
    wait_for("all spans", || collector.spans().len() >= 6);
    drop((gateway, relays));

    let spans = collector.spans();
    assert_eq!(spans.len(), 6, "{spans:#?}");
    let root = spans.iter().find(|span| span.is("tradewind-gateway", "session")).unwrap();
    assert!(root.span.parent_span_id.is_empty());
    let mut session = root;
    let mut sessions = vec![root];
    for identity in &identities {
        let dial = child(&spans, session, "dial");
        assert_eq!(dial.span.kind, SpanKind::Client as i32);
        assert!(dial.span.start_time_unix_nano >= session.span.start_time_unix_nano);
        assert!(dial.span.end_time_unix_nano <= session.span.end_time_unix_nano);
        session = child(&spans, dial, "session");
        assert!(session.is("tradewind-relay", "session"));
        assert_eq!(session.resource["service.instance.id"], *identity);
        sessions.push(session);
    }
    let last = child(&spans, session, "dial");
    assert_eq!(last.attributes["server.port"], to.port().to_string());
    assert!(children(&spans, last).is_empty());
    for (session, log) in sessions.iter().zip(["gateway", "relay-1", "relay-2"]) {
        let line = &folder.lines(log, 1)[0];
        assert_eq!(line["trace_id"], session.trace_id());
        assert_eq!(session.span.kind, SpanKind::Server as i32);
        assert_eq!(session.attributes["tradewind.bytes_up"], "300000");
        for name in ["bytes_up", "bytes_down", "outcome", "flow", "ended_by", "path", "grant"] {
            let text = line[name].as_str().map_or_else(|| line[name].to_string(), str::to_owned);
            assert_eq!(session.attributes[&format!("tradewind.{name}")], text, "{name}");
        }
        assert_eq!(session.attributes["server.address"], to.ip().to_string());
        let events: Vec<_> = session.span.events.iter().map(|event| &event.name).collect();
        assert_eq!(events, ["first_byte"]);
        let of_log = line["duration_ms"].as_f64().unwrap();
        let of_span = session.span.end_time_unix_nano - session.span.start_time_unix_nano;
        // A relay's begins with the header, and its line with the connection.
        assert!(0 < of_span && of_span as f64 / 1e6 < of_log + 1000.0, "{of_span} ns, {of_log} ms");
    }
    for span in &spans {
        assert!(span.trace_id() == root.trace_id() && !span.has_failed(), "{span:#?}");
    }
    let bytes = collector.requests.lock().unwrap().concat();
    let grant = config.grant.as_ref().unwrap().to_string();
    let secrets = [&config.identity, &configs[0].identity, &configs[1].identity]
        .map(|identity| identity.as_ref().unwrap().to_secret_text().to_string());
    for secret in secrets.into_iter().chain([grant]) {
        assert!(!bytes.windows(secret.len()).any(|part| part == secret.as_bytes()));
    }
}

#[test]
fn failed_attempts_are_in_the_trace_of_their_session() {
    let (collector, folder) = (Collector::start(), Folder::new("traces-attempts"));
    let mut refusing = relay_for(&collector, &folder, "refusing");
    refusing.policy.destinations = vec!["127.0.0.99/32:*".parse().unwrap()];
    let refusing = [Running::relay(&refusing)];
    let other = [Running::relay(&relay_for(&collector, &folder, "other"))];
    let mut config = gateway_for(&collector, &folder, Route::Refuse);
    let routes = vec![route_over(&refusing), route_over(&other)];
    config.routes = RouteTable::with_fallbacks(Vec::new(), routes).unwrap();
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    let mut stream = connect(gateway.address());
    send(&mut stream, b"ping");
    assert_eq!(digest(&mut stream).unwrap().0, 4);
    wait_for("all spans", || collector.spans().len() >= 7);
    let instances = [refusing[0].identity(), other[0].identity()].map(|of| of.to_string());
    drop((gateway, refusing, other));

    let spans = collector.spans();
    assert_eq!(spans.len(), 7, "{spans:#?}");
    let root = spans.iter().find(|span| span.is("tradewind-gateway", "session")).unwrap();
    assert!(!root.has_failed());
    let dials = children(&spans, root);
    assert_eq!(dials.len(), 2, "{dials:#?}");
    for (dial, (instance, is_refusing)) in
        dials.into_iter().zip(instances.iter().zip([true, false]))
    {
        let session = child(&spans, dial, "session");
        assert_eq!(session.resource["service.instance.id"], *instance);
        assert_eq!(session.trace_id(), root.trace_id());
        assert_eq!([dial.has_failed(), session.has_failed()], [is_refusing; 2], "{session:#?}");
        let error = session.attributes.get("error.type").map(String::as_str);
        assert_eq!(error, is_refusing.then_some("destination_refused"));
    }
}

#[test]
fn unsampled_sessions_send_nothing_and_are_logged() {
    let (collector, folder) = (Collector::start(), Folder::new("traces-none"));
    let mut relay = relay_for(&collector, &folder, "relay");
    relay.traces = collector.config(0.0);
    let relay = [Running::relay(&relay)];
    let mut config = gateway_for(&collector, &folder, route_over(&relay));
    config.traces = collector.config(0.0);
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    for _ in 0..20 {
        let mut stream = connect(gateway.address());
        send(&mut stream, b"ping");
        assert_eq!(digest(&mut stream).unwrap().0, 4);
    }
    let ids = |log| {
        let lines = folder.lines(log, 20);
        let ids = lines.iter().map(|line| line["trace_id"].as_str().unwrap().to_owned());
        ids.collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(ids("gateway"), ids("relay"));
    assert_eq!(ids("relay").len(), 20);
    // They send what waits before they end.
    drop((gateway, relay));
    assert!(collector.requests.lock().unwrap().is_empty());
}

#[test]
fn dead_collector_stops_no_session_and_drops_are_counted() {
    /// More than the queue holds, beside the batch that is sent again and again.
    const SESSIONS: u64 = 2600;
    let nobody = closed_port();
    let mut config = gateway_config(Route::Direct);
    config.traces = config_for(nobody.address, 1.0);
    config.metrics = Some(loopback());
    config.forward = vec![forward(echo())];
    let gateway = Running::gateway(&config);
    for _ in 0..SESSIONS {
        let mut stream = connect(gateway.address());
        send(&mut stream, b"ping");
        assert_eq!(digest(&mut stream).unwrap().0, 4);
    }
    wait_for("their ends", || gateway.handle.snapshot().outcome("ended") == SESSIONS);
    let page = get(gateway.handle.metrics_addr().unwrap(), "/metrics");
    let value = |name: &str| -> u64 {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap_or_else(|| panic!("{page}")).trim().parse().unwrap()
    };
    assert_eq!(value("tradewind_trace_spans_exported_total"), 0);
    // Two spans each; the queue takes 2048 sessions, and a batch ends with 512 spans.
    let dropped = value("tradewind_trace_spans_dropped_total{reason=\"queue_full\"}");
    assert!(dropped >= 2 * (SESSIONS - 2048) - 513, "{dropped}");
}
