//! Interception of packets of any protocol: those to chosen ranges are routed into a device of the
//! intercepting process.
//!
//! The routes are in a table of their own, which is looked up first for all packets except those
//! with one of our marks: the process's own packets ([`OWN_MARK`](super::OWN_MARK)) are sent as
//! usual, even to the same ranges, and packets marked by another interception go where that one
//! leads them. A TUN device that ends with its process removes the routes, and the remaining table
//! is empty, so that packets are at once forwarded as before; a device that the next process has as
//! well remains: that process sweeps ([`sweep`](super::sweep)). A process that hangs keeps its
//! device: then an nftables table marks the packets that would enter it with a mark of ours
//! (`watchdog`).
//!
//! The routes into the device carry the metrics of the routes that lead to the ranges without them,
//! such as an initial window or a congestion control (`route::metrics`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use netlink_packet_route::route::RouteMetric;
use nix::net::if_::if_nametoindex;

use super::watchdog::{self, Watchdog};
use super::{KIND, KIND_BITS, MARK, Routing};
use crate::error::{NetError, Result};
use crate::nft::Table;
use crate::route::kernel::Kernel;
use crate::route::metrics::RouteMetrics;

/// A deviation from the request to lead packets to a range into a device.
#[derive(Debug)]
pub enum Shortfall {
    /// The kernel does not accept a route's metrics on one into the device: connections get none.
    MetricsRefused,
    /// The packets are not led there.
    NotLed(NetError),
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MetricsRefused => f.write_str(
                "the kernel does not take the metrics of routes there for a route into the device: \
                 connections are not told them",
            ),
            Self::NotLed(error) => write!(f, "packets keep their original path: {error}"),
        }
    }
}

/// The routing of packets into one device; removed when dropped.
#[derive(Debug)]
pub struct Detour {
    device: u32,
    /// The table that leads packets past a process that hangs, and its heartbeats.
    guard: Option<(Arc<Watchdog>, Table)>,
    /// Reason why there is no such table, or none for IPv6.
    unguarded: Option<NetError>,
    kernel: Kernel,
    /// The routes in force: prefixes with their metrics.
    led: BTreeMap<IpNet, Vec<RouteMetric>>,
    routing: Routing,
}

impl Detour {
    /// Prepares to lead packets to some of `ranges` into `device`, in this thread's network
    /// namespace, without leading any yet. A failure for IPv6 only, as on hosts without it, does
    /// not affect IPv4.
    ///
    /// # Errors
    /// When `ip` is missing or lacks rights, or there is no such device.
    pub fn open(device: &str, ranges: &[IpNet]) -> Result<Self> {
        let index = if_nametoindex(device)
            .map_err(|errno| NetError::system(format!("look up the device {device}"), errno))?;
        let ranges: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
        let routing = Routing::claim()?;
        // Before the routes, so that a listener for route changes finds them in force.
        let ours = format!("{KIND:#x}/{KIND_BITS:#x}");
        let rule = |family| routing.rule(family, &["not", "fwmark", &ours]);
        let (v4, v6): (Vec<IpNet>, Vec<IpNet>) =
            ranges.iter().partition(|range| range.addr().is_ipv4());
        if !v4.is_empty() {
            rule("-4")?;
        }
        if !v6.is_empty()
            && let Err(error) = rule("-6")
            && v4.is_empty()
        {
            return Err(error);
        }
        let (guard, unguarded) = match guard(routing.number, &ranges) {
            Ok(guard) => (Some(guard), None),
            Err(error) if v4.is_empty() || v6.is_empty() => (None, Some(error)),
            Err(error) => (guard(routing.number, &v4).ok(), Some(error)),
        };
        let (kernel, led) = (Kernel::open(MARK)?, BTreeMap::new());
        Ok(Self { device: index, guard, unguarded, kernel, led, routing })
    }

    /// Leads packets to exactly `ranges` into the device, for as long as [`Detour::watchdog`] shows
    /// that the reader goes on. The routes get the current metrics of the main table's routes.
    /// Returns the deviations from that.
    ///
    /// # Errors
    /// When none of them can be led: without the right to change routes, or where the device is
    /// gone.
    ///
    /// # Cost
    /// Reads all routes.
    pub fn lead(&mut self, ranges: &[IpNet]) -> Result<Vec<(IpNet, Shortfall)>> {
        let ranges: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
        let all_metrics = RouteMetrics::read(&mut self.kernel, &ranges)?;
        let wanted: BTreeMap<_, _> =
            ranges.iter().flat_map(|range| all_metrics.within(*range)).collect();
        let (table, mut shortfalls) = (self.routing.table(), Vec::new());
        for (prefix, metrics) in &wanted {
            if self.led.get(prefix) == Some(metrics) {
                continue;
            }
            match self.kernel.lead(*prefix, (table, self.device), metrics.clone()) {
                Ok(has_metrics) => {
                    self.led.insert(*prefix, metrics.clone());
                    shortfalls
                        .extend((!has_metrics).then_some((*prefix, Shortfall::MetricsRefused)));
                }
                Err(error) => shortfalls.push((*prefix, Shortfall::NotLed(error))),
            }
        }
        let unwanted = self.led.extract_if(.., |prefix, _| !wanted.contains_key(prefix));
        for (prefix, _) in unwanted.collect::<Vec<_>>() {
            self.kernel.lead_no_more(prefix, table)?;
        }
        match shortfalls.pop() {
            Some((_, Shortfall::NotLed(error))) if self.led.is_empty() => Err(error),
            last => Ok(shortfalls.into_iter().chain(last).collect()),
        }
    }

    /// Returns the sender of heartbeats for the reader of the device, if they are supported.
    #[must_use]
    pub fn watchdog(&self) -> Option<&Arc<Watchdog>> {
        self.guard.as_ref().map(|(watchdog, _)| watchdog)
    }

    /// Returns the reason why packets, or those of IPv6, stay in the device if its reader hangs;
    /// `None` when they are led past it.
    #[must_use]
    pub fn unguarded(&self) -> Option<&NetError> {
        self.unguarded.as_ref()
    }
}

fn has_family(ranges: &[IpNet], is_ipv6: bool) -> bool {
    ranges.iter().any(|range| range.addr().is_ipv6() == is_ipv6)
}

/// Creates a table that marks packets to `ranges` like those that are sent as usual, unless
/// heartbeats arrive.
fn guard(number: u32, ranges: &[IpNet]) -> Result<(Arc<Watchdog>, Table)> {
    let mark = KIND | number;
    let watchdog = Watchdog::new([false, true].map(|is_ipv6| has_family(ranges, is_ipv6)), mark)?;
    let table = Table::set(&format!("tradewind-tun-{number}"), &go_round(ranges, mark))?;
    watchdog.heartbeat()?;
    Ok((Arc::new(watchdog), table))
}

fn go_round(ranges: &[IpNet], mark: u32) -> Vec<String> {
    let go = |range: &IpNet| {
        let family = if range.addr().is_ipv4() { "ip" } else { "ip6" };
        format!("{family} daddr {range} meta mark set {mark:#x}")
    };
    let go = ranges.iter().map(go).collect::<Vec<_>>().join("; ");
    // Packets marked by another interception bypass the device anyway.
    let is_marked = format!("meta mark & {KIND_BITS:#x} == {KIND:#x} return");
    let chain = |name: &str, kind: &str, hook: &str| {
        format!(
            "chain {name} {{ type {kind} hook {hook} priority mangle; policy accept; {} return; \
             {is_marked}; {go}; }}",
            watchdog::IS_FELT
        )
    };
    let mut chains = watchdog::felt(mark).to_vec();
    chains.extend([chain("passing", "filter", "prerouting"), chain("own", "route", "output")]);
    chains
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::iproute::{Tool, ask, batch};
    use crate::netns::Namespace;
    use crate::route::{Placed, Routes, Windows};
    use crate::skipped;
    use tradewind_units::Segments;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    /// Returns the route to an address, in the output of `ip route`.
    fn route(namespace: &Namespace, to: &str) -> String {
        namespace.run(|| ask(Tool::Ip, &["route", "get", "fibmatch", to])).unwrap().unwrap()
    }

    /// Runs `test` in a namespace with routes, and a device to lead packets into; reports if none
    /// can be made.
    fn in_namespace(name: &str, test: impl FnOnce(&Namespace)) {
        let may = crate::capability::may_make_networks();
        let Some(namespace) = may.then(Namespace::create).and_then(Result::ok) else {
            return skipped(&format!("{name}: no right to make network namespaces"));
        };
        let lines = [
            "link add wa type veth peer name wb",
            "link add tun0 type veth peer name other",
            "addr add 10.1.0.1/24 dev wa",
            "addr add 2001:db8:1::1/64 dev wa nodad",
            "link set wa up",
            "link set wb up",
            "link set tun0 up",
            "link set other up",
            "route add default via 10.1.0.254 mtu 1400",
            "route add 10.2.0.0/16 via 10.1.0.2 initcwnd 20 congctl reno mtu lock 1300",
            "route add 10.2.7.0/24 via 10.1.0.3 quickack 1",
            "route add 2001:db8:f::/48 via 2001:db8:1::2 initrwnd 33",
        ];
        batch(&namespace, Tool::Ip, &lines.map(str::to_owned)).unwrap();
        test(&namespace);
    }

    fn set(namespace: &Namespace, ranges: &[&str]) -> Detour {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| net(range)).collect();
        let lead = || {
            let mut detour = Detour::open("tun0", &ranges)?;
            assert!(detour.lead(&ranges)?.is_empty());
            Ok::<_, NetError>(detour)
        };
        namespace.run(lead).unwrap().unwrap()
    }

    #[test]
    fn detour_keeps_the_metrics_of_routes() {
        in_namespace("detour_keeps_the_metrics_of_routes", |namespace| {
            let detour = set(namespace, &["10.2.0.0/16", "10.3.0.0/16", "2001:db8:f::/48"]);
            for (to, expected) in [
                ("10.2.1.1", "10.2.0.0/16 dev tun0"),
                ("10.2.1.1", "initcwnd 20 congctl reno"),
                ("10.2.7.1", "10.2.7.0/24 dev tun0"),
                ("10.2.7.1", "quickack 1"),
                ("10.3.0.1", "10.3.0.0/16 dev tun0"),
                ("2001:db8:f::1", "dev tun0"),
                ("2001:db8:f::1", "initrwnd 33"),
                ("10.4.0.1", "default via 10.1.0.254 dev wa"),
            ] {
                let route = route(namespace, to);
                assert!(route.contains(expected), "{expected} in {route}");
            }
            for to in ["10.2.1.1", "10.3.0.1"] {
                assert!(!route(namespace, to).contains("mtu"), "a device has its own");
            }
            namespace.run(|| drop(detour)).unwrap();
            assert!(route(namespace, "10.2.1.1").contains("via 10.1.0.2 dev wa"));
        });
    }

    #[test]
    fn ranges_are_added_and_removed_independently() {
        in_namespace("ranges_are_added_and_removed_independently", |namespace| {
            let all = ["10.2.0.0/16", "10.2.7.0/24", "2001:db8:f::/48"].map(net);
            let mut detour = namespace.run(|| Detour::open("tun0", &all)).unwrap().unwrap();
            let inside = ["10.2.1.1", "10.2.7.1", "2001:db8:f::1"];
            for led in [&[][..], &[0], &[0, 1, 2], &[1], &[1, 2], &[0], &[]] {
                let ranges: Vec<IpNet> = led.iter().map(|at| all[*at]).collect();
                assert!(namespace.run(|| detour.lead(&ranges)).unwrap().unwrap().is_empty());
                for to in inside {
                    let is_led =
                        ranges.iter().any(|range| range.contains(&to.parse::<IpAddr>().unwrap()));
                    let route = route(namespace, to);
                    assert_eq!(route.contains("dev tun0"), is_led, "{led:?}: {route}");
                }
            }
        });
    }

    #[test]
    fn device_without_ipv6_takes_ipv4() {
        in_namespace("device_without_ipv6_takes_ipv4", |namespace| {
            let ranges = ["10.2.0.0/16", "2001:db8:f::/48"].map(net);
            batch(namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
            for device in ["tun0", "lo"] {
                let off = format!("net.ipv6.conf.{device}.disable_ipv6");
                namespace.run(|| crate::sysctl::set(&off, "1")).unwrap().unwrap();
                let mut detour = namespace.run(|| Detour::open("tun0", &ranges)).unwrap().unwrap();
                assert!(detour.watchdog().is_some());
                assert_eq!(detour.unguarded().is_some(), device == "lo");
                let shortfalls = namespace.run(|| detour.lead(&ranges)).unwrap().unwrap();
                assert!(
                    matches!(shortfalls[..], [(at, Shortfall::NotLed(_))] if at == ranges[1]),
                    "{shortfalls:?}"
                );
                assert!(route(namespace, "10.2.1.1").contains("dev tun0"));
                assert!(namespace.run(|| detour.lead(&ranges[1..])).unwrap().is_err());
                assert!(route(namespace, "10.2.1.1").contains("dev wa"));
            }
        });
    }

    #[test]
    fn packets_marked_by_others_bypass_the_detour() {
        in_namespace("packets_marked_by_others_bypass_the_detour", |namespace| {
            let _detour = set(namespace, &["10.2.0.0/16"]);
            for (mark, route) in
                [("0", "dev tun0"), ("0x54570005", "dev wa"), ("0x4000", "dev tun0")]
            {
                let words = ["route", "get", "10.2.1.1", "mark", mark];
                let found = namespace.run(|| ask(Tool::Ip, &words)).unwrap().unwrap();
                assert!(found.contains(route), "{mark}: {found}");
            }
        });
    }

    #[test]
    fn learned_windows_follow_a_detour_and_back() {
        in_namespace("learned_windows_follow_a_detour_and_back", |namespace| {
            let windows =
                |segments| Windows { congestion: Segments::new(segments).unwrap(), receive: None };
            let (to, prefix) = ("10.2.1.7", net("10.2.1.7/32"));
            let mut routes = namespace.run(Routes::open).unwrap().unwrap();
            assert_eq!(routes.set(prefix, windows(40)).unwrap(), Placed::Set);
            let follow = |routes: &mut Routes| {
                for (_, placed) in routes.follow() {
                    assert_eq!(placed.unwrap(), Placed::Set);
                }
            };
            let assert_route = |routes: &mut Routes, learn: Option<u32>, expected: [&str; 3]| {
                follow(routes);
                if let Some(segments) = learn {
                    assert_eq!(routes.set(prefix, windows(segments)).unwrap(), Placed::Set);
                }
                let route = route(namespace, to);
                for part in expected {
                    assert!(route.contains(part), "{part} in {route}");
                }
            };
            assert_route(&mut routes, None, ["via 10.1.0.2 dev wa", "initcwnd 40", "congctl reno"]);
            // The learner looks up routes as soon as it is notified of their changes.
            let is_set = AtomicBool::new(false);
            let detour = std::thread::scope(|scope| {
                let detour = scope.spawn(|| {
                    let detour = set(namespace, &["10.2.0.7/16"]);
                    is_set.store(true, Ordering::Relaxed);
                    detour
                });
                while !is_set.load(Ordering::Relaxed) {
                    follow(&mut routes);
                }
                detour.join().unwrap()
            });
            assert_route(&mut routes, None, ["10.2.1.7 dev tun0", "initcwnd 40", "congctl reno"]);
            assert_route(
                &mut routes,
                Some(60),
                ["10.2.1.7 dev tun0", "initcwnd 60", "congctl reno"],
            );
            namespace.run(|| drop(detour)).unwrap();
            assert_route(
                &mut routes,
                Some(70),
                ["via 10.1.0.2 dev wa", "initcwnd 70", "congctl reno"],
            );
        });
    }

    #[test]
    fn only_unmarked_packets_bypass_a_hung_process() {
        let chains = go_round(&["10.2.0.0/16", "2001:db8:f::/48"].map(net), KIND | 7).join("\n");
        let rules = "meta nfproto @heartbeat return; meta mark & 0xffff0000 == 0x54570000 return; \
                     ip daddr 10.2.0.0/16 meta mark set 0x54570007; \
                     ip6 daddr 2001:db8:f::/48 meta mark set 0x54570007;";
        assert_eq!(chains.matches(rules).count(), 2, "{chains}");
    }

    #[test]
    fn missing_device_is_named() {
        let error = Detour::open("none84", &[net("192.0.2.0/24")]).unwrap_err();
        assert!(error.to_string().contains("none84"), "{error}");
    }
}
