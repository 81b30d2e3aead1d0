//! The additions of a program to a relay or gateway that it runs.

use tradewind_net::jumpstart::OwnSockets;
use tradewind_telemetry::Registry;

use crate::keys::HeldKeys;

/// The additions of a program to a relay or gateway that it runs.
#[derive(Clone, Copy)]
pub struct Additions<'a> {
    /// Adds metrics and pages of its own to the metrics port.
    pub register: &'a dyn Fn(&Registry),
    /// The source of learned initial windows for connections of legs.
    pub learned: Option<&'a OwnSockets>,
    /// The keys that were read at the start of the process, if it may not read them again.
    pub held: Option<&'a HeldKeys>,
}

impl Default for Additions<'_> {
    fn default() -> Self {
        Self { register: &|_| {}, learned: None, held: None }
    }
}
