//! Which addresses are this host's own, for the check of where sessions may go.

use std::net::IpAddr;

use tradewind_net::NetError;
use tradewind_net::local_address::LocalAddresses;

/// The kernel's word on addresses of this host.
#[derive(Debug)]
pub(crate) struct OwnHost(LocalAddresses);

impl OwnHost {
    pub(crate) fn open() -> Result<Self, NetError> {
        LocalAddresses::open().map(Self)
    }

    /// Returns whether `ip` is this host's own; also when the kernel does not say.
    pub(crate) fn holds(&self, ip: IpAddr) -> bool {
        self.0.contains(ip).unwrap_or_else(|error| {
            tracing::warn!(%error, "taken for an address of this host");
            true
        })
    }
}
