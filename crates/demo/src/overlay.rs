//! Agents of an overlay on the hosts of a lab that is up: a gateway at each site, a relay in each
//! region where a plan names one.
//!
//! Each agent is a process of the binary that any user runs, started by `tradewind lab exec`, so
//! that it ends with the lab.

use std::fs::{self, File};
use std::io;
use std::net::IpAddr;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tradewind_agent::Home;
use tradewind_control::record::Role;
use tradewind_grant::PublicIdentity;
use tradewind_lab::{Lab, address};
use tradewind_net::pidns::PidNamespace;
use tradewind_units::{Duration, HostId, RelayTypeId};
use tradewind_wan::{HostIndex, Topology};

use crate::processes::ProcessError;
use crate::processes::scratch::failed;

/// The type of all relays: the one that the planner knows without a machine of the catalogue.
const RELAY_TYPE: &str = "standard";
/// The ceiling of each host: the lab's network, and nothing else.
const CEILING: &str = "roles = [\"relay\", \"gateway\"]\n\
    destinations = [\"10.200.0.0/16:*\", \"[fd74:7277::]/32:*\"]\n\
    next_hops = [\"10.200.0.0/16:*\", \"[fd74:7277::]/32:*\"]\n";

/// A host of a lab, as the overlay knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayHost {
    /// Its name in the lab.
    pub name: HostId,
    /// Its role.
    pub role: Role,
    /// Its address in the lab.
    pub address: IpAddr,
}

/// Returns the type of all relays.
#[must_use]
pub fn relay_type() -> RelayTypeId {
    RelayTypeId::new(RELAY_TYPE).expect("it is a valid name")
}

/// Returns the hosts of `topology`, in its order: relays in cloud regions, gateways elsewhere.
#[must_use]
pub fn hosts(topology: &Topology) -> Vec<OverlayHost> {
    let host = |(host, index)| {
        let host: &tradewind_wan::Host = host;
        let site = &topology.sites[usize::from(host.site.0)];
        let role = match &site.region {
            Some(region) => Role::Relay { region: region.clone(), relay_type: relay_type() },
            None => Role::Gateway { site: site.id.clone() },
        };
        OverlayHost { name: host.id.clone(), role, address: address::v4(HostIndex(index)).into() }
    };
    topology.hosts.iter().zip(0..).map(host).collect()
}

/// The lab on whose hosts agents run.
#[derive(Debug, Clone, Copy)]
pub enum OnHosts<'a> {
    /// The lab that is up, which `tradewind lab exec` enters.
    Held {
        /// Time that machines of relays take to set up there.
        relay_setup: Duration,
    },
    /// A lab of this process.
    Own {
        /// It.
        lab: &'a Lab,
        /// The namespace of the agents and all that they start, which ends with it.
        programs: &'a PidNamespace,
    },
}

impl OnHosts<'_> {
    /// Returns a command that runs the agent's program on a host.
    fn agent(&self, host: &HostId, program: &Path) -> Result<Command, ProcessError> {
        let mut command = match self {
            Self::Held { .. } => {
                let mut command = Command::new(program);
                command.args(["lab", "exec", host.as_str(), "--"]).arg(program);
                command
            }
            Self::Own { lab, .. } => lab.command(host, program)?,
        };
        command.arg("agent");
        Ok(command)
    }

    fn spawn(&self, mut command: Command) -> io::Result<Child> {
        match self {
            Self::Held { .. } => command.spawn(),
            Self::Own { programs, .. } => programs.spawn(command).map_err(io::Error::other)?,
        }
    }
}

/// The agents on the hosts of a lab; they end when this is dropped.
#[derive(Debug)]
pub struct Agents(Vec<Agent>);

#[derive(Debug)]
struct Agent {
    host: HostId,
    process: Child,
    log: PathBuf,
    has_ended: bool,
}

impl Agents {
    /// Starts an agent on each host of the lab `on`, with its folder below `folder`, which is made
    /// where it is missing. One that has joined `controller` before resumes; any other joins by the
    /// line that `invite` returns.
    ///
    /// # Errors
    /// When `invite` fails, a file cannot be written, a program cannot be started, or an agent's
    /// folder is of another controller.
    pub fn start<E: From<ProcessError>>(
        on: &OnHosts<'_>,
        hosts: &[OverlayHost],
        (program, folder): (&Path, &Path),
        controller: PublicIdentity,
        mut invite: impl FnMut(&Role) -> Result<String, E>,
    ) -> Result<Self, E> {
        let ceiling = folder.join("ceiling.toml");
        make(folder).and_then(|()| fs::write(&ceiling, CEILING)).map_err(at(&ceiling))?;
        let mut agents = Self(Vec::new());
        for host in hosts {
            // Names of regions contain colons, which some tools take for a separator.
            let place = folder.join(host.name.as_str().replace(':', "-"));
            let mut command = on.agent(&host.name, program)?;
            if has_joined(&place, controller)? {
                command.arg("run");
            } else {
                command.arg("join").arg(invite(&host.role)?).arg("--ceiling").arg(&ceiling);
            }
            command.arg("--dir").arg(&place);
            if let (OnHosts::Held { relay_setup }, Role::Relay { .. }) = (on, &host.role) {
                command.arg("--relay-setup").arg(format!("{} s", relay_setup.as_secs_f64()));
            }
            agents.0.push(Agent::start(on, host.name.clone(), command, &place)?);
        }
        Ok(agents)
    }

    /// Returns the agents that have ended since the last call, each with the reason.
    pub fn ended(&mut self) -> Vec<ProcessError> {
        let mut reasons = Vec::new();
        for agent in self.0.iter_mut().filter(|agent| !agent.has_ended) {
            agent.has_ended = agent.process.try_wait().is_ok_and(|status| status.is_some());
            if agent.has_ended {
                reasons.push(failed(&format!("agent of {}", agent.host), &agent.log));
            }
        }
        reasons
    }
}

impl Agent {
    fn start(
        on: &OnHosts<'_>,
        host: HostId,
        mut command: Command,
        place: &Path,
    ) -> Result<Self, ProcessError> {
        let log = place.join("agent.log");
        let opened = make(place).and_then(|()| {
            let file = File::options().create(true).append(true).open(&log)?;
            Ok((file.try_clone()?, file))
        });
        let (output, errors) = opened.map_err(at(&log))?;
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        // The terminal's Ctrl-C is for the controller, which ends its agents.
        command.process_group(0);
        let started = on.spawn(command);
        let failed = |source| ProcessError::Start { name: format!("agent of {host}"), source };
        let process = started.map_err(failed)?;
        Ok(Self { host, process, log, has_ended: false })
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether the agent of a folder has joined `controller`.
fn has_joined(place: &Path, controller: PublicIdentity) -> Result<bool, ProcessError> {
    let name = || place.display().to_string();
    let known = Home::at(place).and_then(|home| home.membership());
    match known.map_err(|error| ProcessError::Program { name: name(), why: error.to_string() })? {
        None => Ok(false),
        Some(known) if known.identity == controller => Ok(true),
        Some(_) => {
            let why = "its agent belongs to another controller: remove the folder".to_owned();
            Err(ProcessError::Program { name: name(), why })
        }
    }
}

/// Makes a folder that other users may pass through: relays that root starts go on as another user,
/// and read their files again.
///
/// # Errors
/// When it cannot be made.
pub fn make(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().recursive(true).mode(0o711).create(folder)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> ProcessError {
    let path = path.to_owned();
    |source| ProcessError::File { path, source }
}

#[cfg(test)]
mod tests {
    use tradewind_control::Ceiling;
    use tradewind_model::catalogue::Catalogue;

    use super::*;

    #[test]
    fn sites_get_gateways_and_regions_relays() {
        let text = "[[site]]\nid = \"office\"\naccess_rtt = \"8 ms\"\n\
                    location = { latitude = 51.5, longitude = 0.0 }\n\
                    [[site]]\nregion = \"gcp:europe-north1\"\n";
        let topology = Topology::parse(text, &Catalogue::builtin()).unwrap();
        let [office, region] = <[OverlayHost; 2]>::try_from(hosts(&topology)).unwrap();
        assert_eq!(office.role, Role::Gateway { site: "office".parse().unwrap() });
        assert_eq!(office.address.to_string(), "10.200.0.1");
        let Role::Relay { region: named, .. } = region.role else { panic!("{region:?}") };
        assert_eq!(
            (named.as_str(), region.name.as_str()),
            ("gcp:europe-north1", "gcp:europe-north1")
        );
        assert_eq!(region.address.to_string(), "10.200.0.2");
    }

    #[test]
    fn ceiling_allows_the_whole_lab_and_nothing_else() {
        let ceiling: Ceiling = toml::from_str(CEILING).unwrap();
        let covers = |to: &str| {
            let to = to.parse().unwrap();
            ceiling.destinations.iter().any(|rule| rule.covers_address(to))
        };
        let last = address::v4(HostIndex(address::MAX_HOSTS as u16 - 1));
        assert!(covers(&format!("{last}:65535")));
        let last = address::v6(HostIndex(address::MAX_HOSTS as u16 - 1));
        assert!(covers(&format!("[{last}]:1")));
        assert!(!covers("10.201.0.1:443") && !covers("192.0.2.1:443"));
        assert!(!ceiling.capture);
    }
}
