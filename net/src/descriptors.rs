//! How many descriptors this process may have [getrlimit(2)].

use std::io;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Raises the soft limit to the hard one and returns it: many systems start programs with a soft
/// limit of 1,024, made for select(2), while a relay holds two descriptors for each session.
///
/// # Errors
/// When the kernel refuses.
pub fn raise_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_limit_is_at_least_what_it_was() {
        let limit = super::raise_limit().unwrap();
        assert!(limit >= 64, "{limit}");
        assert_eq!(super::raise_limit().unwrap(), limit);
    }
}
