//! Ids of a session's trace, by the format of W3C Trace Context: gateway and relays derive the same
//! ones from the hop header.
//!
//! The headers of one session, one for each path that its gateway tries, have nonces with the same
//! last 8 bytes, the [`TraceSeed`]. Its hash is the id of the trace, so that all hops have one id,
//! and sample the same sessions, without another field in the header. Spans of one path derive from
//! the whole nonce and the hop: a relay knows the span of the dial that reached it.

use std::fmt;

use tradewind_units::Ratio;

use crate::Nonce;

/// The part of a nonce that all headers of one session have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceSeed([u8; SEED_BYTES]);

const SEED_BYTES: usize = 8;
/// Its place in a nonce: the other half tells replays.
const SEED_AT: usize = 8;

impl TraceSeed {
    /// Creates a seed from 8 bytes of the system's entropy.
    #[must_use]
    pub const fn from_entropy(entropy: [u8; SEED_BYTES]) -> Self {
        Self(entropy)
    }

    /// Returns the seed in a header's nonce.
    #[must_use]
    pub fn of(nonce: &Nonce) -> Self {
        let (_, seed) = nonce.as_bytes().split_at(SEED_AT);
        Self(seed.try_into().expect("a nonce has 16 bytes"))
    }

    /// Returns a fresh nonce with this seed in it.
    #[must_use]
    pub fn within(self, fresh: Nonce) -> Nonce {
        let mut bytes = *fresh.as_bytes();
        bytes[SEED_AT..].copy_from_slice(&self.0);
        Nonce::from_entropy(bytes)
    }

    /// Returns the id of the session's trace.
    #[must_use]
    pub fn trace_id(self) -> TraceId {
        TraceId(hash("trace", &self.0, 0))
    }
}

/// The id of a session's trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceId([u8; 16]);

impl TraceId {
    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }

    /// Returns whether the trace is among the `share` of traces that are sampled: by its last 56
    /// bits, as OpenTelemetry's consistent sampling does, so that a greater share has all traces of
    /// a smaller one.
    #[must_use]
    pub fn is_sampled(&self, share: Ratio) -> bool {
        const VALUES: u64 = 1 << 56;
        let [.., a, b, c, d, e, f, g] = self.0;
        let random = u64::from_be_bytes([0, a, b, c, d, e, f, g]);
        random >= ((1.0 - share.as_f64()) * VALUES as f64) as u64
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The id of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanId([u8; 8]);

impl SpanId {
    /// Returns the bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 8] {
        &self.0
    }

    /// Returns the id of the session at its gateway.
    #[must_use]
    pub fn of_gateway(trace: &TraceId) -> Self {
        Self(hash("gateway", &trace.0, 0))
    }

    /// Returns the id of the session at the relay with number `hop`.
    #[must_use]
    pub fn of_relay(nonce: &Nonce, hop: usize) -> Self {
        Self(hash("relay", nonce.as_bytes(), hop))
    }

    /// Returns the id of the dial of the relay with number `hop`; the number after the last relay's
    /// is that of the destination.
    #[must_use]
    pub fn of_dial(nonce: &Nonce, hop: usize) -> Self {
        Self(hash("dial", nonce.as_bytes(), hop))
    }

    /// Returns the id of a gateway's dial, the one with this number, for which there is no header.
    #[must_use]
    pub fn of_other_dial(trace: &TraceId, number: usize) -> Self {
        Self(hash("other dial", &trace.0, number))
    }
}

fn hash<const N: usize>(kind: &str, of: &[u8], number: usize) -> [u8; N] {
    let mut hasher = blake3::Hasher::new_derive_key("tradewind 2026-11 trace v1");
    hasher.update(of).update(&(number as u64).to_be_bytes()).update(kind.as_bytes());
    let mut id = [0; N];
    hasher.finalize_xof().fill(&mut id);
    id
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seed(number: u64) -> TraceSeed {
        TraceSeed::from_entropy(number.to_be_bytes())
    }

    #[test]
    fn headers_of_a_session_share_its_trace_and_no_span() {
        let [first, second] = [1, 2].map(|byte| seed(7).within(Nonce::from_entropy([byte; 16])));
        assert_eq!([first, second].map(|nonce| TraceSeed::of(&nonce)), [seed(7); 2]);
        assert_eq!(first.as_bytes()[..8], [1; 8], "what tells replays stays");
        let trace = seed(7).trace_id();
        assert_ne!(trace, seed(8).trace_id());
        let of = |nonce| [SpanId::of_relay(nonce, 0), SpanId::of_dial(nonce, 0)];
        let mut spans = [of(&first), of(&second)].concat();
        spans.extend([SpanId::of_gateway(&trace), SpanId::of_other_dial(&trace, 0)]);
        spans.extend([SpanId::of_relay(&first, 1), SpanId::of_other_dial(&trace, 1)]);
        for (index, span) in spans.iter().enumerate() {
            assert!(!spans[..index].contains(span), "{index}");
        }
    }

    #[test]
    fn share_of_traces_is_sampled() {
        let sampled = |share: f64| {
            let share = Ratio::new(share).unwrap();
            (0..10_000).filter(|at| seed(*at).trace_id().is_sampled(share)).collect::<Vec<_>>()
        };
        assert_eq!((sampled(0.0).len(), sampled(1.0).len()), (0, 10_000));
        let (few, more) = (sampled(0.01), sampled(0.1));
        assert!((50..200).contains(&few.len()) && (800..1200).contains(&more.len()));
        assert!(few.iter().all(|at| more.contains(at)));
    }
}
