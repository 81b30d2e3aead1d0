//! The kernel's figures of a TCP connection: `TCP_INFO`.
//!
//! The kernel's structure grew over the years, so it is parsed by its length: a field that the
//! running kernel does not have is `None`. Offsets are those of `struct tcp_info` in `linux/tcp.h`,
//! which are part of the kernel's interface and never move.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use tradewind_units::{Bandwidth, Bytes, Duration, Segments};

/// Buffer size for the structure as it may grow; Linux 6.18 gives 280 bytes.
const BUFFER_BYTES: usize = 512;
/// `TCPI_OPT_TIMESTAMPS`: the connection carries timestamps, 12 bytes a segment.
const OPTION_TIMESTAMPS: u8 = 1;
/// `TCPI_OPT_SYN_DATA`: the peer accepted data in this side's SYN.
const OPTION_SYN_DATA: u8 = 32;
/// Bit of `tcpi_delivery_rate_app_limited`, in the byte that it shares.
const APPLICATION_LIMITED: u8 = 1;

/// A connection's figures at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpInfo {
    /// True if segments carry the timestamp option.
    pub timestamps: bool,
    /// True if data in this side's SYN was accepted (TCP Fast Open).
    pub syn_data: bool,
    /// Payload of a full segment, without options.
    pub send_mss: Bytes,
    /// Segments sent and not acknowledged.
    pub unacked_segments: u32,
    /// Time since the peer acknowledged something, or answered a probe.
    pub since_ack: Option<Duration>,
    /// Smoothed round-trip time; `None` before the first sample.
    pub rtt: Option<Duration>,
    /// Smoothed variation of the round-trip time; `None` before the first sample.
    pub rtt_variation: Option<Duration>,
    /// Least round-trip time of the last minutes (five by default); `None` before the first sample
    /// (Linux 4.6).
    pub rtt_min: Option<Duration>,
    /// Congestion window; `None` when the kernel reports zero.
    pub congestion_window: Option<Segments>,
    /// Slow-start threshold; `None` before slow start has ended.
    pub slow_start_threshold: Option<Segments>,
    /// Segments retransmitted over the life of the connection, SYNs included.
    pub retransmitted_segments: u32,
    /// Rate at which the kernel releases data; `None` when it does not pace (Linux 3.15).
    pub pacing_rate: Option<Bandwidth>,
    /// Highest pacing rate that was set (SO_MAX_PACING_RATE); `None` when unlimited.
    pub pacing_limit: Option<Bandwidth>,
    /// Payload that the peer acknowledged (Linux 4.1).
    pub bytes_acked: Option<Bytes>,
    /// Payload that arrived here in order (Linux 4.1).
    pub bytes_received: Option<Bytes>,
    /// Payload that waits unsent (Linux 4.6).
    pub unsent: Option<Bytes>,
    /// Rate of the last delivery sample (Linux 4.9).
    pub delivery_rate: Option<Bandwidth>,
    /// True if that sample was limited by the application and not by the path (Linux 4.9; before,
    /// never).
    pub application_limited: bool,
    /// Time spent with data to send (Linux 4.10).
    pub busy: Option<Duration>,
    /// Part of this time in which the peer's window limited the sender (Linux 4.10).
    pub receive_window_limited: Option<Duration>,
    /// Part of this time in which its own send buffer limited the sender (Linux 4.10).
    pub send_buffer_limited: Option<Duration>,
    /// Payload sent, retransmissions included (Linux 4.19).
    pub bytes_sent: Option<Bytes>,
    /// Payload retransmitted (Linux 4.19).
    pub bytes_retransmitted: Option<Bytes>,
    /// Window that the peer offers (Linux 5.4).
    pub send_window: Option<Bytes>,
    /// Retransmission time-outs since the peer acknowledged something.
    pub timeouts: u8,
    /// Probes of an idle connection or a closed window that the peer has not answered.
    pub probes: u8,
}

impl TcpInfo {
    /// Reads the figures of `socket`. Cost: one system call of about a microsecond.
    ///
    /// # Errors
    /// When `socket` is no TCP socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut buffer = [0u8; BUFFER_BYTES];
        let mut length = libc::socklen_t::try_from(buffer.len()).expect("512 fits");
        // SAFETY: the descriptor is borrowed for the call; the kernel writes at most `length` bytes
        // into `buffer`, which is that long, and tells how many it wrote.
        let status = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        let length = usize::try_from(length).unwrap_or(0).min(BUFFER_BYTES);
        Self::parse(&buffer[..length])
            .ok_or_else(|| io::Error::other(format!("TCP_INFO of {length} bytes is too short")))
    }

    /// Parses the structure from the kernel; `None` when it is shorter than Linux 2.6's.
    #[must_use]
    pub fn parse(raw: &[u8]) -> Option<Self> {
        let u32_at = |at: usize| Some(u32::from_ne_bytes(raw.get(at..at + 4)?.try_into().ok()?));
        let u64_at = |at: usize| Some(u64::from_ne_bytes(raw.get(at..at + 8)?.try_into().ok()?));
        let measured = |us: &u32| *us != 0 && *us != u32::MAX;
        let micros = |us: u32| Duration::from_micros(us.into());
        let span = |at| u64_at(at).map(Duration::from_micros);
        let bytes = |at| u64_at(at).map(Bytes::new);
        let bytes32 = |at| u32_at(at).map(|count| Bytes::new(count.into()));
        // Neither zero (none yet) nor the largest number (no pacing) is a rate.
        let rate = |at| Bandwidth::from_bps(u64_at(at)?.checked_mul(8)?).ok();
        Some(Self {
            timestamps: raw.get(5)? & OPTION_TIMESTAMPS != 0,
            syn_data: raw.get(5)? & OPTION_SYN_DATA != 0,
            send_mss: bytes32(16)?,
            unacked_segments: u32_at(24)?,
            since_ack: u32_at(56).map(|ms| Duration::from_millis(ms.into())),
            rtt: Some(u32_at(68)?).filter(measured).map(micros),
            rtt_variation: Some(u32_at(72)?).filter(|_| u32_at(68) != Some(0)).map(micros),
            slow_start_threshold: Segments::new(u32_at(76)?).ok(),
            congestion_window: Segments::new(u32_at(80)?).ok(),
            retransmitted_segments: u32_at(100)?,
            pacing_rate: rate(104),
            pacing_limit: rate(112),
            bytes_acked: bytes(120),
            bytes_received: bytes(128),
            unsent: bytes32(144),
            rtt_min: u32_at(148).filter(measured).map(micros),
            delivery_rate: rate(160),
            application_limited: raw.get(7)? & APPLICATION_LIMITED != 0,
            busy: span(168),
            receive_window_limited: span(176),
            send_buffer_limited: span(184),
            bytes_sent: bytes(200),
            bytes_retransmitted: bytes(208),
            send_window: bytes32(228),
            timeouts: *raw.get(2)?,
            probes: *raw.get(3)?,
        })
    }

    /// Returns whether a connection that the kernel has given up had nothing to send: its peer did
    /// not answer probes of an idle connection (`SO_KEEPALIVE`).
    #[must_use]
    pub fn ended_by_keepalive(&self) -> bool {
        let had_data = self.unsent.is_some_and(|unsent| unsent > Bytes::ZERO);
        self.probes > 0 && self.timeouts == 0 && !had_data
    }

    /// Returns the payload sent and not yet acknowledged. From Linux 4.19 on plus or minus one byte
    /// (SYN and FIN count on some sides), before that counted in full segments.
    #[must_use]
    pub fn in_flight(&self) -> Bytes {
        match (self.bytes_sent, self.bytes_retransmitted, self.bytes_acked) {
            (Some(sent), Some(again), Some(acked)) => {
                sent.saturating_add(Bytes::new(1)).saturating_sub(again).saturating_sub(acked)
            }
            _ => self.payload_of(self.unacked_segments),
        }
    }

    /// Returns the congestion window as payload.
    #[must_use]
    pub fn congestion_window_payload(&self) -> Bytes {
        self.congestion_window.map_or(Bytes::ZERO, |window| window.payload(self.send_mss))
    }

    fn payload_of(&self, segments: u32) -> Bytes {
        Bytes::new(u64::from(segments).saturating_mul(self.send_mss.as_u64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::iproute::{Tool, batch};
    use crate::netns::Namespace;
    use crate::tcp::SocketOptions;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn figures_of_a_connection_are_read() {
        let (mut near, mut remote) = pair();
        near.write_all(&[7; 1000]).unwrap();
        remote.read_exact(&mut [0; 1000]).unwrap();
        let sent = TcpInfo::of(&near).unwrap();
        let received = TcpInfo::of(&remote).unwrap();
        assert_eq!(sent.bytes_sent, Some(Bytes::new(1000)));
        assert_eq!(received.bytes_received, Some(Bytes::new(1000)));
        assert_eq!(sent.retransmitted_segments, 0);
        assert!(sent.send_mss >= Bytes::new(500) && sent.congestion_window.is_some());
        assert!(sent.rtt_min.unwrap() < Duration::from_secs(1));
        assert_eq!(sent.slow_start_threshold, None);
    }

    #[test]
    fn short_structure_of_an_old_kernel_is_parsed() {
        let mut raw = [0u8; 104];
        raw[16..20].copy_from_slice(&1448u32.to_ne_bytes());
        raw[24..28].copy_from_slice(&10u32.to_ne_bytes());
        raw[68..72].copy_from_slice(&1500u32.to_ne_bytes());
        let info = TcpInfo::parse(&raw).unwrap();
        assert_eq!(info.rtt, Some(Duration::from_micros(1500)));
        assert_eq!((info.bytes_acked, info.rtt_min, info.delivery_rate), (None, None, None));
        assert_eq!(info.in_flight(), Bytes::new(14_480));
        assert_eq!(TcpInfo::parse(&raw[..100]), None);
    }

    /// Returns the figures of a connection whose peer falls silent, once the kernel has given it
    /// up; `write` is sent then.
    fn given_up(hosts: &[Namespace; 2], write: &[u8]) -> TcpInfo {
        let [near, remote] = hosts;
        let listener = remote.run(|| TcpListener::bind("10.77.0.2:0").unwrap()).unwrap();
        let to = listener.local_addr().unwrap();
        let mut stream = near.run(|| TcpStream::connect(to).unwrap()).unwrap();
        let _held = listener.accept().unwrap();
        let second = Duration::from_secs(1);
        let (keepalive, user_timeout) = (Some(second), Some(second));
        let options = SocketOptions { keepalive, user_timeout, ..SocketOptions::default() };
        options.apply(&stream).unwrap();
        let set = |what: &str| {
            let line = format!("route {what} blackhole 10.77.0.1/32");
            batch(remote, Tool::Ip, &[line]).unwrap();
        };
        // It receives, and its answers are dropped.
        set("add");
        stream.write_all(write).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let error = stream.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let info = TcpInfo::of(&stream).unwrap();
        set("del");
        info
    }

    #[test]
    fn idle_silence_differs_from_lost_acknowledgements() {
        let hosts = Namespace::create().and_then(|near| Ok([near, Namespace::create()?]));
        let hosts = match hosts {
            Ok(hosts) => hosts,
            Err(error) => return crate::skipped(&format!("a silent peer: {error}")),
        };
        let path = format!("/proc/{}/fd/{}", std::process::id(), hosts[1].as_raw_fd());
        let lines = |name: &str, number: u8| {
            [format!("addr add 10.77.0.{number}/24 dev {name}"), format!("link set {name} up")]
        };
        let link = format!("link add near type veth peer name remote netns {path}");
        batch(&hosts[0], Tool::Ip, &[&[link][..], &lines("near", 1)].concat()).unwrap();
        batch(&hosts[1], Tool::Ip, &lines("remote", 2)).unwrap();
        assert!(given_up(&hosts, b"").ended_by_keepalive());
        assert!(!given_up(&hosts, b"any").ended_by_keepalive());
    }

    #[test]
    fn other_sockets_are_refused() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::of(&socket).is_err());
    }
}
