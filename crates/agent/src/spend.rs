//! Bytes that the host has sent today (UTC), for the spend of its owner's ceiling.
//!
//! Processes tell what they have sent when they are asked. Those that were told to end, or have a
//! successor, answer no more, and send on for 30 seconds at most: all sessions that end meanwhile
//! count in full, beside. That counts some bytes twice, and none too few. The sum is kept in a
//! file, so that a new agent goes on with it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tradewind_units::Bytes;

use crate::Home;
use crate::metrics::Counted;

/// Milliseconds of a day.
const DAY_MS: u64 = 86_400_000;
/// Most times in a row that a process that is ready does not tell what it has sent. Chosen: a
/// minute of an overloaded host.
const MAX_SILENT: u32 = 12;

/// The bytes of a day: the file `spent.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Spent {
    /// The day, since the Unix epoch. A clock that is put back begins no other one.
    day: u64,
    /// Bytes sent, as processes count them.
    counted: u64,
    /// Bytes of sessions that ended while a process served them that is asked no more.
    former: u64,
    /// Bytes that rate tests may have sent.
    tests: u64,
    /// True if more may have been sent that nobody has counted.
    is_unknown: bool,
    /// The start of each process, and what it had sent when it was asked last.
    seen: BTreeMap<String, (f64, u64)>,
    /// The number of times in a row that each process has not told.
    #[serde(skip)]
    silent: BTreeMap<String, u32>,
}

impl Spent {
    /// Returns what `home` keeps. Where that cannot be read, nobody knows what was sent today.
    pub(crate) fn kept(home: &Home, unix_ms: u64) -> Self {
        let mut spent = home.spent().unwrap_or_else(|error| {
            tracing::warn!("{error}; a `spend` of today counts as used up");
            Self { day: unix_ms / DAY_MS, is_unknown: true, ..Self::default() }
        });
        spent.turn(unix_ms);
        spent
    }

    /// Begins another day if it is due.
    pub(crate) fn turn(&mut self, unix_ms: u64) {
        let day = unix_ms / DAY_MS;
        if day > self.day {
            let seen = std::mem::take(&mut self.seen);
            *self = Self { day, seen, ..Self::default() };
        } else if self.day > day + 1 {
            // The clock was far ahead for a time; that day may be years away.
            self.day = day;
        }
    }

    /// Forgets all processes but these.
    pub(crate) fn retain(&mut self, is_wanted: impl Fn(&str) -> bool) {
        self.seen.retain(|name, _| is_wanted(name));
        self.silent.retain(|name, _| is_wanted(name));
    }

    /// Takes what a process that is ready has counted since its start.
    pub(crate) fn count(&mut self, process: &str, counted: Counted) {
        let Some((start, sent)) = counted.sent else {
            let silent = self.silent.entry(process.to_owned()).or_default();
            *silent += 1;
            self.is_unknown |= *silent >= MAX_SILENT;
            return;
        };
        self.silent.remove(process);
        let before = self.seen.insert(process.to_owned(), (start, sent));
        let same = before.filter(|(began, before)| *began == start && *before <= sent);
        let more = sent - same.map_or(0, |(_, before)| before);
        self.counted = self.counted.saturating_add(more);
    }

    /// Takes the bytes of sessions that ended while a process served them that is asked no more.
    pub(crate) fn former(&mut self, sent: Bytes) {
        self.former = self.former.saturating_add(sent.as_u64());
    }

    /// Takes the bytes that a rate test may send.
    pub(crate) fn test(&mut self, sent: Bytes) {
        self.tests = self.tests.saturating_add(sent.as_u64());
    }

    /// Returns what was sent, if anybody knows.
    pub(crate) fn known(&self) -> Option<Bytes> {
        (!self.is_unknown).then(|| self.sent())
    }

    /// Returns what was sent; as many as can be if nobody knows.
    pub(crate) fn sent(&self) -> Bytes {
        if self.is_unknown {
            return Bytes::new(u64::MAX);
        }
        Bytes::new(self.counted.saturating_add(self.former).saturating_add(self.tests))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(start: f64, sent: u64) -> Counted {
        Counted { sent: Some((start, sent)), ..Counted::default() }
    }

    #[test]
    fn what_is_sent_counts_once_over_restarts_and_begins_anew_each_day() {
        let mut spent = Spent::default();
        spent.turn(3 * DAY_MS);
        spent.count("relay", counted(1.0, 100));
        spent.count("relay", counted(1.0, 150));
        assert_eq!(spent.sent().as_u64(), 150);
        // Another agent reads it, and another process counts from zero.
        let text = serde_json::to_string(&spent).unwrap();
        let mut spent: Spent = serde_json::from_str(&text).unwrap();
        spent.count("relay", counted(1.0, 160));
        spent.count("relay", counted(2.0, 200));
        assert_eq!(spent.sent().as_u64(), 360);
        spent.count("relay", Counted::default());
        // A predecessor's session, of which 100 bytes were counted before the upgrade.
        spent.former(Bytes::new(150));
        spent.test(Bytes::new(5));
        assert_eq!(spent.sent().as_u64(), 515, "the successor's 200 do not hide them");
        spent.turn(2 * DAY_MS);
        assert_eq!(spent.sent().as_u64(), 515, "the clock was put back");
        spent.turn(4 * DAY_MS);
        spent.count("relay", counted(2.0, 210));
        assert_eq!(spent.sent().as_u64(), 10);
    }

    #[test]
    fn clock_that_was_far_ahead_closes_no_host_for_good() {
        let mut spent = Spent::default();
        spent.turn(9999 * DAY_MS);
        spent.test(Bytes::new(7));
        spent.turn(4 * DAY_MS);
        assert_eq!(spent.sent().as_u64(), 7, "the sum stays");
        spent.turn(5 * DAY_MS);
        assert_eq!(spent.sent().as_u64(), 0);
    }

    #[test]
    fn process_that_does_not_tell_for_long_is_taken_for_one_that_has_sent_all() {
        let mut spent = Spent::default();
        spent.turn(3 * DAY_MS);
        for _ in 1..MAX_SILENT {
            spent.count("relay", Counted::default());
        }
        spent.count("relay", counted(1.0, 9));
        spent.count("relay", Counted::default());
        assert_eq!(spent.sent().as_u64(), 9, "it was busy");
        for _ in 0..MAX_SILENT {
            spent.count("relay", Counted::default());
        }
        assert_eq!((spent.sent().as_u64(), spent.known()), (u64::MAX, None));
        spent.turn(4 * DAY_MS);
        assert_eq!(spent.known(), Some(Bytes::ZERO));
    }

    #[test]
    fn processes_that_are_gone_are_forgotten() {
        let mut spent = Spent::default();
        for number in 0..9 {
            let name = format!("relay-{number}");
            spent.count(&name, counted(1.0, 1));
            spent.retain(|kept| kept == name);
        }
        assert_eq!((spent.seen.len(), spent.sent().as_u64()), (1, 9));
    }

    #[test]
    fn file_that_cannot_be_read_counts_as_used_up_until_the_next_day() {
        let name = format!("tradewind-spend-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        let _none = std::fs::remove_dir_all(&place);
        let home = Home::at(&place).unwrap();
        // Makes the folder.
        let _lock = home.lock().unwrap();
        let now = 3 * DAY_MS + 7;
        assert_eq!(Spent::kept(&home, now).sent().as_u64(), 0, "none yet");
        std::fs::write(place.join("spent.json"), "{\"day\":").unwrap();
        let spent = Spent::kept(&home, now);
        assert_eq!(spent.sent().as_u64(), u64::MAX);
        home.set_spent(&spent).unwrap();
        assert_eq!(Spent::kept(&home, now).sent().as_u64(), u64::MAX, "a new agent");
        assert_eq!(Spent::kept(&home, now + DAY_MS).sent().as_u64(), 0);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
