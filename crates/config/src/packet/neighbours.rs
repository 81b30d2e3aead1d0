//! Relays and remote gateways as files give them.

use std::net::SocketAddr;

use serde::Deserialize;
use tradewind_grant::{Hop, PublicIdentity};
use tradewind_units::address;

use super::{Recipient, Remote, Via};
use crate::ConfigError;

/// Neighbours with several addresses, and the addresses after the first.
pub(super) type Further = Vec<(PublicIdentity, Vec<SocketAddr>)>;

/// `remote` of a `[[packet]]`: an address and an identity, or the id of a member; for a rendezvous
/// the identity suffices.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Value")]
pub enum RemoteSection {
    /// One address, or the id of a member.
    Placed(Remote),
    /// Several addresses.
    Several(Placed),
    /// An identity without an address.
    Named(PublicIdentity),
}

/// An identity without an address.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    identity: PublicIdentity,
}

impl TryFrom<toml::Value> for RemoteSection {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        // A table with any other key is meant to be a hop, whose errors name both keys.
        let is_named =
            value.as_table().is_some_and(|table| table.keys().all(|key| key == "identity"));
        match value {
            toml::Value::String(name) => Ok(Self::Placed(Remote::Member(name))),
            table if is_named => Ok(Self::Named(table.try_into::<Named>()?.identity)),
            other => {
                let placed = Placed::try_from(other)?;
                Ok(if placed.others.is_empty() {
                    Self::Placed(Remote::At(placed.hop))
                } else {
                    Self::Several(placed)
                })
            }
        }
    }
}

impl RemoteSection {
    /// Returns the identity and the further addresses, if there are several.
    pub(super) fn several(&self) -> Option<(PublicIdentity, Vec<SocketAddr>)> {
        match self {
            Self::Several(placed) => placed.several(),
            Self::Placed(_) | Self::Named(_) => None,
        }
    }

    pub(super) fn placed(self) -> Result<Remote, ConfigError> {
        match self {
            Self::Placed(remote) => Ok(remote),
            Self::Several(placed) => Ok(Remote::At(placed.hop)),
            Self::Named(_) => {
                let problem = "missing field `address`; only a rendezvous does without";
                Err(ConfigError::new("remote", problem))
            }
        }
    }

    pub(super) fn recipient(self) -> Recipient {
        match self {
            Self::Placed(Remote::Member(name)) => match name.parse() {
                Ok(identity) => Recipient::Identity(identity),
                Err(_) => Recipient::Member(name),
            },
            Self::Placed(Remote::At(hop)) | Self::Several(Placed { hop, .. }) => {
                Recipient::Identity(hop.identity)
            }
            Self::Named(identity) => Recipient::Identity(identity),
        }
    }
}

/// Most addresses of one neighbour. Chosen: two families of two networks.
pub(super) const MAX_ADDRESSES: usize = 4;

/// A relay or remote gateway with one address or several.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct Placed {
    /// The first address, and the identity.
    pub hop: Hop,
    /// The further addresses.
    pub others: Vec<SocketAddr>,
}

impl Placed {
    /// Returns the identity and the further addresses, if there are several.
    #[must_use]
    pub fn several(&self) -> Option<(PublicIdentity, Vec<SocketAddr>)> {
        (!self.others.is_empty()).then(|| (self.hop.identity, self.others.clone()))
    }
}

/// One address or a list.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct Addresses {
    /// The first.
    pub first: SocketAddr,
    /// The others.
    pub others: Vec<SocketAddr>,
}

impl TryFrom<toml::Value> for Addresses {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        let Some(all) = value.as_array() else {
            let OneAddress(first) = value.try_into()?;
            return Ok(Self { first, others: Vec::new() });
        };
        let all: Result<Vec<OneAddress>, _> =
            all.iter().map(|address| address.clone().try_into()).collect();
        let mut all = all?.into_iter().map(|OneAddress(address)| address);
        match all.next() {
            Some(first) if all.len() < MAX_ADDRESSES => Ok(Self { first, others: all.collect() }),
            _ => {
                let problem = format!("expected 1 to {MAX_ADDRESSES} addresses");
                Err(serde::de::Error::custom(problem))
            }
        }
    }
}

impl TryFrom<toml::Value> for Placed {
    type Error = toml::de::Error;

    fn try_from(mut value: toml::Value) -> Result<Self, Self::Error> {
        let mut others = Vec::new();
        let address = value.as_table_mut().and_then(|table| table.get_mut("address"));
        if let Some(address) = address
            && let Some(all) = address.as_array().cloned()
        {
            if !(1..=MAX_ADDRESSES).contains(&all.len()) {
                let problem = format!("address: expected 1 to {MAX_ADDRESSES} addresses");
                return Err(serde::de::Error::custom(problem));
            }
            for other in &all[1..] {
                let other: OneAddress = other.clone().try_into()?;
                others.push(other.0);
            }
            *address = all[0].clone();
        }
        Ok(Self { hop: value.try_into()?, others })
    }
}

#[derive(Deserialize)]
struct OneAddress(#[serde(deserialize_with = "address::one")] SocketAddr);

/// `relays` of a `[[packet]]`: a list, or `"nearest"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "toml::Value")]
pub struct ViaSection(pub(super) Via, pub(super) Vec<Placed>);

impl ViaSection {
    /// Returns those that have several addresses.
    pub(super) fn several(&self) -> impl Iterator<Item = (PublicIdentity, Vec<SocketAddr>)> + '_ {
        self.1.iter().filter_map(Placed::several)
    }
}

impl Default for ViaSection {
    fn default() -> Self {
        Self(Via::Relays(Vec::new()), Vec::new())
    }
}

impl TryFrom<toml::Value> for ViaSection {
    type Error = toml::de::Error;

    fn try_from(value: toml::Value) -> Result<Self, Self::Error> {
        match value.as_str() {
            Some("nearest") => Ok(Self(Via::Nearest, Vec::new())),
            Some(_) => Err(serde::de::Error::custom("expected a list of relays, or `nearest`")),
            None => {
                let toml::Value::Array(all) = value else {
                    // The error says which other forms are accepted.
                    return Ok(Self(Via::Relays(value.try_into()?), Vec::new()));
                };
                let all: Result<Vec<Placed>, _> = all.into_iter().map(Placed::try_from).collect();
                let all = all?;
                let relays = all.iter().map(|placed| placed.hop).collect();
                let several = all.into_iter().filter(|placed| !placed.others.is_empty());
                Ok(Self(Via::Relays(relays), several.collect()))
            }
        }
    }
}
