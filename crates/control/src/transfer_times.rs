//! The completion times of timed transfers, as types.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tradewind_units::SiteId;

use crate::learner::JumpArm;

/// Days of which single times are kept, those without any aside. Chosen: as of raw measurements.
pub const DAYS_OF_TRANSFERS: usize = 7;

/// The completion time of one transfer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TransferTime {
    /// With the learned window, or with the kernel's own.
    pub arm: JumpArm,
    /// Its size, in bytes.
    pub size_bytes: u32,
    /// The time from the first packet until the receiver had all, in seconds.
    pub seconds: f64,
}

/// The transfers of one day between two places.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DayTransfers {
    /// The place that sent.
    pub source: SiteId,
    /// The place that received.
    pub destination: SiteId,
    /// The day, in days since the Unix epoch (UTC).
    pub day: u64,
    /// Time of the last ones, in milliseconds since the Unix epoch.
    pub unix_ms: u64,
    /// Their times.
    pub times: Vec<TransferTime>,
}

/// The transfers between two places, by day.
pub type Transfers = BTreeMap<u64, Arc<DayTransfers>>;

impl DayTransfers {
    /// Returns the bytes that they carried.
    pub(crate) fn bytes(&self) -> u64 {
        self.times.iter().map(|time| u64::from(time.size_bytes)).sum()
    }
}
