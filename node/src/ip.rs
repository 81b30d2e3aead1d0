//! Between whom an IP packet goes: all that must be known of packets that travel whole.
//!
//! An ICMP error belongs to the packet that it tells of, whichever router says it: what it says goes back the way of that packet, so that
//! hosts learn what the path beyond a gateway takes, and that a host is not there.
//!
//! A packet can also be told to say that it has met congestion.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Bytes of a header without options.
const V4: usize = 20;
const V6: usize = 40;
/// Bytes of an ICMP error before the packet that it tells of.
const ERROR: usize = 8;
/// ICMP's and ICMPv6's numbers as protocols.
const ICMP: u8 = 1;
const ICMP6: u8 = 58;

/// From whom a packet comes and to whom it goes; an error, as if the packet that it tells of were answered. `None` for what is no IP packet.
pub(crate) fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let (from, to) = addresses(packet)?;
    let Some(told_of) = told_of(packet) else { return Some((from, to)) };
    let (sender, receiver) = addresses(told_of)?;
    // Whoever sent the packet is told.
    (sender == to).then_some((receiver, sender))
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

/// The packet that an ICMP error tells of; `None` for other packets.
fn told_of(packet: &[u8]) -> Option<&[u8]> {
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

/// Says in the header that the packet has met congestion, if its ends understand that [RFC 3168].
pub(crate) fn mark_congestion(packet: &mut [u8]) {
    const MET: u8 = 0b11;
    let is_understood = |bits: u8| matches!(bits, 0b01 | 0b10);
    match packet {
        [0x40..=0x4f, service, ..] if is_understood(*service & MET) => {
            let before = *service;
            *service |= MET;
            let added = u16::from(*service - before);
            if let Some([high, low]) = packet.get(10..12) {
                // The checksum is of the ones' complement: what the header gains, it loses [RFC 1624].
                let (sum, borrows) = u16::from_be_bytes([*high, *low]).overflowing_sub(added);
                let sum = sum - u16::from(borrows);
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
        }
        [0x60..=0x6f, service, ..] if is_understood(*service >> 4 & MET) => *service |= MET << 4,
        _ => {}
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
    fn a_packet_goes_between_the_addresses_of_its_header() {
        let pair = Some((CLIENT.into(), SERVER.into()));
        assert_eq!(ends(&v4(6, CLIENT, SERVER, &[0; 20])), pair);
        // An echo request is no error, and what is not the first piece of one does not say what it is.
        assert_eq!(ends(&v4(ICMP, CLIENT, SERVER, &[8; 8])), pair);
        let mut piece = v4(ICMP, CLIENT, SERVER, &[3; 40]);
        piece[7] = 1;
        assert_eq!(ends(&piece), pair);
        let (from, to) = ([1; 16], [2; 16]);
        assert_eq!(ends(&v6(17, from, to, &[])), Some((from.into(), to.into())));
        assert_eq!(ends(&v6(ICMP6, from, to, &[128; 8])), Some((from.into(), to.into())));
    }

    #[test]
    fn an_error_belongs_to_the_packet_that_it_tells_of() {
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
    fn what_is_cut_off_or_no_ip_goes_between_nobody() {
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

    /// What the sixteen-bit words of a header come to, its checksum included: all ones when that is right.
    fn sum(header: &[u8]) -> u16 {
        let words = header.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        ((sum & 0xffff) + (sum >> 16)) as u16
    }

    #[test]
    fn congestion_is_told_to_those_who_understand_and_the_checksum_stays_right() {
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
