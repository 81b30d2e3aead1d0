//! What this process may do and this kernel can do, found by looking or trying.

use std::fs;

/// Bit of the right to configure networks (`linux/capability.h`).
const CAP_NET_ADMIN: u32 = 12;
/// Bit of the right to make namespaces.
const CAP_SYS_ADMIN: u32 = 21;

/// Whether this process may make and configure network namespaces.
#[must_use]
pub fn may_make_networks() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective_capabilities(&status);
    effective & (1 << CAP_NET_ADMIN) != 0 && effective & (1 << CAP_SYS_ADMIN) != 0
}

/// Whether this process may change the routes of its network namespace.
#[must_use]
pub fn may_change_routes() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_capabilities(&status) & (1 << CAP_NET_ADMIN) != 0
}

/// The number of the user that this process acts for.
#[must_use]
pub fn user_id() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn effective_capabilities(status: &str) -> u64 {
    status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .unwrap_or(0)
}

/// The congestion controls that this kernel has, e.g. `reno`, `cubic`, `bbr`.
#[must_use]
pub fn congestion_controls() -> Vec<String> {
    let list = crate::sysctl::get("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

/// The kernel's release, e.g. `6.1.0-18-amd64`.
#[must_use]
pub fn kernel_release() -> String {
    crate::sysctl::get("kernel.osrelease").unwrap_or_else(|_| "unknown".to_owned())
}

/// Whether this kernel speaks IPv6.
#[must_use]
pub fn has_ipv6() -> bool {
    fs::exists("/proc/sys/net/ipv6").unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_status() {
        assert_eq!(effective_capabilities("Name:\tx\nCapEff:\t0000000000201000\n"), 0x20_1000);
        assert_eq!(effective_capabilities("no such line"), 0);
    }
}
