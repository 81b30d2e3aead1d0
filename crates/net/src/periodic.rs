//! A thread that repeats an action until it is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, park_timeout};

use tradewind_units::Duration;

use crate::error::{NetError, Result};

/// A repeated action; dropping it waits for the current run and stops it.
#[derive(Debug)]
pub struct Periodic {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Runs `act` now, and again `every` after each run, on a thread called `name`.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(
        name: &str,
        every: Duration,
        mut act: impl FnMut() + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let repeat = move || {
            while !is_stopped.load(Ordering::Relaxed) {
                act();
                park_timeout(every);
            }
        };
        let thread = Builder::new().name(name.to_owned()).spawn(repeat);
        let thread = thread
            .map_err(|source| NetError::system(format!("start the thread {name}"), source))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Periodic {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A thread that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn action_repeats_until_dropped() {
        let (notify, runs) = mpsc::channel();
        let act = move || notify.send(()).unwrap();
        let periodic = Periodic::start("again", Duration::from_millis(1), act).unwrap();
        assert_eq!(runs.iter().take(3).count(), 3);
        drop(periodic);
        runs.iter().for_each(drop);
    }

    #[test]
    fn dropping_does_not_wait_for_the_next_run() {
        let (notify, runs) = mpsc::channel();
        let act = move || notify.send(()).unwrap();
        let periodic = Periodic::start("seldom", Duration::from_secs(3600), act).unwrap();
        runs.recv().unwrap();
        drop(periodic);
        assert_eq!(runs.iter().count(), 0);
    }
}
