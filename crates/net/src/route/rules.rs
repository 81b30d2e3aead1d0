//! Rules of policy routing that look at how long a route's prefix is.
//!
//! `ip rule add lookup main suppress_prefixlength 0`, which VPNs set, has a table's default route
//! passed over. A copy
//! of that route for one destination has a longer prefix and would not be: traffic that such rules
//! lead into a tunnel
//! would go round it.

use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::rule::{RuleAttribute, RuleMessage};

use super::kernel::{prefix_of, table_of};

/// Longest prefix that a rule takes for none, as the kernel writes "no such limit".
const NO_LIMIT: u32 = u32::MAX;

/// For each such rule its family, its table, and the longest prefix that it passes over.
#[derive(Debug, Default)]
pub(super) struct Suppressions(Vec<(AddressFamily, u32, u32)>);

impl Suppressions {
    /// Adds what `rule` suppresses, if it suppresses anything.
    pub(super) fn add(&mut self, rule: &RuleMessage) {
        let (mut table, mut longest) = (u32::from(rule.header.table), NO_LIMIT);
        for attribute in &rule.attributes {
            match attribute {
                RuleAttribute::Table(number) => table = *number,
                RuleAttribute::SuppressPrefixLen(length) => longest = *length,
                _ => {}
            }
        }
        if longest != NO_LIMIT {
            self.0.push((rule.header.family, table, longest));
        }
    }

    /// Returns whether a rule passes over `base` and would not pass over a copy of it for `prefix`.
    pub(super) fn spare_copy(&self, base: &RouteMessage, prefix: IpNet) -> bool {
        let (family, table) = (base.header.address_family, table_of(base));
        let original = prefix_of(base).map_or(0, |prefix| prefix.prefix_len());
        self.0.iter().any(|&(of, at, longest)| {
            let passes_over = |length: u8| u32::from(length) <= longest;
            (of, at) == (family, table)
                && passes_over(original)
                && !passes_over(prefix.prefix_len())
        })
    }
}
