//! The system's entropy [getrandom(2)].

use std::io;

/// Returns unpredictable bytes, for keys and nonces.
///
/// # Errors
/// When the kernel has none, which on Linux happens only in a broken sandbox.
pub fn bytes<const COUNT: usize>() -> io::Result<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    let mut filled = 0;
    while filled < COUNT {
        let rest = &mut bytes[filled..];
        // SAFETY: `rest` is writable for its length and the kernel writes no more than that.
        let count = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(count) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn two_nonces_differ() {
        assert_ne!(super::bytes::<16>().unwrap(), super::bytes::<16>().unwrap());
    }
}
