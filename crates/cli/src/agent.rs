//! `tradewind agent`: runs what a controller asks of this host.

use std::io::{BufRead as _, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_agent::{AgentError, Home, Membership, Options, Status};
use tradewind_control::{Ceiling, Invite};
use tradewind_net::handover::Program;
use tradewind_net::sandbox;
use tradewind_units::Duration;
use tradewind_units::time::parse_duration;

use crate::output::{self, BadFile, Format, OrBadFile as _, Outcome, read_text, table};
use crate::relay::{Log, start_log};

/// The folder of an agent that is given none.
const DEFAULT_DIR: &str = "/var/lib/tradewind/agent";

/// The environment variable by which the host's owner has the access logs of the processes appended
/// to a file.
const ACCESS_LOG: &str = "TRADEWIND_ACCESS_LOG";

#[derive(clap::Subcommand)]
pub(crate) enum AgentCommand {
    /// Join a controller by its invite, and run the agent
    Join(JoinArgs),
    /// Run the agent of a host that has joined
    Run(RunArgs),
    /// Show what the agent last knew: the controller, the document, the processes
    Status(StatusArgs),
    /// End the processes of a host whose agent does not run, and forget its controller and its keys
    ///
    /// The controller still knows the host: `tradewind host revoke`.
    Leave(LeaveArgs),
}

#[derive(clap::Args)]
pub(crate) struct JoinArgs {
    /// The line that `tradewind invite` printed; `-` reads it from standard input, so that no
    /// list of processes shows it
    invite: String,
    /// The address at which neighbours reach this host, if it is not where the controller sees it
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// The most that any controller may ask of this host (docs/how-to/agent.md); when absent, its
    /// role, and all public addresses without mail
    #[arg(long, value_name = "FILE")]
    ceiling: Option<PathBuf>,
    /// Only join: do not run the agent
    #[arg(long)]
    enrol_only: bool,
    #[command(flatten)]
    run: RunArgs,
}

#[derive(clap::Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    place: FolderArgs,
    /// Tell the processes to end with the agent, which otherwise leaves them running
    #[arg(long)]
    stop_processes: bool,
    /// Time before a relay starts, as if its machine were set up first: for trials
    #[arg(long, value_name = "SPAN", default_value = "0 s", value_parser = parse_duration)]
    relay_setup: Duration,
    /// Form of the log on standard error; TRADEWIND_LOG filters it
    #[arg(long, value_enum, default_value = "text")]
    log: Log,
}

#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    place: FolderArgs,
    /// Form of the output
    #[arg(short, long, value_enum, default_value = "table")]
    output: Format,
}

#[derive(clap::Args)]
pub(crate) struct LeaveArgs {
    #[command(flatten)]
    place: FolderArgs,
    /// Time that open sessions have to end by themselves
    #[arg(long, value_name = "SPAN", default_value = "30 s", value_parser = parse_duration)]
    patience: Duration,
}

#[derive(clap::Args)]
struct FolderArgs {
    /// The agent's folder
    #[arg(long, value_name = "DIR", default_value = DEFAULT_DIR)]
    dir: PathBuf,
}

pub(crate) fn run(command: AgentCommand) -> Outcome {
    match command {
        AgentCommand::Join(args) => join(&args),
        AgentCommand::Run(args) => run_agent(&args),
        AgentCommand::Status(args) => status(&args),
        AgentCommand::Leave(args) => leave(&args),
    }
}

fn join(args: &JoinArgs) -> Outcome {
    sandbox::hide()?;
    let invite = invite(&args.invite)?;
    let ceiling = args.ceiling.as_deref().map(ceiling).transpose()?;
    let home = Home::at(&args.run.place.dir)?;
    let lock = home.lock()?;
    let joined = tradewind_agent::join(&home, &invite, args.address, ceiling.as_ref());
    let membership = runtime()?.block_on(joined)?;
    if args.enrol_only {
        output::line(format_args!("joined as {}", membership.host))?;
        return Ok(ExitCode::SUCCESS);
    }
    drop(lock);
    run_agent(&args.run)
}

/// Returns an invite, which `-` reads from standard input.
fn invite(text: &str) -> anyhow::Result<Invite> {
    /// Longest line that is read. Chosen: several times what an invite takes.
    const MAX: u64 = 4096;
    let mut line = text.to_owned();
    if text == "-" {
        line.clear();
        let mut input = std::io::stdin().lock().take(MAX);
        input.read_line(&mut line).context("standard input")?;
    }
    Ok(line.trim().parse().map_err(|error| BadFile(format!("{error}")))?)
}

fn leave(args: &LeaveArgs) -> Outcome {
    tradewind_agent::leave(&Home::at(&args.place.dir)?, args.patience)?;
    Ok(ExitCode::SUCCESS)
}

fn ceiling(file: &Path) -> anyhow::Result<Ceiling> {
    parse_ceiling(file, &read_text(file)?)
}

/// Parses the text of a ceiling's file.
pub(crate) fn parse_ceiling(file: &Path, text: &str) -> anyhow::Result<Ceiling> {
    toml::from_str(text).map_err(|error| anyhow::anyhow!("{}", error.message())).or_bad(file)
}

fn run_agent(args: &RunArgs) -> Outcome {
    sandbox::hide()?;
    let home = Home::at(&args.place.dir)?;
    let _lock = home.lock()?;
    start_log(args.log)?;
    // By its path, so that a replaced file is what is started.
    let program = Program::of_this_process().context("this program's path")?.path().to_owned();
    let RunArgs { stop_processes, relay_setup, .. } = *args;
    let access_log = std::env::var_os(ACCESS_LOG).filter(|file| !file.is_empty());
    let access_log = access_log.map(PathBuf::from);
    let options = Options { program, stop_processes, relay_setup, access_log };
    runtime()?.block_on(tradewind_agent::run(&home, &options, announce))?;
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().context("runtime")
}

/// Prints the ready message, in one line of JSON.
fn announce(membership: &Membership) {
    let ready = serde_json::json!({
        "schema_version": 1,
        "ready": "agent",
        "host": membership.host.as_str(),
        "controller": membership.controller,
    });
    // A reader that is gone does not end an agent.
    if let Err(error) = output::line(ready) {
        tracing::warn!("{error}");
    }
}

fn status(args: &StatusArgs) -> Outcome {
    let home = Home::at(&args.place.dir)?;
    let membership = home.membership()?;
    let membership = membership.ok_or_else(|| AgentError::NotJoined(home.path().to_owned()))?;
    let status = home.status()?.unwrap_or(Status {
        schema_version: 1,
        host: membership.host,
        controller: membership.controller,
        is_linked: false,
        applied: None,
        refused: None,
        processes: Vec::new(),
    });
    let is_running = home.is_locked();
    if args.output == Format::Json {
        let mut shown = serde_json::to_value(&status)?;
        shown["is_running"] = is_running.into();
        output::json(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    for line in lines(&status, is_running) {
        output::line(line)?;
    }
    if !status.processes.is_empty() {
        print_processes(&status)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn lines(status: &Status, is_running: bool) -> Vec<String> {
    let state = match (is_running, status.is_linked) {
        (false, _) => "no agent runs here; its processes may",
        (true, false) => "runs, and does not reach the controller",
        (true, true) => "runs",
    };
    let mut lines = vec![
        format!("host        {}", status.host),
        format!("controller  {}", status.controller),
        format!("agent       {state}"),
    ];
    let applied = status.applied.map_or_else(|| "none yet".to_owned(), |v| v.to_string());
    lines.push(format!("document    {applied}"));
    if let Some(refused) = &status.refused {
        lines.push(format!("refused     {}: {}", refused.version, refused.reason));
    }
    lines
}

fn print_processes(status: &Status) -> anyhow::Result<()> {
    let mut rows = Vec::new();
    for process in &status.processes {
        let listen: Vec<String> = process.listen.iter().map(ToString::to_string).collect();
        let state = format!("{:?}", process.state).to_lowercase();
        let why = process.failure.clone().unwrap_or_default();
        rows.push(vec![process.name.clone(), state, listen.join(", "), why]);
    }
    table::print(&["process", "state", "listens on", "why"], &rows, usize::MAX)
}
