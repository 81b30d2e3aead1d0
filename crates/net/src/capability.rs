//! The capabilities of this process and this kernel, found by looking them up.

use std::fs;

/// Bit number of the capability to configure networks (`linux/capability.h`).
const CAP_NET_ADMIN: u32 = 12;
/// Bit number of the capability to create namespaces.
const CAP_SYS_ADMIN: u32 = 21;

/// Returns whether this process may create and configure network namespaces.
#[must_use]
pub fn may_make_networks() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = effective_capabilities(&status);
    effective & (1 << CAP_NET_ADMIN) != 0 && effective & (1 << CAP_SYS_ADMIN) != 0
}

/// Returns whether this process may change the routes of its network namespace.
#[must_use]
pub fn may_change_routes() -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    effective_capabilities(&status) & (1 << CAP_NET_ADMIN) != 0
}

/// Returns the effective user id of this process.
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

/// Returns the congestion controls of this kernel, e.g. `reno`, `cubic`, `bbr`.
#[must_use]
pub fn congestion_controls() -> Vec<String> {
    let list = crate::sysctl::get("net.ipv4.tcp_available_congestion_control").unwrap_or_default();
    list.split_whitespace().map(str::to_owned).collect()
}

/// Returns the kernel's release, e.g. `6.1.0-18-amd64`.
#[must_use]
pub fn kernel_release() -> String {
    crate::sysctl::get("kernel.osrelease").unwrap_or_else(|_| "unknown".to_owned())
}

/// Returns whether this kernel supports IPv6.
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
