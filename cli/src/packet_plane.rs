//! The packet plane of a relay's or gateway's process, which one process leaves to the next.

use std::sync::{Arc, Mutex, PoisonError};

use tradewind_node::{Node, NodeConfig, NodeError, handover};
use tradewind_relay::{Inheritance, RelayError, Shutdown};

/// Opens it with what the process before this one has left, and leaves the same to the next.
pub(crate) fn open(config: NodeConfig, inheritance: &mut Inheritance) -> Result<Node, NodeError> {
    let mut node = Node::open(config, inheritance.named(handover::PREFIX))?;
    for (name, socket) in node.sockets() {
        inheritance.hand_on(name, socket);
    }
    Ok(node)
}

/// It runs until this is dropped, or the next process takes over.
pub(crate) struct Running(Arc<Mutex<Option<Node>>>);

impl Running {
    pub(crate) fn start(node: Option<Node>, shutdown: &Shutdown) -> anyhow::Result<Option<Self>> {
        let Some(mut node) = node else { return Ok(None) };
        node.run()?;
        let running = Self(Arc::new(Mutex::new(Some(node))));
        let retiring = Self(Arc::clone(&running.0));
        shutdown.once_retired(move || drop(retiring)).map_err(|error: RelayError| error)?;
        Ok(Some(running))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let node = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(node);
    }
}
