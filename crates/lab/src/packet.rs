//! Parsing of packets from hosts: addresses, headers, connection, ECN.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tradewind_wan::Ecn;

/// The IP version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    V4,
    V6,
}

/// The protocol after the IP header, as far as splitting depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Transport {
    Tcp,
    Udp,
    /// Anything else, including fragments: never split.
    Other,
}

/// The positions of a packet's parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) version: Version,
    pub(crate) transport: Transport,
    /// Bytes of the IP header.
    pub(crate) ip_bytes: u16,
    /// Bytes of the IP and the transport header.
    pub(crate) header_bytes: u16,
    /// Bytes of the whole packet, without padding behind it.
    pub(crate) total_bytes: u32,
    pub(crate) destination: IpAddr,
    pub(crate) ecn: Ecn,
    /// Hash of the 5-tuple (of the addresses alone where there are no ports).
    pub(crate) connection: u64,
}

const PROTOCOL_TCP: u8 = 6;
const PROTOCOL_UDP: u8 = 17;
pub(crate) const IPV6_HEADER_BYTES: usize = 40;
pub(crate) const UDP_HEADER_BYTES: usize = 8;
const MIN_IPV4_HEADER: usize = 20;
const MIN_TCP_HEADER: usize = 20;
/// Fragment offset and the flag "more fragments".
const FRAGMENT_BITS: u16 = 0x3fff;

impl Layout {
    /// Parses `packet`; returns `None` unless it is a whole IP packet.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        match packet.first()? >> 4 {
            4 => Self::parse_v4(packet),
            6 => Self::parse_v6(packet),
            _ => None,
        }
    }

    fn parse_v4(packet: &[u8]) -> Option<Self> {
        let ip_bytes = usize::from(packet[0] & 15) * 4;
        let total = usize::from(word(packet, 2)?);
        if ip_bytes < MIN_IPV4_HEADER || total < ip_bytes || total > packet.len() {
            return None;
        }
        let address = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?));
        let is_fragment = word(packet, 6)? & FRAGMENT_BITS != 0;
        let protocol = if is_fragment { u8::MAX } else { packet[9] };
        let ends = (IpAddr::V4(address(12)?), IpAddr::V4(address(16)?));
        Self::build(&packet[..total], Version::V4, ip_bytes, protocol, packet[1], ends)
    }

    fn parse_v6(packet: &[u8]) -> Option<Self> {
        let payload = usize::from(word(packet, 4)?);
        let total = IPV6_HEADER_BYTES + payload;
        if total > packet.len() {
            return None;
        }
        let address = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?));
        let class = (packet[0] << 4) | (packet[1] >> 4);
        let ends = (IpAddr::V6(address(8)?), IpAddr::V6(address(24)?));
        // Extension headers, including those of fragments, count as payload of an unknown
        // transport.
        Self::build(&packet[..total], Version::V6, IPV6_HEADER_BYTES, packet[6], class, ends)
    }

    fn build(
        packet: &[u8],
        version: Version,
        ip_bytes: usize,
        protocol: u8,
        class: u8,
        (source, destination): (IpAddr, IpAddr),
    ) -> Option<Self> {
        let body = &packet[ip_bytes..];
        let (transport, transport_bytes) = match protocol {
            PROTOCOL_TCP if body.len() >= MIN_TCP_HEADER => {
                (Transport::Tcp, usize::from(body[12] >> 4) * 4)
            }
            PROTOCOL_UDP if body.len() >= UDP_HEADER_BYTES => (Transport::Udp, UDP_HEADER_BYTES),
            _ => (Transport::Other, 0),
        };
        if transport_bytes > body.len()
            || (transport == Transport::Tcp && transport_bytes < MIN_TCP_HEADER)
        {
            return None;
        }
        let ports = match transport {
            Transport::Other => 0,
            Transport::Tcp | Transport::Udp => {
                u32::from_be_bytes([body[0], body[1], body[2], body[3]])
            }
        };
        Some(Self {
            version,
            transport,
            ip_bytes: ip_bytes as u16,
            header_bytes: (ip_bytes + transport_bytes) as u16,
            total_bytes: packet.len() as u32,
            destination,
            ecn: ecn_of(class),
            connection: hash_connection(source, destination, protocol, ports),
        })
    }
}

fn word(packet: &[u8], at: usize) -> Option<u16> {
    packet.get(at..)?.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn ecn_of(class: u8) -> Ecn {
    match class & 3 {
        0 => Ecn::NotCapable,
        3 => Ecn::Marked,
        _ => Ecn::Capable,
    }
}

/// Hashes a connection (FNV-1a, then one round of mixing). The result is the same in every run, so
/// that a seed reproduces a run.
fn hash_connection(source: IpAddr, destination: IpAddr, protocol: u8, ports: u32) -> u64 {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(v4) => u128::from(v4.to_bits()),
        IpAddr::V6(v6) => v6.to_bits(),
    };
    let words = [bits(source), bits(destination), u128::from(ports) << 8 | u128::from(protocol)];
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for half in words.into_iter().flat_map(|word| [(word >> 64) as u64, word as u64]) {
        hash = (hash ^ half).wrapping_mul(0x0000_0100_0000_01b3);
        hash ^= hash >> 32;
    }
    hash
}

#[cfg(test)]
pub(crate) mod samples {
    //! Packets to test with, built byte by byte.

    use super::*;
    use crate::checksum;

    /// Builds a whole packet with correct checksums; `payload` follows a header of `transport`.
    pub(crate) fn packet(version: Version, transport: Transport, payload: &[u8]) -> Vec<u8> {
        let mut body = match transport {
            Transport::Tcp => {
                let mut tcp = vec![0; 32];
                tcp[..4].copy_from_slice(&[0x9c, 0x40, 0x01, 0xbb]);
                tcp[4..8].copy_from_slice(&0xffff_f000_u32.to_be_bytes());
                tcp[8..12].copy_from_slice(&7u32.to_be_bytes());
                tcp[12] = 8 << 4;
                tcp[13] = 0b1001_1001; // CWR, ACK, PSH, FIN
                tcp[14..16].copy_from_slice(&[0x01, 0xf5]);
                tcp[20..24].copy_from_slice(&[1, 1, 8, 10]);
                tcp
            }
            Transport::Udp => {
                let mut udp = vec![0x9c, 0x40, 0x01, 0xbb, 0, 0, 0, 0];
                let len = (UDP_HEADER_BYTES + payload.len()) as u16;
                udp[4..6].copy_from_slice(&len.to_be_bytes());
                udp
            }
            Transport::Other => Vec::new(),
        };
        body.extend_from_slice(payload);
        let protocol = match transport {
            Transport::Tcp => PROTOCOL_TCP,
            Transport::Udp => PROTOCOL_UDP,
            Transport::Other => 132,
        };
        let mut packet = ip_header(version, protocol, body.len());
        let ip_bytes = packet.len();
        packet.extend(body);
        checksum::fill_reference(&mut packet, ip_bytes, transport);
        packet
    }

    fn ip_header(version: Version, protocol: u8, body: usize) -> Vec<u8> {
        match version {
            Version::V4 => {
                let mut header = vec![0x45, 0x02, 0, 0, 0xff, 0xfe, 0x40, 0, 64, protocol, 0, 0];
                header[2..4].copy_from_slice(&((20 + body) as u16).to_be_bytes());
                header.extend([10, 200, 0, 1, 10, 200, 0, 2]);
                header
            }
            Version::V6 => {
                let mut header = vec![0x60, 0x20, 0, 1, 0, 0, protocol, 64];
                header[4..6].copy_from_slice(&(body as u16).to_be_bytes());
                header.extend(crate::address::v6(tradewind_wan::HostIndex(0)).octets());
                header.extend(crate::address::v6(tradewind_wan::HostIndex(1)).octets());
                header
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_and_udp_are_found_in_both_ips() {
        for (version, ip_bytes) in [(Version::V4, 20), (Version::V6, 40)] {
            for (transport, bytes) in [(Transport::Tcp, 32), (Transport::Udp, 8)] {
                let packet = samples::packet(version, transport, &[9; 100]);
                let layout = Layout::parse(&packet).unwrap();
                assert_eq!((layout.version, layout.transport), (version, transport));
                assert_eq!((layout.ip_bytes, layout.header_bytes), (ip_bytes, ip_bytes + bytes));
                assert_eq!(layout.total_bytes as usize, packet.len());
                assert_eq!(layout.ecn, Ecn::Capable);
                assert_eq!(
                    crate::address::host_of(layout.destination),
                    Some(tradewind_wan::HostIndex(1))
                );
            }
        }
    }

    #[test]
    fn fragments_have_no_transport() {
        let mut packet = samples::packet(Version::V4, Transport::Udp, &[0; 40]);
        packet[6] = 0x20;
        assert_eq!(Layout::parse(&packet).unwrap().transport, Transport::Other);
    }

    #[test]
    fn cut_and_foreign_packets_are_refused() {
        let whole = samples::packet(Version::V4, Transport::Tcp, &[1; 10]);
        for len in 0..whole.len() {
            assert_eq!(Layout::parse(&whole[..len]), None, "{len} bytes");
        }
        assert_eq!(Layout::parse(&[0x55; 60]), None);
        let mut short_tcp = whole;
        short_tcp[32] = 4 << 4;
        assert_eq!(Layout::parse(&short_tcp), None);
    }

    #[test]
    fn connections_are_told_apart_by_their_ports() {
        let packet = samples::packet(Version::V6, Transport::Udp, &[0; 8]);
        let mut other = packet.clone();
        other[41] ^= 1;
        let hash = |bytes: &[u8]| Layout::parse(bytes).unwrap().connection;
        assert_eq!(hash(&packet), hash(&packet.clone()));
        assert_ne!(hash(&packet), hash(&other));
    }
}
