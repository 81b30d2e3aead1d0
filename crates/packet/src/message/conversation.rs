//! Messages of the packet path, written and read without a [`Message`] in between; and how a
//! conversation is carried.

use tradewind_units::Duration;

use super::write::{kind, put_packet};
use super::{Message, PATH_HEADER_BYTES, Service};
use crate::id::PacketId;
use crate::sender::Paths;

/// The service and paths that carry a conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carriage {
    /// The service.
    pub service: Service,
    /// Paths of the forwarding service.
    pub paths: Paths,
    /// The latency budget in milliseconds; 0: the path's delay and a round trip.
    pub budget_ms: u16,
    /// Set when packets are put in order where they leave, within the budget.
    pub in_order: bool,
    /// Set when datagrams that are too long for every path are cut into pieces.
    pub fragment: bool,
}

impl Carriage {
    /// Over the Internet alone.
    pub const DIRECT: Self = Self {
        service: Service::Direct,
        paths: Paths::Both,
        budget_ms: 0,
        in_order: false,
        fragment: false,
    };

    /// Over the relays alone.
    pub const FORWARDED: Self =
        Self { service: Service::Forwarding, paths: Paths::Overlay, ..Self::DIRECT };

    /// Returns the flags on the wire: all but service and budget.
    pub(super) fn flags(self) -> u8 {
        let is_both = self.paths == Paths::Both;
        u8::from(is_both) | u8::from(self.in_order) << 1 | u8::from(self.fragment) << 2
    }

    /// Returns the carriage that flags on the wire stand for; `None` for unknown flags.
    pub(super) fn of_flags(service: Service, flags: u8, budget_ms: u16) -> Option<Self> {
        let paths = if flags & 1 == 1 { Paths::Both } else { Paths::Overlay };
        let (in_order, fragment) = (flags & 2 == 2, flags & 4 == 4);
        (flags < 8).then_some(Self { service, paths, budget_ms, in_order, fragment })
    }

    /// Returns how long a packet is worth having, if there is a latency budget.
    #[must_use]
    pub fn worth(self) -> Option<Duration> {
        (self.budget_ms > 0).then(|| Duration::from_millis(self.budget_ms.into()))
    }
}

/// Returns the label of a datagram on a path, and the datagram; `None` for other messages.
pub fn path_packet(message: &mut [u8]) -> Option<(u32, &mut [u8])> {
    let (header, datagram) = message.split_at_mut_checked(PATH_HEADER_BYTES)?;
    let label = u32::from_be_bytes(header[1..].try_into().ok()?);
    (header[0] == kind::ON_PATH).then_some((label, datagram))
}

/// Writes [`Message::OnPath`] to `out`, which is longer than `datagram` by [`PATH_HEADER_BYTES`].
pub fn write_on_path(label: u32, datagram: &[u8], out: &mut [u8]) {
    out[0] = kind::ON_PATH;
    out[1..PATH_HEADER_BYTES].copy_from_slice(&label.to_be_bytes());
    out[PATH_HEADER_BYTES..].copy_from_slice(datagram);
}

/// Appends [`Message::Numbered`] with `message` in it.
pub fn write_numbered(packet: PacketId, message: &Message<'_>, out: &mut Vec<u8>) {
    out.push(kind::NUMBERED);
    put_packet(out, packet);
    message.write(out);
}
