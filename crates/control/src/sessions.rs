//! Sessions that gateways report: checked, counted once, and added up by day.

use std::collections::BTreeMap;

use tradewind_units::{HostId, Money};

use crate::draft::DAY_MS;
use crate::knowledge::MOST_RELAYS;
use crate::message::{Arm, SessionBatch, SessionTally};
use crate::prices;
use crate::record::{BatchTaken, DaySessions, Host, Record, Role, Spent};
use crate::state::State;

/// Most tallies of one flow and day; further ones are ignored. Chosen: both arms in all size
/// classes that occur, over some ten paths.
const MOST_TALLIES: usize = 1000;
/// Largest count of a tally: numbers up to here are exact in JSON and in sums.
const MOST_COUNT: u64 = 1 << 53;
/// The largest size class.
const LARGEST_CLASS: u8 = 63;

/// Returns the tallies of a batch that can be true; `None` if the batch was taken before.
pub(crate) fn new_tallies<'a>(
    state: &State,
    host: &Host,
    batch: &'a SessionBatch,
) -> Option<Vec<&'a SessionTally>> {
    let is_known = |last: &BatchTaken| last.run == batch.run && last.number >= batch.number;
    if state.batches.get(&host.id).is_some_and(is_known) {
        return None;
    }
    Some(batch.tallies.iter().filter(|tally| is_possible(state, host, tally)).collect())
}

/// Returns the records of a batch: that it was taken, the new sums of its day, and their cost.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    batch: &SessionBatch,
    tallies: &[&SessionTally],
) -> Vec<Record> {
    let day = now / DAY_MS;
    let mut sums: Vec<SessionTally> = Vec::new();
    let mut rows: BTreeMap<_, usize> = BTreeMap::new();
    let mut cost = Money::ZERO;
    for tally in tallies {
        let new = sums.iter_mut().find(|sum| sum.flow == tally.flow && sum.key() == tally.key());
        if let Some(sum) = new {
            sum.add(tally);
        } else if let Some(sum) = summed(state, day, tally, &mut rows) {
            sums.push(sum);
        } else {
            continue;
        }
        cost = cost + prices::traffic(state, tally).into_iter().sum();
    }
    let taken = BatchTaken { host: host.id.clone(), run: batch.run, number: batch.number };
    let mut records = vec![Record::Batch(taken)];
    records.extend(sums.into_iter().map(|tally| Record::Sessions(DaySessions { day, tally })));
    if cost > Money::ZERO {
        let before = state.spent.get(&day).cloned();
        let before = before.unwrap_or(Spent { day, until_unix_ms: now, ..Spent::default() });
        let traffic = before.traffic + cost;
        records.push(Record::Spent(Spent { traffic, ..before }));
    }
    records
}

/// Returns a tally added to what its day has of its kind; `None` if the day has too many kinds.
fn summed<'a>(
    state: &State,
    day: u64,
    tally: &'a SessionTally,
    rows: &mut BTreeMap<&'a tradewind_units::FlowId, usize>,
) -> Option<SessionTally> {
    let known = state.sessions.get(&(day, tally.flow.clone()));
    let rows = rows.entry(&tally.flow).or_insert_with(|| known.map_or(0, Vec::len));
    let same = known.and_then(|known| {
        known.binary_search_by(|known| known.key().cmp(&tally.key())).ok().map(|at| &known[at])
    });
    if let Some(same) = same {
        let mut sum = same.clone();
        sum.add(tally);
        return Some(sum);
    }
    *rows += 1;
    (*rows <= MOST_TALLIES).then(|| tally.clone())
}

/// Returns whether a gateway can have had such sessions: a flow of its own site, relays that have
/// joined, and figures of sessions.
fn is_possible(state: &State, host: &Host, tally: &SessionTally) -> bool {
    let is_its_own = match &host.role {
        Role::Gateway { site } => {
            state.flows.get(&tally.flow).is_some_and(|flow| flow.from == *site)
        }
        Role::Relay { .. } | Role::Probe { .. } => false,
    };
    let fits_arm = match tally.arm {
        Arm::Overlay => !tally.path.is_empty(),
        Arm::Control => tally.path.is_empty(),
        Arm::Other => true,
    };
    let is_relay = |relay: &tradewind_units::RelayId| {
        let host = HostId::new(relay.as_str()).ok().and_then(|id| state.hosts.get(&id));
        host.is_some_and(|host| matches!(host.role, Role::Relay { .. }))
    };
    let is_path = tally.path.len() <= MOST_RELAYS && tally.path.iter().all(is_relay);
    is_its_own && fits_arm && is_path && has_possible_figures(tally)
}

fn has_possible_figures(tally: &SessionTally) -> bool {
    let SessionTally { size_class, sessions, failed, bytes_up, bytes_down, .. } = *tally;
    let count = u128::from(sessions) + u128::from(failed);
    let counts = [sessions, failed, bytes_up, bytes_down];
    let are_counts = count > 0 && counts.iter().all(|count| *count <= MOST_COUNT);
    let is_class = size_class <= LARGEST_CLASS
        && u128::from(bytes_up) + u128::from(bytes_down) < count << (size_class + 1);
    let SessionTally { seconds, log_seconds, log_seconds_squared, .. } = *tally;
    let are_sums = [seconds, log_seconds, log_seconds_squared].iter().all(|sum| sum.is_finite())
        && seconds >= 0.0
        && log_seconds_squared >= 0.0;
    // No sum of squares is below the square of the sum by the count; a little is for rounding.
    let n = sessions as f64;
    let least = log_seconds.powi(2) * (1.0 - 1e-6) - 1e-6;
    let are_moments = match sessions {
        0 => seconds == 0.0 && log_seconds == 0.0 && log_seconds_squared == 0.0,
        // The mean is not below the geometric mean; a millisecond is for rounding.
        _ => log_seconds_squared * n >= least && seconds / n + 1e-3 >= (log_seconds / n).exp(),
    };
    are_counts && is_class && are_sums && are_moments
}

#[cfg(test)]
mod tests {
    use tradewind_units::{FlowId, RelayId};

    use super::*;
    use crate::event::Event;
    use crate::message::Arm;
    use crate::testing::{Bench, PATH, tally};

    fn overlay(seconds: &[f64]) -> SessionTally {
        tally(Arm::Overlay, &PATH, seconds)
    }

    fn counted(bench: &Bench) -> u64 {
        bench.state().sessions.values().flatten().map(|tally| tally.sessions).sum()
    }

    #[test]
    fn batch_counts_once_also_after_a_crash() {
        let mut bench = Bench::in_service();
        bench.sessions(1, 1, vec![overlay(&[1.0, 2.0]), overlay(&[1.0])]);
        assert_eq!(counted(&bench), 3);
        // Its answer was lost.
        bench.sessions(1, 1, vec![overlay(&[1.0, 2.0])]);
        assert_eq!(counted(&bench), 3);
        bench.controller = bench.restarted();
        bench.sessions(1, 1, vec![overlay(&[1.0, 2.0])]);
        assert_eq!(counted(&bench), 3);
        bench.sessions(1, 2, vec![overlay(&[1.0]), tally(Arm::Control, &[], &[3.0])]);
        assert_eq!(counted(&bench), 5);
        assert_eq!(bench.state().sessions.values().map(Vec::len).sum::<usize>(), 2);
        // Another run begins anew.
        let batch = SessionBatch { run: 2, number: 1, tallies: vec![overlay(&[1.0])] };
        bench.report_with(1, |report| report.sessions = Some(batch));
        assert_eq!(counted(&bench), 6);
        // Another day is another record.
        bench.now += DAY_MS;
        bench.sessions(1, 3, vec![overlay(&[1.0])]);
        assert_eq!(bench.state().sessions.len(), 2);
    }

    #[test]
    fn impossible_tallies_are_ignored() {
        let mut bench = Bench::in_service();
        let good = overlay(&[1.0, 2.0]);
        let change = |by: &dyn Fn(&mut SessionTally)| {
            let mut tally = good.clone();
            by(&mut tally);
            tally
        };
        let relay = |name: &str| RelayId::new(name).unwrap();
        let wrong = vec![
            change(&|tally| tally.flow = FlowId::new("other").unwrap()),
            change(&|tally| tally.seconds = f64::NAN),
            change(&|tally| tally.seconds = -1.0),
            change(&|tally| tally.seconds = 0.1),
            change(&|tally| tally.log_seconds_squared = f64::INFINITY),
            change(&|tally| tally.log_seconds_squared = 0.0),
            change(&|tally| tally.size_class = 64),
            change(&|tally| tally.size_class = 20),
            change(&|tally| tally.bytes_up = u64::MAX),
            change(&|tally| tally.sessions = 0),
            change(&|tally| tally.path.clear()),
            change(&|tally| tally.path = vec![relay("nowhere-1")]),
            change(&|tally| tally.path = vec![relay("office-1")]),
            change(&|tally| tally.path = vec![relay(PATH[0]); 3]),
            change(&|tally| tally.arm = Arm::Control),
        ];
        bench.sessions(1, 1, wrong);
        // A relay has no sessions to tell of.
        bench.sessions(2, 1, vec![good.clone()]);
        assert!(bench.state().sessions.is_empty() && bench.state().spent.values().all(is_free));
        bench.sessions(1, 2, vec![good]);
        assert_eq!(counted(&bench), 2);
        bench.event(Event::RemoveFlow(FlowId::new("a").unwrap()));
        bench.sessions(1, 3, vec![overlay(&[1.0])]);
        assert_eq!(counted(&bench), 2);
    }

    fn is_free(spent: &Spent) -> bool {
        spent.traffic == Money::ZERO
    }

    #[test]
    fn memory_is_bounded() {
        let mut bench = Bench::in_service();
        let state = bench.state();
        let host = state.hosts.values().find(|host| host.id.as_str() == "office-1").unwrap();
        let classes = (21..=63).flat_map(|size_class| {
            [Arm::Overlay, Arm::Other].map(|arm| SessionTally {
                arm,
                size_class,
                ..overlay(&[1.0])
            })
        });
        let batch = SessionBatch { run: 1, number: 1, tallies: classes.collect() };
        let tallies = new_tallies(state, host, &batch).unwrap();
        assert_eq!(take(state, bench.now, host, &batch, &tallies).len(), 2 + 2 * 43);
        for number in 0..40 {
            bench.now += DAY_MS;
            bench.sessions(1, number, vec![overlay(&[1.0])]);
            bench.event(Event::Tick);
        }
        assert_eq!(bench.state().sessions.len(), crate::state::DAYS_IN_MEMORY);
        assert!(bench.state().spent.len() <= crate::state::DAYS_IN_MEMORY);
        assert!(bench.state().sessions.keys().all(|(day, _)| *day > bench.now / DAY_MS - 31));
    }
}
