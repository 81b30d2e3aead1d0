//! `tradewind forward`: passes packets on without splitting, by nftables.

use std::process::ExitCode;

use tradewind_net::privileges::Capability;
use tradewind_relay::{ForwardRule, Forwarder};
use tradewind_stream::Shutdown;

use crate::output::{self, Outcome};
use crate::privileges::{self, RetainedRights};
use crate::relay::{Log, start_log};

#[derive(clap::Args)]
pub(crate) struct ForwardArgs {
    /// Listening address and destination: LISTEN=TO, such as 0.0.0.0:7000=192.0.2.9:443
    #[arg(required = true, value_name = "LISTEN=TO")]
    rules: Vec<ForwardRule>,
    /// The user to go on as when root starts it; `tradewind`, if there is one, when absent
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Form of the log on standard error; TRADEWIND_LOG filters it
    #[arg(long, value_enum, default_value = "text")]
    log: Log,
}

pub(crate) fn run(args: &ForwardArgs) -> Outcome {
    let user = args.user.as_deref();
    let warnings =
        RetainedRights { user, capabilities: &[Capability::NetAdmin], ..RetainedRights::default() }
            .drop_others()?;
    let forwarder = Forwarder::set(&args.rules)?;
    // `nft`, which holds the rules, has it by now.
    privileges::give_capabilities_up()?;
    start_log(args.log)?;
    let shutdown = Shutdown::on_signals()?;
    warnings.iter().for_each(|line| tracing::warn!("{line}"));
    let tables: Vec<_> = forwarder.tables().collect();
    output::line(serde_json::json!({ "schema_version": 1, "ready": "forward", "tables": tables }))?;
    forwarder.run(&shutdown)?;
    Ok(ExitCode::SUCCESS)
}
