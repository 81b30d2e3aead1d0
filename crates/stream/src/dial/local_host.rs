//! This host's own addresses, for the check of destinations.

use std::net::IpAddr;

use tradewind_net::NetError;
use tradewind_net::local_address::LocalAddresses;
use tradewind_telemetry::{LogLimit, limited};

/// The kernel's knowledge of this host's addresses.
#[derive(Debug)]
pub struct LocalHost {
    addresses: LocalAddresses,
    lines: LogLimit<()>,
}

impl LocalHost {
    /// Opens the table of addresses.
    ///
    /// # Errors
    /// When the kernel does not list them.
    pub fn open() -> Result<Self, NetError> {
        Ok(Self { addresses: LocalAddresses::open()?, lines: LogLimit::new() })
    }

    /// Returns true if `ip` is this host's own, or if the kernel does not say.
    pub fn holds(&self, ip: IpAddr) -> bool {
        self.addresses.contains(ip).unwrap_or_else(|error| {
            limited!(warn, self.lines, (), %error, "taken for an address of this host");
            true
        })
    }
}
