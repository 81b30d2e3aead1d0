//! Lines written by a thread of their own, so that no other thread waits for a descriptor.
//!
//! A descriptor blocks whenever its reader stops: a pipe to a process that sleeps, a terminal after
//! Ctrl-S, a socket of a collector that hangs, a slow disk. So lines wait in memory, up to a bound;
//! lines beyond it are dropped and counted.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;

/// The output of a queue. Only the queue's thread calls it, and it may block.
pub trait LineOutput: Send + 'static {
    /// Writes whole lines, each ended by a line feed.
    ///
    /// # Errors
    /// When they were not written; they are then lost and counted.
    fn write_lines(&mut self, lines: &[u8]) -> io::Result<()>;

    /// Writes the line that reports `count` dropped lines.
    fn report_dropped(&mut self, count: u64);

    /// Returns whether it takes several lines at once.
    fn takes_many(&self) -> bool {
        true
    }
}

/// A bounded queue of lines; clones share it. When the last clone is dropped, its thread ends after
/// it has written the waiting lines.
#[derive(Debug, Clone)]
pub struct LineQueue(Arc<Owner>);

/// The owner that all clones of a queue share; it ends the thread when dropped.
#[derive(Debug)]
struct Owner(Arc<Shared>);

impl Drop for Owner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.filled.notify_one();
    }
}

/// The queues of this process, with the names that metrics give them.
static QUEUES: Mutex<Vec<(&'static str, Weak<Owner>)>> = Mutex::new(Vec::new());

#[derive(Debug)]
struct Shared {
    limit_bytes: usize,
    state: Mutex<State>,
    /// Signals that lines wait for the thread.
    filled: Condvar,
    /// Signals that the thread has written all waiting lines.
    drained: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    waiting_lines: u64,
    is_writing: bool,
    is_closed: bool,
    written: u64,
    dropped: u64,
    /// The number of dropped lines that the output has reported.
    reported: u64,
}

/// The counts of a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Lines that the output has written.
    pub written: u64,
    /// Lines that did not fit, or that the output refused.
    pub dropped: u64,
}

impl LineQueue {
    /// Starts the thread that writes to `output`; it and the queue's metrics are called `name`. At
    /// most `limit_bytes` wait for it, and as many are being written.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        name: &'static str,
        limit_bytes: usize,
        output: impl LineOutput,
    ) -> Result<Self, io::Error> {
        let state = Mutex::new(State::default());
        let (filled, drained) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { limit_bytes, state, filled, drained });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name(name.to_owned());
        thread.spawn(move || theirs.write_all(output))?;
        let owner = Arc::new(Owner(shared));
        let mut queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        queues.retain(|(_, queue)| queue.strong_count() > 0);
        queues.push((name, Arc::downgrade(&owner)));
        Ok(Self(owner))
    }

    /// Queues `line`, with a line feed added if it has none. Returns at once; false when there was
    /// no space.
    pub fn put(&self, line: &[u8]) -> bool {
        let mut state = self.shared().lock();
        if state.waiting.len() + line.len() + 1 > self.shared().limit_bytes {
            state.dropped += 1;
            return false;
        }
        state.waiting.extend_from_slice(line);
        if !line.ends_with(b"\n") {
            state.waiting.push(b'\n');
        }
        state.waiting_lines += 1;
        drop(state);
        self.shared().filled.notify_one();
        true
    }

    /// Waits until the output has all lines, for at most `limit`. Returns whether it has.
    pub fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = self.shared().lock();
        while state.is_writing || !state.waiting.is_empty() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.shared().drained.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn shared(&self) -> &Shared {
        &self.0.0
    }

    /// Returns the queue's counts.
    #[must_use]
    pub fn counts(&self) -> LineCounts {
        let state = self.shared().lock();
        LineCounts { written: state.written, dropped: state.dropped }
    }
}

impl Shared {
    /// Locks the state, even if another thread panicked with the lock held.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_all(&self, mut output: impl LineOutput) {
        let mut batch = Vec::new();
        while let Some((lines, missing)) = self.take_batch(&mut batch) {
            let written = match output.takes_many() {
                true if output.write_lines(&batch).is_ok() => lines,
                true => 0,
                false => {
                    let one_by_one = batch.split_inclusive(|byte| *byte == b'\n');
                    one_by_one.map(|line| u64::from(output.write_lines(line).is_ok())).sum()
                }
            };
            if missing > 0 {
                output.report_dropped(missing);
            }
            let mut state = self.lock();
            state.is_writing = false;
            state.written += written;
            // The output could not report the others either.
            state.dropped += lines - written;
            state.reported += lines - written;
            if state.waiting.is_empty() {
                self.drained.notify_all();
            }
        }
    }

    /// Waits for lines, and moves them to `batch`. Returns their number, and the number of lines
    /// dropped after them; `None` when the queue has ended.
    fn take_batch(&self, batch: &mut Vec<u8>) -> Option<(u64, u64)> {
        /// Memory that a batch keeps; a larger one frees the rest.
        const KEPT_BYTES: usize = 64 * 1024;
        batch.clear();
        batch.shrink_to(KEPT_BYTES);
        let mut state = self.lock();
        while state.waiting.is_empty() {
            if state.is_closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        std::mem::swap(batch, &mut state.waiting);
        state.is_writing = true;
        let missing = state.dropped - state.reported;
        state.reported = state.dropped;
        Some((std::mem::take(&mut state.waiting_lines), missing))
    }
}

/// A collector of the counts of the process's queues.
#[derive(Debug)]
pub(crate) struct QueueCollector;

impl Collector for QueueCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut sums: BTreeMap<&str, LineCounts> = BTreeMap::new();
        let queues = QUEUES.lock().unwrap_or_else(PoisonError::into_inner);
        for (name, queue) in queues.iter() {
            let Some(queue) = queue.upgrade().map(LineQueue) else { continue };
            let (sum, counts) = (sums.entry(name).or_default(), queue.counts());
            sum.written += counts.written;
            sum.dropped += counts.dropped;
        }
        let help = "Lines that the outputs of logs took";
        encode_lines(&mut encoder, "log_lines_written", help, &sums, |counts| counts.written)?;
        let help = "Lines of logs that found no room, or that their outputs refused";
        encode_lines(&mut encoder, "log_lines_dropped", help, &sums, |counts| counts.dropped)
    }
}

fn encode_lines(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    sums: &BTreeMap<&str, LineCounts>,
    value: impl Fn(&LineCounts) -> u64,
) -> Result<(), std::fmt::Error> {
    let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (log, counts) in sums {
        let labels = [("log", *log)];
        ConstCounter::new(value(counts)).encode(family.encode_family(&labels)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// An output that blocks until the test releases it.
    struct Stalled {
        begun: Sender<()>,
        go_on: Receiver<()>,
        seen: Sender<String>,
    }

    impl LineOutput for Stalled {
        fn write_lines(&mut self, lines: &[u8]) -> io::Result<()> {
            self.begun.send(()).map_err(io::Error::other)?;
            self.go_on.recv().map_err(io::Error::other)?;
            let text = String::from_utf8(lines.to_vec()).map_err(io::Error::other)?;
            self.seen.send(text).map_err(io::Error::other)
        }

        fn report_dropped(&mut self, count: u64) {
            let _gone = self.seen.send(format!("{count} dropped\n"));
        }
    }

    #[test]
    fn stalled_output_blocks_nobody_and_drops_are_reported() {
        let ((begun, has_begun), (go, go_on), (seen, shown)) = (channel(), channel(), channel());
        let queue = LineQueue::start("lines", 10, Stalled { begun, go_on, seen }).unwrap();
        assert!(queue.put(b"first"));
        has_begun.recv().unwrap();
        assert!(queue.put(b"a\n") && queue.put(b"bcdefg"));
        assert!(!queue.put(b"h") && !queue.put(b"i"));
        assert!(!queue.flush(Duration::ZERO));
        assert_eq!(queue.counts(), LineCounts { written: 0, dropped: 2 });
        go.send(()).unwrap();
        go.send(()).unwrap();
        assert!(queue.flush(Duration::from_secs(60)));
        let text: Vec<_> = shown.try_iter().collect();
        assert_eq!(text, ["first\n", "a\nbcdefg\n", "2 dropped\n"]);
        assert_eq!(queue.counts(), LineCounts { written: 3, dropped: 2 });
    }

    /// An output that refuses all lines.
    struct Refusing;

    impl LineOutput for Refusing {
        fn write_lines(&mut self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn report_dropped(&mut self, _: u64) {}
    }

    #[test]
    fn refused_lines_are_counted() {
        let queue = LineQueue::start("lines", 100, Refusing).unwrap();
        assert!(queue.put(b"first") && queue.put(b"second"));
        assert!(queue.flush(Duration::from_secs(60)));
        assert_eq!(queue.counts(), LineCounts { written: 0, dropped: 2 });
    }
}
