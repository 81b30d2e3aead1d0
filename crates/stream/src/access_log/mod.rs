//! The access log, a line for each session at its end; and the audit log, a line for each session
//! that a relay's rules admit, before anything is dialled for it.
//!
//! Lines are JSON objects. They go through a [`LineQueue`], so that no worker ever waits for a file
//! or a collector: lines that do not fit are dropped and counted.

pub(crate) mod record;

use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tradewind_config::{AccessLogConfig, AuditLogConfig, LogTarget};
use tradewind_grant::OpenHeader;
use tradewind_grant::date::Date;
use tradewind_net::log_file;
use tradewind_telemetry::LineQueue;
use tradewind_telemetry::output::{LineFile, LineSocket, Rotation};
use tradewind_units::{Bytes, Timestamp};

use crate::StreamError;
use crate::clock::unix_now;
use crate::counts::Outcome;

pub(crate) use record::Follower;
use record::SessionSink;
pub use record::{Arm, Goes, Record, SessionFacts, count, note, recorded};

/// Most bytes of lines that wait for an output. Chosen: some ten thousand sessions.
const MAX_WAITING_BYTES: usize = 4 << 20;
/// Longest wait for an output at the end of the process. Chosen: as for standard error.
const FLUSH_LIMIT: Duration = Duration::from_secs(1);

/// The log of sessions that have ended.
#[derive(Debug)]
pub struct AccessLog {
    program: &'static str,
    queue: LineQueue,
    one_in: NonZeroU64,
    ended: AtomicU64,
}

impl AccessLog {
    /// Opens the access log of `program`, if there is to be one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub(crate) fn open(
        program: &'static str,
        config: Option<&AccessLogConfig>,
    ) -> Result<Option<Self>, StreamError> {
        let Some(config) = config else { return Ok(None) };
        let rotation = |at: Bytes| Rotation { at_bytes: at.as_u64(), keep: config.keep };
        let queue = open("access", &config.to, config.rotate_at.map(rotation))?;
        Ok(Some(Self { program, queue, one_in: config.one_in, ended: AtomicU64::new(0) }))
    }

    /// Logs something else that is over, by `fields` beside the time and the program. If it ended
    /// in order one in so many is logged. Returns at once, true if there is a line.
    pub fn tell_fields(
        &self,
        ended_in_order: bool,
        fields: impl FnOnce() -> serde_json::Map<String, serde_json::Value>,
    ) -> bool {
        if self.leaves_out(ended_in_order) {
            return false;
        }
        let mut line = fields();
        line.insert("time".to_owned(), in_words(unix_now()).into());
        line.insert("program".to_owned(), self.program.into());
        let line = serde_json::Value::Object(line);
        self.queue.put(line.to_string().as_bytes())
    }

    /// Counts an end in order, and returns true if it is left out.
    fn leaves_out(&self, ended_in_order: bool) -> bool {
        ended_in_order && !self.ended.fetch_add(1, Relaxed).is_multiple_of(self.one_in.get())
    }

    /// Waits until the output has all lines, for a bounded time.
    pub fn flush(&self) {
        let _all_written = self.queue.flush(FLUSH_LIMIT);
    }
}

impl SessionSink for AccessLog {
    /// Logs a session that is over. Of those that ended in order one in so many is logged.
    fn session_ended(&self, record: &Record, outcome: Outcome) {
        if self.leaves_out(outcome == Outcome::Ended) {
            return;
        }
        if let Some(line) = record.to_line(self.program, unix_now(), outcome) {
            let _counted = self.queue.put(line.to_string().as_bytes());
        }
    }
}

/// The log of sessions and packet paths that a relay admits.
#[derive(Debug)]
pub struct AuditLog(LineQueue);

impl AuditLog {
    /// Opens the audit log, if there is to be one.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub fn open(config: Option<&AuditLogConfig>) -> Result<Option<Self>, StreamError> {
        config.map(|config| open("audit", &config.to, None).map(Self)).transpose()
    }

    /// Logs a session that grant and rules admit.
    pub fn tell(&self, header: &OpenHeader) {
        self.tell_of("session", header);
    }

    /// Logs a packet path that is admitted. Returns at once.
    pub fn tell_of_path(&self, header: &OpenHeader) {
        self.tell_of("packet_path", header);
    }

    fn tell_of(&self, kind: &str, header: &OpenHeader) {
        let line = serde_json::json!({
            "kind": kind,
            "time": in_words(unix_now()),
            "grant": header.grant_id.to_string(),
            "gateway": header.grant.gateway.to_string(),
            "neighbour": header.neighbour().to_string(),
            "flow": header.flow.to_string(),
            "destination": header.destination.to_string(),
            "hop": header.hop + 1,
            "hops": header.route.hops().len(),
        });
        let _counted = self.0.put(line.to_string().as_bytes());
    }

    /// Waits until the output has all lines, for a bounded time.
    pub fn flush(&self) {
        let _all_written = self.0.flush(FLUSH_LIMIT);
    }
}

fn open(
    name: &'static str,
    to: &LogTarget,
    rotation: Option<Rotation>,
) -> Result<LineQueue, StreamError> {
    let queue = || match to {
        LogTarget::File(path) => {
            let file = LineFile::open(path, log_file::open_append, rotation)?;
            LineQueue::start(name, MAX_WAITING_BYTES, file)
        }
        LogTarget::Unix(path) => {
            LineQueue::start(name, MAX_WAITING_BYTES, LineSocket::to_unix(path)?)
        }
        LogTarget::Udp(to) => LineQueue::start(name, MAX_WAITING_BYTES, LineSocket::to_udp(*to)?),
    };
    queue().map_err(|cause: io::Error| StreamError::LogTarget { name, to: to.to_string(), cause })
}

/// Returns a time in the format of the logs, `2027-01-31T00:00:00.000Z`.
fn in_words(unix: Timestamp) -> String {
    let (seconds, ms) = (unix.as_nanos() / 1_000_000_000, unix.as_nanos() / 1_000_000 % 1000);
    let date = Date(seconds).to_string();
    format!("{}.{ms:03}Z", date.trim_end_matches('Z'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_has_milliseconds() {
        let time = Timestamp::from_nanos(1_795_179_600_007_900_000);
        assert_eq!(in_words(time), "2026-11-20T13:00:00.007Z");
    }
}
