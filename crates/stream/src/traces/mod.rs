//! The traces of sessions: spans of each session that is sampled, for a collector of OpenTelemetry.
//!
//! Each hop sends two kinds of spans when a session ends: the session, and its dials, one for each
//! path that a gateway tries. The session at the gateway is the root; a session at a relay is the
//! child of the dial that reached it. Ids come from the hop header ([`tradewind_grant::trace`]).
//! Until a session ends only its dials are noted, and those only if it is sampled.

mod facts;
mod span;

use std::time::Duration;

use tradewind_config::TracesConfig;
use tradewind_grant::TraceSeed;
use tradewind_net::{entropy, sandbox};
use tradewind_telemetry::{Registry, SpanExporter, TraceCollector};

use crate::StreamError;
use crate::access_log::note;
use crate::access_log::record::{Record, SessionSink};
use crate::counts::Outcome;

pub use facts::TraceFacts;

/// Longest wait for the collector at the end of the process. Chosen: as for logs.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// Begins the trace of the session that the current task serves at a gateway, if it is recorded.
/// Returns the seed for its headers.
pub fn begin() -> Option<TraceSeed> {
    let mut seed = None;
    note(|facts| {
        // Without entropy it has no trace.
        seed = entropy::bytes().ok().map(TraceSeed::from_entropy);
        seed.into_iter().for_each(|seed| facts.trace.begin(seed));
    });
    seed
}

/// The output of sessions as traces.
#[derive(Debug)]
pub(crate) struct Traces(SpanExporter);

impl Traces {
    /// Starts to send the traces of `program`, the process with this identity, if that is
    /// configured.
    ///
    /// # Errors
    /// When the thread that sends them cannot be started.
    pub(crate) fn start(
        program: &'static str,
        identity: Option<String>,
        config: Option<&TracesConfig>,
    ) -> Result<Option<Self>, StreamError> {
        let Some(TracesConfig { endpoint, .. }) = config else { return Ok(None) };
        let collector =
            TraceCollector { authority: endpoint.authority.clone(), path: endpoint.path.clone() };
        let resource = span::resource(program, identity);
        // It reads what the collector answers.
        let started = sandbox::as_reader(|| SpanExporter::start(collector, resource))?;
        Ok(Some(Self(started.map_err(StreamError::Runtime)?)))
    }

    /// Adds the counts of spans to the metrics.
    pub(crate) fn register(&self, registry: &Registry) {
        registry.register(|inner| inner.register_collector(self.0.metrics()));
    }

    /// Waits until the collector has all spans, for a bounded time.
    pub(crate) fn flush(&self) {
        let _all_taken = self.0.flush(FLUSH_LIMIT);
    }
}

impl SessionSink for Traces {
    fn session_ended(&self, record: &Record, outcome: Outcome) {
        let spans = span::spans(record, outcome);
        if !spans.is_empty() {
            self.0.put(spans);
        }
    }
}
