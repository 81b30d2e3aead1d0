//! Log lines on standard error: standard output belongs to a command's result.
//!
//! A filter chooses the lines, by directives of the form `level` or `crate=level`, joined by
//! commas, from the environment variable [`FILTER_VARIABLE`], else from the caller's default.
//!
//! No caller waits for standard error: lines go through a [`LineQueue`].

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Subscriber;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::TelemetryError;
use crate::queue::{LineOutput, LineQueue};

/// The environment variable that overrides the default filter.
pub const FILTER_VARIABLE: &str = "TRADEWIND_LOG";

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people: time, level, target, message, fields.
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

/// Most bytes of lines that wait for standard error. Chosen: some thousand lines.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// Longest wait for standard error at the end of the process. Chosen: long for a reader that reads,
/// short for a caller that waits for the process to end.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The log of this process, once set up.
static LOG: OnceLock<LineQueue> = OnceLock::new();

/// Sends the process's log to standard error, filtered by `TRADEWIND_LOG` or else `default_filter`.
/// A thread of its own writes it; [`flush_logs`] before the process ends.
///
/// Colours appear only in text on a terminal, and never when `NO_COLOR` is set.
///
/// # Errors
/// When the filter cannot be read, when logs were set up before, or when the thread cannot be
/// started.
pub fn init_logs(format: LogFormat, default_filter: &str) -> Result<(), TelemetryError> {
    let filter = choose_filter(std::env::var_os(FILTER_VARIABLE), default_filter)?;
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let queue = LineQueue::start("standard_error", MAX_WAITING_BYTES, StandardError)
        .map_err(TelemetryError::Thread)?;
    let lines = queue.clone();
    let subscriber = subscriber(format, filter, colours, move || Queued(lines.clone()));
    tracing::subscriber::set_global_default(subscriber).map_err(|_| TelemetryError::LogsTwice)?;
    let _first = LOG.set(queue);
    std::panic::set_hook(Box::new(|panic| log_panic(&panic.to_string())));
    Ok(())
}

/// Queues `line` for standard error behind the log, without waiting for it. Returns false when no
/// log is set up: the caller may then write it itself.
pub fn put_line(line: &str) -> bool {
    LOG.get().map(|queue| queue.put(line.as_bytes())).is_some()
}

/// Waits until standard error has all lines, for at most a second: the last step of a process.
pub fn flush_logs() {
    if let Some(queue) = LOG.get() {
        let _all_read = queue.flush(FLUSH_LIMIT);
    }
}

/// Logs a panic. The standard library's hook would block on standard error.
fn log_panic(panic: &str) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    let trace = std::backtrace::Backtrace::capture();
    let trace = match trace.status() {
        std::backtrace::BacktraceStatus::Captured => format!("\n{trace}"),
        _ => String::new(),
    };
    put_line(&format!("thread '{name}' {panic}{trace}"));
    if name == "main" {
        flush_logs();
    }
}

/// Standard error; only the queue's thread waits for it.
struct StandardError;

impl LineOutput for StandardError {
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
        write_patiently(&mut io::stderr(), lines)
    }

    fn report_dropped(&mut self, count: u64) {
        tracing::warn!("{count} log lines were dropped: standard error did not take them in time");
    }
}

/// Writes all of `bytes`, even to a descriptor that another process has made non-blocking.
fn write_patiently(output: &mut impl io::Write, mut bytes: &[u8]) -> io::Result<()> {
    /// Chosen: a terminal that fills up in less time prints more than anybody reads.
    const PAUSE: Duration = Duration::from_millis(20);
    while !bytes.is_empty() {
        match output.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => std::thread::sleep(PAUSE),
            Err(error) => return Err(error),
        }
    }
    output.flush()
}

/// A writer that hands whole lines to the queue.
struct Queued(LineQueue);

impl io::Write for Queued {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let _counted = self.0.put(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the filter from the environment's `value` if it is not empty, else `default_filter`.
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

    /// A terminal that is full every other time, and then takes three bytes.
    #[derive(Default)]
    struct Slow {
        is_full: bool,
        written: Vec<u8>,
    }

    impl io::Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.is_full = !self.is_full;
            if self.is_full {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let written = bytes.len().min(3);
            self.written.extend_from_slice(&bytes[..written]);
            Ok(written)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn nonblocking_descriptor_loses_nothing() {
        let mut slow = Slow::default();
        write_patiently(&mut slow, b"whole line\n").unwrap();
        assert_eq!(slow.written, b"whole line\n");
    }

    /// A full disk.
    struct Full;

    impl LineOutput for Full {
        fn write_lines(&mut self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn report_dropped(&mut self, _: u64) {}
    }

    #[test]
    fn full_disk_loses_only_lines() {
        let filter = EnvFilter::new("info");
        let queue = LineQueue::start("full", 1000, Full).unwrap();
        let lines = queue.clone();
        let full = subscriber(LogFormat::Text, filter, false, move || Queued(lines.clone()));
        tracing::subscriber::with_default(full, || tracing::error!("nobody hears this"));
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!((queue.counts().written, queue.counts().dropped), (0, 1));
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
    fn empty_variable_leaves_the_default() {
        assert_eq!(choose_filter(Some("".into()), "warn").unwrap().to_string(), "warn");
        assert_eq!(choose_filter(None, "error").unwrap().to_string(), "error");
    }

    #[test]
    fn invalid_filter_is_named_with_its_origin() {
        let error = choose_filter(Some("info,=?=".into()), "info").unwrap_err().to_string();
        assert!(error.contains(FILTER_VARIABLE) && error.contains("`info,=?=`"), "{error}");
        assert!(!error.contains('\n'));
    }

    #[test]
    fn format_prints_as_it_is_read() {
        for name in ["text", "json"] {
            assert_eq!(name.parse::<LogFormat>().unwrap().to_string(), name);
        }
        assert!("xml".parse::<LogFormat>().unwrap_err().to_string().contains("`xml`"));
    }
}
