//! The coefficient of each packet in each repair packet, and the inverse matrices that solve for
//! lost packets.
//!
//! The coefficients are a Cauchy matrix, `1 / (x_r + y_c)` with all `x` and `y` different, whose
//! columns are scaled so that the first row is all ones. Every square submatrix can be inverted:
//! that is why any k packets of a block suffice, whichever columns are in use. The first repair
//! packet is then the XOR of all packets, which costs least and is the only one in most blocks.

use crate::field;

/// Most packets of one block (k).
pub const MAX_SOURCES: usize = 32;
/// Most repair packets of one block (r).
pub const MAX_REPAIRS: usize = 8;

const COEFFICIENTS: [[u8; MAX_SOURCES]; MAX_REPAIRS] = coefficients();

const fn coefficients() -> [[u8; MAX_SOURCES]; MAX_REPAIRS] {
    let mut table = [[0; MAX_SOURCES]; MAX_REPAIRS];
    let first = MAX_SOURCES as u8;
    let mut row = 0;
    while row < MAX_REPAIRS {
        let mut column = 0;
        while column < MAX_SOURCES {
            let (x, y) = (first + row as u8, column as u8);
            table[row][column] = field::divide(first ^ y, x ^ y);
            column += 1;
        }
        row += 1;
    }
    table
}

/// Returns the coefficient of the packet in `column` in repair packet `row`.
pub(crate) fn coefficient(row: usize, column: usize) -> u8 {
    COEFFICIENTS[row][column]
}

/// A square matrix of up to [`MAX_REPAIRS`] rows; rows and columns beyond its size are unused.
type Square = [[u8; MAX_REPAIRS]; MAX_REPAIRS];

/// Returns the inverse of the submatrix with these rows and columns, equal in number.
///
/// Gauss-Jordan elimination without pivoting: no leading submatrix of a Cauchy matrix is singular.
pub(crate) fn inverse(rows: &[usize], columns: &[usize]) -> Square {
    let size = rows.len();
    debug_assert_eq!(size, columns.len(), "a square part");
    let mut left: Square = Default::default();
    let mut right: Square = Default::default();
    for (i, &row) in rows.iter().enumerate() {
        for (j, &column) in columns.iter().enumerate() {
            left[i][j] = coefficient(row, column);
        }
        right[i][i] = 1;
    }
    for pivot in 0..size {
        let divisor = left[pivot][pivot];
        for j in 0..size {
            left[pivot][j] = field::divide(left[pivot][j], divisor);
            right[pivot][j] = field::divide(right[pivot][j], divisor);
        }
        let (left_pivot, right_pivot) = (left[pivot], right[pivot]);
        for i in (0..size).filter(|&i| i != pivot) {
            let factor = left[i][pivot];
            for j in 0..size {
                left[i][j] ^= field::multiply(factor, left_pivot[j]);
                right[i][j] ^= field::multiply(factor, right_pivot[j]);
            }
        }
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_matrix_has_no_zero() {
        assert!(COEFFICIENTS[0].iter().all(|&value| value == 1));
        assert!(COEFFICIENTS.iter().flatten().all(|&value| value != 0));
    }

    #[test]
    fn matrix_inverse_is_right() {
        let (rows, columns) = ([0, 2, 3, 7], [1, 4, 30, 31]);
        let inverse = inverse(&rows, &columns);
        for (i, line) in inverse.iter().enumerate().take(4) {
            for (j, &column) in columns.iter().enumerate() {
                let products =
                    (0..4).map(|n| field::multiply(line[n], coefficient(rows[n], column)));
                let sum = products.fold(0, |sum, product| sum ^ product);
                assert_eq!(sum, u8::from(i == j), "row {i}, column {j}");
            }
        }
    }
}
