//! MTUs of the paths to a remote endpoint: found by probing, since no router need report a path's
//! MTU (RFC 8899).

use tradewind_packet::message::Service;
use tradewind_packet::path_mtu::PathMtu;
use tradewind_packet::session::Link;
use tradewind_units::Timestamp;

/// Bytes of a message's header before the application's bytes, once the conversation is known.
pub(super) const DATAGRAM_BYTES: usize = 5;
/// Bytes of a first message's header before the application's bytes, and the additional bytes of
/// its source and of its number.
pub(super) const FIRST_BYTES: usize = 27;
pub(super) const SOURCE_BYTES: usize = 18;
pub(super) const NUMBER_BYTES: usize = 17;

/// Bytes that relays add to a packet by service: a label and another seal, should a leg be sealed
/// whole; a copy's header and seal; those of a repair packet of a block of ten.
const FORWARDED_BYTES: usize = 34;
const COPIED_BYTES: usize = 56;
const CODED_BYTES: usize = 207;

/// Returns the bytes that relays add to a packet by service.
pub(super) fn relay_bytes(service: Service) -> usize {
    match service {
        Service::Direct => 0,
        Service::Forwarding => FORWARDED_BYTES,
        Service::Caching => COPIED_BYTES,
        Service::Coding => CODED_BYTES,
    }
}

/// The searches on both paths.
#[derive(Debug)]
pub(super) struct Mtus {
    pub(super) internet: PathMtu,
    pub(super) overlay: PathMtu,
}

impl Default for Mtus {
    fn default() -> Self {
        let new = || PathMtu::new(Timestamp::ZERO);
        Self { internet: new(), overlay: new() }
    }
}

impl Mtus {
    pub(super) fn arrived(&mut self, link: Link, bytes: usize) {
        match link {
            Link::Internet(_) => self.internet.arrived(bytes),
            Link::Overlay(_) => self.overlay.arrived(bytes),
        }
    }
}
