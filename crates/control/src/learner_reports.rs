//! Learned windows that hosts report: the latest are shown, ended connections are added up by day.
//!
//! A learner reports the totals of its run. What they have more than the totals that were counted
//! last is of today, so that a report that is lost or repeated changes nothing.

use std::collections::BTreeMap;

use tradewind_units::one_line;

use crate::draft::DAY_MS;
use crate::learner::{
    CountedRun, DayJumps, HostLearners, JumpTally, LAST_WINDOW_CLASS, LearnerReport,
    MAX_DESTINATIONS, WINDOW_CLASS, WindowCount,
};
use crate::record::{Host, Record};
use crate::sessions::are_possible_sums;
use crate::state::State;

/// Most learners of one host. Chosen: more than the processes of any document.
const MAX_LEARNERS: usize = 4;
/// Longest text that a host tells of a learner.
const MAX_TEXT: usize = 300;
/// The largest size class, and the greatest count of one tally. Chosen: numbers up to here are
/// exact in JSON; a year of 1,000 connections a second is within it.
const MAX_CLASS: u8 = 63;
const MAX_COUNT: u64 = 1 << 53;

/// Adds the records of what a host reports of its learners.
pub(crate) fn take(
    state: &State,
    now: u64,
    host: &Host,
    learners: &[LearnerReport],
    records: &mut Vec<Record>,
) {
    let learners: Vec<LearnerReport> = learners.iter().take(MAX_LEARNERS).map(checked).collect();
    let known = state.learners.get(&host.id).map_or(&[][..], |known| &known.learners);
    if known == learners {
        return;
    }
    records.extend(day(state, now / DAY_MS, host, &learners).map(Record::Jumps));
    records.push(Record::Learners(HostLearners { host: host.id.clone(), learners }));
}

/// Returns a report with texts that a terminal can show, within its bounds, and with possible
/// figures only.
fn checked(report: &LearnerReport) -> LearnerReport {
    let text = |text: &String| one_line(text, MAX_TEXT);
    let is_class = |count: &&WindowCount| {
        count.from_segments <= LAST_WINDOW_CLASS && count.from_segments.is_multiple_of(WINDOW_CLASS)
    };
    let by_class: BTreeMap<u32, WindowCount> =
        report.windows.iter().filter(is_class).map(|count| (count.from_segments, *count)).collect();
    let tallies = report.tallies.iter().filter(|tally| is_possible(tally));
    let by_key: BTreeMap<_, JumpTally> = tallies.map(|tally| (tally.key(), *tally)).collect();
    LearnerReport {
        process: text(&report.process),
        run: report.run,
        through: text(&report.through),
        why: report.why.as_ref().map(text),
        destinations: report.destinations.iter().take(MAX_DESTINATIONS).cloned().collect(),
        others: report.others,
        windows: by_class.into_values().collect(),
        tallies: by_key.into_values().collect(),
    }
}

/// Returns whether connections can have such sums.
fn is_possible(tally: &JumpTally) -> bool {
    let JumpTally { connections, bytes, log_seconds, log_seconds_squared, .. } = *tally;
    let are_counts = connections > 0
        && connections.max(bytes).max(tally.retransmitted_segments) <= MAX_COUNT
        && tally.size_class <= MAX_CLASS;
    // A little is for rounding.
    let least = log_seconds.powi(2) * (1.0 - 1e-6) - 1e-6;
    are_counts && has_possible_sums(tally) && log_seconds_squared * connections as f64 >= least
}

fn has_possible_sums(tally: &JumpTally) -> bool {
    let JumpTally { connections, seconds, log_seconds, log_seconds_squared, .. } = *tally;
    are_possible_sums(connections, seconds, log_seconds, log_seconds_squared)
}

/// Returns the sums of today with what has ended since the last report; `None` if nothing has.
fn day(state: &State, day: u64, host: &Host, learners: &[LearnerReport]) -> Option<DayJumps> {
    let newest = state.jumps.get(&host.id).and_then(|days| days.values().next_back());
    // The controller's clock may have been put back: what the newest day counted stays in it.
    let day = newest.map_or(day, |newest| newest.day.max(day));
    let counted = newest.map_or(&[][..], |newest| &newest.counted);
    let of_run = |report: &LearnerReport| {
        let is_it = |run: &&CountedRun| run.process == report.process && run.run == report.run;
        counted.iter().find(is_it).map_or(&[][..], |run| &run.tallies)
    };
    let today = newest.filter(|newest| newest.day == day);
    let tallies = today.iter().flat_map(|today| &today.tallies);
    let mut sums: BTreeMap<_, JumpTally> = tallies.map(|tally| (tally.key(), *tally)).collect();
    let mut has_news = false;
    for report in learners {
        let before = of_run(report);
        for tally in &report.tallies {
            let known = before.iter().find(|known| known.key() == tally.key());
            // Totals that fell are another run's.
            let new = known.map_or(Some(*tally), |known| tally.without(known)).unwrap_or(*tally);
            if new.connections > 0 && has_possible_sums(&new) {
                has_news = true;
                sums.entry(new.key()).and_modify(|sum| sum.add(&new)).or_insert(new);
            }
        }
    }
    let counted = |report: &LearnerReport| {
        let LearnerReport { process, run, tallies, .. } = report.clone();
        CountedRun { process, run, tallies }
    };
    has_news.then(|| DayJumps {
        host: host.id.clone(),
        day,
        tallies: sums.into_values().collect(),
        counted: learners.iter().map(counted).collect(),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::learner::JumpArm;
    use crate::testing::{Bench, host};

    fn tally(size_class: u8, seconds: &[f64]) -> JumpTally {
        let logs = || seconds.iter().map(|seconds| seconds.ln());
        JumpTally {
            arm: JumpArm::Jumped,
            size_class,
            connections: seconds.len() as u64,
            bytes: 1000 * seconds.len() as u64,
            retransmitted_segments: seconds.len() as u64,
            seconds: seconds.iter().sum(),
            log_seconds: logs().sum(),
            log_seconds_squared: logs().map(|log| log * log).sum(),
        }
    }

    fn report(run: u64, tallies: Vec<JumpTally>) -> LearnerReport {
        LearnerReport {
            process: "gateway".to_owned(),
            run,
            through: "sockops".to_owned(),
            why: None,
            destinations: Vec::new(),
            others: 0,
            windows: Vec::new(),
            tallies,
        }
    }

    fn tell(bench: &mut Bench, reports: &[LearnerReport]) {
        bench.report_with(1, |it| it.learners = reports.to_vec());
    }

    /// Returns the connections that each day counts.
    fn counted(bench: &Bench) -> Vec<u64> {
        let days = bench.state().jumps.get(&host("office-1"));
        let of_day = |day: &Arc<DayJumps>| day.tallies.iter().map(|tally| tally.connections).sum();
        days.into_iter().flat_map(BTreeMap::values).map(of_day).collect()
    }

    #[test]
    fn totals_count_once_also_after_a_restart() {
        let mut bench = Bench::in_service();
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0, 2.0])])]);
        assert_eq!(counted(&bench), [2]);
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0, 2.0])])]);
        let grown = [report(1, vec![tally(9, &[1.0, 2.0, 4.0]), tally(10, &[3.0])])];
        tell(&mut bench, &grown);
        assert_eq!(counted(&bench), [4]);
        let sum = bench.state().jumps[&host("office-1")].values().next().unwrap().tallies[0];
        assert!((sum.log_seconds - tally(9, &[1.0, 2.0, 4.0]).log_seconds).abs() < 1e-9);
        // The learner reports again to a controller that has started anew.
        bench.controller = bench.restarted();
        assert!(bench.state().learners.is_empty());
        tell(&mut bench, &grown);
        assert_eq!(counted(&bench), [4]);
        // Another run begins anew, the next day is another record, and counts what is new.
        tell(&mut bench, &[report(2, vec![tally(9, &[1.0])])]);
        assert_eq!(counted(&bench), [5]);
        bench.now += DAY_MS;
        tell(&mut bench, &[report(2, vec![tally(9, &[1.0, 1.0, 1.0])])]);
        assert_eq!(counted(&bench), [5, 2]);
    }

    #[test]
    fn what_ended_since_a_report_is_possible_as_well() {
        let mut bench = Bench::in_service();
        let of = |connections: u64, log: f64| JumpTally {
            connections,
            log_seconds: log * connections as f64,
            log_seconds_squared: log * log * connections as f64,
            ..tally(9, &[1.0; 2000])
        };
        tell(&mut bench, &[report(1, vec![of(1000, -19.0)])]);
        bench.now += DAY_MS;
        tell(&mut bench, &[report(1, vec![of(1005, 19.0)])]);
        assert_eq!(counted(&bench), [1000], "five of 7,638 e-folds each");
        tell(&mut bench, &[report(1, vec![of(1005, -19.0)])]);
        assert_eq!(counted(&bench), [1000, 5]);
    }

    #[test]
    fn totals_count_once_also_after_the_clock_was_put_back() {
        let mut bench = Bench::in_service();
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0; 2])])]);
        bench.now += DAY_MS;
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0; 5])])]);
        bench.now -= DAY_MS;
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0; 6])])]);
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0; 8])])]);
        assert_eq!(counted(&bench), [2, 6]);
        bench.now += DAY_MS;
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0; 9])])]);
        assert_eq!(counted(&bench), [2, 7]);
    }

    #[test]
    fn copies_share_days_and_the_newest_alone_has_the_totals_of_runs() {
        let mut bench = Bench::in_service();
        for number in 1..=3 {
            tell(&mut bench, &[report(1, vec![tally(9, &vec![1.0; number])])]);
            bench.now += DAY_MS;
        }
        let before = bench.state().clone();
        tell(&mut bench, &[report(1, vec![tally(9, &[1.0; 9])])]);
        assert_eq!(counted(&bench), [1, 1, 1, 6]);
        let days = |state: &State| -> Vec<Arc<DayJumps>> {
            state.jumps[&host("office-1")].values().cloned().collect()
        };
        let (before, after) = (days(&before), days(bench.state()));
        assert!(Arc::ptr_eq(&before[0], &after[0]) && Arc::ptr_eq(&before[1], &after[1]));
        let runs = |days: &[Arc<DayJumps>]| -> Vec<usize> {
            days.iter().map(|day| day.counted.len()).collect()
        };
        assert_eq!((runs(&before), runs(&after)), (vec![0, 0, 1], vec![0, 0, 0, 1]));
    }

    #[test]
    fn impossible_and_endless_figures_are_dropped() {
        let mut bench = Bench::in_service();
        let good = tally(9, &[1.0, 2.0]);
        let impossible = [
            JumpTally { seconds: f64::NAN, ..good },
            JumpTally { seconds: -1.0, ..good },
            JumpTally { log_seconds: f64::INFINITY, ..good },
            JumpTally { log_seconds_squared: 0.0, ..good },
            JumpTally { seconds: 1e9, ..good },
            JumpTally { log_seconds: -50.0, log_seconds_squared: 1250.0, ..good },
            JumpTally { log_seconds_squared: 801.0, ..good },
            JumpTally { connections: 0, ..good },
            JumpTally { bytes: u64::MAX, ..good },
            JumpTally { size_class: 64, ..good },
        ];
        tell(&mut bench, &[report(1, impossible.to_vec())]);
        assert!(bench.state().learners[&host("office-1")].learners[0].tallies.is_empty());
        let windows =
            [10, 15, 210].map(|from_segments| WindowCount { from_segments, destinations: 1 });
        let many = LearnerReport {
            process: "x".repeat(1000) + "\n",
            windows: windows.to_vec(),
            ..report(1, vec![good; 9])
        };
        tell(&mut bench, &vec![many; 9]);
        let kept = &bench.state().learners[&host("office-1")].learners;
        assert_eq!(kept.len(), MAX_LEARNERS);
        assert_eq!((kept[0].process.len(), kept[0].tallies.len()), (MAX_TEXT, 1));
        assert_eq!(kept[0].windows, windows[..1]);
    }
}
