//! A gateway's routes and grant, replaced while it runs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{MissedTickBehavior, interval};

use super::check_not_over;
use super::session::GatewayService;
use crate::failure::plain;
use crate::{GatewayConfig, RelayError};

/// Between two looks at the file. Chosen.
const LOOK: Duration = Duration::from_secs(1);
/// Longest configuration. Chosen: far above any table.
const MOST_BYTES: u64 = 16 << 20;

/// The keys that a reload takes over.
const RELOADED: [&str; 2] = ["routes", "grant"];

/// Replaces a gateway's routes and grant; clones reload the same gateway.
#[derive(Clone)]
pub struct Reloader(pub(super) Arc<GatewayService>);

impl Reloader {
    /// Takes the routes and the grant of `config` over. New sessions use them; open ones go on, and so
    /// does what is known of paths that remain. Every other key needs a restart.
    ///
    /// # Errors
    /// When the grant has expired or is for another gateway, or routes go over relays and the gateway was started without
    /// identity or grant. Nothing changes then.
    pub fn apply(&self, config: &GatewayConfig) -> Result<(), RelayError> {
        let service = &self.0;
        let routing = service.routes.prepare(config.routes.clone())?;
        match (&service.sealer, &config.grant) {
            (Some(sealer), Some(grant)) => {
                check_not_over(grant)?;
                let mut sealer = sealer.lock().unwrap_or_else(PoisonError::into_inner);
                sealer.set_grant(grant.clone())?;
            }
            (None, Some(_)) => {
                let problem = "the gateway was started without identity or grant; restart it";
                return Err(RelayError::Config {
                    place: "grant".to_owned(),
                    problem: problem.to_owned(),
                });
            }
            (_, None) => {}
        }
        service.routes.replace(routing);
        Ok(())
    }

    /// Reads `file` and applies it; logs in one line what came of it.
    pub fn apply_file(&self, file: &Path) {
        let (text, place) = (read(file), file.display());
        let parsed = text.and_then(|text| self.apply(&GatewayConfig::parse(&text)?));
        match parsed {
            Ok(()) => tracing::info!("{place}: routes taken over"),
            Err(error) => tracing::error!("{place}: {error}; the old routes stay"),
        }
    }

    /// Applies `file` anew on every SIGHUP, and with `watch` whenever it changes.
    ///
    /// # Errors
    /// When the handler or its thread cannot be installed.
    pub fn on_hangup(self, file: PathBuf, watch: bool) -> Result<(), RelayError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RelayError::Runtime)?;
        let mut hangup = {
            let _inside = runtime.enter();
            signal(SignalKind::hangup()).map_err(RelayError::Runtime)?
        };
        let serve = move || {
            runtime.block_on(async {
                let mut looks = interval(LOOK);
                looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                let mut seen = stamp(&file);
                let begun_with = read(&file).unwrap_or_default();
                loop {
                    tokio::select! {
                        told = hangup.recv() => if told.is_none() { return },
                        _ = looks.tick(), if watch => if stamp(&file) == seen { continue },
                    }
                    seen = stamp(&file);
                    self.apply_file(&file);
                    say_what_stays(&file, &begun_with);
                }
            });
        };
        let thread = std::thread::Builder::new().name("reload".to_owned());
        thread.spawn(serve).map(drop).map_err(RelayError::Runtime)
    }
}

/// What changes when a file is written.
fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read(file: &Path) -> Result<String, RelayError> {
    let refused = |problem: String| RelayError::Config { place: "the file".to_owned(), problem };
    let length = std::fs::metadata(file).map_err(|error| refused(plain(&error)))?.len();
    if length > MOST_BYTES {
        return Err(refused(format!("{length} bytes; expected at most {MOST_BYTES}")));
    }
    std::fs::read_to_string(file).map_err(|error| refused(plain(&error)))
}

/// Logs what `file` says otherwise than the configuration that the gateway was started with, where no reload takes it over.
fn say_what_stays(file: &Path, begun_with: &str) {
    let changed = read(file).map(|text| changed_for_a_restart(begun_with, &text));
    if let Some(keys) = changed.ok().filter(|keys| !keys.is_empty()) {
        let place = file.display();
        tracing::warn!(
            "{place}: not taken over: {keys}; an upgrade (SIGUSR2) or a restart does it"
        );
    }
}

/// The keys that differ in two configurations, but for those of a reload.
fn changed_for_a_restart(old: &str, new: &str) -> String {
    let (Ok(old), Ok(new)) = (old.parse::<toml::Table>(), new.parse::<toml::Table>()) else {
        return String::new();
    };
    let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let differs =
        |key: &&&String| !RELOADED.contains(&key.as_str()) && old.get(**key) != new.get(**key);
    let names: Vec<_> = keys.iter().filter(differs).map(|key| format!("`{key}`")).collect();
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_reload_does_not_take_over_is_named() {
        let old =
            "grant = 'a'\nworkers = 2\n[leg.dial]\nconnections = 2\n[routes]\ndefault = 'refuse'";
        let new = "grant = 'b'\noptimistic = true\n[leg.dial]\nconnections = 8\n[routes]\ndefault = 'direct'";
        assert_eq!(changed_for_a_restart(old, new), "`leg`, `optimistic`, `workers`");
        assert_eq!(changed_for_a_restart(old, old), "");
        assert_eq!(changed_for_a_restart(old, "no ["), "", "what is wrong with it was told");
    }
}
