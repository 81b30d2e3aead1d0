//! The learner of initial windows inside a relay or gateway: `[jumpstart]` of its configuration.

use std::path::Path;

use serde_json::{Value, json};
use tradewind_config::JumpstartConfig;
use tradewind_jumpstart_daemon::Embedded;
use tradewind_net::jumpstart::OwnSockets;
use tradewind_stream::{Handover, Shutdown, StreamError};
use tradewind_telemetry::Registry;

use crate::jumpstart::own_socket;

/// A configured learner, or the reason why there is none, in one line.
pub(crate) struct Learner(Result<Embedded, String>);

impl Learner {
    /// Starts it by `config`, the section of `file`, with the control socket of the previous
    /// process if there was one. If that fails the process carries sessions without it.
    pub(crate) fn start(config: JumpstartConfig, file: &Path, handover: &mut Handover) -> Self {
        let socket = config.socket.clone().unwrap_or_else(|| own_socket(file));
        let name = format!("jumpstart {}", socket.display());
        let handed_on = handover.sockets(&name).pop().map(|(_, socket)| socket);
        let mut started =
            Embedded::start(config, &socket, handed_on).map_err(|error| error.to_string());
        if let Ok(listener) = started.as_mut().map(Embedded::hand_on) {
            listener.into_iter().for_each(|socket| handover.hand_on(name.clone(), socket));
        }
        Self(started)
    }

    /// Returns the registry of the sockets that the process dials or listens with.
    pub(crate) fn own_sockets(&self) -> Option<OwnSockets> {
        self.0.as_ref().ok()?.own_sockets()
    }

    /// Adds its metrics to those of the process.
    pub(crate) fn register(&self, registry: &Registry) {
        self.0.iter().for_each(|learner| learner.register(registry));
    }

    /// Ends it as soon as the next process, which has one of its own, has taken over.
    pub(crate) fn leave_to_successor(&self, shutdown: &Shutdown) -> Result<(), StreamError> {
        match &self.0 {
            Ok(learner) => {
                let end = learner.end();
                shutdown.once_retired(move || end.now())
            }
            Err(_) => Ok(()),
        }
    }

    /// Returns the mechanism that it acts through, the reason for not using a better one, and its
    /// control socket.
    pub(crate) fn shown(&self) -> Value {
        match &self.0 {
            Ok(learner) => {
                let (through, why) = learner.acts_through();
                json!({ "through": through, "why": why, "socket": learner.socket() })
            }
            Err(why) => json!({ "through": null, "why": why, "socket": null }),
        }
    }
}
