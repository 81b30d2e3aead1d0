//! d
pub mod carry;
