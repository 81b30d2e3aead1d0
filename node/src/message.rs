//! What travels inside of sessions for the forwarding service, version 1; see `docs/packet-wire.md`.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use crate::config::Ways;

/// `0x21`, label (4): a datagram of a path, to be passed on or, at the path's end, opened.
pub(crate) const PACKET: u8 = 0x21;
/// Bytes before the datagram.
pub(crate) const PACKET_HEADER: usize = 5;
/// Bytes before an application's payload once the far endpoint knows the flow.
pub(crate) const DATAGRAM_HEADER: usize = 5;
/// Bytes before an application's payload until then.
pub(crate) const FIRST_HEADER: usize = 24;

const OPEN: u8 = 0x22;
const OPENED: u8 = 0x23;
const DATAGRAM: u8 = 0x31;
const FIRST: u8 = 0x32;
const KNOWN: u8 = 0x33;

/// A message between neighbours.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message<'a> {
    /// `0x22`, the sender's label (4), a hop header: opens a path.
    Open { theirs: u32, header: &'a [u8] },
    /// `0x23`, the label of the open (4), the label to send to (4).
    Opened { mine: u32, theirs: u32 },
    /// `0x31`, flow (4), payload: between endpoints.
    Datagram { flow: u32, payload: &'a [u8] },
    /// `0x32`, flow (4), ways (1), destination (16 + 2), payload: likewise, of a flow that is perhaps not known.
    First { flow: u32, ways: Ways, to: SocketAddr, payload: &'a [u8] },
    /// `0x33`, flow (4): the flow is known.
    Known { flow: u32 },
}

impl<'a> Message<'a> {
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let (number, rest) = rest.split_first_chunk::<4>()?;
        let number = u32::from_be_bytes(*number);
        match kind {
            OPEN => Some(Self::Open { theirs: number, header: rest }),
            OPENED => {
                let theirs = u32::from_be_bytes(rest.try_into().ok()?);
                Some(Self::Opened { mine: number, theirs })
            }
            DATAGRAM => Some(Self::Datagram { flow: number, payload: rest }),
            FIRST => {
                let (&ways, rest) = rest.split_first()?;
                let (ip, rest) = rest.split_first_chunk::<16>()?;
                let (port, payload) = rest.split_first_chunk::<2>()?;
                let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
                let to = SocketAddr::new(ip, u16::from_be_bytes(*port));
                Some(Self::First { flow: number, ways: Ways::from_byte(ways)?, to, payload })
            }
            KNOWN if rest.is_empty() => Some(Self::Known { flow: number }),
            _ => None,
        }
    }

    /// Writes it to `out`, which is long enough; returns how long it is.
    pub(crate) fn put(&self, out: &mut [u8]) -> usize {
        let mut at = 0;
        let mut put = |bytes: &[u8]| {
            out[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        };
        match self {
            Self::Open { theirs, header } => {
                put(&[OPEN]);
                put(&theirs.to_be_bytes());
                put(header);
            }
            Self::Opened { mine, theirs } => {
                put(&[OPENED]);
                put(&mine.to_be_bytes());
                put(&theirs.to_be_bytes());
            }
            Self::Datagram { flow, payload } => {
                put(&[DATAGRAM]);
                put(&flow.to_be_bytes());
                put(payload);
            }
            Self::First { flow, ways, to, payload } => {
                let ip = match to.ip() {
                    IpAddr::V4(v4) => v4.to_ipv6_mapped(),
                    IpAddr::V6(v6) => v6,
                };
                put(&[FIRST]);
                put(&flow.to_be_bytes());
                put(&[*ways as u8]);
                put(&ip.octets());
                put(&to.port().to_be_bytes());
                put(payload);
            }
            Self::Known { flow } => {
                put(&[KNOWN]);
                put(&flow.to_be_bytes());
            }
        }
        at
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Open { header, .. } => 5 + header.len(),
            Self::Opened { .. } => 9,
            Self::Datagram { payload, .. } => DATAGRAM_HEADER + payload.len(),
            Self::First { payload, .. } => FIRST_HEADER + payload.len(),
            Self::Known { .. } => 5,
        }
    }
}

/// The label of a packet, and its datagram.
pub(crate) fn packet(payload: &mut [u8]) -> Option<(u32, &mut [u8])> {
    let (header, body) = payload.split_at_mut_checked(PACKET_HEADER)?;
    let label = u32::from_be_bytes(header[1..].try_into().ok()?);
    (header[0] == PACKET).then_some((label, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_what_is_cut_is_not() {
        let messages = [
            Message::Open { theirs: 7, header: b"header" },
            Message::Opened { mine: 7, theirs: 0xFFFF_FFFF },
            Message::Datagram { flow: 9, payload: b"" },
            Message::First {
                flow: 9,
                ways: Ways::Both,
                to: ([192, 0, 2, 1], 5004).into(),
                payload: b"x",
            },
            Message::Known { flow: 3 },
        ];
        for message in messages {
            let mut bytes = vec![0; message.len()];
            assert_eq!(message.put(&mut bytes), bytes.len());
            assert_eq!(Message::parse(&bytes), Some(message));
            for cut in 0..5 {
                assert_eq!(Message::parse(&bytes[..cut]), None);
            }
        }
        assert_eq!(Message::parse(&[0x99, 0, 0, 0, 0]), None);
        assert_eq!(
            packet(&mut [PACKET, 0, 0, 1, 0, 8]).map(|(label, body)| (label, body.to_vec())),
            Some((256, vec![8]))
        );
        assert!(packet(&mut [PACKET, 0, 0, 1]).is_none());
    }
}
