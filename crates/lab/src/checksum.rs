//! The Internet checksum (RFC 1071).

use crate::packet::{Layout, Transport, Version};

/// Adds up `bytes` as big-endian words; an odd last byte counts as a high byte.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(2);
    let whole: u64 = words.by_ref().map(|w| u64::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    whole + words.remainder().first().map_or(0, |last| u64::from(*last) << 8)
}

/// Folds carries until 16 bits remain.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// Returns the checksum of `bytes`, whose own checksum field must be zero.
pub(crate) fn of(bytes: &[u8]) -> u16 {
    !fold(sum(bytes))
}

/// Fills in the header checksum of an IPv4 header.
pub(crate) fn fill_ipv4(header: &mut [u8]) {
    header[10..12].fill(0);
    let checksum = of(header);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Returns the sum of the pseudo-header of a TCP or UDP packet with `length` bytes after the IP
/// header: the value of the checksum field when checksum offload leaves its completion to the
/// receiver.
pub(crate) fn pseudo_header(header: &[u8], layout: &Layout, length: u32) -> u16 {
    let addresses = match layout.version {
        Version::V4 => &header[12..20],
        Version::V6 => &header[8..40],
    };
    let protocol = match layout.transport {
        Transport::Tcp => 6,
        Transport::Udp => 17,
        Transport::Other => 0,
    };
    fold(sum(addresses) + protocol + u64::from(length >> 16) + u64::from(length & 0xffff))
}

/// Updates the checksum at `at` after one word that it covers changed from `before` to `after` (RFC
/// 1624).
pub(crate) fn repair(bytes: &mut [u8], at: usize, before: u16, after: u16) {
    let checksum = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let repaired = !fold(u64::from(!checksum) + u64::from(!before) + u64::from(after));
    bytes[at..at + 2].copy_from_slice(&repaired.to_be_bytes());
}

/// Returns the checksum of `body`, given the sum of its pseudo-header.
pub(crate) fn with_pseudo_header(pseudo: u16, body: &[u8]) -> u16 {
    !fold(sum(body) + u64::from(pseudo))
}

/// Fills in all checksums of a packet by the plain procedure of the RFCs, as a slow reference.
#[cfg(test)]
pub(crate) fn fill_reference(packet: &mut [u8], ip_bytes: usize, transport: Transport) {
    let mut layout = Layout::parse(packet).expect("a packet built for a test");
    layout.transport = transport;
    if layout.version == Version::V4 {
        fill_ipv4(&mut packet[..ip_bytes]);
    }
    let place = match transport {
        Transport::Tcp => 16,
        Transport::Udp => 6,
        Transport::Other => return,
    };
    packet[ip_bytes + place..][..2].fill(0);
    let length = (packet.len() - ip_bytes) as u32;
    let pseudo = pseudo_header(packet, &layout, length);
    let checksum = with_pseudo_header(pseudo, &packet[ip_bytes..]);
    packet[ip_bytes + place..][..2].copy_from_slice(&checksum.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rfcs_worked_example_holds() {
        // RFC 1071, section 3: these words add up to ddf2.
        assert_eq!(of(&[0x00, 0x01, 0xf2, 0x03, 0xf4, 0xf5, 0xf6, 0xf7]), !0xddf2);
        assert_eq!(of(&[0x01]), !0x0100);
    }

    #[test]
    fn a_known_ipv4_header_is_summed_right() {
        let mut header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0xff, 0xff, 0xc0, 0xa8,
            0x00, 0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        fill_ipv4(&mut header);
        assert_eq!(header[10..12], [0xb8, 0x61]);
    }
}
