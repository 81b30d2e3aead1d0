//! What an outsider knows before the windows show it `[RT V, Additional Algorithms]`: a load shift that is
//! about to happen, a path that is about to be taken away.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use tradewind_units::{Ratio, Segments, Timestamp};

/// What to do with what was learned.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Windows and rates may fall, and none rises; a destination without a value begins with the least window.
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
    /// Whom it is about.
    pub within: IpNet,
    /// What to do.
    pub order: Order,
    /// When it ends; [`Timestamp::FAR_FUTURE`]: it stands until others take its place ([`crate::Learner::stand`]).
    pub until: Timestamp,
}

impl Hint {
    /// Whether it stands until others take its place.
    #[must_use]
    pub fn stands(&self) -> bool {
        self.until == Timestamp::FAR_FUTURE
    }

    /// Whether it is about `prefix` or a part of it.
    #[must_use]
    pub fn covers(&self, prefix: &IpNet) -> bool {
        self.within.contains(prefix) || prefix.contains(&self.within)
    }

    /// `window` under this order, after `before`.
    #[must_use]
    pub fn apply(&self, window: f64, before: f64) -> f64 {
        match self.order {
            Order::Freeze => window.min(before),
            Order::AtMost(most) => window.min(f64::from(most.as_u32())),
            Order::Scale(share) => window * share.as_f64(),
        }
    }
}
