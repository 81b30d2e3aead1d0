//! What names mean, asked once for each session.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

type Answer = dyn Fn(&str) -> Vec<IpAddr> + Send + Sync;

/// Who says what a name means: the system, unless another is given.
#[derive(Clone, Default)]
pub struct Resolver(Option<Arc<Answer>>);

impl Resolver {
    /// A resolver that answers by `answer`, at once. An empty answer: there is no such name.
    pub fn by(answer: impl Fn(&str) -> Vec<IpAddr> + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(answer)))
    }

    /// The addresses of `name`, with `port`, IPv4 that was mapped into IPv6 unwrapped.
    pub(crate) async fn resolve(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let canonical = |ip: IpAddr| SocketAddr::new(ip.to_canonical(), port);
        match &self.0 {
            Some(answer) => Ok(answer(name).into_iter().map(canonical).collect()),
            None => {
                let found = tokio::net::lookup_host((name, port)).await?;
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
