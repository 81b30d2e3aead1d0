//! What can be asked of, and told to, one TCP socket.
//!
//! A [`SocketOptions`] is applied before `connect` or `listen`: accepted sockets inherit every
//! option here from their listener, so that accepting costs no further system call.
//! [`TcpInfo`] is the kernel's own account of a connection [tcp(7), `struct tcp_info`]; the struct
//! grew with the kernels, so each field that an older kernel leaves out is `None`.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tradewind_units::{Bandwidth, Bytes, Duration, Segments};

/// Options of a socket; what is `None` or `false` stays as the system has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Name of the congestion control, e.g. `cubic` or `bbr`.
    pub congestion_control: Option<String>,
    /// `SO_RCVBUF`; setting it turns the kernel's autotuning off.
    pub receive_buffer: Option<Bytes>,
    /// `SO_SNDBUF`; setting it turns the kernel's autotuning off.
    pub send_buffer: Option<Bytes>,
    /// `TCP_NOTSENT_LOWAT`: most bytes that wait unsent in the kernel.
    pub notsent_lowat: Option<Bytes>,
    /// `TCP_USER_TIMEOUT`: how long sent data may stay without an answer. A peer that closes its
    /// window for as long is given up too, even when it answers the probes.
    pub user_timeout: Option<Duration>,
    /// Silence after which the kernel asks whether the peer is still there, and between questions.
    pub keepalive: Option<Duration>,
    /// `TCP_NODELAY`: send small pieces at once.
    pub nodelay: bool,
    /// `SO_LINGER` with 0 s: closing, and the death of the process, reset the connection.
    pub reset_on_close: bool,
}

impl SocketOptions {
    /// Applies all options to `socket`.
    ///
    /// # Errors
    /// [`OptionError`] names the option that the kernel refused.
    pub fn apply(&self, socket: &impl AsFd) -> Result<(), OptionError> {
        let socket = SockRef::from(socket);
        let refused = |option| move |source| OptionError { option, source };
        if let Some(name) = &self.congestion_control {
            let option = format!("congestion control `{name}`");
            socket
                .set_tcp_congestion(name.as_bytes())
                .map_err(|source| OptionError { option, source })?;
        }
        if let Some(size) = self.receive_buffer {
            socket
                .set_recv_buffer_size(as_usize(size))
                .map_err(refused("receive buffer".into()))?;
        }
        if let Some(size) = self.send_buffer {
            socket.set_send_buffer_size(as_usize(size)).map_err(refused("send buffer".into()))?;
        }
        if let Some(mark) = self.notsent_lowat {
            let mark = u32::try_from(mark.as_u64()).unwrap_or(u32::MAX);
            socket.set_tcp_notsent_lowat(mark).map_err(refused("notsent_lowat".into()))?;
        }
        if let Some(span) = self.user_timeout {
            socket.set_tcp_user_timeout(Some(span)).map_err(refused("user timeout".into()))?;
        }
        if let Some(span) = self.keepalive {
            let keepalive = TcpKeepalive::new().with_time(span).with_interval(span);
            socket.set_tcp_keepalive(&keepalive).map_err(refused("keepalive".into()))?;
        }
        if self.nodelay {
            socket.set_tcp_nodelay(true).map_err(refused("nodelay".into()))?;
        }
        if self.reset_on_close {
            socket.set_linger(Some(Duration::ZERO)).map_err(refused("linger".into()))?;
        }
        Ok(())
    }
}

/// The kernel refused an option.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {source}")]
pub struct OptionError {
    /// The option, with its value where that matters.
    pub option: String,
    /// What the kernel answered.
    pub source: io::Error,
}

impl From<OptionError> for io::Error {
    fn from(error: OptionError) -> Self {
        Self::new(error.source.kind(), error.to_string())
    }
}

fn as_usize(size: Bytes) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

/// From here on closing `socket` ends the connection in order: what is unsent is still sent.
///
/// # Errors
/// When the kernel refuses the option.
pub fn end_in_order_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(None)
}

/// From here on closing `socket` resets the connection.
///
/// # Errors
/// When the kernel refuses the option.
pub fn reset_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Ends the sending direction: the peer reads an end of file after all data.
///
/// # Errors
/// When the socket is not connected any more.
pub fn finish_sending(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).shutdown(std::net::Shutdown::Write)
}

/// Acknowledges at once what arrives from now on; the kernel falls back to delayed
/// acknowledgements by itself.
///
/// # Errors
/// When the kernel refuses the option.
pub fn acknowledge_at_once(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_quickack(true)
}

/// Opens `count` non-blocking listeners on one address, over which the kernel spreads connections
/// (`SO_REUSEPORT`). With port 0 the system chooses one port for all. An IPv6 listener takes no
/// IPv4.
///
/// Nobody else may listen there: without that check a second process would silently get its
/// share of the connections.
///
/// # Errors
/// [`OptionError`] with the address or option that was refused.
pub fn listen(
    address: SocketAddr,
    count: usize,
    backlog: u16,
    options: &SocketOptions,
) -> Result<Vec<TcpListener>, OptionError> {
    let refused = |source| OptionError { option: format!("listen on {address}"), source };
    drop(bind(address, false).map_err(refused)?);
    let mut address = address;
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = bind(address, true).map_err(refused)?;
        options.apply(&socket)?;
        socket.listen(i32::from(backlog)).map_err(refused)?;
        let listener = TcpListener::from(socket);
        address = listener.local_addr().map_err(refused)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<Socket> {
    let kind = Type::STREAM.nonblocking().cloexec();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Bytes in the send queue that the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// When `socket` is no TCP socket.
pub fn unacknowledged(socket: &impl AsFd) -> io::Result<Bytes> {
    let mut queued: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one int to `queued`.
    let status =
        unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut queued) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Bytes::new(u64::try_from(queued).unwrap_or(0)))
}

/// The kernel's account of one connection [tcp(7)].
#[derive(Debug, Clone, PartialEq)]
pub struct TcpInfo {
    /// Smoothed round-trip time; zero before the first sample.
    pub rtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rtt_deviation: Duration,
    /// Least round-trip time of the last minutes; `None` before the first sample.
    pub rtt_min: Option<Duration>,
    /// Payload of a full segment.
    pub send_mss: Bytes,
    /// Congestion window; `None` when the kernel reports zero.
    pub congestion_window: Option<Segments>,
    /// Segments in flight.
    pub unacked_segments: u32,
    /// Segments sent again in the life of the connection.
    pub retransmitted_segments: u32,
    /// Rate at which the kernel releases data; `None` when it does not pace.
    pub pacing_rate: Option<Bandwidth>,
    /// Rate of the last delivery sample.
    pub delivery_rate: Option<Bandwidth>,
    /// Whether that sample was limited by the sender's lack of data.
    pub delivery_rate_app_limited: bool,
    /// Payload that the peer acknowledged.
    pub bytes_acked: Option<Bytes>,
    /// Payload that arrived here.
    pub bytes_received: Option<Bytes>,
    /// Bytes that wait unsent.
    pub unsent: Option<Bytes>,
    /// Payload sent again.
    pub bytes_retransmitted: Option<Bytes>,
    /// Window that the peer offers.
    pub send_window: Option<Bytes>,
    /// Window that this side offers.
    pub receive_window: Option<Bytes>,
}

/// Longer than any `struct tcp_info` so far (280 bytes in Linux 6.18).
const INFO_CAPACITY: usize = 512;

impl TcpInfo {
    /// Reads the account of `socket`.
    ///
    /// # Errors
    /// When `socket` is no TCP socket.
    pub fn of(socket: &impl AsFd) -> io::Result<Self> {
        let mut raw = [0u8; INFO_CAPACITY];
        let length = read_option(socket.as_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw)?;
        Ok(Self::parse(&raw[..length]))
    }

    /// Reads the kernel's struct of whatever length this kernel gives.
    fn parse(raw: &[u8]) -> Self {
        let u32_at = |offset: usize| {
            let bytes = raw.get(offset..offset + 4)?;
            Some(u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
        };
        let u64_at = |offset: usize| {
            let bytes = raw.get(offset..offset + 8)?;
            Some(u64::from_ne_bytes(bytes.try_into().expect("eight bytes")))
        };
        let micros = |offset| u32_at(offset).map(|us| Duration::from_micros(us.into()));
        let rate = |offset| {
            let bytes_per_s = u64_at(offset).filter(|rate| *rate != u64::MAX)?;
            Bandwidth::from_bps(bytes_per_s.saturating_mul(8)).ok()
        };
        let bytes32 = |offset| u32_at(offset).map(|count| Bytes::new(count.into()));
        Self {
            send_mss: bytes32(16).unwrap_or_default(),
            unacked_segments: u32_at(24).unwrap_or(0),
            rtt: micros(68).unwrap_or_default(),
            rtt_deviation: micros(72).unwrap_or_default(),
            congestion_window: u32_at(80).and_then(|count| Segments::new(count).ok()),
            retransmitted_segments: u32_at(100).unwrap_or(0),
            pacing_rate: rate(104),
            bytes_acked: u64_at(120).map(Bytes::new),
            bytes_received: u64_at(128).map(Bytes::new),
            unsent: bytes32(144),
            rtt_min: micros(148).filter(|rtt| rtt.as_micros() != u128::from(u32::MAX)),
            delivery_rate: rate(160),
            delivery_rate_app_limited: raw.get(7).is_some_and(|flags| flags & 1 == 1),
            bytes_retransmitted: u64_at(208).map(Bytes::new),
            send_window: bytes32(228),
            receive_window: bytes32(232),
        }
    }
}

/// Fills `value` from `getsockopt` and returns how much of it the kernel wrote.
fn read_option(
    socket: BorrowedFd<'_>,
    level: libc::c_int,
    name: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = libc::socklen_t::try_from(value.len()).expect("a small buffer");
    // SAFETY: `value` is writable for `length` bytes and the kernel writes no more than that.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(length as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    fn pair(options: &SocketOptions) -> (TcpStream, TcpStream) {
        let listener = listen("127.0.0.1:0".parse().unwrap(), 1, 16, options).unwrap().remove(0);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        listener.set_nonblocking(false).unwrap();
        let (server, _) = listener.accept().unwrap();
        (client, server)
    }

    #[test]
    fn an_accepted_socket_inherits_the_options_of_its_listener() {
        let options = SocketOptions {
            congestion_control: Some("reno".into()),
            notsent_lowat: Some(Bytes::new(131_072)),
            user_timeout: Some(Duration::from_secs(77)),
            keepalive: Some(Duration::from_secs(33)),
            nodelay: true,
            reset_on_close: true,
            ..SocketOptions::default()
        };
        let (_client, server) = pair(&options);
        let server = SockRef::from(&server);
        assert!(server.tcp_congestion().unwrap().starts_with(b"reno"));
        assert_eq!(server.tcp_notsent_lowat().unwrap(), 131_072);
        assert_eq!(server.tcp_user_timeout().unwrap(), options.user_timeout);
        assert_eq!(server.tcp_keepalive_time().unwrap(), Duration::from_secs(33));
        assert!(server.tcp_nodelay().unwrap());
        assert_eq!(server.linger().unwrap(), Some(Duration::ZERO));
    }

    #[test]
    fn an_unknown_congestion_control_is_named() {
        let options =
            SocketOptions { congestion_control: Some("wind".into()), ..SocketOptions::default() };
        let error = listen("127.0.0.1:0".parse().unwrap(), 1, 16, &options).unwrap_err();
        assert!(error.to_string().starts_with("congestion control `wind`: "), "{error}");
    }

    #[test]
    fn a_port_in_use_is_named_even_when_its_user_would_share_it() {
        let options = SocketOptions::default();
        let taken = listen("127.0.0.1:0".parse().unwrap(), 2, 16, &options).unwrap();
        let address = taken[0].local_addr().unwrap();
        assert_eq!(taken[1].local_addr().unwrap(), address);
        let error = listen(address, 1, 16, &options).unwrap_err();
        assert!(error.to_string().starts_with(&format!("listen on {address}: ")), "{error}");
    }

    #[test]
    fn the_kernel_tells_what_it_knows_of_a_connection() {
        let (mut client, mut server) = pair(&SocketOptions::default());
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
        let info = TcpInfo::of(&server).unwrap();
        assert_eq!(info.bytes_received, Some(Bytes::new(10_000)));
        let info = TcpInfo::of(&client).unwrap();
        assert!(info.send_mss > Bytes::new(500), "{info:?}");
        assert!(info.congestion_window.is_some(), "{info:?}");
        assert_eq!(unacknowledged(&client).unwrap(), Bytes::ZERO);
    }

    #[test]
    fn an_older_kernels_shorter_account_is_read_as_far_as_it_goes() {
        let mut raw = [0u8; 104];
        raw[68..72].copy_from_slice(&1500u32.to_ne_bytes());
        raw[80..84].copy_from_slice(&10u32.to_ne_bytes());
        let info = TcpInfo::parse(&raw);
        assert_eq!(info.rtt, Duration::from_micros(1500));
        assert_eq!(info.congestion_window, Segments::new(10).ok());
        assert_eq!((info.rtt_min, info.delivery_rate, info.send_window), (None, None, None));
    }
}
