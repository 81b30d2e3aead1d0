//! The sequences that a NACK requests.

use super::{MAX_NACK_ITEMS, MAX_NACK_RANGES, MAX_SEQUENCE};

/// Bytes of each range: the first sequence, and how many.
pub(crate) const RANGE_BYTES: usize = 9;

/// Ranges of sequences, ascending, none touching the next; borrowed from the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ranges<'a> {
    bytes: &'a [u8],
}

impl<'a> Ranges<'a> {
    /// Returns the ranges that [`write_ranges`] wrote; the parser checks the bytes of others.
    #[must_use]
    pub fn of(bytes: &'a [u8]) -> Self {
        debug_assert!(Self { bytes }.check().is_ok());
        Self { bytes }
    }

    /// Returns ranges without checking them.
    pub(crate) fn unchecked(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Refuses ranges out of order, empty ones, and too many. The error is the wrong value and the
    /// expected ones.
    pub(crate) fn check(&self) -> Result<(), (u64, &'static str)> {
        let count = self.bytes.len() / RANGE_BYTES;
        if count == 0 || count > MAX_NACK_RANGES {
            return Err((count as u64, "1 to 16 ranges"));
        }
        let mut items = 0;
        let mut least = 0;
        for (first, length) in self.iter() {
            items += u64::from(length);
            if first < least {
                return Err((first, "ranges in ascending order with a gap between them"));
            }
            if length == 0 || items > MAX_NACK_ITEMS {
                return Err((items, "1 to 64 sequences in all, none of the ranges empty"));
            }
            let last = first.saturating_add(u64::from(length) - 1);
            if last > MAX_SEQUENCE {
                return Err((last, "sequences below 2^63"));
            }
            // One more for the gap.
            least = last + 2;
        }
        Ok(())
    }

    pub(crate) fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the first sequence and the length of each range.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u8)> + use<'a> {
        self.bytes.chunks_exact(RANGE_BYTES).map(|range| {
            (u64::from_be_bytes(range[..8].try_into().expect("8 of 9 bytes")), range[8])
        })
    }

    /// Returns every sequence.
    pub fn sequences(&self) -> impl Iterator<Item = u64> + use<'a> {
        self.iter().flat_map(|(first, length)| first..first + u64::from(length))
    }
}

/// Writes the first of `sequences`, which must ascend, as ranges to `out`; returns how many fitted
/// into one message.
pub fn write_ranges(sequences: &[u64], out: &mut Vec<u8>) -> usize {
    let most = usize::try_from(MAX_NACK_ITEMS).expect("a small number");
    let mut written = 0;
    let mut ranges = 0;
    while written < sequences.len().min(most) && ranges < MAX_NACK_RANGES {
        let first = sequences[written];
        let run = sequences[written..sequences.len().min(most)].iter().zip(first..);
        let length = run.take_while(|(sequence, expected)| **sequence == *expected).count();
        out.extend_from_slice(&first.to_be_bytes());
        out.push(u8::try_from(length).expect("at most 64"));
        written += length;
        ranges += 1;
    }
    written
}
