//! Limits and timeouts of a process.

use std::num::NonZeroU32;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_grant::DestinationRule;
use tradewind_units::time::{as_text, or_off};
use tradewind_units::{Bandwidth, Bytes};

/// Limits of a process.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Most sessions at a time; a session beyond them is refused.
    #[schemars(range(min = 1))]
    pub sessions: usize,
    /// Most connections, besides the sessions, that have not sent a valid header or request yet;
    /// beyond them, the source that holds most loses its oldest one.
    #[schemars(range(min = 1))]
    pub unauthenticated: usize,
    /// Most idle warm connections of each neighbour; a hello beyond them is refused. Each counts as
    /// one of `sessions`, but is evicted if a session needs its place.
    pub resting: u32,
    /// Most connections that wait in the kernel to be accepted.
    pub backlog: u16,
    /// Rate of all sessions together, both directions added up; no limit when absent.
    pub rate: Option<Bandwidth>,
    /// Most bytes that sessions hold of data received from one side and not yet sent to the other,
    /// including their own memory; sockets' buffers come on top. At least 1 MB. When absent, only
    /// each session's own bounds apply.
    pub memory: Option<Bytes>,
    /// Limits on the sessions of each gateway, at relays. While `sessions` is absent a gateway may
    /// have as many as are still free: one alone half of all, n of them 1/(n+1) each.
    pub each_gateway: Share,
    /// Limits on the sessions of each grant, at relays.
    pub each_grant: Share,
    /// Limits on each source address; for IPv6, on each /56.
    pub each_source: Share,
    /// Sources that `each_source` does not apply to, such as other relays; ports do not count.
    pub trusted_sources: Vec<DestinationRule>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // Chosen: two descriptors each, and some for pipes, fit into 20,000.
            sessions: 8000,
            unauthenticated: 1000,
            // Chosen: an eighth of the sessions.
            resting: 1000,
            // Linux's limit.
            backlog: 4096,
            rate: None,
            memory: None,
            each_gateway: Share::default(),
            each_grant: Share::default(),
            each_source: Share::default(),
            trusted_sources: Vec::new(),
        }
    }
}

/// Limits on one gateway, grant or source; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Share {
    /// Most sessions at a time.
    pub sessions: Option<NonZeroU32>,
    /// Rate of its sessions together, both directions added up.
    pub rate: Option<Bandwidth>,
    /// Most bytes that its sessions hold of data received from one side and not yet sent to the
    /// other, including their own memory; at least 1 MB. It may reduce the number of sessions.
    pub memory: Option<Bytes>,
}

/// Timeouts of a process.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// Time to receive a hop header or proxy request after the connection was opened.
    #[serde(with = "as_text")]
    #[schemars(with = "tradewind_units::time::Written")]
    pub header: Duration,
    /// Time for each connection of a path to open; a name's addresses share it.
    #[serde(with = "as_text")]
    #[schemars(with = "tradewind_units::time::Written")]
    pub dial: Duration,
    /// Longest silence of a session with both directions open; `off` is for ever.
    #[serde(with = "or_off")]
    #[schemars(with = "tradewind_units::time::WrittenOrOff")]
    pub idle: Option<Duration>,
    /// Longest silence of a session once one direction has ended; `off` is for ever.
    #[serde(with = "or_off")]
    #[schemars(with = "tradewind_units::time::WrittenOrOff")]
    pub half_closed: Option<Duration>,
    /// Time for a peer to acknowledge data, or to open its window again (`TCP_USER_TIMEOUT`), from
    /// 1 ms to 24 days; `off` leaves it to the kernel.
    #[serde(with = "or_off")]
    #[schemars(with = "tradewind_units::time::WrittenOrOff")]
    pub user: Option<Duration>,
    /// Silence after which the kernel sends keepalive probes, from 1 s to 32767 s; with `off` it
    /// sends none.
    #[serde(with = "or_off")]
    #[schemars(with = "tradewind_units::time::WrittenOrOff")]
    pub keepalive: Option<Duration>,
    /// Time for open sessions to end when draining; the rest is reset then.
    #[serde(with = "as_text")]
    #[schemars(with = "tradewind_units::time::Written")]
    pub drain: Duration,
    /// Time for open sessions to end after an upgrade, when the next process has taken over; the
    /// rest is reset then.
    #[serde(with = "as_text")]
    #[schemars(with = "tradewind_units::time::Written")]
    pub retire: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            header: Duration::from_secs(5),
            dial: Duration::from_secs(10),
            idle: Some(Duration::from_secs(3600)),
            half_closed: Some(Duration::from_secs(300)),
            user: Some(Duration::from_secs(120)),
            keepalive: Some(Duration::from_secs(60)),
            drain: Duration::from_secs(30),
            retire: Duration::from_secs(3600),
        }
    }
}
