//! What the kernel knows about one TCP connection: `TCP_INFO`.
//!
//! The kernel's structure grew over the years, so it is read by its length: a field that the
//! running kernel does not give is `None`. Offsets are those of `struct tcp_info` in
//! `linux/tcp.h`, which are part of the kernel's interface and never move.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Room for the structure as it may grow; Linux 6.18 gives 280 bytes.
const ROOM: usize = 512;
/// `TCPI_OPT_TIMESTAMPS`: the connection carries timestamps, 12 bytes a segment.
const OPTION_TIMESTAMPS: u8 = 1;
/// `TCP_INFINITE_SSTHRESH`: no loss or delay has ended slow start.
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;

/// A connection's figures at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// Whether segments carry the timestamp option.
    pub timestamps: bool,
    /// Payload bytes of a full segment, options taken off.
    pub send_mss: u32,
    /// Segments sent and not acknowledged.
    pub unacked: u32,
    /// Smoothed round-trip time; `None` before the first sample.
    pub smoothed_rtt: Option<Duration>,
    /// Least round-trip time the kernel saw lately (RFC 6298 samples, five minutes by default).
    pub min_rtt: Option<Duration>,
    /// Congestion window, in segments.
    pub congestion_window: u32,
    /// Where slow start ends, in segments; `None` while nothing has ended it.
    pub slow_start_threshold: Option<u32>,
    /// Segments retransmitted over the connection's life, SYNs included.
    pub total_retransmits: u32,
    /// Payload bytes acknowledged by the peer (Linux 4.1).
    pub bytes_acked: Option<u64>,
    /// Payload bytes received in order (Linux 4.1).
    pub bytes_received: Option<u64>,
    /// Payload bytes in the socket's buffer that were never sent (Linux 4.6).
    pub not_sent: Option<u32>,
    /// The most recent delivery rate in bytes per second (Linux 4.9).
    pub delivery_rate: Option<u64>,
    /// Time spent with data to send (Linux 4.10).
    pub busy: Option<Duration>,
    /// Of this, time in which the peer's window held the sender back (Linux 4.10).
    pub receive_window_limited: Option<Duration>,
    /// Of this, time in which the own send buffer held the sender back (Linux 4.10).
    pub send_buffer_limited: Option<Duration>,
    /// Payload bytes sent, retransmissions included (Linux 4.19).
    pub bytes_sent: Option<u64>,
    /// Payload bytes retransmitted (Linux 4.19).
    pub bytes_retransmitted: Option<u64>,
}

impl TcpInfo {
    /// Reads the figures of `socket`. Cost: one system call of about a microsecond.
    ///
    /// # Errors
    /// When `socket` is no TCP socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut room = [0u8; ROOM];
        let mut length = libc::socklen_t::try_from(size_of_val(&room)).expect("512 fits");
        // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `length`
        // bytes into `room`, which is that long, and tells how many it wrote.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                room.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        let length = usize::try_from(length).unwrap_or(0).min(ROOM);
        Self::parse(&room[..length])
            .ok_or_else(|| io::Error::other(format!("TCP_INFO of {length} bytes is too short")))
    }

    /// Reads the structure as the kernel wrote it; `None` when it is shorter than Linux 2.6's.
    #[must_use]
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(raw.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(raw.get(at..at + 8)?.try_into().ok()?));
        let micros = |value: u64| Duration::from_micros(value);
        let measured = |value: &u32| *value != 0 && *value != u32::MAX;
        Some(Self {
            timestamps: raw.get(5)? & OPTION_TIMESTAMPS != 0,
            send_mss: u32_at(16)?,
            unacked: u32_at(24)?,
            smoothed_rtt: Some(u32_at(68)?).filter(measured).map(|us| micros(us.into())),
            slow_start_threshold: Some(u32_at(76)?)
                .filter(|segments| *segments < INFINITE_SSTHRESH),
            congestion_window: u32_at(80)?,
            total_retransmits: u32_at(100)?,
            bytes_acked: u64_at(120),
            bytes_received: u64_at(128),
            not_sent: u32_at(144),
            min_rtt: u32_at(148).filter(measured).map(|us| micros(us.into())),
            delivery_rate: u64_at(160),
            busy: u64_at(168).map(micros),
            receive_window_limited: u64_at(176).map(micros),
            send_buffer_limited: u64_at(184).map(micros),
            bytes_sent: u64_at(200),
            bytes_retransmitted: u64_at(208),
        })
    }

    /// Payload bytes sent and not yet acknowledged. Exact from Linux 4.19 on, before that counted
    /// in full segments. One byte more or less: SYN and FIN count on some sides.
    #[must_use]
    pub fn bytes_in_flight(&self) -> u64 {
        match (self.bytes_sent, self.bytes_retransmitted, self.bytes_acked) {
            (Some(sent), Some(again), Some(acked)) => {
                (sent + 1).saturating_sub(again).saturating_sub(acked)
            }
            _ => u64::from(self.unacked) * u64::from(self.send_mss),
        }
    }

    /// The congestion window in payload bytes.
    #[must_use]
    pub fn congestion_window_bytes(&self) -> u64 {
        u64::from(self.congestion_window) * u64::from(self.send_mss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn a_connection_tells_its_figures() {
        let (mut near, mut far) = pair();
        near.write_all(&[7; 1000]).unwrap();
        far.read_exact(&mut [0; 1000]).unwrap();
        let sent = TcpInfo::of(&near).unwrap();
        let received = TcpInfo::of(&far).unwrap();
        assert_eq!(sent.bytes_sent, Some(1000));
        assert_eq!(received.bytes_received, Some(1000));
        assert_eq!(sent.total_retransmits, 0);
        assert!(sent.send_mss >= 500 && sent.congestion_window >= 2);
        assert!(sent.min_rtt.unwrap() < Duration::from_secs(1));
        assert_eq!(sent.slow_start_threshold, None);
    }

    #[test]
    fn a_short_structure_of_an_old_kernel_is_read_as_far_as_it_goes() {
        let mut raw = [0u8; 104];
        raw[16..20].copy_from_slice(&1448u32.to_ne_bytes());
        raw[24..28].copy_from_slice(&10u32.to_ne_bytes());
        let info = TcpInfo::parse(&raw).unwrap();
        assert_eq!((info.bytes_acked, info.min_rtt), (None, None));
        assert_eq!(info.bytes_in_flight(), 14_480);
        assert_eq!(TcpInfo::parse(&raw[..100]), None);
    }

    #[test]
    fn what_is_no_tcp_socket_is_refused() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::of(&socket).is_err());
    }
}
