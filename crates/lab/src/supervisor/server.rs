//! The process that holds the lab and answers requests.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use tradewind_net::clock::Urgency;
use tradewind_net::signals::Signals;
use tradewind_net::{descriptor, epoll::Epoll, pidns::PidNamespace, userns};
use tradewind_units::{Duration, HostId};
use tradewind_wan::{LinkCounters, PairChange, Topology};

use super::message::{
    Answer, HostStatus, LinkStatus, Question, Status, hear, send_message, set_timeouts,
};
use super::runtime_directory::RuntimeDirectory;
use crate::error::LabError;
use crate::lab::Lab;
use crate::options::LabOptions;
use crate::privilege::Standing;

/// The line that the starting process writes to the lab's standard input once it has seen the lab
/// up: from then on it may end without ending the lab.
pub(crate) const KEEP: &[u8] = b"keep\n";

/// Longest time that a command may take to send its request or to read its reply. Chosen: commands
/// have their request ready when they connect.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const SCHEMA_VERSION: u32 = 1;

/// The origin of a served lab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The topology's file, for `status`.
    pub file: String,
    /// The privilege of this process.
    pub standing: Standing,
}

/// Holds a lab of `topology` until a `down` request, SIGTERM or SIGINT arrives. Writes one line to
/// standard output: `up`, or the reason why the lab is not up. Ends when standard input, a pipe, is
/// closed before `keep` was received ([`super::up`] holds the other ends). Must be called before
/// any thread is started.
///
/// # Errors
/// When the lab cannot start, or another one is up.
pub fn serve(
    place: &RuntimeDirectory,
    topology: &Topology,
    source: &Source,
    options: &LabOptions,
) -> Result<(), LabError> {
    let held = hold(place, topology, source, options);
    if let Err(error) = &held {
        tell(std::io::stdout(), error);
    }
    held
}

fn hold(
    place: &RuntimeDirectory,
    topology: &Topology,
    source: &Source,
    options: &LabOptions,
) -> Result<(), LabError> {
    let signals = Signals::take_termination()?;
    tradewind_net::processes::leave_terminal();
    let programs = PidNamespace::create()?;
    let lab = Lab::start(topology, options)?;
    if lab.validity()?.urgency == Urgency::RealTime {
        // The emulator is real-time and needs no share of a CPU. In the session's default group,
        // the threads that keep CPUs awake would take a share from the programs of `exec`.
        tradewind_net::processes::stand_back_as_session();
    }
    let socket = place.socket();
    let at_socket = |source| LabError::File { path: socket.clone(), source };
    place.prepare()?;
    let listener = UnixListener::bind(&socket).map_err(at_socket)?;
    let swept = Swept(place);
    let mut server = Server { lab, programs, source, started: Instant::now(), place };
    server.write_state()?;
    tell(std::io::stdout(), "up");
    let last_caller = server.serve_until_stopped(&listener, &signals)?;
    drop(server);
    drop(swept);
    if let Some(mut caller) = last_caller {
        // The lab is down whether or not its caller still waits.
        let _ = send_message(&mut caller, &Answer::Done);
    }
    Ok(())
}

/// Writes a line and ignores errors: a reader that is gone or a full disk is no reason to end.
fn tell(mut to: impl Write, line: impl std::fmt::Display) {
    let _ = writeln!(to, "{line}");
}

/// The directory while this process holds it; its files are removed when this is dropped.
struct Swept<'a>(&'a RuntimeDirectory);

impl Drop for Swept<'_> {
    fn drop(&mut self) {
        self.0.sweep();
    }
}

struct Server<'a> {
    lab: Lab,
    /// The processes started by `exec`. Declared after the lab: dropping the lab ends its programs
    /// before its network, and dropping this ends any process that remains.
    programs: PidNamespace,
    source: &'a Source,
    started: Instant,
    place: &'a RuntimeDirectory,
}

impl Server<'_> {
    /// Answers requests until one or a signal ends the lab; returns the caller that ended it, if
    /// any.
    fn serve_until_stopped(
        &mut self,
        listener: &UnixListener,
        signals: &Signals,
    ) -> Result<Option<UnixStream>, LabError> {
        const LISTENER: u64 = 0;
        const SIGNAL: u64 = 1;
        const STARTER: u64 = 2;
        let mut starter = std::io::stdin();
        let mut epoll = Epoll::new()?;
        epoll.watch(listener, LISTENER)?;
        epoll.watch(signals, SIGNAL)?;
        epoll.watch(&starter, STARTER)?;
        loop {
            let ready: Vec<u64> = epoll.wait(None)?.collect();
            if ready.contains(&SIGNAL) {
                tell(std::io::stderr(), "lab: ended by a signal");
                return Ok(None);
            }
            if ready.contains(&STARTER) {
                if !matches!(starter.read(&mut [0; KEEP.len()]), Ok(1..)) {
                    tell(std::io::stderr(), "lab: ended with the command that started it");
                    return Ok(None);
                }
                epoll.forget(&starter);
            }
            if !ready.contains(&LISTENER) {
                continue;
            }
            let Ok((mut caller, _)) = listener.accept() else { continue };
            match self.answer(&mut caller) {
                Ok(true) => return Ok(Some(caller)),
                Ok(false) => {}
                Err(error) => {
                    // A caller that left or sent nonsense does not affect others.
                    let is_bad_input = error.is_of_configuration();
                    let refused = Answer::Refused { reason: error.to_string(), is_bad_input };
                    let _ = send_message(&mut caller, &refused);
                }
            }
        }
    }

    /// Answers one caller; returns `true` for [`Question::Down`].
    fn answer(&mut self, caller: &mut UnixStream) -> Result<bool, LabError> {
        set_timeouts(caller, REQUEST_TIMEOUT)?;
        match hear(caller)? {
            Question::Down => {
                tell(std::io::stderr(), "lab: ended on demand");
                return Ok(true);
            }
            Question::Status => send_message(caller, &Answer::Status(Box::new(self.status()?)))?,
            Question::Set { pair, settings } => {
                let change = PairChange::parse(&pair, settings.iter().map(String::as_str))?;
                self.lab.apply(&change)?;
                send_message(caller, &Answer::Done)?;
            }
            Question::Enter { host } => self.let_in(caller, &host)?,
            Question::Listen { host, port } => {
                let listener = self.listen(&host, port)?;
                send_message(caller, &Answer::Done)?;
                descriptor::send(caller, &[listener.as_fd()])?;
            }
        }
        Ok(false)
    }

    /// Sends the descriptors with which a process enters a host and dies with the lab.
    fn let_in(&self, caller: &mut UnixStream, host: &HostId) -> Result<(), LabError> {
        let namespace = self.lab.namespace(host)?;
        let user: OwnedFd = userns::of_this_process()?;
        let lifeline = self.lab.lifeline().read_end()?;
        send_message(caller, &Answer::Done)?;
        let descriptors =
            [user.as_fd(), namespace.as_fd(), self.programs.as_fd(), lifeline.as_fd()];
        descriptor::send(caller, &descriptors)?;
        Ok(())
    }

    fn listen(&self, host: &HostId, port: u16) -> Result<TcpListener, LabError> {
        let address = SocketAddr::from((self.lab.address_v4(host)?, port));
        let listens = self.lab.enter(host, || TcpListener::bind(address))?;
        listens.map_err(|source| LabError::Remote(format!("listen on {address}: {source}")))
    }

    fn status(&self) -> Result<Status, LabError> {
        let topology = self.lab.topology();
        let hosts = topology.hosts.iter().map(|host| {
            Ok(HostStatus {
                name: host.id.clone(),
                site: topology.sites[usize::from(host.site.0)].id.clone(),
                ipv4: self.lab.address_v4(&host.id)?,
                ipv6: self.lab.address_v6(&host.id)?,
            })
        });
        let counters = self.lab.counters()?;
        let busy = counters.links.iter().filter(|link| link.tally.entered > 0);
        Ok(Status {
            schema_version: SCHEMA_VERSION,
            process: std::process::id(),
            topology: self.source.file.clone(),
            standing: self.source.standing,
            attached_by: self.lab.attached_by(),
            up_s: self.started.elapsed().as_secs_f64(),
            notes: self.lab.notes().to_vec(),
            hosts: hosts.collect::<Result<_, LabError>>()?,
            links: busy.map(link_status).collect(),
            validity: self.lab.validity()?,
        })
    }

    fn write_state(&self) -> Result<(), LabError> {
        let path = self.place.state_file();
        let text = serde_json::to_vec_pretty(&self.status()?).expect("a status is plain data");
        fs::write(&path, text).map_err(|source| LabError::File { path, source })
    }
}

fn link_status(link: &LinkCounters) -> LinkStatus {
    LinkStatus {
        name: link.name.to_string(),
        entered: link.tally.entered,
        delivered: link.tally.delivered,
        delivered_bytes: link.tally.delivered_bytes,
        dropped: link.tally.dropped_total(),
        in_flight: link.tally.in_flight,
    }
}
