//! The spans of a session, made of its record. Attributes are those of OpenTelemetry's semantic
//! conventions, and `tradewind.*` with the meaning of the access log's fields.

use std::net::SocketAddr;

use tokio::time::Instant;
use tradewind_grant::{Destination, SpanId, TraceId};
use tradewind_telemetry::otlp::common::v1::any_value::Value;
use tradewind_telemetry::otlp::common::v1::{AnyValue, KeyValue};
use tradewind_telemetry::otlp::trace::v1::span::{Event, SpanKind};
use tradewind_telemetry::otlp::trace::v1::status::StatusCode;
use tradewind_telemetry::otlp::trace::v1::{Span, SpanFlags, Status};

use super::facts::{AtRelay, Dial};
use crate::access_log::record::{Ending, Record, SessionFacts};
use crate::clock::unix_now;
use crate::counts::Outcome;

/// The trace flag of W3C Trace Context for a sampled trace.
const SAMPLED: u32 = 1;

/// Returns the attributes of a process: the program, and its public identity if it has one.
pub(super) fn resource(program: &str, identity: Option<String>) -> Vec<KeyValue> {
    let mut attributes = Attributes::default();
    attributes.text("service.name", Some(format!("tradewind-{program}")));
    attributes.text("service.version", Some(env!("CARGO_PKG_VERSION")));
    attributes.text("service.instance.id", identity);
    attributes.0
}

/// Returns the spans of a session that has just ended, its own first; none if it is not sampled, or
/// is no session.
pub(super) fn spans(record: &Record, outcome: Outcome) -> Vec<Span> {
    let facts = record.facts();
    let (Some(trace), Some(destination)) = (facts.trace.sampled(), &facts.destination) else {
        return Vec::new();
    };
    let clock = Clock { now: Instant::now(), unix_nanos: unix_now().as_nanos() };
    let (id, parent, begun) = match facts.trace.at() {
        Some(AtRelay { nonce, hop, since }) => {
            (SpanId::of_relay(nonce, *hop), Some(SpanId::of_dial(nonce, *hop)), *since)
        }
        None => (SpanId::of_gateway(&trace), None, record.begun),
    };
    let first_byte = record.first_byte().map(|after| Event {
        time_unix_nano: clock.nanos(record.begun + after),
        name: "first_byte".to_owned(),
        ..Event::default()
    });
    let mut attributes = Attributes::default();
    describe(&mut attributes, record, &facts, destination);
    let status = if outcome == Outcome::Ended {
        None
    } else {
        attributes.text("error.type", Some(outcome.name()));
        Some(failed(facts.cause.as_deref().unwrap_or_else(|| outcome.name())))
    };
    end(&mut attributes, record, &facts, outcome);
    let session = Span {
        name: "session".to_owned(),
        start_time_unix_nano: clock.nanos(begun),
        end_time_unix_nano: clock.unix_nanos,
        attributes: attributes.0,
        events: first_byte.into_iter().collect(),
        status,
        ..span(trace, id, (parent, SpanFlags::ContextIsRemoteMask as u32), SpanKind::Server)
    };
    let dials = facts.trace.dials().iter().map(|dial| of_dial(trace, id, dial, &clock));
    std::iter::once(session).chain(dials).collect()
}

/// Adds what is known of a session from its beginning.
fn describe(
    attributes: &mut Attributes,
    record: &Record,
    facts: &SessionFacts,
    destination: &Destination,
) {
    attributes.text("network.transport", Some("tcp"));
    attributes.address(["network.peer.address", "network.peer.port"], record.source);
    if facts.trace.at().is_none() {
        let client = facts.client.unwrap_or(record.source);
        attributes.address(["client.address", "client.port"], client);
    }
    attributes.destination(destination);
    attributes.text("tradewind.flow", facts.flow.as_ref());
    attributes.text("tradewind.grant", facts.grant.as_ref());
    attributes.text("tradewind.gateway", facts.gateway.as_ref());
    attributes.text("tradewind.neighbour", facts.neighbour.as_ref());
    attributes.text("tradewind.next", facts.next.as_ref());
    attributes.text("tradewind.path", facts.path.as_ref());
    attributes.text("tradewind.arm", facts.arm.map(|arm| arm.name()));
    if let Some(AtRelay { hop, .. }) = facts.trace.at() {
        attributes.number("tradewind.hop", *hop as u64 + 1);
    }
}

/// Adds what a session has moved, and how it ended.
fn end(attributes: &mut Attributes, record: &Record, facts: &SessionFacts, outcome: Outcome) {
    let [bytes_up, bytes_down] = record.bytes();
    attributes.number("tradewind.bytes_up", bytes_up);
    attributes.number("tradewind.bytes_down", bytes_down);
    attributes.text("tradewind.outcome", Some(outcome.name()));
    let Ending { by, timeout } = record.ending(facts, outcome);
    attributes.text("tradewind.ended_by", Some(by));
    attributes.text("tradewind.timeout", timeout);
}

fn of_dial(trace: TraceId, session: SpanId, dial: &Dial, clock: &Clock) -> Span {
    let mut attributes = Attributes::default();
    attributes.text("network.transport", Some("tcp"));
    attributes.destination(&dial.to);
    attributes.text("tradewind.path", dial.path.as_ref());
    attributes.text("error.type", dial.error.as_ref().map(|(status, _)| status.as_str()));
    Span {
        name: "dial".to_owned(),
        start_time_unix_nano: clock.nanos(dial.begun),
        end_time_unix_nano: clock.nanos(dial.ended.unwrap_or(clock.now)),
        attributes: attributes.0,
        status: dial.error.as_ref().map(|(_, message)| failed(message)),
        ..span(trace, dial.span, (Some(session), 0), SpanKind::Client)
    }
}

/// Returns a span without what it is about; `remote` is the flag of a parent in another process.
fn span(
    trace: TraceId,
    id: SpanId,
    (parent, remote): (Option<SpanId>, u32),
    kind: SpanKind,
) -> Span {
    let known = SpanFlags::ContextHasIsRemoteMask as u32;
    Span {
        trace_id: trace.as_bytes().to_vec(),
        span_id: id.as_bytes().to_vec(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.as_bytes().to_vec()),
        flags: SAMPLED | parent.map_or(0, |_| known | remote),
        kind: kind as i32,
        ..Span::default()
    }
}

fn failed(message: &str) -> Status {
    Status { message: message.to_owned(), code: StatusCode::Error as i32 }
}

/// The moment at which spans are made, by both clocks.
struct Clock {
    now: Instant,
    unix_nanos: u64,
}

impl Clock {
    /// Returns a moment before in nanoseconds since the Unix epoch.
    fn nanos(&self, at: Instant) -> u64 {
        let before = self.now.saturating_duration_since(at).as_nanos();
        self.unix_nanos.saturating_sub(u64::try_from(before).unwrap_or(u64::MAX))
    }
}

#[derive(Default)]
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn text(&mut self, key: &str, value: Option<impl ToString>) {
        value.into_iter().for_each(|value| self.put(key, Value::StringValue(value.to_string())));
    }

    fn number(&mut self, key: &str, value: u64) {
        self.put(key, Value::IntValue(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    fn address(&mut self, [ip, port]: [&str; 2], address: SocketAddr) {
        self.text(ip, Some(address.ip()));
        self.number(port, address.port().into());
    }

    /// Adds what a session or dial goes to.
    fn destination(&mut self, to: &Destination) {
        match to {
            Destination::Address(address) => {
                self.address(["server.address", "server.port"], *address);
            }
            Destination::Name { name, port } => {
                self.text("server.address", Some(name.as_str()));
                self.number("server.port", (*port).into());
            }
        }
    }

    fn put(&mut self, key: &str, value: Value) {
        let value = Some(AnyValue { value: Some(value) });
        self.0.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    }
}
