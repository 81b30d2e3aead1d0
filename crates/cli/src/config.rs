//! `tradewind config`: checks configuration files, and prints their schemas.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use schemars::Schema;
use tradewind_config::{GatewayConfig, JumpstartConfig, Kind, RelayConfig};

use crate::output::{self, OrBadFile as _, Outcome, read_text};

#[derive(clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check configurations of relays, gateways and jump-start's daemon
    ///
    /// Reads no file that they name, and needs nothing of this host. Ends with 2 at the first
    /// mistake: the file, the line, the key and what would be right.
    Check(CheckArgs),
    /// Print the JSON schema of a kind of file, for editors
    Schema {
        /// The kind
        kind: SchemaArg,
    },
}

#[derive(clap::Args)]
pub(crate) struct CheckArgs {
    /// The files (TOML)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The process that the files configure, instead of the one that their keys tell
    #[arg(long, value_enum)]
    kind: Option<KindArg>,
}

/// The process that a file configures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum KindArg {
    /// A relay
    Relay,
    /// A gateway
    Gateway,
    /// The daemon of jump-start
    Jumpstart,
}

/// A kind of file that has a schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum SchemaArg {
    /// The configuration of a relay
    Relay,
    /// The configuration of a gateway
    Gateway,
    /// The configuration of jump-start's daemon
    Jumpstart,
    /// A problem, which `tradewind plan` reads
    Problem,
    /// The hosts that `tradewind deploy` puts agents on
    Hosts,
    /// The machines that `tradewind machines` makes
    Machines,
}

impl SchemaArg {
    /// Returns the schema of such files.
    pub(crate) fn schema(self) -> Schema {
        match self {
            Self::Relay => tradewind_config::schema(Kind::Relay),
            Self::Gateway => tradewind_config::schema(Kind::Gateway),
            Self::Jumpstart => tradewind_config::schema(Kind::Jumpstart),
            Self::Problem => tradewind_plan::file::schema(),
            Self::Hosts => tradewind_config::hosts_schema(),
            Self::Machines => tradewind_config::machines_schema(),
        }
    }
}

impl From<KindArg> for Kind {
    fn from(kind: KindArg) -> Self {
        match kind {
            KindArg::Relay => Self::Relay,
            KindArg::Gateway => Self::Gateway,
            KindArg::Jumpstart => Self::Jumpstart,
        }
    }
}

pub(crate) fn run(command: &ConfigCommand) -> Outcome {
    match command {
        ConfigCommand::Check(args) => {
            args.files.iter().try_for_each(|file| check(file, args.kind.map(Kind::from)))?;
        }
        ConfigCommand::Schema { kind } => {
            output::line(serde_json::to_string_pretty(&kind.schema())?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Checks one file, and reports what it is.
fn check(file: &Path, kind: Option<Kind>) -> anyhow::Result<()> {
    let text = read_text(file)?;
    let name = match kind.unwrap_or_else(|| Kind::of(&text)) {
        Kind::Relay => {
            RelayConfig::parse(&text).or_bad(file)?;
            "a relay's"
        }
        Kind::Gateway => {
            GatewayConfig::parse(&text).or_bad(file)?;
            "a gateway's"
        }
        Kind::Jumpstart => {
            JumpstartConfig::parse(&text).or_bad(file)?;
            "jump-start's"
        }
    };
    output::line(format_args!("{}: {name} configuration, without mistakes", file.display()))
}
