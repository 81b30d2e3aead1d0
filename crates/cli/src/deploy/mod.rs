//! `tradewind deploy`: agents on hosts, by the system's own `ssh`.
//!
//! | module | holds |
//! |---|---|
//! | `steps` | from what a host has and should have, the steps: pure |
//! | `act` | the steps of one host, and their undoing |
//! | `scripts` | the scripts that hosts run |
//! | `ssh` | how they get there |
//! | `failure` | why a host is not as it should be |
//! | `show` | the answer |

mod act;
mod failure;
mod scripts;
mod show;
mod ssh;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;

use sha2::{Digest as _, Sha256};
use tradewind_config::{HostConfig, HostRole, HostsConfig};
use tradewind_control::record::Role;
use tradewind_controller::Client;
use tradewind_controller::view::{HostState, HostView, Hosts, Status};
use tradewind_units::time::parse_duration;
use tradewind_units::{Duration, HostId};

use self::act::Deployment;
use self::failure::{Failure, Reason};
use self::show::{Answer, HostAnswer, Outcome as HostOutcome};
use self::ssh::Input;
use self::steps::{Form, Known, Observed, Step, Wanted};
use crate::controller::access::{ControllerArgs, OutputArgs};
use crate::output::{self, BadFile, OrBadFile as _, Outcome, read_text};

/// Most hosts that are looked at at a time. Chosen: below the sessions that a jump host allows.
const MAX_AT_A_TIME: usize = 8;

#[derive(clap::Args)]
pub(crate) struct DeployArgs {
    /// The file of hosts (docs/reference/hosts.md)
    file: PathBuf,
    /// Names of hosts in the file; all when absent
    #[arg(value_name = "HOST")]
    hosts: Vec<String>,
    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on upgrading other hosts after an upgrade has failed
    #[arg(long, conflicts_with = "remove")]
    keep_going: bool,
    /// Drain and revoke the hosts, and remove all that was put there
    #[arg(long)]
    remove: bool,
    /// Longest wait for the controller to hear an agent, or for the sessions of a host to end
    #[arg(long, value_name = "SPAN", default_value = "1 min", value_parser = parse_duration)]
    patience: Duration,
    #[command(flatten)]
    controller: ControllerArgs,
    #[command(flatten)]
    output: OutputArgs,
}

pub(crate) fn run(args: &DeployArgs) -> Outcome {
    let text = read_text(&args.file)?;
    let folder = args.file.parent().unwrap_or(Path::new(""));
    let hosts = HostsConfig::parse(&text, folder).or_bad(&args.file)?.host;
    let hosts = chosen(hosts, &args.hosts)?;
    let files = if args.remove { Files::default() } else { Files::read(&hosts)? };
    let client = args.controller.client()?;
    let known: Hosts = client.get("/v1/hosts")?;
    // Of another controller, a host of the same name is another host.
    let identity = client.get::<Status>("/v1/status")?.identity.to_string();
    let mut observed = observe(&hosts);
    refuse_twins(&mut observed);
    let mut answers = Vec::new();
    let mut failed_upgrade = None;
    for (host, observed) in hosts.iter().zip(observed) {
        let view = |name: &HostId| known.hosts.iter().find(|view| view.id == *name);
        let ours = observed.as_ref().ok().filter(|it| it.controller.as_ref() == Some(&identity));
        let known = ours.and_then(|it| view(it.joined.as_ref()?)).map(known_of);
        let work = Work { args, client: &client, host, known };
        let answer = if args.remove {
            work.remove(observed)
        } else {
            work.deploy(observed, &files, &mut failed_upgrade)
        };
        answers.push(answer?);
    }
    let answer = Answer::new(answers);
    args.output.print(&answer, show::table)?;
    Ok(if answer.has_failures() { output::FAILED.into() } else { ExitCode::SUCCESS })
}

/// Returns the hosts with these names, or all.
fn chosen(mut hosts: Vec<HostConfig>, names: &[String]) -> anyhow::Result<Vec<HostConfig>> {
    for name in names {
        if hosts.iter().all(|host| host.name != *name) {
            return Err(BadFile(format!("no host is called `{name}`")).into());
        }
    }
    hosts.retain(|host| names.is_empty() || names.contains(&host.name));
    Ok(hosts)
}

/// The files that hosts get: digests of packages, and ceilings with their digests.
#[derive(Default)]
struct Files {
    packages: BTreeMap<PathBuf, String>,
    ceilings: BTreeMap<PathBuf, (String, String)>,
}

impl Files {
    fn read(hosts: &[HostConfig]) -> anyhow::Result<Self> {
        let mut files = Self::default();
        for host in hosts {
            for file in host.package.iter() {
                if !files.packages.contains_key(file) {
                    let mut hasher = Sha256::new();
                    let copied = File::open(file).and_then(|mut it| io::copy(&mut it, &mut hasher));
                    copied.or_bad(file)?;
                    files.packages.insert(file.clone(), hex(&hasher.finalize()));
                }
            }
            for file in host.ceiling.iter() {
                let text = read_text(file)?;
                crate::agent::parse_ceiling(file, &text)?;
                let digest = hex(&Sha256::digest(&text));
                files.ceilings.insert(file.clone(), (text, digest));
            }
        }
        Ok(files)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Looks at hosts, several at a time, and changes nothing.
fn observe(hosts: &[HostConfig]) -> Vec<Result<Observed, Failure>> {
    let look = |host: &HostConfig| {
        let (script, nothing) = (scripts::observe(), Input::Nothing);
        let printed = ssh::run(host, &script, &nothing, Reason::Failed, ssh::LOOK_LIMIT)?;
        let observed = scripts::parse(&printed, host.own_service().is_some());
        observed.ok_or_else(|| Failure::new(Reason::Failed, "it does not tell its state"))
    };
    let mut all = Vec::new();
    for hosts in hosts.chunks(MAX_AT_A_TIME) {
        thread::scope(|scope| {
            let running: Vec<_> = hosts.iter().map(|host| scope.spawn(|| look(host))).collect();
            let lost = || Err(Failure::new(Reason::Failed, "the look at it ended"));
            all.extend(running.into_iter().map(|it| it.join().unwrap_or_else(|_| lost())));
        });
    }
    all
}

/// Refuses hosts that say to be the same host at the controller: at most one of them is.
fn refuse_twins(all: &mut [Result<Observed, Failure>]) {
    let (mut once, mut twice) = (BTreeSet::new(), BTreeSet::new());
    for name in all.iter().flatten().filter_map(|host| host.joined.clone()) {
        if !once.insert(name.clone()) {
            twice.insert(name);
        }
    }
    for each in all {
        let joined = each.as_ref().ok().and_then(|host| host.joined.clone());
        if let Some(name) = joined.filter(|name| twice.contains(name)) {
            let problem = format!("says that it is `{name}`, as another one in the file does");
            *each = Err(Failure::new(Reason::Unsuited, problem));
        }
    }
}

fn known_of(view: &HostView) -> Known {
    Known {
        role: view.role.clone(),
        address: view.address,
        is_revoked: view.state == HostState::Revoked,
        is_drained: view.state == HostState::Drained,
        is_heard: !matches!(view.state, HostState::Away | HostState::Awaited | HostState::Revoked),
        is_well: matches!(view.state, HostState::Well | HostState::Drained),
    }
}

/// The role that a host joins with. The file of hosts has been checked: none lacks its place.
fn role_of(host: &HostConfig) -> Option<Role> {
    Some(match host.role {
        HostRole::Relay => {
            Role::Relay { region: host.region.clone()?, relay_type: host.relay_type.clone()? }
        }
        HostRole::Gateway => Role::Gateway { site: host.site.clone()? },
        HostRole::Probe => Role::Probe { site: host.site.clone()? },
    })
}

/// A host while it is deployed to.
struct Work<'a> {
    args: &'a DeployArgs,
    client: &'a Client,
    host: &'a HostConfig,
    known: Option<Known>,
}

impl Work<'_> {
    /// Puts the agent on the host. `failed_upgrade` is the host whose upgrade failed, if one did:
    /// no other is upgraded then.
    fn deploy(
        &self,
        observed: Result<Observed, Failure>,
        files: &Files,
        failed_upgrade: &mut Option<String>,
    ) -> anyhow::Result<HostAnswer> {
        let answer = HostAnswer::new(self.host, observed.as_ref().ok());
        let observed = match observed {
            Ok(observed) => observed,
            Err(failure) => return Ok(answer.failed(&failure)),
        };
        let (wanted, package, ceiling) = self.wanted(files)?;
        let steps = steps::steps(&wanted, &observed, self.known.as_ref());
        let (answer, steps) = match self.planned(answer, steps, |step| step.as_str()) {
            ControlFlow::Continue(planned) => planned,
            ControlFlow::Break(answer) => return Ok(answer),
        };
        let is_upgrade = steps.contains(&Step::Install) && answer.found.is_some();
        if let Some(other) = failed_upgrade.as_ref().filter(|_| is_upgrade) {
            let problem = Some(format!("the upgrade of {other} failed"));
            return Ok(HostAnswer { outcome: HostOutcome::NotTried, problem, ..answer });
        }
        let deployment = Deployment::new(self.host, self.client, self.args.patience, &observed);
        let perform = || deployment.perform(&wanted, package, ceiling, &steps);
        let done = deployment.locked(perform);
        let answer = HostAnswer {
            joined: deployment.joined.take(),
            doctor: deployment.doctor.take(),
            ..answer
        };
        Ok(match done {
            Ok(()) => HostAnswer { outcome: HostOutcome::Done, ..answer },
            Err(failure) => {
                if is_upgrade && !self.args.keep_going {
                    *failed_upgrade = Some(self.host.name.clone());
                }
                answer.failed(&failure)
            }
        })
    }

    /// Returns the answer with the steps that are to be done, or the answer if none is.
    fn planned<T>(
        &self,
        answer: HostAnswer,
        steps: Result<Vec<T>, String>,
        name: impl Fn(&T) -> &'static str,
    ) -> ControlFlow<HostAnswer, (HostAnswer, Vec<T>)> {
        let steps = match steps {
            Ok(steps) => steps,
            Err(why) => {
                return ControlFlow::Break(answer.failed(&Failure::new(Reason::Unsuited, why)));
            }
        };
        let named = steps.iter().map(name).collect();
        let answer = HostAnswer { steps: named, ..answer };
        if steps.is_empty() {
            return ControlFlow::Break(HostAnswer { outcome: HostOutcome::Unchanged, ..answer });
        }
        if self.args.dry_run {
            return ControlFlow::Break(HostAnswer { outcome: HostOutcome::WouldChange, ..answer });
        }
        ControlFlow::Continue((answer, steps))
    }

    fn wanted<'f>(&self, files: &'f Files) -> anyhow::Result<(Wanted, &'f Path, Option<&'f str>)> {
        let package = self.host.package.as_ref().and_then(|it| files.packages.get_key_value(it));
        let (Some((package, digest)), Some(role)) = (package, role_of(self.host)) else {
            return Err(BadFile(format!("host `{}` lacks a key", self.host.name)).into());
        };
        let is_debian = package.extension().is_some_and(|extension| extension == "deb");
        let ceiling = self.host.ceiling.as_ref().and_then(|it| files.ceilings.get(it));
        let wanted = Wanted {
            form: if is_debian { Form::Debian } else { Form::Program },
            digest: digest.clone(),
            ceiling: ceiling.map(|(_, digest)| digest.clone()),
            role,
            address: self.host.address,
            has_own_service: self.host.own_service().is_some(),
        };
        Ok((wanted, package, ceiling.map(|(text, _)| text.as_str())))
    }

    /// Takes the agent away from the host.
    fn remove(&self, observed: Result<Observed, Failure>) -> anyhow::Result<HostAnswer> {
        let answer = HostAnswer::new(self.host, observed.as_ref().ok());
        let observed = match observed {
            Ok(observed) => observed,
            Err(failure) => return Ok(answer.failed(&failure)),
        };
        let has_own_service = self.host.own_service().is_some();
        let (known, address) = (self.known.as_ref(), self.host.address);
        let Some(role) = role_of(self.host) else {
            return Err(BadFile(format!("host `{}` lacks a key", self.host.name)).into());
        };
        let steps = steps::removal(&observed, known, &role, address, has_own_service);
        let (answer, steps) = match self.planned(answer, steps, |step| step.as_str()) {
            ControlFlow::Continue(planned) => planned,
            ControlFlow::Break(answer) => return Ok(answer),
        };
        let deployment = Deployment::new(self.host, self.client, self.args.patience, &observed);
        Ok(match deployment.locked(|| deployment.take_away(&steps)) {
            Ok(()) => HostAnswer { outcome: HostOutcome::Done, ..answer },
            Err(failure) => answer.failed(&failure),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_that_say_to_be_one_are_refused() {
        let host = |name: &str| Ok(Observed { joined: name.parse().ok(), ..Observed::default() });
        let mut all = [host("r-1"), host("r-2"), host("r-1"), host(""), host("")];
        refuse_twins(&mut all);
        let refused: Vec<bool> = all.iter().map(Result::is_err).collect();
        assert_eq!(refused, [true, false, true, false, false]);
    }
}
