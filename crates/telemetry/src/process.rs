//! The figures that every process reports about itself, read from `/proc/self` at each scrape.
//!
//! Names follow the Prometheus convention for process metrics, so that common dashboards work. A
//! figure that cannot be read (no `/proc`, a hardened container) is left out, never invented.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

/// Clock ticks a second in `/proc/self/stat`: fixed at 100 by the kernel's interface on the
/// architectures we build for (x86-64, arm64), see proc_pid_stat(5) and time(7).
const TICKS_PER_SECOND: f64 = 100.0;

/// A collector that reads the process's own figures at each scrape.
#[derive(Debug)]
pub(crate) struct ProcessCollector {
    start_unix_s: f64,
}

impl ProcessCollector {
    /// Records the start time: from `/proc`, or now where that cannot be read.
    pub(crate) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |t| t.as_secs_f64());
        Self { start_unix_s: start_time().unwrap_or(now) }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), std::fmt::Error> {
        let mut gauge = |name, help, unit: Option<Unit>, value: Option<f64>| {
            let Some(value) = value else { return Ok(()) };
            let metric = ConstGauge::new(value);
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(name, help, unit.as_ref(), kind)?)
        };
        gauge("process_open_fds", "Open file descriptors", None, open_descriptors())?;
        gauge("process_max_fds", "Limit of open file descriptors", None, descriptor_limit())?;
        gauge(
            "process_resident_memory",
            "Resident memory",
            Some(Unit::Bytes),
            status_bytes("VmRSS:"),
        )?;
        gauge("process_threads", "Threads", None, status_field("Threads:"))?;
        gauge(
            "process_start_time",
            "Start of the process since the Unix epoch",
            Some(Unit::Seconds),
            Some(self.start_unix_s),
        )?;
        if let Some(cpu) = cpu_seconds() {
            let metric = ConstCounter::new(cpu);
            let kind = metric.metric_type();
            let help = "CPU time in user and kernel mode";
            metric.encode(encoder.encode_descriptor(
                "process_cpu",
                help,
                Some(&Unit::Seconds),
                kind,
            )?)?;
        }
        let metric = ConstCounter::new(crate::log_limit::left_out());
        let (name, kind) = ("tradewind_log_lines_left_out", metric.metric_type());
        let help = "Log lines that others caused and that were left out";
        metric.encode(encoder.encode_descriptor(name, help, None, kind)?)
    }
}

fn open_descriptors() -> Option<f64> {
    // The descriptor that reads the folder is listed in it.
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

fn descriptor_limit() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().next()?.parse().ok()
}

fn status_field(name: &str) -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn status_bytes(name: &str) -> Option<f64> {
    status_field(name).map(|kib| kib * 1024.0)
}

/// Returns the fields of `/proc/self/stat` from the third on. The second is the program's name in
/// parentheses and may hold spaces and parentheses of its own.
fn stat_fields() -> Option<Vec<u64>> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    Some(numbers_after_name(&stat))
}

fn numbers_after_name(stat: &str) -> Vec<u64> {
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()
}

fn cpu_seconds() -> Option<f64> {
    let fields = stat_fields()?;
    let ticks = fields.get(11)? + fields.get(12)?;
    Some(ticks as f64 / TICKS_PER_SECOND)
}

fn start_time() -> Option<f64> {
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 =
        boot.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    let ticks = *stat_fields()?.get(19)?;
    Some(boot + ticks as f64 / TICKS_PER_SECOND)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_figures_have_sense() {
        assert!(open_descriptors().unwrap() >= 3.0);
        assert!(descriptor_limit().unwrap() >= open_descriptors().unwrap());
        assert!(status_bytes("VmRSS:").unwrap() > 100_000.0);
        assert!(status_field("Threads:").unwrap() >= 1.0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        let age = now - start_time().unwrap();
        assert!((-2.0..86_400.0).contains(&age), "{age}");
    }

    #[test]
    fn cpu_time_grows_with_work() {
        let before = cpu_seconds().unwrap();
        let mut sum = 0u64;
        while cpu_seconds().unwrap() - before < 0.02 {
            sum = (0..100_000u64).fold(sum, |a, b| a.wrapping_add(std::hint::black_box(b)));
        }
        assert!(cpu_seconds().unwrap() > before);
    }

    #[test]
    fn parentheses_in_program_name_are_parsed() {
        assert_eq!(numbers_after_name("7 (a) b) c) S 1 2 3"), [0, 1, 2, 3]);
    }
}
