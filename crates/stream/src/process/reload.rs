//! A changed configuration file, taken over while the process runs: on SIGHUP, or whenever the file
//! changes.
//!
//! All parts of the process check the new file first. If one refuses it nothing changes; else all
//! apply it.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tokio::time::{MissedTickBehavior, interval};
use tradewind_telemetry::Registry;

use crate::error::refused;
use crate::keys::revocations::read_text;
use crate::process::in_force::InForce;
use crate::process::rights::check_readers;
use crate::{Shutdown, StreamError};

/// Interval at which the files are checked. Chosen: revoked sessions end within a second.
const LOOK: Duration = Duration::from_millis(250);

/// Applies what was prepared; returns further results in a few words.
pub type Prepared = Box<dyn FnOnce() -> Option<String>>;

/// A part of a process that applies a changed configuration while it runs.
pub trait Reload: Send {
    /// Returns the keys that it applies, with all below them.
    fn live(&self) -> &'static [&'static str];

    /// Prepares the configuration `text`, and changes nothing yet.
    ///
    /// # Errors
    /// When it cannot be applied.
    fn prepare(&self, text: &str) -> Result<Prepared, StreamError>;

    /// Returns a file beside the configuration that is applied whenever it changes.
    fn watched(&self) -> Option<PathBuf> {
        None
    }

    /// Prepares that file, and changes nothing yet.
    ///
    /// # Errors
    /// When it cannot be applied.
    fn prepare_watched(&self) -> Result<Prepared, StreamError> {
        Ok(Box::new(|| None))
    }
}

/// A configuration file, and the parts of the process that apply it.
pub struct Reloads {
    file: PathBuf,
    begun_with: toml::Table,
    in_force: InForce,
    parts: Vec<Box<dyn Reload>>,
}

impl Reloads {
    /// Creates one of a file whose text was `begun_with` at the start of the process. No part
    /// applies it yet.
    #[must_use]
    pub fn new(file: &Path, begun_with: &str) -> Self {
        let in_force = InForce::new(begun_with);
        let begun_with = begun_with.parse().unwrap_or_default();
        Self { file: file.to_owned(), begun_with, in_force, parts: Vec::new() }
    }

    /// Adds `config_hash` and `config_last_reload_successful` to the metrics of `program`: `relay`
    /// or `gateway`.
    pub fn register(&self, program: &str, registry: &Registry) {
        self.in_force.register(program, registry);
    }

    /// Adds a part that applies it.
    #[must_use]
    pub fn with(mut self, part: impl Reload + 'static) -> Self {
        self.parts.push(Box::new(part));
        self
    }

    /// Reads the file and has all parts apply it, or none; logs the result in one line, and the
    /// changed keys that no part applies in another.
    pub fn apply(&self) {
        let place = self.file.display();
        let taken =
            read(&self.file).and_then(|text| self.take_over(&text).map(|applied| (text, applied)));
        match taken {
            Ok((text, Applied { report, left })) => {
                if left.is_empty() {
                    self.in_force.applied(&text);
                } else {
                    self.in_force.applied_in_part();
                }
                let report = if report.is_empty() { report } else { format!(": {report}") };
                tracing::info!("{place}: taken over{report}");
                if !left.is_empty() {
                    tracing::warn!(
                        "{place}: {left}: takes effect after an upgrade (SIGUSR2) or a restart"
                    );
                }
            }
            Err(error) => {
                self.in_force.refused();
                tracing::error!(
                    "{place}: {error}; nothing of it is taken over, what was in force before stays"
                );
            }
        }
    }

    /// Has all parts apply the files that they watch beside the configuration, or none.
    fn apply_watched(&self) {
        let prepared = self.parts.iter().map(|part| part.prepare_watched());
        let prepared = prepared.collect::<Result<Vec<_>, _>>();
        self.in_force.read_beside(prepared.is_ok());
        match prepared {
            Ok(prepared) => match take_over_all(prepared) {
                report if report.is_empty() => tracing::info!("revocations: taken over"),
                report => tracing::info!("revocations: taken over: {report}"),
            },
            Err(error) => {
                tracing::error!("{error}; nothing of it is taken over, what was in force stays");
            }
        }
    }

    /// Returns the stamp of the file if it is as it was read at the start; `None` if it has changed
    /// since, so that it counts as changed.
    fn begun_stamp(&self) -> Option<(SystemTime, u64)> {
        // Before it is read: a later write is found the next time.
        let stamp = stamp(&self.file);
        let text = read_text(&self.file).ok();
        stamp.filter(|_| text.is_some_and(|text| self.in_force.is_of(&text)))
    }

    /// Returns the stamps of the files that are watched beside the configuration.
    fn watched(&self) -> Vec<(PathBuf, Option<(SystemTime, u64)>)> {
        let files = self.parts.iter().filter_map(|part| part.watched());
        files.map(|file| (file.clone(), stamp(&file))).collect()
    }

    fn take_over(&self, text: &str) -> Result<Applied, StreamError> {
        let parts = self.parts.iter().map(|part| part.prepare(text));
        let prepared: Vec<Prepared> = parts.collect::<Result<_, _>>()?;
        let report = take_over_all(prepared);
        let live: Vec<&str> = self.parts.iter().flat_map(|part| part.live()).copied().collect();
        let left = changed(&self.begun_with, &text.parse().unwrap_or_default(), &live);
        Ok(Applied { report, left: left.join(", ") })
    }

    /// Applies the file anew whenever `shutdown` requests a reload, as by SIGHUP, and with `watch`
    /// whenever it changes.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(self, watch: bool, shutdown: &Shutdown) -> Result<(), StreamError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .map_err(StreamError::Runtime)?;
        let mut orders = shutdown.watch_reloads();
        let retired = shutdown.watch_retired();
        let serve = move || {
            runtime.block_on(async {
                let mut looks = interval(LOOK);
                looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
                // Files beside it are read once more.
                let (mut seen, mut beside) = (self.begun_stamp(), Vec::new());
                loop {
                    let is_due = tokio::select! {
                        ordered = orders.changed() => match ordered {
                            Ok(()) => true,
                            Err(_) => return,
                        },
                        _ = looks.tick() => {
                            // Signals reach the next process alone once that has taken over.
                            (watch || *retired.borrow()) && stamp(&self.file) != seen
                        }
                    };
                    if is_due {
                        // Before they are read: a later write is found the next time.
                        (seen, beside) = (stamp(&self.file), self.watched());
                        self.apply();
                    } else if self.watched() != beside {
                        beside = self.watched();
                        self.apply_watched();
                    }
                }
            });
        };
        let thread = std::thread::Builder::new().name("reload".to_owned());
        thread.spawn(serve).map(drop).map_err(StreamError::Runtime)
    }
}

/// Applies what was prepared, and returns the results.
fn take_over_all(prepared: Vec<Prepared>) -> String {
    let report: Vec<String> = prepared.into_iter().filter_map(|take_over| take_over()).collect();
    report.join("; ")
}

/// The result of applying a configuration.
struct Applied {
    /// The reports of the parts.
    report: String,
    /// Keys that differ from the start and that no part applies.
    left: String,
}

/// Returns a stamp that changes when a file is written.
fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

fn read(file: &Path) -> Result<String, StreamError> {
    let text = read_text(file).map_err(|problem| refused("the file", problem))?;
    check_readers(file, &text).map(|()| text)
}

/// Returns the keys that differ in two configurations, except `live` ones and those below them:
/// those that take effect in a new process alone.
#[must_use]
pub fn changed(old: &toml::Table, new: &toml::Table, live: &[&str]) -> Vec<String> {
    let mut keys = Vec::new();
    compare("", old, new, &mut keys);
    let is_live = |key: &String| {
        let is_below = |live: &&str| {
            key.strip_prefix(live).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        live.iter().any(is_below)
    };
    keys.retain(|key| !is_live(key));
    keys.into_iter().map(|key| format!("`{key}`")).collect()
}

/// Appends the keys below `at` that differ, in order.
fn compare(at: &str, old: &toml::Table, new: &toml::Table, keys: &mut Vec<String>) {
    let empty = toml::Table::new();
    let names: std::collections::BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        let key = if at.is_empty() { name.clone() } else { format!("{at}.{name}") };
        let tables = |value: Option<&toml::Value>| match value {
            Some(toml::Value::Table(table)) => Some(table.clone()),
            Some(_) => None,
            None => Some(empty.clone()),
        };
        let (was, is) = (old.get(name), new.get(name));
        match (tables(was), tables(is)) {
            _ if was == is => {}
            (Some(was), Some(is)) => compare(&key, &was, &is, keys),
            _ => keys.push(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::live::LIMITS_KEYS;
    use crate::limits::timeouts::LiveTimeouts;
    use crate::process::in_force::config_hash;

    fn changed_keys(old: &str, new: &str) -> String {
        changed(&old.parse().unwrap(), &new.parse().unwrap(), &["grant", "routes"]).join(", ")
    }

    #[test]
    fn fixed_limits_and_timeouts_are_listed() {
        let live: Vec<_> = LIMITS_KEYS.into_iter().chain(LiveTimeouts::KEYS).collect();
        let old = "[limits]\nsessions = 1\nbacklog = 5\n[limits.each_source]\nsessions = 3";
        let new = "[limits]\nsessions = 2\nrate = '8 Gbit/s'\n[timeouts]\nidle = '1 s'\nuser = '1 \
            s'\nkeepalive = '1 s'\ndial = '1 s'";
        let left = changed(&old.parse().unwrap(), &new.parse().unwrap(), &live).join(", ");
        assert_eq!(left, "`limits.backlog`, `timeouts.keepalive`, `timeouts.user`");
    }

    #[test]
    fn unapplied_reload_keys_are_named() {
        let old =
            "grant = 'a'\nworkers = 2\n[leg.dial]\nconnections = 2\n[routes]\ndefault = 'refuse'";
        let new = "grant = 'b'\noptimistic = true\n[leg.dial]\nconnections = 8\n[routes]\ndefault \
            = 'direct'";
        assert_eq!(changed_keys(old, new), "`leg.dial.connections`, `optimistic`, `workers`");
        assert_eq!(changed_keys(old, old), "");
        assert_eq!(changed_keys("a = 1", "grants = 1\n[b]\nc = [1]"), "`a`, `b.c`, `grants`");
    }

    /// A part that tells the texts that it applies.
    struct Tells(std::sync::mpsc::Sender<String>);

    impl Reload for Tells {
        fn live(&self) -> &'static [&'static str] {
            &["share"]
        }

        fn prepare(&self, text: &str) -> Result<Prepared, StreamError> {
            let (told, text) = (self.0.clone(), text.to_owned());
            Ok(Box::new(move || told.send(text).err().map(|error| error.to_string())))
        }
    }

    /// A part that refuses whatever has `bad`, in this file, too.
    struct Refuses(PathBuf);

    impl Reload for Refuses {
        fn live(&self) -> &'static [&'static str] {
            &["share"]
        }

        fn prepare(&self, text: &str) -> Result<Prepared, StreamError> {
            if text.contains("bad") { Err(refused("share", "bad")) } else { Ok(Box::new(|| None)) }
        }

        fn prepare_watched(&self) -> Result<Prepared, StreamError> {
            self.prepare(&std::fs::read_to_string(&self.0).unwrap())
        }
    }

    #[test]
    fn metrics_say_which_configuration_is_in_force() {
        let place = std::env::temp_dir().join(format!("tradewind-force-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let file = place.join("gateway.toml");
        let registry = Registry::new("gateway", "1");
        let begun_with = "share = 1";
        let reloads = Reloads::new(&file, begun_with).with(Refuses(place.join("revoked")));
        reloads.register("gateway", &registry);
        let mut in_force = begun_with;
        for (text, is_taken, is_successful) in [
            ("share = 2", true, true),
            ("share = 'bad'", false, false),
            ("share = 2 # the same", true, true),
            // The next process alone applies this key.
            ("share = 3\nworkers = 1", false, true),
            ("share = 1", true, true),
            ("share = 'bad'", false, false),
        ] {
            std::fs::write(&file, text).unwrap();
            reloads.apply();
            in_force = if is_taken { text } else { in_force };
            let metrics = registry.encode();
            for (name, value) in [
                ("hash", config_hash(in_force)),
                ("last_reload_successful", i64::from(is_successful)),
            ] {
                let line = format!("\ntradewind_gateway_config_{name} {value}\n");
                assert!(metrics.contains(&line), "{text}: {line} not in {metrics}");
            }
        }
        // Files beside it are refused, then no more; a refused configuration stays so.
        let is_successful = |is_beside_bad: bool| {
            std::fs::write(place.join("revoked"), if is_beside_bad { "bad" } else { "" }).unwrap();
            reloads.apply_watched();
            registry.encode().contains("\ntradewind_gateway_config_last_reload_successful 1\n")
        };
        assert!(!is_successful(false));
        std::fs::write(&file, "share = 1").unwrap();
        reloads.apply();
        assert_eq!([false, true, false].map(is_successful), [true, false, true]);
        std::fs::remove_dir_all(&place).unwrap();
    }

    /// Returns the first text that is applied of a file with `now`, whose process began with
    /// `begun_with`, until it has `later`.
    fn first_applied(name: &str, begun_with: &str, now: &str, later: &str) -> String {
        let place = std::env::temp_dir().join(format!("tradewind-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let file = place.join("gateway.toml");
        std::fs::write(&file, now).unwrap();
        let (told, applied) = std::sync::mpsc::channel();
        let shutdown = Shutdown::default();
        let reloads = Reloads::new(&file, begun_with).with(Tells(told));
        reloads.start(true, &shutdown).unwrap();
        let wait = |span| applied.recv_timeout(span);
        let first = wait(4 * LOOK).or_else(|_| {
            std::fs::write(&file, later).unwrap();
            wait(Duration::from_secs(60))
        });
        std::fs::remove_dir_all(&place).unwrap();
        first.unwrap()
    }

    #[test]
    fn change_between_start_and_watch_is_applied() {
        let (old, new, newer) = ("share = 0.05", "share = 0.5", "share = 0.75");
        assert_eq!(first_applied("changed", old, new, newer), new);
        assert_eq!(first_applied("same", new, new, newer), newer, "nothing has changed before");
    }
}
