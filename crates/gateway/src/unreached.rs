//! Destinations that the last relay of a path could not reach recently.
//!
//! Probes end at a path's last relay, so the state of the leg beyond it is known from sessions
//! alone. A session that fails there has dialled its destination and is not retried, but later
//! sessions try the other options first for a while.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use tradewind_grant::Destination;
use tradewind_units::{Duration, Timestamp};

/// Time for which the other options are tried first. Chosen: the default dial timeout, so that one
/// session at a time tries the path.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Most destinations that are remembered for one path. Chosen: enough if all sessions of a large
/// gateway fail at once.
const MAX: usize = 4096;

/// The destinations that one path's last relay could not reach, and when.
#[derive(Debug, Default)]
pub(super) struct Unreached(Mutex<BTreeMap<Destination, Timestamp>>);

impl Unreached {
    /// Notes that a session's last hop could not reach `to`.
    pub(super) fn note(&self, to: &Destination, now: Timestamp) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX {
            all.retain(|_, at| now.since(*at) < REMEMBERED);
        }
        if all.len() < MAX {
            all.insert(to.clone(), now);
        }
    }

    /// Notes that a session has reached it.
    pub(super) fn forget(&self, to: &Destination) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !all.is_empty() {
            all.remove(to);
        }
    }

    /// Returns whether it could not be reached recently.
    pub(super) fn holds(&self, to: &Destination, now: Timestamp) -> bool {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(to).is_some_and(|at| now.since(*at) < REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreached_memory_is_bounded() {
        let unreached = Unreached::default();
        let at = |seconds| Timestamp::ZERO + Duration::from_secs(seconds);
        let to = |port: usize| -> Destination { format!("198.51.100.1:{port}").parse().unwrap() };
        unreached.note(&to(80), at(1));
        assert!(unreached.holds(&to(80), at(10)) && !unreached.holds(&to(443), at(10)));
        assert!(!unreached.holds(&to(80), at(11)));
        unreached.note(&to(80), at(20));
        unreached.forget(&to(80));
        assert!(!unreached.holds(&to(80), at(20)));
        (1..=2 * MAX).for_each(|port| unreached.note(&to(port), at(30)));
        assert!(unreached.holds(&to(MAX), at(31)) && !unreached.holds(&to(MAX + 1), at(31)));
        unreached.note(&to(MAX + 1), at(41));
        assert!(unreached.holds(&to(MAX + 1), at(42)));
    }
}
