//! A controller in this process, with agents on the hosts of a lab of this process: the overlay's
//! own loop.
//!
//! The controller's listener for agents is on the lab's first site, its API on loopback.

use std::fs::{self, Permissions};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use tradewind_control::record::Role;
use tradewind_controller::folder::{Access, Folder, Settings};
use tradewind_controller::server::Stopper;
use tradewind_controller::view::{HostState, HostView, Hosts, InviteAnswer, InviteRequest};
use tradewind_controller::{Client, ClientError, ControllerError, Server};
use tradewind_net::pidns::PidNamespace;
use tradewind_units::Duration;

use crate::DemoError;
use crate::executor::Threads;
use crate::overlay::{self, Agents, OnHosts, OverlayHost};
use crate::processes::{LabContext, ProcessError};

/// Time for which an invite lasts. Chosen: an agent uses it at once.
const INVITE_TTL_MS: u64 = 600_000;
/// Longest wait for the first reports of all agents. Chosen: sixteen take two seconds.
const MAX_START: Duration = Duration::from_secs(60);
/// Time between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(100);
/// The port of the listener for agents, on the lab.
const AGENTS_PORT: u16 = 7440;

/// Makes an invite; returns its line.
///
/// # Errors
/// When the controller refuses.
pub fn invite(client: &Client, role: &Role) -> Result<String, ClientError> {
    let request = InviteRequest { role: role.clone(), ttl_ms: INVITE_TTL_MS };
    let answer: InviteAnswer = client.post("/v1/invites", &request)?;
    Ok(answer.invite)
}

/// Returns the number of hosts whose agents have reported, or never will as they are revoked.
///
/// # Errors
/// When the controller does not answer.
pub fn reported(client: &Client) -> Result<usize, ClientError> {
    let known: Hosts = client.get("/v1/hosts")?;
    let is_done = |host: &HostView| host.state == HostState::Revoked || host.seen_unix_ms.is_some();
    Ok(known.hosts.iter().filter(|host| is_done(host)).count())
}

/// The running controller and its agents, which end when this is dropped.
pub(crate) struct Controlled<'a> {
    /// The lab that it runs on.
    pub(crate) context: &'a LabContext,
    /// Asks the controller.
    pub(crate) client: Client,
    // Dropped before the agents: it need not hear of their end.
    _serving: Serving,
    agents: Agents,
    // Dropped last: the programs of the agents end with it.
    _programs: PidNamespace,
}

impl<'a> Controlled<'a> {
    /// Starts the controller and an agent on each of `hosts`, of which the first is a site; waits
    /// until all have reported. `done` is called with their number so far.
    ///
    /// # Errors
    /// When one cannot be started, or does not report in time.
    pub(crate) fn start(
        context: &'a LabContext,
        hosts: &[OverlayHost],
        mut done: impl FnMut(u64),
    ) -> Result<Self, DemoError> {
        let place = context.scratch.file("net");
        let folder = folder(context, &place, &hosts[0])?;
        let agents = folder.settings()?.agents;
        let listen = context.lab.enter(&hosts[0].name, || TcpListener::bind(agents));
        let failed =
            |what: &str, source: io::Error| ControllerError::Failed(format!("{what}: {source}"));
        let listener = listen.map_err(ProcessError::from)?;
        let listener = listener.map_err(|source| failed("listen for agents", source))?;
        let server = Server::open_on(&folder, Arc::new(Threads::available()), Some(listener))?;
        let (stopper, identity) = (server.stopper(), server.identity());
        let address = server.addresses().map_err(|source| failed("its API", source))?.1;
        let client = Client::new(&Access { api: format!("http://{address}"), ..folder.admin()? })?;
        let programs = PidNamespace::create().map_err(tradewind_lab::LabError::from);
        let programs = programs.map_err(ProcessError::from)?;
        let on = OnHosts::Own { lab: &context.lab, programs: &programs };
        let thread = Some(std::thread::spawn(move || server.run()));
        let serving = Serving { stopper, thread };
        let invite = |role: &Role| invite(&client, role).map_err(DemoError::from);
        let folders = place.join("agents");
        let program = context.program.as_path();
        let agents = Agents::start(&on, hosts, (program, &folders), identity, invite)?;
        let mut overlay = Self { context, client, _serving: serving, agents, _programs: programs };
        overlay.wait("reports of all agents", MAX_START, |it| {
            let count = reported(&it.client)?;
            done(count as u64);
            Ok((count >= hosts.len()).then_some(()))
        })?;
        Ok(overlay)
    }

    /// Lets the overlay work for `span`.
    ///
    /// # Errors
    /// When the run is stopped, or an agent ends.
    pub(crate) fn pass(&mut self, span: Duration) -> Result<(), DemoError> {
        let begun = Instant::now();
        while begun.elapsed() < span {
            self.check()?;
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Checks that the run goes on and every agent runs.
    ///
    /// # Errors
    /// When the run is stopped, or an agent ended.
    pub(crate) fn check(&mut self) -> Result<(), DemoError> {
        self.context.stop.check()?;
        self.agents.ended().into_iter().next().map_or(Ok(()), |reason| Err(reason.into()))
    }

    /// Looks until `look` returns something.
    ///
    /// # Errors
    /// When that fails, the run is stopped, an agent ends, or it takes longer than `limit`.
    pub(crate) fn wait<T>(
        &mut self,
        what: &str,
        limit: Duration,
        mut look: impl FnMut(&Self) -> Result<Option<T>, DemoError>,
    ) -> Result<T, DemoError> {
        let begun = Instant::now();
        loop {
            self.check()?;
            if let Some(found) = look(self)? {
                return Ok(found);
            }
            if begun.elapsed() > limit {
                return Err(DemoError::Late { what: what.to_owned(), limit });
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// The thread of a controller, which ends when this is dropped.
struct Serving {
    stopper: Stopper,
    thread: Option<JoinHandle<Result<(), ControllerError>>>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stopper.stop();
        if let Some(thread) = self.thread.take() {
            // A failure of its end has no bearing on what was carried.
            let _ = thread.join();
        }
    }
}

/// Makes the folder of a controller on `host`.
fn folder(context: &LabContext, place: &Path, host: &OverlayHost) -> Result<Folder, DemoError> {
    let failed = |source| ProcessError::File { path: place.to_owned(), source };
    // Relays that root starts go on as another user, and read their files again.
    let opened = fs::set_permissions(context.scratch.path(), Permissions::from_mode(0o711));
    opened.and_then(|()| overlay::make(place)).map_err(failed)?;
    let folder = Folder::new(place);
    let agents = SocketAddr::new(host.address, AGENTS_PORT);
    folder.init(&Settings::new(agents, ([127, 0, 0, 1], 0).into(), agents))?;
    Ok(folder)
}
