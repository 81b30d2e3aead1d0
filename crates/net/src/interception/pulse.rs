//! What shows the kernel that the process behind some rules goes on: when it hangs or is frozen the rules lapse by themselves, and packets go their old
//! way.
//!
//! A beat is a datagram to loopback that has the rules' own mark, one for each family. A rule of the same table notes the family in a set, where it
//! stays for [`LAPSE`], and drops the datagram; the others hold for families in the set. So no second process has to run, and nobody can beat without
//! the right to set marks (CAP_NET_ADMIN; since Linux 5.17 CAP_NET_RAW, too).

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};

use tradewind_units::Duration;

use crate::error::{NetError, Result};
use crate::tcp::set_mark;

/// How long rules hold after a beat. Chosen: as long as a far endpoint may be silent; four beats.
pub const LAPSE: Duration = Duration::from_millis(800);
/// Time between two beats of those who are to go on without a break.
pub const BEAT_EVERY: Duration = Duration::from_millis(200);
/// Where beats go: `discard`, where nobody listens (RFC 863).
const PORT: u16 = 9;
/// Before all rules that might drop what leaves.
const PRIORITY: &str = "raw - 10";

/// What a rule asks for that is to hold only while beats are felt, and one that is to hold only while they are not.
pub(super) const IS_FELT: &str = "meta nfproto @pulse";
pub(super) const IS_NOT_FELT: &str = "meta nfproto != @pulse";
/// Behind it a chain holds only while beats are felt.
pub(super) const OR_RETURN: &str = "meta nfproto != @pulse return";

/// What a table needs to feel beats that have `mark`.
pub(super) fn felt(mark: u32) -> [String; 2] {
    let lapse = LAPSE.as_millis();
    [
        format!("set pulse {{ type nf_proto; flags dynamic, timeout; timeout {lapse}ms; }}"),
        format!(
            "chain beats {{ type filter hook output priority {PRIORITY}; policy accept; oif lo meta mark {mark:#x} udp dport {PORT} update @pulse {{ meta nfproto }} drop; }}"
        ),
    ]
}

/// The beats of one table, from the network namespace of the thread that made it.
#[derive(Debug)]
pub struct Pulse {
    beats: Vec<(UdpSocket, SocketAddr)>,
    is_felt: AtomicBool,
}

impl Pulse {
    /// For rules of IPv4, and of IPv6, whose mark is `mark`.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, or a family that the host does not have.
    pub(super) fn new(families: [bool; 2], mark: u32) -> Result<Self> {
        let hosts: [(IpAddr, bool); 2] =
            [(Ipv4Addr::LOCALHOST.into(), families[0]), (Ipv6Addr::LOCALHOST.into(), families[1])];
        let beats = hosts.into_iter().filter(|(_, is_there)| *is_there).map(|(host, _)| {
            let socket = UdpSocket::bind((host, 0))?;
            socket.set_nonblocking(true)?;
            set_mark(&socket, mark)?;
            Ok((socket, SocketAddr::from((host, PORT))))
        });
        let beats: std::io::Result<_> = beats.collect();
        let beats = beats.map_err(|source| {
            NetError::system("make a socket that shows that this goes on", source)
        })?;
        Ok(Self { beats, is_felt: AtomicBool::new(false) })
    }

    /// Has the rules hold for [`LAPSE`] from now on.
    ///
    /// # Errors
    /// When the table is gone, or loopback is down.
    pub fn beat(&self) -> Result<()> {
        let beaten = self.send();
        self.is_felt.store(beaten.is_ok(), Ordering::Relaxed);
        beaten
    }

    /// Whether the rules felt the last beat; not whether it was long ago.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.is_felt.load(Ordering::Relaxed)
    }

    fn send(&self) -> Result<()> {
        for (socket, to) in &self.beats {
            let source = match socket.send_to(&[], to) {
                // Whose datagram a rule drops is told so: it was felt, for nobody's rules come before.
                Err(error) if error.kind() == ErrorKind::PermissionDenied => continue,
                Err(error) => error,
                Ok(_) => std::io::Error::other("no rule felt it"),
            };
            return Err(NetError::system(format!("show rules that this goes on, at {to}"), source));
        }
        Ok(())
    }
}
