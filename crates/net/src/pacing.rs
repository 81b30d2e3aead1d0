//! The pacing rate of a socket: `SO_MAX_PACING_RATE` [socket(7)].
//!
//! TCP paces by itself when a cap is set; no queueing discipline is needed for it.

use std::io;
use std::mem::size_of_val;
use std::os::fd::{AsFd, AsRawFd};

use tradewind_units::Bandwidth;

/// Caps the sending rate of `socket` at `rate`, headers included.
///
/// # Errors
/// When the kernel refuses.
pub fn cap(socket: &impl AsFd, rate: Bandwidth) -> io::Result<()> {
    set(socket, (rate.as_bps() / 8).max(1))
}

/// Removes the cap.
///
/// # Errors
/// When the kernel refuses.
pub fn clear(socket: &impl AsFd) -> io::Result<()> {
    set(socket, u64::MAX)
}

fn set(socket: &impl AsFd, bytes_per_s: u64) -> io::Result<()> {
    let length = libc::socklen_t::try_from(size_of_val(&bytes_per_s)).expect("eight bytes");
    // SAFETY: the option's value is an integer of eight bytes, readable for its length.
    let outcome = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MAX_PACING_RATE,
            (&raw const bytes_per_s).cast(),
            length,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_takes_slow_and_fast_caps() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        for text in ["1 bit/s", "1 Gbit/s", "100 Tbit/s"] {
            cap(&socket, text.parse().unwrap()).unwrap();
        }
    }
}
