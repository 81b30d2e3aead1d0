//! The open connections: start, first flight and last sample of each.
//!
//! The start of a connection is inferred from what was in force when it was first seen; an actuator
//! that sees each connection reports it instead ([`Begun`]), before or after that moment.

use std::collections::BTreeMap;

use tradewind_units::Segments;

use crate::arms::{Arm, Arms, count_ended};
use crate::guard::FirstFlight;
use crate::sample::Sample;

/// Start of a connection, as an actuator that saw it reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// With this learned window.
    Jumped(Segments),
    /// With the default window, on purpose.
    Control,
}

/// State of an open connection, with its last sample.
#[derive(Debug)]
struct Tracked {
    arm: Arm,
    given: u32,
    first_flight: FirstFlight,
    last: Sample,
    round: u64,
}

/// Reports on a connection that has not been sampled yet.
#[derive(Debug, Default)]
struct EarlyReport {
    begun: Option<Begun>,
    lost: bool,
    round: u64,
}

/// All connections, by their number.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: BTreeMap<u64, Tracked>,
    early: BTreeMap<u64, EarlyReport>,
    arms: Arms,
    round: u64,
}

impl Connections {
    /// Records `sample`; returns the bytes that its connection had had acknowledged before, and, if
    /// it jumped and its first flight was open until now, the new state of that flight. `guess`
    /// returns the arm and the window of a new connection whose start was not reported.
    pub(crate) fn see(
        &mut self,
        sample: &Sample,
        guess: impl FnOnce() -> (Arm, u32),
    ) -> (u64, Option<FirstFlight>) {
        let (round, early) = (self.round, &mut self.early);
        let mut before = 0;
        let tracked = self
            .open
            .entry(sample.connection)
            .and_modify(|tracked| before = tracked.last.acked.as_u64())
            .or_insert_with(|| {
                let early = early.remove(&sample.connection).unwrap_or_default();
                let (arm, given) = match early.begun {
                    Some(begun) => arm_of(begun),
                    None if round == 0 => (Arm::Earlier, 0),
                    None => guess(),
                };
                let first_flight = if early.lost { FirstFlight::Lost } else { FirstFlight::Open };
                Tracked { arm, given, first_flight, last: *sample, round }
            });
        (tracked.last, tracked.round) = (*sample, round);
        if tracked.arm != Arm::Jumped || tracked.first_flight != FirstFlight::Open {
            return (before, None);
        }
        tracked.first_flight = FirstFlight::of(sample, tracked.given);
        (before, Some(tracked.first_flight))
    }

    /// Records a report of how a connection began.
    pub(crate) fn began(&mut self, connection: u64, begun: Begun) {
        if let Some(tracked) = self.open.get_mut(&connection) {
            (tracked.arm, tracked.given) = arm_of(begun);
        } else {
            let early = self.early.entry(connection).or_default();
            (early.begun, early.round) = (Some(begun), self.round);
        }
    }

    /// Records that a connection's first flight was lost; returns whether that is new.
    pub(crate) fn lost(&mut self, connection: u64) -> bool {
        if let Some(tracked) = self.open.get_mut(&connection) {
            let before = std::mem::replace(&mut tracked.first_flight, FirstFlight::Lost);
            return before != FirstFlight::Lost;
        }
        let early = self.early.entry(connection).or_default();
        early.round = self.round;
        !std::mem::replace(&mut early.lost, true)
    }

    /// Counts connections that were not sampled in this round as ended, and begins the next round.
    pub(crate) fn end_round(&mut self) {
        let (arms, round) = (&mut self.arms, self.round);
        self.open.retain(|_, tracked| {
            let open = tracked.round == round;
            if !open {
                count_ended(arms, tracked.arm, &tracked.last);
            }
            open
        });
        // Reported while this round's samples were collected: seen by the next round, or ended
        // before.
        self.early.retain(|_, early| early.round == round);
        self.round += 1;
    }

    /// Returns the totals of ended connections, by arm.
    pub(crate) const fn arms(&self) -> &Arms {
        &self.arms
    }
}

const fn arm_of(begun: Begun) -> (Arm, u32) {
    match begun {
        Begun::Jumped(window) => (Arm::Jumped, window.as_u32()),
        Begun::Control => (Arm::Control, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::learner::tests_support::sample;
    use tradewind_units::{Bytes, Duration};

    /// Returns a sample of the connection with so much acknowledged and sent again.
    fn seen(connection: u64, acked: u64, retransmitted_segments: u32) -> Sample {
        Sample {
            acked: Bytes::new(acked),
            retransmitted_segments,
            ..sample(connection, "10.0.0.1")
        }
    }

    fn window(segments: u32) -> Segments {
        Segments::new(segments).unwrap()
    }

    const fn by_default() -> (Arm, u32) {
        (Arm::Unlearned, 0)
    }

    const fn jumped() -> (Arm, u32) {
        (Arm::Jumped, 50)
    }

    /// Returns the state after the first round, whose connections began earlier.
    fn looking() -> Connections {
        let mut connections = Connections::default();
        connections.end_round();
        connections
    }

    fn count(connections: &Connections, arm: Arm) -> u64 {
        connections.arms().get(&arm).map_or(0, |totals| totals.connections)
    }

    #[test]
    fn connections_of_the_first_round_count_as_earlier() {
        let mut connections = Connections::default();
        assert_eq!(connections.see(&seen(1, 1000, 0), jumped), (0, None));
        connections.end_round();
        // Its first flight is not judged.
        assert_eq!(connections.see(&seen(1, 2000, 7), jumped), (1000, None));
        connections.end_round();
        connections.end_round();
        assert_eq!((count(&connections, Arm::Earlier), count(&connections, Arm::Jumped)), (1, 0));
    }

    #[test]
    fn first_flight_is_judged_once() {
        let mut connections = looking();
        let open = Some(FirstFlight::Open);
        assert_eq!(connections.see(&seen(1, 10_000, 0), jumped), (0, open));
        connections.end_round();
        assert_eq!(connections.see(&seen(1, 50_000, 0), jumped).1, Some(FirstFlight::Arrived));
        connections.end_round();
        assert_eq!(connections.see(&seen(1, 60_000, 9), jumped).1, None, "a later loss");
        assert_eq!(connections.see(&seen(2, 20_000, 3), jumped).1, Some(FirstFlight::Lost));
        connections.end_round();
        assert_eq!(connections.see(&seen(2, 30_000, 4), jumped), (20_000, None));
    }

    #[test]
    fn reports_override_inferred_starts() {
        let mut connections = looking();
        connections.began(1, Begun::Jumped(window(80)));
        connections.began(2, Begun::Control);
        for number in 1..=3 {
            connections.see(&seen(number, 1000, 0), by_default);
        }
        connections.began(3, Begun::Jumped(window(80)));
        connections.end_round();
        connections.end_round();
        assert_eq!(count(&connections, Arm::Jumped), 2);
        assert_eq!(count(&connections, Arm::Control), 1);
        assert_eq!(count(&connections, Arm::Unlearned), 0);
    }

    #[test]
    fn reported_loss_counts_once() {
        let mut connections = looking();
        connections.began(1, Begun::Jumped(window(50)));
        assert!(connections.lost(1), "told before it is seen");
        assert!(!connections.lost(1));
        assert_eq!(connections.see(&seen(1, 1000, 5), jumped).1, None);
        connections.see(&seen(2, 1000, 0), jumped);
        assert!(connections.lost(2), "told after it is seen");
        assert!(!connections.lost(2));
        assert_eq!(connections.see(&seen(2, 50_000, 5), jumped).1, None);
    }

    #[test]
    fn reports_on_unseen_connections_are_dropped() {
        let mut connections = looking();
        connections.began(7, Begun::Jumped(window(50)));
        connections.end_round();
        // It may have begun after this round's samples: the next round still knows of it.
        assert_eq!(connections.early.len(), 1);
        connections.end_round();
        assert!(connections.early.is_empty());
        connections.see(&seen(7, 1000, 0), by_default);
        connections.end_round();
        connections.end_round();
        assert_eq!(count(&connections, Arm::Unlearned), 1);
    }

    #[test]
    fn arms_sum_last_samples_of_ended_connections() {
        let mut connections = looking();
        for acked in [1000, 9000] {
            connections.see(&seen(1, acked, 2), jumped);
            connections.end_round();
        }
        assert_eq!(count(&connections, Arm::Jumped), 0, "it is open");
        connections.see(&seen(2, 500, 0), jumped);
        connections.end_round();
        connections.end_round();
        let jumped = &connections.arms()[&Arm::Jumped];
        assert_eq!((jumped.connections, jumped.acked), (2, Bytes::new(9500)));
        assert_eq!((jumped.retransmitted_segments, jumped.busy), (2, Duration::from_secs(2)));
    }

    #[test]
    fn completion_times_count_by_size_and_only_beyond_the_default_window() {
        let mut connections = looking();
        let of = |acked, seconds| Sample {
            acked: Bytes::new(acked),
            busy: Duration::from_secs(seconds),
            ..seen(acked, acked, 3)
        };
        // Segments have 1000 bytes.
        for ended in [of(16_384, 2), of(32_767, 4), of(32_768, 8), of(10_000, 9), of(20_000, 0)] {
            connections.see(&ended, jumped);
        }
        connections.end_round();
        connections.end_round();
        let sizes = &connections.arms()[&Arm::Jumped].sizes;
        assert_eq!(sizes.keys().copied().collect::<Vec<_>>(), [14, 15]);
        let small = sizes[&14];
        assert_eq!((small.connections, small.bytes, small.seconds), (2, 49_151, 6.0));
        assert_eq!(small.retransmitted_segments, 6);
        assert!((small.log_seconds - 8_f64.ln()).abs() < 1e-9);
        assert!((small.log_seconds_squared - 5.0 * 2_f64.ln().powi(2)).abs() < 1e-9);
    }
}
