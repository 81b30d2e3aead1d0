//! Settings of copies to relays: the packets that are copied, and the uplink's rate for copies
//! `[JQ 3.5]`.

use tradewind_packet::budget::Allowance;
use tradewind_packet::sender::Copies;
use tradewind_packet::sender::select::Rules;
use tradewind_units::{Bandwidth, Duration};

use crate::ConfigError;

/// The largest differentiated services code point.
const MAX_DSCP: u8 = 63;
/// The time for which copies may exceed the uplink's rate. Chosen: less than the queue of most
/// access links.
const BURST: Duration = Duration::from_millis(100);
/// Least burst of copies in bytes: a quarter is reserved for chosen ones, and the longest packet
/// must fit into the rest.
const MIN_BURST: u32 = 16_000;

/// The packets that are copied to the relays, where not all are `[JQ 3.5]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// The rules that choose a packet.
    pub rules: Rules,
    /// The last packet of a window is chosen, too: one after which nothing follows for this long.
    pub last_after: Option<Duration>,
}

impl Chosen {
    /// Returns the sender's setting for these.
    pub fn copies(chosen: Option<&Self>) -> Copies {
        match chosen {
            Some(chosen) => Copies::Chosen { last_after: chosen.last_after },
            None => Copies::All,
        }
    }

    /// Returns whether the rules look at code points.
    #[must_use]
    pub fn looks_at_dscp(chosen: Option<&Self>) -> bool {
        chosen.is_some_and(|chosen| !chosen.rules.dscp.is_empty())
    }

    /// Checks the rules, for packets that are seen as datagrams only, or as whole IP packets.
    ///
    /// # Errors
    /// The mistake in `copies`.
    pub fn check(&self, are_whole: bool) -> Result<(), ConfigError> {
        let refused = |problem: &str| Err(ConfigError::new("copies", problem));
        let Rules { marked, tcp_syn, rtp_key_frames, dscp, ports } = &self.rules;
        let is_any = *marked || *tcp_syn || *rtp_key_frames || self.last_after.is_some();
        if !is_any && dscp.is_empty() && ports.is_empty() {
            return refused("nothing is chosen; expected at least one rule");
        }
        if *tcp_syn && !are_whole {
            return refused("expected `tcp_syn` only with `tun`: no datagram is one");
        }
        if dscp.iter().any(|dscp| *dscp > MAX_DSCP) {
            return refused("expected code points of 0 to 63");
        }
        Ok(())
    }
}

/// An endpoint's copying of packets to relays, on all paths.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Copying {
    /// The packets of replies, in conversations that others begin, that are copied; `None`: all.
    pub replies: Option<Chosen>,
    /// The rate of the uplink, for all traffic; `None`: unlimited. Copies take the rate that is
    /// left over; the last quarter of a burst is for chosen ones alone.
    pub uplink: Option<Bandwidth>,
}

impl Copying {
    /// Returns the sender's setting, in bytes.
    pub fn uplink(&self) -> Option<Allowance> {
        let whole = |bytes: f64| bytes.round().clamp(1.0, u32::MAX.into()) as u32;
        self.uplink.map(|rate| {
            let per_second = whole(rate.as_bytes_per_s());
            let burst = whole(rate.as_bytes_per_s() * BURST.as_secs_f64()).max(MIN_BURST);
            Allowance { per_second, burst }
        })
    }
}
