//! Rules and grants that change while a node runs.

use std::sync::Arc;

use crate::NodeError;
use crate::config::NodeConfig;
use crate::mailbox::{Desk, Order};

/// Replaces a node's rules and its grant while it runs; clones reload the same node.
#[derive(Debug, Clone)]
pub struct NodeReloader {
    /// By worker.
    desks: Vec<Arc<Desk>>,
    /// What the node was started with.
    begun_with: Arc<NodeConfig>,
}

impl NodeReloader {
    pub(crate) const fn new(desks: Vec<Arc<Desk>>, begun_with: Arc<NodeConfig>) -> Self {
        Self { desks, begun_with }
    }

    /// Makes ready what [`NodeReloader::apply`] takes over of `config`: operators, relays that need no grant, what is
    /// delivered to and which next hops are sent to, and the grant of the node's own paths.
    ///
    /// # Errors
    /// When the node would not start with it, or the grant is there no more or is another gateway's.
    pub fn prepare(&self, config: NodeConfig) -> Result<Arc<NodeConfig>, NodeError> {
        let NodeConfig { operators, neighbours, policy, grant, .. } = config;
        let begun_with = NodeConfig::clone(&self.begun_with);
        let ready = NodeConfig { operators, neighbours, policy, grant, ..begun_with };
        ready.check()?;
        if let Some(grant) = &ready.grant
            && grant.unverified().gateway != ready.identity.public()
        {
            let problem = "it was issued to another gateway".to_owned();
            return Err(NodeError::Config { key: "grant", problem });
        }
        Ok(Arc::new(ready))
    }

    /// Has every worker go by what was made ready. What it allows no more ends at once.
    pub fn apply(&self, ready: &Arc<NodeConfig>) {
        self.desks.iter().for_each(|desk| desk.order(Order::Rules(Arc::clone(ready))));
    }
}
