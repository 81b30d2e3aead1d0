//! A window of sequences that have come: the first copy wins, on any path.

/// The sequences that are remembered below the highest. Chosen: 20 s at 200 packets a second; two
/// copies of a packet, one of them recovered, are never so far apart.
pub(crate) const WINDOW: u64 = 4096;
const WORDS: usize = (WINDOW / 64) as usize;

/// A bitmap that moves with the highest sequence.
#[derive(Debug, Clone)]
pub(crate) struct Window {
    /// One beyond the highest that has come; 0 before the first.
    end: u64,
    words: [u64; WORDS],
}

/// The state of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    New,
    Before,
    /// Too old to be recognized.
    TooOld,
}

impl Window {
    pub(crate) fn new() -> Self {
        Self { end: 0, words: [0; WORDS] }
    }

    pub(crate) fn look(&self, sequence: u64) -> Seen {
        if sequence >= self.end {
            Seen::New
        } else if self.end - sequence > WINDOW {
            Seen::TooOld
        } else if self.words[word(sequence)] >> (sequence % 64) & 1 == 1 {
            Seen::Before
        } else {
            Seen::New
        }
    }

    /// Remembers a new sequence.
    pub(crate) fn insert(&mut self, sequence: u64) {
        if sequence >= self.end {
            let fresh = sequence + 1 - self.end;
            if fresh >= WINDOW {
                self.words = [0; WORDS];
            } else {
                self.forget(self.end, sequence);
            }
            self.end = sequence + 1;
        }
        self.words[word(sequence)] |= 1 << (sequence % 64);
    }

    /// Clears the bits of sequences that enter the window, whole words where possible.
    fn forget(&mut self, first: u64, last: u64) {
        let mut sequence = first;
        while sequence <= last {
            if sequence.is_multiple_of(64) && last - sequence >= 63 {
                self.words[word(sequence)] = 0;
                sequence += 64;
            } else {
                self.words[word(sequence)] &= !(1 << (sequence % 64));
                sequence += 1;
            }
        }
    }
}

fn word(sequence: u64) -> usize {
    usize::try_from(sequence / 64 % (WORDS as u64)).expect("below the number of words")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn window_agrees_with_set(steps in prop::collection::vec(
            prop_oneof![8 => 0..40_u64, 1 => 0..9000_u64], 1..300),
                back in prop::collection::vec(0..5000_u64, 300)) {
            let mut window = Window::new();
            let mut set = BTreeSet::new();
            let mut highest = 0;
            for (step, back) in steps.into_iter().zip(back) {
                for sequence in [highest + step, (highest + step).saturating_sub(back)] {
                    let end = set.last().map_or(0, |last| last + 1);
                    let expected = if set.contains(&sequence) && end - sequence <= WINDOW {
                        Seen::Before
                    } else if sequence < end && end - sequence > WINDOW {
                        Seen::TooOld
                    } else {
                        Seen::New
                    };
                    prop_assert_eq!(window.look(sequence), expected);
                    if expected == Seen::New {
                        window.insert(sequence);
                        set.insert(sequence);
                    }
                }
                highest += step;
            }
        }
    }
}
