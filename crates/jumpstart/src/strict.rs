//! The limits of RFC 9959 (Convergence of Congestion Control from Retained State: Careful Resume)
//! that an initial window can keep.
//!
//! A jump is at most half of the window that was saved, one connection at a time uses what was
//! saved for a path, it is paced over the round-trip time, it is not made when the round-trip time
//! is not the saved one's, and a loss removes what was saved. The retreat within a connection after
//! a loss (its phases Validating and Safe Retreat) is left to congestion control.

use tradewind_units::Duration;

/// Share of the saved window that a jump may use (jump_cwnd).
pub const JUMP_SHARE: f64 = 0.5;
/// Share of the saved round-trip time up to which a new one is another path's.
const MIN_RTT_SHARE: f64 = 0.5;
/// Multiple of the saved round-trip time from which on a new one is another path's, or a congested
/// one's.
const MAX_RTT_FACTOR: f64 = 10.0;

/// Returns whether a handshake that took `rtt` used the path that was learned with `saved`.
#[must_use]
pub fn same_path(rtt: Duration, saved: Duration) -> bool {
    let share = rtt.as_secs_f64() / saved.as_secs_f64().max(1e-6);
    share > MIN_RTT_SHARE && share < MAX_RTT_FACTOR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_is_recognized_by_round_trip_time() {
        let ms = Duration::from_millis;
        for (rtt, same) in [(50, false), (51, true), (100, true), (999, true), (1000, false)] {
            assert_eq!(same_path(ms(rtt), ms(100)), same, "{rtt} ms");
        }
    }
}
