//! Profiles of legs.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_desired::{BufferNeeds, Encryption, LegProfile, LegTo};
use tradewind_units::address;

use crate::ConfigError;

/// Leg profiles, by the side that opens the connection and for single legs.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LegProfiles {
    /// Connections from upstream, which this process accepts.
    pub accept: LegProfile,
    /// Connections to downstream, which this process dials.
    pub dial: LegProfile,
    /// Legs to single neighbours with profiles of their own.
    pub to: Vec<LegTo>,
    /// Listeners with settings of their own, at relays.
    pub at: Vec<LegAt>,
}

/// A listener's own settings.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LegAt {
    /// Its address, as in `listen`.
    #[serde(deserialize_with = "address::one")]
    #[schemars(with = "tradewind_units::address::Written")]
    pub address: SocketAddr,
    /// The encryption that it requires of dialling peers.
    pub encryption: Encryption,
}

impl LegProfiles {
    /// Returns the socket buffers that these legs need from the host's kernel.
    #[must_use]
    pub fn buffer_needs(&self) -> BufferNeeds {
        let to = self.to.iter().map(|to| &to.dial);
        BufferNeeds::of([&self.accept, &self.dial].into_iter().chain(to))
    }

    /// Returns the encryption that the listener of `address` requires of dialling peers.
    #[must_use]
    pub fn encryption_at(&self, address: SocketAddr) -> Encryption {
        let own = self.at.iter().find(|at| at.address == address).map(|at| at.encryption);
        own.or(self.accept.encryption).unwrap_or_default()
    }

    /// Checks that dialled legs choose one encryption, and that no neighbour or listener is listed
    /// twice.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: String| {
            let problem = "`either` is for who accepts; expected `tls` or `none`";
            Err(ConfigError::new(key, problem))
        };
        if self.dial.encryption == Some(Encryption::Either) {
            return refuse("leg.dial.encryption".to_owned());
        }
        let is_either = |to: &LegTo| to.dial.encryption == Some(Encryption::Either);
        if let Some(index) = self.to.iter().position(is_either) {
            return refuse(format!("leg.to[{index}].dial.encryption"));
        }
        let to = self.to.iter().map(|to| to.address).enumerate().map(|at| ("to", at));
        let at = self.at.iter().map(|at| at.address).enumerate().map(|at| ("at", at));
        let mut seen = BTreeSet::new();
        let twice = to.chain(at).find(|(kind, (_, address))| !seen.insert((*kind, *address)));
        twice.map_or(Ok(()), |(kind, (index, address))| {
            let key = format!("leg.{kind}[{index}].address");
            Err(ConfigError::new(key, format!("{address} is there twice")))
        })
    }
}
