//! Hints from outside, before the windows show a change `[RT V, Additional Algorithms]`: a load
//! shift that is about to happen, a path that is about to be withdrawn.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tradewind_units::{Ratio, Segments, Timestamp};

/// Instruction for learned values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Windows and rates may fall, and none rises; a destination without a value begins with the
    /// least window.
    Freeze,
    /// No window above this.
    AtMost(Segments),
    /// This share of what was learned.
    Scale(Ratio),
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Freeze => write!(f, "freeze"),
            Self::AtMost(segments) => write!(f, "at most {} segments", segments.as_u32()),
            Self::Scale(share) => write!(f, "scale to {share}"),
        }
    }
}

/// An order for all destinations inside a prefix, for a while.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Hint {
    /// The destinations that it covers.
    pub within: IpNet,
    /// The instruction.
    pub order: Order,
    /// Its end; [`Timestamp::FAR_FUTURE`] for a standing hint, which lasts until others replace it
    /// ([`crate::Learner::stand`]).
    pub until: Timestamp,
}

impl Hint {
    /// Returns whether it is a standing hint, which lasts until others replace it.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.until == Timestamp::FAR_FUTURE
    }

    /// Returns whether it covers `prefix` or a part of it.
    #[must_use]
    pub fn covers(&self, prefix: &IpNet) -> bool {
        self.within.contains(prefix) || prefix.contains(&self.within)
    }

    /// Returns `window` under this order, where `before` is the window issued last.
    #[must_use]
    pub fn apply(&self, window: f64, before: f64) -> f64 {
        match self.order {
            Order::Freeze => window.min(before),
            Order::AtMost(most) => window.min(f64::from(most.as_u32())),
            Order::Scale(share) => window * share.as_f64(),
        }
    }
}
