//! `tradewind proxies` and `tradewind learned`: proxies of a site's gateways, and the destinations
//! that are learned from them.

use std::net::SocketAddr;
use std::process::ExitCode;

use tradewind_control::learned::Learned;
use tradewind_control::proxies::Proxies;
use tradewind_controller::view::{LearnedView, ProxiesRequest};
use tradewind_grant::DestinationRule;
use tradewind_units::{Bytes, SiteId};

use crate::controller::access::{ControllerArgs, OutputArgs, TableArgs};
use crate::output::{self, Outcome, table};

#[derive(clap::Args)]
pub(crate) struct ProxiesArgs {
    /// The site whose gateways offer them
    site: SiteId,
    /// Address on loopback that accepts SOCKS5
    #[arg(long, value_name = "ADDR:PORT", required_unless_present_any = ["connect", "off"])]
    socks5: Option<SocketAddr>,
    /// Address on loopback that accepts HTTP proxy requests (CONNECT)
    #[arg(long, value_name = "ADDR:PORT")]
    connect: Option<SocketAddr>,
    /// Destinations that sessions may go to, such as `10.0.0.0/8:443` or `*.example.com:443`; all
    /// public addresses and names if absent
    #[arg(long, value_name = "RULE")]
    to: Vec<DestinationRule>,
    /// Volume of a day from which on a learned destination becomes a flow by itself
    #[arg(long, value_name = "SIZE")]
    adopt_above: Option<Bytes>,
    /// End the proxies
    #[arg(long, conflicts_with_all = ["socks5", "connect", "to", "adopt_above"])]
    off: bool,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(clap::Args)]
pub(crate) struct LearnedArgs {
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: TableArgs,
}

/// The columns of learned destinations as CSV.
const COLUMNS: [&str; 9] = [
    "id",
    "from",
    "to",
    "per_day",
    "sessions",
    "mean_seconds",
    "concurrent",
    "first_unix_ms",
    "last_unix_ms",
];

pub(crate) fn proxies(args: ProxiesArgs) -> Outcome {
    let ProxiesArgs { site, socks5, connect, to, adopt_above, off, controller, output } = args;
    let (client, path) = (controller.client()?, format!("/v1/proxies/{site}"));
    if off {
        client.delete(&path)?;
        output::note(format_args!("site {site} offers no proxies any more"));
        return Ok(ExitCode::SUCCESS);
    }
    let request = ProxiesRequest { socks5, connect, destinations: to, adopt_above };
    let answer: LearnedView = client.put(&path, &request)?;
    output.print(&answer, |answer| {
        let of_site = answer.proxies.iter().filter(|proxies| proxies.site == site);
        of_site.into_iter().try_for_each(show_proxies)
    })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn list(args: &LearnedArgs) -> Outcome {
    let answer: LearnedView = args.controller.client()?.get("/v1/learned")?;
    args.output.print(&answer, &COLUMNS, &answer.learned, show)?;
    Ok(ExitCode::SUCCESS)
}

fn show_proxies(proxies: &Proxies) -> anyhow::Result<()> {
    let at: Vec<String> = proxies.addresses().map(|(kind, at)| format!("{kind} at {at}")).collect();
    let adoption = match proxies.adopt_above {
        Some(least) => format!("from {least} a day on, destinations become flows by themselves"),
        None => "destinations become flows by `tradewind flow adopt`".to_owned(),
    };
    output::line(format_args!("site {}: {}; {adoption}", proxies.site, at.join(", ")))
}

fn show(answer: &LearnedView) -> anyhow::Result<()> {
    answer.proxies.iter().try_for_each(show_proxies)?;
    if answer.learned.is_empty() {
        return output::line(if answer.proxies.is_empty() {
            "no site offers proxies to learn from: `tradewind proxies SITE --socks5 127.0.0.1:1080`"
        } else {
            "nothing is learned yet: a session counts once it has ended"
        });
    }
    let row = |flow: &Learned| {
        let seconds = flow.mean_seconds.map_or(String::new(), |seconds| format!("{seconds:.1}"));
        vec![
            flow.id.to_string(),
            flow.from.to_string(),
            flow.to.to_string(),
            flow.per_day.to_string(),
            flow.sessions.to_string(),
            seconds,
            flow.concurrent.to_string(),
        ]
    };
    let rows: Vec<Vec<String>> = answer.learned.iter().map(row).collect();
    table::print(&["learned", "from", "to", "a day", "sessions", "mean s", "at once"], &rows, 3)
}
