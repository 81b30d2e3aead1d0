//! Settings that a reload replaces while workers read them.

use std::sync::{Arc, PoisonError, RwLock};

use tokio::sync::watch;

/// A value that is replaced as a whole; readers keep the value that they have read.
#[derive(Debug)]
pub struct Live<T> {
    current: RwLock<Arc<T>>,
    version: watch::Sender<u64>,
}

impl<T> Live<T> {
    /// Creates one with `value`.
    pub fn new(value: T) -> Self {
        Self { current: RwLock::new(Arc::new(value)), version: watch::Sender::new(0) }
    }

    /// Returns the value in force.
    pub fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Puts another value in force.
    pub fn replace(&self, value: T) {
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(value);
        self.version.send_modify(|version| *version += 1);
    }

    /// Puts another value in force, if `current` is in force still; returns true if it was.
    pub fn replace_if(&self, current: &Arc<T>, value: T) -> bool {
        let mut in_force = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&in_force, current) {
            return false;
        }
        *in_force = Arc::new(value);
        drop(in_force);
        self.version.send_modify(|version| *version += 1);
        true
    }

    /// Returns a receiver that counts the replacements of the value.
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
