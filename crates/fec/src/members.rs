//! The set of a block's columns that hold packets.

use crate::code::MAX_SOURCES;
use crate::error::FecError;

/// A set of columns, 0 to 31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Members(u32);

impl Members {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// Creates a set from its wire format: bit `c` stands for column `c`.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// Returns the wire format.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Returns the first `count` columns, at most all of them.
    #[must_use]
    pub fn first(count: usize) -> Self {
        Self(if count >= MAX_SOURCES { u32::MAX } else { (1 << count) - 1 })
    }

    /// Returns whether `column` is in the set.
    #[must_use]
    pub fn contains(self, column: usize) -> bool {
        column < MAX_SOURCES && self.0 >> column & 1 == 1
    }

    /// Returns the number of columns.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the columns that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Iterates over the columns in ascending order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_SOURCES).filter(move |&column| self.contains(column))
    }

    /// Adds `column`, which must not be in the set yet.
    pub(crate) fn insert(&mut self, column: usize) -> Result<(), FecError> {
        if column >= MAX_SOURCES {
            return Err(FecError::Column(column));
        }
        if self.contains(column) {
            return Err(FecError::ColumnInUse(column));
        }
        self.0 |= 1 << column;
        Ok(())
    }
}
