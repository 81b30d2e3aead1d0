//! RTP packets (RFC 3550): the fields that identify a packet and its frame.

/// Bytes of a header without extensions.
pub(super) const HEADER_BYTES: usize = 12;
/// Samples of a voice packet: 20 ms at 8,000 per second, one byte each in G.711.
pub(super) const VOICE_SAMPLES: usize = 160;
/// Version 2, no padding, extension or sources.
const FIRST_BYTE: u8 = 0x80;
/// G.711 in Europe (RFC 3551).
const PCMA: u8 = 8;
/// Packet type of a control packet by which a sender leaves.
const BYE: u8 = 203;

/// The identifying fields of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rtp {
    /// The sequence number, incremented by each packet.
    pub(super) sequence: u16,
    /// The time stamp, equal for all packets of a frame.
    pub(super) timestamp: u32,
}

impl Rtp {
    /// Parses a datagram; returns `None` unless it is an RTP packet and no control packet.
    pub(super) fn parse(datagram: &[u8]) -> Option<Self> {
        let (header, _) = datagram.split_first_chunk::<HEADER_BYTES>()?;
        let is_control = (192..=223).contains(&header[1]);
        if header[0] >> 6 != 2 || is_control {
            return None;
        }
        Some(Self {
            sequence: u16::from_be_bytes([header[2], header[3]]),
            timestamp: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
        })
    }
}

/// Returns a packet of a voice call, by its number.
pub(super) fn voice(number: u16) -> Vec<u8> {
    let mut packet = vec![FIRST_BYTE, PCMA];
    packet.extend(number.to_be_bytes());
    packet.extend((u32::from(number) * VOICE_SAMPLES as u32).to_be_bytes());
    packet.resize(HEADER_BYTES + VOICE_SAMPLES, 0);
    packet
}

/// Returns the control packet that ends a receiver's waiting. It has a reason because receivers
/// require at least the length of a header.
pub(super) fn bye() -> [u8; 12] {
    [FIRST_BYTE | 1, BYE, 0, 2, 0, 0, 0, 1, 3, b'e', b'n', b'd']
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voice_packets_are_parsed() {
        for number in [0, 1, 40_000] {
            let packet = voice(number);
            assert_eq!(packet.len(), 172);
            let timestamp = u32::from(number) * 160;
            assert_eq!(Rtp::parse(&packet), Some(Rtp { sequence: number, timestamp }));
        }
    }

    #[test]
    fn control_and_foreign_packets_are_ignored() {
        assert_eq!(Rtp::parse(&bye()), None);
        assert_eq!(Rtp::parse(&voice(1)[..11]), None);
        assert_eq!(Rtp::parse(&[0x40; 40]), None);
        assert_eq!(Rtp::parse(&[]), None);
        // The marker bit of a frame's last packet is not part of the packet type.
        let mut last = voice(7);
        last[1] = 0x80 | 96;
        assert!(Rtp::parse(&last).is_some());
    }
}
