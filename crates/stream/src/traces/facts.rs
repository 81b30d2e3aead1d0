//! Ids and dials of a session, which its trace needs beside its record for the access log.

use tokio::time::Instant;
use tradewind_grant::{Destination, Nonce, SpanId, Status, TraceId, TraceSeed};
use tradewind_units::Ratio;

/// The ids and dials of a session.
#[derive(Debug, Default)]
pub struct TraceFacts {
    /// The share of sessions that are traced.
    share: Ratio,
    id: Option<TraceId>,
    at: Option<AtRelay>,
    /// Its dials in order; none where it is not traced.
    dials: Vec<Dial>,
}

/// A relay that a session has reached.
#[derive(Debug)]
pub(crate) struct AtRelay {
    /// The nonce of the header.
    pub(crate) nonce: Nonce,
    /// The relay's number in it, from 0.
    pub(crate) hop: usize,
    /// The time of the header: its connection may be older.
    pub(crate) since: Instant,
}

/// A dial of a session's next leg, until the path behind it is open.
#[derive(Debug)]
pub(crate) struct Dial {
    pub(crate) span: SpanId,
    /// The relay or destination that is dialled.
    pub(crate) to: Destination,
    /// The path that it is part of, at gateways.
    pub(crate) path: Option<String>,
    pub(crate) begun: Instant,
    /// Absent if it did not come to an end before its session.
    pub(crate) ended: Option<Instant>,
    pub(crate) error: Option<(Status, String)>,
}

impl TraceFacts {
    /// Creates the facts of a session whose trace is not known yet, where a `share` of sessions is
    /// traced.
    pub(crate) fn new(share: Ratio) -> Self {
        Self { share, ..Self::default() }
    }

    /// Begins the trace of a session at its gateway.
    pub(super) fn begin(&mut self, seed: TraceSeed) {
        self.id = Some(seed.trace_id());
    }

    /// Takes the trace over from a header with this nonce, at its relay with number `hop`.
    pub fn take_over(&mut self, nonce: Nonce, hop: usize) {
        self.id = Some(TraceSeed::of(&nonce).trace_id());
        self.at = Some(AtRelay { nonce, hop, since: Instant::now() });
    }

    /// Notes that a relay or destination is dialled from now on, at gateways as a part of a path,
    /// if `dialled` returns one.
    pub fn begin_dial(&mut self, dialled: impl FnOnce() -> Option<(Destination, Option<String>)>) {
        let Some(trace) = self.sampled() else { return };
        let Some((to, path)) = dialled() else { return };
        let span = match &self.at {
            Some(AtRelay { nonce, hop, .. }) => SpanId::of_dial(nonce, hop + 1),
            None => SpanId::of_other_dial(&trace, self.dials.len()),
        };
        self.dials.push(Dial { span, to, path, begun: Instant::now(), ended: None, error: None });
    }

    /// Notes that a gateway's dial sends a header with this nonce.
    pub fn name_dial(&mut self, nonce: &Nonce) {
        self.dials.last_mut().into_iter().for_each(|dial| dial.span = SpanId::of_dial(nonce, 0));
    }

    /// Notes that the dial has ended, if there is one that has not.
    pub fn end_dial(&mut self, error: Option<(Status, &str)>) {
        let Some(dial) = self.dials.last_mut().filter(|dial| dial.ended.is_none()) else { return };
        dial.ended = Some(Instant::now());
        dial.error = error.map(|(status, message)| (status, message.to_owned()));
    }

    /// Returns the id of the trace, whether it is sampled or not; `None` before it is known.
    pub(crate) const fn id(&self) -> Option<TraceId> {
        self.id
    }

    /// Returns the id of the trace if it is sampled.
    pub(super) fn sampled(&self) -> Option<TraceId> {
        self.id.filter(|id| id.is_sampled(self.share))
    }

    /// Returns the relay that the session has reached; `None` at gateways.
    pub(super) const fn at(&self) -> Option<&AtRelay> {
        self.at.as_ref()
    }

    pub(super) fn dials(&self) -> &[Dial] {
        &self.dials
    }
}
