//! Precedence over other programs, so that a measurement does not wait for a CPU.

use std::fs;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The nice value of a measurement's programs. Chosen: nine times the share of an ordinary program;
/// others still make progress.
const NICE: libc::c_int = -10;
/// The file with the nice value of this process's session, where the kernel groups sessions
/// (autogroup, sched(7)); nice values of single programs then count within a session alone.
const SESSION: &str = "/proc/self/autogroup";

/// The number of handles, and the session's nice value before the first.
static HANDLES: Mutex<(usize, Option<i32>)> = Mutex::new((0, None));

/// The precedence of this process's session, and of the programs and threads that the calling
/// thread starts from now on; dropping the last handle gives the session's back.
#[derive(Debug)]
pub struct Precedence(());

impl Precedence {
    /// Takes as much precedence as this process may; an ordinary user may take none.
    #[must_use]
    pub fn take() -> Self {
        // SAFETY: plain numbers; who 0 is the calling thread on Linux.
        let _refused = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
        let mut handles = handles();
        if handles.0 == 0 {
            handles.1 = fs::read_to_string(SESSION)
                .ok()
                .and_then(|text| parse_nice(&text))
                .filter(|before| *before > NICE && set_session(NICE));
        }
        handles.0 += 1;
        Self(())
    }
}

impl Drop for Precedence {
    fn drop(&mut self) {
        let mut handles = handles();
        handles.0 -= 1;
        if handles.0 == 0
            && let Some(before) = handles.1.take()
        {
            set_session(before);
        }
    }
}

fn handles() -> MutexGuard<'static, (usize, Option<i32>)> {
    HANDLES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set_session(nice: i32) -> bool {
    fs::write(SESSION, nice.to_string()).is_ok()
}

/// Parses `/autogroup-123 nice 0`.
fn parse_nice(text: &str) -> Option<i32> {
    text.rsplit_once("nice ")?.1.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_handle_gives_precedence_back() {
        let nice = || parse_nice(&fs::read_to_string(SESSION).ok()?);
        let before = nice();
        let [first, second] = [Precedence::take(), Precedence::take()];
        let raised = nice();
        drop(first);
        assert_eq!(nice(), raised);
        drop(second);
        assert_eq!(nice(), before);
    }

    #[test]
    fn session_nice_value_is_parsed() {
        assert_eq!(parse_nice("/autogroup-15 nice -3\n"), Some(-3));
        assert_eq!(parse_nice(""), None);
    }
}
