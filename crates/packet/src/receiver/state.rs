//! What a receiver knows of one flow.

use std::collections::VecDeque;

use tradewind_units::{Duration, Timestamp};

use super::ReceiverFlow;
use super::detector::Detector;
use super::missing::Missing;
use super::report::Counts;
use super::solve::Blocks;
use crate::budget::{Allowance, Budget};
use crate::event::Arrival;
use crate::window::Window;

/// Packets brought back that may come by themselves yet. Chosen: those of two seconds, one in a
/// hundred of ten thousand a second.
const MOST_BROUGHT_BACK: usize = 256;

#[derive(Debug, Clone)]
pub(super) struct State {
    pub(super) flow: ReceiverFlow,
    pub(super) window: Window,
    pub(super) detector: Detector,
    pub(super) missing: Missing,
    pub(super) blocks: Blocks,
    pub(super) asks: Budget,
    pub(super) counts: Counts,
    /// What was brought back last, and when each was expected.
    brought_back: VecDeque<(u64, Timestamp)>,
    /// The deadline that is set.
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
            brought_back: VecDeque::new(),
            armed: None,
        }
    }

    /// A packet has come: how much later than expected, and whether that is too late.
    pub(super) fn count(
        &mut self,
        now: Timestamp,
        sequence: u64,
        way: Arrival,
    ) -> (Duration, bool) {
        let place = match way {
            Arrival::Internet | Arrival::Overlay => None,
            Arrival::Cache => Some(0),
            Arrival::InStream => Some(1),
            Arrival::CrossStream => Some(2),
        };
        let is_usual = place.is_none();
        if let Some(place) = place {
            self.counts.recovered[place] += 1;
        }
        let missed = self.missing.remove(sequence);
        let after = missed.map_or(Duration::ZERO, |missed| now.since(missed.expected));
        let is_late = after > self.flow.recovery_deadline;
        match missed {
            Some(missed) if is_usual => {
                self.detector.came_late(sequence, now.since(missed.expected));
                // It had been counted as lost.
                let counted = u64::from(missed.is_lost);
                self.counts.lost -= counted.min(self.counts.lost);
                self.counts.lost_by_internet -= counted.min(self.counts.lost_by_internet);
            }
            Some(missed) => {
                self.missing.came_back(now, &missed);
                if self.brought_back.len() >= MOST_BROUGHT_BACK {
                    self.brought_back.pop_front();
                }
                self.brought_back.push_back((sequence, missed.expected));
                self.counts.lost_by_internet += u64::from(!missed.is_lost);
                self.counts.lost -= u64::from(missed.is_lost).min(self.counts.lost);
            }
            None => {}
        }
        self.counts.in_time += u64::from(!is_late);
        self.counts.late += u64::from(is_late);
        (after, is_late)
    }

    /// A packet that was brought back has come by its usual way: the Internet has not lost it, and
    /// what it took is what packets may take.
    pub(super) fn came_after_all(&mut self, now: Timestamp, sequence: u64) {
        let found = self.brought_back.iter().position(|(known, _)| *known == sequence);
        let Some((_, expected)) = found.and_then(|at| self.brought_back.remove(at)) else { return };
        self.detector.came_late(sequence, now.since(expected));
        self.counts.undone += 1;
    }
}
