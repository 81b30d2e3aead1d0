//! `tradewind grant`: signs grants and shows what they allow.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_grant::{Grant, GrantSpec, OperatorKey, OperatorPublicKey, Relays, SignedGrant};
use tradewind_units::{Duration, Timestamp};

use crate::output::{self, Outcome, read_text};

#[derive(clap::Subcommand)]
pub(crate) enum GrantCommand {
    /// Sign what a specification says and print the grant
    ///
    /// The specification is TOML: gateway = "twid_...", destinations = ["10.0.0.0/8:443",
    /// "*.example.com:443"], relays = ["twid_..."] or "any", expires = "720 h" or a date; optional:
    /// not_before, sessions.
    Issue {
        /// The operator's key, made by `tradewind keygen operator`
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
        /// The specification
        spec: PathBuf,
    },
    /// Verify a grant and show what it allows
    Show {
        /// The operator's public half, `twop_...`
        #[arg(long, value_name = "KEY")]
        operator: OperatorPublicKey,
        /// The grant, as `issue` printed it
        grant: PathBuf,
    },
}

pub(crate) fn run(command: GrantCommand) -> Outcome {
    match command {
        GrantCommand::Issue { key, spec } => issue(&key, &spec),
        GrantCommand::Show { operator, grant } => show(&operator, &grant),
    }
}

fn issue(key: &Path, spec: &Path) -> Outcome {
    let operator: OperatorKey =
        read_text(key)?.trim().parse().with_context(|| key.display().to_string())?;
    let spec_text = read_text(spec)?;
    let place = || spec.display().to_string();
    let spec = GrantSpec::parse(&spec_text).with_context(place)?;
    let signed = spec.issue(now()).and_then(|grant| grant.sign(&operator)).with_context(place)?;
    output::line(signed)?;
    Ok(ExitCode::SUCCESS)
}

fn show(operator: &OperatorPublicKey, file: &Path) -> Outcome {
    let place = || file.display().to_string();
    let signed: SignedGrant = read_text(file)?.trim().parse().with_context(place)?;
    let grant = signed.verify(std::slice::from_ref(operator)).with_context(place)?;
    show_terms(grant)?;
    grant.check_time(now()).with_context(place)?;
    let minutes = grant.expires.since(now()).as_secs() / 60;
    output::line(format_args!("expires       in {} h {} min", minutes / 60, minutes % 60))?;
    Ok(ExitCode::SUCCESS)
}

fn show_terms(grant: &Grant) -> anyhow::Result<()> {
    let destinations: Vec<String> = grant.destinations.iter().map(ToString::to_string).collect();
    let relays = match &grant.relays {
        Relays::Any => "any".to_owned(),
        Relays::Listed(listed) => format!("{} listed", listed.len()),
    };
    let sessions = match grant.sessions {
        Some(limit) => format!("{limit} at a time at each relay"),
        None => "no limit".to_owned(),
    };
    output::line(format_args!("gateway       {}", grant.gateway))?;
    output::line(format_args!("destinations  {}", destinations.join(", ")))?;
    output::line(format_args!("relays        {relays}"))?;
    output::line(format_args!("sessions      {sessions}"))
}

/// Time since the Unix epoch, as `tradewind_grant` counts it.
fn now() -> Timestamp {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp::ZERO + since_epoch
}
