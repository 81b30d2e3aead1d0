//! Control messages beside datagrams: what the kernel tells of those that arrive, and is told of those that go.

use std::mem::size_of;
use std::net::SocketAddr;

use socket2::SockAddr;

/// Room for the control messages of one message, aligned as they must be.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct Room([u8; 128]);

impl Room {
    pub(super) const EMPTY: Self = Self([0; 128]);

    pub(super) fn pointer(&mut self) -> *mut libc::c_void {
        self.0.as_mut_ptr().cast()
    }

    pub(super) const fn len() -> usize {
        size_of::<Self>()
    }
}

/// What the kernel told of one message.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Told {
    /// Bytes of each datagram of a train but the last.
    pub(super) segment: Option<usize>,
    /// Datagrams that the socket has dropped so far.
    pub(super) drops: Option<u32>,
    /// Where the datagram went, when it was taken off its way.
    pub(super) went_to: Option<SocketAddr>,
    /// Its differentiated services code point, where the socket tells it.
    pub(super) dscp: Option<u8>,
}

/// Reads a received message's control messages.
///
/// # Safety
/// `header` was filled by recvmsg or recvmmsg, and its control pointer still points to the room given there.
pub(super) unsafe fn read(header: &libc::msghdr) -> Told {
    let mut told = Told::default();
    // SAFETY: the caller's promise; CMSG_FIRSTHDR and CMSG_NXTHDR stay inside of what the kernel filled.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: not null, so it points to a whole header inside the room.
        let (message, data) = unsafe { (&*next, libc::CMSG_DATA(next)) };
        // 32 bits on some systems.
        let whole: usize = message.cmsg_len as _;
        // SAFETY: CMSG_LEN only adds up.
        let length = whole.saturating_sub(unsafe { libc::CMSG_LEN(0) } as usize);
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) if length >= size_of::<libc::c_int>() => {
                // SAFETY: the message holds an int, not necessarily aligned.
                let segment = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                told.segment = usize::try_from(segment).ok().filter(|segment| *segment > 0);
            }
            (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) if length >= size_of::<u32>() => {
                // SAFETY: the message holds 32 bits, not necessarily aligned.
                told.drops = Some(unsafe { data.cast::<u32>().read_unaligned() });
            }
            (libc::SOL_IP, libc::IP_ORIGDSTADDR) | (libc::SOL_IPV6, libc::IPV6_ORIGDSTADDR) => {
                // SAFETY: the message holds an address of `length` bytes.
                told.went_to = unsafe { address(data, length) };
            }
            (libc::SOL_IP, libc::IP_TOS) if length >= 1 => {
                // SAFETY: the message holds a byte.
                told.dscp = Some(unsafe { data.read() } >> 2);
            }
            (libc::SOL_IPV6, libc::IPV6_TCLASS) if length >= size_of::<libc::c_int>() => {
                // SAFETY: the message holds an int, not necessarily aligned.
                let class = unsafe { data.cast::<libc::c_int>().read_unaligned() };
                told.dscp = u8::try_from(class >> 2).ok();
            }
            _ => {}
        }
        // SAFETY: as above.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    told
}

/// Reads an address of `length` bytes.
///
/// # Safety
/// `data` is readable for `length` bytes.
pub(super) unsafe fn address(data: *const u8, length: usize) -> Option<SocketAddr> {
    if length > size_of::<libc::sockaddr_storage>() {
        return None;
    }
    // SAFETY: the storage is plain data with room for `length` bytes, which the caller promises readable.
    let ((), address) = unsafe {
        SockAddr::try_init(|storage, room| {
            std::ptr::copy_nonoverlapping(data, storage.cast::<u8>(), length);
            *room = length as libc::socklen_t;
            Ok(())
        })
    }
    .ok()?;
    address.as_socket()
}

/// Writes into `room` that the message is a train of datagrams of `segment` bytes; returns how long that is.
pub(super) fn write_segment(room: &mut Room, segment: u16) -> usize {
    // SAFETY: plain data of C, for which all zeroes are a value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_control = room.pointer();
    header.msg_controllen = Room::len() as _;
    // SAFETY: the room is aligned and longer than one header and two bytes.
    unsafe {
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = libc::SOL_UDP;
        (*message).cmsg_type = libc::UDP_SEGMENT;
        (*message).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as libc::c_uint) as _;
        libc::CMSG_DATA(message).cast::<u16>().write_unaligned(segment);
        libc::CMSG_SPACE(size_of::<u16>() as libc::c_uint) as usize
    }
}
