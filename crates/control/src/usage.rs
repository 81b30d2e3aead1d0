//! The usage of flows in each hour, from the sessions that gateways report.
//!
//! An agent tells how the sessions of a batch spread over hours. That counts only where it agrees
//! with their tallies, so that hours and days add up to the same; else, and where an agent tells
//! nothing, all of a flow's sessions are of the hour in which their batch came in.

use std::collections::BTreeMap;

use tradewind_units::FlowId;

use crate::draft::{DAY_MS, HOUR_MS};
use crate::message::{FlowHour, SessionBatch, SessionTally};
use crate::record::{DayUsage, HourUsage, Record};
use crate::sessions::MAX_COUNT;
use crate::state::State;

/// The oldest hour that is taken as an agent tells it. Chosen: agents go on without a controller
/// for a week.
const OLDEST_HOURS: u64 = 7 * 24;
/// Most hours of one flow in a batch; with more, none of them counts. Chosen: the oldest, this one,
/// and some for a clock that was set.
const MAX_HOURS: usize = OLDEST_HOURS as usize + 24;
/// Hours of a day.
pub(crate) const HOURS: u64 = DAY_MS / HOUR_MS;

/// Returns the records of what the flows of these tallies carried, by hour, with further hours of
/// flows that a gateway did not know yet.
pub(crate) fn take(
    state: &State,
    now_unix_ms: u64,
    batch: &SessionBatch,
    tallies: &[&SessionTally],
    mut adopted: BTreeMap<FlowId, Vec<HourUsage>>,
) -> Vec<Record> {
    let now = now_unix_ms / HOUR_MS;
    let mut flows: BTreeMap<&FlowId, (u64, u64)> = BTreeMap::new();
    for tally in tallies {
        let (sessions, bytes) = flows.entry(&tally.flow).or_default();
        *sessions = sessions.saturating_add(tally.sessions).saturating_add(tally.failed);
        *bytes = bytes.saturating_add(tally.bytes());
    }
    let mut told: BTreeMap<&FlowId, Vec<&FlowHour>> = BTreeMap::new();
    for hour in batch.hours.iter().filter(|hour| flows.contains_key(&hour.flow)) {
        told.entry(&hour.flow).or_default().push(hour);
    }
    let mut records = Vec::new();
    for (flow, sums) in flows {
        let told = told.remove(flow).unwrap_or_default();
        let mut hours = if agrees(&told, sums) {
            told.iter().map(|hour| of_hour(hour, now)).collect()
        } else {
            let (sessions, bytes) = sums;
            vec![HourUsage { hour: now, sessions, bytes, concurrent: 0 }]
        };
        let more = adopted.remove(flow).unwrap_or_default();
        hours.extend(more.iter().map(|told| of_possible_hour(told, now)));
        records.extend(added(state, flow, &hours));
    }
    for (flow, hours) in adopted {
        records.extend(add_hours(state, &flow, &hours, now_unix_ms));
    }
    records
}

/// Returns whether hours add up to the sessions and bytes of a batch.
fn agrees(hours: &[&FlowHour], (sessions, bytes): (u64, u64)) -> bool {
    let sum = |of: fn(&FlowHour) -> u64| {
        hours.iter().try_fold(0_u64, |sum, hour| sum.checked_add(of(hour)))
    };
    hours.len() <= MAX_HOURS
        && sum(|hour| hour.sessions) == Some(sessions)
        && sum(|hour| hour.bytes) == Some(bytes)
}

/// Returns an hour as it is kept. One that the agent's clock cannot be right about is this one.
fn of_hour(told: &FlowHour, now: u64) -> HourUsage {
    let FlowHour { hour, sessions, bytes, concurrent, .. } = *told;
    HourUsage { hour: possible(hour, now), sessions, bytes, concurrent }
}

/// Returns an hour, or this one if an agent's clock cannot be right about it.
const fn possible(hour: u64, now: u64) -> u64 {
    if hour <= now && now - hour <= OLDEST_HOURS { hour } else { now }
}

fn of_possible_hour(told: &HourUsage, now: u64) -> HourUsage {
    HourUsage { hour: possible(told.hour, now), ..*told }
}

/// Returns the records of hours that an agent tells of a flow; an hour that its clock cannot be
/// right about is this one.
pub(crate) fn add_hours(state: &State, flow: &FlowId, told: &[HourUsage], now: u64) -> Vec<Record> {
    let now = now / HOUR_MS;
    let hours: Vec<HourUsage> = told.iter().map(|told| of_possible_hour(told, now)).collect();
    added(state, flow, &hours).collect()
}

/// Returns the days of a flow with more added to their hours.
fn added(state: &State, flow: &FlowId, more: &[HourUsage]) -> impl Iterator<Item = Record> {
    let known = state.usage.get(flow);
    let mut days: BTreeMap<u64, Vec<HourUsage>> = BTreeMap::new();
    for usage in more {
        let day = usage.hour / HOURS;
        let hours = days
            .entry(day)
            .or_insert_with(|| known.and_then(|days| days.day(day)).unwrap_or_default().to_vec());
        match hours.binary_search_by_key(&usage.hour, |hour| hour.hour) {
            Ok(at) => add(&mut hours[at], usage),
            Err(at) => {
                hours.insert(at, HourUsage { hour: usage.hour, ..HourUsage::default() });
                add(&mut hours[at], usage);
            }
        }
    }
    let flow = flow.clone();
    days.into_iter()
        .map(move |(day, hours)| Record::Usage(DayUsage { flow: flow.clone(), day, hours }))
}

/// Adds within what is exact.
fn add(sum: &mut HourUsage, more: &HourUsage) {
    sum.sessions = sum.sessions.saturating_add(more.sessions).min(MAX_COUNT);
    sum.bytes = sum.bytes.saturating_add(more.bytes).min(MAX_COUNT);
    // Sessions of batches before this one are among those that were open.
    sum.concurrent = sum.concurrent.max(more.concurrent).min(sum.sessions);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::event::Event;
    use crate::history::History;
    use crate::message::Arm;
    use crate::testing::{Bench, PATH, flow, tally};

    const HOUR: u64 = HOUR_MS;

    fn told(hour: u64, sessions: u64, concurrent: u64) -> FlowHour {
        let bytes = sessions * 3_001_000;
        FlowHour { flow: FlowId::new("a").unwrap(), hour, sessions, bytes, concurrent }
    }

    fn batch(run: u64, number: u64, sessions: usize, hours: Vec<FlowHour>) -> SessionBatch {
        let tallies = vec![tally(Arm::Overlay, &PATH, &vec![1.0; sessions])];
        SessionBatch { tallies, hours, ..SessionBatch::empty(run, number) }
    }

    fn report(bench: &mut Bench, batch: SessionBatch) {
        bench.report_with(1, |report| report.sessions = Some(batch));
    }

    fn kept(bench: &Bench) -> Vec<HourUsage> {
        bench.state().usage.values().flat_map(History::hours).copied().collect()
    }

    #[test]
    fn sessions_are_of_the_hours_that_the_agent_tells() {
        let mut bench = Bench::in_service();
        let now = bench.now / HOUR;
        report(&mut bench, batch(1, 1, 5, vec![told(now - 30, 2, 2), told(now, 3, 1)]));
        let of = |hour, sessions, concurrent| HourUsage {
            hour,
            sessions,
            bytes: sessions * 3_001_000,
            concurrent,
        };
        assert_eq!(kept(&bench), [of(now - 30, 2, 2), of(now, 3, 1)]);
        report(&mut bench, batch(1, 2, 4, vec![told(now - 30, 1, 9), told(now, 3, 5)]));
        assert_eq!(kept(&bench), [of(now - 30, 3, 3), of(now, 6, 5)]);
        // A restart keeps it; the end of the flow does not.
        bench.controller = bench.restarted();
        assert_eq!(kept(&bench).len(), 2);
        bench.event(Event::RemoveFlow(flow("a", 7).id));
        assert_eq!(kept(&bench), []);
    }

    #[test]
    fn hours_that_cannot_be_are_this_one() {
        let mut bench = Bench::in_service();
        let now = bench.now / HOUR;
        // Of a release that tells no hours; hours that do not add up; more at once than there are.
        let beyond = FlowHour { bytes: u64::MAX, ..told(now - 1, 1, 1) };
        for (number, hours) in [
            vec![],
            vec![told(now - 1, 1, 1)],
            vec![told(now - 1, 3, 1)],
            vec![beyond.clone(), beyond],
            vec![told(now - 1, 0, 0); MAX_HOURS + 1],
            // A clock that is wrong by far.
            vec![told(now + 1, 1, 0), told(now - OLDEST_HOURS - 1, 1, 0)],
        ]
        .into_iter()
        .enumerate()
        {
            report(&mut bench, batch(1, number as u64 + 1, 2, hours));
            let hours = kept(&bench);
            let sessions = 2 * (number as u64 + 1);
            assert_eq!((hours.len(), hours[0].hour, hours[0].sessions), (1, now, sessions));
            assert_eq!(hours[0].concurrent, 0);
        }
    }

    #[test]
    fn each_flow_keeps_a_month_in_memory() {
        let mut bench = Bench::in_service();
        for number in 1..=40 * HOURS {
            bench.now += HOUR;
            let now = bench.now / HOUR;
            report(&mut bench, batch(1, number, 1, vec![told(now, 1, 1)]));
        }
        let days = &bench.state().usage[&flow("a", 7).id];
        assert_eq!(days.days().count(), crate::record::DAYS_IN_MEMORY);
        assert!(days.days().all(|(_, hours)| hours.len() <= HOURS as usize));
        assert_eq!(days.hours().last().unwrap().hour, bench.now / HOUR);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Whatever batches are repeated or lost on the way, hours add up to the bytes of days, and
        /// to what was acknowledged.
        #[test]
        fn bytes_are_conserved_over_batches_lost_and_repeated(
            batches in proptest::collection::vec(
                (1_usize..5, 0_u64..200, 0_u64..4, any::<bool>(), any::<bool>()), 1..20
            )
        ) {
            let mut bench = Bench::in_service();
            let mut number = 0;
            let (mut sessions, mut waiting) = (0, None);
            for (count, hours_ago, repeats, is_told, is_lost) in batches {
                bench.now += 20 * 60_000;
                let now = bench.now / HOUR;
                // One that was lost is sent again, as it was.
                let batch = waiting.take().unwrap_or_else(|| {
                    number += 1;
                    let hours = vec![
                        told(now, count as u64 - 1, 0),
                        told(now.saturating_sub(hours_ago), 1, 1),
                    ];
                    let hours = if is_told { hours } else { Vec::new() };
                    batch(1, number, count, hours)
                });
                if is_lost {
                    waiting = Some(batch);
                    continue;
                }
                sessions += batch.tallies[0].sessions;
                for _ in 0..=repeats {
                    report(&mut bench, batch.clone());
                }
            }
            let days = bench.state().sessions.values().flatten();
            let hours = kept(&bench);
            prop_assert_eq!(hours.iter().map(|hour| hour.sessions).sum::<u64>(), sessions);
            prop_assert_eq!(
                hours.iter().map(|hour| hour.bytes).sum::<u64>(),
                days.map(SessionTally::bytes).sum::<u64>()
            );
        }
    }
}
