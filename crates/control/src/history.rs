//! The hours of one flow, and the forecast that was made of them.
//!
//! Copies share what they have in common, as a plan is made of a copy of the state. A forecast is
//! of the whole hours before now, so it is made once an hour, and again when a batch that was late
//! changes those hours.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tradewind_units::Bytes;

use crate::demand::Forecast;
use crate::record::{DAYS_IN_MEMORY, HourUsage};

/// The usage of a flow in each hour of the newest [`DAYS_IN_MEMORY`] on which it carried something.
#[derive(Debug, Clone, Default)]
pub struct History {
    days: BTreeMap<u64, Arc<[HourUsage]>>,
    made: Made,
}

/// The forecast that was made last, which copies of a history share until one of them changes.
type Made = Arc<Mutex<Option<MadeForecast>>>;

#[derive(Debug, Clone)]
struct MadeForecast {
    /// The hour that it begins with.
    hour: u64,
    declared: Bytes,
    forecast: Option<Forecast>,
}

/// Histories are the same if their hours are: forecasts follow from these.
impl PartialEq for History {
    fn eq(&self, other: &Self) -> bool {
        self.days == other.days
    }
}

impl History {
    /// Returns the hours of a day (UTC), in order.
    #[must_use]
    pub fn day(&self, day: u64) -> Option<&[HourUsage]> {
        self.days.get(&day).map(|hours| &**hours)
    }

    /// Returns the days, oldest first, with their hours.
    pub fn days(&self) -> impl Iterator<Item = (u64, &[HourUsage])> {
        self.days.iter().map(|(day, hours)| (*day, &**hours))
    }

    /// Returns all hours, oldest first.
    pub fn hours(&self) -> impl Iterator<Item = &HourUsage> {
        self.days.values().flat_map(|hours| hours.iter())
    }

    /// Replaces the hours of a day. The forecast parts from that of copies, which have other hours
    /// from now on.
    pub(crate) fn set_day(&mut self, day: u64, hours: Vec<HourUsage>) {
        let before = self.days.insert(day, hours.into());
        let is_full = self.days.len() > DAYS_IN_MEMORY;
        let made = self.made().clone();
        let is_valid =
            |made: &MadeForecast| !is_full && self.is_same_until(made.hour, day, before.as_deref());
        self.made = Arc::new(Mutex::new(made.filter(is_valid)));
        while self.days.len() > DAYS_IN_MEMORY {
            self.days.pop_first();
        }
    }

    /// Returns whether the hours of a day that are before `hour` are as they were.
    fn is_same_until(&self, hour: u64, day: u64, before: Option<&[HourUsage]>) -> bool {
        let until = |hours: Option<&[HourUsage]>| -> Vec<HourUsage> {
            let hours = hours.into_iter().flatten();
            hours.filter(|usage| usage.hour < hour).copied().collect()
        };
        until(self.day(day)) == until(before)
    }

    /// Returns the forecast that begins with this hour, made by `make` unless it is known.
    pub(crate) fn forecast(
        &self,
        hour: u64,
        declared: Bytes,
        make: impl FnOnce() -> Option<Forecast>,
    ) -> Option<Forecast> {
        let mut made = self.made();
        let known = made.as_ref().filter(|it| (it.hour, it.declared) == (hour, declared));
        if let Some(known) = known {
            return known.forecast.clone();
        }
        let forecast = make();
        *made = Some(MadeForecast { hour, declared, forecast: forecast.clone() });
        forecast
    }

    fn made(&self) -> std::sync::MutexGuard<'_, Option<MadeForecast>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECLARED: Bytes = Bytes::new(1000);

    fn usage(hour: u64, bytes: u64) -> HourUsage {
        HourUsage { hour, sessions: 1, bytes, concurrent: 1 }
    }

    /// Returns how often a forecast is made when it is asked for.
    fn asked(history: &History, hour: u64, declared: Bytes) -> u32 {
        let mut count = 0;
        let forecast = history.forecast(hour, declared, || {
            count += 1;
            None
        });
        assert_eq!(forecast, None);
        count
    }

    #[test]
    fn forecast_is_made_once_an_hour_and_again_when_its_hours_change() {
        let mut history = History::default();
        history.set_day(1, vec![usage(24, 5), usage(30, 6)]);
        let twice = |history: &History| asked(history, 30, DECLARED) + asked(history, 30, DECLARED);
        assert_eq!(twice(&history), 1);
        // The hour under way, and the same hours again.
        history.set_day(1, vec![usage(24, 5), usage(30, 9)]);
        assert_eq!(twice(&history), 0);
        // A copy has it as well, and loses it alone.
        let mut copy = history.clone();
        copy.set_day(1, vec![usage(24, 6), usage(30, 9)]);
        assert_eq!((twice(&history), twice(&copy)), (0, 1));
        assert_ne!(history, copy);
        copy.set_day(0, vec![usage(3, 1)]);
        assert_eq!(twice(&copy), 1, "a day before");
        assert_eq!(asked(&copy, 31, DECLARED), 1, "the next hour");
        assert_eq!(asked(&copy, 31, Bytes::new(2000)), 1, "declared anew");
        for day in 2..40 {
            copy.set_day(day, vec![usage(day * 24, 1)]);
        }
        assert_eq!((copy.days().count(), copy.hours().count()), (DAYS_IN_MEMORY, DAYS_IN_MEMORY));
    }

    #[test]
    fn forecasts_of_copies_with_other_hours_stay_apart() {
        let mut history = History::default();
        history.set_day(1, vec![usage(24, 5)]);
        let copy = history.clone();
        // Late, and before any forecast.
        history.set_day(1, vec![usage(24, 6)]);
        assert_eq!((asked(&copy, 31, DECLARED), asked(&history, 31, DECLARED)), (1, 1));
        // The hour under way is no part of this forecast, but of the next.
        let copy = history.clone();
        history.set_day(1, vec![usage(24, 6), usage(31, 1)]);
        assert_eq!((asked(&copy, 32, DECLARED), asked(&history, 31, DECLARED)), (1, 0));
        assert_eq!(asked(&history, 32, DECLARED), 1);
    }

    #[test]
    fn copies_share_their_hours() {
        let mut history = History::default();
        history.set_day(1, vec![usage(24, 5)]);
        history.set_day(2, vec![usage(48, 5)]);
        let mut copy = history.clone();
        copy.set_day(2, vec![usage(48, 6)]);
        let at = |history: &History, day| history.day(day).map(<[HourUsage]>::as_ptr);
        assert_eq!(at(&history, 1), at(&copy, 1));
        assert_ne!(at(&history, 2), at(&copy, 2));
    }
}
