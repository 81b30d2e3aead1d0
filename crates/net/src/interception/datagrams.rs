//! Interception of UDP, at both ends of a flow: datagrams to chosen destinations that this host
//! forwards, or sends itself, and the answers to datagrams that it sends from foreign addresses.
//!
//! UDP has no connections, so every datagram is intercepted, including those of conversations older
//! than the rules. Connection tracking is bypassed for all of them: with an entry, a conversation
//! that is no longer intercepted would be forwarded untranslated by a host that does NAT.

use std::net::SocketAddr;

use super::{AddressRange, Capture, OWN_MARK, is_fresh, watchdog};

/// Bypasses connection tracking for datagrams that this host's gateway sends from foreign
/// addresses. It intercepts nothing, and holds with or without heartbeats: a process that resumes
/// after a halt may send before its first one.
const UNTRACKED: &str = "fib saddr type != local notrack";

/// Length of UDP's header, which its length field includes.
const UDP_HEADER: u16 = 8;
/// The lengths that are intercepted, initially all: datagrams too long for the remote endpoint's
/// paths are forwarded unchanged.
const FITTING: &str = "set fitting { typeof udp length; flags interval; elements = { 0-65535 }; }";
const FITS: &str = "udp length @fitting";

/// Returns the command that limits interception to datagrams of at most `most` bytes, for the table
/// of this name.
pub(super) fn fitting(name: &str, most: u16) -> String {
    let longest = most.saturating_add(UDP_HEADER);
    format!("flush set inet {name} fitting; add element inet {name} fitting {{ 0-{longest} }}")
}

/// Returns the chains that intercept `capture` and mark it.
pub(super) fn take(capture: &Capture, mark: u32) -> Vec<String> {
    let fits = |at| format!("{} {FITS}", fresh_place("daddr", "dport", at));
    let places: Vec<String> = capture.destinations.iter().map(fits).collect();
    let takes: Vec<String> = capture.listeners.iter().map(|to| lead(to, mark)).collect();
    let (felt, others) = (watchdog::OR_RETURN, "fib daddr type != unicast return");
    let mut chains = watchdog::felt(mark).to_vec();
    chains.push(FITTING.to_owned());
    chains.extend([
        format!("chain take {{ {}; }}", takes.join("; ")),
        chain(
            "fresh",
            "filter",
            "prerouting",
            "raw",
            &[felt.into(), others.into(), each(&places, "notrack")],
        ),
        chain(
            "arriving",
            "filter",
            "prerouting",
            "mangle",
            &[felt.into(), others.into(), each(&places, "jump take")],
        ),
    ]);
    let answers =
        capture.destinations.iter().map(|at| place("saddr", "sport", at)).collect::<Vec<_>>();
    let mut leaving = vec![each(&answers, UNTRACKED)];
    if capture.local_output {
        let own = format!("meta mark {OWN_MARK:#x} return");
        let marks = format!("meta mark set {mark:#x}");
        leaving.extend([felt.into(), own.clone(), others.into(), each(&places, "notrack")]);
        chains.push(chain(
            "own",
            "route",
            "output",
            "mangle",
            &[felt.into(), own, others.into(), each(&places, &marks)],
        ));
    }
    chains.push(chain("leaving", "filter", "output", "raw", &leaving));
    chains
}

/// Returns the chains that deliver datagrams to transparent sockets on the addresses `sources`.
pub(super) fn answers(sources: &[AddressRange], mark: u32) -> Vec<String> {
    let come: Vec<String> = sources.iter().map(|at| place("daddr", "dport", at)).collect();
    let go: Vec<String> = sources.iter().map(|at| place("saddr", "sport", at)).collect();
    let accept_replies =
        format!("socket transparent 1 socket wildcard 0 meta mark set {mark:#x} accept");
    let felt = watchdog::OR_RETURN;
    let mut chains = watchdog::felt(mark).to_vec();
    chains.extend([
        chain(
            "fresh",
            "filter",
            "prerouting",
            "raw",
            &[felt.into(), each(&come, "socket transparent 1 socket wildcard 0 notrack")],
        ),
        chain(
            "arriving",
            "filter",
            "prerouting",
            "mangle",
            &[felt.into(), each(&come, &accept_replies)],
        ),
        chain("leaving", "filter", "output", "raw", &[each(&go, UNTRACKED)]),
    ]);
    chains
}

fn lead(listener: &SocketAddr, mark: u32) -> String {
    let (protocol, family) = if listener.is_ipv4() { ("ipv4", "ip") } else { ("ipv6", "ip6") };
    format!(
        "meta nfproto {protocol} meta l4proto udp \
         tproxy {family} to {listener} meta mark set {mark:#x} accept"
    )
}

fn chain(name: &str, kind: &str, hook: &str, priority: &str, rules: &[String]) -> String {
    let rules = rules.join("; ");
    format!(
        "chain {name} {{ type {kind} hook {hook} priority {priority}; policy accept; {rules}; }}"
    )
}

fn each(places: &[String], verdict: &str) -> String {
    places.iter().map(|place| format!("{place} {verdict}")).collect::<Vec<_>>().join("; ")
}

fn place(address: &str, port: &str, range: &AddressRange) -> String {
    let AddressRange { base, prefix_bits, ports } = range;
    let family = if base.is_ipv4() { "ip" } else { "ip6" };
    format!("{family} {address} {base}/{prefix_bits} udp {port} {}-{}", ports.start(), ports.end())
}

/// Returns the match of a place for datagrams that no gateway has delivered.
fn fresh_place(address: &str, port: &str, at: &AddressRange) -> String {
    format!("{} {}", place(address, port, at), is_fresh(at.base))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: u32 = 0x5457_0007;

    fn capture(local_output: bool) -> String {
        let capture = Capture {
            destinations: vec![
                AddressRange {
                    base: [198, 51, 100, 0].into(),
                    prefix_bits: 24,
                    ports: 5004..=5010,
                },
                AddressRange {
                    base: "2001:db8::".parse().unwrap(),
                    prefix_bits: 32,
                    ports: 1..=65535,
                },
            ],
            listeners: vec!["127.0.0.1:7080".parse().unwrap(), "[::1]:7080".parse().unwrap()],
            local_output,
        };
        take(&capture, MARK).join("\n")
    }

    #[test]
    fn each_family_has_its_listener_for_datagrams() {
        let text = capture(false);
        for rule in [
            "meta l4proto udp tproxy ip to 127.0.0.1:7080 meta mark set 0x54570007 accept",
            "meta l4proto udp tproxy ip6 to [::1]:7080 meta mark set 0x54570007 accept",
            "ip daddr 198.51.100.0/24 udp dport 5004-5010 ip ttl > 48 udp length @fitting jump \
             take",
            "ip6 daddr 2001:db8::/32 udp dport 1-65535 ip6 hoplimit > 48 udp length @fitting \
             notrack",
            "ip saddr 198.51.100.0/24 udp sport 5004-5010 fib saddr type != local notrack",
        ] {
            assert!(text.contains(rule), "{rule}\n{text}");
        }
        assert!(!text.contains("type route"), "{text}");
        assert!(capture(true).contains("@fitting meta mark set 0x54570007"));
    }

    #[test]
    fn longest_datagram_is_set_by_one_command() {
        assert_eq!(
            fitting("tw-1", 1400),
            "flush set inet tw-1 fitting; add element inet tw-1 fitting { 0-1408 }"
        );
        assert!(fitting("tw-1", u16::MAX).ends_with("{ 0-65535 }"));
    }

    #[test]
    fn answers_are_delivered_only_to_transparent_sockets() {
        let sources =
            [AddressRange { base: [10, 1, 0, 0].into(), prefix_bits: 16, ports: 1..=65535 }];
        let text = answers(&sources, MARK).join("\n");
        let rule = "ip daddr 10.1.0.0/16 udp dport 1-65535 socket transparent 1 socket wildcard 0 \
                    meta mark set 0x54570007 accept";
        assert!(text.contains(rule), "{text}");
        assert!(!text.contains("tproxy"), "{text}");
    }
}
