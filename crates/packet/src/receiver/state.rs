//! The state of one flow at its receiver.

use std::collections::{BTreeMap, VecDeque};

use tradewind_units::{Duration, Timestamp};

use super::ReceiverFlow;
use super::detector::Detector;
use super::missing::Missing;
use super::report::{Counts, Reported};
use super::solve::Blocks;
use crate::budget::{Allowance, Budget};
use crate::event::Arrival;
use crate::window::Window;

/// The most recovered packets that may still come by themselves. Chosen: those of two seconds, one
/// in a hundred of ten thousand a second.
const MAX_BROUGHT_BACK: usize = 256;

/// The most packets that an outage counts. Chosen: an hour at a million packets a second; a sender
/// may claim any number.
const MAX_OUTAGE: u64 = 3_600_000_000;
/// The most lost packets that may still come. Chosen: those of two seconds, one in ten of a
/// thousand a second.
const MAX_LOST: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) flow: ReceiverFlow,
    pub(super) window: Window,
    pub(super) detector: Detector,
    pub(super) missing: Missing,
    pub(super) blocks: Blocks,
    pub(super) asks: Budget,
    pub(super) counts: Counts,
    pub(super) reported: Reported,
    /// The latest recovered packets, and when each was expected.
    brought_back: VecDeque<(u64, Timestamp)>,
    /// The latest packets that were counted as lost, and when each was expected.
    lost: BTreeMap<u64, Timestamp>,
    /// The timer that is set.
    pub(super) armed: Option<Timestamp>,
}

impl State {
    pub(super) fn new(flow: ReceiverFlow, asks: Allowance) -> Self {
        Self {
            flow,
            window: Window::new(),
            detector: Detector::new(flow.round_trip, flow.recovery_deadline),
            missing: Missing::new(flow.round_trip, flow.recovery_deadline),
            blocks: Blocks::default(),
            asks: Budget::new(asks),
            counts: Counts::default(),
            reported: Reported::default(),
            brought_back: VecDeque::new(),
            lost: BTreeMap::new(),
            armed: None,
        }
    }

    /// Counts a packet as lost.
    pub(super) fn lose(&mut self, sequence: u64, expected: Timestamp) {
        self.counts.lost += 1;
        self.counts.lost_by_internet += 1;
        self.lost.insert(sequence, expected);
        if self.lost.len() > MAX_LOST {
            self.lost.pop_first();
        }
    }

    /// Counts packets as lost that nobody waits for any more.
    pub(super) fn lose_all(&mut self, packets: u64) {
        let packets = packets.min(MAX_OUTAGE);
        self.counts.lost = self.counts.lost.saturating_add(packets);
        self.counts.lost_by_internet = self.counts.lost_by_internet.saturating_add(packets);
    }

    /// Counts a packet that has come; returns how much later than expected, and whether that is too
    /// late.
    pub(super) fn count(
        &mut self,
        now: Timestamp,
        sequence: u64,
        arrival: Arrival,
    ) -> (Duration, bool) {
        let place = match arrival {
            Arrival::Internet | Arrival::Overlay => None,
            Arrival::Cache => Some(0),
            Arrival::InStream => Some(1),
            Arrival::CrossStream => Some(2),
        };
        let is_usual = place.is_none();
        if let Some(place) = place {
            self.counts.recovered[place] += 1;
        }
        self.reported.begun.get_or_insert(now);
        let missed = self.missing.remove(sequence);
        let lost = self.lost.remove(&sequence);
        let expected = missed.map(|missed| missed.expected).or(lost);
        let after = expected.map_or(Duration::ZERO, |expected| now.since(expected));
        let is_late = lost.is_some() || after > self.flow.recovery_deadline;
        // It was counted as lost, and by the Internet as well.
        self.counts.found += u64::from(lost.is_some());
        self.counts.undone += u64::from(lost.is_some() && is_usual);
        match missed {
            Some(missed) if is_usual => {
                self.detector.came_late(sequence, now.since(missed.expected));
            }
            Some(missed) => {
                self.missing.came_back(now, &missed);
                if self.brought_back.len() >= MAX_BROUGHT_BACK {
                    self.brought_back.pop_front();
                }
                self.brought_back.push_back((sequence, missed.expected));
                self.counts.lost_by_internet += u64::from(lost.is_none());
            }
            None => {}
        }
        self.counts.in_time += u64::from(!is_late);
        self.counts.late += u64::from(is_late);
        (after, is_late)
    }

    /// Notes that a recovered packet has come on its usual path: the Internet has not lost it, and
    /// its delay is one that packets may have.
    pub(super) fn came_after_all(&mut self, now: Timestamp, sequence: u64) {
        let found = self.brought_back.iter().position(|(known, _)| *known == sequence);
        let Some((_, expected)) = found.and_then(|at| self.brought_back.remove(at)) else { return };
        self.detector.came_late(sequence, now.since(expected));
        self.counts.undone += 1;
    }
}
