//! `tradewind grant`: signs grants and shows what they allow.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_grant::{GrantSpec, OperatorKey, OperatorPublicKey, SignedGrant};
use tradewind_units::{Duration, Timestamp};

use crate::output::{Outcome, read_text};

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

fn issue(key: &PathBuf, spec: &PathBuf) -> Outcome {
    let operator: OperatorKey =
        read_text(key)?.trim().parse().with_context(|| key.display().to_string())?;
    let spec_text = read_text(spec)?;
    let place = || spec.display().to_string();
    let spec = GrantSpec::parse(&spec_text).with_context(place)?;
    let signed = spec.issue(now()).and_then(|grant| grant.sign(&operator)).with_context(place)?;
    println!("{signed}");
    Ok(ExitCode::SUCCESS)
}

fn show(operator: &OperatorPublicKey, file: &PathBuf) -> Outcome {
    let place = || file.display().to_string();
    let signed: SignedGrant = read_text(file)?.trim().parse().with_context(place)?;
    let grant = signed.verify(std::slice::from_ref(operator)).with_context(place)?;
    println!("gateway       {}", grant.gateway);
    let destinations: Vec<String> = grant.destinations.iter().map(ToString::to_string).collect();
    println!("destinations  {}", destinations.join(", "));
    match &grant.relays {
        tradewind_grant::Relays::Any => println!("relays        any"),
        tradewind_grant::Relays::Listed(listed) => {
            println!("relays        {} listed", listed.len())
        }
    }
    match grant.sessions {
        Some(limit) => println!("sessions      {limit} at a time at each relay"),
        None => println!("sessions      no limit"),
    }
    grant.check_time(now()).with_context(place)?;
    let left = grant.expires.since(now());
    println!("expires       in {} h", left.as_secs() / 3600);
    Ok(ExitCode::SUCCESS)
}

/// Time since the Unix epoch, as `tradewind_grant` counts it.
fn now() -> Timestamp {
    let since_epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or(Duration::ZERO);
    Timestamp::ZERO + since_epoch
}
