//! Errors of the message parser.

/// The reason why bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes end within a field.
    #[error("a message of {found} bytes: `{field}` ends beyond it")]
    Truncated {
        /// The length of the message.
        found: usize,
        /// The field.
        field: &'static str,
    },
    /// Bytes follow a message of fixed length.
    #[error("{0} bytes after the end of a message")]
    Trailing(usize),
    /// The kind is unknown.
    #[error("message {0:#04x}: no such kind")]
    Kind(u8),
    /// A field has a value that is not allowed.
    #[error("`{field}` is {value}: expected {expected}")]
    Field {
        /// The field.
        field: &'static str,
        /// The value.
        value: u64,
        /// The allowed values.
        expected: &'static str,
    },
}
