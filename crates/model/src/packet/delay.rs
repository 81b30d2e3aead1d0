//! Arrival times of packets `[JQ 5.1]`.
//!
//! With y the one-way delay of the Internet, x that between the relays and d that of an access
//! path:
//!
//! ```text
//! forwarding   x + d_S + d_R
//! caching      y + 2 d_R + W              for a packet that the Internet lost
//! coding       y + 2 d_R + 2 d_H + W      the same; H is the helper farthest from the egress relay
//! ```
//!
//! W is the time for which a request that arrives first waits at the egress relay for the packets
//! that it needs. The paper counts from the moment at which the lost packet would have arrived, and
//! assumes that repair packets are made at once; [`PacketPath::detection`] and
//! [`PacketPath::encoding`] add the time that these take.

use tradewind_units::Duration;

use super::PacketService;

/// The one-way delays of a flow and its relays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PacketPath {
    /// y: from sender to receiver over the Internet.
    pub internet: Duration,
    /// From the sender to the ingress relay.
    pub source_access: Duration,
    /// x: from the ingress relay to the egress relay.
    pub between_relays: Duration,
    /// From the egress relay to the receiver.
    pub receiver_access: Duration,
    /// From the egress relay to the farthest helper that it needs.
    pub helper_access: Duration,
    /// From the moment at which a packet was due until the receiver asks for it; zero in the
    /// paper's formulas.
    pub detection: Duration,
    /// From the arrival of a packet at the ingress relay until the repair packets of its block are
    /// sent; zero in the paper's formulas.
    pub encoding: Duration,
}

impl PacketPath {
    /// Returns the arrival time of a packet that needs the service: a lost one, with caching and
    /// coding. `None` over the Internet alone, where a lost packet does not arrive.
    #[must_use]
    pub fn delivery(&self, service: PacketService) -> Option<Duration> {
        match service {
            PacketService::Direct => None,
            PacketService::Forwarding => {
                Some(self.source_access + self.between_relays + self.receiver_access)
            }
            _ => Some(self.internet + self.recovery(service)?),
        }
    }

    /// Returns how much later than due a lost packet arrives; `None` with services that recover
    /// none.
    #[must_use]
    pub fn recovery(&self, service: PacketService) -> Option<Duration> {
        let asked = self.detection + 2 * self.receiver_access;
        match service {
            PacketService::Direct | PacketService::Forwarding => None,
            PacketService::Caching => Some(asked + self.wait(Duration::ZERO)),
            PacketService::Coding => {
                Some(asked + self.wait(self.encoding) + 2 * self.helper_access)
            }
        }
    }

    /// Returns the time for which a request waits for a packet that leaves the ingress relay
    /// `later` than the source's packet arrived there.
    fn wait(&self, later: Duration) -> Duration {
        let there = self.source_access + later + self.between_relays;
        there.saturating_sub(self.internet + self.detection + self.receiver_access)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn path() -> PacketPath {
        PacketPath {
            internet: ms(80),
            source_access: ms(5),
            between_relays: ms(75),
            receiver_access: ms(10),
            helper_access: ms(12),
            ..PacketPath::default()
        }
    }

    #[test]
    fn each_service_arrives_as_the_paper_counts() {
        let path = path();
        assert_eq!(path.delivery(PacketService::Direct), None);
        assert_eq!(path.delivery(PacketService::Forwarding), Some(ms(90)));
        // The copy is at the egress relay after 80 ms, the request after 90: nothing waits.
        assert_eq!(path.delivery(PacketService::Caching), Some(ms(100)));
        assert_eq!(path.delivery(PacketService::Coding), Some(ms(124)));
    }

    #[test]
    fn request_waits_for_a_later_packet() {
        let slow = PacketPath { between_relays: ms(100), ..path() };
        assert_eq!(slow.recovery(PacketService::Caching), Some(ms(20 + 15)));
        let encoded = PacketPath { encoding: ms(30), ..path() };
        assert_eq!(encoded.recovery(PacketService::Coding), Some(ms(20 + 24 + 20)));
        assert_eq!(encoded.recovery(PacketService::Caching), Some(ms(20)));
    }

    #[test]
    fn late_request_waits_less() {
        let late = PacketPath { detection: ms(25), encoding: ms(30), ..path() };
        assert_eq!(late.recovery(PacketService::Coding), Some(ms(25 + 20 + 24)));
    }
}
