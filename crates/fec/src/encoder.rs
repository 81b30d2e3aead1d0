//! The sender's side of a block.

use crate::code::{MAX_REPAIRS, coefficient};
use crate::error::FecError;
use crate::kernel::Kernel;
use crate::members::Members;
use crate::symbol::{Symbol, check_length};

/// An encoder of one block's repair packets; it keeps these and none of the block's packets.
#[derive(Debug, Clone)]
pub struct Encoder {
    kernel: Kernel,
    repairs: Vec<Symbol>,
    members: Members,
}

impl Encoder {
    /// Creates an empty block with `repairs` repair packets.
    ///
    /// # Errors
    /// When there are none or more than [`MAX_REPAIRS`].
    pub fn new(repairs: usize) -> Result<Self, FecError> {
        Self::with_kernel(repairs, Kernel::best())
    }

    /// Creates the encoder with a given kernel, which changes the speed and nothing else.
    ///
    /// # Errors
    /// As [`Encoder::new`].
    pub fn with_kernel(repairs: usize, kernel: Kernel) -> Result<Self, FecError> {
        if repairs == 0 || repairs > MAX_REPAIRS {
            return Err(FecError::Repairs(repairs));
        }
        Ok(Self { kernel, repairs: vec![Symbol::default(); repairs], members: Members::NONE })
    }

    /// Adds `packet` in `column`. Columns may be used in any order, and left unused.
    ///
    /// # Errors
    /// When the column does not exist or is in use, or the packet is too long. The block is then
    /// unchanged.
    pub fn add(&mut self, column: usize, packet: &[u8]) -> Result<(), FecError> {
        check_length(packet)?;
        self.members.insert(column)?;
        for (row, repair) in self.repairs.iter_mut().enumerate() {
            repair.add_packet(self.kernel, packet, coefficient(row, column));
        }
        Ok(())
    }

    /// Returns the columns that hold packets.
    #[must_use]
    pub fn members(&self) -> Members {
        self.members
    }

    /// Returns the number of repair packets.
    #[must_use]
    pub fn repairs(&self) -> usize {
        self.repairs.len()
    }

    /// Returns repair packet `row` of the block so far: two bytes longer than the block's longest
    /// packet.
    ///
    /// # Panics
    /// When `row` is not below [`Encoder::repairs`].
    #[must_use]
    pub fn repair(&self, row: usize) -> &[u8] {
        self.repairs[row].as_bytes()
    }

    /// Begins the next block in the same memory.
    pub fn clear(&mut self) {
        self.members = Members::NONE;
        for repair in &mut self.repairs {
            repair.clear();
        }
    }
}
