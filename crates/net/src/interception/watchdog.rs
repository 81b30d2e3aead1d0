//! Heartbeats of the process that owns some rules: when it hangs or is frozen the rules lapse by
//! themselves, and packets are forwarded as before.
//!
//! A heartbeat is a datagram to loopback with the rules' own mark, one for each family. A rule of
//! the same table adds the family to a set, where it stays for [`LAPSE`], and drops the datagram;
//! the other rules hold for families in the set. So no second process has to run, and nobody can
//! send heartbeats without the right to set marks (CAP_NET_ADMIN; since Linux 5.17 CAP_NET_RAW,
//! too).

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_units::Duration;

use crate::error::{NetError, Result};
use crate::tcp::set_mark;

/// Time for which rules hold after a heartbeat. Chosen: as long as a remote endpoint may be silent;
/// four heartbeats.
pub const LAPSE: Duration = Duration::from_millis(800);
/// Time between two heartbeats of a process that goes on.
pub const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(200);
/// The destination port of heartbeats: `discard`, without a listener (RFC 863).
const PORT: u16 = 9;
/// Priority before all rules that might drop outgoing packets.
const PRIORITY: &str = "raw - 10";

/// Conditions of rules that hold only while heartbeats arrive, and only while they do not.
pub(super) const IS_FELT: &str = "meta nfproto @heartbeat";
pub(super) const IS_NOT_FELT: &str = "meta nfproto != @heartbeat";
/// A statement after which a chain holds only while heartbeats arrive.
pub(super) const OR_RETURN: &str = "meta nfproto != @heartbeat return";

/// Returns the parts of a table that receive heartbeats with `mark`.
pub(super) fn felt(mark: u32) -> [String; 2] {
    let lapse = LAPSE.as_millis();
    [
        format!("set heartbeat {{ type nf_proto; flags dynamic, timeout; timeout {lapse}ms; }}"),
        format!(
            "chain heartbeats {{ type filter hook output priority {PRIORITY}; policy accept; \
             oif lo meta mark {mark:#x} udp dport {PORT} update @heartbeat {{ meta nfproto }} \
             drop; }}"
        ),
    ]
}

/// The heartbeats of one table, sent from the network namespace of the thread that created it.
#[derive(Debug)]
pub struct Watchdog {
    heartbeats: Vec<(UdpSocket, SocketAddr)>,
    is_felt: AtomicBool,
}

impl Watchdog {
    /// Creates the heartbeats of rules for IPv4, and for IPv6, whose mark is `mark`.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or for a family that the host does not have.
    pub(super) fn new(families: [bool; 2], mark: u32) -> Result<Self> {
        let hosts: [(IpAddr, bool); 2] =
            [(Ipv4Addr::LOCALHOST.into(), families[0]), (Ipv6Addr::LOCALHOST.into(), families[1])];
        let heartbeats = hosts.into_iter().filter(|(_, is_there)| *is_there).map(|(host, _)| {
            let socket = UdpSocket::bind((host, 0))?;
            socket.set_nonblocking(true)?;
            set_mark(&socket, mark)?;
            Ok((socket, SocketAddr::from((host, PORT))))
        });
        let heartbeats: std::io::Result<_> = heartbeats.collect();
        let heartbeats = heartbeats.map_err(|source| {
            NetError::system("make a socket that shows that this goes on", source)
        })?;
        Ok(Self { heartbeats, is_felt: AtomicBool::new(false) })
    }

    /// Sends a heartbeat: the rules hold for [`LAPSE`] from now on.
    ///
    /// # Errors
    /// When the table no longer exists, or loopback is down.
    pub fn heartbeat(&self) -> Result<()> {
        let beaten = self.send();
        self.is_felt.store(beaten.is_ok(), Ordering::Relaxed);
        beaten
    }

    /// Returns whether the last heartbeat arrived, however long ago it was.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.is_felt.load(Ordering::Relaxed)
    }

    fn send(&self) -> Result<()> {
        for (socket, to) in &self.heartbeats {
            let source = match socket.send_to(&[], to) {
                // The sender of a datagram that a rule drops gets this error: the heartbeat
                // arrived, as no other rules come before.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => continue,
                Err(error) => error,
                Ok(_) => std::io::Error::other("no rule felt it"),
            };
            return Err(NetError::system(format!("show rules that this goes on, at {to}"), source));
        }
        Ok(())
    }
}
