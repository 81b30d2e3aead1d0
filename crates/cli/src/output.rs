//! Output of this binary: that of all binaries, and exit codes of the product's errors.

use std::fmt::{Debug, Display};
use std::time::Duration;

use tradewind_agent::AgentError;
use tradewind_config::ConfigError;
use tradewind_controller::{ClientError, ControllerError};
use tradewind_demo::DemoError;
use tradewind_jumpstart_daemon::DaemonError;
use tradewind_lab::LabError;
use tradewind_node::NodeError;
pub(crate) use tradewind_output::*;
use tradewind_probe::ProbeError;
use tradewind_stream::StreamError;
use tradewind_telemetry::TelemetryError;

/// Returns the exit code of an error: invalid files and arguments are wrong usage.
pub(crate) fn exit_code(error: &anyhow::Error) -> u8 {
    fn is<E: Display + Debug + Send + Sync + 'static>(
        error: &anyhow::Error,
        is_of_configuration: impl Fn(&E) -> bool,
    ) -> bool {
        error.downcast_ref().is_some_and(is_of_configuration)
    }
    let is_of_configuration = error.is::<BadFile>()
        || error.is::<ConfigError>()
        || is(error, AgentError::is_of_configuration)
        || is(error, ControllerError::is_of_configuration)
        || is(error, ClientError::is_of_request)
        || is(error, StreamError::is_of_configuration)
        || is(error, TelemetryError::is_of_configuration)
        || is(error, DaemonError::is_of_configuration)
        || is(error, LabError::is_of_configuration)
        || is(error, DemoError::is_of_configuration)
        || is(error, NodeError::is_of_configuration)
        || is(error, ProbeError::is_of_configuration);
    if is_of_configuration { BAD_USAGE } else { FAILED }
}

/// Writes a line of data to standard output, but waits at most `limit` for a reader that has
/// stopped: for a process that others depend on.
pub(crate) fn line_within(limit: Duration, text: impl Display) -> anyhow::Result<()> {
    let (done, is_done) = std::sync::mpsc::channel();
    let text = text.to_string();
    let write = move || {
        let _nobody_waits = done.send(line(text));
    };
    std::thread::Builder::new().name("standard output".to_owned()).spawn(write)?;
    is_done.recv_timeout(limit).unwrap_or_else(|_| {
        tracing::warn!("standard output does not take a line in time");
        Ok(())
    })
}

/// Returns so many periods in words.
pub(crate) fn periods(count: usize) -> String {
    format!("{count} {}", if count == 1 { "period" } else { "periods" })
}

/// Prints the reason why a command failed, in the common form of errors.
pub(crate) fn complain(text: impl Display) {
    complain_as("tradewind", text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_input_exits_like_wrong_usage() {
        let bad: anyhow::Result<()> =
            Err(anyhow::anyhow!("line 3: no such key")).or_bad("a".as_ref());
        let bad = bad.unwrap_err();
        assert_eq!((one_line(&bad).as_str(), exit_code(&bad)), ("a: line 3: no such key", 2));
        let relay = StreamError::from(ConfigError::new("listen", "none"));
        assert_eq!(exit_code(&anyhow::Error::new(relay).context("relay.toml")), 2);
        assert_eq!(exit_code(&anyhow::anyhow!("address already in use")), 1);
    }
}
