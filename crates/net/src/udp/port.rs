//! A UDP socket, set up for batches.

use std::io;
use std::mem::size_of_val;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::error::{NetError, Result};
use crate::sysctl;

/// Settings of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpOptions {
    /// True to share the address among several sockets, each with its share of the senders
    /// (`SO_REUSEPORT`).
    pub reuse_port: bool,
    /// True to let the kernel join datagrams of one sender (`UDP_GRO`).
    pub gro: bool,
    /// True to hand trains to the kernel as one (`UDP_SEGMENT`), until it refuses.
    pub gso: bool,
    /// Requested size of receive and send buffer, in bytes; the system's limit holds unless the
    /// process may exceed it.
    pub buffer: usize,
    /// True to receive datagrams to any address, and to send from any (`IP_TRANSPARENT`, for
    /// TPROXY; needs CAP_NET_ADMIN); each then reports its original destination.
    pub transparent: bool,
    /// True to report the differentiated services code points of datagrams.
    pub tells_dscp: bool,
    /// True to report how many hops datagrams have left.
    pub tells_hops: bool,
    /// True to let a socket on `[::]` receive IPv4 as well, and IPv4 only on a host without IPv6.
    pub both_families: bool,
    /// True to report how long each datagram has waited.
    pub tells_age: bool,
    /// The mark of what it sends (`SO_MARK`; needs CAP_NET_RAW, before Linux 5.17 CAP_NET_ADMIN).
    pub mark: Option<u32>,
    /// The hops after which what it sends is dropped, in place of the system's default.
    pub hops: Option<u8>,
}

impl Default for UdpOptions {
    /// Returns the defaults: alone on its address, with GRO, GSO, and 4 MB of buffers. Chosen: 20
    /// ms at 1.5 Gb/s.
    fn default() -> Self {
        let (gro, gso, buffer) = (true, true, 4 << 20);
        Self {
            reuse_port: false,
            gro,
            gso,
            buffer,
            transparent: false,
            tells_dscp: false,
            tells_hops: false,
            both_families: false,
            tells_age: false,
            mark: None,
            hops: None,
        }
    }
}

/// A UDP socket that neither blocks nor fragments. One on a wildcard address reports the local
/// address of each received datagram, so that the answer can be sent from there.
#[derive(Debug)]
pub struct UdpPort {
    socket: Socket,
    address: SocketAddr,
    gro: bool,
    gso: AtomicBool,
}

impl UdpPort {
    /// Binds to `address`; with port 0 the system chooses. An IPv6 address receives only IPv6,
    /// unless both families are requested.
    ///
    /// # Errors
    /// When the address is in use or not local, or `transparent` is not permitted.
    pub fn bind(address: SocketAddr, options: &UdpOptions) -> Result<Self> {
        let failed =
            |what: &str, error| NetError::system(format!("{what} of udp {address}"), error);
        let make = |address| {
            let kind = Type::DGRAM.nonblocking().cloexec();
            Socket::new(Domain::for_address(address), kind, Some(Protocol::UDP))
        };
        let is_both = options.both_families
            && address.ip() == std::net::IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED);
        let (socket, address) = match make(address) {
            Err(error) if is_both && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
                let v4 = SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, address.port()));
                (make(v4), v4)
            }
            made => (made, address),
        };
        let socket = socket.map_err(|error| failed("make the socket", error))?;
        if address.is_ipv6() {
            socket.set_only_v6(!is_both).map_err(|error| failed("set IPV6_V6ONLY", error))?;
        }
        if options.reuse_port {
            socket.set_reuse_port(true).map_err(|error| failed("set SO_REUSEPORT", error))?;
        }
        let (gro, gso) = set_up(&socket, address, options)?;
        socket.bind(&SockAddr::from(address)).map_err(|error| failed("bind the socket", error))?;
        let bound = socket.local_addr().ok().and_then(|bound| bound.as_socket());
        let gso = AtomicBool::new(gso);
        Ok(Self { socket, address: bound.unwrap_or(address), gro, gso })
    }

    /// Takes over a bound socket, such as that of the previous process.
    ///
    /// # Errors
    /// When it is no UDP socket with an address, or an option is refused.
    pub fn adopt(socket: OwnedFd, options: &UdpOptions) -> Result<Self> {
        let socket = Socket::from(socket);
        let address = socket.local_addr().and_then(|address| {
            let is_udp = socket.r#type()? == Type::DGRAM;
            address.as_socket().filter(|_| is_udp).ok_or(io::ErrorKind::InvalidInput.into())
        });
        let address = address.map_err(|error| NetError::system("take a udp socket over", error))?;
        let (gro, gso) = set_up(&socket, address, options)?;
        Ok(Self { socket, address, gro, gso: AtomicBool::new(gso) })
    }

    /// Returns another handle of the socket, for the next process.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn hold(&self) -> io::Result<OwnedFd> {
        self.socket.as_fd().try_clone_to_owned()
    }

    /// Returns the address that it is bound to.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns whether the kernel joins arriving datagrams.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.gro
    }

    /// Returns whether the kernel still accepts trains.
    #[must_use]
    pub fn takes_trains(&self) -> bool {
        self.gso.load(Ordering::Relaxed)
    }

    /// Stops sending trains, as a device on the path cannot split them.
    pub(super) fn stop_trains(&self) {
        self.gso.store(false, Ordering::Relaxed);
    }

    /// Receives only datagrams of `peer` from now on, in preference to other sockets on the same
    /// address that receive anybody's.
    ///
    /// # Errors
    /// When there is no route to it.
    pub fn connect(&self, peer: SocketAddr) -> Result<()> {
        let connected = self.socket.connect(&SockAddr::from(peer));
        connected.map_err(|error| NetError::system(format!("connect udp to {peer}"), error))
    }

    /// Returns a line on the buffers in `options` that the kernel did not grant, with the remedy.
    #[must_use]
    pub fn shortfall(&self, options: &UdpOptions) -> Option<String> {
        let granted = [self.socket.recv_buffer_size(), self.socket.send_buffer_size()];
        describe_shortfall(granted.map(|granted| granted.ok().map(|granted| granted / 2)), options)
    }

    /// Returns the receive buffer that the kernel granted, in bytes as it counts them.
    #[must_use]
    pub fn receive_buffer(&self) -> usize {
        self.socket.recv_buffer_size().unwrap_or(0)
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Returns a line on such buffers that threads without rights are not granted, with the remedy.
#[must_use]
pub fn shortfall_without_rights(options: &UdpOptions) -> Option<String> {
    let most = |limit| sysctl::get(limit).ok()?.parse().ok();
    describe_shortfall([RECEIVE_LIMIT, SEND_LIMIT].map(most), options)
}

fn describe_shortfall(granted: [Option<usize>; 2], options: &UdpOptions) -> Option<String> {
    let [receive, send] = granted;
    let all = [("receive", receive, RECEIVE_LIMIT), ("send", send, SEND_LIMIT)];
    let short = all.into_iter().filter_map(|(which, granted, limit)| {
        let granted = granted.filter(|granted| *granted < options.buffer)?;
        let cure = format!("{limit}={}", options.buffer);
        Some((format!("{which} buffers of {granted} bytes"), cure))
    });
    let (granted, cures): (Vec<_>, Vec<_>) = short.unzip();
    (!granted.is_empty()).then(|| {
        let (granted, cures) = (granted.join(" and "), cures.join(" "));
        format!(
            "UDP sockets have {granted}, not {} as wanted, so that bursts are lost sooner: \
             `sysctl -w {cures}`",
            options.buffer,
        )
    })
}

/// Sets the options that do not depend on whether the socket is bound; returns whether the kernel
/// joins and splits trains.
fn set_up(socket: &Socket, address: SocketAddr, options: &UdpOptions) -> Result<(bool, bool)> {
    let failed = |what: &str, error| NetError::system(format!("{what} of udp {address}"), error);
    forbid_fragments(socket, address).map_err(|error| failed("set DF", error))?;
    set(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)
        .map_err(|error| failed("set SO_RXQ_OVFL", error))?;
    if address.ip().is_unspecified() {
        tell_addresses(socket, address).map_err(|error| failed("set IP_PKTINFO", error))?;
    }
    if options.transparent {
        make_transparent(socket, address).map_err(|error| transparency_error(address, error))?;
    }
    if let Some(mark) = options.mark {
        socket.set_mark(mark).map_err(|error| mark_error(address, error))?;
    }
    if let Some(hops) = options.hops {
        limit_hops(socket, address, hops).map_err(|error| failed("set IP_TTL", error))?;
    }
    if options.tells_age {
        set(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
            .map_err(|error| failed("set SO_TIMESTAMPNS", error))?;
    }
    if options.tells_dscp {
        tell_dscp(socket, address).map_err(|error| failed("set IP_RECVTOS", error))?;
    }
    if options.tells_hops {
        tell_hops(socket, address).map_err(|error| failed("set IP_RECVTTL", error))?;
    }
    enlarge(socket, options.buffer);
    // Linux before 5.0 has neither; datagrams are then received and sent one by one.
    let gro = options.gro && set(socket, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok();
    let gso = options.gso && set(socket, libc::SOL_UDP, libc::UDP_SEGMENT, 0).is_ok();
    Ok((gro, gso))
}

/// Sets DF and ignores the kernel's cached MTU of the path, which anybody's ICMP could have set.
fn forbid_fragments(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let v4 = (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
    set_by_family(socket, address, v4, v6)
}

/// Requests the local address of each received datagram.
fn tell_addresses(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let v4 = (libc::IPPROTO_IP, libc::IP_PKTINFO, 1);
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, 1);
    set_by_family(socket, address, v4, v6)
}

fn limit_hops(socket: &Socket, address: SocketAddr, hops: u8) -> io::Result<()> {
    let v4 = (libc::IPPROTO_IP, libc::IP_TTL, hops.into());
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_UNICAST_HOPS, hops.into());
    set_by_family(socket, address, v4, v6)
}

fn tell_dscp(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let v4 = (libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
    set_by_family(socket, address, v4, v6)
}

fn tell_hops(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    let v4 = (libc::IPPROTO_IP, libc::IP_RECVTTL, 1);
    let v6 = (libc::IPPROTO_IPV6, libc::IPV6_RECVHOPLIMIT, 1);
    set_by_family(socket, address, v4, v6)
}

/// An option's level, name and value.
type Setting = (libc::c_int, libc::c_int, libc::c_int);

/// Sets the options for IPv4, for IPv6, or for both if the socket receives both.
fn set_by_family(
    socket: &Socket,
    address: SocketAddr,
    (v4_level, v4_name, v4_value): Setting,
    (v6_level, v6_name, v6_value): Setting,
) -> io::Result<()> {
    let is_ipv6 = address.is_ipv6();
    if is_ipv6 {
        set(socket, v6_level, v6_name, v6_value)?;
    }
    if !is_ipv6 || !socket.only_v6()? {
        set(socket, v4_level, v4_name, v4_value)?;
    }
    Ok(())
}

fn make_transparent(socket: &Socket, address: SocketAddr) -> io::Result<()> {
    if address.is_ipv4() {
        set(socket, libc::IPPROTO_IP, libc::IP_TRANSPARENT, 1)?;
        set(socket, libc::IPPROTO_IP, libc::IP_RECVORIGDSTADDR, 1)
    } else {
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_TRANSPARENT, 1)?;
        set(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVORIGDSTADDR, 1)
    }
}

fn transparency_error(address: SocketAddr, error: io::Error) -> NetError {
    match error.raw_os_error() {
        Some(libc::EPERM) => NetError::NotPermitted {
            action: "take datagrams to other addresses (IP_TRANSPARENT)",
            needs: "CAP_NET_ADMIN",
        },
        _ => NetError::system(format!("set IP_TRANSPARENT of udp {address}"), error),
    }
}

fn mark_error(address: SocketAddr, error: io::Error) -> NetError {
    match error.raw_os_error() {
        Some(libc::EPERM) => NetError::NotPermitted {
            action: "tell its own datagrams from others (SO_MARK)",
            needs: "CAP_NET_RAW, before Linux 5.17 CAP_NET_ADMIN",
        },
        _ => NetError::system(format!("set SO_MARK of udp {address}"), error),
    }
}

/// The settings up to which everybody may enlarge buffers.
const RECEIVE_LIMIT: &str = "net.core.rmem_max";
const SEND_LIMIT: &str = "net.core.wmem_max";

/// Enlarges both buffers beyond the system's limit where allowed, else up to it. What a process
/// with more rights has granted stays.
fn enlarge(socket: &Socket, bytes: usize) {
    let (receive, send) = (socket.recv_buffer_size(), socket.send_buffer_size());
    let buffers = [
        (libc::SO_RCVBUFFORCE, libc::SO_RCVBUF, receive, RECEIVE_LIMIT),
        (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF, send, SEND_LIMIT),
    ];
    for (force, ask, granted, limit) in buffers {
        let granted = granted.unwrap_or(0);
        let value = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
        if granted >= doubled(bytes) || set(socket, libc::SOL_SOCKET, force, value).is_ok() {
            continue;
        }
        let most = sysctl::get(limit).ok().and_then(|most| most.parse().ok()).unwrap_or(bytes);
        if granted < doubled(bytes.min(most)) {
            // `shortfall` tells what was granted.
            let _ = set(socket, libc::SOL_SOCKET, ask, value);
        }
    }
}

/// Returns a buffer's size as the kernel counts it, with what it needs itself (socket(7)).
const fn doubled(bytes: usize) -> usize {
    bytes.saturating_mul(2)
}

fn set(
    socket: &Socket,
    level: libc::c_int,
    name: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&value)).expect("four bytes");
    // SAFETY: the option reads one int, which lives through the call.
    let status = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
    };
    if status == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::privileges::keep_in_thread;

    /// Runs `test` as a process without rights would.
    fn without_rights<T: Send>(test: impl FnOnce() -> T + Send) -> T {
        let bare = || {
            keep_in_thread(&[]).unwrap();
            test()
        };
        std::thread::scope(|scope| scope.spawn(bare).join()).unwrap()
    }

    /// Returns the limit of unprivileged processes, and options that request more.
    fn large() -> (usize, UdpOptions) {
        let most = sysctl::get(RECEIVE_LIMIT).unwrap().parse().unwrap();
        (most, UdpOptions { buffer: 3 * most, ..UdpOptions::default() })
    }

    fn bind(options: &UdpOptions) -> UdpPort {
        UdpPort::bind("127.0.0.1:0".parse().unwrap(), options).unwrap()
    }

    #[test]
    fn buffer_shortfall_is_reported_with_the_remedy() {
        let (most, options) = large();
        let shortfall = without_rights(|| bind(&options).shortfall(&options)).unwrap();
        assert!(shortfall.contains(&format!("receive buffers of {most} bytes")), "{shortfall}");
        let wanted = options.buffer;
        assert!(shortfall.contains(&format!(", not {wanted} as wanted")), "{shortfall}");
        assert!(shortfall.contains(&format!("net.core.rmem_max={wanted}")), "{shortfall}");
        let small = UdpOptions { buffer: 4096, ..options };
        assert_eq!(without_rights(|| bind(&small).shortfall(&small)), None);
    }

    #[test]
    fn unprivileged_shortfall_is_predicted() {
        let (_, options) = large();
        let shortfall = shortfall_without_rights(&options);
        assert_eq!(shortfall, without_rights(|| bind(&options).shortfall(&options)));
    }

    #[test]
    fn adopted_socket_keeps_its_large_buffers() {
        let (_, options) = large();
        let port = bind(&options);
        if port.shortfall(&options).is_some() {
            return eprintln!("SKIPPED large buffers: needs CAP_NET_ADMIN");
        }
        let held = port.hold().unwrap();
        let shortfall =
            without_rights(|| UdpPort::adopt(held, &options).unwrap().shortfall(&options));
        assert_eq!(shortfall, None);
    }
}
