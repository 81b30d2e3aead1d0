//! CPU affinity of threads.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::error::{NetError, Result};

/// Returns the CPUs that the calling thread may run on, in order.
///
/// # Errors
/// When the kernel has more CPUs than the call can name.
pub fn allowed() -> Result<Vec<usize>> {
    let set = sched_getaffinity(Pid::from_raw(0))
        .map_err(|errno| NetError::system("read which CPUs this thread may use", errno))?;
    Ok((0..CpuSet::count()).filter(|&cpu| set.is_set(cpu).unwrap_or(false)).collect())
}

/// Restricts the calling thread, and threads and processes that it starts from now on, to `cpus`.
///
/// # Errors
/// When none of them exists or is allowed.
pub fn restrict(cpus: &[usize]) -> Result<()> {
    let refused = |errno| NetError::system(format!("restrict this thread to CPUs {cpus:?}"), errno);
    let mut set = CpuSet::new();
    for &cpu in cpus {
        set.set(cpu).map_err(refused)?;
    }
    sched_setaffinity(Pid::from_raw(0), &set).map_err(refused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn restricted_thread_has_allowed_cpus() {
        std::thread::spawn(|| {
            let last = *allowed().unwrap().last().unwrap();
            restrict(&[last]).unwrap();
            assert_eq!(allowed().unwrap(), [last]);
            assert!(restrict(&[]).is_err());
        })
        .join()
        .unwrap();
    }
}
