//! What a relay takes over of a changed configuration while it runs, and of what operators revoke.

use std::path::PathBuf;
use std::sync::Arc;

use tradewind_grant::{OperatorPublicKey, Revocations, Trust};

use super::RelayService;
use crate::authorization::Rules;
use crate::reload::{Prepared, Reload};
use crate::{RelayConfig, RelayError, revocations};

/// The keys that a reload takes over.
const LIVE: [&str; 3] = ["operators", "policy", "revocations"];

/// What a relay goes by, which went by `before` until now.
pub(super) fn rules(config: &RelayConfig, before: &Revocations) -> Result<Rules, RelayError> {
    let file = config.revocations.clone();
    let trust = Arc::new(trust(&config.operators, file.as_ref(), before)?);
    Ok(Rules { trust, revocations: file, policy: config.policy.policy() })
}

/// Trust in `operators` and in what `file` says that they have revoked, beside what was in force `before`.
fn trust(
    operators: &[OperatorPublicKey],
    file: Option<&PathBuf>,
    before: &Revocations,
) -> Result<Trust, RelayError> {
    let Some(file) = file else { return Ok(Trust::new(operators.to_vec(), before.clone())) };
    let lists = revocations::read(file)?;
    let refused = |error: tradewind_grant::GrantError| RelayError::Revocations {
        path: file.clone(),
        problem: error.to_string(),
    };
    let revocations = before.updated(&lists, operators).map_err(refused)?;
    Ok(Trust::new(operators.to_vec(), revocations))
}

/// Replaces what a relay goes by; clones reload the same relay.
#[derive(Clone)]
pub struct RelayReloader(pub(super) Arc<RelayService>);

impl RelayReloader {
    /// Takes operators, policy and revocations of `config` over. Open sessions go on if these would let them in, and
    /// end at once if not; returns how many end.
    ///
    /// # Errors
    /// When the file of revocations cannot be read, or is older than what is in force. Nothing changes then.
    pub fn apply(&self, config: &RelayConfig) -> Result<usize, RelayError> {
        self.rules(config).map(|rules| self.put_in_force(rules))
    }

    fn rules(&self, config: &RelayConfig) -> Result<Rules, RelayError> {
        let current = self.0.rules.current();
        rules(config, current.trust.revocations())
    }

    fn put_in_force(&self, rules: Rules) -> usize {
        let service = &self.0;
        service.lock_verifier().set_trust(Arc::clone(&rules.trust));
        service.rules.replace(rules);
        let rules = service.rules.current();
        service.authorizations.end_refused(|basis| service.allows(&rules, basis))
    }

    fn ready(&self, rules: Rules) -> Prepared {
        let reloader = self.clone();
        Box::new(move || match reloader.put_in_force(rules) {
            0 => None,
            1 => Some("1 session ended that it allows no more".to_owned()),
            ended => Some(format!("{ended} sessions ended that it allows no more")),
        })
    }
}

impl Reload for RelayReloader {
    fn live(&self) -> &'static [&'static str] {
        &LIVE
    }

    fn prepare(&self, text: &str) -> Result<Prepared, RelayError> {
        self.rules(&RelayConfig::parse(text)?).map(|rules| self.ready(rules))
    }

    fn watched(&self) -> Option<PathBuf> {
        self.0.rules.current().revocations.clone()
    }

    fn prepare_watched(&self) -> Result<Prepared, RelayError> {
        let Rules { trust: old, revocations, policy } = &*self.0.rules.current();
        let trust = trust(old.operators(), revocations.as_ref(), old.revocations())?;
        let (trust, revocations) = (Arc::new(trust), revocations.clone());
        Ok(self.ready(Rules { trust, revocations, policy: policy.clone() }))
    }
}
