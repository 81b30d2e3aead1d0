//! `tradewind dashboard`: the address of the controller's page.

use std::process::ExitCode;

use tradewind_controller::folder::Access;

use crate::controller::access::ControllerArgs;
use crate::output::{self, Outcome};

#[derive(clap::Args)]
pub(crate) struct DashboardArgs {
    /// With the token that only reads
    #[arg(long)]
    reader: bool,
    #[command(flatten)]
    controller: ControllerArgs,
}

pub(crate) fn run(args: &DashboardArgs) -> Outcome {
    let folder = args.controller.folder();
    let access = if args.reader { folder.reader()? } else { folder.admin()? };
    if !tradewind_controller::has_dashboard() {
        output::complain("this program was built without the page: `make web`, then `make build`");
    }
    output::line(address(&access))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the address that opens the page with this token.
fn address(access: &Access) -> String {
    format!("{}/#token={}", access.api.trim_end_matches('/'), access.token.secret())
}
