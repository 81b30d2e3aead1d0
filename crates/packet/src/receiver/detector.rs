//! Loss detection: a model of arrivals with two states [JQ 3.2, loss detection].
//!
//! Within a *burst* packets follow each other at a gap that is learned. A packet that is overdue by
//! four deviations of it, and by the recent extent of reordering, counts as missing, one sequence
//! after the other, so that an outage is noticed while it lasts. When for two round trips nothing
//! shows that the flow goes on, the burst has ended, and only the *long* timer of a round trip
//! makes another try (the last packets of the burst may be lost). Flows whose bursts are single
//! packets get the long timer alone.
//!
//! In an *outage*, when recovered packets are the only sign that the flow goes on, the learned gap
//! does not hold for long. A recovered packet then determines when the next is due, and some more
//! are requested in advance. Their requests wait at the egress relay until the packets come there,
//! and so follow the sender's own pace. The long timer tries more often.
//!
//! The paper's prototype has fixed timers of 25 ms and one round trip [JQ 4]; they are used here
//! until the model has learned from arrivals.

use tradewind_units::{Duration, Timestamp};

/// The short timer before a gap is learned. Source: [JQ 4].
const FIRST_SHORT_TIMER: Duration = Duration::from_millis(25);
/// Gaps after which the model counts as learned. Chosen: the deviation has lost its first guess.
const LEARNED_AFTER: u32 = 8;
/// The least delay after which a packet counts as missing. Chosen: what hosts' schedulers add.
const MIN_SLACK: Duration = Duration::from_millis(2);
/// The least reordering that is tolerated. Chosen: as above.
const MIN_TOLERANCE: Duration = Duration::from_millis(1);
/// The most reordering that is tolerated. Chosen: paths reorder by some 25 ms, which is waited for
/// with a quarter more; beyond twice that, waiting costs more than requesting in vain.
const MAX_TOLERANCE: Duration = Duration::from_millis(50);
/// The most packets that are noted as missing in advance, while nothing shows that they exist.
/// Chosen: those of two round trips at 150 packets a second.
const MAX_AHEAD: u64 = 64;
/// Tries of the long timer. Chosen: one for the packet, one for the request; in an outage, pauses
/// as of speech.
const LONG_TRIES: u32 = 2;
const LONG_TRIES_IN_OUTAGE: u32 = 6;
/// The most packets that are requested in advance in an outage; the first recovered packet begins
/// with one, each further one doubles it. Chosen: what comes during a request at 300 packets a
/// second and 25 ms.
const MAX_LEAD: u64 = 8;

/// The most packets before the first arrival that count as missing: flows are numbered from zero,
/// so that they were sent. For a flow that began long before, as for a receiver that restarts, none
/// do. Chosen: a burst, as long as any that is missed in advance.
const MAX_BEFORE_FIRST: u64 = MAX_AHEAD;

/// The reason why a packet counts as missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Timer {
    /// No timer: it is requested in advance in an outage.
    Lead,
    Short,
    Long,
}

/// The model of a flow's arrivals.
#[derive(Debug, Clone)]
pub(super) struct Detector {
    round_trip: Duration,
    recovery_deadline: Duration,
    /// The highest sequence that came on its usual path, and when.
    highest: Option<(u64, Timestamp)>,
    /// The same, or a packet recovered since.
    latest: (u64, Timestamp),
    /// The number of packets requested in advance in an outage.
    lead: u64,
    gap: Duration,
    deviation: Duration,
    gaps: u32,
    tolerance: Duration,
    /// The first sequence that was neither seen nor missed.
    next: u64,
    /// Every sequence below is known to exist.
    known: u64,
    /// The first that was missed in advance, and is requested no more.
    forgotten: Option<u64>,
    /// The time since which packets are missed that may not exist.
    silent_since: Option<Timestamp>,
    long_tries: u32,
    burst: u64,
    /// The smoothed length of bursts; `None` before the first has ended.
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
            tolerance: MIN_TOLERANCE,
            next: 0,
            known: 0,
            forgotten: None,
            silent_since: None,
            long_tries: 0,
            burst: 0,
            typical_burst: None,
        }
    }

    /// Updates the measured times of the paths.
    pub(super) fn set_path(&mut self, round_trip: Duration, recovery_deadline: Duration) {
        (self.round_trip, self.recovery_deadline) = (round_trip, recovery_deadline);
    }

    /// Returns the bound below which every sequence is known to exist.
    pub(super) fn known(&self) -> u64 {
        self.known
    }

    /// Returns how long a packet may come behind others. When little time is left, most of it is
    /// kept for the recovery.
    pub(super) fn tolerance(&self) -> Duration {
        self.tolerance.min(self.recovery_deadline / 4)
    }

    /// Returns when a sequence should have come.
    pub(super) fn expected(&self, sequence: u64) -> Timestamp {
        let (latest, at) = self.latest;
        let ahead = sequence.saturating_sub(latest).min(u64::from(u32::MAX));
        at + self.gap.saturating_mul(ahead as u32)
    }

    /// Notes a packet that came on its usual path; returns the sequences that it shows to be
    /// missing and that were not missed before.
    pub(super) fn arrive(&mut self, now: Timestamp, sequence: u64) -> std::ops::Range<u64> {
        let Some((highest, at)) = self.highest else {
            (self.highest, self.next, self.known) =
                (Some((sequence, now)), sequence + 1, sequence + 1);
            self.latest = (sequence, now);
            self.burst = 1;
            let is_new = sequence <= MAX_BEFORE_FIRST;
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

    /// Notes a recovered packet; returns the sequences before it that were not missed yet.
    pub(super) fn bring_back(&mut self, now: Timestamp, sequence: u64) -> std::ops::Range<u64> {
        if sequence >= self.known {
            self.latest = (sequence, now);
            self.lead = (self.lead * 2).clamp(1, MAX_LEAD);
        }
        self.confirm(now, sequence)
    }

    fn end_burst(&mut self) {
        let burst = std::mem::take(&mut self.burst) as f64;
        self.typical_burst =
            Some(self.typical_burst.map_or(burst, |typical| (3.0 * typical + burst) / 4.0));
    }

    /// Learns a gap, smoothed as round trips are in RFC 6298.
    fn learn(&mut self, between: Duration) {
        if self.gaps == 0 {
            (self.gap, self.deviation) = (between, between / 2);
        } else {
            self.deviation = (self.deviation * 3 + self.gap.abs_diff(between)) / 4;
            self.gap = (self.gap * 7 + between) / 8;
        }
        self.gaps = self.gaps.saturating_add(1);
        // Reordering is forgotten slowly.
        self.tolerance = (self.tolerance * 255 / 256).max(MIN_TOLERANCE);
    }

    /// Notes that a missed packet came on its usual path after all, later than expected by `by`. It
    /// was reordered only if another that was sent later had come.
    pub(super) fn came_late(&mut self, sequence: u64, by: Duration) {
        if self.highest.is_some_and(|(highest, _)| highest > sequence) {
            self.tolerance = self.tolerance.max(by * 5 / 4).min(MAX_TOLERANCE);
        }
    }

    /// Notes that a sequence exists; returns those before it that were not missed yet.
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

    /// Stops requesting a sequence that was missed in advance. Once another shows that the flow
    /// goes on, it is missed again.
    pub(super) fn forget(&mut self, sequence: u64) {
        self.forgotten = Some(self.forgotten.map_or(sequence, |first| first.min(sequence)));
    }

    /// Returns when the next packet counts as missing; `None` when none is waited for.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.due().map(|(at, _)| at)
    }

    /// Returns the same, and by which timer.
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
        if is_single || is_over || self.next - self.known >= MAX_AHEAD {
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
        at + self.gap.saturating_mul(ahead) + slack.max(MIN_SLACK).max(self.tolerance())
    }

    /// Returns the packet that counts as missing, since [`Detector::deadline`] has passed, and when
    /// it should have come. With the long timer it is again the first that is not known to exist,
    /// expected now.
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

    /// Returns a flow of a packet each 10 ms, as far as `packets`.
    fn steady(packets: u64) -> Detector {
        let mut detector = Detector::new(ROUND_TRIP, TEST_TIMEOUT);
        for sequence in 0..packets {
            assert!(detector.arrive(at(10 * sequence), sequence).is_empty());
        }
        detector
    }

    #[test]
    fn initial_short_timer_follows_paper() {
        let mut detector = Detector::new(ROUND_TRIP, TEST_TIMEOUT);
        assert_eq!(detector.deadline(), None);
        detector.arrive(at(5), 0);
        assert_eq!(detector.deadline(), Some(at(32)));
    }

    #[test]
    fn gap_before_first_packet_is_bounded() {
        let first = |sequence| Detector::new(ROUND_TRIP, TEST_TIMEOUT).arrive(at(5), sequence);
        assert_eq!(first(0), 0..0);
        assert_eq!(first(3), 0..3);
        assert!(first(MAX_BEFORE_FIRST + 1).is_empty());
    }

    #[test]
    fn steady_flow_gap_sets_deadline() {
        let mut detector = steady(100);
        // The deviation of the first guess is forgotten: 990 + 10 + 2.
        assert_eq!(detector.deadline(), Some(at(1002)));
        assert_eq!(detector.miss(at(1002)), (100, at(1000)));
        assert_eq!(detector.expected(100), at(1000));
        assert_eq!(detector.deadline(), Some(at(1012)));
    }

    #[test]
    fn sequence_gap_is_reported_once() {
        let mut detector = steady(100);
        assert_eq!(detector.miss(at(1002)), (100, at(1000)));
        assert_eq!(detector.arrive(at(1030), 103), 101..103);
        assert_eq!(detector.arrive(at(1040), 104), 104..104);
        assert_eq!(detector.arrive(at(1041), 102), 102..102);
    }

    #[test]
    fn ended_burst_stops_requests() {
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
    fn zero_delay_path_stops_requests() {
        let mut detector = Detector::new(Duration::ZERO, TEST_TIMEOUT);
        for sequence in 0..20 {
            detector.arrive(at(5), sequence);
        }
        // Both timers always give the same time.
        let asked = std::iter::from_fn(|| detector.deadline().map(|due| detector.miss(due)));
        assert!(asked.take(100).count() < 100);
    }

    #[test]
    fn outage_is_followed_while_recovered() {
        let mut detector = steady(100);
        for _ in 0..500 {
            let due = detector.deadline().unwrap();
            let (sequence, _) = detector.miss(due);
            // It is recovered 50 ms later.
            detector.bring_back(due + Duration::from_millis(50), sequence);
        }
        assert_eq!(detector.known(), 600);
    }

    #[test]
    fn sparse_flow_uses_long_timer() {
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
        assert_eq!(detector.tolerance(), MIN_TOLERANCE, "that one was in order");
        detector.came_late(98, Duration::from_millis(8));
        assert_eq!(detector.tolerance(), Duration::from_millis(10));
        assert_eq!(detector.deadline(), Some(at(1010)), "what is out of order is no silence");
        detector.set_path(ROUND_TRIP, Duration::from_millis(20));
        assert_eq!(detector.tolerance(), Duration::from_millis(5), "little time is left");
        detector.set_path(ROUND_TRIP, TEST_TIMEOUT);
        for sequence in 100..1100 {
            detector.arrive(at(10 * sequence), sequence);
        }
        assert_eq!(detector.tolerance(), MIN_TOLERANCE);
    }
}
