//! Packet sockets: Ethernet frames of one device, with the virtio header, so that super-packets
//! pass whole. They need no device node, so they work inside an unprivileged user namespace.

use std::io::{self, IoSlice};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::error::{NetError, Result};

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;

/// Requested size of receive and send buffer. Chosen: some hundred super-packets; a kernel may
/// grant less.
const BUFFER_BYTES: libc::c_int = 16 << 20;

/// A socket that receives all frames which arrive at a device, and sends frames through it.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
    receive_buffer: usize,
}

impl PacketSocket {
    /// Binds to `device` in the calling thread's network namespace.
    ///
    /// # Errors
    /// Without CAP_NET_RAW, or when there is no such device.
    pub fn bind(device: &str) -> Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: plain numbers; the descriptor it returns is new and ours alone.
        let raw = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
        if raw < 0 {
            return Err(NetError::last_os("make a packet socket"));
        }
        // SAFETY: `raw` was just made and is owned by nobody else.
        let socket = unsafe { OwnedFd::from_raw_fd(raw) };
        let packet = libc::SOL_PACKET;
        set_option(&socket, packet, libc::PACKET_VNET_HDR, 1)
            .map_err(|e| NetError::system("give a packet socket virtio headers", e))?;
        set_option(&socket, packet, libc::PACKET_IGNORE_OUTGOING, 1)
            .map_err(|e| NetError::system("let a packet socket ignore its own frames", e))?;
        enlarge(&socket, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF);
        enlarge(&socket, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF);
        let receive_buffer = option(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF).unwrap_or(0);
        let bound = Self { socket, receive_buffer: receive_buffer as usize };
        bound.attach(device)?;
        Ok(bound)
    }

    fn attach(&self, device: &str) -> Result<()> {
        let index = nix::net::if_::if_nametoindex(device)
            .map_err(|errno| NetError::system(format!("find the device {device}"), errno))?;
        // SAFETY: sockaddr_ll is plain data of C, for which all zeroes are a value.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index as libc::c_int;
        let (pointer, len) = (&raw const address, size_of::<libc::sockaddr_ll>());
        // SAFETY: `address` is a sockaddr_ll of that length and lives through the call.
        let status =
            unsafe { libc::bind(self.socket.as_raw_fd(), pointer.cast(), len as libc::socklen_t) };
        if status != 0 {
            return Err(NetError::last_os(format!("bind a packet socket to {device}")));
        }
        Ok(())
    }

    /// Returns the receive buffer that the kernel granted, in bytes as it counts them.
    #[must_use]
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer
    }

    /// Sends one frame (virtio header first), given in parts.
    ///
    /// # Errors
    /// When the kernel refuses the frame, has no buffer for it, or the device is down.
    pub fn send(&self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let fd = self.socket.as_raw_fd();
        // SAFETY: IoSlice has the layout of iovec, and the parts live through the call.
        let sent = unsafe { libc::writev(fd, parts.as_ptr().cast(), parts.len() as libc::c_int) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Returns the frames lost since the last call because the receive buffer was full.
    #[must_use]
    pub fn take_drops(&self) -> u64 {
        let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
        let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `statistics`, which live.
        let status = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &raw mut len,
            )
        };
        if status == 0 { u64::from(statistics.tp_drops) } else { 0 }
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Enlarges a buffer beyond the system's limit if allowed, else up to it.
fn enlarge(socket: &OwnedFd, force: libc::c_int, ask: libc::c_int) {
    if set_option(socket, libc::SOL_SOCKET, force, BUFFER_BYTES).is_err() {
        // The kernel clamps the request; the caller reads back the granted size.
        let _ = set_option(socket, libc::SOL_SOCKET, ask, BUFFER_BYTES);
    }
}

fn set_option(
    socket: &OwnedFd,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option reads one int, which lives through the call.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), len)
    };
    if status != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn option(socket: &OwnedFd, level: libc::c_int, name: libc::c_int) -> io::Result<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the kernel writes at most one int to `value`, which lives through the call.
    let status = unsafe {
        libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if status != 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
