//! A thread that has rules hold on from one beat to the next (`pulse`), as long as its process goes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle, park_timeout};

use super::{BEAT_EVERY, Interception};
use crate::error::{NetError, Result};

/// Keeps rules until it is dropped, or the process ends; one that hangs takes nothing new by them.
#[derive(Debug)]
pub struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    /// Keeps `rules`, which take what is new while `takes_more` says so, and tells `fails` of each that lapses: once, until it
    /// holds again.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(
        rules: Vec<Interception>,
        takes_more: impl Fn() -> bool + Send + 'static,
        fails: impl Fn(&NetError) + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let mut rules: Vec<(Interception, bool)> =
            rules.into_iter().map(|rules| (rules, true)).collect();
        let keep = move || {
            while !is_stopped.load(Ordering::Relaxed) {
                if takes_more() {
                    for (rules, held) in &mut rules {
                        let beat = rules.beat();
                        if let Err(error) = &beat
                            && *held
                        {
                            fails(error);
                        }
                        *held = beat.is_ok();
                    }
                }
                park_timeout(BEAT_EVERY);
            }
        };
        let thread = Builder::new().name("interception".to_owned()).spawn(keep);
        let thread =
            thread.map_err(|source| NetError::system("start a thread that keeps rules", source))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // One that panicked has said so already.
            let _ = thread.join();
        }
    }
}
