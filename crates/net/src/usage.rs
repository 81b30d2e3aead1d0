//! CPU time and memory of another process, from `/proc`.

use std::fs;

use tradewind_units::{Bytes, Duration};

use crate::error::{NetError, Result};

/// Returns the CPU time of `process` and its ended threads, to 10 ms: user plus system, fields 14
/// and 15 of proc(5)'s `stat`.
///
/// # Errors
/// When there is no such process.
pub fn cpu_time(process: u32) -> Result<Duration> {
    let path = format!("/proc/{process}/stat");
    let text =
        fs::read_to_string(&path).map_err(|e| NetError::system(format!("read {path}"), e))?;
    let ticks = stat_ticks(&text)
        .ok_or_else(|| NetError::system(format!("read {path}"), nix::errno::Errno::EINVAL))?;
    Ok(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// `USER_HZ`, in which Linux reports times to programs on all architectures in use.
const TICKS_PER_SECOND: u64 = 100;

/// Parses the CPU ticks. Field 2, the program's name, may hold spaces and parentheses; the other
/// fields follow its last one.
fn stat_ticks(text: &str) -> Option<u64> {
    let (_, fields) = text.rsplit_once(')')?;
    let mut fields = fields.split_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(user + system)
}

/// Memory of `process`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// Resident pages, those shared with other processes counted in full.
    pub resident: Bytes,
    /// Resident pages, those shared with other processes counted in part.
    pub proportional: Bytes,
}

/// Returns the current memory of `process`, without the kernel's memory for it (sockets, pipes).
///
/// # Errors
/// When there is no such process, or it is another user's.
pub fn memory(process: u32) -> Result<Memory> {
    let path = format!("/proc/{process}/smaps_rollup");
    let text =
        fs::read_to_string(&path).map_err(|e| NetError::system(format!("read {path}"), e))?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
        Bytes::new(kib.unwrap_or(0) * 1024)
    };
    Ok(Memory { resident: field("Rss:"), proportional: field("Pss:") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_ticks_are_found_behind_any_program_name() {
        let text = "12 (a) b (c) S 1 12 12 0 -1 4194560 100 0 0 0 7 5 0 0 20 0 1 0 99 0 0";
        assert_eq!(stat_ticks(text), Some(12));
        assert_eq!(stat_ticks("12 (a"), None);
    }

    #[test]
    fn memory_use_of_a_process() {
        let memory = memory(std::process::id()).unwrap();
        assert!(memory.proportional.as_u64() > 0 && memory.resident >= memory.proportional);
        let error = cpu_time(u32::MAX).unwrap_err().to_string();
        assert!(error.contains("/proc/4294967295/stat"), "{error}");
    }
}
