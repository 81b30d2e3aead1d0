//! A repair packet under construction.
//!
//! A source packet enters the sum as its length in two bytes (big endian), its bytes, and zeros up
//! to the length of the block's longest packet.

use crate::error::FecError;
use crate::field;
use crate::kernel::Kernel;

/// Bytes of a repair packet before the sum of the packets: the sum of their lengths.
pub const LENGTH_BYTES: usize = 2;
/// Longest packet, in bytes.
pub const MAX_PACKET_BYTES: usize = u16::MAX as usize;

/// Checks that the length of `packet` fits its length field.
pub(crate) fn check_length(packet: &[u8]) -> Result<(), FecError> {
    if packet.len() > MAX_PACKET_BYTES { Err(FecError::TooLong(packet.len())) } else { Ok(()) }
}

/// A sum of multiples of packets.
#[derive(Debug, Clone)]
pub(crate) struct Symbol {
    bytes: Vec<u8>,
}

impl Default for Symbol {
    fn default() -> Self {
        Self { bytes: vec![0; LENGTH_BYTES] }
    }
}

impl Symbol {
    /// Returns the repair packet's bytes, as sent.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Resets the sum to zero and keeps its memory.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(LENGTH_BYTES, 0);
    }

    fn grow(&mut self, bytes: usize) {
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
    }

    /// Adds `coefficient` times `packet`, whose length the caller has checked.
    pub(crate) fn add_packet(&mut self, kernel: Kernel, packet: &[u8], coefficient: u8) {
        self.grow(LENGTH_BYTES + packet.len());
        let length = (packet.len() as u16).to_be_bytes();
        let (lengths, packets) = self.bytes.split_at_mut(LENGTH_BYTES);
        for (sum, byte) in lengths.iter_mut().zip(length) {
            *sum ^= field::multiply(byte, coefficient);
        }
        kernel.multiply_add(&mut packets[..packet.len()], packet, coefficient);
    }

    /// Adds `coefficient` times another sum.
    pub(crate) fn add_sum(&mut self, kernel: Kernel, sum: &[u8], coefficient: u8) {
        self.grow(sum.len());
        kernel.multiply_add(&mut self.bytes[..sum.len()], sum, coefficient);
    }

    /// Returns the packet that this sum consists of, once all others have been subtracted.
    pub(crate) fn to_packet(&self) -> Result<Vec<u8>, FecError> {
        let (length, packet) = self.bytes.split_at(LENGTH_BYTES);
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        match packet.split_at_checked(length) {
            Some((packet, padding)) if padding.iter().all(|&byte| byte == 0) => Ok(packet.to_vec()),
            _ => Err(FecError::Contradiction),
        }
    }
}
