//! Which columns of a block hold packets.

use crate::code::MOST_SOURCES;
use crate::error::FecError;

/// A set of columns, 0 to 31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Members(u32);

impl Members {
    /// No column.
    pub const NONE: Self = Self(0);

    /// The set whose bit `c` says whether column `c` is in it: its form on the wire.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Its form on the wire.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The first `count` columns; all of them when there are not so many.
    #[must_use]
    pub fn first(count: usize) -> Self {
        Self(if count >= MOST_SOURCES { u32::MAX } else { (1 << count) - 1 })
    }

    /// Whether `column` is in it.
    #[must_use]
    pub fn contains(self, column: usize) -> bool {
        column < MOST_SOURCES && self.0 >> column & 1 == 1
    }

    /// How many there are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those of it that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The columns in their order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MOST_SOURCES).filter(move |&column| self.contains(column))
    }

    /// Adds `column`, which must not be there yet.
    pub(crate) fn insert(&mut self, column: usize) -> Result<(), FecError> {
        if column >= MOST_SOURCES {
            return Err(FecError::Column(column));
        }
        if self.contains(column) {
            return Err(FecError::Taken(column));
        }
        self.0 |= 1 << column;
        Ok(())
    }
}
