//! The settings of a receiver, and the packets that it delivers.

use tradewind_units::{Bytes, Duration};

use crate::budget::Allowance;
use crate::event::Arrival;
use crate::id::{PacketId, Peer};
use crate::message::Service;
use crate::store::Keep;

/// A flow at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverFlow {
    /// The sender, over the Internet.
    pub sender: Peer,
    /// The egress relay near by, if one serves the flow.
    pub egress: Option<Peer>,
    /// The service of that relay: what it caches or codes can be requested from it, and packets of
    /// flows that it codes are kept here, to be lent to it.
    pub service: Service,
    /// The round trip of the Internet path, as measured when the flow began.
    pub round_trip: Duration,
    /// The longest delay after its expected time at which a packet is still worth having: the
    /// latency budget less the path's delay.
    pub recovery_deadline: Duration,
}

impl ReceiverFlow {
    /// Returns the relay from which missing packets can be requested.
    pub(super) fn keeper(&self) -> Option<Peer> {
        self.egress.filter(|_| matches!(self.service, Service::Caching | Service::Coding))
    }

    /// Returns whether others' packets may be recovered with those of this flow.
    pub(super) fn is_coded(&self) -> bool {
        self.service == Service::Coding
    }
}

/// The settings for all flows of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// The limits of packets kept to be lent. Their age should be one to two round trips [JQ 3.2].
    pub lend: Keep,
    /// Rate of packets that are lent.
    pub lends: Allowance,
    /// Rate of packets that each flow may request.
    pub asks: Allowance,
    /// The interval of reports to senders; `None`: never.
    pub feedback_every: Option<Duration>,
    /// The interval of keepalives to egress relays; `None`: never.
    pub keepalive_every: Option<Duration>,
}

impl Default for ReceiverConfig {
    /// Returns the defaults. Chosen: packets of 400 ms, two round trips of most paths; requests and
    /// loans as [`EgressConfig`](crate::egress::EgressConfig) allows them; reports each second,
    /// keepalives each 5 s.
    fn default() -> Self {
        let allowance = Allowance { per_second: 1000, burst: 1000 };
        Self {
            lend: Keep {
                age: Duration::from_millis(400),
                bytes: Bytes::new(64 << 20),
                packets: 65_536,
            },
            lends: allowance,
            asks: allowance,
            feedback_every: Some(Duration::from_secs(1)),
            keepalive_every: Some(Duration::from_secs(5)),
        }
    }
}

/// A packet for the application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The packet's flow and sequence.
    pub packet: PacketId,
    /// The path on which it came.
    pub arrival: Arrival,
    /// Set when it came after the flow's recovery deadline.
    pub is_late: bool,
    /// The sealed payload.
    pub payload: &'a [u8],
}
