//! The arithmetic of 64-bit ARM processors: a product is the sum of two look-ups, one for each
//! nibble, 16 bytes at once.
#![allow(unsafe_code, reason = "vector loads and stores; each block states why it is sound")]

use std::arch::aarch64::{
    vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vshrq_n_u8, vst1q_u8,
};

use super::scalar;
use super::tables::NIBBLES;

/// Adds `coefficient` times `source` to `target`, which has the same length.
pub(super) fn multiply_add(target: &mut [u8], source: &[u8], coefficient: u8) {
    let whole = target.len() / 16 * 16;
    let (target, target_rest) = target.split_at_mut(whole);
    let (source, source_rest) = source.split_at(whole);
    // SAFETY: the processor has NEON, as `Kernel::is_available` found.
    unsafe { multiply_add_whole(target, source, coefficient) };
    scalar::multiply_add(target_rest, source_rest, coefficient);
}

#[target_feature(enable = "neon")]
fn multiply_add_whole(target: &mut [u8], source: &[u8], coefficient: u8) {
    let table = &NIBBLES[usize::from(coefficient)];
    // SAFETY: the table has 32 bytes, 16 for each load.
    let (low, high) = unsafe { (vld1q_u8(table.as_ptr()), vld1q_u8(table[16..].as_ptr())) };
    let mask = vdupq_n_u8(0xF);
    for (sum, bytes) in target.chunks_exact_mut(16).zip(source.chunks_exact(16)) {
        // SAFETY: both chunks are 16 bytes long, and these loads and stores need no alignment.
        unsafe {
            let bytes = vld1q_u8(bytes.as_ptr());
            let product = veorq_u8(
                vqtbl1q_u8(low, vandq_u8(bytes, mask)),
                vqtbl1q_u8(high, vshrq_n_u8::<4>(bytes)),
            );
            vst1q_u8(sum.as_mut_ptr(), veorq_u8(vld1q_u8(sum.as_ptr()), product));
        }
    }
}
