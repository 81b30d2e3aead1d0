//! Bit sets of paths, with a bit for each path in the order in which paths are tried.
//!
//! A run iterates over such a set. Later paths are removed many at once: when a flow has its path,
//! its other paths; when an offer is exhausted, all paths over it.

use super::list::{Entry, Rank};

/// The bits of a word.
const WORD: usize = u64::BITS as usize;

/// The words of a block; rows are whole blocks. Chosen: a cache line.
const BLOCK: usize = 8;

/// The most words of all rows together. Chosen: 16 MiB. Beyond, paths are tried one by one.
const MAX_WORDS: usize = 1 << 21;

/// The rows of an offer: the paths that pass it, and those of them above some rates. Chosen by
/// trial.
pub(super) const CLASSES: usize = 32;

/// The number of flows up to which each has a row. Chosen: with more, skipping a flow's paths one
/// by one is faster.
const MAX_FLOWS: usize = 256;

/// The bit sets of each flow's and each offer's paths.
#[derive(Debug)]
pub(crate) struct Rows {
    ranks: usize,
    words: usize,
    /// Row after row, [`CLASSES`] for each offer; empty where they would take too much memory.
    by_offer: Vec<u64>,
    /// The rate that the paths of each of these rows exceed, in bit/s; increasing for each offer.
    limits: Vec<[u64; CLASSES]>,
    by_flow: Vec<u64>,
    /// The paths over several relays.
    several: Vec<u64>,
}

impl Rows {
    pub(super) fn new(entries: &[Entry], flows: usize, offers: usize) -> Self {
        let words = entries.len().div_ceil(WORD).next_multiple_of(BLOCK);
        let row_words = |rows: usize| if rows * words <= MAX_WORDS { rows * words } else { 0 };
        let flows = if flows <= MAX_FLOWS { flows } else { 0 };
        let limits = limits(entries, offers);
        let mut rows = Self {
            ranks: entries.len(),
            words,
            by_offer: vec![0; row_words(offers * CLASSES)],
            limits,
            by_flow: vec![0; row_words(flows)],
            several: vec![0; words],
        };
        for (rank, entry) in entries.iter().enumerate() {
            let (word, bit) = (rank / WORD, 1 << (rank % WORD));
            if entry.relays().len() > 1 {
                rows.several[word] |= bit;
            }
            if !rows.by_flow.is_empty() {
                rows.by_flow[entry.flow as usize * words + word] |= bit;
            }
            if rows.by_offer.is_empty() {
                continue;
            }
            for offer in entry.relays().iter().map(|offer| *offer as usize) {
                let classes = rows.limits[offer].partition_point(|limit| *limit < entry.rate);
                for class in 0..classes {
                    rows.by_offer[(offer * CLASSES + class) * words + word] |= bit;
                }
            }
        }
        rows
    }

    fn offer(&self, offer: usize) -> &[u64] {
        self.too_fast(offer, 0)
    }

    fn too_fast(&self, offer: usize, class: usize) -> &[u64] {
        row(&self.by_offer, self.words, offer * CLASSES + class)
    }

    /// Returns the first of an offer's rows whose paths all exceed this rate.
    pub(super) fn class_above(&self, offer: usize, rate: u64) -> usize {
        self.limits[offer].partition_point(|limit| *limit < rate)
    }

    /// Returns the rate that the paths of the row before this one exceed; zero for the first row.
    pub(super) fn limit_below(&self, offer: usize, class: usize) -> u64 {
        class.min(CLASSES).checked_sub(1).map_or(0, |before| self.limits[offer][before])
    }

    /// Sets `left` to all paths.
    pub(super) fn all(&self, left: &mut Left) {
        left.words.clear();
        left.words.resize(self.ranks / WORD, u64::MAX);
        left.words.resize(self.words, 0);
        if let Some(last) = left.words.get_mut(self.ranks / WORD) {
            *last = (1 << (self.ranks % WORD)) - 1;
        }
        left.from = 0;
    }

    /// Keeps only paths over at most `lacks` (up to two) offers without relays.
    pub(crate) fn keep_within(&self, supply: &[usize], lacks: usize, left: &mut Left) {
        let absent = (0..supply.len()).filter(|offer| supply[*offer] == 0);
        if lacks == 0 {
            absent.for_each(|offer| left.remove_row(self.offer(offer)));
            return;
        }
        let absent: Vec<&[u64]> = absent.map(|offer| self.offer(offer)).collect();
        for at in (left.from / BLOCK * BLOCK..self.words).step_by(BLOCK) {
            let mut lacking = [[0; BLOCK]; 3];
            for row in &absent {
                let Some(row) = row.get(at..at + BLOCK) else { return };
                let [once, twice, thrice] = &mut lacking;
                for (word, row) in row.iter().enumerate() {
                    thrice[word] |= twice[word] & row;
                    twice[word] |= once[word] & row;
                    once[word] |= row;
                }
            }
            let words = left.words[at..at + BLOCK].iter_mut().zip(lacking[lacks]);
            words.for_each(|(word, lacking)| *word &= !lacking);
        }
    }
}

/// Returns the rates that divide the paths over each offer into parts of equal size; the first one
/// is below all of them.
fn limits(entries: &[Entry], offers: usize) -> Vec<[u64; CLASSES]> {
    let mut rates = vec![Vec::new(); offers];
    for entry in entries {
        entry.relays().iter().for_each(|offer| rates[*offer as usize].push(entry.rate));
    }
    let limits = |mut rates: Vec<u64>| {
        rates.sort_unstable();
        std::array::from_fn(|class| {
            let limit = rates.get(rates.len() * class / CLASSES).copied().unwrap_or_default();
            if class == 0 { limit.saturating_sub(1) } else { limit }
        })
    };
    rates.into_iter().map(limits).collect()
}

fn row(rows: &[u64], words: usize, at: usize) -> &[u64] {
    rows.get(at * words..(at + 1) * words).unwrap_or(&[])
}

/// The paths that a run may still try.
#[derive(Debug, Default)]
pub(crate) struct Left {
    words: Vec<u64>,
    /// The index of the first word that is not done.
    from: usize,
}

impl Clone for Left {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), from: self.from }
    }

    fn clone_from(&mut self, other: &Self) {
        let done = other.from / BLOCK * BLOCK;
        // Words before it are empty.
        self.words.resize(other.words.len(), 0);
        self.words[..done].fill(0);
        self.words[done..].copy_from_slice(&other.words[done..]);
        self.from = other.from;
    }
}

impl Left {
    /// Returns the first path without removing it.
    pub(super) fn first(&mut self) -> Option<Rank> {
        while let Some(word) = self.words.get(self.from) {
            if *word != 0 {
                let at = self.from * WORD + word.trailing_zeros() as usize;
                return Rank::try_from(at).ok();
            }
            self.from += 1;
        }
        None
    }

    pub(super) fn remove(&mut self, rank: Rank) {
        self.words[rank as usize / WORD] &= !(1 << (rank as usize % WORD));
    }

    pub(super) fn remove_flow(&mut self, flow: usize, rows: &Rows) {
        self.remove_row(row(&rows.by_flow, rows.words, flow));
    }

    /// Removes the paths of this class over the offer.
    pub(super) fn remove_class(&mut self, offer: usize, class: usize, rows: &Rows) {
        self.remove_row(rows.too_fast(offer, class));
    }

    pub(super) fn remove_several(&mut self, rows: &Rows) {
        self.remove_row(&rows.several);
    }

    fn remove_row(&mut self, row: &[u64]) {
        let done = self.from / BLOCK * BLOCK;
        let Some(row) = row.get(done..) else { return };
        let blocks = self.words[done..].chunks_exact_mut(BLOCK).zip(row.chunks_exact(BLOCK));
        for (words, row) in blocks {
            words.iter_mut().zip(row).for_each(|(word, row)| *word &= !row);
        }
    }
}
