//! Looks names up in the hosts file and at the name servers of this host, on a thread of its own.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use hickory_resolver::config::{NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::NetError;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::op::Query;
use hickory_resolver::proto::rr::{Name, RecordType};
use hickory_resolver::system_conf::parse_resolv_conf;
use hickory_resolver::{Hosts, TokioResolver};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::table::{Answer, FAILURE_MEMORY, Table, Wanted};
use crate::process::server::bind_reader;

/// Time for which a name with addresses of one family waits for those of the other. Source: RFC
/// 8305, 3.
const RESOLUTION_DELAY: Duration = Duration::from_millis(50);

/// Time limit of a lookup. Chosen: below the limit of a dial, of which it is part.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(8);

/// Interval at which the host's files are checked for changes.
const LOOK: Duration = Duration::from_secs(1);

/// Longest time for which a negative answer is cached, whatever its TTL, as long as the table of
/// lookups remembers failures; and the longest for an address.
const NEGATIVE_TTL: Duration = FAILURE_MEMORY;
const POSITIVE_TTL: Duration = Duration::from_secs(3600);

/// The host's files that name hosts and name servers.
#[derive(Debug, Clone)]
pub(super) struct Files {
    pub(super) resolv_conf: PathBuf,
    pub(super) hosts: PathBuf,
    /// The port of the servers, if not that of name servers; for tests.
    pub(super) port: Option<u16>,
}

impl Default for Files {
    fn default() -> Self {
        let (resolv_conf, hosts) = ("/etc/resolv.conf".into(), "/etc/hosts".into());
        Self { resolv_conf, hosts, port: None }
    }
}

/// Starts a thread that answers until all senders are dropped.
///
/// # Errors
/// When no thread can be started.
pub(super) fn start(files: Files) -> io::Result<UnboundedSender<Wanted>> {
    let (wants, wanted) = unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::Builder::new().name("names".to_owned()).spawn(move || {
        // It parses answers from untrusted servers.
        bind_reader();
        // The library's messages about answers are not logged, since the servers would control
        // them.
        let silent = tracing::subscriber::NoSubscriber::default();
        tracing::subscriber::with_default(silent, || runtime.block_on(serve(wanted, files)));
    })?;
    Ok(wants)
}

async fn serve(mut wanted: UnboundedReceiver<Wanted>, files: Files) {
    let mut table = Table::default();
    let mut source = Source::load(files);
    let mut lookups = JoinSet::new();
    loop {
        tokio::select! {
            request = wanted.recv() => match request {
                Some(request) => table.want(Instant::now(), request),
                None => return,
            },
            Some(Ok((name, answer))) = lookups.join_next() => {
                table.done(Instant::now(), &name, &answer);
            }
        }
        while let Some(name) = table.next() {
            let asker = source.current();
            lookups.spawn(async move {
                let late = || Err("the name servers have not answered in time".into());
                let answer = timeout(LOOKUP_TIMEOUT, asker.look_up(&name)).await;
                (name, answer.unwrap_or_else(|_| late()))
            });
        }
    }
}

/// The stamp of a file, which shows that it has changed.
type Stamp = Option<(SystemTime, u64)>;

/// The host's files, and their content when they were last read.
struct Source {
    files: Files,
    stamps: [Stamp; 2],
    looked_at: Instant,
    asker: Arc<Asker>,
}

impl Source {
    fn load(files: Files) -> Self {
        let stamps = stamps(&files);
        let asker = Arc::new(Asker::load(&files));
        Self { files, stamps, looked_at: Instant::now(), asker }
    }

    /// Returns the current asker.
    fn current(&mut self) -> Arc<Asker> {
        if self.looked_at.elapsed() >= LOOK {
            self.looked_at = Instant::now();
            if self.stamps != stamps(&self.files) {
                *self = Self::load(self.files.clone());
            }
        }
        Arc::clone(&self.asker)
    }
}

fn stamps(files: &Files) -> [Stamp; 2] {
    let stamp = |path: &Path| {
        let file = std::fs::metadata(path).ok()?;
        Some((file.modified().ok()?, file.len()))
    };
    [&files.resolv_conf, &files.hosts].map(|path| stamp(path))
}

/// The names of the hosts file, and the name servers.
struct Asker {
    hosts: Hosts,
    servers: Result<TokioResolver, Arc<str>>,
}

impl Asker {
    fn load(files: &Files) -> Self {
        let mut hosts = Hosts::default();
        if let Ok(file) = std::fs::File::open(&files.hosts) {
            // A file that fails to parse is used up to the error.
            let _rest = hosts.read_hosts_conf(file);
        }
        let servers = servers(files).map_err(|error| error.to_string().into());
        Self { hosts, servers }
    }

    /// Returns the addresses of `name`, those of IPv6 first. It is absolute: no search list
    /// completes it.
    async fn look_up(&self, name: &str) -> Answer {
        let name = Name::from_ascii(format!("{name}.")).map_err(|_| "no name of a host")?;
        let of_file = |kind| self.hosts.lookup_static_host(&Query::query(name.clone(), kind));
        let (v6, v4) = (of_file(RecordType::AAAA), of_file(RecordType::A));
        if v6.is_some() || v4.is_some() {
            return Ok(v6.iter().chain(&v4).flat_map(addresses).collect());
        }
        let servers = self.servers.as_ref().map_err(Arc::clone)?;
        let mut v6 = pin!(servers.lookup(name.clone(), RecordType::AAAA));
        let mut v4 = pin!(servers.lookup(name.clone(), RecordType::A));
        let has_some = |found: &Result<Lookup, NetError>| {
            found.as_ref().is_ok_and(|found| addresses(found).next().is_some())
        };
        let (v6, v4) = tokio::select! {
            v6 = &mut v6 => {
                let v4 = if has_some(&v6) {
                    timeout(RESOLUTION_DELAY, v4).await.unwrap_or(Err(NetError::Timeout))
                } else {
                    v4.await
                };
                (v6, v4)
            }
            v4 = &mut v4 => {
                let v6 = if has_some(&v4) {
                    timeout(RESOLUTION_DELAY, v6).await.unwrap_or(Err(NetError::Timeout))
                } else {
                    v6.await
                };
                (v6, v4)
            }
        };
        let both = [&v6, &v4];
        let found: Arc<[IpAddr]> = both.into_iter().flatten().flat_map(addresses).collect();
        if !found.is_empty() {
            return Ok(found);
        }
        let failures = || both.into_iter().filter_map(|found| found.as_ref().err());
        let why = match failures().find(|error| !error.is_no_records_found()) {
            _ if failures().any(NetError::is_nx_domain) => "no such name".to_owned(),
            None => "no address".to_owned(),
            Some(NetError::Timeout) => "the name servers have not answered in time".to_owned(),
            Some(error) => format!("the name servers: {error}"),
        };
        Err(why.into())
    }
}

fn addresses(found: &Lookup) -> impl Iterator<Item = IpAddr> {
    found.answers().iter().filter_map(|record| record.data.ip_addr())
}

/// Returns the servers that `files` name; without any, one on this host, as resolv.conf(5) has it.
fn servers(files: &Files) -> Result<TokioResolver, NetError> {
    let text = std::fs::read(&files.resolv_conf).unwrap_or_default();
    let (config, mut options) = parse_resolv_conf(text).unwrap_or_else(|_| {
        let here = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
        (ResolverConfig::from_name_servers(vec![here]), ResolverOpts::default())
    });
    let (_, _, mut servers) = config.into_parts();
    let connections = servers.iter_mut().flat_map(|server| &mut server.connections);
    if let Some(port) = files.port {
        connections.for_each(|connection| connection.port = port);
    }
    options.use_hosts_file = ResolveHosts::Never;
    options.positive_max_ttl = Some(POSITIVE_TTL);
    options.negative_max_ttl = Some(NEGATIVE_TTL);
    let config = ResolverConfig::from_name_servers(servers);
    let provider = TokioRuntimeProvider::default();
    TokioResolver::builder_with_config(config, provider).with_options(options).build()
}
