//! Options and state of one TCP socket.
//!
//! [`SocketOptions`] are applied before `connect` or `listen`: accepted sockets inherit every
//! option here from their listener, so that accepting costs no further system call. The kernel's
//! figures of a connection are in [`crate::tcp_info`].

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd};

use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::io::ReadBuf;
use tradewind_units::{Bandwidth, Bytes, Duration};

use crate::congestion;
use crate::initial_window::{InitialWindow, InitialWindows};
use crate::jumpstart::OwnSockets;
use crate::pacing;

/// Options of a socket; `None` or `false` keeps the system's default.
#[derive(Debug, Clone, Default)]
pub struct SocketOptions {
    /// Name of the congestion control, e.g. `cubic` or `bbr`.
    pub congestion_control: Option<String>,
    /// The initial congestion window, and the program that sets it.
    pub initial_window: Option<(InitialWindows, InitialWindow)>,
    /// Registration with the program of learned values: the connection starts by those of its
    /// destination; of a listener: accepted connections start by those of their peers.
    pub jumpstart: Option<OwnSockets>,
    /// `SO_RCVBUF`; setting it turns the kernel's autotuning off. Above `net.core.rmem_max` only
    /// with CAP_NET_ADMIN; so with the send buffer and `wmem_max`.
    pub receive_buffer: Option<Bytes>,
    /// `SO_SNDBUF`; setting it turns the kernel's autotuning off.
    pub send_buffer: Option<Bytes>,
    /// `SO_MAX_PACING_RATE`: the highest sending rate, headers included.
    pub pacing_rate: Option<Bandwidth>,
    /// TCP Fast Open: a listener that accepts data in the SYN, or a socket whose first write is
    /// sent in the SYN once a cookie of the other side is known [RFC 7413].
    pub fast_open: Option<FastOpen>,
    /// `TCP_NOTSENT_LOWAT`: most bytes that wait unsent in the kernel.
    pub notsent_lowat: Option<Bytes>,
    /// `TCP_USER_TIMEOUT`: longest time without an acknowledgement of sent data. A peer that closes
    /// its window for that long is given up too, even when it answers the probes.
    pub user_timeout: Option<Duration>,
    /// Silence after which the kernel probes the peer, and interval of the probes.
    pub keepalive: Option<Duration>,
    /// `TCP_NODELAY`: send small segments at once.
    pub nodelay: bool,
    /// For a listener, `TCP_QUICKACK` off: the acknowledgement of the first data waits up to 40 ms
    /// for data to travel with. For peers that send all they have at once (without Nagle's
    /// algorithm), and do not wait for it: a packet less. Undone by [`acknowledge_at_once`].
    pub acknowledge_with_data: bool,
    /// `SO_OOBINLINE`: an urgent byte is read in its place among the others.
    pub urgent_in_line: bool,
    /// `SO_LINGER` with 0 s: closing, and the death of the process, reset the connection.
    pub reset_on_close: bool,
}

/// A side of TCP Fast Open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastOpen {
    /// The dialling side.
    Dial,
    /// The listening side, with the largest number of connections with early data whose peers have
    /// not proved to be reachable.
    Listen(u16),
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
            congestion::set(&*socket, name).map_err(|source| OptionError { option, source })?;
        }
        if let Some(size) = self.receive_buffer {
            set_buffer(&socket, libc::SO_RCVBUFFORCE, size, Socket::set_recv_buffer_size)
                .map_err(refused("receive buffer".into()))?;
        }
        if let Some(size) = self.send_buffer {
            set_buffer(&socket, libc::SO_SNDBUFFORCE, size, Socket::set_send_buffer_size)
                .map_err(refused("send buffer".into()))?;
        }
        if let Some((windows, window)) = &self.initial_window {
            windows.set(&*socket, *window).map_err(refused("initial window".into()))?;
        }
        if let Some(own) = &self.jumpstart {
            // A socket that the kernel has no memory for starts by default, and is counted.
            let _by_default = own.add(&*socket);
        }
        if let Some(rate) = self.pacing_rate {
            pacing::cap(&*socket, rate).map_err(refused("pacing rate".into()))?;
        }
        match self.fast_open {
            None => {}
            Some(FastOpen::Dial) => {
                set_number(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN_CONNECT, 1)
                    .map_err(refused("fast open".into()))?;
            }
            Some(FastOpen::Listen(most)) => {
                set_number(&socket, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, i32::from(most))
                    .map_err(refused("fast open".into()))?;
            }
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
        if self.urgent_in_line {
            socket.set_out_of_band_inline(true).map_err(refused("urgent data in line".into()))?;
        }
        if self.reset_on_close {
            socket.set_linger(Some(Duration::ZERO)).map_err(refused("linger".into()))?;
        }
        Ok(())
    }
}

/// An option that the kernel refused.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {source}")]
pub struct OptionError {
    /// The option, with its value where that matters.
    pub option: String,
    /// The kernel's error.
    pub source: io::Error,
}

impl OptionError {
    /// Returns whether the value does not exist on this host, such as the name of a congestion
    /// control, so that it would be refused at any time.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        matches!(self.source.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput)
    }
}

impl From<OptionError> for io::Error {
    fn from(error: OptionError) -> Self {
        Self::new(error.source.kind(), error.to_string())
    }
}

/// Sets a buffer's size, above the system's maximum if this process may.
fn set_buffer(
    socket: &Socket,
    force: libc::c_int,
    size: Bytes,
    set: impl Fn(&Socket, usize) -> io::Result<()>,
) -> io::Result<()> {
    let number = i32::try_from(size.as_u64()).unwrap_or(i32::MAX);
    match set_number(socket, libc::SOL_SOCKET, force, number) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            set(socket, as_usize(size))
        }
        outcome => outcome,
    }
}

/// Sets an option whose value is an `int`.
fn set_number(socket: &Socket, level: i32, option: i32, value: i32) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of::<libc::c_int>()).expect("four bytes");
    // SAFETY: the value is an int, readable for its length.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length)
    };
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn as_usize(size: Bytes) -> usize {
    usize::try_from(size.as_u64()).unwrap_or(usize::MAX)
}

/// Makes closing `socket` end the connection gracefully: unsent data is still sent.
///
/// # Errors
/// When the kernel refuses the option.
pub fn end_in_order_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(None)
}

/// Makes closing `socket` reset the connection.
///
/// # Errors
/// When the kernel refuses the option.
pub fn reset_on_close(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_linger(Some(Duration::ZERO))
}

/// Closes `socket` without notifying the peer, like a host that loses its power; for tests.
///
/// # Errors
/// Without CAP_NET_ADMIN; the socket is closed all the same, in the usual way.
pub fn vanish(socket: impl Into<Socket>) -> io::Result<()> {
    let socket = socket.into();
    // A socket under repair (`TCP_REPAIR`, for migrating processes to other hosts) is dropped
    // silently: a disconnect does it at once, where a close would wait for other holders of it,
    // such as a process just being started.
    set_number(&socket, libc::IPPROTO_TCP, libc::TCP_REPAIR, 1)?;
    // SAFETY: all zero is a valid address, of no family (AF_UNSPEC).
    let nowhere: libc::sockaddr = unsafe { std::mem::zeroed() };
    let length = libc::socklen_t::try_from(size_of_val(&nowhere)).expect("sixteen bytes");
    // SAFETY: `nowhere` is readable for its length.
    match unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Ends the sending direction: the peer reads an end of file after all data.
///
/// # Errors
/// When the socket is not connected any more.
pub fn finish_sending(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).shutdown(std::net::Shutdown::Write)
}

/// Reads received bytes into `buffer`, without waiting if the socket does not block. `Ok(0)`: the
/// peer has ended its direction.
///
/// # Errors
/// `WouldBlock` when nothing has been received; any other error is the socket's.
pub fn receive(socket: &impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
    io::Read::read(&mut &*SockRef::from(socket), buffer)
}

/// Reads like [`receive`], into the free part of `buffer`, and returns the number of bytes.
///
/// # Errors
/// As [`receive`].
pub fn receive_into(socket: &impl AsFd, buffer: &mut ReadBuf<'_>) -> io::Result<usize> {
    // SAFETY: the kernel only writes to it, so that nothing in it becomes uninitialised.
    let free = unsafe { buffer.unfilled_mut() };
    let count = SockRef::from(socket).recv(free)?;
    // SAFETY: the kernel has just written so many bytes to its beginning.
    unsafe { buffer.assume_init(count) };
    buffer.advance(count);
    Ok(count)
}

/// Puts `bytes` into the send queue, to be sent with the next bytes (`MSG_MORE`). When nothing
/// follows within 200 ms, the kernel sends them alone.
///
/// # Errors
/// `WouldBlock` when the queue is full; any other error is the socket's.
pub fn send_with_next(socket: &impl AsFd, bytes: &[u8]) -> io::Result<usize> {
    let flags = libc::MSG_MORE | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    SockRef::from(socket).send_with_flags(bytes, flags)
}

/// Sends at once the bytes that [`send_with_next`] has held back.
///
/// # Errors
/// When the kernel refuses the option that does it.
pub fn send_held_back(socket: &impl AsFd) -> io::Result<()> {
    // Setting this option flushes held-back data, even when it is set already [tcp(7)].
    SockRef::from(socket).set_tcp_nodelay(true)
}

/// Lets the acknowledgement that completes the handshake wait for the first data, for a socket that
/// is about to connect and send at once: a packet less, and the peer wakes up once. Later
/// acknowledgements are delayed, as in any exchange of small messages, until
/// [`acknowledge_at_once`].
///
/// # Errors
/// When the kernel refuses the option.
pub fn acknowledge_with_data(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_quickack(false)
}

/// Acknowledges arriving data at once from now on; the kernel falls back to delayed
/// acknowledgements by itself.
///
/// # Errors
/// When the kernel refuses the option.
pub fn acknowledge_at_once(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_tcp_quickack(true)
}

/// Opens `count` non-blocking listeners on one address, over which the kernel spreads connections
/// (`SO_REUSEPORT`). With port 0 the system chooses one port for all. An IPv6 listener accepts no
/// IPv4.
///
/// No other process may listen there: without that check a second one would silently get its share
/// of the connections.
///
/// # Errors
/// [`OptionError`] with the address or option that was refused.
pub fn listen(
    address: SocketAddr,
    count: usize,
    backlog: u16,
    options: &SocketOptions,
) -> Result<Vec<TcpListener>, OptionError> {
    drop(bind(address, false).map_err(refused(address))?);
    listen_along(address, count, backlog, options)
}

/// Opens listeners like [`listen`], beside those of the same user that share the port.
///
/// # Errors
/// As [`listen`].
pub fn listen_along(
    address: SocketAddr,
    count: usize,
    backlog: u16,
    options: &SocketOptions,
) -> Result<Vec<TcpListener>, OptionError> {
    let refused = refused(address);
    let mut address = address;
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count {
        let socket = bind(address, true).map_err(&refused)?;
        options.apply(&socket)?;
        socket.listen(i32::from(backlog)).map_err(&refused)?;
        if options.acknowledge_with_data {
            // Not earlier: listening resets it.
            acknowledge_with_data(&socket).map_err(&refused)?;
        }
        let listener = TcpListener::from(socket);
        address = listener.local_addr().map_err(&refused)?;
        listeners.push(listener);
    }
    Ok(listeners)
}

fn refused(address: SocketAddr) -> impl Fn(io::Error) -> OptionError {
    move |source| OptionError { option: format!("listen on {address}"), source }
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

/// Returns the peer's address of `socket`; `None` when it is not connected.
#[must_use]
pub fn peer(socket: &impl AsFd) -> Option<SocketAddr> {
    SockRef::from(socket).peer_addr().ok()?.as_socket()
}

/// Marks the packets of `socket` (`SO_MARK`), for rules of this host.
///
/// # Errors
/// Without CAP_NET_ADMIN.
pub fn set_mark(socket: &impl AsFd, mark: u32) -> io::Result<()> {
    SockRef::from(socket).set_mark(mark)
}

/// Sets the hop limit (TTL) of what `socket` sends.
///
/// # Errors
/// When the socket is of another family.
pub fn limit_hops(socket: &impl AsFd, is_ipv6: bool, hops: u8) -> io::Result<()> {
    let socket = SockRef::from(socket);
    if is_ipv6 { socket.set_unicast_hops_v6(hops.into()) } else { socket.set_ttl_v4(hops.into()) }
}

/// Returns the bytes in the send queue that the peer has not acknowledged (`SIOCOUTQ`).
///
/// # Errors
/// When `socket` is no TCP socket.
pub fn unacknowledged(socket: &impl AsFd) -> io::Result<Bytes> {
    queued(socket, libc::TIOCOUTQ)
}

/// Returns whether the connection of `socket` has ended: it was reset, or given up. (Bytes that it
/// had received may still be read.)
#[must_use]
pub fn is_closed(socket: &impl AsFd) -> bool {
    /// `TCP_CLOSE` among the kernel's states, which `TCP_INFO` begins with.
    const CLOSED: u8 = 7;
    let (mut state, mut length) = (0u8, 1);
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes at most `length`
    // bytes, which is one.
    let status = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut state).cast(),
            &raw mut length,
        )
    };
    status == 0 && state == CLOSED
}

/// Returns whether something is left to read after a short read: such a read has emptied the
/// socket, unless it has stopped before an urgent byte.
pub fn holds_more(socket: &impl AsFd) -> bool {
    unread(socket).is_ok_and(|left| left > Bytes::ZERO)
}

/// Returns the number of received bytes that were not read (`SIOCINQ`).
///
/// # Errors
/// When `socket` is no TCP socket, or listens.
pub fn unread(socket: &impl AsFd) -> io::Result<Bytes> {
    queued(socket, libc::FIONREAD)
}

fn queued(socket: &impl AsFd, which: libc::Ioctl) -> io::Result<Bytes> {
    let mut queued: libc::c_int = 0;
    // SAFETY: the descriptor is borrowed for the call, and the kernel writes one int to `queued`.
    let status = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), which, &raw mut queued) };
    if status < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Bytes::new(u64::try_from(queued).unwrap_or(0)))
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
    fn accepted_socket_inherits_options() {
        let options = SocketOptions {
            congestion_control: Some("reno".into()),
            notsent_lowat: Some(Bytes::new(131_072)),
            user_timeout: Some(Duration::from_secs(77)),
            keepalive: Some(Duration::from_secs(33)),
            nodelay: true,
            acknowledge_with_data: true,
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
        assert!(!server.tcp_quickack().unwrap());
        assert_eq!(server.linger().unwrap(), Some(Duration::ZERO));
    }

    #[test]
    fn unknown_congestion_control_is_named() {
        let options =
            SocketOptions { congestion_control: Some("wind".into()), ..SocketOptions::default() };
        let error = listen("127.0.0.1:0".parse().unwrap(), 1, 16, &options).unwrap_err();
        assert!(error.to_string().starts_with("congestion control `wind`: "), "{error}");
    }

    #[test]
    fn port_in_use_is_named() {
        let options = SocketOptions::default();
        let listeners = listen("127.0.0.1:0".parse().unwrap(), 2, 16, &options).unwrap();
        let address = listeners[0].local_addr().unwrap();
        assert_eq!(listeners[1].local_addr().unwrap(), address);
        let error = listen(address, 1, 16, &options).unwrap_err();
        assert!(error.to_string().starts_with(&format!("listen on {address}: ")), "{error}");
    }

    #[test]
    fn received_bytes_are_unread_until_read() {
        let (mut client, mut server) = pair(&SocketOptions::default());
        client.write_all(b"five!").unwrap();
        let mut buffer = [0; 5];
        while server.peek(&mut buffer).unwrap() < 5 {}
        assert_eq!(unread(&server).unwrap(), Bytes::new(5));
        server.read_exact(&mut buffer[..3]).unwrap();
        assert_eq!(unread(&server).unwrap(), Bytes::new(2));
        assert_eq!(unread(&client).unwrap(), Bytes::ZERO);
    }

    #[test]
    fn acknowledged_bytes_leave_the_queue() {
        let (mut client, mut server) = pair(&SocketOptions::default());
        client.write_all(&[7; 10_000]).unwrap();
        server.read_exact(&mut [0; 10_000]).unwrap();
        assert_eq!(unacknowledged(&client).unwrap(), Bytes::ZERO);
    }
}
