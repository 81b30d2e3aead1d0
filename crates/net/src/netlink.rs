//! Requests to the kernel over a netlink socket, and their answers.

use std::io;

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};

use crate::error::{NetError, Result};

/// Buffer size of one read. The kernel fills at most 32 KiB of a dump at once.
const BUFFER_BYTES: usize = 64 * 1024;
const HEADER: usize = 16;
/// Message types of the protocol itself (`linux/netlink.h`).
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Flag: more messages of this answer follow.
const NLM_F_MULTI: u16 = 2;
/// Flag: an acknowledgement is requested.
pub(crate) const NLM_F_ACK: u16 = 4;
pub(crate) const NLM_F_REQUEST: u16 = 1;
/// Flag: a dump of a whole table.
pub(crate) const NLM_F_DUMP: u16 = 0x300;

/// A netlink socket of the calling thread's network namespace.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket of `protocol`, such as `NETLINK_ROUTE`.
    pub(crate) fn open(protocol: isize) -> Result<Self> {
        let open = || {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok::<_, io::Error>(socket)
        };
        let socket = open().map_err(|source| NetError::system("open a netlink socket", source))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(BUFFER_BYTES) })
    }

    /// Sends `request`, whose header is complete except for its sequence number, and calls `each`
    /// with each message of the answer, header included, until the answer is complete.
    pub(crate) fn ask(
        &mut self,
        request: &mut [u8],
        mut each: impl FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        let acknowledged = u16_at(request, 6) & NLM_F_ACK != 0;
        self.socket.send(request, 0)?;
        loop {
            self.buffer.clear();
            self.socket.recv(&mut self.buffer, 0)?;
            for message in messages(&self.buffer) {
                // The rest of an earlier answer that was given up.
                if u32_at(message, 8) != self.sequence {
                    continue;
                }
                match u16_at(message, 4) {
                    NLMSG_DONE => return Ok(()),
                    NLMSG_ERROR => return outcome(message),
                    _ => each(message),
                }
                if u16_at(message, 6) & NLM_F_MULTI == 0 && !acknowledged {
                    return Ok(());
                }
            }
        }
    }
}

/// Group of changes of next hops (`linux/rtnetlink.h`). Linux before 5.3 has no such objects.
const NEXT_HOPS: u32 = 32;

/// Opens a non-blocking socket of the routing protocol that receives what changes in `groups`, and
/// of next hops where the kernel has these.
pub(crate) fn listen(groups: &[u32]) -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.set_non_blocking(true)?;
    groups.iter().try_for_each(|group| socket.add_membership(*group))?;
    let _old_kernel = socket.add_membership(NEXT_HOPS);
    Ok(socket)
}

/// Splits the received bytes into messages; a truncated one ends the iteration.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let length = usize::try_from(u32_at(rest, 0)).ok()?;
        if length < HEADER || length > rest.len() {
            return None;
        }
        let (message, after) = (&rest[..length], length.next_multiple_of(4).min(rest.len()));
        rest = &rest[after..];
        Some(message)
    })
}

/// Returns the kernel's verdict: a negative error number, or zero.
fn outcome(message: &[u8]) -> io::Result<()> {
    match u32_at(message, HEADER).cast_signed() {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
    }
}

/// Returns the number at an offset; zero beyond the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).map_or(0, |two| u16::from_ne_bytes([two[0], two[1]]))
}

/// Returns the number at an offset; zero beyond the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |four| u32::from_ne_bytes([four[0], four[1], four[2], four[3]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn truncated_or_absurd_message_ends_the_iteration() {
        let message = |length: u32| [length.to_ne_bytes().to_vec(), vec![0; 16]].concat();
        assert_eq!(messages(&message(20)).count(), 1);
        assert_eq!(messages(&[message(20), message(20)].concat()).count(), 2);
        for length in [0, 15, 21, u32::MAX] {
            assert_eq!(messages(&message(length)).count(), 0, "{length}");
        }
        assert_eq!(messages(&[]).count(), 0);
        assert_eq!(messages(&[1, 2, 3]).count(), 0);
    }
}
