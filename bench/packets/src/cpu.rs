//! CPU times of threads, to the nanosecond.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::Context as _;

/// Returns the ids of a process's threads.
///
/// # Errors
/// When there is no such process.
pub(crate) fn threads(process: u32) -> anyhow::Result<BTreeSet<u32>> {
    let names = std::fs::read_dir(format!("/proc/{process}/task"))?;
    names.map(|entry| Ok(entry?.file_name().to_string_lossy().parse()?)).collect()
}

/// Returns the CPU time of a thread: the first field of its `schedstat`.
///
/// # Errors
/// When it has ended.
pub(crate) fn of_thread(process: u32, thread: u32) -> anyhow::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/schedstat"))?;
    let first = text.split(' ').next().context("schedstat is empty")?;
    Ok(Duration::from_nanos(first.parse()?))
}

/// Returns the CPU time of all threads of a process.
///
/// # Errors
/// When it, or one of them, has ended.
pub(crate) fn of_process(process: u32) -> anyhow::Result<Duration> {
    threads(process)?.into_iter().map(|thread| of_thread(process, thread)).sum()
}
