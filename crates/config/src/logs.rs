//! The configuration of the access log and the audit log.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_units::Bytes;

use crate::ConfigError;

/// The destination of lines, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogTarget {
    /// Appended to a file.
    File(PathBuf),
    /// Sent to a Unix datagram socket, a datagram a line.
    Unix(PathBuf),
    /// Sent to a UDP port, a datagram a line.
    Udp(SocketAddr),
}

/// A text that is no [`LogTarget`].
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error(
    "expected a file such as `/var/log/x.log`, `unix:/run/x.sock` or `udp:127.0.0.1:514`, not `{0}`"
)]
pub struct BadTarget(String);

impl FromStr for LogTarget {
    type Err = BadTarget;

    fn from_str(text: &str) -> Result<Self, BadTarget> {
        let bad = || BadTarget(text.to_owned());
        if let Some(address) = text.strip_prefix("udp:") {
            return address.parse().map(Self::Udp).map_err(|_| bad());
        }
        let (make, path): (fn(PathBuf) -> Self, _) = match text.strip_prefix("unix:") {
            Some(path) => (Self::Unix, path),
            None => (Self::File, text),
        };
        // A relative path depends on the process's working directory, and only says so by `unix:`.
        let is_socket = path.len() < text.len();
        if (is_socket || path.starts_with('/')) && !path.is_empty() && !path.ends_with('/') {
            Ok(make(path.into()))
        } else {
            Err(bad())
        }
    }
}

tradewind_units::text_schema!(
    LogTarget,
    "file or socket",
    "^(udp:.+:[0-9]+|unix:(.*[^/])|/(.*[^/])?)$",
    "/var/log/tradewind/access.log"
);

impl fmt::Display for LogTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Udp(address) => write!(f, "udp:{address}"),
        }
    }
}

/// The access log: a line for each session at its end.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AccessLogConfig {
    /// The file or socket that its lines go to.
    #[serde(deserialize_with = "target")]
    pub to: LogTarget,
    /// Length at which a file is moved to `NAME.1`, at least 10 kB; never when absent.
    #[serde(default)]
    pub rotate_at: Option<Bytes>,
    /// Files kept beside the current one, at most 1000.
    #[serde(default = "default_files")]
    pub keep: u32,
    /// Of sessions that ended in order one in so many is logged; all others are logged always.
    #[serde(default = "all")]
    pub one_in: NonZeroU64,
}

/// The audit log: a line for each session that a relay's rules admit.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AuditLogConfig {
    /// The file or socket that its lines go to. The process never moves or removes the file.
    #[serde(deserialize_with = "target")]
    pub to: LogTarget,
}

/// Returns the default number of files. Chosen: with a length of 100 MB, half a gigabyte in all.
const fn default_files() -> u32 {
    4
}

const fn all() -> NonZeroU64 {
    NonZeroU64::MIN
}

fn target<'de, D: serde::Deserializer<'de>>(text: D) -> Result<LogTarget, D::Error> {
    String::deserialize(text)?.parse().map_err(serde::de::Error::custom)
}

impl AccessLogConfig {
    /// Refuses inconsistent keys.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        /// A shorter file would be rotated every few sessions.
        const MIN: Bytes = Bytes::new(10_000);
        /// Each rotation renames as many files as are retained.
        const MAX_FILES: u32 = 1000;
        if let Some(at) = self.rotate_at {
            if !matches!(self.to, LogTarget::File(_)) {
                let problem = format!("{} is no file; expected none", self.to);
                return Err(ConfigError::new("access_log.rotate_at", problem));
            }
            if at < MIN {
                return Err(ConfigError::new(
                    "access_log.rotate_at",
                    format!("expected at least {MIN}"),
                ));
            }
        }
        if !(1..=MAX_FILES).contains(&self.keep) {
            return Err(ConfigError::new(
                "access_log.keep",
                format!("expected 1 to {MAX_FILES} files"),
            ));
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
    fn access_log_defaults() {
        let config = parsed("to = '/var/log/a.log'").unwrap();
        assert_eq!((config.one_in.get(), config.rotate_at), (1, None));
        let config = parsed("to = '/var/log/a.log'\nrotate_at = '1 MB'\none_in = 100").unwrap();
        assert_eq!((config.rotate_at, config.keep), (Some(Bytes::new(1_000_000)), 4));
        assert_eq!(config.one_in.get(), 100);
    }

    #[test]
    fn target_is_a_file_or_a_socket() {
        for text in [
            "/var/log/a.log",
            "unix:/run/a.sock",
            "unix:a.sock",
            "udp:[::1]:514",
            "udp:192.0.2.1:514",
        ] {
            assert_eq!(text.parse::<LogTarget>().unwrap().to_string(), text);
        }
        for text in
            ["", "a.log", "unix:", "unix:a/", "udp:localhost:514", "udp:192.0.2.1", "/var/log/"]
        {
            let error = text.parse::<LogTarget>().unwrap_err().to_string();
            assert!(error.ends_with(&format!("not `{text}`")), "{error}");
        }
    }

    #[test]
    fn incompatible_keys_are_refused() {
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
