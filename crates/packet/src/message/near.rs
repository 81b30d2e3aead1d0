//! The relays near an endpoint, as it reports them.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use tradewind_grant::PublicIdentity;
use tradewind_units::Duration;

use super::write::put_address;

/// The most relays that are reported of one endpoint. Chosen: one, and others in case it is down.
pub const MAX_NEAR: usize = 4;
/// Bytes of each entry: identity, address, round trip.
pub(super) const NEAR_BYTES: usize = 32 + 18 + 4;

/// A relay near an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearRelay {
    /// The relay's identity.
    pub identity: PublicIdentity,
    /// The address it listens at.
    pub address: SocketAddr,
    /// The round trip between relay and endpoint; zero: not known.
    pub round_trip: Duration,
}

/// Relays, the nearest first; borrowed from the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NearList<'a>(&'a [u8]);

impl<'a> NearList<'a> {
    /// Returns a list of entries that [`NearList::write`] wrote; `None` when they are too many or
    /// truncated.
    #[must_use]
    pub fn of(entries: &'a [u8]) -> Option<Self> {
        let is_whole = entries.len().is_multiple_of(NEAR_BYTES);
        (is_whole && entries.len() <= MAX_NEAR * NEAR_BYTES).then_some(Self(entries))
    }

    /// Writes entries, at most [`MAX_NEAR`] of them.
    pub fn write(relays: impl IntoIterator<Item = NearRelay>, out: &mut Vec<u8>) {
        for NearRelay { identity, address, round_trip } in relays.into_iter().take(MAX_NEAR) {
            out.extend_from_slice(identity.as_bytes());
            put_address(out, address);
            let micros = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
            out.extend_from_slice(&micros.to_be_bytes());
        }
    }

    /// Returns the entries as they are on the wire.
    #[must_use]
    pub fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Returns the relays.
    pub fn relays(&self) -> impl Iterator<Item = NearRelay> + use<'a> {
        self.0.chunks_exact(NEAR_BYTES).map(|entry| {
            let ip: [u8; 16] = entry[32..48].try_into().expect("16 of 54 bytes");
            let port = u16::from_be_bytes([entry[48], entry[49]]);
            let micros = u32::from_be_bytes(entry[50..54].try_into().expect("4 of 54 bytes"));
            NearRelay {
                identity: PublicIdentity::from_bytes(entry[..32].try_into().expect("32 bytes")),
                address: SocketAddr::new(IpAddr::V6(Ipv6Addr::from(ip)).to_canonical(), port),
                round_trip: Duration::from_micros(micros.into()),
            }
        })
    }
}
