//! Sending datagrams: grouped by next hop and size, each group as one super-packet, all groups in
//! one call.
//!
//! The kernel splits a super-packet into datagrams of one size, of which the last may be shorter.
//! So a group ends with a shorter datagram, and a longer one begins the next; the order to one next
//! hop is preserved.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use socket2::SockAddr;

use super::UdpPort;
use super::control::{self, ControlBuffer};
use super::train::{Buffer, Train, buffers};

/// Most datagrams of a super-packet. Source: UDP_MAX_SEGMENTS of Linux before 6.9.
const MAX_SEGMENTS: usize = 64;
/// Most bytes of a super-packet: those of an IPv4 packet, less its headers and some options.
const MAX_BYTES: usize = 65_535 - 8 - 60;
/// Number of hash slots for the newest group of a next hop.
const PLACES: usize = 256;
/// An empty slot.
const NOBODY: u16 = u16::MAX;

/// The destination and source address of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Target {
    /// Its next hop.
    pub to: SocketAddr,
    /// The local address that it is sent from; `None` if the socket is bound to one, or the kernel
    /// is to choose.
    pub from: Option<IpAddr>,
}

impl From<SocketAddr> for Target {
    fn from(to: SocketAddr) -> Self {
        Self { to, from: None }
    }
}

/// The results of sending a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SendCounts {
    /// Datagrams handed to the kernel.
    pub sent: u64,
    /// Successful system calls.
    pub calls: u64,
    /// Datagrams dropped because the socket's buffer was full.
    pub full: u64,
    /// Datagrams dropped because they exceed the path's or the device's MTU.
    pub too_long: u64,
    /// Datagrams that the kernel refused for another reason, such as that there is no route.
    pub refused: u64,
}

/// Datagrams to one next hop, from one address, in one buffer.
struct Group {
    to: Target,
    name: SockAddr,
    /// Length of each datagram except the last.
    segment: usize,
    count: usize,
    bytes: usize,
    /// True once the last datagram is shorter than the others.
    is_closed: bool,
}

/// A batch of datagrams to be sent.
pub struct SendBatch {
    /// One for each possible group.
    buffers: Vec<Buffer>,
    groups: Vec<Group>,
    places: [u16; PLACES],
    control_buffers: Vec<ControlBuffer>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    limit: usize,
    datagrams: usize,
}

// SAFETY: its pointers lead into its own memory, and each call writes them anew.
unsafe impl Send for SendBatch {}

impl SendBatch {
    /// Creates a batch with space for `groups` groups, 64 KB each.
    #[must_use]
    pub fn new(groups: usize) -> Self {
        let limit = groups.clamp(1, 1024);
        Self {
            buffers: buffers(limit),
            groups: Vec::with_capacity(limit),
            places: [NOBODY; PLACES],
            control_buffers: vec![ControlBuffer::EMPTY; limit],
            vectors: Vec::with_capacity(limit),
            headers: Vec::with_capacity(limit),
            limit,
            datagrams: 0,
        }
    }

    /// Returns a buffer for a datagram of `length` bytes to `to`, to be written now; `None` when
    /// the batch must be flushed first, or the datagram is too long.
    pub fn push(&mut self, to: impl Into<Target>, length: usize) -> Option<&mut [u8]> {
        let to = to.into();
        if length > MAX_BYTES {
            return None;
        }
        let place = place_of(to);
        let at = match self.groups.get(usize::from(self.places[place])) {
            Some(group) if group.takes(to, length) => usize::from(self.places[place]),
            _ => self.begin(to, length, place)?,
        };
        let group = &mut self.groups[at];
        let start = group.bytes;
        group.is_closed = length < group.segment;
        group.count += 1;
        group.bytes += length;
        self.datagrams += 1;
        Some(&mut self.buffers[at][start..start + length])
    }

    /// Adds a datagram like [`SendBatch::push`], unless `write` returns that nothing is to be sent;
    /// then the buffer's content is dropped.
    pub fn push_if(
        &mut self,
        to: impl Into<Target>,
        length: usize,
        write: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let to = to.into();
        let place = place_of(to);
        let before = self.groups.len();
        let Some(space) = self.push(to, length) else { return false };
        if write(space) {
            return true;
        }
        self.datagrams -= 1;
        if self.groups.len() > before {
            self.groups.pop();
            self.places[place] = NOBODY;
        } else if let Some(group) = self.groups.get_mut(usize::from(self.places[place])) {
            group.count -= 1;
            group.bytes -= length;
            // It accepted this datagram, so it was not closed before.
            group.is_closed = false;
        }
        false
    }

    /// Adds a whole train that has arrived, to be sent to `to` unchanged: appended to the newest
    /// train there, if both make one for the kernel, whose pass through the stack costs more than
    /// copying; otherwise in its own buffer. Returns `false` when the batch must be flushed first,
    /// or the train is empty or too long.
    pub fn take(&mut self, to: impl Into<Target>, train: &mut Train<'_>) -> bool {
        let to = to.into();
        let (count, length, segment) = (train.count(), train.length, train.segment);
        if length == 0 || count > MAX_SEGMENTS || length > MAX_BYTES {
            return false;
        }
        let (segment, place) = (segment.min(length), place_of(to));
        let newest = usize::from(self.places[place]);
        let at = match self.groups.get(newest) {
            Some(group) if group.takes_train(to, segment, (count, length)) => {
                let space = &mut self.buffers[newest][group.bytes..group.bytes + length];
                space.copy_from_slice(train.bytes());
                newest
            }
            _ => {
                let Some(at) = self.begin(to, segment, place) else { return false };
                std::mem::swap(&mut self.buffers[at], train.buffer);
                at
            }
        };
        train.length = 0;
        let group = &mut self.groups[at];
        group.count += count;
        group.bytes += length;
        group.is_closed = length < count * segment;
        self.datagrams += count;
        true
    }

    /// Returns whether a datagram of `length` bytes to `to` needs a flush first.
    #[must_use]
    pub fn is_full_for(&self, to: impl Into<Target>, length: usize) -> bool {
        let to = to.into();
        let newest = self.groups.get(usize::from(self.places[place_of(to)]));
        self.is_full() && !newest.is_some_and(|group| group.takes(to, length))
    }

    /// Returns whether there is no space for another group.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.groups.len() == self.limit
    }

    /// Returns the number of datagrams in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.datagrams
    }

    /// Returns whether the batch is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.datagrams == 0
    }

    /// Sends all through `port` and empties the batch.
    pub fn flush(&mut self, port: &UdpPort) -> SendCounts {
        let mut counts = SendCounts::default();
        if self.groups.is_empty() {
            return counts;
        }
        if port.takes_trains() || self.groups.iter().all(|group| group.count == 1) {
            self.flush_groups(port, &mut counts);
        } else {
            for at in 0..self.groups.len() {
                self.send_singly(port, at, &mut counts);
            }
        }
        self.groups.clear();
        self.places = [NOBODY; PLACES];
        self.datagrams = 0;
        counts
    }

    fn begin(&mut self, to: Target, length: usize, place: usize) -> Option<usize> {
        let at = self.groups.len();
        if at == self.limit {
            return None;
        }
        let name = SockAddr::from(to.to);
        let (segment, count, bytes) = (length, 0, 0);
        self.groups.push(Group { to, name, segment, count, bytes, is_closed: false });
        self.places[place] = at as u16;
        Some(at)
    }

    fn flush_groups(&mut self, port: &UdpPort, counts: &mut SendCounts) {
        self.prepare();
        let fd = port.as_fd().as_raw_fd();
        let mut done = 0;
        while done < self.groups.len() {
            let rest = &mut self.headers[done..];
            counts.calls += 1;
            // SAFETY: each header points to a name, a control buffer and a vector of this batch,
            // which live through the call.
            let sent = unsafe {
                // By number: musl's function of this name calls sendmsg(2) for each of them.
                libc::syscall(
                    libc::SYS_sendmmsg,
                    fd,
                    rest.as_mut_ptr(),
                    rest.len() as libc::c_uint,
                    libc::MSG_DONTWAIT,
                )
            };
            if let Ok(sent @ 1..) = usize::try_from(sent) {
                let groups = &self.groups[done..done + sent];
                counts.sent += groups.iter().map(|group| group.count as u64).sum::<u64>();
                done += sent;
                continue;
            }
            let error = io::Error::last_os_error();
            let count = self.groups[done].count as u64;
            match error.raw_os_error() {
                Some(libc::EINTR) => continue,
                Some(libc::EAGAIN | libc::ENOBUFS) => {
                    let left = &self.groups[done..];
                    counts.full += left.iter().map(|group| group.count as u64).sum::<u64>();
                    return;
                }
                // Before the first datagram the kernel may report an ICMP error, once.
                _ if count > 1 || error.raw_os_error() == Some(libc::ECONNREFUSED) => {
                    self.send_train_singly(port, done, counts);
                }
                Some(libc::EMSGSIZE) => counts.too_long += count,
                _ => counts.refused += count,
            }
            done += 1;
        }
    }

    /// Sends the datagrams of a refused train one by one. If they pass, trains are not supported:
    /// EIO of a device without checksum offload, EINVAL of an old kernel. EINVAL for datagrams
    /// beyond the MTU proves nothing about trains.
    fn send_train_singly(&mut self, port: &UdpPort, at: usize, counts: &mut SendCounts) {
        let before = counts.sent;
        self.send_singly(port, at, counts);
        let group = &self.groups[at];
        if group.count > 1 && counts.sent - before == group.count as u64 {
            port.stop_trains();
        }
    }

    fn send_singly(&mut self, port: &UdpPort, at: usize, counts: &mut SendCounts) {
        let (group, control_buffer) = (&self.groups[at], &mut self.control_buffers[at]);
        let train = &self.buffers[at][..group.bytes];
        let fd = port.as_fd().as_raw_fd();
        let controls = control::write(control_buffer, None, group.to.from);
        let mut send = |datagram: &[u8]| {
            counts.calls += 1;
            let (iov_base, iov_len) = (datagram.as_ptr().cast_mut().cast(), datagram.len());
            let mut vector = libc::iovec { iov_base, iov_len };
            // SAFETY: plain data of C, for which all zeroes are a value.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_name = group.name.as_ptr().cast_mut().cast();
            header.msg_namelen = group.name.len();
            (header.msg_iov, header.msg_iovlen) = (&raw mut vector, 1);
            if controls > 0 {
                (header.msg_control, header.msg_controllen) =
                    (control_buffer.pointer(), controls as _);
            }
            // SAFETY: the header points to a name, a control buffer and a vector, whose bytes live
            // through the call.
            let sent = unsafe { libc::sendmsg(fd, &raw const header, libc::MSG_DONTWAIT) };
            if sent >= 0 { Ok(()) } else { Err(io::Error::last_os_error().raw_os_error()) }
        };
        let mut outcomes = SendCounts::default();
        let mut one = |datagram: &[u8]| {
            let outcome = match send(datagram) {
                Err(Some(libc::ECONNREFUSED | libc::EINTR)) => send(datagram),
                outcome => outcome,
            };
            match outcome {
                Ok(()) => outcomes.sent += 1,
                Err(Some(libc::EAGAIN | libc::ENOBUFS)) => outcomes.full += 1,
                Err(Some(libc::EMSGSIZE)) => outcomes.too_long += 1,
                Err(_) => outcomes.refused += 1,
            }
        };
        if group.bytes == 0 {
            (0..group.count).for_each(|_| one(&[]));
        }
        train.chunks(group.segment.max(1)).for_each(one);
        counts.sent += outcomes.sent;
        counts.full += outcomes.full;
        counts.too_long += outcomes.too_long;
        counts.refused += outcomes.refused;
    }

    fn prepare(&mut self) {
        self.vectors.clear();
        self.headers.clear();
        for (at, group) in self.groups.iter().enumerate() {
            let bytes = &mut self.buffers[at][..group.bytes];
            let (iov_base, iov_len) = (bytes.as_mut_ptr().cast(), bytes.len());
            self.vectors.push(libc::iovec { iov_base, iov_len });
        }
        for (at, group) in self.groups.iter().enumerate() {
            // SAFETY: plain data of C, for which all zeroes are a value.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_name = group.name.as_ptr().cast_mut().cast();
            header.msg_hdr.msg_namelen = group.name.len();
            header.msg_hdr.msg_iov = &raw mut self.vectors[at];
            header.msg_hdr.msg_iovlen = 1;
            let segment = (group.count > 1).then_some(group.segment as u16);
            if segment.is_some() || group.to.from.is_some() {
                let length = control::write(&mut self.control_buffers[at], segment, group.to.from);
                header.msg_hdr.msg_control = self.control_buffers[at].pointer();
                header.msg_hdr.msg_controllen = length as _;
            }
            self.headers.push(header);
        }
    }
}

impl Group {
    fn takes(&self, to: Target, length: usize) -> bool {
        self.to == to
            && !self.is_closed
            && (1..=self.segment).contains(&length)
            && self.count < MAX_SEGMENTS
            && self.bytes + length <= MAX_BYTES
    }

    /// Returns whether the group takes a train of datagrams of `segment` bytes.
    fn takes_train(&self, to: Target, segment: usize, (count, bytes): (usize, usize)) -> bool {
        self.takes(to, segment)
            && segment == self.segment
            && self.count + count <= MAX_SEGMENTS
            && self.bytes + bytes <= MAX_BYTES
    }
}

/// Returns the slot of the newest group to `to`: a collision of two next hops only costs an
/// additional group.
fn place_of(Target { to, .. }: Target) -> usize {
    let ip = match to {
        SocketAddr::V4(v4) => u64::from(v4.ip().to_bits()),
        SocketAddr::V6(v6) => {
            let bits = v6.ip().to_bits();
            (bits >> 64) as u64 ^ bits as u64
        }
    };
    let mixed = (ip ^ u64::from(to.port()) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed >> 56) as usize % PLACES
}

impl std::fmt::Debug for SendBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SendBatch({} datagrams in {} groups)", self.datagrams, self.groups.len())
    }
}
