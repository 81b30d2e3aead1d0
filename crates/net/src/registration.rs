//! Registration of sockets with the async runtime.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a non-blocking socket for writing only: the runtime is notified of space to write and
/// of failure, and never of arriving data. Must be called inside a runtime.
///
/// # Errors
/// When the runtime or the kernel has no memory; the socket is closed then.
pub fn for_writing(stream: TcpStream) -> io::Result<AsyncFd<TcpStream>> {
    // SAFETY: a `TcpStream` owns its descriptor, names the same one throughout its life and closes
    // it only when dropped, which `AsyncFd` does after it has removed the descriptor from the
    // runtime.
    unsafe { AsyncFd::register_with_interest(stream, Interest::WRITABLE) }.map_err(io::Error::from)
}

/// Registers a descriptor that signals events for reading only. Must be called inside a runtime.
///
/// # Errors
/// As [`for_writing`].
pub fn for_reading(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one descriptor throughout its life and closes it only when
    // dropped, which `AsyncFd` does after it has removed the descriptor from the runtime.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }
        .map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::TcpListener;

    #[test]
    fn socket_for_writing_reports_resets_and_not_data() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let mut remote = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (near, _) = listener.accept().unwrap();
            near.set_nonblocking(true).unwrap();
            let near = for_writing(near).unwrap();
            drop(near.writable().await.unwrap());
            remote.write_all(b"data").unwrap();
            let readable =
                tokio::time::timeout(std::time::Duration::from_millis(50), near.readable());
            assert!(readable.await.is_err());
            socket2::SockRef::from(&remote).set_linger(Some(std::time::Duration::ZERO)).unwrap();
            drop(remote);
            drop(near.readable().await.unwrap());
            let error = near.get_ref().take_error().unwrap().unwrap();
            assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        });
    }
}
