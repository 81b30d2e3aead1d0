//! A replay window over counters: each is accepted once, and none that is too old [RFC 6479].
//!
//! To be used only for authenticated datagrams. The copies that come over several paths carry one
//! counter, so the same window accepts the first of them and drops the others.

/// Counters behind the highest that are remembered. Chosen: two paths 40 ms apart at 50,000 packets
/// a second differ by 2,000.
pub const WINDOW: u64 = 4096 - 64;

const WORDS: usize = 64;
const BITS: u64 = 64;

/// The counters seen lately, as a ring of bits.
#[derive(Debug, Clone)]
pub struct ReplayWindow {
    words: [u64; WORDS],
    /// One beyond the highest counter seen.
    next: u64,
}

impl Default for ReplayWindow {
    fn default() -> Self {
        Self { words: [0; WORDS], next: 0 }
    }
}

impl ReplayWindow {
    /// Returns whether `counter` is new; remembers it if so.
    pub fn admit(&mut self, counter: u64) -> bool {
        if !self.is_new(counter) {
            return false;
        }
        if counter >= self.next {
            self.advance(counter + 1);
        }
        self.words[Self::word(counter)] |= 1 << (counter % BITS);
        true
    }

    /// Returns whether `counter` is new.
    #[must_use]
    pub fn is_new(&self, counter: u64) -> bool {
        if counter == u64::MAX || counter.saturating_add(WINDOW) < self.next {
            return false;
        }
        counter >= self.next || self.words[Self::word(counter)] & 1 << (counter % BITS) == 0
    }

    /// Returns one beyond the highest counter seen.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next
    }

    fn advance(&mut self, next: u64) {
        let (from, to) = (self.next.wrapping_sub(1) / BITS, (next - 1) / BITS);
        let from = if self.next == 0 { 0 } else { from };
        for word in (from + 1..=to).take(WORDS) {
            self.words[(word % WORDS as u64) as usize] = 0;
        }
        if to - from >= WORDS as u64 {
            self.words = [0; WORDS];
        }
        self.next = next;
    }

    fn word(counter: u64) -> usize {
        (counter / BITS % WORDS as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn replay_window_holds_2048() {
        let mut window = ReplayWindow::default();
        assert!(window.admit(5000));
        assert!(window.admit(5001 - WINDOW));
        assert!(!window.admit(5000 - WINDOW));
        assert!(!window.admit(5000));
        const { assert!(WINDOW >= 2048) }
    }

    #[test]
    fn last_counter_is_refused() {
        let mut window = ReplayWindow::default();
        assert!(!window.admit(u64::MAX));
        assert!(window.admit(u64::MAX - 1));
        assert!(!window.admit(u64::MAX - 1));
        assert!(!window.admit(0));
    }

    proptest! {
        #[test]
        fn replay_window_agrees_with_set(
            steps in prop::collection::vec((0u64..6000, prop::bool::weighted(0.02)), 1..2000),
        ) {
            let mut window = ReplayWindow::default();
            let (mut seen, mut next, mut base) = (BTreeSet::new(), 0u64, 0u64);
            for (offset, jump) in steps {
                base += if jump { 10_000 } else { 3 };
                let counter = base + offset;
                let expected = counter + WINDOW >= next && seen.insert(counter);
                prop_assert_eq!(window.admit(counter), expected, "{}", counter);
                next = next.max(counter + 1);
                prop_assert_eq!(window.next(), next);
            }
        }
    }
}
