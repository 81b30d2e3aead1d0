//! Local ports, of which each connection to the same address takes one: their number, and
//! exhaustion.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric as _};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use tradewind_desired::Connections;
use tradewind_net::{sysctl, tcp};
use tradewind_telemetry::{LogLimit, limited};

use tradewind_config::{LegProfiles, Limits};

/// The kernel's setting.
const RANGE: &str = "net.ipv4.ip_local_port_range";
/// Most connections of a bulky stream whose number is adaptive.
const MAX_ADAPTIVE: u64 = 16;

/// Returns true if a dial failed because no local port is left for that address.
pub(crate) fn are_exhausted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrNotAvailable
}

/// Returns the cause of a dial of `address`, whose packets would bear `mark`, that failed with
/// `error`. The kernel has one number for a host without a free local port and for one without a
/// source address, as without IPv6: if a datagram could not be sent either, the network is
/// unreachable.
pub(crate) fn cause_of(error: io::Error, address: SocketAddr, mark: Option<u32>) -> io::Error {
    /// `ENETUNREACH`, of which the standard library has the kind but no constructor.
    const NETWORK_UNREACHABLE: i32 = 101;
    if are_exhausted(&error) && !has_source(address, mark) {
        return io::Error::from_raw_os_error(NETWORK_UNREACHABLE);
    }
    error
}

/// Returns true if this host has an address from which packets with `mark` go to `address`. Nothing
/// is sent.
fn has_source(address: SocketAddr, mark: Option<u32>) -> bool {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let connected = UdpSocket::bind((any, 0)).and_then(|socket| {
        if let Some(mark) = mark {
            tcp::set_mark(&socket, mark).map_err(io::Error::other)?;
        }
        socket.connect(address)
    });
    // Any other error says nothing about addresses.
    connected.err().is_none_or(|error| {
        let kinds = [io::ErrorKind::AddrNotAvailable, io::ErrorKind::NetworkUnreachable];
        !kinds.contains(&error.kind())
    })
}

/// The message for exhausted local ports.
pub(crate) const EXHAUSTED: &str =
    "no local port is left for that address (net.ipv4.ip_local_port_range)";

/// The exhaustion of local ports as seen by one process; clones share it.
#[derive(Debug, Clone, Default)]
pub struct LocalPorts(Arc<Seen>);

#[derive(Debug, Default)]
struct Seen {
    exhausted: AtomicU64,
    lines: LogLimit<SocketAddr>,
}

impl LocalPorts {
    /// Counts and logs that `address` was not dialled because no port was left.
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

    /// Returns a collector that exports it as a metric of `program`.
    pub fn collector(&self, program: &'static str) -> impl Collector + use<> {
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

/// Returns the number of local ports of this host for connections to one address; `None` where the
/// kernel does not tell.
#[must_use]
pub fn host_ports() -> Option<u64> {
    let range = sysctl::get(RANGE).ok()?;
    let mut ends = range.split_whitespace().filter_map(|end| end.parse::<u64>().ok());
    let (first, last) = (ends.next()?, ends.next()?);
    Some((last + 1).saturating_sub(first))
}

/// Returns the legs of a configuration that need more than `ports` local ports if all sessions go
/// to one next hop, one line for each leg.
#[must_use]
pub fn shortfalls(limits: &Limits, legs: &LegProfiles, ports: u64) -> Vec<String> {
    let of_leg = |name: String, connections: Connections| {
        let each = match connections {
            Connections::One => 1,
            Connections::Fixed(number) => number.get().into(),
            Connections::Adaptive => MAX_ADAPTIVE,
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
    use std::net::{TcpListener, TcpStream};

    use tradewind_net::iproute::{Tool, batch};
    use tradewind_net::netns::Namespace;

    use super::*;

    #[test]
    fn missing_family_differs_from_no_local_port() {
        let host = match Namespace::create() {
            Ok(host) => host,
            Err(error) => return eprintln!("SKIPPED: {error}"),
        };
        batch(&host, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
        let cause = |to: SocketAddr| {
            let error = TcpStream::connect(to).unwrap_err();
            assert!(are_exhausted(&error), "{to}: {error}");
            cause_of(error, to, None).kind()
        };
        let test = || {
            sysctl::set("net.ipv6.conf.all.disable_ipv6", "1").unwrap();
            for to in ["[2001:db8::1]:80", "[::1]:80"] {
                assert_eq!(cause(to.parse().unwrap()), io::ErrorKind::NetworkUnreachable, "{to}");
            }
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let to = listener.local_addr().unwrap();
            sysctl::set(RANGE, "61000 61003").unwrap();
            let used: Vec<_> = (0..9).map_while(|_| TcpStream::connect(to).ok()).collect();
            assert!((1..9).contains(&used.len()), "{}", used.len());
            assert_eq!(cause(to), io::ErrorKind::AddrNotAvailable);
        };
        host.run(test).unwrap();
    }

    #[test]
    fn sessions_are_checked_against_local_ports() {
        let limits = Limits { sessions: 10, ..Limits::default() };
        let mut legs = LegProfiles::default();
        assert_eq!(shortfalls(&limits, &legs, 10), [""; 0]);
        assert_eq!(
            shortfalls(&limits, &legs, 9),
            ["leg.dial: 10 sessions to one next hop take 10 local ports, and \
              net.ipv4.ip_local_port_range has 9"]
        );
        legs.dial.connections = Connections::fixed(4).unwrap();
        let found = shortfalls(&limits, &legs, 39);
        assert!(found[0].starts_with("leg.dial: 10 sessions of 4 connections"), "{found:?}");
        assert!(shortfalls(&limits, &legs, 40).is_empty());
    }
}
