//! One stream over several TCP connections between two neighbours [TRN: one connection does not
//! fill a VM].
//!
//! A [`Stripe`] is one end of a striped leg as a state machine, both directions of it: bytes go in
//! with [`Stripe::write`] and come out at the other end with [`Stripe::read`], in order and exactly
//! once, however the connections fail. It reads no clock and holds no socket: the driver passes in
//! connections, received frames and the time, and polls the next frame of a connection that has
//! room. So the connection that drains fastest carries the most.
//!
//! A session begins without frames, on one connection; it is striped once it has proven bulky. Each
//! side then sends the offset where its bytes without frames end, in START ([`frame`]).
//!
//! Data is kept until it has arrived at the other end, and is sent over another connection when its
//! own dies, or makes no progress for the time of [`stall`]. TCP still does all else: this is no
//! second retransmission under loss. The receiving end holds at most a window, which starts small
//! and doubles while the reader keeps up.
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | the format on the wire |
//! | [`growth`] | the number of connections that pays |
//! | [`stall`] | the time after which a silent connection counts as stalled |
//! | `sender`, `receiver` | the two halves of a direction |
//! | `ready` | received bytes that wait to be read |

pub mod frame;
pub mod growth;
mod ready;
mod receiver;
mod sender;
pub mod stall;
mod stripe;

pub use frame::{Ack, Frame, FrameError};
pub use growth::Growth;
pub use stripe::{Config, Counts, FIRST_CONNECTION, Stripe};

/// The reason why a striped leg cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// The received bytes are no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame was received before START, which says where frames begin.
    #[error("a frame before the start")]
    BeforeStart,
    /// A frame that contradicts earlier ones.
    #[error("{0}: contradicts what came before")]
    Contradiction(&'static str),
    /// More bytes than the limit allows, or than the total.
    #[error("data up to {end} beyond the limit {limit} or the total")]
    BeyondLimit {
        /// Offset at which the data would end.
        end: u64,
        /// The limit or the total.
        limit: u64,
    },
    /// More pieces beyond a gap than a sender may make.
    #[error("more than {} pieces beyond a gap", frame::MAX_PIECES)]
    TooManyPieces,
    /// The peer has broken off the stream.
    #[error("the other end broke the stream off")]
    Reset,
}
