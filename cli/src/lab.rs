//! `tradewind lab`: a WAN emulated on this machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use tradewind_lab::supervisor::{self, Place, Source, Status};
use tradewind_lab::{LabOptions, privilege};
use tradewind_model::catalogue::Catalogue;
use tradewind_units::HostId;
use tradewind_wan::Topology;

use crate::experiment;
use crate::output::{self, Format, Outcome, read_text, table};

#[derive(clap::Subcommand)]
pub(crate) enum LabCommand {
    /// Bring a topology to life; it stays until `down`
    Up {
        /// The topology (TOML, see docs/topology.md)
        file: PathBuf,
        /// Seed of all randomness, instead of the topology's
        #[arg(long)]
        seed: Option<u64>,
    },
    /// End the lab and every program on its hosts
    Down,
    /// Run a program on a host
    Exec {
        /// The host's name
        host: HostId,
        /// The program and its arguments
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Alter a pair of sites while traffic flows
    Set {
        /// `a,b` for both ways, `a->b` for one
        pair: String,
        /// rtt, delay, jitter, rate, queue, mtu, loss, duplicate: `rtt=30ms`, `rate=none`, `loss=0.01`
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Show hosts, links and whether the lab keeps time
    Status {
        /// Form of the answer
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
    },
    /// Name the papers' experiments
    List,
    /// Run one of the papers' experiments, on a lab of its own
    Run(experiment::RunArgs),
    /// Show the records that runs have written with `--out`
    Report {
        /// The records
        #[arg(required = true, value_name = "FILE")]
        records: Vec<PathBuf>,
    },
    /// Hold a lab (what `up` starts)
    #[command(hide = true)]
    Serve {
        /// The topology
        file: PathBuf,
        /// Seed
        #[arg(long)]
        seed: Option<u64>,
    },
}

pub(crate) fn run(command: LabCommand) -> Outcome {
    let place = Place::of_this_user();
    match command {
        LabCommand::Up { file, seed } => up(&place, &file, seed)?,
        LabCommand::Down => supervisor::down(&place)?,
        LabCommand::Exec { host, command } => {
            let (program, arguments) = command.split_first().context("no program to run")?;
            match supervisor::exec(&place, &host, program, arguments)? {}
        }
        LabCommand::Set { pair, settings } => supervisor::set(&place, &pair, &settings)?,
        LabCommand::Status { output } => return show(&supervisor::status(&place)?, output),
        LabCommand::List => return experiment::list(),
        LabCommand::Run(args) => return experiment::run(&args),
        LabCommand::Report { records } => return experiment::report(&records),
        LabCommand::Serve { file, seed } => serve(&place, &file, seed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Reads a topology file; regions are looked up in the built-in catalogue.
pub(crate) fn read_topology(file: &std::path::Path) -> anyhow::Result<Topology> {
    let text = read_text(file)?;
    Topology::parse(&text, &Catalogue::builtin()).with_context(|| file.display().to_string())
}

fn up(place: &Place, file: &std::path::Path, seed: Option<u64>) -> anyhow::Result<()> {
    // A file that is no topology is refused here, where the user looks.
    read_topology(file)?;
    let program = std::env::current_exe().context("find this program")?;
    let mut daemon = Command::new(program);
    daemon.args(["lab", "serve"]).arg(file);
    if let Some(seed) = seed {
        daemon.arg("--seed").arg(seed.to_string());
    }
    let status = supervisor::up(place, daemon)?;
    for note in &status.notes {
        output::say(format_args!("note: {note}"));
    }
    print_hosts(&status)?;
    output::say(
        "up: `tradewind lab exec HOST -- COMMAND` runs a program there, `tradewind lab down` ends it",
    );
    Ok(())
}

fn serve(place: &Place, file: &std::path::Path, seed: Option<u64>) -> anyhow::Result<()> {
    let standing = privilege::acquire()?;
    let topology = read_topology(file)?;
    let source = Source { file: file.display().to_string(), standing };
    let options = LabOptions { seed, ..LabOptions::default() };
    Ok(supervisor::serve(place, &topology, &source, &options)?)
}

fn show(status: &Status, output: Format) -> Outcome {
    if output == Format::Json {
        output::json(status)?;
        return Ok(ExitCode::SUCCESS);
    }
    let (file, since, process) = (&status.topology, status.up_s, status.process);
    output::line(format_args!("{file} up for {since:.0} s, process {process}"))?;
    print_hosts(status)?;
    let rows: Vec<Vec<String>> = status
        .links
        .iter()
        .map(|link| {
            let counts = [link.entered, link.delivered, link.dropped, link.in_flight];
            let mut row = vec![link.name.clone()];
            row.extend(counts.iter().map(u64::to_string));
            row
        })
        .collect();
    table::print(&["link", "segments in", "delivered", "dropped", "in flight"], &rows, 1)?;
    output::line(&status.validity)?;
    Ok(ExitCode::SUCCESS)
}

fn print_hosts(status: &Status) -> anyhow::Result<()> {
    let rows: Vec<Vec<String>> = status
        .hosts
        .iter()
        .map(|host| {
            vec![
                host.name.to_string(),
                host.site.to_string(),
                host.ipv4.to_string(),
                host.ipv6.to_string(),
            ]
        })
        .collect();
    table::print(&["host", "site", "IPv4", "IPv6"], &rows, 4)
}
