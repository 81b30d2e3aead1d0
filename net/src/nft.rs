//! Forwarding by nftables: packets to one address and port go on to another, untouched but for their
//! addresses. The kernel does it alone; no connection ends here [CDD 3, the baseline].
//!
//! Each [`Forwarding`] has a table of its own, `tradewind-forward-ADDRESS-PORT`, which is set whole or not at
//! all. It goes with its owner; what an owner that was killed has left is replaced by the next.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::process::Stdio;

use crate::error::{NetError, Result};
use crate::{iproute, sysctl};

const TOOL: &str = "nft";

/// Packets to `listen` go on to `to`, and the answers back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// Where they come; an unspecified address stands for all of this host.
    pub listen: SocketAddr,
    /// Where they go.
    pub to: SocketAddr,
}

/// A rule in force; it is removed when this is dropped.
#[derive(Debug)]
pub struct Forwarding {
    table: String,
}

impl Forwarding {
    /// Puts `rule` in force in this thread's network namespace, in place of one with the same `listen`.
    ///
    /// # Errors
    /// When `nft` is missing or may not, when the rule joins IPv4 and IPv6, or when the kernel does not
    /// forward (`net.ipv4.ip_forward`).
    pub fn set(rule: &Rule) -> Result<Self> {
        let setting = match (rule.listen.ip(), rule.to.ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => "net.ipv4.ip_forward",
            (IpAddr::V6(_), IpAddr::V6(_)) => "net.ipv6.conf.all.forwarding",
            _ => {
                return Err(NetError::Unsupported {
                    ability: "forwarding between IPv4 and IPv6",
                    needs: "two addresses of one family",
                });
            }
        };
        let table = table_of(rule.listen);
        run(&script(&table, rule))?;
        let forwarding = Self { table };
        if sysctl::get(setting)? == "0" {
            return Err(NetError::Unsupported {
                ability: "forwarding switched on",
                needs: "`sysctl -w net.ipv4.ip_forward=1` (IPv6: net.ipv6.conf.all.forwarding)",
            });
        }
        Ok(forwarding)
    }

    /// The name of its table.
    #[must_use]
    pub fn table(&self) -> &str {
        &self.table
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        // Whoever removed it before us has done the work.
        let _gone = run(&format!("delete table inet {}\n", self.table));
    }
}

/// A name without colons, which nft does not take in one.
fn table_of(listen: SocketAddr) -> String {
    format!("tradewind-forward-{}-{}", listen.ip(), listen.port()).replace(':', "_")
}

/// One transaction: whatever the table was, it is this afterwards.
fn script(table: &str, rule: &Rule) -> String {
    let family = if rule.to.is_ipv4() { "ip" } else { "ip6" };
    let here = match rule.listen.ip().is_unspecified() {
        true => "fib daddr type local".to_owned(),
        false => format!("{family} daddr {}", rule.listen.ip()),
    };
    let (from_port, to_port, to) = (rule.listen.port(), rule.to.port(), rule.to);
    let to_host = to.ip();
    let there = format!("{here} tcp dport {from_port} dnat {family} to {to}");
    // Answers must come back this way, so the destination sees this host's address.
    let back = format!(
        "ct status dnat {family} daddr {to_host} tcp dport {to_port} ct original proto-dst {from_port} masquerade"
    );
    let mut text = format!("add table inet {table}\ndelete table inet {table}\n");
    let chains = [
        ("arriving", "prerouting priority dstnat", &there),
        ("own", "output priority -100", &there),
        ("leaving", "postrouting priority srcnat", &back),
    ];
    let _ = writeln!(text, "table inet {table} {{");
    for (name, hook, rule) in chains {
        let _ = writeln!(text, "chain {name} {{ type nat hook {hook}; policy accept; {rule}; }}");
    }
    text + "}\n"
}

fn run(script: &str) -> Result<()> {
    let start = |source: std::io::Error| match source.kind() {
        std::io::ErrorKind::NotFound => NetError::MissingTool { tool: TOOL, package: "nftables" },
        _ => NetError::system(format!("start {TOOL}"), source),
    };
    let mut command = iproute::command(TOOL);
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start)?;
    let mut stdin = child.stdin.take().expect("standard input was asked to be a pipe");
    // A tool that stops early closes its input; its own message says why.
    let _ = stdin.write_all(script.as_bytes());
    drop(stdin);
    let output = child
        .wait_with_output()
        .map_err(|source| NetError::system(format!("wait for {TOOL}"), source))?;
    if output.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let message = stderr.lines().next().unwrap_or("no message").trim();
    if message.contains("Operation not permitted") {
        return Err(NetError::NotPermitted {
            action: "set NAT rules",
            needs: "it takes the capability CAP_NET_ADMIN, which root outside a container has",
        });
    }
    let input = script.lines().find(|line| line.starts_with("chain")).unwrap_or(script);
    Err(NetError::Tool { tool: TOOL, input: input.trim().to_owned(), message: message.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_one_table_set_whole() {
        let rule = Rule {
            listen: "192.0.2.1:7000".parse().unwrap(),
            to: "198.51.100.2:443".parse().unwrap(),
        };
        let text = script(&table_of(rule.listen), &rule);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], "add table inet tradewind-forward-192.0.2.1-7000");
        assert_eq!(lines[1], "delete table inet tradewind-forward-192.0.2.1-7000");
        assert!(text.contains("ip daddr 192.0.2.1 tcp dport 7000 dnat ip to 198.51.100.2:443"));
        let v6 =
            Rule { listen: "[::]:7000".parse().unwrap(), to: "[2001:db8::1]:443".parse().unwrap() };
        let text = script(&table_of(v6.listen), &v6);
        assert!(text.contains("table inet tradewind-forward-__-7000"), "{text}");
        assert!(text.contains("fib daddr type local tcp dport 7000 dnat ip6 to [2001:db8::1]:443"));
    }

    #[test]
    fn two_families_are_not_joined() {
        let rule =
            Rule { listen: "[::]:7000".parse().unwrap(), to: "192.0.2.1:443".parse().unwrap() };
        let error = Forwarding::set(&rule).unwrap_err().to_string();
        assert!(error.contains("two addresses of one family"), "{error}");
    }
}
