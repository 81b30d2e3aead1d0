//! Forwarding by nftables: packets to one address and port are forwarded to another, with only
//! their addresses changed. The kernel does it alone; no connection ends here [CDD 3, the
//! baseline].
//!
//! Each [`Forwarding`] has a table of its own, `tradewind-forward-ADDRESS-PORT`, which is set whole
//! or not at all and removed with its owner, however that ends (see `Table`).

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Stdio};
use std::thread::sleep;

use tradewind_units::Duration;

use crate::error::{NetError, Result};
use crate::{iproute, sysctl};

const TOOL: &str = "nft";
/// Time between two checks whether a table exists.
const LOOK: Duration = Duration::from_millis(10);
/// Most checks before a table is given up. Chosen: 5 s, far longer than the tool takes on a loaded
/// machine.
const MAX_LOOKS: usize = 500;

/// A table that the kernel removes when its owner ends, even by SIGKILL (`flags owner`, Linux
/// 5.12).
///
/// The owner is the tool itself, which is kept running as a child: it ends when its input closes,
/// which is when this is dropped or this process ends.
#[derive(Debug)]
pub(crate) struct Table {
    name: String,
    tool: Child,
}

impl Table {
    /// Sets a table of family `inet` in this thread's network namespace, whole or not at all. A
    /// chain is one line, `chain NAME {...}`.
    ///
    /// # Errors
    /// When `nft` is missing, lacks rights or refuses, or another live process holds a table of
    /// this name.
    pub(crate) fn set(name: &str, chains: &[String]) -> Result<Self> {
        clear(name)?;
        // The tool that stays reports no result, so another one checks the table first.
        Self::check(name, chains)?;
        let text = text(name, chains);
        let mut command = iproute::command(TOOL);
        // A group of its own: Ctrl-C is for this process, whose sessions need the table until they
        // end.
        command.arg("-i").env("HOME", "/dev/null").process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut table = Self { name: name.to_owned(), tool: command.spawn().map_err(start_error)? };
        let stdin = table.tool.stdin.as_mut().expect("standard input was asked to be a pipe");
        // A tool that has ended is noticed below.
        let _ = stdin.write_all(text.as_bytes());
        for _ in 0..MAX_LOOKS {
            if !matches!(table.tool.try_wait(), Ok(None)) {
                break;
            }
            if is_there(name) {
                return Ok(table);
            }
            sleep(LOOK);
        }
        Err(NetError::Unsupported {
            kernel_feature: "nftables tables with an owner",
            needs: "Linux 5.12, and a program `nft` that has its interactive mode (`nft -i`)",
        })
    }

    /// Checks whether such a table could be set now.
    ///
    /// # Errors
    /// When `nft` is missing, lacks rights or refuses.
    pub(crate) fn check(name: &str, chains: &[String]) -> Result<()> {
        run(&["-c", "-f", "-"], &text(name, chains))
    }

    /// Runs `command`, of one line, in the owner, whole or not at all; a command that the kernel
    /// refuses has no effect.
    ///
    /// # Errors
    /// When the owner has ended.
    pub(crate) fn tell(&mut self, command: &str) -> Result<()> {
        let stdin = self.tool.stdin.as_mut().expect("standard input was asked to be a pipe");
        let written = stdin.write_all(format!("{command}\n").as_bytes());
        written.map_err(|source| NetError::system("change an nftables table", source))
    }

    /// Returns its name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // The kernel removes the table with the tool, however it ends.
        let _ended = self.tool.kill();
        let _reaped = self.tool.wait();
    }
}

fn text(name: &str, chains: &[String]) -> String {
    format!("table inet {name} {{ flags owner; {}; }}\n", chains.join("; "))
}

/// Removes a table without an owner, or waits for the end of one whose owner is ending.
fn clear(name: &str) -> Result<()> {
    let mut looks = 0;
    loop {
        let cleared =
            run(&["-f", "-"], &format!("add table inet {name}\ndelete table inet {name}\n"));
        looks += 1;
        match cleared {
            Err(NetError::NotPermitted { .. }) if is_there(name) && looks < MAX_LOOKS / 10 => {
                sleep(LOOK);
            }
            cleared => return cleared,
        }
    }
}

fn is_there(name: &str) -> bool {
    let mut command = iproute::command(TOOL);
    command.args(["list", "table", "inet", name]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// A rule that forwards packets to `listen` to `to`, and the answers back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule {
    /// The address of incoming packets; an unspecified one stands for all of this host's.
    pub listen: SocketAddr,
    /// The address to forward to.
    pub to: SocketAddr,
}

/// A rule in force; removed when dropped.
#[derive(Debug)]
pub struct Forwarding {
    table: Table,
}

impl Forwarding {
    /// Sets `rule` in this thread's network namespace.
    ///
    /// # Errors
    /// When `nft` is missing or lacks rights, when another live process holds a rule with the same
    /// `listen`, when the rule joins IPv4 and IPv6, or when the kernel does not forward
    /// (`net.ipv4.ip_forward`).
    pub fn set(rule: &Rule) -> Result<Self> {
        let setting = match (rule.listen.ip(), rule.to.ip()) {
            (IpAddr::V4(_), IpAddr::V4(_)) => "net.ipv4.ip_forward",
            (IpAddr::V6(_), IpAddr::V6(_)) => "net.ipv6.conf.all.forwarding",
            _ => {
                return Err(NetError::Unsupported {
                    kernel_feature: "forwarding between IPv4 and IPv6",
                    needs: "two addresses of one family",
                });
            }
        };
        if sysctl::get(setting)? == "0" {
            return Err(NetError::Unsupported {
                kernel_feature: "forwarding switched on",
                needs: "`sysctl -w net.ipv4.ip_forward=1` (IPv6: net.ipv6.conf.all.forwarding)",
            });
        }
        Ok(Self { table: Table::set(&table_of(rule.listen), &chains(rule))? })
    }

    /// Checks whether such rules can be set here, whole and with an owner: sets some that no packet
    /// matches, and removes them.
    ///
    /// # Errors
    /// As [`Forwarding::set`], except that the kernel need not forward.
    pub fn try_out() -> Result<()> {
        // Addresses for documentation (RFC 5737), which no host has.
        let at = |host: u8| SocketAddr::from(([192, 0, 2, host], 1));
        let rule = Rule { listen: at(1), to: at(2) };
        Table::set(&format!("tradewind-trial-{}", std::process::id()), &chains(&rule)).map(drop)
    }

    /// Returns the name of its table.
    #[must_use]
    pub fn table(&self) -> &str {
        self.table.name()
    }
}

/// Returns a table name without colons, which nft does not accept in names.
fn table_of(listen: SocketAddr) -> String {
    format!("tradewind-forward-{}-{}", listen.ip(), listen.port()).replace(':', "_")
}

fn chains(rule: &Rule) -> Vec<String> {
    let family = if rule.to.is_ipv4() { "ip" } else { "ip6" };
    let here = if rule.listen.ip().is_unspecified() {
        "fib daddr type local".to_owned()
    } else {
        format!("{family} daddr {}", rule.listen.ip())
    };
    let (from_port, to_port, to) = (rule.listen.port(), rule.to.port(), rule.to);
    let to_host = to.ip();
    let there = format!("{here} tcp dport {from_port} dnat {family} to {to}");
    // Answers must return through this host, so the destination sees its address.
    let back = format!(
        "ct status dnat {family} daddr {to_host} tcp dport {to_port} \
         ct original proto-dst {from_port} masquerade"
    );
    let chains = [
        ("arriving", "prerouting priority dstnat", &there),
        ("own", "output priority -100", &there),
        ("leaving", "postrouting priority srcnat", &back),
    ];
    let chain = |(name, hook, rule): (_, _, &String)| {
        format!("chain {name} {{ type nat hook {hook}; policy accept; {rule}; }}")
    };
    chains.map(chain).to_vec()
}

fn start_error(source: std::io::Error) -> NetError {
    match source.kind() {
        std::io::ErrorKind::NotFound => NetError::MissingTool { tool: TOOL, package: "nftables" },
        _ => NetError::system(format!("start {TOOL}"), source),
    }
}

/// Runs the tool with `words` and `script` as its input.
fn run(words: &[&str], script: &str) -> Result<()> {
    let mut command = iproute::command(TOOL);
    command.args(words).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(start_error)?;
    let mut stdin = child.stdin.take().expect("standard input was asked to be a pipe");
    // A tool that stops early closes its input; its own message tells the reason.
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
            action: "set nftables rules",
            needs: "it takes the capability CAP_NET_ADMIN, which root outside a container has, \
                    and that no other process holds rules of the same name",
        });
    }
    let input = script.lines().next().unwrap_or(script).trim().to_owned();
    Err(NetError::Tool { tool: TOOL, input, message: message.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_forwards_packets_and_their_answers() {
        let rule = Rule {
            listen: "192.0.2.1:7000".parse().unwrap(),
            to: "198.51.100.2:443".parse().unwrap(),
        };
        assert_eq!(table_of(rule.listen), "tradewind-forward-192.0.2.1-7000");
        let text = chains(&rule).join("\n");
        assert!(text.contains("ip daddr 192.0.2.1 tcp dport 7000 dnat ip to 198.51.100.2:443"));
        let v6 =
            Rule { listen: "[::]:7000".parse().unwrap(), to: "[2001:db8::1]:443".parse().unwrap() };
        assert_eq!(table_of(v6.listen), "tradewind-forward-__-7000");
        let text = chains(&v6).join("\n");
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
