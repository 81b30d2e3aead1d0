//! Signal handling of a long-running process.
//!
//! SIGTERM and SIGINT end it, SIGHUP reloads its configuration, SIGUSR2 upgrades it. All other
//! signals that would end it by default, and that report no fault of its own, are ignored with a
//! log line. SIGQUIT and SIGABRT keep their default, for a core file (of a process that is not
//! hidden).

use tokio::signal::unix::{Signal, SignalKind, signal};
use tradewind_net::signals::ending;

use crate::{Shutdown, StreamError};

/// The status of a process that a signal has ended, as shells show it for SIGINT.
const INTERRUPTED: i32 = 130;

/// The action that a signal requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    End,
    Reload,
    Upgrade,
    Nothing,
}

/// Returns every handled signal, its meaning, and its name.
fn meanings() -> impl Iterator<Item = (SignalKind, Meaning, String)> {
    let ends = [(SignalKind::terminate(), "SIGTERM"), (SignalKind::interrupt(), "SIGINT")];
    let ends = ends.into_iter().map(|(kind, name)| (kind, Meaning::End, name.to_owned()));
    let others = ending().map(|(number, name)| {
        let kind = SignalKind::from_raw(number);
        let meaning = if kind == SignalKind::hangup() {
            Meaning::Reload
        } else if kind == SignalKind::user_defined2() {
            Meaning::Upgrade
        } else {
            Meaning::Nothing
        };
        (kind, meaning, name)
    });
    ends.chain(others)
}

impl Shutdown {
    /// Creates a switch that SIGTERM or SIGINT turns to drain, and a second one of them to stop;
    /// SIGUSR2 requests an upgrade, and SIGHUP a reload of the configuration.
    ///
    /// # Errors
    /// When the handlers or their thread cannot be installed.
    pub fn on_signals() -> Result<Self, StreamError> {
        let shutdown = Self::new();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .map_err(StreamError::Runtime)?;
        let mut waited_for = Vec::new();
        {
            let _inside = runtime.enter();
            for (kind, meaning, name) in meanings() {
                match signal(kind) {
                    Ok(signal) => waited_for.push((signal, meaning, name)),
                    // Not every system lets all of them be caught.
                    Err(_) if meaning == Meaning::Nothing => {}
                    Err(error) => return Err(StreamError::Runtime(error)),
                }
            }
        }
        let signalled = shutdown.clone();
        let watch = move || {
            for (signal, meaning, name) in waited_for {
                runtime.spawn(signalled.clone().handle(signal, meaning, name));
            }
            runtime.block_on(std::future::pending::<()>());
        };
        let thread = std::thread::Builder::new().name("signals".to_owned());
        thread.spawn(watch).map_err(StreamError::Runtime)?;
        Ok(shutdown)
    }

    async fn handle(self, mut signal: Signal, meaning: Meaning, name: String) {
        while signal.recv().await.is_some() {
            match meaning {
                // No part waits for it yet: the start itself takes long, and there is nothing to
                // drain.
                Meaning::End if !self.is_watched() => {
                    tradewind_telemetry::flush_logs();
                    std::process::exit(INTERRUPTED);
                }
                Meaning::End => self.end_sooner(),
                Meaning::Reload if self.reloads() => self.reload(),
                Meaning::Upgrade if self.upgrades() => self.upgrade(),
                _ => tracing::warn!("{name} has no meaning here and is ignored"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_handled_signal_has_one_meaning() {
        let of = |wanted: &str| {
            let mut found = meanings().filter(|(_, _, name)| name == wanted);
            (found.next().map(|(_, meaning, _)| meaning), found.count())
        };
        assert_eq!(of("SIGHUP"), (Some(Meaning::Reload), 0));
        assert_eq!(of("SIGUSR1"), (Some(Meaning::Nothing), 0));
        assert_eq!(of("SIGUSR2"), (Some(Meaning::Upgrade), 0));
        assert_eq!(of("SIGRTMIN+3"), (Some(Meaning::Nothing), 0));
        assert_eq!(of("SIGQUIT"), (None, 0));
    }
}
