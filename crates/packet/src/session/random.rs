//! Unpredictable numbers from one seed: a chain of BLAKE3 hashes, each key of which is forgotten
//! once used.

use zeroize::Zeroize;

/// The source of keys, cookies and numbers of pings.
pub(crate) struct Randomness {
    key: [u8; 32],
}

impl Randomness {
    /// Returns the chain of `seed`, 32 bytes of the system's entropy that nothing else has used.
    pub(crate) fn new(seed: [u8; 32]) -> Self {
        Self { key: seed }
    }

    /// Returns the next 32 bytes.
    pub(crate) fn draw(&mut self) -> [u8; 32] {
        let mut both = [0; 64];
        blake3::Hasher::new_keyed(&self.key).update(b"draw").finalize_xof().fill(&mut both);
        let mut drawn = [0; 32];
        self.key.copy_from_slice(&both[..32]);
        drawn.copy_from_slice(&both[32..]);
        both.zeroize();
        drawn
    }

    /// Returns the next 64 bits.
    pub(crate) fn draw_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.draw()[..8].try_into().expect("eight of 32 bytes"))
    }
}

impl Drop for Randomness {
    fn drop(&mut self) {
        self.key.zeroize();
    }
}

impl std::fmt::Debug for Randomness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Randomness([secret])")
    }
}
