//! A leg: a hop between two neighbours, over one or more TCP connections [CP IV-B], \[TRN\].
//!
//! Its rate is the least of what windows, connections, caps and loss allow:
//! `min(n * window / RTT, n * per-connection cap, n * loss-limited rate, cap)`.
//! CP's model of a single connection without loss, `min(window / RTT, BW)`, is the case n = 1.

use serde::{Deserialize, Serialize};
use tradewind_units::{Bandwidth, Bytes, Duration, Ratio, Segments, time};

use crate::tcp::LossResponse;

/// Largest window of a TCP connection of a Linux host as it comes: CP observed 23 Mbit [CP IV-C].
/// Default maxima allow little more: `net.ipv4.tcp_rmem` ends at 6 MiB (32 MiB since Linux 6.16),
/// of which half is window, `tcp_wmem` at 4 MiB, overhead included
/// (Documentation/networking/ip-sysctl.rst).
pub const DEFAULT_WINDOW: Bytes = Bytes::new(2_875_000);
/// Window between the relays of a two-relay path, where their hosts were set up for it [CP IV-C].
pub const RELAY_TO_RELAY_WINDOW: Bytes = Bytes::new(500_000_000);
/// Rate of one flow through a relay of CP, in Mbit/s [CP IV-C].
pub const RELAY_FLOW_MBPS: f64 = 1750.0;
/// Capacity of a relay's machine in CP, in Mbit/s [CP VII-A].
pub const RELAY_CAPACITY_MBPS: f64 = 2000.0;
/// Payload of a segment over Ethernet with TCP timestamps: 1500 - 20 - 32.
pub const DEFAULT_MSS: Bytes = Bytes::new(1448);
/// Linux's and RFC 6928's initial window.
pub const DEFAULT_INITIAL_WINDOW: u32 = 10;

/// Random loss on a leg, and the sender's response to it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Share of segments lost.
    pub ratio: Ratio,
    /// The sender's congestion control.
    pub response: LossResponse,
}

/// One hop between two neighbours on the overlay, as the sender's TCP sees it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Leg {
    /// Round-trip time without queues.
    #[serde(with = "time::as_text")]
    pub rtt: Duration,
    /// Most bytes in flight of one connection, by either end's settings.
    pub window: Bytes,
    /// Parallel connections; at least one.
    pub connections: u32,
    /// Highest rate of one connection, if anything limits it (a cloud's rule, a proxy's copy loop).
    pub per_connection_cap: Option<Bandwidth>,
    /// Highest rate of all connections together: the least of last miles and VM caps.
    pub cap: Option<Bandwidth>,
    /// Window of each connection's first flight.
    pub initial_window: Segments,
    /// Payload of a segment.
    pub mss: Bytes,
    /// Random loss, if there is any.
    pub loss: Option<Loss>,
}

impl Leg {
    /// Creates a leg of one default Linux connection without caps or loss: window 2.875 MB, initial
    /// window 10.
    #[must_use]
    pub fn new(rtt: Duration) -> Self {
        Self {
            rtt,
            window: DEFAULT_WINDOW,
            connections: 1,
            per_connection_cap: None,
            cap: None,
            initial_window: Segments::new(DEFAULT_INITIAL_WINDOW).expect("ten is a window"),
            mss: DEFAULT_MSS,
            loss: None,
        }
    }

    /// Returns the same leg with another window.
    #[must_use]
    pub fn with_window(self, window: Bytes) -> Self {
        Self { window, ..self }
    }

    /// Returns the same leg with this many parallel connections; none counts as one.
    #[must_use]
    pub fn with_connections(self, connections: u32) -> Self {
        Self { connections: connections.max(1), ..self }
    }

    /// Returns the same leg, its cap lowered to `cap` if that is less.
    #[must_use]
    pub fn capped_at(self, cap: Bandwidth) -> Self {
        Self { cap: Some(self.cap.map_or(cap, |own| own.min(cap))), ..self }
    }

    /// Returns the same leg, each connection's cap lowered to `cap` if that is less.
    #[must_use]
    pub fn capped_per_connection_at(self, cap: Bandwidth) -> Self {
        let lower = self.per_connection_cap.map_or(cap, |own| own.min(cap));
        Self { per_connection_cap: Some(lower), ..self }
    }

    /// Returns the same leg with random loss.
    #[must_use]
    pub fn with_loss(self, loss: Loss) -> Self {
        Self { loss: Some(loss), ..self }
    }

    /// Returns the leg's rate in the long run.
    #[must_use]
    pub fn rate(&self) -> Bandwidth {
        self.window_limit().min(self.bandwidth_limit())
    }

    /// Returns the rate that the windows of all connections allow: n * window / RTT; no limit where
    /// the RTT is zero.
    #[must_use]
    pub fn window_limit(&self) -> Bandwidth {
        let bytes = self.window.as_u64() as f64 * f64::from(self.connections.max(1));
        if self.rtt.is_zero() {
            return Bandwidth::MAX;
        }
        Bandwidth::saturating_from_bytes_per_s(bytes / self.rtt.as_secs_f64())
    }

    /// Returns the rate that caps and loss allow, windows aside.
    #[must_use]
    pub fn bandwidth_limit(&self) -> Bandwidth {
        let connections = f64::from(self.connections.max(1));
        let each = self.per_connection_cap.unwrap_or(Bandwidth::MAX);
        let lossy = self.loss.map(|loss| loss.response.rate(self.mss, self.rtt, loss.ratio));
        let each = lossy.map_or(each, |rate| rate.min(each));
        each.scaled(connections).min(self.cap.unwrap_or(Bandwidth::MAX))
    }

    /// Returns the name of the limit that binds the leg, in a word or two, for `explain`.
    #[must_use]
    pub fn bound_by(&self) -> &'static str {
        let connections = f64::from(self.connections.max(1));
        let rate = self.rate();
        if self.cap == Some(rate) {
            "cap"
        } else if self.window_limit() == rate {
            "window"
        } else if self.per_connection_cap.is_some_and(|cap| cap.scaled(connections) == rate) {
            "per-connection cap"
        } else {
            "loss"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mbps(rate: f64) -> Bandwidth {
        Bandwidth::from_mbps(rate).unwrap()
    }

    fn leg(rtt_ms: u64) -> Leg {
        Leg::new(Duration::from_millis(rtt_ms))
    }

    #[test]
    fn default_window_carries_23_megabits_each_rtt() {
        for rtt_ms in [10, 100, 230] {
            let expected = 23.0 / (rtt_ms as f64 / 1e3);
            assert!((leg(rtt_ms).rate().as_mbps() - expected).abs() < 1e-3);
            assert_eq!(leg(rtt_ms).bound_by(), "window");
        }
    }

    #[test]
    fn flow_limit_binds_between_relays() {
        let inner = leg(200).with_window(RELAY_TO_RELAY_WINDOW);
        assert_eq!(inner.rate(), mbps(20_000.0));
        let inner = inner.capped_per_connection_at(mbps(RELAY_FLOW_MBPS));
        assert_eq!(inner.rate(), mbps(1750.0));
        assert_eq!(inner.bound_by(), "per-connection cap");
        assert_eq!(inner.capped_at(mbps(1000.0)).rate(), mbps(1000.0));
        assert_eq!(inner.capped_at(mbps(1000.0)).bound_by(), "cap");
    }

    #[test]
    fn connections_add_up_until_the_machines_cap() {
        let one = leg(230);
        assert_eq!(one.with_connections(8).rate(), mbps(800.0));
        assert_eq!(one.with_connections(64).capped_at(mbps(5000.0)).rate(), mbps(5000.0));
        assert_eq!(one.with_connections(0).rate(), one.rate());
    }

    #[test]
    fn loss_limits_each_connection() {
        let ratio = Ratio::new(1e-3).unwrap();
        let lossy = leg(100).with_loss(Loss { ratio, response: LossResponse::Reno });
        assert!((lossy.rate().as_mbps() - 4.486).abs() < 0.01, "{}", lossy.rate());
        assert_eq!(lossy.bound_by(), "loss");
        let two = lossy.with_connections(2).rate().as_mbps();
        assert!((two / lossy.rate().as_mbps() - 2.0).abs() < 1e-6);
    }

    #[test]
    fn leg_without_distance_is_bound_by_its_cap_alone() {
        assert_eq!(leg(0).rate(), Bandwidth::MAX);
        assert_eq!(leg(0).capped_at(mbps(1000.0)).rate(), mbps(1000.0));
    }
}
