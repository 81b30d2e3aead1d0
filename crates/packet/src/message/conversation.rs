//! What is written without a message in between, since it is written for each packet; and how a
//! conversation is carried.

use tradewind_units::Duration;

use super::write::{kind, put_packet};
use super::{Message, PATH_HEADER_BYTES, Service};
use crate::id::PacketId;
use crate::sender::Paths;

/// How a conversation is carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Carriage {
    /// The service.
    pub service: Service,
    /// Paths of the forwarding service.
    pub paths: Paths,
    /// The latency budget in milliseconds; 0: as long as the path takes, and a round trip more.
    pub budget_ms: u16,
    /// Whether packets are put in order where they leave, as far as the budget bears it.
    pub in_order: bool,
    /// Whether datagrams that are too long for every way are cut into pieces.
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

    /// Returns what the wire says of it beside service and budget.
    pub(super) fn flags(self) -> u8 {
        let is_both = self.paths == Paths::Both;
        u8::from(is_both) | u8::from(self.in_order) << 1 | u8::from(self.fragment) << 2
    }

    /// Returns what flags on the wire mean; `None` for such as are not known here.
    pub(super) fn of_flags(service: Service, flags: u8, budget_ms: u16) -> Option<Self> {
        let paths = if flags & 1 == 1 { Paths::Both } else { Paths::Overlay };
        let (in_order, fragment) = (flags & 2 == 2, flags & 4 == 4);
        (flags < 8).then_some(Self { service, paths, budget_ms, in_order, fragment })
    }

    /// How long a packet is worth having, if there is a latency budget.
    #[must_use]
    pub fn worth(self) -> Option<Duration> {
        (self.budget_ms > 0).then(|| Duration::from_millis(self.budget_ms.into()))
    }
}

/// The label of a datagram on a path, and the datagram; `None` for other messages.
pub fn path_packet(message: &mut [u8]) -> Option<(u32, &mut [u8])> {
    let (header, datagram) = message.split_at_mut_checked(PATH_HEADER_BYTES)?;
    let label = u32::from_be_bytes(header[1..].try_into().ok()?);
    (header[0] == kind::ON_PATH).then_some((label, datagram))
}

/// Writes [`Message::OnPath`] to `out`, which has [`PATH_HEADER_BYTES`] more than `datagram`.
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
