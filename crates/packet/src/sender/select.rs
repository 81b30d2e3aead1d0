//! Classifies packets as of high priority by their content before they are sealed [JQ 3.5, 5.4].
//!
//! Senders with a short uplink, or a small budget, copy these alone (`Copies::Chosen`). The last
//! packet of a window cannot be recognized by its content: the sender finds it by the silence that
//! follows.

use crate::message::Class;

/// The known properties of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Seen<'a> {
    /// Set when the application marked it.
    pub is_marked: bool,
    /// The whole IP packet, if there is one (TUN).
    pub ip: Option<&'a [u8]>,
    /// The payload of a datagram, if the packet is one (UDP proxy).
    pub datagram: Option<&'a [u8]>,
    /// The destination port, without an IP packet.
    pub port: Option<u16>,
    /// The differentiated services code point, without an IP packet.
    pub dscp: Option<u8>,
}

/// The rules that give a packet high priority; any one suffices.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rules {
    /// The application marked it.
    pub marked: bool,
    /// It opens a TCP connection: SYN or SYN-ACK.
    pub tcp_syn: bool,
    /// It holds a part of a key frame of H.264 over RTP (RFC 6184).
    pub rtp_key_frames: bool,
    /// Its code point is one of these.
    pub dscp: Vec<u8>,
    /// Its destination port is one of these.
    pub ports: Vec<u16>,
}

impl Rules {
    /// Returns the class of a packet.
    #[must_use]
    pub fn class(&self, seen: &Seen<'_>) -> Class {
        let header = seen.ip.and_then(Header::read);
        let port = header.and_then(|header| header.port).or(seen.port);
        let dscp = header.map(|header| header.dscp).or(seen.dscp);
        let datagram = header.and_then(|header| header.datagram).or(seen.datagram);
        let is_high = (self.marked && seen.is_marked)
            || (self.tcp_syn && header.is_some_and(|header| header.is_syn))
            || (self.rtp_key_frames && datagram.is_some_and(is_key_frame))
            || dscp.is_some_and(|dscp| self.dscp.contains(&dscp))
            || port.is_some_and(|port| self.ports.contains(&port));
        if is_high { Class::High } else { Class::Normal }
    }
}

/// The relevant fields of an IP packet's headers.
#[derive(Debug, Clone, Copy)]
struct Header<'a> {
    dscp: u8,
    port: Option<u16>,
    is_syn: bool,
    datagram: Option<&'a [u8]>,
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const SYN: u8 = 0x02;

impl<'a> Header<'a> {
    /// Reads the headers of IPv4, or of IPv6 without extensions; later fragments have no ports.
    fn read(packet: &'a [u8]) -> Option<Self> {
        let (dscp, protocol, rest) = match packet.first()? >> 4 {
            4 => {
                let length = usize::from(packet[0] & 0x0F) * 4;
                let fragment = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]) & 0x1FFF;
                let rest = packet.get(length.max(20)..)?;
                (packet[1] >> 2, packet[9], if fragment == 0 { rest } else { &[] })
            }
            6 => {
                let class = packet[0] << 4 | packet.get(1)? >> 4;
                (class >> 2, *packet.get(6)?, packet.get(40..)?)
            }
            _ => return None,
        };
        let has_ports = protocol == TCP || protocol == UDP;
        let port = rest.get(2..4).filter(|_| has_ports).map(|p| u16::from_be_bytes([p[0], p[1]]));
        let is_syn = protocol == TCP && rest.get(13).is_some_and(|flags| flags & SYN != 0);
        let datagram = if protocol == UDP { rest.get(8..) } else { None };
        Some(Self { dscp, port, is_syn, datagram })
    }
}

/// Returns whether a datagram is RTP (RFC 3550) with a part of an instantly decodable picture of
/// H.264, or its parameters.
fn is_key_frame(datagram: &[u8]) -> bool {
    /// Picture, sequence parameters, picture parameters.
    const KEY: [u8; 3] = [5, 7, 8];
    const AGGREGATE: u8 = 24;
    const FRAGMENT: u8 = 28;
    let Some(payload) = rtp_payload(datagram) else { return false };
    match payload {
        [first, ..] if KEY.contains(&(first & 0x1F)) => true,
        [first, header, ..] if first & 0x1F == FRAGMENT => KEY.contains(&(header & 0x1F)),
        [first, units @ ..] if first & 0x1F == AGGREGATE => {
            let mut units = units;
            while let [high, low, rest @ ..] = units {
                if rest.first().is_some_and(|unit| KEY.contains(&(unit & 0x1F))) {
                    return true;
                }
                let length = usize::from(u16::from_be_bytes([*high, *low]));
                units = rest.get(length..).unwrap_or_default();
            }
            false
        }
        _ => false,
    }
}

fn rtp_payload(datagram: &[u8]) -> Option<&[u8]> {
    let first = *datagram.first()?;
    if first >> 6 != 2 {
        return None;
    }
    let mut at = 12 + 4 * usize::from(first & 0x0F);
    if first & 0x10 != 0 {
        let words = datagram.get(at + 2..at + 4)?;
        at += 4 + 4 * usize::from(u16::from_be_bytes([words[0], words[1]]));
    }
    datagram.get(at..)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all() -> Rules {
        Rules {
            marked: true,
            tcp_syn: true,
            rtp_key_frames: true,
            dscp: vec![46],
            ports: vec![3478],
        }
    }

    fn ipv4(protocol: u8, dscp: u8, rest: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, dscp << 2, 0, 0, 0, 0, 0, 0, 64, protocol];
        packet.extend_from_slice(&[0; 10]);
        packet.extend_from_slice(rest);
        packet
    }

    fn rtp(payload: &[u8]) -> Vec<u8> {
        let mut datagram = vec![0x80, 96, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        datagram.extend_from_slice(payload);
        datagram
    }

    fn tcp(flags: u8) -> Vec<u8> {
        let mut segment = vec![0; 20];
        segment[13] = flags;
        segment
    }

    #[test]
    fn syn_segments_have_high_priority() {
        let class = |flags| {
            let packet = ipv4(TCP, 0, &tcp(flags));
            all().class(&Seen { ip: Some(&packet), ..Seen::default() })
        };
        assert_eq!([class(0x02), class(0x12)], [Class::High; 2]);
        assert_eq!([class(0x10), class(0x18), class(0x04)], [Class::Normal; 3]);
    }

    #[test]
    fn key_frames_are_found() {
        let class = |payload: &[u8]| {
            let datagram = rtp(payload);
            all().class(&Seen { datagram: Some(&datagram), ..Seen::default() })
        };
        assert_eq!(class(&[0x65, 1, 2]), Class::High);
        assert_eq!(class(&[0x7C, 0x85, 1]), Class::High);
        assert_eq!(class(&[0x78, 0, 1, 0x09, 0, 1, 0x67]), Class::High);
        assert_eq!(class(&[0x41, 1, 2]), Class::Normal);
        assert_eq!(class(&[0x7C, 0x81, 1]), Class::Normal);
        assert_eq!(class(&[0x78, 0, 1, 0x09, 0, 1, 0x41]), Class::Normal);
    }

    #[test]
    fn ports_and_dscp_are_read_or_given() {
        let packet = ipv4(UDP, 46, &[0; 8]);
        assert_eq!(all().class(&Seen { ip: Some(&packet), ..Seen::default() }), Class::High);
        let seen = Seen { port: Some(3478), ..Seen::default() };
        assert_eq!(all().class(&seen), Class::High);
        assert_eq!(Rules::default().class(&seen), Class::Normal);
        assert_eq!(all().class(&Seen { is_marked: true, ..Seen::default() }), Class::High);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_classified(bytes in prop::collection::vec(any::<u8>(),
            0..80)) {
            let seen = Seen { ip: Some(&bytes), datagram: Some(&bytes), ..Seen::default() };
            let _ = all().class(&seen);
        }
    }
}
