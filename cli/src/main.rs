//! The binary `tradewind`.
fn main() {}
