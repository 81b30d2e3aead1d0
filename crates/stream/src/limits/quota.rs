//! Quotas of each gateway, grant and source and of all together: sessions, bytes a second, (by
//! `memory`) bytes held, and (by `resolver`) names looked up.
//!
//! A rate is kept by a virtual clock (the generic cell rate algorithm, ITU-T I.371): a session that
//! is about to move bytes books them, and may move them when the clock, which runs ahead by what is
//! booked, has reached them. Bookings are small and are served in the order in which they were
//! made, so sessions that share a rate get equal parts of it. They are kept in bytes, so that a
//! changed rate applies to waiting bookings already. A session without a rate limit has no
//! [`Meter`] and pays nothing.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};
use tradewind_units::share::has_share;
use tradewind_units::{Bandwidth, Bytes};

use crate::limits::memory::Memory;
use crate::resolver::Lookups;
use crate::session::buffer_pool::BUFFER_BYTES;
use tradewind_config::Share;

/// The burst allowed after a pause, as time at the full rate. Chosen: short exchanges do not wait,
/// and no second exceeds the rate by more than a tenth.
const BURST: Duration = Duration::from_millis(100);

/// The size of a booking, as time at the full rate; within [`MIN_BOOKING`] and what one read
/// takes. Chosen: two turns of a hundred sessions that share a rate lie two seconds apart.
const BOOKING: Duration = Duration::from_millis(20);
const MIN_BOOKING: usize = 2048;

/// Interval at which a waiting session checks for a changed rate. Chosen: a rate that is raised
/// takes effect within a second.
const LOOK: Duration = Duration::from_secs(1);

/// A rate that sessions share.
#[derive(Debug)]
pub struct Rate(Mutex<Booked>);

/// Bookings, in bytes, so that a changed rate applies to all that wait.
#[derive(Debug)]
struct Booked {
    /// Absent once the limit was removed: its sessions move freely.
    rate: Option<Bandwidth>,
    /// Bytes that were ever booked: where the next booking starts.
    end: u64,
    /// Bytes that might have moved by the time of `at`, by the rate since then.
    passed: u64,
    at: Instant,
    /// Position at which the first booking started that is bound by a rate without a break.
    bound_from: u64,
}

impl Rate {
    pub(crate) fn new(rate: Bandwidth) -> Self {
        let (rate, at) = (Some(rate), Instant::now());
        Self(Mutex::new(Booked { rate, end: 0, passed: 0, at, bound_from: 0 }))
    }

    /// Changes the rate; as many bytes stay booked before each session as there were.
    fn set(&self, now: Instant, rate: Option<Bandwidth>) {
        let mut booked = self.lock();
        booked.advance(now);
        if booked.rate.is_none() {
            booked.bound_from = booked.end;
        }
        booked.rate = rate;
    }

    /// Books `bytes`, and returns their start among all bookings.
    fn book(&self, now: Instant, bytes: usize) -> u64 {
        let mut booked = self.lock();
        if booked.due(booked.end) <= now {
            booked.advance(now);
        }
        let start = booked.end;
        booked.end = booked.end.saturating_add(bytes as u64);
        start
    }

    /// Returns when the bytes booked from `start` on may move, as far as is known `now`.
    fn due(&self, now: Instant, start: u64) -> Instant {
        let due = self.lock().due(start).checked_sub(BURST);
        due.map_or(now, |due| due.max(now))
    }

    /// Gives back the bytes booked from `start` on that did not move.
    fn give_back(&self, start: u64, bytes: usize) {
        let mut booked = self.lock();
        // Bytes booked without a limit delayed none of the later bookings.
        if start >= booked.bound_from {
            booked.end = booked.end.saturating_sub(bytes as u64);
        }
    }

    /// Returns true if nothing is booked any more, so that dropping it gives nothing away.
    fn is_idle(&self, now: Instant) -> bool {
        let booked = self.lock();
        booked.due(booked.end) <= now
    }

    fn booking(&self) -> usize {
        let volume = self.lock().rate.map(|rate| rate.volume_in(BOOKING).as_u64());
        let bytes = volume.and_then(|volume| usize::try_from(volume).ok()).unwrap_or(usize::MAX);
        bytes.clamp(MIN_BOOKING, BUFFER_BYTES)
    }

    fn lock(&self) -> MutexGuard<'_, Booked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Booked {
    /// Returns when everything before `start` has moved.
    fn due(&self, start: u64) -> Instant {
        let before = Bytes::new(start.saturating_sub(self.passed));
        let span = self.rate.map_or(Duration::ZERO, |rate| rate.time_for(before));
        self.at + span
    }

    /// Counts the bytes that might have moved by `now`. A pause accumulates no credit.
    fn advance(&mut self, now: Instant) {
        let span = now.saturating_duration_since(self.at);
        let moved = self.rate.map_or(u64::MAX, |rate| rate.volume_in(span).as_u64());
        self.passed = self.passed.saturating_add(moved).min(self.end);
        self.at = self.at.max(now);
    }
}

/// Returns the rate that replaces `held`: the same object if there was one, so that open sessions
/// are bound by `rate` as well.
pub(crate) fn rate_of(held: Option<&Arc<Rate>>, rate: Option<Bandwidth>) -> Option<Arc<Rate>> {
    match held {
        Some(held) => {
            held.set(Instant::now(), rate);
            Some(Arc::clone(held))
        }
        None => rate.map(|rate| Arc::new(Rate::new(rate))),
    }
}

/// The bookings of one direction at all rates that bind it.
#[derive(Debug)]
pub struct Meter {
    /// The rates, with the starts of its booking.
    rates: Vec<(Arc<Rate>, u64)>,
    /// The timer until the booking may move, or rates are checked again.
    wait: Option<Pin<Box<Sleep>>>,
    booked: usize,
}

impl Meter {
    /// Creates a meter of `rates`; `None` if there are none. Bytes `moved` before are booked late.
    pub fn through(rates: &[Arc<Rate>], moved: u64) -> Option<Self> {
        if rates.is_empty() {
            return None;
        }
        let moved = usize::try_from(moved).unwrap_or(usize::MAX);
        let now = Instant::now();
        let rates = rates.iter().map(|rate| (Arc::clone(rate), rate.book(now, moved))).collect();
        Some(Self { rates, wait: None, booked: 0 })
    }

    /// Ready with the number of bytes that may move now; `on_wait` is called once for each wait.
    pub fn poll_booked(&mut self, cx: &mut Context<'_>, on_wait: impl FnOnce()) -> Poll<usize> {
        if self.booked == 0 {
            let now = Instant::now();
            // Rates may have changed since the last one.
            let booking = self.rates.iter().map(|(rate, _)| rate.booking()).min();
            self.booked = booking.unwrap_or(BUFFER_BYTES);
            for (rate, start) in &mut self.rates {
                *start = rate.book(now, self.booked);
            }
            if let Some(until) = self.wait_until(now) {
                on_wait();
                self.wait = Some(Box::pin(tokio::time::sleep_until(until)));
            }
        }
        while let Some(wait) = &mut self.wait {
            ready!(wait.as_mut().poll(cx));
            match self.wait_until(Instant::now()) {
                Some(until) => self.wait.iter_mut().for_each(|wait| wait.as_mut().reset(until)),
                None => self.wait = None,
            }
        }
        Poll::Ready(self.booked)
    }

    /// Returns until when to wait, if the booking may not move `now`.
    fn wait_until(&self, now: Instant) -> Option<Instant> {
        let due = self.rates.iter().map(|(rate, start)| rate.due(now, *start)).max();
        due.filter(|due| *due > now).map(|due| due.min(now + LOOK))
    }

    /// Ends the booking, of which `moved` was used.
    pub fn settle(&mut self, moved: usize) {
        let unused = std::mem::take(&mut self.booked).saturating_sub(moved);
        if unused > 0 {
            self.rates.iter().for_each(|(rate, start)| rate.give_back(*start, unused));
        }
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        self.settle(0);
    }
}

/// The members that have an equal share each: the gateways, the grants or the sources of sessions.
#[derive(Debug)]
pub struct Members<K: Ord> {
    table: Mutex<Table<K>>,
}

#[derive(Debug)]
struct Table<K> {
    share: Share,
    /// Most sessions of all members, where each gets its share of them by a dynamic threshold.
    most_in_all: Option<usize>,
    members: BTreeMap<K, Member>,
    /// Sessions of all members.
    open: usize,
    /// The number of members at which those that are idle are dropped.
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
pub struct Slot<K: Ord + Copy> {
    members: Arc<Members<K>>,
    key: K,
    /// The rate that the member's sessions share.
    pub(crate) rate: Option<Arc<Rate>>,
    /// The memory that they share.
    pub(crate) memory: Option<Arc<Memory>>,
    /// The names that they look up.
    pub lookups: Lookups,
}

impl<K: Ord + Copy> Members<K> {
    /// Creates members that get `share` each.
    pub fn new(share: Share) -> Arc<Self> {
        Self::within(None, share)
    }

    /// Creates members that get `share` each, and of `most_in_all` sessions by a dynamic threshold
    /// unless `share` says how many: a member with many leaves as many to others.
    pub fn sharing(most_in_all: usize, share: Share) -> Arc<Self> {
        Self::within(share.sessions.is_none().then_some(most_in_all), share)
    }

    fn within(most_in_all: Option<usize>, share: Share) -> Arc<Self> {
        /// Chosen: a table of some 100 kB is not worth the sweep.
        const SWEEP_AT: usize = 1024;
        let members = BTreeMap::new();
        let table = Table { share, most_in_all, members, open: 0, sweep_at: SWEEP_AT };
        Arc::new(Self { table: Mutex::new(table) })
    }

    /// Changes the members' share, where they share `most_in_all` sessions as [`Members::sharing`]
    /// says. A member above its new share keeps its sessions, and gets no more.
    pub fn set(&self, most_in_all: Option<usize>, share: Share) {
        let mut table = self.lock();
        table.most_in_all = most_in_all.filter(|_| share.sessions.is_none());
        table.share = share;
        table.members.values_mut().for_each(|member| member.set(&share));
    }

    /// Counts one more session of `key`; `None` if it has its share of them, or `most` of its own.
    pub fn enter(self: &Arc<Self>, key: K, most: Option<u32>) -> Option<Slot<K>> {
        let mut table = self.lock();
        table.sweep();
        let (open, share, most_in_all) = (table.open, table.share, table.most_in_all);
        let member = table.members.entry(key).or_insert_with(|| Member::new(&share));
        let most = most.into_iter().chain(most_sessions(&share)).min();
        let has_share =
            |most| has_share(usize::try_from(member.open).unwrap_or(usize::MAX), open, most);
        if most.is_some_and(|most| member.open >= most) || !most_in_all.is_none_or(has_share) {
            return None;
        }
        member.open += 1;
        let place = Slot {
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
    /// Drops members without a session, a booking and a lookup: a rate that was used up outlives
    /// its sessions, so that returning does not renew it.
    fn sweep(&mut self) {
        if self.members.len() >= self.sweep_at {
            let now = Instant::now();
            self.members.retain(|_, member| !member.is_idle(now));
            self.sweep_at = (2 * self.members.len()).max(self.sweep_at);
        }
    }
}

/// Returns the limit of concurrent sessions, if there is one: by number, or by the memory that each
/// has set aside.
fn most_sessions(share: &Share) -> Option<u32> {
    let by_memory = share.memory.map(Memory::sessions);
    let by_memory = by_memory.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
    share.sessions.map(NonZeroU32::get).into_iter().chain(by_memory).min()
}

impl Member {
    fn new(share: &Share) -> Self {
        let sessions = most_sessions(share).map_or(0, |most| most as usize);
        Self {
            open: 0,
            rate: share.rate.map(|rate| Arc::new(Rate::new(rate))),
            memory: share.memory.map(|limit| Memory::new(limit, sessions)),
            lookups: Lookups::of_one(),
        }
    }

    fn set(&mut self, share: &Share) {
        let sessions = most_sessions(share).map_or(0, |most| most as usize);
        self.rate = rate_of(self.rate.as_ref(), share.rate);
        self.memory = Memory::of_limit(self.memory.as_ref(), share.memory, sessions);
    }

    fn is_idle(&self, now: Instant) -> bool {
        self.open == 0
            && self.lookups.rest()
            && self.rate.as_ref().is_none_or(|rate| rate.is_idle(now))
    }
}

impl<K: Ord + Copy> Drop for Slot<K> {
    fn drop(&mut self) {
        let mut table = self.members.lock();
        table.open -= 1;
        if let Some(member) = table.members.get_mut(&self.key) {
            member.open -= 1;
            if member.is_idle(Instant::now()) {
                table.members.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::pin::pin;

    use tokio::time::timeout;

    use super::*;
    use crate::connection::tests::runtime;

    impl Rate {
        /// Books `bytes`, and returns when they may move.
        fn due_of(&self, now: Instant, bytes: usize) -> Instant {
            let start = self.book(now, bytes);
            self.due(now, start)
        }
    }

    fn rate(bps: u64) -> Rate {
        Rate::new(Bandwidth::from_bps(bps).unwrap())
    }

    fn share(sessions: u32) -> Share {
        Share { sessions: NonZeroU32::new(sessions), ..Share::default() }
    }

    #[test]
    fn members_have_separate_shares() {
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
    fn greedy_member_leaves_capacity() {
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
        let fixed = Members::sharing(8, share(8));
        let all: Vec<_> = (0..100).map_while(|_| fixed.enter(1, None)).collect();
        assert_eq!(all.len(), 8, "who is told a number has that");
    }

    #[test]
    fn member_memory_bounds_its_sessions() {
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
    fn rate_outlives_its_sessions() {
        let rate = Bandwidth::from_bps(8).unwrap();
        let members = Members::new(Share { rate: Some(rate), ..Share::default() });
        let place = members.enter(1, None).unwrap();
        let now = Instant::now();
        let first = place.rate.as_ref().unwrap().due_of(now, 1000);
        drop(place);
        let place = members.enter(1, None).unwrap();
        let second = place.rate.as_ref().unwrap().due_of(now, 1);
        assert_eq!(first, now);
        assert!(second >= now + Duration::from_secs(999), "{:?}", second - now);
    }

    #[test]
    fn changed_share_binds_rates_and_new_sessions() {
        let rate = |bps| Bandwidth::from_bps(bps).ok();
        let members = Members::new(Share { rate: rate(8), ..share(3) });
        let open: Vec<_> = (0..3).map(|_| members.enter(1, None).unwrap()).collect();
        members.set(None, Share { rate: rate(8_000), ..share(2) });
        assert!(members.enter(1, None).is_none(), "it has more than its share");
        let (now, held) = (Instant::now(), open[0].rate.as_ref().unwrap());
        held.book(now, 1000);
        let due = held.due_of(now, 1) - now;
        assert!(due < Duration::from_secs(2), "{due:?}");
        drop(open);
        let admitted: Vec<_> = (0..9).map_while(|_| members.enter(1, None)).collect();
        assert_eq!(admitted.len(), 2);
        // A removed rate delays none of its sessions.
        members.set(Some(8), Share::default());
        let held = admitted[0].rate.as_ref().unwrap();
        held.book(Instant::now(), 1_000_000);
        assert!(held.is_idle(Instant::now()));
        let others: Vec<_> = (0..9).map_while(|_| members.enter(2, None)).collect();
        assert_eq!(others.len(), 3, "half of what is free");
    }

    #[test]
    fn bookings_are_fair_and_refunded() {
        let rate = rate(8_000);
        let now = rate.lock().at;
        // 1,000 bytes a second: the burst holds 100 bytes, each later hundred comes a tenth of a
        // second later.
        let dues: Vec<_> = (0..4).map(|_| rate.due_of(now, 100) - now).collect();
        assert_eq!(dues, [0, 0, 100, 200].map(Duration::from_millis));
        rate.give_back(200, 200);
        assert_eq!(rate.due_of(now, 100) - now, Duration::from_millis(100));
        let rested = now + Duration::from_secs(60);
        assert!(rate.is_idle(rested));
        let dues: Vec<_> = (0..3).map(|_| rate.due_of(rested, 100) - rested).collect();
        assert_eq!(dues, [0, 0, 100].map(Duration::from_millis), "a rest saves nothing up");
    }

    #[test]
    fn changed_rate_moves_bookings() {
        let rate = rate(8_000);
        let now = rate.lock().at;
        // A second of this rate each.
        let starts = [(); 3].map(|()| rate.book(now, 1_000));
        let dues = |now| starts.map(|start| rate.due(now, start) - now);
        let later = now + Duration::from_millis(500);
        assert_eq!(dues(later), [0, 400, 1_400].map(Duration::from_millis));
        rate.set(later, Bandwidth::from_bps(80_000).ok());
        assert_eq!(dues(later), [0, 0, 50].map(Duration::from_millis), "ten times as fast");
        rate.set(later, Bandwidth::from_bps(800).ok());
        assert_eq!(dues(later), [0, 4_900, 14_900].map(Duration::from_millis), "as slow again");
        rate.set(later, None);
        assert_eq!(dues(later), [Duration::ZERO; 3]);
    }

    #[test]
    fn refund_after_rate_cut_is_neutral() {
        let (rate, low) = (rate(8_000_000), Bandwidth::from_bps(8_000).ok());
        let now = rate.lock().at;
        let start = rate.book(now, 10_000);
        for _ in 0..2 {
            rate.book(now, 10_000);
        }
        rate.set(now, low);
        rate.give_back(start, 10_000);
        assert_eq!(rate.due_of(now, 1) - now, Duration::from_millis(19_900));
        // Nor do bytes that were booked without a limit.
        rate.set(now, None);
        let free = rate.book(now, 10_000);
        rate.set(now, low);
        rate.book(now, 1_000);
        rate.give_back(free, 10_000);
        assert_eq!(rate.due_of(now, 1) - now, Duration::from_millis(900));
    }

    #[test]
    fn raised_rate_speeds_up_waiters() {
        let rate = Arc::new(rate(8));
        runtime().block_on(async {
            let mut meter = Meter::through(&[Arc::clone(&rate)], 1_000_000).unwrap();
            let mut waits = 0;
            let mut moves = pin!(poll_fn(|cx| meter.poll_booked(cx, || waits += 1)));
            assert!(timeout(Duration::ZERO, &mut moves).await.is_err(), "for eleven days");
            rate.set(Instant::now(), Bandwidth::from_bps(8_000_000_000).ok());
            assert!(timeout(Duration::from_secs(60), moves).await.is_ok());
            assert_eq!(waits, 1);
        });
    }
}
