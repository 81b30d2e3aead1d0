//! Packet services: the delay of a packet over each of them, and their costs `[JQ 3, 5.1]`.
//!
//! | service | on the Internet path | over the relays |
//! |---|---|---|
//! | direct | every packet | nothing |
//! | coding | every packet | repair packets, stored at the egress relay; asked for after a loss, solved with helpers' packets |
//! | caching | every packet | every packet, stored at the egress relay; asked for after a loss |
//! | forwarding | none, or every packet too | every packet, on to the receiver |

pub mod cost;
pub mod delay;

pub use cost::{CodingRates, PacketCost, RelayTariff, Stream, Tariff};
pub use delay::PacketPath;

/// A service that carries a flow's packets.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
    schemars::JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum PacketService {
    /// Over the Internet alone.
    Direct,
    /// Lost packets are reconstructed at the egress relay (CR-WAN).
    Coding,
    /// Lost packets are pulled from the egress relay.
    Caching,
    /// Every packet goes over the relays.
    Forwarding,
}

impl PacketService {
    /// All of them, in the order of their cost by the paper's simple count: 0, a part of c, c, 2c
    /// `[JQ 3]`.
    pub const ALL: [Self; 4] = [Self::Direct, Self::Coding, Self::Caching, Self::Forwarding];
}

impl std::fmt::Display for PacketService {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Coding => "coding",
            Self::Caching => "caching",
            Self::Forwarding => "forwarding",
        })
    }
}
