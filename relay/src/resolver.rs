//! What names mean, asked once for each session.
//!
//! The system answers a thread at a time, and takes as long as whoever serves the name likes. So each asker has few lookups under
//! way, and those that have been given up count until the system has let go of their threads; what is beyond waits its turn.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

/// Threads of each worker that resolve names. Chosen: so many times [`MOST_LOOKUPS`] that a few askers with slow names leave room.
pub(crate) const RESOLVER_THREADS: usize = 64;

/// Lookups that one asker, such as a grant, has under way. Chosen: 80 names a second where each takes a tenth.
const MOST_LOOKUPS: usize = 8;

type Answer = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

/// Who says what a name means: the system, unless another is given.
#[derive(Clone, Default)]
pub struct Resolver(Option<Arc<Answer>>);

/// The lookups that one asker has under way.
#[derive(Debug, Clone)]
pub(crate) struct Lookups {
    free: Arc<Semaphore>,
    most: usize,
}

impl Lookups {
    /// Those of one asker among others.
    pub(crate) fn of_one() -> Self {
        Self::of(MOST_LOOKUPS)
    }

    /// Those of all, where askers are not told apart.
    pub(crate) fn of_all() -> Self {
        Self::of(RESOLVER_THREADS)
    }

    fn of(most: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(most)), most }
    }

    /// Whether none is under way.
    pub(crate) fn rest(&self) -> bool {
        self.free.available_permits() == self.most
    }

    /// Runs `lookup` on a thread of its own when it is its turn. Given up before that it never runs.
    async fn run<T: Send + 'static>(
        &self,
        lookup: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let turn = Arc::clone(&self.free).acquire_owned().await.map_err(io::Error::other)?;
        let lookup = move || {
            let _turn = turn;
            lookup()
        };
        spawn_blocking(lookup).await.map_err(io::Error::other)?
    }
}

impl Resolver {
    /// A resolver that answers by `answer`, at once. An empty answer: there is no such name.
    pub fn by(answer: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(answer)))
    }

    /// The addresses of `name`, with `port`, IPv4 that was mapped into IPv6 unwrapped; asked for as one of `lookups`.
    pub(crate) async fn resolve(
        &self,
        name: &str,
        port: u16,
        lookups: &Lookups,
    ) -> io::Result<Vec<SocketAddr>> {
        let canonical = |ip: IpAddr| SocketAddr::new(ip.to_canonical(), port);
        match &self.0 {
            Some(answer) => Ok(answer(name).into_iter().map(canonical).collect()),
            None => {
                let name = name.to_owned();
                let found = lookups.run(move || (name.as_str(), port).to_socket_addrs()).await?;
                Ok(found.map(|address| canonical(address.ip())).collect())
            }
        }
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Resolver(given)" } else { "Resolver(system)" })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::connection::tests::runtime;

    /// A lookup that takes until `told` is dropped, and says when it has begun.
    fn slow(begun: mpsc::Sender<()>, told: mpsc::Receiver<()>) -> impl FnOnce() -> io::Result<()> {
        move || {
            begun.send(()).unwrap();
            let _dropped = told.recv();
            Ok(())
        }
    }

    #[test]
    fn who_asks_for_slow_names_waits_for_them_and_others_do_not() {
        runtime().block_on(async {
            let (one, other) = (Lookups::of_one(), Lookups::of_one());
            let (begun, has_begun) = mpsc::channel();
            let mut slow_names = Vec::new();
            for _ in 0..=MOST_LOOKUPS {
                let (held, told) = mpsc::channel::<()>();
                let (one, lookup) = (one.clone(), slow(begun.clone(), told));
                slow_names.push((held, tokio::spawn(async move { one.run(lookup).await })));
            }
            tokio::task::yield_now().await;
            for _ in 0..MOST_LOOKUPS {
                has_begun.recv().unwrap();
            }
            assert_eq!(one.free.available_permits(), 0);
            assert_eq!(other.run(|| Ok(7)).await.unwrap(), 7);
            // Whoever gives up frees no thread; the last one is still waiting for its turn.
            slow_names.iter().for_each(|(_, task)| task.abort());
            tokio::task::yield_now().await;
            assert!(has_begun.try_recv().is_err());
            assert!(!one.rest());
            drop(slow_names);
            assert_eq!(one.run(|| Ok(8)).await.unwrap(), 8);
        });
    }
}
