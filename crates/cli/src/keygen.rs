//! `tradewind keygen`: makes the keys of relays, gateways and operators.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use tradewind_grant::{IdentityKey, OperatorKey};
use tradewind_net::secret_file;

use crate::grant::secret;
use crate::output::{self, OrBadFile as _, Outcome};

#[derive(clap::Args)]
pub(crate) struct KeygenArgs {
    /// Kind of key
    kind: Kind,
    /// File for the secret half; must not exist yet. The public half goes to standard output
    file: PathBuf,
    /// Make no key: print the public half of the key in FILE
    #[arg(long)]
    public: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Kind {
    /// Identity of a relay or gateway
    Identity,
    /// Operator's key, which signs grants
    Operator,
}

pub(crate) fn run(args: &KeygenArgs) -> Outcome {
    if args.public {
        return show_public(args);
    }
    let entropy = tradewind_net::entropy::bytes().context("read the system's entropy")?;
    let (secret, public) = match args.kind {
        Kind::Identity => {
            let key = IdentityKey::from_entropy(entropy);
            (key.to_secret_text(), key.public().to_string())
        }
        Kind::Operator => {
            let key = OperatorKey::from_entropy(entropy);
            (key.to_secret_text(), key.public().to_string())
        }
    };
    let place = || format!("{}: write the key", args.file.display());
    secret_file::write_new(&args.file, &secret).with_context(place)?;
    output::line(public)?;
    Ok(ExitCode::SUCCESS)
}

fn show_public(args: &KeygenArgs) -> Outcome {
    let secret = secret(&args.file).or_bad(&args.file)?;
    let secret = secret.trim();
    let public = match args.kind {
        Kind::Identity => secret.parse().map(|key: IdentityKey| key.public().to_string()),
        Kind::Operator => secret.parse().map(|key: OperatorKey| key.public().to_string()),
    };
    output::line(public.or_bad(&args.file)?)?;
    Ok(ExitCode::SUCCESS)
}
