//! The hosts that `tradewind deploy` puts agents on.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Deserialize;
use tradewind_units::{RegionId, RelayTypeId, SiteId};

use crate::{ConfigError, document};

/// The file as a whole.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostsConfig {
    /// Values for all hosts that do not have their own.
    #[serde(default, deserialize_with = "document::table")]
    pub defaults: HostDefaults,
    /// The hosts, at least one.
    pub host: Vec<HostConfig>,
}

/// Values for all hosts that do not have their own.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HostDefaults {
    /// The package.
    pub package: Option<PathBuf>,
    /// The TCP port of the SSH server.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Further arguments of `ssh`.
    pub ssh_options: Option<Vec<String>>,
    /// True if the user becomes root by `sudo` without a password.
    pub sudo: Option<bool>,
    /// The type of relays.
    pub relay_type: Option<RelayTypeId>,
    /// The file of the ceiling.
    pub ceiling: Option<PathBuf>,
    /// The command that starts the agent.
    pub start: Option<String>,
    /// The command that ends it.
    pub stop: Option<String>,
}

/// A host.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HostConfig {
    /// Its name in this file, which `tradewind deploy` takes and prints.
    pub name: String,
    /// The destination that `ssh` takes: a host, `USER@HOST`, or a name of your ssh configuration;
    /// its name when absent.
    pub ssh: Option<String>,
    /// The TCP port of its SSH server; that of your ssh configuration when absent.
    #[schemars(range(min = 1))]
    pub port: Option<u16>,
    /// Further arguments of `ssh`, such as `["-F", "ssh_config"]`.
    pub ssh_options: Option<Vec<String>>,
    /// True if the user becomes root by `sudo` without a password; without it, the user must be
    /// root. False when absent.
    pub sudo: Option<bool>,
    /// The file to install, relative to this one: a Debian package (`.deb`), or the program alone
    /// for hosts without dpkg.
    pub package: Option<PathBuf>,
    /// Its role in the overlay.
    pub role: HostRole,
    /// The region that a relay is in.
    pub region: Option<RegionId>,
    /// The type of a relay, which gives its capacity and price; `standard` when absent.
    pub relay_type: Option<RelayTypeId>,
    /// The site of a gateway or probe.
    pub site: Option<SiteId>,
    /// The address at which neighbours reach it, if it is not where the controller sees it.
    #[schemars(with = "Option<std::net::IpAddr>")]
    pub address: Option<IpAddr>,
    /// The file that becomes the host's `ceiling.toml`, the most that a controller may ask of it
    /// (docs/how-to/agent.md), relative to this file. When absent, the ceiling that the host has
    /// stays; one without gets its role at its join, and all public addresses at all ports but 25.
    pub ceiling: Option<PathBuf>,
    /// The command that starts the agent in the background, for hosts without systemd: a line for
    /// `sh`, which root runs.
    pub start: Option<String>,
    /// The command that ends the agent, and leaves its processes running; needed beside `start`.
    pub stop: Option<String>,
}

/// The role of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum HostRole {
    /// Run a relay when a plan uses it.
    Relay,
    /// Run a gateway for the flows of its site.
    Gateway,
    /// Only answer and run probes, for a site.
    Probe,
}

/// The commands that start and end an agent where there is no systemd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnService {
    /// Starts it in the background.
    pub start: String,
    /// Ends it.
    pub stop: String,
}

/// The type of relays that are given none.
const STANDARD: &str = "standard";

impl HostsConfig {
    /// Parses and checks a file of hosts. The values of `[defaults]` stand in each host then, and
    /// files that it names are relative to `folder`.
    ///
    /// # Errors
    /// The first mistake, with its key, its line and the expected value.
    pub fn parse(text: &str, folder: &Path) -> Result<Self, ConfigError> {
        let mut config: Self = document::parse(text)?;
        let defaults = config.defaults.clone();
        for host in &mut config.host {
            host.complete(&defaults, folder);
        }
        config.check().map_err(|error| error.located(text))?;
        Ok(config)
    }

    fn check(&self) -> Result<(), ConfigError> {
        if self.host.is_empty() {
            return Err(ConfigError::new("host", "expected at least one `[[host]]`"));
        }
        let mut names = BTreeSet::new();
        for (index, host) in self.host.iter().enumerate() {
            let section = format!("host[{index}]");
            host.check().map_err(|error| error.within(&section))?;
            if !names.insert(&host.name) {
                let problem = format!("`{}` is there twice; expected another name", host.name);
                return Err(ConfigError::new(format!("{section}.name"), problem));
            }
        }
        Ok(())
    }
}

impl HostConfig {
    /// Returns the destination that `ssh` takes.
    #[must_use]
    pub fn destination(&self) -> &str {
        self.ssh.as_deref().unwrap_or(&self.name)
    }

    /// Returns the commands that start and end its agent, if systemd does not.
    #[must_use]
    pub fn own_service(&self) -> Option<OwnService> {
        let (start, stop) = (self.start.clone()?, self.stop.clone()?);
        Some(OwnService { start, stop })
    }

    fn complete(&mut self, defaults: &HostDefaults, folder: &Path) {
        let inside = |file: PathBuf| folder.join(file);
        self.port = self.port.or(defaults.port);
        self.ssh_options = self.ssh_options.take().or_else(|| defaults.ssh_options.clone());
        self.sudo = self.sudo.or(defaults.sudo);
        self.package = self.package.take().or_else(|| defaults.package.clone()).map(inside);
        self.ceiling = self.ceiling.take().or_else(|| defaults.ceiling.clone()).map(inside);
        self.start = self.start.take().or_else(|| defaults.start.clone());
        self.stop = self.stop.take().or_else(|| defaults.stop.clone());
        if self.role == HostRole::Relay {
            let standard = || RelayTypeId::new(STANDARD).ok();
            let given = self.relay_type.take().or_else(|| defaults.relay_type.clone());
            self.relay_type = given.or_else(standard);
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let refuse = |key: &str, problem: &str| Err(ConfigError::new(key, problem));
        for (key, text) in [("name", self.name.as_str()), ("ssh", self.destination())] {
            // `ssh` would take it for an option.
            if text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace) {
                return refuse(key, "expected a host such as `admin@192.0.2.7`");
            }
        }
        if self.port == Some(0) {
            return refuse("port", "expected 1 to 65535");
        }
        if self.package.is_none() {
            return refuse("package", "missing, also in `[defaults]`: the file to install");
        }
        match self.role {
            HostRole::Relay if self.region.is_none() => {
                return refuse("region", "missing: the region that the relay is in");
            }
            HostRole::Relay if self.site.is_some() => {
                return refuse("site", "a relay has a `region` instead");
            }
            HostRole::Gateway | HostRole::Probe if self.site.is_none() => {
                return refuse("site", "missing: a name for the place, such as `office`");
            }
            HostRole::Gateway | HostRole::Probe if self.region.is_some() => {
                return refuse("region", "only relays have one; expected a `site`");
            }
            HostRole::Gateway | HostRole::Probe if self.relay_type.is_some() => {
                return refuse("relay_type", "only relays have one");
            }
            _ => {}
        }
        match (&self.start, &self.stop) {
            (Some(_), None) => refuse("stop", "missing beside `start`: the command that ends it"),
            (None, Some(_)) => refuse("start", "missing beside `stop`: the command that starts it"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tests::example_of;

    const HEAD: &str = "[defaults]\npackage = 'a.deb'\nsudo = true\nport = 2222\n";

    #[test]
    fn hosts_have_the_defaults_unless_they_say_otherwise() {
        let text = format!(
            "{HEAD}ceiling = 'c.toml'\n[[host]]\nname = 'r1'\nssh = 'admin@192.0.2.7'\n\
             role = 'relay'\nregion = 'gcp:asia-east1'\nport = 22\n[[host]]\nname = 'g1'\n\
             role = 'gateway'\nsite = 'office'\nsudo = false\npackage = '/b'\n"
        );
        let hosts = HostsConfig::parse(&text, Path::new("/here")).unwrap().host;
        let [relay, gateway] = &hosts[..] else { panic!("{hosts:?}") };
        assert_eq!((relay.destination(), relay.port), ("admin@192.0.2.7", Some(22)));
        assert_eq!(relay.package.as_deref(), Some(Path::new("/here/a.deb")));
        assert_eq!(relay.ceiling.as_deref(), Some(Path::new("/here/c.toml")));
        assert_eq!(relay.relay_type.as_ref().map(RelayTypeId::as_str), Some(STANDARD));
        assert_eq!((gateway.destination(), gateway.port), ("g1", Some(2222)));
        assert_eq!((gateway.sudo, relay.sudo), (Some(false), Some(true)));
        assert_eq!(gateway.package.as_deref(), Some(Path::new("/b")));
        assert_eq!((&gateway.relay_type, gateway.own_service()), (&None, None));
    }

    #[test]
    fn example_of_the_docs_is_right_by_parser_and_schema() {
        let page = include_str!("../../../docs/how-to/deploy.md");
        let text = example_of(page, &crate::hosts_schema());
        let hosts = HostsConfig::parse(text, Path::new("/here")).unwrap().host;
        assert_eq!(hosts.len(), 2, "{hosts:?}");
    }

    #[test]
    fn mistakes_have_their_line() {
        let probe = "[[host]]\nname = 'p'\nrole = 'probe'\nsite = 's'\n";
        let relay = "[[host]]\nname = 'r'\nrole = 'relay'\nregion = 'aws:eu-west-1'\n";
        for (text, expected) in [
            ("host = []".to_owned(), "`host` (line 1): expected at least one"),
            (format!("{HEAD}{probe}colour = 1"), "`host[0].colour` (line 9): unknown"),
            (probe.to_owned(), "`host[0].package` (line 1): missing, also in"),
            (format!("{HEAD}{probe}{probe}"), "`host[1].name` (line 10): `p` is there twice"),
            (format!("{HEAD}{probe}ssh = '-oProxyCommand=x'"), "`host[0].ssh` (line 9): expected"),
            (format!("{HEAD}{probe}region = 'a:b'"), "`host[0].region` (line 9): only relays"),
            (format!("{HEAD}{probe}relay_type = 'x'"), "`host[0].relay_type` (line 9): only"),
            (format!("{HEAD}{probe}port = 0"), "`host[0].port` (line 9): expected 1"),
            (format!("{HEAD}{probe}start = 'x'"), "`host[0].stop` (line 5): missing beside"),
            (format!("{HEAD}{probe}stop = 'x'"), "`host[0].start` (line 5): missing beside"),
            (format!("{HEAD}{relay}site = 'x'"), "`host[0].site` (line 9): a relay has"),
            (format!("{HEAD}[[host]]\nname = 'r'\nrole = 'relay'"), "`host[0].region` (line 5)"),
            (format!("{HEAD}[[host]]\nname = 'g'\nrole = 'gateway'"), "`host[0].site` (line 5)"),
        ] {
            let error = HostsConfig::parse(&text, Path::new("")).unwrap_err().in_its_file();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
