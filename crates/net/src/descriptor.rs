//! Passing of descriptors between processes over a local socket.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use nix::cmsg_space;
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};

use crate::error::{NetError, Result};

/// Most descriptors in one message.
pub const MAX_DESCRIPTORS: usize = 4;

/// Sends one byte with `descriptors` attached.
///
/// # Errors
/// When the other side is gone.
pub fn send(stream: &UnixStream, descriptors: &[BorrowedFd<'_>]) -> Result<()> {
    let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let payload = [IoSlice::new(&[1])];
    let attached = [ControlMessage::ScmRights(&raw)];
    sendmsg::<()>(stream.as_raw_fd(), &payload, &attached, MsgFlags::MSG_NOSIGNAL, None)
        .map(|_| ())
        .map_err(|errno| NetError::system("hand over descriptors", errno))
}

/// Receives the descriptors sent by [`send`]: at most [`MAX_DESCRIPTORS`].
///
/// # Errors
/// When the other side is gone.
pub fn receive(stream: &UnixStream) -> Result<Vec<OwnedFd>> {
    let mut byte = [0u8];
    let mut payload = [IoSliceMut::new(&mut byte)];
    let mut control = cmsg_space!([RawFd; MAX_DESCRIPTORS]);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let failed = |errno| NetError::system("receive descriptors", errno);
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut payload, Some(&mut control), flags)
        .map_err(failed)?;
    let mut received = Vec::new();
    for part in message.cmsgs().map_err(failed)? {
        if let ControlMessageOwned::ScmRights(raw) = part {
            // SAFETY: the kernel just made these descriptors for this process alone.
            received.extend(raw.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }));
        }
    }
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;

    #[test]
    fn descriptor_works_on_the_other_side() {
        let (here, there) = UnixStream::pair().unwrap();
        let (mut reader, writer) = std::io::pipe().unwrap();
        send(&here, &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut received = receive(&there).unwrap();
        let descriptor = received.pop().unwrap();
        std::fs::File::from(descriptor).write_all(b"hello").unwrap();
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
    }
}
