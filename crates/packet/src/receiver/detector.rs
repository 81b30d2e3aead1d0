//! When a packet should have come: the model of arrivals with two states [JQ 3.2, loss detection].
//!
//! Within a *burst* packets follow each other at a gap that is learned; what is overdue by four
//! deviations of it, and by as much as packets have come behind others lately, counts as missing,
//! one sequence after the other, so that an outage is noticed while it lasts. Where nothing shows
//! for two round trips that the flow goes on, the burst has ended, and only the *long* timer of a
//! round trip tries once more (the last packets of the burst may be lost). Flows whose bursts are
//! single packets get the long timer alone.
//!
//! In an *outage*, when what is brought back is all that shows that the flow goes on, no gap that
//! was learned before would do for long: a packet that is brought back tells when the next is due,
//! and some more are asked for in advance. Their requests wait at the egress relay until the
//! packets come there, so that the sender's own pace is followed. The long timer tries more often.
//!
//! The paper's prototype has fixed timers of 25 ms and one round trip [JQ 4]; these are what holds
//! until arrivals have taught better.

use tradewind_units::{Duration, Timestamp};

/// The short timer before a gap is learned. Source: [JQ 4].
const FIRST_SHORT_TIMER: Duration = Duration::from_millis(25);
/// Gaps after which the model counts as learned. Chosen: the deviation has lost its first guess.
const LEARNED_AFTER: u32 = 8;
/// Least that a packet may be overdue before it counts as missing. Chosen: what hosts' schedulers
/// add.
const LEAST_SLACK: Duration = Duration::from_millis(2);
/// Least that a packet may come behind others before it counts as missing. Chosen: as above.
const LEAST_TOLERANCE: Duration = Duration::from_millis(1);
/// Most of it. Chosen: paths reorder by some 25 ms, which is waited for with a quarter more; beyond
/// twice that, waiting costs more than asking in vain.
const MOST_TOLERANCE: Duration = Duration::from_millis(50);
/// Most packets that are missed in advance, while nothing shows that they exist. Chosen: those of
/// two round trips at 150 packets a second.
const MOST_AHEAD: u64 = 64;
/// Times that the long timer tries. Chosen: one for the packet, one for the request; in an outage,
/// pauses as of speech.
const LONG_TRIES: u32 = 2;
const LONG_TRIES_IN_OUTAGE: u32 = 6;
/// Most packets that are asked for in advance in an outage; the first that is brought back begins
/// with one, each further one doubles it. Chosen: what comes during a request at 300 packets a
/// second and 25 ms.
const MOST_LEAD: u64 = 8;

/// Packets before the first that comes which are missed all the same: flows are numbered from zero,
/// so that they were sent. Of a flow that began long before, as for a receiver that starts again,
/// nothing is. Chosen: a burst, as long as any that is missed in advance.
const MOST_BEFORE_FIRST: u64 = MOST_AHEAD;

/// What a packet is missed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// None: in an outage it is asked for in advance.
    Lead,
    Short,
    Long,
}

/// What is known of a flow's arrivals.
#[derive(Debug, Clone)]
pub(super) struct Detector {
    round_trip: Duration,
    recovery_deadline: Duration,
    /// The highest that came by its usual way, and when.
    highest: Option<(u64, Timestamp)>,
    /// The same, or what was brought back since.
    latest: (u64, Timestamp),
    /// In an outage, how many are asked for in advance.
    lead: u64,
    gap: Duration,
    deviation: Duration,
    gaps: u32,
    tolerance: Duration,
    /// The first that was neither seen nor missed.
    next: u64,
    /// Every sequence below is known to exist.
    known: u64,
    /// The first that was missed in advance, and is asked for no more.
    forgotten: Option<u64>,
    /// Since when packets are missed that may not exist.
    silent_since: Option<Timestamp>,
    long_tries: u32,
    burst: u64,
    /// Packets of a burst, smoothed; `None` before the first has ended.
    typical_burst: Option<f64>,
}

impl Detector {
    pub(super) fn new(round_trip: Duration, recovery_deadline: Duration) -> Self {
        Self {
            round_trip,
            recovery_deadline,
            highest: None,
            latest: (0, Timestamp::ZERO),
            lead: 0,
            gap: FIRST_SHORT_TIMER,
            deviation: Duration::ZERO,
            gaps: 0,
            tolerance: LEAST_TOLERANCE,
            next: 0,
            known: 0,
            forgotten: None,
            silent_since: None,
            long_tries: 0,
            burst: 0,
            typical_burst: None,
        }
    }

    /// Other paths were measured.
    pub(super) fn set_path(&mut self, round_trip: Duration, recovery_deadline: Duration) {
        (self.round_trip, self.recovery_deadline) = (round_trip, recovery_deadline);
    }

    /// The highest sequence that came, or was brought back.
    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// Returns how long a packet may come behind others. Where little time is left, most of it is
    /// for what is asked for.
    pub(super) fn tolerance(&self) -> Duration {
        self.tolerance.min(self.recovery_deadline / 4)
    }

    /// When a sequence should have come.
    pub(super) fn expected(&self, sequence: u64) -> Timestamp {
        let (latest, at) = self.latest;
        let ahead = sequence.saturating_sub(latest).min(u64::from(u32::MAX));
        at + self.gap.saturating_mul(ahead as u32)
    }

    /// A packet came by its usual way; returns the sequences that it shows to be missing and that
    /// were not missed before.
    pub(super) fn arrive(&mut self, now: Timestamp, sequence: u64) -> std::ops::Range<u64> {
        let Some((highest, at)) = self.highest else {
            (self.highest, self.next, self.known) =
                (Some((sequence, now)), sequence + 1, sequence + 1);
            self.latest = (sequence, now);
            self.burst = 1;
            let is_new = sequence <= MOST_BEFORE_FIRST;
            return if is_new { 0..sequence } else { sequence..sequence };
        };
        if sequence <= highest {
            return sequence..sequence;
        }
        let step = u32::try_from(sequence - highest).unwrap_or(u32::MAX);
        let between = now.since(at) / step;
        if between > self.round_trip {
            self.end_burst();
        } else {
            self.learn(between);
        }
        self.burst += u64::from(step);
        self.highest = Some((sequence, now));
        if sequence >= self.latest.0 {
            (self.latest, self.lead) = ((sequence, now), 0);
        }
        self.confirm(now, sequence)
    }

    /// A packet was brought back; returns the sequences before it that were not missed yet.
    pub(super) fn bring_back(&mut self, now: Timestamp, sequence: u64) -> std::ops::Range<u64> {
        if sequence >= self.known {
            self.latest = (sequence, now);
            self.lead = (self.lead * 2).clamp(1, MOST_LEAD);
        }
        self.confirm(now, sequence)
    }

    fn end_burst(&mut self) {
        let burst = std::mem::take(&mut self.burst) as f64;
        self.typical_burst =
            Some(self.typical_burst.map_or(burst, |typical| (3.0 * typical + burst) / 4.0));
    }

    /// As round trips are smoothed in RFC 6298.
    fn learn(&mut self, between: Duration) {
        if self.gaps == 0 {
            (self.gap, self.deviation) = (between, between / 2);
        } else {
            self.deviation = (self.deviation * 3 + self.gap.abs_diff(between)) / 4;
            self.gap = (self.gap * 7 + between) / 8;
        }
        self.gaps = self.gaps.saturating_add(1);
        // Reordering is forgotten slowly.
        self.tolerance = (self.tolerance * 255 / 256).max(LEAST_TOLERANCE);
    }

    /// A packet that was missed came by its usual way after all, so much later than it was
    /// expected. It was out of order only if another that was sent later had come.
    pub(super) fn came_late(&mut self, sequence: u64, by: Duration) {
        if self.highest.is_some_and(|(highest, _)| highest > sequence) {
            self.tolerance = self.tolerance.max(by * 5 / 4).min(MOST_TOLERANCE);
        }
    }

    /// A sequence is known to exist; returns those before it that were not missed yet.
    fn confirm(&mut self, now: Timestamp, sequence: u64) -> std::ops::Range<u64> {
        if sequence >= self.known
            && let Some(forgotten) = self.forgotten.take()
        {
            self.next = self.next.min(forgotten);
        }
        let missing = self.next.min(sequence)..sequence;
        if sequence >= self.known {
            self.known = sequence + 1;
            self.long_tries = 0;
            self.next = self.next.max(self.known);
            self.silent_since = (self.next > self.known).then_some(now);
        }
        missing
    }

    /// A sequence that was missed in advance is asked for no more. Once another shows that the flow
    /// goes on, it is missed again.
    pub(super) fn forget(&mut self, sequence: u64) {
        self.forgotten = Some(self.forgotten.map_or(sequence, |first| first.min(sequence)));
    }

    /// When the next packet counts as missing; `None` when none is waited for.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.due().map(|(at, _)| at)
    }

    /// The same, and by which timer.
    fn due(&self) -> Option<(Timestamp, Timer)> {
        self.highest?;
        let (_, at) = self.latest;
        if self.next - self.known < self.lead {
            return Some((at, Timer::Lead));
        }
        let is_single = self.typical_burst.is_some_and(|typical| typical < 2.0);
        let is_over = self
            .silent_since
            .is_some_and(|since| self.short_deadline() > since + self.round_trip * 2);
        if is_single || is_over || self.next - self.known >= MOST_AHEAD {
            let tries = self.long_tries;
            let most = if self.lead > 0 { LONG_TRIES_IN_OUTAGE } else { LONG_TRIES };
            return (tries < most).then(|| {
                let from = self.silent_since.map_or(at, |since| since + self.round_trip * 2);
                (from + self.round_trip * (1 << tries), Timer::Long)
            });
        }
        Some((self.short_deadline(), Timer::Short))
    }

    fn short_deadline(&self) -> Timestamp {
        let (latest, at) = self.latest;
        let ahead = u32::try_from(self.next.saturating_sub(latest)).unwrap_or(u32::MAX);
        let slack = if self.gaps < LEARNED_AFTER {
            FIRST_SHORT_TIMER.saturating_sub(self.gap)
        } else {
            self.deviation * 4
        };
        at + self.gap.saturating_mul(ahead) + slack.max(LEAST_SLACK).max(self.tolerance())
    }

    /// The packet that counts as missing since [`Detector::deadline`] has passed, and when it
    /// should have come: a new one, or with the long timer the first that is not known to exist,
    /// again, which is sent now if ever.
    pub(super) fn miss(&mut self, now: Timestamp) -> (u64, Timestamp) {
        if matches!(self.due(), Some((_, Timer::Long))) {
            self.long_tries += 1;
            self.next = self.next.max(self.known + 1);
            return (self.known, now);
        }
        self.silent_since = self.silent_since.or(Some(now));
        self.next += 1;
        (self.next - 1, self.expected(self.next - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND_TRIP: Duration = Duration::from_millis(100);
    const TEST_TIMEOUT: Duration = Duration::from_millis(300);

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    /// A flow of a packet each 10 ms, as far as `packets`.
    fn steady(packets: u64) -> Detector {
        let mut detector = Detector::new(ROUND_TRIP, TEST_TIMEOUT);
        for sequence in 0..packets {
            assert!(detector.arrive(at(10 * sequence), sequence).is_empty());
        }
        detector
    }

    #[test]
    fn before_anything_is_learned_the_short_timer_is_that_of_the_paper() {
        let mut detector = Detector::new(ROUND_TRIP, TEST_TIMEOUT);
        assert_eq!(detector.deadline(), None);
        detector.arrive(at(5), 0);
        assert_eq!(detector.deadline(), Some(at(32)));
    }

    #[test]
    fn first_packets_of_a_flow_are_missed_and_those_of_an_old_one_are_not() {
        let first = |sequence| Detector::new(ROUND_TRIP, TEST_TIMEOUT).arrive(at(5), sequence);
        assert_eq!(first(0), 0..0);
        assert_eq!(first(3), 0..3);
        assert!(first(MOST_BEFORE_FIRST + 1).is_empty());
    }

    #[test]
    fn a_steady_flow_is_missed_a_little_after_its_gap() {
        let mut detector = steady(100);
        // The deviation of the first guess is forgotten: 990 + 10 + 2.
        assert_eq!(detector.deadline(), Some(at(1002)));
        assert_eq!(detector.miss(at(1002)), (100, at(1000)));
        assert_eq!(detector.expected(100), at(1000));
        assert_eq!(detector.deadline(), Some(at(1012)));
    }

    #[test]
    fn a_gap_in_sequences_is_told_once() {
        let mut detector = steady(100);
        assert_eq!(detector.miss(at(1002)), (100, at(1000)));
        assert_eq!(detector.arrive(at(1030), 103), 101..103);
        assert_eq!(detector.arrive(at(1040), 104), 104..104);
        assert_eq!(detector.arrive(at(1041), 102), 102..102);
    }

    #[test]
    fn a_burst_that_has_ended_is_asked_for_a_while_and_then_let_be() {
        let mut detector = steady(100);
        let mut asked = 0;
        let mut last = Timestamp::ZERO;
        while let Some(due) = detector.deadline() {
            assert!(due >= last);
            last = due;
            detector.miss(due);
            asked += 1;
            assert!(asked < 100, "it goes on for ever");
        }
        // 200 ms at 10 ms each, and the two of the long timer.
        assert!((20..=24).contains(&asked), "{asked}");
        assert!(last.since(at(990)) < Duration::from_millis(600), "{last:?}");
    }

    #[test]
    fn packets_that_came_at_once_over_a_path_without_delay_are_let_be_too() {
        let mut detector = Detector::new(Duration::ZERO, TEST_TIMEOUT);
        for sequence in 0..20 {
            detector.arrive(at(5), sequence);
        }
        // Both timers give the same moment, all the time.
        let asked = std::iter::from_fn(|| detector.deadline().map(|due| detector.miss(due)));
        assert!(asked.take(100).count() < 100);
    }

    #[test]
    fn an_outage_is_followed_as_long_as_packets_are_brought_back() {
        let mut detector = steady(100);
        for _ in 0..500 {
            let due = detector.deadline().unwrap();
            let (sequence, _) = detector.miss(due);
            // It comes back 50 ms later.
            detector.bring_back(due + Duration::from_millis(50), sequence);
        }
        assert_eq!(detector.known(), 600);
    }

    #[test]
    fn flows_of_single_packets_get_the_long_timer_alone() {
        let mut detector = Detector::new(ROUND_TRIP, TEST_TIMEOUT);
        for second in 0..5 {
            detector.arrive(at(1000 * second), second);
        }
        assert_eq!(detector.deadline(), Some(at(4100)));
        assert_eq!(detector.miss(at(4100)), (5, at(4100)));
        assert_eq!(detector.deadline(), Some(at(4200)));
        assert_eq!(detector.miss(at(4200)), (5, at(4200)));
        assert_eq!(detector.deadline(), None);
    }

    #[test]
    fn reordering_is_learned_and_forgotten() {
        let mut detector = steady(100);
        detector.came_late(100, Duration::from_millis(8));
        assert_eq!(detector.tolerance(), LEAST_TOLERANCE, "that one was in order");
        detector.came_late(98, Duration::from_millis(8));
        assert_eq!(detector.tolerance(), Duration::from_millis(10));
        assert_eq!(detector.deadline(), Some(at(1010)), "what is out of order is no silence");
        detector.set_path(ROUND_TRIP, Duration::from_millis(20));
        assert_eq!(detector.tolerance(), Duration::from_millis(5), "little time is left");
        detector.set_path(ROUND_TRIP, TEST_TIMEOUT);
        for sequence in 100..1100 {
            detector.arrive(at(10 * sequence), sequence);
        }
        assert_eq!(detector.tolerance(), LEAST_TOLERANCE);
    }
}
