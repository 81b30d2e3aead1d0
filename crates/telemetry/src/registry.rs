//! The process's metrics, in the OpenMetrics text form.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry as Inner;

use crate::process::ProcessCollector;
use crate::queue::QueueCollector;

/// The metrics of one process; clones share them.
///
/// From the start it holds what every process reports: `tradewind_build_info` with program and
/// version, the `process_*` figures, and the lines that its logs have dropped. All other names get
/// the prefix `tradewind_`.
#[derive(Debug, Clone)]
pub struct Registry {
    metrics: Arc<Mutex<Inner>>,
    pages: Arc<Mutex<BTreeMap<&'static str, Page>>>,
}

/// A function that makes a page's JSON from the query that follows its path, or returns the error
/// about the query.
struct Page(Box<MakePage>);

type MakePage = dyn Fn(Option<&str>) -> Result<String, String> + Send;

impl fmt::Debug for Page {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Page")
    }
}

impl Registry {
    /// Creates the registry of `program`, e.g. `relay`, in `version`.
    #[must_use]
    pub fn new(program: &str, version: &str) -> Self {
        let mut inner = Inner::default();
        let labels = [("program", program.to_owned()), ("version", version.to_owned())];
        inner.register(
            "tradewind_build",
            "Program and version of this process",
            Info::new(labels.map(|(key, value)| (key.to_owned(), value)).to_vec()),
        );
        inner.register_collector(Box::new(ProcessCollector::new()));
        inner.sub_registry_with_prefix("tradewind").register_collector(Box::new(QueueCollector));
        Self { metrics: Arc::new(Mutex::new(inner)), pages: Arc::default() }
    }

    /// Registers metrics by `register`; their names get the prefix `tradewind_`.
    ///
    /// Keep the metric itself (it is a shared handle) and count on it: that takes no lock.
    pub fn register<T>(&self, register: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        register(inner.sub_registry_with_prefix("tradewind"))
    }

    /// Serves JSON at `path`, e.g. `/paths`, made by `page` from the query that follows it (without
    /// `?`). An error of `page` says what is wrong with the query.
    pub fn add_page(
        &self,
        path: &'static str,
        page: impl Fn(Option<&str>) -> Result<String, String> + Send + 'static,
    ) {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.insert(path, Page(Box::new(page)));
    }

    /// Returns the page at `path`; `None` if there is none.
    pub(crate) fn page(&self, path: &str, query: Option<&str>) -> Option<Result<String, String>> {
        let pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        pages.get(path).map(|page| page.0(query))
    }

    /// Encodes all metrics in OpenMetrics text. Cost: linear in the number of series.
    #[must_use]
    pub fn encode(&self) -> String {
        let inner = self.metrics.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &inner)
            .expect("writing to a String cannot fail");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn registry_has_process_metrics() {
        let text = Registry::new("relay", "0.1.0").encode();
        for name in [
            "tradewind_build_info{program=\"relay\",version=\"0.1.0\"} 1",
            "process_open_fds ",
            "process_max_fds ",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
            "process_threads ",
        ] {
            assert!(text.lines().any(|line| line.starts_with(name)), "{name} is not in\n{text}");
        }
        assert!(text.ends_with("# EOF\n"));
    }

    #[test]
    fn metrics_count_through_a_stored_handle() {
        let registry = Registry::new("relay", "0.1.0");
        let sessions = Counter::<u64>::default();
        registry.register(|r| r.register("sessions", "Sessions opened", sessions.clone()));
        sessions.inc_by(3);
        assert!(registry.encode().contains("\ntradewind_sessions_total 3\n"));
    }

    #[test]
    fn lines_of_logs_are_shown_by_log() {
        struct Nowhere;
        impl crate::LineOutput for Nowhere {
            fn write_lines(&mut self, _: &[u8]) -> std::io::Result<()> {
                Ok(())
            }

            fn report_dropped(&mut self, _: u64) {}
        }
        let queue = crate::LineQueue::start("nowhere", 10, Nowhere).unwrap();
        assert!(queue.put(b"line") && !queue.put(b"longer than ten"));
        assert!(queue.flush(std::time::Duration::from_secs(60)));
        let text = Registry::new("relay", "0.1.0").encode();
        for line in ["written_total{log=\"nowhere\"} 1", "dropped_total{log=\"nowhere\"} 1"] {
            assert!(text.contains(&format!("\ntradewind_log_lines_{line}\n")), "{text}");
        }
    }

    #[test]
    fn labels_cannot_break_the_text() {
        let text = Registry::new("a\"b\n", "1").encode();
        assert!(text.contains(r#"program="a\"b\n""#), "{text}");
    }
}
