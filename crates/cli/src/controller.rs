//! `tradewind controller`: plans for all hosts of an overlay, and tells each what to run.

pub(crate) mod access;
mod lab;

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tradewind_controller::folder::{self, Folder, Settings};
use tradewind_controller::{ControllerError, Server, store};
use tradewind_demo::executor::Threads;
use tradewind_net::sandbox;

use crate::output::{self, BadFile, Outcome};
use crate::relay::{Log, start_log};

#[derive(clap::Subcommand)]
pub(crate) enum ControllerCommand {
    /// Make a controller's folder: its keys, its addresses, and the token of its API
    Init {
        /// The folder; must hold no controller yet
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Address that agents dial
        #[arg(long, value_name = "ADDR:PORT", default_value = folder::AGENTS)]
        agents: SocketAddr,
        /// Address of the API for `tradewind status` and the like, on loopback
        #[arg(long, value_name = "ADDR:PORT", default_value = folder::API)]
        api: SocketAddr,
        /// Address that invites name, if hosts reach this one by another than its own
        #[arg(long, value_name = "ADDR:PORT")]
        advertise: Option<SocketAddr>,
    },
    /// Run the controller of a folder
    ///
    /// Prints a line of JSON when it is ready. Traffic never waits for it: while it is away, relays
    /// and gateways go on as they are.
    Run {
        /// The folder, made by `tradewind controller init`
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// Bring this topology to life, as `tradewind lab up` does, with an agent on each of its
        /// hosts: gateways at sites, relays in regions. The folder is made where it is missing, and
        /// all ends with the controller
        #[arg(long, value_name = "TOPOLOGY")]
        lab: Option<PathBuf>,
        #[command(flatten)]
        machines: lab::Machines,
        /// Form of the log on standard error; TRADEWIND_LOG filters it
        #[arg(long, value_enum, default_value = "text")]
        log: Log,
    },
    /// Copy the store of a controller, which may run meanwhile, to a new file
    ///
    /// The copy holds no keys; keep a copy of the other files of the folder in a safe place.
    Backup {
        /// The folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The new file
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Put a backup in the place of the store of a controller that does not run
    ///
    /// It begins a new epoch, so that agents take its documents whatever they had. The store that
    /// was there is kept beside it (`store.db.before-restore`).
    Restore {
        /// The folder
        #[arg(value_name = "DIR")]
        folder: PathBuf,
        /// The backup
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
}

pub(crate) fn run(command: ControllerCommand) -> Outcome {
    match command {
        ControllerCommand::Init { folder, agents, api, advertise } => {
            init(&folder, agents, api, advertise)
        }
        ControllerCommand::Run { folder, lab: Some(topology), machines, log } => {
            lab::serve(&folder, &topology, machines, log)
        }
        ControllerCommand::Run { folder, log, .. } => serve(&folder, log),
        ControllerCommand::Backup { folder, file } => backup(&folder, &file),
        ControllerCommand::Restore { folder, file } => restore(&folder, &file),
    }
}

fn init(
    folder: &Path,
    agents: SocketAddr,
    api: SocketAddr,
    advertise: Option<SocketAddr>,
) -> Outcome {
    let advertise = match advertise {
        Some(advertise) => advertise,
        None => SocketAddr::new(own_address(agents.ip())?, agents.port()),
    };
    if advertise.port() == 0 || advertise.ip().is_unspecified() {
        let problem = format!("--advertise: {advertise}: expected an address that hosts can dial");
        return Err(BadFile(problem).into());
    }
    Folder::new(folder).init(&Settings::new(agents, api, advertise))?;
    let place = folder.display();
    let named = named(folder);
    output::line(format_args!(
        "Made {place}. Hosts will reach the controller at {advertise}. Next:\n\
         \n  tradewind controller run {place}\n{named}  \
         tradewind invite --role gateway --site SITE\n  \
         tradewind invite --role relay --region REGION\n  \
         tradewind flow add NAME --from SITE --to HOST:PORT --per-day 200GB\n  \
         tradewind budget \"6 usd/day\"\n  \
         tradewind status"
    ))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the line by which commands find a folder that is not theirs by default.
fn named(folder: &Path) -> String {
    if folder == Path::new(access::FOLDER) {
        return String::new();
    }
    let place = folder.display();
    format!("  export TRADEWIND_CONTROLLER={place}   # the folder, for the commands below\n")
}

/// Returns the address by which other hosts reach a listener on `listens`.
fn own_address(listens: IpAddr) -> anyhow::Result<IpAddr> {
    if !listens.is_unspecified() {
        return Ok(listens);
    }
    // Sends nothing: the kernel only looks up the route to an address outside.
    let route = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).and_then(|socket| {
        socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9))?;
        socket.local_addr()
    });
    let unknown = "this host has no route to others: name its address by --advertise ADDR:PORT";
    route.map(|own| own.ip()).map_err(|_| BadFile(unknown.to_owned()).into())
}

fn serve(folder: &Path, log: Log) -> Outcome {
    // Before it has read a secret.
    sandbox::hide()?;
    start_log(log)?;
    let server = Server::open(&Folder::new(folder), Arc::new(Threads::available()))?;
    server.stop_on_signals()?;
    announce(ready(&server)?)?;
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the ready message.
fn ready(server: &Server) -> anyhow::Result<serde_json::Value> {
    let (agents, api) = server.addresses()?;
    Ok(serde_json::json!({
        "schema_version": 1,
        "ready": "controller",
        "identity": server.identity(),
        "agents": agents,
        "api": api,
        "metrics": server.metrics_address(),
    }))
}

/// Prints the ready message in one line.
fn announce(ready: serde_json::Value) -> anyhow::Result<()> {
    /// Longest wait for a reader of standard output. Chosen: an active reader takes a line in far
    /// less.
    const STANDARD_OUTPUT_LIMIT: Duration = Duration::from_secs(1);
    output::line_within(STANDARD_OUTPUT_LIMIT, ready)
}

fn backup(folder: &Path, file: &Path) -> Outcome {
    let folder = Folder::new(folder);
    folder.settings()?;
    store::backup(&folder.store(), file).map_err(ControllerError::from)?;
    output::note(format_args!("wrote {}", file.display()));
    Ok(ExitCode::SUCCESS)
}

fn restore(folder: &Path, file: &Path) -> Outcome {
    let folder = Folder::new(folder);
    folder.settings()?;
    let _lock = folder.lock()?;
    let epoch = store::restore(&folder.store(), file).map_err(ControllerError::from)?;
    output::note(format_args!(
        "restored {} as epoch {epoch}; start the controller again",
        file.display()
    ));
    Ok(ExitCode::SUCCESS)
}
