//! `target += coefficient * source` over GF(2^8): the loop in which the code spends its time, for
//! each processor.
//!
//! All kernels give the same bytes. The choice is made once per block; it depends on the processor,
//! but changes no result.

mod scalar;
mod tables;

#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

/// An implementation of the arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kernel {
    /// Galois field instructions on 64 bytes at once (x86-64 with GFNI and AVX-512).
    #[cfg(target_arch = "x86_64")]
    Gfni512,
    /// Galois field instructions on 32 bytes at once (x86-64 with GFNI and AVX2).
    #[cfg(target_arch = "x86_64")]
    Gfni,
    /// Table look-ups by shuffles, 32 bytes at once (x86-64 with AVX2).
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Table look-ups by shuffles, 16 bytes at once (x86-64 with SSSE3).
    #[cfg(target_arch = "x86_64")]
    Ssse3,
    /// Table look-ups, 16 bytes at once (64-bit ARM).
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Table look-ups, byte by byte.
    Scalar,
}

impl Kernel {
    /// Returns the fastest kernel that this processor supports.
    #[must_use]
    pub fn best() -> Self {
        Self::ALL.iter().copied().find(|kernel| kernel.is_available()).unwrap_or(Self::Scalar)
    }

    /// Returns all kernels that this processor supports, the fastest first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::ALL.iter().copied().filter(|kernel| kernel.is_available()).collect()
    }

    #[cfg(target_arch = "x86_64")]
    const ALL: &[Self] = &[Self::Gfni512, Self::Gfni, Self::Avx2, Self::Ssse3, Self::Scalar];
    #[cfg(target_arch = "aarch64")]
    const ALL: &[Self] = &[Self::Neon, Self::Scalar];
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    const ALL: &[Self] = &[Self::Scalar];

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Gfni512 => {
                is_x86_feature_detected!("gfni")
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Gfni => is_x86_feature_detected!("gfni") && is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Ssse3 => is_x86_feature_detected!("ssse3"),
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Self::Scalar => true,
        }
    }

    /// Adds `coefficient` times `source` to `target`; both have the same length.
    ///
    /// A kernel that this processor lacks falls back to the scalar one.
    pub(crate) fn multiply_add(self, target: &mut [u8], source: &[u8], coefficient: u8) {
        assert_eq!(target.len(), source.len(), "as many bytes as are added to");
        match coefficient {
            0 => {}
            _ if self.is_available() => self.multiply_add_there(target, source, coefficient),
            _ => scalar::multiply_add(target, source, coefficient),
        }
    }

    fn multiply_add_there(self, target: &mut [u8], source: &[u8], coefficient: u8) {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Gfni512 | Self::Gfni | Self::Avx2 | Self::Ssse3 => {
                x86::multiply_add(self, target, source, coefficient);
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => neon::multiply_add(target, source, coefficient),
            Self::Scalar => scalar::multiply_add(target, source, coefficient),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field;

    #[test]
    fn kernels_multiply_correctly() {
        let source: Vec<u8> = (0..=255).collect();
        for kernel in Kernel::available() {
            for coefficient in 0..=255u8 {
                let mut target: Vec<u8> = (0..=255u8).rev().collect();
                kernel.multiply_add(&mut target, &source, coefficient);
                for (value, byte) in target.iter().zip(0..=255u8) {
                    let expected = (255 - byte) ^ field::multiply(byte, coefficient);
                    assert_eq!(*value, expected, "{kernel:?}: {coefficient} times {byte}");
                }
            }
        }
    }

    #[test]
    fn kernels_handle_lengths_and_offsets() {
        let source: Vec<u8> = (0..400).map(|index| (index * 7 + 3) as u8).collect();
        for kernel in Kernel::available() {
            for offset in 0..9 {
                for length in 0..(source.len() - offset).min(150) {
                    let part = &source[offset..offset + length];
                    let mut target = vec![0x5A; length + 2];
                    let mut expected = target.clone();
                    kernel.multiply_add(&mut target[1..=length], part, 0x1D);
                    scalar::multiply_add(&mut expected[1..=length], part, 0x1D);
                    assert_eq!(target, expected, "{kernel:?}: {length} bytes from {offset}");
                }
            }
        }
    }
}
