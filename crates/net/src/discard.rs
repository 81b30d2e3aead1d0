//! Receiving without copying, for a load generator's sink, which must cost less than the measured
//! program.

use std::io;
use std::mem::MaybeUninit;

use socket2::SockRef;

/// Discards up to `most` bytes (at most 1 MiB) from the receive queue of a TCP socket without
/// copying them (`MSG_TRUNC`); returns 0 at the end of the stream. Blocks if the socket does.
///
/// # Errors
/// Those of recv(2).
pub fn discard(socket: &impl std::os::fd::AsFd, most: usize) -> io::Result<usize> {
    thread_local! {
        static UNTOUCHED: std::cell::RefCell<Vec<MaybeUninit<u8>>> =
            std::cell::RefCell::new(vec![MaybeUninit::uninit(); 1 << 20]);
    }
    UNTOUCHED.with_borrow_mut(|buffer| {
        let most = most.min(buffer.len());
        SockRef::from(socket).recv_with_flags(&mut buffer[..most], libc::MSG_TRUNC)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn discarded_bytes_are_counted_until_the_end() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        sender.write_all(&[7; 5000]).unwrap();
        drop(sender);
        let mut total = 0;
        loop {
            match discard(&receiver, 1 << 20).unwrap() {
                0 => break,
                count => total += count,
            }
        }
        assert_eq!(total, 5000);
    }
}
