//! A repair packet while packets are added to it.
//!
//! A packet counts as its length in two bytes (big endian), then its bytes, then as many zeros as the longest packet of its block needs.

use crate::error::FecError;
use crate::field;
use crate::kernel::Kernel;

/// Bytes of a repair packet before the sum of the packets: the sum of their lengths.
pub const LENGTH_BYTES: usize = 2;
/// Longest packet, in bytes.
pub const MOST_PACKET_BYTES: usize = u16::MAX as usize;

/// Refuses what no length field can tell.
pub(crate) fn check_length(packet: &[u8]) -> Result<(), FecError> {
    if packet.len() > MOST_PACKET_BYTES { Err(FecError::TooLong(packet.len())) } else { Ok(()) }
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
    /// The sum as it is sent.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Back to the sum of nothing; the memory stays.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.resize(LENGTH_BYTES, 0);
    }

    fn grow(&mut self, bytes: usize) {
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
    }

    /// Adds `coefficient` times `packet`, whose length was checked.
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

    /// The packet, when this is the sum of that alone.
    pub(crate) fn to_packet(&self) -> Result<Vec<u8>, FecError> {
        let (length, packet) = self.bytes.split_at(LENGTH_BYTES);
        let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
        match packet.split_at_checked(length) {
            Some((packet, padding)) if padding.iter().all(|&byte| byte == 0) => Ok(packet.to_vec()),
            _ => Err(FecError::Contradiction),
        }
    }
}
