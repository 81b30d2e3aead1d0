//! The table of headers seen before, within the time in which a header is accepted at all.
//!
//! A header is accepted within [`SKEW`] of the reader's clock, so it needs to be remembered only
//! until its own time is that far in the past. Nonces are stored in generations by the header's
//! time of issue: a replay has the same time and so falls into the same generation, and a
//! generation is dropped whole. A dropped header is never accepted again: where the clock was set
//! back by more than [`SKEW`], all headers that may have been issued before are refused.
//!
//! One gateway's headers must not shut the others out, so a gateway gets a share of the table by a
//! dynamic threshold (`units::share`).
//!
//! Of a nonce's 128 bits the first 64 are stored. Two honest headers of one generation collide once
//! in some 10^13 (a million remembered), and a collision only refuses a header; it never accepts
//! one.

use std::collections::{BTreeMap, BTreeSet};

use tradewind_units::share::has_share;
use tradewind_units::{Duration, Timestamp};

use crate::wire::{Reader, unix_ms};
use crate::{GrantError, Nonce, PublicIdentity};

/// Tolerated difference between the gateway's and a relay's clock. Chosen: many times the error of
/// hosts with a time service, and short enough to remember every header meanwhile.
pub const SKEW: Duration = Duration::from_secs(30);

/// Headers that a relay remembers. Chosen: 2^22 take about 80 MB when full; the half that one
/// gateway gets lasts for 23,000 sessions a second, above what one process accepts.
pub const REPLAY_LIMIT: usize = 1 << 22;

const SKEW_MS: u64 = SKEW.as_secs() * 1000;
/// Length of one generation: at any time the accepted span touches at most three.
const GENERATION_MS: u64 = SKEW_MS;

/// Nonces by gateway, since a header carries its gateway's proof and is never another's.
type Generation = BTreeMap<PublicIdentity, BTreeSet<u64>>;

/// The headers seen recently, at most a fixed number.
#[derive(Debug)]
pub struct ReplayTable {
    generations: BTreeMap<u64, Generation>,
    /// All generations below this one have been dropped.
    oldest: u64,
    /// Headers issued before this may have been seen by an earlier table.
    begin_ms: u64,
    /// The clock at the last call.
    clock_ms: u64,
    held: usize,
    limit: usize,
}

impl ReplayTable {
    /// Creates an empty table for at most `limit` headers.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        let (generations, oldest, begin_ms, clock_ms) = (BTreeMap::new(), 0, 0, 0);
        Self { generations, oldest, begin_ms, clock_ms, held: 0, limit }
    }

    /// Refuses headers issued before `begin`, when this table did not exist yet.
    pub fn refuse_issued_before(&mut self, begin: Timestamp) {
        (self.begin_ms, self.clock_ms) = (unix_ms(begin), unix_ms(begin));
    }

    /// Returns the number of headers remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.held
    }

    /// Returns whether no header is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.held == 0
    }

    /// Checks a header of `gateway`, and remembers it. Headers that are too old, too new, seen
    /// before, or one too many are refused.
    ///
    /// Call it only for headers whose tags were checked: an unproven one must not fill the table.
    ///
    /// # Errors
    /// [`GrantError::Skew`], [`GrantError::BeforeStart`], [`GrantError::Replayed`] or
    /// [`GrantError::ReplayTableFull`].
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

    /// Serializes the table for another process, see [`ReplayTable::from_bytes`].
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

    /// Restores a table from [`ReplayTable::to_bytes`], for at most `limit` headers from now on.
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

    /// Empties the table when the clock is set back by more than [`SKEW`]: otherwise all new
    /// headers would be too old until the clock has caught up.
    fn follow_clock(&mut self, now_ms: u64) {
        if now_ms + SKEW_MS < self.clock_ms {
            self.generations.clear();
            (self.oldest, self.held) = (0, 0);
            // Gateways whose clocks are ahead within the tolerance may have issued headers up to
            // then, which were seen.
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
    fn replayed_header_is_refused_at_any_time() {
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
    fn future_header_is_remembered_until_its_time() {
        let mut table = ReplayTable::new(100);
        table.admit(at(1000), &gateway(1), at(1030), &nonce(1)).unwrap();
        for later in 1001..=1060 {
            assert!(table.admit(at(later), &gateway(1), at(1030), &nonce(1)).is_err(), "{later}");
        }
    }

    #[test]
    fn headers_before_the_tables_begin_are_refused() {
        let mut table = ReplayTable::new(100);
        table.refuse_issued_before(at(1000));
        let refused = table.admit(at(1001), &gateway(1), at(999), &nonce(1)).unwrap_err();
        assert_eq!(refused, GrantError::BeforeStart { issued_ms: 999_000, begin_ms: 1_000_000 });
        table.admit(at(1001), &gateway(1), at(1000), &nonce(1)).unwrap();
    }

    #[test]
    fn clock_set_back_does_not_admit_dropped_headers() {
        let mut table = ReplayTable::new(100);
        table.admit(at(1000), &gateway(1), at(1000), &nonce(1)).unwrap();
        table.admit(at(2000), &gateway(1), at(2000), &nonce(2)).unwrap();
        assert!(table.admit(at(1000), &gateway(1), at(1000), &nonce(1)).is_err());
    }

    #[test]
    fn corrected_clock_costs_only_the_skew() {
        let opened_at = |table: &mut ReplayTable| {
            let fresh = |second: &u64| {
                table.admit(at(*second), &gateway(1), at(*second), &nonce(*second)).is_ok()
            };
            (1000..2000).find(fresh)
        };
        // Ahead for a moment, and ahead at the start.
        let mut table = ReplayTable::new(100);
        table.admit(at(990), &gateway(1), at(1010), &nonce(1)).unwrap();
        table.admit(at(5000), &gateway(1), at(5000), &nonce(2)).unwrap();
        assert_eq!(opened_at(&mut table), Some(1030));
        assert!(table.admit(at(1030), &gateway(1), at(1010), &nonce(1)).is_err(), "a replay");
        let mut table = ReplayTable::new(100);
        table.refuse_issued_before(at(5000));
        assert_eq!(opened_at(&mut table), Some(1030));
        // A clock that is set back by less costs nothing.
        table.admit(at(1050), &gateway(1), at(1050), &nonce(3)).unwrap();
        table.admit(at(1021), &gateway(1), at(1031), &nonce(4)).unwrap();
    }

    #[test]
    fn table_is_bounded_and_forgets() {
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
    fn greedy_gateways_leave_a_share_for_others() {
        let mut table = ReplayTable::new(1200);
        let mut admitted = [0; 5];
        for number in 0..1200 {
            for (index, admitted) in admitted.iter_mut().enumerate() {
                let gateway = gateway(index as u8 + 1);
                if table.admit(at(1000), &gateway, at(1000), &nonce(number)).is_ok() {
                    *admitted += 1;
                }
            }
        }
        assert_eq!(admitted, [200; 5], "a sixth of the table each");
        for number in 0..100 {
            table.admit(at(1000), &gateway(9), at(1000), &nonce(number)).unwrap();
        }
    }

    #[test]
    fn handed_over_table_decides_as_before() {
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
        // Issued before the table was handed over, and in flight meanwhile.
        other.admit(at(1011), &gateway(1), at(1009), &nonce(50)).unwrap();
        for length in 0..bytes.len() {
            // A table that ends between two gateways is well-formed.
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
