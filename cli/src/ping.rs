//! `tradewind ping`: which path a flow to a destination takes, how long its legs take, and why this one.

use crate::netcheck::From;
use crate::output::Outcome;

#[derive(clap::Args)]
pub(crate) struct PingArgs {
    /// Where the flow goes, HOST:PORT; it is not dialled
    #[arg(value_name = "DEST", value_parser = destination)]
    to: String,
    #[command(flatten)]
    from: From,
}

/// A destination as it is asked for; who is asked matches it.
fn destination(text: &str) -> Result<String, tradewind_grant::GrantError> {
    text.parse::<tradewind_grant::Destination>().map(|to| to.to_string())
}

pub(crate) fn run(args: &PingArgs) -> Outcome {
    args.from.show(Some(&args.to))
}
