//! What is told of copies to relays: which packets have one, and what the uplink bears of them `[JQ
//! 3.5]`.

use tradewind_packet::budget::Allowance;
use tradewind_packet::sender::Copies;
use tradewind_packet::sender::select::Rules;
use tradewind_units::{Bandwidth, Duration};

use crate::NodeError;

/// The largest differentiated services code point.
const MOST_DSCP: u8 = 63;
/// How long copies may leave faster than the uplink bears. Chosen: less than what queues before
/// most access links.
const BURST: Duration = Duration::from_millis(100);
/// Bytes of copies at once at least: a quarter is kept for chosen ones, and the longest packet must
/// fit into the rest.
const LEAST_BURST: u32 = 16_000;

/// Which packets are copied to the relays, where it is not all of them `[JQ 3.5]`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chosen {
    /// What makes a packet one of these.
    pub rules: Rules,
    /// The last of a window is one, too: that after which nothing follows for so long.
    pub last_after: Option<Duration>,
}

impl Chosen {
    /// As a sender takes it.
    pub(crate) fn copies(chosen: Option<&Self>) -> Copies {
        match chosen {
            Some(chosen) => Copies::Chosen { last_after: chosen.last_after },
            None => Copies::All,
        }
    }

    pub(crate) fn looks_at_dscp(chosen: Option<&Self>) -> bool {
        chosen.is_some_and(|chosen| !chosen.rules.dscp.is_empty())
    }

    /// Of packets of which nothing but datagrams is seen, or whole IP packets.
    pub(crate) fn check(&self, are_whole: bool) -> Result<(), NodeError> {
        let refused =
            |problem: &str| Err(NodeError::Config { key: "copies", problem: problem.into() });
        let Rules { marked, tcp_syn, rtp_key_frames, dscp, ports } = &self.rules;
        let is_any = *marked || *tcp_syn || *rtp_key_frames || self.last_after.is_some();
        if !is_any && dscp.is_empty() && ports.is_empty() {
            return refused("nothing is chosen; expected at least one rule");
        }
        if *tcp_syn && !are_whole {
            return refused("expected `tcp_syn` only with `tun`: no datagram is one");
        }
        if dscp.iter().any(|dscp| *dscp > MOST_DSCP) {
            return refused("expected code points of 0 to 63");
        }
        Ok(())
    }
}

/// How an endpoint copies packets to relays, whatever their path.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Copying {
    /// Which packets of replies, in conversations that others begin, are copied; `None`: all.
    pub replies: Option<Chosen>,
    /// The rate of the uplink, for all that leaves; `None`: any. Copies take what is left of it;
    /// chosen ones may use the last quarter of a burst alone.
    pub uplink: Option<Bandwidth>,
}

impl Copying {
    /// As a sender takes it: in bytes.
    pub(crate) fn uplink(&self) -> Option<Allowance> {
        let whole = |bytes: f64| bytes.round().clamp(1.0, u32::MAX.into()) as u32;
        self.uplink.map(|rate| {
            let per_second = whole(rate.as_bytes_per_s());
            let burst = whole(rate.as_bytes_per_s() * BURST.as_secs_f64()).max(LEAST_BURST);
            Allowance { per_second, burst }
        })
    }
}
