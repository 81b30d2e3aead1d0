//! Things with the tag of a file that Terraform does not know, such as what a killed run left.
//!
//! AWS tells them by its own program, `aws`. Of other clouds, nothing is seen, and the answer says
//! so.

use std::process::{Command, ExitCode};

use serde::Serialize;
use tradewind_machines::Tag;
use tradewind_units::RegionId;

use super::MachinesArgs;
use super::folder::Folder;
use super::terraform::State;
use crate::output::{self, Outcome, table};

/// A kind of things in AWS.
struct Kind {
    /// Its name for people.
    name: &'static str,
    /// The command of `aws ec2` that lists it.
    list: &'static str,
    /// The place of the ids in the answer, as `--query` takes it.
    ids: &'static str,
    /// A further filter.
    filter: Option<&'static str>,
    /// The command that removes one, and its option for the id.
    remove: [&'static str; 2],
}

/// Returns a kind whose list is called after it.
const fn kind(
    name: &'static str,
    list: &'static str,
    ids: &'static str,
    remove: [&'static str; 2],
) -> Kind {
    Kind { name, list, ids, filter: None, remove }
}

/// The kinds of things that machines consist of, in the order in which they can be removed.
const KINDS: [Kind; 8] = [
    Kind {
        filter: Some("Name=instance-state-name,Values=pending,running,stopping,stopped"),
        ..kind(
            "instance",
            "describe-instances",
            "Reservations[].Instances[].InstanceId",
            ["terminate-instances", "--instance-ids"],
        )
    },
    Kind {
        filter: Some("Name=status,Values=available"),
        ..kind("volume", "describe-volumes", "Volumes[].VolumeId", ["delete-volume", "--volume-id"])
    },
    kind(
        "internet gateway",
        "describe-internet-gateways",
        "InternetGateways[].InternetGatewayId",
        ["delete-internet-gateway", "--internet-gateway-id"],
    ),
    kind("subnet", "describe-subnets", "Subnets[].SubnetId", ["delete-subnet", "--subnet-id"]),
    kind(
        "route table",
        "describe-route-tables",
        "RouteTables[].RouteTableId",
        ["delete-route-table", "--route-table-id"],
    ),
    kind(
        "security group",
        "describe-security-groups",
        "SecurityGroups[].GroupId",
        ["delete-security-group", "--group-id"],
    ),
    kind("key pair", "describe-key-pairs", "KeyPairs[].KeyName", ["delete-key-pair", "--key-name"]),
    kind("network", "describe-vpcs", "Vpcs[].VpcId", ["delete-vpc", "--vpc-id"]),
];

/// A thing that Terraform does not know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Found {
    kind: &'static str,
    id: String,
    region: RegionId,
    /// True if it was removed.
    is_removed: bool,
}

/// A region that could not be seen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Unseen {
    region: RegionId,
    reason: String,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Answer {
    /// 1.
    schema_version: u32,
    tag: Tag,
    found: Vec<Found>,
    unseen: Vec<Unseen>,
}

/// Shows what Terraform does not know, and removes it where told.
pub(super) fn run(args: &MachinesArgs) -> Outcome {
    Folder::existing(&args.file)?;
    // Nothing else makes things meanwhile that Terraform has not noted yet.
    let folder = Folder::lock(&args.file, None)?;
    let state = folder.terraform(&args.terraform)?.state()?;
    let tag = folder.records.tag.clone();
    let (mut found, mut unseen) = (Vec::new(), Vec::new());
    for region in &folder.records.regions {
        let swept = if region.cloud() == "aws" {
            sweep(region, &tag, &state, args.yes, &mut found)
        } else {
            Err(format!("only aws can be swept: look for `{}` = `{tag}` yourself", Tag::KEY))
        };
        if let Err(reason) = swept {
            unseen.push(Unseen { region: region.clone(), reason });
        }
    }
    let answer = Answer { schema_version: 1, tag, found, unseen };
    args.output.print(&answer, show)?;
    let is_done = answer.unseen.is_empty() && answer.found.iter().all(|it| it.is_removed);
    Ok(if is_done { ExitCode::SUCCESS } else { output::FAILED.into() })
}

fn show(answer: &Answer) -> anyhow::Result<()> {
    let row = |it: &Found| {
        let outcome = if it.is_removed { "removed" } else { "is there" };
        vec![it.region.to_string(), it.kind.to_owned(), it.id.clone(), outcome.to_owned()]
    };
    let rows: Vec<Vec<String>> = answer.found.iter().map(row).collect();
    if rows.is_empty() {
        output::line(format_args!("nothing more has the tag `{}`", answer.tag))?;
    } else {
        table::print(&["region", "kind", "id", "outcome"], &rows, usize::MAX)?;
    }
    for Unseen { region, reason } in &answer.unseen {
        output::line(format_args!("could not see {region}: {reason}"))?;
    }
    Ok(())
}

/// Adds what is found in a region, and removes it if `is_for_good`.
fn sweep(
    region: &RegionId,
    tag: &Tag,
    state: &State,
    is_for_good: bool,
    found: &mut Vec<Found>,
) -> Result<(), String> {
    let code = region.as_str().trim_start_matches("aws:");
    let is_known = |id: &str| state.resources.iter().any(|resource| resource.id == id);
    for kind in &KINDS {
        let filter = format!("Name=tag:{},Values={tag}", Tag::KEY);
        let mut arguments = vec![kind.list, "--filters", &filter];
        arguments.extend(kind.filter);
        arguments.extend(["--query", kind.ids]);
        let listed = aws(code, &arguments)?;
        let ids: Vec<String> = serde_json::from_str(&listed).map_err(|error| error.to_string())?;
        let unknown: Vec<String> = ids.into_iter().filter(|id| !is_known(id)).collect();
        for id in &unknown {
            if is_for_good {
                remove(code, kind, id)?;
            }
            let (kind, id, region) = (kind.name, id.clone(), region.clone());
            found.push(Found { kind, id, region, is_removed: is_for_good });
        }
        if kind.name == "instance" && is_for_good && !unknown.is_empty() {
            // What they use can be removed only then.
            let mut arguments = vec!["wait", "instance-terminated", "--instance-ids"];
            arguments.extend(unknown.iter().map(String::as_str));
            aws(code, &arguments)?;
        }
    }
    Ok(())
}

fn remove(region: &str, kind: &Kind, id: &str) -> Result<(), String> {
    if kind.name == "internet gateway" {
        let query = ["--query", "InternetGateways[].Attachments[].VpcId"];
        let listed =
            aws(region, &[&[kind.list, "--internet-gateway-ids", id], &query[..]].concat())?;
        let networks: Vec<String> =
            serde_json::from_str(&listed).map_err(|error| error.to_string())?;
        for network in networks {
            let of = ["--internet-gateway-id", id, "--vpc-id", &network];
            aws(region, &[&["detach-internet-gateway"], &of[..]].concat())?;
        }
    }
    let [command, option] = kind.remove;
    aws(region, &[command, option, id]).map(drop)
}

/// Runs `aws ec2`; returns what it prints.
fn aws(region: &str, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new("aws");
    command.args(["--region", region, "--output", "json", "ec2"]).args(arguments);
    command.env("AWS_PAGER", "");
    let output = command.output().map_err(|error| format!("cannot run `aws`: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(said.split_whitespace().collect::<Vec<_>>().join(" "))
}
