//! Taking connections off their way: TCP to chosen destinations that passes this host, or that it sends itself, goes to a
//! listener here, which sees both true addresses (TPROXY); so does UDP (`datagrams`).
//!
//! A rule of nftables finds the listener of a packet and marks it, and a rule of policy routing takes what has the mark
//! to this host. Mark and routing table are one number of our own, `0x5457....`, of each [`Interception`] another. All of
//! it goes when the owner ends, however it ends, but for the routing: that is removed in order, and what an owner
//! that was killed has left of it, which does nothing without its mark, or its device, is swept by the next.
//!
//! While nobody listens, new connections through this host go on as if there were no rule. Nor is anything new taken unless the rules' owner
//! shows that it goes on (`pulse`).
//!
//! Whole packets of any protocol are taken by routes into a TUN device instead (`detour`).

mod datagrams;
mod detour;
mod keeper;
mod pulse;

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

use pulse::{IS_FELT, IS_NOT_FELT};

pub use detour::{Detour, Shortfall};
pub use keeper::Keeper;
pub use pulse::{BEAT_EVERY, LAPSE, Pulse};

/// The upper half of all our marks and routing tables: "TW".
const KIND: u32 = 0x5457_0000;
/// The bits of a mark that are that half.
const KIND_BITS: u32 = 0xffff_0000;
/// Numbers of interceptions; the bits above are left to others, such as Kubernetes (0x4000, 0x8000).
const LAST_NUMBER: u32 = 0x3fff;
/// Marks our routing rules and routes among others' (`proto`); free in iproute2's and FRR's lists.
const PROTOCOL: &str = "84";
/// The same, and the metric of routes into devices, for netlink. Chosen: below those of copies with windows (`route`, `window_route`), which may come into the same table.
const MARK: Mark = Mark { protocol: 84, metric: 84 };
/// Place of our routing rules. Chosen: before everybody's but the table `local`.
const PREFERENCE: &str = "84";

/// The mark of connections that an interceptor opens itself, which are never taken (`SO_MARK`).
pub const OWN_MARK: u32 = KIND;

/// What is taken, and where it goes.
#[derive(Debug, Clone)]
pub struct Capture {
    /// Destinations: addresses that share the first bits, and ports.
    pub destinations: Vec<(IpAddr, u8, RangeInclusive<u16>)>,
    /// Transparent listeners on addresses of this host, for IPv4 and for IPv6.
    pub listeners: Vec<SocketAddr>,
    /// Whether what this host sends itself is taken, too.
    pub own_host: bool,
}

/// Rules in force; they are removed when this is dropped.
#[derive(Debug)]
pub struct Interception {
    /// Before the table: nobody beats for one that is being removed.
    pulse: Arc<Pulse>,
    table: Table,
    _routing: Routing,
}

impl Interception {
    /// Puts rules for `capture` in force in this thread's network namespace. New connections are taken for [`LAPSE`], and on after each beat of
    /// [`Interception::pulse`]; those that were taken stay so.
    ///
    /// # Errors
    /// When `nft` or `ip` is missing or may not, or the kernel has no TPROXY.
    pub fn set(capture: &Capture) -> Result<Self> {
        Self::set_chains(families(capture), |mark| chains(capture, mark))
    }

    /// The same for datagrams, of whatever age their conversations are. The sockets that `capture.listeners` names must be transparent, and so must
    /// those that answer from the addresses that were written to.
    ///
    /// # Errors
    /// As [`Interception::set`].
    pub fn set_for_datagrams(capture: &Capture) -> Result<Self> {
        Self::set_chains(families(capture), |mark| datagrams::take(capture, mark))
    }

    /// Whether [`Interception::set_for_datagrams`] would be possible now, as far as can be told without doing it.
    ///
    /// # Errors
    /// As [`Interception::set`].
    pub fn check_for_datagrams(capture: &Capture) -> Result<()> {
        iproute::ask(Tool::Ip, &["rule", "show"])?;
        Table::check(&name(0), &datagrams::take(capture, KIND))
    }

    /// Takes datagrams to transparent sockets that this host has on others' addresses in `sources`: answers to what it sends from there.
    ///
    /// # Errors
    /// As [`Interception::set`].
    pub fn set_for_answers(sources: &[(IpAddr, u8, RangeInclusive<u16>)]) -> Result<Self> {
        let is_there = |is_v6| sources.iter().any(|at| at.0.is_ipv6() == is_v6);
        Self::set_chains([false, true].map(is_there), |mark| datagrams::answers(sources, mark))
    }

    fn set_chains(families: [bool; 2], chains: impl Fn(u32) -> Vec<String>) -> Result<Self> {
        let routing = Routing::set(families)?;
        let pulse = Pulse::new(families, routing.table())?;
        let table = Table::set(&name(routing.number), &chains(routing.table()))?;
        pulse.beat()?;
        Ok(Self { table, pulse: Arc::new(pulse), _routing: routing })
    }

    /// Leaves datagrams with more than `most` bytes on their old way from now on.
    ///
    /// # Errors
    /// When the rules are no more.
    pub fn set_longest_datagram(&mut self, most: u16) -> Result<()> {
        let name = self.table.name().to_owned();
        self.table.tell(&datagrams::fitting(&name, most))
    }

    /// What shows the rules that their owner goes on.
    #[must_use]
    pub fn pulse(&self) -> &Arc<Pulse> {
        &self.pulse
    }

    /// The name of its nftables table.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.name()
    }
}

/// Lets a listener take connections to addresses that are not this host's.
///
/// # Errors
/// Without CAP_NET_ADMIN.
pub fn make_transparent(listener: &impl AsFd) -> Result<()> {
    // The option of IPv4 sets the same bit on a socket of IPv6.
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

/// Whether something is to be taken of IPv4, and of IPv6.
fn families(capture: &Capture) -> [bool; 2] {
    [false, true].map(|is_v6| capture.listeners.iter().any(|to| to.is_ipv6() == is_v6))
}

/// Policy routing through a table of our own, IPv4 and IPv6; it goes when this is dropped.
#[derive(Debug)]
struct Routing {
    number: u32,
    /// Bound to a name of this number as long as the process lives, so that nobody sweeps it.
    _claim: UnixListener,
}

impl Routing {
    /// A number that nobody has, after what others have left was swept; no rule yet.
    fn claim() -> Result<Self> {
        sweep()?;
        let start = std::process::id() % LAST_NUMBER;
        let mut numbers = (0..LAST_NUMBER).map(|step| (start + step) % LAST_NUMBER + 1);
        let claimed = numbers.find_map(|number| Some((number, claim(number)?)));
        let (number, claim) = claimed.ok_or(NetError::Unsupported {
            ability: "number for another interception",
            needs: "fewer processes that intercept",
        })?;
        Ok(Self { number, _claim: claim })
    }

    /// Takes what is marked with the number to this host.
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

    /// Has what `selector` chooses look into that table first.
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

/// Takes the right to a number; `None` while a process that lives has it. The name is the network namespace's, as the
/// rules are, and the kernel frees it with the process.
fn claim(number: u32) -> Option<UnixListener> {
    let address = LocalAddr::from_abstract_name(name(number)).ok()?;
    UnixListener::bind_addr(&address).ok()
}

/// Removes the routing that processes which were killed have left in this thread's network namespace: such as leads into a device that another
/// process has, too.
///
/// # Errors
/// When `ip` is missing or may not.
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
        // What is not there needs no removal.
        let ours = ["pref", PREFERENCE, "table", &table, "proto", PROTOCOL];
        let rule = [&[family, "rule", "del"][..], &ours].concat();
        let _gone = iproute::ask(Tool::Ip, &rule);
        let route = [family, "route", "flush", "table", &table, "proto", PROTOCOL];
        let _gone = iproute::ask(Tool::Ip, &route);
    }
}

/// The numbers of our rules in what `ip rule show` prints.
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

/// The chains that take `capture` and mark it.
fn chains(capture: &Capture, mark: u32) -> Vec<String> {
    let mut take = Vec::new();
    for listener in &capture.listeners {
        let (protocol, family) = if listener.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
        take.push(format!(
            "{IS_FELT} meta nfproto {protocol} tcp flags & (syn | ack) == syn tproxy {family} to {listener} meta mark set {mark:#x} accept"
        ));
    }
    // What belongs to a connection that was taken; others, older than these rules, are let alone.
    take.push(format!("meta l4proto tcp socket transparent 1 meta mark set {mark:#x} accept"));
    let places: Vec<String> = capture.destinations.iter().map(place).collect();
    let each = |verdict: &str| {
        places.iter().map(|place| format!("{place} {verdict}")).collect::<Vec<_>>().join("; ")
    };
    let mut chains = pulse::felt(mark).to_vec();
    chains.extend([
        format!("chain take {{ {}; }}", take.join("; ")),
        format!(
            "chain arriving {{ type filter hook prerouting priority mangle; policy accept; fib daddr type != unicast return; {}; }}",
            each("jump take")
        ),
    ]);
    if capture.own_host {
        let begins =
            each(&format!("{IS_FELT} tcp flags & (syn | ack) == syn ct mark set {mark:#x}"));
        // What has begun and was not accepted goes its old way as well.
        let gives_up = each(&format!(
            "{IS_NOT_FELT} tcp flags & (syn | ack) == syn ct mark {mark:#x} ct mark set 0"
        ));
        // Also what another interception of the same destinations has begun to take: at an upgrade that one ends before its connections.
        let goes_on = each(&format!(
            "ct mark & {KIND_BITS:#x} == {KIND:#x} ct direction original meta mark set {mark:#x}"
        ));
        chains.push(format!(
            "chain own {{ type route hook output priority mangle; policy accept; meta mark {OWN_MARK:#x} return; fib daddr type != unicast return; {begins}; {gives_up}; {goes_on}; }}"
        ));
    }
    chains
}

fn place((base, bits, ports): &(IpAddr, u8, RangeInclusive<u16>)) -> String {
    let family = if base.is_ipv4() { "ip" } else { "ip6" };
    format!("{family} daddr {base}/{bits} tcp dport {}-{}", ports.start(), ports.end())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_rules_are_ours() {
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
    fn each_family_goes_to_its_listener_and_own_traffic_only_if_wanted() {
        let capture = Capture {
            destinations: vec![
                ([198, 51, 100, 0].into(), 24, 443..=443),
                ("2001:db8::".parse().unwrap(), 32, 1..=65535),
            ],
            listeners: vec!["127.0.0.1:7080".parse().unwrap(), "[::1]:7080".parse().unwrap()],
            own_host: false,
        };
        let text = chains(&capture, KIND | 7).join("\n");
        assert!(text.contains("tproxy ip to 127.0.0.1:7080 meta mark set 0x54570007 accept"));
        assert!(text.contains("tproxy ip6 to [::1]:7080 meta mark set 0x54570007 accept"));
        assert!(text.contains("ip6 daddr 2001:db8::/32 tcp dport 1-65535 jump take"));
        let begins = text.matches("tcp flags & (syn | ack) == syn").count();
        assert_eq!(begins, text.matches(&format!("{IS_FELT} meta")).count(), "{text}");
        assert!(!text.contains("type route hook output"), "{text}");
        let text = chains(&Capture { own_host: true, ..capture }, KIND | 7).join("\n");
        assert!(text.contains("meta mark 0x54570000 return"), "{text}");
        let goes_on = "tcp dport 443-443 ct mark & 0xffff0000 == 0x54570000 ct direction original";
        assert!(text.contains(goes_on), "{text}");
    }
}
