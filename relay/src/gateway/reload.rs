//! A gateway's routes and grant, replaced while it runs.

use std::sync::{Arc, PoisonError};

use super::check_not_over;
use super::loops::check_own_host;
use super::session::GatewayService;
use crate::reload::{Prepared, Reload};
use crate::{GatewayConfig, RelayError};

/// The keys that a reload takes over.
const LIVE: [&str; 3] = ["routes", "grant", "grant_file"];

/// Replaces a gateway's routes and grant; clones reload the same gateway.
#[derive(Clone)]
pub struct GatewayReloader(pub(super) Arc<GatewayService>);

impl GatewayReloader {
    /// Takes the routes and the grant of `config` over. New sessions use them; open ones go on, and so
    /// does what is known of paths that remain.
    ///
    /// # Errors
    /// When the grant has expired or is for another gateway, or routes go over relays and the gateway was started without
    /// identity or grant. Nothing changes then.
    pub fn apply(&self, config: &GatewayConfig) -> Result<(), RelayError> {
        self.ready(config.clone()).map(|take_over| drop(take_over()))
    }

    fn ready(&self, config: GatewayConfig) -> Result<Prepared, RelayError> {
        check_own_host(&config.tproxy, &config.routes)?;
        let service = Arc::clone(&self.0);
        let grant = config.grant()?;
        let routing = service.routes.prepare(config.routes)?;
        let grant = match (&service.sealer, grant) {
            (Some(sealer), Some(grant)) => {
                check_not_over(&grant)?;
                let sealer = sealer.lock().unwrap_or_else(PoisonError::into_inner);
                sealer.check_grant(&grant)?;
                Some(grant)
            }
            (None, Some(_)) => {
                let problem = "the gateway was started without identity or grant; restart it";
                return Err(RelayError::Config {
                    place: "grant".to_owned(),
                    problem: problem.to_owned(),
                });
            }
            (_, None) => None,
        };
        Ok(Box::new(move || {
            if let (Some(sealer), Some(grant)) = (&service.sealer, grant) {
                // It was checked, and the identity stays.
                let mut sealer = sealer.lock().unwrap_or_else(PoisonError::into_inner);
                let _taken = sealer.set_grant(grant);
            }
            service.routes.replace(routing);
            None
        }))
    }
}

impl Reload for GatewayReloader {
    fn live(&self) -> &'static [&'static str] {
        &LIVE
    }

    fn prepare(&self, text: &str) -> Result<Prepared, RelayError> {
        self.ready(GatewayConfig::parse(text)?)
    }
}
