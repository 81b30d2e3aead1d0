//! Local ports: each connection to one address takes one of its own, and there are so many.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tradewind_desired::Connections;
use tradewind_net::sysctl;
use tradewind_telemetry::{LogLimit, limited};

use crate::config::{LegProfiles, Limits};

/// The kernel's setting.
const RANGE: &str = "net.ipv4.ip_local_port_range";
/// Most connections of a bulky stream whose number is not told.
const MOST_ADAPTIVE: u64 = 16;

/// Returns whether a dial failed since no local port is left for that address.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

/// The words for that.
pub(crate) const EXHAUSTED: &str =
    "no local port is left for that address (net.ipv4.ip_local_port_range)";

/// What one process has seen of it; clones see the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct LocalPorts(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    exhausted: AtomicU64,
    lines: LogLimit<SocketAddr>,
}

impl LocalPorts {
    /// Counts and tells that `address` was not dialled since no port was left.
    pub(crate) fn note_exhausted(&self, address: SocketAddr) {
        self.0.exhausted.fetch_add(1, Relaxed);
        let lines = &self.0.lines;
        limited!(
            warn,
            lines,
            address,
            "dial {address}: {EXHAUSTED}: widen it, or have more next hops"
        );
    }

    /// Returns what shows it as a metric of `program`.
    pub(crate) fn collector(&self, program: &'static str) -> impl Collector + use<> {
        PortCollector { program, ports: self.clone() }
    }
}

#[derive(Debug)]
struct PortCollector {
    program: &'static str,
    ports: LocalPorts,
}

impl Collector for PortCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        let name = format!("{}_local_ports_exhausted", self.program);
        let help = "Dials that failed since no local port was left for the address";
        let counter = MetricType::Counter;
        let place = encoder.encode_descriptor(&name, help, None, counter)?;
        ConstCounter::new(self.ports.0.exhausted.load(Relaxed)).encode(place)
    }
}

/// Returns how many local ports this host has for connections to one address; nothing where the
/// kernel does not tell.
#[must_use]
pub fn host_ports() -> Option<u64> {
    let range = sysctl::get(RANGE).ok()?;
    let mut ends = range.split_whitespace().filter_map(|end| end.parse::<u64>().ok());
    let (first, last) = (ends.next()?, ends.next()?);
    Some((last + 1).saturating_sub(first))
}

/// Returns what `ports` do not allow of a configuration: sessions that all go to one next hop, one
/// line for each leg.
#[must_use]
pub fn shortfalls(limits: &Limits, legs: &LegProfiles, ports: u64) -> Vec<String> {
    let of_leg = |name: String, connections: Connections| {
        let each = match connections {
            Connections::One => 1,
            Connections::Fixed(number) => number.get().into(),
            Connections::Adaptive => MOST_ADAPTIVE,
        };
        let most = limits.sessions as u64 * each;
        (most > ports).then(|| {
            let striped = if each > 1 { format!(" of {each} connections") } else { String::new() };
            format!(
                "{name}: {} sessions{striped} to one next hop take {most} local ports, and {RANGE} \
                 has {ports}",
                limits.sessions
            )
        })
    };
    let to = legs.to.iter().map(|leg| (format!("leg.to {}", leg.address), leg.dial.connections));
    let all = std::iter::once(("leg.dial".to_owned(), legs.dial.connections)).chain(to);
    all.filter_map(|(name, connections)| of_leg(name, connections)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_to_one_next_hop_are_held_against_the_ports_for_it() {
        let limits = Limits { sessions: 10, ..Limits::default() };
        let mut legs = LegProfiles::default();
        assert_eq!(shortfalls(&limits, &legs, 10), [""; 0]);
        assert_eq!(
            shortfalls(&limits, &legs, 9),
            ["leg.dial: 10 sessions to one next hop take 10 local ports, and \
              net.ipv4.ip_local_port_range has 9"]
        );
        legs.dial.connections = Connections::fixed(4).unwrap();
        let told = shortfalls(&limits, &legs, 39);
        assert!(told[0].starts_with("leg.dial: 10 sessions of 4 connections"), "{told:?}");
        assert!(shortfalls(&limits, &legs, 40).is_empty());
    }
}
