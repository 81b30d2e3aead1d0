//! `tradewind ping`: the path that a flow to a destination takes, the latency of its legs, and the
//! reason for the choice.

use crate::netcheck::From;
use crate::output::Outcome;

#[derive(clap::Args)]
pub(crate) struct PingArgs {
    /// Destination of the flow, HOST:PORT; it is not dialled
    #[arg(value_name = "DEST", value_parser = destination)]
    to: String,
    #[command(flatten)]
    from: From,
}

/// Parses a destination into the form that gateways compare.
fn destination(text: &str) -> Result<String, tradewind_grant::GrantError> {
    text.parse::<tradewind_grant::Destination>().map(|to| to.to_string())
}

pub(crate) fn run(args: &PingArgs) -> Outcome {
    args.from.show(Some(&args.to))
}
