//! Sources of connections and datagrams.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Prefix length within which IPv6 addresses count as one source: a site gets a /56 (RFC 6177).
const SOURCE_PREFIX_BITS: u32 = 56;

/// A source of connections or datagrams: an IPv4 address, or an IPv6 site (/56).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source(IpAddr);

impl Source {
    /// Returns the source that `address` belongs to.
    #[must_use]
    pub fn of(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(v6) => {
                let site = u128::from(v6) & !(u128::MAX >> SOURCE_PREFIX_BITS);
                Self(Ipv6Addr::from(site).into())
            }
            v4 => Self(v4),
        }
    }

    /// Returns whether it is loopback, where all programs of a host come from.
    #[must_use]
    pub fn is_loopback(self) -> bool {
        self == Self::of(Ipv6Addr::LOCALHOST.into()) || self.0.is_loopback()
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            IpAddr::V4(v4) => write!(f, "{v4}"),
            IpAddr::V6(v6) => write!(f, "{v6}/{SOURCE_PREFIX_BITS}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv6_site_is_one_source() {
        let of = |text: &str| Source::of(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2aa::1"), of("2001:db8:1:2ff::9"));
        assert_ne!(of("2001:db8:1:200::1"), of("2001:db8:1:300::1"));
        assert_eq!(of("::ffff:192.0.2.1"), of("192.0.2.1"));
        assert_ne!(of("192.0.2.2"), of("192.0.2.1"));
        assert!(["127.0.0.1", "127.9.9.9", "::1"].iter().all(|text| of(text).is_loopback()));
        assert!(!["192.0.2.1", "2001:db8::1"].iter().any(|text| of(text).is_loopback()));
        assert_eq!(of("2001:db8:1:2aa::1").to_string(), "2001:db8:1:200::/56");
    }
}
