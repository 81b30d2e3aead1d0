//! Log lines on standard error: standard output belongs to a command's result.
//!
//! What is logged is chosen by directives of the form `level` or `crate=level`, joined by commas,
//! from the environment variable [`FILTER_VARIABLE`], else from the caller's default.

use std::ffi::OsString;
use std::io::{self, IsTerminal};

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::TelemetryError;

/// The environment variable that overrides the default filter.
pub const FILTER_VARIABLE: &str = "TRADEWIND_LOG";

/// How a log line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people: time, level, place, message, fields.
    #[default]
    Text,
    /// For machines: one JSON object a line.
    Json,
}

impl std::str::FromStr for LogFormat {
    type Err = TelemetryError;

    fn from_str(input: &str) -> Result<Self, TelemetryError> {
        match input {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            other => Err(TelemetryError::LogFormat(other.to_owned())),
        }
    }
}

impl std::fmt::Display for LogFormat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Sends the process's log to standard error, filtered by `TRADEWIND_LOG` or else `default_filter`.
///
/// Colours appear only in text on a terminal, and never when `NO_COLOR` is set.
///
/// # Errors
/// When the filter cannot be read, or when logs were set up before.
pub fn init_logs(format: LogFormat, default_filter: &str) -> Result<(), TelemetryError> {
    let filter = choose_filter(std::env::var_os(FILTER_VARIABLE), default_filter)?;
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let subscriber = subscriber(format, filter, colours, || Forgiving(io::stderr()));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::LogsTwice)
}

/// A writer whose every write succeeds: who cannot be told, because a disk is full or a reader has left,
/// is not told, and nothing else ends by that.
struct Forgiving<W>(W);

impl<W: io::Write> io::Write for Forgiving<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _lost = self.0.write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let _lost = self.0.flush();
        Ok(())
    }
}

/// The filter from the environment's `value` when it holds anything, else `default_filter`.
fn choose_filter(
    value: Option<OsString>,
    default_filter: &str,
) -> Result<EnvFilter, TelemetryError> {
    let (origin, text) = match value {
        Some(value) if !value.is_empty() => (FILTER_VARIABLE, value.to_string_lossy().into_owned()),
        _ => ("default", default_filter.to_owned()),
    };
    EnvFilter::try_new(&text).map_err(|error| TelemetryError::LogFilter {
        origin,
        value: text,
        cause: error.to_string(),
    })
}

fn subscriber<W>(
    format: LogFormat,
    filter: EnvFilter,
    colours: bool,
    writer: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'w> MakeWriter<'w> + Send + Sync + 'static,
{
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer);
    match format {
        LogFormat::Text => Box::new(builder.with_ansi(colours).finish()),
        LogFormat::Json => Box::new(builder.json().flatten_event(true).finish()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk that is full.
    struct Full;

    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }

    #[test]
    fn a_full_disk_loses_lines_and_nothing_else() {
        let filter = EnvFilter::new("info");
        let full = subscriber(LogFormat::Text, filter, false, || Forgiving(Full));
        tracing::subscriber::with_default(full, || tracing::error!("nobody hears this"));
        let mut forgiving = Forgiving(Full);
        assert_eq!(io::Write::write(&mut forgiving, b"line").unwrap(), 4);
        io::Write::flush(&mut forgiving).unwrap();
    }
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(format: LogFormat, filter: &str) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let filter = choose_filter(Some(filter.into()), "off").unwrap();
        let subscriber = subscriber(format, filter, false, move || writer.clone());
        tracing::subscriber::with_default(subscriber, || {
            tracing::info!(session = 7, "session opened");
            tracing::debug!("detail");
        });
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn text_lines_hold_level_message_and_fields() {
        let text = logged(LogFormat::Text, "info");
        assert_eq!(text.lines().count(), 1);
        assert!(text.contains("INFO") && text.contains("session opened session=7"), "{text}");
    }

    #[test]
    fn json_lines_are_objects() {
        let text = logged(LogFormat::Json, "debug");
        let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(first["message"], "session opened");
        assert_eq!(first["session"], 7);
        assert_eq!(text.lines().count(), 2);
    }

    #[test]
    fn an_empty_variable_leaves_the_default() {
        assert_eq!(choose_filter(Some("".into()), "warn").unwrap().to_string(), "warn");
        assert_eq!(choose_filter(None, "error").unwrap().to_string(), "error");
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_named_with_its_origin() {
        let error = choose_filter(Some("info,=?=".into()), "info").unwrap_err().to_string();
        assert!(error.contains(FILTER_VARIABLE) && error.contains("`info,=?=`"), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn a_format_prints_as_it_is_read() {
        for name in ["text", "json"] {
            assert_eq!(name.parse::<LogFormat>().unwrap().to_string(), name);
        }
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("`xml`"));
    }
}
