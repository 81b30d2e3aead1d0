//! The receiver's side of a block.

use crate::code::{MAX_REPAIRS, coefficient, inverse};
use crate::error::FecError;
use crate::kernel::Kernel;
use crate::members::Members;
use crate::symbol::{LENGTH_BYTES, Symbol, check_length};

/// A decoder of one block, which solves for its lost packets.
///
/// Each source packet is subtracted from every repair packet when it arrives, in any order with
/// these: the remainders are sums of the lost packets.
#[derive(Debug, Clone)]
pub struct Decoder {
    kernel: Kernel,
    members: Members,
    arrived: Members,
    rows: Vec<Row>,
    /// The length of every repair packet; `None` before the first has arrived.
    repair_bytes: Option<usize>,
    longest: usize,
}

#[derive(Debug, Clone, Default)]
struct Row {
    sum: Symbol,
    has_arrived: bool,
}

impl Decoder {
    /// Creates the decoder of a block with packets in the columns `members` and `repairs` repair
    /// packets.
    ///
    /// # Errors
    /// When there are no repair packets or more than [`MAX_REPAIRS`].
    pub fn new(members: Members, repairs: usize) -> Result<Self, FecError> {
        Self::with_kernel(members, repairs, Kernel::best())
    }

    /// Creates the decoder with a given kernel, which changes the speed and nothing else.
    ///
    /// # Errors
    /// As [`Decoder::new`].
    pub fn with_kernel(members: Members, repairs: usize, kernel: Kernel) -> Result<Self, FecError> {
        if repairs == 0 || repairs > MAX_REPAIRS {
            return Err(FecError::Repairs(repairs));
        }
        let rows = vec![Row::default(); repairs];
        let arrived = Members::NONE;
        Ok(Self { kernel, members, arrived, rows, repair_bytes: None, longest: 0 })
    }

    /// Adds a source packet; returns `false` for a duplicate.
    ///
    /// # Errors
    /// When the block has no packet in that column, or the packet is longer than the block's
    /// longest. The block is then unchanged.
    pub fn add_source(&mut self, column: usize, packet: &[u8]) -> Result<bool, FecError> {
        check_length(packet)?;
        if !self.members.contains(column) {
            return Err(FecError::Column(column));
        }
        let needed = LENGTH_BYTES + packet.len();
        if let Some(found) = self.repair_bytes.filter(|&bytes| bytes < needed) {
            return Err(FecError::Length { found, needed });
        }
        if self.arrived.insert(column).is_err() {
            return Ok(false);
        }
        self.longest = self.longest.max(needed);
        for (row, state) in self.rows.iter_mut().enumerate() {
            state.sum.add_packet(self.kernel, packet, coefficient(row, column));
        }
        Ok(true)
    }

    /// Adds repair packet `row`; returns `false` for a duplicate.
    ///
    /// # Errors
    /// When the block has no such repair packet, or its length contradicts the packets received so
    /// remote. The block is then unchanged.
    pub fn add_repair(&mut self, row: usize, repair: &[u8]) -> Result<bool, FecError> {
        let found = repair.len();
        let is_short = found < self.longest.max(LENGTH_BYTES);
        if let Some(needed) = self.repair_bytes.filter(|&bytes| bytes != found) {
            return Err(FecError::Length { found, needed });
        }
        if is_short {
            return Err(FecError::Length { found, needed: self.longest.max(LENGTH_BYTES) });
        }
        let state = self.rows.get_mut(row).ok_or(FecError::Repair(row))?;
        if state.has_arrived {
            return Ok(false);
        }
        state.has_arrived = true;
        state.sum.add_sum(self.kernel, repair, 1);
        self.repair_bytes = Some(found);
        Ok(true)
    }

    /// Returns the columns of the packets that have not arrived.
    #[must_use]
    pub fn missing(&self) -> Members {
        self.members.without(self.arrived)
    }

    /// Returns the number of repair packets that have arrived.
    #[must_use]
    pub fn repairs(&self) -> usize {
        self.rows.iter().filter(|row| row.has_arrived).count()
    }

    /// Returns whether enough repair packets have arrived to recover all missing packets.
    #[must_use]
    pub fn is_solvable(&self) -> bool {
        self.missing().len() <= self.repairs()
    }

    /// Returns the missing packets with their columns, in ascending order; none when all have
    /// arrived.
    ///
    /// # Errors
    /// When too few repair packets have arrived, or the solution is not a valid packet.
    pub fn recover(&self) -> Result<Vec<(usize, Vec<u8>)>, FecError> {
        let columns: Vec<usize> = self.missing().iter().collect();
        let arrived = self.rows.iter().enumerate().filter(|(_, row)| row.has_arrived);
        let (rows, sums): (Vec<usize>, Vec<&Symbol>) =
            arrived.take(columns.len()).map(|(row, state)| (row, &state.sum)).unzip();
        if rows.len() < columns.len() {
            return Err(FecError::TooFew { missing: columns.len(), repairs: rows.len() });
        }
        let inverse = inverse(&rows, &columns);
        let solve = |(index, column): (usize, usize)| {
            let mut packet = Symbol::default();
            for (sum, &factor) in sums.iter().zip(&inverse[index]) {
                packet.add_sum(self.kernel, sum.as_bytes(), factor);
            }
            Ok((column, packet.to_packet()?))
        };
        columns.into_iter().enumerate().map(solve).collect()
    }
}
