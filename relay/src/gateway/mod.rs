//! A gateway: it takes an application's connection, asks its route table for the path, and puts
//! the flow on it.
//!
//! A port forward sends the header and the application's data at once. SOCKS5 and CONNECT clients
//! hear whether the path is open before they send.

mod connect;
mod session;
mod socks5;

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tradewind_grant::{GrantError, PublicIdentity, Sealer};
use tradewind_units::FlowId;

use crate::dial::{Dialler, try_options};
use crate::profile::Legs;
use crate::relay::unix_now;
use crate::resolver::Resolver;
use crate::server::{Server, Setup};
use crate::session::Keeping;
use crate::{GatewayConfig, Handle, RelayError, Shutdown};

use session::{Entrance, GatewayService};

/// A gateway whose listeners are open.
pub struct Gateway {
    server: Server,
    service: Arc<GatewayService>,
    identity: Option<PublicIdentity>,
}

impl Gateway {
    /// Opens the listeners and the metrics port.
    ///
    /// # Errors
    /// When the identity cannot be read, the grant is another gateway's or has expired, or an address cannot be
    /// listened on.
    pub fn bind(config: &GatewayConfig) -> Result<Self, RelayError> {
        let identity = config.identity()?;
        let public = identity.as_ref().map(|key| key.public());
        let sealer = match (identity, config.grant.clone()) {
            (Some(identity), Some(grant)) => {
                // One that is not in force yet may be waited for; one that is over is of no use.
                if let Err(over @ GrantError::Expired { .. }) =
                    grant.unverified().check_time(unix_now())
                {
                    return Err(over.into());
                }
                Some(Mutex::new(Sealer::new(identity, grant)?))
            }
            _ => None,
        };
        let legs = Arc::new(Legs::new(&config.leg, &config.timeouts));
        try_options(&legs)?;
        let (addresses, entrances): (Vec<_>, Vec<_>) = entrances(config).into_iter().unzip();
        let server = Server::bind(&Setup {
            program: "gateway",
            addresses: &addresses,
            workers: config.workers,
            limits: &config.limits,
            accept: &legs.accept,
            drain: config.timeouts.drain,
            retire: config.timeouts.retire,
            metrics: config.metrics,
        })?;
        let service = Arc::new(GatewayService {
            entrances,
            routes: config.routes.clone(),
            allow_loopback: config.allow_loopback,
            sealer,
            keeping: Keeping::new(Arc::clone(&legs), &config.timeouts),
            dialler: Dialler {
                legs,
                limit: config.timeouts.dial,
                own_listeners: server.handle().own_listeners(),
                resolver: Resolver::default(),
            },
            request_limit: config.timeouts.header,
        });
        Ok(Self { server, service, identity: public })
    }

    /// The same gateway, which asks `resolver` what names mean.
    ///
    /// # Panics
    /// Never: nobody else holds the service before the gateway runs.
    #[must_use]
    pub fn with_resolver(mut self, resolver: Resolver) -> Self {
        let service = Arc::get_mut(&mut self.service).expect("no worker has started");
        service.dialler.resolver = resolver;
        self
    }

    /// Who this gateway is, if it has an identity.
    #[must_use]
    pub const fn identity(&self) -> Option<PublicIdentity> {
        self.identity
    }

    /// What can be seen of it while it runs.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.server.handle().clone()
    }

    /// Serves until `shutdown` tells it to end. Blocks.
    ///
    /// # Errors
    /// When a thread cannot be started, or ends by a bug.
    pub fn run(self, shutdown: &Shutdown) -> Result<(), RelayError> {
        self.server.run(&self.service, shutdown)
    }
}

fn entrances(config: &GatewayConfig) -> Vec<(SocketAddr, Entrance)> {
    let word = |word| FlowId::new(word).expect("a short word");
    let forwards = config.forward.iter().map(|forward| {
        (forward.listen, Entrance::Forward { to: forward.to.clone(), flow: forward.flow.clone() })
    });
    let socks5 = config.socks5.iter().map(|address| (*address, Entrance::Socks5(word("socks5"))));
    let connect =
        config.connect.iter().map(|address| (*address, Entrance::Connect(word("connect"))));
    forwards.chain(socks5).chain(connect).collect()
}
