//! The packet plane of a relay's or gateway's process, which one process passes to the next.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tradewind_config::ConfigError;
use tradewind_grant::SignedRevocations;
use tradewind_node::{Node, NodeConfig, NodeError, NodeReloader, handover};
use tradewind_stream::keys::revocations;
use tradewind_stream::{Handover, Prepared, Reload, Reloads, Shutdown, StreamError};
use tradewind_telemetry::Health;

use crate::journal::Logs;
use crate::output::{self, BadFile};

/// Opens it with the sockets of the previous process, and passes its own to the next.
pub(crate) fn open(settings: PacketSettings, handover: &mut Handover) -> anyhow::Result<Node> {
    let PacketSettings { node: config, revocations, section, text } = settings;
    let lists = PacketSettings::lists(revocations.as_ref())?;
    let revocations = config.revocations.updated(&lists, &config.operators);
    let revocations = revocations.map_err(|error| BadFile(format!("revocations: {error}")))?;
    let config = NodeConfig { revocations, ..config };
    let node = Node::open(config, handover.sockets(handover::PREFIX));
    let mut node = node.map_err(|error| refused(error, section, &text))?;
    for (name, socket) in node.hand_on() {
        handover.hand_on(name, socket);
    }
    Ok(node)
}

/// Returns the error of a configuration with this `text`, with its line there. Keys without a
/// section are those of `section`.
pub(crate) fn refused(error: NodeError, section: &str, text: &str) -> anyhow::Error {
    let NodeError::Config { key, problem } = error else { return error.into() };
    let key = if key.starts_with("packet") { key } else { format!("{section}.{key}") };
    ConfigError::new(key, problem).located(text).into()
}

/// The settings of the packet plane.
pub(crate) struct PacketSettings {
    pub(crate) node: NodeConfig,
    /// The section that holds its settings.
    pub(crate) section: &'static str,
    /// The text of the configuration.
    pub(crate) text: String,
    /// The file of its operators' revocations.
    pub(crate) revocations: Option<PathBuf>,
}

impl PacketSettings {
    /// Reads the revocations.
    fn lists(file: Option<&PathBuf>) -> Result<Vec<SignedRevocations>, StreamError> {
        file.map_or(Ok(Vec::new()), |file| revocations::read(file))
    }
}

/// The part of a reload that applies rules and grant of the packet plane, and revocations.
struct PacketReload<F> {
    node: NodeReloader,
    /// The file of revocations, as last configured.
    revocations: Arc<Mutex<Option<PathBuf>>>,
    live: &'static [&'static str],
    /// The function that reads the settings of the packet plane.
    read: F,
}

impl<F> PacketReload<F> {
    fn file(&self) -> Option<PathBuf> {
        self.revocations.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Prepares the settings read of the configuration, if it was read, and the revocations of
    /// their file.
    fn ready(
        &self,
        config: Option<Arc<NodeConfig>>,
        file: Option<PathBuf>,
    ) -> Result<Prepared, StreamError> {
        let lists = PacketSettings::lists(file.as_ref())?;
        let ready = self.node.prepare_revocations(config, &lists);
        let ready = ready.map_err(|error| StreamError::Beside(error.to_string()))?;
        let (node, revocations) = (self.node.clone(), Arc::clone(&self.revocations));
        Ok(Box::new(move || {
            *revocations.lock().unwrap_or_else(PoisonError::into_inner) = file;
            node.apply(&ready);
            None
        }))
    }
}

impl<F: Fn(&str) -> anyhow::Result<Option<PacketSettings>> + Send> Reload for PacketReload<F> {
    fn live(&self) -> &'static [&'static str] {
        self.live
    }

    fn prepare(&self, text: &str) -> Result<Prepared, StreamError> {
        let beside = |error: anyhow::Error| StreamError::Beside(output::one_line(&error));
        // A section that is gone is reported as changed.
        let Some(read) = (self.read)(text).map_err(beside)? else {
            return Ok(Box::new(|| None));
        };
        let config = self.node.prepare(read.node);
        let config = config.map_err(|error| beside(refused(error, read.section, text)))?;
        self.ready(Some(config), read.revocations)
    }

    fn watched(&self) -> Option<PathBuf> {
        self.file()
    }

    fn prepare_watched(&self) -> Result<Prepared, StreamError> {
        self.ready(None, self.file())
    }
}

/// Has `node`, if there is one, apply the settings that `read` returns for a changed configuration,
/// as one part of the process.
pub(crate) fn reload_beside<F>(
    reloads: Reloads,
    (node, revocations): (Option<&Node>, Option<PathBuf>),
    live: &'static [&'static str],
    read: F,
) -> Reloads
where
    F: Fn(&str) -> anyhow::Result<Option<PacketSettings>> + Send + 'static,
{
    let Some(node) = node.map(Node::reloader) else { return reloads };
    let revocations = Arc::new(Mutex::new(revocations));
    reloads.with(PacketReload { node, revocations, live, read })
}

/// A running packet plane, until this is dropped or the next process takes over.
pub(crate) struct Running(Arc<Mutex<Option<Node>>>);

impl Running {
    /// Starts it once that of the previous process has ended. A thread waits for that, so that
    /// streams need not.
    pub(crate) fn start(
        node: Option<Node>,
        logs: Logs,
        shutdown: &Shutdown,
        health: &Health,
    ) -> anyhow::Result<Option<Self>> {
        let Some(mut node) = node else { return Ok(None) };
        if logs.are_some() {
            node.set_journal(Arc::new(logs));
        }
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
        // With the lock held: code that drops another handle, and then ends the process, waits
        // until it has ended in order.
        drop(self.0.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
