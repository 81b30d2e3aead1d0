//! Reload of a gateway's routes, identities, grant, users, limits, timeouts and control arm while
//! it runs.

use std::sync::{Arc, LazyLock, PoisonError};

use tradewind_config::GatewayConfig;
use tradewind_grant::Sealer;
use tradewind_stream::StreamError;
use tradewind_stream::error::refused;
use tradewind_stream::keys;
use tradewind_stream::limits::live::{LIMITS_KEYS, LiveLimits};
use tradewind_stream::limits::timeouts::LiveTimeouts;
use tradewind_stream::process::reload::{Prepared, Reload};

use super::check_not_over;
use super::loops::check_local_output;
use super::service::GatewayService;

/// The keys of a gateway's configuration that a reload applies.
pub static LIVE_KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let own = [
        "routes",
        "control_share",
        "grant",
        "grant_file",
        "identity",
        "identity_file",
        "previous_identity",
        "previous_identity_file",
        "user",
    ];
    own.into_iter().chain(LIMITS_KEYS).chain(LiveTimeouts::KEYS).collect()
});

/// Replaces a gateway's routes, identities, grant, users, limits, timeouts and share of the control
/// arm; clones reload the same gateway.
#[derive(Clone)]
pub struct GatewayReloader(pub(super) Arc<GatewayService>);

impl GatewayReloader {
    /// Applies the routes, identities, grant, users, limits, timeouts and `control_share` of
    /// `config`. New sessions use them; open ones continue, and paths that remain keep their
    /// health.
    ///
    /// # Errors
    /// When an identity cannot be read, the grant has expired or is for another gateway, routes go
    /// over relays and the gateway was started without identity or grant, or a proxy that is open
    /// to other hosts would have no users. Nothing changes then.
    pub fn apply(&self, config: &GatewayConfig) -> Result<(), StreamError> {
        self.ready(config.clone()).map(|take_over| drop(take_over()))
    }

    fn ready(&self, config: GatewayConfig) -> Result<Prepared, StreamError> {
        let service = Arc::clone(&self.0);
        // The interception rules stay as they were at the start.
        check_local_output(&service.tproxy, &config.routes)?;
        let prepare = |live: &LiveLimits| live.prepare(&config.limits, &config.timeouts);
        let limits = service.limits.as_ref().map(prepare).transpose()?;
        if service.needs_users && config.user.is_empty() {
            let problem = "missing, and a proxy of this process is open to other hosts; expected \
                           users, or a restart with `expose_without_password = true`";
            return Err(refused("user", problem));
        }
        let users = config.user.clone();
        let own = service.opener.dialler.own.prepare(&keys::of_gateway(&config, &service.held)?)?;
        let (identity, grant) = (keys::opening(&config, &service.held)?, keys::grant(&config)?);
        let routing = service.opener.routes.prepare(config.routes)?;
        let sealer = match (&service.opener.sealer, grant) {
            (Some(_), Some(grant)) => {
                check_not_over(&grant)?;
                let identity = identity.ok_or_else(|| refused("identity_file", "missing"))?;
                Some(Sealer::new(identity, grant)?)
            }
            (None, Some(_)) => {
                let problem = "the gateway was started without identity or grant; restart it";
                return Err(refused("grant", problem));
            }
            (_, None) => None,
        };
        Ok(Box::new(move || {
            // Before anything is sealed under a new identity.
            service.opener.dialler.own.set(own);
            if let (Some(sealer), Some(new)) = (&service.opener.sealer, sealer) {
                sealer.lock().unwrap_or_else(PoisonError::into_inner).replace(new);
            }
            service.opener.routes.replace(routing);
            service.opener.control_share.replace(config.control_share);
            service.users.set(&users);
            if let (Some(live), Some(limits)) = (&service.limits, limits) {
                live.set(&limits);
            }
            None
        }))
    }
}

impl Reload for GatewayReloader {
    fn live(&self) -> &'static [&'static str] {
        &LIVE_KEYS[..]
    }

    fn prepare(&self, text: &str) -> Result<Prepared, StreamError> {
        self.ready(GatewayConfig::parse(text)?)
    }
}
