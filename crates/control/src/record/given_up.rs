//! Hosts whose relays a rollout waited for in vain.

use serde::{Deserialize, Serialize};
use tradewind_units::{Duration, HostId};

/// Time for which a host is given up at first, beside the time that machines take to set up; it
/// doubles each time. Chosen: as long as relays have to start.
const FIRST: Duration = Duration::from_secs(60);
/// Longest time for which a host is given up.
const MAX: Duration = Duration::from_secs(86_400);
/// Doublings after which it does not grow further.
const MAX_DOUBLINGS: u32 = 11;

/// A host whose relay was not ready in time for a plan, or failed. Until a while has passed, or it
/// runs another version, the controller makes no plans with it, and applies none by itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenUp {
    /// The host.
    pub host: HostId,
    /// The version of its program then, if that was known.
    pub agent_version: Option<String>,
    /// The number of times, since it was ready last.
    pub times: u32,
    /// Time until which that counts, in milliseconds since the Unix epoch.
    pub until_unix_ms: u64,
}

impl GivenUp {
    /// Returns a host that is given up now, and was before so many times.
    pub(crate) fn new(host: HostId, before: u32, now_unix_ms: u64, relay_setup: Duration) -> Self {
        let first = (FIRST + relay_setup).as_millis() as u64;
        let span = first.saturating_mul(1 << before.min(MAX_DOUBLINGS));
        let until_unix_ms = now_unix_ms + span.min(MAX.as_millis() as u64);
        Self { host, agent_version: None, times: before.saturating_add(1), until_unix_ms }
    }

    /// Returns whether it counts at a time. One further ahead is from before the clock was put
    /// back.
    pub(crate) fn counts(&self, now_unix_ms: u64) -> bool {
        let left = self.until_unix_ms.saturating_sub(now_unix_ms);
        left > 0 && left <= MAX.as_millis() as u64
    }
}
