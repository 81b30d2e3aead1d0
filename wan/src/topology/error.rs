//! Why a topology was refused.

/// Why a topology file was refused; one line that says what, where and what would be right.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct TopologyError {
    /// Line of the file, or the path of the key, e.g. `pair[2].rtt`.
    pub place: String,
    /// What is wrong there and what would be right.
    pub problem: String,
}
