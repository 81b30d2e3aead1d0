//! The daemon's configuration (TOML), which is also the section `[jumpstart]` of a process that learns for itself. Every key
//! is optional; `docs/jumpstart.md` lists them.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tradewind_jumpstart::{Config, Mode, Settings};
use tradewind_net::jump_start::Options;
use tradewind_net::sock_diag::Filter;
use tradewind_units::time::as_text;
use tradewind_units::{Bytes, Duration, in_plain_words};

use crate::TunerError;
use crate::error::Mistake;

/// The file as a whole.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TunerConfig {
    /// How to learn; see [`tradewind_jumpstart::Config`].
    pub learn: Settings,
    /// Whom to look at.
    pub observe: Observe,
    /// What to act through.
    pub act: Act,
    /// Where metrics and health are served; nowhere when absent.
    #[serde(deserialize_with = "tradewind_units::address::option")]
    pub metrics: Option<SocketAddr>,
    /// Whether that may be another than a loopback address.
    pub metrics_expose: bool,
    /// Names under which metrics and health are asked for, beside addresses and `localhost`.
    pub metrics_hosts: Vec<String>,
    /// The socket for `status`, `explain`, `hint` and `flush`; by default `jumpstart.sock` in the runtime
    /// directory.
    pub socket: Option<PathBuf>,
    /// A file of standing hints, read again when it changes. Default none.
    pub hints: Option<PathBuf>,
    /// Whose connections are meant.
    #[serde(skip)]
    pub scope: Scope,
}

/// Whose connections are looked at, and start by what was learned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scope {
    /// All of the host's, as far as the configuration says.
    #[default]
    Host,
    /// Those of this process, dialled and accepted.
    Process,
}

/// The section of a process that learns for itself.
const SECTION: &str = "jumpstart";
/// Keys of the daemon that reach beyond one process or that it has elsewhere, and what to do instead.
const NOT_IN_A_SECTION: [(&str, &str); 7] = [
    ("metrics", "the process's own `metrics` serves them; leave it out"),
    ("metrics_expose", "it belongs to the process's own `metrics`; leave it out"),
    ("metrics_hosts", "it belongs to the process's own `metrics`; leave it out"),
    ("observe.cgroup", "only this process's connections are looked at; leave it out"),
    ("act.cgroup", "only what this process dials and accepts starts so; leave it out"),
    ("act.all_namespaces", "only what this process dials and accepts starts so; leave it out"),
    ("act.receive", "routes alone set it, and they hold for the whole host; leave it out"),
];
/// What serde lists behind a name that it does not know.
const LIST: &str = "expected one of ";
/// Least receive buffer. Chosen: what Linux's default ones take; a smaller one would be left out without a word.
const LEAST_RECEIVE_BUFFER: Bytes = Bytes::new(64 * 1024);
/// Why none of a process's own learners acts through routes.
const NO_ROUTES: &str = "routes hold for all connections of the host: `auto`, `sockops` or `none`, or run `tradewind jumpstart run` instead";

/// Whom to look at.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// Time between two looks, the paper's i_u. Default 1 s `[RT IV-A]`. From 100 ms to 60 s: a look costs some
    /// 2 us a connection, and less often than that connections come and go unseen.
    #[serde(with = "as_text")]
    pub interval: Duration,
    /// Ports, at either end. Default all.
    pub ports: Vec<u16>,
    /// Prefixes of the other end. Default all.
    pub within: Vec<IpNet>,
    /// Prefixes that are left out. Default loopback and link-local addresses (chosen: no path to learn).
    pub except: Vec<IpNet>,
    /// The control group (version 2) whose sockets are looked at, with those of the groups below it. Default all.
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

/// What decisions act through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// The first of the others that works here. The default: says which, and why not the one before.
    #[default]
    Auto,
    /// A program in the kernel (eBPF) that sees each connection: paces, shares, and goes with its owner.
    Sockops,
    /// Routes, as in the paper: works on every Linux.
    Routes,
    /// Nothing: learns and shows only.
    None,
}

/// How to act.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Act {
    /// Through what.
    pub through: Through,
    /// Whether routes give a first receive window of at least `c_max`, too, so that the other end's jump finds room
    /// `[RT III-C]`, and never less than there was without. Default yes, as in the paper. It raises one on kernels before
    /// 4.20 alone; later ones, and so all that sockops works on, offer the whole buffer by themselves.
    pub receive: bool,
    /// Receive buffer of listeners and of sockets that dial known destinations, set before the handshake, by
    /// sockops alone. Default none: the kernel stops to grow a buffer that was set, so that one too small for a
    /// path slows it for good. Worth it where first flights above 64 KiB arrive; at most net.core.rmem_max.
    pub receive_buffer: Option<Bytes>,
    /// The control group (version 2) whose connections are meant, by sockops alone. Default the top of the
    /// hierarchy: all.
    pub cgroup: Option<PathBuf>,
    /// Whether connections of other network namespaces start so, too, by sockops alone. Default no: an address
    /// may be another host there, and what they do is not observed.
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

impl TunerConfig {
    /// Reads the file's `text`.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn parse(text: &str) -> Result<Self, TunerError> {
        let config: Self = read_toml(text)?;
        config.check("")?;
        Ok(config)
    }

    /// Reads the section `[jumpstart]` of another program's file, if it has one: for that process alone.
    ///
    /// # Errors
    /// One line that names the key.
    pub fn of_section(text: &str) -> Result<Option<Self>, TunerError> {
        #[derive(Deserialize)]
        struct File {
            jumpstart: Option<TunerConfig>,
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
            Err(TunerError::from(Mistake { place, problem: problem.to_owned() }))
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

    /// How to learn, resolved.
    ///
    /// # Errors
    /// The first setting out of range.
    pub fn learn(&self) -> Result<Config, TunerError> {
        Ok(Config::resolve(&self.learn)?)
    }

    /// Checks what `within` the file is this configuration, as its keys begin.
    fn check(&self, within: &str) -> Result<(), TunerError> {
        let place = |key: &str| format!("`{within}{key}`");
        let learn = Config::resolve(&self.learn)
            .map_err(|error| Mistake { place: place("learn"), problem: error.to_string() })?;
        let (ttl, interval) = (learn.ttl, self.observe.interval);
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
            let problem = format!("a span from 100 ms to 60 s, not {interval:?}");
            return Err(Mistake { place: place("observe.interval"), problem }.into());
        }
        // What is confirmed each round is not to be forgotten in between, nor for one look that failed.
        if ttl < interval * 2 {
            let problem = format!("at least two intervals of {interval:?}, not {ttl:?}");
            return Err(Mistake { place: place("learn.ttl"), problem }.into());
        }
        if let Some(metrics) = self.metrics {
            tradewind_telemetry::check_exposed(metrics, self.metrics_expose)
                .map_err(|problem| Mistake { place: place("metrics"), problem })?;
        }
        let buffer = self.act.receive_buffer;
        if let Some(bytes) = buffer.filter(|bytes| *bytes < LEAST_RECEIVE_BUFFER) {
            let least = LEAST_RECEIVE_BUFFER.as_u64() / 1024;
            let problem = format!("at least {least} KiB, which Linux takes by itself, not {bytes}");
            return Err(Mistake { place: place("act.receive_buffer"), problem }.into());
        }
        Ok(())
    }

    /// How to act, for the program in the kernel, with `learn`.
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

    /// Whom to look at, for the kernel.
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

/// A mistake in the section of a process that learns for itself, without the names in its list that are refused there.
fn offering_what_is_taken(mistake: Mistake) -> Mistake {
    let Mistake { place, problem } = &mistake;
    let key = place.split('`').nth(1).and_then(|key| key.strip_prefix(SECTION)?.strip_prefix('.'));
    let (Some(key), Some((said, listed))) = (key, problem.split_once(LIST)) else { return mistake };
    // A list is of keys beside this one, or of values for it.
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

/// Reads TOML.
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
    fn an_empty_file_is_the_paper() {
        let config = TunerConfig::parse("").unwrap();
        assert_eq!(config.learn().unwrap(), Config::default());
        assert_eq!(config.observe.interval, Duration::from_secs(1));
        assert_eq!(config.act.through, Through::Auto);
    }

    #[test]
    fn the_configuration_that_comes_with_the_unit_holds_the_defaults() {
        let shipped = include_str!("../../systemd/jumpstart.toml");
        let (shipped, default) = (TunerConfig::parse(shipped).unwrap(), TunerConfig::default());
        assert_eq!(shipped.learn().unwrap(), default.learn().unwrap());
        let shown = |config: &TunerConfig| format!("{:?} {:?}", config.observe, config.act);
        assert_eq!(shown(&shipped), shown(&default));
    }

    #[test]
    fn a_section_of_another_file_is_for_that_process_alone() {
        assert!(TunerConfig::of_section("listen = 1\n[leg]\n").unwrap().is_none());
        let text = "listen = 1\n[jumpstart.learn]\nttl = \"9 s\"\n[jumpstart.observe]\nports = [7]";
        let config = TunerConfig::of_section(text).unwrap().unwrap();
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
            let error = TunerConfig::of_section(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
            let offered = ["`metrics`", "`cgroup`", "`all_namespaces`", "`receive`", "`routes`"];
            let list = error.split_once("expected one of").map_or("", |(_, list)| list);
            assert!(offered.iter().all(|refused| !list.contains(refused)), "{error}");
        }
    }

    #[test]
    fn a_mistake_is_told_in_one_line_with_its_key() {
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
            let error = TunerConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
