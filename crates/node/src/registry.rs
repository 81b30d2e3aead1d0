//! The registry that a relay keeps: endpoints' addresses, and the relays near them `[JQ 3.3]`.
//!
//! Endpoints report them again and again in their sessions, and entries without new reports are
//! dropped: a registry that restarts soon knows all of them. An entry holds the identity that the
//! session proves and the address at which it is reached, so nobody can register for another.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tradewind_grant::PublicIdentity;
use tradewind_units::{Duration, Timestamp};

/// Time for which an entry is kept without another report. Chosen: three reports may get lost.
pub(crate) const RETENTION: Duration = Duration::from_secs(60);
/// Most endpoints at a time. Chosen.
const MAX: usize = 16_384;

/// All registered endpoints. The workers of a relay share it; they lock it a few times a minute for
/// each endpoint.
#[derive(Debug, Default)]
pub(crate) struct Registry(Mutex<BTreeMap<PublicIdentity, Entry>>);

/// One endpoint.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) address: SocketAddr,
    /// The relays near it, in the message's encoding.
    pub(crate) near: Vec<u8>,
    until: Timestamp,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<PublicIdentity, Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an endpoint; `false` when there are too many.
    pub(crate) fn register(
        &self,
        now: Timestamp,
        identity: PublicIdentity,
        (address, near): (SocketAddr, &[u8]),
    ) -> bool {
        let mut entries = self.lock();
        if entries.len() >= MAX && !entries.contains_key(&identity) {
            entries.retain(|_, entry| now < entry.until);
            if entries.len() >= MAX {
                return false;
            }
        }
        let entry = Entry { address, near: near.to_vec(), until: now + RETENTION };
        entries.insert(identity, entry);
        true
    }

    /// Returns an endpoint's entry, if it has reported lately.
    pub(crate) fn look_up(&self, now: Timestamp, identity: PublicIdentity) -> Option<Entry> {
        let mut entries = self.lock();
        let entry = entries.get(&identity)?;
        if now >= entry.until {
            entries.remove(&identity);
            return None;
        }
        Some(entry.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_entries_expire() {
        let (registry, now) = (Registry::default(), Timestamp::from_nanos(5));
        let (identity, address) =
            (PublicIdentity::from_bytes([1; 32]), SocketAddr::from(([192, 0, 2, 1], 7001)));
        assert!(registry.register(now, identity, (address, b"near")));
        let later = now + RETENTION / 2;
        assert_eq!(registry.look_up(later, identity).unwrap().address, address);
        assert!(registry.register(later, identity, (address, b"others")));
        assert_eq!(registry.look_up(now + RETENTION, identity).unwrap().near, b"others");
        assert!(registry.look_up(later + RETENTION, identity).is_none());
    }

    #[test]
    fn full_registry_evicts_silent() {
        let (registry, now) = (Registry::default(), Timestamp::from_nanos(5));
        let address = SocketAddr::from(([192, 0, 2, 1], 7001));
        let identity = |number: usize| {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
            PublicIdentity::from_bytes(bytes)
        };
        for number in 0..MAX {
            assert!(registry.register(now, identity(number), (address, &[])));
        }
        assert!(!registry.register(now, identity(MAX), (address, &[])));
        assert!(registry.register(now + RETENTION, identity(MAX), (address, &[])));
    }
}
