//! The packet plane as SOCKS5 associations use it.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::slots::FlowSlots;

/// The packet plane, as used for SOCKS5 clients.
pub trait Datagrams: Send + Sync {
    /// Opens a flow of `client` to `to`.
    ///
    /// # Errors
    /// The reason why there is none, in one line.
    fn open(&self, client: SocketAddr, to: SocketAddr) -> Result<Box<dyn DatagramFlow>, String>;
}

/// A flow of datagrams to one destination and its replies; its descriptor is readable while a reply
/// is queued.
pub trait DatagramFlow: AsFd + Send + Sync {
    /// Returns whether datagrams are delivered yet.
    ///
    /// # Errors
    /// The reason why none will be.
    fn is_open(&self) -> Result<bool, String>;

    /// Sends a datagram; it may be lost.
    ///
    /// # Errors
    /// The reason why none is sent any more.
    fn send(&self, datagram: &[u8]) -> Result<(), String>;

    /// Returns a reply, if one is queued.
    ///
    /// # Errors
    /// The reason why none is received any more.
    fn receive(&self) -> Result<Option<Vec<u8>>, String>;
}

/// The packet plane of all associations, with the slots of their flows.
pub(super) struct Plane {
    pub(super) datagrams: Arc<dyn Datagrams>,
    pub(super) slots: Arc<FlowSlots>,
}

impl Plane {
    pub(super) fn new(datagrams: Arc<dyn Datagrams>) -> Self {
        Self { datagrams, slots: Arc::new(FlowSlots::new()) }
    }
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Plane")
    }
}
