//! Failures of flows, in messages that name the hop and the cause:
//! `relay 2 (10.0.0.3:7000): dial 10.0.0.9:80: connection refused`.

use std::io;
use std::net::SocketAddr;

use tradewind_grant::{GrantError, Status};

use crate::dial::local_ports::{self, EXHAUSTED};

/// A failure in this process, as it is reported upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its class.
    pub status: Status,
    /// The attempt and its result, in one line.
    pub message: String,
    /// True if a leg to a relay failed, and not the last leg, to the destination.
    pub is_of_overlay: bool,
    /// The message for the other side, where `message` is for this host's log alone.
    peer_message: Option<String>,
}

impl Failure {
    /// Creates a failure that is not of a leg to a relay.
    pub fn new(status: Status, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), is_of_overlay: false, peer_message: None }
    }

    /// Creates the same, of a leg to a relay.
    pub fn of_overlay(self) -> Self {
        Self { is_of_overlay: true, ..self }
    }

    /// Returns true if a destination's whole network is unreachable (ENETUNREACH), by the message,
    /// which every relay passes on.
    pub fn is_of_network(&self) -> bool {
        self.status == Status::Unreachable && self.message.ends_with("network is unreachable")
    }

    /// Has `peer_message` sent to the other side in place of the message.
    pub(crate) fn with_peer_message(self, peer_message: impl Into<String>) -> Self {
        Self { peer_message: Some(peer_message.into()), ..self }
    }

    /// Returns the message for the other side.
    pub fn peer_message(&self) -> &str {
        self.peer_message.as_ref().unwrap_or(&self.message)
    }

    /// Prefixes both messages with the hop that failed.
    pub fn of(self, who: &str) -> Self {
        let before = |text: String| format!("{who}: {text}");
        Self { message: before(self.message), peer_message: self.peer_message.map(before), ..self }
    }

    /// Creates the failure of a dial to `address`.
    pub(crate) fn dial(address: SocketAddr, error: &io::Error) -> Self {
        use io::ErrorKind as Kind;
        let status = match error.kind() {
            Kind::ConnectionRefused => Status::ConnectionRefused,
            Kind::TimedOut => Status::TimedOut,
            Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
                Status::Unreachable
            }
            Kind::AddrNotAvailable => Status::Overloaded,
            _ if out_of_descriptors(error) => Status::Overloaded,
            _ => Status::Internal,
        };
        let why =
            if local_ports::are_exhausted(error) { EXHAUSTED.to_owned() } else { plain(error) };
        Self::new(status, format!("dial {address}: {why}"))
    }
}

impl From<GrantError> for Failure {
    fn from(error: GrantError) -> Self {
        Self::new(Status::from(&error), error.to_string())
    }
}

/// Returns an error of the system in plain words: `connection refused`, without number or capital.
pub fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match letters.next() {
        Some(first) => first.to_lowercase().chain(letters).collect(),
        None => error.kind().to_string(),
    }
}

/// Returns true if the error says that this process or the system has no descriptor or buffer left.
pub(crate) fn out_of_descriptors(error: &io::Error) -> bool {
    /// `ENFILE`, `EMFILE`, `ENOMEM` and `ENOBUFS`, which the standard library does not name.
    const NUMBERS: [i32; 4] = [23, 24, 12, 105];
    error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_are_plain_words() {
        let refused = io::Error::from_raw_os_error(111);
        let failure = Failure::dial("10.0.0.9:80".parse().unwrap(), &refused);
        assert_eq!(failure.message, "dial 10.0.0.9:80: connection refused");
        assert_eq!(failure.status, Status::ConnectionRefused);
        let of = |number| {
            Failure::dial("10.0.0.9:80".parse().unwrap(), &io::Error::from_raw_os_error(number))
        };
        assert!(of(101).is_of_network() && !of(113).is_of_network(), "ENETUNREACH, EHOSTUNREACH");
        let exhausted = of(99);
        assert_eq!(exhausted.status, Status::Overloaded, "EADDRNOTAVAIL");
        assert_eq!(exhausted.message, format!("dial 10.0.0.9:80: {EXHAUSTED}"));
        assert_eq!(plain(&io::Error::from(io::ErrorKind::TimedOut)), "timed out");
    }
}
