//! The field GF(2^8) with the polynomial x^8 + x^4 + x^3 + x^2 + 1 (0x11D), of which 2 is a
//! generator.

const POLYNOMIAL: u16 = 0x11D;
/// The number of elements other than zero.
const ORDER: usize = 255;

const POWERS: [u8; 2 * ORDER] = powers();
const LOGARITHMS: [u8; 256] = logarithms();

const fn powers() -> [u8; 2 * ORDER] {
    let mut table = [0; 2 * ORDER];
    let mut value: u16 = 1;
    let mut index = 0;
    while index < 2 * ORDER {
        table[index] = value as u8;
        value <<= 1;
        if value > 0xFF {
            value ^= POLYNOMIAL;
        }
        index += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let mut table = [0; 256];
    let mut exponent = 0;
    while exponent < ORDER {
        table[POWERS[exponent] as usize] = exponent as u8;
        exponent += 1;
    }
    table
}

/// Returns the product.
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[a as usize] as usize + LOGARITHMS[b as usize] as usize]
}

/// Returns the quotient; `divisor` must not be zero.
pub(crate) const fn divide(a: u8, divisor: u8) -> u8 {
    assert!(divisor != 0, "nothing is divided by zero");
    if a == 0 {
        return 0;
    }
    POWERS[LOGARITHMS[a as usize] as usize + ORDER - LOGARITHMS[divisor as usize] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;
    use reed_solomon_erasure::galois_8;

    #[test]
    fn field_agrees_with_another_library() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                assert_eq!(multiply(a, b), galois_8::mul(a, b), "{a} times {b}");
                if b != 0 {
                    assert_eq!(divide(a, b), galois_8::div(a, b), "{a} over {b}");
                }
            }
        }
    }
}
