//! What a relay takes over of a changed configuration while it runs.

use std::net::SocketAddr;
use std::sync::Arc;

use tradewind_grant::Trust;

use super::RelayService;
use crate::authorization::Rules;
use crate::reload::{Prepared, Reload};
use crate::{RelayConfig, RelayError};

/// The keys that a reload takes over.
const LIVE: [&str; 2] = ["operators", "policy"];

/// What a relay with these listeners goes by.
pub(super) fn rules(config: &RelayConfig, own_listeners: &[SocketAddr]) -> Rules {
    let trust = Arc::new(Trust::new(config.operators.clone()));
    Rules { trust, policy: config.policy.policy(own_listeners) }
}

/// Replaces what a relay goes by; clones reload the same relay.
#[derive(Clone)]
pub struct RelayReloader(pub(super) Arc<RelayService>);

impl RelayReloader {
    /// Takes operators and policy of `config` over. Open sessions go on if these would let them in, and end at once
    /// if not; returns how many end.
    #[must_use]
    pub fn apply(&self, config: &RelayConfig) -> usize {
        let service = &self.0;
        let rules = rules(config, &service.dialler.own_listeners);
        service.lock_verifier().set_trust(Arc::clone(&rules.trust));
        service.rules.replace(rules);
        let rules = service.rules.current();
        service.authorizations.end_refused(|basis| RelayService::allows(&rules, basis))
    }
}

impl Reload for RelayReloader {
    fn live(&self) -> &'static [&'static str] {
        &LIVE
    }

    fn prepare(&self, text: &str) -> Result<Prepared, RelayError> {
        let (reloader, config) = (self.clone(), RelayConfig::parse(text)?);
        Ok(Box::new(move || match reloader.apply(&config) {
            0 => None,
            1 => Some("1 session ended that it allows no more".to_owned()),
            ended => Some(format!("{ended} sessions ended that it allows no more")),
        }))
    }
}
