//! The reload of a relay's configuration, and of operators' revocations, while it runs.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use tradewind_config::RelayConfig;
use tradewind_grant::{IdentityKey, OperatorPublicKey, Revocations, Trust};
use tradewind_stream::StreamError;
use tradewind_stream::keys;
use tradewind_stream::keys::own_identities::OwnIdentity;
use tradewind_stream::keys::revocations;
use tradewind_stream::limits::live::{LIMITS_KEYS, NewLimits};
use tradewind_stream::limits::timeouts::LiveTimeouts;
use tradewind_stream::process::reload::{Prepared, Reload};
use tradewind_stream::session::authorization::Rules;

use super::RelayService;

/// The keys of a relay's configuration that a reload applies.
pub static LIVE_KEYS: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let own = [
        "operators",
        "policy",
        "revocations",
        "identity",
        "identity_file",
        "previous_identity",
        "previous_identity_file",
    ];
    own.into_iter().chain(LIMITS_KEYS).chain(LiveTimeouts::KEYS).collect()
});

/// Returns the rules of `config`, where `before` were the revocations until now.
pub(super) fn rules(config: &RelayConfig, before: &Revocations) -> Result<Rules, StreamError> {
    let file = config.revocations.clone();
    let trust = Arc::new(trust(&config.operators, file.as_ref(), before)?);
    Ok(Rules { trust, revocations: file, policy: config.policy.policy() })
}

/// Returns the trust in `operators`, with the revocations in `file` beside those in force `before`.
fn trust(
    operators: &[OperatorPublicKey],
    file: Option<&PathBuf>,
    before: &Revocations,
) -> Result<Trust, StreamError> {
    let Some(file) = file else { return Ok(Trust::new(operators.to_vec(), before.clone())) };
    let lists = revocations::read(file)?;
    let refused = |error: tradewind_grant::GrantError| StreamError::Revocations {
        path: file.clone(),
        problem: error.to_string(),
    };
    let revocations = before.updated(&lists, operators).map_err(refused)?;
    Ok(Trust::new(operators.to_vec(), revocations))
}

/// The parts of a configuration that a relay can apply while it runs.
struct New {
    rules: Rules,
    limits: NewLimits,
    identities: Vec<IdentityKey>,
    own: Vec<Arc<OwnIdentity>>,
}

/// Replaces the rules of a relay; clones reload the same relay.
#[derive(Clone)]
pub struct RelayReloader(pub(super) Arc<RelayService>);

impl RelayReloader {
    /// Applies operators, policy, revocations, identities, limits and timeouts of `config`. Open
    /// sessions go on if operators, policy and revocations still admit them, and end at once if
    /// not; returns the number that end.
    ///
    /// # Errors
    /// When an identity or the file of revocations cannot be read, the latter is older than what is
    /// in force, or the limits leave no descriptor for any session. Nothing changes then.
    pub fn apply(&self, config: &RelayConfig) -> Result<usize, StreamError> {
        let new = self.read(config)?;
        self.set(&new);
        Ok(self.put_in_force(new.rules))
    }

    fn read(&self, config: &RelayConfig) -> Result<New, StreamError> {
        let limits = self.0.limits.prepare(&config.limits, &config.timeouts)?;
        let identities = keys::of_relay(config, &self.0.held)?;
        let own = self.0.own.prepare(&identities)?;
        Ok(New { rules: self.rules(config)?, limits, identities, own })
    }

    /// Applies the parts that end no open session.
    fn set(&self, new: &New) {
        let service = &self.0;
        service.verifier.lock().set_identities(&new.identities);
        service.own.set(new.own.clone());
        service.limits.set(&new.limits);
        service.places.set(&new.limits);
        service.warm.set_most(new.limits.limits.resting);
    }

    fn rules(&self, config: &RelayConfig) -> Result<Rules, StreamError> {
        let current = self.0.onward.admission.rules.current();
        rules(config, current.trust.revocations())
    }

    fn put_in_force(&self, rules: Rules) -> usize {
        self.0.verifier.lock().set_trust(Arc::clone(&rules.trust));
        self.0.onward.admission.replace(rules)
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
        &LIVE_KEYS[..]
    }

    fn prepare(&self, text: &str) -> Result<Prepared, StreamError> {
        let config = RelayConfig::parse(text)?;
        let new = self.read(&config)?;
        let reloader = self.clone();
        Ok(Box::new(move || {
            reloader.set(&new);
            reloader.ready(new.rules)()
        }))
    }

    fn watched(&self) -> Option<PathBuf> {
        self.0.onward.admission.rules.current().revocations.clone()
    }

    fn prepare_watched(&self) -> Result<Prepared, StreamError> {
        let current = self.0.onward.admission.rules.current();
        let Rules { trust: old, revocations, policy } = &*current;
        let trust = trust(old.operators(), revocations.as_ref(), old.revocations())?;
        let (trust, revocations) = (Arc::new(trust), revocations.clone());
        Ok(self.ready(Rules { trust, revocations, policy: policy.clone() }))
    }
}
