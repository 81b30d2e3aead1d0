//! Judgement of a stronger service: whether it helps, or harms the flow that it is to protect.
//!
//! Copies share the sender's uplink with the packets themselves. Where that is short they make the
//! queue that packets wait and get lost in, whichever stronger service sends them. So each step up
//! is judged by what receivers report and by the queue before the first hop, from then on for as
//! long as the stronger service runs: where packets fare worse than before it, it is taken back,
//! and for some intervals it is seen whether that was why. If they fare better then, the flow stays
//! for a while, twice as long each time; if not, the path has become worse by itself, and the
//! stronger service is taken again, and compared with that.
//!
//! No step up is tried where a queue stands already, before the same while has passed: more packets
//! would make it longer.

use tradewind_model::packet::PacketService;
use tradewind_units::Duration;

/// Intervals after a step up until it is judged, and over which it is. Chosen: two may still hold
/// what was sent before, and a queue takes some to fill.
const WINDOW: usize = 5;
/// Intervals after which one that does much harm is taken back, by how much more must be missed for
/// that. Chosen: what chance does not in two intervals of some hundred packets.
const GROSS_AFTER: usize = 2;
const GROSS: f64 = 0.05;
/// Intervals after one was taken back until it is seen whether that helped. Chosen: what was sent
/// before has come.
const PROBED_AFTER: usize = 3;
/// The same where a queue stands, which may take so long until it is seen to drain. Chosen: round
/// trips are smoothed over two seconds.
const DRAINED_AFTER: usize = 8;
/// By how much more must be missed to count as more. Chosen: what chance does in five intervals of
/// some hundred packets.
const MARGIN: f64 = 0.005;
/// By how much longer a queue must be to count as longer. Chosen: above the jitter of smoothed
/// round trips on a wire.
const LONGER: Duration = Duration::from_millis(10);
/// A queue to which nothing is added without need. Chosen: above the jitter of smoothed round trips
/// of mobile hosts.
const STANDING: Duration = Duration::from_millis(50);
/// Part of the earlier losses up to which a longer queue is worth it. Chosen: half of
/// the losses are heard.
const WORTH_WAITING: f64 = 0.5;
/// And by how much less that must be for a queue that stands. Chosen: a loss of a hundredth is
/// borne sooner than one.
const MUCH: f64 = 0.01;
/// Share of intervals that makes packets late or not.
const MOST: f64 = 0.5;
/// Intervals for which no step up follows one that did harm, at first and at most.
const HELD_FOR: u32 = 60;
const MOST_HELD_FOR: u32 = HELD_FOR << 5;
/// The same at first where the queue has shown whose harm it was. Chosen: a try makes all late
/// until the queue has drained, in ten seconds perhaps, which is to be less than a hundredth of the
/// time.
const HELD_FOR_QUEUE: u32 = HELD_FOR * 16;
/// Intervals for which a service is not judged since the path had become worse by itself; a step up
/// that does no harm for so long has the next one held back for no longer than the first.
const TRUSTED_FOR: u32 = 60;

/// An interval, as it is seen.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Interval {
    pub(super) expected: f64,
    pub(super) missed: f64,
    /// Packets wait for so long there that they come too late for the budget.
    pub(super) is_late: bool,
    /// Time that packets wait before the first hop.
    pub(super) queue: Duration,
}

/// The fare of packets over some intervals.
#[derive(Debug, Clone, Copy)]
struct Outcome {
    /// The share that is missed.
    missed: f64,
    is_late: bool,
    queue: Duration,
}

impl Outcome {
    /// Returns whether all is late, or more is missed, or the queue is longer, and not for a good
    /// reason: that what is missed became bearable, or much less.
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

    /// Returns how packets fared in the last so many.
    fn outcome(&self, intervals: usize) -> Outcome {
        let last = &self.last[..intervals.min(self.count).min(WINDOW)];
        let sum = |of: fn(&Interval) -> f64| last.iter().map(of).sum::<f64>();
        let expected = sum(|seen| seen.expected);
        let missed = if expected > 0.0 { sum(|seen| seen.missed) / expected } else { 0.0 };
        let late = sum(|seen| f64::from(u8::from(seen.is_late)));
        let queues: Duration = last.iter().map(|seen| seen.queue).sum();
        Outcome {
            missed,
            is_late: late > MOST * last.len() as f64,
            queue: queues / u32::try_from(last.len().max(1)).unwrap_or(1),
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Nothing is known that a stronger service could be compared with.
    Free {
        /// It was waited for a while since a queue stands.
        has_waited: bool,
    },
    /// A stronger service runs; with the one before packets fared like this.
    Watching { before: PacketService, before_it: Outcome, trusted: u32, intervals: u32 },
    /// It was taken back, since packets fared like this with it. The longest queue since.
    Probing { stronger: PacketService, before_it: Outcome, longest: Duration },
    /// No stronger service is taken.
    Holding {
        left: u32,
        /// The queue has shown that it did harm.
        is_sure: bool,
    },
}

/// Judges steps to stronger services.
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

    /// Takes an interval of a flow that bears that such a share is missed; the service that is to
    /// run instead, if this says that another must.
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

    /// Takes back what runs and was no step up where packets fare badly before a queue, to see how
    /// they do without it.
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

    /// Sees whether it helped to take a service back.
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
        // The first interval may still hold what was sent before.
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
        self.hold = (self.hold * 2).min(MOST_HELD_FOR);
    }

    /// Returns whether a stronger service may be taken now that packets are missed, and wait before
    /// the first hop for so long.
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

    /// The same where the service that runs has become too slow for the budget: what is held back
    /// may be the better one by now.
    pub(super) fn allows_faster(&self) -> bool {
        match self.state {
            State::Free { .. } | State::Watching { .. } => true,
            State::Probing { .. } => false,
            State::Holding { is_sure, .. } => !is_sure,
        }
    }

    /// Notes that the service changes, to a stronger one or not.
    pub(super) fn note_change(&mut self, before: PacketService, now: PacketService) {
        // An outage shows in the last intervals, a share of some per cent in more of them.
        let (last, all) = (self.recent.outcome(GROSS_AFTER), self.recent.outcome(WINDOW));
        let count = self.recent.count;
        let before_it = Outcome { missed: last.missed.max(all.missed), ..last };
        self.recent = Recent::default();
        self.state = match self.state {
            State::Free { .. } | State::Holding { .. } if now > before && count > 0 => {
                State::Watching { before, before_it, trusted: 0, intervals: 0 }
            }
            // What began the climb is what its end is compared with, or what did much better since.
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
