//! What goes into the emulated network and what comes out of it.

use std::ops::Range;

use tradewind_units::{Bytes, Timestamp};

use crate::topology::HostIndex;

/// The two ECN bits of the IP header, as far as a network cares (RFC 3168).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// The transport does not understand marks: such segments are never marked.
    #[default]
    NotCapable,
    /// ECT(0) or ECT(1): a full queue may mark instead of dropping later.
    Capable,
    /// Congestion was already experienced before this network.
    Marked,
}

/// Packets of one connection that enter together: one packet, or an offloaded super-packet.
///
/// The network sees `ceil(payload_bytes / segment_bytes)` segments (at least one), each of
/// `header_bytes` plus its share of the payload; all sizes are IP bytes, so that a rate means the
/// same here as it does in a cloud's data sheet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bundle<P> {
    /// The host that sends.
    pub source: HostIndex,
    /// The host it is for.
    pub destination: HostIndex,
    /// A hash of the 5-tuple: caps for each connection and the order of delivery go by it.
    pub connection: u64,
    /// IP and transport header of each segment.
    pub header_bytes: u32,
    /// Payload of all segments together.
    pub payload_bytes: u32,
    /// Payload of each segment but the last; when it is zero or not below `payload_bytes`, the
    /// bundle is a single segment.
    pub segment_bytes: u32,
    /// What the sender's transport says about marks.
    pub ecn: Ecn,
    /// Whatever the caller needs to build the packets again; cloned for each delivery but the last.
    pub content: P,
}

/// What became of a bundle at the door.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It is on its way (which says nothing about its arrival).
    Accepted,
    /// Segments larger than the path's MTU were dropped; the sender should be told by ICMP.
    TooBig {
        /// The largest IP packet that the path takes.
        mtu: Bytes,
    },
    /// No such host, or source and destination are the same.
    NoRoute,
}

/// Consecutive segments of one bundle, to be handed to their destination together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery<P> {
    /// When the last of these segments arrives, as planned.
    pub due: Timestamp,
    /// The host that sent them.
    pub source: HostIndex,
    /// The host they are for.
    pub destination: HostIndex,
    /// Which segments of the bundle, counted from zero.
    pub segments: Range<u32>,
    /// Whether they carry the mark "congestion experienced".
    pub ce_marked: bool,
    /// The bundle's content.
    pub content: P,
}
