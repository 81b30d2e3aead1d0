//! The arithmetic without special instructions.

use super::tables::NIBBLES;

/// Adds `coefficient` times `source` to `target`.
pub(super) fn multiply_add(target: &mut [u8], source: &[u8], coefficient: u8) {
    if coefficient == 1 {
        // Most blocks have one repair packet only; compilers turn this into vector instructions.
        for (sum, byte) in target.iter_mut().zip(source) {
            *sum ^= byte;
        }
        return;
    }
    let (low, high) = NIBBLES[usize::from(coefficient)].split_at(16);
    for (sum, byte) in target.iter_mut().zip(source) {
        *sum ^= low[usize::from(byte & 0xF)] ^ high[usize::from(byte >> 4)];
    }
}
