//! How much each gateway, grant and source and all together may take: sessions, bytes a second, (by
//! `memory`) bytes held, and (by `resolver`) names looked up.
//!
//! A rate is kept by a virtual clock (the generic cell rate algorithm, ITU-T I.371): whoever is about to
//! move bytes books them, and may move them when the clock, which runs ahead by what is booked, has come so
//! far. Bookings are small and are served in the order in which they were made, so sessions that share a
//! rate get equal parts of it. A session that no rate binds has no [`Meter`] and pays nothing.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tradewind_units::share::has_share;
use tradewind_units::{Bandwidth, Bytes};

use crate::config::Share;
use crate::memory::Memory;
use crate::resolver::Lookups;
use crate::stock::BUFFER_BYTES;

/// What may pass at once after a rest, as time at the full rate. Chosen: short exchanges do not wait, and no
/// second sees more than a tenth above the rate.
const BURST: Duration = Duration::from_millis(100);

/// A booking, as time at the full rate; within [`LEAST_BOOKING`] and what one read takes. Chosen: two turns of a
/// hundred sessions that share a rate lie two seconds apart.
const BOOKING: Duration = Duration::from_millis(20);
const LEAST_BOOKING: usize = 2048;

/// A rate that sessions share.
#[derive(Debug)]
pub(crate) struct Rate(Mutex<Booked>);

#[derive(Debug)]
struct Booked {
    /// Absent once the rate was taken back: whoever was bound by it moves freely.
    rate: Option<Bandwidth>,
    /// Until when everything is booked.
    until: Instant,
}

impl Rate {
    pub(crate) fn new(rate: Bandwidth) -> Self {
        Self(Mutex::new(Booked { rate: Some(rate), until: Instant::now() }))
    }

    /// Has whoever this binds go by another rate from now on.
    pub(crate) fn set(&self, rate: Option<Bandwidth>) {
        let mut booked = self.lock();
        booked.rate = rate;
        if rate.is_none() {
            booked.until = Instant::now();
        }
    }

    /// Books `bytes`, and says when they may move.
    fn book(&self, now: Instant, bytes: usize) -> Instant {
        let mut booked = self.lock();
        let start = now.max(booked.until);
        booked.until = start + booked.time_for(bytes);
        start.checked_sub(BURST).map_or(now, |due| due.max(now))
    }

    /// Gives back what was booked and did not move.
    fn give_back(&self, bytes: usize) {
        let mut booked = self.lock();
        if let Some(earlier) = booked.until.checked_sub(booked.time_for(bytes)) {
            booked.until = earlier;
        }
    }

    /// Whether nothing is booked any more, so that to forget it gives nothing away.
    fn rests(&self, now: Instant) -> bool {
        self.lock().until <= now
    }

    fn booking(&self) -> usize {
        let volume = self.lock().rate.map(|rate| rate.volume_in(BOOKING).as_u64());
        let bytes = volume.and_then(|volume| usize::try_from(volume).ok()).unwrap_or(usize::MAX);
        bytes.clamp(LEAST_BOOKING, BUFFER_BYTES)
    }

    fn lock(&self) -> MutexGuard<'_, Booked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Booked {
    fn time_for(&self, bytes: usize) -> Duration {
        self.rate.map_or(Duration::ZERO, |rate| rate.time_for(Bytes::new(bytes as u64)))
    }
}

/// Returns what binds from now on whoever `held` bound until now: the same object where there was
/// one, so that open sessions go by `rate` as well.
pub(crate) fn rate_of(held: Option<&Arc<Rate>>, rate: Option<Bandwidth>) -> Option<Arc<Rate>> {
    match held {
        Some(held) => {
            held.set(rate);
            Some(Arc::clone(held))
        }
        None => rate.map(|rate| Arc::new(Rate::new(rate))),
    }
}

/// One direction's way through the rates that bind it.
#[derive(Debug)]
pub(crate) struct Meter {
    rates: Vec<Arc<Rate>>,
    /// Until the booking may move.
    wait: Option<Pin<Box<Sleep>>>,
    booked: usize,
}

impl Meter {
    /// A way through `rates`; `None` when there are none. What has `moved` before is booked late.
    pub(crate) fn through(rates: &[Arc<Rate>], moved: u64) -> Option<Self> {
        if rates.is_empty() {
            return None;
        }
        let moved = usize::try_from(moved).unwrap_or(usize::MAX);
        let now = Instant::now();
        for rate in rates {
            rate.book(now, moved);
        }
        Some(Self { rates: rates.to_vec(), wait: None, booked: 0 })
    }

    /// Ready with how much may move now; `on_wait` is called once for each wait.
    pub(crate) fn poll_booked(
        &mut self,
        cx: &mut Context<'_>,
        on_wait: impl FnOnce(),
    ) -> Poll<usize> {
        if self.booked == 0 {
            let now = Instant::now();
            // Rates may have changed since the last one.
            let booking = self.rates.iter().map(|rate| rate.booking()).min();
            self.booked = booking.unwrap_or(BUFFER_BYTES);
            let due = self.rates.iter().map(|rate| rate.book(now, self.booked)).max();
            if let Some(due) = due.filter(|due| *due > now) {
                on_wait();
                self.wait = Some(Box::pin(tokio::time::sleep_until(due)));
            }
        }
        if let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            self.wait = None;
        }
        Poll::Ready(self.booked)
    }

    /// Ends the booking, of which `moved` was used.
    pub(crate) fn settle(&mut self, moved: usize) {
        let unused = std::mem::take(&mut self.booked).saturating_sub(moved);
        if unused > 0 {
            self.rates.iter().for_each(|rate| rate.give_back(unused));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.settle(0);
    }
}

/// Who takes part, each with an equal share: the sessions of each gateway, of each grant or of each
/// source.
#[derive(Debug)]
pub(crate) struct Members<K: Ord> {
    table: Mutex<Table<K>>,
}

#[derive(Debug)]
struct Table<K> {
    share: Share,
    /// Sessions of all members, where each gets its share of them by a dynamic threshold.
    most_in_all: Option<usize>,
    members: BTreeMap<K, Member>,
    /// Sessions of all members.
    open: usize,
    /// At so many members those that rest are forgotten.
    sweep_at: usize,
}

#[derive(Debug)]
struct Member {
    open: u32,
    rate: Option<Arc<Rate>>,
    memory: Option<Arc<Memory>>,
    lookups: Lookups,
}

/// One session's place with its member.
#[derive(Debug)]
pub(crate) struct Place<K: Ord + Copy> {
    members: Arc<Members<K>>,
    key: K,
    /// The rate that the member's sessions share.
    pub(crate) rate: Option<Arc<Rate>>,
    /// The memory that they share.
    pub(crate) memory: Option<Arc<Memory>>,
    /// The names that they look up.
    pub(crate) lookups: Lookups,
}

impl<K: Ord + Copy> Members<K> {
    /// Members that get `share` each.
    pub(crate) fn new(share: Share) -> Arc<Self> {
        Self::within(None, share)
    }

    /// Members that get `share` each, and of `most_in_all` sessions by a dynamic threshold unless
    /// `share` says how many: then who has many leaves as many to others.
    pub(crate) fn sharing(most_in_all: usize, share: Share) -> Arc<Self> {
        Self::within(share.sessions.is_none().then_some(most_in_all), share)
    }

    fn within(most_in_all: Option<usize>, share: Share) -> Arc<Self> {
        /// Chosen: a table of some 100 kB is not worth the sweep.
        const SWEEP_AT: usize = 1024;
        let members = BTreeMap::new();
        let table = Table { share, most_in_all, members, open: 0, sweep_at: SWEEP_AT };
        Arc::new(Self { table: Mutex::new(table) })
    }

    /// Has members get another share from now on, where they share `most_in_all` sessions as
    /// [`Members::sharing`] says. Who has more than that keeps it, and gets nothing more.
    pub(crate) fn set(&self, most_in_all: Option<usize>, share: Share) {
        let mut table = self.lock();
        table.most_in_all = most_in_all.filter(|_| share.sessions.is_none());
        table.share = share;
        table.members.values_mut().for_each(|member| member.set(&share));
    }

    /// Counts one more session of `key`; `None` when it has its share of them, or `most` of its own.
    pub(crate) fn enter(self: &Arc<Self>, key: K, most: Option<u32>) -> Option<Place<K>> {
        let mut table = self.lock();
        table.sweep();
        let (open, share, most_in_all) = (table.open, table.share, table.most_in_all);
        let member = table.members.entry(key).or_insert_with(|| Member::new(&share));
        let most = most.into_iter().chain(share.most_sessions()).min();
        let has_share =
            |most| has_share(usize::try_from(member.open).unwrap_or(usize::MAX), open, most);
        if most.is_some_and(|most| member.open >= most) || !most_in_all.is_none_or(has_share) {
            return None;
        }
        member.open += 1;
        let place = Place {
            members: Arc::clone(self),
            key,
            rate: member.rate.clone(),
            memory: member.memory.clone(),
            lookups: member.lookups.clone(),
        };
        table.open += 1;
        Some(place)
    }

    fn lock(&self) -> MutexGuard<'_, Table<K>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Ord + Copy> Table<K> {
    /// Forgets who has no session, nothing booked and no name looked up: a rate that was used up outlives its sessions, so
    /// that coming again does not renew it.
    fn sweep(&mut self) {
        if self.members.len() >= self.sweep_at {
            let now = Instant::now();
            self.members.retain(|_, member| !member.rests(now));
            self.sweep_at = (2 * self.members.len()).max(self.sweep_at);
        }
    }
}

impl Share {
    /// Sessions at a time, if they are limited: by number, or by the memory that each has set aside.
    fn most_sessions(&self) -> Option<u32> {
        let by_memory = self.memory.map(Memory::sessions);
        let by_memory = by_memory.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        self.sessions.map(NonZeroU32::get).into_iter().chain(by_memory).min()
    }
}

impl Member {
    fn new(share: &Share) -> Self {
        let sessions = share.most_sessions().map_or(0, |most| most as usize);
        Self {
            open: 0,
            rate: share.rate.map(|rate| Arc::new(Rate::new(rate))),
            memory: share.memory.map(|limit| Memory::new(limit, sessions)),
            lookups: Lookups::of_one(),
        }
    }

    fn set(&mut self, share: &Share) {
        let sessions = share.most_sessions().map_or(0, |most| most as usize);
        self.rate = rate_of(self.rate.as_ref(), share.rate);
        self.memory = Memory::of_limit(self.memory.as_ref(), share.memory, sessions);
    }

    fn rests(&self, now: Instant) -> bool {
        self.open == 0
            && self.lookups.rest()
            && self.rate.as_ref().is_none_or(|rate| rate.rests(now))
    }
}

impl<K: Ord + Copy> Drop for Place<K> {
    fn drop(&mut self) {
        let mut table = self.members.lock();
        table.open -= 1;
        if let Some(member) = table.members.get_mut(&self.key) {
            member.open -= 1;
            if member.rests(Instant::now()) {
                table.members.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(sessions: u32) -> Share {
        Share { sessions: NonZeroU32::new(sessions), ..Share::default() }
    }

    #[test]
    fn a_member_has_its_share_of_sessions_and_its_neighbour_has_one_too() {
        let members = Members::new(share(2));
        let places: Vec<_> = (0..3).map(|_| members.enter(1, None)).collect();
        assert_eq!(places.iter().flatten().count(), 2);
        assert!(members.enter(2, None).is_some());
        assert!(members.enter(3, Some(0)).is_none(), "its own limit is lower");
        drop(places);
        assert!(members.enter(1, None).is_some());
        assert!(members.lock().members.len() <= 1, "who has left is forgotten");
    }

    #[test]
    fn a_member_that_takes_all_it_gets_leaves_room_for_the_next() {
        let members = Members::sharing(8, Share::default());
        let take =
            |key: u8| -> Vec<_> { (0..100).map_while(|_| members.enter(key, None)).collect() };
        let (first, second) = (take(1), take(2));
        assert_eq!((first.len(), second.len()), (4, 2));
        assert!(members.enter(3, None).is_some());
        drop(second);
        assert!(members.enter(1, None).is_none(), "half is what one gets");
        drop(first);
        assert_eq!(take(3).len(), 4);
        let told = Members::sharing(8, share(8));
        let all: Vec<_> = (0..100).map_while(|_| told.enter(1, None)).collect();
        assert_eq!(all.len(), 8, "who is told a number has that");
    }

    #[test]
    fn a_members_memory_is_its_own_and_bounds_its_sessions() {
        let limit = Bytes::new(1 << 20);
        let members = Members::new(Share { memory: Some(limit), ..Share::default() });
        let places: Vec<_> = (0..100).map_while(|_| members.enter(1, None)).collect();
        assert_eq!(places.len(), Memory::sessions(limit));
        let (one, other) = (&places[0], members.enter(2, None).unwrap());
        let all_of_one = one.memory.as_ref().unwrap();
        let _held = all_of_one.hold(all_of_one.free());
        assert!(places[1].memory.as_ref().unwrap().is_short());
        assert!(!other.memory.as_ref().unwrap().is_short());
    }

    #[test]
    fn a_rate_outlives_the_sessions_that_used_it_up() {
        let rate = Bandwidth::from_bps(8).unwrap();
        let members = Members::new(Share { rate: Some(rate), ..Share::default() });
        let place = members.enter(1, None).unwrap();
        let now = Instant::now();
        let first = place.rate.as_ref().unwrap().book(now, 1000);
        drop(place);
        let place = members.enter(1, None).unwrap();
        let second = place.rate.as_ref().unwrap().book(now, 1);
        assert_eq!(first, now);
        assert!(second >= now + Duration::from_secs(999), "{:?}", second - now);
    }

    #[test]
    fn another_share_binds_open_sessions_rates_and_no_more_than_new_sessions() {
        let rate = |bps| Bandwidth::from_bps(bps).ok();
        let members = Members::new(Share { rate: rate(8), ..share(3) });
        let open: Vec<_> = (0..3).map(|_| members.enter(1, None).unwrap()).collect();
        members.set(None, Share { rate: rate(8_000), ..share(2) });
        assert!(members.enter(1, None).is_none(), "it has more than its share");
        let (now, held) = (Instant::now(), open[0].rate.as_ref().unwrap());
        held.book(now, 1000);
        let due = held.book(now, 1) - now;
        assert!(due < Duration::from_secs(2), "{due:?}");
        drop(open);
        let taken: Vec<_> = (0..9).map_while(|_| members.enter(1, None)).collect();
        assert_eq!(taken.len(), 2);
        // A rate that is gone holds up nobody whom it bound.
        members.set(Some(8), Share::default());
        let held = taken[0].rate.as_ref().unwrap();
        held.book(Instant::now(), 1_000_000);
        assert!(held.rests(Instant::now()));
        let others: Vec<_> = (0..9).map_while(|_| members.enter(2, None)).collect();
        assert_eq!(others.len(), 3, "half of what is free");
    }

    #[test]
    fn bookings_are_served_in_turn_and_what_did_not_move_is_given_back() {
        let rate = Rate::new(Bandwidth::from_bps(8_000).unwrap());
        let start = rate.lock().until;
        // 1,000 bytes a second: the burst holds 100 bytes, each later hundred comes a tenth of a second later.
        let dues: Vec<_> = (0..4).map(|_| rate.book(start, 100) - start).collect();
        assert_eq!(dues, [0, 0, 100, 200].map(Duration::from_millis));
        rate.give_back(200);
        assert_eq!(rate.book(start, 100) - start, Duration::from_millis(100));
    }
}
