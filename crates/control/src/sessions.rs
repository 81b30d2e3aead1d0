//! Sessions that gateways report: checked, counted once, and added up by day.

use std::collections::BTreeMap;

use tradewind_units::{FlowId, HostId, Money, Timestamp};

use crate::draft::{DAY_MS, unix_ms};
use crate::knowledge::MAX_RELAYS;
use crate::message::{SessionBatch, SessionTally};
use crate::record::{BatchTaken, DaySessions, FlowRecord, Host, Record, Role, Seen};
use crate::state::{SEEN_WITHIN, State, is_within};
use crate::{prices, relayed, removed};

/// Most tallies of one flow and day; further ones are ignored. Chosen: both arms in all size
/// classes that occur, over some ten paths.
const MAX_TALLIES: usize = 1000;
/// Most tallies of one batch; further ones are ignored. Chosen: as many as agents send.
pub(crate) const MAX_OF_BATCH: usize = 4096;
/// Largest count of a sum: numbers up to here are exact in JSON.
pub(crate) const MAX_COUNT: u64 = 1 << 53;
/// Most sessions and bytes of one tally. Chosen: a week without a controller at a gateway of
/// 10 Gbit/s and 1,000 sessions a second has no more.
pub(crate) const MAX_SESSIONS: u64 = 1_000_000_000;
pub(crate) const MAX_BYTES: u64 = 1_000_000_000_000_000;
/// Longest session, in seconds, and the greatest logarithm of its time in seconds, either way.
/// Chosen: a year; the shortest that an agent reports is a microsecond.
pub(crate) const MAX_SECONDS: f64 = 31_536_000.0;
const MAX_LOG: f64 = 20.0;
/// The largest size class.
const MAX_CLASS: u8 = 63;

/// Returns the sessions that flows have open, of flows that have some, as gateways report that say
/// so.
#[must_use]
pub fn open(state: &State, now: Timestamp) -> BTreeMap<FlowId, u64> {
    let mut open: BTreeMap<FlowId, u64> = BTreeMap::new();
    for (flow, sessions) in
        state.seen.values().flat_map(|seen| told_open(state, now, seen)).flatten()
    {
        let sum = open.entry(flow.clone()).or_default();
        *sum = sum.saturating_add(*sessions).min(MAX_COUNT);
    }
    open
}

/// Returns the sessions that a flow has open; `None` if no gateway of its site says.
#[must_use]
pub fn open_of(state: &State, now: Timestamp, flow: &FlowRecord) -> Option<u64> {
    let seen = state.index.hosts_of(&flow.from).filter_map(|host| state.seen.get(host));
    let told = seen.flat_map(|seen| told_open(state, now, seen));
    let own = told.map(|flows| flows.get(&flow.id).copied().unwrap_or_default());
    own.reduce(u64::saturating_add).map(|sessions| sessions.min(MAX_COUNT))
}

/// Returns the open sessions that the processes of a host told lately, if it is trusted.
fn told_open<'a>(
    state: &State,
    now: Timestamp,
    seen: &'a Seen,
) -> impl Iterator<Item = &'a BTreeMap<FlowId, u64>> + use<'a> {
    let is_trusted = state.hosts.get(&seen.host).is_some_and(|host| host.is_trusted);
    let counts = is_trusted && is_within(seen.unix_ms, unix_ms(now), SEEN_WITHIN);
    seen.processes.iter().filter(move |_| counts).filter_map(|process| process.flows.as_ref())
}

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
    let tallies = batch.tallies.iter().take(MAX_OF_BATCH);
    Some(tallies.filter(|tally| is_possible(state, host, tally)).collect())
}

/// Adds the records of a batch: that it was taken, and the new sums of its day. Returns the cost of
/// its traffic over relays that do not tell it themselves.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    batch: &SessionBatch,
    tallies: &[&SessionTally],
    records: &mut Vec<Record>,
) -> Money {
    let day = now / DAY_MS;
    let mut sums: BTreeMap<_, SessionTally> = BTreeMap::new();
    let mut rows: BTreeMap<_, usize> = BTreeMap::new();
    let mut cost = Money::ZERO;
    for tally in tallies {
        let key = (&tally.flow, tally.key());
        let sum = match sums.remove(&key) {
            Some(sum) => Some(sum),
            None => known(state, day, tally, &mut rows),
        };
        let Some(mut sum) = sum else { continue };
        let fits = has_room(&sum, tally);
        if fits {
            sum.add(tally);
        }
        if sum.sessions > 0 || sum.failed > 0 {
            sums.insert(key, sum);
        }
        if !fits {
            continue;
        }
        let relays = tally.path.iter().zip(prices::traffic(state, tally));
        let untold = relays.filter(|(relay, _)| !relayed::tells(state, now, relay));
        cost = cost + untold.map(|(_, cost)| cost).sum();
    }
    let taken = BatchTaken { host: host.id.clone(), run: batch.run, number: batch.number };
    records.push(Record::Batch(taken));
    records.extend(sums.into_values().map(|tally| Record::Sessions(DaySessions { day, tally })));
    cost
}

/// Returns what a day has of the kind of a tally, perhaps nothing; `None` if it has too many kinds.
fn known<'a>(
    state: &State,
    day: u64,
    tally: &'a SessionTally,
    rows: &mut BTreeMap<&'a FlowId, usize>,
) -> Option<SessionTally> {
    let known = state.sessions.get(&(day, tally.flow.clone()));
    let rows = rows.entry(&tally.flow).or_insert_with(|| known.map_or(0, Vec::len));
    let same = known.and_then(|known| {
        known.binary_search_by(|known| known.key().cmp(&tally.key())).ok().map(|at| &known[at])
    });
    if let Some(same) = same {
        return Some(same.clone());
    }
    *rows += 1;
    let empty = || {
        let SessionTally { flow, path, arm, size_class, .. } = tally;
        SessionTally::new(flow.clone(), path.clone(), *arm, *size_class)
    };
    (*rows <= MAX_TALLIES).then(empty)
}

/// Returns whether a tally can be added to a sum that stays within what is exact.
fn has_room(sum: &SessionTally, tally: &SessionTally) -> bool {
    let fits = |sum: u64, more: u64| sum.saturating_add(more) <= MAX_COUNT;
    fits(sum.sessions, tally.sessions)
        && fits(sum.failed, tally.failed)
        && fits(sum.bytes_up, tally.bytes_up)
        && fits(sum.bytes_down, tally.bytes_down)
}

/// Returns whether a gateway can have had such sessions: a flow of its own site, or one that a
/// tenant had there lately, relays that have joined, and figures of sessions.
fn is_possible(state: &State, host: &Host, tally: &SessionTally) -> bool {
    let is_its_own = match &host.role {
        Role::Gateway { site } => removed::may_tell(state, &tally.flow, site),
        Role::Relay { .. } | Role::Probe { .. } => false,
    };
    let is_relay = |relay: &tradewind_units::RelayId| {
        let host = HostId::new(relay.as_str()).ok().and_then(|id| state.hosts.get(&id));
        host.is_some_and(|host| matches!(host.role, Role::Relay { .. }))
    };
    let is_path = tally.path.len() <= MAX_RELAYS && tally.path.iter().all(is_relay);
    is_its_own && is_path && has_possible_figures(tally)
}

fn has_possible_figures(tally: &SessionTally) -> bool {
    let SessionTally { size_class, sessions, failed, bytes_up, bytes_down, .. } = *tally;
    let count = u128::from(sessions) + u128::from(failed);
    let are_counts =
        count > 0 && sessions.max(failed) <= MAX_SESSIONS && bytes_up.max(bytes_down) <= MAX_BYTES;
    let is_class = size_class <= MAX_CLASS
        && u128::from(bytes_up) + u128::from(bytes_down) < count << (size_class + 1);
    let SessionTally { seconds, log_seconds, log_seconds_squared, .. } = *tally;
    let n = sessions as f64;
    let are_sums = are_possible_sums(sessions, seconds, log_seconds, log_seconds_squared);
    // No sum of squares is below the square of the sum by the count; a little is for rounding.
    let least = log_seconds.powi(2) * (1.0 - 1e-6) - 1e-6;
    let are_moments = match sessions {
        0 => seconds == 0.0 && log_seconds == 0.0 && log_seconds_squared == 0.0,
        // The mean is not below the geometric mean; a millisecond is for rounding.
        _ => log_seconds_squared * n >= least && seconds / n + 1e-3 >= (log_seconds / n).exp(),
    };
    are_counts && is_class && are_sums && are_moments
}

/// Returns whether the times of so many sessions or connections can have these sums.
pub(crate) fn are_possible_sums(
    count: u64,
    seconds: f64,
    log_seconds: f64,
    log_seconds_squared: f64,
) -> bool {
    let n = count as f64;
    // None of these holds for NaN.
    (0.0..=MAX_SECONDS * n).contains(&seconds)
        && log_seconds.abs() <= MAX_LOG * n
        && (0.0..=MAX_LOG.powi(2) * n).contains(&log_seconds_squared)
}

#[cfg(test)]
mod tests {
    use tradewind_units::RelayId;

    use super::*;
    use crate::event::Event;
    use crate::message::Arm;
    use crate::record::Spent;
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
        let tallies = vec![overlay(&[1.0])];
        let batch = SessionBatch { tallies, ..SessionBatch::empty(2, 1) };
        bench.report_with(1, |report| report.sessions = Some(batch));
        assert_eq!(counted(&bench), 6);
        // Another day is another record.
        bench.now += DAY_MS;
        bench.sessions(1, 3, vec![overlay(&[1.0])]);
        assert_eq!(bench.state().sessions.len(), 2);
    }

    #[test]
    fn open_sessions_are_of_flows_of_the_gateways_own_site() {
        let mut bench = Bench::in_service();
        let flow = crate::testing::flow("a", 7);
        let flows = |bench: &Bench| {
            let (all, now) = (open(bench.state(), bench.time()), bench.time());
            (all.get(&flow.id).copied(), all.len(), open_of(bench.state(), now, &flow))
        };
        assert_eq!(flows(&bench), (None, 0, None), "nobody says");
        let told = |bench: &mut Bench, host: u8, sessions: Option<u64>| {
            bench.report_with(host, |report| {
                let flows = [flow.id.clone(), FlowId::new("other").unwrap()];
                let told = sessions.map(|sessions| flows.map(|flow| (flow, sessions)).into());
                report.processes[0].flows = Some(told.unwrap_or_default());
            });
        };
        told(&mut bench, 1, None);
        assert_eq!(flows(&bench), (None, 0, Some(0)));
        told(&mut bench, 1, Some(3));
        assert_eq!(flows(&bench), (Some(3), 1, Some(3)));
        // A relay has none of its own.
        told(&mut bench, 2, Some(5));
        assert_eq!(flows(&bench), (Some(3), 1, Some(3)));
        told(&mut bench, 1, Some(u64::MAX));
        assert_eq!(flows(&bench), (Some(MAX_COUNT), 1, Some(MAX_COUNT)));
        let mut silent = bench.state().clone();
        bench.now += SEEN_WITHIN.as_millis() as u64;
        assert_eq!(flows(&bench), (None, 0, None), "the gateway is silent");
        // One that is revoked counts no more.
        bench.now -= SEEN_WITHIN.as_millis() as u64;
        let gateway = silent.host_of(&crate::testing::identity(1)).unwrap().clone();
        silent.apply(Record::Host(Host { is_trusted: false, ..gateway }));
        assert_eq!(open(&silent, bench.time()), BTreeMap::new());
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
            change(&|tally| tally.path = vec![relay("nowhere-1")]),
            change(&|tally| tally.path = vec![relay("office-1")]),
            change(&|tally| tally.path = vec![relay(PATH[0]); 3]),
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
    fn sums_stay_what_a_store_reads_back() {
        let mut bench = Bench::in_service();
        let reads_back = |bench: &Bench| {
            let is_kept = |record: &Record| {
                let text = serde_json::to_string(record).unwrap();
                serde_json::from_str::<Record>(&text).is_ok_and(|read| read == *record)
            };
            let sessions = bench.state().sessions.iter().flat_map(|((day, _), tallies)| {
                let record = |tally: &SessionTally| {
                    Record::Sessions(DaySessions { day: *day, tally: tally.clone() })
                };
                tallies.iter().map(record).collect::<Vec<_>>()
            });
            let spent = bench.state().spent.values().cloned().map(Record::Spent);
            sessions.chain(spent).all(|record| is_kept(&record))
        };
        // Beyond what can be: not even once.
        let endless = SessionTally { seconds: 1.7e308, ..overlay(&[1.0]) };
        let squares = SessionTally { log_seconds_squared: 1.7e308, ..overlay(&[1.0; 2]) };
        bench.sessions(1, 1, vec![endless.clone(), endless, squares.clone(), squares]);
        assert_eq!(counted(&bench), 0);
        // The most that can be, again and again.
        let seconds = MAX_SECONDS * MAX_SESSIONS as f64;
        let most = SessionTally {
            size_class: 63,
            sessions: MAX_SESSIONS,
            failed: MAX_SESSIONS,
            bytes_up: MAX_BYTES,
            bytes_down: MAX_BYTES,
            seconds,
            log_seconds: 17.0 * MAX_SESSIONS as f64,
            log_seconds_squared: 290.0 * MAX_SESSIONS as f64,
            ..overlay(&[1.0])
        };
        for number in 2..6 {
            bench.sessions(1, number, vec![most.clone(); MAX_OF_BATCH + 1]);
            assert!(reads_back(&bench));
        }
        let sum = bench.state().sessions.values().flatten().next().unwrap().clone();
        assert!(sum.sessions >= MAX_SESSIONS && sum.bytes_up <= MAX_COUNT, "{sum:?}");
        assert!(crate::gain::flows(bench.state(), bench.time(), 1, None)[0].cost > Money::ZERO);
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
        let batch = SessionBatch { tallies: classes.collect(), ..SessionBatch::empty(1, 1) };
        let tallies = new_tallies(state, host, &batch).unwrap();
        let mut records = Vec::new();
        take(state, bench.now, host, &batch, &tallies, &mut records);
        assert_eq!(records.len(), 1 + 2 * 43);
        for number in 0..40 {
            bench.now += DAY_MS;
            bench.sessions(1, number, vec![overlay(&[1.0])]);
            bench.event(Event::Tick);
        }
        assert_eq!(bench.state().sessions.len(), crate::record::DAYS_IN_MEMORY);
        assert!(bench.state().spent.len() <= crate::record::DAYS_IN_MEMORY);
        assert!(bench.state().sessions.keys().all(|(day, _)| *day > bench.now / DAY_MS - 31));
    }
}
