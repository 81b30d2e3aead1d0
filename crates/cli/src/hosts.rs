//! `tradewind hosts` and `tradewind host`: the hosts of an overlay.

use std::process::ExitCode;
use std::thread::sleep;
use std::time::Instant;

use tradewind_control::ceiling::Bounds;
use tradewind_controller::view::{HostState, HostView, Hosts};
use tradewind_controller::{Client, ClientError};
use tradewind_stream::clock::unix_now;
use tradewind_units::{Duration, HostId};

use crate::controller::access::{ControllerArgs, TableArgs};
use crate::invite::RoleName;
use crate::output::{self, Outcome, table};

#[derive(clap::Args)]
pub(crate) struct HostsArgs {
    /// Show those of one role
    #[arg(long, value_enum)]
    role: Option<RoleName>,
    #[command(flatten)]
    shown: RelaysArgs,
}

#[derive(clap::Args)]
pub(crate) struct RelaysArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// Time between two questions to the controller.
const ASK_EVERY: Duration = Duration::from_millis(300);

/// The columns of hosts as CSV.
const COLUMNS: [&str; 18] = [
    "id",
    "role",
    "region",
    "relay_type",
    "site",
    "address",
    "identity",
    "state",
    "seen_unix_ms",
    "applied.epoch",
    "applied.version",
    "refused.reason",
    "agent_version",
    "sessions",
    "bounds.rate",
    "bounds.spend.usd_per_day",
    "bounds.spend.is_used_up",
    "bounds.spend.used_usd",
];

#[derive(clap::Subcommand)]
pub(crate) enum HostCommand {
    /// Have no plan use a host any more; sessions go on until they end
    Drain(OneArgs),
    /// Let plans use a drained host again
    Undrain(OneArgs),
    /// Trust a host no more, for good: its agent is refused, and neighbours refuse its relay
    Revoke(OneArgs),
}

#[derive(clap::Args)]
pub(crate) struct OneArgs {
    /// Its name, as `tradewind hosts` shows it
    name: HostId,
    #[command(flatten)]
    controller: ControllerArgs,
}

pub(crate) fn run(command: &HostCommand) -> Outcome {
    let (args, action, done) = match command {
        HostCommand::Drain(args) => (args, "drain", "drains"),
        HostCommand::Undrain(args) => (args, "undrain", "is in service again"),
        HostCommand::Revoke(args) => (args, "revoke", "is revoked"),
    };
    args.controller.client()?.act(&format!("/v1/hosts/{}/{action}", args.name))?;
    output::note(format_args!("host {} {done}", args.name));
    Ok(ExitCode::SUCCESS)
}

/// Has no plan use these hosts any more, and waits until their sessions have ended, or for so long.
pub(crate) fn drain(
    client: &Client,
    hosts: &[HostId],
    patience: Duration,
) -> Result<(), ClientError> {
    for host in hosts {
        client.act(&format!("/v1/hosts/{host}/drain"))?;
    }
    let begun = Instant::now();
    let is_busy = |view: &HostView| hosts.contains(&view.id) && view.sessions > Some(0);
    while begun.elapsed() < patience && client.get::<Hosts>("/v1/hosts")?.hosts.iter().any(is_busy)
    {
        sleep(ASK_EVERY);
    }
    Ok(())
}

pub(crate) fn list(args: &HostsArgs) -> Outcome {
    list_of(&args.shown, args.role)
}

pub(crate) fn relays(args: &RelaysArgs) -> Outcome {
    list_of(args, Some(RoleName::Relay))
}

fn list_of(args: &RelaysArgs, role: Option<RoleName>) -> Outcome {
    let mut hosts: Hosts = args.controller.client()?.get("/v1/hosts")?;
    hosts.hosts.retain(|host| role.is_none_or(|role| role == RoleName::of(&host.role)));
    args.output.print(&hosts, &COLUMNS, &hosts.hosts, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show(hosts: &Hosts) -> anyhow::Result<()> {
    if hosts.hosts.is_empty() {
        return output::line("no hosts: `tradewind invite` makes the line by which one joins");
    }
    let now_ms = unix_now().as_nanos() / 1_000_000;
    let row = |host: &HostView| {
        let ago = |seen: u64| format!("{} s ago", now_ms.saturating_sub(seen) / 1000);
        vec![
            host.id.to_string(),
            RoleName::of(&host.role).as_str().to_owned(),
            host.role.site().to_string(),
            host.address.to_string(),
            state(host.state).to_owned(),
            host.agent_version.clone().unwrap_or_default(),
            host.sessions.map_or(String::new(), |sessions| sessions.to_string()),
            host.seen_unix_ms.map_or(String::new(), ago),
            host.bounds.as_ref().map_or(String::new(), bounds),
        ]
    };
    let rows: Vec<Vec<String>> = hosts.hosts.iter().map(row).collect();
    let heading = [
        "host",
        "role",
        "place",
        "address",
        "state",
        "version",
        "sessions",
        "seen",
        "owner's bounds",
    ];
    table::print(&heading, &rows, 5)
}

/// Returns the bounds of a host's owner in a few words.
fn bounds(bounds: &Bounds) -> String {
    let rate = bounds.rate.map(|rate| rate.to_string());
    let spend = bounds.spend.map(|spend| {
        let used = match spend.used_usd {
            _ if spend.is_used_up => ", used up".to_owned(),
            Some(used) => format!(", {used} used"),
            None => String::new(),
        };
        format!("{} a day{used}", spend.usd_per_day)
    });
    rate.into_iter().chain(spend).collect::<Vec<_>>().join("; ")
}

const fn state(state: HostState) -> &'static str {
    match state {
        HostState::Well => "well",
        HostState::Awaited => "awaited",
        HostState::Behind => "changing",
        HostState::Refuses => "refuses",
        HostState::Failing => "failing",
        HostState::Away => "away",
        HostState::Drained => "drained",
        HostState::Revoked => "revoked",
    }
}
