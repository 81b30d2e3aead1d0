//! Logs, metrics and health of a Tradewind process.
