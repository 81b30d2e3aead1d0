//! The error for a refused topology file.

/// The reason why a topology file was refused: one line with the place, the error and the expected
/// form.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TopologyError {
    /// The line of the file, or the path of the key, e.g. `pair[2].rtt`.
    pub place: String,
    /// The error, and the expected form.
    pub problem: String,
}
