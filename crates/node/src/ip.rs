//! The two ends of an IP packet: all that must be known of packets that travel whole.
//!
//! An ICMP error belongs to the packet that it is about, whichever router sends it: it takes the
//! reverse path of that packet, so that hosts learn the MTU of the path beyond a gateway, and that
//! a host is unreachable.
//!
//! A packet can also be marked as having met congestion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a header without options.
const V4: usize = 20;
const V6: usize = 40;
/// Bytes of an ICMP error before the packet that it is about.
const ERROR: usize = 8;
/// ICMP's and ICMPv6's numbers as protocols.
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// Returns the source and the destination of a packet; an error counts as a reply to the packet
/// that it is about. `None` for anything that is no IP packet.
pub(crate) fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (from, to) = addresses(packet)?;
    let Some(quoted) = quoted_packet(packet) else { return Some((from, to)) };
    let (sender, receiver) = addresses(quoted)?;
    // An error goes to the sender of the packet, from one host.
    (sender == to && is_one_host(from) && is_one_host(to)).then_some((receiver, sender))
}

/// Returns whether an address is that of one host, which may send and get errors. Source: RFC 1122,
/// 3.2.1.3 and 3.2.2; RFC 4443, 2.4.
fn is_one_host(address: IpAddr) -> bool {
    match address {
        // "This network", multicast, and reserved addresses, among these broadcast.
        IpAddr::V4(v4) => !matches!(v4.octets()[0], 0 | 224..) && !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_unspecified() && !v6.is_multicast() && !v6.is_loopback(),
    }
}

fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let header: &[u8; V4] = packet.first_chunk()?;
            let at = |from: usize| {
                Ipv4Addr::new(header[from], header[from + 1], header[from + 2], header[from + 3])
            };
            Some((at(12).into(), at(16).into()))
        }
        6 => {
            let header: &[u8; V6] = packet.first_chunk()?;
            let (from, to) = header[8..].split_at(16);
            let at = |bytes: &[u8]| Some(Ipv6Addr::from(<[u8; 16]>::try_from(bytes).ok()?));
            Some((at(from)?.into(), at(to)?.into()))
        }
        _ => None,
    }
}

/// Returns the packet that an ICMP error is about; `None` for other packets.
fn quoted_packet(packet: &[u8]) -> Option<&[u8]> {
    let message = match packet.first()? >> 4 {
        4 => {
            let is_first_piece = packet.get(6..8)? == [packet[6] & 0xe0, 0];
            let message = packet.get(usize::from(packet[0] & 15) * 4..)?;
            let is_error = matches!(message.first()?, 3 | 11 | 12);
            (packet.get(9) == Some(&ICMP) && is_first_piece && is_error).then_some(message)
        }
        6 => {
            let message = packet.get(V6..)?;
            let is_error = (1..=4).contains(message.first()?);
            (packet.get(6) == Some(&ICMP6) && is_error).then_some(message)
        }
        _ => None,
    };
    message?.get(ERROR..)
}

/// Bytes of a packet that an error about it holds. Source: RFC 1812, 4.3.2.3, for IPv4; RFC 4443,
/// 3.2, as long as the error is no longer than 1,280 bytes, for IPv6.
const QUOTED_V4: usize = 548;
const QUOTED_V6: usize = 1280 - V6 - ERROR;
/// The hop limit of an error.
const HOPS: u8 = 64;

/// Returns the ICMP error that tells the sender of `packet` that it is too long, on behalf of its
/// destination: packets may have `mtu` bytes. `None` where no error may be sent: for another error,
/// a later fragment, an IPv4 packet that routers may fragment, or one that does not go from one
/// host to one.
pub(crate) fn too_long(packet: &[u8], mtu: u16) -> Option<Vec<u8>> {
    let (from, to) = addresses(packet)?;
    if quoted_packet(packet).is_some() || !is_one_host(from) || !is_one_host(to) {
        return None;
    }
    match (from, to) {
        (IpAddr::V4(sender), IpAddr::V4(other)) => {
            let [high, low] = packet.get(6..8)?.try_into().ok()?;
            let (may_be_cut, is_later) = (high & 0x40 == 0, (high & 0x1f, low) != (0, 0));
            if may_be_cut || is_later {
                return None;
            }
            let quoted = packet.get(..packet.len().min(QUOTED_V4))?;
            let length = u16::try_from(V4 + ERROR + quoted.len()).ok()?;
            let mut error = vec![0x45, 0, 0, 0, 0, 0, 0, 0, HOPS, ICMP, 0, 0];
            error[2..4].copy_from_slice(&length.to_be_bytes());
            error.extend_from_slice(&other.octets());
            error.extend_from_slice(&sender.octets());
            let sum = !sum(0, &error);
            error[10..12].copy_from_slice(&sum.to_be_bytes());
            // Fragmentation needed (RFC 1191).
            error.extend_from_slice(&[3, 4, 0, 0, 0, 0]);
            error.extend_from_slice(&mtu.to_be_bytes());
            error.extend_from_slice(quoted);
            let sum = !self::sum(0, &error[V4..]);
            error[V4 + 2..V4 + 4].copy_from_slice(&sum.to_be_bytes());
            Some(error)
        }
        (IpAddr::V6(sender), IpAddr::V6(other)) => {
            let quoted = packet.get(..packet.len().min(QUOTED_V6))?;
            let length = u16::try_from(ERROR + quoted.len()).ok()?;
            let mut error = vec![0x60, 0, 0, 0, 0, 0, ICMP6, HOPS];
            error[4..6].copy_from_slice(&length.to_be_bytes());
            error.extend_from_slice(&other.octets());
            error.extend_from_slice(&sender.octets());
            // Packet too big (RFC 4443, 3.2).
            error.extend_from_slice(&[2, 0, 0, 0, 0, 0]);
            error.extend_from_slice(&mtu.to_be_bytes());
            error.extend_from_slice(quoted);
            // The checksum also covers a header of addresses, length and protocol.
            let besides = u32::from(length) + u32::from(ICMP6);
            let sum = !sum(besides, &error[8..]);
            error[V6 + 2..V6 + 4].copy_from_slice(&sum.to_be_bytes());
            Some(error)
        }
        _ => None,
    }
}

/// Returns the sum of 16-bit words in ones' complement (RFC 1071).
fn sum(before: u32, bytes: &[u8]) -> u16 {
    let (pairs, last) = bytes.as_chunks::<2>();
    let words = pairs.iter().map(|pair| u32::from(u16::from_be_bytes(*pair)));
    let last = last.iter().map(|byte| u32::from(*byte) << 8);
    let mut all = before + words.chain(last).sum::<u32>();
    while all > 0xffff {
        all = (all & 0xffff) + (all >> 16);
    }
    all as u16
}

/// Marks a packet in its header as having met congestion, if its ends support that [RFC 3168];
/// returns whether they do.
pub(crate) fn mark_congestion(packet: &mut [u8]) -> bool {
    const MET: u8 = 0b11;
    let is_understood = |bits: u8| matches!(bits, 0b01 | 0b10);
    match packet {
        [0x40..=0x4f, service, ..] if is_understood(*service & MET) => {
            let before = *service;
            *service |= MET;
            let added = u16::from(*service - before);
            if let Some([high, low]) = packet.get(10..12) {
                // The checksum is of the ones' complement: it loses what the header gains [RFC
                // 1624].
                let (sum, borrows) = u16::from_be_bytes([*high, *low]).overflowing_sub(added);
                let sum = sum - u16::from(borrows);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            true
        }
        [0x60..=0x6f, service, ..] if is_understood(*service >> 4 & MET) => {
            *service |= MET << 4;
            true
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLIENT: [u8; 4] = [10, 0, 0, 1];
    const ROUTER: [u8; 4] = [10, 9, 9, 9];
    const SERVER: [u8; 4] = [10, 1, 0, 2];

    fn v4(protocol: u8, from: [u8; 4], to: [u8; 4], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; V4];
        (packet[0], packet[9]) = (0x45, protocol);
        packet[12..16].copy_from_slice(&from);
        packet[16..].copy_from_slice(&to);
        [&packet, payload].concat()
    }

    fn v6(protocol: u8, from: [u8; 16], to: [u8; 16], payload: &[u8]) -> Vec<u8> {
        [&[0x60, 0, 0, 0, 0, 0, protocol, 64][..], &from, &to, payload].concat()
    }

    #[test]
    fn addresses_are_read_from_header() {
        let pair = Some((CLIENT.into(), SERVER.into()));
        assert_eq!(ends(&v4(6, CLIENT, SERVER, &[0; 20])), pair);
        // An echo request is no error, and a later fragment of an error cannot be recognised as
        // one.
        assert_eq!(ends(&v4(ICMP, CLIENT, SERVER, &[8; 8])), pair);
        let mut piece = v4(ICMP, CLIENT, SERVER, &[3; 40]);
        piece[7] = 1;
        assert_eq!(ends(&piece), pair);
        let (from, to) = ([1; 16], [2; 16]);
        assert_eq!(ends(&v6(17, from, to, &[])), Some((from.into(), to.into())));
        assert_eq!(ends(&v6(ICMP6, from, to, &[128; 8])), Some((from.into(), to.into())));
    }

    #[test]
    fn icmp_error_follows_quoted_packet() {
        let sent = v4(17, CLIENT, SERVER, &[0; 8]);
        let answer = Some((SERVER.into(), CLIENT.into()));
        for kind in [3, 11, 12] {
            let error = [&[kind, 0, 0, 0, 0, 0, 0, 0], &sent[..]].concat();
            assert_eq!(ends(&v4(ICMP, ROUTER, CLIENT, &error)), answer);
        }
        let (client, router, server) = ([1; 16], [9; 16], [2; 16]);
        let error = [&[2, 0, 0, 0, 0, 0, 5, 0], &v6(6, client, server, &[])[..]].concat();
        let answer = Some((server.into(), client.into()));
        assert_eq!(ends(&v6(ICMP6, router, client, &error)), answer);
        assert_eq!(ends(&v6(ICMP6, router, router, &error)), None);
    }

    #[test]
    fn truncated_packets_have_no_addresses() {
        let error = [&[3, 0, 0, 0, 0, 0, 0, 0], &v4(17, CLIENT, SERVER, &[])[..]].concat();
        for whole in [v4(ICMP, ROUTER, CLIENT, &error), v6(6, [1; 16], [2; 16], &[])] {
            let is_error = whole[0] >> 4 == 4;
            for length in 0..whole.len() {
                let known = ends(&whole[..length]).is_some();
                assert!(!known || (is_error && length <= V4 + ERROR), "{length}");
            }
        }
        assert_eq!(ends(&[0; 60]), None);
    }

    /// Returns the sum of a header's sixteen-bit words, its checksum included: all ones when that
    /// is right.
    fn sum(header: &[u8]) -> u16 {
        super::sum(0, header)
    }

    #[test]
    fn packet_too_big_reports_mtu() {
        let mut sent = v4(17, CLIENT, SERVER, &[7; 1400]);
        assert_eq!(too_long(&sent, 1300), None, "routers may cut it");
        sent[6] = 0x40;
        let error = too_long(&sent, 1300).unwrap();
        assert_eq!(error.len(), V4 + ERROR + QUOTED_V4);
        assert_eq!((sum(&error[..V4]), sum(&error[V4..])), (0xffff, 0xffff));
        assert_eq!(&error[V4..V4 + ERROR][..2], [3, 4]);
        assert_eq!(u16::from_be_bytes([error[V4 + 6], error[V4 + 7]]), 1300);
        assert_eq!(&error[V4 + ERROR..], &sent[..QUOTED_V4]);
        // It goes between the same two, in the other direction.
        assert_eq!(ends(&error), Some((SERVER.into(), CLIENT.into())));
        assert_eq!(addresses(&error), Some((SERVER.into(), CLIENT.into())));
        assert_eq!(too_long(&error, 1300), None, "no error is about an error");
        let (client, server) = ([1; 16], [2; 16]);
        let sent = v6(6, client, server, &[7; 1401]);
        let error = too_long(&sent, 1280).unwrap();
        assert_eq!(error.len(), 1280);
        assert_eq!(ends(&error), Some((server.into(), client.into())));
        assert_eq!((error[V6], u16::from_be_bytes([error[V6 + 6], error[V6 + 7]])), (2, 1280));
        let length = u16::from_be_bytes([error[4], error[5]]);
        assert_eq!(super::sum(u32::from(length) + u32::from(ICMP6), &error[8..]), 0xffff);
    }

    #[test]
    fn truncated_packets_get_no_error() {
        let mut sent = v4(17, CLIENT, SERVER, &[7; 40]);
        sent[6] = 0x40;
        for length in 0..V4 {
            assert_eq!(too_long(&sent[..length], 1300), None);
        }
        sent[7] = 1;
        assert_eq!(too_long(&sent, 1300), None, "a later piece");
    }

    #[test]
    fn errors_are_unicast_only() {
        let odd = [[0, 0, 0, 0], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]];
        for odd in odd {
            for (from, to) in [(odd, SERVER), (CLIENT, odd)] {
                let mut sent = v4(17, from, to, &[7; 1400]);
                sent[6] = 0x40;
                assert_eq!(too_long(&sent, 1300), None, "{from:?} to {to:?}");
            }
            let error =
                |sender| [&[3, 0, 0, 0, 0, 0, 0, 0], &v4(17, sender, SERVER, &[0; 8])[..]].concat();
            assert_eq!(ends(&v4(ICMP, ROUTER, odd, &error(odd))), None, "told {odd:?}");
            assert_eq!(ends(&v4(ICMP, odd, CLIENT, &error(CLIENT))), None, "by {odd:?}");
        }
        let (client, server) = ([1; 16], [2; 16]);
        let loopback = Ipv6Addr::LOCALHOST.octets();
        for odd in [[0; 16], [0xff; 16], loopback] {
            for (from, to) in [(odd, server), (client, odd)] {
                assert_eq!(too_long(&v6(17, from, to, &[7; 1400]), 1280), None, "{odd:?}");
            }
            let error = [&[1, 0, 0, 0, 0, 0, 0, 0], &v6(17, odd, server, &[0; 8])[..]].concat();
            assert_eq!(ends(&v6(ICMP6, client, odd, &error)), None, "told {odd:?}");
        }
    }

    #[test]
    fn ecn_mark_keeps_checksum() {
        for (before, after) in [(0b00, 0b00), (0b01, 0b11), (0b10, 0b11), (0b11, 0b11)] {
            for code_point in 0..64 {
                let mut packet = v4(6, CLIENT, SERVER, &[7; 9]);
                packet[1] = code_point << 2 | before;
                let checksum = !sum(&packet[..V4]);
                packet[10..12].copy_from_slice(&checksum.to_be_bytes());
                mark_congestion(&mut packet);
                assert_eq!(packet[1], code_point << 2 | after);
                assert_eq!(sum(&packet[..V4]), 0xffff, "{code_point} {before}");
                let mut packet = v6(6, [1; 16], [2; 16], &[7; 9]);
                packet[..2]
                    .copy_from_slice(&[0x60 | code_point >> 2, code_point << 6 | before << 4 | 5]);
                mark_congestion(&mut packet);
                let expected = [0x60 | code_point >> 2, code_point << 6 | after << 4 | 5];
                assert_eq!(packet[..2], expected);
            }
        }
        for length in 0..V4 {
            mark_congestion(&mut [0x42; V4][..length]);
        }
    }
}
