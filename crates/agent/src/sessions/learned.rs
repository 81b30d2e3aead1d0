//! Sessions through a gateway's proxies that are of no flow, added up by destination and hour.
//! Those to the destination of a flow are named after it by the gateway.

use std::collections::BTreeMap;

use tradewind_control::message::LearnedHour;
use tradewind_grant::Destination;
use tradewind_units::FlowId;

use super::overlaps::Overlaps;
use super::{HOUR_MS, Session};

/// Most destinations and hours of one batch; sessions of others are counted and left out. Chosen:
/// 16 times the destinations that a controller keeps of a site.
const MAX_HOURS: usize = 4096;

/// The names that access logs give to sessions through proxies that are of no flow.
const PROXIES: [&str; 2] = ["socks5", "connect"];

/// The sessions to destinations without a flow.
#[derive(Debug)]
pub(super) struct Learned {
    hours: BTreeMap<(Destination, u64), LearnedHour>,
    overlaps: Overlaps<Destination>,
}

impl Learned {
    pub(super) const fn new() -> Self {
        Self { hours: BTreeMap::new(), overlaps: Overlaps::new() }
    }

    /// Returns whether a log names sessions of no flow like this.
    pub(super) fn is_proxy(name: &FlowId) -> bool {
        PROXIES.contains(&name.as_str())
    }

    /// Adds a session to a destination without a flow; returns whether there was room.
    pub(super) fn add(&mut self, to: &Destination, session: &Session) -> bool {
        let hour = session.ended_ms / HOUR_MS;
        let key = (to.clone(), hour);
        if self.hours.len() >= MAX_HOURS && !self.hours.contains_key(&key) {
            return false;
        }
        let concurrent = self.overlaps.add(to, session.began_ms, session.ended_ms);
        let sums = self.hours.entry(key).or_insert_with(|| LearnedHour {
            to: to.clone(),
            hour,
            sessions: 0,
            failed: 0,
            bytes: 0,
            seconds: 0.0,
            concurrent: 0,
        });
        sums.sessions += 1;
        sums.bytes = sums.bytes.saturating_add(session.bytes());
        sums.concurrent = sums.concurrent.max(concurrent);
        match session.seconds {
            Some(seconds) => sums.seconds += seconds,
            None => sums.failed += 1,
        }
        true
    }

    /// Returns whether there is nothing to tell.
    pub(super) fn is_empty(&self) -> bool {
        self.hours.is_empty()
    }

    /// Returns the sums since the last call.
    pub(super) fn take(&mut self) -> Vec<LearnedHour> {
        std::mem::take(&mut self.hours).into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_destinations_is_bounded() {
        let mut learned = Learned::new();
        let session = Session {
            began_ms: HOUR_MS - 1000,
            ended_ms: HOUR_MS,
            bytes_up: 1,
            bytes_down: 2,
            seconds: Some(1.0),
        };
        let to = |number: usize| {
            let [.., c, d] = u32::try_from(number).unwrap().to_be_bytes();
            format!("198.51.{c}.{d}:443").parse::<Destination>().unwrap()
        };
        for number in 0..MAX_HOURS {
            assert!(learned.add(&to(number), &session));
        }
        assert!(!learned.add(&to(MAX_HOURS), &session));
        assert!(learned.add(&to(0), &session), "one that is known");
        assert_eq!(learned.take().len(), MAX_HOURS);
        assert!(learned.add(&to(MAX_HOURS), &session));
    }
}
