//! A view of a relay or gateway while it runs.

use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_telemetry::Health;

pub use crate::counts::Snapshot;
use crate::process::worker::Worker;

/// A view of a relay or gateway; clones see the same one.
#[derive(Debug, Clone)]
pub struct Handle {
    local_addrs: Arc<[SocketAddr]>,
    metrics: Option<SocketAddr>,
    workers: Arc<[Arc<Worker>]>,
    runtimes: Arc<[tokio::runtime::Handle]>,
    health: Health,
}

impl Handle {
    pub(crate) fn new(
        local_addrs: Vec<SocketAddr>,
        metrics: Option<SocketAddr>,
        workers: Vec<Arc<Worker>>,
        runtimes: Vec<tokio::runtime::Handle>,
        health: Health,
    ) -> Self {
        Self {
            local_addrs: local_addrs.into(),
            metrics,
            workers: workers.into(),
            runtimes: runtimes.into(),
            health,
        }
    }

    /// Returns the addresses on which it listens, in the order of the configuration: a gateway's
    /// port forwards, then SOCKS5, CONNECT and interception. Ports that the system chose are filled
    /// in.
    #[must_use]
    pub fn local_addrs(&self) -> &[SocketAddr] {
        &self.local_addrs
    }

    /// Returns every address that this process listens on.
    pub fn own_listeners(&self) -> Vec<SocketAddr> {
        self.local_addrs.iter().copied().chain(self.metrics).collect()
    }

    /// Returns the address that serves metrics and health.
    #[must_use]
    pub const fn metrics_addr(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Returns its liveness and readiness, as its metrics port reports them.
    #[must_use]
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// Returns the counters.
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(self.workers.iter().map(|worker| &worker.counts))
    }

    /// Returns the bytes that sessions hold, where memory is limited.
    #[must_use]
    pub fn held_bytes(&self) -> Option<usize> {
        self.workers.first().and_then(|worker| worker.held_bytes())
    }

    /// Returns the number of live tasks: one for each open session and each listener of each
    /// worker.
    #[must_use]
    pub fn tasks(&self) -> usize {
        self.runtimes.iter().map(|runtime| runtime.metrics().num_alive_tasks()).sum()
    }

    /// Returns the number of pipes that the workers keep for the next bulky session, two
    /// descriptors each.
    #[must_use]
    pub fn resting_pipes(&self) -> usize {
        self.workers.iter().map(|worker| worker.buffer_pool.resting_pipes()).sum()
    }
}
