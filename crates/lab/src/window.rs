//! Bounds on the bytes that a connection has in flight.
//!
//! A site's window bounds every connection with an end there [CP VII]. No setting of a host does
//! that exactly: a locked `cwnd` on a route takes effect only where the kernel has cached metrics
//! of an earlier connection, and buffers are counted in memory, not in payload. So the network
//! enforces it, as some middleboxes do: it lowers the receive window that an end advertises to the
//! other. The sender then never has more payload unacknowledged than the window, whatever its
//! congestion control.

use std::collections::HashMap;

use tradewind_units::{Duration, Timestamp};
use tradewind_wan::{HostIndex, Topology};

use crate::packet::{Layout, Transport};

/// The idle time after which a connection may be removed from the table. Chosen: longer than any
/// idle time-out in use here.
const FORGET_AFTER: Duration = Duration::from_secs(3600);
/// The number of connections from which idle ones are looked for. Chosen.
const BEFORE_SWEEP: usize = 4096;

const SYN: u8 = 0x02;
const OPTION_END: u8 = 0;
const OPTION_PADDING: u8 = 1;
const OPTION_SCALE: u8 = 3;
/// The largest shift; larger ones count as this (RFC 7323).
const MAX_SHIFT: u8 = 14;

/// The bounds of all pairs of hosts, and the scale of each direction of each connection.
#[derive(Debug)]
pub(crate) struct WindowBounds {
    /// Bounds in bytes, by source and destination; `None` means no bound.
    bounds: Vec<Option<u32>>,
    hosts: usize,
    shifts: HashMap<u64, Scale>,
    before_sweep: usize,
}

#[derive(Debug, Clone, Copy)]
struct Scale {
    shift: u8,
    seen: Timestamp,
}

impl WindowBounds {
    pub(crate) fn new(topology: &Topology) -> Self {
        let indices = || (0..topology.hosts.len() as u16).map(HostIndex);
        let pairs = indices().flat_map(|from| indices().map(move |to| (from, to)));
        let bound = |(from, to)| {
            let window = topology.route(from, to).window?;
            u32::try_from(window.as_u64()).ok()
        };
        Self {
            bounds: pairs.map(bound).collect(),
            hosts: topology.hosts.len(),
            shifts: HashMap::new(),
            before_sweep: BEFORE_SWEEP,
        }
    }

    /// Returns the window field that `packet` must carry instead of its own; `None` keeps its own.
    pub(crate) fn field_for(
        &mut self,
        now: Timestamp,
        (source, destination): (HostIndex, HostIndex),
        layout: &Layout,
        packet: &[u8],
    ) -> Option<u16> {
        let at = usize::from(source.0) * self.hosts + usize::from(destination.0);
        let bound = (*self.bounds.get(at)?)?;
        if layout.transport != Transport::Tcp {
            return None;
        }
        let tcp = &packet[usize::from(layout.ip_bytes)..usize::from(layout.header_bytes)];
        let field = u16::from_be_bytes([tcp[14], tcp[15]]);
        let shift = if tcp[13] & SYN != 0 {
            self.remember(layout.connection, scale_of(&tcp[20..]), now);
            // The window of a SYN itself is never scaled.
            0
        } else {
            let scale = self.shifts.get_mut(&layout.connection)?;
            scale.seen = now;
            scale.shift
        };
        let step = 1u32 << shift;
        let nearest = (bound.saturating_add(step / 2) >> shift).max(1);
        (u32::from(field) > nearest).then_some(nearest as u16)
    }

    fn remember(&mut self, connection: u64, shift: u8, now: Timestamp) {
        if self.shifts.len() >= self.before_sweep {
            self.shifts.retain(|_, scale| now.since(scale.seen) < FORGET_AFTER);
            self.before_sweep = BEFORE_SWEEP.max(2 * self.shifts.len());
        }
        self.shifts.insert(connection, Scale { shift, seen: now });
    }
}

/// Returns the window scale among a SYN's options, or 0 without one.
fn scale_of(options: &[u8]) -> u8 {
    let mut rest = options;
    while let [kind, tail @ ..] = rest {
        rest = match (*kind, tail) {
            (OPTION_END, _) => return 0,
            (OPTION_PADDING, _) => tail,
            (OPTION_SCALE, [3, shift, ..]) => return (*shift).min(MAX_SHIFT),
            (_, [len, ..]) if *len >= 2 => rest.get(usize::from(*len)..).unwrap_or_default(),
            _ => return 0,
        };
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::{Version, samples};

    const NOW: Timestamp = Timestamp::ZERO;
    const PAIR: (HostIndex, HostIndex) = (HostIndex(0), HostIndex(1));

    fn bounds(bytes: u32) -> WindowBounds {
        WindowBounds {
            bounds: vec![None, Some(bytes), None, None],
            hosts: 2,
            shifts: HashMap::new(),
            before_sweep: BEFORE_SWEEP,
        }
    }

    fn tcp_packet(flags: u8, window: u16, options: [u8; 12]) -> (Layout, Vec<u8>) {
        let mut packet = samples::packet(Version::V4, Transport::Tcp, &[]);
        packet[20 + 13] = flags;
        packet[20 + 14..20 + 16].copy_from_slice(&window.to_be_bytes());
        packet[40..52].copy_from_slice(&options);
        (Layout::parse(&packet).unwrap(), packet)
    }

    const SCALED_BY_7: [u8; 12] = [2, 4, 5, 180, 1, 3, 3, 7, 1, 1, 4, 2];

    #[test]
    fn a_scaled_window_is_lowered_to_the_bound() {
        let mut bounds = bounds(1_000_000);
        let (layout, syn) = tcp_packet(SYN, 65_535, SCALED_BY_7);
        assert_eq!(bounds.field_for(NOW, PAIR, &layout, &syn), None);
        let (layout, ack) = tcp_packet(0x10, 60_000, [1; 12]);
        let field = bounds.field_for(NOW, PAIR, &layout, &ack).unwrap();
        assert!((i64::from(field) * 128 - 1_000_000).abs() <= 64);
        let (layout, ack) = tcp_packet(0x10, 7_000, [1; 12]);
        assert_eq!(bounds.field_for(NOW, PAIR, &layout, &ack), None, "a smaller window stands");
    }

    #[test]
    fn syn_and_unbounded_pair_are_not_scaled() {
        let mut bounds = bounds(20_000);
        let (layout, syn) = tcp_packet(SYN, 65_535, SCALED_BY_7);
        assert_eq!(bounds.field_for(NOW, PAIR, &layout, &syn), Some(20_000));
        let back = (HostIndex(1), HostIndex(0));
        assert_eq!(bounds.field_for(NOW, back, &layout, &syn), None);
    }

    #[test]
    fn a_connection_whose_start_was_not_seen_is_left_alone() {
        let (layout, ack) = tcp_packet(0x10, 60_000, [1; 12]);
        assert_eq!(bounds(1000).field_for(NOW, PAIR, &layout, &ack), None);
    }

    #[test]
    fn options_are_read_to_their_end_and_no_further() {
        assert_eq!(scale_of(&SCALED_BY_7), 7);
        assert_eq!(scale_of(&[3, 3, 15]), MAX_SHIFT);
        for nonsense in [&[][..], &[3], &[3, 3], &[8, 0, 3, 3, 7], &[8, 200], &[0, 3, 3, 7]] {
            assert_eq!(scale_of(nonsense), 0, "{nonsense:?}");
        }
    }
}
