//! Memory that packets are read into and stay in until they are written out, without a copy.
//!
//! Packets are read one behind the other into chunks. A [`Slice`] keeps its chunk alive; a chunk
//! whose last slice was dropped is reused. Bytes that were handed out are not written again before
//! that, which makes the shared view sound.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;

/// Size of a chunk. Chosen: some thirty full super-packets, so that little is wasted at its end,
/// while one late packet blocks little memory.
const CHUNK_BYTES: usize = 2 << 20;
/// The longest read: 64 KiB of packet and all headers before it.
const MAX_READ: usize = 65_535 + 1 + 64;
/// Reads start at multiples of this.
const ALIGNMENT: usize = 8;

struct Chunk {
    bytes: Box<[UnsafeCell<u8>]>,
}

impl Chunk {
    fn new() -> Rc<Self> {
        let plain = Box::into_raw(vec![0u8; CHUNK_BYTES].into_boxed_slice());
        // SAFETY: UnsafeCell<u8> has the layout of u8, and the box was just given up.
        let bytes = unsafe { Box::from_raw(plain as *mut [UnsafeCell<u8>]) };
        Rc::new(Self { bytes })
    }

    /// Returns the address of byte `at`; valid up to the chunk's end.
    fn address(&self, at: usize) -> *mut u8 {
        assert!(at < CHUNK_BYTES, "places lie inside their chunk");
        // SAFETY: `at` lies inside the allocation.
        unsafe { UnsafeCell::raw_get(self.bytes.as_ptr()).add(at) }
    }
}

/// A packet's bytes in an arena. A clone shares them.
#[derive(Clone)]
pub struct Slice {
    chunk: Rc<Chunk>,
    start: u32,
    len: u32,
}

impl Slice {
    /// Returns the bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        let first = self.chunk.address(self.start as usize).cast_const();
        // SAFETY: start and len lie in the chunk; its bytes are initialised, and the arena writes
        // no byte that it handed out while a slice of the chunk lives.
        unsafe { std::slice::from_raw_parts(first, self.len as usize) }
    }
}

impl std::fmt::Debug for Slice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Slice({} bytes)", self.len)
    }
}

/// The chunks, and the fill level of the newest.
pub struct Arena {
    current: Rc<Chunk>,
    filled: usize,
    retired: VecDeque<Rc<Chunk>>,
}

impl Default for Arena {
    fn default() -> Self {
        Self { current: Chunk::new(), filled: 0, retired: VecDeque::new() }
    }
}

impl Arena {
    /// Reads one packet from `source`, which must not block; `None` when there is none.
    ///
    /// # Errors
    /// Those of read(2), except that nothing is there.
    pub fn read_packet(&mut self, source: &impl AsFd) -> io::Result<Option<Slice>> {
        if CHUNK_BYTES - self.filled < MAX_READ {
            self.take_next_chunk();
        }
        let start = self.filled;
        let place = self.current.address(start).cast::<libc::c_void>();
        let fd = source.as_fd().as_raw_fd();
        // SAFETY: MAX_READ bytes from `start` lie in the chunk, and none was handed out.
        let count = unsafe { libc::read(fd, place, MAX_READ) };
        let Ok(len) = usize::try_from(count) else {
            return match io::Error::last_os_error() {
                e if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                    Ok(None)
                }
                error => Err(error),
            };
        };
        if len == 0 {
            return Ok(None);
        }
        self.filled = (start + len).next_multiple_of(ALIGNMENT);
        let (start, len) = (start as u32, len as u32);
        Ok(Some(Slice { chunk: Rc::clone(&self.current), start, len }))
    }

    /// Returns the memory held, in bytes.
    #[must_use]
    pub fn bytes_held(&self) -> usize {
        (self.retired.len() + 1) * CHUNK_BYTES
    }

    fn take_next_chunk(&mut self) {
        let free = self.retired.iter().position(|chunk| Rc::strong_count(chunk) == 1);
        let next = free.and_then(|at| self.retired.swap_remove_back(at));
        let next = next.unwrap_or_else(Chunk::new);
        self.retired.push_back(std::mem::replace(&mut self.current, next));
        self.filled = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn packets_keep_their_bytes_while_chunks_are_reused() {
        let (sender, receiver) = UnixDatagram::pair().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let mut arena = Arena::default();
        let mut retained = Vec::new();
        for round in 0..200u32 {
            let packet = vec![round as u8; 60_000];
            sender.send(&packet).unwrap();
            let slice = arena.read_packet(&receiver).unwrap().unwrap();
            if round % 50 == 0 {
                retained.push((round as u8, slice));
            }
        }
        for (value, slice) in retained {
            assert!(slice.as_bytes().iter().all(|b| *b == value) && slice.len == 60_000);
        }
        assert!(arena.read_packet(&receiver).unwrap().is_none());
        assert!(arena.bytes_held() <= 6 * CHUNK_BYTES, "{}", arena.bytes_held());
    }
}
