//! CPUs kept from deep idle states, so that they wake at once.
//!
//! A CPU that has nothing to do is put to sleep, and a virtual one is given back to its host; it
//! then takes some 50 to 100 us to wake (measured in a KVM guest). Who needs to act on time asks the
//! kernel for no such delay, at the price of power: CPUs poll while they are idle.

use std::fs::{File, OpenOptions};
use std::io::Write;

use crate::error::{NetError, Result};

const DEVICE: &str = "/dev/cpu_dma_latency";

/// While this lives, no CPU of the machine sleeps deeply. The kernel forgets it when the process
/// ends, by whatever end.
#[derive(Debug)]
pub struct WakefulCpus {
    _request: File,
}

impl WakefulCpus {
    /// Asks for wake-ups without delay.
    ///
    /// # Errors
    /// For whoever may not write the device (root alone may, as a rule), or without such a device.
    pub fn hold() -> Result<Self> {
        let failed = |source| NetError::system(format!("hold {DEVICE}"), source);
        let mut request = OpenOptions::new().write(true).open(DEVICE).map_err(failed)?;
        let most_delay_micros = 0i32;
        request.write_all(&most_delay_micros.to_ne_bytes()).map_err(failed)?;
        Ok(Self { _request: request })
    }
}
