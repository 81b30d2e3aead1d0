//! Errors of measurements: one line each, with the target and the cause.

use std::io;
use std::net::SocketAddr;

/// The reason why a probe, or the responder that answers it, failed.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// An invalid option.
    #[error("probe option {option}: {expected}, not `{value}`")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The accepted values.
        expected: String,
        /// The given value.
        value: String,
    },
    /// The target is no `host:port`.
    #[error(
        "probe of {target}: expected HOST:PORT, such as `192.0.2.7:7100` or `[2001:db8::7]:7100`"
    )]
    Target {
        /// The target as given.
        target: String,
    },
    /// The target's name has no address.
    #[error("probe of {target}: cannot be resolved: {cause}")]
    Resolve {
        /// The target as given.
        target: String,
        /// The resolver's error.
        cause: String,
    },
    /// No connection was established.
    #[error("probe of {target}: {cause}")]
    Connect {
        /// The target as given.
        target: String,
        /// The error, e.g. `connection refused`.
        cause: String,
    },
    /// The other side is no responder of ours, or one of another version.
    #[error("probe of {target}: {cause}")]
    Protocol {
        /// The target as given.
        target: String,
        /// Problem of its response.
        cause: String,
    },
    /// The responder refused the test.
    #[error("probe of {target}: the responder refused: {reason}")]
    Refused {
        /// The target as given.
        target: String,
        /// The responder's reason.
        reason: String,
    },
    /// The test broke off.
    #[error("probe of {target}: the test broke off after {after_s:.1} s: {cause}")]
    BrokeOff {
        /// The target as given.
        target: String,
        /// Time that the test had run, in seconds.
        after_s: f64,
        /// The cause.
        cause: String,
    },
    /// The local kernel refused a setting.
    #[error("probe of {target}: {setting} cannot be set here: {cause}")]
    Setting {
        /// The target as given.
        target: String,
        /// The setting.
        setting: String,
        /// The kernel's answer.
        cause: io::Error,
    },
    /// The responder cannot listen.
    #[error("probe responder cannot listen on {address}: {cause}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The system's error.
        cause: io::Error,
    },
}

impl ProbeError {
    /// Returns whether what its user wrote is at fault, and not the network or this host.
    #[must_use]
    pub const fn is_of_configuration(&self) -> bool {
        matches!(self, Self::Option { .. } | Self::Target { .. })
    }
}

/// Returns the meaning of `error` in short words, without error numbers.
pub(crate) fn in_words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        io::ErrorKind::ConnectionReset => "connection reset".to_owned(),
        io::ErrorKind::TimedOut => "no answer in time".to_owned(),
        io::ErrorKind::HostUnreachable => "host unreachable".to_owned(),
        io::ErrorKind::NetworkUnreachable => "network unreachable".to_owned(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe => {
            "connection closed by the other side".to_owned()
        }
        _ => error.to_string(),
    }
}
