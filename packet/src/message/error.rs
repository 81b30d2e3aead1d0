//! What can be wrong with a message.

use super::VERSION;

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
    /// Another version.
    #[error("version {0}: {VERSION} is spoken here")]
    Version(u8),
    /// No such message.
    #[error("message {0}: there are 1 to 11")]
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
