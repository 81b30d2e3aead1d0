//! The heads of all lists, as a queue that gives out the smallest rank first.
//!
//! Ranks are small numbers, and what is put in is greater than what was taken out last. So a bit for each rank
//! does, and a bit for each word of them.

use super::list::Rank;

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// Some ranks.
#[derive(Debug)]
pub(super) struct Queue {
    words: Vec<u64>,
    /// Which words are not zero.
    filled: Vec<u64>,
    /// All words of `filled` before this one are zero.
    from: usize,
}

impl Queue {
    /// Room for as many ranks.
    pub(super) fn new(ranks: usize) -> Self {
        let words = ranks.div_ceil(WORD);
        Self { words: vec![0; words], filled: vec![0; words.div_ceil(WORD)], from: 0 }
    }

    /// Takes all out.
    pub(super) fn clear(&mut self) {
        for (filled, words) in self.filled.iter_mut().zip(self.words.chunks_mut(WORD)) {
            if std::mem::take(filled) != 0 {
                words.fill(0);
            }
        }
        self.from = 0;
    }

    /// Puts a rank in, which is greater than any that was the first since the queue was cleared.
    pub(super) fn insert(&mut self, rank: Rank) {
        let at = rank as usize;
        self.words[at / WORD] |= 1 << (at % WORD);
        self.filled[at / WORD / WORD] |= 1 << (at / WORD % WORD);
    }

    /// Takes a rank out.
    pub(super) fn remove(&mut self, rank: Rank) {
        let at = rank as usize;
        let word = &mut self.words[at / WORD];
        *word &= !(1 << (at % WORD));
        if *word == 0 {
            self.filled[at / WORD / WORD] &= !(1 << (at / WORD % WORD));
        }
    }

    /// The smallest rank.
    pub(super) fn first(&mut self) -> Option<Rank> {
        self.from += self.filled[self.from..].iter().position(|filled| *filled != 0)?;
        let word = self.from * WORD + self.filled[self.from].trailing_zeros() as usize;
        Rank::try_from(word * WORD + self.words[word].trailing_zeros() as usize).ok()
    }
}
