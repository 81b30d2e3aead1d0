//! Resolution of names.
//!
//! A name is absolute: no search list of a host applies. It is looked up in the hosts file, then by
//! the name servers of resolv.conf(5), on a thread of its own that never waits for one name while
//! another is asked for. Answers are cached for their TTL.

mod asker;
mod table;

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use asker::Files;
use table::Wanted;

/// Lookups that one asker, such as a gateway, has under way. Chosen: 320 names a second where each
/// takes a tenth.
const MAX_LOOKUPS: usize = 32;

type Answer = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

/// A resolver of names: the system's, unless another is given.
#[derive(Clone)]
pub struct Resolver(Source);

#[derive(Clone)]
enum Source {
    Given(Arc<Answer>),
    /// The host's files and servers; the thread that asks them starts with the first name.
    System(Arc<(Files, Mutex<Option<UnboundedSender<Wanted>>>)>),
}

impl Default for Resolver {
    fn default() -> Self {
        Self::of(Files::default())
    }
}

/// The lookups that one asker has under way.
#[derive(Debug, Clone)]
pub struct Lookups {
    under_way: Arc<AtomicUsize>,
    most: usize,
}

impl Lookups {
    /// Creates those of one asker among others.
    pub fn of_one() -> Self {
        Self { under_way: Arc::default(), most: MAX_LOOKUPS }
    }

    /// Creates those of many askers that cannot be distinguished: at most as many as are left to
    /// others.
    pub fn of_many() -> Self {
        Self { under_way: Arc::default(), most: usize::MAX }
    }

    /// Returns true if none is under way.
    pub(crate) fn rest(&self) -> bool {
        self.under_way.load(Relaxed) == 0
    }

    /// Returns true if one more may begin where `free` are free.
    fn may_begin(&self, free: usize) -> bool {
        let under_way = self.under_way.load(Relaxed);
        under_way < self.most && under_way < free
    }

    fn begin(&self) {
        self.under_way.fetch_add(1, Relaxed);
    }

    fn end(&self) {
        self.under_way.fetch_sub(1, Relaxed);
    }
}

impl Resolver {
    /// Creates a resolver that answers by `answer`, at once. An empty answer: there is no such
    /// name.
    pub fn by(answer: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Source::Given(Arc::new(answer)))
    }

    /// Creates a resolver that reads `resolv_conf` and `hosts` in place of the host's own files,
    /// and asks at `port` in place of the port of name servers.
    #[must_use]
    pub fn reading(resolv_conf: PathBuf, hosts: PathBuf, port: u16) -> Self {
        Self::of(Files { resolv_conf, hosts, port: Some(port) })
    }

    fn of(files: Files) -> Self {
        Self(Source::System(Arc::new((files, Mutex::new(None)))))
    }

    /// Returns the addresses of `name`, with `port`, IPv4-mapped IPv6 addresses unwrapped; looked
    /// up as one of `lookups`.
    pub async fn resolve(
        &self,
        name: &str,
        port: u16,
        lookups: &Lookups,
    ) -> io::Result<Vec<SocketAddr>> {
        let canonical = |ip: IpAddr| SocketAddr::new(ip.to_canonical(), port);
        match &self.0 {
            Source::Given(answer) => Ok(answer(name).into_iter().map(canonical).collect()),
            Source::System(_) => {
                let (reply, receiver) = oneshot::channel();
                self.want(Wanted { name: name.into(), lookups: lookups.clone(), reply })?;
                let answer = receiver.await.map_err(io::Error::other)?;
                let found = answer.map_err(|why| io::Error::other(why.to_string()))?;
                Ok(found.iter().copied().map(canonical).collect())
            }
        }
    }

    /// Sends a request to the thread that asks.
    fn want(&self, wanted: Wanted) -> io::Result<()> {
        let Source::System(system) = &self.0 else { return Ok(()) };
        let (files, thread) = &**system;
        let mut thread = thread.lock().unwrap_or_else(PoisonError::into_inner);
        let wants = match thread.take() {
            Some(wants) => wants,
            None => asker::start(files.clone())?,
        };
        let sent = wants.send(wanted).map_err(|_| io::Error::other("the resolver has ended"));
        // A thread that has ended is started anew by the next request.
        *thread = sent.is_ok().then_some(wants);
        sent
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Source::Given(_) => "Resolver(given)",
            Source::System(_) => "Resolver(system)",
        })
    }
}

#[cfg(test)]
mod tests;
