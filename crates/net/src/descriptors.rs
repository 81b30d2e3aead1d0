//! Open descriptors of a process, and their limit [prlimit(2)].

use std::{fs, io};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::error::{NetError, Result};

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

/// Returns the number of open descriptors of `process`.
///
/// # Errors
/// When there is no such process, or it is another user's.
pub fn count(process: u32) -> Result<u64> {
    let path = format!("/proc/{process}/fd");
    let entries = fs::read_dir(&path).map_err(|e| NetError::system(format!("read {path}"), e))?;
    Ok(entries.count() as u64)
}

/// Sets the soft limit on the descriptors of `process`; returns the previous one.
///
/// # Errors
/// When there is no such process, it is another user's, or `limit` is above its hard limit.
pub fn limit(process: u32, limit: u64) -> Result<u64> {
    let failed = |what: &str| {
        NetError::system(
            format!("{what} the limit on descriptors of process {process}"),
            io::Error::last_os_error(),
        )
    };
    let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    let process_id = process as libc::pid_t;
    let (nothing, resource) = (std::ptr::null(), libc::RLIMIT_NOFILE);
    // SAFETY: `now` lives through the call, and no new limit is given.
    if unsafe { libc::prlimit(process_id, resource, nothing, &raw mut now) } != 0 {
        return Err(failed("read"));
    }
    let before = std::mem::replace(&mut now.rlim_cur, limit);
    // SAFETY: `now` lives through the call, and the old limit is not asked for.
    if unsafe { libc::prlimit(process_id, resource, &raw const now, std::ptr::null_mut()) } != 0 {
        return Err(failed("set"));
    }
    Ok(before)
}

#[cfg(test)]
mod tests {
    #[test]
    fn raised_limit_is_not_lower() {
        let limit = super::raise_limit().unwrap();
        assert!(limit >= 64, "{limit}");
        assert_eq!(super::raise_limit().unwrap(), limit);
    }

    #[test]
    fn another_process_is_limited() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        super::limit(child.id(), 77).unwrap();
        let limits = std::fs::read_to_string(format!("/proc/{}/limits", child.id())).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        assert_eq!(line.split_whitespace().nth(3), Some("77"), "{line}");
        assert!(super::count(child.id()).unwrap() >= 3);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(super::limit(child.id(), 77).is_err());
    }
}
