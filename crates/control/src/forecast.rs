//! Forecasts of what flows carry, from the hours before [CP III, VIII].
//!
//! The history is cut into days that end with the last whole hour, so that a forecast is of the
//! next 24 hours. In a back-test each day of the second half of the history is forecast as it would
//! have been then, and compared with what came; so is the declaration. The forecast counts where
//! its error is the smaller one.

use tradewind_plan::forecast::next_value;
use tradewind_units::Bytes;

use crate::demand::{Demand, Forecast, MIN_DAYS, VolumeSource};
use crate::draft::HOUR_MS;
use crate::history::History;
use crate::record::{DAYS_IN_MEMORY, FlowRecord, HourUsage};
use crate::state::State;
use crate::usage::HOURS;

/// Least volume of a day that plans are made for, as they know no empty flow. Chosen: it uses
/// nothing up.
const MIN_VOLUME: Bytes = Bytes::new(1_000_000);

/// Returns the volume that a flow is expected to carry in a day.
#[must_use]
pub fn demand(state: &State, now_unix_ms: u64, flow: &FlowRecord) -> Demand {
    let declared = flow.per_day;
    let history = state.usage.get(&flow.id);
    let forecast = history.and_then(|history| {
        let hour = now_unix_ms / HOUR_MS;
        history.forecast(hour, declared, || forecast(&days(history, hour), declared))
    });
    let (per_day, basis) = match &forecast {
        Some(forecast) if forecast.is_better => {
            (forecast.per_day.max(MIN_VOLUME), VolumeSource::Forecast)
        }
        _ => (declared, VolumeSource::Declared),
    };
    Demand { per_day, basis, declared, forecast }
}

/// Returns what a flow carried in each of the days until the last whole hour, oldest first; hours
/// before the first whole day are left out.
fn days(history: &History, now: u64) -> Vec<HourUsage> {
    let known = || history.hours();
    let begins = known().map(|usage| usage.hour).min().unwrap_or(now);
    // Days without sessions are none of the state, however long they last.
    let count = (now.saturating_sub(begins) / HOURS).min(DAYS_IN_MEMORY as u64);
    let first = now - count * HOURS;
    let mut days = vec![HourUsage::default(); count as usize];
    for usage in known().filter(|usage| (first..now).contains(&usage.hour)) {
        let day = &mut days[((usage.hour - first) / HOURS) as usize];
        day.sessions = day.sessions.saturating_add(usage.sessions);
        day.bytes = day.bytes.saturating_add(usage.bytes);
        day.concurrent = day.concurrent.max(usage.concurrent);
    }
    days
}

/// Forecasts the day after these; `None` if they are too few.
fn forecast(days: &[HourUsage], declared: Bytes) -> Option<Forecast> {
    if days.len() < MIN_DAYS {
        return None;
    }
    let series =
        |of: fn(&HourUsage) -> u64| -> Vec<f64> { days.iter().map(|day| of(day) as f64).collect() };
    let bytes = series(|day| day.bytes);
    let volume = next_value(&bytes)?;
    let tested_days = volume.back_test.len();
    let tested = &bytes[days.len() - tested_days..];
    let declared = declared.as_u64() as f64;
    let error = volume.error(&bytes);
    let declared_error: f64 = tested.iter().map(|came| (came - declared).abs()).sum();
    let came: f64 = tested.iter().sum();
    let ratio = |error: f64| (came > 0.0).then(|| error / came);
    Some(Forecast {
        per_day: Bytes::new(volume.value.round() as u64),
        sessions: next_value(&series(|day| day.sessions))?.value.round() as u64,
        concurrent: next_value(&series(|day| day.concurrent))?.value.round() as u64,
        days: days.len(),
        tested_days,
        method: volume.predictor.to_string(),
        error_ratio: ratio(error),
        declared_error_ratio: ratio(declared_error),
        is_better: error < declared_error,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Event;
    use crate::record::{DayUsage, Record};
    use crate::testing::{Bench, flow};

    const GB: u64 = 1_000_000_000;

    #[test]
    fn history_is_bounded_by_the_calendar() {
        let mut bench = Bench::new();
        bench.event(Event::AddFlow(flow("a", 7)));
        let now = bench.now / HOUR_MS;
        // The clock was at 1970 when the first session ended.
        for hour in [0, now - 40 * HOURS, now - 1] {
            let usage = HourUsage { hour, sessions: 1, bytes: GB, concurrent: 1 };
            let day = hour / HOURS;
            let usage = DayUsage { flow: flow("a", 7).id, day, hours: vec![usage] };
            bench.controller.apply(Record::Usage(usage));
        }
        let demand = super::demand(bench.state(), bench.now, &flow("a", 7));
        assert_eq!(demand.forecast.unwrap().days, DAYS_IN_MEMORY);
    }

    /// Has flow `a`, which is declared at 20 GB a day, carry this much in each hour until now.
    fn carried(bench: &mut Bench, hours: &[u64]) {
        let now = bench.now / HOUR_MS;
        let first = now - hours.len() as u64;
        let usage = |(index, bytes): (usize, &u64)| HourUsage {
            hour: first + index as u64,
            sessions: 3,
            bytes: *bytes,
            concurrent: 2,
        };
        let all: Vec<HourUsage> = hours.iter().enumerate().map(usage).collect();
        for hours in all.chunk_by(|one, next| one.hour / HOURS == next.hour / HOURS) {
            let (flow, day) = (flow("a", 7).id, hours[0].hour / HOURS);
            let known = bench.state().usage.get(&flow).and_then(|days| days.day(day));
            let before = known.into_iter().flatten().filter(|known| known.hour < first);
            let hours = before.chain(hours).copied().collect();
            let usage = DayUsage { flow, day, hours };
            bench.controller.apply(Record::Usage(usage));
        }
    }

    fn demand(bench: &Bench) -> Demand {
        super::demand(bench.state(), bench.now, &flow("a", 7))
    }

    #[test]
    fn declaration_counts_until_the_history_is_long_enough() {
        let mut bench = Bench::in_service();
        assert_eq!(demand(&bench).in_words(), "declared 20 GB a day; no forecast before 7 days");
        carried(&mut bench, &[GB; 7 * 24 - 1]);
        assert_eq!((demand(&bench).basis, demand(&bench).forecast), (VolumeSource::Declared, None));
        bench.now += HOUR_MS;
        carried(&mut bench, &[GB; 7 * 24]);
        let demand = demand(&bench);
        assert_eq!((demand.basis, demand.per_day), (VolumeSource::Forecast, Bytes::new(24 * GB)));
        let forecast = demand.forecast.as_ref().unwrap();
        assert_eq!((forecast.sessions, forecast.concurrent), (72, 2));
        assert_eq!((forecast.days, forecast.tested_days), (7, 4));
        assert_eq!(
            demand.in_words(),
            "declared 20 GB a day (error 17 %), forecast 24 GB a day from 7 days (error 0 %): the \
             forecast is used"
        );
    }

    #[test]
    fn demand_that_follows_no_pattern_is_as_declared() {
        let mut bench = Bench::in_service();
        // By day 18 to 22 GB, by chance: the declaration, their mean, errs less.
        let days = [21, 19, 22, 20, 18, 21, 21, 18, 22, 19, 20, 22, 19, 21, 18_u64];
        let hours: Vec<u64> = days.iter().flat_map(|day| [day * GB / 24].repeat(24)).collect();
        carried(&mut bench, &hours);
        let demand = demand(&bench);
        let forecast = demand.forecast.as_ref().unwrap();
        assert!(forecast.error_ratio > forecast.declared_error_ratio, "{forecast:?}");
        assert_eq!((demand.basis, demand.per_day), (VolumeSource::Declared, Bytes::new(20 * GB)));
        assert!(demand.in_words().ends_with("the declaration is used"));
    }

    #[test]
    fn hour_under_way_and_hours_of_the_future_do_not_count() {
        let mut bench = Bench::in_service();
        carried(&mut bench, &[GB; 10 * 24]);
        let before = demand(&bench);
        bench.now += HOUR_MS / 2;
        assert_eq!(demand(&bench), before);
        // The clock was put back by a day.
        bench.now -= 24 * HOUR_MS;
        assert_eq!(demand(&bench).forecast.unwrap().days, 9);
        bench.now -= 365 * 24 * HOUR_MS;
        assert_eq!(demand(&bench).forecast, None);
    }

    #[test]
    fn flow_that_went_silent_is_planned_for_as_nearly_nothing() {
        let mut bench = Bench::in_service();
        carried(&mut bench, &[GB; 10 * 24]);
        bench.now += 15 * 24 * HOUR_MS;
        let demand = demand(&bench);
        assert_eq!((demand.basis, demand.per_day), (VolumeSource::Forecast, MIN_VOLUME));
        assert!(
            demand.in_words().contains("(error of all, as nothing came)"),
            "{}",
            demand.in_words()
        );
    }

    #[test]
    fn plan_is_made_for_the_forecast_and_stale_once_it_is_another() {
        let mut bench = Bench::in_service();
        carried(&mut bench, &[GB / 20; 10 * 24]);
        let volume = |bench: &Bench| {
            let problem = bench.controller.problem(bench.time()).unwrap();
            problem.flows()[0].volume
        };
        assert_eq!(volume(&bench), Bytes::new(GB * 6 / 5));
        let stale = |bench: &Bench| bench.controller.staleness(bench.time()).join("; ");
        assert!(
            stale(&bench).contains("flow a: 1.2 GB a day forecast, was 20 GB"),
            "{}",
            stale(&bench)
        );
        bench.pass(10);
        bench.plan();
        assert_eq!(stale(&bench), "");
        let plan = bench.state().newest_plan().unwrap().clone();
        assert_eq!(plan.demands[&flow("a", 7).id].basis, VolumeSource::Forecast);
        assert!(plan.rests_on.iter().any(|line| line.starts_with("flow a: declared 20 GB a day")));
        let explained = bench.controller.explain(bench.time(), &flow("a", 7).id).unwrap();
        assert_eq!(explained.demand, plan.demands[&flow("a", 7).id]);
        // Hardly another: the plan stays. Much another: it does not.
        bench.now += 24 * HOUR_MS;
        carried(&mut bench, &[GB / 18; 24]);
        assert!(!stale(&bench).contains("forecast"), "{}", stale(&bench));
        bench.now += 24 * HOUR_MS;
        carried(&mut bench, &[GB / 4; 24]);
        assert!(stale(&bench).contains("flow a: "), "{}", stale(&bench));
        // Declared anew, it is compared anew.
        let per_day = Bytes::new(GB);
        bench.event(Event::AddFlow(crate::record::FlowRecord { per_day, ..flow("a", 7) }));
        assert!(stale(&bench).contains("flow a was declared anew"));
    }

    #[test]
    fn flow_between_other_ends_has_no_forecast_and_another_volume_keeps_it() {
        let mut bench = Bench::in_service();
        carried(&mut bench, &[GB; 10 * 24]);
        let per_day = Bytes::new(5 * GB);
        bench.event(Event::AddFlow(crate::record::FlowRecord { per_day, ..flow("a", 7) }));
        assert_eq!(demand(&bench).forecast.unwrap().days, 10);
        bench.event(Event::AddFlow(flow("a", 8)));
        assert_eq!(demand(&bench).forecast, None);
        assert!(bench.state().usage.is_empty());
    }

    proptest! {
        /// In the back-test a forecast that counts is nearer to what came than the declaration.
        #[test]
        fn forecast_worse_than_the_declaration_never_counts(
            days in proptest::collection::vec(0_u64..100, 1..31),
            declared in 1_u64..100,
        ) {
            let usage = |(index, gigabytes): (usize, &u64)| HourUsage {
                hour: index as u64, sessions: 1, bytes: gigabytes * GB, concurrent: 1
            };
            let history: Vec<HourUsage> = days.iter().enumerate().map(usage).collect();
            let Some(forecast) = super::forecast(&history, Bytes::new(declared * GB)) else {
                prop_assert!(days.len() < MIN_DAYS);
                return Ok(());
            };
            // Told again, day by day, from what was known before each.
            let (mut error, mut of_declaration) = (0.0, 0.0);
            let first = days.len() - forecast.tested_days;
            for day in first..days.len() {
                let before: Vec<f64> = days[..day].iter().map(|day| (day * GB) as f64).collect();
                let came = (days[day] * GB) as f64;
                let guess = next_value(&before).map_or(before[0], |next| next.value);
                error += (guess - came).abs();
                of_declaration += ((declared * GB) as f64 - came).abs();
            }
            prop_assert_eq!(forecast.is_better, error < of_declaration);
        }
    }
}
