//! Destinations that the last relay of a path could not reach lately.
//!
//! Probes end at a path's last relay, so nothing is known of the leg behind it but what sessions
//! meet there. One that fails there was dialled and is not tried again, but those that come after
//! it take another way first, for a while.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tradewind_grant::Destination;
use tradewind_units::{Duration, Timestamp};

/// How long other ways go first. Chosen: as long as a dial may take, so that one session at a time
/// finds out.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Destinations that are remembered for one path. Chosen: as many as fit where all sessions of a
/// large gateway fail at once.
const MOST: usize = 4096;

/// What one path's last relay could not reach, and when.
#[derive(Debug, Default)]
pub(super) struct Unreached(Mutex<BTreeMap<Destination, Timestamp>>);

impl Unreached {
    /// A session's last hop could not reach `to`.
    pub(super) fn note(&self, to: &Destination, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST {
            all.retain(|_, at| now.since(*at) < REMEMBERED);
        }
        if all.len() < MOST {
            all.insert(to.clone(), now);
        }
    }

    /// A session has reached it.
    pub(super) fn forget(&self, to: &Destination) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            all.remove(to);
        }
    }

    /// Whether it could not be reached lately.
    pub(super) fn holds(&self, to: &Destination, now: Timestamp) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(to).is_some_and(|at| now.since(*at) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_reached_is_remembered_for_a_while_and_within_bounds() {
        let unreached = Unreached::default();
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        let to = |port: usize| -> Destination { format!("198.51.100.1:{port}").parse().unwrap() };
        unreached.note(&to(80), at(1));
        assert!(unreached.holds(&to(80), at(10)) && !unreached.holds(&to(443), at(10)));
        assert!(!unreached.holds(&to(80), at(11)));
        unreached.note(&to(80), at(20));
        unreached.forget(&to(80));
        assert!(!unreached.holds(&to(80), at(20)));
        (1..=2 * MOST).for_each(|port| unreached.note(&to(port), at(30)));
        assert!(unreached.holds(&to(MOST), at(31)) && !unreached.holds(&to(MOST + 1), at(31)));
        unreached.note(&to(MOST + 1), at(41));
        assert!(unreached.holds(&to(MOST + 1), at(42)));
    }
}
