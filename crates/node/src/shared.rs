//! What the workers of a relay share: the registry, and the packets that wait for their receivers. Where sessions are is the kernel's choice, and two that
//! are to meet may be on two workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tradewind_net::entropy;
use tradewind_packet::rendezvous::Depot;

use crate::NodeError;
use crate::config::RelayServices;
use crate::registry::Registry;

/// One hold on it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared {
    /// Where endpoints are, if this is the relay that keeps it.
    pub(crate) registry: Option<Arc<Registry>>,
    depot: Option<Arc<Mutex<Depot>>>,
}

impl Shared {
    pub(crate) fn of(services: &RelayServices) -> Result<Self, NodeError> {
        let registry = services.is_registry.then(Arc::default);
        let depot = services.rendezvous.map(|config| {
            let epoch = u64::from_be_bytes(entropy::bytes()?);
            Ok::<_, NodeError>(Arc::new(Mutex::new(Depot::new(config, epoch))))
        });
        Ok(Self { registry, depot: depot.transpose()? })
    }

    /// Packets that wait, if this relay keeps any.
    pub(crate) fn depot(&self) -> Option<MutexGuard<'_, Depot>> {
        self.depot.as_ref().map(|depot| depot.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The same, unless somebody is at them just now.
    pub(crate) fn idle_depot(&self) -> Option<MutexGuard<'_, Depot>> {
        match self.depot.as_ref()?.try_lock() {
            Ok(depot) => Some(depot),
            Err(TryLockError::Poisoned(depot)) => Some(depot.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
