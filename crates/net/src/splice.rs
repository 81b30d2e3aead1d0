//! Bytes moved from socket to socket without passing through user space [splice(2)].
//!
//! A [`Pipe`] tracks how much it holds, and reads from a socket only when it is empty. So
//! `WouldBlock` is never ambiguous: from [`Pipe::fill_from`] it means that the socket has no data,
//! from [`Pipe::drain_to`] that the socket is full. `SPLICE_F_MORE` is never set: it delays a last
//! short segment for 200 ms when nothing follows, and the kernel already joins what one call
//! drains.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Requested pipe size, in slots of a page each: they hold as much when segments arrived bundled,
/// and less when they did not. So it is also the most that one [`Pipe::fill_from`] reads. Measured
/// by `bench/relay`: eight streams that share CPUs with their relay cost a quarter less CPU with
/// 512 KiB than with 256 KiB; with 1 MiB nothing more was gained.
pub const PIPE_BYTES: usize = 1 << 19;

/// Default size of a pipe, by pipe(7).
const USUAL_PIPE_BYTES: usize = 1 << 16;

/// A kernel pipe between two sockets, with the number of bytes in it.
#[derive(Debug)]
pub struct Pipe {
    reader: OwnedFd,
    writer: OwnedFd,
    held: usize,
}

impl Pipe {
    /// Creates a pipe of [`PIPE_BYTES`], or the largest power of two below it that the kernel
    /// grants (`fs.pipe-max-size`, `fs.pipe-user-pages-soft`).
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let mut ends = [0; 2];
        // SAFETY: `ends` has space for the two descriptors that the kernel writes.
        let status = unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_NONBLOCK | libc::O_CLOEXEC) };
        if status < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel just made both descriptors, and nothing else owns them.
        let (reader, writer) =
            unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
        grow(&writer);
        Ok(Self { reader, writer, held: 0 })
    }

    /// Returns the number of bytes in the pipe.
    #[must_use]
    pub const fn held(&self) -> usize {
        self.held
    }

    /// Moves received bytes of `socket` into the pipe, up to `most` bytes and [`PIPE_BYTES`].
    /// `Ok(0)`: the peer has ended its direction.
    ///
    /// # Errors
    /// `WouldBlock` when the socket has no data; any other error is the socket's.
    ///
    /// # Panics
    /// When the pipe is not empty: the caller's bug.
    pub fn fill_from(&mut self, socket: &impl AsFd, most: usize) -> io::Result<usize> {
        assert_eq!(self.held, 0, "a pipe is filled when it is empty");
        self.held = splice(socket.as_fd(), self.writer.as_fd(), most.min(PIPE_BYTES))?;
        Ok(self.held)
    }

    /// Reads the pipe's content into memory, and leaves it empty.
    ///
    /// # Errors
    /// When the kernel cannot read the pipe.
    pub fn take_out(&mut self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.held];
        let mut filled = 0;
        while filled < bytes.len() {
            let count = nix::unistd::read(&self.reader, &mut bytes[filled..])?;
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            filled += count;
        }
        self.held = 0;
        Ok(bytes)
    }

    /// Moves the pipe's content into the send queue of `socket`, as far as there is space.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full; any other error is the socket's.
    ///
    /// # Panics
    /// When the pipe is empty: the caller's bug.
    pub fn drain_to(&mut self, socket: &impl AsFd) -> io::Result<usize> {
        assert_ne!(self.held, 0, "a pipe is drained when it holds something");
        let moved = splice(self.reader.as_fd(), socket.as_fd(), self.held)?;
        if moved == 0 {
            let text = format!("splice moved none of {} bytes that a pipe holds", self.held);
            return Err(io::Error::new(io::ErrorKind::WriteZero, text));
        }
        self.held -= moved;
        Ok(moved)
    }
}

/// Requests [`PIPE_BYTES`], then less; a pipe that cannot grow is used as it is.
fn grow(pipe: &OwnedFd) {
    let mut size = PIPE_BYTES;
    while size > USUAL_PIPE_BYTES {
        let wanted = libc::c_int::try_from(size).expect("PIPE_BYTES is small");
        // SAFETY: the descriptor is borrowed for the call, which touches no memory of ours.
        if unsafe { libc::fcntl(pipe.as_raw_fd(), libc::F_SETPIPE_SZ, wanted) } > 0 {
            return;
        }
        size /= 2;
    }
}

fn splice(from: BorrowedFd<'_>, to: BorrowedFd<'_>, most: usize) -> io::Result<usize> {
    loop {
        // SAFETY: both descriptors are borrowed for the call; null offsets are what pipes and
        // sockets ask for, so the kernel touches no memory of ours.
        let moved = unsafe {
            libc::splice(
                from.as_raw_fd(),
                std::ptr::null_mut(),
                to.as_raw_fd(),
                std::ptr::null_mut(),
                most,
                libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK,
            )
        };
        match usize::try_from(moved) {
            Ok(moved) => return Ok(moved),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        (client, server)
    }

    #[test]
    fn bytes_cross_from_socket_to_socket_and_are_counted() {
        let (mut source, inlet) = pair();
        let (mut sink, outlet) = pair();
        let mut pipe = Pipe::new().unwrap();

        let empty = pipe.fill_from(&inlet, PIPE_BYTES).unwrap_err();
        assert_eq!(empty.kind(), io::ErrorKind::WouldBlock);

        source.write_all(b"westerlies").unwrap();
        inlet.set_nonblocking(false).unwrap();
        assert_eq!(pipe.fill_from(&inlet, PIPE_BYTES).unwrap(), 10);
        assert_eq!(pipe.held(), 10);
        assert_eq!(pipe.drain_to(&outlet).unwrap(), 10);
        assert_eq!(pipe.held(), 0);
        let mut arrived = [0; 10];
        sink.read_exact(&mut arrived).unwrap();
        assert_eq!(&arrived, b"westerlies");

        drop(source);
        assert_eq!(pipe.fill_from(&inlet, PIPE_BYTES).unwrap(), 0);
    }

    #[test]
    fn full_socket_leaves_the_rest_in_the_pipe() {
        let (mut source, inlet) = pair();
        let (_sink, outlet) = pair();
        let feeder = std::thread::spawn(move || {
            let block = [1; 65_536];
            while source.write_all(&block).is_ok() {}
        });
        inlet.set_nonblocking(false).unwrap();
        let mut pipe = Pipe::new().unwrap();
        let error = loop {
            if pipe.held() == 0 {
                pipe.fill_from(&inlet, PIPE_BYTES).unwrap();
            }
            let before = pipe.held();
            match pipe.drain_to(&outlet) {
                Ok(moved) => assert_eq!(pipe.held(), before - moved),
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(pipe.held() > 0);
        drop(inlet);
        feeder.join().unwrap();
    }

    #[test]
    fn reset_shows_as_an_error() {
        let (source, inlet) = pair();
        crate::tcp::reset_on_close(&source).unwrap();
        drop(source);
        inlet.set_nonblocking(false).unwrap();
        let error = Pipe::new().unwrap().fill_from(&inlet, PIPE_BYTES).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
