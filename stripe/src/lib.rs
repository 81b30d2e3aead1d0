//! One stream over several TCP connections between two neighbours [TRN: one connection does not fill a VM].
//!
//! A [`Stripe`] is one end of a striped leg as a state machine, both directions of it: bytes go in with
//! [`Stripe::write`] and come out at the other end with [`Stripe::read`], in order and each once, whatever the
//! connections between do. It asks for no clock and holds no socket: the driver tells it of connections, frames
//! that came and the time, and asks for the next frame of a connection that has room. So the connection that
//! drains fastest gets the most.
//!
//! A session begins without frames, on one connection; it is striped once it has proven bulky. Each side then says with
//! START where its bytes without frames end ([`frame`]).
//!
//! What was sent is kept until it has arrived at the other end, and goes over another connection when its own dies, or makes no progress
//! for the time of [`stall`]. TCP still does all else: this is no second retransmission under loss. What the receiving
//! end holds is bounded by its window, which starts small and doubles while the reader keeps up.
//!
//! | module | holds |
//! |---|---|
//! | [`frame`] | the format on the wire |
//! | [`growth`] | how many connections are worth it |
//! | [`stall`] | after which silence a connection is given up for now |
//! | `sender`, `receiver` | the two halves of a direction |
//! | `ready` | what waits to be read |

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

/// Why a striped leg cannot go on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StripeError {
    /// What came is no frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A frame came before the START that says where frames begin.
    #[error("a frame before the start")]
    BeforeStart,
    /// A frame that does not go with those before it.
    #[error("{0}: contradicts what came before")]
    Contradiction(&'static str),
    /// More bytes than were allowed, or than there are.
    #[error("data up to {end} beyond the limit {limit} or the total")]
    BeyondLimit {
        /// Where the data would end.
        end: u64,
        /// What was allowed.
        limit: u64,
    },
    /// More pieces beyond a gap than any sender may make.
    #[error("more than {} pieces beyond a gap", frame::MOST_PIECES)]
    TooManyPieces,
    /// The other end has broken the stream off.
    #[error("the other end broke the stream off")]
    Reset,
}
