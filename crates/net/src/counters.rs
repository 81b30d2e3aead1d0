//! Kernel counters: packets of a namespace's devices, the machine's CPU time, TCP's memory and
//! segments.

use std::fs::{self, File};
use std::io::{Read, Seek};

use tradewind_units::Duration;

use crate::error::{NetError, Result};

/// The packet counters of one device, from its namespace's point of view.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DeviceCounters {
    /// Packets that the namespace received; a super-packet counts once.
    pub received: u64,
    /// Arriving packets that the namespace dropped.
    pub receive_drops: u64,
    /// Packets that the namespace sent; a super-packet counts once.
    pub sent: u64,
    /// Leaving packets that were dropped at the device or its queue.
    pub send_drops: u64,
}

/// A namespace's device counters, readable from any thread.
#[derive(Debug)]
pub struct DeviceTable {
    file: File,
}

impl DeviceTable {
    /// Opens the counters of the calling thread's namespace.
    ///
    /// # Errors
    /// When `/proc` is not mounted.
    pub fn open() -> Result<Self> {
        let path = "/proc/thread-self/net/dev";
        let file = File::open(path).map_err(|e| NetError::system(format!("open {path}"), e))?;
        Ok(Self { file })
    }

    /// Reads the counters of `device`; all zero when it does not exist.
    ///
    /// # Errors
    /// When the kernel refuses the read.
    pub fn read(&mut self, device: &str) -> Result<DeviceCounters> {
        let mut text = String::new();
        self.file
            .rewind()
            .and_then(|()| self.file.read_to_string(&mut text))
            .map_err(|source| NetError::system("read device counters", source))?;
        Ok(parse_device(&text, device).unwrap_or_default())
    }
}

fn parse_device(text: &str, device: &str) -> Option<DeviceCounters> {
    let rest = text.lines().find_map(|line| {
        let (name, rest) = line.split_once(':')?;
        (name.trim() == device).then_some(rest)
    })?;
    let numbers: Vec<u64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
    Some(DeviceCounters {
        received: *numbers.get(1)?,
        receive_drops: *numbers.get(3)?,
        sent: *numbers.get(9)?,
        send_drops: *numbers.get(11)?,
    })
}

/// CPU time of the whole machine since boot, in ticks over all CPUs, without time stolen by a
/// hypervisor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MachineCpu {
    /// Ticks at work.
    pub busy: u64,
    /// All ticks.
    pub total: u64,
}

/// Length of a tick: the kernel reports hundredths of a second to user space, whatever its own
/// rate.
const TICK: Duration = Duration::from_millis(10);

impl MachineCpu {
    /// Returns the share of CPU time used since `earlier`, without `spared`, which was used for
    /// nothing.
    #[must_use]
    pub fn busy_ratio_since(&self, earlier: &Self, spared: Duration) -> f64 {
        let total = self.total.saturating_sub(earlier.total).max(1) as f64;
        let busy = self.busy.saturating_sub(earlier.busy) as f64;
        let spared = spared.as_secs_f64() / TICK.as_secs_f64();
        (busy - spared).max(0.0) / total
    }
}

/// Reads the machine's CPU time.
///
/// # Errors
/// When `/proc/stat` cannot be read.
pub fn machine_cpu() -> Result<MachineCpu> {
    let path = "/proc/stat";
    let text = fs::read_to_string(path).map_err(|e| NetError::system(format!("read {path}"), e))?;
    Ok(parse_machine_cpu(&text))
}

/// Parses the first line: user nice system idle iowait irq softirq, then steal and guest time; the
/// latter is included in user.
fn parse_machine_cpu(text: &str) -> MachineCpu {
    let line = text.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(7).map_while(|word| word.parse().ok()).collect();
    let total = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    MachineCpu { busy: total - idle, total }
}

/// TCP's memory on the whole machine, in pages: one pool for all namespaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpMemory {
    /// Pages in use.
    pub used: u64,
    /// Threshold above which the kernel shrinks windows: measurements then show memory, not the
    /// network.
    pub pressure: u64,
}

/// Reads TCP's memory; `None` where the limit is not visible (inside a user namespace).
#[must_use]
pub fn tcp_memory() -> Option<TcpMemory> {
    let limits = crate::sysctl::get("net.ipv4.tcp_mem").ok()?;
    let pressure = limits.split_whitespace().nth(1)?.parse().ok()?;
    let text = fs::read_to_string("/proc/net/sockstat").ok()?;
    Some(TcpMemory { used: parse_tcp_pages(&text)?, pressure })
}

fn parse_tcp_pages(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with("TCP:"))?;
    let mut words = line.split_whitespace();
    words.find(|word| *word == "mem")?;
    words.next()?.parse().ok()
}

/// TCP's counters in one namespace, all its connections together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TcpCounters {
    /// Segments sent, acknowledgements included, retransmissions excluded.
    pub sent_segments: u64,
    /// Segments retransmitted.
    pub retransmitted_segments: u64,
}

impl TcpCounters {
    /// Returns the share of retransmitted segments among those sent since `earlier`; 0 if none was
    /// sent.
    #[must_use]
    pub fn share_again_since(&self, earlier: &Self) -> f64 {
        let sent = self.sent_segments.saturating_sub(earlier.sent_segments);
        let again = self.retransmitted_segments.saturating_sub(earlier.retransmitted_segments);
        if sent == 0 { 0.0 } else { again as f64 / sent as f64 }
    }
}

/// Reads the TCP counters of the calling thread's namespace.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn tcp_counters() -> Result<TcpCounters> {
    let path = "/proc/thread-self/net/snmp";
    let text = fs::read_to_string(path).map_err(|e| NetError::system(format!("read {path}"), e))?;
    Ok(parse_tcp_counters(&text).unwrap_or_default())
}

/// Parses the two lines that begin with `Tcp:`: the names, and the values below them.
fn parse_tcp_counters(text: &str) -> Option<TcpCounters> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let value = |wanted: &str| {
        let place = names.split(' ').position(|name| name == wanted)?;
        values.split(' ').nth(place)?.parse().ok()
    };
    Some(TcpCounters {
        sent_segments: value("OutSegs")?,
        retransmitted_segments: value("RetransSegs")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tcp_counters_are_found_by_name() {
        let text = "Ip: Forwarding\nIp: 1\nTcp: MaxConn OutSegs RetransSegs\nTcp: -1 70 3\n";
        let expected = TcpCounters { sent_segments: 70, retransmitted_segments: 3 };
        assert_eq!(parse_tcp_counters(text), Some(expected));
        assert_eq!(parse_tcp_counters("Ip: a\n"), None);
        let earlier = TcpCounters { sent_segments: 20, retransmitted_segments: 1 };
        assert_eq!(expected.share_again_since(&earlier), 2.0 / 50.0);
        assert_eq!(expected.share_again_since(&expected), 0.0);
    }

    #[test]
    fn device_lines_are_read() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n    lo: 0 0 0 0 0 0 0 0 \
                    0 0 0 0 0 0 0 0\n  wan0: 10 2 0 3 0 0 0 0 40 5 0 6 0 0 0 0\n";
        let expected = DeviceCounters { received: 2, receive_drops: 3, sent: 5, send_drops: 6 };
        assert_eq!(parse_device(text, "wan0"), Some(expected));
        assert_eq!(parse_device(text, "wan1"), None);
    }

    #[test]
    fn machine_time_leaves_out_idle_and_waiting() {
        let cpu = parse_machine_cpu("cpu  10 1 20 100 9 2 3 50 0 0\ncpu0 1 1 1 1\n");
        assert_eq!(cpu, MachineCpu { busy: 36, total: 145 });
    }

    #[test]
    fn tcp_pages_are_read() {
        let text =
            "sockets: used 5\nTCP: inuse 7 orphan 0 tw 0 alloc 8 mem 42\nUDP: inuse 1 mem 0\n";
        assert_eq!(parse_tcp_pages(text), Some(42));
    }
}
