//! A relay's configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_grant::{DestinationRule, IdentityKey, OperatorPublicKey, Policy};
use tradewind_units::address;

use crate::checks::{check_common, check_exposed, check_ranges, check_twice};
use crate::jumpstart::{self, JumpstartConfig};
use crate::keys::{Keys, identity_text};
use crate::packet::{RelayPackets, RelaySection};
use crate::{
    AccessLogConfig, AuditLogConfig, ConfigError, LegAt, LegProfiles, Limits, Timeouts,
    TracesConfig, document,
};

/// A relay's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RelayConfig {
    /// The addresses that it listens on for gateways and relays, at least one; for port 0 the
    /// system chooses one. Link-local ones have the number of their interface:
    /// `[fe80::1%2]:7000`.
    #[serde(deserialize_with = "address::list")]
    #[schemars(with = "Vec<tradewind_units::address::Written>")]
    pub listen: Vec<SocketAddr>,
    /// A file that holds its secret identity.
    pub identity_file: Option<PathBuf>,
    /// The secret identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub identity: Option<IdentityKey>,
    /// A file that holds its previous identity, which is still accepted during a rotation.
    pub previous_identity_file: Option<PathBuf>,
    /// The previous identity itself, instead of the file: for tests.
    #[serde(default, deserialize_with = "identity_text")]
    pub previous_identity: Option<IdentityKey>,
    /// The user that it switches to if root has started it; when absent `tradewind`, if there is
    /// such a user.
    pub run_as: Option<String>,
    /// The operators whose grants it trusts.
    pub operators: Vec<OperatorPublicKey>,
    /// A file of their revocations; it is read again when it changes.
    pub revocations: Option<PathBuf>,
    /// The destinations and relays that it may dial; none by default.
    #[serde(default)]
    pub policy: PolicyConfig,
    /// Limits on sessions, connections, rates and memory.
    #[serde(default)]
    pub limits: Limits,
    /// Timeouts.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Profiles of its connections.
    #[serde(default, deserialize_with = "document::table")]
    pub leg: LegProfiles,
    /// The address that serves metrics and health; none when absent.
    #[serde(default, deserialize_with = "address::option")]
    #[schemars(with = "Option<tradewind_units::address::Written>")]
    pub metrics: Option<SocketAddr>,
    /// True if that may be another than a loopback address.
    #[serde(default)]
    pub metrics_expose: bool,
    /// Host names accepted in requests for metrics and health, beside addresses and `localhost`.
    #[serde(default)]
    pub metrics_hosts: Vec<String>,
    /// Threads that carry sessions, from 1 to 1024; one for each core when absent.
    #[schemars(range(min = 1, max = 1024))]
    pub workers: Option<usize>,
    /// The packet plane; none when absent.
    pub packet: Option<RelaySection>,
    /// The learning of its legs' initial windows; none when absent.
    #[serde(default, deserialize_with = "jumpstart::section")]
    #[schemars(with = "Option<jumpstart::Section>")]
    pub jumpstart: Option<JumpstartConfig>,
    /// The access log, which records sessions at their end; none when absent.
    pub access_log: Option<AccessLogConfig>,
    /// The audit log, which records sessions when they are admitted; none when absent.
    pub audit_log: Option<AuditLogConfig>,
    /// The traces of sessions, which go to a collector of OpenTelemetry; none when absent.
    pub traces: Option<TracesConfig>,
}

/// The destinations and relays that a relay may dial.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PolicyConfig {
    /// Destinations that it may dial as the last relay of a route.
    pub destinations: Vec<DestinationRule>,
    /// Relays that it may dial as the next ones of a route.
    pub next_hops: Vec<DestinationRule>,
    /// True if these rules may cover loopback addresses: for tests and labs.
    pub allow_loopback: bool,
    /// Addresses that are never dialled, beside its own listeners.
    #[serde(deserialize_with = "address::list")]
    #[schemars(with = "Vec<tradewind_units::address::Written>")]
    pub never: Vec<SocketAddr>,
}

impl PolicyConfig {
    /// Returns it as rules.
    #[must_use]
    pub fn policy(&self) -> Policy {
        Policy {
            destinations: self.destinations.clone(),
            next_hops: self.next_hops.clone(),
            allow_loopback: self.allow_loopback,
            never: self.never.clone(),
            relays: Vec::new(),
        }
    }
}

impl RelayConfig {
    /// Parses and checks a relay's configuration.
    ///
    /// # Errors
    /// The first mistake, with its key, its line and the expected value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = document::parse(text)?;
        config.check().map_err(|error| error.located(text))?;
        Ok(config)
    }

    /// Returns its packet plane, if it has one.
    ///
    /// # Errors
    /// The first mistake in its section.
    pub fn packets(&self) -> Result<Option<RelayPackets>, ConfigError> {
        self.packet.as_ref().map(RelaySection::resolve).transpose()
    }

    fn check(&self) -> Result<(), ConfigError> {
        check_common(&self.limits, &self.timeouts, self.workers)?;
        check_exposed(self.metrics, self.metrics_expose)?;
        if self.listen.is_empty() {
            return Err(ConfigError::new(
                "listen",
                "expected at least one address such as `0.0.0.0:7000`",
            ));
        }
        self.keys().check()?;
        let metrics = self.metrics.map(|metrics| ("metrics", metrics));
        check_twice(self.listen.iter().map(|at| ("listen", *at)).chain(metrics))?;
        if self.identity_file.is_none() && self.identity.is_none() {
            return Err(ConfigError::new(
                "identity_file",
                "missing: the file of the relay's secret identity",
            ));
        }
        if self.operators.is_empty() {
            return Err(ConfigError::new(
                "operators",
                "expected at least one operator's public key",
            ));
        }
        self.leg.check()?;
        self.access_log.iter().try_for_each(AccessLogConfig::check)?;
        let learner = self.jumpstart.as_ref().map_or(Ok(()), JumpstartConfig::check);
        learner.map_err(|error| error.within("jumpstart"))?;
        check_ranges("policy.next_hops", &self.policy.next_hops)?;
        self.packets()?;
        for (index, LegAt { address, .. }) in self.leg.at.iter().enumerate() {
            if !self.listen.contains(address) {
                let key = format!("leg.at[{index}].address");
                return Err(ConfigError::new(key, format!("{address} is not among `listen`")));
            }
        }
        Ok(())
    }

    /// Returns its secret identities, or where they are.
    #[must_use]
    pub fn keys(&self) -> Keys<'_> {
        Keys {
            present: (self.identity_file.as_deref(), self.identity.as_ref()),
            previous: (self.previous_identity_file.as_deref(), self.previous_identity.as_ref()),
        }
    }
}
