//! Who this process is: one identity, or two while one takes the other's place, made ready.

use std::sync::Arc;

use tradewind_grant::{FirstFlightKey, GrantError, IdentityKey, PublicIdentity};

use crate::RelayError;
use crate::connection::Tls;
use crate::live::Live;

/// One identity, made ready.
#[derive(Debug)]
pub(crate) struct OwnIdentity {
    pub(crate) public: PublicIdentity,
    /// What its connections are encrypted with.
    pub(crate) tls: Tls,
    /// What proves that who dials knows it.
    flight_key: FirstFlightKey,
}

/// The identities of a process, none at a gateway without relays; a reload replaces them.
#[derive(Debug)]
pub(crate) struct OwnIdentities(Live<Vec<Arc<OwnIdentity>>>);

impl OwnIdentities {
    /// Makes `keys` ready.
    ///
    /// # Errors
    /// As [`Tls::new`].
    pub(crate) fn new(keys: &[IdentityKey]) -> Result<Self, RelayError> {
        let own = Self(Live::new(Vec::new()));
        own.set(own.prepare(keys)?);
        Ok(own)
    }

    /// Makes other keys ready, and changes nothing yet. Identities that stay keep what they have
    /// agreed on with neighbours.
    ///
    /// # Errors
    /// As [`Tls::new`].
    pub(crate) fn prepare(
        &self,
        keys: &[IdentityKey],
    ) -> Result<Vec<Arc<OwnIdentity>>, RelayError> {
        let made = |key: &IdentityKey| {
            let public = key.public();
            if let Some(known) = self.get(&public) {
                return Ok(known);
            }
            let flight_key = FirstFlightKey::of(&public);
            Ok(Arc::new(OwnIdentity { public, tls: Tls::new(key)?, flight_key }))
        };
        keys.iter().map(made).collect()
    }

    /// Goes by other identities from now on.
    pub(crate) fn set(&self, identities: Vec<Arc<OwnIdentity>>) {
        self.0.replace(identities);
    }

    /// Returns the identity with this public half, if it is one of these.
    pub(crate) fn get(&self, public: &PublicIdentity) -> Option<Arc<OwnIdentity>> {
        self.0.current().iter().find(|own| own.public == *public).cloned()
    }

    /// Finds the identity to which what has come so far is a first flight; `None` while it is not
    /// whole.
    ///
    /// # Errors
    /// When it is none to any of these, whatever follows.
    pub(crate) fn find_addressed(
        &self,
        bytes: &[u8],
    ) -> Result<Option<Arc<OwnIdentity>>, GrantError> {
        let mut refused = Ok(None);
        for own in self.0.current().iter() {
            match own.flight_key.open(bytes) {
                Ok(Some(_)) => return Ok(Some(Arc::clone(own))),
                // Where it ends does not depend on whom it is for.
                Ok(None) => return Ok(None),
                Err(error) => refused = Err(error),
            }
        }
        refused
    }
}
