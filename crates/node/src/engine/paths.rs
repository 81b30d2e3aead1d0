//! The way out to remote endpoints: over the Internet, and over the overlay paths that answer.

use tradewind_packet::message::{Carriage, Class, Message, Service};
use tradewind_packet::sender::{Paths as Over, Sender};
use tradewind_packet::session::{Now, PASSED_BYTES, PeerId};

use super::context::Context;
use super::forwarding::Forwarding;
use super::remotes::Remotes;
use crate::counts::add;

/// Over both paths.
pub(super) const EITHER_PATH: Carriage = Carriage {
    service: Service::Forwarding,
    paths: Over::Both,
    budget_ms: 0,
    in_order: false,
    fragment: false,
};

/// The parts that send a message to a remote endpoint, borrowed for one call.
pub(super) struct Paths<'a> {
    pub(super) context: &'a mut Context,
    pub(super) forwarding: &'a Forwarding,
    pub(super) remotes: &'a mut Remotes,
}

impl Paths<'_> {
    /// Seals a message end to end and sends it over the paths that its conversation wants and that
    /// are alive. Returns its bytes, `None` when it could not be sealed.
    pub(super) fn send_remote(
        &mut self,
        (now, uplink): (Now, &mut Sender),
        peer: PeerId,
        carriage: Carriage,
        message: &Message<'_>,
    ) -> Option<usize> {
        let mut sealed = std::mem::take(&mut self.context.sealed);
        let is_sealed = self.context.seal_remote(peer, &mut sealed, |out| message.write(out));
        if is_sealed {
            add(&self.context.counts.accepted, 1);
            self.send_over_paths((now, uplink), peer, carriage, &sealed);
        } else {
            add(&self.context.counts.refused, 1);
        }
        let bytes = is_sealed.then_some(sealed.len());
        self.context.sealed = sealed;
        bytes
    }

    /// Sends a message that is no application's to a remote endpoint over both paths.
    pub(super) fn send_to_both(
        &mut self,
        (now, uplink): (Now, &mut Sender),
        peer: PeerId,
        message: &Message<'_>,
    ) {
        let mut sealed = std::mem::take(&mut self.context.sealed);
        if self.context.seal_remote(peer, &mut sealed, |out| message.write(out)) {
            self.send_over_paths((now, uplink), peer, EITHER_PATH, &sealed);
        }
        self.context.sealed = sealed;
    }

    /// Returns the first relay of the path to a remote endpoint, and the path's label there, while
    /// it answers.
    pub(super) fn path_to(&self, now: Now, remote: PeerId) -> Option<(PeerId, u32)> {
        self.remotes.path_to(&self.forwarding.labels, now, remote)
    }

    /// Sends a sealed datagram over the paths that its conversation wants and that are alive.
    pub(super) fn send_over_paths(
        &mut self,
        (now, uplink): (Now, &mut Sender),
        peer: PeerId,
        carriage: Carriage,
        sealed: &[u8],
    ) {
        let remote = self.remotes.get(&peer);
        let is_forwarded = carriage.service == Service::Forwarding;
        let label = remote.and_then(|remote| remote.label).filter(|_| is_forwarded);
        let is_alive = remote.is_some_and(|remote| {
            remote.is_overlay_alive(now) && !remote.mtus.overlay.is_too_long(sealed.len())
        });
        let is_both = carriage.paths == Over::Both;
        // Beside the one over the Internet it is a copy, for which the uplink's rate may not
        // suffice.
        let is_copy = is_both && remote.is_some_and(|remote| remote.is_internet_alive(now));
        let label = label.filter(|_| is_alive || is_both);
        let over = PASSED_BYTES + sealed.len();
        let label =
            label.filter(|_| !is_copy || uplink.uplink_bears_copy(now.steady, Class::Normal, over));
        let went = match label {
            Some(label) => self.forwarding.send_over(self.context, label, sealed),
            None => false,
        };
        if went && !is_copy {
            uplink.spend_uplink(now.steady, over);
        }
        if is_both || !went {
            uplink.spend_uplink(now.steady, sealed.len());
            self.context.send_internet(peer, sealed);
        }
    }
}
