//! The identities of this process: one, or two during a rotation, prepared for use.

use std::sync::Arc;

use tradewind_grant::{FirstFlightKey, GrantError, IdentityKey, PublicIdentity};

use crate::StreamError;
use crate::connection::Tls;
use crate::process::live::Live;

/// One identity, prepared for use.
#[derive(Debug)]
pub struct OwnIdentity {
    pub(crate) public: PublicIdentity,
    /// The TLS of its connections.
    pub tls: Tls,
    /// The key by which a dialling peer proves that it knows this identity.
    flight_key: FirstFlightKey,
}

/// The identities of a process, none at a gateway without relays; a reload replaces them.
#[derive(Debug)]
pub struct OwnIdentities(Live<Vec<Arc<OwnIdentity>>>);

impl OwnIdentities {
    /// Prepares `keys`.
    ///
    /// # Errors
    /// As [`Tls::new`].
    pub fn new(keys: &[IdentityKey]) -> Result<Self, StreamError> {
        let own = Self(Live::new(Vec::new()));
        own.set(own.prepare(keys)?);
        Ok(own)
    }

    /// Prepares other keys, and changes nothing yet. Identities that stay keep the tickets that
    /// they share with neighbours.
    ///
    /// # Errors
    /// As [`Tls::new`].
    pub fn prepare(&self, keys: &[IdentityKey]) -> Result<Vec<Arc<OwnIdentity>>, StreamError> {
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

    /// Puts other identities in force.
    pub fn set(&self, identities: Vec<Arc<OwnIdentity>>) {
        self.0.replace(identities);
    }

    /// Returns the identity with this public half, if it is one of these.
    pub(crate) fn get(&self, public: &PublicIdentity) -> Option<Arc<OwnIdentity>> {
        self.0.current().iter().find(|own| own.public == *public).cloned()
    }

    /// Finds the identity for which the received bytes are a first flight; `None` while it is
    /// incomplete.
    ///
    /// # Errors
    /// When it is a first flight for none of these, whatever follows.
    pub fn find_addressed(&self, bytes: &[u8]) -> Result<Option<Arc<OwnIdentity>>, GrantError> {
        let mut refused = Ok(None);
        for own in self.0.current().iter() {
            match own.flight_key.open(bytes) {
                Ok(Some(_)) => return Ok(Some(Arc::clone(own))),
                // Its length does not depend on the identity.
                Ok(None) => return Ok(None),
                Err(error) => refused = Err(error),
            }
        }
        refused
    }
}
