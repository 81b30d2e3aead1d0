//! The configuration of the access log and the audit log.

use std::num::NonZeroU64;

use serde::Deserialize;
use tradewind_telemetry::output::{LineTarget, Rotation};
use tradewind_units::Bytes;

use crate::RelayError;
use crate::config::refused;

/// The access log: a line for each session at its end.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessLogConfig {
    /// The file or socket that its lines go to.
    #[serde(deserialize_with = "target")]
    pub to: LineTarget,
    /// Length at which a file is rotated; never when absent.
    #[serde(default)]
    pub rotate_at: Option<Bytes>,
    /// Files kept beside the current one.
    #[serde(default = "files_kept")]
    pub keep: u32,
    /// Of sessions that ended in order one in so many is logged; all others are logged always.
    #[serde(default = "all")]
    pub one_in: NonZeroU64,
}

/// The audit log: a line for each session that a relay's rules admit.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AuditLogConfig {
    /// The file or socket that its lines go to. The process never moves or removes the file.
    #[serde(deserialize_with = "target")]
    pub to: LineTarget,
}

/// Returns the default number of files. Chosen: with a length of 100 MB, half a gigabyte in all.
const fn files_kept() -> u32 {
    4
}

const fn all() -> NonZeroU64 {
    NonZeroU64::MIN
}

fn target<'de, D: serde::Deserializer<'de>>(text: D) -> Result<LineTarget, D::Error> {
    String::deserialize(text)?.parse().map_err(serde::de::Error::custom)
}

impl AccessLogConfig {
    pub(super) fn rotation(&self) -> Option<Rotation> {
        let keep = self.keep;
        self.rotate_at.map(|at| Rotation { at_bytes: at.as_u64(), keep })
    }

    /// Refuses inconsistent keys.
    pub(crate) fn check(&self) -> Result<(), RelayError> {
        /// A shorter file would be rotated every few sessions.
        const LEAST: Bytes = Bytes::new(10_000);
        /// Each rotation renames as many files as are kept.
        const MOST_KEPT: u32 = 1000;
        if let Some(at) = self.rotate_at {
            if !matches!(self.to, LineTarget::File(_)) {
                let problem = format!("{} is no file; expected none", self.to);
                return Err(refused("access_log.rotate_at", problem));
            }
            if at < LEAST {
                return Err(refused("access_log.rotate_at", format!("expected at least {LEAST}")));
            }
        }
        if !(1..=MOST_KEPT).contains(&self.keep) {
            return Err(refused("access_log.keep", format!("expected 1 to {MOST_KEPT} files")));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<AccessLogConfig, String> {
        let config: AccessLogConfig = toml::from_str(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn an_access_log_is_told_of_all_sessions_and_never_rotated_unless_said() {
        let config = parsed("to = '/var/log/a.log'").unwrap();
        assert_eq!((config.one_in.get(), config.rotation()), (1, None));
        let config = parsed("to = '/var/log/a.log'\nrotate_at = '1 MB'\none_in = 100").unwrap();
        assert_eq!(config.rotation(), Some(Rotation { at_bytes: 1_000_000, keep: 4 }));
        assert_eq!(config.one_in.get(), 100);
    }

    #[test]
    fn what_does_not_fit_together_is_refused_by_its_key() {
        for (text, key) in [
            ("to = 'udp:127.0.0.1:514'\nrotate_at = '1 MB'", "access_log.rotate_at"),
            ("to = '/var/log/a.log'\nrotate_at = '1 kB'", "access_log.rotate_at"),
            ("to = '/var/log/a.log'\nkeep = 0", "access_log.keep"),
            ("to = 'a.log'", "not `a.log`"),
            ("to = '/var/log/a.log'\none_in = 0", "one_in"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(key), "{error}");
        }
    }
}
