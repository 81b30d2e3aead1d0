//! Windows that other hosts have learned, such as those of the same site. They serve destinations
//! of which this host has learned nothing itself, and for as long as the others confirm them.

use std::collections::BTreeMap;

use ipnet::IpNet;
use tradewind_units::{Segments, Timestamp};

use super::Learner;
use crate::config::Mode;

/// The windows, and the time until which they count.
#[derive(Debug, Default)]
pub(super) struct SharedWindows {
    windows: BTreeMap<IpNet, Segments>,
    until: Timestamp,
}

impl SharedWindows {
    /// Forgets those inside `within`, or all.
    pub(super) fn forget(&mut self, within: Option<&IpNet>) {
        self.windows.retain(|prefix, _| within.is_some_and(|within| !within.contains(prefix)));
    }
}

impl Learner {
    /// Takes in windows that other hosts have learned, instead of those before, which end with the
    /// next round. They count until `until`, within this host's bounds, and for at most half of
    /// the destinations that it has capacity for. In modes that learn rates they count for nothing.
    pub fn share(
        &mut self,
        windows: impl IntoIterator<Item = (IpNet, Segments)>,
        until: Timestamp,
    ) {
        if self.config.mode != Mode::Riptide {
            return;
        }
        let is_own = |(prefix, _): &(IpNet, Segments)| self.prefix_of(prefix.addr()) == *prefix;
        let windows = windows.into_iter().filter(is_own).take(self.config.max_destinations / 2);
        self.shared = SharedWindows { windows: windows.collect(), until };
        for (prefix, known) in &mut self.destinations {
            if known.is_shared && !self.shared.windows.contains_key(prefix) {
                known.expires = Timestamp::ZERO;
            }
        }
    }

    /// Adds them to this round's observations, after those of all connections.
    pub(super) fn observe_shared(&mut self, now: Timestamp) {
        if self.shared.until <= now {
            self.shared = SharedWindows::default();
        }
        let SharedWindows { windows, until } = std::mem::take(&mut self.shared);
        for (prefix, window) in &windows {
            if self.has_capacity_for(prefix) {
                self.observed.entry(*prefix).or_default().shared = Some((*window, until));
            }
        }
        self.shared = SharedWindows { windows, until };
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tradewind_units::{Duration, Ratio};

    use super::*;
    use crate::config::{Config, Control};
    use crate::learner::tests_support::sample;
    use crate::learner::{Change, Reason};
    use crate::sample::Sample;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::ZERO + Duration::from_secs(seconds)
    }

    fn learner(change: impl FnOnce(&mut Config)) -> Learner {
        let control = Control::Destinations(Ratio::ZERO);
        let mut config = Config { control, ..Config::default() };
        change(&mut config);
        Learner::new(config)
    }

    fn of(prefix: &str, window: u32) -> (IpNet, Segments) {
        (prefix.parse().unwrap(), Segments::new(window).unwrap())
    }

    /// Runs a round with a connection of each of these windows to 10.0.0.1.
    fn round(learner: &mut Learner, now: u64, windows: &[u32]) -> Vec<Change> {
        for (connection, window) in windows.iter().enumerate() {
            let window = Segments::new(*window).unwrap();
            learner.observe(&Sample { window, ..sample(connection as u64, "10.0.0.1") });
        }
        learner.decide(at(now))
    }

    /// Returns the window and the connections behind it.
    fn known(learner: &Learner, address: &str) -> Option<(u32, u32)> {
        let address: IpAddr = address.parse().unwrap();
        let known = learner.explain(address, Timestamp::ZERO)?;
        Some((known.window_segments, known.samples))
    }

    #[test]
    fn shared_windows_serve_within_own_bounds_until_nobody_confirms_them() {
        let mut learner = learner(|_| {});
        let windows = [of("10.0.0.2/32", 60), of("10.0.0.3/32", 65_535), of("10.0.0.4/32", 1)];
        learner
            .share(windows.into_iter().chain([of("10.0.0.0/8", 90), of("0.0.0.0/0", 90)]), at(30));
        assert_eq!(round(&mut learner, 0, &[]).len(), 3, "other prefixes are none of its own");
        assert_eq!(known(&learner, "10.0.0.2"), Some((60, 0)));
        assert_eq!(known(&learner, "10.0.0.3"), Some((100, 0)));
        assert_eq!(known(&learner, "10.0.0.4"), Some((10, 0)));
        // A new list counts instead, without the history of the one before.
        learner.share([of("10.0.0.2/32", 20)], at(35));
        assert!(learner.start(at(1), "10.0.0.3".parse().unwrap(), None).is_none());
        let changes = round(&mut learner, 1, &[]);
        let removed = |changes: &[Change]| {
            let is_removal =
                |it: &&Change| matches!(it, Change::Remove { reason: Reason::Expired, .. });
            changes.iter().filter(is_removal).count()
        };
        assert_eq!((removed(&changes), learner.len()), (2, 1));
        assert_eq!(known(&learner, "10.0.0.2"), Some((20, 0)));
        assert_eq!(removed(&round(&mut learner, 34, &[])), 0);
        assert_eq!(removed(&round(&mut learner, 35, &[])), 1);
        assert!(learner.is_empty());
    }

    #[test]
    fn own_connections_precede_for_their_time_to_live() {
        let mut learner = learner(|_| {});
        learner.share([of("10.0.0.1/32", 90)], at(300));
        round(&mut learner, 0, &[]);
        assert_eq!(known(&learner, "10.0.0.1"), Some((90, 0)));
        // What it sees itself counts from the first connection on.
        round(&mut learner, 1, &[40]);
        assert_eq!(known(&learner, "10.0.0.1"), Some((40, 1)));
        round(&mut learner, 2, &[]);
        learner.share([of("10.0.0.1/32", 1)], at(300));
        round(&mut learner, 90, &[]);
        assert_eq!(known(&learner, "10.0.0.1"), Some((40, 1)));
        // Others serve again once that has expired, and end at once.
        round(&mut learner, 91, &[]);
        assert_eq!(known(&learner, "10.0.0.1"), Some((10, 0)));
        learner.share([], at(300));
        round(&mut learner, 92, &[]);
        assert!(learner.is_empty());
    }

    #[test]
    fn own_connections_have_room_beside_shared_windows() {
        let mut learner = learner(|config| config.max_destinations = 4);
        for list in 0..3 {
            let windows = (0..9).map(|number| of(&format!("10.{list}.1.{number}/32"), 60));
            learner.share(windows, at(30));
            round(&mut learner, list, &[]);
            assert_eq!(learner.len(), 2);
        }
        for connection in 0..2 {
            learner.observe(&sample(connection, &format!("10.9.0.{connection}")));
        }
        learner.decide(at(3));
        assert_eq!((learner.len(), learner.refused()), (4, 0));
    }

    #[test]
    fn flush_forgets_shared_windows() {
        let mut learner = learner(|_| {});
        learner.share([of("10.0.0.2/32", 60), of("10.1.0.2/32", 60)], at(30));
        round(&mut learner, 0, &[]);
        let within: IpNet = "10.1.0.0/16".parse().unwrap();
        assert_eq!(learner.flush(Some(within)).len(), 1);
        round(&mut learner, 1, &[]);
        assert_eq!(
            (known(&learner, "10.1.0.2"), known(&learner, "10.0.0.2")),
            (None, Some((60, 0)))
        );
        learner.flush(None);
        assert!(round(&mut learner, 2, &[]).is_empty());
    }

    #[test]
    fn control_arm_and_modes_with_rates_use_none() {
        let mut control = learner(|config| config.control = Control::Destinations(Ratio::ONE));
        control.share([of("10.0.0.2/32", 60)], at(30));
        assert!(round(&mut control, 0, &[]).is_empty());
        for mode in [Mode::Paced, Mode::Strict] {
            let mut rated = learner(|config| config.mode = mode);
            rated.share([of("10.0.0.2/32", 60)], at(30));
            round(&mut rated, 0, &[]);
            assert!(rated.is_empty(), "{mode:?}");
        }
    }
}
