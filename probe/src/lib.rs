//! Measures round-trip times and rates between two hosts.
