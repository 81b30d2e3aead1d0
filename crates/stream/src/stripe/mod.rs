//! Striped legs: one stream over several connections between two neighbours \[TRN\], for sessions
//! that proved bulky.
//!
//! A session begins on one connection, without frames, and is moved as every other: a short one
//! pays nothing. Once it has carried the bytes that the leg's profile states, the side that dialled
//! opens further connections, which join it ([`tradewind_grant::join`]). When the first has joined,
//! both sides switch to frames ([`tradewind_stripe`]), each from its current byte, and without a
//! pause.
//!
//! | module | holds |
//! |---|---|
//! | `offer` | a leg that may be striped: who may join, and the joining |
//! | `link` | one connection and the frames on it |
//! | `end` | one side of a session, striped or not |
//! | `carry` | a session's two directions between two such sides |

mod carry;
mod end;
mod link;
mod offer;

use std::sync::Arc;
use std::time::Duration;

use tradewind_stripe::frame::INITIAL_WINDOW;
use tradewind_units::Bytes;

use crate::limits::memory::Memory;
pub(crate) use carry::Carry;
pub(crate) use end::{End, Left};
pub use offer::{Member, NotAdmitted, Offer, Offers, Sessions};

/// Bytes of a frame. Chosen: long enough that a frame's head and acknowledgement are negligible,
/// short enough that a slow connection does not hold much.
const CHUNK: usize = 128 << 10;

/// Most bytes that a session holds out of order, or unread, for one leg; and most that the other
/// end has not acknowledged. Chosen: those in flight on a path of 1.3 Gbit/s over 100 ms.
const MAX_WINDOW: u64 = 16 << 20;

/// Memory that must be free for a leg to be striped, where it is limited. Chosen: the most that
/// both directions hold at first, at both ends, were they in one process.
const MIN_TO_STRIPE: usize = 4 * INITIAL_WINDOW as usize;

/// The silence after which a connection is stalled while the kernel knows no round trip of it.
/// Chosen: three of the timeouts that TCP begins with (RFC 6298, 2.1).
const STALL: Duration = Duration::from_secs(3);

/// Most unsent bytes in the kernel for one of several connections: the fewer, the sooner a
/// connection that drains faster gets more. Chosen: two frames.
const NOTSENT_LOWAT: Bytes = Bytes::new(2 * CHUNK as u64);

/// Most connections of `adaptive`. Chosen: twice those that fill four paths of a region's fabric.
const MAX_ADAPTIVE: usize = 16;

/// Between two looks at a striped session: whether it moves, grows, or has lost a side.
const LOOK: Duration = Duration::from_secs(1);

/// Returns true if `memory`, where it is limited, has capacity for another striped leg.
pub(crate) fn may_stripe_within(memory: Option<&Arc<Memory>>) -> bool {
    memory.is_none_or(|memory| memory.free() >= MIN_TO_STRIPE)
}

#[cfg(test)]
mod tests;
