//! Jump-start: the first window, and the rate it is sent at, of connections to come, learned from
//! the connections that a host already has.
//!
//! TCP starts every connection as if nothing were known: with ten segments. A host that has talked
//! to a destination a moment ago knows better `[RT I]`. A [`Learner`] is shown a [`Sample`] of every
//! open connection once a round, and then decides what the next connection to each destination
//! starts with. It acts on nothing itself: it returns [`Change`]s, and the same samples at the same
//! times give the same changes.
//!
//! Modes ([`Mode`]):
//!
//! - `riptide` is the paper's Algorithm 1 `[RT III-B]` with the variants it names: the mean, the
//!   maximum or the mean weighted by traffic of the congestion windows towards a destination, a
//!   moving average with history, bounds, and a time to live.
//! - `paced` learns delivery rate times least round-trip time instead. A congestion window is what
//!   one connection happened to be allowed, not what its path carries; averaged, it overshoots. The
//!   window is then only a ceiling: what is sent in the first round trip is paced at the learned
//!   rate, shared by those that start at once, and halved when a first flight is lost.
//! - `strict` keeps to the limits of RFC 9959 (Careful Resume): half of what was seen, one start at
//!   a time, only while the round-trip time is as it was, and forgotten after a loss.
//!
//! What it does not do: it looks at no socket and sets none (`tradewind-net`, `tradewind-tuner`), and
//! it leaves a running connection alone.
//!
//! | module | holds |
//! |---|---|
//! | [`sample`] | what is seen of one connection |
//! | [`config`] | modes, variants, bounds, and why each default is what it is |
//! | [`connections`] | how each connection began and how it does |
//! | [`learner`] | the rounds: observe, decide, expire |
//! | [`riptide`] | a round's average of congestion windows |
//! | [`paced`] | a round's average of delivered rates, and what they prove |
//! | [`strict`] | RFC 9959's limits |
//! | [`guard`] | what a lost first flight costs |
//! | [`hint`] | what an outsider knows before the windows show it |
//! | [`start`] | one connection's share when several start at once |
//! | [`arms`] | connections that jumped beside those that did not |
//! | [`explain`] | why a destination has the value it has |
//! | [`figures`] | the paper's model of what a larger window saves |

pub mod arms;
pub mod config;
pub mod connections;
mod destination;
pub mod explain;
pub mod figures;
pub mod guard;
pub mod hint;
pub mod learner;
pub mod paced;
pub mod riptide;
pub mod sample;
pub mod start;
pub mod strict;

pub use arms::{Arm, Totals};
pub use config::{Combine, Config, ConfigError, Control, History, Mode, Settings};
pub use connections::Begun;
pub use explain::Explanation;
pub use hint::{Hint, Order};
pub use ipnet::IpNet;
pub use learner::{Change, Learner, Reason, Setting};
pub use sample::Sample;
pub use start::Start;
