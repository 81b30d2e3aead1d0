//! The packet plane of a relay's or gateway's process, which one process leaves to the next.

use std::sync::{Arc, Mutex, PoisonError};

use tradewind_node::{Node, NodeConfig, NodeError, NodeReloader, handover};
use tradewind_relay::{Inheritance, Prepared, RelayError, Reload, Reloads, Shutdown};
use tradewind_telemetry::Health;

use crate::output;

/// Opens it with what the process before this one has left, and leaves the same to the next.
pub(crate) fn open(config: NodeConfig, inheritance: &mut Inheritance) -> Result<Node, NodeError> {
    let mut node = Node::open(config, inheritance.sockets(handover::PREFIX))?;
    for (name, socket) in node.hand_on() {
        inheritance.hand_on(name, socket);
    }
    Ok(node)
}

/// Takes rules and grant of the packet plane over when the configuration is read anew.
struct PacketReload<F> {
    node: NodeReloader,
    live: &'static [&'static str],
    /// Reads what the packet plane is told.
    read: F,
}

impl<F: Fn(&str) -> anyhow::Result<Option<NodeConfig>> + Send> Reload for PacketReload<F> {
    fn live(&self) -> &'static [&'static str] {
        self.live
    }

    fn prepare(&self, text: &str) -> Result<Prepared, RelayError> {
        let refused = |error: anyhow::Error| RelayError::Beside(output::one_line(&error));
        // A section that is gone is told of as one that has changed.
        let Some(config) = (self.read)(text).map_err(refused)? else {
            return Ok(Box::new(|| None));
        };
        let node = self.node.clone();
        let ready = node.prepare(config).map_err(|error| refused(error.into()))?;
        Ok(Box::new(move || {
            node.apply(&ready);
            None
        }))
    }
}

/// Has `node`, if there is one, take over what `read` makes of a changed configuration, as one part of the process.
pub(crate) fn reload_beside<F>(
    reloads: Reloads,
    node: Option<&Node>,
    live: &'static [&'static str],
    read: F,
) -> Reloads
where
    F: Fn(&str) -> anyhow::Result<Option<NodeConfig>> + Send + 'static,
{
    match node {
        Some(node) => reloads.with(PacketReload { node: node.reloader(), live, read }),
        None => reloads,
    }
}

/// It runs until this is dropped, or the next process takes over.
pub(crate) struct Running(Arc<Mutex<Option<Node>>>);

impl Running {
    /// Starts it once that of the process before this one has ended. Streams need not wait for that: a thread does.
    pub(crate) fn start(
        node: Option<Node>,
        shutdown: &Shutdown,
        health: &Health,
    ) -> anyhow::Result<Option<Self>> {
        let Some(node) = node else { return Ok(None) };
        let running = Self(Arc::new(Mutex::new(Some(node))));
        let (starting, retiring) = (Arc::clone(&running.0), Self(Arc::clone(&running.0)));
        let health = health.clone();
        let start = move || {
            let mut node = starting.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(Err(error)) = node.as_mut().map(|node| node.run(Some(&health))) {
                tracing::error!(%error, "packets do not run");
                health.set_fault(format!("packets: {error}"));
            }
        };
        std::thread::Builder::new().name("packets".to_owned()).spawn(start)?;
        shutdown.once_retired(move || drop(retiring))?;
        Ok(Some(running))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // With the lock: who drops another hold, and then ends the process, waits until all of it has ended in order.
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
