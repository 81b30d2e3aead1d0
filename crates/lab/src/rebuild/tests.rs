//! Splits compared with packets that were cut and summed one by one.

use super::*;
use crate::packet::samples;
use tradewind_wan::Ecn;

const SEGMENT: usize = 1000;
const MARK: Edits = Edits { ce_marked: true, window: None };

/// Builds a super-packet as a device delivers it: the transport checksum holds the pseudo-header's
/// sum.
fn super_packet(
    version: Version,
    transport: Transport,
    len: usize,
) -> (VirtioHeader, Layout, Vec<u8>) {
    let payload: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    let mut packet = samples::packet(version, transport, &payload);
    let layout = Layout::parse(&packet).unwrap();
    let segmentation = match (version, transport) {
        (Version::V4, Transport::Tcp) => Segmentation::Tcp4,
        (Version::V6, Transport::Tcp) => Segmentation::Tcp6,
        _ => Segmentation::Udp,
    };
    let virtio = VirtioHeader {
        needs_checksum: true,
        segmentation: Some(segmentation),
        congestion_window_reduced: transport == Transport::Tcp,
        header_bytes: layout.header_bytes,
        segment_bytes: SEGMENT as u16,
        checksum_start: layout.ip_bytes,
        checksum_offset: if transport == Transport::Tcp { 16 } else { 6 },
    };
    let body = layout.total_bytes - u32::from(layout.ip_bytes);
    rewrite_pseudo_sum(&mut packet[..usize::from(layout.header_bytes)], &layout, body);
    (virtio, layout, packet)
}

/// Returns the packet after a receiver has completed its checksum.
fn finished(virtio: &VirtioHeader, headers: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut packet = [headers, payload].concat();
    let start = usize::from(virtio.checksum_start);
    let sum = checksum::of(&packet[start..]);
    let at = start + usize::from(virtio.checksum_offset);
    packet[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    packet
}

/// Builds segment `index` from scratch: fields set, all checksums summed over the whole packet.
fn reference(version: Version, transport: Transport, len: usize, index: usize) -> Vec<u8> {
    let payload: Vec<u8> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    let range = index * SEGMENT..((index + 1) * SEGMENT).min(len);
    let is_last = range.end == len;
    let mut packet = samples::packet(version, transport, &payload[range]);
    let ip_bytes = usize::from(Layout::parse(&packet).unwrap().ip_bytes);
    if version == Version::V4 {
        let id = 0xfffe_u16.wrapping_add(index as u16);
        packet[4..6].copy_from_slice(&id.to_be_bytes());
    }
    if transport == Transport::Tcp {
        let sequence = 0xffff_f000_u32.wrapping_add((index * SEGMENT) as u32);
        packet[ip_bytes + 4..ip_bytes + 8].copy_from_slice(&sequence.to_be_bytes());
        let mut flags = 0b0001_0000;
        flags |= if index == 0 { TCP_CWR } else { 0 };
        flags |= if is_last { TCP_FIN | TCP_PSH } else { 0 };
        packet[ip_bytes + 13] = flags;
    }
    checksum::fill_reference(&mut packet, ip_bytes, transport);
    packet
}

const KINDS: [(Version, Transport); 4] = [
    (Version::V4, Transport::Tcp),
    (Version::V4, Transport::Udp),
    (Version::V6, Transport::Tcp),
    (Version::V6, Transport::Udp),
];

#[test]
fn every_single_segment_equals_the_packet_cut_by_hand() {
    for (version, transport) in KINDS {
        for len in [1500, 5000, 5001, 9999] {
            let (virtio, layout, packet) = super_packet(version, transport, len);
            assert!(is_consistent(&virtio, &layout));
            let count = segments_of(&virtio, &layout);
            assert_eq!(count as usize, len.div_ceil(SEGMENT));
            for index in 0..count {
                let cut = rebuild(&virtio, &layout, &packet, index..index + 1, Edits::default());
                assert_eq!((cut.virtio.segmentation, cut.virtio.segment_bytes), (None, 0));
                let payload = &packet[cut.payload.clone()];
                let whole = finished(&cut.virtio, cut.headers(), payload);
                let expected = reference(version, transport, len, index as usize);
                assert_eq!(whole, expected, "{version:?} {transport:?} {len} segment {index}");
            }
        }
    }
}

#[test]
fn a_run_cut_again_gives_the_same_segments() {
    for (version, transport) in KINDS {
        let (virtio, layout, packet) = super_packet(version, transport, 7500);
        let run = rebuild(&virtio, &layout, &packet, 2..6, Edits::default());
        assert_eq!(usize::from(run.virtio.segment_bytes), SEGMENT);
        assert_eq!(run.virtio.segmentation, virtio.segmentation);
        let run_packet = [run.headers(), &packet[run.payload.clone()]].concat();
        let run_layout = Layout::parse(&run_packet).unwrap();
        assert_eq!(segments_of(&run.virtio, &run_layout), 4);
        for index in 0..4 {
            let again =
                rebuild(&run.virtio, &run_layout, &run_packet, index..index + 1, Edits::default());
            let direct = rebuild(&virtio, &layout, &packet, index + 2..index + 3, Edits::default());
            assert_eq!(again.headers(), direct.headers());
            assert_eq!(run_packet[again.payload.clone()], packet[direct.payload.clone()]);
        }
    }
}

#[test]
fn a_mark_keeps_all_checksums_right() {
    for (version, transport) in KINDS {
        let (virtio, layout, packet) = super_packet(version, transport, 2500);
        let cut = rebuild(&virtio, &layout, &packet, 1..2, MARK);
        let whole = finished(&cut.virtio, cut.headers(), &packet[cut.payload.clone()]);
        assert_eq!(Layout::parse(&whole).unwrap().ecn, Ecn::Marked);
        let mut resummed = whole.clone();
        checksum::fill_reference(&mut resummed, usize::from(layout.ip_bytes), transport);
        assert_eq!(whole, resummed);
    }
}

#[test]
fn packet_without_offloads_keeps_its_checksum_when_marked() {
    let packet = samples::packet(Version::V4, Transport::Tcp, &[5; 333]);
    let layout = Layout::parse(&packet).unwrap();
    let marked = rebuild(&VirtioHeader::default(), &layout, &packet, 0..1, MARK);
    let whole = [marked.headers(), &packet[marked.payload.clone()]].concat();
    let mut resummed = whole.clone();
    checksum::fill_reference(&mut resummed, 20, Transport::Tcp);
    assert_eq!(whole, resummed);
}

#[test]
fn a_lowered_window_keeps_the_checksum_right() {
    for window in [0, 1, 0x01f5, 0xffff] {
        let edits = Edits { ce_marked: false, window: Some(window) };
        let plain = samples::packet(Version::V6, Transport::Tcp, &[5; 333]);
        let layout = Layout::parse(&plain).unwrap();
        let edited = rebuild(&VirtioHeader::default(), &layout, &plain, 0..1, edits);
        let whole = [edited.headers(), &plain[edited.payload.clone()]].concat();
        let mut resummed = whole.clone();
        checksum::fill_reference(&mut resummed, 40, Transport::Tcp);
        assert_eq!(whole, resummed);

        let (virtio, layout, packet) = super_packet(Version::V4, Transport::Tcp, 2500);
        let cut = rebuild(&virtio, &layout, &packet, 0..1, edits);
        let whole = finished(&cut.virtio, cut.headers(), &packet[cut.payload.clone()]);
        let mut resummed = whole.clone();
        checksum::fill_reference(&mut resummed, 20, Transport::Tcp);
        assert_eq!(whole, resummed);
        assert_eq!(whole[34..36], window.to_be_bytes());
    }
}
