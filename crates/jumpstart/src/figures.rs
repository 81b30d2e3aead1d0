//! Savings of a larger initial congestion window: the paper's model, for one's own file sizes and
//! round-trip times `[RT II-B, Figs. 3 to 6]`.
//!
//! As in the paper, segments take no time on the wire, acknowledgements are not delayed, nothing is
//! lost, and no receiver's window limits the sender. A file then takes as many round trips as slow
//! start needs rounds, the handshake not counted.

use serde::Serialize;
use tradewind_model::tcp::slow_start_rounds;
use tradewind_units::time::as_millis_f64;
use tradewind_units::{Bytes, Duration, Segments};

/// Payload of a segment in the paper's arithmetic: "1500 byte packets", 15 KB in ten `[RT II-B]`.
pub const PAPER_SEGMENT: Bytes = Bytes::new(1500);

/// Figures of one window over all files.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WindowFigures {
    /// Initial congestion window, in segments.
    pub window_segments: u32,
    /// Share of files that are complete after 1, 2, ... round trips `[RT Fig. 3]`.
    pub through_ratio: Vec<f64>,
    /// Mean saving in round trips against the initial window of the list, as a share `[RT Fig. 4]`.
    pub saved_ratio: f64,
    /// Completion time over all pairs of file and round-trip time `[RT Fig. 6]`: median.
    pub time_ms_p50: f64,
    /// The same: 90th percentile.
    pub time_ms_p90: f64,
}

/// Computes the figures of each of `windows` over `sizes` and `rtts`, compared with the first
/// window. Empty when any list is.
///
/// # Cost
/// Time and memory: windows x sizes x rtts.
#[must_use]
pub fn figures(
    windows: &[Segments],
    sizes: &[Bytes],
    rtts: &[Duration],
    mss: Bytes,
) -> Vec<WindowFigures> {
    let Some(base) = windows.first() else { return Vec::new() };
    if sizes.is_empty() || rtts.is_empty() {
        return Vec::new();
    }
    windows.iter().map(|window| of_window(*window, *base, sizes, rtts, mss)).collect()
}

fn of_window(
    window: Segments,
    base: Segments,
    sizes: &[Bytes],
    rtts: &[Duration],
    mss: Bytes,
) -> WindowFigures {
    let rounds: Vec<u32> = sizes.iter().map(|size| trips(window, mss, *size)).collect();
    let most = rounds.iter().copied().max().unwrap_or(1);
    let count = sizes.len() as f64;
    let through = |trips: u32| rounds.iter().filter(|r| **r <= trips).count() as f64 / count;
    let savings = sizes
        .iter()
        .zip(&rounds)
        .map(|(size, rounds)| 1.0 - f64::from(*rounds) / f64::from(trips(base, mss, *size)));
    let mut times: Vec<f64> = rounds
        .iter()
        .flat_map(|rounds| rtts.iter().map(|rtt| as_millis_f64(*rtt) * f64::from(*rounds)))
        .collect();
    times.sort_by(f64::total_cmp);
    WindowFigures {
        window_segments: window.as_u32(),
        through_ratio: (1..=most).map(through).collect(),
        saved_ratio: savings.sum::<f64>() / count,
        time_ms_p50: percentile(&times, 0.5),
        time_ms_p90: percentile(&times, 0.9),
    }
}

/// Returns the round trips of a file, at least one.
fn trips(window: Segments, mss: Bytes, size: Bytes) -> u32 {
    slow_start_rounds(window, mss, size).max(1)
}

/// Returns the percentile by nearest rank; `sorted` is not empty.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(counts: &[u32]) -> Vec<Segments> {
        counts.iter().map(|count| Segments::new(*count).unwrap()).collect()
    }

    #[test]
    fn times_match_the_papers_model() {
        // [RT Fig. 6, II-B]: at the median round-trip time of 125 ms a window of 10 costs 100 KB
        // over 240 ms more than one of 100: two round trips (the paper reads "over 280 ms" off its
        // distribution).
        let all = figures(
            &windows(&[10, 25, 50, 100]),
            &[Bytes::new(100_000)],
            &[Duration::from_millis(125)],
            PAPER_SEGMENT,
        );
        let times: Vec<f64> = all.iter().map(|f| f.time_ms_p50).collect();
        assert_eq!(times, [375.0, 250.0, 250.0, 125.0]);
        assert!((all[3].saved_ratio - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn files_within_the_window_need_one_trip() {
        let sizes = [1_000, 15_000, 15_001, 75_000, 150_000, 2_000_000].map(Bytes::new);
        let rtts = [Duration::from_millis(100)];
        let all = figures(&windows(&[10, 50, 100]), &sizes, &rtts, PAPER_SEGMENT);
        let first: Vec<f64> = all.iter().map(|f| f.through_ratio[0] * 6.0).collect();
        assert_eq!(first.iter().map(|n| n.round() as u32).collect::<Vec<_>>(), [2, 4, 5]);
        assert!(all.iter().all(|f| (f.through_ratio.last().unwrap() - 1.0).abs() < 1e-9));
    }

    #[test]
    fn empty_lists_give_no_figures() {
        assert!(figures(&[], &[Bytes::new(1)], &[Duration::ZERO], PAPER_SEGMENT).is_empty());
        assert!(figures(&windows(&[10]), &[], &[Duration::ZERO], PAPER_SEGMENT).is_empty());
    }
}
