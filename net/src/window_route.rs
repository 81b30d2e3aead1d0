//! The first windows of all connections to one address, by a route to it.
//!
//! Where no program may be loaded (see [`crate::first_window`]), a route can carry the first
//! congestion window and the first receive window. It speaks for every process of the network
//! namespace, so one is made for a single address only: a copy of the route that is taken anyway.

use std::net::IpAddr;

use tradewind_units::Segments;

use crate::error::{NetError, Result};
use crate::iproute::{self, Tool};

/// Marks these routes among others' (`proto`); free in iproute2's and FRR's lists. Not that of
/// [`crate::route`], whose owner sweeps all routes of its own.
const PROTOCOL: &str = "83";

/// A route with first windows; taken away when dropped. After a kill it stays until the next
/// process that wants one for the same address replaces it.
#[derive(Debug)]
pub struct WindowRoute {
    prefix: String,
}

impl WindowRoute {
    /// Makes a route to `address` like the one that is taken now, with first windows of `window`.
    ///
    /// # Errors
    /// Without CAP_NET_ADMIN, without a route, for addresses of this host, and where `ip` is
    /// missing.
    pub fn set(address: IpAddr, window: Segments) -> Result<Self> {
        let found = iproute::ask(Tool::Ip, &["-o", "route", "get", &address.to_string()])?;
        let way = way_of(&found).ok_or(NetError::Unsupported {
            ability: "route with windows to an address of this host",
            needs: "only what leaves the host takes a route that can be set",
        })?;
        let prefix = format!("{address}/{}", if address.is_ipv4() { 32 } else { 128 });
        let window = window.as_u32().to_string();
        let mut line = vec!["route", "replace", prefix.as_str()];
        line.extend(way);
        line.extend(["proto", PROTOCOL, "initcwnd", &window, "initrwnd", &window]);
        iproute::ask(Tool::Ip, &line)?;
        Ok(Self { prefix })
    }
}

impl WindowRoute {
    /// Makes such a route to an address of documentation [RFC 5737] and takes it away.
    ///
    /// # Errors
    /// As [`WindowRoute::set`].
    pub fn try_out() -> Result<()> {
        let prefix = "192.0.2.82/32".to_owned();
        let line = ["route", "add", &prefix, "dev", "lo", "proto", PROTOCOL, "initcwnd", "10"];
        iproute::ask(Tool::Ip, &line)?;
        drop(Self { prefix });
        Ok(())
    }
}

impl Drop for WindowRoute {
    fn drop(&mut self) {
        // Whoever has removed it already did what is wanted here.
        let _removed = iproute::ask(Tool::Ip, &["route", "del", &self.prefix, "proto", PROTOCOL]);
    }
}

/// Next hop, device and source address of what `ip route get` prints; `None` for addresses of
/// this host.
fn way_of(found: &str) -> Option<Vec<&str>> {
    let words: Vec<&str> = found.split_whitespace().collect();
    if matches!(words.first(), Some(&("local" | "broadcast" | "multicast"))) {
        return None;
    }
    let pairs = words.windows(2).filter(|pair| matches!(pair[0], "via" | "dev" | "src"));
    let way: Vec<&str> = pairs.flatten().copied().collect();
    way.contains(&"dev").then_some(way)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_is_taken_over_and_the_rest_is_not() {
        let found = "192.0.2.9 via 10.0.0.1 dev eth0 src 10.0.0.7 uid 0 \\    cache expires 9sec";
        let expected = ["via", "10.0.0.1", "dev", "eth0", "src", "10.0.0.7"];
        assert_eq!(way_of(found).unwrap(), expected);
        assert_eq!(way_of("local 127.0.0.1 dev lo src 127.0.0.1 uid 0 \\ cache <local>"), None);
        assert_eq!(way_of(""), None);
    }
}
