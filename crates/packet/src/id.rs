//! Identifiers of peers, flows and packets.

/// A neighbour with an open session. The machine's caller numbers them, and hands over only
/// messages that came in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

/// A flow on the wire: 64 bits that the controller assigns, the same at all nodes that carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowNumber(pub u64);

/// The owner of a flow. Packets of two tenants are never coded together, unless both allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u32);

/// One source packet. Sequences of a flow count from 0 in 64 bits and never wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId {
    /// The packet's flow.
    pub flow: FlowNumber,
    /// The packet's place in the flow.
    pub sequence: u64,
}

/// A check that a payload is the one that its sender sealed as this packet.
///
/// Payloads are sealed end to end, and relays cannot check them. A receiver does so before it takes
/// a packet, so that no relay and no helper can replace it.
pub trait Genuine {
    /// Returns whether the payload is genuine. Must keep no state: it is called again for copies.
    fn is_genuine(&self, packet: PacketId, payload: &[u8]) -> bool;
}

/// A plain function can be used.
impl<F: Fn(PacketId, &[u8]) -> bool> Genuine for F {
    fn is_genuine(&self, packet: PacketId, payload: &[u8]) -> bool {
        self(packet, payload)
    }
}
