//! The ceiling of a host: the most that its owner allows any controller. The agent refuses a
//! document beyond it, so that a stolen controller makes no open relay of the host.
//!
//! Probes stay below it, too: they go to addresses that the host may dial anyway, and are
//! bounded in time and connections.
//!
//! Whatever the ceiling says, a document never leads outside the folder of its processes: keys and
//! files are in it, logs go to the agent alone, metrics stay on the host, and no process runs as
//! root. A process may learn the initial windows of its own connections, and of no others.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tradewind_config::packet::{GatewayPackets, TrafficSource};
use tradewind_config::{
    AccessLogConfig, GatewayConfig, JumpstartConfig, Kind, LegProfiles, LogTarget, RelayConfig,
};
use tradewind_desired::Route;
use tradewind_grant::{Destination, DestinationRule};
use tradewind_units::{Bandwidth, Money, PricePerGb, Segments};

use crate::message::{
    Document, LEARNERS_FOLDER, Probe, ProbeKind, Process, SESSIONS_SOCKET, STARTER_SOCKET,
    learner_socket,
};
use crate::record::{JumpstartSettings, Role};
use crate::schedule::RESPONDER_PORT;

mod bounds;

pub use crate::bounds::{Bounds, SpendBound};

/// Most bytes of a transfer that is timed. Chosen: ten times the largest that the controller asks
/// for.
const MAX_SIZE: u32 = 1_000_000;
/// The name of the file that holds the host's own identity, which no document may write.
pub const DATA_KEY: &str = "data.key";

/// The most that a host's owner allows: the file `ceiling.toml` of an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ceiling {
    /// The roles that it may run: `relay`, `gateway`.
    pub roles: Vec<String>,
    /// Destinations that a relay or a gateway here may dial for others.
    pub destinations: Vec<DestinationRule>,
    /// Relays that a relay or a gateway here may dial.
    pub next_hops: Vec<DestinationRule>,
    /// True if a gateway here may take traffic that was not sent to it on purpose (`tproxy`), or
    /// offer proxies to other hosts (`expose`).
    #[serde(default)]
    pub capture: bool,
    /// The greatest initial window, in segments, that a process here may start its connections
    /// with; 100 when absent `[RT IV-B1]`, 0 for none but the kernel's own.
    #[serde(default = "default_initial_window")]
    pub initial_window: u32,
    /// Most that its relay and gateway carry together, both directions added up; no bound when
    /// absent. Those that drain carry as much for 30 seconds, and a rate test sends as much.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Bandwidth>,
    /// Most that what they send may cost in a day (UTC), such as `5 usd/day`, by
    /// `egress_usd_per_gb`; no bound when absent.
    #[serde(default, with = "bounds::of_day", skip_serializing_if = "Option::is_none")]
    pub spend: Option<Money>,
    /// The price of a GB that leaves the host, in dollars; needed with `spend`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub egress_usd_per_gb: Option<PricePerGb>,
}

/// Returns the bound of initial windows of owners who give none: the learner's own.
fn default_initial_window() -> u32 {
    JumpstartSettings::default().window_max.as_u32()
}

/// The way in which a document exceeds a ceiling, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("process `{process}`: {problem}")]
pub struct CeilingViolation {
    /// The process.
    pub process: String,
    /// The key that is not allowed, and what would be.
    pub problem: String,
}

/// Most handshakes, and most connections and milliseconds of a rate test, of one probe. Chosen:
/// several times what a controller asks for.
const MAX_SAMPLES: u32 = 1000;
const MAX_CONNECTIONS: u32 = 64;
const MAX_DURATION_MS: u64 = 60_000;

/// Public addresses: all of the Internet, mail (port 25) aside, since that is what a stolen relay
/// would be used for first. A rule of all addresses covers no private network.
const INTERNET: [&str; 4] =
    ["0.0.0.0/0:1-24", "0.0.0.0/0:26-65535", "[::]/0:1-24", "[::]/0:26-65535"];

/// Returns the rules of [`INTERNET`].
fn internet() -> Vec<DestinationRule> {
    INTERNET.iter().filter_map(|rule| rule.parse().ok()).collect()
}

impl Ceiling {
    /// Returns the ceiling of a host whose owner has given none: its role, and all public
    /// addresses without mail; no private network, not the host itself.
    #[must_use]
    pub fn of_role(role: &Role) -> Self {
        let roles = match role {
            Role::Relay { .. } => vec!["relay".to_owned()],
            Role::Gateway { .. } => vec!["gateway".to_owned()],
            Role::Probe { .. } => Vec::new(),
        };
        Self {
            roles,
            destinations: internet(),
            next_hops: internet(),
            capture: false,
            initial_window: default_initial_window(),
            rate: None,
            spend: None,
            egress_usd_per_gb: None,
        }
    }

    /// Checks that a document stays below it.
    ///
    /// # Errors
    /// The first way in which it does not, or a configuration that cannot be read.
    pub fn allows(&self, document: &Document) -> Result<(), CeilingViolation> {
        let names: BTreeSet<&str> = document.processes.iter().map(|p| p.name.as_str()).collect();
        let configurations = document.processes.iter().map(|p| format!("{}.toml", p.name));
        let mut files: BTreeSet<String> = configurations.collect();
        for process in &document.processes {
            let beyond = |problem| CeilingViolation { process: process.name.clone(), problem };
            self.check_process(process).map_err(beyond)?;
            for file in process.files.keys() {
                if !files.insert(file.clone()) {
                    return Err(beyond(format!("file `{file}`: there are two of this name")));
                }
            }
        }
        if names.len() < document.processes.len() {
            let problem = "there are two of one name".to_owned();
            let process = document.processes.first().map(|p| p.name.clone()).unwrap_or_default();
            return Err(CeilingViolation { process, problem });
        }
        Ok(())
    }

    /// Checks that a probe stays below it: its target is an address that a relay or a gateway here
    /// may dial, at such a port or at that of other agents' responders.
    ///
    /// # Errors
    /// In one line, what it exceeds and how.
    pub fn allows_probe(&self, probe: &Probe) -> Result<(), String> {
        let target = probe.target;
        let covers = |rule: &DestinationRule| {
            let at = |port| SocketAddr::new(target.ip().to_canonical(), port);
            rule.covers_address(at(target.port()))
                || target.port() == RESPONDER_PORT && rule.covers_address(at(*rule.ports().start()))
        };
        if !self.destinations.iter().chain(&self.next_hops).any(covers) {
            let limits = "`destinations` and `next_hops`";
            return Err(format!("probe of {target}: it is beyond the ceiling's {limits}"));
        }
        match probe.kind {
            ProbeKind::Rtt { samples, .. } if samples > MAX_SAMPLES => {
                Err(format!("probe of {target}: {samples} handshakes; at most {MAX_SAMPLES}"))
            }
            ProbeKind::Rtt { interval_ms, .. } if interval_ms > MAX_DURATION_MS => {
                Err(format!("probe of {target}: {interval_ms} ms between handshakes"))
            }
            ProbeKind::Rate { connections, .. } if connections > MAX_CONNECTIONS => Err(format!(
                "probe of {target}: {connections} connections; at most {MAX_CONNECTIONS}"
            )),
            ProbeKind::Rate { duration_ms, .. } if duration_ms > MAX_DURATION_MS => {
                Err(format!("probe of {target}: {duration_ms} ms; at most {MAX_DURATION_MS}"))
            }
            ProbeKind::Transfers { sizes } if sizes.iter().any(|size| *size > MAX_SIZE) => {
                Err(format!("probe of {target}: transfers of at most {MAX_SIZE} bytes"))
            }
            ProbeKind::Rtt { .. } | ProbeKind::Rate { .. } | ProbeKind::Transfers { .. } => Ok(()),
        }
    }

    fn check_process(&self, process: &Process) -> Result<(), String> {
        check_name(&process.name)?;
        process.files.keys().try_for_each(|file| check_file_name(file))?;
        let role = match process.kind {
            Kind::Relay => "relay",
            Kind::Gateway => "gateway",
            Kind::Jumpstart => "jumpstart",
        };
        if !self.roles.iter().any(|allowed| allowed == role) {
            let allowed = self.roles.join(", ");
            return Err(format!("a {role} is not allowed here; `roles` allows: {allowed}"));
        }
        match process.kind {
            Kind::Relay => {
                let config = RelayConfig::parse(&process.config).map_err(|e| e.to_string())?;
                self.check_relay(&config, process)
            }
            Kind::Gateway => {
                let config = GatewayConfig::parse(&process.config).map_err(|e| e.to_string())?;
                self.check_gateway(&config, process)
            }
            Kind::Jumpstart => Err("jump-start acts on the whole host: start it there".to_owned()),
        }
    }

    fn check_relay(&self, config: &RelayConfig, process: &Process) -> Result<(), String> {
        let is_foreign = config.access_log.as_ref().is_some_and(|log| !is_of_agent(log));
        Common {
            identity_file: config.identity_file.as_deref(),
            other_identity: config.identity.is_some()
                || config.previous_identity.is_some()
                || config.previous_identity_file.is_some(),
            files: [("revocations", config.revocations.as_deref()), ("", None)],
            run_as: config.run_as.as_deref(),
            metrics: config.metrics,
            has_logs: is_foreign || config.audit_log.is_some(),
            has_traces: config.traces.is_some(),
            learner: config.jumpstart.as_ref(),
        }
        .check(process)?;
        if let Some(packets) = config.packets().map_err(|error| error.to_string())? {
            if packets.services.is_registry || packets.services.rendezvous.is_some() {
                return Err("packet: a registry and storage are not for controllers".to_owned());
            }
            self.check_next_hops("packet.next_hops", &packets.next_hops)?;
        }
        self.check_windows(config.jumpstart.as_ref(), &config.leg)?;
        self.check_destinations("policy.destinations", &config.policy.destinations)?;
        self.check_next_hops("policy.next_hops", &config.policy.next_hops)
    }

    fn check_gateway(&self, config: &GatewayConfig, process: &Process) -> Result<(), String> {
        Common {
            identity_file: config.identity_file.as_deref(),
            other_identity: config.identity.is_some()
                || config.previous_identity.is_some()
                || config.previous_identity_file.is_some(),
            files: [
                ("revocations", config.revocations.as_deref()),
                ("grant_file", config.grant_file.as_deref()),
            ],
            run_as: config.run_as.as_deref(),
            metrics: config.metrics,
            has_logs: config.access_log.as_ref().is_some_and(|log| !is_of_agent(log)),
            has_traces: config.traces.is_some(),
            learner: config.jumpstart.as_ref(),
        }
        .check(process)?;
        if let Some(packets) = config.packets().map_err(|error| error.to_string())? {
            self.check_packets(&packets)?;
        }
        self.check_windows(config.jumpstart.as_ref(), &config.leg)?;
        if !self.capture && (!config.tproxy.is_empty() || config.has_open_proxies()) {
            return Err("tproxy, and proxies for other hosts, take `capture = true`".to_owned());
        }
        self.check_direct(config)?;
        let forwards: Vec<_> = config.forward.iter().map(|forward| forward.to.as_rule()).collect();
        self.check_destinations("forward.to", &forwards)?;
        let captured: Vec<_> =
            config.tproxy.iter().flat_map(|tproxy| tproxy.destinations.clone()).collect();
        self.check_destinations("tproxy.destinations", &captured)?;
        if config.allow_loopback && !self.destinations.iter().any(is_of_loopback) {
            return Err("allow_loopback: `destinations` allows no loopback address".to_owned());
        }
        for route in config.routes.routes() {
            let Route::Relays(hops) = route else { continue };
            // The addresses of a name are whatever its owner says.
            if let Some(hop) = hops.iter().find(|hop| !hop.is_placed()) {
                return Err(format!(
                    "routes: relay `{}`: expected an address, not a name",
                    hop.name
                ));
            }
            let at = hops.iter().map(|hop| Destination::address(hop.address));
            let at: Vec<_> = at.collect::<Result<_, _>>().map_err(|e| format!("routes: {e}"))?;
            let rules: Vec<_> = at.iter().map(Destination::as_rule).collect();
            self.check_next_hops("routes.relay.address", &rules)?;
        }
        Ok(())
    }

    /// Checks a gateway's packet plane: ports of its own for applications, relays and remote
    /// gateways by their addresses, and destinations that it delivers to.
    fn check_packets(&self, packets: &GatewayPackets) -> Result<(), String> {
        let is_plain = packets.groups.is_empty()
            && packets.rendezvous.deposits.is_empty()
            && packets.rendezvous.relays.is_empty()
            && packets.socks5_udp.is_none()
            && packets.further_addresses.is_empty()
            && packets.preserve_source.is_empty()
            && packets.tunnel.is_none()
            && packets.members.is_none();
        if !is_plain {
            return Err("packets: expected `[[packet]]` with `listen` and `to` alone".to_owned());
        }
        for path in &packets.paths {
            if !matches!(path.source, TrafficSource::Port { .. }) {
                return Err("packet: expected `listen` and `to`".to_owned());
            }
            // Without a file of members, all are given by address.
            let hops = path.delivery.named();
            let rules: Vec<_> =
                hops.map(|hop| Destination::Address(hop.address).as_rule()).collect();
            self.check_next_hops("packet.relays, packet.remote", &rules)?;
        }
        self.check_destinations("packet_endpoint.destinations", &packets.destinations)
    }

    /// Checks the initial windows that a process may learn, or set for single legs.
    fn check_windows(
        &self,
        learner: Option<&JumpstartConfig>,
        legs: &LegProfiles,
    ) -> Result<(), String> {
        let learned = learner.map(|learner| {
            learner.learn.c_max.map_or_else(default_initial_window, Segments::as_u32)
        });
        let profiles = [&legs.accept, &legs.dial].into_iter();
        let profiles = profiles.chain(legs.to.iter().map(|to| &to.dial));
        let of_legs = profiles.filter_map(|profile| profile.initial_window).max();
        for (key, most) in
            [("jumpstart.learn.c_max", learned), ("leg", of_legs.map(Segments::as_u32))]
        {
            if let Some(most) = most.filter(|most| *most > self.initial_window) {
                let bound = self.initial_window;
                return Err(format!(
                    "{key}: {most} segments are beyond the ceiling's `initial_window`, {bound}"
                ));
            }
        }
        Ok(())
    }

    /// Checks the destinations of sessions through proxies that go direct.
    fn check_direct(&self, config: &GatewayConfig) -> Result<(), String> {
        if config.socks5.is_empty() && config.connect.is_empty() {
            return Ok(());
        }
        let direct = config.routes.rules().filter(|(_, routes)| routes.contains(&Route::Direct));
        for (rule, _) in direct {
            match rule {
                Some(rule) => self.check_destinations("routes", std::slice::from_ref(rule))?,
                None => self.check_destinations("routes.default", &internet())?,
            }
        }
        Ok(())
    }

    fn check_destinations(&self, key: &str, rules: &[DestinationRule]) -> Result<(), String> {
        check_within(key, rules, ("destinations", &self.destinations))
    }

    fn check_next_hops(&self, key: &str, rules: &[DestinationRule]) -> Result<(), String> {
        check_within(key, rules, ("next_hops", &self.next_hops))
    }
}

/// The keys that relays and gateways have in common.
struct Common<'a> {
    identity_file: Option<&'a Path>,
    /// True if there is another identity than that of `identity_file`.
    other_identity: bool,
    files: [(&'static str, Option<&'a Path>); 2],
    run_as: Option<&'a str>,
    metrics: Option<SocketAddr>,
    has_logs: bool,
    has_traces: bool,
    learner: Option<&'a JumpstartConfig>,
}

impl Common<'_> {
    fn check(&self, process: &Process) -> Result<(), String> {
        let is_own = |file: &Path| file == Path::new(DATA_KEY);
        if self.other_identity || !self.identity_file.is_none_or(is_own) {
            return Err(format!("identity_file: expected `{DATA_KEY}`, this host's own identity"));
        }
        for (key, file) in &self.files {
            let named = file.map(|file| file.to_str().unwrap_or_default());
            if let Some(name) = named.filter(|name| !process.files.contains_key(*name)) {
                return Err(format!("{key}: `{name}` is not among the document's files"));
            }
        }
        if self.run_as == Some("root") {
            return Err("run_as: no process runs as root".to_owned());
        }
        if let Some(metrics) = self.metrics.filter(|metrics| !metrics.ip().is_loopback()) {
            return Err(format!("metrics: {metrics} is no loopback address"));
        }
        if self.has_logs {
            return Err(format!(
                "access_log, audit_log: expected none, or an access log to `unix:{SESSIONS_SOCKET}`"
            ));
        }
        if self.has_traces {
            return Err("traces: expected none; the host's owner has them sent".to_owned());
        }
        let socket = learner_socket(&process.name);
        let leads_out = |learner: &JumpstartConfig| {
            let is_own = |at: &PathBuf| *at == Path::new(&socket);
            learner.hints.is_some() || !learner.socket.as_ref().is_none_or(is_own)
        };
        if self.learner.is_some_and(leads_out) {
            return Err(format!("jumpstart: expected no `hints`, and no `socket` but `{socket}`"));
        }
        Ok(())
    }
}

/// Returns whether the agent alone receives a log.
fn is_of_agent(log: &AccessLogConfig) -> bool {
    log.to == LogTarget::Unix(SESSIONS_SOCKET.into())
}

fn is_of_loopback(rule: &DestinationRule) -> bool {
    rule.range().is_some_and(|(base, bits)| base.is_loopback() && bits >= 8)
}

fn check_within(
    key: &str,
    rules: &[DestinationRule],
    (limit, allowed): (&str, &[DestinationRule]),
) -> Result<(), String> {
    match rules.iter().find(|rule| !rule.is_within(allowed)) {
        Some(rule) => Err(format!("{key}: {rule} is beyond the ceiling's `{limit}`")),
        None => Ok(()),
    }
}

/// Most bytes of a name. Chosen: far below what file systems take.
const MAX_NAME_BYTES: usize = 64;

/// Refuses a process's name that is more than a word.
fn check_name(name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.bytes().all(is_good) {
        return Err("its name: expected letters, digits and `-`".to_owned());
    }
    Ok(())
}

/// Refuses a file's name that leads outside its folder, or to a file of the agent.
fn check_file_name(name: &str) -> Result<(), String> {
    let is_good = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_plain = !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name.bytes().all(is_good)
        && !name.starts_with('.');
    let of_agent = [DATA_KEY, SESSIONS_SOCKET, STARTER_SOCKET, LEARNERS_FOLDER];
    let is_of_agent = of_agent.contains(&name) || name.ends_with(".ready");
    if !is_plain || is_of_agent {
        return Err(format!("file `{name}`: expected a plain name, and none of the agent's"));
    }
    Ok(())
}
