//! Jump-start inside another process, such as a relay: it learns from that process's connections,
//! for those that it dials and accepts, and touches no others of the host.
//!
//! It runs in its own thread and ends with its process, however that ends: its settings are held by
//! a program in the kernel that is detached with it. A process that is upgraded hands the control
//! socket on to the next one.

use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use tradewind_net::jumpstart::OwnSockets;
use tradewind_telemetry::Registry;

use crate::actuate::Actuator;
use crate::control::Control;
use crate::metrics::Metrics;
use crate::{Daemon, DaemonError};
use tradewind_config::JumpstartConfig;

/// A process's own learner. Dropping it ends it and removes its settings.
#[derive(Debug)]
pub struct Embedded {
    standing: Standing,
    socket: PathBuf,
    end: End,
    /// Dropped to end the thread after its last round: until then the program in the kernel lifts
    /// the limits of connections that have jumped, for as long as the process has some.
    process: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// State that the thread reports once it is set up.
#[derive(Debug)]
struct Standing {
    through: &'static str,
    why: Option<String>,
    own_sockets: Option<OwnSockets>,
    metrics: Metrics,
    /// Another descriptor of the control socket.
    listener: Option<OwnedFd>,
}

/// A handle that ends a process's own learner; clones end the same one.
#[derive(Debug, Clone)]
pub struct End(Arc<UnixStream>);

impl End {
    /// Makes it remove its settings, and end. Does not wait.
    pub fn now(&self) {
        // One that is shut down already has ended.
        let _ended = self.0.shutdown(Shutdown::Both);
    }
}

impl Embedded {
    /// Starts it in the calling thread's network namespace, with the control socket at `socket`:
    /// the one that is `handed_on` by the process before this one, if any.
    ///
    /// # Errors
    /// When something is missing: in one line what, and what works without it; it is logged as
    /// well.
    pub fn start(
        config: JumpstartConfig,
        socket: &Path,
        handed_on: Option<OwnedFd>,
    ) -> Result<Self, DaemonError> {
        Self::stand(config, socket, handed_on).inspect_err(|error| {
            tracing::warn!("jump-start is left out, connections begin by default: {error}");
        })
    }

    fn stand(
        config: JumpstartConfig,
        socket: &Path,
        handed_on: Option<OwnedFd>,
    ) -> Result<Self, DaemonError> {
        let (waker, rung) = UnixStream::pair().map_err(DaemonError::Thread)?;
        let (report, standing) = channel();
        let (process, gone) = channel();
        let path = socket.to_owned();
        let body = move || {
            let actuator = learn(&config, &path, handed_on, &report, &rung);
            let _process_is_over = gone.recv();
            drop(actuator);
        };
        let thread = thread::Builder::new().name("jumpstart".to_owned()).spawn(body);
        let thread = thread.map_err(DaemonError::Thread)?;
        let gone = || DaemonError::Thread(std::io::Error::other("it ended by a bug"));
        let standing = standing.recv().map_err(|_| gone())??;
        let end = End(Arc::new(waker));
        let (socket, process, thread) = (socket.to_owned(), Some(process), Some(thread));
        Ok(Self { standing, socket, end, process, thread })
    }

    /// Returns the actuator's name, and in one line why a better one was not chosen.
    #[must_use]
    pub fn acts_through(&self) -> (&'static str, Option<&str>) {
        (self.standing.through, self.standing.why.as_deref())
    }

    /// Returns the path of the control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Returns the handle for announcing each socket that the process dials or listens with; none
    /// where nothing acts.
    #[must_use]
    pub fn own_sockets(&self) -> Option<OwnSockets> {
        self.standing.own_sockets.clone()
    }

    /// Adds its metrics to those of the process.
    pub fn register(&self, registry: &Registry) {
        self.standing.metrics.register(registry);
    }

    /// Returns a descriptor of the control socket, `handed_on` for the process that takes over;
    /// only the first call does. It must be closed before this is dropped, or the socket's file
    /// stays.
    pub const fn hand_on(&mut self) -> Option<OwnedFd> {
        self.standing.listener.take()
    }

    /// Returns a handle that ends it before it is dropped.
    #[must_use]
    pub fn end(&self) -> End {
        self.end.clone()
    }
}

impl Drop for Embedded {
    fn drop(&mut self) {
        self.standing.listener = None;
        self.end.now();
        self.process = None;
        // A thread that panicked has ended as well.
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Runs the thread: sets up, reports to `report`, and learns until `rung`; returns the actuator,
/// which has nothing set any more.
fn learn(
    config: &JumpstartConfig,
    socket: &Path,
    handed_on: Option<OwnedFd>,
    report: &Sender<Result<Standing, DaemonError>>,
    rung: &UnixStream,
) -> Option<Box<dyn Actuator>> {
    let stand = || {
        let control = match handed_on {
            Some(listener) => Control::go_on(listener, socket)?,
            None => Control::open(socket)?,
        };
        let daemon = Daemon::over(config, control)?;
        let standing = Standing::of(&daemon)?;
        Ok((daemon, standing))
    };
    let daemon = match stand() {
        Ok((daemon, standing)) => {
            // The thread that started this one waits for it.
            let _sent = report.send(Ok(standing));
            daemon
        }
        Err(error) => {
            let _sent = report.send(Err(error));
            return None;
        }
    };
    let ended = daemon.run_until((rung, &|| true), None);
    ended.inspect_err(|error| tracing::error!("jump-start has ended: {error}")).ok()
}

impl Standing {
    fn of(daemon: &Daemon) -> Result<Self, DaemonError> {
        let (through, why) = daemon.acts_through();
        let listener = daemon.control.another_hold()?;
        Ok(Self {
            through,
            why: why.map(str::to_owned),
            own_sockets: daemon.actuator.own_sockets(),
            metrics: daemon.metrics.clone(),
            listener: Some(listener),
        })
    }
}
