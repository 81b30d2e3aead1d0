//! What a receiver is told, and what it hands over.

use tradewind_units::{Bytes, Duration};

use crate::budget::Allowance;
use crate::event::Arrival;
use crate::id::{PacketId, Peer};
use crate::message::Service;
use crate::store::Keep;

/// A flow at its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverFlow {
    /// Who sends it over the Internet.
    pub sender: Peer,
    /// The relay near by, if one serves it.
    pub egress: Option<Peer>,
    /// How that relay serves it: what it caches or codes it is asked for, and for what it codes
    /// packets are kept here, to be lent to it.
    pub service: Service,
    /// The round trip of the Internet path, as measured when the flow began.
    pub round_trip: Duration,
    /// How much later than it should have come a packet is still worth having: the latency budget
    /// less the path's delay.
    pub recovery_deadline: Duration,
}

impl ReceiverFlow {
    /// Who can be asked for what is missing.
    pub(super) fn keeper(&self) -> Option<Peer> {
        self.egress.filter(|_| matches!(self.service, Service::Caching | Service::Coding))
    }

    /// Whether others' packets may be recovered with those of this flow.
    pub(super) fn is_coded(&self) -> bool {
        self.service == Service::Coding
    }
}

/// What holds for all flows of a receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiverConfig {
    /// What is kept to be lent. Its age should be one to two round trips [JQ 3.2].
    pub lend: Keep,
    /// Packets lent.
    pub lends: Allowance,
    /// Packets that each flow may ask for.
    pub asks: Allowance,
    /// How often senders are told how their flows fare; `None`: never.
    pub feedback_every: Option<Duration>,
    /// How often egress relays hear that this receiver is there; `None`: never.
    pub keepalive_every: Option<Duration>,
}

impl Default for ReceiverConfig {
    /// Chosen: packets of 400 ms, two round trips of most paths; requests and loans as
    /// [`EgressConfig`](crate::egress::EgressConfig) allows them; reports each second, keepalives
    /// each 5 s.
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
    /// Which.
    pub packet: PacketId,
    /// How it came.
    pub way: Arrival,
    /// Whether it is later than the flow's patience.
    pub is_late: bool,
    /// The sealed payload.
    pub payload: &'a [u8],
}
