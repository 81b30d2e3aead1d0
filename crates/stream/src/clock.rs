//! The clock by which headers, grants and log lines are dated.

use std::time::SystemTime;

use tradewind_units::Timestamp;

/// Returns the time since the Unix epoch, as headers and grants count it.
#[must_use]
pub fn unix_now() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Timestamp::ZERO + since_epoch.unwrap_or_default()
}
