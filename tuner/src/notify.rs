//! Telling systemd that the daemon is ready (sd_notify(3)): a datagram to the socket that it names.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Sends `state`, such as `READY=1`, to the socket named `name`; a leading `@` stands for an abstract one.
///
/// # Errors
/// When nobody listens there.
pub fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(hidden) => SocketAddr::from_abstract_name(hidden)?,
        None => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(|_| ())
}

/// Says that the daemon is ready to whoever started it and wants to know (NOTIFY_SOCKET).
pub fn ready() {
    if let Some(name) = std::env::var_os("NOTIFY_SOCKET")
        && let Err(error) = send(&name, "READY=1")
    {
        tracing::warn!(%error, "systemd could not be told");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_arrives_at_an_abstract_socket() {
        let name = format!("tradewind-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let systemd = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "READY=1").unwrap();
        let mut room = [0; 16];
        let length = systemd.recv(&mut room).unwrap();
        assert_eq!(&room[..length], b"READY=1");
        drop(systemd);
        assert!(send(OsStr::new(&format!("@{name}")), "READY=1").is_err());
    }
}
