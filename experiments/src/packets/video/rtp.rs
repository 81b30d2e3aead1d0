//! Packets of RTP (RFC 3550): what of them tells which packet of which frame one is.

/// Bytes of a header without extensions.
pub(super) const HEADER_BYTES: usize = 12;
/// Samples of a voice packet: 20 ms at 8,000 a second, a byte each in G.711.
pub(super) const VOICE_SAMPLES: usize = 160;
/// Version 2, no padding, extension or sources.
const FIRST_BYTE: u8 = 0x80;
/// G.711 in Europe (RFC 3551).
const PCMA: u8 = 8;
/// Packet type of a control packet by which a sender leaves.
const BYE: u8 = 203;

/// What is read of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Rtp {
    /// One more with each packet.
    pub(super) sequence: u16,
    /// The same for all packets of a frame.
    pub(super) timestamp: u32,
}

impl Rtp {
    /// Reads a datagram; `None` when it is none, or one of control.
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

/// A packet of a voice call, by its number.
pub(super) fn voice(number: u16) -> Vec<u8> {
    let mut packet = vec![FIRST_BYTE, PCMA];
    packet.extend(number.to_be_bytes());
    packet.extend((u32::from(number) * VOICE_SAMPLES as u32).to_be_bytes());
    packet.resize(HEADER_BYTES + VOICE_SAMPLES, 0);
    packet
}

/// The control packet after which a receiver waits for nothing more; with a reason, as receivers want no fewer bytes than a header's.
pub(super) fn bye() -> [u8; 12] {
    [FIRST_BYTE | 1, BYE, 0, 2, 0, 0, 0, 1, 3, b'e', b'n', b'd']
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn voice_packets_are_read_as_what_they_are() {
        for number in [0, 1, 40_000] {
            let packet = voice(number);
            assert_eq!(packet.len(), 172);
            let timestamp = u32::from(number) * 160;
            assert_eq!(Rtp::parse(&packet), Some(Rtp { sequence: number, timestamp }));
        }
    }

    #[test]
    fn control_packets_and_what_is_no_rtp_are_left_out() {
        assert_eq!(Rtp::parse(&bye()), None);
        assert_eq!(Rtp::parse(&voice(1)[..11]), None);
        assert_eq!(Rtp::parse(&[0x40; 40]), None);
        assert_eq!(Rtp::parse(&[]), None);
        // The marker bit of a frame's last packet is no packet type.
        let mut last = voice(7);
        last[1] = 0x80 | 96;
        assert!(Rtp::parse(&last).is_some());
    }
}
