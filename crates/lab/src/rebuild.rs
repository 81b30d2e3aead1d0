//! Splitting of super-packets without copying their payload.
//!
//! The network decides segment by segment, so any run of consecutive segments may be delivered
//! together. A run is sent as headers rebuilt for it and a slice of the original payload.

use std::ops::Range;

use tradewind_net::virtio::{Segmentation, VirtioHeader};

use crate::checksum;
use crate::packet::{Layout, Transport, Version};

/// Longest IP and transport header together: 60 bytes each.
const MAX_HEADER: usize = 120;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
const CE: u8 = 0b11;

/// Headers for a run of segments, and the range of its payload in the super-packet.
pub(crate) struct Rebuilt {
    pub(crate) virtio: VirtioHeader,
    bytes: [u8; MAX_HEADER],
    len: usize,
    pub(crate) payload: Range<usize>,
}

impl Rebuilt {
    /// Returns the IP and transport headers.
    pub(crate) fn headers(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the number of segments in a packet.
pub(crate) fn segments_of(virtio: &VirtioHeader, layout: &Layout) -> u32 {
    let payload = layout.total_bytes - u32::from(layout.header_bytes);
    match u32::from(virtio.segment_bytes) {
        0 => 1,
        size => payload.div_ceil(size).max(1),
    }
}

/// The changes that the network makes in the headers of forwarded packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Edits {
    /// Sets the ECN mark "congestion experienced".
    pub(crate) ce_marked: bool,
    /// Replaces TCP's window field.
    pub(crate) window: Option<u16>,
}

/// Rebuilds the headers of `packet` for a run of its segments.
pub(crate) fn rebuild(
    virtio: &VirtioHeader,
    layout: &Layout,
    packet: &[u8],
    segments: Range<u32>,
    edits: Edits,
) -> Rebuilt {
    let header_bytes = usize::from(layout.header_bytes);
    let total = layout.total_bytes as usize;
    let size = usize::from(virtio.segment_bytes);
    let is_first = segments.start == 0;
    let is_last = segments.end >= segments_of(virtio, layout);
    let offset = segments.start as usize * size;
    let start = header_bytes + offset;
    let end = if is_last { total } else { header_bytes + segments.end as usize * size };
    let mut bytes = [0; MAX_HEADER];
    bytes[..header_bytes].copy_from_slice(&packet[..header_bytes]);
    let headers = &mut bytes[..header_bytes];

    let body = (header_bytes - usize::from(layout.ip_bytes) + (end - start)) as u32;
    rewrite_ip(headers, layout, segments.start, body, edits.ce_marked);
    match layout.transport {
        Transport::Tcp => rewrite_tcp(headers, layout, offset as u32, is_first, is_last),
        Transport::Udp => {
            let at = usize::from(layout.ip_bytes) + 4;
            headers[at..at + 2].copy_from_slice(&(body as u16).to_be_bytes());
        }
        Transport::Other => {}
    }
    if let (Some(window), Transport::Tcp) = (edits.window, layout.transport) {
        let at = usize::from(layout.ip_bytes) + 14;
        let before = [headers[at], headers[at + 1]];
        headers[at..at + 2].copy_from_slice(&window.to_be_bytes());
        checksum::repair(headers, at + 2, u16::from_be_bytes(before), window);
    }
    if virtio.needs_checksum {
        rewrite_pseudo_sum(headers, layout, body);
    }

    let is_single = segments.end - segments.start <= 1;
    let rebuilt_virtio = VirtioHeader {
        segmentation: virtio.segmentation.filter(|_| !is_single),
        segment_bytes: if is_single { 0 } else { virtio.segment_bytes },
        congestion_window_reduced: virtio.congestion_window_reduced && is_first && !is_single,
        header_bytes: layout.header_bytes,
        ..*virtio
    };
    Rebuilt { virtio: rebuilt_virtio, bytes, len: header_bytes, payload: start..end }
}

fn rewrite_ip(headers: &mut [u8], layout: &Layout, index: u32, body: u32, ce_marked: bool) {
    match layout.version {
        Version::V4 => {
            let total = (u32::from(layout.ip_bytes) + body) as u16;
            headers[2..4].copy_from_slice(&total.to_be_bytes());
            let id = u16::from_be_bytes([headers[4], headers[5]]).wrapping_add(index as u16);
            headers[4..6].copy_from_slice(&id.to_be_bytes());
            if ce_marked {
                headers[1] |= CE;
            }
            checksum::fill_ipv4(&mut headers[..usize::from(layout.ip_bytes)]);
        }
        Version::V6 => {
            headers[4..6].copy_from_slice(&(body as u16).to_be_bytes());
            if ce_marked {
                headers[1] |= CE << 4;
            }
        }
    }
}

fn rewrite_tcp(headers: &mut [u8], layout: &Layout, offset: u32, is_first: bool, is_last: bool) {
    let tcp = &mut headers[usize::from(layout.ip_bytes)..];
    let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(offset);
    tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
    if !is_last {
        tcp[13] &= !(TCP_FIN | TCP_PSH);
    }
    if !is_first {
        tcp[13] &= !TCP_CWR;
    }
}

fn rewrite_pseudo_sum(headers: &mut [u8], layout: &Layout, body: u32) {
    let place = match layout.transport {
        Transport::Tcp => 16,
        Transport::Udp => 6,
        Transport::Other => return,
    };
    let sum = checksum::pseudo_header(headers, layout, body);
    let at = usize::from(layout.ip_bytes) + place;
    headers[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Returns whether the segmentation that a device stated fits the packet's layout.
pub(crate) fn is_consistent(virtio: &VirtioHeader, layout: &Layout) -> bool {
    match virtio.segmentation {
        None => true,
        Some(kind) => {
            let fits = match kind {
                Segmentation::Tcp4 => (Version::V4, Transport::Tcp),
                Segmentation::Tcp6 => (Version::V6, Transport::Tcp),
                Segmentation::Udp => (layout.version, Transport::Udp),
            };
            fits == (layout.version, layout.transport) && virtio.segment_bytes > 0
        }
    }
}

#[cfg(test)]
mod tests;
