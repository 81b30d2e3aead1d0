//! The header that TUN devices and packet sockets put before a packet (`struct virtio_net_hdr`).
//!
//! With it one read or write carries a *super-packet*: one set of headers and the payload of many
//! segments, which the kernel would otherwise have split and checksummed one by one. Its fields are
//! in the machine's byte order.

/// Bytes of the header on the wire.
pub const HEADER_BYTES: usize = 10;

const NEEDS_CHECKSUM: u8 = 1;
const GSO_TCP4: u8 = 1;
const GSO_TCP6: u8 = 4;
const GSO_UDP: u8 = 5;
const GSO_ECN: u8 = 0x80;

/// The protocol by which a super-packet is split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Segmentation {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP datagrams of one size, over either IP.
    Udp,
}

/// The parsed header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VirtioHeader {
    /// The transport checksum holds only the pseudo-header's sum; the receiver trusts or completes
    /// it.
    pub needs_checksum: bool,
    /// The splitting of the packet; `None` for a single packet.
    pub segmentation: Option<Segmentation>,
    /// True if the first segment carries TCP's CWR flag and the others must not.
    pub congestion_window_reduced: bool,
    /// Bytes of all headers before the payload.
    pub header_bytes: u16,
    /// Payload of each segment except the last; 0 for a single packet.
    pub segment_bytes: u16,
    /// Offset at which summing starts, from the packet's first byte.
    pub checksum_start: u16,
    /// Offset of the checksum field, from `checksum_start`.
    pub checksum_offset: u16,
}

impl VirtioHeader {
    /// Parses the header; `None` when `bytes` is too short or its segmentation is unknown.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; HEADER_BYTES] = bytes.get(..HEADER_BYTES)?.try_into().ok()?;
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let segmentation = match bytes[1] & !GSO_ECN {
            0 => None,
            GSO_TCP4 => Some(Segmentation::Tcp4),
            GSO_TCP6 => Some(Segmentation::Tcp6),
            GSO_UDP => Some(Segmentation::Udp),
            _ => return None,
        };
        Some(Self {
            needs_checksum: bytes[0] & NEEDS_CHECKSUM != 0,
            segmentation,
            congestion_window_reduced: bytes[1] & GSO_ECN != 0,
            header_bytes: word(2),
            segment_bytes: if segmentation.is_some() { word(4) } else { 0 },
            checksum_start: word(6),
            checksum_offset: word(8),
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let kind = match self.segmentation {
            None => 0,
            Some(Segmentation::Tcp4) => GSO_TCP4,
            Some(Segmentation::Tcp6) => GSO_TCP6,
            Some(Segmentation::Udp) => GSO_UDP,
        };
        let ecn = if self.congestion_window_reduced { GSO_ECN } else { 0 };
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = if self.needs_checksum { NEEDS_CHECKSUM } else { 0 };
        bytes[1] = kind | ecn;
        let words =
            [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (place, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_round_trip() {
        let header = VirtioHeader {
            needs_checksum: true,
            segmentation: Some(Segmentation::Tcp6),
            congestion_window_reduced: true,
            header_bytes: 72,
            segment_bytes: 1428,
            checksum_start: 40,
            checksum_offset: 16,
        };
        assert_eq!(VirtioHeader::parse(&header.encode()), Some(header));
        assert_eq!(VirtioHeader::parse(&[0; HEADER_BYTES]), Some(VirtioHeader::default()));
    }

    #[test]
    fn short_and_unknown_headers_are_refused() {
        assert_eq!(VirtioHeader::parse(&[0; HEADER_BYTES - 1]), None);
        assert_eq!(VirtioHeader::parse(&[0, 3, 0, 0, 0, 0, 0, 0, 0, 0]), None);
    }
}
