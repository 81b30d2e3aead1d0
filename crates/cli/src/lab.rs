//! `tradewind lab`: a WAN emulated on this machine.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::Context as _;
use tradewind_lab::supervisor::{self, RuntimeDirectory, Source, Status};
use tradewind_lab::{LabError, LabOptions, privilege};
use tradewind_model::catalogue::Catalogue;
use tradewind_units::HostId;
use tradewind_wan::Topology;

use crate::output::{self, BAD_USAGE, Format, OrBadFile as _, Outcome, read_text, table};

/// Exit codes of shells for a program that does not exist, and for one that may not be run.
const NO_PROGRAM: u8 = 127;
const CANNOT_RUN: u8 = 126;

#[derive(clap::Subcommand)]
pub(crate) enum LabCommand {
    /// Bring a topology to life; it stays until `down`
    Up {
        /// The topology (TOML, see docs/reference/topology.md)
        file: PathBuf,
        /// Seed of all randomness, instead of the topology's
        #[arg(long)]
        seed: Option<u64>,
    },
    /// End the lab and every program on its hosts
    Down,
    /// Run a program on a host
    ///
    /// Ends as the program does; with 127 when there is no such program, with 126 when it cannot be
    /// run.
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
        /// Spans: `rtt=30ms`, `delay=15ms`, `jitter=2ms`; `rate=100Mbit/s` or `rate=none`; sizes:
        /// `queue=1MB`, `mtu=1400B`; shares: `loss=0.01`, `duplicate=1%`. Reordering, burst loss
        /// and outages are the topology's from the start
        #[arg(required = true, value_name = "KEY=VALUE")]
        settings: Vec<String>,
    },
    /// Show hosts, links and whether the lab keeps time
    Status {
        /// Form of the answer
        #[arg(short, long, value_enum, default_value = "table")]
        output: Format,
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
    let place = RuntimeDirectory::of_this_user();
    match command {
        LabCommand::Up { file, seed } => up(&place, &file, seed)?,
        LabCommand::Down => supervisor::down(&place)?,
        LabCommand::Exec { host, command } => {
            let (program, arguments) = command.split_first().context("no program to run")?;
            return exec(&place, &host, program, arguments);
        }
        LabCommand::Set { pair, settings } => supervisor::set(&place, &pair, &settings)?,
        LabCommand::Status { output } => return show(&supervisor::status(&place)?, output),
        LabCommand::Serve { file, seed } => serve(&place, &file, seed)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Replaces this process by the program; if that fails, returns a shell's exit code.
fn exec(
    place: &RuntimeDirectory,
    host: &HostId,
    program: &OsString,
    arguments: &[OsString],
) -> Outcome {
    if program.is_empty() {
        output::complain("lab exec: the COMMAND is empty: expected a program's name");
        return Ok(BAD_USAGE.into());
    }
    let error = match supervisor::exec(place, host, program, arguments) {
        Ok(never) => match never {},
        Err(error) => error,
    };
    let Some(status) = cannot_run(&error, program) else { return Err(error.into()) };
    output::complain(output::one_line(&anyhow::Error::new(error).context("lab exec")));
    Ok(status.into())
}

/// Returns the exit code of shells for a program that cannot be run, if that is the error.
fn cannot_run(error: &LabError, program: &OsString) -> Option<u8> {
    match error {
        LabError::File { path, source } if path.as_os_str() == program => {
            Some(if source.kind() == ErrorKind::NotFound { NO_PROGRAM } else { CANNOT_RUN })
        }
        _ => None,
    }
}

/// Reads a topology file; regions are looked up in the built-in catalogue.
pub(crate) fn read_topology(file: &std::path::Path) -> anyhow::Result<Topology> {
    let text = read_text(file)?;
    Topology::parse(&text, &Catalogue::builtin()).or_bad(file)
}

fn up(place: &RuntimeDirectory, file: &std::path::Path, seed: Option<u64>) -> anyhow::Result<()> {
    // A file that is no topology is refused here, where the user sees it.
    read_topology(file)?;
    let status = supervisor::up(place, daemon(file, seed)?)?;
    for note in &status.notes {
        output::note(format_args!("note: {note}"));
    }
    print_hosts(&status)?;
    output::note(
        "up: `tradewind lab exec HOST -- COMMAND` runs a program there, `tradewind lab down` ends \
         it",
    );
    Ok(())
}

/// Returns the command of the process that holds a lab.
pub(crate) fn daemon(file: &std::path::Path, seed: Option<u64>) -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("find this program")?;
    let mut daemon = Command::new(program);
    daemon.args(["lab", "serve"]).arg(file);
    if let Some(seed) = seed {
        daemon.arg("--seed").arg(seed.to_string());
    }
    Ok(daemon)
}

fn serve(
    place: &RuntimeDirectory,
    file: &std::path::Path,
    seed: Option<u64>,
) -> anyhow::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrunnable_program_has_shell_exit_status() {
        let program = OsString::from("absent");
        let error =
            |path: &str, kind: ErrorKind| LabError::File { path: path.into(), source: kind.into() };
        assert_eq!(cannot_run(&error("absent", ErrorKind::NotFound), &program), Some(127));
        assert_eq!(cannot_run(&error("absent", ErrorKind::PermissionDenied), &program), Some(126));
        assert_eq!(cannot_run(&error("/run/lab.sock", ErrorKind::NotFound), &program), None);
    }
}
