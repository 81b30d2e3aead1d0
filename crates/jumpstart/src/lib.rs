//! Jump-start: the initial congestion window of new connections, and the rate at which it is sent,
//! learned from the connections that a host already has.
//!
//! TCP starts every connection as if nothing were known: with ten segments. A host that has just
//! exchanged data with a destination knows more `[RT I]`. A [`Learner`] receives a [`Sample`] of
//! every open connection once a round, and then decides how the next connection to each destination
//! starts. It changes nothing itself: it returns [`Change`]s, and the same samples at the same
//! times give the same changes.
//!
//! Modes ([`Mode`]):
//!
//! - `riptide` is the paper's Algorithm 1 `[RT III-B]` with the variants it names: the mean, the
//!   maximum or the mean weighted by traffic of the congestion windows towards a destination, a
//!   moving average with history, bounds, and a time to live.
//! - `paced` learns delivery rate times least round-trip time instead. A congestion window is what
//!   one connection happened to be allowed, not what its path carries; averaged, it overshoots. The
//!   window is then only a ceiling: the first round trip is paced at the learned rate, which
//!   connections that start at once share, and which is halved when a first flight is lost.
//! - `strict` keeps to the limits of RFC 9959 (Careful Resume): half of the saved window, one start
//!   at a time, only while the round-trip time is unchanged, and forgotten after a loss.
//!
//! It reads no socket and sets none (`tradewind-net` and `tradewind-jumpstart-daemon` do), and it
//! leaves running connections alone.
//!
//! | module | holds |
//! |---|---|
//! | [`sample`] | a sample of one connection |
//! | [`config`] | modes, variants, bounds, and the reason for each default |
//! | [`connections`] | start and state of each connection |
//! | [`learner`] | the rounds: observe, decide, expire |
//! | [`riptide`] | a round's average of congestion windows |
//! | [`paced`] | a round's average of delivered rates, and what they prove |
//! | [`strict`] | RFC 9959's limits |
//! | [`guard`] | backing off after a lost first flight |
//! | [`hint`] | hints from outside, before the windows show a change |
//! | [`prefix`] | prefixes as people write them |
//! | [`start`] | one connection's share when several start at once |
//! | [`arms`] | connections that jumped, compared with those that did not |
//! | [`explain`] | explanation of a destination's value |
//! | [`figures`] | the paper's model of a larger window's savings |

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
pub mod prefix;
pub mod riptide;
pub mod sample;
pub mod start;
pub mod strict;

pub use arms::{Arm, SizeTotals, Totals};
pub use config::{Combine, Config, ConfigError, Control, History, Mode, Settings};
pub use connections::Begun;
pub use explain::Explanation;
pub use hint::{Hint, Order};
pub use ipnet::IpNet;
pub use learner::{Change, Learner, Reason, Setting};
pub use sample::Sample;
pub use start::Start;
