//! A thread that does the same thing again and again, until whoever began it lets go of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, park_timeout};

use tradewind_units::Duration;

use crate::error::{NetError, Result};

/// Goes on until it is dropped, which waits for what is under way.
#[derive(Debug)]
pub struct Periodic {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Periodic {
    /// Does `act` now, and again `every` after each time, on a thread called `name`.
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
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn it_goes_on_until_it_is_let_go_of() {
        let (tell, told) = mpsc::channel();
        let act = move || tell.send(()).unwrap();
        let periodic = Periodic::start("again", Duration::from_millis(1), act).unwrap();
        assert_eq!(told.iter().take(3).count(), 3);
        drop(periodic);
        told.iter().for_each(drop);
    }

    #[test]
    fn who_lets_go_of_it_does_not_wait_for_the_next_time() {
        let (tell, told) = mpsc::channel();
        let act = move || tell.send(()).unwrap();
        let periodic = Periodic::start("seldom", Duration::from_secs(3600), act).unwrap();
        told.recv().unwrap();
        drop(periodic);
        assert_eq!(told.iter().count(), 0);
    }
}
