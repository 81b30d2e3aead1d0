//! Datagrams that are too long for the paths: reported, fragmented, and reassembled.

use std::net::SocketAddr;

use tradewind_packet::fragment::{JoinLimits, Joined, Joiner, Piece, cut};
use tradewind_packet::id::FlowNumber;
use tradewind_packet::message::{Carriage, Class, Message};
use tradewind_packet::session::{Now, PeerId};
use tradewind_units::{Duration, Timestamp};

use super::context::Context;
use super::mtu::{DATAGRAM_BYTES, NUMBER_BYTES, relay_bytes};
use super::paths::Paths;
use super::remotes::{DatagramPaths, Remotes};
use super::services::Services;
use crate::counts::add;

/// Time that fragments are waited for where no latency budget is set. Chosen: a round trip around
/// the world, and one more for recovery.
pub(super) const DEFAULT_WAIT: Duration = Duration::from_secs(1);
/// Interval of log lines about datagrams that are too long. Chosen: an application sends many of
/// them.
const LENGTH_LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Datagrams in fragments, and those that are too long and may not be fragmented.
pub(super) struct Fragments {
    /// Fragments of datagrams that wait for others.
    joiner: Joiner<PeerId>,
    /// The number of the next fragmented datagram.
    next_cut: u32,
    /// The time before which no further datagram is logged as too long.
    next_log: Timestamp,
}

impl Default for Fragments {
    fn default() -> Self {
        let joiner = Joiner::new(JoinLimits::default());
        Self { joiner, next_cut: 0, next_log: Timestamp::ZERO }
    }
}

impl Fragments {
    /// Counts a datagram that is longer than every path takes, and logs it at intervals; returns
    /// whether it is.
    pub(super) fn note_if_too_long(
        &mut self,
        (context, remotes): (&Context, &Remotes),
        now: Now,
        (paths, other): (DatagramPaths, SocketAddr),
        (around, bytes): (usize, usize),
    ) -> bool {
        if remotes.fits(now, paths, around + DATAGRAM_BYTES + bytes) {
            return false;
        }
        add(&context.counts.too_long, 1);
        if now.steady >= self.next_log {
            self.next_log = now.steady + LENGTH_LOG_INTERVAL;
            let longest = remotes.longest_to(now, paths);
            let longest = longest.and_then(|takes| takes.checked_sub(around));
            let remote = context.name_of(paths.remote);
            tracing::warn!(remote, %other, bytes, longest, "a datagram is too long for the path");
        }
        true
    }

    /// Sends a datagram in fragments, if it has to be fragmented and may be; `false` when it is to
    /// go whole.
    pub(super) fn send(
        &mut self,
        (paths, services): (&mut Paths<'_>, &mut Services),
        now: Now,
        (remote, conversation, carriage): (PeerId, u32, Carriage),
        (end, class): (Option<FlowNumber>, Class),
        payload: &[u8],
    ) -> bool {
        let around = if end.is_some() { NUMBER_BYTES } else { 0 };
        let datagram_paths = DatagramPaths::of(remote, carriage, end);
        if !paths.remotes.has_to_be_cut(now, (datagram_paths, carriage), around + payload.len()) {
            return false;
        }
        let served = services.ends.sizing_service(carriage.service, end);
        let most = paths.remotes.most_of_piece(now, datagram_paths, relay_bytes(served));
        let number = self.next_cut;
        let Some(pieces) = cut(number, payload, most) else { return false };
        self.next_cut = number.wrapping_add(1);
        add(&paths.context.counts.cut, 1);
        for piece in pieces {
            let message = Message::Fragment { conversation, piece };
            match end {
                Some(flow) => services.send_numbered(paths, now, (flow, class), &message),
                None => {
                    paths.send_remote((now, &mut services.sender), remote, carriage, &message);
                }
            }
        }
        true
    }

    /// Adds a fragment of a conversation's datagram.
    pub(super) fn add(
        &mut self,
        now: Timestamp,
        conversation: (PeerId, u32),
        piece: Piece<'_>,
        wait: Duration,
    ) -> Joined {
        self.joiner.add(now, conversation, piece, wait)
    }

    /// Drops the fragments of a conversation that is over.
    pub(super) fn remove(&mut self, remote: PeerId, conversation: u32) {
        self.joiner.remove(remote, conversation);
    }

    /// Gives up datagrams whose fragments do not come, and counts them.
    pub(super) fn maintain(&mut self, context: &Context, now: Now) {
        self.joiner.expire(now.steady);
        let given_up = self.joiner.given_up();
        context.counts.unjoined.store(given_up, std::sync::atomic::Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
