//! Admission of connections within limits, and eviction of some for others.
//!
//! A connection arrives unauthenticated, is admitted once its peer has shown that it may be here,
//! and may rest in between: a warm connection, whose neighbour has sent its hello and no session
//! yet. Unauthenticated connections have a limit of their own; admitted and resting ones share the
//! limit of sessions.
//!
//! When there are too many unauthenticated connections, or a session needs a place that a resting
//! connection takes, the source that holds most of them loses its oldest. So a host that opens
//! connections by the thousand, quickly or slowly, evicts its own, on whichever worker they are.
//! Among sources that hold equally many the oldest connection is evicted; one of a trusted source
//! only when there is no other.
//!
//! The structure does no I/O: a task is the caller's handle for ending a connection.

use tradewind_units::eviction::{EvictionQueue, Holder};

/// The stage of a connection's admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Its peer is not authenticated yet.
    Unauthenticated,
    /// Its neighbour has sent its hello, and no session yet.
    Resting,
    /// It has a place among the sessions.
    Admitted,
}

/// The reason that a connection was not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotAdmitted {
    /// Sessions use all places.
    Full,
    /// It was evicted a moment ago.
    Evicted,
}

/// The connections of a process, by number in the order of their arrival.
#[derive(Debug)]
pub(crate) struct Admission<T> {
    most_sessions: usize,
    most_unauthenticated: usize,
    next_number: u64,
    /// Connections that have a place, resting ones included.
    sessions: usize,
    unauthenticated: EvictionQueue<T>,
    resting: EvictionQueue<T>,
}

/// A connection that has got a place among the sessions, and the task of the resting one that is
/// evicted for it.
struct Placed<T> {
    holder: Holder,
    task: T,
    evicted: Option<T>,
}

impl<T> Admission<T> {
    /// Creates an admission without connections.
    pub(crate) const fn new(most_sessions: usize, most_unauthenticated: usize) -> Self {
        Self {
            most_sessions,
            most_unauthenticated,
            next_number: 0,
            sessions: 0,
            unauthenticated: EvictionQueue::new(),
            resting: EvictionQueue::new(),
        }
    }

    /// Changes the limits. Sessions stay even above the new limit; returns the tasks of resting and
    /// unauthenticated connections that exceed it and are to be ended.
    pub(crate) fn set(&mut self, most_sessions: usize, most_unauthenticated: usize) -> Vec<T> {
        (self.most_sessions, self.most_unauthenticated) = (most_sessions, most_unauthenticated);
        let mut evicted = Vec::new();
        while self.unauthenticated.len() > most_unauthenticated
            && let Some(task) = self.unauthenticated.evict()
        {
            evicted.push(task);
        }
        while self.sessions > most_sessions
            && let Some(task) = self.resting.evict()
        {
            self.sessions -= 1;
            evicted.push(task);
        }
        evicted
    }

    /// Returns the number of the next connection.
    pub(crate) const fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    /// Adds an unauthenticated connection, which `task` serves; returns the task of the connection
    /// that is evicted for it, if one is.
    pub(crate) fn arrive(&mut self, number: u64, holder: Holder, task: T) -> Option<T> {
        self.unauthenticated.insert(number, holder, task);
        let is_crowded = self.unauthenticated.len() > self.most_unauthenticated;
        is_crowded.then(|| self.unauthenticated.evict()).flatten()
    }

    /// Gives a connection a place among the sessions; returns the task of the resting connection
    /// that is evicted for it, if one is.
    pub(crate) fn admit(&mut self, number: u64, stage: Stage) -> Result<Option<T>, NotAdmitted> {
        match stage {
            Stage::Unauthenticated => self.take_place(number).map(|placed| placed.evicted),
            // It has a place already.
            Stage::Resting => match self.resting.remove(number) {
                Some(_) => Ok(None),
                None => Err(NotAdmitted::Evicted),
            },
            Stage::Admitted => Ok(None),
        }
    }

    /// Returns the task of a connection that may be evicted still.
    pub(crate) fn task(&self, number: u64, stage: Stage) -> Option<&T> {
        match stage {
            Stage::Unauthenticated => self.unauthenticated.task(number),
            Stage::Resting => self.resting.task(number),
            Stage::Admitted => None,
        }
    }

    /// Lets an unauthenticated connection rest in a place from which it may be evicted; returns the
    /// task of the resting connection that is evicted for it, if one is.
    pub(crate) fn rest(&mut self, number: u64) -> Result<Option<T>, NotAdmitted> {
        let Placed { holder, task, evicted } = self.take_place(number)?;
        self.resting.insert(number, holder, task);
        Ok(evicted)
    }

    /// Forgets a connection that ends; false when it had been evicted.
    pub(crate) fn leave(&mut self, number: u64, stage: Stage) -> bool {
        match stage {
            Stage::Unauthenticated => self.unauthenticated.remove(number).is_some(),
            Stage::Resting => {
                let was_here = self.resting.remove(number).is_some();
                self.sessions -= usize::from(was_here);
                was_here
            }
            Stage::Admitted => {
                self.sessions -= 1;
                true
            }
        }
    }

    fn take_place(&mut self, number: u64) -> Result<Placed<T>, NotAdmitted> {
        if !self.unauthenticated.contains(number) {
            return Err(NotAdmitted::Evicted);
        }
        let mut evicted = None;
        if self.sessions >= self.most_sessions {
            evicted = Some(self.resting.evict().ok_or(NotAdmitted::Full)?);
            self.sessions -= 1;
        }
        let (holder, task) = self.unauthenticated.remove(number).ok_or(NotAdmitted::Evicted)?;
        self.sessions += 1;
        Ok(Placed { holder, task, evicted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tradewind_units::Source;

    fn holder(last: u8) -> Holder {
        Holder { is_trusted: false, source: Source::of([192, 0, 2, last].into()) }
    }

    fn trusted(last: u8) -> Holder {
        Holder { is_trusted: true, ..holder(last) }
    }

    /// An admission whose tasks are the numbers of their connections.
    fn arrive(admission: &mut Admission<u64>, holder: Holder) -> (u64, Option<u64>) {
        let number = admission.number();
        (number, admission.arrive(number, holder, number))
    }

    #[test]
    fn oldest_of_the_largest_source_is_evicted() {
        let mut admission = Admission::new(100, 4);
        let (honest, _) = arrive(&mut admission, holder(1));
        let flood: Vec<_> = (0..3).map(|_| arrive(&mut admission, holder(9)).0).collect();
        assert_eq!(arrive(&mut admission, holder(9)).1, Some(flood[0]));
        assert_eq!(arrive(&mut admission, holder(2)).1, Some(flood[1]));
        assert_eq!(admission.admit(honest, Stage::Unauthenticated), Ok(None));
    }

    #[test]
    fn flood_evicts_only_its_own() {
        let mut admission = Admission::new(8000, 1000);
        let slow: Vec<_> = (0..24).map(|_| arrive(&mut admission, holder(1)).0).collect();
        for _ in 0..100_000 {
            let (_, evicted) = arrive(&mut admission, holder(9));
            assert!(evicted.is_none_or(|evicted| !slow.contains(&evicted)));
        }
        for number in slow {
            assert_eq!(admission.admit(number, Stage::Unauthenticated), Ok(None));
        }
    }

    #[test]
    fn oldest_untrusted_of_equals_is_evicted() {
        let mut admission = Admission::new(100, 3);
        let (admitted, _) = arrive(&mut admission, trusted(7));
        let (first, _) = arrive(&mut admission, holder(1));
        let (second, _) = arrive(&mut admission, holder(2));
        assert_eq!(arrive(&mut admission, trusted(7)).1, Some(first));
        assert_eq!(arrive(&mut admission, trusted(7)).1, Some(second));
        // If all are trusted one of them is evicted, and an unknown source is rejected.
        assert_eq!(arrive(&mut admission, trusted(7)).1, Some(admitted));
        let (unknown, evicted) = arrive(&mut admission, holder(3));
        assert_eq!(evicted, Some(unknown));
    }

    #[test]
    fn session_evicts_only_resting_connections() {
        let mut admission = Admission::new(3, 10);
        let of = |admission: &mut Admission<u64>, last| arrive(admission, holder(last)).0;
        let resting = [9, 9, 1].map(|last| of(&mut admission, last));
        for number in resting {
            assert_eq!(admission.rest(number), Ok(None));
        }
        let sessions = [5, 5, 5].map(|last| of(&mut admission, last));
        let admitted = sessions.map(|number| admission.admit(number, Stage::Unauthenticated));
        assert_eq!(admitted, [Ok(Some(resting[0])), Ok(Some(resting[1])), Ok(Some(resting[2]))]);
        let last = of(&mut admission, 6);
        assert_eq!(admission.admit(last, Stage::Unauthenticated), Err(NotAdmitted::Full));
        assert_eq!(admission.rest(last), Err(NotAdmitted::Full));
        assert!(admission.leave(sessions[0], Stage::Admitted));
        assert_eq!(admission.admit(last, Stage::Unauthenticated), Ok(None));
    }

    #[test]
    fn resting_connection_is_admitted_in_place() {
        let mut admission = Admission::new(1, 10);
        let (warm, _) = arrive(&mut admission, holder(1));
        assert_eq!(admission.rest(warm), Ok(None));
        assert_eq!(admission.admit(warm, Stage::Resting), Ok(None));
        let (other, _) = arrive(&mut admission, holder(2));
        assert_eq!(admission.admit(other, Stage::Unauthenticated), Err(NotAdmitted::Full));
        assert!(admission.leave(warm, Stage::Admitted));
        assert_eq!(admission.admit(other, Stage::Unauthenticated), Ok(None));
    }

    #[test]
    fn lower_limits_apply_to_new_sessions() {
        let mut admission = Admission::new(4, 4);
        let numbers = [1; 4].map(|last| arrive(&mut admission, holder(last)).0);
        let [first, second, third, resting] = numbers;
        for number in [first, second, third] {
            assert_eq!(admission.admit(number, Stage::Unauthenticated), Ok(None));
        }
        assert_eq!(admission.rest(resting), Ok(None));
        let waiting = [2, 3, 4].map(|last| arrive(&mut admission, holder(last)).0);
        assert_eq!(admission.set(2, 1), [waiting[0], waiting[1], resting]);
        let last = waiting[2];
        let refused = Err(NotAdmitted::Full);
        assert_eq!(admission.admit(last, Stage::Unauthenticated), refused);
        assert!(admission.leave(first, Stage::Admitted));
        assert_eq!(admission.admit(last, Stage::Unauthenticated), refused, "two are open still");
        assert!(admission.leave(second, Stage::Admitted));
        assert_eq!(admission.admit(last, Stage::Unauthenticated), Ok(None));
        assert!(admission.set(3, 1).is_empty());
        let (more, _) = arrive(&mut admission, holder(5));
        assert_eq!(admission.admit(more, Stage::Unauthenticated), Ok(None));
    }

    #[test]
    fn evicted_connection_is_not_admitted() {
        let mut admission = Admission::new(1, 1);
        let (first, _) = arrive(&mut admission, holder(1));
        let (second, evicted) = arrive(&mut admission, holder(2));
        assert_eq!(evicted, Some(first));
        assert_eq!(admission.admit(first, Stage::Unauthenticated), Err(NotAdmitted::Evicted));
        assert_eq!(admission.rest(first), Err(NotAdmitted::Evicted));
        assert!(!admission.leave(first, Stage::Unauthenticated));
        assert_eq!(admission.rest(second), Ok(None));
        let (third, _) = arrive(&mut admission, holder(3));
        assert_eq!(admission.admit(third, Stage::Unauthenticated), Ok(Some(second)));
        assert_eq!(admission.admit(second, Stage::Resting), Err(NotAdmitted::Evicted));
        assert!(!admission.leave(second, Stage::Resting));
        assert!(admission.leave(third, Stage::Admitted));
        assert_eq!((admission.sessions, admission.unauthenticated.len()), (0, 0));
        assert_eq!(admission.resting.len(), 0);
    }
}
