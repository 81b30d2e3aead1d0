//! Interception of connections: TCP to chosen destinations that this host forwards, or sends
//! itself, goes to a local listener, which sees both original addresses (TPROXY); so does UDP
//! (`datagrams`).
//!
//! An nftables rule assigns a packet to its listener and marks it, and a policy routing rule
//! delivers marked packets to this host. Mark and routing table are the same number, `0x5457....`,
//! another one for each [`Interception`]. All of it is removed when the owner ends, however it
//! ends, except for the routing: that is removed on an orderly end, and what a killed owner has
//! left of it, which has no effect without its mark, or its device, is swept by the next one.
//!
//! While nobody listens, new connections through this host are forwarded as without rules. Nor is
//! anything new intercepted unless the rules' owner sends heartbeats (`watchdog`).
//!
//! Whole packets of any protocol are instead routed into a TUN device (`detour`).

mod datagrams;
mod detour;
mod keeper;
mod watchdog;

use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as LocalAddr, UnixListener};
use std::sync::Arc;

use nix::sys::socket::{setsockopt, sockopt};

use crate::error::{NetError, Result};
use crate::iproute::{self, Tool};
use crate::nft::Table;
use crate::route::kernel::Mark;

use watchdog::{IS_FELT, IS_NOT_FELT};

pub use detour::{Detour, Shortfall};
pub use keeper::Keeper;
pub use watchdog::{HEARTBEAT_INTERVAL, LAPSE, Watchdog};

/// The upper half of all marks and routing tables: "TW".
const KIND: u32 = 0x5457_0000;
/// The mask of that half.
const KIND_BITS: u32 = 0xffff_0000;
/// The highest number of an interception; the bits above it are left to others, such as Kubernetes
/// (0x4000, 0x8000).
const LAST_NUMBER: u32 = 0x3fff;
/// The protocol number (`proto`) of these routing rules and routes; free in iproute2's and FRR's
/// lists.
const PROTOCOL: &str = "84";
/// The same number, and the metric of routes into devices, for netlink. Chosen: below those of
/// copies with windows (`route`, `window_route`), which may be in the same table.
const MARK: Mark = Mark { protocol: 84, metric: 84 };
/// Preference of these routing rules. Chosen: before all others except that of the table `local`.
const PREFERENCE: &str = "84";

/// The mark (`SO_MARK`) of connections that an interceptor opens itself, which are never
/// intercepted.
pub const OWN_MARK: u32 = KIND;

/// The hop limit (TTL) of what gateways and relays dial and deliver. Packets with no more hops left
/// than this are not intercepted: they may have been intercepted before, here or elsewhere, and
/// would loop without end. Chosen: systems begin with 64 or more and are near their gateway, and no
/// path of the Internet is as long as 48.
pub const CARRIED_HOPS: u8 = 48;

/// The hop limit (TTL) of answers to intercepted datagrams, which leave under the address of who
/// gave them. Those that come with no more hops left to a socket on another host's address are such
/// answers, and are not carried again. Chosen: who is intercepted is at most so near, and who
/// answers begins with 64 or more and is not farther than 47 hops.
pub const ANSWERED_HOPS: u8 = 64 - CARRIED_HOPS;

/// Addresses with a common prefix, and ports of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AddressRange {
    /// An address with the prefix.
    pub base: IpAddr,
    /// The prefix's length.
    pub prefix_bits: u8,
    /// The ports.
    pub ports: RangeInclusive<u16>,
}

/// The traffic to intercept, and the listeners for it.
#[derive(Debug, Clone)]
pub struct Capture {
    /// Destinations.
    pub destinations: Vec<AddressRange>,
    /// Transparent listeners on addresses of this host, for IPv4 and for IPv6.
    pub listeners: Vec<SocketAddr>,
    /// True if this host's own traffic is intercepted, too.
    pub local_output: bool,
}

/// Rules in force; they are removed when this is dropped.
#[derive(Debug)]
pub struct Interception {
    /// Declared before the table, so that no heartbeat is sent for a removed one.
    watchdog: Arc<Watchdog>,
    table: Table,
    _routing: Routing,
}

impl Interception {
    /// Sets rules for `capture` in this thread's network namespace. New connections are intercepted
    /// for [`LAPSE`], and again after each heartbeat of [`Interception::watchdog`]; intercepted
    /// ones stay so.
    ///
    /// # Errors
    /// When `nft` or `ip` is missing or lacks rights, or the kernel has no TPROXY.
    pub fn set(capture: &Capture) -> Result<Self> {
        Self::set_chains(families(capture), |mark| chains(capture, mark))
    }

    /// Sets rules for datagrams, whatever the age of their conversations. The sockets of
    /// `capture.listeners` must be transparent, and so must those that answer from the original
    /// destination addresses.
    ///
    /// # Errors
    /// As [`Interception::set`].
    pub fn set_for_datagrams(capture: &Capture) -> Result<Self> {
        Self::set_chains(families(capture), |mark| datagrams::take(capture, mark))
    }

    /// Checks whether [`Interception::set_for_datagrams`] would be possible now, as far as can be
    /// found without doing it.
    ///
    /// # Errors
    /// As [`Interception::set`].
    pub fn check_for_datagrams(capture: &Capture) -> Result<()> {
        iproute::ask(Tool::Ip, &["rule", "show"])?;
        Table::check(&name(0), &datagrams::take(capture, KIND))
    }

    /// Delivers datagrams to transparent sockets that this host has on foreign addresses in
    /// `sources`: answers to the datagrams that it sends from there.
    ///
    /// # Errors
    /// As [`Interception::set`].
    pub fn set_for_answers(sources: &[AddressRange]) -> Result<Self> {
        let is_there = |is_v6| sources.iter().any(|at| at.base.is_ipv6() == is_v6);
        Self::set_chains([false, true].map(is_there), |mark| datagrams::answers(sources, mark))
    }

    fn set_chains(families: [bool; 2], chains: impl Fn(u32) -> Vec<String>) -> Result<Self> {
        let routing = Routing::set(families)?;
        let watchdog = Watchdog::new(families, routing.table())?;
        let table = Table::set(&name(routing.number), &chains(routing.table()))?;
        watchdog.heartbeat()?;
        Ok(Self { table, watchdog: Arc::new(watchdog), _routing: routing })
    }

    /// Forwards datagrams of more than `most` bytes unchanged from now on.
    ///
    /// # Errors
    /// When the rules no longer exist.
    pub fn set_longest_datagram(&mut self, most: u16) -> Result<()> {
        let name = self.table.name().to_owned();
        self.table.tell(&datagrams::fitting(&name, most))
    }

    /// Returns the sender of heartbeats for the rules.
    #[must_use]
    pub fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    /// Returns the name of its nftables table.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.name()
    }
}

/// Lets a listener accept connections to addresses that are not this host's.
///
/// # Errors
/// Without CAP_NET_ADMIN.
pub fn make_transparent(listener: &impl AsFd) -> Result<()> {
    // The IPv4 option sets the same bit on an IPv6 socket.
    setsockopt(listener, sockopt::IpTransparent, &true).map_err(|errno| match errno {
        nix::errno::Errno::EPERM => NetError::NotPermitted {
            action: "take connections to others (IP_TRANSPARENT)",
            needs: "it takes the capability CAP_NET_ADMIN",
        },
        other => NetError::system("set IP_TRANSPARENT", other),
    })
}

fn name(number: u32) -> String {
    format!("tradewind-tproxy-{number}")
}

/// Returns whether traffic is intercepted for IPv4, and for IPv6.
fn families(capture: &Capture) -> [bool; 2] {
    [false, true].map(|is_v6| capture.listeners.iter().any(|to| to.is_ipv6() == is_v6))
}

/// Policy routing through a table of its own, IPv4 and IPv6; removed when dropped.
#[derive(Debug)]
struct Routing {
    number: u32,
    /// A socket with a name of this number as long as the process lives, so that no other sweeps
    /// it.
    _claim: UnixListener,
}

impl Routing {
    /// Claims a free number, after sweeping what others have left; sets no rule yet.
    fn claim() -> Result<Self> {
        sweep()?;
        let start = std::process::id() % LAST_NUMBER;
        let mut numbers = (0..LAST_NUMBER).map(|step| (start + step) % LAST_NUMBER + 1);
        let claimed = numbers.find_map(|number| Some((number, claim(number)?)));
        let (number, claim) = claimed.ok_or(NetError::Unsupported {
            kernel_feature: "number for another interception",
            needs: "fewer processes that intercept",
        })?;
        Ok(Self { number, _claim: claim })
    }

    /// Delivers packets marked with the number to this host.
    fn set(families: [bool; 2]) -> Result<Self> {
        let routing = Self::claim()?;
        let mark = format!("{:#x}", routing.table());
        let all = [("-4", "0.0.0.0/0"), ("-6", "::/0")];
        for ((family, all), _) in all.into_iter().zip(families).filter(|(_, is_there)| *is_there) {
            routing.route(family, &["local", all, "dev", "lo"])?;
            routing.rule(family, &["fwmark", &mark])?;
        }
        Ok(routing)
    }

    /// Adds a route to the table of the number.
    fn route(&self, family: &str, route: &[&str]) -> Result<()> {
        self.ask(&[&[family, "route", "replace"], route].concat())
    }

    /// Adds a rule that looks up packets matching `selector` in that table first.
    fn rule(&self, family: &str, selector: &[&str]) -> Result<()> {
        self.ask(&[&[family, "rule", "add", "pref", PREFERENCE], selector].concat())
    }

    fn table(&self) -> u32 {
        KIND | self.number
    }

    fn ask(&self, words: &[&str]) -> Result<()> {
        let table = self.table().to_string();
        iproute::ask(Tool::Ip, &[words, &["table", &table, "proto", PROTOCOL]].concat()).map(drop)
    }
}

impl Drop for Routing {
    fn drop(&mut self) {
        remove_routing(self.number);
    }
}

/// Claims a number; `None` while a live process has it. The name belongs to the network namespace,
/// as the rules do, and the kernel frees it with the process.
fn claim(number: u32) -> Option<UnixListener> {
    let address = LocalAddr::from_abstract_name(name(number)).ok()?;
    UnixListener::bind_addr(&address).ok()
}

/// Removes the routing that killed processes have left in this thread's network namespace,
/// including routes into a device that another process has, too.
///
/// # Errors
/// When `ip` is missing or lacks rights.
pub fn sweep() -> Result<()> {
    for family in ["-4", "-6"] {
        for number in numbers_in(&iproute::ask(Tool::Ip, &[family, "rule", "show"])?) {
            if let Some(_claim) = claim(number) {
                remove_routing(number);
            }
        }
    }
    Ok(())
}

fn remove_routing(number: u32) {
    let table = (KIND | number).to_string();
    for family in ["-4", "-6"] {
        // An absent rule or route needs no removal.
        let ours = ["pref", PREFERENCE, "table", &table, "proto", PROTOCOL];
        let rule = [&[family, "rule", "del"][..], &ours].concat();
        let _gone = iproute::ask(Tool::Ip, &rule);
        let route = [family, "route", "flush", "table", &table, "proto", PROTOCOL];
        let _gone = iproute::ask(Tool::Ip, &route);
    }
}

/// Returns the numbers of these rules in the output of `ip rule show`.
fn numbers_in(rules: &str) -> Vec<u32> {
    let number = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let after = |word| words.windows(2).find(|pair| pair[0] == word).map(|pair| pair[1]);
        let table: u32 = after("lookup")?.parse().ok()?;
        let is_ours = after("proto") == Some(PROTOCOL) && table & !LAST_NUMBER == KIND;
        is_ours.then_some(table & LAST_NUMBER)
    };
    rules.lines().filter_map(number).collect()
}

/// Returns the chains that intercept `capture` and mark it.
fn chains(capture: &Capture, mark: u32) -> Vec<String> {
    let mut take = Vec::new();
    for listener in &capture.listeners {
        let (protocol, family) = if listener.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
        take.push(format!(
            "{IS_FELT} meta nfproto {protocol} tcp flags & (syn | ack) == syn {} \
             tproxy {family} to {listener} meta mark set {mark:#x} accept",
            is_fresh(listener.ip())
        ));
    }
    // Packets of intercepted connections; older connections than these rules are not intercepted.
    take.push(format!("meta l4proto tcp socket transparent 1 meta mark set {mark:#x} accept"));
    let places: Vec<String> = capture.destinations.iter().map(place).collect();
    let each = |verdict: &str| {
        places.iter().map(|place| format!("{place} {verdict}")).collect::<Vec<_>>().join("; ")
    };
    let mut chains = watchdog::felt(mark).to_vec();
    chains.extend([
        format!("chain take {{ {}; }}", take.join("; ")),
        format!(
            "chain arriving {{ type filter hook prerouting priority mangle; policy accept; \
             fib daddr type != unicast return; {}; }}",
            each("jump take")
        ),
    ]);
    if capture.local_output {
        let begins = |at: &AddressRange| {
            let (place, is_fresh) = (place(at), is_fresh(at.base));
            format!(
                "{place} {IS_FELT} tcp flags & (syn | ack) == syn {is_fresh} ct mark set {mark:#x}"
            )
        };
        let begins = capture.destinations.iter().map(begins).collect::<Vec<_>>().join("; ");
        // A connection attempt that was not accepted is sent unchanged as well.
        let gives_up = each(&format!(
            "{IS_NOT_FELT} tcp flags & (syn | ack) == syn ct mark {mark:#x} ct mark set 0"
        ));
        // Includes connections that another interception of the same destinations has intercepted:
        // at an upgrade that one ends before its connections.
        let goes_on = each(&format!(
            "ct mark & {KIND_BITS:#x} == {KIND:#x} ct direction original meta mark set {mark:#x}"
        ));
        chains.push(format!(
            "chain own {{ type route hook output priority mangle; policy accept; \
             meta mark {OWN_MARK:#x} return; fib daddr type != unicast return; \
             {begins}; {gives_up}; {goes_on}; }}"
        ));
    }
    chains
}

/// Returns the match of packets to `to` that no gateway or relay has sent.
fn is_fresh(to: IpAddr) -> String {
    format!("{} > {CARRIED_HOPS}", if to.is_ipv4() { "ip ttl" } else { "ip6 hoplimit" })
}

fn place(AddressRange { base, prefix_bits, ports }: &AddressRange) -> String {
    let family = if base.is_ipv4() { "ip" } else { "ip6" };
    format!("{family} daddr {base}/{prefix_bits} tcp dport {}-{}", ports.start(), ports.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_rules_are_not_ours() {
        let rules = "0:\tfrom all lookup local
84:\tfrom all fwmark 0x54570007 lookup 1414987783 proto 84
85:\tfrom all fwmark 0x54570008 lookup 100
86:\tfrom all fwmark 0x7 lookup 100 proto 84
87:\tfrom all fwmark 0x54573fff/0xffffffff lookup 1415016447 proto 84
88:\tnot from all fwmark 0x54570000/0xffff0000 lookup 1414987784 proto 84
32766:\tfrom all lookup main";
        assert_eq!(numbers_in(rules), [7, 8]);
    }

    #[test]
    fn listener_per_family_and_optional_own_traffic() {
        let capture = Capture {
            destinations: vec![
                AddressRange { base: [198, 51, 100, 0].into(), prefix_bits: 24, ports: 443..=443 },
                AddressRange {
                    base: "2001:db8::".parse().unwrap(),
                    prefix_bits: 32,
                    ports: 1..=65535,
                },
            ],
            listeners: vec!["127.0.0.1:7080".parse().unwrap(), "[::1]:7080".parse().unwrap()],
            local_output: false,
        };
        let text = chains(&capture, KIND | 7).join("\n");
        for rule in [
            "ip ttl > 48 tproxy ip to 127.0.0.1:7080 meta mark set 0x54570007 accept",
            "ip6 hoplimit > 48 tproxy ip6 to [::1]:7080 meta mark set 0x54570007 accept",
        ] {
            assert!(text.contains(rule), "{text}");
        }
        assert!(text.contains("ip6 daddr 2001:db8::/32 tcp dport 1-65535 jump take"));
        let begins = text.matches("tcp flags & (syn | ack) == syn").count();
        assert_eq!(begins, text.matches(&format!("{IS_FELT} meta")).count(), "{text}");
        assert!(!text.contains("type route hook output"), "{text}");
        let text = chains(&Capture { local_output: true, ..capture }, KIND | 7).join("\n");
        assert!(text.contains("meta mark 0x54570000 return"), "{text}");
        let goes_on = "tcp dport 443-443 ct mark & 0xffff0000 == 0x54570000 ct direction original";
        assert!(text.contains(goes_on), "{text}");
        assert!(text.contains("ip6 hoplimit > 48 ct mark set 0x54570007"), "{text}");
    }
}
