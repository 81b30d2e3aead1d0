//! One link in one direction: a queue before a rate, then what a wire can do to a segment, then
//! the time it takes. Caps of hosts, named links and pairs of sites are all such links; each uses
//! the parts it needs.

use std::collections::VecDeque;

use rand_core::RngCore;
use rand_pcg::Pcg64Mcg;
use tradewind_units::Ratio;

use crate::{
    chance::{Chance, Trials, derive, generator},
    counters::DropCause,
    jitter::Jitter,
    outage::OutageClock,
    queue::Queue,
    segment::{Nanos, Segment, Timed, nanos},
    topology::{BurstLoss, Loss, Pair, Reorder},
};

/// A link in one direction.
#[derive(Debug, Clone)]
pub(crate) struct Link {
    pub(crate) queue: Queue,
    /// `None` when the link treats every segment well.
    pub(crate) faults: Option<Box<Faults>>,
    pub(crate) wire: Wire,
    /// Where its counts are kept.
    pub(crate) tally: usize,
    /// How long any segment that leaves the queue needs at least until it arrives at its host;
    /// `None` when all that wait at one time are of one pair, whose delay tells.
    pub(crate) lead: Option<Nanos>,
    /// Whether segments leave it for their host.
    pub(crate) is_ingress: bool,
}

impl Link {
    /// A link that only limits a rate.
    pub(crate) fn limiter(queue: Queue, tally: usize) -> Self {
        Self { queue, faults: None, wire: Wire::default(), tally, lead: None, is_ingress: false }
    }

    /// The line that a kind of event takes its head from.
    pub(crate) fn line(&self, kind: LineKind) -> &VecDeque<Timed> {
        match kind {
            LineKind::Queue => &self.queue.waiting,
            LineKind::Wire => &self.wire.line,
            LineKind::Late => &self.wire.late,
        }
    }

    /// Takes the head of a line away; returns it and the time of the next.
    pub(crate) fn take_head(&mut self, kind: LineKind) -> Option<(Segment, Option<Nanos>)> {
        let head = match kind {
            LineKind::Queue => self.queue.depart(),
            LineKind::Wire => self.wire.line.pop_front(),
            LineKind::Late => self.wire.late.pop_front(),
        }?;
        Some((head.segment, self.line(kind).front().map(|next| next.at)))
    }

    /// How many segments it holds.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue.waiting.len() + self.wire.line.len() + self.wire.late.len()
    }
}

/// Which of a link's lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Waiting for the rate.
    Queue,
    /// On the wire.
    Wire,
    /// On the wire, overtaken by others.
    Late,
}

/// What a link does to segments besides delaying them.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    outages: Vec<OutageClock>,
    burst: Option<GilbertElliott>,
    random: Trials,
    duplicate: Trials,
    reorder: Trials,
    late_by: Nanos,
}

/// What a link's faults decided about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost(DropCause),
    Goes { twice: bool, late: bool },
}

impl Faults {
    /// The faults of the link `name` in a run with `seed`.
    pub(crate) fn new(loss: &Loss, seed: u64, name: &str) -> Self {
        let trials = |share, purpose| Trials::new(share, generator(seed, name, purpose));
        Self {
            outages: loss.outages.iter().map(|outage| OutageClock::new(outage, seed)).collect(),
            burst: loss
                .burst
                .map(|burst| GilbertElliott::new(burst, generator(seed, name, "burst loss"))),
            random: trials(loss.random, "loss"),
            duplicate: trials(Ratio::ZERO, "duplicate"),
            reorder: trials(Ratio::ZERO, "reorder"),
            late_by: 0,
        }
    }

    /// The faults of a pair of sites.
    pub(crate) fn of_pair(pair: &Pair, seed: u64, name: &str) -> Self {
        let mut faults = Self::new(&pair.loss, seed, name);
        faults.duplicate.chance = Chance::new(pair.duplicate);
        if let Some(Reorder { share, late_by }) = pair.reorder {
            faults.reorder.chance = Chance::new(share);
            faults.late_by = nanos(late_by);
        }
        faults
    }

    /// Another share of random loss.
    pub(crate) fn set_random_loss(&mut self, share: Ratio) {
        self.random.chance = Chance::new(share);
    }

    /// Another share of duplicates.
    pub(crate) fn set_duplicate(&mut self, share: Ratio) {
        self.duplicate.chance = Chance::new(share);
    }

    /// What becomes of the next segment, sent at `now`. Every part takes its random numbers for
    /// every segment, so that one part does not shift another's.
    pub(crate) fn judge(&mut self, now: Nanos) -> Fate {
        let mut is_out = false;
        for outage in &mut self.outages {
            is_out |= outage.is_out(now);
        }
        let in_burst = self.burst.as_mut().is_some_and(GilbertElliott::loses);
        let at_random = self.random.hits();
        let twice = self.duplicate.hits();
        let late = self.reorder.hits();
        if is_out {
            Fate::Lost(DropCause::Outage)
        } else if in_burst {
            Fate::Lost(DropCause::Burst)
        } else if at_random {
            Fate::Lost(DropCause::Random)
        } else {
            Fate::Goes { twice, late }
        }
    }

    /// By how much overtaken segments come later.
    pub(crate) fn late_by(&self) -> Nanos {
        self.late_by
    }
}

/// The chain of two states of Gilbert and Elliott; a segment first steps it, then is tried.
#[derive(Debug, Clone)]
struct GilbertElliott {
    enter: Chance,
    leave: Chance,
    inside: Chance,
    outside: Chance,
    in_burst: bool,
    generator: Pcg64Mcg,
}

impl GilbertElliott {
    fn new(burst: BurstLoss, generator: Pcg64Mcg) -> Self {
        Self {
            enter: Chance::new(burst.enter),
            leave: Chance::new(burst.leave),
            inside: Chance::new(burst.inside),
            outside: Chance::new(burst.outside),
            in_burst: false,
            generator,
        }
    }

    fn loses(&mut self) -> bool {
        let step = if self.in_burst { self.leave } else { self.enter };
        self.in_burst ^= step.hits(self.generator.next_u64());
        let loss = if self.in_burst { self.inside } else { self.outside };
        loss.hits(self.generator.next_u64())
    }
}

/// Segments on their way, in the order of their arrival.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wire {
    pub(crate) delay: Nanos,
    jitter: Option<Jitter>,
    jitter_key: u64,
    line: VecDeque<Timed>,
    late: VecDeque<Timed>,
    last_due: Nanos,
    last_late: Nanos,
}

impl Wire {
    /// The wire of the pair `name` in a run with `seed`.
    pub(crate) fn of_pair(pair: &Pair, seed: u64, name: &str) -> Self {
        let mut wire = Self { jitter_key: derive(seed, name, "jitter"), ..Self::default() };
        wire.delay = nanos(pair.delay);
        wire.set_jitter(nanos(pair.jitter));
        wire
    }

    pub(crate) fn set_jitter(&mut self, bound: Nanos) {
        self.jitter = Jitter::new(bound, self.jitter_key);
    }

    /// Sends a segment off at `now`. Order is kept, also when the delay shrinks on the way.
    pub(crate) fn send(&mut self, now: Nanos, segment: Segment) -> Sent {
        let jitter = self.jitter.as_mut().map_or(0, |jitter| jitter.at(now));
        let due = now.saturating_add(self.delay).saturating_add(jitter).max(self.last_due);
        self.last_due = due;
        if due == now && self.line.is_empty() {
            return Sent::Arrives;
        }
        self.line.push_back(Timed { at: due, segment });
        if self.line.len() == 1 { Sent::First(LineKind::Wire, due) } else { Sent::Behind }
    }

    /// Sends a segment off that others will overtake.
    pub(crate) fn send_late(&mut self, now: Nanos, segment: Segment, late_by: Nanos) -> Sent {
        let jitter = self.jitter.as_mut().map_or(0, |jitter| jitter.at(now));
        let span = self.delay.saturating_add(jitter).saturating_add(late_by);
        let due = now.saturating_add(span).max(self.last_late);
        self.last_late = due;
        self.late.push_back(Timed { at: due, segment });
        if self.late.len() == 1 { Sent::First(LineKind::Late, due) } else { Sent::Behind }
    }
}

/// Where a segment went that was sent off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The wire has no length: it is there.
    Arrives,
    /// It is its line's first, due at this time.
    First(LineKind, Nanos),
    /// It is behind others.
    Behind,
}
