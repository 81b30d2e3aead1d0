//! `tradewind invite`: makes the line by which a host joins.

use std::process::ExitCode;

use tradewind_control::record::Role;
use tradewind_controller::view::{InviteAnswer, InviteRequest};
use tradewind_units::time::parse_duration;
use tradewind_units::{Duration, RegionId, RelayTypeId, SiteId};

use crate::controller::access::{ControllerArgs, OutputArgs};
use crate::output::{self, Outcome};

#[derive(clap::Args)]
pub(crate) struct InviteArgs {
    /// The role of the host
    #[arg(long, value_enum)]
    role: RoleName,
    /// The region that a relay is in, such as `gcp:europe-north1`
    #[arg(long, value_name = "REGION", required_if_eq("role", "relay"))]
    region: Option<RegionId>,
    /// The type of a relay, which gives its capacity and price: a machine of the catalogue, or
    /// `standard` [default: standard]
    #[arg(long = "type", value_name = "TYPE")]
    relay_type: Option<RelayTypeId>,
    /// The site of a gateway or probe: a name of your choice for the place, such as `office`
    #[arg(
        long,
        value_name = "SITE",
        required_if_eq_any([("role", "gateway"), ("role", "probe")]),
        conflicts_with_all(["region", "relay_type"])
    )]
    site: Option<SiteId>,
    /// Time for which the invite lasts
    #[arg(long, value_name = "SPAN", default_value = "1 h", value_parser = parse_duration)]
    ttl: Duration,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// The role of a host.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RoleName {
    /// Run a relay when a plan uses it
    Relay,
    /// Run a gateway for the flows of its site
    Gateway,
    /// Only answer and run probes, for a site
    Probe,
}

impl RoleName {
    /// Returns the name of a role.
    pub(crate) const fn of(role: &Role) -> Self {
        match role {
            Role::Relay { .. } => Self::Relay,
            Role::Gateway { .. } => Self::Gateway,
            Role::Probe { .. } => Self::Probe,
        }
    }

    /// Returns the name as text.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Relay => "relay",
            Self::Gateway => "gateway",
            Self::Probe => "probe",
        }
    }
}

pub(crate) fn run(args: &InviteArgs) -> Outcome {
    let role = match (args.role, &args.region, &args.site) {
        (RoleName::Relay, Some(region), None) => {
            let standard = || RelayTypeId::new("standard");
            let relay_type = args.relay_type.clone().map_or_else(standard, Ok)?;
            Role::Relay { region: region.clone(), relay_type }
        }
        (RoleName::Gateway, None, Some(site)) => Role::Gateway { site: site.clone() },
        (RoleName::Probe, None, Some(site)) => Role::Probe { site: site.clone() },
        _ => {
            let problem = "expected --region with the role relay, --site with the others";
            return Err(output::BadFile(problem.to_owned()).into());
        }
    };
    let ttl_ms = u64::try_from(args.ttl.as_millis())?;
    let client = args.controller.client()?;
    let answer: InviteAnswer = client.post("/v1/invites", &InviteRequest { role, ttl_ms })?;
    args.output.print(&answer, |answer| {
        output::line(format_args!("tradewind agent join {}", answer.invite))
    })?;
    Ok(ExitCode::SUCCESS)
}
