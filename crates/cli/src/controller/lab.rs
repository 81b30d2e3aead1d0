//! `tradewind controller run --lab`: a controller with an emulated WAN of its own, and an agent on
//! each of its hosts.
//!
//! The controller stays where it was started, so that commands reach its API from there; its
//! listener for agents is on the lab's first site.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::{Context as _, bail};
use tradewind_control::Controller;
use tradewind_control::record::Role;
use tradewind_control::settings::MAX_RELAY_SETUP;
use tradewind_controller::folder::{self, Access, Folder, Settings};
use tradewind_controller::store::Store;
use tradewind_controller::view::{SettingsRequest, SettingsView};
use tradewind_controller::{Client, ControllerError, Server};
use tradewind_demo::controlled;
use tradewind_demo::executor::Threads;
use tradewind_demo::overlay::{self, Agents, OnHosts, OverlayHost, relay_type};
use tradewind_demo::processes::this_program;
use tradewind_grant::PublicIdentity;
use tradewind_lab::supervisor::{self, HeldLab, RuntimeDirectory};
use tradewind_net::sandbox;
use tradewind_units::time::parse_duration;
use tradewind_units::{Duration, RelayTypeId};

use super::{announce, named, ready};
use crate::lab::{daemon, read_topology};
use crate::output::{self, BadFile, OrBadFile as _, Outcome};
use crate::relay::{Log, start_log};

/// Longest wait for the first reports of all agents. Chosen: sixteen take two seconds.
const MAX_START: Duration = Duration::from_secs(60);
/// Time between two looks at the lab and its agents.
const LOOK: Duration = Duration::from_millis(100);

/// The machines that a lab has in regions.
#[derive(clap::Args)]
pub(crate) struct Machines {
    /// Time that the machines of relays take to set up in the lab, such as `45 s`, at most 30 min;
    /// a plan that needs new ones waits for them. Without it they take none, and the setting of
    /// `tradewind mode --relay-setup` stays
    #[arg(long, value_name = "SPAN", requires = "lab", value_parser = relay_setup)]
    relay_setup: Option<Duration>,
    /// Their type, by which they cost and are planned: `standard`, or one of the catalogue's. Those
    /// that have joined before keep theirs
    #[arg(long, value_name = "TYPE", default_value_t = relay_type(), requires = "lab")]
    relay_type: RelayTypeId,
}

/// Reads a time that machines may take to set up.
fn relay_setup(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text).map_err(|error| error.to_string())?;
    let minutes = MAX_RELAY_SETUP.as_secs() / 60;
    let is_bearable = span <= MAX_RELAY_SETUP;
    is_bearable.then_some(span).ok_or_else(|| format!("expected at most {minutes} min"))
}

/// Runs the controller of a folder on a lab of a topology.
pub(super) fn serve(path: &Path, topology: &Path, machines: Machines, log: Log) -> Outcome {
    // Before it has read a secret.
    sandbox::hide()?;
    let hosts = hosts(topology, &machines.relay_type)?;
    let folder = Folder::new(path);
    if !folder.is_made() {
        make(&folder, &hosts)?;
    }
    let (host, port) = home(&folder, &hosts, topology)?;
    check_known(&folder, &hosts, topology)?;
    start_log(log)?;
    let place = RuntimeDirectory::of_this_user();
    let lab = supervisor::hold(&place, daemon(topology, None)?)?;
    let agents = supervisor::listen(&place, &host.name, port)?;
    let server = Server::open_on(&folder, Arc::new(Threads::available()), Some(agents))?;
    server.stop_on_signals()?;
    // By the port that it got, whatever the folder's files say.
    let access = Access { api: format!("http://{}", server.addresses()?.1), ..folder.admin()? };
    let over = AtomicBool::new(false);
    let overlay = Overlay {
        path,
        topology,
        hosts: &hosts,
        client: Client::new(&access)?,
        identity: server.identity(),
        relay_setup: machines.relay_setup,
        over: &over,
    };
    let (stopper, ready) = (server.stopper(), ready(&server)?);
    std::thread::scope(|scope| {
        let tended = scope.spawn(|| {
            let tended = overlay.tend(lab, ready);
            stopper.stop();
            tended
        });
        let served = server.run();
        over.store(true, Ordering::Relaxed);
        let tended = tended.join().expect("the thread for agents does not panic");
        served.map_err(anyhow::Error::from).and(tended)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// The things that the thread for agents works with while the controller runs.
struct Overlay<'a> {
    path: &'a Path,
    topology: &'a Path,
    hosts: &'a [OverlayHost],
    client: Client,
    identity: PublicIdentity,
    /// The time that machines take to set up, if that is given.
    relay_setup: Option<Duration>,
    /// True once the controller has ended.
    over: &'a AtomicBool,
}

impl Overlay<'_> {
    /// Starts the agents, and looks after them and the lab until the controller ends; then ends
    /// them.
    fn tend(&self, mut lab: HeldLab, ready: serde_json::Value) -> anyhow::Result<()> {
        let tended = self.run(&mut lab, ready);
        // What fails because the controller has ended is no failure.
        if self.is_over() { Ok(()) } else { tended }
    }

    fn run(&self, lab: &mut HeldLab, ready: serde_json::Value) -> anyhow::Result<()> {
        let (program, folder) = (this_program()?, self.path.join("agents"));
        let invite = |role: &Role| anyhow::Ok(controlled::invite(&self.client, role)?);
        let held = OnHosts::Held { relay_setup: self.relay_setup.unwrap_or_default() };
        let places = (program.as_path(), folder.as_path());
        self.tell_setup()?;
        let mut agents = Agents::start(&held, self.hosts, places, self.identity, invite)?;
        self.await_reports(&mut agents, lab)?;
        self.tell_of_lab(lab);
        announce(ready)?;
        self.tell_what_is_next();
        while !self.is_over() {
            check(lab)?;
            for reason in agents.ended() {
                tracing::warn!("{reason}");
            }
            std::thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Tells the controller how long machines take to set up, if that is given.
    fn tell_setup(&self) -> anyhow::Result<()> {
        let Some(relay_setup) = self.relay_setup else { return Ok(()) };
        let settings: SettingsView = self.client.get("/v1/settings")?;
        if settings.relay_setup != relay_setup {
            let relay_setup = Some(relay_setup);
            let request = SettingsRequest { relay_setup, ..SettingsRequest::default() };
            let _new: SettingsView = self.client.put("/v1/settings", &request)?;
        }
        Ok(())
    }

    /// Waits until each host has reported that is not revoked: the agents of those are refused.
    fn await_reports(&self, agents: &mut Agents, lab: &mut HeldLab) -> anyhow::Result<()> {
        let begun = Instant::now();
        loop {
            let report = controlled::reported(&self.client)?;
            if report >= self.hosts.len() {
                return Ok(());
            }
            check(lab)?;
            if let Some(reason) = agents.ended().into_iter().next() {
                return Err(reason.into());
            }
            if begun.elapsed() > MAX_START {
                let (all, limit) = (self.hosts.len(), MAX_START.as_secs());
                bail!("only {report} of {all} agents have reported after {limit} s");
            }
            std::thread::sleep(LOOK);
        }
    }

    fn tell_of_lab(&self, lab: &HeldLab) {
        for note in &lab.status().notes {
            output::note(format_args!("note: {note}"));
        }
        let gateways: Vec<String> =
            of_gateways(self.hosts).map(|host| host.role.site().to_string()).collect();
        output::note(format_args!(
            "{} is up. {} agents run; logs: {}/agents/NAME/agent.log\n\
             gateways: {}; regions where relays may run: {}; their machines take {} s to set up",
            self.topology.display(),
            self.hosts.len(),
            self.path.display(),
            gateways.join(", "),
            self.hosts.len() - gateways.len(),
            self.relay_setup.unwrap_or_default().as_secs_f64(),
        ));
    }

    fn tell_what_is_next(&self) {
        let mut sites = of_gateways(self.hosts);
        let Some(from) = sites.next() else { return };
        let to = sites.next().unwrap_or(from);
        let (from, to, address) = (from.role.site(), to.role.site(), to.address);
        let named = named(self.path);
        output::note(format_args!(
            "Next, from any terminal in this folder:\n\n{named}  \
             tradewind flow add NAME --from {from} --to {address}:PORT --to-site {to} \
             --per-day 2GB\n  \
             tradewind budget \"6 usd/day\"\n  \
             tradewind mode auto\n  \
             tradewind status\n  \
             tradewind lab exec {to} -- COMMAND"
        ));
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }
}

fn check(lab: &mut HeldLab) -> anyhow::Result<()> {
    if lab.has_ended() {
        bail!("the lab has ended, and the controller with it");
    }
    Ok(())
}

/// Reads the hosts of a topology that has sites and regions.
fn hosts(topology: &Path, relay_type: &RelayTypeId) -> anyhow::Result<Vec<OverlayHost>> {
    let mut hosts = overlay::hosts(&read_topology(topology)?);
    for host in &mut hosts {
        if let Role::Relay { relay_type: of_host, .. } = &mut host.role {
            of_host.clone_from(relay_type);
        }
    }
    let gateways = of_gateways(&hosts).count();
    let lacks = if gateways == hosts.len() {
        "no site of it has a `region`, where relays could run"
    } else if gateways == 0 {
        "all of its sites are regions: expected one with an `id`, for a gateway"
    } else {
        return Ok(hosts);
    };
    Err(anyhow::anyhow!(lacks)).or_bad(topology)
}

/// Makes the folder of a controller on the first site.
fn make(folder: &Folder, hosts: &[OverlayHost]) -> anyhow::Result<()> {
    overlay::make(folder.as_ref())?;
    let port = |address: &str| address.parse().map(|address: SocketAddr| address.port());
    let first = of_gateways(hosts).next().context("no site")?;
    let agents = SocketAddr::new(first.address, port(folder::AGENTS)?);
    folder.init(&Settings::new(agents, folder::API.parse()?, agents))?;
    Ok(())
}

/// Returns the host on which the controller listens for agents, and the port.
fn home<'a>(
    folder: &Folder,
    hosts: &'a [OverlayHost],
    topology: &Path,
) -> anyhow::Result<(&'a OverlayHost, u16)> {
    let agents = folder.settings()?.agents;
    let host = hosts.iter().find(|host| host.address == agents.ip());
    let host = host.ok_or_else(|| {
        other_topology(folder, topology, format_args!("its agents dial {agents}"))
    })?;
    Ok((host, agents.port()))
}

/// Refuses a folder whose hosts are not those of the topology, and one where those that are new
/// could not join.
fn check_known(folder: &Folder, hosts: &[OverlayHost], topology: &Path) -> anyhow::Result<()> {
    let _lock = folder.lock()?;
    let store = Store::open(&folder.store()).map_err(ControllerError::from)?;
    let records = store.records().map_err(ControllerError::from)?;
    let controller = Controller::new(folder.keys()?, records);
    let here: BTreeSet<_> = hosts.iter().map(|host| (host.address, host.role.site())).collect();
    let mut known = controller.state().hosts.values().filter(|host| host.is_trusted);
    if let Some(host) = known.find(|host| !here.contains(&(host.address, host.role.site()))) {
        let what = format_args!("it knows `{}` at {}", host.id, host.address);
        return Err(other_topology(folder, topology, what));
    }
    let known = controller.state().hosts.values().filter(|host| host.is_trusted);
    let known: BTreeSet<_> = known.map(|host| (host.address, host.role.site())).collect();
    let is_new = |host: &&OverlayHost| !known.contains(&(host.address, host.role.site()));
    let mut new = hosts.iter().filter(is_new);
    new.try_for_each(|host| controller.check_role(&host.role)).or_bad(topology)
}

fn other_topology(
    folder: &Folder,
    topology: &Path,
    what: std::fmt::Arguments<'_>,
) -> anyhow::Error {
    let (folder, topology) = (folder.as_ref().display(), topology.display());
    let problem = format!("{folder}: {what}, which {topology} does not have: name another folder");
    BadFile(problem).into()
}

fn of_gateways(hosts: &[OverlayHost]) -> impl Iterator<Item = &OverlayHost> {
    hosts.iter().filter(|host| matches!(host.role, Role::Gateway { .. }))
}
