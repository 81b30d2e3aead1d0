//! State that the workers of a relay share: the registry, and the store of packets for receivers
//! that are offline. The kernel chooses the worker of each session, so two sessions that use the
//! same entry may be on two workers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use tradewind_config::packet::RelayServices;
use tradewind_net::entropy;
use tradewind_packet::rendezvous::MessageStore;

use crate::NodeError;
use crate::registry::Registry;

/// A handle to it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Shared {
    /// The registry, if this relay keeps it.
    pub(crate) registry: Option<Arc<Registry>>,
    message_store: Option<Arc<Mutex<MessageStore>>>,
}

impl Shared {
    pub(crate) fn of(services: &RelayServices) -> Result<Self, NodeError> {
        let registry = services.is_registry.then(Arc::default);
        let message_store = services.rendezvous.map(|config| {
            let epoch = u64::from_be_bytes(entropy::bytes()?);
            Ok::<_, NodeError>(Arc::new(Mutex::new(MessageStore::new(config, epoch))))
        });
        Ok(Self { registry, message_store: message_store.transpose()? })
    }

    /// Locks the store of packets, if this relay has one.
    pub(crate) fn message_store(&self) -> Option<MutexGuard<'_, MessageStore>> {
        self.message_store
            .as_ref()
            .map(|message_store| message_store.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Locks the same, unless another worker has locked it.
    pub(crate) fn idle_store(&self) -> Option<MutexGuard<'_, MessageStore>> {
        match self.message_store.as_ref()?.try_lock() {
            Ok(message_store) => Some(message_store),
            Err(TryLockError::Poisoned(message_store)) => Some(message_store.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}
