//! Sets of paths, with a bit for each path in the order in which paths are tried.
//!
//! A run is a walk over such a set. What it does to later paths is done to many at once: when a flow has its path, its
//! others go; when an offer is exhausted, all that pass it go.

use super::list::{Entry, Rank};

/// Bits of a word.
const WORD: usize = u64::BITS as usize;

/// Words of all rows together up to which there are rows. Chosen: 16 MiB. Beyond, paths are tried one by one.
const MOST_WORDS: usize = 1 << 21;

/// Rows of an offer: the paths that pass it, and those of them that take more than some rates. Chosen by trial.
pub(super) const CLASSES: usize = 8;

/// Flows up to which each has a row. Chosen: with more, passing over a flow's paths one by one is quicker.
const MOST_FLOWS: usize = 256;

/// The paths of each flow and of each offer.
#[derive(Debug)]
pub(crate) struct Rows {
    ranks: usize,
    words: usize,
    /// Row after row, [`CLASSES`] for each offer; none where they would take too much memory.
    by_offer: Vec<u64>,
    /// What the paths of each of these rows exceed, in bit/s; rising for each offer.
    limits: Vec<[u64; CLASSES]>,
    by_flow: Vec<u64>,
    /// Paths over several relays.
    several: Vec<u64>,
}

impl Rows {
    pub(super) fn new(entries: &[Entry], flows: usize, offers: usize) -> Self {
        let words = entries.len().div_ceil(WORD);
        let row_words = |rows: usize| if rows * words <= MOST_WORDS { rows * words } else { 0 };
        let flows = if flows <= MOST_FLOWS { flows } else { 0 };
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

    /// The first of an offer's rows whose paths all take more than this rate.
    pub(super) fn class_above(&self, offer: usize, rate: u64) -> usize {
        self.limits[offer].partition_point(|limit| *limit < rate)
    }

    /// What the paths of the row before this one exceed; nothing can be below zero, the first row's.
    pub(super) fn limit_below(&self, offer: usize, class: usize) -> u64 {
        class.min(CLASSES).checked_sub(1).map_or(0, |before| self.limits[offer][before])
    }

    /// The paths that lack at most `lacks` (up to two) of the offers that have no relays.
    pub(crate) fn within(&self, supply: &[usize], lacks: usize, left: &mut Left) {
        let mut lacking = [(); 3].map(|()| vec![0; self.words]);
        for offer in (0..supply.len()).filter(|offer| supply[*offer] == 0) {
            let [once, twice, thrice] = &mut lacking;
            let words = once.iter_mut().zip(twice).zip(thrice).zip(self.offer(offer));
            for (((once, twice), thrice), row) in words {
                *thrice |= *twice & row;
                *twice |= *once & row;
                *once |= row;
            }
        }
        left.words.clear();
        left.words.extend(lacking[lacks].iter().map(|lacking| !lacking));
        let beyond = self.words * WORD - self.ranks;
        if let Some(last) = left.words.last_mut() {
            *last &= u64::MAX >> beyond;
        }
        left.from = 0;
    }
}

/// Rates that divide the paths over each offer into as many parts of equal size; the first one divides nothing.
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

/// Paths that a run may still try.
#[derive(Debug, Default)]
pub(crate) struct Left {
    words: Vec<u64>,
    /// All words before this one are done with.
    from: usize,
}

impl Clone for Left {
    fn clone(&self) -> Self {
        Self { words: self.words.clone(), from: self.from }
    }

    fn clone_from(&mut self, other: &Self) {
        self.words.clone_from(&other.words);
        self.from = other.from;
    }
}

impl Left {
    /// The first path; it stays.
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

    /// Leaves only what is in the other set too.
    pub(crate) fn keep(&mut self, other: &Self) {
        for (word, other) in self.words.iter_mut().zip(&other.words).skip(self.from) {
            *word &= other;
        }
    }

    fn remove_row(&mut self, row: &[u64]) {
        let Some(row) = row.get(self.from..) else { return };
        for (word, row) in self.words[self.from..].iter_mut().zip(row) {
            *word &= !row;
        }
    }
}
