//! The subjects of the benchmark, and the commands that start them.
//!
//! All proxies read their configuration from standard input and leave no file. nginx and HAProxy
//! get the settings that their documentation gives for plain TCP at high rates; HAProxy's number of
//! threads, splicing and pipe size are swept, and so is our relay's number of workers, see `run`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use anyhow::{Context, bail};
use tradewind_net::lifeline::Lifeline;
use tradewind_net::netns::Namespace;
use tradewind_net::{affinity, processes, usage};
use tradewind_units::{Bytes, Duration};

use crate::access::{Access, DESTINATIONS, Gateway, Keys};
use crate::nameless;
use crate::place::{COLLECTOR, IN_A_ROW, Place, Port, haproxy_in_row, relay_in_row, relays_in_row};

/// A subject of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Subject {
    /// Client and server on one veth pair.
    Direct,
    /// nginx with its `stream` module.
    Nginx,
    /// HAProxy in `mode tcp` with splicing.
    Haproxy,
    /// Our relay.
    Tradewind,
    /// Our gateway and our relay behind it, the leg between them plain.
    Chain,
    /// The same, the leg encrypted.
    #[value(name = "chain-tls")]
    ChainTls,
    /// The plain chain, which sends the spans of every session to a collector: for `connect` alone.
    #[value(name = "chain-traced")]
    ChainTraced,
    /// Three HAProxys in a row: for `early-answer` alone, as the next two.
    #[value(name = "haproxy-three")]
    HaproxyThree,
    /// Our gateway and three relays in a row behind it, the legs between them plain.
    Three,
    /// The same, the legs encrypted.
    #[value(name = "three-tls")]
    ThreeTls,
}

/// Subjects that stand in one table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Group {
    /// One proxy, or none.
    Single,
    /// A gateway and a relay.
    Chain,
    /// Three in a row.
    Three,
}

impl Subject {
    /// All subjects, in the order of the table.
    pub(crate) const ALL: [Self; 10] = [
        Self::Direct,
        Self::Nginx,
        Self::Haproxy,
        Self::Tradewind,
        Self::Chain,
        Self::ChainTls,
        Self::ChainTraced,
        Self::HaproxyThree,
        Self::Three,
        Self::ThreeTls,
    ];

    /// Returns which subjects it is compared with.
    pub(crate) const fn group(self) -> Group {
        match self {
            Self::Direct | Self::Nginx | Self::Haproxy | Self::Tradewind => Group::Single,
            Self::Chain | Self::ChainTls | Self::ChainTraced => Group::Chain,
            Self::HaproxyThree | Self::Three | Self::ThreeTls => Group::Three,
        }
    }

    /// Returns whether it is made of our own program.
    pub(crate) const fn is_ours(self) -> bool {
        !matches!(self, Self::Direct | Self::Nginx | Self::Haproxy | Self::HaproxyThree)
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Direct => "direct",
            Self::Nginx => "nginx",
            Self::Haproxy => "HAProxy",
            Self::Tradewind => "Tradewind",
            Self::Chain => "plain",
            Self::ChainTls => "TLS 1.3",
            Self::ChainTraced => "traced",
            Self::HaproxyThree => "3 HAProxys",
            Self::Three => "3 relays, plain",
            Self::ThreeTls => "3 relays, TLS 1.3",
        }
    }
}

/// HAProxy's settings that are swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct HaproxySettings {
    /// `nbthread`.
    pub(crate) threads: usize,
    /// Splicing in both directions.
    pub(crate) splice: bool,
    /// `tune.pipesize` in KiB.
    pub(crate) pipe_kib: u32,
}

impl HaproxySettings {
    /// Returns all combinations that are tried.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        let pipes = [(false, 64), (true, 64), (true, 256), (true, 1024)];
        let with =
            move |threads| pipes.map(|(splice, pipe_kib)| Self { threads, splice, pipe_kib });
        [1, 2].into_iter().flat_map(with)
    }
}

impl std::fmt::Display for HaproxySettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "nbthread {}, ", self.threads)?;
        if self.splice {
            write!(f, "splice by {} KiB", self.pipe_kib)
        } else {
            f.write_str("no splice")
        }
    }
}

/// Our relay's settings that are swept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
pub(crate) struct RelaySettings {
    /// `workers`.
    pub(crate) workers: usize,
}

impl std::fmt::Display for RelaySettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "workers {}", self.workers)
    }
}

/// The swept settings of all proxies.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) haproxy: HaproxySettings,
    pub(crate) relay: RelaySettings,
}

impl Settings {
    /// Returns the default settings.
    pub(crate) const fn usual(cpus: usize) -> Self {
        Self {
            haproxy: HaproxySettings { threads: 1, splice: true, pipe_kib: 64 },
            relay: RelaySettings { workers: cpus },
        }
    }
}

/// The paths of the programs; for a missing one, an explanation.
#[derive(Debug)]
pub(crate) struct Programs {
    nginx: Result<PathBuf, String>,
    haproxy: Result<PathBuf, String>,
    tradewind: Result<PathBuf, String>,
    /// The selected subjects; all when empty.
    asked: Vec<Subject>,
}

impl Programs {
    /// Looks for all programs; only `asked` subjects take part, or all when it is empty.
    pub(crate) fn find(tradewind: Option<PathBuf>, asked: &[Subject]) -> Self {
        let beside = || Some(std::env::current_exe().ok()?.parent()?.join("tradewind"));
        let ours = tradewind.or_else(beside).filter(|path| path.is_file());
        let build =
            "build it with `cargo build --release -p tradewind`, or name it with --tradewind";
        let nginx = match (in_path("nginx"), Path::new(NGINX_STREAM).is_file()) {
            (Some(path), true) => Ok(path),
            (Some(_), false) => {
                Err(format!("{NGINX_STREAM} (Debian package libnginx-mod-stream) is not installed"))
            }
            (None, _) => {
                Err("nginx (Debian packages nginx-light, libnginx-mod-stream) is not installed"
                    .to_owned())
            }
        };
        let haproxy = in_path("haproxy");
        Self {
            nginx,
            haproxy: haproxy
                .ok_or_else(|| "haproxy (Debian package haproxy) is not installed".to_owned()),
            tradewind: ours.ok_or_else(|| format!("the program `tradewind` is not there; {build}")),
            asked: asked.to_vec(),
        }
    }

    /// Returns the reason why `subject` cannot take part, if it cannot.
    pub(crate) fn missing(&self, subject: Subject) -> Option<&str> {
        if !self.asked.is_empty() && !self.asked.contains(&subject) {
            return Some("it was not asked for");
        }
        self.path(subject)?.as_ref().err().map(String::as_str)
    }

    fn path(&self, subject: Subject) -> Option<&Result<PathBuf, String>> {
        match subject {
            Subject::Direct => None,
            Subject::Nginx => Some(&self.nginx),
            Subject::Haproxy | Subject::HaproxyThree => Some(&self.haproxy),
            _ => Some(&self.tradewind),
        }
    }

    /// Returns the first line of each program's version output.
    pub(crate) fn versions(&self) -> Vec<String> {
        let ask = |path: &Result<PathBuf, String>, flag: &str| {
            let output = Command::new(path.as_ref().ok()?).arg(flag).output().ok()?;
            let text = [output.stdout, output.stderr].concat();
            String::from_utf8_lossy(&text).lines().next().map(str::to_owned)
        };
        [(&self.nginx, "-v"), (&self.haproxy, "-v"), (&self.tradewind, "--version")]
            .into_iter()
            .filter_map(|(path, flag)| ask(path, flag))
            .collect()
    }
}

const NGINX_STREAM: &str = "/usr/lib/nginx/modules/ngx_stream_module.so";

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path).chain(usual).map(|dir| dir.join(program)).find(|p| p.is_file())
}

/// The context in which a subject is started.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Start<'a> {
    pub(crate) programs: &'a Programs,
    pub(crate) place: &'a Place,
    pub(crate) keys: &'a Keys,
    /// The CPUs that the proxy may use.
    pub(crate) cpus: &'a [usize],
}

/// A running subject. A proxy is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Running {
    subject: Subject,
    /// One process, or several of a chain.
    children: Vec<Child>,
    _lifeline: Lifeline,
    namespace: Arc<Namespace>,
}

/// Longest time until a proxy listens.
const READY_LIMIT: std::time::Duration = std::time::Duration::from_secs(5);

impl Running {
    /// Starts `subject` and waits until it listens.
    pub(crate) fn start(
        subject: Subject,
        settings: Settings,
        start: Start<'_>,
    ) -> anyhow::Result<Self> {
        let lifeline = Lifeline::new()?;
        let namespace = Arc::clone(&start.place.relay);
        let mut running = Self { subject, children: Vec::new(), _lifeline: lifeline, namespace };
        let Some(path) = start.programs.path(subject) else { return Ok(running) };
        let path = path.as_ref().map_err(|missing| anyhow::anyhow!("{missing}"))?;
        for Process { arguments, config, address } in processes_of(subject, settings, start) {
            let mut command = Command::new(path);
            command.args(arguments).stdin(nameless::file(config.as_bytes())?);
            command.stdout(Stdio::null()).stderr(Stdio::piped());
            running._lifeline.tie(&mut command, Arc::clone(&start.place.relay));
            // A process inherits the CPUs of the thread that starts it.
            let spawned = thread::scope(|scope| {
                let spawn = || -> anyhow::Result<Child> {
                    affinity::restrict(start.cpus)?;
                    command.spawn().with_context(|| format!("start {}", path.display()))
                };
                scope.spawn(spawn).join().expect("starting a process does not panic")
            });
            running.children.push(spawned?);
            running.wait_until_ready(start.place, address)?;
        }
        Ok(running)
    }

    fn wait_until_ready(&mut self, place: &Place, address: SocketAddr) -> anyhow::Result<()> {
        let begin = std::time::Instant::now();
        loop {
            let answer = place.client.run(|| std::net::TcpStream::connect(address))?;
            if answer.is_ok() {
                return Ok(());
            }
            let child = self.children.last_mut().expect("a proxy is a process");
            let ended = child.try_wait().context("look after a proxy")?;
            if ended.is_some() || begin.elapsed() > READY_LIMIT {
                let mut error_line = String::new();
                drop(child.kill());
                if let Some(stderr) = &mut child.stderr {
                    drop(std::io::Read::read_to_string(stderr, &mut error_line));
                }
                let error_line = error_line.lines().last().unwrap_or("it says nothing");
                bail!("{} does not listen at {address}: {error_line}", self.subject.name());
            }
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }

    /// Returns the method by which one client thread opens sessions.
    pub(crate) fn access(&self, keys: &Keys) -> anyhow::Result<Access> {
        Ok(match self.subject {
            Subject::Direct => Access::Direct,
            Subject::Tradewind => Access::Relay(Box::new(Gateway::new(keys)?)),
            _ => Access::Proxy,
        })
    }

    /// Returns the CPU time that the proxy's processes have used; `None` without a proxy.
    pub(crate) fn cpu_time(&self) -> anyhow::Result<Option<Duration>> {
        self.children.first().map(|_| self.sum(usage::cpu_time)).transpose()
    }

    /// Returns the memory of the proxy's processes; `None` without a proxy.
    pub(crate) fn memory(&self) -> anyhow::Result<Option<Bytes>> {
        let sum = || -> anyhow::Result<Bytes> {
            let each = processes::inside(&self.namespace).into_iter().map(usage::memory);
            let sum = |sum: Bytes, memory: usage::Memory| sum.saturating_add(memory.proportional);
            Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().fold(Bytes::ZERO, sum))
        };
        self.children.first().map(|_| sum()).transpose()
    }

    fn sum(
        &self,
        of: fn(u32) -> Result<Duration, tradewind_net::NetError>,
    ) -> anyhow::Result<Duration> {
        let each = processes::inside(&self.namespace).into_iter().map(of);
        Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().sum())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.children {
            // The lifeline kills the others of its group a moment later.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// One process of a subject.
struct Process {
    arguments: &'static [&'static str],
    config: String,
    /// The address that it listens on.
    address: SocketAddr,
}

impl Process {
    fn haproxy(settings: HaproxySettings, proxies: &[(SocketAddr, SocketAddr)]) -> Self {
        let address = proxies.last().expect("a proxy leads somewhere").0;
        let config = haproxy_config(settings, proxies);
        Self { arguments: &["-db", "-f", "/dev/stdin"], config, address }
    }
}

/// Returns the processes of a subject in the order of their start.
fn processes_of(subject: Subject, settings: Settings, start: Start<'_>) -> Vec<Process> {
    let cpus = start.cpus.len();
    let relay = |place, workers, encryption| Process {
        arguments: &["relay", "--config", "/dev/stdin"],
        config: relay_config(start.keys, place, workers, encryption),
        address: relay_in_row(place),
    };
    let chain = |relays: usize, encryption| -> Vec<Process> {
        let gateway = Process {
            arguments: &["gateway", "--config", "/dev/stdin"],
            config: gateway_config(start.keys, relays, cpus, encryption),
            address: Port::Echo.at_proxy(),
        };
        (0..relays).map(|place| relay(place, cpus, encryption)).chain([gateway]).collect()
    };
    let traced = |mut process: Process| {
        process.config += &format!("[traces]\nendpoint = \"http://{COLLECTOR}\"\nsample = 1.0\n");
        process
    };
    match subject {
        Subject::Direct => Vec::new(),
        Subject::Nginx => vec![Process {
            arguments: &["-c", "/dev/stdin", "-e", "stderr"],
            config: nginx_config(cpus),
            address: Port::Echo.at_proxy(),
        }],
        Subject::Haproxy => {
            let proxies = Port::ALL.map(|port| (port.at_proxy(), port.behind_relay()));
            vec![Process::haproxy(settings.haproxy, &proxies)]
        }
        Subject::Tradewind => vec![relay(0, settings.relay.workers, "none")],
        Subject::Chain => chain(1, "none"),
        Subject::ChainTls => chain(1, "tls"),
        Subject::ChainTraced => chain(1, "none").into_iter().map(traced).collect(),
        Subject::HaproxyThree => haproxys_in_row(settings.haproxy),
        Subject::Three => chain(IN_A_ROW, "none"),
        Subject::ThreeTls => chain(IN_A_ROW, "tls"),
    }
}

/// Returns HAProxys of which each leads to the next, the last one first.
fn haproxys_in_row(settings: HaproxySettings) -> Vec<Process> {
    let listens = |place| match place {
        0 => Port::Early.at_proxy(),
        IN_A_ROW => Port::Early.behind_relay(),
        place => haproxy_in_row(place),
    };
    let one = |place| Process::haproxy(settings, &[(listens(place), listens(place + 1))]);
    (0..IN_A_ROW).rev().map(one).collect()
}

fn nginx_config(workers: usize) -> String {
    let servers = Port::ALL.map(|port| {
        let (listen, server) = (port.at_proxy(), port.behind_relay());
        format!("server {{ listen {listen} backlog=4096 reuseport; proxy_pass {server}; }}\n")
    });
    format!(
        "load_module {NGINX_STREAM};\nuser root;\ndaemon off;\npid /proc/self/fd/1;\n\
         error_log stderr crit;\nworker_processes {workers};\nworker_rlimit_nofile 20000;\n\
         events {{ worker_connections 9000; }}\n\
         stream {{ tcp_nodelay on; proxy_timeout 1h;\n{}}}\n",
        servers.concat()
    )
}

fn haproxy_config(settings: HaproxySettings, proxies: &[(SocketAddr, SocketAddr)]) -> String {
    let HaproxySettings { threads, splice, pipe_kib } = settings;
    let splice = if splice { " option splice-request\n option splice-response\n" } else { "" };
    let listeners: Vec<String> = (proxies.iter())
        .map(|(listen, server)| {
            let port = listen.port();
            format!("listen on-{port}\n bind {listen} backlog 4096\n server s {server}\n")
        })
        .collect();
    format!(
        "global\n nbthread {threads}\n maxconn 8000\n maxpipes 1500\n tune.pipesize {}\n\
         defaults\n mode tcp\n{splice} option tcp-smart-accept\n option tcp-smart-connect\n\
         \x20timeout connect 5s\n timeout client 1h\n timeout server 1h\n{}",
        pipe_kib * 1024,
        listeners.concat()
    )
}

fn relay_config(keys: &Keys, place: usize, workers: usize, encryption: &str) -> String {
    format!(
        "listen = [\"{}\"]\nidentity = \"{}\"\noperators = [\"{}\"]\nworkers = {workers}\n\
         [policy]\ndestinations = [\"{DESTINATIONS}\"]\nnext_hops = [\"{}\"]\n\
         [leg]\naccept = {{ encryption = \"{encryption}\" }}\n\
         dial = {{ encryption = \"{encryption}\" }}\n",
        relay_in_row(place),
        *keys.relays[place].to_secret_text(),
        keys.operator.public(),
        relays_in_row(),
    )
}

fn gateway_config(keys: &Keys, relays: usize, workers: usize, encryption: &str) -> String {
    let forwards = Port::ALL.map(|port| {
        let (listen, to) = (port.at_proxy(), port.behind_relay());
        format!("[[forward]]\nlisten = \"{listen}\"\nto = \"{to}\"\n")
    });
    let names: Vec<String> = (0..relays).map(|place| format!("relay-{place}")).collect();
    let relay = |(name, place): (&String, usize)| {
        let (address, identity) = (relay_in_row(place), keys.relays[place].public());
        format!(
            "[[routes.relay]]\nname = \"{name}\"\naddress = \"{address}\"\n\
             identity = \"{identity}\"\n"
        )
    };
    let hops: String = names.iter().zip(0..).map(relay).collect();
    format!(
        "identity = \"{}\"\ngrant = \"{}\"\nworkers = {workers}\n{}\
         [leg.dial]\nencryption = \"{encryption}\"\n[routes]\ndefault = {names:?}\n{hops}",
        *keys.gateway.to_secret_text(),
        keys.grant,
        forwards.concat(),
    )
}
