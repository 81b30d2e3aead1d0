//! Bundles in flight, and the coalescing of their segments on arrival.
//!
//! Segments that arrive one after the other, within a short span and with the same mark, become one
//! delivery. A *lane* (a destination and a few bits of the connection) has at most one open run, so
//! the deliveries of a connection keep the order of its segments.

use std::collections::VecDeque;

use tradewind_units::Timestamp;

use crate::{
    segment::{Nanos, Segment},
    topology::HostIndex,
    traffic::{Bundle, Delivery},
};

/// Lanes of each destination; a power of two. Chosen: more than the connections that are busy
/// within one coalescing span.
const LANES: usize = 64;

/// The entry of a lane without an open run.
const NOBODY: u32 = u32::MAX;

/// Bundles whose segments are not all accounted for.
#[derive(Debug, Clone)]
pub(crate) struct Bundles<P> {
    slots: Vec<Slot<P>>,
    free: Vec<u32>,
    /// The bundle whose run is open in each lane.
    open: Vec<u32>,
    /// The latest ends of open runs, in order; entries of runs closed earlier stay until they are
    /// reached.
    expiries: VecDeque<(Nanos, u32, u64)>,
    next_run: u64,
    coalesce: Nanos,
    ready: VecDeque<Delivery<P>>,
}

#[derive(Debug, Clone)]
struct Slot<P> {
    content: Option<P>,
    source: HostIndex,
    destination: HostIndex,
    lane: usize,
    /// Segments neither delivered nor lost.
    outstanding: u32,
    run: Option<Run>,
}

/// Delivered segments that wait for directly following ones.
#[derive(Debug, Clone, Copy)]
struct Run {
    number: u64,
    begin: u32,
    end: u32,
    first: Nanos,
    last: Nanos,
    ce_marked: bool,
}

impl<P: Clone> Bundles<P> {
    pub(crate) fn new(hosts: usize, coalesce: Nanos) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            open: vec![NOBODY; hosts * LANES],
            expiries: VecDeque::new(),
            next_run: 0,
            coalesce,
            ready: VecDeque::new(),
        }
    }

    pub(crate) fn set_coalesce(&mut self, span: Nanos) {
        self.coalesce = span;
    }

    pub(crate) fn coalesce(&self) -> Nanos {
        self.coalesce
    }

    /// Adds a bundle of which `segments` are in flight; returns its slot.
    pub(crate) fn admit(&mut self, bundle: Bundle<P>, segments: u32) -> u32 {
        let lane = usize::from(bundle.destination.0) * LANES
            + usize::try_from(bundle.connection % LANES as u64).expect("a small number");
        let slot = Slot {
            content: Some(bundle.content),
            source: bundle.source,
            destination: bundle.destination,
            lane,
            outstanding: segments,
            run: None,
        };
        if let Some(place) = self.free.pop() {
            self.slots[place as usize] = slot;
            return place;
        }
        self.slots.push(slot);
        u32::try_from(self.slots.len() - 1).expect("fewer than 2^32 bundles are under way")
    }

    /// Counts one more copy of a segment in flight.
    pub(crate) fn duplicate(&mut self, bundle: u32) {
        self.slots[bundle as usize].outstanding += 1;
    }

    /// Records the loss of a segment.
    pub(crate) fn drop_segment(&mut self, bundle: u32) {
        let slot = &mut self.slots[bundle as usize];
        slot.outstanding -= 1;
        if slot.outstanding == 0 {
            self.close(bundle);
        }
    }

    /// Delivers a segment that arrives at `now`. `next_arrival` returns the earliest time at which
    /// another segment of the same pair can arrive, or zero when that is unknown.
    pub(crate) fn deliver(
        &mut self,
        now: Nanos,
        segment: &Segment,
        next_arrival: impl FnOnce() -> Nanos,
    ) {
        let bundle = segment.bundle;
        let lane = self.slots[bundle as usize].lane;
        let occupant = self.open[lane];
        if occupant != NOBODY && (occupant != bundle || !self.continues(now, segment)) {
            self.close_run(occupant);
        }
        let slot = &mut self.slots[bundle as usize];
        slot.outstanding -= 1;
        let is_new = slot.run.is_none();
        let run = slot.run.get_or_insert(Run {
            number: self.next_run,
            begin: segment.index,
            end: segment.index,
            first: now,
            last: now,
            ce_marked: segment.ce_marked,
        });
        run.end = segment.index + 1;
        run.last = now;
        let (expiry, number) = (run.first.saturating_add(self.coalesce), run.number);
        self.open[lane] = bundle;
        self.next_run += u64::from(is_new);
        if slot.outstanding == 0 || next_arrival() > expiry {
            self.close(bundle);
        } else if is_new {
            self.expiries.push_back((expiry, bundle, number));
        }
    }

    /// Closes the runs that no segment can join any more, given that all events up to `now` have
    /// happened.
    pub(crate) fn expire(&mut self, now: Nanos) {
        while let Some((expiry, bundle, number)) = self.expiries.front().copied() {
            let is_open = self.is_open(bundle, number);
            if is_open && expiry > now {
                break;
            }
            self.expiries.pop_front();
            if is_open {
                self.close_run(bundle);
            }
        }
    }

    /// Returns the latest end of the oldest open run.
    pub(crate) fn next_expiry(&self) -> Option<Nanos> {
        let open = |entry: &&(Nanos, u32, u64)| self.is_open(entry.1, entry.2);
        self.expiries.iter().find(open).map(|(expiry, ..)| *expiry)
    }

    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn pop_ready(&mut self) -> Option<Delivery<P>> {
        self.ready.pop_front()
    }

    /// Returns the number of segments neither delivered nor lost.
    pub(crate) fn outstanding(&self) -> u64 {
        self.slots.iter().map(|slot| u64::from(slot.outstanding)).sum()
    }

    fn is_open(&self, bundle: u32, number: u64) -> bool {
        self.slots[bundle as usize].run.is_some_and(|run| run.number == number)
    }

    /// Returns whether a segment joins its bundle's open run.
    fn continues(&self, now: Nanos, segment: &Segment) -> bool {
        self.slots[segment.bundle as usize].run.is_some_and(|run| {
            run.end == segment.index
                && run.ce_marked == segment.ce_marked
                && now <= run.first.saturating_add(self.coalesce)
        })
    }

    /// Closes a bundle's open run, if any, and frees the bundle's slot if no segment is
    /// outstanding.
    fn close(&mut self, bundle: u32) {
        self.close_run(bundle);
        let slot = &mut self.slots[bundle as usize];
        if slot.outstanding == 0 && slot.content.take().is_some() {
            self.free.push(bundle);
        }
    }

    fn close_run(&mut self, bundle: u32) {
        let slot = &mut self.slots[bundle as usize];
        let Some(run) = slot.run.take() else { return };
        self.open[slot.lane] = NOBODY;
        let content = if slot.outstanding == 0 {
            self.free.push(bundle);
            slot.content.take()
        } else {
            slot.content.clone()
        };
        self.ready.push_back(Delivery {
            due: Timestamp::from_nanos(run.last),
            source: slot.source,
            destination: slot.destination,
            segments: run.begin..run.end,
            ce_marked: run.ce_marked,
            content: content.expect("a bundle has its content while segments are outstanding"),
        });
    }
}
