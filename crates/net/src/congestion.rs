//! The congestion control of one TCP socket: `TCP_CONGESTION`.

use std::io;
use std::os::fd::AsFd;

use socket2::{Domain, SockRef, Socket, Type};

use crate::{capability, sysctl};

/// Longest name, without the closing zero: the kernel's `TCP_CA_NAME_MAX` less one.
const MAX_NAME_BYTES: usize = 15;

/// Returns whether `name` has the form of a congestion control's name: `cubic`, `bbr`, `reno` and
/// the like.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=MAX_NAME_BYTES).contains(&name.len()) && name.chars().all(allowed)
}

/// Sets the congestion control `name` on `socket`.
///
/// # Errors
/// When the kernel does not have it, or does not allow it to unprivileged processes.
pub fn set(socket: &impl AsFd, name: &str) -> io::Result<()> {
    if !is_name(name) {
        let expected = "1 to 15 letters, digits, `-` or `_`";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("name of {expected}")));
    }
    let set = SockRef::from(socket).set_tcp_congestion(name.as_bytes());
    set.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(error.kind(), unknown()),
        _ => error,
    })
}

/// Returns whether this kernel allows `name` only to privileged processes. A module that has to be
/// loaded first is loaded, if this process may.
#[must_use]
pub fn is_restricted(name: &str) -> bool {
    if let Ok(socket) = Socket::new(Domain::IPV4, Type::STREAM, None) {
        let _loaded = set(&socket, name);
    }
    let allowed = sysctl::get("net.ipv4.tcp_allowed_congestion_control");
    allowed.is_ok_and(|allowed| !allowed.split_whitespace().any(|allowed| allowed == name))
}

/// Returns the error text for an unknown name, with the available ones.
fn unknown() -> String {
    let available = capability::congestion_controls().join(", ");
    format!("this kernel has no such congestion control, only {available}")
}

/// Returns the name of the congestion control that `socket` uses.
///
/// # Errors
/// When `socket` is no TCP socket.
pub fn of(socket: &impl AsFd) -> io::Result<String> {
    let name = SockRef::from(socket).tcp_congestion()?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    Ok(String::from_utf8_lossy(&name[..end]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reno_is_available_and_nonsense_is_not() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        set(&socket, "reno").unwrap();
        assert_eq!(of(&socket).unwrap(), "reno");
        for name in ["", "no-such-control", "a-name-of-sixteen", "a\0b"] {
            assert!(set(&socket, name).is_err(), "{name:?}");
        }
        let line = set(&socket, "wind").unwrap_err().to_string();
        assert!(
            line.contains("no such congestion control, only ") && line.contains("reno"),
            "{line}"
        );
    }
}
