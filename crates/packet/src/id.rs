//! Names of what the machines speak about: peers, flows, packets.

/// A neighbour with whom a session stands: whoever drives a machine numbers them, and hands over
/// only what came in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Peer(pub u32);

/// A flow on the wire: 64 bits that the controller gives out, the same at all who carry it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FlowNumber(pub u64);

/// Whose traffic a flow is. Packets of two tenants are never coded together, unless both allow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tenant(pub u32);

/// One source packet. Sequences of a flow count from 0 in 64 bits and never wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PacketId {
    /// Its flow.
    pub flow: FlowNumber,
    /// Its place in it.
    pub sequence: u64,
}

/// Whether a payload is what its sender sealed as this packet.
///
/// Payloads are sealed end to end, and relays cannot tell. A receiver asks before it takes a
/// packet, so that no relay and no helper can put another in its place.
pub trait Genuine {
    /// Whether it is. Must not remember: it is asked again for copies.
    fn is_genuine(&self, packet: PacketId, payload: &[u8]) -> bool;
}

/// A plain function will do.
impl<F: Fn(PacketId, &[u8]) -> bool> Genuine for F {
    fn is_genuine(&self, packet: PacketId, payload: &[u8]) -> bool {
        self(packet, payload)
    }
}
