//! The same for packets of any protocol: those to chosen ranges are routed into a device of the process that takes them.
//!
//! The routes are in a table of our own, which all look into first but who has one of our marks: what the process itself sends
//! ([`OWN_MARK`](super::OWN_MARK)) goes its usual way, be it to the same ranges, and what another interception has marked goes where that leads it. A TUN device that
//! its process's end takes away takes the routes along, and what is left of the table is empty, so that packets go their old way at once; one that the next process
//! has as well does not: that one sweeps ([`sweep`](super::sweep)). A process that hangs keeps its device: then a table of nftables gives what would leave through that a mark of ours (`pulse`).
//!
//! What the routes that lead there without us tell connections, a first window or a congestion control, ours tell them, too (`route::told`).

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use ipnet::IpNet;
use netlink_packet_route::route::RouteMetric;
use nix::net::if_::if_nametoindex;

use super::pulse::{self, Pulse};
use super::{KIND, KIND_BITS, MARK, Routing};
use crate::error::{NetError, Result};
use crate::nft::Table;
use crate::route::kernel::Kernel;
use crate::route::told::Told;

/// What is not as wanted where packets to a range are to be led into a device.
#[derive(Debug)]
pub enum Shortfall {
    /// The kernel does not take what routes tell connections for one into the device: these are told nothing.
    Untold,
    /// They are not led there.
    NotLed(NetError),
}

impl fmt::Display for Shortfall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untold => f.write_str("the kernel does not take the metrics of routes there for a route into the device: connections are not told them"),
            Self::NotLed(error) => write!(f, "packets go their old way: {error}"),
        }
    }
}

/// What leads packets into one device; all of it is removed when this is dropped.
#[derive(Debug)]
pub struct Detour {
    device: u32,
    /// What has packets go round a process that hangs, and its beats.
    guard: Option<(Arc<Pulse>, Table)>,
    /// Why there is none, or none for IPv6.
    unguarded: Option<NetError>,
    kernel: Kernel,
    /// The routes in force: prefixes, and what connections there are told.
    led: BTreeMap<IpNet, Vec<RouteMetric>>,
    routing: Routing,
}

impl Detour {
    /// Prepares to lead packets to some of `ranges` into `device`, in this thread's network namespace: none yet. What does not go for IPv6 alone, as on
    /// hosts without it, keeps no others back.
    ///
    /// # Errors
    /// When `ip` is missing or may not, or there is no such device.
    pub fn open(device: &str, ranges: &[IpNet]) -> Result<Self> {
        let index = if_nametoindex(device)
            .map_err(|errno| NetError::system(format!("look up the device {device}"), errno))?;
        let ranges: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
        let routing = Routing::claim()?;
        // Before the routes: who hears of those and looks where they lead finds them.
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

    /// Has packets to `ranges`, and to no others, leave through the device, for as long as [`Detour::pulse`] shows that this goes on.
    /// Connections are told what the routes of the main table tell them now. Says what it does without.
    ///
    /// # Errors
    /// When none of them can be led: without the right to change routes, or where the device is gone.
    ///
    /// # Cost
    /// Reads all routes.
    pub fn lead(&mut self, ranges: &[IpNet]) -> Result<Vec<(IpNet, Shortfall)>> {
        let ranges: Vec<IpNet> = ranges.iter().map(IpNet::trunc).collect();
        let told = Told::read(&mut self.kernel, &ranges)?;
        let wanted: BTreeMap<_, _> = ranges.iter().flat_map(|range| told.within(*range)).collect();
        let (table, mut shortfalls) = (self.routing.table(), Vec::new());
        for (prefix, metrics) in &wanted {
            if self.led.get(prefix) == Some(metrics) {
                continue;
            }
            match self.kernel.lead(*prefix, (table, self.device), metrics.clone()) {
                Ok(is_told) => {
                    self.led.insert(*prefix, metrics.clone());
                    shortfalls.extend((!is_told).then_some((*prefix, Shortfall::Untold)));
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

    /// What shows that whoever reads from the device goes on, where that can be shown.
    #[must_use]
    pub fn pulse(&self) -> Option<&Arc<Pulse>> {
        self.guard.as_ref().map(|(pulse, _)| pulse)
    }

    /// Why packets, or those of IPv6, stay in the device if whoever reads from it hangs; `None` when they go round it.
    #[must_use]
    pub fn unguarded(&self) -> Option<&NetError> {
        self.unguarded.as_ref()
    }
}

fn has_family(ranges: &[IpNet], is_ipv6: bool) -> bool {
    ranges.iter().any(|range| range.addr().is_ipv6() == is_ipv6)
}

/// A table that gives packets to `ranges` a mark of those that go their usual way, unless beats are felt.
fn guard(number: u32, ranges: &[IpNet]) -> Result<(Arc<Pulse>, Table)> {
    let mark = KIND | number;
    let pulse = Pulse::new([false, true].map(|is_ipv6| has_family(ranges, is_ipv6)), mark)?;
    let table = Table::set(&format!("tradewind-tun-{number}"), &go_round(ranges, mark))?;
    pulse.beat()?;
    Ok((Arc::new(pulse), table))
}

fn go_round(ranges: &[IpNet], mark: u32) -> Vec<String> {
    let go = |range: &IpNet| {
        let family = if range.addr().is_ipv4() { "ip" } else { "ip6" };
        format!("{family} daddr {range} meta mark set {mark:#x}")
    };
    let go = ranges.iter().map(go).collect::<Vec<_>>().join("; ");
    // What another interception has marked goes round the device anyway.
    let is_marked = format!("meta mark & {KIND_BITS:#x} == {KIND:#x} return");
    let chain = |name: &str, kind: &str, hook: &str| {
        format!(
            "chain {name} {{ type {kind} hook {hook} priority mangle; policy accept; {} return; {is_marked}; {go}; }}",
            pulse::IS_FELT
        )
    };
    let mut chains = pulse::felt(mark).to_vec();
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

    /// The way to an address, in `ip route`'s words.
    fn way(namespace: &Namespace, to: &str) -> String {
        namespace.run(|| ask(Tool::Ip, &["route", "get", "fibmatch", to])).unwrap().unwrap()
    }

    /// Runs `test` in a namespace with routes, and a device to lead packets into; says so where none can be made.
    fn in_namespace(name: &str, test: impl FnOnce(&Namespace)) {
        let may = crate::capability::may_make_networks();
        let Some(namespace) = may.then(Namespace::create).and_then(Result::ok) else {
            return skipped(&format!("{name}: no right to make network namespaces"));
        };
        let lines = [
            "link add wa type veth peer name wb",
            "link add taken type veth peer name other",
            "addr add 10.1.0.1/24 dev wa",
            "addr add 2001:db8:1::1/64 dev wa nodad",
            "link set wa up",
            "link set wb up",
            "link set taken up",
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
            let mut detour = Detour::open("taken", &ranges)?;
            assert!(detour.lead(&ranges)?.is_empty());
            Ok::<_, NetError>(detour)
        };
        namespace.run(lead).unwrap().unwrap()
    }

    #[test]
    fn connections_are_told_on_a_detour_what_they_were_told_before() {
        in_namespace("connections_are_told_on_a_detour_what_they_were_told_before", |namespace| {
            let detour = set(namespace, &["10.2.0.0/16", "10.3.0.0/16", "2001:db8:f::/48"]);
            for (to, expected) in [
                ("10.2.1.1", "10.2.0.0/16 dev taken"),
                ("10.2.1.1", "initcwnd 20 congctl reno"),
                ("10.2.7.1", "10.2.7.0/24 dev taken"),
                ("10.2.7.1", "quickack 1"),
                ("10.3.0.1", "10.3.0.0/16 dev taken"),
                ("2001:db8:f::1", "dev taken"),
                ("2001:db8:f::1", "initrwnd 33"),
                ("10.4.0.1", "default via 10.1.0.254 dev wa"),
            ] {
                let way = way(namespace, to);
                assert!(way.contains(expected), "{expected} in {way}");
            }
            for to in ["10.2.1.1", "10.3.0.1"] {
                assert!(!way(namespace, to).contains("mtu"), "a device has its own");
            }
            namespace.run(|| drop(detour)).unwrap();
            assert!(way(namespace, "10.2.1.1").contains("via 10.1.0.2 dev wa"));
        });
    }

    #[test]
    fn ranges_come_and_go_and_leave_each_other_alone() {
        in_namespace("ranges_come_and_go_and_leave_each_other_alone", |namespace| {
            let all = ["10.2.0.0/16", "10.2.7.0/24", "2001:db8:f::/48"].map(net);
            let mut detour = namespace.run(|| Detour::open("taken", &all)).unwrap().unwrap();
            let inside = ["10.2.1.1", "10.2.7.1", "2001:db8:f::1"];
            for led in [&[][..], &[0], &[0, 1, 2], &[1], &[1, 2], &[0], &[]] {
                let ranges: Vec<IpNet> = led.iter().map(|at| all[*at]).collect();
                assert!(namespace.run(|| detour.lead(&ranges)).unwrap().unwrap().is_empty());
                for to in inside {
                    let is_led =
                        ranges.iter().any(|range| range.contains(&to.parse::<IpAddr>().unwrap()));
                    let way = way(namespace, to);
                    assert_eq!(way.contains("dev taken"), is_led, "{led:?}: {way}");
                }
            }
        });
    }

    #[test]
    fn a_device_without_ipv6_takes_ipv4_all_the_same() {
        in_namespace("a_device_without_ipv6_takes_ipv4_all_the_same", |namespace| {
            let ranges = ["10.2.0.0/16", "2001:db8:f::/48"].map(net);
            batch(namespace, Tool::Ip, &["link set lo up".to_owned()]).unwrap();
            for device in ["taken", "lo"] {
                let off = format!("net.ipv6.conf.{device}.disable_ipv6");
                namespace.run(|| crate::sysctl::set(&off, "1")).unwrap().unwrap();
                let mut detour = namespace.run(|| Detour::open("taken", &ranges)).unwrap().unwrap();
                assert!(detour.pulse().is_some());
                assert_eq!(detour.unguarded().is_some(), device == "lo");
                let shortfalls = namespace.run(|| detour.lead(&ranges)).unwrap().unwrap();
                assert!(
                    matches!(shortfalls[..], [(at, Shortfall::NotLed(_))] if at == ranges[1]),
                    "{shortfalls:?}"
                );
                assert!(way(namespace, "10.2.1.1").contains("dev taken"));
                assert!(namespace.run(|| detour.lead(&ranges[1..])).unwrap().is_err());
                assert!(way(namespace, "10.2.1.1").contains("dev wa"));
            }
        });
    }

    #[test]
    fn what_another_interception_has_marked_goes_where_that_leads_it() {
        in_namespace(
            "what_another_interception_has_marked_goes_where_that_leads_it",
            |namespace| {
                let _detour = set(namespace, &["10.2.0.0/16"]);
                for (mark, way) in
                    [("0", "dev taken"), ("0x54570005", "dev wa"), ("0x4000", "dev taken")]
                {
                    let words = ["route", "get", "10.2.1.1", "mark", mark];
                    let found = namespace.run(|| ask(Tool::Ip, &words)).unwrap().unwrap();
                    assert!(found.contains(way), "{mark}: {found}");
                }
            },
        );
    }

    #[test]
    fn what_was_learned_follows_connections_onto_a_detour_and_back() {
        in_namespace("what_was_learned_follows_connections_onto_a_detour_and_back", |namespace| {
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
            let is_told = |routes: &mut Routes, learn: Option<u32>, expected: [&str; 3]| {
                follow(routes);
                if let Some(segments) = learn {
                    assert_eq!(routes.set(prefix, windows(segments)).unwrap(), Placed::Set);
                }
                let way = way(namespace, to);
                for part in expected {
                    assert!(way.contains(part), "{part} in {way}");
                }
            };
            is_told(&mut routes, None, ["via 10.1.0.2 dev wa", "initcwnd 40", "congctl reno"]);
            // Who learns looks where routes lead as soon as it hears of them.
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
            is_told(&mut routes, None, ["10.2.1.7 dev taken", "initcwnd 40", "congctl reno"]);
            is_told(&mut routes, Some(60), ["10.2.1.7 dev taken", "initcwnd 60", "congctl reno"]);
            namespace.run(|| drop(detour)).unwrap();
            is_told(&mut routes, Some(70), ["via 10.1.0.2 dev wa", "initcwnd 70", "congctl reno"]);
        });
    }

    #[test]
    fn what_goes_round_is_what_nobody_has_marked() {
        let chains = go_round(&["10.2.0.0/16", "2001:db8:f::/48"].map(net), KIND | 7).join("\n");
        let rules = "meta nfproto @pulse return; meta mark & 0xffff0000 == 0x54570000 return; \
                     ip daddr 10.2.0.0/16 meta mark set 0x54570007; ip6 daddr 2001:db8:f::/48 meta mark set 0x54570007;";
        assert_eq!(chains.matches(rules).count(), 2, "{chains}");
    }

    #[test]
    fn a_device_that_is_not_there_is_named() {
        let error = Detour::open("none84", &[net("192.0.2.0/24")]).unwrap_err();
        assert!(error.to_string().contains("none84"), "{error}");
    }
}
