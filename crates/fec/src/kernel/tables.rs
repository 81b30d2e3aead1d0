//! Look-up tables of the kernels, computed at compile time.

use crate::field;

/// The products of each coefficient with the sixteen low nibbles, then with the sixteen high ones.
pub(super) static NIBBLES: [[u8; 32]; 256] = nibbles();

const fn nibbles() -> [[u8; 32]; 256] {
    let mut table = [[0; 32]; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut nibble = 0;
        while nibble < 16 {
            table[coefficient][nibble] = field::multiply(coefficient as u8, nibble as u8);
            table[coefficient][16 + nibble] =
                field::multiply(coefficient as u8, (nibble << 4) as u8);
            nibble += 1;
        }
        coefficient += 1;
    }
    table
}

/// The multiplication by each coefficient as a matrix over GF(2), in the form of GF2P8AFFINEQB:
/// byte 7 - i selects the bits of a factor whose sum is bit i of the product.
#[cfg(target_arch = "x86_64")]
pub(super) static MATRICES: [u64; 256] = matrices();

#[cfg(target_arch = "x86_64")]
const fn matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut coefficient = 0;
    while coefficient < 256 {
        let mut from = 0;
        while from < 8 {
            let product = field::multiply(coefficient as u8, 1 << from);
            let mut to = 0;
            while to < 8 {
                if product >> to & 1 == 1 {
                    table[coefficient] |= 1 << (8 * (7 - to) + from);
                }
                to += 1;
            }
            from += 1;
        }
        coefficient += 1;
    }
    table
}
