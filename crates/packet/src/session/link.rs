//! Links to a neighbour.

use std::net::{IpAddr, SocketAddr};

/// The two addresses of a link over the Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AddressPair {
    /// The neighbour's address.
    pub remote: SocketAddr,
    /// The local address; `None` when the socket has only one, or the system chooses.
    pub local: Option<IpAddr>,
}

impl From<SocketAddr> for AddressPair {
    fn from(remote: SocketAddr) -> Self {
        Self { remote, local: None }
    }
}

/// The path of datagrams to a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Link {
    /// Over the Internet, between these addresses.
    Internet(AddressPair),
    /// Over relays, inside the flow of this number, which the owner assigns.
    Overlay(u32),
}

impl Link {
    /// Returns the link to an address from the address that the system chooses.
    #[must_use]
    pub fn to(remote: SocketAddr) -> Self {
        Self::Internet(remote.into())
    }

    /// Returns the same link from the address that the system chooses.
    pub(super) fn without_local(self) -> Self {
        match self {
            Self::Internet(pair) => Self::to(pair.remote),
            Self::Overlay(_) => self,
        }
    }

    /// Returns whether datagrams on `arrival` come over this link; an unknown local address matches
    /// any.
    pub(super) fn covers(self, arrival: Self) -> bool {
        match (self, arrival) {
            (Self::Internet(this), Self::Internet(that)) => {
                let is_open = this.local.is_none() || that.local.is_none();
                this.remote == that.remote && (is_open || this.local == that.local)
            }
            _ => self == arrival,
        }
    }

    pub(super) const fn is_internet(self) -> bool {
        matches!(self, Self::Internet(_))
    }

    /// Returns the bytes that a cookie proves: the address and port, or the number.
    pub(super) fn proven_bytes(&self) -> [u8; 19] {
        let mut bytes = [0; 19];
        match self {
            Self::Internet(AddressPair { remote, .. }) => {
                let ip = match remote.ip() {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                bytes[1..17].copy_from_slice(&ip.octets());
                bytes[17..].copy_from_slice(&remote.port().to_be_bytes());
            }
            Self::Overlay(flow) => {
                bytes[0] = 1;
                bytes[1..5].copy_from_slice(&flow.to_be_bytes());
            }
        }
        bytes
    }
}
