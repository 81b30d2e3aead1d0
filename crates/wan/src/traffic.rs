//! Input and output of the emulated network.

use std::ops::Range;

use tradewind_units::{Bytes, Timestamp};

use crate::topology::HostIndex;

/// The two ECN bits of the IP header, as far as the network uses them (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// The transport does not understand marks: its segments are never marked.
    #[default]
    NotCapable,
    /// ECT(0) or ECT(1): a full queue may mark instead of dropping later.
    Capable,
    /// The packet was already marked before this network.
    Marked,
}

/// Packets of one connection that enter together: one packet, or an offloaded super-packet.
///
/// The network sees `ceil(payload_bytes / segment_bytes)` segments (at least one), each of
/// `header_bytes` plus its share of the payload; all sizes are IP bytes, so that a rate means the
/// same here as it does in a cloud's data sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle<P> {
    /// The sending host.
    pub source: HostIndex,
    /// The destination host.
    pub destination: HostIndex,
    /// A hash of the 5-tuple: it identifies the connection for per-connection caps and for the
    /// order of delivery.
    pub connection: u64,
    /// IP and transport header of each segment.
    pub header_bytes: u32,
    /// Payload of all segments together.
    pub payload_bytes: u32,
    /// Payload of each segment but the last. When it is zero or not below `payload_bytes`, the
    /// bundle is a single segment.
    pub segment_bytes: u32,
    /// The ECN bits of its packets.
    pub ecn: Ecn,
    /// Data from which the caller rebuilds the packets; cloned for each delivery but the last.
    pub content: P,
}

/// The result of pushing a bundle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is in flight (which does not guarantee its arrival).
    Accepted,
    /// Segments larger than the path's MTU were dropped; the sender should get an ICMP error.
    TooBig {
        /// The largest IP packet of the path.
        mtu: Bytes,
    },
    /// There is no such host, or source and destination are the same.
    NoRoute,
}

/// Consecutive segments of one bundle that are delivered together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<P> {
    /// The planned arrival of the last of these segments.
    pub due: Timestamp,
    /// The sending host.
    pub source: HostIndex,
    /// The destination host.
    pub destination: HostIndex,
    /// The indices of the segments in the bundle, from zero.
    pub segments: Range<u32>,
    /// `true` when they carry the mark "congestion experienced".
    pub ce_marked: bool,
    /// The bundle's content.
    pub content: P,
}
