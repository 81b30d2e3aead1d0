//! The arithmetic of x86-64 processors.
//!
//! GFNI multiplies by an 8 by 8 matrix of bits, so any polynomial will do. Without it a product is
//! the sum of two look-ups, one for each nibble, which a byte shuffle does for 16 or 32 bytes at
//! once (Plank, Greenan, Miller: Screaming Fast Galois Field Arithmetic Using Intel SIMD
//! Instructions, FAST 2013).
#![allow(unsafe_code, reason = "vector loads and stores; each block states why it is sound")]

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _mm_and_si128, _mm_loadu_si128, _mm_set1_epi8, _mm_shuffle_epi8,
    _mm_srli_epi64, _mm_storeu_si128, _mm_xor_si128, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_gf2p8affine_epi64_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_set1_epi64x,
    _mm256_shuffle_epi8, _mm256_srli_epi64, _mm256_storeu_si256, _mm256_xor_si256,
    _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64, _mm512_storeu_si512,
    _mm512_xor_si512,
};

use super::tables::{MATRICES, NIBBLES};
use super::{Kernel, scalar};

const LOW_NIBBLE: i8 = 0xF;

/// Adds `coefficient` times `source` to `target`, which has the same length, by a kernel that this
/// processor supports.
pub(super) fn multiply_add(kernel: Kernel, target: &mut [u8], source: &[u8], coefficient: u8) {
    debug_assert!(kernel.is_available(), "whoever calls has looked");
    let step = match kernel {
        Kernel::Gfni512 => 64,
        Kernel::Gfni | Kernel::Avx2 => 32,
        Kernel::Ssse3 => 16,
        Kernel::Scalar => 1,
    };
    let whole = target.len() / step * step;
    let (target, target_rest) = target.split_at_mut(whole);
    let (source, source_rest) = source.split_at(whole);
    // SAFETY: the processor has the instructions of `kernel`, as `Kernel::is_available` found.
    unsafe {
        match kernel {
            Kernel::Gfni512 => gfni_512(target, source, coefficient),
            Kernel::Gfni => gfni(target, source, coefficient),
            Kernel::Avx2 => avx2(target, source, coefficient),
            Kernel::Ssse3 => ssse3(target, source, coefficient),
            Kernel::Scalar => scalar::multiply_add(target, source, coefficient),
        }
    }
    // The rest is shorter than a vector; a narrower kernel does most of it.
    match kernel {
        Kernel::Gfni512 => multiply_add(Kernel::Gfni, target_rest, source_rest, coefficient),
        Kernel::Gfni | Kernel::Avx2 => {
            multiply_add(Kernel::Ssse3, target_rest, source_rest, coefficient);
        }
        _ => scalar::multiply_add(target_rest, source_rest, coefficient),
    }
}

#[target_feature(enable = "gfni,avx512f,avx512bw")]
fn gfni_512(target: &mut [u8], source: &[u8], coefficient: u8) {
    let matrix = _mm512_set1_epi64(MATRICES[usize::from(coefficient)] as i64);
    for (sum, bytes) in target.chunks_exact_mut(64).zip(source.chunks_exact(64)) {
        // SAFETY: both chunks are 64 bytes long, and these loads and stores need no alignment.
        unsafe {
            let bytes: __m512i = _mm512_loadu_si512(bytes.as_ptr().cast());
            let product = _mm512_gf2p8affine_epi64_epi8::<0>(bytes, matrix);
            let before: __m512i = _mm512_loadu_si512(sum.as_ptr().cast());
            _mm512_storeu_si512(sum.as_mut_ptr().cast(), _mm512_xor_si512(before, product));
        }
    }
}

#[target_feature(enable = "gfni,avx2")]
fn gfni(target: &mut [u8], source: &[u8], coefficient: u8) {
    let matrix = _mm256_set1_epi64x(MATRICES[usize::from(coefficient)] as i64);
    for (sum, bytes) in target.chunks_exact_mut(32).zip(source.chunks_exact(32)) {
        // SAFETY: both chunks are 32 bytes long, and these loads and stores need no alignment.
        unsafe {
            let bytes: __m256i = _mm256_loadu_si256(bytes.as_ptr().cast());
            let product = _mm256_gf2p8affine_epi64_epi8::<0>(bytes, matrix);
            let before: __m256i = _mm256_loadu_si256(sum.as_ptr().cast());
            _mm256_storeu_si256(sum.as_mut_ptr().cast(), _mm256_xor_si256(before, product));
        }
    }
}

#[target_feature(enable = "avx2")]
fn avx2(target: &mut [u8], source: &[u8], coefficient: u8) {
    let table = &NIBBLES[usize::from(coefficient)];
    // SAFETY: the table has 32 bytes, 16 for each load; these loads need no alignment.
    let (low, high) = unsafe {
        let low: __m128i = _mm_loadu_si128(table.as_ptr().cast());
        let high: __m128i = _mm_loadu_si128(table[16..].as_ptr().cast());
        (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high))
    };
    let mask = _mm256_set1_epi8(LOW_NIBBLE);
    for (sum, bytes) in target.chunks_exact_mut(32).zip(source.chunks_exact(32)) {
        // SAFETY: both chunks are 32 bytes long, and these loads and stores need no alignment.
        unsafe {
            let bytes: __m256i = _mm256_loadu_si256(bytes.as_ptr().cast());
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(bytes, mask));
            let upper = _mm256_and_si256(_mm256_srli_epi64::<4>(bytes), mask);
            let product = _mm256_xor_si256(low, _mm256_shuffle_epi8(high, upper));
            let before: __m256i = _mm256_loadu_si256(sum.as_ptr().cast());
            _mm256_storeu_si256(sum.as_mut_ptr().cast(), _mm256_xor_si256(before, product));
        }
    }
}

#[target_feature(enable = "ssse3")]
fn ssse3(target: &mut [u8], source: &[u8], coefficient: u8) {
    let table = &NIBBLES[usize::from(coefficient)];
    // SAFETY: the table has 32 bytes, 16 for each load; these loads need no alignment.
    let (low, high): (__m128i, __m128i) = unsafe {
        (_mm_loadu_si128(table.as_ptr().cast()), _mm_loadu_si128(table[16..].as_ptr().cast()))
    };
    let mask = _mm_set1_epi8(LOW_NIBBLE);
    for (sum, bytes) in target.chunks_exact_mut(16).zip(source.chunks_exact(16)) {
        // SAFETY: both chunks are 16 bytes long, and these loads and stores need no alignment.
        unsafe {
            let bytes: __m128i = _mm_loadu_si128(bytes.as_ptr().cast());
            let low = _mm_shuffle_epi8(low, _mm_and_si128(bytes, mask));
            let upper = _mm_and_si128(_mm_srli_epi64::<4>(bytes), mask);
            let product = _mm_xor_si128(low, _mm_shuffle_epi8(high, upper));
            let before: __m128i = _mm_loadu_si128(sum.as_ptr().cast());
            _mm_storeu_si128(sum.as_mut_ptr().cast(), _mm_xor_si128(before, product));
        }
    }
}
