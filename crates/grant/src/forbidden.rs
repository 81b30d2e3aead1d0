//! Addresses that are never dialled, and those that need an explicit rule.
//!
//! IPv6 can carry IPv4 in several ways (mapped, compatible, translated, NAT64, 6to4). The address
//! inside is checked too, and one that is not public makes the whole address forbidden. The ranges
//! are those of the IANA special-purpose registries, RFC 6890 and its successors; the metadata
//! services are those that the clouds document.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The class of an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Public: ordinary rules cover it.
    Public,
    /// RFC 1918, unique local, shared (CGNAT), benchmarking and documentation ranges: covered
    /// only by rules that lie within such a range.
    Private,
    /// The own host.
    Loopback,
    /// `0.0.0.0/8` and `::`.
    Unspecified,
    /// This link only.
    LinkLocal,
    /// A cloud's instance metadata or host agent.
    Metadata,
    /// Multicast.
    Multicast,
    /// Reserved, broadcast, or a tunnel whose remote end is unknown (Teredo, local NAT64).
    Reserved,
}

impl Class {
    /// Returns whether such an address is refused regardless of the rules.
    #[must_use]
    pub const fn is_forbidden(self) -> bool {
        !matches!(self, Self::Public | Self::Private)
    }

    /// Returns the article before its name in a sentence.
    pub(crate) const fn article(self) -> &'static str {
        match self {
            Self::Unspecified => "an",
            _ => "a",
        }
    }
}

impl std::fmt::Display for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Public => "public",
            Self::Private => "private",
            Self::Loopback => "loopback",
            Self::Unspecified => "unspecified",
            Self::LinkLocal => "link-local",
            Self::Metadata => "metadata",
            Self::Multicast => "multicast",
            Self::Reserved => "reserved",
        })
    }
}

const METADATA_V4: [Ipv4Addr; 4] = [
    Ipv4Addr::new(169, 254, 169, 254), // most clouds
    Ipv4Addr::new(168, 63, 129, 16),   // Azure's host agent
    Ipv4Addr::new(100, 100, 100, 200), // Alibaba
    Ipv4Addr::new(192, 0, 0, 192),     // Oracle's older one
];
const METADATA_V6: [Ipv6Addr; 3] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), // GCP
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),  // Scaleway
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe), // Oracle
];

/// IPv4 ranges that are not public: address, prefix length, class. The first match holds.
const RANGES_V4: &[(Ipv4Addr, u8, Class)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, Class::Unspecified),
    (Ipv4Addr::new(10, 0, 0, 0), 8, Class::Private),
    (Ipv4Addr::new(100, 64, 0, 0), 10, Class::Private),
    (Ipv4Addr::new(127, 0, 0, 0), 8, Class::Loopback),
    (Ipv4Addr::new(169, 254, 0, 0), 16, Class::LinkLocal),
    (Ipv4Addr::new(172, 16, 0, 0), 12, Class::Private),
    (Ipv4Addr::new(192, 0, 0, 0), 24, Class::Reserved),
    (Ipv4Addr::new(192, 0, 2, 0), 24, Class::Private),
    (Ipv4Addr::new(192, 88, 99, 0), 24, Class::Reserved),
    (Ipv4Addr::new(192, 168, 0, 0), 16, Class::Private),
    (Ipv4Addr::new(198, 18, 0, 0), 15, Class::Private),
    (Ipv4Addr::new(198, 51, 100, 0), 24, Class::Private),
    (Ipv4Addr::new(203, 0, 113, 0), 24, Class::Private),
    (Ipv4Addr::new(224, 0, 0, 0), 4, Class::Multicast),
    (Ipv4Addr::new(240, 0, 0, 0), 4, Class::Reserved),
];

/// IPv6 ranges; the first match holds. An address that none covers was never assigned: reserved.
const RANGES_V6: &[(Ipv6Addr, u8, Class)] = &[
    (Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96, Class::Public),
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, Class::Reserved),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, Class::Private),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, Class::Private),
    (Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3, Class::Public),
    // AWS: metadata, credentials of pods, resolver, clock
    (Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0), 32, Class::Metadata),
    (Ipv6Addr::new(0xfc00, 0, 0, 0, 0, 0, 0, 0), 7, Class::Private),
    (Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10, Class::LinkLocal),
    (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8, Class::Multicast),
];

/// Returns the class of `address`, looking through IPv6 forms that carry an IPv4 address.
#[must_use]
pub fn class_of(address: IpAddr) -> Class {
    match address.to_canonical() {
        IpAddr::V4(v4) => class_of_v4(v4),
        IpAddr::V6(v6) => class_of_v6(v6),
    }
}

fn class_of_v4(address: Ipv4Addr) -> Class {
    if METADATA_V4.contains(&address) {
        return Class::Metadata;
    }
    let within = |range: &&(Ipv4Addr, u8, Class)| same_prefix_v4(address, range.0, range.1);
    RANGES_V4.iter().find(within).map_or(Class::Public, |range| range.2)
}

fn class_of_v6(address: Ipv6Addr) -> Class {
    if address == Ipv6Addr::LOCALHOST {
        return Class::Loopback;
    }
    if address == Ipv6Addr::UNSPECIFIED {
        return Class::Unspecified;
    }
    if METADATA_V6.contains(&address) {
        return Class::Metadata;
    }
    let inside = embedded_v4(address).map_or(Class::Public, class_of_v4);
    if inside != Class::Public {
        // A private address is never legitimately reached through a translator or tunnel.
        return if inside == Class::Private { Class::Reserved } else { inside };
    }
    let within = |range: &&(Ipv6Addr, u8, Class)| same_prefix_v6(address, range.0, range.1);
    RANGES_V6.iter().find(within).map_or(Class::Reserved, |range| range.2)
}

/// Returns the host reached through `address`: the IPv4 address that it carries, if any.
pub(crate) fn innermost(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => embedded_v4(v6).map_or(IpAddr::V6(v6), IpAddr::V4),
        v4 => v4,
    }
}

/// Returns the IPv4 address inside a compatible, translated (RFC 2765), NAT64 (RFC 6052), 6to4 (RFC
/// 3056) or ISATAP (RFC 5214) one.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let [a, b, c, d, e, f, g, h] = address.segments();
    let join = |high: u16, low: u16| Ipv4Addr::from(u32::from(high) << 16 | u32::from(low));
    match [a, b, c, d, e, f] {
        [0, 0, 0, 0, 0, 0] | [0, 0, 0, 0, 0xffff, 0] | [0x64, 0xff9b, 0, 0, 0, 0] => {
            Some(join(g, h))
        }
        [0x2002, high, low, ..] => Some(join(high, low)),
        [_, _, _, _, 0 | 0x200, 0x5efe] => Some(join(g, h)),
        _ => None,
    }
}

/// Returns whether both addresses agree in their first `bits` bits.
pub(crate) fn same_prefix_v4(one: Ipv4Addr, other: Ipv4Addr, bits: u8) -> bool {
    let differing = u32::from(one) ^ u32::from(other);
    differing.leading_zeros() >= u32::from(bits)
}

/// Returns whether both addresses agree in their first `bits` bits.
pub(crate) fn same_prefix_v6(one: Ipv6Addr, other: Ipv6Addr, bits: u8) -> bool {
    let differing = u128::from(one) ^ u128::from(other);
    differing.leading_zeros() >= u32::from(bits)
}

/// Returns whether the whole range lies within one special range, and so covers it on purpose.
pub(crate) fn is_within_special(base: IpAddr, prefix_bits: u8) -> bool {
    match base {
        IpAddr::V4(base) => RANGES_V4
            .iter()
            .any(|&(special, bits, _)| prefix_bits >= bits && same_prefix_v4(base, special, bits)),
        IpAddr::V6(Ipv6Addr::LOCALHOST) => prefix_bits == 128,
        IpAddr::V6(base) => RANGES_V6.iter().any(|&(special, bits, class)| {
            class != Class::Public && prefix_bits >= bits && same_prefix_v6(base, special, bits)
        }),
    }
}
