//! One link in one direction: a queue before a rate, then the faults of a wire, then its delay.
//! Caps of hosts, named links and pairs of sites are all such links; each uses the parts it needs.

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
    /// `None` when the link has no faults.
    pub(crate) faults: Option<Box<Faults>>,
    pub(crate) wire: Wire,
    /// The index of its counters.
    pub(crate) tally: usize,
    /// The least delay from the queue of this link to the destination host; `None` when all
    /// segments that wait at one time belong to one pair, whose delay then applies.
    pub(crate) lead: Option<Nanos>,
    /// `true` when segments leave it for their host.
    pub(crate) is_ingress: bool,
}

impl Link {
    /// Returns a link that only limits a rate.
    pub(crate) fn limiter(queue: Queue, tally: usize) -> Self {
        Self { queue, faults: None, wire: Wire::default(), tally, lead: None, is_ingress: false }
    }

    /// Returns the FIFO of this kind.
    pub(crate) fn line(&self, kind: LineKind) -> &VecDeque<Timed> {
        match kind {
            LineKind::Queue => &self.queue.waiting,
            LineKind::Wire => &self.wire.line,
            LineKind::Late => &self.wire.late,
        }
    }

    /// Removes the head of a FIFO; returns it and the time of the next one.
    pub(crate) fn take_head(&mut self, kind: LineKind) -> Option<(Segment, Option<Nanos>)> {
        let head = match kind {
            LineKind::Queue => self.queue.depart(),
            LineKind::Wire => self.wire.line.pop_front(),
            LineKind::Late => self.wire.late.pop_front(),
        }?;
        Some((head.segment, self.line(kind).front().map(|next| next.at)))
    }

    /// Returns the number of segments it holds.
    pub(crate) fn in_flight(&self) -> usize {
        self.queue.waiting.len() + self.wire.line.len() + self.wire.late.len()
    }
}

/// The FIFOs of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LineKind {
    /// Segments waiting for the rate.
    Queue,
    /// Segments on the wire.
    Wire,
    /// Segments on the wire that others overtake.
    Late,
}

/// The faults of a link.
#[derive(Debug, Clone)]
pub(crate) struct Faults {
    outages: Vec<OutageClock>,
    burst: Option<GilbertElliott>,
    random: Trials,
    duplicate: Trials,
    reorder: Trials,
    late_by: Nanos,
}

/// The fate of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Lost(DropCause),
    Goes { twice: bool, late: bool },
}

impl Faults {
    /// Returns the faults of the link `name` in a run with `seed`.
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

    /// Returns the faults of a pair of sites.
    pub(crate) fn of_pair(pair: &Pair, seed: u64, name: &str) -> Self {
        let mut faults = Self::new(&pair.loss, seed, name);
        faults.duplicate.chance = Chance::new(pair.duplicate);
        if let Some(Reorder { share, late_by }) = pair.reorder {
            faults.reorder.chance = Chance::new(share);
            faults.late_by = nanos(late_by);
        }
        faults
    }

    /// Sets the share of random loss.
    pub(crate) fn set_random_loss(&mut self, share: Ratio) {
        self.random.chance = Chance::new(share);
    }

    /// Sets the share of duplicates.
    pub(crate) fn set_duplicate(&mut self, share: Ratio) {
        self.duplicate.chance = Chance::new(share);
    }

    /// Decides the fate of the next segment, sent at `now`. Every fault draws its random numbers
    /// for every segment, so that one fault does not shift another's sequence.
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

    /// Returns the additional delay of overtaken segments.
    pub(crate) fn late_by(&self) -> Nanos {
        self.late_by
    }
}

/// The two-state chain of Gilbert and Elliott; each segment first advances the chain, then is
/// tried.
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

/// Segments on the wire, in the order of their arrival.
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
    /// Returns the wire of the pair `name` in a run with `seed`.
    pub(crate) fn of_pair(pair: &Pair, seed: u64, name: &str) -> Self {
        let mut wire = Self { jitter_key: derive(seed, name, "jitter"), ..Self::default() };
        wire.delay = nanos(pair.delay);
        wire.set_jitter(nanos(pair.jitter));
        wire
    }

    pub(crate) fn set_jitter(&mut self, bound: Nanos) {
        self.jitter = Jitter::new(bound, self.jitter_key);
    }

    /// Sends a segment at `now`. Order is kept, even when the delay shrinks.
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

    /// Sends a segment that others will overtake.
    pub(crate) fn send_late(&mut self, now: Nanos, segment: Segment, late_by: Nanos) -> Sent {
        let jitter = self.jitter.as_mut().map_or(0, |jitter| jitter.at(now));
        let span = self.delay.saturating_add(jitter).saturating_add(late_by);
        let due = now.saturating_add(span).max(self.last_late);
        self.last_late = due;
        self.late.push_back(Timed { at: due, segment });
        if self.late.len() == 1 { Sent::First(LineKind::Late, due) } else { Sent::Behind }
    }
}

/// The position of a segment after it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The wire has no delay: the segment has arrived.
    Arrives,
    /// It is the head of its FIFO, due at this time.
    First(LineKind, Nanos),
    /// It is behind other segments.
    Behind,
}
