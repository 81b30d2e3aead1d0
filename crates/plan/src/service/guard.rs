//! Evaluation of steps to stronger services, which may help the flow or harm it.
//!
//! Copies share the sender's uplink with the packets themselves. If that has too little capacity,
//! they cause queueing delay and loss, with any stronger service. So each step up is evaluated by
//! receivers' reports and by the queue before the first hop, for as long as the stronger service
//! runs. If packets do worse than before it, it is reverted, and observed for some intervals
//! whether it was the cause. If packets do better then, no step up is made for a hold time, which
//! doubles each time; if not, the path has become worse by itself: the stronger service is used
//! again, and compared with that baseline.
//!
//! If there is a standing queue already, no step up is tried before the same hold time has passed:
//! more packets would make it longer.

use tradewind_model::packet::PacketService;
use tradewind_units::Duration;

/// Intervals after a step up until it is evaluated, and over which it is. Chosen: two may still
/// have packets sent before, and a queue takes some to fill.
const WINDOW: usize = 5;
/// Intervals after which a step that does much harm is reverted, and the increase of the miss ratio
/// required for that. Chosen: above random variation over two intervals of some hundred packets.
const GROSS_AFTER: usize = 2;
const GROSS: f64 = 0.05;
/// Intervals after a step was reverted until the effect is evaluated. Chosen: packets sent before
/// have arrived.
const PROBED_AFTER: usize = 3;
/// The same with a standing queue, whose draining takes this long to be visible. Chosen: round
/// trips are smoothed over two seconds.
const DRAINED_AFTER: usize = 8;
/// Smallest significant increase of the miss ratio. Chosen: random variation over five intervals of
/// some hundred packets.
const MARGIN: f64 = 0.005;
/// Smallest significant increase of the queueing delay. Chosen: above the jitter of smoothed round
/// trips on a wired network.
const LONGER: Duration = Duration::from_millis(10);
/// Queueing delay that counts as a standing queue. Chosen: above the jitter of smoothed round trips
/// of mobile hosts.
const STANDING: Duration = Duration::from_millis(50);
/// Largest ratio of misses to those before for which a longer queue is worth it. Chosen: a listener
/// notices when losses are halved.
const WORTH_WAITING: f64 = 0.5;
/// Required decrease of the miss ratio if the queue grows to a standing one. Chosen: a loss of 1 %
/// is more tolerable than such a queue.
const MUCH: f64 = 0.01;
/// Fraction of late intervals above which an outcome counts as late.
const MAX: f64 = 0.5;
/// Hold time in intervals after a step up that did harm, at first and at most.
const HELD_FOR: u32 = 60;
const MAX_HELD_FOR: u32 = HELD_FOR << 5;
/// The same at first if the queue has shown that the step was the cause. Chosen: a try makes all
/// packets late until the queue has drained, in perhaps ten seconds, which should be less than a
/// hundredth of the time.
const HELD_FOR_QUEUE: u32 = HELD_FOR * 16;
/// Intervals for which a service is not evaluated after the path became worse by itself. After a
/// step up that does no harm for this long, the hold time is reset.
const TRUSTED_FOR: u32 = 60;

/// The observations of one interval.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Interval {
    pub(super) expected: f64,
    pub(super) missed: f64,
    /// True if the queueing delay there makes packets exceed the latency budget.
    pub(super) is_late: bool,
    /// Queueing delay before the first hop.
    pub(super) queue: Duration,
}

/// The results of packets over some intervals.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// The miss ratio.
    missed: f64,
    is_late: bool,
    queue: Duration,
}

impl Outcome {
    /// Returns whether packets are late now, or the miss ratio is higher, or the queue is longer
    /// without compensation: a miss ratio that is now tolerable, or much lower.
    fn is_worse_than(self, before: Self, bearable: f64) -> bool {
        if self.is_late != before.is_late {
            return self.is_late;
        }
        let is_longer = self.queue > before.queue + LONGER;
        let is_little = self.queue <= before.queue + STANDING;
        let is_worth_it = self.missed < before.missed * WORTH_WAITING
            && (is_little || self.missed + MUCH < before.missed);
        let is_worth_it = !self.is_late && (self.missed <= bearable || is_worth_it);
        self.missed > before.missed + MARGIN || (is_longer && !is_worth_it)
    }
}

/// The last intervals since the service changed, the latest first.
#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    last: [Interval; WINDOW],
    /// Number of intervals.
    count: usize,
}

impl Recent {
    fn add(&mut self, seen: Interval) {
        self.last.rotate_right(1);
        self.last[0] = seen;
        self.count += 1;
    }

    /// Returns the outcome of the last `intervals`.
    fn outcome(&self, intervals: usize) -> Outcome {
        let last = &self.last[..intervals.min(self.count).min(WINDOW)];
        let sum = |of: fn(&Interval) -> f64| last.iter().map(of).sum::<f64>();
        let expected = sum(|seen| seen.expected);
        let missed = if expected > 0.0 { sum(|seen| seen.missed) / expected } else { 0.0 };
        let late = sum(|seen| f64::from(u8::from(seen.is_late)));
        let queues: Duration = last.iter().map(|seen| seen.queue).sum();
        Outcome {
            missed,
            is_late: late > MAX * last.len() as f64,
            queue: queues / u32::try_from(last.len().max(1)).unwrap_or(1),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// There is no baseline that a stronger service could be compared with.
    Free {
        /// True if the hold time for a standing queue has passed.
        has_waited: bool,
    },
    /// A stronger service runs; `before_it` is the outcome with the one before.
    Watching { before: PacketService, before_it: Outcome, trusted: u32, intervals: u32 },
    /// It was reverted; `before_it` is the outcome with it, `longest` the longest queue since.
    Probing { stronger: PacketService, before_it: Outcome, longest: Duration },
    /// No step up is made for now.
    Holding {
        left: u32,
        /// True if the queue has shown that the stronger service did harm.
        is_sure: bool,
    },
}

/// Evaluates steps to stronger services.
#[derive(Debug, Clone)]
pub(super) struct Guard {
    state: State,
    recent: Recent,
    hold: u32,
}

impl Guard {
    pub(super) fn new() -> Self {
        let state = State::Free { has_waited: false };
        Self { state, recent: Recent::default(), hold: HELD_FOR }
    }

    /// Processes an interval of a flow that tolerates the miss ratio `bearable`; returns the
    /// service to run instead, if it must change.
    pub(super) fn observe(
        &mut self,
        running: PacketService,
        seen: Interval,
        bearable: f64,
    ) -> Option<PacketService> {
        self.recent.add(seen);
        match &mut self.state {
            State::Free { .. } => self.judge_first(running, bearable),
            State::Watching { trusted: trusted @ 1.., .. } => {
                *trusted -= 1;
                None
            }
            State::Watching { .. } => self.judge(running, seen, bearable),
            State::Probing { longest, .. } => {
                *longest = seen.queue.max(*longest);
                self.probe(running, seen, bearable)
            }
            State::Holding { left, .. } => {
                *left = left.saturating_sub(1);
                if *left == 0 {
                    self.state = State::Free { has_waited: true };
                }
                self.judge_first(running, bearable + GROSS)
            }
        }
    }

    /// Reverts a running service that was not a step up, if packets do badly and there is a
    /// standing queue, to observe them without it.
    fn judge_first(&mut self, running: PacketService, bearable: f64) -> Option<PacketService> {
        let outcome = self.recent.outcome(WINDOW);
        let is_harm = running != PacketService::Direct
            && self.recent.count >= WINDOW
            && outcome.queue >= STANDING
            && (outcome.is_late || outcome.missed > bearable);
        is_harm.then(|| self.take_back((running, PacketService::Direct), outcome))
    }

    fn judge(
        &mut self,
        running: PacketService,
        seen: Interval,
        bearable: f64,
    ) -> Option<PacketService> {
        let State::Watching { before, before_it, intervals, .. } = &mut self.state else {
            return None;
        };
        let (outcome, count) = (self.recent.outcome(WINDOW), self.recent.count);
        let is_late = seen.is_late && !before_it.is_late && seen.queue > before_it.queue + STANDING;
        let is_gross = count >= GROSS_AFTER && outcome.missed > before_it.missed + GROSS;
        let is_judged = count >= WINDOW && outcome.is_worse_than(*before_it, bearable);
        if is_late || is_gross || is_judged {
            let before = *before;
            return Some(self.take_back((running, before), outcome));
        }
        *intervals += 1;
        if *intervals >= TRUSTED_FOR {
            self.hold = HELD_FOR;
        }
        None
    }

    fn take_back(
        &mut self,
        (stronger, before): (PacketService, PacketService),
        before_it: Outcome,
    ) -> PacketService {
        self.state = State::Probing { stronger, before_it, longest: before_it.queue };
        before
    }

    /// Evaluates whether reverting a service helped.
    fn probe(
        &mut self,
        running: PacketService,
        seen: Interval,
        bearable: f64,
    ) -> Option<PacketService> {
        let State::Probing { stronger, before_it, longest } = self.state else { return None };
        let count = self.recent.count;
        if count < PROBED_AFTER {
            return None;
        }
        // The first interval may still have packets sent before.
        let without = Outcome { queue: seen.queue, ..self.recent.outcome((count - 1).min(WINDOW)) };
        let with = Outcome { queue: longest, ..before_it };
        if with.is_worse_than(without, bearable) {
            self.wait(longest > seen.queue + LONGER);
            return None;
        }
        if longest >= STANDING && count < DRAINED_AFTER {
            return None;
        }
        let (before, trusted) = (running, TRUSTED_FOR);
        self.state = State::Watching { before, before_it: without, trusted, intervals: 0 };
        Some(stronger)
    }

    fn wait(&mut self, is_sure: bool) {
        if is_sure {
            self.hold = self.hold.max(HELD_FOR_QUEUE);
        }
        self.state = State::Holding { left: self.hold, is_sure };
        self.hold = (self.hold * 2).min(MAX_HELD_FOR);
    }

    /// Returns whether a step up is allowed now that packets are missed, given the queueing delay
    /// before the first hop.
    pub(super) fn allows(&mut self, queue: Duration) -> bool {
        match self.state {
            State::Free { has_waited: false } if queue >= STANDING => {
                self.wait(false);
                false
            }
            State::Free { .. } | State::Watching { trusted: 1.., .. } => true,
            State::Watching { before_it, .. } => {
                self.recent.outcome(WINDOW).missed <= before_it.missed + MARGIN
            }
            State::Probing { .. } | State::Holding { .. } => false,
        }
    }

    /// Returns the same if the running service has become too slow for the budget: a service that
    /// is held back may be the better one by now.
    pub(super) fn allows_faster(&self) -> bool {
        match self.state {
            State::Free { .. } | State::Watching { .. } => true,
            State::Probing { .. } => false,
            State::Holding { is_sure, .. } => !is_sure,
        }
    }

    /// Updates the state for a change of the service, to a stronger one or not.
    pub(super) fn note_change(&mut self, before: PacketService, now: PacketService) {
        // An outage shows in the last intervals, a loss of a few percent over more of them.
        let (last, all) = (self.recent.outcome(GROSS_AFTER), self.recent.outcome(WINDOW));
        let count = self.recent.count;
        let before_it = Outcome { missed: last.missed.max(all.missed), ..last };
        self.recent = Recent::default();
        self.state = match self.state {
            State::Free { .. } | State::Holding { .. } if now > before && count > 0 => {
                State::Watching { before, before_it, trusted: 0, intervals: 0 }
            }
            // The baseline stays that before the first of several steps, unless a later one did
            // much better.
            State::Watching { before_it: first, .. }
                if now > before && count >= WINDOW && all.missed < first.missed * WORTH_WAITING =>
            {
                State::Watching { before, before_it, trusted: 0, intervals: 0 }
            }
            State::Watching { before, .. } if now <= before => State::Free { has_waited: false },
            state => state,
        };
    }
}
