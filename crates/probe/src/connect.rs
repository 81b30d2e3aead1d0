//! TCP connections to named targets, with errors that name the target.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::net::{TcpSocket, TcpStream, lookup_host};
use tokio::time::timeout;

use crate::ProbeError;
use crate::error::in_words;

/// Returns whether `target` has the form of a host and a port; the host is not checked.
fn is_host_and_port(target: &str) -> bool {
    let Some((host, port)) = target.rsplit_once(':') else { return false };
    // An IPv6 address without brackets ends in what looks like a port.
    let bare_v6 = host.contains(':') && !host.starts_with('[');
    let digits = port.bytes().all(|byte| byte.is_ascii_digit());
    !host.is_empty() && !bare_v6 && digits && port.parse::<u16>().is_ok()
}

/// The hosts file of this machine.
const HOSTS: &str = "/etc/hosts";

/// Returns `target` in a form that the system's resolver does not complete by a search list: with a
/// dot after the name, unless it is an address or is in the hosts file, whose names have no final
/// dot.
fn absolute(target: &str, hosts: &str) -> String {
    let (host, port) = target.rsplit_once(':').unwrap_or((target, ""));
    let is_address = host.starts_with('[') || host.parse::<IpAddr>().is_ok();
    let lines = hosts.lines().filter_map(|line| line.split('#').next());
    let is_there = lines
        .flat_map(|line| line.split_whitespace().skip(1))
        .any(|name| name.eq_ignore_ascii_case(host));
    if is_address || is_there || host.ends_with('.') {
        target.to_owned()
    } else {
        format!("{host}.:{port}")
    }
}

/// Resolves `target`, a `host:port`, to its first address.
pub(crate) async fn resolve(target: &str, limit: Duration) -> Result<SocketAddr, ProbeError> {
    let failed = |cause: String| ProbeError::Resolve { target: target.to_owned(), cause };
    if !is_host_and_port(target) {
        return Err(ProbeError::Target { target: target.to_owned() });
    }
    let hosts = std::fs::read_to_string(HOSTS).unwrap_or_default();
    match timeout(limit, lookup_host(absolute(target, &hosts))).await {
        Err(_) => Err(failed("the resolver did not answer in time".to_owned())),
        Ok(Err(error)) => Err(failed(error.to_string())),
        Ok(Ok(mut addresses)) => {
            addresses.next().ok_or_else(|| failed("the name has no address".to_owned()))
        }
    }
}

/// Opens a connection to `address` that is reset when dropped, without lingering: a probe leaves no
/// state in either kernel.
pub(crate) async fn open(address: SocketAddr, limit: Duration) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_zero_linger()?;
    match timeout(limit, socket.connect(address)).await {
        Ok(result) => result,
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Opens a connection like [`open`], with the target's name in the error.
pub(crate) async fn open_named(
    target: &str,
    address: SocketAddr,
    limit: Duration,
) -> Result<TcpStream, ProbeError> {
    open(address, limit)
        .await
        .map_err(|error| ProbeError::Connect { target: target.to_owned(), cause: in_words(&error) })
}

/// Returns the current time, in seconds since the Unix epoch.
pub(crate) fn unix_time_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_list_is_not_used() {
        let hosts =
            "127.0.0.1 localhost # loop\n192.0.2.1 Relay-1.example relay-1\n# 192.0.2.2 old\n";
        for (target, expected) in [
            ("typo.example:7000", "typo.example.:7000"),
            ("typo.example.:7000", "typo.example.:7000"),
            ("old:1", "old.:1"),
            ("loop:1", "loop.:1"),
            ("localhost:1", "localhost:1"),
            ("relay-1.EXAMPLE:1", "relay-1.EXAMPLE:1"),
            ("192.0.2.1:1", "192.0.2.1:1"),
            ("[2001:db8::1]:1", "[2001:db8::1]:1"),
        ] {
            assert_eq!(absolute(target, hosts), expected);
        }
    }
}
