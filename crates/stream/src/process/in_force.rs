//! The configuration that a process runs by, in its metrics: an observer with the file can tell
//! whether the process has taken it over.

use std::cell::Cell;

use prometheus_client::metrics::gauge::Gauge;
use sha2::{Digest as _, Sha256};
use tradewind_telemetry::Registry;

/// The configuration that is in force, and whether the last reload was applied.
#[derive(Debug)]
pub(super) struct InForce {
    hash: Gauge,
    is_successful: Gauge,
    is_config_refused: Cell<bool>,
    is_beside_refused: Cell<bool>,
}

impl InForce {
    /// Creates that of a process that began with the file `text`.
    pub(super) fn new(text: &str) -> Self {
        let it = Self {
            hash: Gauge::default(),
            is_successful: Gauge::default(),
            is_config_refused: Cell::new(false),
            is_beside_refused: Cell::new(false),
        };
        it.applied(text);
        it
    }

    /// Returns whether this file was the last that was wholly applied.
    pub(super) fn is_of(&self, text: &str) -> bool {
        self.hash.get() == config_hash(text)
    }

    /// Takes in that all of a file is applied, and the files that it names.
    pub(super) fn applied(&self, text: &str) {
        self.hash.set(config_hash(text));
        self.applied_in_part();
    }

    /// Takes in that a file was applied, but for keys that only the next process applies.
    pub(super) fn applied_in_part(&self) {
        self.is_config_refused.set(false);
        self.is_beside_refused.set(false);
        self.show();
    }

    /// Takes in that the file was refused.
    pub(super) fn refused(&self) {
        self.is_config_refused.set(true);
        self.show();
    }

    /// Takes in whether files beside it were applied, or refused.
    pub(super) fn read_beside(&self, is_applied: bool) {
        self.is_beside_refused.set(!is_applied);
        self.show();
    }

    fn show(&self) {
        let is_refused = self.is_config_refused.get() || self.is_beside_refused.get();
        self.is_successful.set(i64::from(!is_refused));
    }

    /// Adds the metrics to those of `program`: `relay` or `gateway`.
    pub(super) fn register(&self, program: &str, registry: &Registry) {
        registry.register(|metrics| {
            let metrics = metrics.sub_registry_with_prefix(program);
            let help = "Hash of the last configuration file that was wholly applied";
            metrics.register("config_hash", help, self.hash.clone());
            let help = "1 if the last reload was applied, 0 if it was refused";
            let name = "config_last_reload_successful";
            metrics.register(name, help, self.is_successful.clone());
        });
    }
}

/// Returns the hash of a configuration file: the first 48 bits of its SHA-256, which are exact in
/// the numbers of Prometheus.
#[must_use]
pub fn config_hash(text: &str) -> i64 {
    let hash = Sha256::digest(text);
    hash.iter().take(6).fold(0, |all, byte| (all << 8) | i64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_is_the_start_of_sha_256() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(config_hash("abc"), 0xba78_16bf_8f01);
        assert_ne!(config_hash("workers = 1"), config_hash("workers = 2"));
    }
}
