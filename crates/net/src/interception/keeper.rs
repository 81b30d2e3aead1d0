//! What has rules hold on from one beat to the next (`pulse`), as long as their process goes on: a thread that does nothing else.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::BEAT_EVERY;
use super::pulse::Pulse;
use crate::error::{NetError, Result};
use crate::periodic::Periodic;

/// Keeps rules until it is dropped, or the process ends; one that hangs takes nothing new by them.
#[derive(Debug)]
pub struct Keeper {
    kept: Kept,
    _thread: Periodic,
}

/// The pulses of rules that may be gone by now.
type Kept = Arc<Mutex<Vec<Weak<Pulse>>>>;

impl Keeper {
    /// Keeps what it is given, which takes what is new while `goes_on` says so, asked once each [`BEAT_EVERY`]; tells `fails` of each that lapses: once,
    /// until it holds again.
    ///
    /// # Errors
    /// When the system has no thread to give.
    pub fn start(
        mut goes_on: impl FnMut() -> bool + Send + 'static,
        mut fails: impl FnMut(&NetError) + Send + 'static,
    ) -> Result<Self> {
        let kept = Kept::default();
        let all = Arc::clone(&kept);
        let beat = move || {
            if goes_on() {
                for pulse in living(&all) {
                    let held = pulse.holds();
                    if let (Err(error), true) = (pulse.beat(), held) {
                        fails(&error);
                    }
                }
            }
        };
        Ok(Self { kept, _thread: Periodic::start("interception", BEAT_EVERY, beat)? })
    }

    /// Keeps the rules of `pulse`, too, while they are there.
    pub fn keep(&self, pulse: &Arc<Pulse>) {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(pulse));
    }
}

/// Those that are still there; the others are forgotten.
fn living(kept: &Kept) -> Vec<Arc<Pulse>> {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    kept.retain(|pulse| pulse.strong_count() > 0);
    kept.iter().filter_map(Weak::upgrade).collect()
}
