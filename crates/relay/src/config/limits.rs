//! How much a process takes on, and how long it waits.

use std::num::NonZeroU32;
use std::time::Duration;

use serde::Deserialize;
use tradewind_grant::DestinationRule;
use tradewind_units::time::{as_text, or_off};
use tradewind_units::{Bandwidth, Bytes};

/// How much a process takes on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Sessions at a time; a connection beyond is reset. Chosen: 8,000, two descriptors each and
    /// some for pipes, which fit into 20,000.
    pub sessions: usize,
    /// Connections besides that have not shown a valid header or request yet; where there are more,
    /// the source that holds most of them pays with its oldest. Chosen: 1,000.
    pub unauthenticated: usize,
    /// Of these, warm connections that each neighbour keeps at rest here; a hello beyond is
    /// refused. Chosen: 1,000, an eighth of all.
    pub resting: u32,
    /// Connections that wait in the kernel to be accepted. Chosen: what Linux allows, 4096.
    pub backlog: u16,
    /// Rate of all sessions together, both directions added up; no limit when
    /// absent.
    pub rate: Option<Bandwidth>,
    /// Most bytes that sessions hold of what one side has given and the other has not taken, with
    /// their own memory; sockets' buffers come on top. No limit but that of the sessions when
    /// absent.
    pub memory: Option<Bytes>,
    /// What the sessions of each gateway may take, at relays. While `sessions` is absent a gateway
    /// may have as many as are still free: one alone half of all, n of them 1/(n+1) each.
    pub each_gateway: Share,
    /// What the sessions of each grant may take, at relays.
    pub each_grant: Share,
    /// What each source address may take; of IPv6 each /56.
    pub each_source: Share,
    /// Sources that `each_source` does not bind, such as other relays; ports do not count.
    pub trusted_sources: Vec<DestinationRule>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            sessions: 8000,
            unauthenticated: 1000,
            resting: 1000,
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

/// What one grant or source may take; what is absent is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Share {
    /// Sessions at a time.
    pub sessions: Option<NonZeroU32>,
    /// What they may move a second, both directions added up.
    pub rate: Option<Bandwidth>,
    /// Most bytes that they hold of what one side has given and the other has not taken, with their
    /// own memory; it may lower their number.
    pub memory: Option<Bytes>,
}

/// How long a process waits.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Timeouts {
    /// For a header or proxy request after the connection opened.
    #[serde(with = "as_text")]
    pub header: Duration,
    /// For each connection of a path to open; a name's addresses share it.
    #[serde(with = "as_text")]
    pub dial: Duration,
    /// For the next byte of a session with both directions open; `off` is for ever.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub idle: Option<Duration>,
    /// For the next byte of a session once one direction has ended; `off` is for ever.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub half_closed: Option<Duration>,
    /// For a peer to acknowledge, or to open its window again (`TCP_USER_TIMEOUT`); `off` leaves it
    /// to the kernel.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub user: Option<Duration>,
    /// Silence after which the kernel asks whether the peer is there; with `off` it never does.
    #[serde(deserialize_with = "or_off::deserialize")]
    pub keepalive: Option<Duration>,
    /// For open sessions to end when draining; the rest is reset then.
    #[serde(with = "as_text")]
    pub drain: Duration,
    /// For open sessions to end after an upgrade, when the next process has taken over; the rest is
    /// reset then.
    #[serde(with = "as_text")]
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
