//! The ICMP error for a packet that is too large for its path (RFC 792 with RFC 1191, RFC 4443).

use crate::address::{NETWORK_V4, NETWORK_V6};
use crate::checksum;
use crate::packet::{IPV6_HEADER_BYTES, Layout, Version};

/// The longest ICMP error: the packet size that every host must accept over IPv4 (RFC 1812).
const MAX_V4: usize = 576;
/// The longest ICMP error over IPv6: the minimum MTU of IPv6.
const MAX_V6: usize = 1280;
const ICMP_HEADER: usize = 8;
const TTL: u8 = 64;

/// Builds the reply to `packet` that reports the path's MTU as `mtu` bytes.
pub(crate) fn too_big(packet: &[u8], layout: &Layout, mtu: u32) -> Vec<u8> {
    match layout.version {
        Version::V4 => too_big_v4(packet, mtu),
        Version::V6 => too_big_v6(packet, mtu),
    }
}

fn too_big_v4(packet: &[u8], mtu: u32) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(MAX_V4 - 20 - ICMP_HEADER)];
    let mut body = vec![3, 4, 0, 0, 0, 0];
    body.extend((mtu.min(u32::from(u16::MAX)) as u16).to_be_bytes());
    body.extend(quoted);
    let sum = checksum::of(&body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut answer = vec![0x45, 0, 0, 0, 0, 0, 0, 0, TTL, 1, 0, 0];
    answer[2..4].copy_from_slice(&((20 + body.len()) as u16).to_be_bytes());
    answer.extend(NETWORK_V4.octets());
    answer.extend(&packet[12..16]);
    checksum::fill_ipv4(&mut answer);
    answer.extend(body);
    answer
}

fn too_big_v6(packet: &[u8], mtu: u32) -> Vec<u8> {
    let quoted = &packet[..packet.len().min(MAX_V6 - IPV6_HEADER_BYTES - ICMP_HEADER)];
    let mut body = vec![2, 0, 0, 0];
    body.extend(mtu.to_be_bytes());
    body.extend(quoted);
    let mut answer = vec![0x60, 0, 0, 0, 0, 0, 58, TTL];
    answer[4..6].copy_from_slice(&(body.len() as u16).to_be_bytes());
    answer.extend(NETWORK_V6.octets());
    answer.extend(&packet[8..24]);
    let mut pseudo = answer[8..40].to_vec();
    pseudo.extend((body.len() as u32).to_be_bytes());
    pseudo.extend([0, 0, 0, 58]);
    let sum = checksum::with_pseudo_header(!checksum::of(&pseudo), &body);
    body[2..4].copy_from_slice(&sum.to_be_bytes());
    answer.extend(body);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Transport, samples};

    #[test]
    fn icmp_reply_quotes_packet_with_valid_checksum() {
        for version in [Version::V4, Version::V6] {
            let packet = samples::packet(version, Transport::Tcp, &[3; 1999]);
            let layout = Layout::parse(&packet).unwrap();
            let answer = too_big(&packet, &layout, 1400);
            let parsed = Layout::parse(&answer).unwrap();
            assert_eq!(crate::address::host_of(parsed.destination).unwrap().0, 0);
            let body = &answer[usize::from(parsed.ip_bytes)..];
            assert_eq!(body[ICMP_HEADER..][..40], packet[..40]);
            match version {
                Version::V4 => {
                    assert_eq!(checksum::of(body), 0);
                    assert_eq!((body[0], body[1], &body[6..8]), (3, 4, &1400u16.to_be_bytes()[..]));
                }
                Version::V6 => {
                    assert!(answer.len() <= MAX_V6);
                    assert_eq!((body[0], &body[4..8]), (2, &1400u32.to_be_bytes()[..]));
                    let mut whole = answer[8..40].to_vec();
                    whole.extend((body.len() as u32).to_be_bytes());
                    whole.extend([0, 0, 0, 58]);
                    whole.extend(body);
                    assert_eq!(checksum::of(&whole), 0);
                }
            }
        }
    }
}
