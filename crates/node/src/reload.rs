//! Rules and grants that change while a node runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tradewind_grant::{IdentityKey, SignedGrant, SignedRevocations};

use crate::NodeError;
use crate::config::NodeConfig;
use crate::mailbox::{Command, CommandQueue};

/// The keys of a relay's packet plane that a reload applies.
pub const RELAY_LIVE_KEYS: &[&str] =
    &["packet.relays", "packet.next_hops", "packet.allow_loopback"];
/// The keys of a gateway's packet plane that a reload applies.
pub const GATEWAY_LIVE_KEYS: &[&str] = &[
    "revocations",
    "packet_endpoint.operators",
    "packet_endpoint.relays",
    "packet_endpoint.destinations",
    "packet_endpoint.allow_loopback",
];

/// A node's identity, the further ones that it accepts, and its grant.
type Named = (IdentityKey, Vec<IdentityKey>, Option<SignedGrant>);

/// Returns the identities and the grant of `config` that a node with the configuration `current`
/// applies. A node that opens paths itself keeps its identity, and the grant for it, as long as it
/// runs: paths, routes and groups depend on it.
fn named(config: &NodeConfig, current: &NodeConfig) -> Result<Named, NodeError> {
    let present = current.identity.public();
    if config.identity.public() == present || current.grant.is_none() {
        let NodeConfig { identity, other_identities, grant, .. } = config;
        return Ok((identity.clone(), other_identities.clone(), grant.clone()));
    }
    let restart = "it takes an upgrade (SIGUSR2) or a restart";
    let configured = std::iter::once(&config.identity).chain(&config.other_identities);
    let others: Vec<IdentityKey> =
        configured.clone().filter(|identity| identity.public() != present).cloned().collect();
    if others.len() == configured.count() {
        let problem = format!("packets go on under {present}, which is gone from it: {restart}");
        return Err(NodeError::Config { key: "identity".into(), problem });
    }
    tracing::warn!(
        "packets go on under identity {present} and its grant: another takes an upgrade (SIGUSR2) \
         or a restart"
    );
    Ok((current.identity.clone(), others, current.grant.clone()))
}

/// Replaces a node's rules and its grant while it runs; clones reload the same node.
#[derive(Debug, Clone)]
pub struct NodeReloader {
    /// By worker.
    command_queues: Vec<Arc<CommandQueue>>,
    /// The configuration in force.
    current: Arc<Mutex<Arc<NodeConfig>>>,
}

impl NodeReloader {
    pub(crate) fn new(command_queues: Vec<Arc<CommandQueue>>, begun_with: Arc<NodeConfig>) -> Self {
        Self { command_queues, current: Arc::new(Mutex::new(begun_with)) }
    }

    /// Prepares the part of `config` that [`NodeReloader::apply`] applies: operators, relays that
    /// need no grant, the destinations and next hops, and the grant of the node's own paths.
    /// Revocations stay in force.
    ///
    /// # Errors
    /// When the node would not start with it, or the grant is missing or is another gateway's.
    pub fn prepare(&self, config: NodeConfig) -> Result<Arc<NodeConfig>, NodeError> {
        let current = NodeConfig::clone(&self.lock());
        let (identity, other_identities, grant) = named(&config, &current)?;
        let NodeConfig { operators, neighbours, policy, .. } = config;
        let rules = NodeConfig { operators, neighbours, policy, ..current };
        let ready = NodeConfig { identity, other_identities, grant, ..rules };
        ready.check()?;
        if let Some(grant) = &ready.grant
            && grant.unverified().gateway != ready.identity.public()
        {
            let problem = "it was issued to another gateway".to_owned();
            return Err(NodeError::Config { key: "grant".into(), problem });
        }
        Ok(Arc::new(ready))
    }

    /// Prepares the configuration in force, or one prepared from another configuration, with
    /// `lists` of operators' revocations.
    ///
    /// # Errors
    /// When a list is invalid, or older than the one in force.
    pub fn prepare_revocations(
        &self,
        ready: Option<Arc<NodeConfig>>,
        lists: &[SignedRevocations],
    ) -> Result<Arc<NodeConfig>, NodeError> {
        let ready = ready.unwrap_or_else(|| Arc::clone(&self.lock()));
        let revocations = ready.revocations.updated(lists, &ready.operators);
        let revocations = revocations.map_err(|error| {
            let problem = error.to_string();
            NodeError::Config { key: "revocations".into(), problem }
        })?;
        Ok(Arc::new(NodeConfig { revocations, ..NodeConfig::clone(&ready) }))
    }

    /// Has every worker apply the prepared configuration. Whatever it no longer allows ends at
    /// once.
    pub fn apply(&self, ready: &Arc<NodeConfig>) {
        self.command_queues
            .iter()
            .for_each(|commands| commands.send(Command::Rules(Arc::clone(ready))));
        *self.lock() = Arc::clone(ready);
    }

    fn lock(&self) -> MutexGuard<'_, Arc<NodeConfig>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
