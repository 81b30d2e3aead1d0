//! What can be wrong with a message.

/// Why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end within a field.
    #[error("a message of {found} bytes: `{field}` ends beyond it")]
    Truncated {
        /// Bytes there are.
        found: usize,
        /// The field.
        field: &'static str,
    },
    /// Bytes follow a message of fixed length.
    #[error("{0} bytes after the end of a message")]
    Trailing(usize),
    /// No such message.
    #[error("message {0:#04x}: no such kind")]
    Kind(u8),
    /// A field holds what it cannot mean.
    #[error("`{field}` is {value}: expected {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: u64,
        /// What would be right.
        expected: &'static str,
    },
}
