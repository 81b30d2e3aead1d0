//! The open connections: how each began, how its first flight went, and what it had when it was last seen.
//!
//! How a connection began is guessed from what was in force when it was first seen; an actuator that sees
//! each connection tells it instead ([`Begun`]), before or after that moment.

use std::collections::BTreeMap;

use tradewind_units::Segments;

use crate::arms::{Arm, Arms, count_ended};
use crate::guard::FirstFlight;
use crate::sample::Sample;

/// How a connection began, by an actuator that saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Begun {
    /// With this window, which was learned.
    Jumped(Segments),
    /// By default, on purpose.
    Control,
}

/// What was last seen of a connection.
#[derive(Debug)]
struct Tracked {
    arm: Arm,
    given: u32,
    first_flight: FirstFlight,
    last: Sample,
    round: u64,
}

/// What was told of a connection that was not seen yet.
#[derive(Debug, Default)]
struct Told {
    begun: Option<Begun>,
    lost: bool,
    round: u64,
}

/// All of them, by their number.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: BTreeMap<u64, Tracked>,
    told: BTreeMap<u64, Told>,
    arms: Arms,
    round: u64,
}

impl Connections {
    /// Remembers `sample`; returns what its connection had had acknowledged before, and how its first
    /// flight went if that has just become clear. `guess` says how a new one began, and with which window,
    /// unless that was told.
    pub(crate) fn see(
        &mut self,
        sample: &Sample,
        guess: impl FnOnce() -> (Arm, u32),
    ) -> (u64, Option<FirstFlight>) {
        let (round, told) = (self.round, &mut self.told);
        let mut before = 0;
        let tracked = self
            .open
            .entry(sample.connection)
            .and_modify(|tracked| before = tracked.last.acked.as_u64())
            .or_insert_with(|| {
                let told = told.remove(&sample.connection).unwrap_or_default();
                let (arm, given) = match told.begun {
                    Some(begun) => arm_of(begun),
                    None if round == 0 => (Arm::Earlier, 0),
                    None => guess(),
                };
                let first_flight = if told.lost { FirstFlight::Lost } else { FirstFlight::Open };
                Tracked { arm, given, first_flight, last: *sample, round }
            });
        (tracked.last, tracked.round) = (*sample, round);
        if tracked.arm != Arm::Jumped || tracked.first_flight != FirstFlight::Open {
            return (before, None);
        }
        tracked.first_flight = FirstFlight::of(sample, tracked.given);
        (before, Some(tracked.first_flight))
    }

    /// Takes in how a connection began.
    pub(crate) fn began(&mut self, connection: u64, begun: Begun) {
        if let Some(tracked) = self.open.get_mut(&connection) {
            (tracked.arm, tracked.given) = arm_of(begun);
        } else {
            let told = self.told.entry(connection).or_default();
            (told.begun, told.round) = (Some(begun), self.round);
        }
    }

    /// Takes in that a connection's first flight was lost; returns whether that is new.
    pub(crate) fn lost(&mut self, connection: u64) -> bool {
        if let Some(tracked) = self.open.get_mut(&connection) {
            let before = std::mem::replace(&mut tracked.first_flight, FirstFlight::Lost);
            return before != FirstFlight::Lost;
        }
        let told = self.told.entry(connection).or_default();
        told.round = self.round;
        !std::mem::replace(&mut told.lost, true)
    }

    /// Counts those that were not seen in this round as ended, and begins the next one.
    pub(crate) fn end_round(&mut self) {
        let (arms, round) = (&mut self.arms, self.round);
        self.open.retain(|_, tracked| {
            let open = tracked.round == round;
            if !open {
                count_ended(arms, tracked.arm, &tracked.last);
            }
            open
        });
        // Told while this round's look was under way: seen by the next one, or ended before.
        self.told.retain(|_, told| told.round == round);
        self.round += 1;
    }

    /// What the ended ones did.
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
