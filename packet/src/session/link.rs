//! Ways to a neighbour.

use std::net::{IpAddr, SocketAddr};

/// How datagrams reach a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Over the Internet, to and from this address.
    Internet(SocketAddr),
    /// Over relays, inside the flow of this number; the number is the owner's.
    Overlay(u32),
}

impl Link {
    /// The bytes that a cookie proves: the address and port, or the number.
    pub(super) fn proven_bytes(&self) -> [u8; 19] {
        let mut bytes = [0; 19];
        match self {
            Self::Internet(address) => {
                let ip = match address.ip() {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                bytes[1..17].copy_from_slice(&ip.octets());
                bytes[17..].copy_from_slice(&address.port().to_be_bytes());
            }
            Self::Overlay(flow) => {
                bytes[0] = 1;
                bytes[1..5].copy_from_slice(&flow.to_be_bytes());
            }
        }
        bytes
    }
}
