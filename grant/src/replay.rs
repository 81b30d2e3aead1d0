//! Which headers were seen before, within the time in which a header is accepted at all.
//!
//! A header is accepted within [`SKEW`] of the reader's clock, so it needs to be remembered only until
//! its own time is that far past. Nonces are kept in generations by the header's time of issue: a
//! replay carries the same time and so falls into the same generation, and a generation is dropped
//! whole. What was dropped is never accepted again: where the clock was set back by more than [`SKEW`], nothing is that may
//! have been issued before.
//!
//! What one gateway sends must not shut the others out, so a gateway gets a share of the table by a
//! dynamic threshold (`units::share`).
//!
//! Of a nonce's 128 bits the first 64 are kept. Two honest headers of one generation clash once in
//! some 10^13 (a million remembered), and a clash only refuses a header, it never lets one pass.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::share::has_share;
use tradewind_units::{Duration, Timestamp};

use crate::wire::{Reader, unix_ms};
use crate::{GrantError, Nonce, PublicIdentity};

/// Tolerated difference between the gateway's and a relay's clock. Chosen: many
/// times what hosts with a time service are off, and short enough to remember every header meanwhile.
pub const SKEW: Duration = Duration::from_secs(30);

/// Headers that a relay remembers. Chosen: 2^22 take about 80 MB when full; the half that one gateway
/// gets lasts for 23,000 sessions a second, above what one process accepts.
pub const REPLAY_LIMIT: usize = 1 << 22;

const SKEW_MS: u64 = SKEW.as_secs() * 1000;
/// Span of one generation: at any time the accepted span touches at most three.
const GENERATION_MS: u64 = SKEW_MS;

/// By gateway, since a header carries its gateway's proof and is never another's.
type Generation = BTreeMap<PublicIdentity, BTreeSet<u64>>;

/// The headers seen lately, at most a fixed number.
#[derive(Debug)]
pub struct ReplayTable {
    generations: BTreeMap<u64, Generation>,
    /// Every generation below this one was dropped.
    oldest: u64,
    /// Headers issued before this were perhaps seen by a table before this one.
    begin_ms: u64,
    /// The clock when it was last read.
    clock_ms: u64,
    held: usize,
    limit: usize,
}

impl ReplayTable {
    /// An empty table for at most `limit` headers.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (generations, oldest, begin_ms, clock_ms) = (BTreeMap::new(), 0, 0, 0);
        Self { generations, oldest, begin_ms, clock_ms, held: 0, limit }
    }

    /// Refuses headers issued before `begin`, when this table was not there yet.
    pub fn refuse_issued_before(&mut self, begin: Timestamp) {
        (self.begin_ms, self.clock_ms) = (unix_ms(begin), unix_ms(begin));
    }

    /// How many headers are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held
    }

    /// Whether none is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Refuses a header of `gateway` that is too old, too new, seen before, or one too many; else
    /// remembers it.
    ///
    /// Call it only for headers whose tags were checked: an unproven one must not fill the table.
    ///
    /// # Errors
    /// [`GrantError::Skew`], [`GrantError::BeforeStart`], [`GrantError::Replayed`] or [`GrantError::ReplayTableFull`].
    pub fn admit(
        &mut self,
        now: Timestamp,
        gateway: &PublicIdentity,
        issued_at: Timestamp,
        nonce: &Nonce,
    ) -> Result<(), GrantError> {
        let (now_ms, issued_ms) = (unix_ms(now), unix_ms(issued_at));
        self.follow_clock(now_ms);
        self.forget_before(now_ms.saturating_sub(SKEW_MS) / GENERATION_MS);
        let generation = issued_ms / GENERATION_MS;
        if issued_ms.abs_diff(now_ms) > SKEW_MS || generation < self.oldest {
            return Err(GrantError::Skew { issued_ms, now_ms, tolerated_s: SKEW.as_secs() });
        }
        if issued_ms < self.begin_ms {
            return Err(GrantError::BeforeStart { issued_ms, begin_ms: self.begin_ms });
        }
        let key = nonce.leading_bits();
        let theirs = |generation: &Generation| generation.get(gateway).map_or(0, BTreeSet::len);
        let held_for_gateway: usize = self.generations.values().map(theirs).sum();
        let seen = self.generations.entry(generation).or_default().entry(*gateway).or_default();
        if seen.contains(&key) {
            return Err(GrantError::Replayed(*nonce));
        }
        if !has_share(held_for_gateway, self.held, self.limit) {
            return Err(GrantError::ReplayTableFull(held_for_gateway));
        }
        seen.insert(key);
        self.held += 1;
        Ok(())
    }

    /// The table as another process takes it over, see [`ReplayTable::from_bytes`].
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + 8 * self.held);
        out.extend_from_slice(&self.begin_ms.to_be_bytes());
        out.extend_from_slice(&self.oldest.to_be_bytes());
        for (number, generation) in &self.generations {
            for (gateway, seen) in generation {
                out.extend_from_slice(&number.to_be_bytes());
                out.extend_from_slice(gateway.as_bytes());
                out.extend_from_slice(&(seen.len() as u64).to_be_bytes());
                seen.iter().for_each(|key| out.extend_from_slice(&key.to_be_bytes()));
            }
        }
        out
    }

    /// The table that [`ReplayTable::to_bytes`] wrote, for at most `limit` headers from now on.
    ///
    /// # Errors
    /// [`GrantError::Malformed`] when these are not its bytes.
    pub fn from_bytes(limit: usize, bytes: &[u8]) -> Result<Self, GrantError> {
        let what = "replay table";
        let mut reader = Reader::new(bytes);
        let mut table = Self::new(limit);
        table.begin_ms = reader.u64(what)?;
        table.oldest = reader.u64(what)?;
        while reader.end(what).is_err() {
            let generation = table.generations.entry(reader.u64(what)?).or_default();
            let gateway = PublicIdentity::from_bytes(reader.array(what)?);
            let seen = generation.entry(gateway).or_default();
            for _ in 0..reader.u64(what)? {
                table.held += usize::from(seen.insert(reader.u64(what)?));
            }
        }
        Ok(table)
    }

    /// Begins anew where the clock was ahead: by that, what is issued now would be too old until it is there again.
    fn follow_clock(&mut self, now_ms: u64) {
        if now_ms + SKEW_MS < self.clock_ms {
            self.generations.clear();
            (self.oldest, self.held) = (0, 0);
            // Those whose clocks are ahead by what is tolerated have issued until then what was seen.
            self.begin_ms = now_ms + SKEW_MS;
        }
        self.clock_ms = now_ms;
    }

    fn forget_before(&mut self, oldest: u64) {
        if oldest <= self.oldest {
            return;
        }
        self.oldest = oldest;
        self.generations = self.generations.split_off(&oldest);
        let sets = self.generations.values().flat_map(BTreeMap::values);
        self.held = sets.map(BTreeSet::len).sum();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_nanos(seconds * 1_000_000_000)
    }

    fn gateway(number: u8) -> PublicIdentity {
        PublicIdentity::from_bytes([number; 32])
    }

    fn nonce(number: u64) -> Nonce {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&number.to_be_bytes());
        Nonce::from_entropy(bytes)
    }

    #[test]
    fn a_header_is_admitted_once_however_long_one_waits() {
        let mut table = ReplayTable::new(100);
        table.admit(at(1000), &gateway(1), at(1000), &nonce(1)).unwrap();
        for later in [1000, 1010, 1029, 1030] {
            let refused = table.admit(at(later), &gateway(1), at(1000), &nonce(1)).unwrap_err();
            assert_eq!(refused, GrantError::Replayed(nonce(1)), "{later}");
        }
        let refused = table.admit(at(1031), &gateway(1), at(1000), &nonce(1)).unwrap_err();
        assert!(matches!(refused, GrantError::Skew { .. }));
    }

    #[test]
    fn a_header_from_the_future_is_remembered_until_its_time_is_past() {
        let mut table = ReplayTable::new(100);
        table.admit(at(1000), &gateway(1), at(1030), &nonce(1)).unwrap();
        for later in 1001..=1060 {
            assert!(table.admit(at(later), &gateway(1), at(1030), &nonce(1)).is_err(), "{later}");
        }
    }

    #[test]
    fn what_a_table_before_this_one_may_have_seen_is_refused() {
        let mut table = ReplayTable::new(100);
        table.refuse_issued_before(at(1000));
        let refused = table.admit(at(1001), &gateway(1), at(999), &nonce(1)).unwrap_err();
        assert_eq!(refused, GrantError::BeforeStart { issued_ms: 999_000, begin_ms: 1_000_000 });
        table.admit(at(1001), &gateway(1), at(1000), &nonce(1)).unwrap();
    }

    #[test]
    fn a_clock_set_back_opens_no_door_to_what_was_forgotten() {
        let mut table = ReplayTable::new(100);
        table.admit(at(1000), &gateway(1), at(1000), &nonce(1)).unwrap();
        table.admit(at(2000), &gateway(1), at(2000), &nonce(2)).unwrap();
        assert!(table.admit(at(1000), &gateway(1), at(1000), &nonce(1)).is_err());
    }

    #[test]
    fn a_clock_that_was_ahead_and_is_set_right_costs_half_a_minute_and_not_what_it_was_ahead() {
        let opened_at = |table: &mut ReplayTable| {
            let fresh = |second: &u64| {
                table.admit(at(*second), &gateway(1), at(*second), &nonce(*second)).is_ok()
            };
            (1000..2000).find(fresh)
        };
        // Ahead for a moment, and ahead when it began.
        let mut table = ReplayTable::new(100);
        table.admit(at(990), &gateway(1), at(1010), &nonce(1)).unwrap();
        table.admit(at(5000), &gateway(1), at(5000), &nonce(2)).unwrap();
        assert_eq!(opened_at(&mut table), Some(1030));
        assert!(table.admit(at(1030), &gateway(1), at(1010), &nonce(1)).is_err(), "a replay");
        let mut table = ReplayTable::new(100);
        table.refuse_issued_before(at(5000));
        assert_eq!(opened_at(&mut table), Some(1030));
        // What is set back by less costs nothing.
        table.admit(at(1050), &gateway(1), at(1050), &nonce(3)).unwrap();
        table.admit(at(1021), &gateway(1), at(1031), &nonce(4)).unwrap();
    }

    #[test]
    fn the_table_is_bounded_and_forgets_with_time() {
        let mut table = ReplayTable::new(100);
        for number in 0..50 {
            table.admit(at(1000), &gateway(1), at(1000), &nonce(number)).unwrap();
        }
        let refused = table.admit(at(1000), &gateway(1), at(1000), &nonce(99)).unwrap_err();
        assert_eq!(refused, GrantError::ReplayTableFull(50));
        assert_eq!(table.len(), 50);
        table.admit(at(1100), &gateway(1), at(1100), &nonce(99)).unwrap();
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn gateways_that_take_all_they_get_leave_room_for_the_next() {
        let mut table = ReplayTable::new(1200);
        let mut taken = [0; 5];
        for number in 0..1200 {
            for (index, taken) in taken.iter_mut().enumerate() {
                let gateway = gateway(index as u8 + 1);
                if table.admit(at(1000), &gateway, at(1000), &nonce(number)).is_ok() {
                    *taken += 1;
                }
            }
        }
        assert_eq!(taken, [200; 5], "a sixth of the table each");
        for number in 0..100 {
            table.admit(at(1000), &gateway(9), at(1000), &nonce(number)).unwrap();
        }
    }

    #[test]
    fn a_table_that_was_handed_over_refuses_and_admits_as_before() {
        let mut table = ReplayTable::new(100);
        table.refuse_issued_before(at(900));
        for number in 0..20 {
            let (gateway, issued) = (gateway(number as u8 % 3), at(1000 + number));
            table.admit(at(1010), &gateway, issued, &nonce(number)).unwrap();
        }
        let bytes = table.to_bytes();
        let mut other = ReplayTable::from_bytes(100, &bytes).unwrap();
        assert_eq!((other.len(), other.to_bytes()), (20, bytes.clone()));
        for number in 0..20 {
            let (gateway, issued) = (gateway(number as u8 % 3), at(1000 + number));
            let refused = other.admit(at(1010), &gateway, issued, &nonce(number)).unwrap_err();
            assert_eq!(refused, GrantError::Replayed(nonce(number)));
        }
        let old = other.admit(at(910), &gateway(1), at(899), &nonce(50)).unwrap_err();
        assert!(matches!(old, GrantError::BeforeStart { .. } | GrantError::Skew { .. }), "{old}");
        // Issued before it was handed over, and on its way meanwhile.
        other.admit(at(1011), &gateway(1), at(1009), &nonce(50)).unwrap();
        for length in 0..bytes.len() {
            // What ends between two gateways is whole.
            let _ = ReplayTable::from_bytes(100, &bytes[..length]);
        }
        assert!(ReplayTable::from_bytes(100, &bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn gateways_do_not_spend_each_others_nonces() {
        let mut table = ReplayTable::new(100);
        table.admit(at(1000), &gateway(1), at(1000), &nonce(1)).unwrap();
        table.admit(at(1000), &gateway(2), at(1000), &nonce(1)).unwrap();
        assert!(table.admit(at(1000), &gateway(2), at(1000), &nonce(1)).is_err());
    }
}
