//! Timed transfers between the places of an overlay, with learned initial windows and without: the
//! probes of `[RT IV-A]`, each hour.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tradewind_units::{Duration, SiteId, Timestamp};

use crate::draft::{DAY_MS, unix_ms};
use crate::learner::JumpArm;
use crate::state::State;
pub use crate::transfer_times::{DAYS_OF_TRANSFERS, DayTransfers, TransferTime, Transfers};

/// The sizes of the transfers, in bytes `[RT IV-A]`.
pub const SIZES: [u32; 3] = [10_000, 50_000, 100_000];
/// Time after which they are repeated, a tenth more or less `[RT IV-A]`.
pub const EVERY: Duration = Duration::from_secs(3600);
/// Bytes of one round: each size in both arms.
pub(crate) const ROUND_BYTES: u64 = 2 * (SIZES[0] as u64 + SIZES[1] as u64 + SIZES[2] as u64);
/// Most transfers of a day between two places. Chosen: more than its hours have.
const MAX_OF_DAY: usize = 200;
/// Longest time of a transfer, in seconds. Chosen: above what agents wait for.
const MAX_S: f64 = 60.0;

/// The completion times of the transfers of one size and arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TransferQuantiles {
    /// The size, in bytes.
    pub size_bytes: u32,
    /// With learned windows, or with the kernel's own.
    pub arm: JumpArm,
    /// Transfers.
    pub transfers: u64,
    /// The 25th percentile, in milliseconds.
    pub p25_ms: f64,
    /// The median, in milliseconds.
    pub p50_ms: f64,
    /// The 75th percentile, in milliseconds.
    pub p75_ms: f64,
    /// The 95th percentile, in milliseconds.
    pub p95_ms: f64,
}

/// Returns the transfers of today with those of a result; `None` if it has impossible figures.
pub(crate) fn with(
    state: &State,
    now: u64,
    (source, destination): (SiteId, SiteId),
    times: &[TransferTime],
) -> Option<DayTransfers> {
    let is_possible = |time: &TransferTime| {
        SIZES.contains(&time.size_bytes) && (f64::MIN_POSITIVE..MAX_S).contains(&time.seconds)
    };
    if times.is_empty() || times.len() > 2 * SIZES.len() || !times.iter().all(is_possible) {
        return None;
    }
    let ends = (source, destination);
    let day = now / DAY_MS;
    let today = state.transfers.get(&ends).and_then(|days| days.get(&day));
    let known = today.map_or(&[][..], |today| &today.times);
    let times = known.iter().chain(times).take(MAX_OF_DAY).copied().collect();
    let (source, destination) = ends;
    Some(DayTransfers { source, destination, day, unix_ms: now, times })
}

/// Returns the bytes of all transfers on the day of `now` (UTC).
pub(crate) fn bytes_of_day(state: &State, now: u64) -> u64 {
    let today = state.transfers.values().filter_map(|days| days.get(&(now / DAY_MS)));
    today.map(|day| day.bytes()).sum()
}

/// Returns the completion times of the last `days`, today included, by size and arm.
#[must_use]
pub fn quantiles(state: &State, now: Timestamp, days: u64) -> Vec<TransferQuantiles> {
    let first = (unix_ms(now) / DAY_MS + 1).saturating_sub(days);
    let mut sorted: BTreeMap<(u32, JumpArm), Vec<f64>> = BTreeMap::new();
    let days = state.transfers.values().flat_map(|days| days.range(first..));
    for time in days.flat_map(|(_, day)| &day.times) {
        sorted.entry((time.size_bytes, time.arm)).or_default().push(time.seconds * 1000.0);
    }
    let of = |((size_bytes, arm), mut times): ((u32, JumpArm), Vec<f64>)| {
        times.sort_by(f64::total_cmp);
        // The least time that so large a share does not exceed.
        let quantile = |share: f64| {
            let rank = (share * times.len() as f64).ceil() as usize;
            times[rank.clamp(1, times.len()) - 1]
        };
        TransferQuantiles {
            size_bytes,
            arm,
            transfers: times.len() as u64,
            p25_ms: quantile(0.25),
            p50_ms: quantile(0.5),
            p75_ms: quantile(0.75),
            p95_ms: quantile(0.95),
        }
    };
    sorted.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use tradewind_units::Money;

    use super::*;
    use crate::event::{Event, JumpstartRequest, SettingsRequest};
    use crate::message::{Probe, ProbeKind, ProbeOutcome, ProbeResult};
    use crate::schedule;
    use crate::testing::{Bench, START, host};

    /// Returns a controller with jump-start on for all hosts, and these probes.
    fn bench(has_probes: bool) -> Bench {
        let mut bench = Bench::in_service();
        let request = JumpstartRequest {
            is_on: Some(true),
            has_probes: Some(has_probes),
            ..JumpstartRequest::default()
        };
        bench.event(Event::ChangeSettings(SettingsRequest::jumpstart(request)));
        bench
    }

    /// Returns the rounds between each two places.
    fn rounds(bench: &Bench) -> Vec<usize> {
        let rounds = |days: &Transfers| -> usize {
            days.values().map(|day| day.times.len() / (2 * SIZES.len())).sum()
        };
        bench.state().transfers.values().map(rounds).collect()
    }

    #[test]
    fn all_places_time_transfers_to_all_others_each_hour() {
        let mut off = bench(false);
        off.pass(60);
        assert!(off.state().transfers.is_empty(), "off by default");
        let mut bench = bench(true);
        bench.pass(60);
        assert_eq!(rounds(&bench), [1; 6]);
        // None is earlier than nine tenths of an hour, and all within eleven.
        bench.now += 3600 * 800;
        bench.pass(10);
        assert_eq!(rounds(&bench), [1; 6]);
        bench.now = START + 3600 * 1100 + 200_000;
        bench.pass(60);
        assert_eq!(rounds(&bench), [2; 6]);
        let kept = bench.restarted();
        assert_eq!(kept.state().transfers, bench.state().transfers);
        let found = quantiles(bench.state(), bench.time(), 2);
        let of = |at: &TransferQuantiles| (at.size_bytes, at.arm, at.transfers);
        let expected = SIZES.map(|size| [JumpArm::Jumped, JumpArm::Control].map(|arm| (size, arm)));
        let expected: Vec<_> =
            expected.into_iter().flatten().map(|(size, arm)| (size, arm, 12)).collect();
        assert_eq!(found.iter().map(of).collect::<Vec<_>>(), expected);
        assert!(found[1].p50_ms > 2.0 * found[0].p50_ms, "{found:?}");
        assert!(found.iter().all(|at| at.p25_ms <= at.p50_ms && at.p75_ms <= at.p95_ms));
        let spent = bench.state().spent.values().next_back().unwrap().tests;
        bench.pass(10);
        assert_eq!(bench.state().spent.values().next_back().unwrap().tests, spent);
    }

    #[test]
    fn transfers_keep_within_the_bytes_of_a_day_and_the_hosts_of_the_settings() {
        let mut bench = bench(true);
        let before = schedule::bytes_of_day(bench.state(), bench.now);
        bench.pass(60);
        let rounds_bytes = 6 * ROUND_BYTES;
        assert_eq!(schedule::bytes_of_day(bench.state(), bench.now), before + rounds_bytes);
        let nothing = Event::ChangeSettings(SettingsRequest::budget(Money::ZERO));
        bench.event(nothing);
        bench.now += 3600 * 1200;
        bench.pass(60);
        assert_eq!(rounds(&bench), [1; 6], "a tenth of the budget pays them");
        let mut one = self::bench(true);
        let request = JumpstartRequest {
            hosts: Some([host("office-1")].into()),
            ..JumpstartRequest::default()
        };
        one.event(Event::ChangeSettings(SettingsRequest::jumpstart(request)));
        one.pass(60);
        assert_eq!(rounds(&one), [1; 2], "from the office alone");
    }

    #[test]
    fn impossible_times_count_for_nothing() {
        let mut bench = bench(true);
        let transfers = |bench: &mut Bench| -> Option<Probe> {
            let probes = bench.report(1, Vec::new());
            probes.into_iter().find(|it| matches!(it.kind, ProbeKind::Transfers { .. }))
        };
        let probe = transfers(&mut bench).unwrap();
        assert_eq!(transfers(&mut bench), None, "it is under way");
        let good = TransferTime { arm: JumpArm::Control, size_bytes: 10_000, seconds: 0.2 };
        let answer = |times: Vec<TransferTime>| ProbeResult {
            id: probe.id,
            to: probe.to.clone(),
            measured_unix_ms: 0,
            outcome: ProbeOutcome::Transfers { times },
        };
        for wrong in [
            vec![],
            vec![TransferTime { seconds: f64::NAN, ..good }],
            vec![TransferTime { seconds: 0.0, ..good }],
            vec![TransferTime { seconds: 1e9, ..good }],
            vec![TransferTime { size_bytes: 10_001, ..good }],
            vec![good; 7],
        ] {
            bench.report(1, vec![answer(wrong)]);
            assert!(bench.state().transfers.is_empty());
        }
        bench.report(1, vec![answer(vec![good])]);
        assert_eq!(bench.state().transfers.len(), 1);
    }
}
