//! The daemon's configuration (TOML), which is also the section `[jumpstart]` of a process with its
//! own learner. Every key is optional; `docs/reference/jumpstart.md` lists them.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tradewind_jumpstart::{Config, Mode, Settings, prefix};
use tradewind_net::NetError;
use tradewind_net::cgroup;
use tradewind_net::jumpstart::Options;
use tradewind_net::sock_diag::Filter;
use tradewind_units::time::as_text;
use tradewind_units::{Bytes, Duration, in_plain_words};

use crate::DaemonError;
use crate::error::Mistake;

/// The file as a whole.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DaemonConfig {
    /// The learner's settings; see [`tradewind_jumpstart::Config`].
    pub learn: Settings,
    /// The connections to observe.
    pub observe: Observe,
    /// The actuator and its settings.
    pub act: Act,
    /// Address on which metrics and health are served; none when absent.
    #[serde(deserialize_with = "tradewind_units::address::option")]
    pub metrics: Option<SocketAddr>,
    /// True if that address may be another than loopback.
    pub metrics_expose: bool,
    /// Host names of requests for metrics and health, beside addresses and `localhost`.
    pub metrics_hosts: Vec<String>,
    /// The socket for `status`, `explain`, `hint` and `flush`; by default `jumpstart.sock` in the
    /// runtime directory.
    pub socket: Option<PathBuf>,
    /// A file of standing hints, read again when it changes. Default none.
    pub hints: Option<PathBuf>,
    /// The connections that it applies to.
    #[serde(skip)]
    pub scope: Scope,
}

/// Connections that are observed, and that start by learned values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// All of the host's, as far as the configuration includes them.
    #[default]
    Host,
    /// Those of this process, dialled and accepted.
    Process,
}

/// The section of a process with its own learner.
const SECTION: &str = "jumpstart";
/// Keys of the daemon that such a section refuses, as they reach beyond one process or are set
/// elsewhere, and what to do instead.
const NOT_IN_A_SECTION: [(&str, &str); 7] = [
    ("metrics", "the process's own `metrics` serves them; leave it out"),
    ("metrics_expose", "it belongs to the process's own `metrics`; leave it out"),
    ("metrics_hosts", "it belongs to the process's own `metrics`; leave it out"),
    ("observe.cgroup", "only this process's connections are looked at; leave it out"),
    ("act.cgroup", "only what this process dials and accepts starts so; leave it out"),
    ("act.all_namespaces", "only what this process dials and accepts starts so; leave it out"),
    ("act.receive", "routes alone set it, and they hold for the whole host; leave it out"),
];
/// Start of serde's list after a name that it does not know.
const LIST: &str = "expected one of ";
/// Least receive buffer. Chosen: what Linux's default ones take; a smaller one would be ignored
/// silently.
const LEAST_RECEIVE_BUFFER: Bytes = Bytes::new(64 * 1024);
/// Reason why a process's own learner cannot act through routes.
const NO_ROUTES: &str = "routes hold for all connections of the host: `auto`, `sockops` or `none`, \
                         or run `tradewind jumpstart run` instead";

/// The connections to observe.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// Time between two rounds, the paper's i_u. Default 1 s `[RT IV-A]`. From 100 ms to 60 s:
    /// sampling costs some 2 us a connection, and at longer intervals connections come and go
    /// unseen.
    #[serde(with = "as_text")]
    pub interval: Duration,
    /// Ports, at either end. Default all.
    pub ports: Vec<u16>,
    /// Prefixes of the other end. Default all.
    #[serde(deserialize_with = "prefix::list")]
    pub within: Vec<IpNet>,
    /// Prefixes that are left out. Default loopback and link-local addresses (chosen: no path to
    /// learn).
    #[serde(deserialize_with = "prefix::list")]
    pub except: Vec<IpNet>,
    /// The control group (version 2) whose sockets are observed, with those of the groups below it.
    /// Default all.
    pub cgroup: Option<PathBuf>,
}

impl Default for Observe {
    fn default() -> Self {
        let left_out = ["127.0.0.0/8", "169.254.0.0/16", "::1/128", "fe80::/10"];
        Self {
            interval: Duration::from_secs(1),
            ports: Vec::new(),
            within: Vec::new(),
            except: left_out.map(|net| net.parse().expect("a prefix")).to_vec(),
            cgroup: None,
        }
    }
}

/// The actuator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// The first of the others that works here, the default. Logs which one, and why not the one
    /// before.
    #[default]
    Auto,
    /// A program in the kernel (eBPF) that sees each connection: it paces, shares, and is detached
    /// with its owner.
    Sockops,
    /// Routes, as in the paper: works on every Linux.
    Routes,
    /// Nothing: learns and shows only.
    None,
}

/// The actuator and its settings.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Act {
    /// The actuator.
    pub through: Through,
    /// True if routes also set an initial receive window of at least `c_max`, so that the other
    /// end's jump finds room `[RT III-C]`, and never less than without. Default yes, as in the
    /// paper. It raises the window on kernels before 4.20 alone; later ones, and so all that
    /// sockops works on, advertise the whole buffer by themselves.
    pub receive: bool,
    /// Receive buffer of listeners and of sockets that dial known destinations, set before the
    /// handshake, by sockops alone. Default none: the kernel stops growing a buffer that was set,
    /// so that one too small for a path slows it for good. Useful where first flights above 64 KiB
    /// arrive; at most net.core.rmem_max.
    pub receive_buffer: Option<Bytes>,
    /// The control group (version 2) whose connections it applies to, by sockops alone. Default the
    /// root of the hierarchy: all.
    pub cgroup: Option<PathBuf>,
    /// True if it applies to connections of other network namespaces, too, by sockops alone.
    /// Default no: an address may be another host there, and their connections are not observed.
    pub all_namespaces: bool,
}

impl Default for Act {
    fn default() -> Self {
        Self {
            through: Through::default(),
            receive: true,
            receive_buffer: None,
            cgroup: None,
            all_namespaces: false,
        }
    }
}

impl DaemonConfig {
    /// Parses the file's `text`.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn parse(text: &str) -> Result<Self, DaemonError> {
        let config: Self = read_toml(text)?;
        config.check("")?;
        Ok(config)
    }

    /// Reads the section `[jumpstart]` of another program's file, if it has one: for that process
    /// alone.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn of_section(text: &str) -> Result<Option<Self>, DaemonError> {
        #[derive(Deserialize)]
        struct File {
            jumpstart: Option<DaemonConfig>,
        }
        let file: toml::Table = read_toml(text)?;
        // Arrays would be read by position.
        if file.get(SECTION).is_some_and(|section| !section.is_table()) {
            let problem = format!("expected one table, [{SECTION}]");
            return Err(Mistake { place: format!("`{SECTION}`"), problem }.into());
        }
        let Some(config) = read_toml::<File>(text).map_err(offering_what_is_taken)?.jumpstart
        else {
            return Ok(None);
        };
        let has = |key: &str| {
            let mut parts = key.split('.');
            parts.try_fold(file.get(SECTION)?, |value, part| value.get(part))
        };
        let refuse = |key: &str, problem: &str| {
            let place = format!("`{SECTION}.{key}`");
            Err(DaemonError::from(Mistake { place, problem: problem.to_owned() }))
        };
        if let Some((key, problem)) = NOT_IN_A_SECTION.iter().find(|(key, _)| has(key).is_some()) {
            return refuse(key, problem);
        }
        if config.act.through == Through::Routes {
            return refuse("act.through", NO_ROUTES);
        }
        config.check(&format!("{SECTION}."))?;
        let act = Act { receive: false, ..config.act };
        Ok(Some(Self { scope: Scope::Process, act, ..config }))
    }

    /// Returns the learner's configuration, resolved.
    ///
    /// # Errors
    /// The first setting out of range.
    pub fn learn(&self) -> Result<Config, DaemonError> {
        Ok(Config::resolve(&self.learn)?)
    }

    /// Checks the configuration; `within` is the prefix of its keys in the file.
    fn check(&self, within: &str) -> Result<(), DaemonError> {
        let place = |key: &str| format!("`{within}{key}`");
        let learn = Config::resolve(&self.learn)
            .map_err(|error| Mistake { place: place("learn"), problem: error.to_string() })?;
        let (ttl, interval) = (learn.ttl, self.observe.interval);
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
            let problem = format!("a span from 100 ms to 60 s, not {interval:?}");
            return Err(Mistake { place: place("observe.interval"), problem }.into());
        }
        // A value that each round confirms must not expire in between, nor after one failed round.
        if ttl < interval * 2 {
            let problem = format!("at least two intervals of {interval:?}, not {ttl:?}");
            return Err(Mistake { place: place("learn.ttl"), problem }.into());
        }
        tradewind_config::check_exposed(self.metrics, self.metrics_expose)
            .map_err(|error| Mistake { place: place("metrics"), problem: error.problem })?;
        let buffer = self.act.receive_buffer;
        if let Some(bytes) = buffer.filter(|bytes| *bytes < LEAST_RECEIVE_BUFFER) {
            let least = LEAST_RECEIVE_BUFFER.as_u64() / 1024;
            let problem = format!("at least {least} KiB, which Linux takes by itself, not {bytes}");
            return Err(Mistake { place: place("act.receive_buffer"), problem }.into());
        }
        Ok(())
    }

    /// Refuses control groups that are not there.
    pub(crate) fn check_groups(&self) -> Result<(), DaemonError> {
        let acts = self.act.through != Through::None;
        for (key, group) in [
            ("`observe.cgroup`", self.observe.cgroup.as_ref()),
            ("`act.cgroup`", self.act.cgroup.as_ref().filter(|_| acts)),
        ] {
            let refused =
                |error: NetError| Mistake { place: key.into(), problem: error.to_string() };
            group.map(|group| cgroup::numbers_below(group)).transpose().map_err(refused)?;
        }
        Ok(())
    }

    /// Returns the options for the program in the kernel, with `learn`.
    #[must_use]
    pub fn options(&self, learn: &Config) -> Options {
        let Act { cgroup, all_namespaces, receive_buffer, .. } = self.act.clone();
        Options {
            own_alone: self.scope == Scope::Process,
            cgroup,
            all_namespaces,
            control: learn.control.share(),
            least: learn.window_min,
            at_once: (learn.mode == Mode::Strict).then_some(1),
            receive_buffer,
            most: u32::try_from(learn.max_destinations).unwrap_or(u32::MAX),
        }
    }

    /// Returns the kernel's filter for the connections to observe.
    #[must_use]
    pub fn filter(&self) -> Filter {
        Filter {
            ports: self.observe.ports.clone(),
            within: self.observe.within.clone(),
            except: self.observe.except.clone(),
            cgroup: self.observe.cgroup.clone(),
            own: self.scope == Scope::Process,
        }
    }
}

/// Removes the names that a section refuses from the list of expected ones in `mistake`.
fn offering_what_is_taken(mistake: Mistake) -> Mistake {
    let Mistake { place, problem } = &mistake;
    let key = place.split('`').nth(1).and_then(|key| key.strip_prefix(SECTION)?.strip_prefix('.'));
    let (Some(key), Some((said, listed))) = (key, problem.split_once(LIST)) else { return mistake };
    // The list is of keys beside this one, or of values for it.
    let beside = key.rsplit_once('.').map_or(String::new(), |(table, _)| format!("{table}."));
    let is_taken = |name: &str| {
        let key_beside = format!("{beside}{name}");
        let refused = NOT_IN_A_SECTION.iter().any(|(refused, _)| *refused == key_beside);
        !refused && (key, name) != ("act.through", "routes")
    };
    let names = listed.split(", ").filter(|name| is_taken(name.trim_matches('`')));
    let problem = format!("{said}{LIST}{}", names.collect::<Vec<_>>().join(", "));
    Mistake { problem, ..mistake }
}

/// Parses TOML.
///
/// # Errors
/// The key and the line, and in plain words what is wrong there.
pub(crate) fn read_toml<T: DeserializeOwned>(text: &str) -> Result<T, Mistake> {
    let line_of = |error: &toml::de::Error| match error.span() {
        Some(span) => format!("line {}", text[..span.start].matches('\n').count() + 1),
        None => "the whole".to_owned(),
    };
    let refuse = |place: String, message: &str| Mistake {
        place,
        problem: in_plain_words(&message.lines().map(str::trim).collect::<Vec<_>>().join("; ")),
    };
    let source = toml::Deserializer::parse(text)
        .map_err(|error| refuse(line_of(&error), error.message()))?;
    serde_path_to_error::deserialize(source).map_err(|error| {
        let (key, inner) = (error.path().to_string(), error.inner());
        let place = match key.as_str() {
            "." => line_of(inner),
            key => format!("`{key}` ({})", line_of(inner)),
        };
        refuse(place, inner.message())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_file_matches_the_paper() {
        let config = DaemonConfig::parse("").unwrap();
        assert_eq!(config.learn().unwrap(), Config::default());
        assert_eq!(config.observe.interval, Duration::from_secs(1));
        assert_eq!(config.act.through, Through::Auto);
    }

    #[test]
    fn shipped_configuration_holds_the_defaults() {
        let shipped = include_str!("../../../systemd/jumpstart.toml");
        let (shipped, default) = (DaemonConfig::parse(shipped).unwrap(), DaemonConfig::default());
        assert_eq!(shipped.learn().unwrap(), default.learn().unwrap());
        let shown = |config: &DaemonConfig| format!("{:?} {:?}", config.observe, config.act);
        assert_eq!(shown(&shipped), shown(&default));
    }

    #[test]
    fn section_of_another_file_covers_its_process_alone() {
        assert!(DaemonConfig::of_section("listen = 1\n[leg]\n").unwrap().is_none());
        let text = "listen = 1\n[jumpstart.learn]\nttl = \"9 s\"\n[jumpstart.observe]\nports = [7]";
        let config = DaemonConfig::of_section(text).unwrap().unwrap();
        assert_eq!(config.learn().unwrap().ttl, Duration::from_secs(9));
        assert!(config.filter().own && config.filter().ports == [7]);
        assert!(config.options(&Config::default()).own_alone);
        for (text, expected) in [
            (
                "[jumpstart]\ncolour = 1",
                "configuration, `jumpstart.colour` (line 2): unknown field",
            ),
            (
                "[jumpstart]\ncolour = 1",
                "expected one of `learn`, `observe`, `act`, `socket`, `hints`",
            ),
            ("[jumpstart.observe]\nx = 1", "one of `interval`, `ports`, `within`, `except`"),
            ("[jumpstart.act]\nx = 1", "expected one of `through`, `receive_buffer`"),
            ("[jumpstart.act]\nthrough = \"x\"", "one of `auto`, `sockops`, `none`"),
            (
                "[jumpstart.act]\nreceive_buffer = \"1 B\"",
                "`jumpstart.act.receive_buffer`: at least",
            ),
            ("[jumpstart.learn]\nc_maximum = 1", "`jumpstart.learn.c_maximum` (line 2): unknown"),
            (
                "[jumpstart.learn]\nc_max = 5",
                "`jumpstart.learn`: c_min: 10 segments, above c_max, 5",
            ),
            (
                "[jumpstart.observe]\ninterval = \"1 ms\"",
                "`jumpstart.observe.interval`: a span from",
            ),
            ("[[jumpstart]]\n[[jumpstart]]", "`jumpstart`: expected one table, [jumpstart]"),
            ("[jumpstart]\nmetrics = \"127.0.0.1:1\"", "`jumpstart.metrics`: the process's own"),
            ("[jumpstart.observe]\ncgroup = \"/x\"", "`jumpstart.observe.cgroup`: only this"),
            ("[jumpstart.act]\ncgroup = \"/x\"", "`jumpstart.act.cgroup`: only what"),
            ("[jumpstart.act]\nall_namespaces = false", "`jumpstart.act.all_namespaces`: only"),
            ("[jumpstart.act]\nreceive = true", "`jumpstart.act.receive`: routes alone"),
            ("[jumpstart.act]\nthrough = \"routes\"", "`jumpstart.act.through`: routes hold for"),
        ] {
            let error = DaemonConfig::of_section(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
            let offered = ["`metrics`", "`cgroup`", "`all_namespaces`", "`receive`", "`routes`"];
            let list = error.split_once("expected one of").map_or("", |(_, list)| list);
            assert!(offered.iter().all(|refused| !list.contains(refused)), "{error}");
        }
    }

    #[test]
    fn mistakes_are_one_line_with_the_key() {
        for (text, expected) in [
            ("[learn]\nmode = \"bold\"", "`learn.mode` (line 2)"),
            ("[learn]\nc_max = 5", "c_min: 10 segments, above c_max, 5"),
            ("[learn]\nttl = \"ninety\"", "`learn.ttl`"),
            ("[observe]\ninterval = \"1 ms\"", "`observe.interval`: a span from 100 ms"),
            ("[learn]\nttl = \"1 s\"\n[observe]\ninterval = \"60 s\"", "`learn.ttl`: at least two"),
            ("[observe]\nwithin = [\"10.0.0.0\"]", "`observe.within[0]`"),
            ("[act]\nthrough = \"magic\"", "`act.through`"),
            ("[act]\nreceive_buffer = \"many\"", "`act.receive_buffer`"),
            ("[act]\nreceive_buffer = \"1 B\"", "`act.receive_buffer`: at least 64 KiB"),
            ("colour = 1", "unknown field `colour`"),
            ("[learn", "line 1"),
        ] {
            let error = DaemonConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
