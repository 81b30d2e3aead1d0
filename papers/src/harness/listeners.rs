//! Readiness of a foreign program on a host of the lab: whether it listens, according to the
//! kernel's tables of sockets (proc(5), `/proc/net/tcp`).
//!
//! A test by binding could block the program's own port, and a test by dialling would be its first
//! connection.

use std::fs;

use tradewind_units::HostId;

use super::LabContext;
use super::ProcessError;

/// The kernel's number of TCP's state LISTEN, in hexadecimal.
const TCP_LISTEN: &str = "0A";

/// A port to listen at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Port {
    Tcp(u16),
    Udp(u16),
}

impl Port {
    /// Returns the tables in which it would be listed; the second is missing without IPv6.
    const fn tables(self) -> [&'static str; 2] {
        match self {
            Self::Tcp(_) => ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"],
            Self::Udp(_) => ["/proc/thread-self/net/udp", "/proc/thread-self/net/udp6"],
        }
    }

    /// Returns whether a table has a listener at this port, at any address.
    fn is_in(self, table: &str) -> bool {
        table.lines().any(|line| {
            let mut words = line.split_whitespace().skip(1);
            let (Some(local), _, Some(state)) = (words.next(), words.next(), words.next()) else {
                return false;
            };
            let port = local.rsplit_once(':').map(|(_, port)| u16::from_str_radix(port, 16));
            match self {
                Self::Tcp(wanted) => port == Some(Ok(wanted)) && state == TCP_LISTEN,
                Self::Udp(wanted) => port == Some(Ok(wanted)),
            }
        })
    }
}

/// Returns whether a program listens at a port of a host.
///
/// # Errors
/// When the host does not exist.
pub(crate) fn listens(
    context: &LabContext,
    host: &HostId,
    port: Port,
) -> Result<bool, ProcessError> {
    let read = || port.tables().map(|path| fs::read_to_string(path).unwrap_or_default());
    Ok(context.lab.enter(host, read)?.iter().any(|table| port.is_in(table)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:3294 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2318 1 0
   1: 0100007F:9C40 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 2319 1 0
";
    const UDP6: &str = "\
  sl  local_address                         remote_address                        st tx_queue
   7: 00000000000000000000000000000000:74CC 00000000000000000000000000000000:0000 07 00000000
";

    #[test]
    fn only_listening_sockets_are_found() {
        assert!(Port::Tcp(12_948).is_in(TCP));
        assert!(!Port::Tcp(40_000).is_in(TCP) && !Port::Tcp(80).is_in(TCP));
        assert!(Port::Udp(29_900).is_in(UDP6) && !Port::Udp(29_901).is_in(UDP6));
        assert!(!Port::Udp(29_900).is_in("") && !Port::Tcp(1).is_in("nonsense\n1 2 3 4\n"));
    }
}
