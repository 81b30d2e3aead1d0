//! The configuration of jump-start's daemon, and the section `[jumpstart]` of a process with its
//! own learner. Every key is optional.

use std::net::SocketAddr;
use std::path::PathBuf;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use tradewind_jumpstart::{Config, Settings, prefix};
use tradewind_units::time::as_text;
use tradewind_units::{Bytes, Duration};

use crate::checks::check_exposed;
use crate::{ConfigError, document};

/// The file as a whole.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct JumpstartConfig {
    /// The learner's settings.
    pub learn: Settings,
    /// The connections to observe.
    pub observe: Observe,
    /// The actuator and its settings.
    pub act: Act,
    /// The address that serves metrics and health; none when absent.
    #[serde(deserialize_with = "tradewind_units::address::option")]
    #[schemars(with = "Option<tradewind_units::address::Written>")]
    pub metrics: Option<SocketAddr>,
    /// True if that may be another than a loopback address.
    pub metrics_expose: bool,
    /// Host names accepted in requests for metrics and health, beside addresses and `localhost`.
    pub metrics_hosts: Vec<String>,
    /// The socket for `status`, `explain`, `hint` and `flush`; when absent `jumpstart.sock` in the
    /// runtime directory: `/run/tradewind` for root, XDG_RUNTIME_DIR for users, or what
    /// TRADEWIND_RUNTIME_DIR names.
    pub socket: Option<PathBuf>,
    /// A file of standing hints, read again when it changes; none when absent.
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

/// Least receive buffer. Chosen: what Linux's default ones take; a smaller one would be ignored
/// silently.
const MIN_RECEIVE_BUFFER: Bytes = Bytes::new(64 * 1024);
/// The connections to observe.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Observe {
    /// Time between two rounds, the paper's i_u `[RT IV-A]`, from 100 ms to 60 s: sampling costs
    /// some 2 us a connection, and at longer intervals connections come and go unseen.
    #[serde(with = "as_text")]
    #[schemars(with = "tradewind_units::time::Written")]
    pub interval: Duration,
    /// Ports, at either end; all when empty.
    pub ports: Vec<u16>,
    /// Prefixes of the other end, without bits behind them; all when empty.
    #[serde(deserialize_with = "prefix::list")]
    #[schemars(with = "Vec<tradewind_jumpstart::prefix::Written>")]
    pub within: Vec<IpNet>,
    /// Prefixes that are left out.
    #[serde(deserialize_with = "prefix::list")]
    #[schemars(with = "Vec<tradewind_jumpstart::prefix::Written>")]
    pub except: Vec<IpNet>,
    /// The control group (version 2) whose sockets are observed, with those of the groups below it
    /// (Linux 5.9); all when absent.
    pub cgroup: Option<PathBuf>,
}

impl Default for Observe {
    fn default() -> Self {
        // Loopback and link-local addresses: there is no path to learn.
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize, JsonSchema, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Through {
    /// The first of the others that works here. Logs which one, and why not the one before.
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
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Act {
    /// The actuator.
    pub through: Through,
    /// True if routes also set an initial receive window of at least `c_max`, so that the other
    /// end's jump finds room `[RT III-C]`, and never less than without. It raises the window on
    /// kernels before 4.20 alone; later ones, and so all that sockops works on, advertise the whole
    /// buffer by themselves.
    pub receive: bool,
    /// Receive buffer of listeners and of sockets that dial known destinations, set before the
    /// handshake, by sockops alone; from 64 KiB to net.core.rmem_max. The kernel's when absent: it
    /// stops growing a buffer that was set, so that one too small for a path slows it for good.
    /// Useful where first flights above 64 KiB arrive.
    pub receive_buffer: Option<Bytes>,
    /// The control group (version 2) whose connections it applies to, by sockops alone; when absent
    /// the root of the hierarchy: all.
    pub cgroup: Option<PathBuf>,
    /// True if it applies to connections of other network namespaces, too, by sockops alone:
    /// an address may be another host there, and their connections are not observed.
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

impl JumpstartConfig {
    /// Parses and checks the daemon's file.
    ///
    /// # Errors
    /// The first mistake, with its key, its line and the expected value.
    pub fn parse(text: &str) -> Result<Self, ConfigError> {
        let config: Self = document::parse(text)?;
        config.check().map_err(|error| error.located(text))?;
        Ok(config)
    }

    /// Checks the values of keys against each other.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let refused = |key, problem: String| Err(ConfigError::new(key, problem));
        let learn = Config::resolve(&self.learn)
            .map_err(|error| ConfigError::new("learn", error.to_string()))?;
        let (ttl, interval) = (learn.ttl, self.observe.interval);
        if !(Duration::from_millis(100)..=Duration::from_secs(60)).contains(&interval) {
            let problem = format!("expected a span from 100 ms to 60 s, not {interval:?}");
            return refused("observe.interval", problem);
        }
        // A value that each round confirms must not expire in between, nor after one failed round.
        if ttl < interval * 2 {
            let problem = format!("expected at least two intervals of {interval:?}, not {ttl:?}");
            return refused("learn.ttl", problem);
        }
        check_exposed(self.metrics, self.metrics_expose)?;
        let buffer = self.act.receive_buffer;
        if let Some(bytes) = buffer.filter(|bytes| *bytes < MIN_RECEIVE_BUFFER) {
            let least = MIN_RECEIVE_BUFFER.as_u64() / 1024;
            let problem =
                format!("expected at least {least} KiB, which Linux takes by itself, not {bytes}");
            return refused("act.receive_buffer", problem);
        }
        Ok(())
    }
}

/// The learner of a process: the keys of the daemon's file that reach no further than the process.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Section {
    /// The learner's settings.
    learn: Settings,
    /// The connections to observe.
    observe: SectionObserve,
    /// The actuator and its settings.
    act: SectionAct,
    /// The socket for `status`, `explain`, `hint` and `flush`; when absent `jumpstart-NAME.sock` in
    /// the runtime directory, after the file `NAME.toml`.
    socket: Option<PathBuf>,
    /// A file of standing hints, read again when it changes; none when absent.
    hints: Option<PathBuf>,
}

/// The connections of the process to observe.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SectionObserve {
    /// Time between two rounds, from 100 ms to 60 s.
    #[serde(with = "as_text")]
    #[schemars(with = "tradewind_units::time::Written")]
    interval: Duration,
    /// Ports, at either end; all when empty.
    ports: Vec<u16>,
    /// Prefixes of the other end, without bits behind them; all when empty.
    #[serde(deserialize_with = "prefix::list")]
    #[schemars(with = "Vec<tradewind_jumpstart::prefix::Written>")]
    within: Vec<IpNet>,
    /// Prefixes that are left out.
    #[serde(deserialize_with = "prefix::list")]
    #[schemars(with = "Vec<tradewind_jumpstart::prefix::Written>")]
    except: Vec<IpNet>,
}

impl Default for SectionObserve {
    fn default() -> Self {
        let Observe { interval, ports, within, except, cgroup: _ } = Observe::default();
        Self { interval, ports, within, except }
    }
}

/// The actuator of the process, and its settings.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct SectionAct {
    /// The actuator: `sockops`, or nothing where that does not work (`auto`); not `routes`.
    #[serde(deserialize_with = "of_one_process")]
    through: Through,
    /// Receive buffer of listeners and of sockets that dial known destinations, set before the
    /// handshake, by `sockops` alone; at least 64 KiB. The kernel's when absent.
    receive_buffer: Option<Bytes>,
}

/// Deserializes the actuator of a process: not routes.
fn of_one_process<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Through, D::Error> {
    let through = Through::deserialize(deserializer)?;
    if through == Through::Routes {
        return Err(D::Error::custom(
            "routes hold for all connections of the host: expected `auto`, `sockops` or `none`, or \
             run `tradewind jumpstart run` instead",
        ));
    }
    Ok(through)
}

/// Deserializes `[jumpstart]` of a relay's or gateway's file: for that process alone.
pub(crate) fn section<'de, D>(deserializer: D) -> Result<Option<JumpstartConfig>, D::Error>
where
    D: Deserializer<'de>,
{
    let Section { learn, observe, act, socket, hints } = document::table(deserializer)?;
    let SectionObserve { interval, ports, within, except } = observe;
    let SectionAct { through, receive_buffer } = act;
    Ok(Some(JumpstartConfig {
        learn,
        observe: Observe { interval, ports, within, except, cgroup: None },
        act: Act { through, receive: false, receive_buffer, ..Act::default() },
        socket,
        hints,
        scope: Scope::Process,
        ..JumpstartConfig::default()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GatewayConfig;

    #[test]
    fn empty_file_matches_the_paper() {
        let config = JumpstartConfig::parse("").unwrap();
        assert_eq!(Config::resolve(&config.learn).unwrap(), Config::default());
        assert_eq!(config.observe.interval, Duration::from_secs(1));
        assert_eq!(config.act.through, Through::Auto);
    }

    #[test]
    fn shipped_configuration_holds_the_defaults() {
        let shipped = include_str!("../../../systemd/jumpstart.toml");
        let (shipped, default) =
            (JumpstartConfig::parse(shipped).unwrap(), JumpstartConfig::default());
        assert_eq!(
            Config::resolve(&shipped.learn).unwrap(),
            Config::resolve(&default.learn).unwrap()
        );
        let shown = |config: &JumpstartConfig| format!("{:?} {:?}", config.observe, config.act);
        assert_eq!(shown(&shipped), shown(&default));
    }

    /// Returns a gateway with these lines at its end.
    fn gateway(lines: &str) -> Result<GatewayConfig, ConfigError> {
        GatewayConfig::parse(&format!("socks5 = ['127.0.0.1:0']\n{lines}"))
    }

    #[test]
    fn section_of_a_gateway_covers_its_process_alone() {
        assert!(gateway("").unwrap().jumpstart.is_none());
        let text = "[jumpstart.learn]\nttl = \"9 s\"\n[jumpstart.observe]\nports = [7]";
        let config = gateway(text).unwrap().jumpstart.unwrap();
        assert_eq!(Config::resolve(&config.learn).unwrap().ttl, Duration::from_secs(9));
        assert_eq!((config.scope, config.observe.ports), (Scope::Process, vec![7]));
        assert!(!config.act.receive);
        for (text, expected) in [
            (
                "[jumpstart]\ncolour = 1",
                "`jumpstart.colour` (line 3): unknown field `colour`, expected one of `learn`, \
                 `observe`, `act`, `socket`, `hints`",
            ),
            ("[jumpstart.observe]\nx = 1", "one of `interval`, `ports`, `within`, `except`"),
            ("[jumpstart.act]\nx = 1", "expected `through` or `receive_buffer`"),
            (
                "[jumpstart.act]\nthrough = \"routes\"",
                "`jumpstart.act.through` (line 3): routes hold for all connections",
            ),
            (
                "[jumpstart.act]\nreceive_buffer = \"1 B\"",
                "`jumpstart.act.receive_buffer` (line 3): expected at least 64 KiB",
            ),
            ("[jumpstart.learn]\nc_maximum = 1", "`jumpstart.learn.c_maximum` (line 3): unknown"),
            (
                "[jumpstart.learn]\nc_max = 5",
                "`jumpstart.learn` (line 2): c_min: 10 segments, above c_max, 5",
            ),
            (
                "[jumpstart.observe]\ninterval = \"1 ms\"",
                "`jumpstart.observe.interval` (line 3): expected a span from",
            ),
            ("[[jumpstart]]\n[[jumpstart]]", "`jumpstart` (line 2): invalid type: "),
            ("[jumpstart]\nmetrics = \"127.0.0.1:1\"", "`jumpstart.metrics` (line 3): unknown"),
            ("[jumpstart.observe]\ncgroup = \"/x\"", "`jumpstart.observe.cgroup` (line 3): unk"),
            ("[jumpstart.act]\nreceive = true", "`jumpstart.act.receive` (line 3): unknown field"),
        ] {
            let error = gateway(text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn mistakes_are_one_line_with_the_key() {
        for (text, expected) in [
            ("[learn]\nmode = \"bold\"", "`learn.mode` (line 2)"),
            ("[learn]\nc_max = 5", "`learn` (line 1): c_min: 10 segments, above c_max, 5"),
            ("[learn]\nttl = \"ninety\"", "`learn.ttl` (line 2)"),
            ("[observe]\ninterval = \"1 ms\"", "`observe.interval` (line 2): expected a span"),
            (
                "[learn]\nttl = \"1 s\"\n[observe]\ninterval = \"60 s\"",
                "`learn.ttl` (line 2): expected at least two",
            ),
            ("[observe]\nwithin = [\"10.0.0.0\"]", "`observe.within[0]`"),
            ("[act]\nthrough = \"magic\"", "`act.through`"),
            ("[act]\nreceive_buffer = \"many\"", "`act.receive_buffer`"),
            ("[act]\nreceive_buffer = \"1 B\"", "`act.receive_buffer` (line 2): expected at"),
            ("colour = 1", "unknown field `colour`"),
            ("[learn", "line 1"),
        ] {
            let error = JumpstartConfig::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
}
