//! Control messages of datagrams: metadata that the kernel reports on receipt, and takes on
//! sending.

use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use socket2::SockAddr;

/// A buffer for the control messages of one message, aligned as required.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct ControlBuffer([u8; 192]);

impl ControlBuffer {
    pub(super) const EMPTY: Self = Self([0; 192]);

    pub(super) fn pointer(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    pub(super) const fn len() -> usize {
        size_of::<Self>()
    }
}

/// The metadata of one received message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ReceivedControl {
    /// Length of each datagram of a train except the last.
    pub(super) segment: Option<usize>,
    /// Datagrams that the socket has dropped so far.
    pub(super) drops: Option<u32>,
    /// Original destination of an intercepted datagram.
    pub(super) went_to: Option<SocketAddr>,
    /// The local address at which it arrived, if the socket is bound to all of them.
    pub(super) at: Option<IpAddr>,
    /// Its differentiated services code point, if the socket reports it.
    pub(super) dscp: Option<u8>,
    /// The hops that it had left, if the socket reports them.
    pub(super) hops: Option<u8>,
    /// Time of arrival, since the Unix epoch, if the socket reports it.
    pub(super) came: Option<Duration>,
}

/// Parses a received message's control messages.
///
/// # Safety
/// `header` was filled by recvmsg or recvmmsg, and its control pointer still points to the buffer
/// given there.
pub(super) unsafe fn read(header: &libc::msghdr) -> ReceivedControl {
    let mut received = ReceivedControl::default();
    // SAFETY: the caller's promise; CMSG_FIRSTHDR and CMSG_NXTHDR stay inside of what the kernel
    // filled.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so it points to a whole header inside the buffer.
        let (message, data) = unsafe { (&*next, libc::CMSG_DATA(next)) };
        // 32 bits on some systems.
        let whole: usize = message.cmsg_len as _;
        // SAFETY: CMSG_LEN only adds up.
        let length = whole.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) if length >= size_of::<libc::c_int>() => {
                // SAFETY: the message holds an int, not necessarily aligned.
                let segment = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                received.segment = usize::try_from(segment).ok().filter(|segment| *segment > 0);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) if length >= size_of::<u32>() => {
                // SAFETY: the message holds 32 bits, not necessarily aligned.
                received.drops = Some(unsafe { data.cast::<u32>().read_unaligned() });
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) if length >= size_of::<libc::timespec>() => {
                // SAFETY: the message holds that structure, not necessarily aligned.
                let came = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                let seconds = u64::try_from(came.tv_sec).unwrap_or(0);
                let nanos = u32::try_from(came.tv_nsec).unwrap_or(0);
                received.came = Some(Duration::new(seconds, nanos));
            }
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) | (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => {
                // SAFETY: the message holds an address of `length` bytes.
                received.went_to = unsafe { address(data, length) };
            }
            (libc::SOL_IP, libc::IP_PKTINFO) if length >= size_of::<libc::in_pktinfo>() => {
                // SAFETY: the message holds that structure, not necessarily aligned.
                let info = unsafe { data.cast::<libc::in_pktinfo>().read_unaligned() };
                let at = Ipv4Addr::from(u32::from_be(info.ipi_spec_dst.s_addr));
                received.at = Some(at).filter(|at| !at.is_unspecified()).map(IpAddr::V4);
            }
            (libc::SOL_IPV6, libc::IPV6_PKTINFO) if length >= size_of::<libc::in6_pktinfo>() => {
                // SAFETY: the message holds that structure, not necessarily aligned.
                let info = unsafe { data.cast::<libc::in6_pktinfo>().read_unaligned() };
                let at = Ipv6Addr::from(info.ipi6_addr.s6_addr);
                // For an IPv4 datagram at a socket of both families, IP_PKTINFO is more exact.
                if at.to_ipv4_mapped().is_none() && !at.is_multicast() {
                    received.at = Some(IpAddr::V6(at));
                }
            }
            (libc::SOL_IP, libc::IP_TOS) if length >= 1 => {
                // SAFETY: the message holds a byte.
                received.dscp = Some(unsafe { data.read() } >> 2);
            }
            (libc::SOL_IPV6, libc::IPV6_TCLASS) if length >= size_of::<libc::c_int>() => {
                // SAFETY: the message holds an int, not necessarily aligned.
                let class = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                received.dscp = u8::try_from(class >> 2).ok();
            }
            (libc::SOL_IP, libc::IP_TTL) | (libc::SOL_IPV6, libc::IPV6_HOPLIMIT)
                if length >= size_of::<libc::c_int>() =>
            {
                // SAFETY: the message holds an int, not necessarily aligned.
                let hops = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                received.hops = u8::try_from(hops).ok();
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    received
}

/// Parses an address of `length` bytes.
///
/// # Safety
/// `data` is readable for `length` bytes.
pub(super) unsafe fn address(data: *const u8, length: usize) -> Option<SocketAddr> {
    if length > size_of::<libc::sockaddr_storage>() {
        return None;
    }
    // SAFETY: the storage is plain data with space for `length` bytes, which the caller promises
    // readable.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, space| {
            std::ptr::copy_nonoverlapping(data, storage.cast::<u8>(), length);
            *space = length as libc::socklen_t;
            Ok(())
        })
    }
    .ok()?;
    // A socket of both families reports IPv4 addresses as IPv6.
    address.as_socket().map(|address| match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    })
}

/// Writes control messages into `buffer`: the segment size of a train of datagrams, and the source
/// address `from`, if given; returns their length.
pub(super) fn write(
    buffer: &mut ControlBuffer,
    segment: Option<u16>,
    from: Option<IpAddr>,
) -> usize {
    // SAFETY: plain data of C, for which all zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_control = buffer.pointer();
    let mut length = 0;
    if let Some(segment) = segment {
        length += append(&mut header, length, (libc::SOL_UDP, libc::UDP_SEGMENT), segment);
    }
    match from {
        Some(IpAddr::V4(from)) => {
            let ipi_spec_dst = libc::in_addr { s_addr: u32::from(from).to_be() };
            let ipi_addr = libc::in_addr { s_addr: 0 };
            let info = libc::in_pktinfo { ipi_ifindex: 0, ipi_spec_dst, ipi_addr };
            length += append(&mut header, length, (libc::SOL_IP, libc::IP_PKTINFO), info);
        }
        Some(IpAddr::V6(from)) => {
            let ipi6_addr = libc::in6_addr { s6_addr: from.octets() };
            let info = libc::in6_pktinfo { ipi6_addr, ipi6_ifindex: 0 };
            length += append(&mut header, length, (libc::SOL_IPV6, libc::IPV6_PKTINFO), info);
        }
        None => {}
    }
    length
}

/// Writes a control message of one value into the header's buffer after the `before` bytes there;
/// returns its length.
fn append<T>(
    header: &mut libc::msghdr,
    before: usize,
    (level, kind): (libc::c_int, libc::c_int),
    value: T,
) -> usize {
    // SAFETY: these only add up.
    let (whole, space) = unsafe {
        let bytes = size_of::<T>() as libc::c_uint;
        (libc::CMSG_LEN(bytes), libc::CMSG_SPACE(bytes) as usize)
    };
    assert!(before + space <= ControlBuffer::len(), "the room holds all that is written");
    header.msg_controllen = (before + space) as _;
    // SAFETY: the buffer is aligned, each message ends on an aligned byte, and this one fits behind
    // those before it.
    unsafe {
        let message = header.msg_control.cast::<u8>().add(before).cast::<libc::cmsghdr>();
        (*message).cmsg_level = level;
        (*message).cmsg_type = kind;
        // The kernel's length is a word; that of musl's type is half of one, beside padding that
        // an earlier message may have filled.
        message.cast::<usize>().write_unaligned(whole as usize);
        libc::CMSG_DATA(message).cast::<T>().write_unaligned(value);
    }
    space
}
