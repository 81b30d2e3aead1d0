//! The address plan of the hosts.
//!
//! Host number `i` has `10.200.0.0 + i + 1` and `fd74:7277::` + `i + 1`; both are private, so they
//! can never be mistaken for places on the Internet. Address 0 of each range is the network's own:
//! ICMP errors come from there.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tradewind_wan::HostIndex;

const V4_BASE: u32 = u32::from_be_bytes([10, 200, 0, 0]);
const V6_BASE: u128 = 0xfd74_7277 << 96;

/// The maximum number of hosts: the range of [`v4`] without the network's own address and the last
/// address of the range.
pub const MAX_HOSTS: usize = u16::MAX as usize - 1;

/// The network's own IPv4 address.
pub const NETWORK_V4: Ipv4Addr = Ipv4Addr::from_bits(V4_BASE);
/// The network's own IPv6 address.
pub const NETWORK_V6: Ipv6Addr = Ipv6Addr::from_bits(V6_BASE);

/// Returns the IPv4 address of `host`.
#[must_use]
pub const fn v4(host: HostIndex) -> Ipv4Addr {
    Ipv4Addr::from_bits(V4_BASE + host.0 as u32 + 1)
}

/// Returns the IPv6 address of `host`.
#[must_use]
pub const fn v6(host: HostIndex) -> Ipv6Addr {
    Ipv6Addr::from_bits(V6_BASE + host.0 as u128 + 1)
}

/// Returns the MAC address of the host's device, for devices that have one.
#[must_use]
pub const fn hardware(host: HostIndex) -> [u8; 6] {
    let [high, low] = host.0.to_be_bytes();
    [0x02, 0x74, 0x77, 0x00, high, low]
}

/// Returns the host that owns `address` in this plan; the index may lie beyond the last host.
#[must_use]
pub fn host_of(address: IpAddr) -> Option<HostIndex> {
    let number = match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits().checked_sub(V4_BASE + 1)?),
        IpAddr::V6(v6) => v6.to_bits().checked_sub(V6_BASE + 1)?,
    };
    u16::try_from(number).ok().map(HostIndex)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_hosts_are_one_to_one() {
        for number in [0, 1, 254, 255, 256, 65_533] {
            let host = HostIndex(number);
            assert_eq!(host_of(v4(host).into()), Some(host));
            assert_eq!(host_of(v6(host).into()), Some(host));
            assert!(v4(host).is_private() && v6(host).is_unique_local());
        }
        assert_eq!(v4(HostIndex(0)), Ipv4Addr::new(10, 200, 0, 1));
        for other in ["10.200.0.0", "10.199.255.255", "224.0.0.1", "ff02::16", "fd74:7277::"] {
            assert_eq!(host_of(other.parse().unwrap()), None, "{other}");
        }
    }
}
