//! Receiving datagrams: trains joined by the kernel, many per call.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::UdpPort;
use super::control::{self, ControlBuffer, ReceivedControl};
use super::train::{BUFFER, Buffer, Train, buffers};

/// A message: one datagram, or a train from one sender.
#[derive(Clone, Copy)]
struct Message {
    from: Option<SocketAddr>,
    length: usize,
    control: ReceivedControl,
}

/// The metadata of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// Its sender.
    pub from: SocketAddr,
    /// The local address at which it arrived, if the socket is bound to all of them: an answer is
    /// sent from there.
    pub at: Option<IpAddr>,
    /// Its original destination, if it was intercepted.
    pub went_to: Option<SocketAddr>,
    /// Its differentiated services code point, if the socket reports it
    /// ([`UdpOptions::tells_dscp`](super::UdpOptions)).
    pub dscp: Option<u8>,
    /// The hops that it had left, if the socket reports them
    /// ([`UdpOptions::tells_hops`](super::UdpOptions)).
    pub hops: Option<u8>,
    /// The time that it had waited when it was fetched, if the socket reports it
    /// ([`UdpOptions::tells_age`](super::UdpOptions)).
    pub age: Option<Duration>,
}

/// Buffers for the messages of one call, and the messages of the last.
pub struct ReceiveBatch {
    buffers: Vec<Buffer>,
    names: Vec<libc::sockaddr_storage>,
    control_buffers: Vec<ControlBuffer>,
    vectors: Vec<libc::iovec>,
    headers: Vec<libc::mmsghdr>,
    messages: Vec<Message>,
    /// Number of headers used by the last call, which must be prepared again.
    used: usize,
    /// Drops of the last socket, as counted by the kernel: modulo 2^32.
    drops: u32,
    /// Time of the last call, since the Unix epoch.
    fetched: Duration,
}

// SAFETY: its pointers lead into its own memory on the heap, whoever owns it.
unsafe impl Send for ReceiveBatch {}

impl ReceiveBatch {
    /// Creates buffers for `messages` messages per call, 64 KB each.
    #[must_use]
    pub fn new(messages: usize) -> Self {
        let messages = messages.clamp(1, 1024);
        // SAFETY: plain data of C, for which all zeroes are a value.
        let (name, header) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        let nothing = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        Self {
            buffers: buffers(messages),
            names: vec![name; messages],
            control_buffers: vec![ControlBuffer::EMPTY; messages],
            vectors: vec![nothing; messages],
            headers: vec![header; messages],
            messages: Vec::with_capacity(messages),
            used: messages,
            drops: 0,
            fetched: Duration::ZERO,
        }
    }

    /// Fetches the datagrams that have arrived at `port`; returns the number of messages, 0 if
    /// there are none.
    ///
    /// # Errors
    /// Those of recvmmsg(2) except that nothing is there. ICMP errors of datagrams sent earlier are
    /// ignored.
    pub fn receive(&mut self, port: &UdpPort) -> io::Result<usize> {
        self.messages.clear();
        self.prepare();
        self.used = 0;
        let count = self.headers.len() as libc::c_uint;
        let fd = port.as_fd().as_raw_fd();
        // SAFETY: each header points to a name, a control buffer and a vector of this batch, which
        // live through the call.
        let fetched = unsafe {
            // By number: what musl's function of this name does before the call costs time.
            libc::syscall(
                libc::SYS_recvmmsg,
                fd,
                self.headers.as_mut_ptr(),
                count,
                libc::MSG_DONTWAIT,
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        let Ok(fetched) = usize::try_from(fetched) else {
            let error = io::Error::last_os_error();
            return if is_passing(&error) { Ok(0) } else { Err(error) };
        };
        self.used = fetched;
        self.fetched = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // The kernel reports drops only once there are some, and then with every message.
        self.drops = 0;
        for at in 0..fetched {
            let header = &self.headers[at];
            let length = header.msg_len as usize;
            let name_length = header.msg_hdr.msg_namelen as usize;
            // SAFETY: the kernel filled header, name and control buffer just now.
            let (control, from) = unsafe {
                let name = (&raw const self.names[at]).cast::<u8>();
                (control::read(&header.msg_hdr), control::address(name, name_length))
            };
            self.drops = control.drops.unwrap_or(self.drops);
            self.messages.push(Message { from, length, control });
        }
        Ok(fetched)
    }

    /// Calls `take` for each datagram of the last call in the order of arrival, with its metadata
    /// and its bytes.
    pub fn for_each(&mut self, mut take: impl FnMut(Arrival, &mut [u8])) {
        self.for_each_train(|arrival, train| {
            let segment = train.segment();
            if train.bytes().is_empty() {
                take(arrival, &mut []);
            }
            for datagram in train.bytes().chunks_mut(segment) {
                take(arrival, datagram);
            }
        });
    }

    /// Calls `take` for each train as joined by the kernel. A train of no bytes is an empty
    /// datagram.
    pub fn for_each_train(&mut self, mut take: impl FnMut(Arrival, &mut Train<'_>)) {
        for (message, buffer) in self.messages.iter().zip(&mut self.buffers) {
            let Some(from) = message.from else { continue };
            let (length, ReceivedControl { at, went_to, dscp, hops, came, segment, .. }) =
                (message.length, message.control);
            let segment = segment.unwrap_or(length).max(1);
            let age = came.map(|came| self.fetched.saturating_sub(came));
            let arrival = Arrival { from, at, went_to, dscp, hops, age };
            take(arrival, &mut Train { buffer, length, segment });
        }
    }

    /// Returns the datagrams that the kernel has dropped at the last port because its buffer was
    /// full, modulo 2^32, as reported by the last message; 0 before one has.
    #[must_use]
    pub fn drops(&self) -> u32 {
        self.drops
    }

    fn prepare(&mut self) {
        let name_length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        for at in 0..self.used {
            let iov_base = self.buffers[at].as_mut_ptr().cast();
            self.vectors[at] = libc::iovec { iov_base, iov_len: BUFFER };
            let header = &mut self.headers[at].msg_hdr;
            header.msg_name = (&raw mut self.names[at]).cast();
            header.msg_namelen = name_length;
            header.msg_iov = &raw mut self.vectors[at];
            header.msg_iovlen = 1;
            header.msg_control = self.control_buffers[at].pointer();
            header.msg_controllen = ControlBuffer::len() as _;
            header.msg_flags = 0;
        }
    }
}

/// Returns whether nothing is there, or the kernel reports an ICMP error, which it does once.
fn is_passing(error: &io::Error) -> bool {
    let by_icmp = [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::ENETUNREACH,
        libc::EMSGSIZE,
        libc::EPROTO,
        libc::EHOSTDOWN,
    ];
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error().is_some_and(|errno| by_icmp.contains(&errno))
}

impl std::fmt::Debug for ReceiveBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReceiveBatch({} messages)", self.messages.len())
    }
}
